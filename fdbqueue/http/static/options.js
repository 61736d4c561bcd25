// The dialog that changes the limits and options of a queue.

import { ApiError, patch, queuePath, request } from "./api.js";
import { lengthText, number, rateOf, rateText, secondsOf } from "./format.js";
import { button, dialog, h, labelled, setText, toast } from "./ui.js";

/**
 * The options: `none` is what no value means; without it a value is required.
 *
 * @type {{name: string, label: string, hint: string, none?: string, unit?: string, min?: number}[]}
 */
export const OPTIONS = [
  { name: "max_size", label: "Maximum size", none: "no limit", hint: "Ready, delayed and claimed items. Beyond it, pushes are rejected." },
  { name: "max_attempts", label: "Maximum attempts", none: "no limit", hint: "After this many failed attempts, an item becomes a dead letter." },
  { name: "concurrency", label: "Concurrency", none: "no limit", hint: "Items that are claimed at a time, by all clients together." },
  { name: "rate", label: "Rate", none: "no limit", unit: "rate", hint: "Items that are claimed or popped in a time, such as 100/1m." },
  { name: "keep_seconds", label: "Keep done items for", none: "not set", unit: "s", hint: "Such as 90s, 12h or 7d. Without both values, done items are not kept." },
  { name: "keep_number", label: "Keep done items up to", none: "not set", hint: "The newest are kept." },
  { name: "kept_attempts", label: "Failed attempts kept", hint: "Of each item, with their errors." },
  { name: "traceback_bytes", label: "Bytes of a traceback", min: 0, hint: "A longer traceback loses its beginning." },
  { name: "shards", label: "Shards", none: "1", hint: "From 1 to 64; on a cluster, other servers serve each. Fewer once the higher ones are empty." },
];

const UNITS = {
  s: { text: lengthText, value: secondsOf },
  rate: { text: rateText, value: rateOf },
};

/** Return the value of an option as text. */
export function optionText(option, value) {
  if (value === null) return option.none ?? "";
  return option.unit ? UNITS[option.unit].text(value) : number(value);
}

/**
 * Let the user change the options of a queue. They are stored only if they have not changed since
 * the dialog showed them; otherwise the dialog says what has changed, and shows it.
 *
 * @param {string} queue
 * @returns {Promise<boolean>} Whether they were changed.
 */
export async function editOptions(queue) {
  let { data, etag } = await request("GET", queuePath(queue));
  let isChanged = false;
  await dialog(`Limits and options of ${queue}`, (close) => {
    const inputs = new Map(OPTIONS.map((option) => [option.name, h("input", {
      type: option.unit ? "text" : "number", id: `field-${option.name}`, name: option.name, min: option.min ?? 1, step: 1,
      required: option.none === undefined, placeholder: option.none, autocomplete: "off",
    })]));
    const problem = h("div.problem", { role: "alert" });
    const save = h("button.button.primary", { type: "submit" }, "Save");

    const unitOf = (name) => UNITS[OPTIONS.find((option) => option.name === name)?.unit];
    const stored = (name) => {
      const value = data.options[name];
      return value === null ? "" : (unitOf(name)?.text ?? String)(value);
    };
    const edited = () => OPTIONS.filter(({ name }) => inputs.get(name).value !== stored(name));

    /** Show what has changed. What only the user has edited stays. */
    async function reload() {
      const before = data.options;
      const mine = new Map(edited().map(({ name }) => [name, inputs.get(name).value]));
      ({ data, etag } = await request("GET", queuePath(queue)));
      const changes = OPTIONS.filter(({ name }) => String(before[name]) !== String(data.options[name]));
      for (const { name } of changes) inputs.get(name).value = stored(name);
      problem.replaceChildren(
        h("p", {}, "Nothing was saved: the options have changed in the meantime. Check them, and save again."),
        h("ul", {}, changes.map((option) => h("li", {},
          `${option.label}: was ${optionText(option, before[option.name])}, is now ${optionText(option, data.options[option.name])}`,
          mine.has(option.name) && `; you entered ${mine.get(option.name) || option.none}`)),
        before.paused !== data.options.paused && h("li", {}, data.options.paused ? "The queue was paused." : "The queue was resumed.")));
      problem.scrollIntoView({ block: "nearest" });
    }

    async function submit(event) {
      event.preventDefault();
      if (save.ariaBusy === "true") return;
      save.ariaBusy = "true";
      try {
        const body = Object.fromEntries(edited().map(({ name, label }) => {
          const value = inputs.get(name).value.trim();
          return [name, value === "" ? null : (unitOf(name)?.value ?? Number)(value, label)];
        }));
        if (Object.keys(body).length === 0) return close();
        await patch(queuePath(queue), body, { "If-Match": etag });
        isChanged = true;
        toast("The options were saved.");
        close();
      } catch (error) {
        if (error instanceof ApiError && error.status === 412) await reload();
        else setText(problem, error.message);
      } finally {
        save.ariaBusy = "false";
      }
    }

    for (const [name, input] of inputs) input.value = stored(name);
    return [h("form.options", { on: { submit } },
      h("div.field-grid", {}, OPTIONS.map((option) => labelled(option, inputs.get(option.name)))),
      problem,
      h("div.dialog-buttons", {}, button("Cancel", close), save))];
  });
  return isChanged;
}
