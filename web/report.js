// A node whose answer is a text: the text, in a panel that can be read on.

import { element } from "./parts.js";

const HEIGHT = 190;

export class Report {
  /** node: a LiteGraph node; word: key -> text in the creator's language. */
  constructor(node, word) {
    Object.assign(this, { node, word });
    this.panel = element("div", "carnator-result carnator-report");
    this.panel.setAttribute("role", "status");
    this.clear();
    const options = { serialize: false, hideOnZoom: false, margin: 6, getMinHeight: () => HEIGHT };
    this.widget = node.addDOMWidget("carnator_result", "carnator_result", this.panel, options);
    this.widget.serialize = false;
  }

  /** As before the first run. */
  clear() {
    this.panel.replaceChildren(element("p", "carnator-quiet", this.word(`before_${this.node.comfyClass}`)));
  }

  show({ text }) {
    this.panel.replaceChildren(element("p", "", text));
  }
}
