// Draws the plots of page.py: traces name a colour by its number, so that they can be drawn in both themes.
"use strict";

(function () {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = {
    responsive: false, displaylogo: false, doubleClick: "reset",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  let chosen = null;

  function theme() {
    return chosen || (dark.matches ? "dark" : "light");
  }

  // Number 0 is ink, 1 to 7 the methods' colours, 8 grey.
  function colour(look, number) {
    return number === 0 ? look.ink : number === 8 ? look.alone : look.methods[number - 1];
  }

  function trace(look, given) {
    const color = colour(look, given.color);
    const { color: _, dash, width, size, symbol, band, ...rest } = given;
    const found = {
      ...rest, line: { color, dash: dash || "solid", width: width || 2.25, shape: rest.shape || "linear" },
      marker: { color, size: size || 6, symbol: symbol || "circle" },
    };
    delete found.shape;
    return found;
  }

  function draw(figure) {
    const place = byId(figure.id), look = LOOKS[theme()], narrow = window.innerWidth < 640;
    const marks = (figure.marks || []).map((mark) => ({
      type: "line", xref: mark.x === undefined ? "paper" : "x", yref: mark.y === undefined ? "paper" : "y",
      x0: mark.x === undefined ? 0 : mark.x, x1: mark.x === undefined ? 1 : mark.x,
      y0: mark.y === undefined ? 0 : mark.y, y1: mark.y === undefined ? 1 : mark.y,
      line: { color: look.zero, width: 1.25, dash: "dot" },
    }));
    Plotly.react(place, figure.traces.map((given) => trace(look, given)), layout(look, {
      height: figure.height || 430, width: place.clientWidth, shapes: marks, hovermode: "closest",
      margin: { l: 56, r: 14, t: 12, b: narrow ? 120 : 90 },
      showlegend: true, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 12.5, color: look.ink } },
      xaxis: axis(look, figure.x), yaxis: axis(look, figure.y),
    }), config);
  }

  function paint() {
    document.documentElement.dataset.theme = theme();
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    figures.forEach(draw);
  }

  byId("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    paint();
  });
  dark.addEventListener("change", paint);
  window.addEventListener("resize", paint);
  paint();
})();
