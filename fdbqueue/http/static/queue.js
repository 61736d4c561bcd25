// One queue: its items in each state, its rates, limits and options.

import { actOnMany, actOnOne, actionsFor } from "./actions.js";
import { ApiError, can, get, post, queuePath, remove } from "./api.js";
import { rateChart } from "./charts.js";
import { number, plural, preview, priorityText, short, shortId } from "./format.js";
import { poll, record } from "./live.js";
import { editOptions, optionText, optionsOf } from "./options.js";
import { pushItem } from "./push.js";
import {
  STATES, ago, ask, attempt, badge, button, cell, empty, h, keepingFocus, reconcile, replaceKeepingFocus, row, setText, skeleton, table, toast,
} from "./ui.js";

const PAGE = 100; // items that are shown at first
const MAX_ITEMS = 1000; // items among which the page filters
const SLOW = 5; // with many items, only every fifth request reads them

/** @typedef {{state: string, priority: string, agent: string, error: string, order: string}} Filters */

/** @returns {Filters} */
function filtersOf(query) {
  const state = query.get("state") ?? "ready";
  const text = (name) => query.get(name) ?? "";
  return {
    state: STATES.includes(state) ? state : "ready",
    priority: text("priority"), agent: text("agent"), error: text("error"), order: text("order"),
  };
}

const itemLink = (queue, id) => `#/queues/${encodeURIComponent(queue)}/items/${encodeURIComponent(id)}`;

function address(queue, filters) {
  const given = Object.entries(filters).filter(([, value]) => value);
  return `#/queues/${encodeURIComponent(queue)}?${new URLSearchParams(given)}`;
}

