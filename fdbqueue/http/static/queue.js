// One queue: its items in each state, its history, limits and options.

import { get, queuePath } from "./api.js";
import { address, filterBar, filtersOf, inState } from "./filters.js";
import { number, plural, short } from "./format.js";
import { groupsLink } from "./groups.js";
import { historyCard } from "./history.js";
import { itemListing } from "./listing.js";
import { poll } from "./live.js";
import { queueButtons } from "./manage.js";
import { OPTIONS, optionText } from "./options.js";
import { schedulesLink } from "./schedules.js";
import { STATES, badge, empty, h, reconcile, replaceKeepingFocus, setText } from "./ui.js";

/** Make the page of a queue. */
export function queuePage(name, query) {
  let filters = filtersOf(query);
  let description = null; // the last answer of the API about the queue

  const badges = h("span.badges");
  const buttons = h("div.actions");
  const tabs = stateTabs(name);
  const bar = filterBar(name, (changed) => choose({ ...filters, ...changed }));
  const listing = itemListing(name, {
    refresh: () => polling.now(),
    chooseError(error) {
      choose({ ...filters, error });
      bar.update(description, filters, true);
    },
    focus: tabs.current,
  });
  const card = historyCard(name);
  const side = sidePanel(name);
  const { list, errors, foot, bulk } = listing.nodes;
  const problem = h("div");
  const body = h("div.queue", {},
    card.node,
    h("section.items", { "aria-label": "Items" }, tabs.node, h("div.panel", {}, h("div.filters", {}, bar.node, bulk), errors, list, foot)),
    side.node);

  async function load() {
    description = await get(queuePath(name));
    side.update(description);
    tabs.update(description.stats, filters);
    bar.update(description, filters);
    listing.update(description);
    showHead();
    await listing.load();
    if (problem.isConnected) problem.replaceWith(body);
  }

  /** Show the items that match other filters, which the address then has. */
  function choose(changed) {
    filters = changed;
    history.replaceState(null, "", address(name, filters));
    tabs.update(description?.stats, filters);
    listing.filter(filters);
    void polling.now();
  }

  function showHead() {
    const { kind, codec, options, stats } = description;
    const unknown = stats.unknown_jobs > 0 && plural(stats.unknown_jobs, "unknown job");
    const text = JSON.stringify([kind, codec, options.paused, unknown]);
    if (badges.dataset.shown === text) return;
    badges.dataset.shown = text;
    badges.replaceChildren(...[badge(kind), codec !== "json" && codec !== "task" && badge(codec), options.paused && badge("paused", "paused"), unknown && badge(unknown, "alert-jobs")].filter(Boolean));
    const hasSchedules = codec === "json"; // that this page can show
    replaceKeepingFocus(buttons, groupsLink(name), ...(hasSchedules ? [schedulesLink(name)] : []), ...queueButtons(name, description, () => polling.now()));
  }

  listing.filter(filters);
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
      listing.filter(filters);
      listing.clear();
      if (description) bar.update(description, filters, true);
      void polling.now();
    },
    stop() {
      polling.stop();
      card.stop();
    },
    search: () => bar.search(),
  };
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
        link.setAttribute("href", address(name, { ...inState(filters, state), order: "" }));
        if (state === filters.state) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
        if (stats) setText(count, short(stats[state]));
      }
    },
  };
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
      facts(options, OPTIONS
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
