// What a job does in several runs: its steps as a timeline, and the batches that it is part of.

import { can, itemPath, now, post } from "./api.js";
import { itemLink } from "./filters.js";
import { clock, number, plural, preview, shortId, wait } from "./format.js";
import { age, ago, ask, badge, button, h, toast } from "./ui.js";

const SHOWN = 100; // steps, the last ones
const BATCHES = 10; // batches, the first ones

/** The states of items whose colours those of steps have. */
const COLOURS = { done: "done", failed: "dead", "timed out": "dead", waiting: "delayed" };

/**
 * Make the timeline of the steps of a job.
 *
 * @param {string} queue
 * @param {any} info The item.
 * @param {any[]} steps
 * @param {() => Promise<void>} refresh Reads the item again.
 */
export function stepList(queue, info, steps, refresh) {
  const shown = steps.slice(-SHOWN);
  const place = timeScale(shown);
  const canRetry = info.state === "dead" && can("write");
  return [
    shown.length < steps.length && h("p.muted", {}, `The last ${number(shown.length)} of ${plural(steps.length, "step")}.`),
    h("ol.timeline.steps", {}, shown.map((step) => h(`li${step.state === "waiting" ? ".is-future" : ""}`, { data: { state: COLOURS[step.state] } },
      h("div.step-head", {}, h("span.badges", {}, h("strong", {}, step.name), step.kind !== "step" && badge(step.kind)),
        canRetry && button("Retry from here", () => retryFrom(queue, info.id, steps, step.name).then(refresh),
          { kind: "small", key: `retry ${step.name}`, "aria-label": `Retry from here: ${step.name}` })),
      h("span.track", { "aria-hidden": "true" }, h("span.fill", { css: place(step) })),
      h("span.timeline-time", {}, whenText(step)),
      detailsOf(step).map((detail) => h("span.timeline-detail", {}, detail)),
      step.error && h("span.error-text.timeline-detail", {}, preview(step.error, 400))))),
  ];
}

/** Make a link to a job; only its id if its queue has no name. */
export const jobLink = ({ queue, id }) => (queue === null ? h("code", { title: id }, shortId(id))
  : h("a", { href: itemLink(queue, id), title: id, data: { key: `job ${id}` } }, `${queue} ${shortId(id)}`));

const endOf = ({ began_at, ended_at }) => (ended_at === null ? now() : Math.max(Date.parse(began_at), Date.parse(ended_at)));

/** Return a function that places the bar of a step between the beginning of the first one and the end of the last. */
function timeScale(steps) {
  const begin = Math.min(...steps.map((step) => Date.parse(step.began_at)));
  const length = Math.max(1, ...steps.map((step) => endOf(step) - begin));
  const percent = (milliseconds) => `${((100 * milliseconds) / length).toFixed(2)}%`;
  return (step) => {
    const began = Date.parse(step.began_at);
    return { "margin-inline-start": percent(Math.min(began - begin, 0.98 * length)), "inline-size": percent(endOf(step) - began) };
  };
}

const ENDS = { done: "Done", failed: "Failed", "timed out": "Timed out" };
const UNTIL = { sleep: "Sleeps until", wait: "Waits until" };

/** Say when a step has ended, or what it waits for, and until when. */
function whenText({ kind, state, began_at, ended_at, due_at }) {
  if (state !== "waiting") {
    const took = (Date.parse(ended_at) - Date.parse(began_at)) / 1000;
    return [`${ENDS[state]} ${clock(ended_at)} · `, ago(ended_at), took > 0 && `, after ${wait(took)}`];
  }
  if (due_at === null) return [kind === "run" ? "Runs for " : "Waits for a signal for ", age(began_at)];
  return [`${UNTIL[kind] ?? "Is tried again"} ${clock(due_at)} · `, ago(due_at)];
}

/** Return what else is to be said of a step, in lines. */
function detailsOf({ kind, state, key, queue, failures, value }) {
  return [
    kind === "wait" && `Key ${key === "" ? "empty" : key}`,
    kind === "run" && ["Job ", jobLink({ queue, id: key })],
    failures > 0 && plural(failures, "failure"),
    state === "done" && value !== null && h("code", {}, preview(value)),
  ].filter(Boolean);
}

async function retryFrom(queue, id, steps, name) {
  const later = steps.length - 1 - steps.findIndex((step) => step.name === name);
  const answer = await ask({
    title: `Retry from step ${name}?`,
    text: [h("p", {}, later === 0 ? "The job forgets this step, and goes on there." : `The job forgets this step and ${plural(later, "step")} after it, with their results, and goes on there.`)],
    yes: "Retry",
    action: () => post(`${itemPath(queue, id)}/retry`, { step: name }),
  });
  if (answer) toast("The item was retried.");
}

/**
 * Make the list of the batches of a job, with the progress of each.
 *
 * @param {string} queue
 * @param {string} id The id of its item.
 * @param {any[]} batches
 * @param {() => Promise<void>} refresh Reads the item again.
 */
export function batchList(queue, id, batches, refresh) {
  const shown = batches.slice(0, BATCHES);
  return [
    h("ul.batches", {}, shown.map((batch) => h("li", {},
      h("p", {}, roleOf(batch)),
      h("span.progress", {},
        h("progress", { max: Math.max(1, batch.pushed), value: batch.pushed - batch.left, "aria-label": batch.is_member ? `Progress of the batch of ${batch.id}` : "Progress of the batch" }),
        h("span.muted", {}, progressText(batch))),
      h("span.badges", {}, badgesOf(batch).map((condition) => badge(condition))),
      batch.is_open && !batch.is_member && can("write") && h("span.actions", {},
        button("Close the batch", () => closeBatch(queue, id).then(refresh), { kind: "small" }))))),
    shown.length < batches.length && h("p.muted", {}, `and ${plural(batches.length - shown.length, "more batch", "more batches")}`),
  ];
}

async function closeBatch(queue, id) {
  const answer = await ask({
    title: "Close the batch?",
    text: [h("p", {}, "No more jobs can be added to it. The job at its end runs once those that were added have ended.")],
    yes: "Close",
    action: () => post(`${itemPath(queue, id)}/close-batch`),
  });
  if (answer) toast("The batch was closed.");
}

function roleOf({ kind, queue, id, step, is_member }) {
  if (!is_member) return kind === "then" ? "This job runs once these have ended." : "This job follows others.";
  const job = jobLink({ queue, id });
  switch (kind) {
    case "run":
      return ["Step ", h("strong", {}, step), " of ", job, " waits for it."];
    case "after":
      return [job, " follows it."];
    default:
      return ["At the end of its batch, ", job, " runs."];
  }
}

function progressText({ pushed, done, dead, cancelled, left }) {
  const ends = [[done, "done"], [dead, "dead"], [cancelled, "cancelled"]].filter(([count]) => count > 0).map(([count, how]) => `${number(count)} ${how}`);
  return `${number(pushed - left)} of ${plural(pushed, "job")} ended${ends.length ? `: ${ends.join(", ")}` : ""}`;
}

const badgesOf = (batch) => [batch.has_ended ? "ended" : batch.is_open ? "open" : "closed", batch.is_cancelled && "cancelled"].filter(Boolean);
