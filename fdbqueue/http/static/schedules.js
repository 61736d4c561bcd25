// The schedules of a queue: when they push, what they have pushed last, and what can be done with them.

import { can, get, post, queuePath, remove } from "./api.js";
import { clock, lengthText, number, plural, preview, shortId, since } from "./format.js";
import { poll } from "./live.js";
import { ago, ask, attempt, badge, button, cell, command, empty, h, icon, reconcile, replaceKeepingFocus, row, setText, skeleton, table, toast } from "./ui.js";

const LATE = 60; // seconds after which a tick that was not found is shown as overdue

/**
 * @typedef {{name: string, value: any, priority: any, cron: string | null, every: number | null, tz: string, missed: string,
 *   overlap: string, group: string | null, paused: boolean, next_tick: string | null, next_ticks: string[], last_tick: string | null,
 *   last_item: string | null, declared_at: string | null, pushed: number, skipped: number}} Schedule
 */

const queueAddress = (queue) => `#/queues/${encodeURIComponent(queue)}`;

/** Make the link to the schedules of a queue, which looks like a button. */
export const schedulesLink = (queue) => h("a.button", { href: `${queueAddress(queue)}/schedules`, data: { key: "schedules" } },
  icon("clock"), h("span", {}, "Schedules"));

/** Make the page of the schedules of a queue. */
export function schedulesPage(queue) {
  const { node, body } = table("Schedules", COLUMNS.map(({ label, style, hidden }) => ({ label, class: style, hidden })));
  const heading = h("h1", { tabindex: -1 }, "Schedules");
  const lead = h("p.lead");
  const place = h("div", {}, skeleton(6));

  async function load() {
    const { schedules } = await get(`${queuePath(queue)}/schedules`);
    setText(lead, schedules.length ? leadText(schedules) : "");
    const hadFocus = place.contains(document.activeElement);
    reconcile(body, schedules, ({ name }) => name, () => row(), (element, schedule) => {
      const text = JSON.stringify([schedule, conditionOf(schedule)]);
      if (element.shown === text) return;
      element.shown = text;
      replaceKeepingFocus(element, ...COLUMNS.map(({ label, style, show }) => cell(label, style, show(schedule, queue, () => polling.now()))));
    });
    if (!schedules.length) place.replaceChildren(none(queue));
    else if (place.firstChild !== node) place.replaceChildren(node);
    if (hadFocus && document.activeElement === document.body) heading.focus();
  }

  const polling = poll(load, { failed(error) {
    setText(lead, "");
    place.replaceChildren(empty(error.status === 404 ? "There is no such queue." : "The schedules cannot be shown.",
      h("p", {}, error.status === 404 ? "It was dropped or renamed, or nothing was pushed to it yet." : error.message),
      h("p", {}, h("a", { href: "#/" }, "Go to the overview"))));
  } });

  return {
    title: `Schedules of ${queue}`,
    nodes: [
      h("nav.crumbs", { "aria-label": "Breadcrumb" },
        h("a", { href: "#/" }, "Overview"), h("span", { "aria-hidden": "true" }, "/"), h("a", { href: queueAddress(queue) }, queue)),
      h("div.title-row", {}, heading), lead,
      h("section.queues.schedules", { "aria-label": "Schedules" }, place),
    ],
    stop: polling.stop,
  };
}

const none = (queue) => empty(`${queue} has no schedules.`,
  h("p", {}, "A schedule pushes an item at each of its ticks. Declare it in code, above a job, or add it in a shell:"),
  command(`fdbq schedule add ${queue} nightly '{"report": "sales"}' --cron "0 3 * * *" --tz Europe/Lisbon`));

function leadText(schedules) {
  const stopped = schedules.filter((schedule) => conditionOf(schedule) === "stopped").length;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return `${plural(schedules.length, "schedule")}${stopped ? `, ${number(stopped)} stopped` : ""}. Times are those of this browser (${zone}).`;
}

/** Return why a schedule pushes nothing at present; null if it does. */
function conditionOf({ paused, next_tick }) {
  if (paused) return "paused";
  if (next_tick === null) return "stopped";
  return since(next_tick) > LATE ? "overdue" : null;
}

