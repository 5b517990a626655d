// Draws the charts of a page (data-plot) from its table of numbers, with uPlot.
"use strict";
(() => {
  if (!window.uPlot) return;
  const HEIGHT = 208, DAY = 86400;
  const plots = new Map();
  let opened = false;  // whether the reader opened the table

  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const percent = (value) => `${Number(value.toPrecision(3))}%`;
  const known = (values) => values.filter((value) => value !== null);
  const round = (most) => {
    const unit = 10 ** Math.floor(Math.log10(most));
    return [1, 2, 5, 10].find((part) => unit * part >= most) * unit;
  };
  const RANGES = {
    bars: (values) => [0, round(Math.max(...values, 4))],
    share: (values) => [Math.floor(Math.max(0, Math.min(...values, 95) - 5) / 5) * 5, 100],
    rate: (values, danger) => [0, Math.min(100, round(Math.max(...values, danger * 1.5)))],
  };

  // The table: row labels, times and columns of numbers.
  function read() {
    const rows = [...document.querySelectorAll("#numbers tbody tr")];
    const numbers = rows.map((row) => [...row.querySelectorAll("data")].map((one) => (one.value === "" ? null : Number(one.value))));
    return {
      names: [...document.querySelectorAll("#numbers thead th")].slice(1).map((one) => one.textContent),
      labels: rows.map((row) => row.querySelector("th").textContent),
      times: rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000),
      column: (number) => numbers.map((row) => row[number]),
    };
  }

  function written(zone, daily) {
    const how = daily ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
    try {
      return new Intl.DateTimeFormat("en-GB", { ...how, timeZone: zone });
    } catch {
      return new Intl.DateTimeFormat("en-GB", how);  // this browser does not know the zone
    }
  }

  function make(place) {
    const table = read(), kind = place.dataset.plot, danger = Number(place.dataset.danger) || 0, bars = kind === "bars";
    const columns = place.dataset.columns.split(" ").map(Number), colours = place.dataset.colours.split(" ").map(colour);
    const values = columns.map(table.column);
    // Stacked bars: draw the sums, the highest first.
    const drawn = bars ? values.map((_, last) => table.times.map((_, row) => values.slice(0, last + 1).reduce((sum, one) => sum + one[row], 0))) : values;
    const step = table.times[1] - table.times[0] || DAY, first = table.times[0] - step / 2, daily = step > DAY / 2, zone = place.dataset.zone, label = written(zone, daily);
    const series = drawn.map((_, one) => ({
      stroke: colours[one], fill: bars ? colours[one] : undefined, width: bars ? 0 : 2,
      paths: bars ? uPlot.paths.bars({ size: [0.7, 48] }) : undefined, points: bars ? { show: false } : { size: 5, fill: colours[one] },
    }));
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const axis = { stroke: colour("ink-3"), font: "11px 'Inter Pages', system-ui, sans-serif", ticks: { show: false } };
    const plot = new uPlot({
      width: place.clientWidth, height: HEIGHT, padding: [10, 20, 0, 0], legend: { show: false },
      tzDate: (at) => { try { return uPlot.tzDate(new Date(at * 1000), zone); } catch { return new Date(at * 1000); } },
      cursor: { y: false, points: { show: !bars }, sync: { key: "metrics" } },
      scales: {
        x: { range: (_, from, to) => [first + Math.floor((from - first) / step) * step, first + Math.ceil((to - first) / step) * step] },
        y: { range: () => RANGES[kind](known(drawn.flat()), danger) },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 28, space: 56, incrs: daily ? [1, 2, 3, 5, 7, 14].map((days) => days * DAY) : [1, 2, 3, 6, 12].map((hours) => hours * 3600),
          values: (_, splits) => splits.map((at) => label.format(at * 1000)) },
        { ...axis, grid: { stroke: colour("line"), width: 1 }, size: 52, values: (_, splits) => splits.map(bars ? (one) => (Number.isInteger(one) ? one.toLocaleString("en") : "") : percent) },
      ],
      series: [{}, ...series.reverse()],
      hooks: {
        init: [(u) => u.over.append(tip)],
        draw: [(u) => danger && rule(u, danger)],
        setCursor: [(u) => point(u, tip, table, columns, values, bars)],
      },
    }, [table.times, ...drawn.slice().reverse()], place);
    const wide = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT }));
    wide.observe(place);
    plots.set(place, () => { wide.disconnect(); plot.destroy(); });
    place.redraw = () => plot.redraw();
  }

  // The dashed line at the danger threshold.
  function rule(u, danger) {
    const { left, top, width, height } = u.bbox, y = Math.round(u.valToPos(danger, "y", true)) + 0.5;
    if (y < top || y > top + height) return;
    u.ctx.save();
    u.ctx.strokeStyle = colour("bad")();
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    u.ctx.beginPath();
    u.ctx.moveTo(left, y);
    u.ctx.lineTo(left + width, y);
    u.ctx.stroke();
    u.ctx.restore();
  }

  // The tooltip with the values under the pointer.
  function point(u, tip, table, columns, values, bars) {
    const row = u.cursor.idx;
    tip.hidden = row === null || row === undefined || u.cursor.left < 0;
    if (tip.hidden) return;
    const lines = columns.map((column, one) => {
      const line = document.createElement("span"), value = values[one][row];
      const text = value === null ? "–" : bars ? value.toLocaleString("en") : percent(value);
      line.textContent = columns.length > 1 ? `${table.names[column]} ${text}` : text;
      return line;
    });
    const head = document.createElement("strong");
    head.textContent = table.labels[row];
    tip.replaceChildren(head, ...lines);
    const x = u.valToPos(table.times[row], "x"), room = u.over.clientWidth;
    tip.style.left = `${Math.max(0, x + 12 + tip.offsetWidth > room ? x - 12 - tip.offsetWidth : x + 12)}px`;
  }

  function draw() {
    for (const [place, end] of plots)
      if (!place.isConnected) { end(); plots.delete(place); }
    const table = document.getElementById("numbers");
    if (!table || plots.size) return;
    table.open = opened;
    table.addEventListener("toggle", () => { opened = table.open; });
    document.querySelectorAll("[data-plot]").forEach(make);
  }
  draw();
  document.addEventListener("htmx:afterSwap", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const place of plots.keys()) place.redraw(); });
})();
