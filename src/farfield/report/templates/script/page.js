// The data of the page, and the few helpers that the other parts share.
const data = JSON.parse(document.getElementById("page-data").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "popovertarget") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A text with each known word as a button that explains it, once per text.
const spelled = new RegExp(
  "(?<![\\w-])(" + Object.keys(data.terms).sort((a, b) => b.length - a.length)
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|") + ")(?![\\w-])", "gi");

function explained(text) {
  const parts = [], seen = new Set();
  let at = 0;
  for (const match of text.matchAll(spelled)) {
    const key = data.terms[match[0].toLowerCase()];
    if (seen.has(key)) continue;
    seen.add(key);
    parts.push(text.slice(at, match.index), element("button", { type: "button", className: "term", popovertarget: "term-" + key }, match[0]));
    at = match.index + match[0].length;
  }
  return [...parts, text.slice(at)];
}
