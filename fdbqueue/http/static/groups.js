// The groups of a queue: who waits, who runs, who is held back and by what, and what can be set for each.

import { can, get, patch, post, queuePath } from "./api.js";
import { address } from "./filters.js";
import { clock, lengthText, number, plural, rateOf, rateText } from "./format.js";
import { groupHeldText } from "./held.js";
import { poll } from "./live.js";
import { ask, attempt, badge, button, cell, command, empty, h, icon, reconcile, replaceKeepingFocus, row, setText, skeleton, table, toast } from "./ui.js";

const PAGE = 50; // groups

/**
 * @typedef {{name: string, ready: number, claimed: number, weight: number, concurrency: number | null, paused: boolean,
 *   rate: [number, number] | null, max_size: number | null, held_by: string | null, held_until: string | null}} Group
 */

const queueAddress = (queue) => `#/queues/${encodeURIComponent(queue)}`;
const pageAddress = (queue, after) => `${queueAddress(queue)}/groups${after === null ? "" : `?${new URLSearchParams({ after })}`}`;

/** Make the link to the groups of a queue, which looks like a button. */
export const groupsLink = (queue) => h("a.button", { href: pageAddress(queue, null), data: { key: "groups" } },
  icon("groups"), h("span", {}, "Groups"));

/** Make the page of the groups of a queue, from the one that follows the `after` of the query. */
export function groupsPage(queue, query) {
  let after = query.get("after");
  const { node, body } = table("Groups", COLUMNS.map(({ label, style, hidden }) => ({ label, class: style, hidden })));
  const heading = h("h1", { tabindex: -1 }, "Groups");
  const lead = h("p.lead"), all = h("p.for-all");
  const place = h("div", {}, skeleton(6));
  const first = h("a.button", { href: pageAddress(queue, null) }, "First page"), next = h("a.button", {}, "Next page");
  const foot = h("nav.list-foot", { "aria-label": "Pages", hidden: true }, first, next);

  async function load() {
    const asked = after;
    const [{ groups, for_all, next: last }, { options }] = await Promise.all([
      get(`${queuePath(queue)}/groups`, { limit: PAGE, after: asked }), get(queuePath(queue))]);
    if (asked !== after) return; // the user has turned the page meanwhile
    for (const group of groups) group.queue_paused = options.paused;
    setText(lead, [groups.length && leadText(groups), options.paused && "The queue is paused."].filter(Boolean).join(" "));
    replaceKeepingFocus(all, ...forAll(queue, for_all, () => polling.now()));
    const hadFocus = place.contains(document.activeElement);
    reconcile(body, groups, ({ name }) => name, () => row(), (element, group) => {
      const text = JSON.stringify(group);
      if (element.shown === text) return;
      element.shown = text;
      replaceKeepingFocus(element, ...COLUMNS.map(({ label, style, show }) => cell(label, style, show(group, queue, () => polling.now()))));
    });
    if (!groups.length) place.replaceChildren(asked === null ? none(queue) : empty("No group follows.", h("p", {}, "The groups of this page have no items any more.")));
    else if (place.firstChild !== node) place.replaceChildren(node);
    first.hidden = asked === null;
    next.hidden = last === null;
    if (last !== null) next.setAttribute("href", pageAddress(queue, last));
    foot.hidden = first.hidden && next.hidden;
    if (hadFocus && document.activeElement === document.body) heading.focus();
  }

  const polling = poll(load, { failed(error) {
    setText(lead, "");
    foot.hidden = true;
    place.replaceChildren(empty(error.status === 404 ? "There is no such queue." : "The groups cannot be shown.",
      h("p", {}, error.status === 404 ? "It was dropped or renamed, or nothing was pushed to it yet." : error.message),
      h("p", {}, h("a", { href: "#/" }, "Go to the overview"))));
  } });

  return {
    title: `Groups of ${queue}`,
    nodes: [
      h("nav.crumbs", { "aria-label": "Breadcrumb" },
        h("a", { href: "#/" }, "Overview"), h("span", { "aria-hidden": "true" }, "/"), h("a", { href: queueAddress(queue) }, queue)),
      h("div.title-row", {}, heading), lead, all,
      h("section.queues.groups", { "aria-label": "Groups" }, place, foot),
    ],
    update(changed) {
      after = changed.get("after");
      heading.focus();
      void polling.now();
    },
    stop: polling.stop,
  };
}

