// A consumer of a queue over HTTP, which runs one job at a time; start several to run more.
// docs/howto/http-consumers.md has the protocol.

const LEASE = 30; // seconds

interface Claim<T> {
  id: string;
  item: T;
  token: string;
  attempt: number;
}

interface FollowUp {
  queue: string;
  item: unknown;
  priority?: number;
}

type Outcome = { result?: unknown; then?: FollowUp[] };
type Handler<T> = (claim: Claim<T>, signal: AbortSignal) => Promise<Outcome>;

const sleep = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export class Queue<T> {
  private readonly route: string;
  private readonly headers: Record<string, string> = { "Content-Type": "application/json" };

  constructor(server: string, name: string, token?: string) {
    this.route = `${server}/v1/queues/${encodeURIComponent(name)}`;
    if (token) this.headers.Authorization = `Bearer ${token}`;
  }

  /** Repeat a request while the server cannot answer it. */
  private async post(action: string, content: object, stop?: AbortSignal): Promise<Response> {
    const request = { method: "POST", headers: this.headers, body: JSON.stringify(content), signal: stop };
    for (let pause = 1; ; pause = Math.min(2 * pause, 30)) {
      try {
        const answer = await fetch(`${this.route}/${action}`, request);
        if (answer.status !== 429 && answer.status < 500) return answer;
      } catch (error) {
        if (stop?.aborted) throw error;
      }
      await sleep(pause);
    }
  }

  /** Run a handler on each job until `stop` is aborted. */
  async consume(handler: Handler<T>, stop: AbortSignal): Promise<void> {
    while (!stop.aborted) {
      let claims: Claim<T>[];
      try {
        const answer = await this.post("claim", { wait: 20, lease: LEASE }, stop);
        if (!answer.ok) throw new Error(await answer.text());
        ({ claims } = (await answer.json()) as { claims: Claim<T>[] });
      } catch (error) {
        if (stop.aborted) return;
        throw error;
      }
      for (const claim of claims) await this.work(claim, handler);
    }
  }

  private async work(claim: Claim<T>, handler: Handler<T>): Promise<void> {
    const { id, token } = claim;
    const lost = new AbortController();
    const timer = setInterval(async () => {
      const answer = await this.post("extend", { token, lease: LEASE });
      if (answer.status === 409) lost.abort();
    }, (LEASE * 1000) / 3);
    try {
      const outcome = await handler(claim, lost.signal).catch((error) => ({ error: String(error) }));
      if (lost.signal.aborted) return console.error(`${id}: the lease was lost`);
      const answer = await this.post("error" in outcome ? "nack" : "ack", { token, ...outcome });
      if (!answer.ok) console.error(`${id}: ${await answer.text()}`);
    } finally {
      clearInterval(timer);
    }
  }
}
