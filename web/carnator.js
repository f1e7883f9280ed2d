// Shows on each Carnator node what the last render did: reused or not, why, and what it saved.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { keep, markAnew, markOf, recall } from "./kept.js";
import { Report } from "./report.js";
import { Result } from "./result.js";
import { Viewer } from "./viewer.js";
import { loadWords } from "./words.js";

const SHOWN_ON = {
  CarnatorReuse: Result,
  CarnatorEarlySignatureProbe: Result,
  CarnatorRiskGate: Result,
  CarnatorJointReuseSampler: Result,
  CarnatorDenseFallback: Result,
  CarnatorEvidenceRegionViewer: Viewer,
  CarnatorCalibrate: Report,
  CarnatorBankReport: Report,
};
const shown = new Map(); // node -> what stands on it
const cached = new Map(); // the run under way -> ids of the nodes that it need not run
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

/** The node that a message is for; none when it belongs to a workflow in another tab. */
function receiver({ node: id, mark }) {
  const node = nodeOf(id);
  return node && shown.has(node) && (!mark || markOf(node) === mark) ? node : undefined;
}

const LEFT_OUT = [2, 4]; // modes of a node: muted, bypassed

/** Of the nodes in this workflow, those that this run will run anew, or leaves out: what stands on them is no longer true. */
function clearStale(run) {
  const kept = new Set([...(cached.get(run) ?? [])].map(nodeOf));
  for (const [node, view] of shown) {
    if (kept.has(node) || recall(markOf(node))?.run === run || view.run === run) continue;
    forget(node);
  }
}

function forget(node) {
  keep(markOf(node));
  shown.get(node).clear();
}

function line({ detail }) {
  const node = receiver(detail);
  if (!node) return;
  shown.get(node).run = detail.run;
  clearStale(detail.run);
  shown.get(node).running?.(detail.text);
}

function result(detail) {
  const node = receiver(detail);
  const mark = node ? markOf(node) : detail.mark;
  const { report, regions, ...needed } = detail; // the log's text and every entity's region are not drawn
  if (mark) keep(mark, needed);
  if (!node) return;
  clearStale(detail.run);
  shown.get(node).show(detail);
}

/** After a node was loaded: what it showed last. Two nodes of a workflow never share a mark. */
function restore(node) {
  if (!shown.has(node)) return;
  for (const other of shown.keys())
    if (other !== node && other.graph === node.graph && markOf(other) === markOf(node)) markAnew(node);
  const last = recall(markOf(node));
  if (last) shown.get(node).show(last);
}

app.registerExtension({
  name: "Carnator",

  async init() {
    words = await loadWords();
  },

  setup() {
    api.addEventListener("execution_cached", ({ detail }) => {
      cached.clear();
      cached.set(detail.prompt_id, new Set(detail.nodes));
      for (const node of shown.keys()) if (LEFT_OUT.includes(node.mode)) forget(node);
    });
    api.addEventListener("carnator.status", line);
    api.addEventListener("carnator.summary", ({ detail }) => result(detail));
    api.addEventListener("executed", ({ detail }) => {
      const [text] = detail.output?.text ?? [];
      const view = detail.output?.carnator_view?.[0] ?? (text && { text });
      if (!view || !SHOWN_ON[nodeOf(detail.node)?.comfyClass]) return;
      // An output that the host kept may have been made for another tab; the run says for which it is sent now.
      const again = cached.get(detail.prompt_id)?.has(detail.node);
      result({ ...view, node: detail.node, mark: again ? "" : view.mark, run: detail.prompt_id });
    });
  },

  nodeCreated(node) {
    const View = SHOWN_ON[node.comfyClass];
    if (!View) return;
    markOf(node);
    shown.set(node, new View(node, (key) => words[key] ?? "", api));
    const removed = node.onRemoved;
    node.onRemoved = function (...rest) {
      shown.delete(node);
      return removed?.apply(this, rest);
    };
  },

  loadedGraphNode: restore,
});
