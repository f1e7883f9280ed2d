// The small panel on a node: reused or not, the reason, seconds saved, and how the steps were come by.

const KINDS = ["computed", "restricted", "forecast", "replayed"];
const HEIGHT = 128;
const HEIGHT_OPEN = 260;

const style = document.createElement("link");
style.rel = "stylesheet";
style.href = new URL("./result.css", import.meta.url).href;
document.head.append(style);

function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

function seconds(value) {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

/** Values into a translated sentence: fill("{n} s", { n: 3 }). */
function fill(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export class Result {
  /** node: a LiteGraph node; words: the translated texts of locales/<language>/main.json. */
  constructor(node, words) {
    this.node = node;
    this.words = words;
    this.numbers = element("pre", "carnator-numbers");
    this.numbers.hidden = true;
    this.panel = element("div", "carnator-result");
    this.clear();
    this.widget = node.addDOMWidget("carnator_result", "carnator_result", this.panel, {
      serialize: false,
      hideOnZoom: false,
      margin: 6,
      getMinHeight: () => (this.numbers.hidden ? HEIGHT : HEIGHT_OPEN),
    });
    this.widget.serialize = false;
  }

  /** As before the first run: one sentence on what will be shown here. */
  clear() {
    delete this.panel.dataset.decision;
    this.numbers.textContent = "";
    this.panel.replaceChildren(element("p", "carnator-quiet", this.word(`before_${this.node.comfyClass}`)));
  }

  word(key) {
    return this.words[key] ?? "";
  }

  /** summary: decision "hit" or "miss", reason; of a render also seconds, saved, steps, computed ... */
  show(summary) {
    const { decision, steps } = summary;
    this.panel.dataset.decision = decision;
    const head = element("div", "carnator-head");
    const mark = this.word(steps ? decision : `gate_${decision}`);
    head.append(element("span", "carnator-mark", mark), this.timing(summary));
    const reason = element("p", "", summary.reason);
    // The log's columns are wider than a node.
    this.numbers.textContent = (summary.report ?? []).map((line) => line.replace(/(\S) {2,}/g, "$1  ")).join("\n");
    this.panel.replaceChildren(head, reason, ...this.steps(summary), this.numbers);
    this.resize();
  }

  timing({ seconds: spent, saved }) {
    const shown = element("span", "carnator-time");
    if (spent === undefined) return shown;
    const key = saved > 0.05 ? "saved" : saved < -0.05 ? "lost" : "took";
    shown.textContent = fill(this.word(key), { seconds: seconds(spent), saved: seconds(Math.abs(saved ?? 0)) });
    return shown;
  }

  /** One bar as long as the run, with a stretch for each way a step was come by; below it the same in words. */
  steps(summary) {
    const { steps = 0, computed = 0, restricted = 0 } = summary;
    const counts = { ...summary, computed: computed - restricted };
    const bar = element("div", "carnator-bar");
    const told = [];
    for (const kind of steps ? KINDS : []) {
      if (!(counts[kind] > 0)) continue;
      const stretch = element("i", `carnator-${kind}`);
      stretch.style.flexGrow = counts[kind];
      bar.append(stretch);
      told.push(fill(this.word(kind), { count: counts[kind] }));
    }
    const line = element("div", "carnator-line carnator-quiet");
    line.append(element("span", "", told.join(" \u00b7 ")), ...this.more());
    return told.length ? [bar, line] : [line];
  }

  /** A button that unfolds the comparison in numbers. */
  more() {
    if (!this.numbers.textContent) return [];
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
