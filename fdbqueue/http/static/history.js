// The history of a queue: a card with what came in, went out and failed in the last minutes, hour or day.

import { get, now, queuePath } from "./api.js";
import { clock, duration, number, plural, wait } from "./format.js";
import { poll } from "./live.js";
import { h, s, setText } from "./ui.js";

const INTERVAL = 10_000; // milliseconds between two requests, at least
const CHOICE = "history"; // the chosen window, in the storage of the browser
const WIDTH = 600, HEIGHT = 150; // of the drawing, which is stretched

/**
 * @typedef {{begin: string, pushed: number, taken: number, completed: number, failed: number, died: number}} Bucket
 * @typedef {{seconds: number, since: string, pushed: number, taken: number, completed: number, failed: number, died: number,
 *   waiting_median: number | null, waiting_p95: number | null,
 *   running_median: number | null, running_p95: number | null, buckets: Bucket[]}} Window
 * @typedef {{begin: number, end: number, pushed: number, taken: number, failed: number}} Part
 */

const WINDOWS = [
  { seconds: 300, label: "5 min", text: "5 minutes", bucket: 30 },
  { seconds: 3600, label: "1 hour", text: "hour", bucket: 30 },
  { seconds: 86400, label: "1 day", text: "day", bucket: 900 },
];

/** What the chart shows, with the names of the counts. */
const SERIES = [["in", "pushed", "In"], ["out", "taken", "Out"], ["failed", "failed", "Failed"]];

/** The times of items, by the names of their fields. */
const TIMES = {
  waiting_median: "Median wait", waiting_p95: "Wait (p95)",
  running_median: "Median run time", running_p95: "Run time (p95)",
};

/** The units of rates: all have the first one in which the highest is at least 1. */
const UNITS = [[1, "/s"], [60, "/min"], [3600, "/h"]];
export const unitOf = (highest) => UNITS.find(([factor]) => highest * factor >= 1) ?? UNITS.at(-1);

/** 4.2/s, 12/min, <0.1/h */
export function pace(rate, [factor, unit]) {
  const value = rate * factor;
  if (value > 0 && value < 0.05) return `<0.1${unit}`;
  return `${value >= 9.95 || value === 0 ? number(Math.round(value)) : value.toFixed(1)}${unit}`;
}

/** Make the card of a queue; it reads its history until it is stopped. */
export function historyCard(queue) {
  let windows = null;
  let chosen = WINDOWS.find(({ seconds }) => String(seconds) === localStorage.getItem(CHOICE)) ?? WINDOWS[0];
  let readAt = -Infinity;
  let end = 0; // the time of the server at which the history was read, in milliseconds

  const chart = makeChart(queue);
  const legend = Object.fromEntries(SERIES.map(([kind]) => [kind, h("strong", {}, "–")]));
  const facts = Object.fromEntries([...Object.keys(TIMES), "died"].map((name) => [name, h("dd", {}, "–")]));
  const note = h("p.muted");
  const begin = h("span");
  const table = makeTable();
  const content = h("div.history-body", {},
    h("div.legend", {}, SERIES.map(([kind, , label]) => h(`span.legend-${kind}`, {}, `${label} `, legend[kind]))),
    chart.node,
    h("div.axis", {}, begin, h("span", {}, "now")),
    h("dl.numbers", {},
      Object.entries(TIMES).map(([name, label]) => h("div", {}, h("dt", {}, label), facts[name])),
      h("div", {}, h("dt", {}, "Died"), facts.died)),
    table.node);
  const node = h("section.card.history", { "aria-label": "Items in and out" },
    h("div.card-head", {}, h("h2", {}, "Items in and out"), windowSwitch(chosen, (window) => {
      chosen = window;
      localStorage.setItem(CHOICE, String(window.seconds));
      show();
    })),
    content, note);

  async function load() {
    if (performance.now() - readAt < INTERVAL - 100) return; // the page was hidden for a moment
    readAt = performance.now();
    ({ windows } = await get(`${queuePath(queue)}/history`));
    end = now();
    show();
  }

  function show() {
    const window = windows?.find(({ seconds }) => seconds === chosen.seconds);
    if (!window) return;
    const since = Date.parse(window.since);
    const seconds = Math.max(1, (end - since) / 1000);
    // The last bucket is not over, so a window is up to a bucket shorter than its name says.
    const period = seconds > chosen.seconds - chosen.bucket - 5 ? chosen.text : duration(seconds);
    const parts = partsOf(window, chosen.bucket, since, end);
    const unit = unitOf(Math.max(...SERIES.map(([, count]) => window[count])) / seconds);
    const rates = Object.fromEntries(SERIES.map(([kind, count]) => [kind, pace(window[count] / seconds, unit)]));
    for (const [kind] of SERIES) setText(legend[kind], rates[kind]);
    for (const name of Object.keys(TIMES)) setText(facts[name], window[name] === null ? "–" : wait(window[name]));
    setText(facts.died, number(window.died));
    facts.died.classList.toggle("error-text", window.died > 0);
    setText(begin, `${duration(seconds)} ago`);
    chart.update(parts, since, end, unit,
      `${queue} in the last ${period}: in ${rates.in}, out ${rates.out}, failed ${rates.failed}`,
      `Nothing came in or went out in the last ${period}.`);
    table.update(parts, period);
    content.hidden = false;
    setText(note, "");
  }

  const polling = poll(load, { interval: INTERVAL, failed(error) {
    content.hidden = true;
    setText(note, error.status === 404 ? "There is no history of this queue." : `The history cannot be shown: ${error.message}`);
  } });
  return { node, stop: polling.stop };
}

