// What is drawn: each function takes the embedded numbers, the look (colours of the theme, width) and what the reader
// chose, and returns [traces, layout] for Plotly.
"use strict";

const LOOKS = {
  light: {
    back: "#ffffff", ink: "#1a1d21", soft: "#5b636e", line: "#dfe3e8", zero: "#9aa3ae", hover: "#ffffff",
    gain: "#0072B2", loss: "#D55E00", alone: "#6d7580",
    // Okabe and Ito's palette, told apart by colour-blind readers; its yellow is darkened to show on white.
    methods: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9C8A00"],
    heat: [[0, "#f2f4f7"], [0.3, "#bfd9ec"], [0.65, "#5fa5d3"], [1, "#005a8f"]],
  },
  dark: {
    back: "#14171b", ink: "#e9ecf0", soft: "#a3adb9", line: "#323942", zero: "#6b7684", hover: "#252b33",
    gain: "#4fa8e0", loss: "#f08036", alone: "#98a3b0",
    methods: ["#4fa8e0", "#f08036", "#26c496", "#e19bc2", "#f0b429", "#9ad4f5", "#F0E442"],
    heat: [[0, "#1d222a"], [0.3, "#18466a"], [0.65, "#2f86c4"], [1, "#9ad4f5"]],
  },
};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif";
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star"];

// Plotly reads some HTML in its texts; names are shown as they are.
function safe(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function short(text, most) {
  return safe(text.length > most ? text.slice(0, most - 1) + "…" : text);
}

function translucent(color, alpha) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

// Training alone and a guess are grey and one model on all data is drawn in ink, so that colours are left for what can be chosen.
function styleOf(data, look, name) {
  if (name === data.baseline) return { color: look.alone, dash: "dot", symbol: "circle-open" };
  const method = data.methods.find((m) => m.method === name);
  if (method.role === "pooled") return { color: look.ink, dash: "dash", symbol: "diamond-open" };
  if (method.role === "guess") return { color: look.zero, dash: "dot", symbol: "x" };
  const others = ["pooled", "guess"];
  const colored = data.methods.filter((m) => m.method !== data.baseline && !others.includes(m.role)).map((m) => m.method).sort();
  const i = colored.indexOf(name), n = look.methods.length;
  return { color: look.methods[i % n], dash: DASHES[Math.floor(i / n) % DASHES.length], symbol: SYMBOLS[i % n] };
}

function scoreText(data, value) {
  if (value === null || value === undefined) return "–";
  return data.percent ? (100 * value).toFixed(1) + " %" : Number(value.toPrecision(4)).toString();
}

function gainText(data, value) {
  if (value === null || value === undefined) return "–";
  const text = data.percent ? (100 * value).toFixed(1) + " points" : Number(value.toPrecision(3)).toString();
  return (value > 0 ? "+" : "") + text.replace("-", "−");
}

function bytesText(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; value >= 999.5 && i < units.length - 1; i++) value /= 1000;
  return (i === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "")) + " " + units[i];
}

function axis(look, more) {
  const title = more.title ? { text: more.title, font: { size: 13, color: look.soft }, ...(more.showticklabels === false ? {} : { standoff: 10 }) } : undefined;
  return {
    gridcolor: look.line, linecolor: look.line, zerolinecolor: look.line, zeroline: false, automargin: true,
    tickfont: { size: 12, color: look.soft }, ...more, title,
  };
}

function layout(look, more) {
  return {
    paper_bgcolor: look.back, plot_bgcolor: look.back,
    font: { family: FONT, size: 13, color: look.ink },
    margin: { l: 52, r: 12, t: 12, b: 44 }, showlegend: false, uirevision: "keep",
    dragmode: look.narrow ? false : "zoom",
    hoverlabel: { bgcolor: look.hover, bordercolor: look.line, font: { family: FONT, color: look.ink, size: 13 }, align: "left", namelength: -1 },
    ...more,
  };
}

