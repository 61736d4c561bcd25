// Regular requests, and what they found: the numbers of queues with a short history of each.

import { ApiError, now } from "./api.js";

/** Seconds of the history of a queue. */
export const HISTORY = 300;

const INTERVAL = 2000; // milliseconds between two requests

/** @type {(error: Error | null) => void} */
let report = () => {};

/** Set the function that is told whether requests succeed. */
export function onConnection(listener) {
  report = listener;
}

/**
 * Do something now and every two seconds, except while the page is hidden. What takes long is done
 * less often, so that a page never keeps a server busy. An `ApiError` of the connection is reported
 * in the header of the page; any other goes to `failed`.
 *
 * @param {() => Promise<void>} action
 * @param {{interval?: number, failed?: (error: Error) => void}} [options]
 * @returns {{stop: () => void, now: () => Promise<void>}}
 */
export function poll(action, { interval = INTERVAL, failed } = {}) {
  let timer = 0;
  let stopped = false;
  let running = null;

  async function once() {
    const begin = performance.now();
    try {
      await action();
      if (!stopped) report(null);
    } catch (error) {
      if (stopped) return;
      if (failed && error instanceof ApiError && isFinal(error.status)) {
        report(null);
        failed(error);
      } else if (error instanceof ApiError) report(error);
      else throw error;
    } finally {
      const took = performance.now() - begin;
      if (!stopped) timer = setTimeout(run, Math.max(interval, 5 * took));
    }
  }

  function run() {
    clearTimeout(timer);
    if (stopped || document.hidden) return Promise.resolve();
    running ??= once().finally(() => { running = null; });
    return running;
  }

  const onVisible = () => { if (!document.hidden) void run(); };
  document.addEventListener("visibilitychange", onVisible);
  void run();
  return {
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    },
    /** Do it at once; what is under way has perhaps read before the last change, so do it again. */
    async now() {
      await running;
      await run();
    },
  };
}

/** Return whether a response says something about the page, not about the connection, the token or the rate. */
const isFinal = (status) => status >= 400 && status < 500 && ![401, 408, 429].includes(status);

// Numbers of queues

/**
 * @typedef {{time: number, pushed: number, completed: number}} Sample
 * @typedef {{name: string, stats: any, history: Sample[]}} Queue
 */

/** @type {Map<string, Queue>} */
export const queues = new Map();

/** Note the numbers of a queue at this moment, and return it. */
export function record(name, stats) {
  let queue = queues.get(name);
  if (!queue) queues.set(name, (queue = { name, stats, history: [] }));
  queue.stats = stats;
  note(queue.history, stats.total_pushed, stats.total_completed);
  return queue;
}

/** Note totals at this moment. */
export function note(history, pushed, completed) {
  const time = performance.now() / 1000;
  const last = history.at(-1);
  if (last && time - last.time < 0.5) history.pop();
  history.push({ time, pushed, completed });
  while (history[1]?.time < time - HISTORY) history.shift(); // the period that is shown begins with one that is older
}

/**
 * Let samples begin with what the server remembers of the last minutes, before the page was opened.
 *
 * @param {Sample[]} history
 * @param {{since: string, buckets: {begin: string, pushed: number, completed: number}[]}} window Of 30 seconds a bucket.
 */
export function begin(history, { since, buckets }) {
  const first = history[0].time, last = history.at(-1);
  const offset = (performance.now() - now()) / 1000; // from seconds since 1970
  const seconds = (iso) => Math.round(Date.parse(iso) / 1000);
  const times = new Set([seconds(since), ...buckets.flatMap((bucket) => [seconds(bucket.begin), seconds(bucket.begin) + 30])]);
  const before = (time, kind) => last[kind] - buckets.reduce((sum, bucket) => sum + (seconds(bucket.begin) >= time ? bucket[kind] : 0), 0);
  const samples = [...times].sort((a, b) => a - b)
    .map((time) => ({ time: time + offset, pushed: before(time, "pushed"), completed: before(time, "completed") }));
  history.unshift(...samples.filter(({ time }) => time < first - 1));
}

/** Return the rates between the samples: items in and out per second. */
export function rates(history) {
  return history.slice(1).map((sample, n) => {
    const before = history[n];
    const seconds = sample.time - before.time;
    // The totals of a queue that was cleared begin again at 0.
    const per = (kind) => Math.max(0, sample[kind] - before[kind]) / seconds;
    return { time: sample.time, in: per("pushed"), out: per("completed") };
  });
}

/** Return the mean rates of the last ten seconds. */
export function recentRate(history) {
  const last = history.at(-1);
  const first = history.find((sample) => sample.time >= (last?.time ?? 0) - 10.5);
  if (!first || first === last) return { in: 0, out: 0 };
  const seconds = last.time - first.time;
  return {
    in: Math.max(0, last.pushed - first.pushed) / seconds,
    out: Math.max(0, last.completed - first.completed) / seconds,
  };
}
