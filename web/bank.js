// The bank browser: a tab in the sidebar with all remembered renders, the space they take, and the last hits to judge.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { address, ask, available, change, Refused, sendFile } from "./bank_api.js";
import { LastHits } from "./bank_hits.js";
import { BankList } from "./bank_list.js";
import { button, picture } from "./bank_parts.js";
import { element, fill, stylesheet } from "./parts.js";
import { duration, language, loadWords, size } from "./words.js";

const SORTS = ["newest", "oldest", "saved", "hits", "largest", "pinned"];
const TYPING = 200; // milliseconds without a key before a search is made
let shown; // the browser on the page, if the tab is open

class BankBrowser {
  constructor(container, words) {
    this.words = words;
    this.bank = "default";
    this.day = new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" });
    this.list = new BankList({
      label: words.bank_title,
      load: (offset, limit) => this.asked(() => ask("entries", { ...this.wanted(), offset, limit })),
      makeRow: (entry) => this.row(entry),
      onKey: (event, entry) => this.key(event, entry),
      onTotal: (total) => this.found(total),
    });
    this.hits = new LastHits(words, (hit, said) => this.judge(hit, said));
    this.root = element("section", "carnator-bank");
    this.root.setAttribute("aria-label", words.bank_title);
    this.root.append(this.head(), this.hits.element, this.tools(), this.list.element, this.empty, this.foot());
    container.style.height = "100%"; // or the list would be as long as the bank
    container.replaceChildren(this.root);
    this.open();
  }

  close() {
    this.list.close();
    clearTimeout(this.typing);
  }

  head() {
    const { words } = this;
    this.choice = element("select", "carnator-choice");
    this.choice.setAttribute("aria-label", words.bank_choose);
    this.choice.addEventListener("change", () => this.choose(this.choice.value));
    const line = element("div", "carnator-title");
    line.append(
      element("h2", "", words.bank_title),
      this.choice,
      button("pi-refresh", words.bank_refresh, () => this.refresh()),
    );
    this.meter = element("div", "carnator-meter");
    this.meter.setAttribute("role", "meter");
    this.meter.setAttribute("aria-label", words.bank_space);
    this.meter.append(element("i", ""));
    this.space = element("p", "carnator-faint");
    this.totals = element("p", "carnator-totals");
    const head = element("header", "");
    head.append(line, this.totals, this.meter, this.space);
    return head;
  }

