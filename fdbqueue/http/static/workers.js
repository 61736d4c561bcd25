// The workers that run, and the items that they and other clients hold.

import { can, get, queuePath } from "./api.js";
import { actOnOne, actionsFor } from "./actions.js";
import { number, plural, preview, shortId } from "./format.js";
import { poll } from "./live.js";
import { age, ago, badge, button, command, empty, h, progressBar, replaceKeepingFocus, skeleton } from "./ui.js";

const MAX_QUEUES = 25; // whose claimed items are read
const MAX_ITEMS = 200; // claimed items of a queue that are read
const SHOWN = 5; // claimed items of a worker that are shown

/** Make the page. */
export function workersPage() {
  const content = h("div", {}, skeleton(6));
  const note = h("p.muted");
  let shown = "";

  async function load() {
    const [{ workers }, first] = await Promise.all([get("workers"), get("queues", { limit: 1000 })]);
    const names = new Set(workers.flatMap(({ queues }) => Object.keys(queues)));
    const known = first.queues.filter((queue) => queue.claimed > 0).map((queue) => queue.name);
    const chosen = known.slice(0, MAX_QUEUES);
    const held = (await Promise.all(chosen.map((name) => heldItems(name)))).flat();
    const text = JSON.stringify([workers.map(({ seen, jobs, ...rest }) => rest), held]);
    for (const worker of workers) content.querySelectorAll("[data-seen]").forEach((node) => {
      if (node.dataset.seen === worker.name) node.firstElementChild.dateTime = worker.seen;
    });
    if (text === shown) return;
    shown = text;
    const others = held.filter((item) => !workers.some((worker) => holds(worker, item)));
    note.textContent = known.length > chosen.length ? `Claimed items are shown of the first ${MAX_QUEUES} queues that have any.` : "";
    replaceKeepingFocus(content, ...parts(workers, held, others, names, () => polling.now()));
  }

  const polling = poll(load, { failed: (error) => content.replaceChildren(empty("The workers cannot be shown.", h("p", {}, error.message))) });
  return {
    title: "Workers",
    nodes: [h("div.title-row", {}, h("h1", { tabindex: -1 }, "Workers")), content, note],
    stop: polling.stop,
  };
}

const holds = (worker, item) => worker.name === item.claimed_by && Object.hasOwn(worker.queues, item.queue);

async function heldItems(queue) {
  const { items } = await get(`${queuePath(queue)}/items`, { state: "claimed", limit: MAX_ITEMS });
  return items.map((item) => ({ ...item, queue }));
}

function parts(workers, held, others, names, refresh) {
  if (workers.length === 0 && others.length === 0) {
    return [empty("No worker is running.", h("p", {}, "Start one in a shell, with the function that handles an item:"),
      command("fdbq work mails mailer:send --concurrency 4"))];
  }
  const busy = workers.filter((worker) => held.some((item) => holds(worker, item))).length;
  return [
    workers.length > 0 && h("p.lead", {}, `${plural(workers.length, "worker")} on ${plural(names.size, "queue")}, ${number(busy)} busy.`),
    h("div.worker-grid", {}, workers.map((worker) => workerCard(worker, held.filter((item) => holds(worker, item)), refresh))),
    others.length > 0 && h("section.card", { "aria-label": "Other clients" },
      h("h2", {}, "Other clients"),
      h("p.muted", {}, "They have claimed items, and are not in the list of workers: another program, a staged pop, or a worker that was killed."),
      holding(others, true, refresh)),
  ].filter(Boolean);
}

const queueLink = (name) => h("a", { href: `#/queues/${encodeURIComponent(name)}` }, name);

function workerCard(worker, items, refresh) {
  return h("section.card.worker", { "aria-label": `Worker ${worker.name}` },
    h("div.worker-head", {}, h("h2", {}, worker.name), badge(items.length ? "busy" : "idle", items.length ? "busy" : "idle")),
    h("dl.facts", {},
      Object.entries(worker.queues).map(([queue, at_most]) => fact("Queue", [queueLink(queue),
        at_most < worker.concurrency && `, at most ${number(at_most)} at a time`].filter(Boolean))),
      fact("Holds", plural(items.length, "item")),
      fact("Concurrency", number(worker.concurrency)),
      fact("Host", `${worker.host}, process ${worker.pid}`),
      fact("Started", ago(worker.since)),
      h("div", {}, h("dt", {}, "Last seen"), h("dd", { data: { seen: worker.name } }, ago(worker.seen)))),
    items.length > 0 && holding(items, Object.keys(worker.queues).length > 1, refresh));
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

function holding(items, withClient, refresh) {
  return [h("ul.holding", {}, items.slice(0, SHOWN).map((item) => h("li", {},
    h("div.holding-item", {},
      h("span.holding-head", {}, h("a", { href: `#/queues/${encodeURIComponent(item.queue)}/items/${encodeURIComponent(item.id)}`, data: { key: `item ${item.id}` } }, shortId(item.id)),
        item.claimed_at && h("span.muted", {}, "for ", age(item.claimed_at))),
      withClient && h("span.muted", {}, `${item.claimed_by || "unknown client"} in ${item.queue}`),
      h("span.holding-text", {}, preview(item.item, 100)), progressBar(item)),
    can("write") && h("span.actions", {}, actionsFor("claimed").map((action) =>
      button(action.label, async () => { await actOnOne(action, item.queue, item.id); await refresh(); },
        { kind: action.danger ? "small danger-quiet" : "small", key: `${action.name} ${item.id}`, "aria-label": `${action.label} item ${item.id}` })))))),
  items.length > SHOWN && h("p.muted", {}, `and ${plural(items.length - SHOWN, "more item")}`)];
}
