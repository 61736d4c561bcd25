// The items of a queue in one state: read page by page, filtered by the server, changed singly and together.

import { actOnMany, actOnOne, actionsFor, suits } from "./actions.js";
import { ApiError, can, get, queuePath } from "./api.js";
import { address, fields, filterText, isFiltered, itemLink, parameters } from "./filters.js";
import { clock, number, plural, preview, priorityText, shortId, wait } from "./format.js";
import {
  age, ago, attempt, badge, button, cell, empty, h, keepingFocus, progressBar, reconcile, replaceKeepingFocus, row, setText, skeleton,
  table, toast,
} from "./ui.js";

const FIRST = 100; // items of the first page, which is read again and again
const MORE = 500; // items of those that follow
const SORTED = 5000; // dead letters that are read to sort them by time
const MANY = 400; // after looking at this many items, a request is repeated less often
const SLOW = 5; // only every fifth time

/** Return what items in a state are called. */
const noun = (state) => (state === "dead" ? "dead letter" : `${state} item`);

/**
 * Make the list.
 *
 * @param {string} queue
 * @param {{refresh: () => Promise<void>, chooseError: (error: string) => void, focus: () => HTMLElement | undefined}} page
 *   Reads the queue again; sets the filter of errors; returns what gets the focus of a button that is gone.
 */
