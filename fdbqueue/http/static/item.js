// One item: its payload, its history, its steps and batches, its failed attempts, and what can be done with it.

import { actOnOne, actionsFor } from "./actions.js";
import { can, get, itemPath, patch, queuePath } from "./api.js";
import { callText, clock, duration, plural, priorityText, wait } from "./format.js";
import { heldText } from "./held.js";
import { poll } from "./live.js";
import { batchList, jobLink, stepList } from "./steps.js";
import { tree } from "./tree.js";
import { age, ago, ask, badge, button, empty, h, icon, keepingFocus, progressBar, replaceKeepingFocus, skeleton, stateBadge, toast } from "./ui.js";

const QUICK = 100; // milliseconds
const SLOW = 5; // requests of the item for one of its position, or of many steps
const MANY = 20; // steps
const MAX_AHEAD = 100; // items that the server counts

/** Make the page of an item. */
export function itemPage(queue, id) {
  const back = `#/queues/${encodeURIComponent(queue)}`;
  const crumb = h("a", { href: back }, queue);
  const heading = h("h1", { tabindex: -1 }, "Item ", h("code", {}, id));
  const badges = h("span.badges");
  const buttons = h("div.actions");
  const content = h("div", {}, skeleton(8));
  let shown = ""; // the item with its steps and batches, as JSON
  let round = 0, lastPosition = null, positionTime = 0;
  let steps = [], stepsOf = "", stepRound = 0; // the steps as they were last read, and the item at that time, as JSON

  async function readPosition() {
    const begin = performance.now();
    try {
      return (await get(`${itemPath(queue, id)}/position`)).position;
    } catch {
      return null; // it has just been taken, or too many are ahead for one transaction
    } finally {
      positionTime = performance.now() - begin;
    }
  }

  /** Read the steps; many of them less often while the item does not change. */
  async function readSteps(info) {
    const version = JSON.stringify(info);
    if (info.stored_steps > MANY && version === stepsOf && stepRound++ % SLOW) return;
    steps = info.stored_steps > 0 ? (await get(`${itemPath(queue, id)}/steps`)).steps : [];
    stepsOf = version;
  }

  async function load() {
    const info = await get(itemPath(queue, id));
    await readSteps(info);
    const batches = info.in_batch ? (await get(`${itemPath(queue, id)}/batches`)).batches : [];
    const isWaiting = info.state === "ready" || info.state === "delayed";
    const isDeserted = isWaiting && (await get(`${queuePath(queue)}/workers`)).workers.length === 0;
    const text = JSON.stringify([info, steps, batches, isDeserted]);
    const isSame = text === shown;
    // The position costs a scan of the items ahead: it is read again only while that is quick.
    if (isSame && (info.state !== "ready" || positionTime > QUICK || round++ % SLOW)) return;
    const position = info.state === "ready" ? await readPosition() : null;
    if (isSame && position === lastPosition) return;
    shown = text;
    lastPosition = position;
    crumb.setAttribute("href", `${back}?state=${info.state}`);
    badges.replaceChildren(stateBadge(info.state), ...(info.attempts > 1 ? [badge(`attempt ${info.attempts}`)] : []));
    keepingFocus(() => heading, () => {
      replaceKeepingFocus(buttons, ...itemButtons(queue, info, refresh));
      show(content, info, position, isDeserted,
        steps.length > 0 && card("Steps", ...stepList(queue, info, steps, refresh)),
        batches.length > 0 && card(batches.length === 1 ? "Batch" : "Batches", ...batchList(queue, id, batches, refresh)));
    });
  }

  const polling = poll(load, { failed(error) {
    shown = "";
    badges.replaceChildren();
    keepingFocus(() => heading, () => buttons.replaceChildren(linkButton()));
    content.replaceChildren(empty(error.status === 404 ? "The item is gone." : "The item cannot be shown.",
      h("p", {}, error.status === 404 ? "It has been completed, removed or popped, or it has expired." : error.message),
      h("p", {}, h("a", { href: back }, `Go to ${queue}`))));
  } });
  const refresh = () => polling.now();

  return {
    title: `Item ${id}`,
    nodes: [
      h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Overview"), h("span", { "aria-hidden": "true" }, "/"), crumb),
      h("div.title-row", {}, h("div.title", {}, heading, badges), buttons),
      content,
    ],
    stop: polling.stop,
  };
}

function linkButton() {
  return button("Copy link", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The link was copied.");
    } catch {
      toast("The browser does not allow it. Copy the address of this page."); // without TLS, beyond localhost
    }
  }, { icon: "link" });
}

