// Small things that the panel and the viewer share: elements, words, packed regions.

export function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

export function stylesheet(file) {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL(file, import.meta.url).href;
  document.head.append(style);
}

/** Values into a translated sentence: fill("{n} s", { n: 3 }). */
export function fill(sentence = "", values = {}) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** Cells of a region that the server packed bit by bit, most significant first: true where set. */
export function unpacked(text, cells) {
  const bytes = atob(text ?? "");
  return Array.from({ length: cells }, (_, i) => Boolean((bytes.charCodeAt(i >> 3) >> (7 - (i & 7))) & 1));
}

/** One latent frame of a [T, H, W] region as a function (row, column) -> inside; outside of the grid nothing is. */
export function slice(region, [, rows, columns], frame) {
  return (row, column) =>
    row >= 0 && column >= 0 && row < rows && column < columns && region[(frame * rows + row) * columns + column];
}

/** Fill a region's cells on a canvas that shows one frame. */
export function tint(paint, inside, [, rows, columns], colour, width, height) {
  const [w, h] = [width / columns, height / rows];
  paint.fillStyle = colour;
  paint.beginPath();
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) if (inside(r, c)) paint.rect(c * w, r * h, w, h);
  paint.fill();
}

/** Draw the border between a region and what is not in it. */
export function outline(paint, inside, [, rows, columns], width, height) {
  const [w, h] = [width / columns, height / rows];
  paint.beginPath();
  for (let r = 0; r <= rows; r++) {
    for (let c = 0; c <= columns; c++) {
      if (inside(r, c) !== inside(r - 1, c) && c < columns) {
        paint.moveTo(c * w, r * h);
        paint.lineTo((c + 1) * w, r * h);
      }
      if (inside(r, c) !== inside(r, c - 1) && r < rows) {
        paint.moveTo(c * w, r * h);
        paint.lineTo(c * w, (r + 1) * h);
      }
    }
  }
  paint.stroke();
}
