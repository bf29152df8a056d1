// Code blocks, lists, headings, bold, italic and inline code. All other text is shown as it is, links included.
import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^(#{1,6})\s+(.*)/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)/;
const SPAN = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)\*\*|\*(?=\S)([^*\n]+?)\*/g;
const MAX_DEPTH = 4;

/** Renders text that arrives in pieces: a finished line is rendered once. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.rest = ""; // the last line, as far as it has come
    this.block = null;
    this.fence = "";
    this.undo = () => {};
  }

  write(text) {
    this.undo();
    this.undo = () => {};
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.place(line);
    if (this.rest) {
      const { block, fence } = this;
      const node = this.place(this.rest);
      this.undo = () => {
        node.remove();
        Object.assign(this, { block, fence });
      };
    }
  }

  /** Add a line and return the outermost new node. */
  place(line) {
    const fence = FENCE.exec(line);
    if (this.fence) {
      if (fence && fence[1].startsWith(this.fence) && !fence[2].trim()) {
        this.fence = "";
        this.block = null;
        return document.createTextNode("");
      }
      return append(this.block, document.createTextNode(`${line}\n`));
    }
    if (fence) {
      this.fence = fence[1];
      this.block = make("code");
      return append(this.element, make("pre", { tabindex: "0" }, this.block));
    }
    if (!line.trim()) {
      this.block = null;
      return document.createTextNode("");
    }
    const heading = HEADING.exec(line);
    if (heading) {
      this.block = null;
      return append(this.element, make("p", { class: "heading" }, ...inline(heading[2])));
    }
    const item = ITEM.exec(line);
    if (item) return this.placeItem(item);
    if (this.block?.tagName === "P") return append(this.block, make("span", {}, "\n", ...inline(line)));
    this.block = make("p", {}, make("span", {}, ...inline(line)));
    return append(this.element, this.block);
  }

  placeItem([, indent, number, text]) {
    const depth = Math.min(MAX_DEPTH, Math.floor(indent.replaceAll("\t", "    ").length / 2));
    const entry = make("li", { "data-depth": depth, value: number }, ...inline(text));
    const tag = number ? "OL" : "UL";
    if (this.block?.tagName === tag) return append(this.block, entry);
    this.block = make(tag, {}, entry);
    return append(this.element, this.block);
  }
}

function append(parent, node) {
  parent.append(node);
  return node;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(SPAN)) {
    nodes.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    if (match[2] !== undefined) nodes.push(make("code", {}, match[2]));
    else if (match[3] !== undefined) nodes.push(make("strong", {}, match[3]));
    else nodes.push(make("em", {}, match[4]));
  }
  nodes.push(text.slice(end));
  return nodes;
}
