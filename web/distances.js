// What the gate measured: a bar for each difference, with a mark where its threshold is.

import { element, fill } from "./parts.js";

const MARK = 62; // per cent of the bar's length at which the threshold stands

function figure(name, value) {
  if (value === null || value === undefined) return "\u221e";
  if (name === "change" || name === "motion") return `${Math.round(value * 100)}%`;
  return name === "colour" ? value.toFixed(0) : value.toFixed(2);
}

function row({ name, entity, value, threshold, within, expected }, word) {
  const state = expected ? "expected" : within ? "within" : "over";
  const made = element("div", "carnator-distance");
  made.dataset.state = state;
  const what = fill(word(`distance_${name}`), { entity });
  const told = fill(word("of"), { value: figure(name, value), threshold: figure(name, threshold) });
  const bar = element("div", "carnator-gauge");
  const length = element("i", "");
  const share = value === null ? 2 : threshold > 0 ? value / threshold : value > 0 ? 2 : 0;
  length.style.width = `${threshold === null ? 0 : Math.min(100, share * MARK)}%`;
  bar.append(length);
  bar.style.setProperty("--carnator-threshold", `${MARK}%`);
  const outcome = element("span", "carnator-outcome", word(`state_${state}`));
  made.append(element("span", "", what), bar, element("span", "carnator-figure", told), outcome);
  return made;
}

/** Rows for a gate's distances that have a threshold; those that failed come first. word: key -> translated text. */
export function distances({ distances: measured = [], unmeasured = [], certificate = "" }, word) {
  const shown = element("div", "carnator-distances");
  const rank = (d) => (d.expected ? 2 : d.within ? 1 : 0);
  shown.append(...measured.filter((d) => d.threshold !== null).sort((a, b) => rank(a) - rank(b)).map((d) => row(d, word)));
  if (measured.length && unmeasured.length)
    shown.append(element("p", "carnator-quiet", fill(word("unmeasured"), { what: unmeasured.join(", ") })));
  if (measured.length && certificate)
    shown.append(element("p", "carnator-quiet", fill(word("thresholds"), { certificate })));
  return shown;
}
