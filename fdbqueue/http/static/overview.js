// The overview: all queues, their states, rates and alerts.

import { ApiError, can, get, queuePath } from "./api.js";
import { sparkline, stateBar } from "./charts.js";
import { duration, number, plural, rate, short, since } from "./format.js";
import { begin, note, poll, queues, recentRate, record } from "./live.js";
import { pushItem } from "./push.js";
import { STATES, age, badge, button, cell, command, empty, h, icon, reconcile, row, setText, skeleton, table } from "./ui.js";

const PAGE = 1000; // queues in a response
const ROWS = 50; // queues that are shown
const ALERTS = 4; // alerts that are shown
const WAITS = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 day"]];

const FILTERS = {
  all: ["All queues", () => true],
  alerts: ["With alerts", (queue) => alertsOf(queue).length > 0],
  active: ["With items", ({ stats }) => STATES.some((state) => state !== "done" && stats[state] > 0)],
  paused: ["Paused", ({ stats }) => stats.paused],
};

const SORTS = {
  name: ["Name", () => 0],
  ready: ["Most ready", (a, b) => b.stats.ready - a.stats.ready],
  dead: ["Most dead", (a, b) => b.stats.dead - a.stats.dead],
  oldest: ["Longest wait", (a, b) => wait(b) - wait(a)],
  rate: ["Busiest", (a, b) => total(recentRate(b.history)) - total(recentRate(a.history))],
};

const total = (found) => found.in + found.out;
/** When the oldest ready item was pushed, or a due one that no client has made ready. */
const waitsSince = ({ oldest, next_due: due }) => [oldest, due && since(due) > 0 ? due : null].filter(Boolean).sort()[0] ?? null;
const wait = ({ stats }) => (waitsSince(stats) ? since(waitsSince(stats)) : -1);

/** What is calculated with instead of the numbers of a queue that has only an error. */
const UNKNOWN = { ...Object.fromEntries(STATES.map((state) => [state, 0])), paused: false, oldest: null, unknown_jobs: 0, total_pushed: 0, total_completed: 0 };

// Alerts

let longestWait = Number(localStorage.getItem("longest-wait")) || 900;

/** @type {Map<string, number>} The number of workers of each queue. */
let workers = new Map();

const queueLink = (name, query = "") => `#/queues/${encodeURIComponent(name)}${query}`;

/** Return what is wrong with a queue. */
function alertsOf(queue) {
  const { name, stats, history } = queue;
  const found = [];
  if (stats.error) {
    found.push({ kind: "unknown", badge: "no numbers", text: `has no numbers: ${stats.error}`, href: queueLink(name) });
  }
  if (stats.dead > 0) {
    found.push({ kind: "dead", badge: "dead letters", text: `has ${plural(stats.dead, "dead letter")}`, href: queueLink(name, "?state=dead") });
  }
  if (stats.unknown_jobs > 0) {
    found.push({ kind: "jobs", badge: "unknown jobs", text: `has ${plural(stats.unknown_jobs, "job")} that no worker knows`, href: queueLink(name, "?state=delayed") });
  }
  if (stats.paused) return found;
  const waits = wait(queue);
  if (waits > longestWait) {
    found.push({ kind: "wait", badge: "long wait", text: `has an item that has waited for ${duration(waits)}`, href: queueLink(name) });
  }
  const isServed = workers.get(name) || stats.claimed > 0 || history.at(-1).completed > history[0].completed;
  if (stats.ready > 0 && !isServed) {
    found.push({ kind: "workers", badge: "no worker", text: `has ${plural(stats.ready, "ready item")} and no worker`, href: queueLink(name) });
  }
  return found;
}

// The page

const everything = []; // the history of the totals of all queues

