// The last hits, each with two buttons: did it keep the scene? The answers become labels for calibration.

import { address } from "./bank_api.js";
import { button, picture } from "./bank_parts.js";
import { element, fill } from "./parts.js";
import { duration } from "./words.js";

const SAYINGS = ["kept", "wrong"];

export class LastHits {
  /** judge(hit, said): called with "kept", "wrong" or "withdrawn". */
  constructor(words, judge) {
    this.words = words;
    this.judge = judge;
    this.element = element("details", "carnator-hits");
    this.element.open = true;
    this.element.hidden = true;
    const summary = element("summary", "", words.hits_title);
    summary.title = words.hits_why;
    this.rows = element("ul", "");
    this.element.append(summary, this.rows);
  }

  show(bank, hits) {
    this.element.hidden = hits.length === 0;
    this.rows.replaceChildren(...hits.map((hit) => this.row(bank, hit)));
  }

  row(bank, hit) {
    const { words } = this;
    const told = element("div", "carnator-about");
    const prompt = element("p", "carnator-prompt", hit.prompt || words.bank_no_prompt);
    prompt.title = hit.prompt;
    const source = fill(words.hits_from, { prompt: hit.history_prompt });
    const saved = hit.saved > 0 ? fill(words.hits_saved, { saved: duration(words, hit.saved) }) : "";
    const from = element("p", "carnator-faint", [saved, source].filter(Boolean).join(" \u00b7 "));
    from.title = hit.history_prompt;
    const asked = element("div", "carnator-judge");
    for (const said of SAYINGS) asked.append(this.answer(hit, said));
    told.append(prompt, from, asked);
    const row = element("li", "");
    row.dataset.hit = hit.id;
    row.append(picture(hit.history && address("thumbnail", { bank, entry: hit.history })), told);
    return row;
  }

  answer(hit, said) {
    const word = this.words[`hits_${said}`];
    const made = button("", word, () => this.judge(hit, made.ariaPressed === "true" ? "withdrawn" : said), word);
    made.dataset.said = said;
    made.ariaPressed = String(hit.said === said);
    return made;
  }

  /** What now holds of a hit; "" for nothing. */
  mark(id, said) {
    for (const made of this.rows.querySelectorAll(`[data-hit="${id}"] [data-said]`)) {
      made.ariaPressed = String(made.dataset.said === said);
    }
  }
}