export function itemListing(queue, { refresh, chooseError, focus }) {
  /** @type {{items: any[], next: string | null, scanned: number}[]} */
  let pages = [];
  let readAt = "";
  let filters = null;
  let kind = "";
  let total = 0; // items in the state
  let round = 0;
  let isSearching = false;
  let isOver = false; // whether the list begins again
  let problem = null; // why the filters are invalid
  const selected = new Set(); // ids

  const list = itemTable(queue, acted, selected, () => showBulk(items()));
  const place = h("div", {}, skeleton(6));
  const errors = errorSummary(chooseError);
  const bulk = h("div.actions.bulk");
  const said = h("span", { role: "status" });
  const more = h("span.actions");
  const foot = h("div.list-foot", { hidden: true }, said, more);

  const isByTime = () => filters.state === "dead" && !filters.order;
  /** Return what was read; dead letters are stored in the order of the queue, and sorted here. */
  function items() {
    const found = pages.flatMap((page) => page.items);
    if (!isByTime()) return found;
    // Reversed: of those that died in the same millisecond, the last one of the queue comes first.
    return found.reverse().sort((a, b) => Date.parse(b.died_at) - Date.parse(a.died_at));
  }
  const scanned = () => pages.reduce((sum, page) => sum + page.scanned, 0);
  const next = () => pages.at(-1)?.next ?? null;

  const read = (asked, limit, after) => get(`${queuePath(queue)}/items`, {
    ...parameters(asked), limit, after, reverse: asked.order === "reverse" ? true : undefined,
  });

  /** Read the first page; dead letters that are shown by time together, up to a limit. */
  async function first(asked) {
    if (!isByTime()) return read(asked, FIRST);
    const page = await read(asked, MORE);
    while (asked === filters && page.next !== null && page.scanned < SORTED) {
      const { items, next, scanned } = await read(asked, MORE, page.next);
      page.items.push(...items);
      [page.next, page.scanned] = [next, page.scanned + scanned];
    }
    return page;
  }

  /** Read the first page, unless that is too much at a time, or the user has gone on from it. */
  async function load() {
    const isKept = () => !isOver && (isSearching || pages.length > 1);
    if (isKept() || (!isOver && pages.length && scanned() > MANY && round++ % SLOW !== 0)) return;
    const asked = filters;
    try {
      const page = await first(asked);
      if (asked !== filters || isKept()) return; // the user wants something else by now
      [pages, problem, isOver] = [[page], null, false];
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 422)) throw error;
      [pages, problem, isOver] = [[], error.message, false];
    }
    show();
  }

  /** Read on until there are more matches, or all items were looked at, or the user stops it. */
  async function goOn() {
    const mine = pages; // the user may begin another list meanwhile
    const before = items().length;
    isSearching = true;
    show();
    try {
      while (isSearching && next() !== null && items().length === before) {
        const page = await read(filters, MORE, next());
        if (pages !== mine) return;
        pages.push(page);
        readAt = new Date().toISOString();
        show();
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (pages !== mine) return;
      toast(error.status === 422 ? "The last item that was looked at is gone. The list begins again." : error.message, "error");
      if (error.status === 422) await again();
    } finally {
      if (pages === mine) isSearching = false;
      show();
    }
  }

  async function again() {
    [isOver, isSearching] = [true, false];
    await refresh();
  }

  /** An item has left the state. A list of several pages is not read again. */
  async function acted(id) {
    if (pages.length > 1) {
      for (const page of pages) page.items = page.items.filter((item) => item.id !== id);
      show();
    }
    round = 0;
    await refresh();
  }

  function show() {
    keepingFocus(focus, () => {
      const found = items();
      const ids = new Set(found.map((item) => item.id));
      for (const id of selected) if (!ids.has(id)) selected.delete(id);
      list.update(found, filters.state, kind);
      const node = found.length ? list.node : nothing();
      if (place.firstChild !== list.node || !found.length) place.replaceChildren(node);
      errors.update(["dead", "delayed"].includes(filters.state) ? found : [], next() !== null);
      showBulk(found);
      showFoot(found);
    });
  }

  function nothing() {
    if (problem !== null) return empty("The filter is invalid.", h("p", {}, problem));
    const all = h("p", {}, h("a", { href: address(queue, { state: filters.state }) }, "Show all"));
    if (isFiltered(filters)) return empty(next() === null ? "No item matches the filters." : "No item matches so far.", all);
    const [title, text] = EMPTY[filters.state];
    return empty(title, h("p", {}, text));
  }

  // Changes of many items

  function showBulk(found) {
    if (selected.size) {
      const chosen = found.filter((item) => selected.has(item.id));
      replaceIfDifferent(bulk, [
        ...actionsFor(filters.state, chosen).map((action) =>
          button(`${action.label} ${number(chosen.filter((item) => suits(action, item)).length)} selected`, () => changeMany(action), look(action))),
        button("Select none", () => { selected.clear(); list.unselect(); showBulk(found); }),
      ]);
      return;
    }
    const isOne = isFiltered(filters);
    const label = (action) => `${action.label} ${!isOne ? "all" : can("admin") ? "matches" : "these"}`;
    const isAny = found.length > 0 || (isOne && next() !== null && can("admin"));
    const made = !can(isOne ? "write" : "admin") || !isAny ? [] : actionsFor(filters.state, next() === null ? found : null).map((action) =>
      button(label(action), (event) => changeMany(action, event.currentTarget), look(action)));
    replaceIfDifferent(bulk, made);
  }

  /** Change the selected items, else all in the state, or all that match; with a token that may only change single ones, those in the list. */
  async function changeMany(action, node) {
    const chosen = { queue, state: filters.state, filters: fields(filters), which: "", count: 0 };
    const asked = filters;
    if (selected.size) {
      const ids = items().filter((item) => selected.has(item.id) && suits(action, item)).map((item) => item.id);
      Object.assign(chosen, { ids, count: ids.length, which: ", which you selected" });
    } else if (!isFiltered(asked)) chosen.count = (await get(queuePath(queue))).stats[asked.state];
    else if (can("admin")) {
      node.ariaBusy = "true";
      const isCounted = await attempt(async () => { chosen.count = await countMatches(asked); });
      node.ariaBusy = "false";
      if (!isCounted || asked !== filters) return;
      chosen.which = `: all that ${filterText(asked)}`;
    } else {
      chosen.ids = items().filter((item) => suits(action, item)).map((item) => item.id);
      chosen.count = chosen.ids.length;
      chosen.which = next() === null ? `: all that ${filterText(asked)}` : `: those in the list, which ${filterText(asked)}. There may be more`;
    }
    if (chosen.count === 0) toast("There are no such items.");
    if (chosen.count === 0 || (await actOnMany(action, chosen))) {
      selected.clear();
      list.unselect();
      await again();
    }
  }

  async function countMatches(asked) {
    let count = 0, after;
    do {
      const part = await get(`${queuePath(queue)}/count`, { ...parameters(asked), after });
      count += part.count;
      after = part.next;
    } while (after !== null);
    return count;
  }

  // What was found, and where to go on

  function showFoot(found) {
    setText(said, footText(found));
    const made = [];
    if (isSearching) made.push(button("Stop", () => { isSearching = false; }, { key: "more" }));
    else if (next() !== null) made.push(button(isFiltered(filters) && scanned() !== found.length ? "Keep searching" : "Load more", goOn, { key: "more" }));
    if (pages.length > 1 && !isSearching) made.push(button("Refresh", again));
    replaceIfDifferent(more, made);
    foot.hidden = !said.textContent && !made.length;
  }

  function footText(found) {
    const end = filters.order === "reverse" ? "last" : "first";
    const sorted = isByTime() && next() !== null ? " They are sorted by the time of death." : "";
    const asOf = pages.length > 1 && !isSearching ? ` As of ${clock(readAt).slice(11)}.` : "";
    if (!isFiltered(filters)) {
      const of = next() !== null && total > found.length ? ` of ${number(total)}` : "";
      return next() === null && !asOf ? "" : `${next() === null ? "All" : `The ${end}`} ${number(found.length)}${of} are shown.${sorted}${asOf}`;
    }
    if (!pages.length) return "";
    const matches = plural(found.length, "item matches", "items match");
    if (next() === null) return `${matches}.${asOf}`;
    if (scanned() === found.length) return `The ${end} ${number(found.length)} matches are shown.${sorted}${asOf}`;
    return `${isSearching ? "Searching: " : ""}${plural(found.length, "match", "matches")} among the ${end} ${plural(scanned(), noun(filters.state))}.${asOf}`;
  }

  return {
    nodes: { list: place, errors: errors.node, foot, bulk },
    load,
    /** Show the items that match other filters. */
    filter(changed) {
      filters = changed;
      selected.clear();
      [pages, round, isSearching, isOver, problem] = [[], 0, false, false, null];
    },
    /** Empty the list until its items are read. */
    clear() {
      errors.update([]);
      place.replaceChildren(skeleton(6));
      bulk.replaceChildren();
      foot.hidden = true;
    },
    update(description) {
      kind = description.kind;
      total = description.stats[filters.state];
    },
  };
}

