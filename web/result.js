// The small panel on a node: what it does while it runs; then reused or not, from what, why, and the seconds saved.

import { distances } from "./distances.js";
import { element, fill, outline, slice, stylesheet, tint, unpacked } from "./parts.js";

const KINDS = ["computed", "restricted", "forecast", "replayed"];
const HEIGHT = { CarnatorEarlySignatureProbe: 92 };
const USUAL_HEIGHT = 172;
const OPENED = 150; // more, for the numbers
const PICTURE = 192; // pixels across the canvas of the history's picture
const FRESH = "#4d9bf0"; // what is computed anew

stylesheet("./result.css");

function seconds(value) {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

export class Result {
  /** node: a LiteGraph node; word: key -> text in the creator's language. */
  constructor(node, word) {
    this.node = node;
    this.word = word;
    this.numbers = element("div", "carnator-numbers");
    this.numbers.hidden = true;
    this.panel = element("div", "carnator-result");
    this.panel.setAttribute("role", "status");
    this.clear();
    const closed = HEIGHT[node.comfyClass] ?? USUAL_HEIGHT;
    this.widget = node.addDOMWidget("carnator_result", "carnator_result", this.panel, {
      serialize: false,
      hideOnZoom: false,
      margin: 6,
      getMinHeight: () => closed + (this.numbers.hidden ? 0 : OPENED),
    });
    this.widget.serialize = false;
  }

  /** As before the first run: one sentence on what will be shown here. */
  clear() {
    delete this.panel.dataset.decision;
    this.numbers.replaceChildren();
    this.panel.replaceChildren(element("p", "carnator-quiet", this.word(`before_${this.node.comfyClass}`)));
  }

  /** One line while it runs. */
  running(text) {
    this.panel.dataset.decision = "running";
    const head = element("div", "carnator-head");
    head.append(element("span", "carnator-mark", this.word("running")));
    this.panel.replaceChildren(head, element("p", "", text));
  }

  /** summary: decision, reason; of a render also seconds, saved, steps, computed ... */
  show(summary) {
    const { decision, steps } = summary;
    this.panel.dataset.decision = decision;
    const head = element("div", "carnator-head");
    const mark = this.word(steps || decision === "aside" ? decision : `gate_${decision}`);
    head.append(element("span", "carnator-mark", mark), this.gain(summary));
    const told = element("div", "carnator-told");
    told.append(...this.picture(summary), element("p", "", this.reason(summary)));
    this.numbers.replaceChildren(...(summary.distances?.length ? [distances(summary, this.word)] : []));
    this.panel.replaceChildren(head, told, ...this.steps(summary), this.numbers);
    this.resize();
  }

  reason({ decision, reason, candidates, history_prompt: prompt, entities = [] }) {
    if (decision !== "probed" || reason) return reason;
    const seen = entities.length ? fill(this.word("seen"), { what: entities.join(", ") }) : "";
    return [fill(this.word("candidates"), { count: candidates, prompt }), seen].join(" ");
  }

  gain({ saved }) {
    const shown = element("span", "carnator-gain");
    if (saved > 0.05) shown.textContent = fill(this.word("saved"), { saved: seconds(saved) });
    else if (saved < -0.05) shown.textContent = fill(this.word("lost"), { saved: seconds(-saved) });
    return shown;
  }

  /** The history's first frame; what is computed anew is tinted. */
  picture({ thumbnail, active, grid, history_prompt: prompt = "" }) {
    if (!thumbnail) return [];
    const shown = element("canvas", "carnator-picture");
    const image = new Image();
    image.addEventListener("load", () => {
      const [width, height] = [PICTURE, Math.round((PICTURE / image.width) * image.height)];
      [shown.width, shown.height] = [width, height];
      const paint = shown.getContext("2d");
      paint.drawImage(image, 0, 0, width, height);
      if (!active) return;
      const inside = slice(unpacked(active, grid[0] * grid[1] * grid[2]), grid, 0);
      tint(paint, inside, grid, `${FRESH}59`, width, height);
      [paint.strokeStyle, paint.lineWidth] = [FRESH, 3];
      outline(paint, inside, grid, width, height);
    });
    image.src = thumbnail;
    shown.setAttribute("role", "img");
    shown.title = fill(this.word(active ? "picture_active" : "picture"), { prompt });
    shown.setAttribute("aria-label", shown.title);
    return [shown];
  }

  /** One bar as long as the run, with a stretch for each way a step was come by; below it the same in words. */
  steps(summary) {
    const { steps = 0, computed = 0, restricted = 0, seconds: spent, dense_seconds: dense } = summary;
    const counts = { ...summary, computed: computed - restricted };
    const bar = element("div", "carnator-bar");
    const told = [];
    if (spent !== undefined)
      told.push(fill(this.word(dense ? "instead" : "took"), { seconds: seconds(spent), dense: seconds(dense ?? 0) }));
    for (const kind of steps ? KINDS : []) {
      if (!(counts[kind] > 0)) continue;
      const stretch = element("i", `carnator-${kind}`);
      stretch.style.flexGrow = counts[kind];
      bar.append(stretch);
      told.push(fill(this.word(kind), { count: counts[kind] }));
    }
    const line = element("div", "carnator-line carnator-quiet");
    line.append(element("span", "", told.join(" \u00b7 ")), ...this.more());
    return steps ? [bar, line] : [line];
  }

  /** A button that unfolds the comparison in numbers. */
  more() {
    if (!this.numbers.firstChild) return [];
    const button = element("button", "carnator-more", this.word("numbers"));
    button.type = "button";
    button.setAttribute("aria-expanded", String(!this.numbers.hidden));
    button.addEventListener("click", () => {
      this.numbers.hidden = !this.numbers.hidden;
      button.setAttribute("aria-expanded", String(!this.numbers.hidden));
      this.resize();
    });
    return [button];
  }

  /** Make room for what is shown; never take room that the creator gave. */
  resize() {
    const [width, height] = this.node.size;
    this.node.setSize([width, Math.max(height, this.node.computeSize()[1])]);
    this.node.graph?.setDirtyCanvas(true);
  }
}