/** Make the page. */
export function overviewPage() {
  const view = { search: "", filter: "all", sort: "name", page: 0 };
  let isLoaded = false;

  const tiles = summary();
  const alerts = alertList(() => {
    filter.value = view.filter = "alerts";
    changed();
    heading.focus();
  });
  const search = h("input", { type: "search", id: "search", placeholder: "Search by name", autocomplete: "off", spellcheck: "false",
    on: { input: () => { view.search = search.value; changed(); } } });
  const filter = choice("Show", FILTERS, (value) => { view.filter = value; changed(); });
  const sort = choice("Sort by", SORTS, (value) => { view.sort = value; changed(); });
  const heading = h("h2", { tabindex: -1 }, "Queues");
  const list = queueList();
  const place = h("div", {}, skeleton(8));
  const pager = pages((number) => { view.page = number; show(); heading.focus(); heading.scrollIntoView({ block: "start" }); });

  function changed() {
    view.page = 0;
    show();
  }

  function show() {
    if (!isLoaded && queues.size === 0) return;
    const all = [...queues.values()];
    tiles.update(all);
    alerts.update(all);
    const text = view.search.trim().toLowerCase();
    const matches = all.filter((queue) => queue.name.toLowerCase().includes(text) && FILTERS[view.filter][1](queue));
    matches.sort((a, b) => SORTS[view.sort][1](a, b) || (a.name < b.name ? -1 : 1));
    const last = Math.max(0, Math.ceil(matches.length / ROWS) - 1);
    view.page = Math.min(view.page, last);
    const first = view.page * ROWS;
    const shown = matches.slice(first, first + ROWS);
    list.update(shown);
    if (isLoaded) void remember(shown);
    pager.update(view.page, last, first, matches.length, isLoaded);
    const node = matches.length ? list.node : nothing(all.length, view);
    if (place.firstChild !== node && !(matches.length === 0 && place.firstChild?.classList.contains("empty"))) place.replaceChildren(node);
  }

  const polls = [
    poll(async () => {
      let after;
      do {
        const answer = await get("queues", { limit: PAGE, after });
        keep(answer.queues, after, answer.next);
        after = answer.next;
        if (!isLoaded) show();
      } while (after !== null);
      isLoaded = true;
      sample();
      show();
    }),
    poll(async () => {
      const counts = new Map();
      for (const { queues } of (await get("workers")).workers) {
        for (const queue of Object.keys(queues)) counts.set(queue, (counts.get(queue) ?? 0) + 1);
      }
      workers = counts;
      if (isLoaded) show();
    }, { interval: 5000 }),
  ];

  const waits = h("select", { id: "longest-wait", on: { change: () => {
    longestWait = Number(waits.value);
    localStorage.setItem("longest-wait", waits.value);
    show();
  } } }, WAITS.map(([seconds, label]) => h("option", { value: String(seconds) }, label)));
  waits.value = String(longestWait);

  return {
    title: "Overview",
    nodes: [
      h("div.title-row", {}, h("h1", { tabindex: -1 }, "Overview"),
        can("write") && h("div.actions", {}, button("Push an item", () => pushItem(null), { icon: "plus" }))),
      tiles.node,
      alerts.node,
      h("section.queues", { "aria-label": "Queues" },
        h("div.section-head", {}, heading,
          h("div.toolbar", {},
            h("div.search", {}, icon("search"), h("label.visually-hidden", { for: "search" }, "Search queues"), search, h("kbd", { "aria-hidden": "true" }, "/")),
            filter.node, sort.node,
            h("div.choice", {}, h("label", { for: "longest-wait" }, "Alert after"), waits))),
        place, pager.node),
    ],
    stop: () => polls.forEach((each) => each.stop()),
    search: () => search,
  };
}

/** Keep the numbers of a page of queues, and forget those that are gone. */
function keep(found, after, next) {
  const names = new Set(found.map((queue) => queue.name));
  for (const name of queues.keys()) {
    // Browsers compare UTF-16, the server UTF-8: for some rare names a queue goes one round later.
    const isOnPage = (after === undefined || name > after) && (next === null || name <= next);
    if (isOnPage && !names.has(name)) {
      queues.delete(name);
      remembered.delete(name);
    }
  }
  for (const queue of found) record(queue.name, { ...UNKNOWN, ...queue });
}

/** @type {Map<string, any>} The last minutes of the history of each queue whose chart has begun with it. */
const remembered = new Map();
let isReading = false;
let isBegun = false; // the chart of all queues, with their history

