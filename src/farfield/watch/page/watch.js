// Asks for the state again and again and shows it. All text goes in as text, never as markup.
"use strict";

const EVERY = 1000, WHEN_ENDED = 5000, AFTER_LOSS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
let paused = false, timer = 0;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : value.toPrecision(4);
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleString();
}

function tone(index) {
  return `curve s${index % 7} d${Math.floor(index / 7) % 4}`;
}

// Numbers between two ends that read well: 1, 2 or 5 times a power of ten apart.
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found.map((value) => Number(value.toPrecision(10)));
}

function chart(curves, name) {
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) return element("p", "No figure yet.", "soft");
  const wide = 420, high = 240, left = 56, right = 12, top = 10, bottom = 36;
  const last = Math.max(2, ...points.map((p) => p[0]));
  let low = Math.min(...points.map((p) => p[1])), most = Math.max(...points.map((p) => p[1]));
  if (most - low < 1e-9) { low -= Math.abs(low) * 0.05 + 1e-3; most += Math.abs(most) * 0.05 + 1e-3; }
  const x = (round) => left + (wide - left - right) * (round - 1) / (last - 1);
  const y = (value) => high - bottom - (high - top - bottom) * (value - low) / (most - low);
  const ends = curves.filter((c) => c.points.length).map((c) => `${c.label} ${figure(c.points[c.points.length - 1][1])}`);
  const picture = drawn("svg", {viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${name}, last: ${ends.join("; ")}`});
  for (const value of ticks(low, most, 4)) {
    picture.append(drawn("line", {class: "grid", x1: left, x2: wide - right, y1: y(value), y2: y(value)}));
    const label = drawn("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"});
    label.textContent = Math.abs(value) >= 10000 ? value.toExponential(1) : value;
    picture.append(label);
  }
  for (const round of [1, ...ticks(1, last, 4).filter((n) => Number.isInteger(n) && n > 1 && n <= last)]) {
    const label = drawn("text", {x: x(round), y: high - bottom + 16, "text-anchor": "middle"});
    label.textContent = round;
    picture.append(label);
  }
  const below = drawn("text", {x: (left + wide - right) / 2, y: high - 4, "text-anchor": "middle"});
  below.textContent = "round";
  picture.append(below);
  curves.forEach((curve, index) => {
    if (curve.points.length === 1) {
      const [round, value] = curve.points[0];
      picture.append(drawn("circle", {class: tone(index), cx: x(round), cy: y(value), r: 3}));
    } else if (curve.points.length) {
      const path = curve.points.map(([round, value], i) => `${i ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`);
      const line = drawn("path", {class: tone(index), d: path.join("")});
      const title = drawn("title", {});
      title.textContent = curve.label;
      line.append(title);
      picture.append(line);
    }
  });
  return picture;
}

function row(head, ...cells) {
  const made = element("tr"), first = element("th", head);
  first.scope = "row";
  made.append(first, ...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
  return made;
}

function table(id, rows, validation) {
  at(id).hidden = !rows.length;
  at(id).querySelector("tbody").replaceChildren(...rows);
  at(`${id}-validation`).textContent = validation;
}

function list(id, items) {
  at(id).hidden = !items.length;
  at(id).querySelector("ul").replaceChildren(...items);
}

function event(entry) {
  const item = element("li"), count = entry.count > 1 ? ` (${entry.count} times)` : "";
  const round = entry.round ? ` · round ${entry.round}` : "", where = entry.where ? ` · ${entry.where}` : "";
  const time = entry.time ? `${clock(entry.time)} · ` : "";
  item.append(element("span", time, "soft"), element("b", entry.kind), document.createTextNode(`: ${entry.text}${count}`),
    element("span", `${where}${round}`, "soft"));
  return item;
}

function showCurves(state) {
  const curves = state.curves || {loss: [], validation: []};
  at("curves").hidden = !(state.curves && (curves.loss.some((c) => c.points.length) || curves.validation.some((c) => c.points.length)));
  const mean = state.kind === "bench" ? ", mean over runs" : "";
  at("validation-title").textContent = `Source validation: ${state.metric || ""}${mean}`;
  at("loss-title").textContent = `Training loss${mean}`;
  at("validation").replaceChildren(chart(curves.validation, `Source validation, ${state.metric}`));
  at("loss").replaceChildren(chart(curves.loss, "Training loss"));
  at("legend").replaceChildren(...(curves.loss.length > 1 ? curves.loss : []).map((curve, index) => {
    const item = element("li"), mark = drawn("svg", {viewBox: "0 0 28 10", "aria-hidden": "true"});
    mark.append(drawn("path", {class: tone(index), d: "M0 5L28 5"}));
    item.append(mark, document.createTextNode(curve.label));
    return item;
  }));
}

function show(state) {
  const validation = `Validation (${state.metric || ""})`;
  at("title").textContent = state.title || "farfield watch";
  document.title = `${state.status}: ${state.title || state.folder}`;
  at("folder").textContent = state.folder;
  if (at("headline").textContent !== state.headline) at("headline").textContent = state.headline;
  at("report").hidden = !state.report;
  at("note").hidden = !state.note;
  at("note").textContent = state.note || "";
  at("problems").hidden = !(state.problems || []).length;
  at("problems").replaceChildren(...(state.problems || []).map((text) => element("li", text)));
  at("progress").hidden = !(state.rounds && state.rounds.total);
  if (state.rounds && state.rounds.total) {
    at("bar").max = state.rounds.total;
    at("bar").value = state.rounds.done;
    at("rounds").textContent = `${state.rounds.done} of ${state.rounds.total} rounds`;
    at("left").textContent = state.left ? ` · about ${duration(state.left)} left` : "";
    at("changed").textContent = state.changed ? ` · last record ${clock(state.changed)}` : "";
  }
  showCurves(state);
  table("methods", (state.methods || []).map((m) =>
    row(m.label, `${m.done}/${m.total}`, `${m.runs}/${m.of}`, m.failed, figure(m.validation), figure(m.loss))), validation);
  table("running", (state.running || []).map((r) =>
    row(r.name, `${r.round}/${r.rounds}`, figure(r.validation), figure(r.loss))), validation);
  table("replies", (state.replies || []).map((r) => {
    const missing = r.missing.map((m) => `${m.name}: ${m.why}`).join("; ") || "–";
    return row(r.round, `${r.replied}/${r.asked}`, element("td", r.names.join(", ") || "–", "text"),
      element("td", missing, "text"), figure(r.validation), figure(r.loss));
  }), validation);
  list("sites", (state.sites || []).map((s) => element("li", `${s.name}: ${s.role === "evaluate" ? "only evaluates" : "trains"}`)));
  list("failed", (state.failed || []).map((f) => element("li", `${f.name}: ${f.error}`)));
  list("events", (state.events || []).map(event));
}

async function update() {
  let wait = AFTER_LOSS;
  try {
    const answer = await fetch("state", {cache: "no-cache"});
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const state = await answer.json();
    show(state);
    at("lost").hidden = true;
    wait = state.status === "finished" ? WHEN_ENDED : EVERY;
  } catch (error) {
    at("lost").textContent = "No connection to farfield watch. The page reconnects when farfield watch is started again with the same port.";
    at("lost").hidden = false;
  }
  clearTimeout(timer);
  if (!paused) timer = setTimeout(update, document.hidden ? 4 * wait : wait);
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  clearTimeout(timer);
  at("pause").setAttribute("aria-pressed", String(paused));
  at("pause").textContent = paused ? "Go on with updates" : "Pause updates";
  if (!paused) update();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) { clearTimeout(timer); update(); }
});
update();