/** Make the choice of a window. */
function windowSwitch(chosen, choose) {
  return h("fieldset.switch", {}, h("legend.visually-hidden", {}, "Window"), WINDOWS.map((window) =>
    h("label", {}, h("input", {
      type: "radio", name: "history-window", value: String(window.seconds), checked: window === chosen, on: { change: () => choose(window) },
    }), h("span", {}, window.label))));
}

/**
 * Return the parts of a window without gaps. The first and the last one may be shorter than a bucket.
 *
 * @param {Window} window
 * @param {number} size Seconds of a bucket.
 * @returns {Part[]}
 */
function partsOf({ buckets }, size, since, end) {
  const known = new Map(buckets.map((bucket) => [Date.parse(bucket.begin), bucket]));
  const step = 1000 * size;
  const origin = buckets.length ? Date.parse(buckets[0].begin) : since;
  const parts = [];
  for (let begin = origin - step * Math.ceil((origin - since) / step); begin < end; begin += step) {
    if (begin + step <= since) continue;
    const { pushed = 0, taken = 0, failed = 0 } = known.get(begin) ?? {};
    parts.push({ begin: Math.max(begin, since), end: Math.min(begin + step, end), pushed, taken, failed });
  }
  return parts;
}

const secondsOf = (part) => (part.end - part.begin) / 1000;

/** Return the parts that are long enough to say something about a rate: a quarter of the longest. */
function longEnough(parts) {
  const least = Math.max(0, ...parts.map(secondsOf)) / 4;
  return parts.filter((part) => secondsOf(part) >= least);
}

/** Round up to a number that is easy to read, and half of it as well. */
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 3, 4, 5, 6, 8, 10].find((factor) => value <= factor * power * 1.0001);
}

