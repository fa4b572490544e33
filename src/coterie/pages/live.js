// The page that grows: each message has the whole state, and everything is drawn anew from it.
"use strict";

(function () {
  let data = JSON.parse(document.getElementById("data").textContent), shown = "";
  const hidden = new Set();
  const names = () => data.methods.map((m) => m.method);
  const { byId, chips, draw, paint } = openPage(() => data, names, curves);

  function curves() {
    for (const what of ["score", "loss"]) {
      draw(`${what}-curve`, (look) => curveFigure(data, { ...look, band: 0.1 }, what, hidden, true, null));
    }
  }

  function element(tag, text, kind) {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = kind || "";
    return made;
  }

  // One line for each method: how far its newest run is, and how many of its runs are done.
  const ended = (run) => run.stage === "end" || run.stage === "read";

  function whereIs(name, runs) {
    const run = runs[runs.length - 1], done = runs.filter(ended).length;
    if (data.failures[name]) return `no result: ${data.failures[name]}`;
    if (!run) return "waits";
    if (ended(run)) return done === 1 ? "1 run done" : `${done} runs done`;
    if (run.stage === "tune") return `tuning: ${Math.min(run.round, run.rounds)} of ${run.rounds} candidates`;
    return `run ${runs.length}: round ${run.round} of ${run.rounds}`;
  }

  function lines() {
    return names().map((name) => {
      const runs = data.running.filter((run) => run.method === name), run = runs[runs.length - 1];
      const line = document.createElement("li"), bar = element("progress", "", "");
      bar.max = 1;
      bar.value = !run ? 0 : ended(run) ? 1 : run.rounds ? run.round / run.rounds : 0;
      const curve = data.curves[name], last = curve && curve.score.mean[curve.score.mean.length - 1];
      const score = last === undefined || last === null ? "" : scoreText(data, last);
      line.append(element("span", name, "name"), bar, element("span", whereIs(name, runs), "where"), element("span", score, "value"));
      return line;
    });
  }

  function show() {
    byId("status").textContent = data.runs && data.done >= data.runs
      ? "All runs are done; the report is being written."
      : `Training: ${data.done} of ${data.runs} runs are done, after ${data.seconds.toFixed(0)} s.`;
    byId("about").textContent = data.about;
    byId("runs").replaceChildren(...lines());
    byId("notes").replaceChildren(...data.notes.map((note) => element("li", note)));
    byId("notes").hidden = !data.notes.length;
    const caption = document.querySelector("#rounds figcaption");
    caption.textContent = `Test ${data.metric_name}`;
    if (shown !== names().join("\n")) {
      shown = names().join("\n");
      chips("legend", "many", names(), (i) => !hidden.has(names()[i]), (i) => {
        if (!hidden.delete(names()[i])) hidden.add(names()[i]);
        curves();
      });
    }
    paint();
  }

  show();
  const events = new EventSource("/events");
  events.onmessage = (event) => { data = JSON.parse(event.data); show(); };
  events.addEventListener("end", (event) => {
    const end = JSON.parse(event.data);
    events.close();
    byId("status").textContent = end.words;
    if (end.report) window.location.reload();
  });
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) byId("status").textContent = "The connection to the comparison is lost.";
  };
})();