/** Let the charts of queues, and that of all if these are all, begin with what the server remembers. */
async function remember(shown) {
  const lacking = shown.filter(({ name }) => !remembered.has(name));
  if (isReading || !lacking.length) return;
  isReading = true;
  try {
    for (const queue of lacking) {
      remembered.set(queue.name, null);
      if (!queue.stats.total_pushed) continue; // nothing has happened, or its numbers are not known
      const [window] = (await get(`${queuePath(queue.name)}/history`)).windows;
      remembered.set(queue.name, window);
      begin(queue.history, window);
    }
    if (isBegun || lacking.length !== queues.size) return;
    isBegun = true;
    const found = [...remembered.values()].filter(Boolean);
    if (found.length) begin(everything, { since: found[0].since, buckets: found.flatMap((window) => window.buckets) });
  } catch (error) {
    // The queue is gone, or the server is, as the next requests tell: the charts begin with this page.
    if (!(error instanceof ApiError)) throw error;
  } finally {
    isReading = false;
  }
}

/** Note the totals of all queues. */
function sample() {
  let pushed = 0, completed = 0;
  for (const { stats } of queues.values()) {
    pushed += stats.total_pushed;
    completed += stats.total_completed;
  }
  note(everything, pushed, completed);
}

function choice(label, options, listener) {
  const id = `choice-${label.replace(" ", "-").toLowerCase()}`;
  const select = h("select", { id, on: { change: () => listener(select.value) } },
    Object.entries(options).map(([value, [text]]) => h("option", { value }, text)));
  return {
    node: h("div.choice", {}, h("label", { for: id }, label), select),
    set value(value) { select.value = value; },
  };
}

/** Make the tiles with the sums of all queues. */
function summary() {
  const numbers = Object.fromEntries(STATES.map((state) => [state, h("strong", {}, "–")]));
  const lines = sparkline({ width: 240, height: 48, what: "all queues" });
  const inRate = h("strong", {}, "–"), outRate = h("strong", {}, "–");
  const node = h("section.tiles", { "aria-label": "All queues" },
    STATES.map((state) => h("div.tile", { data: { state } }, h("span.tile-label", {}, state), numbers[state])),
    h("div.tile.tile-rates", {},
      h("div.legend", {}, h("span.legend-in", {}, "In ", inRate), h("span.legend-out", {}, "Out ", outRate)), lines.node));
  return {
    node,
    update(all) {
      for (const state of STATES) {
        const sum = all.reduce((items, { stats }) => items + stats[state], 0);
        setText(numbers[state], short(sum));
        numbers[state].parentNode.classList.toggle("is-zero", sum === 0);
      }
      const { recent } = lines.update(everything);
      setText(inRate, rate(recent.in));
      setText(outRate, rate(recent.out));
    },
  };
}

/** Make the list of the most important alerts. */
function alertList(showAll) {
  const items = h("ul");
  const more = h("p.more");
  const quiet = h("p.quiet", {}, icon("check"), h("span", {}, "No alerts."));
  const node = h("section.alerts", { "aria-label": "Alerts", hidden: true }, items, more, quiet);
  const weight = { unknown: 0, dead: 1, jobs: 2, workers: 3, wait: 4 };
  return {
    node,
    update(all) {
      const found = all.flatMap((queue) => alertsOf(queue).map((alert) => ({ ...alert, queue: queue.name, dead: queue.stats.dead })));
      found.sort((a, b) => weight[a.kind] - weight[b.kind] || b.dead - a.dead);
      const create = () => h("li", {}, icon("alert"), h("a"), h("span"));
      reconcile(items, found.slice(0, ALERTS), (alert) => `${alert.kind} ${alert.queue}`, create, (item, alert) => {
        item.dataset.kind = alert.kind;
        const [, link, text] = item.children;
        link.setAttribute("href", alert.href);
        setText(link, alert.queue);
        setText(text, alert.text);
      });
      const hidden = found.length - ALERTS;
      if (hidden > 0 && !more.firstChild) more.append(button("", showAll, { kind: "link", key: "more" }));
      if (hidden > 0) setText(more.querySelector("span"), `and ${plural(hidden, "more alert")}: show all queues with alerts`);
      else more.replaceChildren();
      quiet.hidden = found.length > 0 || all.length === 0;
      node.classList.toggle("is-quiet", found.length === 0);
      node.hidden = all.length === 0;
    },
  };
}

