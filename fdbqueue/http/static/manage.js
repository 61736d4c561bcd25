// What can be done with a queue: push, pause, change options, rename, clear, drop.

import { can, get, post, queuePath, remove } from "./api.js";
import { number, plural } from "./format.js";
import { editOptions } from "./options.js";
import { pushItem } from "./push.js";
import { STATES, ask, attempt, button, h, toast } from "./ui.js";

const LEFT = Symbol("the page was left");

/** Make the buttons that the token allows; `refresh` reads the queue again. */
export function queueButtons(name, { kind, codec, options }, refresh) {
  const made = [];
  const add = (label, action, props) => made.push(button(label, async () => {
    let hasLeft = false; // the page of the queue
    await attempt(async () => { hasLeft = (await action()) === LEFT; });
    if (!hasLeft) await refresh();
  }, props));
  if (can("write") && (codec === "json" || codec === "task")) add("Push", () => pushItem(name, kind), { icon: "plus" });
  if (!can("admin")) return made;
  const isPaused = options.paused;
  add(isPaused ? "Resume" : "Pause", async () => {
    await post(`${queuePath(name)}/${isPaused ? "resume" : "pause"}`);
    toast(isPaused ? `${name} was resumed.` : `${name} was paused. Pushes are still accepted.`);
  }, { icon: isPaused ? "play" : "pause", key: "pause" });
  add("Options", () => editOptions(name), { icon: "settings" });
  add("Rename", () => rename(name), { icon: "pen" });
  add("Clear", () => clear(name), { icon: "clear", kind: "danger-quiet" });
  add("Drop", () => drop(name), { icon: "trash", kind: "danger-quiet" });
  return made;
}

async function rename(name) {
  const { stats } = await get(queuePath(name));
  const values = await ask({
    title: `Rename ${name}?`,
    text: [
      h("p", {}, "The queue keeps its options and its items: ", itemsText(stats), "."),
      h("p", {}, "Workers and programs that have the queue open go on. Those that start later need the new name."),
    ],
    fields: [{ name: "name", label: "New name", value: name, required: true }],
    yes: "Rename",
    action: (given) => post(`${queuePath(name)}/rename`, { name: given.name }),
  });
  if (!values) return null;
  toast(`${name} was renamed to ${values.name}.`);
  location.hash = `#/queues/${encodeURIComponent(values.name)}`;
  return LEFT;
}

async function clear(name) {
  const { stats } = await get(queuePath(name));
  let removed = 0;
  const isDone = await ask({
    title: `Clear ${name}?`,
    text: [
      h("p", {}, "This removes all items for good: ", itemsText(stats), ". The queue and its options stay."),
      stats.claimed > 0 && h("p", {}, "A client that works on a claimed item cannot acknowledge it any more."),
    ].filter(Boolean),
    fields: [nameField],
    yes: "Clear", danger: true,
    async action(values) {
      checkName(name, values);
      const gone = await post(`${queuePath(name)}/clear`);
      removed = STATES.reduce((sum, state) => sum + gone[state], 0);
    },
  });
  if (isDone) toast(`${plural(removed, "item was", "items were")} removed.`);
}

async function drop(name) {
  const { stats } = await get(queuePath(name));
  const isDone = await ask({
    title: `Drop ${name}?`,
    text: [h("p", {}, "This removes the queue for good, with its options and all its items: ", itemsText(stats), ".")],
    fields: [nameField],
    yes: "Drop", danger: true,
    async action(values) {
      checkName(name, values);
      await remove(queuePath(name));
    },
  });
  if (!isDone) return null;
  toast(`${name} was dropped.`);
  location.hash = "#/";
  return LEFT;
}

const nameField = { name: "name", label: "Type the name of the queue", required: true };

function checkName(name, values) {
  if (values.name !== name) throw new Error("This is not the name of the queue.");
}

/** Say how many items are in each state that has any. */
function itemsText(stats) {
  const parts = STATES.filter((state) => stats[state]).map((state) => `${number(stats[state])} ${state}`);
  return h("strong", {}, parts.join(", ") || "none");
}
