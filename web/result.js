// The small panel on a node: reused or not, the reason, seconds saved, and how the steps were come by.

const KINDS = ["computed", "restricted", "forecast", "replayed"];
const HEIGHT = 92;
const HEIGHT_OPEN = 220;

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

/** Numbers into a translated sentence: fill("{n} s", { n: 3 }). */
function fill(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export class Result {
  /** node: a LiteGraph node; words: the translated texts of locales/<language>/main.json. */
  constructor(node, words) {
    this.node = node;
    this.words = words;
    this.open = false;
    this.panel = element("div", "carnator-result");
    this.panel.append(element("p", "carnator-quiet", this.word(`before_${node.comfyClass}`)));
    this.widget = node.addDOMWidget("carnator_result", "carnator_result", this.panel, {
      serialize: false,
      hideOnZoom: false,
      margin: 6,
      getMinHeight: () => (this.open ? HEIGHT_OPEN : HEIGHT),
    });
    this.widget.serialize = false;
  }

  word(key) {
    return this.words[key] ?? "";
  }

  /** summary: decision "hit" or "miss", reason, and where measured seconds, saved, steps, computed, ..., report lines. */
  show(summary) {
    const hit = summary.decision === "hit";
    this.panel.dataset.decision = hit ? "hit" : "miss";
    const head = element("div", "carnator-head");
    head.append(element("span", "carnator-mark", this.word(hit ? "hit" : "miss")), this.timing(summary));
    const reason = element("p", "carnator-reason", summary.reason);
    reason.title = summary.reason;
    this.panel.replaceChildren(head, reason, ...this.steps(summary), ...this.numbers(summary.report ?? []));
    this.resize();
  }

  timing({ seconds: spent, saved }) {
    const shown = element("span", "carnator-time");
    if (spent === undefined) return shown;
    const key = saved > 0.05 ? "saved" : saved < -0.05 ? "lost" : "took";
    shown.textContent = fill(this.word(key), { seconds: seconds(spent), saved: seconds(Math.abs(saved ?? 0)) });
    return shown;
  }

  /** One bar as long as the run, a stretch for each way a step was come by. */
  steps(summary) {
    const { steps, computed = 0, restricted = 0 } = summary;
    if (!steps) return [];
    const counts = { ...summary, computed: computed - restricted };
    const bar = element("div", "carnator-bar");
    const told = [];
    for (const kind of KINDS) {
      if (!(counts[kind] > 0)) continue;
      const stretch = element("i", `carnator-${kind}`);
      stretch.style.flexGrow = counts[kind];
      bar.append(stretch);
      told.push(fill(this.word(kind), { count: counts[kind] }));
    }
    const legend = element("p", "carnator-quiet", told.join(" \u00b7 "));
    bar.title = legend.textContent;
    return [bar, legend];
  }

  /** The comparison in numbers, folded away. */
  numbers(report) {
    if (!report.length) return [];
    const fold = document.createElement("details");
    fold.open = this.open;
    fold.append(element("summary", "", this.word("numbers")), element("pre", "", report.join("\n")));
    fold.addEventListener("toggle", () => {
      this.open = fold.open;
      this.resize();
    });
    return [fold];
  }

  resize() {
    const [width, height] = this.node.size;
    this.node.setSize([width, Math.max(height, this.node.computeSize()[1])]);
    this.node.graph?.setDirtyCanvas(true);
  }
}