  tools() {
    const { words } = this;
    this.search = element("input", "carnator-search");
    this.search.type = "search";
    this.search.maxLength = 200;
    this.search.placeholder = words.bank_search;
    this.search.setAttribute("aria-label", words.bank_search);
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.list.reload(), TYPING);
    });
    this.sort = element("select", "carnator-choice");
    this.sort.setAttribute("aria-label", words.bank_sort);
    this.sort.append(...SORTS.map((sort) => new Option(words[`sort_${sort}`], sort)));
    this.sort.addEventListener("change", () => this.list.reload());
    const tools = element("div", "carnator-tools");
    tools.append(this.search, this.sort);
    this.empty = element("p", "carnator-empty");
    return tools;
  }

  foot() {
    const { words } = this;
    const file = element("input", "");
    file.type = "file";
    file.accept = ".bank";
    file.hidden = true;
    file.addEventListener("change", () => {
      if (file.files.length) this.takeIn(file.files[0]);
      file.value = "";
    });
    this.importing = button("", words.bank_import, () => file.click(), words.bank_import);
    this.exporting = button("", words.bank_export, () => this.save({}), words.bank_export);
    this.forgetting = button("", words.bank_forget, () => this.forget(), words.bank_forget);
    this.forgetting.classList.add("carnator-grave");
    const foot = element("footer", "");
    foot.append(file, this.importing, this.exporting, this.forgetting);
    return foot;
  }

  /** The answer of a request, or undefined after its refusal was shown. */
  async asked(request) {
    try {
      return await request();
    } catch (error) {
      const detail = error instanceof Refused ? error.message : this.words.bank_away;
      this.tell("error", this.words.bank_title, detail);
      return undefined;
    }
  }

  tell(severity, summary, detail) {
    app.extensionManager.toast.add({ severity, summary, detail, life: 6000 });
  }

  async open() {
    const found = await this.asked(() => ask("banks"));
    if (!found) return;
    this.bank = found.default;
    this.choice.replaceChildren(...found.banks.map((name) => new Option(name, name)));
    this.choice.value = this.bank;
    this.choice.hidden = found.banks.length < 2;
    await this.choose(this.bank);
  }

  async choose(bank) {
    this.bank = bank;
    await Promise.all([this.list.reload(), this.overview()]);
  }

  /** After a render or a change: the same stretch of the same list. */
  async refresh() {
    await Promise.all([this.list.reload(false), this.overview()]);
  }

  async overview() {
    const bank = this.bank;
    const told = await this.asked(() => ask("overview", { bank }));
    if (!told || bank !== this.bank) return;
    const { words } = this;
    const share = Math.min(1, told.bytes / told.budget_bytes);
    this.meter.firstChild.style.width = `${100 * share}%`;
    this.meter.dataset.full = share > 0.9;
    this.meter.setAttribute("aria-valuenow", Math.round(100 * share));
    const space = { used: size(told.bytes), budget: size(told.budget_bytes), free: size(told.free_bytes) };
    this.space.textContent = fill(words.bank_of, space);
    const saved = duration(words, told.seconds_saved);
    this.totals.textContent = fill(words.bank_totals, { renders: told.renders, hits: told.hits, saved });
    this.exporting.disabled = this.forgetting.disabled = told.renders === 0;
    this.renders = told.renders;
    this.hits.show(bank, told.last_hits);
  }

  wanted() {
    return { bank: this.bank, search: this.search.value.trim(), sort: this.sort.value };
  }

  found(total) {
    this.list.element.hidden = total === 0;
    this.empty.hidden = total > 0;
    this.empty.textContent = this.search.value.trim() ? this.words.bank_none_found : this.words.bank_empty;
  }

  row(entry) {
    const { words } = this;
    const prompt = element("p", "carnator-prompt", entry.prompt || words.bank_no_prompt);
    prompt.title = entry.prompt;
    const facts = [
      size(entry.bytes),
      entry.hits ? fill(words.bank_row_hits, { hits: entry.hits, saved: duration(words, entry.seconds_saved) }) : "",
    ];
    const line = element("p", "carnator-faint", facts.filter(Boolean).join(" \u00b7 "));
    line.title = this.details(entry);
    const made = element("time", "carnator-faint", this.day.format(new Date(entry.created * 1000)));
    const told = element("div", "carnator-about");
    told.append(prompt, line, made);
    const pin = button("pi-thumbtack", entry.pinned ? words.bank_unpin : words.bank_pin, () => this.pin(entry, pin));
    pin.setAttribute("aria-pressed", String(entry.pinned));
    const keep = element("div", "carnator-acts");
    keep.append(
      pin,
      button("pi-download", words.bank_export_one, () => this.save({ entry: entry.id })),
      button("pi-trash", words.bank_remove, () => this.remove(entry)),
    );
    return [picture(address("thumbnail", { bank: this.bank, entry: entry.id })), told, keep];
  }

  details({ model, steps, seconds, seed }) {
    const took = seconds ? duration(this.words, seconds) : "";
    const parts = [model, steps && fill(this.words.bank_steps, { n: steps }), took, seed && fill(this.words.bank_seed, { n: seed })];
    return parts.filter(Boolean).join(" \u00b7 ");
  }

  key(event, entry) {
    if (!entry || event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key === "Delete" || event.key === "Backspace") this.remove(entry);
    else if (event.key === "p" || event.key === "P") this.pin(entry);
    else return false;
    return true;
  }

  async pin(entry, pressed) {
    const done = await this.asked(() => change("pin", { bank: this.bank, entry: entry.id, pinned: !entry.pinned }));
    if (!done) return;
    entry.pinned = done.pinned;
    if (!pressed || this.sort.value === "pinned") {
      await this.list.reload(false);
      return;
    }
    pressed.setAttribute("aria-pressed", String(entry.pinned));
    pressed.title = entry.pinned ? this.words.bank_unpin : this.words.bank_pin;
    pressed.setAttribute("aria-label", pressed.title);
  }

  /** A question that has to be answered with yes. */
  async sure(title, message) {
    return (await app.extensionManager.dialog.confirm({ title, message, type: "delete" })) === true;
  }

  async remove(entry) {
    const { words } = this;
    const message = fill(words.bank_remove_sure, { prompt: entry.prompt.slice(0, 120) || words.bank_no_prompt });
    if (!(await this.sure(words.bank_remove, message))) return;
    if (await this.asked(() => change("remove", { bank: this.bank, entries: [entry.id] }))) await this.refresh();
  }

  async forget() {
    const { words, bank } = this;
    if (!(await this.sure(words.bank_forget, fill(words.bank_forget_sure, { renders: this.renders, bank })))) return;
    if (await this.asked(() => change("forget", { bank }))) await this.refresh();
  }

  async judge(hit, said) {
    const done = await this.asked(() => change("verdict", { bank: this.bank, hit: hit.id, said }));
    if (done) this.hits.mark(hit.id, done.said);
  }

  /** Save the bank, or one entry of it, as a file. */
  save({ entry = "" }) {
    const link = element("a", "");
    link.href = address("export", { bank: this.bank, entry });
    link.download = entry ? `${this.bank}-${entry.slice(0, 8)}.bank` : `${this.bank}.bank`;
    link.click();
  }

  async takeIn(file) {
    const { words } = this;
    this.importing.disabled = true;
    this.importing.textContent = words.bank_importing;
    const done = await this.asked(() => sendFile(this.bank, file));
    this.importing.disabled = false;
    this.importing.textContent = words.bank_import;
    if (done) this.tell("success", words.bank_title, fill(words.bank_imported, { n: done.imported }));
    await this.refresh();
  }
}

app.registerExtension({
  name: "Carnator.Bank",

  async setup() {
    if (!(await available())) return;
    const words = await loadWords();
    stylesheet("./bank.css");
    app.extensionManager.registerSidebarTab({
      id: "carnator-bank",
      icon: "pi pi-database",
      title: words.bank_tab,
      tooltip: words.bank_title,
      type: "custom",
      render: (container) => {
        if (shown?.root.parentElement === container) return; // the host says it again whenever its sidebar changes
        shown?.close();
        shown = new BankBrowser(container, words);
      },
      destroy: () => {
        shown?.close();
        shown = undefined;
      },
    });
    api.addEventListener("execution_success", () => shown?.refresh());
  },
});
