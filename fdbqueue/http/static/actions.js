// What can be done with items, singly and together.

import { itemPath, post, queuePath, remove } from "./api.js";
import { number, plural } from "./format.js";
import { STATES, ask, attempt, h, toast } from "./ui.js";

const PARALLEL = 6; // requests at a time

/**
 * @typedef {{name: string, icon: string, label: string, past: string, states: string[], danger?: boolean,
 *   no?: string, suits?: (item: any) => boolean, effect: [string, string],
 *   single: (queue: string, id: string) => Promise<unknown>}} Action
 *   The effect is told of one item and of several; `no` is the button that does nothing; `suits` says whether an item
 *   in one of the states can be changed.
 */

/** @type {Action[]} */
const ACTIONS = [
  {
    name: "retry", icon: "retry", label: "Retry", past: "retried", states: ["dead"],
    effect: ["It returns to its place in the queue, with all its attempts again.", "They return to their places in the queue, with all their attempts again."],
    single: (queue, id) => post(`${itemPath(queue, id)}/retry`),
  },
  {
    name: "run_now", icon: "play", label: "Run now", past: "made ready", states: ["delayed"],
    suits: (item) => !["signal", "children", "jobs", "batch"].includes(item.waits_for?.kind),
    effect: ["It becomes ready at once.", "They become ready at once, except those that wait for a signal or for other jobs."],
    single: (queue, id) => post(`${itemPath(queue, id)}/run-now`),
  },
  {
    name: "release", icon: "release", label: "Release", past: "released", states: ["claimed"],
    effect: ["It is taken away from the client that holds it, and becomes ready. A client that still works on it cannot acknowledge it.",
      "They are taken away from the clients that hold them, and become ready. A client that still works on one cannot acknowledge it."],
    single: (queue, id) => post(`${itemPath(queue, id)}/release`),
  },
  {
    name: "cancel", icon: "cancel", label: "Cancel", past: "cancelled", states: ["ready", "delayed", "claimed"], danger: true, no: "Go back",
    effect: ["If it runs, its worker is told to stop. A job with steps goes on, to undo what it has done; any other does not run again.",
      "If one runs, its worker is told to stop. Jobs with steps go on, to undo what they have done; others do not run again."],
    single: (queue, id) => post(`${itemPath(queue, id)}/cancel`),
  },
  {
    name: "remove", icon: "trash", label: "Remove", past: "removed", states: STATES.filter((state) => state !== "claimed"), danger: true,
    effect: ["It is gone for good.", "They are gone for good."],
    single: (queue, id) => remove(itemPath(queue, id)),
  },
];

/** Return what is possible with items in a state; with a list, with at least one of these. */
export const actionsFor = (state, items = null) => ACTIONS.filter((action) =>
  action.states.includes(state) && (items === null || items.some((item) => suits(action, item))));

/** Return whether an item in one of the states of an action can be changed by it. */
export const suits = (action, item) => !action.suits || action.suits(item);

/** Do something with one item; ask first if it cannot be undone. Return whether it was done. */
export async function actOnOne(action, queue, id) {
  const single = () => action.single(queue, id);
  if (!action.danger) return attempt(single, `The item was ${action.past}.`);
  const answer = await ask({
    title: `${action.label} this item?`, text: [h("p", {}, h("code", {}, id)), h("p", {}, action.effect[0])],
    yes: action.label, no: action.no, danger: true, action: single,
  });
  if (answer) toast(`The item was ${action.past}.`);
  return answer !== null;
}

/**
 * Do something with all items in a state, with those that match filters, or with some that the page has chosen.
 *
 * @param {Action} action
 * @param {{queue: string, state: string, count: number, filters: Object<string, unknown>, which: string,
 *   ids?: string[]}} chosen With `ids` only those; else up to `count` that match the filters, which `which` describes.
 * @returns {Promise<boolean>} Whether it was done.
 */
export async function actOnMany(action, { queue, state, count, filters, which, ids }) {
  const items = plural(count, state === "dead" ? "dead letter" : `${state} item`);
  let outcome = "";
  const answer = await ask({
    title: `${action.label} ${items}?`,
    text: [
      h("p", {}, "This affects ", h("strong", {}, items), ` of ${queue}${which}.`),
      h("p", {}, action.effect[count === 1 ? 0 : 1]),
    ],
    yes: `${action.label} ${number(count)}`,
    no: action.no,
    danger: action.danger,
    async action() {
      outcome = ids ? await each(action, queue, ids) : await all(action, queue, { state, ...filters, limit: count });
    },
  });
  if (answer) toast(outcome);
  return answer !== null;
}

async function all(action, queue, chosen) {
  const { changed, unchanged } = await post(`${queuePath(queue)}/change`, { change: action.name, ...chosen });
  return report(action, changed, unchanged.length);
}

async function each(action, queue, ids) {
  const left = [...ids];
  let changed = 0;
  const problems = [];
  await Promise.all(Array.from({ length: PARALLEL }, async () => {
    while (left.length) {
      try {
        await action.single(queue, left.shift());
        changed++;
      } catch (error) {
        problems.push(error.message);
      }
    }
  }));
  return report(action, changed, problems.length) + (problems.length ? ` The first problem: ${problems[0]}` : "");
}

function report(action, changed, unchanged) {
  const text = `${plural(changed, "item was", "items were")} ${action.past}.`;
  return unchanged ? `${text} ${plural(unchanged, "item was", "items were")} not.` : text;
}
