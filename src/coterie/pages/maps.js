// Figures of pairs: cooperation weights, how good learned ones are, and who has which data.
"use strict";

// Weights come as 16-bit steps between the lowest and the highest, row by row.
function unpack(map, at) {
  const bytes = atob(map.tables[at]), n = map.labels.length, rows = [];
  for (let i = 0; i < n; i++) {
    const row = [];
    for (let j = 0; j < n; j++) {
      const place = 2 * (i * n + j);
      const step = bytes.charCodeAt(place) + 256 * bytes.charCodeAt(place + 1);
      row.push(map.single && i === j ? null : map.low + ((map.high - map.low) * step) / 65535);
    }
    rows.push(row);
  }
  return rows;
}

function weightsFigure(data, look, map, at) {
  const n = map.labels.length, wide = look.width > 560, side = Math.min(look.width, look.printing ? 500 : 720);
  const ticks = n <= (wide ? 40 : 16)
    ? { tickvals: map.labels.map((_, i) => i), ticktext: map.labels.map((name) => short(name, wide ? 18 : 9)) }
    : { showticklabels: false, ticks: "" };
  const weights = unpack(map, at);
  const text = weights.map((row, i) => row.map((v, j) =>
    v === null ? `<b>${short(map.labels[i], 40)}</b><br>keeps ${map.own[at][i].toFixed(3)} for its own model`
      : `<b>${short(map.labels[i], 40)}</b> gives ${v.toPrecision(3)}<br>to ${short(map.labels[j], 40)}`));
  const line = (more) => ({ type: "line", line: { color: look.zero, width: 1 }, ...more });
  const borders = map.borders.flatMap((b) => [
    line({ x0: b, x1: b, y0: -0.5, y1: n - 0.5 }), line({ y0: b, y1: b, x0: -0.5, x1: n - 0.5 }),
  ]);
  const traces = [{
    type: "heatmap", z: weights, zmin: map.low, zmax: map.high, colorscale: look.heat, text, hoverongaps: true,
    hovertemplate: "%{text}<extra></extra>", xgap: n <= 60 ? 1 : 0, ygap: n <= 60 ? 1 : 0,
    colorbar: wide
      ? { thickness: 12, outlinewidth: 0, tickfont: { color: look.soft }, title: { text: "weight", side: "right", font: { color: look.soft } } }
      : { orientation: "h", thickness: 10, outlinewidth: 0, tickfont: { color: look.soft }, y: 1.01, yanchor: "bottom", nticks: 4 },
  }];
  const what = map.single ? "client" : "group";
  return [traces, layout(look, {
    height: wide ? side : side + 72, width: wide ? Math.min(look.width, side + 90) : side, shapes: borders, dragmode: false, hovermode: "closest",
    margin: wide ? { l: 60, r: 12, t: 12, b: 60 } : { l: 34, r: 6, t: 56, b: 56 },
    xaxis: axis(look, { title: `${what} listened to`, showgrid: false, tickangle: -60, range: [-0.5, n - 0.5], ...(wide ? { constrain: "domain" } : {}), ...ticks }),
    yaxis: axis(look, {
      title: `listening ${what}`, showgrid: false, range: [n - 0.5, -0.5], ...(wide ? { scaleanchor: "x", constrain: "domain" } : {}), ...ticks,
    }),
  })];
}

function qualityFigure(data, look) {
  const traces = [];
  for (const [name, found] of Object.entries(data.quality)) {
    const style = styleOf(data, look, name);
    for (const [what, label, dash] of [["graph_auroc", "AUROC", "solid"], ["graph_ari", "Rand index", "dot"]]) {
      traces.push({
        x: found.rounds, y: found[what], name: `${short(name, 28)}, ${label}`, mode: "lines+markers",
        line: { color: style.color, width: 2, dash }, marker: { size: 5, color: style.color, symbol: style.symbol },
        hovertemplate: "%{y:.3f}",
      });
    }
  }
  return [traces, layout(look, {
    height: 340, hovermode: "x unified", showlegend: true, legend: { orientation: "h", y: 1.15, font: { size: 12, color: look.ink } },
    xaxis: axis(look, { title: "round", rangemode: "tozero", showgrid: false }), yaxis: axis(look, { range: [-0.1, 1.05] }),
  })];
}

function partitionFigure(data, look) {
  const part = data.partition, count = part.ids.length, x = part.ids.map((_, i) => i);
  const clients = part.ids.map((id) => data.clients[id]);
  const head = clients.map((c) => `<b>${short(c.name, 60)}</b>` + (c.group === null ? "" : `<br>group ${safe(c.group)}`));
  const labels = count <= (look.narrow ? 14 : 60) ? clients.map((c) => short(c.name, 14)) : [];
  const ticks = labels.length ? { tickvals: x, ticktext: labels, tickangle: -60 } : { showticklabels: false, ticks: "" };
  const colors = { train: look.methods[0], validation: look.methods[4], test: look.methods[2] };
  const bars = Object.keys(part.sizes).map((name) => ({
    x, y: part.sizes[name], type: "bar", name: name === "train" ? "training" : safe(name), yaxis: "y2", showlegend: true,
    marker: { color: colors[name], line: { width: 0 } }, textposition: "none",
    text: head.map((h, i) => `${h}<br>${part.sizes[name][i].toLocaleString("en")} ${name === "train" ? "training" : safe(name)} samples`),
    hovertemplate: "%{text}<extra></extra>",
  }));
  const shared = { bargap: count > 100 ? 0 : 0.2, hovermode: "closest", dragmode: false };
  const xaxis = { title: "clients", showgrid: false, range: [-0.5, count - 0.5], ...ticks };
  if (part.counts === null) {
    return [bars, layout(look, {
      height: 400, barmode: "stack", ...shared, xaxis: axis(look, { ...xaxis, anchor: "y2" }), showlegend: true,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { color: look.ink } },
      margin: { l: 56, r: 12, t: 40, b: 44 }, yaxis2: axis(look, { title: "samples", rangemode: "tozero" }),
    })];
  }
  const rows = part.classes.length, tall = Math.max(200, Math.min(640, rows * 26)), height = tall + 200;
  const heat = {
    type: "heatmap", x, y: part.classes.map((_, i) => i), z: part.counts, zmin: 0, colorscale: look.heat,
    text: part.counts.map((row, c) => row.map((v, i) => `${head[i]}<br>class ${safe(part.classes[c])}: ${v.toLocaleString("en")} samples`)),
    hovertemplate: "%{text}<extra></extra>", xgap: count <= 100 ? 1 : 0, ygap: rows <= 60 ? 1 : 0,
    colorbar: { thickness: 10, outlinewidth: 0, len: tall / height, y: 0, yanchor: "bottom", tickfont: { color: look.soft } },
  };
  const split = 1 - 120 / (height - 70);
  const bar = { ...bars[0], showlegend: false };
  const step = Math.ceil(rows / 26);
  const at = part.classes.map((_, i) => i).filter((i) => i % step === 0);
  return [[heat, bar], layout(look, {
    height, ...shared,
    xaxis: axis(look, { ...xaxis, anchor: "y" }),
    yaxis: axis(look, { title: "class", domain: [0, split - 0.03], range: [rows - 0.5, -0.5], showgrid: false, tickvals: at, ticktext: at.map((i) => short(part.classes[i], look.narrow ? 10 : 24)) }),
    yaxis2: axis(look, { title: "samples", domain: [split, 1], rangemode: "tozero", nticks: 4 }),
  })];
}
