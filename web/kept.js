// What nodes showed last, so that it is there again after a change of tabs, an undo or a reload of the page. It stays in
// this browser tab: a saved workflow carries no more than each node's mark.

const PLACE = "carnator.results";
const ROOM = 1_000_000; // characters; the page's own drafts need the rest
const PROPERTY = "carnator_id";

/** A node's own mark, made once and saved with the workflow; the server sends it along. */
export function markOf(node) {
  return (node.properties[PROPERTY] ??= crypto.randomUUID?.() ?? String(Math.random()).slice(2));
}

/** A copied node came with the mark of the one it was copied from. */
export function markAnew(node) {
  delete node.properties[PROPERTY];
  return markOf(node);
}

let results;

function all() {
  if (results) return results;
  try {
    results = new Map(JSON.parse(sessionStorage.getItem(PLACE) ?? "[]"));
  } catch {
    results = new Map();
  }
  return results;
}

export function recall(mark) {
  return all().get(mark);
}

/** result: what the server sent; undefined forgets. The oldest make room for the newest. */
export function keep(mark, result) {
  if (!result && !all().has(mark)) return;
  all().delete(mark);
  if (result) all().set(mark, result);
  let room = ROOM;
  const written = [];
  for (const entry of [...all()].reverse()) {
    room -= JSON.stringify(entry).length;
    if (room < 0) all().delete(entry[0]);
    else written.unshift(entry);
  }
  try {
    sessionStorage.setItem(PLACE, JSON.stringify(written));
  } catch {
    sessionStorage.removeItem(PLACE); // the browser has no room: it is then kept until the page is left
  }
}
