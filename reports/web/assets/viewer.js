"use strict";
// Controls to the address, links between pictures, the theme.  No figures are computed.
(() => {
  const $ = (selector) => document.querySelector(selector);
  const $$ = (selector) => [...document.querySelectorAll(selector)];
  const keep = () => window.dash_clientside.no_update;
  const current = () => new URLSearchParams(window.location.search);
  // Milliseconds between two changes; until text is read; until nothing moves; of one movement of a slider.
  const AT_ONCE = 80, READ = 350, SETTLED = 1500, ONE_MOVE = 1500;
  const MAX_CONFIG = 65536; // bytes of a config.json, as in state.py
  let before = 0, later = 0, name = "", moved = 0, still = 0;

  // ---- the address --------------------------------------------------------------------------------------------
  // Several changes of one control in a row are one step back; an answer is asked for at once, or after the last of many.
  function go(parameters, changed = "") {
    const search = `?${parameters.toString()}`;
    if (search === window.location.search) return;
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
    window.dash_clientside.set_props("address", { search });
    settle(search);
  }

  function settle(search) {
    window.clearTimeout(still);
    still = window.setTimeout(() => window.dash_clientside.set_props("settled", { data: search || "?" }), SETTLED);
  }

  function change(key, value, standard) {
    const parameters = current();
    if (value === "" || value === standard) parameters.delete(key);
    else parameters.set(key, value);
    return parameters;
  }

  function option(key, value) {
    const parameters = change(key, value, $(`[data-option="${key}"]`)?.dataset.default);
    parameters.delete("run"); // answers that take seconds are asked for
    if (key === "model") ["config", "block", "operator"].forEach((one) => parameters.delete(one));
    go(parameters, key);
  }

  // Controls show what the address says, after a step back or a click on a picture.
  function show() {
    const parameters = current();
    for (const control of $$("[data-option]")) {
      control.value = parameters.get(control.dataset.option) ?? control.dataset.default;
      place(control);
    }
    const set = new Map((parameters.get("set") ?? "").split(",").map((part) => part.split("=")));
    for (const field of $$("[data-figure]")) field.value = set.get(field.dataset.figure) ?? "";
  }

  // ---- controls -----------------------------------------------------------------------------------------------
  const size = (text) => Number(text.replace(/k$/i, "")) * (/k$/i.test(text) ? 1024 : 1);

  function place(control) {
    const slider = $(`[data-slider="${control.dataset.option}"]`);
    if (slider && size(control.value) > 0) slider.value = Math.log2(size(control.value));
  }

  function slide(slider) {
    const field = $(`[data-option="${slider.dataset.slider}"]`);
    field.value = String(Math.round(2 ** Number(slider.value)));
    option(slider.dataset.slider, field.value);
  }

  // Fields of single figures make the text of --set; figures without a field stay.
  function figures() {
    const fields = $$("[data-figure]"), own = fields.map((field) => field.dataset.figure);
    const others = (current().get("set") ?? "").split(",").filter((part) => part.includes("=") && !own.includes(part.split("=")[0]));
    const given = fields.filter((field) => field.value.trim()).map((field) => `${field.dataset.figure}=${field.value.trim()}`);
    const text = [...given, ...others].join(",");
    $('[data-option="set"]').value = text || "none";
    option("set", text);
  }

  function shown(menu) {
    const key = menu.dataset.shown;
    const parameters = change(key, menu.value, "");
    if (key === "block" || key === "stage") parameters.delete("operator");
    go(parameters, key);
  }

  // A config.json goes into the address, packed as state.py unpacks it.
  async function read(file) {
    if (!file) return;
    if (file.size > MAX_CONFIG) return tell(`the file has ${file.size.toLocaleString("en")} bytes; a config.json of at most ${MAX_CONFIG.toLocaleString("en")} is read`);
    const packed = new Response(file.stream().pipeThrough(new CompressionStream("deflate")));
    const bytes = new Uint8Array(await packed.arrayBuffer());
    const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    const parameters = current();
    ["block", "operator", "run"].forEach((key) => parameters.delete(key));
    parameters.set("config", text.replaceAll("+", "-").replaceAll("/", "_"));
    go(parameters);
  }

  function tell(text) {
    const line = document.createElement("p");
    Object.assign(line, { className: "alert", textContent: text, role: "alert" });
    $("#alert").replaceChildren(line);
  }

  const acts = {
    remove: () => go(change("config", "")),
    forget: () => go(change("with", "")),
    keep: () => {
      const parameters = current(), own = current();
      ["with", "tab", "stage", "block", "operator", "colour", "run"].forEach((key) => own.delete(key));
      parameters.append("with", own.toString());
      go(parameters);
    },
    copy: (button) => navigator.clipboard.writeText($(`#${button.dataset.of}`).textContent).then(() => {
      button.textContent = "Copied";
      window.setTimeout(() => (button.textContent = "Copy"), 1500);
    }),
  };

  document.addEventListener("input", ({ target }) => {
    if (target.dataset?.slider) slide(target);
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
    else if (target.id === "file") read(target.files[0]);
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
    const button = event.target.closest("[data-act]"), link = event.target.closest("a[data-go]");
    if (button) acts[button.dataset.act](button);
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(new URLSearchParams(link.search));
  });

  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $("#drop")?.classList.toggle("over", kind === "dragover");
      if (kind === "drop") read(event.dataTransfer.files[0]);
    });
  }

  window.addEventListener("popstate", () => {
    show();
    settle(window.location.search);
  });

  // ---- pictures -----------------------------------------------------------------------------------------------
  // An operator's key says its stage: op0-p3 is the fourth operator of the prefill.
  function choose(key, more = {}) {
    if (!key) return keep();
    const parameters = current();
    for (const [one, value] of Object.entries(more)) parameters.set(one, value);
    parameters.set("operator", key);
    if (parameters.get("stage") !== "request") parameters.set("stage", key.includes("-p") ? "prefill" : "decode");
    go(parameters, "operator");
    return keep();
  }

  function tapped(data) {
    if (data?.operator) return choose(data.operator);
    if (data?.block) {
      const parameters = change("block", data.block, "");
      parameters.delete("operator");
      go(parameters, "block");
    }
    return keep();
  }

  const clicked = (event) => choose(event?.points?.[0]?.customdata);
  const selected = (rows) => choose(rows?.[0]?.key, { tab: "network", block: rows?.[0]?.block ?? "" });

  function mark_node(event) {
    const cy = $("#network")?._cyreg?.cy, key = event?.points?.[0]?.customdata;
    if (cy && key) {
      cy.nodes(".near").removeClass("near");
      cy.nodes(`[operator = "${key}"]`).addClass("near");
    }
    return keep();
  }

  function mark_point(data) {
    const plot = $("#roofline .js-plotly-plot");
    if (!plot || !data?.operator) return keep();
    plot.data.forEach((trace, curveNumber) => {
      const pointNumber = (trace.customdata || []).indexOf(data.operator);
      if (pointNumber >= 0) window.Plotly.Fx.hover(plot, [{ curveNumber, pointNumber }]);
    });
    return keep();
  }

  // ---- begin --------------------------------------------------------------------------------------------------
  // The theme of the system; on a narrow screen the answer comes first, and the question opens on demand.
  function begin() {
    $("#question").open = !window.matchMedia("(max-width: 64rem)").matches;
    settle(window.location.search);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const theme = () => (dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => window.dash_clientside.set_props("theme", { data: theme() }));
    return theme();
  }

  // HTML that the server made of templates, in which it escaped all data.
  window.llmviewer_web = {
    Markup: ({ id, text, className }) =>
      window.React.createElement("div", { id, className, dangerouslySetInnerHTML: { __html: text || "" } }),
  };
  window.dash_clientside = Object.assign(window.dash_clientside || {}, {
    viewer: { begin, tapped, clicked, selected, mark_node, mark_point },
  });
})();