function curveFigure(data, look, what, hidden, bands, focus) {
  const traces = [];
  const shown = data.methods.map((m) => m.method).filter((name) => !hidden.has(name));
  const scale = what === "score" && data.percent ? 100 : 1;
  const scaled = (values) => values.map((v) => (v === null ? null : v * scale));
  for (const name of bands ? shown : []) {
    const curve = data.curves[name], style = styleOf(data, look, name);
    const alpha = focus === null ? look.band : focus === name ? 0.3 : 0.02;
    const edge = { x: curve.rounds, mode: "lines", line: { width: 0 }, hoverinfo: "skip", connectgaps: true };
    traces.push({ ...edge, y: scaled(curve[what].low) });
    traces.push({ ...edge, y: scaled(curve[what].high), fill: "tonexty", fillcolor: translucent(style.color, alpha) });
  }
  const text = (v) => (v === null ? "–" : what === "score" ? scoreText(data, v) : Number(v.toPrecision(3)).toString());
  const bare = (v) => text(v).replace(" %", "");
  for (const name of shown) {
    const curve = data.curves[name], style = styleOf(data, look, name), c = curve[what];
    const few = curve.rounds.length <= 30;
    traces.push({
      x: curve.rounds, y: scaled(c.mean), opacity: focus === null || focus === name ? 1 : 0.25, name: short(name, 28), mode: few ? "lines+markers" : "lines",
      line: { color: style.color, width: 2.25, dash: style.dash }, marker: { size: 5, color: style.color, symbol: style.symbol },
      text: c.mean.map((v, i) => text(v) + (look.narrow ? "" : ` (${bare(c.low[i])}–${bare(c.high[i])})`)),
      hovertemplate: "%{text}",
    });
  }
  const suffix = what === "score" && data.percent ? " %" : "";
  return [traces, layout(look, {
    height: 380, hovermode: "x unified",
    xaxis: axis(look, { title: "round", rangemode: "tozero", showgrid: false, hoverformat: "d", unifiedhovertitle: { text: "round %{x}" } }),
    yaxis: axis(look, { ticksuffix: suffix, nticks: 7 }),
  })];
}

function clientFigure(data, look, name, byGain) {
  const part = data.per_client[name], style = styleOf(data, look, name);
  const places = part.ids.map((_, i) => i);
  if (byGain && part.gain) places.sort((a, b) => part.gain[a] - part.gain[b]);
  const take = (values) => places.map((i) => values[i]);
  const scale = data.percent ? 100 : 1, suffix = data.percent ? " %" : "";
  const x = places.map((_, i) => i), count = x.length;
  const about = places.map((i) => {
    const client = data.clients[part.ids[i]];
    let text = `<b>${short(client.name, 60)}</b><br>${safe(data.metric_name)} ${scoreText(data, part.score[i])}`;
    if (part.gain) text += `<br>training alone ${scoreText(data, part.alone[i])}<br>gain ${gainText(data, part.gain[i])}${part.reach && part.reach[i] ? ` ± ${gainText(data, part.reach[i]).replace("+", "")}` : ""}`;
    text += `<br>${client.samples.toLocaleString("en")} training samples`;
    if (client.group !== null) text += `<br>group ${safe(client.group)}`;
    return text + (client.labels ? `<br>labels ${safe(client.labels)}` : "");
  });
  const dots = Math.max(4, Math.min(10, (0.6 * look.width) / count));
  const traces = [];
  if (part.alone) {
    traces.push({
      x, y: take(part.alone).map((v) => v * scale), mode: "markers", name: "training alone", hoverinfo: "skip", showlegend: true,
      marker: count <= 200
        ? { size: 1.5 * dots, color: translucent(look.alone, 0.12), line: { color: look.alone, width: 1.5 } }
        : { size: dots, color: translucent(look.alone, 0.4) },
    });
  }
  traces.push({
    x, y: take(part.score).map((v) => v * scale), mode: "markers", name: short(name, 28), text: about, showlegend: true,
    hovertemplate: "%{text}<extra></extra>", marker: { size: dots, color: style.color },
  });
  if (part.gain) {
    const gain = take(part.gain);
    traces.push({
      x, y: gain.map((v) => v * scale), type: "bar", yaxis: "y2", text: about, textposition: "none", showlegend: false,
      hovertemplate: "%{text}<extra></extra>",
      marker: { color: gain.map((v) => (v < 0 ? look.loss : look.gain)), line: { width: 0 } },
      error_y: part.reach && count <= 60 ? { type: "data", array: take(part.reach).map((v) => (v || 0) * scale), color: look.soft, thickness: 1, width: 2 } : undefined,
    });
  }
  const room = look.narrow ? 14 : 60;
  const labels = count <= room ? take(part.ids).map((id) => short(data.clients[id].name, 14)) : [];
  const ticks = labels.length ? { tickvals: x, ticktext: labels, tickangle: -60 } : { showticklabels: false, ticks: "" };
  const order = byGain && part.gain ? "from the largest loss to the largest gain" : "from the worst to the best";
  return [traces, layout(look, {
    height: part.gain ? 540 : 380, hovermode: "closest", bargap: count > 200 ? 0 : 0.25, uirevision: name + byGain,
    showlegend: Boolean(part.alone), legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: look.ink } },
    margin: { l: 52, r: 12, t: part.alone ? 36 : 12, b: 44 },
    xaxis: axis(look, { title: `clients, ${order}`, showgrid: false, range: [-0.7, count - 0.3], anchor: part.gain ? "y2" : "y", ...ticks }),
    yaxis: axis(look, { title: safe(data.metric_name), ticksuffix: suffix, domain: part.gain ? [0.46, 1] : [0, 1], nticks: 7 }),
    yaxis2: axis(look, {
      title: data.percent ? "gain, points" : "gain", domain: [0, 0.38], zeroline: true, zerolinecolor: look.zero, zerolinewidth: 1.5, nticks: 6,
    }),
  })];
}

