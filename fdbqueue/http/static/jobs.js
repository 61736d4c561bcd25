// The jobs of all queues by name: how often they run, for how long, and how often they fail.

import { get, queuePath } from "./api.js";
import { address } from "./filters.js";
import { clock, number, plural, wait } from "./format.js";
import { pace, unitOf } from "./history.js";
import { poll } from "./live.js";
import { STATES, cell, empty, h, nameText, reconcile, row, setText, skeleton, table } from "./ui.js";

const INTERVAL = 10_000; // milliseconds between two rounds, at least
const MAX_QUEUES = 25; // whose jobs are read

/**
 * @typedef {{name: string, ready: number, delayed: number, claimed: number, dead: number, done: number, failed_attempts: number,
 *   rate: number | null, run_time_median: number | null, run_time_p95: number | null}} Numbers
 */

const COLUMNS = ["Job", "Queue", "Done", "Rate", "Median run", "Run (p95)", "Failed attempts", "Ready", "Delayed", "Claimed", "Dead"];

/** Make the page. */
export function jobsPage() {
  const { node, body } = table("Jobs", COLUMNS.map((label, n) => ({ label, class: n > 1 ? "number" : "" })));
  const basis = h("p.lead", {}, "");
  const place = h("div", {}, skeleton(6));

  async function load() {
    const first = await get("queues", { limit: 1000 });
    const used = first.queues.filter((queue) => STATES.some((state) => queue[state]));
    const chosen = used.slice(0, MAX_QUEUES);
    const answers = await Promise.all(chosen.map(async ({ name }) => ({ queue: name, ...(await get(`${queuePath(name)}/jobs`)) })));
    const found = answers.flatMap(({ queue, jobs, more }) => jobs.map((job) => ({ queue, more, ...job })));
    setText(basis, basisText(answers, used.length));
    if (!found.length) {
      place.replaceChildren(empty("There are no jobs.", h("p", {}, "Items that were pushed as jobs appear here by the name of the job.")));
      return;
    }
    const unit = unitOf(Math.max(...found.map((job) => job.rate ?? 0)));
    reconcile(body, found, ({ queue, name }) => JSON.stringify([queue, name]), () => row(), (element, job) => {
      const text = JSON.stringify([job, unit]);
      if (element.shown === text) return;
      element.shown = text;
      element.replaceChildren(...cells(job, unit));
    });
    if (place.firstChild !== node) place.replaceChildren(node);
  }

  const polling = poll(load, { interval: INTERVAL, failed: (error) => place.replaceChildren(empty("The jobs cannot be shown.", h("p", {}, error.message))) });
  return {
    title: "Jobs",
    nodes: [h("div.title-row", {}, h("h1", { tabindex: -1 }, "Jobs")), basis, h("section.queues", { "aria-label": "Jobs" }, place)],
    stop: polling.stop,
  };
}

/** Say what the numbers are based on. */
function basisText(answers, used) {
  const [{ limit } = { limit: 0 }] = answers;
  const since = answers.map((answer) => answer.since).filter(Boolean).sort()[0];
  const left = used > answers.length ? ` Only the first ${plural(answers.length, "queue")} of ${number(used)} that hold items are read.` : "";
  return `From a sample: up to ${number(limit)} items in each state of each queue, of the done ones the newest${since ? `, back to ${clock(since)}` : ""}. `
    + `Rates and run times are those of the done ones.${left}`;
}

function cells(job, unit) {
  const link = (state, text) => (job[state] ? h("a", { href: address(job.queue, { state, job: job.name }) }, text) : text);
  const count = (state) => `${number(job[state])}${job[state] && job.more.includes(state) ? "+" : ""}`;
  const time = (seconds) => (seconds === null ? "–" : wait(seconds));
  const values = [
    h("strong", {}, nameText(job.name)), h("a", { href: address(job.queue, {}) }, nameText(job.queue)),
    link("done", count("done")), job.rate === null ? "–" : pace(job.rate, unit),
    time(job.run_time_median), time(job.run_time_p95), number(job.failed_attempts),
    ...["ready", "delayed", "claimed", "dead"].map((state) => link(state, count(state))),
  ];
  return values.map((value, n) => cell(COLUMNS[n], n > 1 ? "number" : "job-name", value));
}
