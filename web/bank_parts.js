// Small pieces of the bank browser's page.

import { element } from "./parts.js";

/** A button that shows a picture (a PrimeIcons name), or a word where one is given. */
export function button(icon, label, pressed, word = "") {
  const made = element("button", word ? "carnator-button" : "carnator-icon", word);
  made.type = "button";
  made.title = label;
  if (!word) {
    made.setAttribute("aria-label", label);
    const drawn = element("i", `pi ${icon}`);
    drawn.setAttribute("aria-hidden", "true");
    made.append(drawn);
  }
  made.addEventListener("click", (event) => {
    event.stopPropagation();
    pressed(event);
  });
  return made;
}

/** A thumbnail; an empty frame where there is none. The prompt beside it says what it shows. */
export function picture(address) {
  const frame = element("div", "carnator-thumb");
  if (address) {
    const image = element("img", "");
    image.alt = "";
    image.decoding = "async";
    image.draggable = false;
    image.addEventListener("error", () => image.remove());
    image.src = address;
    frame.append(image);
  }
  return frame;
}
