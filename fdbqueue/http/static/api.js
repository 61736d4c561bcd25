// Requests to the API below /v1.

const TOKEN = "token"; // in the session's storage

/** A response that is a problem, or no response: then its status is 0. */
export class ApiError extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** @type {(wrong: boolean) => Promise<string | null>} */
let askToken = async () => null;
/** @type {Promise<string | null> | null} */
let asking = null;
let isDeclined = false; // the user has no token: do not ask again with the next request

/** Set the function that asks the user for a token. It returns null if the user has none. */
export function onTokenNeeded(ask) {
  askToken = ask;
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Forget the token and load the page again. */
export function signOut() {
  sessionStorage.removeItem(TOKEN);
  location.reload();
}

/**
 * Send a request, and return the JSON of the response with its ETag.
 *
 * @param {string} method
 * @param {string} path Below /v1, encoded.
 * @param {{query?: Object<string, unknown>, body?: unknown, headers?: Object<string, string>}} [options]
 * @returns {Promise<{data: any, etag: string | null}>}
 */
export async function request(method, path, { query = {}, body, headers = {} } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const sent = { ...headers };
    if (token) sent.Authorization = `Bearer ${token}`;
    if (body !== undefined) sent["Content-Type"] = "application/json";
    let response, text;
    try {
      response = await fetch(`v1/${path}${search}`, {
        method, headers: sent, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
      });
      text = await response.text();
    } catch {
      throw new ApiError(0, "the server does not answer");
    }
    if (response.status === 401 && (await renewToken(token))) continue;
    const data = text ? parsed(text) : null;
    if (!response.ok) throw new ApiError(response.status, data?.detail || response.statusText || `status ${response.status}`);
    noteServerTime(response.headers.get("date"));
    return { data, etag: response.headers.get("etag") };
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // an answer of a proxy
  }
}

/** Ask for a token unless there is another one by now; return whether there is one. */
async function renewToken(refused) {
  if (sessionStorage.getItem(TOKEN) !== refused) return true;
  if (isDeclined) return false;
  asking ??= askToken(refused !== null).finally(() => { asking = null; });
  const token = await asking;
  isDeclined = token === null;
  if (isDeclined) return false;
  sessionStorage.setItem(TOKEN, token);
  return true;
}

export const get = async (path, query) => (await request("GET", path, { query })).data;
export const post = async (path, body) => (await request("POST", path, { body })).data;
export const patch = async (path, body, headers) => (await request("PATCH", path, { body, headers })).data;
export const remove = async (path) => (await request("DELETE", path)).data;

export const queuePath = (name) => `queues/${encodeURIComponent(name)}`;
export const itemPath = (name, id) => `${queuePath(name)}/items/${encodeURIComponent(id)}`;

// What the token allows

const ROLES = ["read", "write", "admin"];
let role = "read";

/** Ask the server what the token allows. */
export async function loadRole() {
  const me = await get("me");
  role = me.role;
  return me;
}

/** Return whether the token allows changes of single items (`write`), or of queues (`admin`). */
export const can = (needed) => ROLES.indexOf(role) >= ROLES.indexOf(needed);

// The server's clock

let ahead = 0; // milliseconds by which the server's clock is ahead of the browser's

function noteServerTime(date) {
  const difference = date ? Date.parse(date) - Date.now() : NaN;
  // The header has whole seconds.
  if (Number.isFinite(difference)) ahead = Math.abs(difference) > 2000 ? difference : 0;
}

/** Return the present time of the server, in milliseconds. */
export const now = () => Date.now() + ahead;