/** Make the page of a queue. */
export function queuePage(name, query) {
  let filters = filtersOf(query);
  let description = null; // the last answer of the API about the queue
  let items = []; // those that were read
  let next = null; // the `after` of the items that follow
  let limit = PAGE;
  let round = 0;
  let isLoading = true;

  const badges = h("span.badges");
  const buttons = h("div.actions");
  const tabs = stateTabs(name);
  const bar = filterBar(name, (changed) => {
    filters = { ...filters, ...changed };
    history.replaceState(null, "", address(name, filters));
    tabs.update(description?.stats, filters);
    reload();
  });
  const list = itemList(name, () => polling.now());
  const chart = rateChart(name);
  const side = sidePanel(name);
  const bulk = h("div.actions.bulk");
  const place = h("div", {}, skeleton(6));
  const errors = errorSummary((error) => {
    filters = { ...filters, error };
    history.replaceState(null, "", address(name, filters));
    bar.update(description, filters, true);
    reload();
  });
  const foot = h("div.list-foot");
  const problem = h("div");
  const body = h("div.queue", {},
    h("section.card.rates-card", { "aria-label": "Rates" }, h("h2", {}, "Items in and out"), chart.node),
    h("section.items", { "aria-label": "Items" }, tabs.node, h("div.panel", {}, h("div.filters", {}, bar.node, bulk), errors.node, place, foot)),
    side.node);

  const isFiltered = () => Boolean(filters.agent || filters.error || (filters.priority && !filtersOnServer()));
  const filtersOnServer = () => description?.kind === "priority";

  function matching() {
    const agent = filters.agent.toLowerCase(), error = filters.error.toLowerCase();
    return items.filter((item) => (item.agent_name ?? "").toLowerCase().includes(agent)
      && (item.error ?? "").toLowerCase().includes(error)
      && (!filters.priority || filtersOnServer() || priorityText(item.priority) === filters.priority));
  }

  async function load() {
    description = await get(queuePath(name));
    const queue = record(name, description.stats);
    chart.update(queue.history);
    side.update(description);
    tabs.update(description.stats, filters);
    bar.update(description, filters);
    showHead();
    if (limit <= PAGE || round++ % SLOW === 0 || isLoading) await loadItems();
    if (problem.isConnected) problem.replaceWith(body);
  }

  async function loadItems() {
    const asked = filters;
    let answer;
    try {
      answer = await get(`${queuePath(name)}/items`, {
        state: asked.state, limit: isFiltered() ? MAX_ITEMS : limit,
        priority: asked.priority && filtersOnServer() ? asked.priority : undefined,
        reverse: asked.order === "reverse" ? true : undefined,
      });
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 422)) throw error;
      items = [];
      place.replaceChildren(empty("The filter is invalid.", h("p", {}, error.message)));
      bulk.replaceChildren();
      foot.replaceChildren();
      return;
    }
    if (asked !== filters) return; // a later request shows what the user wants by now
    ({ items, next } = answer);
    isLoading = false;
    keepingFocus(tabs.current, showItems);
  }

  function reload() {
    isLoading = true;
    limit = PAGE;
    void polling.now();
  }

  function showHead() {
    const { kind, codec, options } = description;
    const text = JSON.stringify([kind, codec, options.paused]);
    if (badges.dataset.shown === text) return;
    badges.dataset.shown = text;
    badges.replaceChildren(...[badge(kind), codec !== "json" && codec !== "task" && badge(codec), options.paused && badge("paused", "paused")].filter(Boolean));
    replaceKeepingFocus(buttons, ...queueButtons(name, description, () => polling.now()));
  }

  function showItems() {
    const found = matching();
    list.update(found, filters.state, description.kind);
    const node = found.length ? list.node : nothing(name, filters, isFiltered() || filters.priority);
    if (place.firstChild !== list.node || !found.length) place.replaceChildren(node);
    errors.update(["dead", "delayed"].includes(filters.state) ? found : []);
    showBulk(found);
    showFoot(found);
  }

  function showBulk(found) {
    const needed = isFiltered() ? "write" : "admin";
    const made = !can(needed) || found.length === 0 ? [] : actionsFor(filters.state).map((action) => {
      const label = isFiltered() ? `${action.label} these` : `${action.label} all`;
      return button(label, () => bulkChange(action), { icon: action.icon, kind: action.danger ? "danger-quiet" : "primary" });
    });
    const text = made.map((node) => node.textContent).join();
    if (bulk.dataset.shown === text && bulk.children.length === made.length) return;
    bulk.dataset.shown = text;
    replaceKeepingFocus(bulk, ...made);
  }

  /** Change all items in the state; of a priority; or those that the filters leave. */
  async function bulkChange(action) {
    const chosen = { queue: name, state: filters.state };
    if (isFiltered()) {
      const ids = matching().map((item) => item.id);
      Object.assign(chosen, { ids, count: ids.length, which: ", those that match the filters" });
    } else if (filters.priority) {
      const path = `${queuePath(name)}/items`;
      let answer;
      if (!(await attempt(async () => { answer = await get(path, { state: filters.state, priority: filters.priority, limit: MAX_ITEMS }); }))) return;
      Object.assign(chosen, { priority: filters.priority, count: answer.items.length, isMore: answer.next !== null, which: `, all of priority ${filters.priority}` });
    } else {
      chosen.count = (await get(queuePath(name))).stats[filters.state];
    }
    if (chosen.count === 0) toast("There are no such items any more.");
    else await actOnMany(action, chosen);
    round = 0;
    await polling.now();
  }

  function showFoot(found) {
    const parts = [];
    if (isFiltered()) {
      const where = next === null ? "" : ` in the first ${number(MAX_ITEMS)}`;
      parts.push(h("span", {}, `${plural(found.length, "item matches", "items match")}${where}.`));
    } else if (next !== null) {
      parts.push(h("span", {}, `The first ${number(found.length)} are shown.`));
      if (limit < MAX_ITEMS) parts.push(button("Show more", () => { limit = MAX_ITEMS; round = 0; void polling.now(); }));
    }
    const text = parts.map((part) => part.textContent).join();
    if (foot.dataset.shown === text && foot.children.length === parts.length) return;
    foot.dataset.shown = text;
    replaceKeepingFocus(foot, ...parts);
  }

  const polling = poll(load, { failed(error) {
    const isGone = error.status === 404;
    problem.replaceChildren(empty(isGone ? "There is no such queue." : "The queue cannot be shown.",
      h("p", {}, isGone ? "It was dropped or renamed, or nothing was pushed to it yet." : error.message),
      h("p", {}, h("a", { href: "#/" }, "Go to the overview"))));
    buttons.replaceChildren();
    badges.replaceChildren();
    delete badges.dataset.shown;
    if (body.isConnected) body.replaceWith(problem);
  } });

  tabs.update(null, filters);
  return {
    title: name,
    nodes: [
      h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Overview")),
      h("div.title-row", {}, h("div.title", {}, h("h1", { tabindex: -1 }, name), badges), buttons),
      body,
    ],
    update(query_) {
      filters = filtersOf(query_);
      tabs.update(description?.stats, filters);
      items = [];
      errors.update([]);
      place.replaceChildren(skeleton(6));
      bulk.replaceChildren();
      foot.replaceChildren();
      if (description) bar.update(description, filters, true);
      reload();
    },
    stop: polling.stop,
    search: () => bar.search(),
  };
}

