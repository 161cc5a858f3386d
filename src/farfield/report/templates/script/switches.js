// Switches: the same choice in every place where it is offered.
const choices = {};

function useSwitches() {
  for (const select of all("[data-switch]")) {
    choices[select.dataset.switch] = select.value;
    select.addEventListener("change", () => choose(select.dataset.switch, select.value));
  }
  all(".switches, [data-needs-script]").forEach((part) => { part.hidden = false; });
}

function choose(name, value) {
  choices[name] = value;
  for (const select of all(`[data-switch="${name}"]`)) select.value = value;
  if (name === "site-method") drawTable(document.querySelector('[data-table="sites"]'), data.tables.sites[value]);
  else show();
}

function show() {
  const grid = data.tables.results[`${choices.rule}|${choices.metric}`];
  drawTable(document.querySelector('[data-table="results"]'), grid);
  const option = all('[data-switch="rule"] option').find((o) => o.value === choices.rule);
  const text = document.querySelector('[data-text="rule"]');
  text.replaceChildren(...explained(`${option.textContent}: ${option.dataset.says}`));
  const figures = all("#curves figure[data-figure^='held-out-'], #curves figure[data-figure^='validation-']");
  for (const figure of figures) figure.hidden = figure.dataset.metric !== choices.metric;
  const lacks = document.querySelector('[data-lacks="validation"]');
  lacks.hidden = figures.some((f) => f.dataset.figure === "validation-" + choices.metric);
  say(grid.title);
}
