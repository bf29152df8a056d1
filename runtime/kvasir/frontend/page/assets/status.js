// What is served, by which engines, and their load. Asks the server while the page is visible.
import { get, recall, remember } from "./api.js";
import { by, make, rows, showService } from "./dom.js";

const CALM_MS = 3000;
const CHANGING_MS = 1000;
const FORGET_MS = 10 * 60 * 1000;
const PHASES = ["Starting", "Loading", "Warming", "Ready", "Draining", "Lost"];

export class Status extends EventTarget {
  models = [];
  usable = false;
  text = "Connecting";
  awaited = false; // the user waits for an answer
  #seen = new Map(); // rank → when it was connected last
  #timer = 0;
  #asking = false;
  #again = false;
  #refusedKey; // the server has refused it: not asked again until there is another one

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.#timer) : this.ask()));
    this.ask();
  }

  async ask() {
    clearTimeout(this.#timer);
    if (this.#asking) {
      this.#again = true;
      return;
    }
    this.#asking = true;
    this.#again = false;
    let calm = false;
    try {
      if (!this.models.length && (recall("key") ?? "") !== this.#refusedKey) await this.#askModels();
      const [health, ready, load] = await Promise.all([get("health"), get("health/ready"), get("load")]);
      calm = health.status === 200 && !this.#changes(health.body.engines);
      this.#show(health, ready.body, load.body);
    } catch {
      this.models = []; // the next server may serve another model
      this.#refusedKey = undefined;
      this.#setState("down", "Not reachable", false);
    } finally {
      this.#asking = false;
    }
    if (this.#again) return this.ask();
    if (!document.hidden) this.#timer = setTimeout(() => this.ask(), calm && !this.awaited ? CALM_MS : CHANGING_MS);
  }

  setKey(key) {
    remember("key", key);
    this.models = [];
    this.#refusedKey = undefined;
    this.ask();
  }

  /** The server has refused the key of a request. */
  refused(message) {
    this.models = [];
    this.#askForKey(recall("key") ?? "", message);
  }

  async #askModels() {
    const key = recall("key") ?? "";
    const index = (await get("")).body;
    by("docs-link").hidden = !index.docs;
    const listed = await get("v1/models");
    if (listed.status === 200) {
      this.models = listed.body.data;
      const [model] = this.models;
      by("title").textContent = model.id;
      document.title = `${model.id} · Kvasir`;
      const others = this.models.slice(1).map((each) => each.id);
      rows(by("facts"), [
        ["Name", model.id],
        ...(others.length ? [["Also named", others.join(", ")]] : []),
        ...(model.root === model.id ? [] : [["Source", model.root]]),
        ["Context", `${model.max_model_len.toLocaleString()} tokens`],
        ["Server", `Kvasir ${index.version}`],
      ]);
      by("key-note").textContent = recall("key") ? "Accepted. Kept until you close this tab." : "";
      by("key-form").hidden = !index.api_key_required;
      this.dispatchEvent(new Event("models"));
    } else {
      rows(by("facts"), [["Server", `Kvasir ${index.version}`]]);
      this.#askForKey(key, listed.body.error?.message ?? "");
    }
  }

  #askForKey(key, message) {
    this.#refusedKey = key;
    by("key-form").hidden = false;
    by("key-note").textContent = key ? message : "This service needs an API key.";
    showService(true);
    this.dispatchEvent(new Event("models"));
  }

  #changes(engines) {
    return engines?.some((engine) => !engine.usable);
  }

  #show(health, ready, load) {
    const engines = merged(health.body.engines, load.engines ?? []);
    const now = Date.now();
    for (const engine of engines) this.#seen.set(engine.rank, now);
    for (const [rank, when] of this.#seen) {
      if (now - when > FORGET_MS) this.#seen.delete(rank);
      else if (when !== now) engines.push({ rank, phase: "Not connected" });
    }
    engines.sort((one, other) => one.rank - other.rank);
    const list = by("ranks");
    engines.forEach((engine, index) => {
      const shown = list.children[index] ?? list.appendChild(emptyRank());
      showRank(shown, engine);
    });
    while (list.children.length > engines.length) list.lastElementChild.remove();
    by("no-ranks").hidden = engines.length > 0;
    by("no-ranks").textContent = "None is connected. A message waits until one is.";
    rows(by("load"), [
      ["Requests", `${load.server_load ?? "–"} of ${load.max_live_requests?.toLocaleString() ?? "–"}`],
      ["Engines ready", `${engines.filter((engine) => engine.usable).length} of ${engines.length}`],
    ]);
    this.#setState(...stateOf(health, ready, engines));
  }

  #setState(kind, text, usable) {
    this.usable = usable;
    this.text = text;
    by("state").dataset.kind = kind;
    for (const id of ["state-text", "announced"]) set(by(id), text);
    this.dispatchEvent(new Event("state"));
  }
}

/** [kind, text, usable] */
function stateOf(health, ready, engines) {
  if (health.status === 200) {
    if (ready.status === "unready") return ["changing", sentence(ready.reason), true];
    return ["ready", "Ready", true];
  }
  const starting = engines.filter((engine) => PHASES.indexOf(engine.phase) >= 0);
  starting.sort((one, other) => PHASES.indexOf(other.phase) - PHASES.indexOf(one.phase));
  const [first] = starting;
  if (first?.phase === "Loading" && first.progress?.total) {
    return ["changing", `Loading ${Math.floor((100 * first.progress.done) / first.progress.total)} %`, false];
  }
  if (first) return ["changing", first.phase, false];
  return ["changing", "No engine", false];
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** /health names the phases, to those with a key; /load has the numbers. */
function merged(healthy, loads) {
  const byIncarnation = new Map((healthy ?? []).map((engine) => [engine.incarnation, engine]));
  return loads.map((load) => ({
    ...load,
    phase: load.usable ? "Ready" : "Not ready",
    ...byIncarnation.get(load.incarnation),
  }));
}

function emptyRank() {
  return make(
    "li",
    {},
    make("div", { class: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), make("strong"), make("span")),
    make("progress", { hidden: true }),
    make("p", { class: "note" }),
  );
}

function showRank(shown, engine) {
  const [head, progress, note] = shown.children;
  shown.dataset.kind = engine.usable ? "ready" : engine.phase === "Not connected" ? "down" : "changing";
  set(head.children[1], `Rank ${engine.rank}`);
  set(head.children[2], engine.phase);
  const { done, total } = engine.progress ?? {};
  progress.hidden = !total || engine.phase !== "Loading";
  progress.setAttribute("aria-label", `Loading of rank ${engine.rank}`);
  if (total) Object.assign(progress, { max: total, value: done });
  if (!progress.hidden) set(note, `${gigabytes(done)} of ${gigabytes(total)} loaded`);
  else if (engine.running === null || engine.running === undefined) set(note, "");
  else {
    const cache = engine.kv_cache_usage === null ? "" : ` · KV cache ${Math.round(100 * engine.kv_cache_usage)}\u00a0%`;
    set(note, `${engine.running} running · ${engine.waiting} waiting${cache}`);
  }
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function gigabytes(bytes) {
  return bytes < 1e8 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}