// What can be done with the queue

function queueButtons(name, description, refresh) {
  const { kind, codec, options, stats } = description;
  const made = [];
  if (can("write") && (codec === "json" || codec === "task")) {
    made.push(button("Push", async () => { await pushItem(name, kind); await refresh(); }, { icon: "plus" }));
  }
  if (!can("admin")) return made;
  const change = options.paused ? "Resume" : "Pause";
  made.push(button(change, async () => {
    const done = options.paused ? `${name} was resumed.` : `${name} was paused. Pushes are still accepted.`;
    await attempt(() => post(`${queuePath(name)}/${change.toLowerCase()}`), done);
    await refresh();
  }, { icon: options.paused ? "play" : "pause", key: "pause" }));
  made.push(button("Options", async () => {
    await attempt(() => editOptions(name));
    await refresh();
  }, { icon: "settings" }));
  made.push(button("Drop", async () => {
    const now = (await get(queuePath(name))).stats ?? stats;
    const parts = STATES.filter((state) => now[state]).map((state) => `${number(now[state])} ${state}`);
    const answer = await ask({
      title: `Drop ${name}?`,
      text: [h("p", {}, "The queue is gone for good, with its options and its items: ", h("strong", {}, parts.join(", ") || "none"), ".")],
      fields: [{ name: "name", label: "Type the name of the queue", required: true }],
      yes: "Drop", danger: true,
      async action(values) {
        if (values.name !== name) throw new Error("this is not the name of the queue");
        await remove(queuePath(name));
      },
    });
    if (!answer) return;
    toast(`${name} was dropped.`);
    location.hash = "#/";
  }, { icon: "trash", kind: "danger-quiet" }));
  return made;
}

// States

function stateTabs(name) {
  const parts = STATES.map((state) => {
    const count = h("strong", {}, "–");
    return { state, count, link: h("a.tab", { data: { state } }, h("span", {}, state), count) };
  });
  return {
    node: h("nav.tabs", { "aria-label": "States" }, parts.map(({ link }) => link)),
    current: () => parts.find(({ link }) => link.hasAttribute("aria-current"))?.link,
    update(stats, filters) {
      for (const { state, count, link } of parts) {
        link.setAttribute("href", address(name, { ...filters, state, order: "" }));
        if (state === filters.state) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
        if (stats) setText(count, short(stats[state]));
      }
    },
  };
}

// Filters

/** What comes first in the list of each state, and with `reverse`. */
const ORDERS = {
  ready: ["Next first", "Last first"], delayed: ["Next first", "Last first"], claimed: ["Ends first", "Ends last"],
  dead: ["Next first", "Last first"], done: ["Newest first", "Oldest first"],
};

