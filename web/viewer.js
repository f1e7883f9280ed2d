// The Evidence Region Viewer: the remembered clip and this render side by side, with each entity's region, the bands that
// would be computed anew, and every measured difference against its threshold.

import { distances } from "./distances.js";
import { element, fill, outline, slice, stylesheet, tint, unpacked } from "./parts.js";

const HEIGHT = 480;
const BANDS = { active: [], context: [5, 4] }; // name -> dashes of its line
const SIDES = ["history", "target"];

stylesheet("./viewer.css");

/** As the IMAGE output colours its entities. */
function colour(index, alpha = 1) {
  return `hsl(${(((0.11 + 0.382 * index) % 1) * 360).toFixed(0)} 90% 58% / ${alpha})`;
}

export class Viewer {
  /** node: a LiteGraph node; word: key -> text in the creator's language; api: the front end's. */
  constructor(node, word, api) {
    Object.assign(this, { node, word, api });
    this.panel = element("div", "carnator-viewer");
    // Arrow keys move the slider and a drag stays in the panel, instead of moving the node.
    for (const kind of ["keydown", "pointerdown"]) this.panel.addEventListener(kind, (event) => event.stopPropagation());
    this.clear();
    const options = { serialize: false, hideOnZoom: false, margin: 6, getMinHeight: () => HEIGHT };
    this.widget = node.addDOMWidget("carnator_viewer", "carnator_viewer", this.panel, options);
    this.widget.serialize = false;
  }

  /** As before the first run. */
  clear() {
    delete this.panel.dataset.decision;
    this.panel.replaceChildren(element("p", "carnator-quiet", this.word(`before_${this.node.comfyClass}`)));
  }

  /** seen: what the node returned for the page. */
  show(seen) {
    this.panel.dataset.decision = seen.decision;
    if (!seen.grid) {
      this.panel.replaceChildren(element("p", "", seen.reason));
      return;
    }
    const cells = seen.grid.reduce((product, side) => product * side, 1);
    this.seen = seen;
    this.bands = Object.fromEntries(Object.keys(BANDS).map((name) => [name, unpacked(seen.bands[name], cells)]));
    this.entities = seen.entities.map((row, index) => ({
      name: row.target && row.history && row.target !== row.history ? `${row.history} \u2192 ${row.target}` : row.target || row.history,
      regions: Object.fromEntries(SIDES.map((side) => [side, row[`${side}_region`] && unpacked(row[`${side}_region`], cells)])),
      colour: (alpha) => colour(index, alpha),
      on: !seen.only || row.target === seen.only,
    }));
    this.bandsOn = { active: seen.decision !== "", context: false };
    this.frame = 0;
    this.sides = SIDES.filter((side) => seen[`${side}_strip`]).map((side) => this.side(side));
    const clips = element("div", "carnator-clips");
    clips.append(...this.sides.map(({ figure }) => figure));
    const measured = distances(seen, this.word);
    this.panel.replaceChildren(clips, this.slider(), this.switches(), ...(measured.firstChild ? [measured] : []));
    this.draw();
  }

  /** One clip: its caption, and a canvas on which its strip's frame is drawn. */
  side(name) {
    const strip = this.seen[`${name}_strip`];
    const figure = element("figure", "carnator-clip");
    const canvas = element("canvas", "");
    [canvas.width, canvas.height] = [Math.max(strip.width, 320), Math.round((Math.max(strip.width, 320) / strip.width) * strip.height)];
    const { history_prompt, prompt, steps, all_steps } = this.seen;
    const values = { prompt: name === "history" ? history_prompt : prompt, steps, all: all_steps };
    const caption = element("figcaption", "", fill(this.word(`viewer_${name}`), values));
    caption.title = caption.textContent;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", caption.textContent);
    figure.append(canvas, caption);
    const image = new Image();
    const side = { name, strip, figure, canvas };
    image.addEventListener("load", () => {
      side.image = image;
      this.draw();
    });
    image.addEventListener("error", () => {
      caption.textContent = this.word("viewer_gone");
    });
    const { filename, subfolder, type } = strip;
    image.src = this.api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type })}`);
    return side;
  }

  slider() {
    const row = element("label", "carnator-frames");
    const input = element("input", "");
    Object.assign(input, { type: "range", min: 0, max: this.seen.grid[0] - 1, step: 1, value: 0 });
    const told = element("span", "carnator-figure");
    const name = () => fill(this.word("frame"), { frame: this.frame + 1, frames: this.seen.grid[0] });
    told.textContent = name();
    input.setAttribute("aria-label", this.word("frames"));
    input.addEventListener("input", () => {
      this.frame = Number(input.value);
      told.textContent = name();
      input.setAttribute("aria-valuetext", told.textContent);
      this.draw();
    });
    row.append(input, told);
    return row;
  }

  /** A button for each entity and each band, pressed while it is drawn. */
  switches() {
    const row = element("div", "carnator-switches");
    row.append(
      ...this.entities.map((entity) =>
        this.toggle(entity.name, entity.colour(1), () => entity.on, (on) => (entity.on = on)),
      ),
      ...Object.keys(BANDS).map((band) =>
        this.toggle(this.word(`band_${band}`), "", () => this.bandsOn[band], (on) => (this.bandsOn[band] = on), band),
      ),
    );
    return row;
  }

  toggle(name, swatch, get, set, band = "") {
    const button = element("button", "carnator-switch");
    button.type = "button";
    const key = element("i", "");
    if (swatch) key.style.background = swatch;
    if (band) {
      key.dataset.band = band;
      button.title = this.word(`band_${band}_tooltip`);
    }
    button.append(key, element("span", "", name));
    button.setAttribute("aria-pressed", String(get()));
    button.addEventListener("click", () => {
      set(!get());
      button.setAttribute("aria-pressed", String(get()));
      this.draw();
    });
    return button;
  }

  draw() {
    for (const { name, strip, canvas, image } of this.sides) {
      const [width, height] = [canvas.width, canvas.height];
      const paint = canvas.getContext("2d");
      paint.fillStyle = "#333";
      paint.fillRect(0, 0, width, height);
      const frame = Math.min(this.frame, strip.count - 1);
      if (image) paint.drawImage(image, 0, frame * strip.height, strip.width, strip.height, 0, 0, width, height);
      for (const entity of this.entities) if (entity.on) this.region(paint, entity.regions[name], entity.colour, width, height);
      for (const band of Object.keys(BANDS)) if (this.bandsOn[band]) this.band(paint, band, width, height);
    }
  }

  region(paint, cells, colourOf, width, height) {
    if (!cells) return;
    const inside = slice(cells, this.seen.grid, this.frame);
    tint(paint, inside, this.seen.grid, colourOf(0.28), width, height);
    [paint.strokeStyle, paint.lineWidth] = [colourOf(1), 2.5];
    outline(paint, inside, this.seen.grid, width, height);
  }

  /** A line that is seen on light and on dark pictures. */
  band(paint, name, width, height) {
    const inside = slice(this.bands[name], this.seen.grid, this.frame);
    for (const [style, thick] of [["#000a", 4], ["#fff", 1.8]]) {
      [paint.strokeStyle, paint.lineWidth] = [style, thick];
      paint.setLineDash(style === "#fff" ? BANDS[name] : []);
      outline(paint, inside, this.seen.grid, width, height);
    }
    paint.setLineDash([]);
  }
}