const look = (action) => ({ icon: action.icon, kind: action.danger ? "danger-quiet" : "primary" });

/** Replace buttons unless they have the same labels. */
function replaceIfDifferent(node, made) {
  const text = made.map((each) => each.textContent).join();
  if (node.dataset.shown === text && node.children.length === made.length) return;
  node.dataset.shown = text;
  replaceKeepingFocus(node, ...made);
}

const EMPTY = {
  ready: ["No item is ready.", "Items that can be taken appear here."],
  delayed: ["No item is delayed.", "Items that were pushed with a delay, wait for their next attempt, sleep, or wait for a signal or for other jobs, appear here."],
  claimed: ["No item is claimed.", "Items that a client works on appear here."],
  dead: ["There are no dead letters.", "Items that have failed too often appear here."],
  done: ["No done items are kept.", "Acknowledged items are kept if the options of the queue say so."],
};

// Errors

const MAX_ERRORS = 5; // that the summary shows

/** Make the list of the errors of items, the most frequent first; each leads to its items. */
function errorSummary(choose) {
  const list = h("ul", { "aria-label": "Errors" });
  const note = h("p.muted");
  const node = h("div.errors", { hidden: true }, list, note);
  return {
    node,
    update(items, isPart = false) {
      const counts = new Map();
      for (const item of items) {
        const line = item.error?.split("\n")[0].slice(0, 200);
        if (line) counts.set(line, (counts.get(line) ?? 0) + 1);
      }
      const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MAX_ERRORS);
      reconcile(list, most, ([error]) => error,
        ([error]) => h("li", {}, h("b"), button(error, () => choose(error), { kind: "link" })),
        (element, [, count]) => setText(element.firstChild, `${number(count)} ×`));
      node.hidden = most.length === 0;
      note.hidden = !isPart;
      setText(note, isPart ? `Among the ${plural(items.length, "item")} in the list.` : "");
    },
  };
}

