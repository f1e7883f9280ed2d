// The bank's routes on the server (nodes/routes).

import { api } from "../../scripts/api.js";

const FILE_TYPE = "application/x-carnator-bank";

/** What the server refused, in its own words. */
export class Refused extends Error {}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(body.error ?? `${response.status} ${response.statusText}`);
  return body;
}

function path(name, query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "");
  return `/carnator/${name}?${new URLSearchParams(pairs)}`;
}

/** GET: banks, overview, entries or settings. */
export async function ask(name, query = {}) {
  return answer(await api.fetchApi(path(name, query)));
}

/** POST: pin, remove, forget, verdict or settings. */
export async function change(name, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(await api.fetchApi(`/carnator/${name}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Send an exported file into a bank. */
export async function sendFile(bank, file) {
  const request = { method: "POST", headers: { "Content-Type": FILE_TYPE }, body: file };
  return answer(await api.fetchApi(path("import", { bank }), request));
}

/** Where a thumbnail or an export is. */
export function address(name, query) {
  return api.apiURL(path(name, query));
}