function filterBar(name, changed) {
  let timer = 0;
  const input = (label, key, props = {}) => {
    const node = h("input", { id: `filter-${key}`, autocomplete: "off", spellcheck: "false", on: { input: () => {
      clearTimeout(timer);
      timer = setTimeout(() => changed({ [key]: node.value.trim() }), 250);
    } }, ...props });
    return { node, field: h("div.choice", { hidden: true }, h("label", { for: `filter-${key}` }, label), node) };
  };
  const priority = input("Priority", "priority", { size: 4 });
  const agent = input("Agent", "agent", { size: 8 });
  const error = input("Error contains", "error", { type: "search", size: 14 });
  const order = h("select", { id: "filter-order", on: { change: () => changed({ order: order.value }) } },
    h("option", { value: "" }, "First"), h("option", { value: "reverse" }, "Last"));
  const id = h("input", { id: "filter-id", size: 10, autocomplete: "off", spellcheck: "false" });
  const go = h("form.choice", { on: { submit: (event) => {
    event.preventDefault();
    if (id.value.trim()) location.hash = itemLink(name, id.value.trim());
  } } }, h("label", { for: "filter-id" }, "Go to id"), id);
  const visible = () => [error, agent, priority].find(({ field }) => !field.hidden)?.node ?? id;
  return {
    node: h("div.filter-fields", { role: "search", "aria-label": "Filter items" }, priority.field, agent.field, error.field, go,
      h("div.choice", {}, h("label", { for: "filter-order" }, "Order"), order)),
    search: visible,
    update({ kind }, filters, isForced = false) {
      priority.field.hidden = kind === "fifo";
      agent.field.hidden = kind !== "task";
      error.field.hidden = filters.state === "done" && !filters.error;
      for (const [key, { node }] of Object.entries({ priority, agent, error })) {
        if (isForced || document.activeElement !== node) node.value = filters[key];
      }
      order.value = filters.order;
      const [first, last] = ORDERS[filters.state];
      setText(order.options[0], first);
      setText(order.options[1], last);
    },
  };
}

function nothing(name, filters, isFiltered) {
  if (isFiltered) return empty("No item matches the filters.", h("p", {}, h("a", { href: address(name, { state: filters.state }) }, "Show all")));
  const texts = {
    ready: ["No item is ready.", "Items that can be taken are here."],
    delayed: ["No item is delayed.", "Items that were pushed with a delay, or wait for their next attempt, are here."],
    claimed: ["No item is claimed.", "Items that a client works on are here."],
    dead: ["There are no dead letters.", "Items that have failed too often are here."],
    done: ["No done items are kept.", "Acknowledged items are kept if the options of the queue say so."],
  };
  const [title, text] = texts[filters.state];
  return empty(title, h("p", {}, text));
}

const MAX_ERRORS = 5; // that the summary shows

/** Make the list of the errors of items, the most frequent first; each leads to its items. */
function errorSummary(choose) {
  const node = h("ul.errors", { "aria-label": "Errors" });
  return {
    node,
    update(items) {
      const counts = new Map();
      for (const item of items) {
        const line = item.error?.split("\n")[0].slice(0, 200);
        if (line) counts.set(line, (counts.get(line) ?? 0) + 1);
      }
      const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MAX_ERRORS);
      reconcile(node, most, ([error]) => error,
        ([error]) => h("li", {}, h("b"), button(error, () => choose(error), { kind: "link" })),
        (element, [, count]) => setText(element.firstChild, `${number(count)} ×`));
    },
  };
}

// Items

const time = (iso) => (iso ? ago(iso) : "–");
const errorOf = (item) => (item.error ? h("span.error-text", { title: item.error }, preview(item.error, 160)) : "–");
const attemptsOf = (item) => (item.max_attempts === null ? String(item.attempts) : `${item.attempts} of ${item.max_attempts}`);

/** The columns of each state, behind id, priority and payload. */
const COLUMNS = {
  ready: [["Pushed", (item) => time(item.pushed_at)], ["Attempts", attemptsOf], ["Last error", errorOf, "wide"]],
  delayed: [["Due", (item) => time(item.due_at)], ["Attempts", attemptsOf], ["Last error", errorOf, "wide"]],
  claimed: [["Held by", (item) => item.claimed_by || "unknown"], ["Since", (item) => time(item.claimed_at)], ["Lease ends", (item) => time(item.lease_ends)]],
  dead: [["Error", errorOf, "wide"], ["Attempts", attemptsOf], ["Died", (item) => time(item.died_at)]],
  done: [["Result", (item) => (item.result === null ? "–" : h("span.payload", {}, preview(item.result, 80))), "wide"], ["Attempts", attemptsOf], ["Finished", (item) => time(item.finished_at)]],
};

