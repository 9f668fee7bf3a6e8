"use strict";
// Controls to the address, links between pictures, the theme.  No figures are computed.
(() => {
  const keep = () => window.dash_clientside.no_update;
  const current = () => new URLSearchParams(window.location.search);
  const AT_ONCE = 80, SETTLED = 1500, ONE_MOVE = 1500; // milliseconds
  let before = 0, waiting = null, name = "", moved = 0;

  // The address with other values; several changes of one control in a row are one step back.
  function go(parameters, changed) {
    const search = `?${parameters.toString()}`;
    if (search === window.location.search) return keep();
    const now = Date.now();
    if (changed && changed === name && now - moved < ONE_MOVE) window.history.replaceState(null, "", search);
    [name, moved] = [changed, now];
    return search;
  }

  // Calls at once, or a moment after the last of many changes.
  function calmed(make) {
    const now = Date.now();
    if (waiting) waiting(keep());
    waiting = null;
    if (now - before > AT_ONCE) {
      before = now;
      return make();
    }
    return new Promise((resolve) => {
      waiting = resolve;
      setTimeout(() => {
        if (waiting !== resolve) return;
        waiting = null;
        before = Date.now();
        resolve(make());
      }, AT_ONCE);
    });
  }

  function changed(options, shown, optionIds, shownIds, defaults) {
    const pairs = [...optionIds.map((id, at) => [id.name, options[at]]), ...shownIds.map((id, at) => [id.name, shown[at]])];
    const parameters = current();
    let last = "";
    const moved = triggered().filter((id) => id.includes('"shown"'));
    for (const [key, value] of pairs) {
      // switches that the server has just drawn show what it chose, which the address need not say
      if (shownIds.some((id) => id.name === key) && !(moved.length === 1 && moved[0].includes(`"${key}"`))) continue;
      const text = value === null || value === undefined ? "" : String(value);
      const own = parameters.get(key) ?? defaults[key] ?? "";
      if (text === own || (text === "" && !parameters.has(key))) continue;
      if (key === "operator" && text === "") continue;
      if (text === "" || text === defaults[key]) parameters.delete(key);
      else parameters.set(key, text);
      if (key === "block" || key === "stage") parameters.delete("operator");
      last = key;
    }
    if (optionIds.some((id) => id.name === last)) parameters.delete("run"); // answers that take seconds are asked for
    return last ? calmed(() => go(parameters, last)) : keep();
  }

  // An operator's key says its stage: op0-p3 is the fourth operator of the prefill.
  function choose(key) {
    if (!key) return keep();
    const parameters = current();
    parameters.set("operator", key);
    if (key.includes("-p")) parameters.set("stage", "prefill");
    else parameters.delete("stage");
    return go(parameters, "operator");
  }

  function tapped(data) {
    if (!data) return keep();
    if (data.operator) return choose(data.operator);
    if (!data.block) return keep();
    const parameters = current();
    parameters.set("block", data.block);
    parameters.delete("operator");
    return go(parameters, "block");
  }

  const clicked = (event) => choose(event?.points?.[0]?.customdata);

  function selected(rows) {
    const key = rows?.[0]?.key;
    if (!key) return keep();
    const parameters = current();
    parameters.set("tab", "network");
    parameters.set("operator", key);
    parameters.set("block", rows[0].block);
    if (key.includes("-p")) parameters.set("stage", "prefill");
    else parameters.delete("stage");
    return go(parameters, "operator");
  }

  // The fields of a form; the server answers them where the address says so.
  function asked(clicks, values, ids) {
    if (!clicks) return keep();
    const parameters = current();
    ids.forEach((id, at) => {
      if (values[at]) parameters.set(id.name, values[at]);
      else parameters.delete(id.name);
    });
    parameters.set("run", parameters.get("tab"));
    return go(parameters, "");
  }

  function kept(clicks) {
    if (!clicks) return keep();
    const parameters = current();
    const own = new URLSearchParams(parameters);
    for (const key of ["with", "tab", "stage", "block", "operator", "colour"]) own.delete(key);
    parameters.append("with", own.toString());
    return go(parameters, "");
  }

  const without = (...keys) => (clicks) => {
    if (!clicks) return keep();
    const parameters = current();
    keys.forEach((key) => parameters.delete(key));
    return go(parameters, "");
  };

  // The theme of the system; on a narrow screen the answer comes first, and the question opens on demand.
  function theme() {
    document.getElementById("question").open = !window.matchMedia("(max-width: 64rem)").matches;
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const now = () => (dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => window.dash_clientside.set_props("theme", { data: now() }));
    return now();
  }

  let last = 0;
  function settled(search) {
    const own = ++last;
    return new Promise((resolve) => setTimeout(() => resolve(own === last ? search || "?" : keep()), SETTLED));
  }

  const triggered = () => window.dash_clientside.callback_context.triggered.map((one) => one.prop_id);

  // A slider runs over powers of two; whichever of field and slider was moved sets the other.
  function slid(power, text) {
    const moved = triggered();
    if (moved.length !== 1) return [keep(), keep()];
    const size = Number(text.replace(/k$/i, "")) * (/k$/i.test(text) ? 1024 : 1);
    if (!moved[0].includes("slider")) return [keep(), size > 0 ? Math.log2(size) : keep()];
    return [size > 0 && Math.abs(Math.log2(size) - power) < 0.01 ? keep() : String(Math.round(2 ** power)), keep()];
  }

  // Fields of single figures make the text of --set; figures without a field stay.
  function figures(values, ids, whole) {
    const names = ids.map((id) => id.name);
    const others = (whole || "").split(",").filter((part) => part.includes("=") && !names.includes(part.split("=")[0]));
    const own = ids.map((id, at) => [id.name, values[at]]).filter(([, value]) => value);
    const text = [...own.map((pair) => pair.join("=")), ...others].join(",") || "none";
    return text === (whole || "none") ? keep() : text;
  }

  const cytoscape = () => document.getElementById("network")?._cyreg?.cy;

  function mark_node(event) {
    const cy = cytoscape(), key = event?.points?.[0]?.customdata;
    if (cy && key) {
      cy.nodes(".near").removeClass("near");
      cy.nodes(`[operator = "${key}"]`).addClass("near");
    }
    return keep();
  }

  function mark_point(data) {
    const place = document.querySelector("#roofline .js-plotly-plot"), key = data?.operator;
    if (!place || !key) return keep();
    place.data.forEach((trace, curveNumber) => {
      const pointNumber = (trace.customdata || []).indexOf(key);
      if (pointNumber >= 0) window.Plotly.Fx.hover(place, [{ curveNumber, pointNumber }]);
    });
    return keep();
  }

  // Names for parts of Dash's controls that have none: menus, sliders, the file of an upload.
  function name_controls() {
    document.querySelectorAll(".dash-dropdown-focus-target[aria-hidden]").forEach((one) => one.removeAttribute("aria-hidden"));
    document.querySelectorAll(".size [role=slider]:not([aria-label])").forEach((one) => {
      one.setAttribute("aria-label", `${one.closest(".size").querySelector("label span").textContent}, powers of two`);
    });
    document.querySelector("#upload input[type=file]:not([aria-label])")?.setAttribute("aria-label", "A config.json of your own");
  }
  let naming = 0;
  new MutationObserver(() => {
    naming ||= requestAnimationFrame(() => {
      naming = 0;
      name_controls();
    });
  }).observe(document.documentElement, { childList: true, subtree: true });

  window.dash_clientside = Object.assign(window.dash_clientside || {}, {
    viewer: {
      changed, asked, tapped, clicked, selected, kept, theme, settled, slid, figures, mark_node, mark_point,
      forgotten: without("with"), removed: without("config"),
    },
  });
})();
