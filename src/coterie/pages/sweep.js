// The page of a sweep: parallel coordinates, one line per candidate. Plotly's own trace of that kind is not used: it
// draws with WebGL, whose library writes programs while it runs, which the policy of the page forbids.
"use strict";

function colourAt(scale, share) {
  const at = scale.findIndex(([stop]) => stop >= share), [high, to] = scale[Math.max(at, 1)], [low, from] = scale[Math.max(at, 1) - 1];
  const t = (share - low) / (high - low), part = (color, i) => parseInt(color.slice(i, i + 2), 16);
  return "#" + [1, 3, 5].map((i) => Math.round(part(from, i) + t * (part(to, i) - part(from, i))).toString(16).padStart(2, "0")).join("");
}

// From the worst to the best; both ends show on the page's background.
const SCORES = {
  light: [[0, "#f0a35e"], [0.5, "#5b9bb8"], [1, "#1b2a6b"]],
  dark: [[0, "#a3502a"], [0.5, "#3f8fb0"], [1, "#d9f2ff"]],
};

function sweepFigure(data, look) {
  const scale = SCORES[look.back === LOOKS.dark.back ? "dark" : "light"], axes = data.axes, last = axes.length - 1;
  const drawn = [...data.lines].sort((a, b) => (a.share === null ? -1 : a.share) - (b.share === null ? -1 : b.share));
  const traces = drawn.map((line) => {
    const known = line.at.map((_, i) => i).filter((i) => line.at[i] !== null), failed = line.share === null;
    // Lines through the same value lie beside each other, the better ones above.
    const place = (i) => line.at[i] + (i < data.settings && !failed ? 0.05 * (line.share - 0.5) : 0);
    const color = failed ? look.zero : colourAt(scale, line.share);
    return {
      x: known, y: known.map(place), mode: "lines+markers", showlegend: false,
      line: { color: line.best ? look.loss : color, width: line.best ? 4.5 : failed ? 1 : 1.75, dash: failed ? "dot" : "solid", shape: "linear" },
      marker: { color: line.best ? look.loss : color, size: line.best ? 8 : 4 },
      text: known.map(() => line.text.map((row, i) => (i ? safe(row) : `<b>${safe(row)}</b>`)).join("<br>")), hovertemplate: "%{text}<extra></extra>",
    };
  });
  const scored = data.lines.filter((line) => line.share !== null);
  if (scored.length > 1 && !look.narrow) {
    traces.push({
      x: [null], y: [null], mode: "markers", showlegend: false, hoverinfo: "skip",
      marker: {
        color: [0], cmin: 0, cmax: 1, colorscale: scale.map(([stop, color]) => [stop, color]), showscale: true,
        colorbar: {
          thickness: 12, outlinewidth: 0, tickvals: [0, 1], ticktext: data.ends.map(safe), tickfont: { color: look.soft },
          title: { text: safe(data.colour), side: "right", font: { color: look.soft } },
        },
      },
    });
  }
  const rails = axes.map((_, i) => ({ type: "line", x0: i, x1: i, y0: 0, y1: 1, line: { color: look.zero, width: 1.25 }, layer: "below" }));
  const room = Math.max(6, Math.floor(look.width / axes.length / 8));
  const tight = axes.some((one) => one.label.split(" ")[0].length > room);
  const notes = axes.flatMap((one, i) => [
    { x: i, y: 1.06, yanchor: "bottom", ...(tight ? { xanchor: "left", textangle: -35 } : { xanchor: i === 0 ? "left" : i === last ? "right" : "center" }), text: `<b>${short(one.label, 4 * room).replace(/ /g, tight ? " " : "<br>")}</b>`, showarrow: false, font: { size: 13, color: look.ink } },
    ...one.ticks.map(([y, text]) => ({
      x: i, y, xanchor: i === last ? "left" : "right", xshift: i === last ? 7 : -7, text: short(text, room), showarrow: false,
      font: { size: 11, color: look.soft }, bgcolor: translucent(look.back, 0.75), borderpad: 1,
    })),
  ]);
  return [traces, layout(look, {
    height: 460, hovermode: "closest", shapes: rails, annotations: notes, dragmode: false, margin: { l: look.narrow ? 56 : 76, r: 76, t: tight ? 104 : 72, b: 16 },
    xaxis: { visible: false, range: [-0.04 * last, last * 1.04], fixedrange: true },
    yaxis: { visible: false, range: [-0.04, 1.14], fixedrange: true },
  })];
}

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { draw, paint } = openPage(() => data, () => [], () => draw("sweep-plot", (look) => sweepFigure(data, look)));
  sortTables();
  copyCommand();
  paint();
})();
