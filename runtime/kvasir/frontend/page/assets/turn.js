// One message of the conversation on the screen.
import { copyOnClick, make } from "./dom.js";
import { Markdown } from "./markdown.js";

const WHO = { user: "You", assistant: "Model", tool: "Result of the tool" };

export class Turn {
  #reasoning = "";
  #content = "";

  constructor(message) {
    this.message = message;
    this.thoughts = make("div", { class: "thoughts" });
    this.thinking = make("summary", {}, "Thinking");
    this.reasoning = make("details", { class: "reasoning", hidden: true }, this.thinking, this.thoughts);
    this.content = make("div", { class: "content" });
    this.calls = make("div", { class: "calls" });
    this.note = make("p", { class: "note" });
    this.copy = make("button", { type: "button", class: "quiet", "aria-label": "Copy the message", hidden: true }, "Copy");
    copyOnClick(this.copy, () => this.message.content);
    const foot = make("div", { class: "foot" }, this.note, this.copy);
    const name = make("h2", { class: "who" }, WHO[message.role]);
    this.element = make("article", { class: message.role }, name, this.reasoning, this.content, this.calls, foot);
    this.markdown = message.role === "assistant" ? new Markdown(this.content) : null;
    this.show();
  }

  /** Show what the message has gained since the last call. */
  show() {
    const { content = "", reasoning = "", seconds, tool_calls = [], note = "", failed = false } = this.message;
    this.reasoning.hidden = !reasoning;
    this.thoughts.append(reasoning.slice(this.#reasoning.length));
    this.#reasoning = reasoning;
    this.thinking.textContent = seconds === undefined ? "Thinking…" : `Thought for ${seconds.toFixed(1)} s`;
    const added = content.slice(this.#content.length);
    this.#content = content;
    if (this.markdown) this.markdown.write(added);
    else this.content.append(added);
    this.calls.hidden = !tool_calls.length;
    while (this.calls.children.length < tool_calls.length) this.calls.append(emptyCall());
    tool_calls.forEach((call, index) => showCall(this.calls.children[index], call));
    this.note.textContent = note;
    this.note.classList.toggle("failed", failed);
    this.copy.hidden = !content || this.message.role !== "assistant";
  }
}

function emptyCall() {
  return make("section", { class: "call", "aria-label": "Tool call" }, make("strong"), make("pre", { tabindex: "0" }));
}

function showCall(shown, call) {
  const [name, given] = shown.children;
  name.textContent = `Call of ${call.function.name}`;
  given.textContent = pretty(call.function.arguments);
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it is still arriving
  }
}

/** A form for the results of calls; `send` gets the messages with them. */
export function resultForm(calls, send) {
  const fields = calls.map((call) =>
    make("label", {}, `Result of ${call.function.name}`, make("textarea", { rows: "2", required: true, spellcheck: "false" })),
  );
  const form = make("form", { class: "results" }, ...fields, make("button", { type: "submit" }, "Send results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const texts = fields.map((field) => field.querySelector("textarea").value);
    form.remove();
    send(calls.map((call, index) => ({ role: "tool", tool_call_id: call.id, content: texts[index] })));
  });
  return form;
}
