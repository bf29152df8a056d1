// The conversation: kept for the tab, sent with each message, and continued by streams.
import { ApiError, recall, remember, stream } from "./api.js";
import { by } from "./dom.js";
import { resultForm, Turn } from "./turn.js";

const NEAR_PX = 60;

export class Chat {
  #status;
  #messages = [];
  #running = null; // the AbortController of the answer that is arriving
  #turn = null;
  #frame = 0;
  #log = by("log");

  constructor(status) {
    this.#status = status;
    status.addEventListener("state", () => this.#showWait());
  }

  restore() {
    try {
      this.#messages = JSON.parse(recall("chat") ?? "[]");
    } catch {
      this.#messages = [];
    }
    for (const message of this.#messages) this.#add(message);
    this.#settle();
  }

  /** The page is closed or loaded again: its streams end. */
  leave() {
    if (this.#running) {
      this.stop();
      this.#running = null;
      this.#turn.message.note = "Interrupted when the page was closed";
      this.#drawNow();
      this.#settle();
    }
    this.save();
  }

  save() {
    remember("chat", JSON.stringify(this.#messages));
  }

  clear() {
    this.stop();
    this.#messages = [];
    this.#log.querySelectorAll("article, form").forEach((element) => element.remove());
    this.#settle();
    this.save();
  }

  stop() {
    this.#running?.abort();
  }

  /** Answer the last question again. */
  async retry(options) {
    while (this.#messages.length && !["user", "tool"].includes(this.#messages.at(-1).role)) this.#messages.pop();
    this.#log.querySelectorAll("article, form").forEach((element) => element.remove());
    for (const message of this.#messages) this.#add(message);
    await this.#answer(options);
  }

  async send(messages, options) {
    for (const message of messages) {
      this.#messages.push(message);
      this.#add(message);
    }
    await this.#answer(options);
  }

  async #answer(options) {
    const message = { role: "assistant", content: "", reasoning: "", tool_calls: [] };
    const request = this.#request(options);
    const running = new AbortController();
    this.#running = running;
    this.#messages.push(message);
    this.#turn = this.#add(message);
    this.#status.awaited = true;
    this.#status.ask();
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#settle();
    const clock = new Clock();
    try {
      let usage = null;
      let reason = null;
      for await (const part of stream("v1/chat/completions", request, running.signal)) {
        usage = part.usage ?? usage;
        const [choice] = part.choices;
        reason = choice?.finish_reason ?? reason;
        if (choice && take(message, choice.delta ?? {}, clock)) this.#draw();
      }
      message.note = [clock.summary(usage), reason === "length" ? "stopped at the token limit" : ""]
        .filter(Boolean)
        .join(" · ");
    } catch (error) {
      if (running.signal.aborted) message.note = "Stopped";
      else this.#fail(message, error);
    }
    message.seconds ??= clock.thought;
    if (this.#running !== running) return; // a newer chat
    this.#running = null;
    this.#status.awaited = false;
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#drawNow();
    this.#settle();
    this.save();
  }

  #request({ system, temperature, maxTokens, tools }) {
    const said = this.#messages.filter((each) => each.role !== "assistant" || each.content || each.tool_calls.length);
    const messages = said.map(({ role, content, reasoning, tool_calls, tool_call_id }) => ({
      role,
      content,
      ...(reasoning && { reasoning_content: reasoning }),
      ...(tool_calls?.length && { tool_calls }),
      ...(tool_call_id && { tool_call_id }),
    }));
    return {
      model: this.#status.models[0]?.id,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true },
      ...(temperature !== undefined && { temperature }),
      ...(maxTokens !== undefined && { max_tokens: maxTokens }),
      ...(tools && { tools }),
    };
  }

  #fail(message, error) {
    message.failed = true;
    message.note = error instanceof ApiError ? error.message : "The connection to the server failed";
    if (error.status === 401) this.#status.refused(error.message);
    else this.#status.ask();
  }

  #add(message) {
    const turn = new Turn(message);
    this.#log.append(turn.element);
    return turn;
  }

  #draw() {
    if (document.hidden) return; // no frames come; the end draws everything
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#drawNow();
    });
  }

  #drawNow() {
    const log = this.#log;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
    this.#turn.show();
    this.#showWait();
    if (follows) log.scrollTop = log.scrollHeight;
  }

  #showWait() {
    if (!this.#running) return;
    const { content, reasoning, tool_calls } = this.#turn.message;
    const silent = !content && !reasoning && !tool_calls.length;
    this.#turn.element.classList.toggle("waiting", silent);
    const state = this.#status.usable ? "" : `The service is not ready (${this.#status.text}). The message waits for it.`;
    this.#turn.note.textContent = silent ? state : "";
  }

  /** Show what can be done now. */
  #settle() {
    const busy = this.#running !== null;
    by("welcome").hidden = this.#messages.length > 0;
    by("send").hidden = busy;
    by("stop").hidden = !busy;
    by("retry").hidden = busy || !["assistant", "user"].includes(this.#messages.at(-1)?.role);
    this.#log.setAttribute("aria-busy", String(busy));
    this.#turn?.element.classList.toggle("running", busy);
    if (!busy) this.#turn?.element.classList.remove("waiting");
    const calls = this.#messages.at(-1)?.tool_calls ?? [];
    if (!busy && calls.length && !this.#messages.at(-1).failed) {
      this.#log.append(resultForm(calls, (results) => this.send(results, this.options())));
      this.#log.scrollTop = this.#log.scrollHeight;
    } else {
      this.#log.querySelectorAll("form.results").forEach((form) => form.remove());
    }
  }

  /** Return the options of the next request; replaced by app.js. */
  options = () => ({});
}

/** Add a delta to a message. Returns whether there was something in it. */
function take(message, delta, clock) {
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  const content = delta.content ?? "";
  const calls = delta.tool_calls ?? [];
  if (!reasoning && !content && !calls.length) return false;
  clock.tick(Boolean(reasoning) && !content);
  message.reasoning += reasoning;
  message.content += content;
  if (message.reasoning && message.seconds === undefined && !reasoning) message.seconds = clock.thought;
  for (const { index, id, function: part = {} } of calls) {
    const call = (message.tool_calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
    call.id ??= id;
    call.function.name += part.name ?? "";
    call.function.arguments += part.arguments ?? "";
  }
  return true;
}

class Clock {
  #start = performance.now();
  #first = 0;
  #last = 0;
  thought; // seconds

  tick(thinking) {
    this.#last = performance.now();
    this.#first ||= this.#last;
    if (thinking) this.thought = (this.#last - this.#start) / 1000;
  }

  summary(usage) {
    if (!usage || !this.#first) return "";
    const tokens = usage.completion_tokens;
    const seconds = (this.#last - this.#start) / 1000;
    return [
      `${tokens} ${tokens === 1 ? "token" : "tokens"} in ${seconds.toFixed(2)} s`,
      `${(tokens / seconds).toFixed(0)} per second`,
      `first after ${((this.#first - this.#start) / 1000).toFixed(2)} s`,
    ].join(" · ");
  }
}
