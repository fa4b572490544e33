// What the reader does: methods shown, method and round looked at, sorting; each change draws anew.
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const trained = { ...data, ...data.trained }; // curves are in the unit of the score that was followed in training
  const names = data.methods.map((m) => m.method);
  const state = { hidden: new Set(), focus: null, bands: true, client: data.chosen, byGain: false, map: 0, at: [], path: 0 };
  state.at = data.weights.map((map) => map.rounds.length - 1);

  const drawings = {
    curves() {
      for (const what of ["score", "loss"]) {
        const band = names.length - state.hidden.size > 3 ? 0.09 : 0.16;
        draw(`${what}-curve`, (l) => curveFigure(trained, { ...l, band }, what, state.hidden, state.bands, state.focus));
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
      draw("path-plot", (l) => pathFigure(trained, l, path));
      byId("path-reading").textContent = (data.paths.length > 1 ? `${path.method}: ` : "") + path.reading;
      byId("path-note").textContent = `${path.note} Drawn from the run with seed ${path.seed}.`;
    },
    quality() { if (Object.keys(data.quality).length) draw("quality-plot", (l) => qualityFigure(data, l)); },
    bytes() { draw("bytes-plot", (l) => bytesFigure(trained, l)); },
    partition() { draw("partition-plot", (l) => partitionFigure(data, l)); },
  };

  const { byId, chips, draw, paint } = openPage(() => data, () => names, () => {
    for (const name of Object.keys(drawings)) drawings[name]();
  });

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

  sortTables();
  copyCommand();

  paint();
})();