/** Make the table of items. */
function itemList(queue, refresh) {
  const node = h("div");
  let current = "";
  let body = null;
  let columns = [];
  return {
    node,
    update(items, state, kind) {
      if (current !== `${state} ${kind}`) {
        current = `${state} ${kind}`;
        columns = [
          ["Item", (item) => h("a.row-link", { href: itemLink(queue, item.id), title: item.id, data: { key: `item ${item.id}` } }, shortId(item.id)), "id"],
          kind !== "fifo" && ["Priority", (item) => priorityText(item.priority)],
          kind === "task" && ["Agent", (item) => item.agent_name ?? "–"],
          ["Payload", (item) => h("span.payload", {}, preview(item.item)), "wide"],
          ...COLUMNS[state],
          can("write") && ["Actions", (item) => rowButtons(queue, item, refresh), "row-actions"],
        ].filter(Boolean);
        const made = table(`Items that are ${state}`, columns.map(([label, , style]) => ({ label, class: style, hidden: label === "Actions" })));
        body = made.body;
        node.replaceChildren(made.node);
      }
      reconcile(body, items, (item) => item.id, () => row(), (element, item) => {
        const text = JSON.stringify(item);
        if (element.shown === text) return;
        element.shown = text;
        replaceKeepingFocus(element, ...columns.map(([label, show, style]) => cell(label, style, show(item))));
      });
    },
  };
}

function rowButtons(queue, item, refresh) {
  return h("span.actions", {}, actionsFor(item.state).map((action) =>
    button(action.label, async () => { await actOnOne(action, queue, item.id); await refresh(); },
      { kind: action.danger ? "small danger-quiet" : "small", key: `${action.name} ${item.id}`, "aria-label": `${action.label} item ${item.id}` })));
}

// Limits, totals and priorities

const TOTALS = [
  ["total_pushed", "pushed"], ["total_completed", "completed"], ["total_failed", "failed attempts"], ["total_retried", "retried"],
  ["total_died", "became dead letters"], ["total_expired", "expired"], ["total_removed", "removed"], ["total_rejected", "rejected"],
];

const MAX_PRIORITIES = 8;

function sidePanel(name) {
  const options = h("dl.facts"), totals = h("dl.facts"), priorities = h("ul.priorities");
  const priorityCard = h("section.card", { "aria-label": "Ready by priority" }, h("h2", {}, "Ready by priority"), priorities);
  const node = h("div.side-cards", {},
    h("section.card", { "aria-label": "Limits and options" }, h("h2", {}, "Limits and options"), options),
    h("section.card", { "aria-label": "Totals" }, h("h2", {}, "Totals"), totals), priorityCard);
  const facts = (list, given) => reconcile(list, given, ([label]) => label,
    ([label]) => h("div", {}, h("dt", {}, label), h("dd")), (element, [, text]) => setText(element.lastChild, text));
  return {
    node,
    update(description) {
      facts(options, optionsOf(description.kind)
        .filter((option) => !["kept_attempts", "traceback_bytes"].includes(option.name))
        .map((option) => [option.label, optionText(option, description.options[option.name])]));
      facts(totals, TOTALS.map(([key, label]) => [label, number(description.stats[key])]));
      const counts = Object.entries(description.stats.by_priority);
      priorityCard.hidden = counts.length < 2;
      const most = Math.max(1, ...counts.map(([, count]) => count));
      reconcile(priorities, counts.slice(0, MAX_PRIORITIES), ([priority]) => priority,
        ([priority]) => h("li", {}, h("a", { href: address(name, { state: "ready", priority }) }, priority), h("span.track", {}, h("span.fill")), h("span.number")),
        (element, [, count]) => {
          element.querySelector(".fill").style.inlineSize = `${(100 * count) / most}%`;
          setText(element.lastChild, number(count));
        });
    },
  };
}
