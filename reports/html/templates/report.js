"use strict";
// Sorting, filtering and selection, and Plotly, which is decompressed once the page is shown.  No figures are computed.
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  function make(tag, text, attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // ---- tables -------------------------------------------------------------------------------------------------
  function value(row, column) {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  }

  function sort(table, column) {
    const head = table.tHead.rows[0].cells[column];
    const numbers = head.classList.contains("right");
    const before = head.getAttribute("aria-sort");
    const up = before ? before === "descending" : !numbers; // numeric columns start in descending order
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]));
    body.append(...rows.map(([, row]) => row));
  }

  function choice(name, words, all) {
    const label = make("label", name);
    const select = make("select", "");
    if (all) select.append(make("option", all, { value: "" }));
    for (const word of words) select.append(make("option", word, { value: word }));
    label.append(select);
    return [label, select];
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      button.addEventListener("click", () => sort(table, column));
      head.replaceChildren(button);
    });
    const bar = $(`.filters[data-table="${table.id}"]`);
    const rows = [...table.tBodies[0].rows];
    const chosen = [];
    heads.forEach((head, column) => {
      if (!("chosen" in head.dataset)) return;
      const words = [...new Set(rows.map((row) => row.cells[column].textContent))];
      if (words.length < 2) return;
      const [label, select] = choice(head.textContent, words, "all");
      bar.append(label);
      chosen.push([column, select]);
    });
    const label = make("label", "Contains");
    const field = make("input", "", { type: "search" });
    label.append(field);
    const count = make("output", "", { class: "count", "aria-live": "polite" });
    const reset = make("button", "Show all", { type: "button" });
    bar.append(label, reset, count);
    function filter() {
      const words = field.value.toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const keep =
          chosen.every(([column, select]) => !select.value || row.cells[column].textContent === select.value) &&
          (!words || row.textContent.toLowerCase().includes(words));
        row.hidden = !keep;
        shown += keep;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    }
    reset.addEventListener("click", () => {
      field.value = "";
      for (const [, select] of chosen) select.value = "";
      filter();
    });
    bar.addEventListener("input", filter);
    table.showAll = () => reset.click();
    filter();
  }

  $$("table.sortable").forEach(sortable);

  // ---- figures of one operator --------------------------------------------------------------------------------
  function show(key, panel) {
    const row = document.getElementById(key);
    if (!row) return;
    const heads = [...$("#operators").tHead.rows[0].cells].map((head) => head.textContent);
    const list = make("dl", "", { class: "facts" });
    const add = (name, text) => {
      const line = document.createElement("div");
      line.append(make("dt", name), make("dd", text));
      list.append(line);
    };
    heads.forEach((name, at) => {
      if (name !== "Operator" && row.cells[at].textContent) add(name, row.cells[at].textContent);
    });
    for (const [name, text] of JSON.parse(row.dataset.formulas)) add(name, text);
    const link = make("a", "Show its row in the table", { href: `#${key}` });
    link.addEventListener("click", () => $("#operators").showAll());
    panel.replaceChildren(make("h3", row.cells[heads.indexOf("Operator")].textContent), list, link);
    $$("tr.chosen").forEach((other) => other.classList.remove("chosen"));
    row.classList.add("chosen");
  }

  // ---- layers -------------------------------------------------------------------------------------------------
  const drawings = $$("figure.layer");

  function mark(box) {
    const drawing = box.closest("figure");
    $$(".op.chosen").forEach((other) => other.classList.remove("chosen"));
    box.classList.add("chosen");
    const name = box.dataset.name;
    $$(".edge").forEach((edge) => edge.classList.remove("near"));
    $$(".edge", drawing).forEach((edge) =>
      edge.classList.toggle("near", edge.dataset.from === name || edge.dataset.to === name));
    show(box.dataset.key, $("#layer-panel"));
  }

  for (const box of $$("a.op")) {
    box.addEventListener("click", (event) => {
      event.preventDefault();
      mark(box);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        event.preventDefault();
        mark(box);
      }
    });
  }

  function chooseLayers() {
    if (!drawings.length) return;
    const bar = $("#layer-filters");
    const unique = (name, among) => [...new Set(among.map((drawing) => drawing.dataset[name]))];
    const [first, configuration] = choice("Configuration", unique("configuration", drawings));
    const [second, stage] = choice("Stage", unique("stage", drawings), "both");
    const [third, block] = choice("Layer", []);
    bar.append(...(configuration.length > 1 ? [first] : []), second, third);
    function blocks() {
      const own = drawings.filter((drawing) => drawing.dataset.configuration === configuration.value);
      const before = block.value;
      const found = unique("block", own);
      block.replaceChildren(...found.map((name) => make("option", name, { value: name })));
      block.value = found.includes(before) ? before : heaviest(own);
    }
    function heaviest(own) {
      const most = own.reduce((a, b) => ($$("a.op", b).length > $$("a.op", a).length ? b : a));
      return most.dataset.block;
    }
    function apply() {
      for (const drawing of drawings) {
        const { configuration: c, stage: s, block: b } = drawing.dataset;
        drawing.hidden = c !== configuration.value || b !== block.value || (stage.value !== "" && s !== stage.value);
      }
    }
    bar.addEventListener("input", () => {
      blocks();
      apply();
    });
    blocks();
    apply();
  }
  chooseLayers();

  // ---- embedded compressed data -------------------------------------------------------------------------------
  async function decompress(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const download = $("#download");
  if (download && "DecompressionStream" in window) {
    download.hidden = false;
    download.addEventListener("click", async () => {
      const link = make("a", "", { download: "points.csv" });
      link.href = URL.createObjectURL(new Blob([await decompress("points-csv")], { type: "text/csv" }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  // ---- charts -------------------------------------------------------------------------------------------------
  const figures = JSON.parse(document.getElementById("figures").textContent);

  function coloured(part, style) {
    if (typeof part === "string") {
      if (!part.startsWith("--")) return part;
      return style.getPropertyValue(part === "--link" ? "--link-bound" : part).trim() || part;
    }
    if (Array.isArray(part)) return part.map((one) => coloured(one, style));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([name, one]) => [name, coloured(one, style)]));
    }
    return part;
  }

  function themed(figure) {
    const style = getComputedStyle(document.documentElement);
    const [ink, grid, paper] = ["--ink", "--grid", "--paper"].map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: ink, tickcolor: ink, ticks: "outside", automargin: true };
    const layout = coloured(figure.layout, style);
    return [
      coloured(figure.data, style),
      {
        ...layout,
        font: { family: "system-ui, sans-serif", size: 13, color: ink },
        paper_bgcolor: paper,
        plot_bgcolor: paper,
        margin: { l: 70, r: 44, t: 10, b: 50 },
        modebar: { orientation: "v", color: style.getPropertyValue("--soft").trim(), activecolor: ink },
        separators: ".,",
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
        hoverlabel: { bgcolor: paper, bordercolor: ink, font: { color: ink, size: 13 }, align: "left", namelength: -1 },
        xaxis: { ...axis, ...layout.xaxis },
        yaxis: { ...axis, ...layout.yaxis },
      },
    ];
  }

  const phone = matchMedia("(max-width: 40rem)");

  // On a phone markers are half as large, and names, which a tap shows as well, are left out.
  function fitted([data, layout]) {
    for (const trace of data) {
      if (trace.mode === "lines+markers+text") trace.mode = "lines";
      if (Array.isArray(trace.marker?.size)) trace.marker.size = trace.marker.size.map((size) => size / 2 + (size && 2));
    }
    return [data, { ...layout, annotations: [], margin: { l: 48, r: 12, t: 10, b: 46 } }];
  }

  // A roof belongs to the configurations in `meta` and hides with the last of them.
  function hideRoofs(place) {
    const hidden = new Set(place.data.filter((one) => one.visible === "legendonly").map((one) => one.legendgroup));
    const changed = place.data.flatMap((one, at) => {
      if (!Array.isArray(one.meta)) return [];
      const visible = one.meta.every((name) => hidden.has(name)) ? "legendonly" : true;
      return (one.visible ?? true) === visible ? [] : [[at, visible]];
    });
    if (changed.length) {
      window.Plotly.restyle(place, { visible: changed.map(([, visible]) => visible) }, changed.map(([at]) => at));
    }
  }

  async function draw(figure, extra = {}) {
    const place = document.getElementById(`plot-${figure.key}`);
    const full = themed(figure);
    const [data, layout] = figure.key === "roofline" && phone.matches ? fitted(full) : full;
    const config = {
      responsive: true,
      displaylogo: false,
      modeBarButtonsToRemove: ["lasso2d", "select2d", "sendChartToCloud"],
      showSendToCloud: false, // plotly.js 4 offers to upload a chart to its vendor's server
      plotlyServerURL: "",
    };
    if (!place.drawn) place.replaceChildren();
    await window.Plotly.react(place, data, { ...layout, ...extra }, config);
    if (!place.drawn && figure.key === "roofline") {
      place.on("plotly_click", (event) => {
        const key = event.points[0].customdata;
        if (key) show(key, $("#roofline-panel"));
      });
      place.on("plotly_restyle", () => hideRoofs(place));
    }
    place.drawn = true;
  }

  async function charts() {
    if (!("DecompressionStream" in window)) return;
    const script = document.createElement("script");
    script.textContent = await decompress("plotly");
    document.head.append(script);
    for (const figure of figures) {
      await draw(figure);
      await new Promise((done) => setTimeout(done)); // let clicks and keys be handled first
    }
    document.documentElement.dataset.drawn = "yes";
    const again = () => figures.forEach((figure) => draw(figure));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    phone.addEventListener("change", again);
    matchMedia("print").addEventListener("change", (event) => print(event.matches));
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  }

  function print(on) {
    for (const one of $$("details")) {
      if (on && !one.open) one.dataset.closed = "yes";
      if (on) one.open = true;
      else if (one.dataset.closed) {
        one.open = false;
        delete one.dataset.closed;
      }
    }
    for (const figure of figures) {
      const narrow = document.getElementById(`plot-${figure.key}`).closest(".grid");
      draw(figure, on ? { width: narrow ? 330 : 680, autosize: false } : { width: undefined, autosize: true });
    }
  }

  document.getElementById("ask")?.addEventListener("click", async () => {
    open(URL.createObjectURL(new Blob([await decompress("page")], { type: "text/html" })));
  });

  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  requestAnimationFrame(() => idle(charts));
})();
