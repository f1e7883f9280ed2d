// Shows on each Carnator node what the last render did: reused or not, why, and what it saved.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { Result } from "./result.js";

// The summary comes once a render has ended; for the gate it is its own report.
const SHOWN_ON = new Set([
  "CarnatorReuse",
  "CarnatorJointReuseSampler",
  "CarnatorDenseFallback",
  "CarnatorRiskGate",
]);
const HOST_STATUS_LINE = "$$node-text-preview";
const results = new Map(); // node -> what is shown on it
let words = {};

/** The node an execution id names; inside a sub-graph it reads "outer:inner". */
function nodeOf(id) {
  let graph = app.rootGraph ?? app.graph;
  let node;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(/^\d+$/.test(part) ? Number(part) : part);
    graph = node?.subgraph;
  }
  return node;
}

/** The result already says what the host's line under the node said last. */
function clearStatusLine(node) {
  const line = node.widgets?.find((widget) => widget.name === HOST_STATUS_LINE);
  if (line) node.removeWidget?.(line);
}

function show(id, summary) {
  const node = nodeOf(id);
  const result = node && results.get(node);
  if (!result) return;
  clearStatusLine(node);
  result.show(summary);
}

function gateSummary(text) {
  const [head, ...report] = text.split("\n");
  const [decision, ...reason] = head.split(": ");
  return { decision: decision.toLowerCase(), reason: reason.join(": "), report };
}

async function loadWords() {
  try {
    const all = await api.getCustomNodesI18n();
    const locale = app.extensionManager.setting.get("Comfy.Locale") ?? "en";
    words = { ...all.en?.carnator, ...all[locale]?.carnator };
  } catch (error) {
    console.warn("Carnator: no translations:", error);
  }
}

/** What an earlier run left on nodes that this one will run again, or leaves out, is no longer true. */
function clearStale(cached) {
  const kept = new Set(cached.map(nodeOf));
  for (const [node, result] of results) if (!kept.has(node)) result.clear();
}

app.registerExtension({
  name: "Carnator",

  async init() {
    await loadWords();
  },

  setup() {
    api.addEventListener("execution_cached", ({ detail }) => clearStale(detail.nodes));
    api.addEventListener("carnator.summary", ({ detail }) => show(detail.node, detail));
    api.addEventListener("executed", ({ detail }) => {
      const text = detail.output?.text?.[0];
      if (text && nodeOf(detail.node)?.comfyClass === "CarnatorRiskGate") show(detail.node, gateSummary(text));
    });
  },

  nodeCreated(node) {
    if (!SHOWN_ON.has(node.comfyClass)) return;
    results.set(node, new Result(node, words));
    const removed = node.onRemoved;
    node.onRemoved = function (...rest) {
      results.delete(node);
      return removed?.apply(this, rest);
    };
  },
});
