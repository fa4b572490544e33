// Draws the plots of plots.py: traces name a colour by its number, so that they can be drawn in both themes.
"use strict";

(function () {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const { draw, paint } = openPage(() => ({}), () => [], () => figures.forEach((figure) => draw(figure.id, (look) => drawing(look, figure))));

  // Number 0 is ink, 1 to 7 the methods' colours, 8 grey.
  function colour(look, number) {
    return number === 0 ? look.ink : number === 8 ? look.alone : look.methods[number - 1];
  }

  function trace(look, given) {
    const { color: number, dash, width, size, symbol, shape, name, lines, ...rest } = given;
    const color = colour(look, number);
    const hover = lines ? { text: lines.map((text) => text.map(safe).join("<br>")), hovertemplate: "%{text}<extra></extra>" } : {};
    return {
      ...rest, ...hover, name: safe(name), marker: { color, size: size || 6, symbol: symbol || "circle" },
      line: { color, dash: dash || "solid", width: width || 2.25, shape: shape || "linear" },
    };
  }

  function drawing(look, figure) {
    const marks = (figure.marks || []).map((mark) => ({
      type: "line", xref: mark.x === undefined ? "paper" : "x", yref: mark.y === undefined ? "paper" : "y",
      x0: mark.x === undefined ? 0 : mark.x, x1: mark.x === undefined ? 1 : mark.x,
      y0: mark.y === undefined ? 0 : mark.y, y1: mark.y === undefined ? 1 : mark.y,
      line: { color: look.zero, width: 1.25, dash: "dot" },
    }));
    return [figure.traces.map((given) => trace(look, given)), layout(look, {
      height: figure.height || 430, shapes: marks, hovermode: "closest", margin: { l: 56, r: 14, t: 12, b: look.narrow ? 120 : 90 },
      showlegend: true, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 12.5, color: look.ink } },
      xaxis: axis(look, { ...figure.x, title: safe(figure.x.title) }), yaxis: axis(look, { ...figure.y, title: safe(figure.y.title) }),
    })];
  }

  paint();
})();
