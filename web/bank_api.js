// The bank's routes on the server (nodes/routes).

import { api } from "../../scripts/api.js";

const FILE_TYPE = "application/x-carnator-bank";

/** What the server refused, in its own words. status 404: also where the host has none of the pack's routes. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(body.error ?? `${response.status} ${response.statusText}`, response.status);
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

/** Whether the host has the routes at all. */
export async function available() {
  return (await api.fetchApi("/carnator/settings")).status !== 404;
}

/** Where a thumbnail or an export is. */
export function address(name, query) {
  return api.apiURL(path(name, query));
}