const none = (queue) => empty(`${queue} has no groups.`,
  h("p", {}, "Groups share what is taken from a queue, whatever one of them pushes. A group exists once an item names it:"),
  command(`fdbq push ${queue} '"hello"' --group "customer 7"`));

function leadText(groups) {
  const paused = groups.filter((group) => group.paused).length;
  const held = groups.filter(({ ready, held_by }) => ready > 0 && held_by !== null && held_by !== "paused").length;
  return [`${plural(groups.length, "group")} on this page`, paused && `${number(paused)} paused`, held && `${number(held)} held back by limits`]
    .filter(Boolean).join(", ") + ".";
}

// Columns

/** @type {{label: string, style: string, hidden?: boolean, show: (group: Group, queue: string, refresh: () => Promise<void>) => any}[]} */
const COLUMNS = [
  { label: "Group", style: "group-name", show: ({ name }) => h("strong", {}, name) },
  { label: "Ready", style: "number", show: (group, queue) => itemsLink(queue, group, "ready") },
  { label: "Claimed", style: "number", show: (group, queue) => itemsLink(queue, group, "claimed") },
  { label: "Concurrency", style: "number", show: ({ concurrency }) => (concurrency === null ? h("span.muted", {}, "no limit") : number(concurrency)) },
  { label: "Rate", style: "number", show: ({ rate }) => (rate === null ? h("span.muted", {}, "no limit") : `${number(rate[0])} in ${lengthText(rate[1])}`) },
  { label: "Size", style: "number", show: ({ max_size }) => (max_size === null ? h("span.muted", {}, "no limit") : number(max_size)) },
  { label: "Weight", style: "number", show: ({ weight }) => String(weight) },
  { label: "State", style: "group-state", show: stateCell },
  { label: "Actions", style: "row-actions", hidden: true, show: buttons },
];

const shown = (name) => (name === null ? "all groups" : name);

const itemsLink = (queue, group, state) => {
  const { name, [state]: count } = group;
  return count ? h("a", { href: address(queue, { state, group: name }), data: { key: state } }, number(count)) : number(count);
};

/** Say whether a group waits, runs, or is held back, and by what. */
function stateCell({ ready, claimed, held_by, held_until, queue_paused }) {
  if (queue_paused && held_by !== "paused") return badge("queue paused", "paused");
  if (held_by !== null) return [badge(groupHeldText(held_by), held_by === "paused" ? "paused" : ""), held_until && h("span.muted", {}, " until ", clock(held_until))];
  if (ready > 0) return claimed > 0 ? "runs, and takes turns" : "waits for its turn";
  return claimed > 0 ? "runs" : h("span.muted", {}, "has no items");
}

function buttons(group, queue, refresh) {
  if (!can("admin")) return null;
  const { name, paused } = group;
  const path = `${queuePath(queue)}/groups/${encodeURIComponent(name)}`;
  const small = (label, action, props) => button(label, async () => { await action(); await refresh(); },
    { kind: "small", "aria-label": `${label} ${shown(name)}`, ...props });
  const limits = small("Limits", () => editGroup(group, path));
  return h("div.actions", {},
    small(paused ? "Resume" : "Pause", () => attempt(() => patch(path, { paused: !paused }), `${name} was ${paused ? "resumed" : "paused"}.`), { key: "pause" }),
    limits,
    CHANGES.map((change) => small(change.label, () => changeItems(change, group, path), { kind: change.danger ? "small danger-quiet" : "small" })));
}

