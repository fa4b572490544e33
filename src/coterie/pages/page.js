// What every page does: light and dark, figures as wide as their place or the paper, and buttons of methods.
"use strict";

// Plotly gives parts of its plots a style attribute. The policy of the page refuses these, whoever writes them, but not
// styles that are set as a property.
{
  const write = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else write.call(this, name, value);
  };
}

// `names` are the methods and `data` what is drawn; `paintAll` draws every figure.
function openPage(data, names, paintAll) {
  const byId = (id) => document.getElementById(id);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = { whole: 684, half: 330 }; // a page of A4 or letter, less its margins
  const config = {
    responsive: false, displaylogo: false, doubleClick: "reset",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  let chosen = null, printing = false;

  function theme() {
    return printing ? "light" : chosen || (dark.matches ? "dark" : "light");
  }

  function widthOf(place) {
    return printing ? (place.closest(".pair") ? paper.half : paper.whole) : place.clientWidth;
  }

  function draw(id, figure) {
    const place = byId(id);
    if (!place) return;
    const look = { ...LOOKS[theme()], width: widthOf(place), printing, narrow: !printing && window.innerWidth < 640 };
    const [traces, layout] = figure(look);
    const size = { width: look.width, height: printing ? 0.72 * layout.height : layout.height };
    Plotly.react(place, traces, layout.width ? layout : { ...layout, ...size }, config);
  }

  function paint() {
    document.documentElement.dataset.theme = theme();
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    for (const dot of document.querySelectorAll(".dot")) {
      if (names().includes(dot.dataset.method)) dot.style.background = styleOf(data(), LOOKS[theme()], dot.dataset.method).color;
    }
    paintAll();
  }

  // Buttons with the colour of their method; `press` gets the place of the one that was pressed.
  function chips(id, kind, labels, pressed, press) {
    const box = byId(id);
    if (!box) return () => {};
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
      return button;
    });
    box.replaceChildren(...buttons);
    function update() {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(pressed(i))));
    }
    update();
    return update;
  }

  byId("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("coterie-theme", chosen); } catch { /* a browser may forbid storage for files */ }
    paint();
  });
  try { chosen = { dark: "dark", light: "light" }[localStorage.getItem("coterie-theme")] || null; } catch { /* as above */ }
  dark.addEventListener("change", paint);

  // Paper is narrower than most windows, and white: figures are drawn anew for it.
  window.addEventListener("beforeprint", () => { printing = true; paint(); });
  window.addEventListener("afterprint", () => { printing = false; paint(); });

  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(paint, 120);
  });
  return { byId, chips, draw, paint };
}

// A click on the head of a table sorts by its column.
function sortTables() {
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
}

// The button beside a command copies it.
function copyCommand() {
  const byId = (id) => document.getElementById(id);
  byId("copy").addEventListener("click", async () => {
    const text = byId("command");
    try {
      await navigator.clipboard.writeText(text.textContent);
      byId("copy").textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(text);
    }
  });
}
