// Elements, messages and dialogs. Text is always set as text, never as markup.

import { clock, elapsed, relative } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element.
 *
 * @param {string} tag With classes, such as "p.note".
 * @param {Object<string, any>} [props] Attributes; `on` has listeners, `css` styles, `data` data attributes.
 * @param {...(Node | string | number | null | undefined | false | Array)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return filled(document.createElement(name), classes, props, children);
}

/** Make the text of a dotted name: lines may break behind a dot, an underscore, a dash or a slash. */
export const nameText = (name) => name.split(/(?<=[._/-])/).flatMap((part, n) => (n ? [h("wbr"), part] : [part]));

/** Make an element of a drawing. */
export function s(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return filled(document.createElementNS(SVG, name), classes, props, children);
}

function filled(node, classes, props, children) {
  if (classes.length) node.classList.add(...classes);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "css") for (const [style, text] of Object.entries(value)) node.style.setProperty(style, text);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Change the text of a node, if it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Show an ordered list of things as the children of a node: each keeps its element.
 *
 * @param {Element} parent
 * @param {any[]} values
 * @param {(value: any) => string} keyOf
 * @param {(value: any) => Element} create
 * @param {(element: Element, value: any) => void} update
 */
export function reconcile(parent, values, keyOf, create, update) {
  const known = (parent.byKey ??= new Map());
  const kept = new Set(values.map(keyOf));
  for (const [key, element] of known) {
    if (kept.has(key)) continue;
    const hadFocus = element.contains(document.activeElement);
    const neighbour = element.nextElementSibling ?? element.previousElementSibling;
    element.remove();
    known.delete(key);
    if (hadFocus) neighbour?.querySelector("a, button")?.focus();
  }
  values.forEach((value, n) => {
    const key = keyOf(value);
    let element = known.get(key);
    if (!element) known.set(key, (element = create(value)));
    update(element, value);
    if (parent.children[n] !== element) parent.insertBefore(element, parent.children[n] ?? null);
  });
}

/** Change a page; if that removes the focused element, the focus goes to another one. */
export function keepingFocus(fallback, change) {
  const hadFocus = document.activeElement !== document.body;
  change();
  if (hadFocus && document.activeElement === document.body) fallback()?.focus();
}

/** Replace the children of a node; the focus stays on the element with the same `data-key`. */
export function replaceKeepingFocus(node, ...children) {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children);
  if (key !== undefined) [...node.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus();
}

// Icons

const ICONS = {
  cancel: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM5.8 5.8l12.4 12.4",
  alert: "M12 3.5 2.5 20h19L12 3.5zM12 10v4.5M12 17.2v.3",
  back: "M15 5l-7 7 7 7",
  clear: "M4 6h16M4 12h9M4 18h6M16 15l5 5M21 15l-5 5",
  check: "M5 12.5l4.5 4.5L19 7.5",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.5 2",
  copy: "M9 9h10v11H9zM5 15V4h10",
  groups: "M4 5h5v5H4zM15 5h5v5h-5zM4 15h5v5H4zM15 15h5v5h-5z",
  help: "M9.2 9a2.9 2.9 0 1 1 4.2 2.6c-.9.5-1.4 1.1-1.4 2.1M12 17.2v.3M12 21.5a9.5 9.5 0 1 0 0-19 9.5 9.5 0 0 0 0 19z",
  jobs: "M9 4a4 4 0 0 0-4 4v1.5a2.5 2.5 0 0 1-2 2.5 2.5 2.5 0 0 1 2 2.5V16a4 4 0 0 0 4 4M15 4a4 4 0 0 1 4 4v1.5a2.5 2.5 0 0 0 2 2.5 2.5 2.5 0 0 0-2 2.5V16a4 4 0 0 1-4 4",
  key: "M14.5 9.5a4.5 4.5 0 1 0-3.2 4.3L13 15.5h2.5V18H18v3h3v-3.5l-6.8-6.8c.2-.4.3-.8.3-1.2zM8.5 8v.1",
  link: "M10 14a4 4 0 0 0 6 .4l3-3a4 4 0 0 0-5.7-5.7l-1.2 1.2M14 10a4 4 0 0 0-6-.4l-3 3a4 4 0 0 0 5.7 5.7l1.2-1.2",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  pause: "M8 5v14M16 5v14",
  pen: "M4 20l1-4.5L16.5 4 20 7.5 8.5 19 4 20zM14 6.5l3.5 3.5",
  play: "M7 4.5v15l12-7.5-12-7.5z",
  plus: "M12 5v14M5 12h14",
  queues: "M4 6h16M4 12h11M4 18h7",
  release: "M12 16V4M7 9l5-5 5 5M5 20h14",
  retry: "M4 12a8 8 0 1 0 2.4-5.7L4 8.5M4 4v4.5h4.5",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  settings: "M4 7h9M19 7h1M4 17h1M11 17h9M16 9.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM8 19.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z",
  sun: "M12 16.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  workers: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20a6.5 6.5 0 0 1 13 0M16 4.3a3.5 3.5 0 0 1 0 6.4M18.5 14.2a6.5 6.5 0 0 1 3 5.8",
};

