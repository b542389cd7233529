"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = data.names;
  const PAGE = 100;
  const columns = { started: 0, trial: 1, bed: 2, outcome: 3, ttr: 4, duration: 5, night: 6 };
  const state = { sort: "started", descending: true, page: 0 };
  const byId = (id) => document.getElementById(id);
  const filters = ["outcome", "trial", "bed"].map((name) => [name, byId("filter-" + name)]);
  const search = byId("filter-text");
  const recorded = byId("filter-recorded");

  const named = (row, column) => names[column][row[columns[column]]];
  const seconds = (value) => value === null ? "" : value < 0.01 ? (value * 1000).toFixed(1) + " ms"
    : value < 1 ? value.toPrecision(2) + " s" : value < 60 ? value.toFixed(1) + " s"
    : Math.floor(Math.round(value) / 60) + " min " + String(Math.round(value) % 60).padStart(2, "0") + " s";
  const value = (row, column) => column in names ? named(row, column) : row[columns[column]];
  const texts = data.rows.map((row) =>
    [row[7], row[0], named(row, "trial"), named(row, "bed"), named(row, "outcome"), named(row, "night")].join(" ").toLowerCase());

  /* A value that is not known comes last in both directions. */
  const compare = (first, second) => {
    const a = value(first, state.sort), b = value(second, state.sort);
    if (a === null || a === "") return b === null || b === "" ? 0 : 1;
    if (b === null || b === "") return -1;
    return (a < b ? -1 : a > b ? 1 : 0) * (state.descending ? -1 : 1);
  };

  const matching = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = filters.map(([name, element]) => [name, element.value]).filter(([, choice]) => choice !== "");
    return data.rows.filter((row, index) => words.every((word) => texts[index].includes(word))
      && chosen.every(([name, choice]) => named(row, name) === choice) && (!recorded.checked || row[10])).sort(compare);
  };

  const cell = (parent, text, className) => {
    const element = parent.appendChild(document.createElement("td"));
    element.textContent = text;
    if (className) element.className = className;
    return element;
  };

  const draw = (row) => {
    const line = document.createElement("tr");
    const night = named(row, "night");
    const address = names.folder[row[8]] + encodeURIComponent(row[7]) + "/";
    cell(line, row[0]);
    const badge = cell(line, "").appendChild(document.createElement("span"));
    badge.className = "badge " + named(row, "outcome");
    badge.textContent = named(row, "outcome");
    const link = document.createElement("a");
    link.href = address + (row[9] ? "report/index.html" : "");
    link.textContent = named(row, "trial");
    link.title = row[7];
    cell(line, "").append(link);
    cell(line, named(row, "bed"));
    cell(line, seconds(row[4]), "n").dataset.label = "time to recover";
    cell(line, seconds(row[5]), "n").dataset.label = "duration";
    cell(line, night ? night.slice(21) : "");
    return line;
  };

  const show = () => {
    const rows = matching();
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    byId("rows").replaceChildren(...rows.slice(state.page * PAGE, (state.page + 1) * PAGE).map(draw));
    byId("count").textContent = rows.length.toLocaleString("en") + " of " + data.rows.length.toLocaleString("en") + " runs";
    byId("page").textContent = "page " + (state.page + 1) + " of " + pages;
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page === pages - 1;
    for (const button of document.querySelectorAll("button[data-sort]")) {
      const order = button.dataset.sort !== state.sort ? "none" : state.descending ? "descending" : "ascending";
      button.closest("th").setAttribute("aria-sort", order);
    }
  };

  for (const [name, element] of filters) {
    for (const choice of [...new Set(data.rows.map((row) => named(row, name)))].sort()) element.add(new Option(choice, choice));
    element.addEventListener("change", () => { state.page = 0; show(); });
  }
  search.addEventListener("input", () => { state.page = 0; show(); });
  recorded.addEventListener("change", () => { state.page = 0; show(); });
  byId("previous").addEventListener("click", () => { state.page -= 1; show(); });
  byId("next").addEventListener("click", () => { state.page += 1; show(); });
  for (const button of document.querySelectorAll("button[data-sort]")) button.addEventListener("click", () => {
    const column = button.dataset.sort;
    state.descending = column === state.sort ? !state.descending : ["started", "ttr", "duration"].includes(column);
    state.sort = column;
    show();
  });
  byId("controls").hidden = false;
  show();
})();
