// A JSON value as a tree whose branches open and close.

import { plural } from "./format.js";
import { button, h } from "./ui.js";

const OPEN = 3; // levels that are open at first
const MAX_CHILDREN = 100; // that are shown at first

/** Make the tree of a JSON value. */
export const tree = (value) => h("div.tree", {}, node(null, value, 0));

function node(name, value, level) {
  const label = name !== null && [h("span.tree-name", {}, String(name)), ": "];
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return h("div.tree-leaf", {}, label, h("span.tree-value", { data: { kind } }, JSON.stringify(value)));
  }
  const children = Object.entries(value);
  const isArray = Array.isArray(value);
  if (children.length === 0) return h("div.tree-leaf", {}, label, isArray ? "[]" : "{}");
  const size = isArray ? plural(children.length, "element") : plural(children.length, "field");
  const content = h("div.tree-children");
  const branch = h("details.tree-branch", { open: level < OPEN },
    h("summary", {}, label, h("span.muted", {}, `${isArray ? "[" : "{"} ${size} ${isArray ? "]" : "}"}`)), content);
  const fill = (end) => {
    const begin = content.children.length;
    content.append(...children.slice(begin, end).map(([key, child]) => node(isArray ? Number(key) : key, child, level + 1)));
    if (end < children.length) {
      const more = button(`Show all ${children.length}`, () => { more.remove(); fill(children.length); }, { kind: "link" });
      content.append(more);
    }
  };
  // A large value is made as far as the user opens it.
  if (branch.open) fill(MAX_CHILDREN);
  else branch.addEventListener("toggle", () => fill(MAX_CHILDREN), { once: true });
  return branch;
}