export const icon = (name) => s("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

/** Make a button. */
export function button(label, onClick, { icon: shape, kind = "", key = label, ...props } = {}) {
  const classes = ["button", ...kind.split(" ").filter(Boolean)].join(".");
  return h(`button.${classes}`, { type: "button", data: { key }, on: { click: onClick }, ...props },
    shape && icon(shape), h("span", {}, label));
}

/** Make a button that shows only an icon. */
export function iconButton(label, shape, onClick, props = {}) {
  return h("button.icon-button", { type: "button", "aria-label": label, title: label, on: { click: onClick }, ...props }, icon(shape));
}

// Times, which all change together

/** Make an element that says how long ago a time was, or how far ahead; the exact time is its title. */
export const ago = (iso) => h("time", { datetime: iso, title: clock(iso), data: { relative: "" } }, relative(iso));

/** Make an element that says how much time has passed. */
export const age = (iso) => h("time", { datetime: iso, title: `since ${clock(iso)}`, data: { elapsed: "" } }, elapsed(iso));

/** Update all relative times each second. */
export function keepTimesCurrent() {
  setInterval(() => {
    if (document.hidden) return;
    for (const node of document.querySelectorAll("time[data-relative]")) setText(node, relative(node.dateTime));
    for (const node of document.querySelectorAll("time[data-elapsed]")) setText(node, elapsed(node.dateTime));
  }, 1000);
}

/** Make the bar of a job that reports its progress, with its message; null for any other. */
export const progressBar = ({ progress, id }) => (progress ? h("span.progress", {},
  h("progress", { max: 1, value: progress.fraction ?? 0, "aria-label": `Progress of item ${id}` }),
  h("span.muted", {}, [`${Math.round(100 * (progress.fraction ?? 0))} %`, progress.message].filter(Boolean).join(", "))) : null);

// Parts of pages

export const STATES = ["ready", "delayed", "claimed", "dead", "done"];

export const badge = (text, kind = "") => h(`span.badge${kind && `.${kind}`}`, {}, text);
export const stateBadge = (state) => h("span.badge.state", { data: { state } }, state);

/** Make what a page shows when it has nothing else to show. */
export const empty = (title, ...children) => h("div.empty", {}, h("p.empty-title", {}, title), ...children);

export const skeleton = (lines = 5) => h("div.skeleton", { role: "img", "aria-label": "Loading" },
  Array.from({ length: lines }, () => h("span")));

/** Make a command to copy. */
export const command = (text) => h("code.command", { tabindex: 0 }, text);

/**
 * Make a table that becomes a list of cards on a phone. Its roles are explicit, because its rows and
 * cells lose theirs when a stylesheet changes how they are displayed.
 *
 * @param {string} label
 * @param {{label: string, class?: string}[]} columns
 */
export function table(label, columns) {
  const head = columns.map((column) =>
    h(`th${column.class ? `.${column.class}` : ""}`, { scope: "col", role: "columnheader" },
      column.hidden ? h("span.visually-hidden", {}, column.label) : column.label));
  const body = h("tbody", { role: "rowgroup" });
  const node = h("table.table", { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), body);
  return { node, body };
}

export const row = (...cells) => h("tr", { role: "row" }, ...cells);

/** Make a cell; the label is shown beside it on a phone. */
export const cell = (label, classes, ...children) =>
  h(`td${classes ? `.${classes}` : ""}`, { role: "cell", data: { label } }, ...children);

// Messages and questions

/** Show a message for some seconds. */
export function toast(text, kind = "") {
  const node = h(`div.toast${kind && `.${kind}`}`, {}, icon(kind === "error" ? "alert" : "check"), h("span", {}, text));
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), kind === "error" ? 10_000 : 5_000);
}

