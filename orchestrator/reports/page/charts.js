"use strict";
// The charts of a collective run by uPlot, and the rows of its table, for the size that the reader chooses.
(() => {
  const data = JSON.parse(document.getElementById("collective-data").textContent);
  const choice = document.getElementById("case-choice");
  const charts = [...document.querySelectorAll("[data-chart]")];
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toLocaleString("en"));
  const label = (bytes) => data.sizes[bytes] || plain(bytes);

  // --- what is shown: a group of cases and a size; of all rows the largest size of the first group
  const chosen = () => {
    if (choice.value !== "all") return choice.value.split(":").map(Number);
    const first = data.cases.filter((entry) => entry.group === 0);
    return [0, Math.max(0, ...first.map((entry) => entry.bytes))];
  };
  // --- rows
  const body = document.querySelector("#cases tbody");
  const columns = document.querySelectorAll("#cases thead tr:last-child th").length;
  const cell = (tag, text, classes) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (classes) made.className = classes;
    return made;
  };
  const rows = () => {
    const whole = choice.value === "all";
    const [group, bytes] = chosen();
    const shown = data.rows.filter((row) => whole || (row.group === group && row.bytes === bytes));
    const made = [];
    let last = -1;
    for (const row of shown) {
      if (row.group !== last) {
        const head = document.createElement("tr");
        const title = cell("th", data.groups[row.group]);
        title.colSpan = columns;
        title.scope = "rowgroup";
        head.append(title);
        made.push(head);
        last = row.group;
      }
      const line = document.createElement("tr");
      row.cells.forEach((text, index) => {
        const wrong = index === row.cells.length - 1 && text !== "0" && text !== "-";
        line.append(cell("td", text, index === 1 ? "" : wrong ? "n bad" : "n"));
      });
      made.push(line);
    }
    body.replaceChildren(...made);
  };

  // --- charts
  const axis = (name, more = {}) => {
    const lines = { stroke: colour("--hair"), width: 1, ...(more.filter ? { filter: more.filter } : {}) };
    const fonts = { labelFont: "12px system-ui, sans-serif", font: "11px system-ui, sans-serif" };
    return { label: name, stroke: colour("--soft"), grid: lines, ticks: lines, ...fonts, ...more };
  };
  const nearest = (plot, series, index) => {
    const values = plot.data[series];
    if (values[index] != null) return index;
    for (let step = 1; step < values.length; step++) {
      if (values[index - step] != null) return index - step;
      if (values[index + step] != null) return index + step;
    }
    return index;
  };
  const decades = (plot, splits) => splits.map((value) => (/^[125]/.test(String(value).replace(/[0.]/g, "")) ? value : null));
  const stroke = (plot, number) => plot.series[number].stroke(plot, number);
  const markers = {
    width: 2, stroke, fill: (plot, number) => (plot.series[number].width ? null : stroke(plot, number)),
    dash: (plot, number) => (plot.series[number].dash ? "dashed" : "solid"),
  };
  const points = (size, number) => ({ points: { show: true, size, fill: colour(`--s${number % 8}`) } });
  // How each kind of a curve looks. A distribution of samples is a staircase: it stays until the next sample.
  const looks = {
    line: () => ({}),
    points: (number) => points(7, number),
    dashed: () => ({ dash: [6, 5], width: 1.2 }),
    limit: () => ({ dash: [2, 3], width: 1.4, stroke: colour("--strike") }),
    steps: () => ({ paths: uPlot.paths.stepped({ align: 1 }) }),
    dots: (number) => ({ width: 0, paths: () => null, points: { show: true, size: 4, width: 0, fill: colour(`--s${number % 8}`) } }),
  };
  const curve = ({ name, kind, number }) => ({
    label: name, stroke: colour(`--s${number % 8}`), width: 2, spanGaps: true, value: (plot, value) => plain(value), points: { show: false },
    ...looks[kind](number),
  });
  const draw = (place, chart) => {
    drawn.get(place)?.destroy();
    drawn.delete(place);
    place.hidden = !chart;
    if (!chart) return;
    const [steepX, steepY] = chart.log;
    const named = chart.ticks || {};
    const sizes = Object.keys(named).map(Number);
    const every = Math.max(1, Math.ceil((sizes.length * 62) / Math.max(1, place.clientWidth - 60)));
    const ticks = {
      splits: () => sizes.filter((_, index) => index % every === 0), values: (plot, splits) => splits.map((size) => named[size]),
      filter: (plot, splits) => splits,
    };
    const show = (value) => named[value] || plain(value);
    const options = {
      width: Math.max(260, place.clientWidth), height: 300,
      scales: { x: { time: false, ...(steepX ? { distr: 3, log: chart.ticks ? 2 : 10 } : {}) }, y: { ...(steepY ? { distr: 3 } : {}), ...(chart.most == null ? {} : { range: [0, chart.most] }) } },
      series: [{ label: chart.x, value: (plot, value) => (value == null ? "–" : show(value)) }, ...chart.curves.map(curve)],
      axes: [axis(chart.x, chart.ticks ? ticks : steepX ? { filter: decades } : {}), axis(chart.y, { size: 62, ...(steepY ? { filter: decades } : {}) })],
      legend: { markers }, cursor: { dataIdx: nearest, drag: { x: true, y: false }, focus: { prox: 24 } }, focus: { alpha: 0.4 },
    };
    const tables = chart.curves.map((entry) => entry.points);
    drawn.set(place, new uPlot(options, tables.length > 1 ? uPlot.join(tables) : tables[0], place));
  };
  const find = (place) => {
    const { chart, index } = place.dataset;
    if (index) return data.bandwidth[Number(index)];
    const [group, bytes] = chosen();
    return data.cases.find((entry) => entry.group === group && entry.bytes === bytes)?.charts.find((entry) => entry.name === chart);
  };
  const render = () => {
    for (const place of charts) draw(place, find(place));
    const [group, bytes] = chosen();
    const what = data.groups.length > 1 ? `${data.groups[group]}, ${label(bytes)}` : label(bytes);
    for (const text of document.querySelectorAll("[data-shown]")) text.textContent = what;
  };

  for (const [number, title] of data.groups.entries()) {
    const group = document.createElement("optgroup");
    group.label = title;
    const sizes = [...new Set(data.rows.filter((row) => row.group === number).map((row) => row.bytes))];
    for (const bytes of sizes) group.append(new Option(bytes ? label(bytes) : title, `${number}:${bytes}`));
    choice.append(group);
  }
  document.getElementById("case-control").hidden = false;
  if (data.rows.length > Number(choice.dataset.most)) {
    choice.querySelector("[value=all]").remove();
    choice.value = `0:${Math.max(...data.rows.filter((row) => row.group === 0).map((row) => row.bytes))}`;
  }
  choice.addEventListener("change", () => {
    rows();
    render();
  });
  rows();
  render();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) render();
    width = innerWidth;
  });
})();
