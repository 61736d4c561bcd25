// Bars of states, and lines of rates.

import { number, rate } from "./format.js";
import { HISTORY, rates, recentRate } from "./live.js";
import { STATES, h, s, setText } from "./ui.js";

/** The states of a bar; done items are history and would hide the others. */
const BAR_STATES = STATES.filter((state) => state !== "done");

/** Make a bar of states, with `update(stats)`. */
export function stateBar() {
  const parts = BAR_STATES.map((state) => h("span", { data: { state } }));
  const node = h("div.bar", { role: "img" }, parts);
  return {
    node,
    update(stats) {
      const total = BAR_STATES.reduce((sum, state) => sum + stats[state], 0);
      parts.forEach((part, n) => {
        const items = stats[BAR_STATES[n]];
        part.hidden = items === 0;
        part.style.flexGrow = String(items);
      });
      node.classList.toggle("is-empty", total === 0);
      const text = BAR_STATES.filter((state) => stats[state]).map((state) => `${number(stats[state])} ${state}`).join(", ");
      if (node.getAttribute("aria-label") !== (text || "empty")) node.setAttribute("aria-label", text || "empty");
    },
  };
}

/**
 * Make lines of the rates in and out, with `update(history)`.
 *
 * @param {{width: number, height: number, what: string}} options
 */
export function sparkline({ width, height, what }) {
  const area = s("path.area");
  const lines = { in: s("path.line.in"), out: s("path.line.out") };
  const drawing = s("svg.sparkline", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Rates of ${what}`,
  }, area, lines.in, lines.out);
  return {
    node: drawing,
    /** Draw the lines, and return the recent rates. */
    update(history) {
      const points = rates(history);
      const end = points.at(-1)?.time ?? 0;
      const begin = history[0]?.time ?? end; // of the first of the periods, which points end
      const seconds = Math.min(HISTORY, Math.max(30, end - begin));
      const highest = Math.max(0, ...points.map((point) => Math.max(point.in, point.out)));
      const x = (time) => Math.max(0, width * (1 - (end - time) / seconds)).toFixed(1);
      const y = (value) => (height - 2 - (height - 6) * (value / Math.max(highest, 0.5))).toFixed(1);
      for (const kind of ["in", "out"]) {
        const text = points.length ? `M${x(begin)} ${y(points[0][kind])}${points.map((point) => `L${x(point.time)} ${y(point[kind])}`).join("")}` : "";
        lines[kind].setAttribute("d", text);
        if (kind === "in") area.setAttribute("d", text && `${text}L${width} ${height}L${x(begin)} ${height}Z`);
      }
      const recent = recentRate(history);
      drawing.classList.toggle("is-idle", highest === 0);
      drawing.setAttribute("aria-label", `Rates of ${what}: in ${rate(recent.in)}, out ${rate(recent.out)}`);
      return { recent };
    },
  };
}
