// Requests to the server that sent this page.
const BASE = new URL(".", location.href);
const TIMEOUT_MS = 8000;

export const urlOf = (path) => new URL(path, BASE).href;

// The key and the conversation are kept until the tab closes, or only in memory where storage is blocked.
const memory = new Map();

export function recall(name) {
  try {
    return sessionStorage.getItem(`kvasir ${BASE.pathname} ${name}`);
  } catch {
    return memory.get(name) ?? null;
  }
}

export function remember(name, value) {
  try {
    sessionStorage.setItem(`kvasir ${BASE.pathname} ${name}`, value);
  } catch {
    memory.set(name, value);
  }
}

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  const key = recall("key");
  // fetch takes characters below 256 only; the server reads the bytes as UTF-8.
  if (key) more.Authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}`;
  return more;
}

export async function get(path) {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(urlOf(path), { headers: headers({ Accept: "application/json" }), cache: "no-store", signal });
  return { status: answer.status, body: await answer.json().catch(() => ({})) };
}

/** The objects of a streamed answer, until [DONE]. Throws ApiError. */
export async function* stream(path, body, signal) {
  const answer = await fetch(urlOf(path), {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.ok) {
    const error = (await answer.json().catch(() => ({}))).error;
    throw new ApiError(error?.message ?? `The server answered with status ${answer.status}`, answer.status);
  }
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const part = JSON.parse(data);
    if (part.error) throw new ApiError(part.error.message ?? "The server reported an error", 0);
    yield part;
  }
  throw new ApiError("The connection closed before the answer was complete", 0);
}

async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
