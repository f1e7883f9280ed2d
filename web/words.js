// The pack's texts in the creator's language, from locales/<language>/main.json.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { fill } from "./parts.js";

let loading;

/** The language of the host's interface, for instance "en" or "zh". */
export function language() {
  return app.extensionManager.setting.get("Comfy.Locale") ?? "en";
}

/** All texts, English where one is missing. Asked for once. */
export function loadWords() {
  loading ??= api.getCustomNodesI18n().then(
    (all) => ({ ...all.en?.carnator, ...all[language()]?.carnator }),
    (error) => {
      console.warn("Carnator: no translations:", error);
      return {};
    },
  );
  return loading;
}

/** Two digits are enough. */
function short(value) {
  return value < 9.95 && value > 0 ? value.toFixed(1) : String(Math.round(value));
}

/** Seconds as a creator says them. */
export function duration(words, seconds) {
  if (seconds < 60) return fill(words.seconds, { n: short(seconds) });
  if (seconds < 5400) return fill(words.minutes, { n: (seconds / 60).toFixed(seconds < 600 ? 1 : 0) });
  return fill(words.hours, { n: (seconds / 3600).toFixed(1) });
}

/** Bytes as file managers show them. */
export function size(bytes) {
  const unit = bytes < 999.5e3 ? [1e3, "KB"] : bytes < 999.5e6 ? [1e6, "MB"] : bytes < 999.5e9 ? [1e9, "GB"] : [1e12, "TB"];
  const value = bytes / unit[0];
  return `${short(value)} ${unit[1]}`;
}
