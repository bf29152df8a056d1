import { recall, remember, urlOf } from "./api.js";
import { Chat } from "./chat.js";
import { by, copyOnClick, serviceIsShown, showService } from "./dom.js";
import { Status } from "./status.js";

const FIELDS = ["system", "temperature", "max-tokens", "tools"];
const EXAMPLE_TOOLS = `[{"type": "function", "function": {"name": "get_weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;

const status = new Status();
const chat = new Chat(status);
const prompt = by("prompt");

/** The options for a request. Throws Error with a message for the user. */
function options() {
  const tools = by("tools").value.trim();
  const number = (id) => (by(id).value === "" ? undefined : Number(by(id).value));
  return {
    system: by("system").value.trim(),
    temperature: number("temperature"),
    maxTokens: number("max-tokens"),
    tools: tools ? parsedTools(tools) : undefined,
  };
}

function parsedTools(text) {
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools)) return tools;
  } catch {
    // the same message
  }
  throw new Error("This is not a list in JSON. For example: " + EXAMPLE_TOOLS);
}

function optionsOrShow() {
  by("tools-note").textContent = "";
  try {
    return options();
  } catch (error) {
    by("tools-note").textContent = error.message;
    by("options").open = true;
    by("tools").focus();
    return null;
  }
}

function send(event) {
  event?.preventDefault();
  const text = prompt.value.trim();
  if (!text || by("send").hidden) return;
  const given = optionsOrShow();
  if (!given) return;
  prompt.value = "";
  fit();
  chat.send([{ role: "user", content: text }], given);
}

/** Grow the field with its text, up to the limit of the style sheet. */
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function curl() {
  const body = { model: status.models[0]?.id ?? "MODEL", messages: [{ role: "user", content: "Hi" }] };
  const lines = [`curl ${urlOf("v1/chat/completions")}`, "-H 'Content-Type: application/json'"];
  if (!by("key-form").hidden) lines.push('-H "Authorization: Bearer $API_KEY"');
  lines.push(`-d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

chat.options = () => optionsOrShow() ?? {};
by("composer").addEventListener("submit", send);
by("stop").addEventListener("click", () => {
  chat.stop();
  prompt.focus();
});
by("clear").addEventListener("click", () => {
  chat.clear();
  prompt.focus();
});
by("retry").addEventListener("click", () => {
  const given = optionsOrShow();
  if (given) chat.retry(given);
});
prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") chat.stop();
});
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = by("key").value.trim();
  by("key").value = "";
  status.setKey(key);
});
by("state").addEventListener("click", () => showService(!serviceIsShown()));
status.addEventListener("models", () => (by("curl").textContent = curl()));
for (const id of FIELDS) {
  by(id).value = recall(id) ?? "";
  by(id).addEventListener("change", () => remember(id, by(id).value));
}
by("tools").placeholder = EXAMPLE_TOOLS;
by("base-url").textContent = urlOf("v1");
copyOnClick(by("copy-url"), () => urlOf("v1"));
copyOnClick(by("copy-curl"), curl);
addEventListener("pagehide", () => chat.leave());
showService(serviceIsShown());
chat.restore();
status.start();
