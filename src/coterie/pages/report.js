// What the reader does: theme, methods shown, method and round looked at, sorting; each change draws anew.
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const names = data.methods.map((m) => m.method);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const state = { theme: null, hidden: new Set(), focus: null, bands: true, client: data.chosen, byGain: false, map: 0, at: [], path: 0, print: false };
  state.at = data.weights.map((map) => map.rounds.length - 1);
  const PAPER = 684;
  const config = {
    responsive: false, displaylogo: false, doubleClick: "reset",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function theme() {
    return state.print ? "light" : state.theme || (dark.matches ? "dark" : "light");
  }

  function look(id) {
    const width = widthOf(byId(id));
    const band = names.length - state.hidden.size > 3 ? 0.09 : 0.16;
    return { ...LOOKS[theme()], width, narrow: !state.print && window.innerWidth < 640, band };
  }

  // A page of paper is narrower than most windows: figures are drawn anew for it (A4 or letter, less the margins).
  function widthOf(place) {
    return state.print ? (place.closest(".pair") ? 330 : PAPER) : place.clientWidth;
  }

  function draw(id, figure) {
    const place = byId(id);
    if (!place) return;
    const [traces, layout] = figure(look(id));
    Plotly.react(place, traces, layout.width ? layout : { ...layout, width: widthOf(place) }, config);
  }

  const drawings = {
    curves() {
      for (const what of ["score", "loss"]) {
        draw(`${what}-curve`, (l) => curveFigure(data, l, what, state.hidden, state.bands, state.focus));
      }
    },
    clients() {
      draw("client-plot", (l) => clientFigure(data, l, state.client, state.byGain));
      const part = data.per_client[state.client];
      byId("client-note").textContent = part.note;
      byId("sort-switch").hidden = !part.gain;
      byId("client-reading").textContent = part.gain
        ? `${state.client}: ${part.gaining.toLocaleString("en")} of ${data.count.toLocaleString("en")} clients gain, ` +
          `${part.losing.toLocaleString("en")} lose; the median client gains ${gainText(data, part.median_gain)}.`
        : "";
      for (const table of document.querySelectorAll(".worst")) table.hidden = table.dataset.method !== state.client;
    },
    weights() {
      const map = data.weights[state.map];
      if (!map) return;
      const at = state.at[state.map], own = map.own[at];
      draw("weights-plot", (l) => weightsFigure(data, l, map, at));
      byId("round").max = map.rounds.length - 1;
      byId("round").value = at;
      byId("round-label").hidden = map.rounds.length < 2;
      byId("round-value").textContent = map.rounds[at];
      const kept = own.reduce((a, b) => a + b, 0) / own.length;
      const when = map.fixed ? "the same weights in every round" : `after round ${map.rounds[at]}`;
      byId("weights-reading").textContent =
        `${map.method}, ${when}: a client keeps ${kept.toFixed(3)} for its own model on average.`;
      byId("weights-note").textContent = `${map.note} Drawn from the run with seed ${map.seed}.`;
    },
    path() {
      const path = data.paths[state.path];
      if (!path) return;
      draw("path-plot", (l) => pathFigure(data, l, path));
      byId("path-reading").textContent = (data.paths.length > 1 ? `${path.method}: ` : "") + path.reading;
      byId("path-note").textContent = `${path.note} Drawn from the run with seed ${path.seed}.`;
    },
    quality() { if (Object.keys(data.quality).length) draw("quality-plot", (l) => qualityFigure(data, l)); },
    bytes() { draw("bytes-plot", (l) => bytesFigure(data, l)); },
    partition() { draw("partition-plot", (l) => partitionFigure(data, l)); },
  };

  function paint() {
    document.documentElement.dataset.theme = theme();
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    for (const dot of document.querySelectorAll(".dot")) {
      if (names.includes(dot.dataset.method)) dot.style.background = styleOf(data, LOOKS[theme()], dot.dataset.method).color;
    }
    for (const name of Object.keys(drawings)) drawings[name]();
  }

  // Buttons with the colour of their method; `press` gets the place of the one that was pressed.
  function chips(id, kind, labels, pressed, press) {
    const box = byId(id);
    if (!box) return;
    box.classList.add(kind);
    box.hidden = labels.length < 2;
    const buttons = labels.map((label, i) => {
      const button = document.createElement("button");
      button.type = "button";
      const dot = document.createElement("i");
      dot.className = "dot";
      dot.dataset.method = label;
      button.append(dot, label);
      button.addEventListener("click", () => { press(i); update(); });
      box.append(button);
      return button;
    });
    function update() {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(pressed(i))));
    }
    update();
    return update;
  }

  chips("legend", "many", names, (i) => !state.hidden.has(names[i]), (i) => {
    if (!state.hidden.delete(names[i])) state.hidden.add(names[i]);
    drawings.curves();
  });
  [...byId("legend").children].forEach((button, i) => {
    const focus = (name) => () => { state.focus = name; drawings.curves(); };
    button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") focus(names[i])(); });
    button.addEventListener("pointerleave", focus(null));
  });
  const updates = ["choose-client", "choose-worst"].map((id) =>
    chips(id, "one", names, (i) => state.client === names[i], (i) => {
      state.client = names[i];
      drawings.clients();
      updates.forEach((update) => update());
    }));
  chips("choose-weights", "one", data.weights.map((map) => map.method), (i) => state.map === i, (i) => {
    state.map = i;
    drawings.weights();
  });
  chips("choose-path", "one", data.paths.map((path) => path.method), (i) => state.path === i, (i) => {
    state.path = i;
    drawings.path();
  });
  byId("bands").addEventListener("change", (event) => { state.bands = event.target.checked; drawings.curves(); });
  byId("by-gain").addEventListener("change", (event) => { state.byGain = event.target.checked; drawings.clients(); });
  if (byId("round")) {
    byId("round").addEventListener("input", (event) => { state.at[state.map] = Number(event.target.value); drawings.weights(); });
  }

  byId("theme").addEventListener("click", () => {
    state.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("coterie-theme", state.theme); } catch { /* a browser may forbid storage for files */ }
    paint();
  });
  try { state.theme = { dark: "dark", light: "light" }[localStorage.getItem("coterie-theme")] || null; } catch { /* as above */ }
  dark.addEventListener("change", paint);

  window.addEventListener("beforeprint", () => { state.print = true; paint(); });
  window.addEventListener("afterprint", () => { state.print = false; paint(); });

  for (const head of document.querySelectorAll("thead th:has(button)")) {
    const board = head.closest("table"), column = head.cellIndex;
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      board.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => (row.cells[column] && row.cells[column].dataset.value ? Number(row.cells[column].dataset.value) : NaN);
      const rows = [...board.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is missing stays below
        return up ? x - y : y - x;
      });
      board.tBodies[0].append(...rows);
    });
  }

  byId("copy").addEventListener("click", async () => {
    const text = byId("command");
    try {
      await navigator.clipboard.writeText(text.textContent);
      byId("copy").textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(text);
    }
  });

  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(paint, 120);
  });
  paint();
})();
