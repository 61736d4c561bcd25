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

const LENGTHS = { w: 604800, d: 86400, h: 3600, m: 60, s: 1, ms: 0.001 };

/** 7d, 1h30m: a length of time as options and pushes take it. */
export function lengthText(seconds) {
  let left = Math.round(1000 * seconds);
  const parts = ["d", "h", "m", "s", "ms"].map((unit) => {
    const size = 1000 * LENGTHS[unit];
    const n = Math.floor(left / size);
    left -= n * size;
    return n ? `${n}${unit}` : "";
  });
  return parts.join("") || "0s";
}

/** Return the seconds of a number of seconds, or of a text such as "7d" or "1h30m". */
export function secondsOf(text, what) {
  const parts = [...text.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g)];
  if (/^\d+(\.\d+)?$/.test(text)) return Number(text);
  if (!parts.length || parts.map(([part]) => part).join("") !== text) throw new Error(`${what} is a length of time, such as 90s, 1h30m or 7d, not ${text}`);
  return parts.reduce((sum, [, n, unit]) => sum + n * LENGTHS[unit], 0);
}

/** 100/1m: a rate, which is a number of items and seconds. */
export const rateText = (rate) => (rate ? `${rate[0]}/${lengthText(rate[1])}` : "");

/** Return the number and the seconds of a text such as "100/1m". */
export function rateOf(text) {
  const [most, time] = text.split("/");
  if (!/^\d+$/.test(most) || !time) throw new Error(`a rate is a number and a time, such as 100/1m, not ${text}`);
  return [Number(most), secondsOf(time, "the time of a rate")];
}

/** shop.send("ada", subject="hi"), if a value is a job; otherwise null. */
export function callText(value) {
  const { job, args = [], kwargs = {} } = value ?? {};
  if (typeof job !== "string" || !Array.isArray(args) || kwargs === null || typeof kwargs !== "object" || Array.isArray(kwargs)) return null;
  const given = [...args.map((each) => JSON.stringify(each)), ...Object.entries(kwargs).map(([name, each]) => `${name}=${JSON.stringify(each)}`)];
  return `${job}(${given.join(", ")})`;
}

/** A value on one line; a job as a call. */
export function preview(value, length = 140) {
  const text = typeof value === "string" ? value : callText(value) ?? JSON.stringify(value) ?? "";
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** A priority as text: a number, or the JSON of a list. */
export const priorityText = (priority) => (priority === null ? "–" : JSON.stringify(priority));

/** The last part of an id, which tells ids apart. */
export const shortId = (id) => (id.length > 14 ? `…${id.slice(-12)}` : id);