function itemButtons(queue, info, refresh) {
  const made = [linkButton()];
  if (!can("write")) return made;
  if (info.priority !== null && ["ready", "delayed"].includes(info.state)) {
    made.push(button("Change priority", async () => {
      await ask({
        title: "Change the priority",
        text: [h("p", {}, "The item moves behind the last one of that priority, and keeps its id. The lowest priority is taken first.")],
        fields: [{ name: "priority", label: "Priority", value: priorityText(info.priority), required: true }],
        yes: "Change",
        async action({ priority }) {
          await patch(itemPath(queue, info.id), { priority: parsed(priority) });
          toast("The priority was changed.");
        },
      });
      await refresh();
    }, { icon: "queues" }));
  }
  for (const action of actionsFor(info.state, [info])) {
    made.push(button(action.label, async () => {
      await actOnOne(action, queue, info.id);
      await refresh();
    }, { icon: action.icon, kind: action.danger ? "danger-quiet" : "primary" }));
  }
  return made;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("a priority is an integer, or a list such as [1, \"a\"]");
  }
}

function show(content, info, position, isDeserted, stepCard, batchCard) {
  const isOpen = new Map([...content.querySelectorAll("details[data-attempt]")].map((node) => [node.dataset.attempt, node.open]));
  content.replaceChildren(
    info.held_by === null ? "" : hold(info),
    info.waits_for === null ? "" : waiting(info.waits_for),
    isDeserted ? notice("Nobody works on this queue.") : "",
    info.state === "claimed" ? holder(info) : "",
    info.state === "dead" ? verdict(info) : "",
    h("div.columns", {},
      h("div.column-main", {},
        card("Payload", callText(info.item) && h("pre.raw", { tabindex: 0, role: "region", "aria-label": "Call" }, callText(info.item)), payload(info.item)),
        info.result !== null && card("Result", payload(info.result)),
        stepCard,
        info.log && card("Log", logText(info.log)),
        info.failed_attempts.length > 0 && card(attemptsTitle(info), attempts(info, isOpen))),
      h("div.column-side", {},
        card("Facts", facts(info, position)),
        batchCard,
        card("Timeline", timeline(info)))));
}

const logText = (text) => h("pre.raw", { tabindex: 0, role: "region", "aria-label": "Lines of the log" }, text);

const card = (title, ...content) => h("section.card", { "aria-label": title }, h("h2", {}, title), ...content);

const hold = ({ held_by }) => h("div.notice", { data: { state: "delayed" } }, icon("pause"),
  h("p", {}, h("strong", {}, "It does not run now. "), heldText(held_by)));

const notice = (title, ...text) => h("div.notice", { data: { state: "delayed" } }, icon("pause"),
  h("p", {}, h("strong", {}, title, " "), ...text));

/** Say what a job waits for, with links to other jobs. */
const waiting = ({ why, jobs }) => notice("It waits.", `${why[0].toUpperCase()}${why.slice(1)}${jobs.length > 0 ? ": " : "."}`,
  ...jobs.flatMap((job, n) => [n > 0 && ", ", jobLink(job)]));

function holder(info) {
  return h("div.notice", { data: { state: "claimed" } }, icon("workers"), h("div", {}, h("p", {},
    "Held by ", h("strong", {}, info.claimed_by || "an unknown client"),
    info.claimed_at && [" for ", age(info.claimed_at), ", since ", clock(info.claimed_at)],
    info.lease_ends && [". The lease ends ", ago(info.lease_ends), ", at ", clock(info.lease_ends), ", unless the client extends it."]),
    info.cancelling && h("p", {}, "It was cancelled, and its worker is told."),
    progressBar(info)));
}

function verdict(info) {
  return h("div.notice", { data: { state: "dead" } }, icon("alert"), h("div", {},
    h("p", {}, "A dead letter", info.died_at && [" for ", age(info.died_at)], ", after ", h("strong", {}, plural(info.attempts, "attempt")), "."),
    info.error && h("p.error-text", {}, info.error),
    info.parent && h("p", {}, "Step ", h("strong", {}, info.parent.step), " of ", jobLink(info.parent), " runs it.")));
}

function payload(value) {
  const isTree = value !== null && typeof value === "object";
  const raw = JSON.stringify(value, null, 2) ?? "null";
  const copy = button("Copy JSON", async () => {
    try {
      await navigator.clipboard.writeText(raw);
      toast("The JSON was copied.");
    } catch {
      toast("The browser does not allow it.", "error");
    }
  }, { kind: "small", icon: "copy" });
  return [isTree ? tree(value) : h("pre.raw", { tabindex: 0 }, raw), h("div.card-foot", {}, copy)];
}

const attemptsTitle = (info) => (info.failed_attempts.length === 1 ? "1 failed attempt" : `${info.failed_attempts.length} failed attempts`);

