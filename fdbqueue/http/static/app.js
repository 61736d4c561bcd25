// The frame of the page: routes, navigation, keyboard, token, colours.

import { ApiError, hasToken, loadRole, onTokenNeeded, signOut } from "./api.js";
import { groupsPage } from "./groups.js";
import { itemPage } from "./item.js";
import { jobsPage } from "./jobs.js";
import { onConnection } from "./live.js";
import { overviewPage } from "./overview.js";
import { queuePage } from "./queue.js";
import { schedulesPage } from "./schedules.js";
import { ask, button, dialog, empty, h, icon, iconButton, keepTimesCurrent, setText } from "./ui.js";
import { workersPage } from "./workers.js";

const PAGES = [
  { name: "Overview", href: "#/", icon: "queues", key: "o" },
  { name: "Jobs", href: "#/jobs", icon: "jobs", key: "j" },
  { name: "Workers", href: "#/workers", icon: "workers", key: "w" },
];

const main = document.getElementById("main");
const status = document.getElementById("status");

// Routes

/**
 * A page: what it shows, and how to end it. A page with `update` is kept when only the part of the
 * address behind "?" changes.
 *
 * @typedef {{title: string, nodes: Node[], update?: (query: URLSearchParams) => void, stop?: () => void,
 *   search?: () => HTMLElement | null}} Page
 */

/** @type {Page | null} */
let page = null;
let shown = "";

/** Return the page of an address, such as `#/queues/mail?state=dead`. */
function pageOf(parts, query) {
  const [first, name, second, id] = parts;
  if (parts.length === 0) return { nav: "#/", open: () => overviewPage(query) };
  if (first === "jobs" && parts.length === 1) return { nav: "#/jobs", open: () => jobsPage() };
  if (first === "workers" && parts.length === 1) return { nav: "#/workers", open: () => workersPage() };
  if (first === "queues" && parts.length === 2) return { nav: "#/", open: () => queuePage(name, query) };
  if (first === "queues" && second === "schedules" && parts.length === 3) return { nav: "#/", open: () => schedulesPage(name) };
  if (first === "queues" && second === "groups" && parts.length === 3) return { nav: "#/", open: () => groupsPage(name, query) };
  if (first === "queues" && second === "items" && parts.length === 4) return { nav: "#/", open: () => itemPage(name, id) };
  return { nav: "", open: unknownPage };
}

function unknownPage() {
  const nodes = [h("h1", { tabindex: -1 }, "There is no such page"),
    empty("The address leads nowhere.", h("p", {}, h("a", { href: "#/" }, "Go to the overview")))];
  return { title: "No such page", nodes };
}

function parts(path) {
  try {
    return path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return ["?"]; // not encoded in UTF-8
  }
}

function route() {
  if (location.hash === "#main") return; // the link that skips the navigation
  const [path, search = ""] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const query = new URLSearchParams(search);
  if (page?.update && path === shown) {
    page.update(query);
    return;
  }
  const isFirst = page === null;
  page?.stop?.();
  const { nav, open } = pageOf(parts(path), query);
  shown = path;
  page = open();
  main.replaceChildren(...page.nodes);
  document.title = `${page.title} · fdbqueue`;
  for (const link of document.querySelectorAll("#nav a")) {
    const isExact = link.getAttribute("href") === `#${path || "/"}`;
    if (link.getAttribute("href") === nav) link.setAttribute("aria-current", isExact ? "page" : "true");
    else link.removeAttribute("aria-current");
  }
  if (!isFirst) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// Navigation and tools

function showNavigation() {
  document.getElementById("nav").append(...PAGES.map((each) =>
    h("a", { href: each.href }, icon(each.icon), h("span", {}, each.name))));
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function themeButton() {
  const label = () => (isDark() ? "Use light colours" : "Use dark colours");
  const node = iconButton(label(), isDark() ? "sun" : "moon", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    node.replaceChildren(icon(isDark() ? "sun" : "moon"));
    node.setAttribute("aria-label", label());
    node.title = label();
  });
  return node;
}

function showTools(me) {
  const allowed = me && (me.role !== "admin" || me.queues !== "*")
    && h("span.badge.role", {}, `${{ read: "read-only", write: "write", admin: "admin" }[me.role]}${me.queues === "*" ? "" : `: ${me.queues}`}`);
  document.getElementById("tools").replaceChildren(...[
    allowed, themeButton(), iconButton("Keyboard shortcuts", "help", showHelp),
    hasToken() && iconButton("Forget the token", "key", signOut),
  ].filter(Boolean));
}

// Connection

onConnection((error) => {
  status.classList.toggle("is-lost", error !== null);
  setText(status, error === null ? "Live" : `Not connected: ${error.message}`);
});

// Token

onTokenNeeded(async (wrong) => {
  const values = await ask({
    title: "This server needs a token",
    text: [h("p", {}, wrong ? "The server does not accept this token. Enter another one." : "It stays in this tab until you close it.")],
    fields: [{ name: "token", label: "Token", type: "password", required: true }],
    yes: "Continue",
  });
  return values?.token || null;
});

// Keyboard

const KEYS = [
  ["/", "Search, or filter"],
  ["g o", "Go to the overview"],
  ["g j", "Go to the jobs"],
  ["g w", "Go to the workers"],
  ["?", "Show the shortcuts"],
  ["Esc", "Close a dialog; leave the search"],
];

function showHelp() {
  void dialog("Keyboard shortcuts", (close) => [
    h("dl.keys", {}, KEYS.map(([keys, text]) =>
      h("div", {}, h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, text)))),
    h("div.dialog-buttons", {}, button("Close", close)),
  ]);
}

let wentAt = 0; // when g was pressed

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && isTyping && !event.target.closest("dialog")) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const target = PAGES.find((each) => each.key === event.key);
  if (target && event.timeStamp - wentAt < 1500) location.hash = target.href;
  else if (event.key === "/" && page?.search?.()) page.search().focus();
  else if (event.key === "?") showHelp();
  else {
    if (event.key === "g") wentAt = event.timeStamp;
    return;
  }
  wentAt = 0;
  event.preventDefault();
});

// Start

async function start() {
  showNavigation();
  showTools(null);
  keepTimesCurrent();
  setText(status, "Connecting …");
  try {
    showTools(await loadRole());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    setText(status, `Not connected: ${error.message}`);
    const title = error.status === 401 ? "This server needs a token" : "The server cannot be reached";
    main.replaceChildren(h("h1", { tabindex: -1 }, title),
      empty(error.message, button("Try again", () => location.reload(), { kind: "primary" })));
    return;
  }
  window.addEventListener("hashchange", route);
  route();
}

void start();