function bytesFigure(data, look) {
  const traces = [], scale = data.percent ? 100 : 1;
  const [sends, silent] = [true, false].map((some) => data.methods.filter((m) => m.bytes_per_client > 0 === some));
  for (const m of sends) {
    const curve = data.curves[m.method], style = styleOf(data, look, m.method);
    const at = curve.rounds.map((_, i) => i).filter((i) => curve.bytes[i] > 0 && curve.score.mean[i] !== null);
    if (!at.length || curve.bytes[at[0]] === curve.bytes[at[at.length - 1]]) continue; // everything was sent at the start
    traces.push({
      x: at.map((i) => curve.bytes[i]), y: at.map((i) => curve.score.mean[i] * scale), mode: "lines",
      line: { color: translucent(style.color, 0.6), width: 2, dash: style.dash },
      text: at.map((i) => `<b>${short(m.method, 28)}</b>, round ${curve.rounds[i]}<br>${bytesText(curve.bytes[i])}, ${scoreText(data, curve.score.mean[i])}`),
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  for (const m of sends) {
    const style = styleOf(data, look, m.method);
    traces.push({
      x: [m.bytes_per_client], y: [m.end * scale], mode: "markers",
      marker: { size: 13, color: style.color, symbol: style.symbol, line: { color: look.back, width: 1.5 } },
      text: [`<b>${short(m.method, 28)}</b><br>${bytesText(m.bytes_per_client)} per client, ${scoreText(data, m.end)}`],
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  const lines = silent.map((m) => {
    const style = styleOf(data, look, m.method);
    return { type: "line", xref: "paper", x0: 0, x1: 1, y0: m.end * scale, y1: m.end * scale, line: { color: style.color, width: 1.5, dash: style.dash } };
  });
  const names = silent.map((m) => ({
    xref: "paper", x: 0, xanchor: "left", y: m.end * scale, yanchor: "bottom", showarrow: false,
    text: `${short(m.method, 28)}: 0 bytes, ${scoreText(data, m.end)}`, font: { size: 12, color: styleOf(data, look, m.method).color },
  }));
  // The ends are what is compared: where a run began may lie outside.
  const ends = data.methods.map((m) => m.end * scale), low = Math.min(...ends), high = Math.max(...ends);
  const span = Math.max(high - low, 0.04 * Math.max(Math.abs(high), Math.abs(low)), 1e-9), pad = [0.25 * span, 0.8 * span];
  const range = ends.length < 2 ? undefined : data.higher_is_better ? [low - pad[1], high + pad[0]] : [low - pad[0], high + pad[1]];
  const passed = traces.flatMap((trace) => trace.x);
  const ratio = Math.max(...passed) / Math.min(...passed);
  const steps = ratio < 8 ? [1, 1.5, 2, 3, 4, 6, 8] : ratio < 100 ? [1, 2, 5] : [1];
  const ticks = Array.from({ length: 16 }, (_, i) => 10 ** i).flatMap((b) => steps.map((step) => step * b));
  return [traces, layout(look, {
    height: 440, hovermode: "closest", shapes: lines, annotations: names, margin: { l: 52, r: 20, t: 12, b: 48 },
    xaxis: axis(look, { title: "bytes sent and received per client", type: "log", tickvals: ticks, ticktext: ticks.map(bytesText) }),
    yaxis: axis(look, { title: safe(data.metric_name), ticksuffix: data.percent ? " %" : "", nticks: 7, range }),
  })];
}
