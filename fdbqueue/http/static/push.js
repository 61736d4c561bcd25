// The dialog that pushes an item.

import { ApiError, get, post, queuePath } from "./api.js";
import { secondsOf } from "./format.js";
import { ask, toast } from "./ui.js";

/**
 * Ask for an item, and push it.
 *
 * @param {string | null} name The queue, or null to ask for it.
 * @param {string} [kind]
 */
export async function pushItem(name, kind = "priority") {
  const fields = [
    { name: "item", label: kind === "task" ? "Payload, as JSON" : "Item, as JSON", long: true, value: "{}", required: true },
  ];
  if (name === null) fields.unshift({ name: "queue", label: "Queue", required: true });
  if (kind !== "fifo") fields.push({ name: "priority", label: "Priority", hint: "The lowest is taken first." });
  fields.push({ name: "delay", label: "Delay", hint: "Such as 90s, 5m or 1h30m." });
  if (kind === "task") fields.push({ name: "agent_name", label: "Agent" });
  let isNew = null; // the name of a queue that the user was told does not exist
  await ask({
    title: name === null ? "Push an item" : `Push an item to ${name}`,
    fields,
    yes: "Push",
    async action(values) {
      const body = { item: json(values.item, "the item") };
      if (values.priority) body.priority = json(values.priority, "the priority");
      if (values.delay) body.delay = secondsOf(values.delay.trim(), "the delay");
      if (values.agent_name) body.agent_name = values.agent_name;
      if (name === null && values.queue !== isNew && !(await exists(values.queue))) {
        isNew = values.queue;
        throw new Error(`There is no queue named ${isNew}. Push again to create it.`);
      }
      await post(`${queuePath(name ?? values.queue)}/push`, body);
      toast(`Pushed to ${name ?? values.queue}.`);
    },
  });
}

async function exists(queue) {
  try {
    await get(queuePath(queue));
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return false;
    throw error;
  }
  return true;
}

function json(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