const CHANGES = [
  { label: "Retry", past: "retried", effect: "Its dead letters return to their places in the queue, with all their attempts again." },
  { label: "Cancel", past: "cancelled", danger: true, no: "Go back",
    effect: "Its ready and delayed items end at once. Its claimed items end with their claims: their workers are told to stop, and they do not run again. They stay as done if the queue keeps done items." },
  { label: "Clear", past: "removed", danger: true,
    effect: "This removes all its items for good: ready, delayed, claimed and done ones, and dead letters. A client that works on a claimed item cannot acknowledge it any more. The settings of the group stay." },
];

async function changeItems({ label, past, effect, danger, no }, group, path) {
  let outcome = "";
  const answer = await ask({
    title: `${label} the items of ${group.name}?`, text: [h("p", {}, effect)], yes: label, no, danger,
    async action() {
      const { changed, unchanged } = await post(`${path}/${label.toLowerCase()}`);
      outcome = `${plural(changed, "item was", "items were")} ${past}.${unchanged.length ? ` ${plural(unchanged.length, "item was", "items were")} not.` : ""}`;
    },
  });
  if (answer) toast(outcome);
}

/** Show the settings of all groups, with a button to change them. */
function forAll(queue, settings, refresh) {
  const { weight, concurrency, rate, max_size, in_order } = settings;
  const parts = [weight !== null && `weight ${weight}`, concurrency !== null && `concurrency ${number(concurrency)}`,
    rate !== null && `${number(rate[0])} in ${lengthText(rate[1])}`, max_size !== null && `size ${number(max_size)}`,
    in_order === false && "not in order"].filter(Boolean);
  const edit = button("Limits", async () => { await editGroup({ ...settings, name: null }, `${queuePath(queue)}/groups`); await refresh(); },
    { kind: "small", key: "for all", "aria-label": "Limits of all groups" });
  return [h("span", {}, h("strong", {}, "All groups: "), parts.join(", ") || "nothing is set"), can("admin") && edit].filter(Boolean);
}

async function editGroup(group, path) {
  const rest = group.name === null ? "Leave it empty for no setting." : "Leave it empty for the setting of all groups.";
  const stored = { weight: String(group.weight ?? ""), concurrency: String(group.concurrency ?? ""), rate: rateText(group.rate),
    size: String(group.max_size ?? "") };
  const answer = await ask({
    title: `Limits of ${shown(group.name)}`,
    fields: [
      { name: "weight", label: "Weight", value: stored.weight, hint: `Its share of what is taken, in proportion to the weights of the others, from 0.001 to 1,000. ${rest}` },
      { name: "concurrency", label: "Concurrency", type: "number", min: 1, value: stored.concurrency, hint: `The maximum number of its items that are claimed at a time. ${rest}` },
      { name: "rate", label: "Rate", value: stored.rate, hint: `The maximum number of its items that start in a time, such as 100/1m. ${rest}` },
      { name: "size", label: "Size", type: "number", min: 1, value: stored.size, hint: `The maximum number of its ready, delayed and claimed items. ${rest}` },
    ],
    yes: "Save",
    async action(values) {
      const changed = Object.keys(values).filter((setting) => values[setting].trim() !== stored[setting]);
      const body = Object.assign({}, ...changed.map((setting) => settingsOf(values[setting].trim(), setting)));
      if (changed.length) await patch(path, body);
    },
  });
  if (answer) toast(`The limits of ${shown(group.name)} were saved.`);
}

/** Return the settings that a field stands for. */
function settingsOf(text, field) {
  return field === "size" ? { max_size: valueOf(text, "a size") } : { [field]: valueOf(text, field) };
}

function valueOf(text, setting) {
  if (text === "") return null;
  if (setting === "rate") return rateOf(text);
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`${setting} is a number, not ${text}`);
  return value;
}
