// Clusters along the path: above, clients as lines that part where lam no longer holds them together; below, on the same
// axis, the score and the number of clusters.
"use strict";

const PATH_TIGHT = 0.22; // as in path.py: the gap between lines of one ribbon
const PATH_TURN = [0, 0.12, 0.3, 0.5, 0.7, 0.88, 1]; // a line's way to its next place, in equal steps along the axis

function lamText(value) {
  return Number(value.toPrecision(3)).toString();
}

// Round numbers; fewer of them where they would crowd.
function lamTicks(lam) {
  const [high, low] = [lam[0], lam[lam.length - 1]];
  const steps = high / low > 3000 ? [1] : high / low > 300 ? [1, 3] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = Array.from({ length: 24 }, (_, i) => 10 ** (i - 16)).flatMap((b) => steps.map((step) => step * b));
  const inside = ticks.filter((v) => v >= low / 1.2 && v <= high * 1.2);
  return { tickvals: inside, ticktext: inside.map(lamText) };
}

// Clients are named where their lines end, if all have parted by then and there is room.
function clientTicks(path, look) {
  const last = path.together.length - 1;
  const apart = path.together[last].every((size) => size === 1);
  if (!apart || path.names.length > 40 || look.narrow) return { showticklabels: false, ticks: "" };
  return { tickvals: path.place[last], ticktext: path.names.map((name) => short(name, 14)), tickfont: { size: 11, color: look.soft } };
}

// The lines: each stays for the middle half of a step, and turns to its next place between two steps.
function clientLines(path, look, thick) {
  const log = path.lam.map(Math.log10), steps = log.length;
  const half = steps > 1 ? (log[0] - log[steps - 1]) / (steps - 1) / 2 : 0.1;
  const at = [], from = [], part = []; // the point lies at `at`, this part of the way from one step to the next
  const add = (x, t, share) => { at.push(10 ** x); from.push(t); part.push(share); };
  add(log[0] + half, 0, 0);
  log.forEach((v, t) => {
    add(v, t, 0);
    if (t === steps - 1) return add(v - half, t, 0);
    const [begin, end] = [v - half / 2, log[t + 1] + half / 2];
    PATH_TURN.forEach((share, k) => add(begin + (end - begin) * (k / (PATH_TURN.length - 1)), t, share));
  });
  return path.names.map((name, i) => ({
    x: at, mode: "lines", showlegend: false, hovertemplate: "%{text}<extra></extra>",
    y: at.map((_, k) => {
      const here = path.place[from[k]][i], next = path.place[Math.min(from[k] + 1, steps - 1)][i];
      return here + part[k] * (next - here);
    }),
    line: { color: path.color[i] < 0 ? look.alone : look.methods[path.color[i]], width: thick },
    text: at.map((_, k) => {
      const t = part[k] > 0.5 ? from[k] + 1 : from[k], others = path.together[t][i] - 1;
      const group = path.groups === null ? "" : `, group ${safe(path.groups[i])}`;
      const company = others === 0 ? "a model of its own" : `the same as ${others} other${others === 1 ? "" : "s"}`;
      return `<b>${short(name, 60)}</b>${group}<br>lam ${lamText(path.lam[t])}: ${company}`;
    }),
  }));
}

function pathFigure(data, look, path) {
  const scale = data.percent ? 100 : 1, suffix = data.percent ? " %" : "", drawn = path.names.length;
  // Heights in pixels, from above: the lines, the score, the number of clusters.
  const tall = [Math.max(260, Math.min(look.narrow ? 340 : 540, 15 * drawn)), 120, 80], gap = 44;
  const whole = tall[0] + tall[1] + tall[2] + 2 * gap;
  const domains = [
    [1 - tall[0] / whole, 1], [(tall[2] + gap) / whole, (tall[2] + gap + tall[1]) / whole], [0, tall[2] / whole],
  ];
  const margin = { l: 56, r: 16, t: path.legend.length ? 52 : 26, b: 48 };
  const thick = Math.max(0.75, Math.min(5, (1.3 * PATH_TIGHT * tall[0]) / drawn));
  const traces = clientLines(path, look, thick);
  path.legend.forEach((name, i) => traces.push({
    x: [null], y: [null], mode: "lines", name: short(name, 28), showlegend: true, line: { color: look.methods[i], width: 4 },
  }));
  const curve = (y, name, more) => ({
    x: path.lam, y, name, mode: "lines+markers", showlegend: false, yaxis: "y2", line: { color: look.ink, width: 2 },
    marker: { size: 6, color: look.ink }, hovertemplate: `lam %{x:.3g}: %{y:.4g}${suffix}, ${name}<extra></extra>`, ...more,
  });
  traces.push(curve(path.test.map((v) => v * scale), "test", {
    line: { color: look.alone, width: 1.75, dash: "dot" }, marker: { size: 5, color: look.alone },
  }));
  if (path.validated) traces.push(curve(path.validation.map((v) => v * scale), "validation"));
  traces.push(curve(path.clusters, "clusters", {
    yaxis: "y3", line: { color: look.ink, width: 2, shape: "hvh" }, hovertemplate: "lam %{x:.3g}: clusters %{y}<extra></extra>",
  }));
  const kept = path.lam[path.kept];
  const named = (domain, text) => ({
    xref: "paper", x: 0, xanchor: "left", yref: "paper", y: domain[1], yanchor: "bottom", showarrow: false, yshift: 4,
    text, font: { size: 12, color: look.soft },
  });
  const log = path.lam.map(Math.log10), half = log.length > 1 ? (log[0] - log[log.length - 1]) / (log.length - 1) / 2 : 0.1;
  const most = Math.max(...path.clusters), few = most <= 10;
  return [traces, layout(look, {
    height: whole + margin.t + margin.b, margin, hovermode: "closest", dragmode: false,
    shapes: domains.map(([y0, y1]) => ({
      type: "line", x0: kept, x1: kept, yref: "paper", y0, y1, line: { color: look.ink, width: 1.25, dash: "dash" },
    })),
    showlegend: path.legend.length > 0,
    legend: { orientation: "h", x: 0, y: 1 + 24 / whole, yanchor: "bottom", font: { size: 12, color: look.ink } },
    annotations: [
      named(domains[1], `mean ${safe(data.metric_name)}: ` + (path.validated ? "on validation data solid, on test data dotted" : "on test data")),
      named(domains[2], "number of clusters"),
      {
        x: Math.log10(kept), y: 1, yref: "paper", yanchor: "bottom", showarrow: false, yshift: 2,
        text: `kept, lam ${lamText(kept)}`, font: { size: 12, color: look.ink },
      },
    ],
    xaxis: axis(look, {
      title: look.narrow ? "lam" : "lam, the strength of a tie; weaker to the right", type: "log", range: [log[0] + half, log[log.length - 1] - half],
      anchor: "y3", showgrid: false, ...lamTicks(path.lam),
    }),
    yaxis: axis(look, { domain: domains[0], range: [path.total - 0.3, -0.7], showgrid: false, side: "right", ...clientTicks(path, look) }),
    yaxis2: axis(look, { domain: domains[1], ticksuffix: suffix, nticks: 5 }),
    yaxis3: axis(look, {
      domain: domains[2], ...(few ? { range: [0, most + 1], nticks: 4 } : { type: "log", range: [-0.15, Math.log10(most) + 0.15], tickvals: [1, 4, 10, 40, 100, 400, 1000, 4000] }),
    }),
  })];
}
