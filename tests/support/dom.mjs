// As much of a browser as the pages of the dashboard need: it shows them as lines of text, and presses buttons.
//
// node dom.mjs SERVER HASH STEPS, with steps such as ["show"], ["press", "Pause ada"], ["fill", "weight", "2"]; each
// "show" prints the page as a line of JSON.

const [server, hash, steps] = process.argv.slice(2);

class TextNode {
  constructor(text) { this.textContent = text; }
  remove() { this.parent?.removeChild(this); }
}

class Style {
  setProperty(name, text) { this[name] = text; }
}

class Element {
  constructor(tag) {
    Object.assign(this, { tag, childNodes: [], attributes: {}, dataset: {}, listeners: {}, style: new Style(), parent: null, value: "" });
    const classes = (this.classes = new Set());
    this.classList = {
      add: (...names) => names.forEach((name) => classes.add(name)),
      toggle: (name, isOn) => (isOn ? classes.add(name) : classes.delete(name)),
    };
  }
  get children() { return this.childNodes.filter((node) => node instanceof Element); }
  get firstChild() { return this.childNodes[0] ?? null; }
  get lastChild() { return this.childNodes.at(-1) ?? null; }
  get isConnected() { return this === document.body || (this.parent?.isConnected ?? false); }
  get nextElementSibling() { return this.parent?.children[this.parent.children.indexOf(this) + 1] ?? null; }
  get previousElementSibling() { return this.parent?.children[this.parent.children.indexOf(this) - 1] ?? null; }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }
  get hidden() { return "hidden" in this.attributes; }
  set hidden(isHidden) { if (isHidden) this.attributes.hidden = ""; else delete this.attributes.hidden; }
  append(...nodes) { for (const node of nodes) this.insertBefore(node, null); }
  insertBefore(node, before) {
    const child = typeof node === "object" ? node : new TextNode(String(node));
    child.remove();
    const place = before === null ? this.childNodes.length : this.childNodes.indexOf(before);
    this.childNodes.splice(place, 0, child);
    child.parent = this;
  }
  removeChild(child) { this.childNodes.splice(this.childNodes.indexOf(child), 1); child.parent = null; }
  replaceChildren(...nodes) { for (const child of [...this.childNodes]) child.remove(); this.append(...nodes); }
  remove() { this.parent?.removeChild(this); }
  contains(node) { return node === this || this.children.some((child) => child.contains(node)); }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  hasAttribute(name) { return name in this.attributes; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(event, listener) { (this.listeners[event] ??= []).push(listener); }
  send(event) { return Promise.all((this.listeners[event] ?? []).map((listener) => listener({ preventDefault() {} }))); }
  focus() { document.activeElement = this; }
  showModal() {}
  close() { void this.send("close"); }
  all() { return this.children.flatMap((child) => [child, ...child.all()]); }
  querySelectorAll(selectors) {
    const wanted = selectors.split(",").map((each) => each.trim());
    const suits = (node, each) => (each.startsWith("[data-") ? each.slice(6, -1) in node.dataset : node.tag === each);
    return this.all().filter((node) => wanted.some((each) => suits(node, each)));
  }
  querySelector(selectors) { return this.querySelectorAll(selectors)[0] ?? null; }
}

const body = new Element("body"), toasts = new Element("div");
body.append(toasts);
const document = {
  body, activeElement: body, hidden: false,
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: () => toasts,
  addEventListener() {}, removeEventListener() {}, querySelectorAll: () => [],
};
const stored = new Map();
let pending = 0; // requests
const request = globalThis.fetch;
Object.assign(globalThis, {
  document,
  location: { hash, href: `${server}/${hash}` },
  sessionStorage: { getItem: (name) => stored.get(name) ?? null, setItem: (name, text) => stored.set(name, text) },
  async fetch(path, options) {
    pending++;
    try {
      const response = await request(`${server}/${path}`, options), text = await response.text();
      return { ok: response.ok, status: response.status, statusText: response.statusText, headers: response.headers, text: async () => text };
    } finally {
      pending--;
    }
  },
});

const { loadRole } = await import("./static/api.js");
const { groupsPage } = await import("./static/groups.js");
const { itemPage } = await import("./static/item.js");

const [path, query = ""] = hash.slice(2).split("?");
const [, queue, kind, id] = path.split("/").map(decodeURIComponent);
await loadRole();
const page = kind === "groups" ? groupsPage(queue, new URLSearchParams(query)) : itemPage(queue, id);
const main = new Element("main");
main.append(...page.nodes);
body.append(main);

const tick = () => new Promise((resolve) => { setTimeout(resolve, 0); });

/** Wait until the page has no request under way, and what follows from the last answer is done. */
async function settle() {
  for (let idle = 0; idle < 5; idle++) {
    await tick();
    if (pending) idle = 0;
  }
}

const isVisible = (node) => !node.hidden && (!node.parent?.all || isVisible(node.parent));
const named = (node) => node.attributes["aria-label"] ?? node.textContent;

/** Return the cells of the rows of tables, and the texts of other elements that have no elements in them. */
function linesOf(node) {
  if (node.hidden || node.classes?.has("visually-hidden")) return [];
  if (node.tag === "tr") return [node.children.map((each) => linesOf(each).join(" ")).join(" | ")];
  if (node instanceof TextNode || !node.children.length || ["p", "a", "h1", "h2", "button"].includes(node.tag)) return [node.textContent].filter(Boolean);
  return node.childNodes.flatMap(linesOf);
}

await settle();
for (const [step, what, value] of JSON.parse(steps)) {
  const dialog = body.children.find((each) => each.tag === "dialog");
  const inside = dialog ?? main;
  if (step === "show") {
    const links = main.all().filter((node) => node.tag === "a" && isVisible(node)).map((node) => [node.textContent, node.getAttribute("href")]);
    console.log(JSON.stringify({ lines: linesOf(inside), links: Object.fromEntries(links), toasts: toasts.children.map((each) => each.textContent) }));
    continue;
  }
  if (step === "press") {
    const found = inside.all().find((node) => node.tag === "button" && named(node) === what && isVisible(node));
    if (!found) throw new Error(`there is no button ${what}: ${linesOf(inside)}`);
    if (found.attributes.type === "submit") await inside.all().find((node) => node.tag === "form").send("submit");
    else void found.send("click");
  }
  if (step === "fill") inside.all().find((node) => node.attributes.name === what).value = value;
  if (step === "turn") page.update(new URLSearchParams(what));
  await settle();
}
page.stop();
process.exit(0);
