/** Make an element. Text is never read as HTML. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const by = (id) => document.getElementById(id);

const NARROW = matchMedia("(max-width: 50rem)"); // as in style.css
const SWAPPED = "swapped"; // shows the column of the service on a narrow screen, and hides it on a wide one

export function serviceIsShown() {
  return document.body.classList.contains(SWAPPED) === NARROW.matches;
}

export function showService(shown) {
  document.body.classList.toggle(SWAPPED, shown === NARROW.matches);
  by("state").setAttribute("aria-expanded", String(shown));
}

/** Set the rows of a <dl>. */
export function rows(list, pairs) {
  const text = JSON.stringify(pairs);
  if (list.dataset.rows === text) return; // a changed node would end the user's selection
  list.dataset.rows = text;
  list.replaceChildren(...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
}

export function copyOnClick(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const copied = await copy(text());
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const area = make("textarea", { "aria-hidden": "true" }, text); // without TLS there is no clipboard object
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}
