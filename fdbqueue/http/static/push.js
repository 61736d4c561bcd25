// The dialog that pushes an item.

import { post, queuePath } from "./api.js";
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
  if (name === null) fields.unshift({ name: "queue", label: "Queue", hint: "A new name makes a new queue.", required: true });
  if (kind !== "fifo") {
    fields.push({ name: "priority", label: "Priority", hint: "The lowest is taken first." });
    fields.push({ name: "delay", label: "Delay in seconds", type: "number", min: 0 });
  }
  if (kind === "task") fields.push({ name: "agent_name", label: "Agent" });
  await ask({
    title: name === null ? "Push an item" : `Push an item to ${name}`,
    fields,
    yes: "Push",
    async action(values) {
      const body = { item: json(values.item, "the item") };
      if (values.priority) body.priority = json(values.priority, "the priority");
      if (values.delay) body.delay = Number(values.delay);
      if (values.agent_name) body.agent_name = values.agent_name;
      await post(`${queuePath(name ?? values.queue)}/push`, body);
      toast(`Pushed to ${name ?? values.queue}.`);
    },
  });
}

function json(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
