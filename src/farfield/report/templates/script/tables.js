// Tables: drawn again for a switch, sorted by any column.
function drawTable(holder, grid) {
  const box = holder.querySelector(".scroll");
  box.setAttribute("aria-label", grid.title);
  box.classList.toggle("many", grid.columns.length > 14);
  const head = grid.columns.map(([heading, detail = "", text = 0, term = ""]) => {
    const cell = element("th", { scope: "col", className: text ? "text" : "" }, element("span", {}, heading));
    if (term) cell.append(element("button", { type: "button", className: "why", popovertarget: "term-" + term, ariaLabel: `What is ${heading}?` }, "?"));
    if (detail) cell.append(element("small", {}, detail));
    return cell;
  });
  const rows = grid.rows.map((cells) => element("tr", {}, ...cells.map(([text, detail = "", tone = "", value = null], i) => {
    const words = grid.columns[i][2] ? "text " : "";
    const cell = i ? element("td", { className: (words + tone).trim() }) : element("th", { scope: "row", className: "text" });
    if (value !== null) cell.dataset.v = value;
    cell.append(element("span", {}, text));
    if (detail) cell.append(element("small", {}, detail));
    return cell;
  })));
  const table = element("table", {}, element("caption", {}, grid.title),
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  box.replaceChildren(table);
  holder.querySelector(".notes").replaceChildren(...grid.notes.map((note) => element("li", {}, ...explained(note))));
  makeSortable(table);
}

function makeSortable(table) {
  all("thead th", table).forEach((cell, column) => {
    const span = cell.querySelector("span");
    const button = element("button", { type: "button", className: "sort" }, ...span.childNodes);
    span.replaceChildren(button);
    button.addEventListener("click", () => sortBy(table, column, cell));
  });
}

function sortBy(table, column, cell) {
  const before = cell.getAttribute("aria-sort");
  // Numbers start with the largest, words with the first.
  const words = cell.classList.contains("text");
  const descending = before ? before === "ascending" : !words;
  all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
  cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ row, place, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    // What has no value stays at the end, whichever way the others are sorted.
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
    const order = typeof a.key === "number" && typeof b.key === "number" ? a.key - b.key : String(a.key).localeCompare(String(b.key), "en", { numeric: true });
    return (descending ? -order : order) || a.place - b.place;
  });
  body.append(...rows.map(({ row }) => row));
  say(`sorted by ${cell.querySelector("span").textContent}, ${cell.getAttribute("aria-sort")}`);
}

function sortKey(cell) {
  if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
  const text = cell.querySelector("span").textContent;
  if (text === "–" || text === "not finite") return null;
  const number = Number(text.replace("−", "-").replaceAll(",", "").replace("< ", ""));
  return text.trim() !== "" && Number.isFinite(number) ? number : text;
}

function say(text) {
  document.getElementById("said").textContent = text;
}