// Columns

/** @type {{label: string, style: string, hidden?: boolean, show: (schedule: Schedule, queue: string, refresh: () => Promise<void>) => any}[]} */
const COLUMNS = [
  { label: "Schedule", style: "schedule-name", show: nameCell },
  { label: "Timing", style: "schedule-timing", show: timingCell },
  { label: "Last tick", style: "schedule-last", show: lastCell },
  { label: "Next ticks", style: "schedule-next", show: nextCell },
  { label: "Pushed", style: "number", show: ({ pushed }) => number(pushed) },
  { label: "Skipped", style: "number", show: ({ skipped }) => number(skipped) },
  { label: "Declared", style: "schedule-declared", show: ({ declared_at }) => (declared_at ? ago(declared_at) : h("span.muted", {}, "added by a call")) },
  { label: "Actions", style: "row-actions", hidden: true, show: buttons },
];

const lines = (...content) => h("div.lines", {}, content);

function nameCell(schedule) {
  const condition = conditionOf(schedule);
  return lines(
    h("div.badges", {}, h("strong", {}, schedule.name), condition && badge(condition, condition)),
    h("span.payload", {}, preview(schedule.value)));
}

function timingCell({ cron, every, tz, missed, overlap, group }) {
  const rules = [missed !== "latest" && `missed: ${missed}`, overlap !== "allow" && `overlap: ${overlap}`, group !== null && `group: ${group}`].filter(Boolean);
  return lines(
    cron === null ? h("span", {}, `every ${lengthText(every)}`) : [h("code", {}, cron), h("span", {}, tz)],
    rules.length > 0 && h("span.muted", {}, rules.join(", ")));
}

function lastCell({ last_tick, last_item }, queue) {
  if (last_tick === null) return h("span.muted", {}, "none yet");
  return lines(
    h("span", {}, ago(last_tick)), h("span.muted", {}, clock(last_tick)),
    last_item && h("a", { href: `${queueAddress(queue)}/items/${encodeURIComponent(last_item)}`, title: last_item, data: { key: "item" } }, shortId(last_item)));
}

function nextCell(schedule) {
  const { next_tick, next_ticks, overlap } = schedule;
  switch (conditionOf(schedule)) {
    case "paused":
      return h("span.muted", {}, "none while it is paused");
    case "stopped":
      return h("span.error-text", {}, "none: no worker has declared it for a day");
    case "overdue":
      return lines(h("span", {}, "due ", ago(next_tick)), h("span.muted", {}, clock(next_tick)),
        h("span.error-text", {}, overlap === "queue" ? "the last item has not ended, or no client takes items" : "no client takes items"));
    default:
      return lines(ago(next_tick), h("ol.muted", {}, next_ticks.map((tick) => h("li", {}, clock(tick)))));
  }
}

function buttons(schedule, queue, refresh) {
  if (!can("admin")) return null;
  const { name, paused } = schedule;
  const path = `${queuePath(queue)}/schedules/${encodeURIComponent(name)}`;
  const small = (label, action, props) => button(label, async () => { await action(); await refresh(); },
    { kind: "small", "aria-label": `${label} ${name}`, ...props });
  return h("div.actions", {},
    small(paused ? "Resume" : "Pause", () => attempt(() => post(`${path}/${paused ? "resume" : "pause"}`), `${name} was ${paused ? "resumed" : "paused"}.`), { key: "pause" }),
    small("Run now", () => attempt(() => post(`${path}/run`), ({ id }) => `${name} has pushed the item ${shortId(id)}.`)),
    small("Remove", () => removeSchedule(schedule, path), { kind: "small danger-quiet" }));
}

async function removeSchedule({ name, declared_at }, path) {
  const answer = await ask({
    title: `Remove ${name}?`,
    text: [
      h("p", {}, "It pushes nothing more. The items that it has pushed stay."),
      declared_at && h("p", {}, "A worker adds it again when it starts, if its code still declares it."),
    ].filter(Boolean),
    yes: "Remove", danger: true,
    action: () => remove(path),
  });
  if (answer) toast(`${name} was removed.`);
}