function makeChart(queue) {
  const area = s("path.area");
  const lines = { in: s("path.line.in"), out: s("path.line.out") };
  const bars = s("path.failures");
  const guide = s("path.guide");
  const drawing = s("svg.sparkline", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `History of ${queue}`,
  }, area, bars, lines.in, lines.out, guide);
  const labels = [h("span"), h("span")];
  const tip = h("div.tip", { hidden: true });
  const nothing = h("p.plot-empty", { hidden: true }, h("span"));
  const box = h("div.plot-area", { on: { pointermove: point, pointerleave: leave } }, drawing,
    h("div", { "aria-hidden": "true" }, tip), nothing);
  const node = h("div.plot", {}, h("div.plot-labels", { "aria-hidden": "true" }, labels), box);
  let parts = [], since = 0, end = 1;

  const x = (time) => (WIDTH * (time - since)) / (end - since);

  function point(event) {
    const { left, width } = drawing.getBoundingClientRect();
    const time = since + ((event.clientX - left) / width) * (end - since);
    const part = parts.find((each) => time < each.end) ?? parts.at(-1);
    if (!part || !nothing.hidden) return;
    const centre = x((part.begin + part.end) / 2);
    guide.setAttribute("d", `M${centre} 0V${HEIGHT}`);
    tip.hidden = false;
    tip.replaceChildren(h("strong", {}, periodText(part)), ...SERIES.map(([kind, count, label]) => h(`span.legend-${kind}`, {}, `${label} ${number(part[count])}`)));
    tip.style.insetInlineStart = `${Math.min(Math.max((100 * centre) / WIDTH, 16), 84)}%`;
  }

  function leave() {
    tip.hidden = true;
    guide.removeAttribute("d");
  }

  return {
    node,
    update(parts_, since_, end_, [factor, unit], text, emptyText) {
      [parts, since, end] = [parts_, since_, end_];
      const drawn = longEnough(parts);
      const rates = Object.fromEntries(SERIES.map(([kind, count]) => [kind, drawn.map((part) => part[count] / secondsOf(part))]));
      const highest = Math.max(0, ...Object.values(rates).flat());
      const isEmpty = parts.every((part) => SERIES.every(([, count]) => part[count] === 0));
      const top = highest === 0 ? 1 : roundedUp(highest * factor) / factor;
      const y = (rate) => HEIGHT - (HEIGHT - 2) * (rate / top);
      for (const kind of ["in", "out"]) {
        const middle = drawn.map((part, n) => `${x((part.begin + part.end) / 2).toFixed(1)} ${y(rates[kind][n]).toFixed(1)}`);
        const first = y(rates[kind][0] ?? 0).toFixed(1), last = y(rates[kind].at(-1) ?? 0).toFixed(1);
        const path = `M0 ${first}L${middle.join("L")}L${WIDTH} ${last}`;
        lines[kind].setAttribute("d", middle.length ? path : "");
        if (kind === "in") area.setAttribute("d", middle.length ? `${path}V${HEIGHT}H0Z` : "");
      }
      bars.setAttribute("d", drawn.map((part, n) => {
        if (!rates.failed[n]) return "";
        const width = Math.max(2, (x(part.end) - x(part.begin)) * 0.6);
        const left = (x(part.begin) + x(part.end) - width) / 2;
        const height = Math.max(3, HEIGHT - y(rates.failed[n]));
        return `M${left.toFixed(1)} ${HEIGHT}v${-height.toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}z`;
      }).join(""));
      drawing.classList.toggle("is-idle", isEmpty);
      drawing.setAttribute("aria-label", text);
      labels.forEach((label, n) => setText(label, highest === 0 ? "" : `${number((top * factor) / (n + 1))}${unit}`));
      nothing.hidden = !isEmpty;
      setText(nothing.firstChild, emptyText);
      leave();
    },
  };
}

/** "12:34:00 to 12:34:30" */
const periodText = (part) => `${clock(part.begin).slice(11)} to ${clock(part.end).slice(11)}`;

/** "01-31 12:34:00" */
const beginText = (part) => clock(part.begin).slice(5);

/** Make the same as a table, which is filled while it is open. */
function makeTable() {
  let shown = [[], ""];
  const caption = h("caption.visually-hidden");
  const body = h("tbody");
  const node = h("details.as-table", { on: { toggle: fill } }, h("summary", {}, "As a table"),
    h("div.scroll", { tabindex: 0, role: "group", "aria-label": "History as a table" }, h("table", {}, caption,
      h("thead", {}, h("tr", {}, ["From", ...SERIES.map(([, , label]) => label)].map((label) => h("th", { scope: "col" }, label)))), body)));

  function fill() {
    if (!node.open) return;
    const [parts, text] = shown;
    const changed = parts.filter((part) => SERIES.some(([, count]) => part[count] > 0)).reverse();
    setText(caption, `Items in the last ${text}; ${plural(parts.length - changed.length, "period")} without a change left out`);
    body.replaceChildren(...changed.map((part) => h("tr", {},
      h("th", { scope: "row" }, beginText(part)), SERIES.map(([, count]) => h("td", {}, number(part[count]))))));
  }

  return {
    node,
    update(...given) {
      shown = given;
      fill();
    },
  };
}
