#!/usr/bin/env node
// Run a function for each job of a queue, over HTTP. Needs Node 18 or later, and no package.
//
//     recipes/consumer.mjs mail ./handler.mjs
//
// The handler is the default export of a module:
//
//     export default async function (item, { id, attempt, signal }) {
//       await send(item, { signal }); // `signal` is aborted if the lease is lost
//       return { result: "sent", then: [{ queue: "log", item: { mail: id } }] };
//     }
//
// `result` becomes the result of the job. The jobs in `then` are pushed in the transaction that ends
// this one. Both may be left out. If the handler throws, the job is tried again later. A handler must
// not block the event loop for long, because the loop also extends the leases.
//
// From the environment: FDBQ_URL, by default http://127.0.0.1:8080; FDBQ_TOKEN, if the server needs
// one; FDBQ_LEASE, in seconds, by default 30; FDBQ_CONCURRENCY, jobs at a time, by default 1.
//
// SIGTERM and SIGINT let running jobs end; a second signal ends the process.

import { setMaxListeners } from "node:events";
import { realpathSync } from "node:fs";
import { hostname } from "node:os";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";

const TRY_AGAIN = new Set([408, 429, 500, 502, 503, 504]);
const MAX_PAUSE = 30; // seconds between tries
const MAX_ERROR = 4000; // characters of an error to report

/** A request that the server refused, or that got no answer (status 0). */
export class RequestError extends Error {
  constructor(action, status, detail, retryAfter = 0) {
    super(`${action}: ${detail} (status ${status})`);
    Object.assign(this, { name: "RequestError", status, retryAfter });
  }
}

/**
 * Call `handler(item, job)` for each job of a queue until `signal` is aborted, and running jobs have ended.
 *
 * @param {string} queue
 * @param {(item: any, job: {id: string, attempt: number, signal: AbortSignal}) => any} handler
 * @param {{url?: string, token?: string, concurrency?: number, lease?: number, wait?: number,
 *   client?: string, signal?: AbortSignal, log?: (message: string) => void}} options
 */
export async function consume(queue, handler, options = {}) {
  const {
    url = "http://127.0.0.1:8080",
    token,
    concurrency = 1,
    lease = 30, // seconds
    wait = 20, // seconds of a long poll; less than the timeout of a proxy
    client = `${hostname()}:${process.pid}`,
    signal: stop = new AbortController().signal,
    log = (message) => console.error(message),
  } = options;
  setMaxListeners(0, stop); // each loop listens
  const route = `${url}/v1/queues/${encodeURIComponent(queue)}`;
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;

  /** Send one request and return the answer; throw a RequestError. */
  async function request(action, content, signal) {
    const body = JSON.stringify(content);
    const controller = new AbortController();
    const abort = () => controller.abort();
    const timer = setTimeout(abort, (wait + 30) * 1000);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    try {
      const response = await fetch(`${route}/${action}`, {
        method: "POST",
        headers,
        body,
        signal: controller.signal,
      });
      const text = await response.text();
      if (response.ok) return text && JSON.parse(text);
      const retryAfter = Number(response.headers.get("Retry-After")) || 0;
      throw new RequestError(action, response.status, detailOf(text), retryAfter);
    } catch (error) {
      if (error instanceof RequestError) throw error;
      throw new RequestError(action, 0, error.cause?.message || error.message);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  /** Sleep before the next try: longer each time, and at least Retry-After; less if `signal` is aborted. */
  async function backOff(error, tries, signal) {
    const pause = Math.min(MAX_PAUSE, 2 ** tries) * (0.5 + Math.random() / 2);
    log(`${error.message}; trying again`);
    await sleep(Math.max(pause, error.retryAfter) * 1000, null, { signal }).catch(() => {});
  }

  /** End a claim by `ack` or `nack`: repeat the request until the server answers. */
  async function finish(action, body) {
    for (let tries = 0; ; tries++) {
      try {
        return await request(action, body);
      } catch (error) {
        if (error.status !== 0 && !TRY_AGAIN.has(error.status)) throw error;
        await backOff(error, tries);
      }
    }
  }

  /** Extend the lease three times in its duration until `done` is aborted; call `lost` if it is lost. */
  async function keepLease(token, done, lost) {
    for (let pause = lease / 3; ; ) {
      await sleep(pause * 1000, null, { signal: done }).catch(() => {});
      if (done.aborted) return;
      try {
        await request("extend", { token, lease }, done);
        pause = lease / 3;
      } catch (error) {
        if (error.status === 409) return lost();
        pause = Math.min(1, lease / 3);
      }
    }
  }

  async function work({ item, token, id, attempt }) {
    const done = new AbortController();
    const lost = new AbortController();
    const keeper = keepLease(token, done.signal, () => lost.abort());
    try {
      let error;
      try {
        const { result, then } = (await handler(item, { id, attempt, signal: lost.signal })) ?? {};
        if (!lost.signal.aborted) await finish("ack", { token, result, then });
      } catch (thrown) {
        error = thrown;
      }
      if (lost.signal.aborted) {
        log(`${id}: the lease was lost; another worker may have the job`);
      } else if (error instanceof RequestError && error.status === 409) {
        // The first answer to a repeated request may have been lost.
        log(`${id}: the claim is over: it was ended before, or the lease was lost`);
      } else if (error !== undefined) {
        const text = String(error?.stack ?? error).slice(0, MAX_ERROR);
        log(`${id}: attempt ${attempt} failed: ${text}`);
        await finish("nack", { token, error: text });
      }
    } catch (error) {
      log(`${id}: ${error.message}`); // the lease ends by itself
    } finally {
      done.abort();
      await keeper;
    }
  }

  async function loop() {
    for (let tries = 0; !stop.aborted; ) {
      let claims;
      try {
        ({ claims } = await request("claim", { wait, lease, client }, stop));
        tries = 0;
      } catch (error) {
        if (stop.aborted) return;
        // The first push creates a queue, so 404 may end.
        const temporary = [0, 404, 409].includes(error.status) || TRY_AGAIN.has(error.status);
        if (!temporary) throw error;
        await backOff(error, tries++, stop);
        continue;
      }
      for (const claim of claims) {
        // The claim may have come together with the signal: then the job does not begin.
        if (stop.aborted) await request("release", { token: claim.token }).catch(() => {});
        else await work(claim);
      }
    }
  }

  const ends = await Promise.allSettled(Array.from({ length: concurrency }, loop));
  const failed = ends.find((end) => end.status === "rejected");
  if (failed) throw failed.reason;
}

function detailOf(text) {
  try {
    return JSON.parse(text).detail;
  } catch {
    return text.slice(0, 200);
  }
}

async function main() {
  const [queue, path] = process.argv.slice(2);
  if (!path) {
    console.error("usage: consumer.mjs QUEUE HANDLER.mjs");
    process.exit(2);
  }
  const { default: handler } = await import(pathToFileURL(resolve(path)));
  const stopping = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"]) {
    process.on(name, () => {
      if (stopping.signal.aborted) process.exit(130);
      stopping.abort();
    });
  }
  await consume(queue, handler, {
    url: process.env.FDBQ_URL,
    token: process.env.FDBQ_TOKEN,
    lease: Number(process.env.FDBQ_LEASE ?? 30),
    concurrency: Number(process.env.FDBQ_CONCURRENCY ?? 1),
    signal: stopping.signal,
  });
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  main().catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
}
