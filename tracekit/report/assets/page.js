/* Draws the charts whose descriptions stand in the page, and shares what is picked in one among all. */
(() => {
  "use strict";
  const FIELDS = ["layer", "rank"];
  const SIDES = 24; // of a chart drawn to a measured width: what is left free beside the plot
  const NARROW = 440; // below this a legend goes down instead of across
  const charts = new Map(); // key -> {view, width, place, spec, renderer}
  const picked = { layer: null, rank: null };
  const bar = document.getElementById("picked");

  const storeOf = (field) => `pick_${field}_store`;
  const has = (view, field) => {
    try { view.data(storeOf(field)); return true; } catch { return false; }
  };

  function show() {
    const words = [];
    if (picked.layer) words.push(`layer ${picked.layer.values[0]}`);
    if (picked.rank) words.push(`rank ${picked.rank.values[0]}`);
    bar.hidden = words.length === 0;
    bar.querySelector("span").textContent = `Showing ${words.join(", ")}`;
  }

  /* A tuple is what a point selection keeps of a click: {unit, fields, values}. */
  function pick(field, tuple, from) {
    const value = tuple && tuple.values[0];
    const empty = value === undefined || value === null || value === "";
    const before = picked[field] && picked[field].values[0];
    if (empty ? before === null : before === value) return;
    picked[field] = empty ? null : { unit: tuple.unit, fields: tuple.fields, values: tuple.values };
    for (const { view } of charts.values()) if (view !== from || empty) put(view, field);
    show();
  }

  function put(view, field) {
    if (!view || !has(view, field)) return;
    const tuple = picked[field];
    view.data(storeOf(field), tuple ? [{ ...tuple }] : []);
    view.runAsync();
  }

  function listen(view) {
    for (const field of FIELDS) {
      if (!has(view, field)) continue;
      put(view, field);
      view.addDataListener(storeOf(field), (_, tuples) => {
        const tuple = tuples && tuples[tuples.length - 1];
        setTimeout(() => pick(field, tuple, view), 0); // not while the view is still running
      });
    }
  }

  /* Legends do not wrap by themselves, and concatenated charts do not follow their place's width. */
  function fitted(given, width) {
    const config = { ...given.config };
    if (width < NARROW) {
      config.legend = { ...config.legend, columns: 1, labelFontSize: 11 };
      config.axis = { ...config.axis, labelFontSize: 11, labelLimit: 165 };
    }
    const spec = { ...given, config };
    if (!spec.vconcat) return spec;
    const labels = spec.usermeta.labels;
    const parts = spec.vconcat.map((part) => ({ ...part, width: Math.max(width - labels - SIDES, 120) }));
    return { ...spec, vconcat: parts };
  }

  async function draw(chart) {
    chart.width = chart.place.clientWidth;
    const options = { actions: false, renderer: chart.renderer, tooltip: { theme: "light" } };
    if (chart.view) chart.view.finalize();
    const { view } = await vegaEmbed(chart.place, fitted(chart.spec, chart.width), options);
    chart.view = view;
    listen(view);
  }

  async function main() {
    for (const script of document.querySelectorAll("script[data-chart]")) {
      const place = document.getElementById(script.dataset.chart);
      const chart = { place, spec: JSON.parse(script.textContent), renderer: script.dataset.renderer };
      charts.set(script.dataset.chart, chart);
      await draw(chart);
    }
    document.documentElement.dataset.drawn = String(charts.size);
  }

  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const chart of charts.values()) {
        const width = chart.place.clientWidth;
        const turned = width < NARROW !== chart.width < NARROW;
        if (turned || (chart.spec.vconcat && chart.width !== width)) draw(chart);
      }
    }, 150);
  });
  bar.querySelector("button").addEventListener("click", () => FIELDS.forEach((field) => pick(field, null, null)));
  main();
})();
