"use strict";
// Controls to the address, links between pictures, the theme.  No figures are computed.
(() => {
  const $ = (selector) => document.querySelector(selector);
  const $$ = (selector) => [...document.querySelectorAll(selector)];
  const current = () => new URLSearchParams(window.location.search);
  // Milliseconds between two changes; until text is read; until nothing moves; of one movement.
  const AT_ONCE = 80, READ = 350, SETTLED = 1500, ONE_MOVE = 1500;
  const MAX_CONFIG = 65536, MAX_QUERY = 8000; // bytes of a config.json, characters of an address, as in state.py
  const SHOWN = ["tab", "stage", "block", "operator", "colour", "against", "chains", "columns", "sums", "number", "run"]; // as in state.py
  let before = 0, later = 0, name = "", moved = 0, still = 0, seek = false, compared = "";

  // ---- the address --------------------------------------------------------------------------------------------
  // Several changes of one control in a row are one step back; an answer is asked for at once, or after the last of many.
  function go(parameters, changed = "") {
    const query = parameters.toString(), search = `?${query}`;
    if (search === window.location.search) return;
    if (query.length > MAX_QUERY) return tell(`the address would be ${query.length.toLocaleString("en")} characters long; allowed: at most ${MAX_QUERY.toLocaleString("en")}`);
    const now = Date.now();
    const same = changed && changed === name && now - moved < ONE_MOVE;
    window.history[same ? "replaceState" : "pushState"](null, "", search);
    [name, moved] = [changed, now];
    window.clearTimeout(later);
    if (now - before > AT_ONCE) ask();
    else later = window.setTimeout(ask, AT_ONCE);
  }

  function ask() {
    before = Date.now();
    const search = window.location.search;
    $("#content").setAttribute("aria-busy", "true");
    window.dash_clientside.set_props("address", { data: search });
    settle(search);
  }

  // An answer that cannot be had is told; the figures before it stay, marked as those of another question.  Where the
  // server or the network is away, it is asked again when either returns.
  const CALLBACK = "_dash-update-component", AWAY = [429, 502, 503, 504]; // statuses that pass by themselves
  const AGAIN = 2000, LONGEST = 60000; // milliseconds until it is asked again, which double
  const send = window.fetch.bind(window);
  let waiting = 0, pause = AGAIN, failed = false;

  window.fetch = async (address, given) => {
    if (!String(address?.url ?? address).includes(CALLBACK)) return send(address, given);
    try {
      const answer = await send(address, given);
      if (!answer.ok) fail(given, await reason(answer.clone()), AWAY.includes(answer.status));
      return answer;
    } catch (error) {
      fail(given, "the server cannot be reached", true);
      throw error;
    }
  };

  const reason = (answer) => answer.json().then((problem) => problem.detail, () => `the server answers ${answer.status}`);

  function fail(given, text, away) {
    const asked = JSON.parse(given?.body ?? "{}").inputs?.find((one) => one.id === "address");
    if (asked && asked.value !== window.location.search) return; // the question has changed since
    const content = $("#content");
    content?.removeAttribute("aria-busy");
    if (asked) content?.setAttribute("data-stale", "");
    const stale = asked && content?.textContent.trim() ? "; the figures shown are those of the question before" : "";
    tell(`no answer: ${text}${stale}${away ? "; it is asked again" : ""}`);
    failed = true;
    stop();
    window.clearTimeout(waiting);
    if (away) waiting = window.setTimeout(again, pause);
    pause = Math.min(2 * pause, LONGEST);
  }

  function again() {
    window.clearTimeout(waiting);
    if (failed) ask();
  }

  window.addEventListener("online", again);

  function arrived() {
    $("#content")?.removeAttribute("aria-busy");
    $("#content")?.removeAttribute("data-stale");
    const asked = $("#asked")?.textContent;
    document.title = asked ? `${asked} · llmviewer` : "llmviewer";
    window.clearTimeout(waiting);
    [failed, pause] = [false, AGAIN];
    played();
    // on a narrow screen the row of tabs scrolls
    const row = $(".parts"), part = row?.querySelector("[aria-current]");
    if (part) row.scrollLeft = Math.max(0, part.offsetLeft - row.offsetLeft - (row.clientWidth - part.clientWidth) / 2);
  }

  // What is asked of all chips: the address without the chip and what is shown of the tab.
  function question(search) {
    const parameters = new URLSearchParams(search);
    ["hardware", ...SHOWN.filter((key) => key !== "tab")].forEach((key) => parameters.delete(key));
    return parameters.toString();
  }

  // What was tried for the last question is not shown beside another answer.
  function settle(search) {
    for (const id of ["late", "sums"]) window.dash_clientside.set_props(id, { text: "" });
    if (question(search) !== compared) window.dash_clientside.set_props("strip", { pieces: [] });
    compared = question(search);
    window.clearTimeout(still);
    const data = () => ({ data: [search, Date.now()] });
    still = window.setTimeout(() => window.dash_clientside.set_props("settled", data()), SETTLED);
  }

  function change(key, value) {
    const parameters = current();
    if (value === "") parameters.delete(key);
    else parameters.set(key, value);
    return parameters;
  }

  function option(key, value) {
    const parameters = change(key, value);
    parameters.delete("run"); // answers that take seconds are asked for
    if (key === "model") ["config", "block", "operator", "chains"].forEach((one) => parameters.delete(one));
    if (key === "model" && parameters.get("number")?.includes("operators.")) parameters.delete("number");
    go(parameters, key);
  }

  // Controls show what the address says, after a step back or a click on a picture.
  function show() {
    const parameters = current();
    for (const control of $$("[data-option]")) {
      const own = control.dataset.option === "model" && parameters.has("config");
      control.value = own ? "" : parameters.get(control.dataset.option) ?? control.dataset.default ?? "";
      place(control);
    }
    const set = new Map((parameters.get("set") ?? "").split(",").map((part) => part.split("=")));
    for (const field of $$("[data-figure]")) field.value = set.get(field.dataset.figure) ?? "";
  }

  // ---- controls -----------------------------------------------------------------------------------------------
  // A menu shows the values with all the words, in their names or in that of their group.
  function search({ value, dataset }) {
    const words = value.trim().toLowerCase().split(/\s+/), menu = $(`[data-option="${dataset.search}"]`);
    const text = (one) => `${one.parentElement.label ?? ""} ${one.textContent}`.toLowerCase();
    for (const one of menu.options) one.hidden = !words.every((word) => text(one).includes(word));
    for (const group of menu.querySelectorAll("optgroup")) group.hidden = [...group.children].every((one) => one.hidden);
  }

  function first({ dataset, value }) {
    const menu = $(`[data-option="${dataset.search}"]`), found = [...menu.options].find((one) => one.value && !one.hidden);
    if (!found || !value.trim()) return tell(`no ${dataset.search === "model" ? "model" : "chip"} with the words ${value.trim() || "of an empty search"}`);
    menu.value = found.value;
    menu.focus();
    option(dataset.search, found.value);
  }

  const size = (text) => Number(text.replace(/k$/i, "")) * (/k$/i.test(text) ? 1024 : 1);

  function place(control) {
    const slider = $(`[data-slider="${control.dataset.option}"]`);
    const asked = size(control.value.trim() || (control.placeholder ?? "").replace(/^.*: /, ""));
    if (slider && asked > 0) slider.value = Math.log2(asked);
  }

  function slide(slider) {
    const field = $(`[data-option="${slider.dataset.slider}"]`);
    field.value = String(Math.round(2 ** Number(slider.value)));
    option(slider.dataset.slider, field.value);
  }

  // A size moves along its slider, half a power of two at a time, each step once the answer before it has arrived.  For who
  // wants no motion a press is one step.
  const HALF = 0.5, PACE = 700;
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  let playing = "", pace = 0;

  function step(key) {
    const slider = $(`[data-slider="${key}"]`), at = Number(slider?.value), most = Number(slider?.max);
    if (!(at < most)) return stop();
    slider.value = at < 1 ? 1 : Math.min(at + HALF, most); // there is no size between 1 and 2
    slide(slider);
  }

  function play(key) {
    const before = playing, slider = $(`[data-slider="${key}"]`);
    stop();
    if (!slider || before === key) return; // controls may come after the answer
    if (Number(slider.value) >= Number(slider.max)) slider.value = slider.min;
    if (!calm.matches) playing = key;
    step(key);
    plays();
  }

  function stop() {
    window.clearTimeout(pace);
    playing = "";
    plays();
  }

  // The next step, unless the last one has no answer; the buttons say what a press does.
  function played() {
    plays();
    window.clearTimeout(pace);
    if (playing && !$("#answer").childElementCount) stop();
    if (playing) pace = window.setTimeout(() => step(playing), PACE);
  }

  function plays() {
    for (const button of $$("[data-act^=play]")) {
      button.dataset.title ??= button.textContent;
      const verb = button.dataset.act === `play-${playing}` ? "Stop" : calm.matches ? "Step" : "Play";
      button.textContent = button.dataset.title.replace("Play", verb);
    }
  }

  // Fields of single figures make the text of --set; figures without a field stay.
  function figures() {
    const fields = $$("[data-figure]"), own = fields.map((field) => field.dataset.figure);
    const others = (current().get("set") ?? "").split(",").filter((part) => part.includes("=") && !own.includes(part.split("=")[0]));
    const given = fields.filter((field) => field.value.trim()).map((field) => `${field.dataset.figure}=${field.value.trim()}`);
    const text = [...given, ...others].join(",");
    $('[data-option="set"]').value = text;
    option("set", text);
  }

  // A link leads to another part of the answer; it may be older than the last change of the question, which stays.
  function follow(wanted) {
    const parameters = current();
    for (const key of SHOWN) {
      if (wanted.has(key)) parameters.set(key, wanted.get(key));
      else parameters.delete(key);
    }
    go(parameters);
  }

  // A change that was tried, which the controls then show; no value unsets.
  function apply(words) {
    const parameters = current();
    for (const [key, value] of words) {
      if (value) parameters.set(key, value); else parameters.delete(key);
    }
    parameters.delete("run");
    go(parameters);
    show();
  }

  function shown(menu) {
    const key = menu.dataset.shown;
    seek = key === "operator";
    const parameters = change(key, menu.value);
    if (key === "block" || key === "stage") parameters.delete("operator");
    go(parameters, key);
  }

  // Columns that are chosen, unless all are.
  function columns() {
    const boxes = $$("[data-column]"), chosen = boxes.filter((box) => box.checked).map((box) => box.dataset.column);
    go(change("columns", chosen.length < boxes.length ? chosen.join(",") || "operator" : ""), "columns");
  }

  // A config.json goes into the address, without white space between its fields, packed as state.py unpacks it.
  async function read(file) {
    if (!file) return;
    if (file.size > MAX_CONFIG) return tell(`the file has ${file.size.toLocaleString("en")} bytes; a config.json of at most ${MAX_CONFIG.toLocaleString("en")} is read`);
    const content = (await file.text()).replace(/("(?:[^"\\]|\\.)*")|\s+/g, (_, text) => text ?? "");
    const packed = new Response(new Blob([content]).stream().pipeThrough(new CompressionStream("deflate")));
    const bytes = new Uint8Array(await packed.arrayBuffer());
    const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    const parameters = current();
    ["block", "operator", "chains", "run"].forEach((key) => parameters.delete(key));
    parameters.set("config", text.replaceAll("+", "-").replaceAll("/", "_"));
    go(parameters);
  }

  // A line of this script, in the place that the next answer fills.
  function tell(text) {
    const line = document.createElement("p");
    Object.assign(line, { className: "alert", textContent: text });
    line.setAttribute("role", "alert");
    window.dash_clientside.set_props("alert", { text: line.outerHTML });
  }

  const acts = {
    "play-input_len": () => play("input_len"),
    "play-batch_size": () => play("batch_size"),
    remove: () => go(change("config", "")),
    reset: () => {
      const parameters = current();
      for (const key of [...parameters.keys()]) if (!["model", "hardware", "config", "tab", "stage", "colour"].includes(key)) parameters.delete(key);
      go(parameters);
      show();
    },
    forget: () => go(change("with", "")),
    keep: () => {
      const parameters = current(), own = current();
      ["with", ...SHOWN].forEach((key) => own.delete(key));
      if (!own.toString()) own.set("model", $('[data-option="model"]').value);
      parameters.append("with", own.toString());
      go(parameters);
    },
    copy: (button) => navigator.clipboard.writeText($(`#${button.dataset.of}`).textContent).then(() => {
      button.textContent = "Copied";
      window.setTimeout(() => (button.textContent = "Copy"), 1500);
    }),
  };

  document.addEventListener("input", ({ target }) => {
    stop();
    if (target.dataset?.slider) slide(target);
    else if (target.dataset?.search) search(target);
    else if (target.matches?.('input[data-option], input[data-figure]')) {
      window.clearTimeout(target.reading);
      target.reading = window.setTimeout(() => written(target), READ);
    }
  });

  function written(target) {
    window.clearTimeout(target.reading);
    if (target.dataset.figure) return figures();
    place(target);
    option(target.dataset.option, target.value.trim());
  }

  document.addEventListener("change", ({ target }) => {
    if (target.matches('input[data-option], input[data-figure]')) written(target);
    else if (target.dataset.option) option(target.dataset.option, target.value);
    else if (target.dataset.shown) shown(target);
    else if (target.dataset.column) columns();
    else if (target.id === "file") {
      read(target.files[0]);
      target.value = ""; // so that the same file can be chosen again
    }
  });

  document.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!event.target.matches("[data-ask]")) return;
    const parameters = current();
    for (const [key, value] of new FormData(event.target)) parameters.set(key, value);
    parameters.set("run", parameters.get("tab"));
    go(parameters);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]"), link = event.target.closest("a[data-go], a[data-set]");
    if (!button?.dataset.act.startsWith("play")) stop();
    if (button) acts[button.dataset.act](button);
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.dataset.set) apply(new URLSearchParams(link.dataset.set));
    else follow(new URLSearchParams(link.search));
  });

  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $("#drop")?.classList.toggle("over", kind === "dragover");
      if (kind === "drop") read(event.dataTransfer.files[0]);
    });
  }

  document.addEventListener("keydown", ({ key, target }) => {
    if (key === "Escape") stop();
    if (key === "Enter" && target.dataset?.search) first(target);
  });

  window.addEventListener("popstate", () => {
    stop();
    name = ""; // the next change is a step of its own
    show();
    ask();
  });

  // ---- pictures -----------------------------------------------------------------------------------------------
  // An operator's key says its stage: op0-p3 is the fourth operator of the prefill.
  function choose(key, more = {}) {
    if (!key) return;
    const parameters = current();
    for (const [one, value] of Object.entries(more)) parameters.set(one, value);
    parameters.set("operator", key);
    if (parameters.get("stage") !== "request") parameters.set("stage", key.includes("-p") ? "prefill" : "decode");
    go(parameters, "operator");
  }

  function tapped(data) {
    if (data?.operator) return choose(data.operator);
    if (data?.chain) return unfold(data.chain);
    if (data?.block) {
      const parameters = change("block", data.block);
      parameters.delete("operator");
      go(parameters, "block");
    }
  }

  // The address has the chains of operators that are unfolded, or a word for all of them.
  function unfold(chain) {
    const before = (current().get("chains") ?? "").split(",").filter((one) => one && one !== "folded");
    go(change("chains", [...before, chain].join(",")), "chains");
  }

  const clicked = (event) => choose(event?.points?.[0]?.customdata);
  const picked = (event) => event?.points?.[0]?.customdata && apply([["hardware", event.points[0].customdata]]);
  const clicks = { roofline: clicked, "fits-on": picked }; // by the id of a graph
  const selected = (rows) => choose(rows?.[0]?.key, { tab: "network", block: rows?.[0]?.block ?? "" });

  function mark_node(event) {
    const cy = $("#network")?._cyreg?.cy, key = event?.points?.[0]?.customdata;
    if (cy && key) {
      cy.nodes(".near").removeClass("near");
      cy.nodes().filter((one) => one.data("keys")?.includes(key)).addClass("near");
    }
  }

  function mark_point(data) {
    const plot = $("#roofline");
    if (!plot?.data || !data?.operator) return;
    plot.data.forEach((trace, curveNumber) => {
      const pointNumber = (trace.customdata || []).indexOf(data.operator);
      if (pointNumber >= 0) window.Plotly.Fx.hover(plot, [{ curveNumber, pointNumber }]);
    });
  }

  // ---- begin --------------------------------------------------------------------------------------------------
  // The address and the theme of the system; on a narrow screen the answer comes first, and the question opens on demand.
  function begin() {
    $("#question").open = !window.matchMedia("(max-width: 64rem)").matches;
    settle(window.location.search);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const theme = () => (dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => window.dash_clientside.set_props("theme", { data: theme() }));
    return [window.location.search, theme()];
  }

  // ---- elements -----------------------------------------------------------------------------------------------
  const make = (...given) => window.React.createElement(...given);

  // Libraries arrive with the first tab that needs them: pictures, the table of operators, the network.
  const libraries = {};
  const script = (source, global) => new Promise((resolve) => {
    const tag = Object.assign(document.createElement("script"), { src: source });
    tag.addEventListener("load", () => resolve(window[global]));
    document.head.append(tag);
  });
  const library = (global, source) => (libraries[global] ??= script(source ?? $(`meta[name="library:${global}"]`).content, global));
  const drawing = () => library("Plotly", "plotly.min.js");

  function arriving(global) {
    const [found, set] = window.React.useState(window[global]);
    window.React.useEffect(() => { library(global).then(set); }, []);
    return found;
  }

  // On a narrow screen the names of bars take two lines and their legend a row each; roofs are named, not their ridge.
  const NARROW = 480, ROW = 20; // pixels
  const narrow = () => window.innerWidth < NARROW;
  const bars = (data) => data.some((trace) => trace.orientation === "h");
  const broken = (trace) => ({ ...trace, y: trace.y.map((row) => row.replace(", ", ",<br>")) });
  const quiet = (trace) => (trace.text?.some?.((word) => word?.startsWith?.("ridge")) ? { ...trace, text: [] } : trace);
  const fitting = (data) => (narrow() ? data.map(bars(data) ? broken : quiet) : data);

  // A figure is drawn into the same place as the one before it.
  function Figure({ one }) {
    const place = window.React.useRef(null);
    window.React.useEffect(() => {
      drawing().then(async (library) => {
        if (!place.current) return;
        const fresh = !place.current.classList.contains("js-plotly-plot");
        await library.react(place.current, fitting(one.figure.data), one.figure.layout, one.config);
        if (!fresh || !clicks[one.id]) return;
        place.current.on("plotly_click", clicks[one.id]);
        if (one.id === "roofline") place.current.on("plotly_hover", mark_node);
      });
    }, [one]);
    window.React.useEffect(() => () => place.current && window.Plotly?.purge(place.current), []);
    const height = one.height + (narrow() && bars(one.figure.data) ? ROW * one.figure.data.length : 0);
    return make("div", { id: one.id, ref: place, role: "group", "aria-label": one.label, style: { height } });
  }

  const graph_of = (place) => place?.querySelector("#network")?._cyreg?.cy;
  const fit = (cy) => cy.fit(undefined, 12);

  // Cytoscape's own observer of its size outlives it and fails; this one ends with the element.
  function fitted(place) {
    const seen = new ResizeObserver(() => {
      const cy = graph_of(place);
      if (!cy || cy.destroyed()) return;
      cy.resize();
      fit(cy);
    });
    seen.observe(place);
    // a finger scrolls the page: it neither moves the graph, nor does Cytoscape keep its events from the page
    place.addEventListener("touchstart", () => graph_of(place)?.userPanningEnabled(false), true);
    const left = (event) => Object.assign(event, { preventDefault() {} });
    place.addEventListener("touchmove", left);
    place.addEventListener("touchend", (event) => event.cancelable || left(event));
    return () => seen.disconnect();
  }

  // On a narrow screen operators stand below the blocks, at a size that can be read.
  function stacked({ network, label, stacked: { left, across, down, width, height } }) {
    const moved = ({ x, y }) => (x < left ? { x, y } : { x: x - across, y: y + down });
    const elements = network.elements.map((one) => (one.position ? { ...one, position: moved(one.position) } : one));
    return { network: { ...network, elements }, label, width, height };
  }

  const zoom = (factor) => (cy) => cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  const ZOOM = 1.25;
  const zooms = { "+": zoom(ZOOM), "−": zoom(1 / ZOOM), Fit: fit };
  const KEYS = { "+": "+", "=": "+", "-": "−", 0: "Fit" };

  const paper = () => getComputedStyle(document.body).backgroundColor;
  const save = (href, download) => Object.assign(document.createElement("a"), { href, download }).click();
  const safe = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

  // The graph as SVG: edges through their bends, boxes with their lines of text.
  function vector(cy) {
    const { x1, y1, w, h } = cy.elements().boundingBox(), edge = cy.edges().first();
    const line = (one) => [one.sourceEndpoint(), ...(one.segmentPoints() ?? []), one.targetEndpoint()].map(({ x, y }) => `${x},${y}`).join(" ");
    const edges = cy.edges().map((one) => `<polyline points="${line(one)}" fill="none" stroke="${one.style("line-color")}" marker-end="url(#end)"/>`);
    const nodes = cy.nodes().map((one) => {
      const { x, y } = one.position(), style = (name) => one.style(name), size = parseFloat(style("font-size"));
      const rows = style("label").split("\n"), top = y - ((rows.length - 1) / 2 - 0.35) * size * 1.1;
      const dashes = style("border-style") === "dashed" ? ' stroke-dasharray="5 3"' : "";
      const text = rows.map((row, at) => `<tspan x="${x}" y="${top + at * size * 1.1}">${safe(row)}</tspan>`).join("");
      return `<rect x="${x - one.width() / 2}" y="${y - one.height() / 2}" width="${one.width()}" height="${one.height()}" rx="6" fill="${style("background-color")}" fill-opacity="${style("background-opacity")}" stroke="${style("border-color")}" stroke-width="${style("border-width")}"${dashes}/><text font-size="${size}" fill="${style("color")}" text-anchor="middle">${text}</text>`;
    });
    const arrow = `<marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="${edge.style("line-color")}"/></marker>`;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${x1 - 12} ${y1 - 12} ${w + 24} ${h + 24}" width="${w + 24}" height="${h + 24}" font-family="system-ui, sans-serif"><title>${safe($("#asked").textContent)}</title><defs>${arrow}</defs><rect x="${x1 - 12}" y="${y1 - 12}" width="100%" height="100%" fill="${paper()}"/>${edges.join("")}${nodes.join("")}</svg>`;
  }

  const pictures = {
    PNG: (cy) => save(cy.png({ full: true, scale: 2, bg: paper() }), "network.png"),
    SVG: (cy) => save(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(vector(cy))}`, "network.svg"),
  };

  // The operator that was chosen by name comes into sight.
  function found(place) {
    const node = graph_of(place)?.nodes(".operator.chosen");
    if (!seek || !node?.length) return;
    seek = false;
    const y = place.getBoundingClientRect().top + node.renderedPosition().y;
    if (y < 0 || y > window.innerHeight) window.scrollBy({ top: y - window.innerHeight / 2 });
  }

  // Boxes have their own size: beside the blocks where there is room, else below them, and the page scrolls.
  function Network({ one: given }) {
    const place = window.React.useRef(null), told = window.React.useRef(null);
    const [room, measured] = window.React.useState(0);
    window.React.useLayoutEffect(() => measured(place.current.parentElement.clientWidth));
    const one = room < given.width ? stacked(given) : given;
    const cytoscape = arriving("dash_cytoscape");
    window.React.useEffect(() => fitted(place.current), []);
    window.React.useEffect(() => { window.setTimeout(() => found(place.current), AT_ONCE); }, [given, cytoscape]);
    const events = (given) => {
      if (given.tapNodeData) tapped(given.tapNodeData);
      if (!given.mouseoverNodeData) return;
      mark_point(given.mouseoverNodeData);
      told.current.textContent = given.mouseoverNodeData.card ?? "";
    };
    const graph = { ...one.network, style: { width: "100%", height: "100%" }, setProps: events };
    // another block has other places, which a new drawing fits into the frame
    const key = one.network.elements.map((element) => element.data.id ?? "").join(" ");
    const drawn = cytoscape && room > 0 && make(cytoscape.Cytoscape, { ...graph, key });
    const frame = { aspectRatio: `${one.width} / ${one.height}`, maxWidth: one.width };
    const act = (name) => () => graph_of(place.current) && zooms[name](graph_of(place.current));
    const pressed = (event) => KEYS[event.key] && !event.ctrlKey && !event.metaKey && act(KEYS[event.key])();
    return make("div", null,
      make("div", { className: "zoom" },
        ...Object.keys(zooms).map((name) => make("button", { key: name, type: "button", onClick: act(name), "aria-label": { "+": "Larger", "−": "Smaller" }[name] }, name)),
        ...Object.keys(pictures).map((name) => make("button", { key: name, type: "button", onClick: () => graph_of(place.current) && pictures[name](graph_of(place.current)) }, name)),
        make("output", { ref: told })),
      make("div", { ref: place, role: "img", tabIndex: 0, onKeyDown: pressed, "aria-label": `${one.label}; + and − zoom, 0 fits`, className: "network", style: frame }, drawn));
  }

  // Rows that a filter of the table leaves, whose sums the server makes.
  function summed() {
    const keys = [];
    window.dash_ag_grid.getApi("operators").forEachNodeAfterFilter(({ data }) => keys.push(data.key));
    window.dash_clientside.set_props("rows", { data: [window.location.search, keys] });
  }

  function Grid({ one }) {
    const library = arriving("dash_ag_grid");
    const events = (given) => {
      if (given.selectedRows?.length) selected(given.selectedRows);
      if (given.virtualRowData) summed();
    };
    const columnDefs = one.grid.columnDefs.map((column) => (narrow() ? { ...column, pinned: null } : column));
    return library && make(library.AgGrid, { ...one.grid, columnDefs, setProps: events });
  }

  function kind(one) {
    if (one.pieces) return make("div", { className: one.look }, one.pieces.map(keyed));
    if (one.figure) return make(Figure, { one });
    if (one.network) return make(Network, { one });
    if (one.grid) return make(Grid, { one });
    return make(Html, { one });
  }

  function Html({ one }) {
    const place = window.React.useRef(null), before = kept(place.current);
    window.React.useLayoutEffect(() => restore(place.current, before), [one.html]);
    // what scrolls by itself takes the focus, so that keys scroll it
    const scrolls = one.label ? { tabIndex: 0, role: "group", "aria-label": one.label } : {};
    return make("div", { className: one.look, ref: place, ...scrolls, dangerouslySetInnerHTML: { __html: one.html } });
  }

  // Pieces of one kind at one place are the same element before and after a change.
  const keyed = (one, at) => make(window.React.Fragment, { key: `${at} ${one.id ?? Object.keys(one)[0]}` }, kind(one));

  // Other HTML at a place, as controls where other values became possible, has the same parts open and the same control
  // in focus.
  function kept(place) {
    const open = [...(place?.querySelectorAll("details[open] > summary") ?? [])].map((one) => one.textContent);
    const focus = place?.contains(document.activeElement) ? document.activeElement.dataset : {};
    return { open, focus: ["option", "shown", "column"].filter((key) => focus[key]).map((key) => `[data-${key}="${focus[key]}"]`)[0] };
  }

  function restore(place, { open, focus }) {
    for (const one of place.querySelectorAll("details > summary")) if (open.includes(one.textContent)) one.parentElement.open = true;
    if (focus) place.querySelector(focus)?.focus({ preventScroll: true });
  }

  // Text is HTML that the server made of templates, in which it escaped all data.
  window.llmviewer_web = {
    Markup: ({ id, text, className }) => {
      const place = window.React.useRef(null), before = kept(place.current);
      window.React.useLayoutEffect(() => {
        restore(place.current, before);
        if (id === "side") show(); // the address may have changed since these controls were asked for
      }, [text]);
      return make("div", { id, className, ref: place, dangerouslySetInnerHTML: { __html: text || "" } });
    },
    Answer: ({ id, pieces }) => {
      window.React.useEffect(() => { if (id === "answer") arrived(); }, [pieces]);
      return make("div", { id }, (pieces || []).map(keyed));
    },
  };
  window.dash_clientside = Object.assign(window.dash_clientside || {}, {
    viewer: { begin },
  });
})();