/** Make the table of queues. */
function queueList() {
  const columns = ["Queue", "Items", "In and out", "Oldest", "Workers"].map((label) => ({ label }));
  columns[3].class = columns[4].class = "number";
  const { node, body } = table("Queues", columns);
  return { node, update: (shown) => reconcile(body, shown, (queue) => queue.name, createRow, updateRow) };
}

function createRow(queue) {
  const bar = stateBar();
  const lines = sparkline({ width: 120, height: 30, what: queue.name });
  const parts = {
    bar, lines, badges: h("span.badges"), counts: h("div.counts"), rates: h("span.rates"),
    oldest: h("span"), workers: h("span"), shown: {},
  };
  const node = row(
    cell("", "queue-name", h("a.row-link", { href: queueLink(queue.name) }, queue.name), parts.badges),
    cell("Items", "queue-items", bar.node, parts.counts),
    cell("In and out", "queue-rates", lines.node, parts.rates),
    cell("Oldest", "number", parts.oldest),
    cell("Workers", "number", parts.workers));
  node.parts = parts;
  return node;
}

/** Update those parts of a row that differ from what they show. */
function updateRow(node, queue) {
  const { bar, lines, badges, counts, rates, oldest, workers: working, shown } = node.parts;
  const { stats, history } = queue;
  const differs = (part, value) => shown[part] !== value && ((shown[part] = value), true);
  const alerts = alertsOf(queue);
  if (differs("badges", `${stats.paused} ${alerts.map((alert) => alert.badge)}`)) {
    badges.replaceChildren(...[stats.paused && badge("paused", "paused"), ...alerts.map((alert) => badge(alert.badge, `alert-${alert.kind}`))].filter(Boolean));
  }
  if (differs("counts", `${STATES.map((state) => stats[state])} ${stats.error}`)) {
    bar.update(stats);
    const some = STATES.filter((state) => stats[state] > 0);
    counts.replaceChildren(...(some.length
      ? some.map((state) => h("span.count", { data: { state } }, h("b", {}, short(stats[state])), ` ${state}`))
      : [h("span.muted", {}, stats.error ? "unknown" : "empty")]));
  }
  const last = history.at(-1);
  if (differs("rates", last.time)) {
    const { recent } = lines.update(history);
    setText(rates, recent.in || recent.out ? `${rate(recent.in)} in, ${rate(recent.out)} out` : "idle");
  }
  const waits = waitsSince(stats);
  if (differs("oldest", waits)) oldest.replaceChildren(waits ? age(waits) : "–");
  setText(working, number(workers.get(queue.name) ?? 0));
}

/** Make the links to the pages of the list. */
function pages(go) {
  const text = h("span", { role: "status" });
  let current = 0;
  const previous = button("Previous", () => go(current - 1));
  const next = button("Next", () => go(current + 1));
  const node = h("nav.pager", { "aria-label": "Pages" }, text, h("span.actions", {}, previous, next));
  return {
    node,
    update(number_, last, begin, matches, isLoaded) {
      current = number_;
      previous.disabled = current === 0;
      next.disabled = current === last;
      node.hidden = matches === 0;
      node.classList.toggle("is-single", last === 0);
      const end = Math.min(begin + ROWS, matches);
      const all = last === 0 ? plural(matches, "queue") : `${number(begin + 1)}–${number(end)} of ${plural(matches, "queue")}`;
      setText(text, isLoaded ? all : `${all}, loading more …`);
    },
  };
}

function nothing(known, view) {
  if (known) {
    return empty("No queue matches.", h("p", {}, view.search ? "Change the search, or show all queues." : "Show all queues to see the others."));
  }
  return empty("There are no queues yet.",
    h("p", {}, "The first push creates a queue. In a shell:"), command("fdbq push mails '{\"to\": \"ada\"}'"));
}
