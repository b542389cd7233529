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
  const cases = () => {
    const [group, bytes] = chosen();
    return data.cases.filter((entry) => entry.group === group && entry.bytes === bytes);
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
  const logs = (values) => {
    const known = values.flat().filter((value) => value > 0);
    return known.length > 0 && Math.max(...known) > 20 * Math.min(...known);
  };
  const decades = (plot, splits) => splits.map((value) => (/^[125]/.test(String(value).replace(/[0.]/g, "")) ? value : null));
  const logged = (is) => (is ? { distr: 3 } : {});
  const stroke = (plot, number) => plot.series[number].stroke(plot, number);
  const markers = {
    width: 2, stroke, fill: (plot, number) => (plot.series[number].width ? null : stroke(plot, number)),
    dash: (plot, number) => (plot.series[number].dash ? "dashed" : "solid"),
  };
  const draw = (place, tables, series, scales, axes, show = plain) => {
    drawn.get(place)?.destroy();
    drawn.delete(place);
    place.hidden = tables.length === 0;
    if (!tables.length) return;
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const options = {
      width: Math.max(260, place.clientWidth), height: 300, scales: { x: { time: false, ...scales.x }, y: scales.y },
      series: [{ label: axes[0].label, value: (plot, value) => (value == null ? "–" : show(value)) }, ...series], axes, legend: { markers },
      cursor: { dataIdx: nearest, drag: { x: true, y: false }, focus: { prox: 24 } }, focus: { alpha: 0.4 },
    };
    drawn.set(place, new uPlot(options, joined, place));
  };
  const line = (name, number, more) => ({
    label: name, stroke: colour(`--s${number % 8}`), width: 2, spanGaps: true, value: (plot, value) => plain(value), points: { show: false }, ...more,
  });
  // A distribution of samples is a staircase: it stays until the next sample.
  const stairs = (name, number) => line(name, number, { paths: uPlot.paths.stepped({ align: 1 }) });
  const dots = (name, number) =>
    line(name, number, { width: 0, paths: () => null, points: { show: true, size: 4, width: 0, fill: colour(`--s${number % 8}`) } });

  const kinds = {
    bandwidth(place) {
      const table = data.bandwidth[Number(place.dataset.index)];
      const values = [table.sizes];
      const series = [];
      table.series.forEach((entry, number) => {
        values.push(entry.measured);
        series.push(line(entry.name, number, { points: { show: true, size: 7, fill: colour(`--s${number % 8}`) } }));
        if (entry.model.some((value) => value != null)) {
          values.push(entry.model);
          series.push(line(`${entry.name}, model`, number, { dash: [6, 5], width: 1.2 }));
        }
      });
      if (table.line) {
        values.push(table.sizes.map(() => table.line));
        series.push({ ...line("line rate", 0, { dash: [2, 3], width: 1.4 }), stroke: colour("--strike") });
      }
      const steep = logs(values.slice(1));
      const every = Math.max(1, Math.ceil((table.sizes.length * 62) / Math.max(1, place.clientWidth - 60)));
      draw(place, [values], series, { x: { distr: 3, log: 2 }, y: steep ? { distr: 3 } : { range: (plot, low, high) => [0, high * 1.08] } }, [
        axis("size", { splits: () => table.sizes.filter((_, index) => index % every === 0), values: (plot, splits) => splits.map(label), filter: (plot, splits) => splits }),
        axis("bus bandwidth, GB/s", { size: 62, ...(steep ? { filter: decades } : {}) }),
      ], label);
    },
    distribution(place, field, name) {
      const known = cases().filter((entry) => entry[field]);
      const steep = known.some((entry) => entry[field][0].at(-1) > 8 * entry[field][0][entry[field][0].length >> 1]);
      draw(place, known.map((entry) => entry[field]), known.map((entry, number) => stairs(entry.name, number)),
        { x: logged(steep), y: { range: [0, 1.05] } }, [axis(name, steep ? { filter: decades } : {}), axis("part of them that took at most so long", { size: 50 })]);
    },
    times: (place) => kinds.distribution(place, "times", "time of an iteration, slowest rank, ms"),
    chunks: (place) => kinds.distribution(place, "chunks", "delay of a chunk transfer, ms"),
    delays(place) {
      const [tables, series] = [[], []];
      cases().forEach((entry, number) => {
        if (entry.transfers) {
          tables.push(entry.transfers);
          series.push(dots(`${entry.name}, transfers`, number));
        }
        if (entry.delays) {
          tables.push(entry.delays);
          series.push(line(`${entry.name}, iterations`, number, { width: 1.2, points: { show: true, size: 6, fill: colour("--card") } }));
        }
      });
      const steep = logs(tables.map((table) => table[1]));
      draw(place, tables, series, { x: {}, y: logged(steep) }, [axis("time since the first iteration, s"), axis("ms", { size: 62, ...(steep ? { filter: decades } : {}) })]);
    },
  };
  const render = () => {
    for (const place of charts) kinds[place.dataset.chart](place);
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
