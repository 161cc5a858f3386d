// Downloads: every table as CSV, every figure as SVG, made in the browser from what is shown.
function offer(holder, label, name, make, type) {
  const button = element("button", { type: "button", className: "download", ariaLabel: `Download ${name} as ${label}` }, label);
  button.addEventListener("click", () => {
    const link = element("a", { download: name, href: URL.createObjectURL(new Blob([make()], { type })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  holder.append(button);
}

function asCsv(table) {
  const columns = [...table.tHead.rows[0].cells].map((cell, i) => ({
    heading: cell.querySelector("span").textContent,
    detail: (cell.querySelector("small") || {}).textContent || "detail",
    detailed: [...table.tBodies[0].rows].some((row) => row.cells[i].querySelector("small")),
  }));
  // A spreadsheet takes such a text for a formula and computes it.
  const plain = (text) => /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
  const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const line = (texts) => texts.map(plain).map(quoted).join(",") + "\r\n";
  const head = columns.flatMap((c) => c.detailed ? [c.heading, `${c.heading} (${c.detail})`] : [c.heading]);
  const body = [...table.tBodies[0].rows].map((row) => line(columns.flatMap((c, i) => {
    const cell = row.cells[i], text = cell.dataset.v ?? cell.querySelector("span").textContent;
    return c.detailed ? [text, (cell.querySelector("small") || {}).textContent || ""] : [text];
  })));
  return line(head) + body.join("");
}

function asSvg(svg) {
  // Colours and widths come from the page's style sheet: a file of its own takes them along.
  const copy = svg.cloneNode(true), named = getComputedStyle(svg);
  const parts = [svg, ...all("*", svg)], copies = [copy, ...all("*", copy)];
  const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "opacity", "font-size", "font-weight", "visibility"];
  parts.forEach((part, i) => {
    const style = getComputedStyle(part);
    copies[i].setAttribute("style", kept.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  copy.style.fontFamily = named.fontFamily;
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

function useDownloads() {
  for (const holder of all(".table")) {
    const table = () => holder.querySelector("table");
    const bar = element("div", { className: "downloads" });
    offer(bar, "CSV", `${holder.dataset.table}.csv`, () => "\ufeff" + asCsv(table()), "text/csv");
    holder.append(bar);
  }
  for (const figure of all("figure")) {
    const svg = figure.querySelector("svg");
    if (svg) offer(figure, "SVG", `${figure.dataset.figure}.svg`, () => asSvg(svg), "image/svg+xml");
  }
}
