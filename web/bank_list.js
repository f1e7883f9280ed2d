// A long list of remembered renders of which only what can be seen exists, filled a page at a time.

const ROW = 84; // pixels, as in bank.css
const PAGE = 100;
const SPARE = 4; // rows beyond what can be seen

export class BankList {
  /** load(offset, limit): a stretch of entries and their number in all. makeRow(entry): the inside of a row, an element.
   * onKey(event, entry): a key pressed on a row; whether it meant something. onTotal(total): how many there are. */
  constructor({ label, load, makeRow, onKey, onTotal }) {
    Object.assign(this, { load, makeRow, onKey, onTotal });
    this.element = document.createElement("div");
    this.element.className = "carnator-list";
    this.inside = document.createElement("div");
    this.inside.className = "carnator-list-inside";
    this.inside.setAttribute("role", "list");
    this.inside.setAttribute("aria-label", label);
    this.element.append(this.inside);
    this.rows = new Map(); // index -> element
    this.current = 0;
    this.forget();
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.pressed(event));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
  }

  /** The list is no longer shown. */
  close() {
    this.resized.disconnect();
    this.forget();
  }

  forget() {
    this.pages = new Map(); // page -> its entries; undefined while they are awaited, or where they could not be had
    this.total = 0;
    this.asked = {}; // answers to what was asked before are of no use
  }

  /** Ask anew: from the top, or where it stands when the same is asked again. */
  async reload(fromTop = true) {
    const focused = this.inside.contains(document.activeElement);
    this.forget();
    if (fromTop) {
      this.element.scrollTop = 0;
      this.current = 0;
    }
    await this.page(Math.floor(this.element.scrollTop / ROW / PAGE));
    this.clearRows();
    this.draw();
    if (focused) this.focus(Math.min(this.current, this.total - 1));
  }

  async page(number) {
    if (this.pages.has(number)) return;
    const asked = this.asked;
    this.pages.set(number, undefined);
    const found = await this.load(number * PAGE, PAGE);
    if (asked !== this.asked || !found) return; // what failed was told once; it is asked for again with the whole list
    this.pages.set(number, found.entries);
    this.total = found.total;
    this.inside.style.height = `${this.total * ROW}px`;
    this.onTotal(this.total);
    this.draw();
  }

  entry(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  clearRows() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - SPARE);
    const last = Math.min(this.total, Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + SPARE);
    for (const [index, row] of this.rows) {
      if (index >= first && index < last) continue;
      row.remove();
      this.rows.delete(index);
    }
    for (let index = first; index < last; index++) {
      const entry = this.entry(index);
      if (!entry) this.page(Math.floor(index / PAGE));
      else if (!this.rows.has(index)) this.put(index, entry);
    }
  }

  put(index, entry) {
    const row = document.createElement("div");
    row.className = "carnator-row";
    row.dataset.index = index;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("role", "listitem");
    row.setAttribute("aria-setsize", this.total);
    row.setAttribute("aria-posinset", index + 1);
    row.append(...this.makeRow(entry));
    row.addEventListener("focusin", () => this.select(index));
    this.rows.set(index, row);
    // In reading order, for those who hear the list.
    const after = [...this.rows.keys()].filter((other) => other > index).sort((a, b) => a - b)[0];
    this.inside.insertBefore(row, this.rows.get(after) ?? null);
    this.reachable(row, index === this.current);
  }

  /** One row takes part in tabbing, with its buttons; the arrow keys go from row to row. */
  reachable(row, yes) {
    row.tabIndex = yes ? 0 : -1;
    for (const button of row.querySelectorAll("button, a")) button.tabIndex = yes ? 0 : -1;
  }

  select(index) {
    if (index === this.current) return;
    const before = this.rows.get(this.current);
    if (before) this.reachable(before, false);
    this.current = index;
    this.reachable(this.rows.get(index), true);
  }

  focus(index) {
    if (index < 0) return;
    const top = index * ROW;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.element.scrollTop = top + ROW - clientHeight;
    this.draw();
    const row = this.rows.get(index);
    if (row) {
      this.select(index);
      row.focus({ preventScroll: true });
    }
  }

  pressed(event) {
    const row = event.target.closest(".carnator-row");
    if (!row) return;
    const index = Number(row.dataset.index);
    const screenful = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1);
    const to = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      PageDown: index + screenful,
      PageUp: index - screenful,
      Home: 0,
      End: this.total - 1,
    }[event.key];
    if (to !== undefined) this.focus(Math.max(0, Math.min(this.total - 1, to)));
    else if (event.target !== row || !this.onKey(event, this.entry(index))) return;
    event.preventDefault();
    event.stopPropagation(); // the graph has shortcuts of its own
  }
}