/** Do something, and report its result, or why it failed. */
export async function attempt(action, done) {
  try {
    const result = await action();
    if (done) toast(typeof done === "function" ? done(result) : done);
    return true;
  } catch (error) {
    toast(error.message, "error");
    return false;
  }
}

/**
 * Show a dialog until it is closed.
 *
 * @param {string} title
 * @param {(close: () => void) => (Node | string)[]} content
 * @returns {Promise<void>}
 */
export function dialog(title, content) {
  const opener = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const node = h("dialog", { "aria-labelledby": "dialog-title" });
  node.append(heading, ...content(() => node.close()));
  document.body.append(node);
  node.showModal();
  return new Promise((resolve) => {
    node.addEventListener("close", () => {
      node.remove();
      if (document.activeElement === document.body && opener?.isConnected) opener.focus();
      resolve();
    }, { once: true });
  });
}

/**
 * Ask before an action, which runs while the dialog is open; an error is shown in it.
 *
 * @param {{title: string, text?: (Node | string)[], fields?: Field[], yes: string, no?: string, danger?: boolean,
 *   action?: (values: Object<string, string>) => Promise<unknown>}} options
 * @returns {Promise<Object<string, string> | null>} The values of the fields; null if the user cancelled.
 *
 * @typedef {{name: string, label: string, hint?: string, value?: string, type?: string, required?: boolean,
 *   long?: boolean, min?: number, max?: number}} Field
 */
export async function ask({ title, text = [], fields = [], yes, no = "Cancel", danger = false, action }) {
  let answer = null;
  await dialog(title, (close) => {
    const inputs = new Map(fields.map((field) => [field.name, fieldInput(field)]));
    const problem = h("p.problem", { role: "alert" });
    const confirm = h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit" }, yes);
    const submit = async (event) => {
      event.preventDefault();
      if (confirm.ariaBusy === "true") return;
      const values = Object.fromEntries([...inputs].map(([name, input]) => [name, input.value]));
      confirm.ariaBusy = "true";
      setText(problem, "");
      try {
        await action?.(values);
        answer = values;
        close();
      } catch (error) {
        setText(problem, error.message);
      } finally {
        confirm.ariaBusy = "false";
      }
    };
    return [h("form", { on: { submit } },
      text.length > 0 && h("div.dialog-text", {}, text),
      fields.map((field) => labelled(field, inputs.get(field.name))),
      problem,
      h("div.dialog-buttons", {}, button(no, close), confirm))];
  });
  return answer;
}

function fieldInput({ name, value = "", type = "text", required, long, min, max }) {
  if (long) return h("textarea", { name, required, rows: 6, spellcheck: "false", value, id: `field-${name}` });
  return h("input", { name, type, required, min, max, value, autocomplete: "off", id: `field-${name}` });
}

/** Make a label with a hint around an input. */
export function labelled({ name, label, hint }, input) {
  if (hint) input.setAttribute("aria-describedby", `hint-${name}`);
  return h("div.field", { data: { name } },
    h("label", { for: `field-${name}` }, label), input,
    hint && h("p.hint", { id: `hint-${name}` }, hint));
}
