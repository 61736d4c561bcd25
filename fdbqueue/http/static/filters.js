// The filters of the items of a queue: in the address of the page, in requests, and as inputs.

import { ApiError, get, itemPath } from "./api.js";
import { h, setText, STATES, toast } from "./ui.js";

/**
 * The state and the order of the items that a page shows, and what they must match. An empty text is any.
 *
 * @typedef {{state: string, priority: string, agent: string, id: string, error: string, client: string, job: string,
 *   group: string, order: string}} Filters
 */

/**
 * The filters: the states that have them, the kinds of queues that do not, and what they say of an item.
 *
 * @type {Record<string, {label: string, size: number, states: string[], lacks: string[], text: (value: string) => string}>}
 */
const FILTERS = {
  priority: { label: "Priority", size: 4, states: STATES, lacks: ["fifo"], text: (value) => `have the priority ${value}` },
  agent: { label: "Agent", size: 8, states: STATES, lacks: ["fifo", "priority"], text: (value) => `have an agent with “${value}” in its name` },
  client: { label: "Held by", size: 8, states: ["claimed"], lacks: [], text: (value) => `are held by a client with “${value}” in its name` },
  error: { label: "Error contains", size: 14, states: STATES.filter((state) => state !== "done"), lacks: [], text: (value) => `have “${value}” in their last error` },
  job: { label: "Job", size: 10, states: STATES, lacks: [], text: (value) => `are jobs with the name “${value}”` },
  group: { label: "Group", size: 8, states: STATES, lacks: [], text: (value) => `belong to the group “${value}”` },
  id: { label: "Id", size: 10, states: STATES, lacks: [], text: (value) => `have “${value}” in their id` },
};
const NAMES = Object.keys(FILTERS);

/** @returns {Filters} */
export function filtersOf(query) {
  const text = (name) => query.get(name) ?? "";
  const state = STATES.includes(query.get("state")) ? query.get("state") : "ready";
  return inState({ ...Object.fromEntries(NAMES.map((name) => [name, text(name)])), order: text("order") }, state);
}

/** Return the filters in another state, without those that it does not have. */
export function inState(filters, state) {
  const kept = NAMES.map((name) => [name, FILTERS[name].states.includes(state) ? filters[name] : ""]);
  return { ...filters, ...Object.fromEntries(kept), state };
}

/** Return the query parameters of a request for the items that match. */
export const parameters = (filters) => Object.fromEntries(["state", ...NAMES].map((name) => [name, filters[name] || undefined]));

/** Return the fields of a request that changes the items that match. */
export function fields(filters) {
  const given = Object.fromEntries(NAMES.filter((name) => filters[name]).map((name) => [name, filters[name]]));
  return given.priority ? { ...given, priority: JSON.parse(given.priority) } : given;
}

export const isFiltered = (filters) => NAMES.some((name) => filters[name]);

/** Say what items match: "have the priority 9 and have “KeyError” in their last error". */
export const filterText = (filters) => NAMES.filter((name) => filters[name]).map((name) => FILTERS[name].text(filters[name])).join(" and ");

export const itemLink = (queue, id) => `#/queues/${encodeURIComponent(queue)}/items/${encodeURIComponent(id)}`;

/** Return the address of the page of a queue with some filters. */
export function address(queue, filters) {
  const given = Object.entries(filters).filter(([, value]) => value);
  return `#/queues/${encodeURIComponent(queue)}?${new URLSearchParams(given)}`;
}

/** What comes first in the list of each state, with `reverse`, and with `queue`: the browser sorts dead letters by time. */
const ORDERS = {
  ready: ["Next first", "Last first"], delayed: ["Next first", "Last first"], claimed: ["Next first", "Last first"],
  dead: ["Latest first", "Last first", "Next first"], done: ["Newest first", "Oldest first"],
};

/** Make the inputs; `changed` is called with the filters that the user changes. */
export function filterBar(name, changed) {
  let timer = 0;
  let changes = {}; // which the timer has not told yet
  const inputs = Object.fromEntries(NAMES.map((key) => {
    const { label, size } = FILTERS[key];
    const node = h("input", { id: `filter-${key}`, size, autocomplete: "off", spellcheck: "false", on: { input: () => {
      clearTimeout(timer);
      changes[key] = node.value.trim();
      timer = setTimeout(() => { changed(changes); changes = {}; }, 250);
    } } });
    const tag = key === "id" ? "form.choice" : "div.choice";
    return [key, { node, field: h(tag, { hidden: key !== "id" }, h("label", { for: `filter-${key}` }, label), node) }];
  }));
  inputs.id.node.placeholder = "or a part of it";
  inputs.id.node.title = "Enter opens the item with this id, in any state";
  inputs.id.field.addEventListener("submit", (event) => {
    event.preventDefault();
    const id = inputs.id.node.value.trim();
    if (id) void open(id);
  });

  async function open(id) {
    try {
      await get(itemPath(name, id));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      toast([404, 422].includes(error.status) ? "No item has exactly this id." : error.message, "error");
      return;
    }
    clearTimeout(timer);
    location.hash = itemLink(name, id);
  }

  const order = h("select", { id: "filter-order", on: { change: () => changed({ order: order.value }) } },
    h("option", { value: "" }, "First"), h("option", { value: "reverse" }, "Last"), h("option", { value: "queue" }));
  return {
    node: h("div.filter-fields", { role: "search", "aria-label": "Filter items" }, NAMES.map((key) => inputs[key].field),
      h("div.choice", {}, h("label", { for: "filter-order" }, "Order"), order)),
    /** Return the input that the key for a search leads to. */
    search: () => ["error", "agent", "priority", "id"].map((key) => inputs[key]).find(({ field }) => !field.hidden).node,
    update({ kind }, filters, isForced = false) {
      for (const [key, { node, field }] of Object.entries(inputs)) {
        const { states, lacks } = FILTERS[key];
        field.hidden = !filters[key] && (!states.includes(filters.state) || lacks.includes(kind));
        if (isForced || document.activeElement !== node) node.value = filters[key];
      }
      order.value = filters.order;
      ORDERS[filters.state].forEach((label, n) => setText(order.options[n], label));
      order.options[2].hidden = ORDERS[filters.state].length < 3;
    },
  };
}
