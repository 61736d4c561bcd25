// Numbers, times and values as text.

import { now } from "./api.js";

const exact = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** 1,234 */
export const number = (value) => exact.format(value);

/** 1,234 or 1.2M */
export const short = (value) => (value < 100_000 ? exact.format(value) : compact.format(value));

/** "1 item", "2 items" */
export const plural = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** 0.4/s, 12/s, 1.2K/s */
export function rate(value) {
  if (value >= 1000) return `${compact.format(value)}/s`;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)}/s`;
}

/** 4.2/s, 12/min, 3/h: the unit in which a number of items per second reads well. */
export function pace(value) {
  if (value === 0 || value >= 1) return rate(value);
  const [factor, unit] = value >= 1 / 60 ? [60, "min"] : [3600, "h"];
  return `${value * factor >= 10 ? Math.round(value * factor) : (value * factor).toFixed(1)}/${unit}`;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** 3 s, 5 min, 2 h 10 min */
export function duration(seconds) {
  if (seconds < 1) return "0 s";
  const n = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[n];
  const whole = Math.floor(seconds / size);
  const [nextSize, nextUnit] = UNITS[n + 1] ?? [1, ""];
  const rest = n < 2 ? Math.floor((seconds % size) / nextSize) : 0;
  return rest && whole < 10 ? `${whole} ${unit} ${rest} ${nextUnit}` : `${whole} ${unit}`;
}

/** 80 ms, 4.1 s, 5 min */
export function wait(seconds) {
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : duration(Math.round(seconds));
}

/** Seconds since a time of the server. */
export const since = (iso) => (now() - Date.parse(iso)) / 1000;

/** 5 min ago, in 5 min */
export function relative(iso) {
  const seconds = since(iso);
  if (Math.abs(seconds) < 1) return "now";
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}

/** 5 min, for a time in the past */
export const elapsed = (iso) => duration(Math.max(0, since(iso)));

/** 2026-01-31 12:34:56, in the time zone of the browser */
export function clock(iso) {
  const time = new Date(iso);
  const pad = (part) => String(part).padStart(2, "0");
  const date = [time.getFullYear(), pad(time.getMonth() + 1), pad(time.getDate())].join("-");
  return `${date} ${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
}

/** A value on one line. */
export function preview(value, length = 140) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** A priority as text: a number, or the JSON of a list. */
export const priorityText = (priority) => (priority === null ? "–" : JSON.stringify(priority));

/** The last part of an id, which tells ids apart. */
export const shortId = (id) => (id.length > 14 ? `…${id.slice(-12)}` : id);
