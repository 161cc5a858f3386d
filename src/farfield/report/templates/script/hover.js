// Curves: the values at the round that a reader points at, by pointer, by touch and by keyboard.
const tip = document.getElementById("tip");
const SHOWN = 9;

function useHover(figure) {
  const of = data.figures[figure.dataset.figure];
  const svg = figure.querySelector("svg");
  if (!of || !svg) return;
  const [left, right, top, bottom] = of.box;
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    svg.append(made);
    return made;
  };
  const line = make("line", { y1: top, y2: bottom, class: "cursor", visibility: "hidden" });
  const dot = make("circle", { r: 4.5, class: "cursor-dot", visibility: "hidden" });
  const xOf = (value) => left + (value - of.x[0]) / (of.x[1] - of.x[0]) * (right - left);
  const scaled = (value) => of.log ? Math.log10(Math.max(value, of.y[0] / 1000)) : value;
  const yOf = (value) => bottom - (scaled(value) - scaled(of.y[0])) / (scaled(of.y[1]) - scaled(of.y[0])) * (bottom - top);
  const steps = [...new Set(of.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  let step = steps.length - 1, series = 0;

  function at(x) {
    // Each curve at its own point that is nearest to x, the best first.
    return of.series.map((s, index) => {
      const place = s.x.reduce((best, value, i) => Math.abs(value - x) < Math.abs(s.x[best] - x) ? i : best, 0);
      return { index, name: s.name, style: s.style, x: s.x[place], y: s.y[place] };
    }).filter((p) => Number.isFinite(p.y)).sort((a, b) => b.y - a.y);
  }

  function show(x, chosen, clientX, clientY) {
    const points = at(x);
    const nearest = points.find((p) => p.index === chosen) || points[0];
    if (!nearest) return;
    series = nearest.index;
    const place = points.indexOf(nearest);
    const first = Math.max(0, Math.min(place - Math.floor(SHOWN / 2), points.length - SHOWN));
    const rows = points.slice(first, first + SHOWN).map((p) => element("tr", { className: p === nearest ? "chosen" : "" },
      element("th", { className: "series-" + colourOf(p.style) }, p.name), element("td", {}, format(p.y, of.decimals))));
    if (points.length > SHOWN) rows.push(element("tr", {}, element("td", { colSpan: 2 }, `${SHOWN} of ${points.length} shown`)));
    const unit = of.unit === "round" ? `round ${count(nearest.x)}` : `${count(nearest.x)} ${of.unit}`;
    tip.replaceChildren(element("b", {}, unit), element("table", {}, ...rows));
    tip.hidden = false;
    const px = xOf(nearest.x), py = yOf(nearest.y);
    for (const name of ["x1", "x2"]) line.setAttribute(name, px);
    dot.setAttribute("cx", px);
    dot.setAttribute("cy", py);
    dot.setAttribute("style", `fill:var(--series-${colourOf(nearest.style)})`);
    for (const part of [line, dot]) part.setAttribute("visibility", "visible");
    place_tip(clientX, clientY);
    return `${nearest.name}: ${format(nearest.y, of.decimals)}, ${unit}`;
  }

  function inDrawing(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const x = of.x[0] + (point.x - left) / (right - left) * (of.x[1] - of.x[0]);
    return { x: Math.max(of.x[0], Math.min(of.x[1], x)), y: point.y };
  }

  function point(event) {
    const { x, y } = inDrawing(event);
    const points = at(x);
    const nearest = points.reduce((best, p) => Math.abs(yOf(p.y) - y) < Math.abs(yOf(best.y) - y) ? p : best, points[0]);
    if (nearest) show(x, nearest.index, event.clientX, event.clientY);
  }

  function hide() {
    tip.hidden = true;
    for (const part of [line, dot]) part.setAttribute("visibility", "hidden");
  }

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hide);
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1 }, others = { ArrowUp: -1, ArrowDown: 1 };
    if (event.key === "Escape") return hide();
    if (event.key in moves) step = Math.max(0, Math.min(steps.length - 1, step + moves[event.key]));
    else if (event.key in others) {
      const points = at(steps[step]);
      const place = points.findIndex((p) => p.index === series);
      series = points[(place + others[event.key] + points.length) % points.length].index;
    } else if (event.key === "Home") step = 0;
    else if (event.key === "End") step = steps.length - 1;
    else return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    const said = show(steps[step], series, box.left + box.width / 3, box.top + 20);
    if (said) say(said);
  });
}

function place_tip(x, y) {
  const box = tip.getBoundingClientRect(), room = document.documentElement.clientWidth;
  const left = x + 16 + box.width > room ? x - 16 - box.width : x + 16;
  tip.style.left = Math.max(4, Math.min(left, room - box.width - 4)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 12, innerHeight - box.height - 4)) + "px";
}

function colourOf(style) {
  return style === 0 ? 0 : (style - 1) % 6 + 1;
}

function format(value, decimals) {
  const text = value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return text.replace("-", "−");
}

function count(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}
