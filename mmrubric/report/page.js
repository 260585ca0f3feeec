(() => {
  "use strict";
  const $ = (s, root = document) => root.querySelector(s);
  const $$ = (s, root = document) => [...root.querySelectorAll(s)];
  const root = document.documentElement;

  $("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const box = $("#cards"), cards = $$(".card", box);
  const view = { state: "all", text: "", kind: "", sort: "order" };
  const keys = {
    order: (c) => +c.dataset.order,
    gain: (c) => -c.dataset.gain,
    loss: (c) => +c.dataset.gain,
    low: (c) => +c.dataset.low,
  };
  function show() {
    let shown = 0;
    for (const c of cards) {
      const ok =
        (view.state === "all" || c.dataset.state.split(" ").includes(view.state)) &&
        (!view.text || c.dataset.text.includes(view.text)) &&
        (!view.kind || c.dataset.kinds.split("|").includes(view.kind));
      c.hidden = !ok;
      shown += ok;
      for (const row of $$("tr[data-kind]", c)) row.classList.toggle("dim", !!view.kind && row.dataset.kind !== view.kind);
    }
    const key = keys[view.sort];
    box.append(...[...cards].sort((a, b) => key(a) - key(b) || a.dataset.order - b.dataset.order));
    $("#empty").hidden = shown > 0;
  }
  for (const b of $$("#states button"))
    b.addEventListener("click", () => {
      view.state = b.dataset.state;
      for (const o of $$("#states button")) o.setAttribute("aria-pressed", o === b);
      show();
    });
  $("#search").addEventListener("input", (e) => { view.text = e.target.value.trim().toLowerCase(); show(); });
  $("#kind").addEventListener("change", (e) => { view.kind = e.target.value; show(); });
  $("#sort").addEventListener("change", (e) => { view.sort = e.target.value; show(); });

  const reasons = JSON.parse($("#reasons").textContent), zoom = $("#zoom");
  function cell(mark, text) {
    const td = document.createElement("td");
    td.append(mark.cloneNode(true), text);
    return td;
  }
  function open(card) {
    $("h3", zoom).textContent = $("h3", card).textContent;
    $(".pair", zoom).replaceChildren(...$$("figure", card).map((f) => f.cloneNode(true)));
    const table = document.createElement("table");
    $$(".checks tbody tr", card).forEach((row, k) => {
      const tr = document.createElement("tr"), th = document.createElement("th"), marks = $$(".mark", row);
      th.textContent = $("th", row).firstChild.textContent;
      const why = (reasons[card.dataset.order] || [])[k] || ["", ""];
      tr.append(th, cell(marks[0], why[0]), cell(marks[1], why[1]));
      table.append(tr);
    });
    $(".why", zoom).replaceChildren(table);
    zoom.showModal();
  }
  box.addEventListener("click", (e) => { if (e.target.matches("img")) open(e.target.closest(".card")); });
  for (const img of $$("img", box)) {
    img.tabIndex = 0;
    img.setAttribute("role", "button");
    img.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(img.closest(".card")); } });
  }
  $("#close").addEventListener("click", () => zoom.close());
  zoom.addEventListener("click", (e) => { if (e.target === zoom) zoom.close(); });
})();