function attempts(info, isOpen) {
  const last = info.failed_attempts.at(-1);
  return h("ol.attempts", {}, [...info.failed_attempts].reverse().map((attempt) => {
    const key = String(attempt.number);
    const title = [h("strong", {}, `Attempt ${attempt.number}`), " ", ago(attempt.ended_at),
      attempt.run_time !== null && h("span.muted", {}, ` after ${wait(attempt.run_time)}`),
      attempt.client && [h("span.muted", {}, " by "), h("span.client", {}, attempt.client)]];
    const error = h("p.error-text", {}, attempt.error ?? "no error was given");
    return h("li", {}, h("p.attempt-head", {}, title), error,
      attempt.retried_at && h("p.muted", {}, "Retried ", ago(attempt.retried_at), " by ", h("span.client", {}, attempt.retried_by)),
      attempt.log && logText(attempt.log),
      attempt.traceback && h("details", { open: isOpen.get(key) ?? attempt === last, data: { attempt: key } },
        h("summary", {}, "Traceback"), h("div.traceback", { tabindex: 0, "aria-label": `Traceback of attempt ${key}`, role: "region" }, frames(attempt.traceback))));
  }));
}

/** Frames of fdbqueue in a traceback, one after the other. */
const OWN_FRAMES = /((?: {2}File "[^"]*\bfdbqueue[/\\](?:coordination|database|embedded|jobs|layout|operations|queue|worker)\b.*\n(?: {4}.*\n)*)+)/;

/** Make the parts of a traceback: the frames of the library are folded. */
const frames = (text) => text.split(OWN_FRAMES).map((part, n) => {
  const own = h("pre", {}, part);
  return n % 2 ? h("details", {}, h("summary", {}, plural(part.match(/^ {2}File /gm).length, "frame of fdbqueue", "frames of fdbqueue")), own) : part && own;
});

function facts(info, position) {
  const given = [
    ["Priority", priorityText(info.priority)],
    ["Attempts", info.max_attempts === null ? String(info.attempts) : `${info.attempts} of ${info.max_attempts}`],
    ["Run time", info.run_time === null ? null : wait(info.run_time)],
    ["Ahead of it", position === null ? null : plural(position, "item")],
    ["Group", info.group],
    ["Ahead of it in its group", aheadText(info.ahead_in_group)],
    ["Due", info.due_at && ago(info.due_at)],
    ["Expires", info.expires_at && ago(info.expires_at)],
    ["Runs for", info.parent && jobLink(info.parent)],
    ["Unique key", info.unique],
    ["Agent", info.agent_name],
    ["Client", info.client_id],
    ["Deadline", info.deadline && ago(info.deadline)],
    ["Cost", info.cost ? String(info.cost) : null],
  ];
  return h("dl.facts", {}, given.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function aheadText(ahead) {
  if (ahead === null) return null;
  return ahead < MAX_AHEAD ? plural(ahead, "item") : `${MAX_AHEAD} items or more`;
}

const ENDS = { discarded: "Discarded", cancelled: "Cancelled" };

/** Make the list of what has happened to an item, and what will. */
function timeline(info) {
  const events = [
    { at: info.pushed_at, text: "Pushed", state: "ready" },
    ...info.failed_attempts.map((attempt) => ({
      at: attempt.ended_at, text: `Attempt ${attempt.number} failed`, state: "dead", detail: attempt.error,
    })),
    ...info.failed_attempts.map((attempt) => ({ at: attempt.retried_at, text: `Retried by ${attempt.retried_by}`, state: "ready" })),
    { at: info.claimed_at, text: `Claimed by ${info.claimed_by || "an unknown client"}`, state: "claimed" },
    { at: info.died_at, text: "Became a dead letter", state: "dead" },
    { at: info.finished_at, text: ENDS[info.outcome] || "Done", state: "done", detail: info.error || took(info) },
    { at: info.due_at, text: "Due", state: "delayed", isFuture: true },
    { at: info.lease_ends, text: "The lease ends", state: "claimed", isFuture: true },
    { at: info.expires_at, text: "Expires", state: "dead", isFuture: true },
  ].filter((event) => event.at);
  events.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return h("ol.timeline", {}, events.map(({ at, text, state, detail, isFuture }) =>
    h(`li${isFuture ? ".is-future" : ""}`, { data: { state } },
      h("strong", {}, text), h("span.timeline-time", {}, clock(at), " · ", ago(at)), detail && h("span.timeline-detail", {}, detail))));
}

function took(info) {
  if (!info.pushed_at || !info.finished_at) return null;
  const ran = info.run_time === null ? "" : `ran ${wait(info.run_time)}, `;
  return `${ran}${duration((Date.parse(info.finished_at) - Date.parse(info.pushed_at)) / 1000)} after the push`;
}
