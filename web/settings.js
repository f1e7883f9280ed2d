// Carnator's settings in the host's dialog. The bank and its budget go to the server, for renders whose workflow names no
// bank; all of them are the first values of new nodes. What a workflow states, it keeps.

import { app } from "../../scripts/app.js";
import { ask, available, change, Refused } from "./bank_api.js";
import { loadWords } from "./words.js";

const SERVER = { "Carnator.Bank.Name": "bank", "Carnator.Bank.Budget": "budget_gb" };
// node -> widget -> the setting with its first value
const FIRST = {
  CarnatorReuse: {
    pace: "Carnator.Node.Pace",
    noise: "Carnator.Node.Noise",
    remember: "Carnator.Node.Remember",
  },
  CarnatorBankLoader: {
    name: "Carnator.Bank.Name",
    budget_gb: "Carnator.Bank.Budget",
    policy: "Carnator.Node.Remember",
  },
};
const TYPING = 500; // milliseconds without a change before it is sent
let waiting;

const value = (id) => app.extensionManager.setting.get(id);

async function send() {
  const wanted = Object.fromEntries(Object.entries(SERVER).map(([id, name]) => [name, value(id)]));
  try {
    const there = await ask("settings");
    if (Object.entries(wanted).some(([name, one]) => there[name] !== one)) await change("settings", wanted);
  } catch (error) {
    const words = await loadWords();
    const detail = error instanceof Refused ? error.message : words.settings_away;
    app.extensionManager.toast.add({ severity: "warn", summary: "Carnator", detail, life: 8000 });
  }
}

function changed(now, before) {
  if (before === undefined) return; // the host tells every value once as it starts
  clearTimeout(waiting);
  waiting = setTimeout(send, TYPING);
}

const choices = (...values) => values.map((one) => ({ text: one, value: one }));

app.registerExtension({
  name: "Carnator.Settings",

  settings: [
    {
      id: "Carnator.Bank.Name",
      sortOrder: 50,
      category: ["Carnator", "CarnatorBank", "Name"],
      name: "Bank",
      tooltip: "Used where a workflow names no bank.",
      type: "text",
      defaultValue: "default",
      onChange: changed,
    },
    {
      id: "Carnator.Bank.Budget",
      sortOrder: 40,
      category: ["Carnator", "CarnatorBank", "Budget"],
      name: "Budget (GB)",
      tooltip: "When it is full, the least useful renders leave first.",
      type: "number",
      defaultValue: 20,
      attrs: { min: 0.1, max: 10000, step: 1, maxFractionDigits: 1 },
      onChange: changed,
    },
    {
      id: "Carnator.Node.Pace",
      sortOrder: 30,
      category: ["Carnator", "CarnatorNode", "Pace"],
      name: "Pace",
      tooltip: "How readily steps are forecast instead of computed.",
      type: "combo",
      options: choices("careful", "balanced", "fast"),
      defaultValue: "balanced",
    },
    {
      id: "Carnator.Node.Noise",
      sortOrder: 20,
      category: ["Carnator", "CarnatorNode", "Noise"],
      name: "Noise",
      tooltip: "Whether a hit may take over a remembered render's seed.",
      type: "combo",
      options: choices("any seed (fastest)", "my seed only"),
      defaultValue: "any seed (fastest)",
    },
    {
      id: "Carnator.Node.Remember",
      sortOrder: 10,
      category: ["Carnator", "CarnatorNode", "Remember"],
      name: "Remember new renders",
      tooltip: "Whether new nodes add renders to the bank.",
      type: "boolean",
      defaultValue: true,
    },
  ],

  async setup() {
    if (await available()) await send();
  },

  // Before a workflow's own values are put in, which then stay.
  nodeCreated(node) {
    for (const [name, id] of Object.entries(FIRST[node.comfyClass] ?? {})) {
      const widget = node.widgets?.find((one) => one.name === name);
      if (!widget) continue;
      const first = value(id);
      widget.value = name === "policy" ? (first ? "read and remember" : "read only") : first;
    }
  },
});