// The table

const time = (iso) => (iso ? ago(iso) : "–");
const errorOf = (item) => (item.error ? h("span.error-text", { title: item.error }, preview(item.error, 160)) : "–");
const ran = (item) => (item.run_time === null ? "–" : wait(item.run_time));
const holderOf = (item) => [item.claimed_by || "unknown", item.cancelling && [" ", badge("cancelled", "alert-dead")]];
const resultOf = (item) => {
  if (item.outcome !== "done") return [badge(item.outcome), item.error && ` ${preview(item.error, 80)}`];
  return item.result === null ? "–" : h("span.payload", {}, preview(item.result, 80));
};
const attemptsOf = (item) => (item.max_attempts === null ? String(item.attempts) : `${item.attempts} of ${item.max_attempts}`);

/** The columns of each state, behind id, priority and payload. */
const COLUMNS = {
  ready: [["Pushed", (item) => time(item.pushed_at)], ["Attempts", attemptsOf], ["Last error", errorOf, "wide"]],
  delayed: [["Due", (item) => (item.due_at ? ago(item.due_at) : "waits")], ["Attempts", attemptsOf], ["Last error", errorOf, "wide"]],
  claimed: [["Held by", holderOf], ["Running for", (item) => [item.claimed_at ? age(item.claimed_at) : "–", progressBar(item)]], ["Lease ends", (item) => time(item.lease_ends)]],
  dead: [["Error", errorOf, "wide"], ["Attempts", attemptsOf], ["Ran", ran], ["Died", (item) => time(item.died_at)]],
  done: [["Result", resultOf, "wide"], ["Attempts", attemptsOf], ["Ran", ran], ["Finished", (item) => time(item.finished_at)]],
};

/**
 * Make the table of items; `acted` is called with the id of an item that a button has changed, and `chose` when the
 * user has changed the set of selected ids.
 */
function itemTable(queue, acted, selected, chose) {
  const node = h("div");
  let current = "";
  let body = null;
  let columns = [];
  return {
    node,
    unselect() {
      for (const box of node.querySelectorAll("input:checked")) box.checked = false;
    },
    update(items, state, kind) {
      if (current !== `${state} ${kind}`) {
        current = `${state} ${kind}`;
        columns = [
          can("write") && ["Select", (item) => selectBox(item.id, selected, chose), "select"],
          ["Item", (item) => h("a.row-link", { href: itemLink(queue, item.id), title: item.id, data: { key: `item ${item.id}` } }, shortId(item.id)), "id"],
          kind !== "fifo" && ["Priority", (item) => priorityText(item.priority)],
          kind === "task" && ["Agent", (item) => item.agent_name ?? "–"],
          ["Payload", (item) => h("span.payload", {}, preview(item.item)), "wide"],
          ...COLUMNS[state],
          can("write") && ["Actions", (item) => rowButtons(queue, item, acted), "row-actions"],
        ].filter(Boolean);
        const made = table(`Items that are ${state}`, columns.map(([label, , style]) => ({ label, class: style, hidden: label === "Actions" || label === "Select" })));
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

function selectBox(id, selected, chose) {
  const box = h("input", { type: "checkbox", checked: selected.has(id), "aria-label": `Select item ${id}`, data: { key: `select ${id}` }, on: { change() {
    if (box.checked) selected.add(id);
    else selected.delete(id);
    chose();
  } } });
  return box;
}

function rowButtons(queue, item, acted) {
  return h("span.actions", {}, actionsFor(item.state, [item]).map((action) =>
    button(action.label, async () => { if (await actOnOne(action, queue, item.id)) await acted(item.id); },
      { kind: action.danger ? "small danger-quiet" : "small", key: `${action.name} ${item.id}`, "aria-label": `${action.label} item ${item.id}` })));
}
