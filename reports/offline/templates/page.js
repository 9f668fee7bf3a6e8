/* The controls and drawings of the page.  Figures come from Recorded (engine.js); words and pictures are made here. */
(async () => {
  const $ = id => document.getElementById(id);
  const setup = JSON.parse($("setup").textContent), SIZES = ["batch_size", "input_len", "output_len"];
  if (typeof DecompressionStream === "undefined") {
    $("alert").textContent = "This browser cannot unpack what the page holds (Chrome 80, Firefox 113, Safari 16.4 can); the answer below is the first one.";
    $("alert").hidden = false;
    return;
  }
  const data = JSON.parse(await Recorded.unpacked($("data").textContent)), held = Recorded.read(data);
  const menus = Object.keys(held[0].choice);

  /* Numbers as text, as llmviewer/reports/format.py writes them. */
  const digits = (x, n = 3) => Math.abs(x) >= 10 ** (n - 1) ? Math.round(x).toLocaleString("en-US") : x.toLocaleString("en-US", { minimumSignificantDigits: n, maximumSignificantDigits: n });
  const scaled = (x, base, units) => { let at = 0; while (Math.abs(x) >= base * 0.9995 && at < units.length - 1) { x /= base; at++; } return `${digits(x)} ${units[at]}`; };
  const seconds = x => x === null ? "–" : x >= 0.9995 ? `${digits(x)} s` : x >= 0.9995e-3 ? `${digits(x * 1e3)} ms` : `${digits(x * 1e6)} µs`;
  const bytes = x => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  const count = x => scaled(x, 1000, ["", "k", "M", "G", "T", "P", "E"]);
  const percent = x => x < 0.001 ? "<0.1 %" : `${digits(100 * x, x < 0.1 ? 2 : 3)} %`;
  const make = (name, attributes = {}, ...children) => {
    const one = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    one.append(...children);
    return one;
  };

  /* The question: in the controls, and in the hash of the address. */
  const names = name => setup.labels[name] ?? name;
  for (const name of menus) {
    const values = [...new Set(held.map(one => one.choice[name]))];
    const menu = make("select", { id: `menu-${name}` }, ...values.map(value => make("option", { value }, value === "none" || value === "auto" ? `${value} (of the checkpoint)` : value)));
    const word = name === "hardware" ? "Chip" : name === "quantization" ? "Number format" : names(name).replace(/^./, one => one.toUpperCase());
    $("menus").append(make("label", { for: menu.id }, word), menu);
    menu.addEventListener("change", () => ask());
  }
  const STOPS = Object.fromEntries(SIZES.map(name => { // of a slider: four to a factor of two, whole numbers
    const count = 4 * Math.log2(setup.largest[name]);
    return [name, [...new Set(Array.from({ length: Math.floor(count) + 1 }, (_, at) => Math.round(2 ** (at / 4))))]];
  }));
  const stopOf = (name, value) => STOPS[name].reduce((best, stop, at) => (Math.abs(stop - value) < Math.abs(STOPS[name][best] - value) ? at : best), 0);
  for (const name of SIZES) {
    const slider = $(`${name}-slider`), number = $(name);
    slider.max = STOPS[name].length - 1;
    slider.disabled = number.disabled = false;
    slider.addEventListener("input", () => { number.value = STOPS[name][+slider.value]; ask(); });
    number.addEventListener("input", () => ask());
  }
  $("reset").disabled = false;
  $("reset").addEventListener("click", () => { state(first); ask(); });
  document.querySelectorAll("[name=stage]").forEach(one => one.addEventListener("change", () => ask()));
  const first = { ...setup.first, ...held[0].choice };
  const stage = () => document.querySelector("[name=stage]:checked").value;
  const asked = () => ({
    ...Object.fromEntries(menus.map(name => [name, $(`menu-${name}`).value])),
    ...Object.fromEntries(SIZES.map(name => [name, +$(name).value])),
  });
  function state(values) {
    for (const name of menus) {
      if ([...$(`menu-${name}`).options].some(one => one.value === values[name])) $(`menu-${name}`).value = values[name];
    }
    for (const name of SIZES) if (values[name] !== undefined) $(name).value = values[name];
  }
  function fromAddress() {
    const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1))), unknown = [];
    for (const [name, value] of Object.entries(given)) {
      const known = menus.includes(name) ? held.some(one => one.choice[name] === value) : SIZES.includes(name) ? /^[1-9]\d*$/.test(value) : false;
      if (!known) { unknown.push(`${name}=${value}`); delete given[name]; }
    }
    state({ ...first, ...given });
    return unknown.length ? `The link holds what this page does not know: ${unknown.join(", ")}. ` : "";
  }

  /* Words of an answer. */
  const stageTotals = (one_, answer, name) => {
    const passes = name === "prefill" ? answer.prefill : [{ ...answer.step, times: 1 }], operators = new Map();
    let time_s = 0;
    const engine = [];
    for (const pass of passes) {
      time_s += pass.times * pass.time_s;
      pass.engine.forEach((value, at) => { engine[at] = (engine[at] ?? 0) + pass.times * value; });
      pass.rows.forEach(([seconds_, ideal, flops, moved, bound], at) => {
        const [operator, block, , layers] = pass.names[at], group = one_.groups[operator], key = `${block}/${operator}`;
        const one = operators.get(key) ?? { operator, block, group, layers, time_s: 0, ideal_s: 0, flops: 0, bytes: 0, bounds: {} };
        const times = pass.times * layers;
        one.time_s += times * seconds_; one.ideal_s += times * ideal; one.flops += times * flops; one.bytes += times * moved;
        one.bounds[data.bounds[bound]] = (one.bounds[data.bounds[bound]] ?? 0) + times * seconds_;
        operators.set(key, one);
      });
    }
    if (name === "prefill" && answer.others_s) { // of the other stages of a pipeline, once: the last of the terms
      time_s += answer.others_s;
      engine[engine.length - 1] += answer.others_s;
    }
    const rows = [...operators.values()].filter(one => one.time_s > 0);
    for (const one of rows) one.bound = largest(one.bounds);
    return { time_s, engine, rows };
  };
  const largest = sums => Object.keys(sums).reduce((a, b) => (sums[b] > sums[a] ? b : a));
  const summed = (rows, key) => rows.reduce((sums, one) => ({ ...sums, [one[key]]: (sums[one[key]] ?? 0) + one.time_s }), {});
  const LIMITS = { memory: "device memory", compute: "matrix units", vector: "vector units", special: "special-function units", l2: "the L2 cache", link: "links between devices", host: "the host", disk: "the disk", overhead: "launches of kernels" };
  const between = (bounds, write) => bounds ? ` (80 % interval ${write(bounds[0])} to ${write(bounds[1])})` : "";

  function verdict(one, answer, sizes) {
    const memory = answer.memory, fits = memory.room_bytes >= 0;
    const name = answer.decode_s > answer.prefill_s ? "decode" : "prefill", totals = stageTotals(one, answer, name);
    const bounds = summed(totals.rows, "bound"), bound = largest(bounds), all = totals.rows.reduce((sum, row) => sum + row.time_s, 0);
    const share = (name === "decode" ? answer.decode_s : answer.ttft_s) / answer.e2e_s;
    const per = answer.tpot_s === null ? "–" : `${digits(1 / answer.tpot_s)} tokens/s per user`;
    return [
      [fits ? "Fits" : "DOES NOT FIT", `${bytes(memory.total_bytes)} of a budget of ${bytes(memory.budget_bytes)} per device${fits ? "" : `: ${bytes(-memory.room_bytes)} too much; figures below are those of a device with more memory`}`, !fits],
      ["Speed", answer.tpot_s === null ? "one token per request: there is no decode step" : `${per}, TPOT ${seconds(answer.tpot_s)}${between(answer.tpot_interval, seconds)}; ${digits(sizes.batch_size * sizes.output_len / answer.e2e_s)} tokens/s of the whole batch`],
      ["First token", `TTFT ${seconds(answer.ttft_s)}${between(answer.ttft_interval, seconds)}${answer.ttft_interval || !answer.step.interval.length ? "" : " (no interval: the prompts take several passes)"}`],
      ["Request", `${seconds(answer.e2e_s)} from start to end`],
      ["Bottleneck", `${name === "decode" ? "Decode" : "Prefill"} takes ${percent(share)} of the request's time; ${LIMITS[bound]} limit${bound === "memory" || bound.startsWith("l2") || bound === "host" || bound === "disk" ? "s" : ""} ${percent(bounds[bound] / all)} of its kernels' time`],
      ["Times", one.times],
    ];
  }

  /* Pictures. */
  const SERIES = ["var(--series-0)", "var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)", "var(--series-5)", "var(--series-6)", "var(--host)", "var(--disk)"];
  function bar(parts, whole, write, said, limit) {
    const drawn = make("div", { class: "bar", role: "img", "aria-label": `${said}: ${parts.map(([name, value]) => `${name} ${write(value)}`).join(", ")}` });
    const key = make("ul", { class: "key" });
    parts.forEach(([name, value, colour], at) => {
      const ink = colour ?? SERIES[at % SERIES.length];
      const piece = make("span", { title: `${name}: ${write(value)}` });
      piece.style.width = `${100 * Math.max(value, 0) / whole}%`;
      piece.style.background = ink;
      drawn.append(piece);
      const mark = make("i");
      mark.style.background = ink;
      key.append(make("li", {}, mark, name, make("b", {}, write(value))));
    });
    if (limit) {
      const line_ = make("u", { title: limit[0] });
      line_.style.left = `${100 * limit[1] / whole}%`;
      drawn.append(line_);
      key.append(make("li", {}, make("i", { class: "limit" }), limit[0]));
    }
    return [drawn, key];
  }

  function drawMemory(answer) {
    const m = answer.memory, parts = [["Weights", m.weights_bytes], ["KV cache", m.kv_cache_bytes], ["Activations", m.activations_bytes], ["Framework", m.framework_bytes], ["CUDA graphs", m.cuda_graphs_bytes]].filter(([, value]) => value > 0);
    const free = m.budget_bytes - m.total_bytes;
    if (free > 0) parts.push(["Free in the budget", free, "var(--raised)"]);
    $("memory").replaceChildren(...bar(parts, Math.max(m.total_bytes, m.budget_bytes), bytes, "Memory", free < 0 ? [`Budget: ${bytes(m.budget_bytes)}`, m.budget_bytes] : null));
  }

  function drawTime(one, totals) {
    const groups = Object.entries(summed(totals.rows, "group")).sort((a, b) => b[1] - a[1]);
    const terms = one.engine_terms.map((name, at) => [name, totals.engine[at]]).filter(([, value]) => value !== 0);
    const parts = [...groups, ...terms], whole = parts.reduce((sum, [, value]) => sum + Math.max(value, 0), 0);
    const write = value => `${seconds(Math.abs(value)).replace(/^/, value < 0 ? "−" : "")} (${percent(Math.abs(value) / totals.time_s)})`;
    $("time").replaceChildren(make("p", {}, `${stage() === "prefill" ? "Prefill" : one.tokens === 1 ? "A decode step" : `A token of a round of ${digits(one.tokens)} tokens`} takes ${seconds(totals.time_s)}.`), ...bar(parts, whole, write, "Time by group of operators"));
  }

  function drawNetwork(totals) {
    const all = totals.rows.reduce((sum, row) => sum + row.time_s, 0), blocks = new Map();
    for (const row of totals.rows) blocks.set(row.block, [...(blocks.get(row.block) ?? []), row]);
    const opened = new Set([...document.querySelectorAll("#network details[open]")].map(one => one.dataset.key));
    const list = make("ol", { class: "network" });
    for (const [block, rows] of blocks) {
      const chains = [];
      for (const row of rows) {
        if (chains.length && chains.at(-1)[0].group === row.group) chains.at(-1).push(row); else chains.push([row]);
      }
      const flow = make("ol", { class: "flow" });
      chains.forEach((chain, at) => {
        const time_s = chain.reduce((sum, row) => sum + row.time_s, 0), bound = largest(summed(chain, "bound")), key = `${block}/${at}`;
        const name = chain.length === 1 ? chain[0].operator : `${chain[0].group}: ${chain.length} operators`;
        const unfolded = make("details", { class: `op ${bound}`, "data-key": key }, make("summary", {}, `${name} `, make("small", {}, `${percent(time_s / all)}, ${bound}`)),
          make("ul", {}, ...chain.map(row => make("li", {}, make("span", {}, row.operator), make("span", {}, `${seconds(row.time_s)}, ${count(row.flops)}FLOP, ${count(row.bytes)}B, ${row.bound}`)))));
        unfolded.open = opened.has(key);
        flow.append(make("li", {}, unfolded));
      });
      const own = rows.reduce((sum, row) => sum + row.time_s, 0), layers = rows[0].layers;
      list.append(make("li", {}, make("h4", {}, make("span", {}, layers === 1 ? block : `${block} × ${layers}`), make("span", {}, percent(own / all))), flow));
    }
    $("network").replaceChildren(list);
    $("network-note").textContent = "Operators in their order, all layers of a kind together, coloured by what bounds them; shares are of the kernels' time. A box opens to its operators.";
  }

  function drawRoofline(one, totals) {
    const rows = totals.rows.filter(row => row.flops > 0 && row.bytes > 0), W = Math.min(Math.max($("roofline").clientWidth, 300), 900), H = W < 500 ? 300 : 380, left = 62, right = 16, top = 14, bottom = 44;
    const peak = Math.max(...Object.values(one.rates)), xs = rows.map(row => row.flops / row.bytes), ys = rows.map(row => row.flops / row.time_s);
    const low = Math.floor(Math.log10(Math.min(...xs, 1))), high = Math.ceil(Math.log10(Math.max(...xs, 2 * peak / one.bandwidth)));
    const down = Math.floor(Math.log10(Math.min(...ys))), up = Math.ceil(Math.log10(peak * 1.2));
    const x = value => left + (Math.log10(value) - low) / (high - low) * (W - left - right);
    const y = value => H - bottom - (Math.log10(value) - down) / (up - down) * (H - top - bottom);
    const picture = make("svg:svg", { viewBox: `0 0 ${W} ${H}`, class: "roofline", role: "img", "aria-label": `Roofline: ${rows.length} operators below ${count(peak)}FLOP/s and ${count(one.bandwidth)}B/s; the boxes of the network hold their figures` });
    const write = (at, text, attributes = {}) => picture.append(make("svg:text", { x: at[0], y: at[1], ...attributes }, text));
    for (let d = low; d <= high; d++) {
      picture.append(make("svg:line", { class: "grid-line", x1: x(10 ** d), x2: x(10 ** d), y1: top, y2: H - bottom }));
      write([x(10 ** d), H - bottom + 17], d > -3 && d < 4 ? String(10 ** d) : `1e${d}`, { "text-anchor": "middle" });
    }
    for (let d = down; d <= up; d++) {
      picture.append(make("svg:line", { class: "grid-line", x1: left, x2: W - right, y1: y(10 ** d), y2: y(10 ** d) }));
      write([left - 6, y(10 ** d) + 4], `${10 ** (((d % 3) + 3) % 3)} ${["", "k", "M", "G", "T", "P", "E"][Math.floor(d / 3)]}`, { "text-anchor": "end" });
    }
    write([(left + W - right) / 2, H - 8], "FLOP per byte of device memory", { "text-anchor": "middle", class: "soft" });
    write([left + 4, top + 12], "FLOP/s", { class: "soft" });
    for (const [at, [dtype, rate]] of Object.entries(one.rates).sort((a, b) => b[1] - a[1]).entries()) {
      const ridge = rate / one.bandwidth, start = Math.max(10 ** low, 10 ** down / one.bandwidth);
      picture.append(make("svg:path", { class: "roof", d: `M${x(start)},${y(start * one.bandwidth)}L${x(ridge)},${y(rate)}L${x(10 ** high)},${y(rate)}` }));
      write([W - right - 2, y(rate) + (at ? 16 : -5)], `${dtype}: ${count(rate)}FLOP/s`, { "text-anchor": "end" });
    }
    for (const row of rows) {
      const share = row.time_s / totals.time_s, point = make("svg:g", { class: `op ${row.bound}` }, make("svg:circle", { cx: x(row.flops / row.bytes), cy: y(row.flops / row.time_s), r: 4 + 12 * Math.sqrt(share) }, make("svg:title", {}, `${row.operator}: ${percent(share)} of the time, ${row.bound}`)));
      picture.append(point);
    }
    const placed = [];
    for (const row of [...rows].sort((a, b) => b.time_s - a.time_s).slice(0, 6)) {
      const at = [x(row.flops / row.bytes), y(row.flops / row.time_s)];
      if (placed.some(([px, py]) => Math.abs(px - at[0]) < 110 && Math.abs(py - at[1]) < 16)) continue;
      placed.push(at);
      write([at[0] + (at[0] > W - 150 ? -14 : 14), at[1] + 16], row.operator, { "text-anchor": at[0] > W - 150 ? "end" : "start" });
    }
    $("roofline").replaceChildren(picture);
  }

  /* Other configurations at the same sizes, one after another, so that the page never waits for them. */
  let turn = 0, seen = held[0]; // the configuration to which the table was scrolled
  function drawRows(sizes, chosen, fits) {
    $("all").hidden = held.length < 2;
    $("remedies").replaceChildren();
    const mine = ++turn, rows = $("rows"), answers = [];
    const next = at => {
      if (mine !== turn) return;
      if (at < held.length) {
        answers.push(held[at].answer(...SIZES.map(name => sizes[name])));
        if (!fits && held[at] === chosen) remedy("Largest batch that fits", largestBatch(chosen, sizes));
        setTimeout(() => next(at + 1));
        return;
      }
      const other = held.find((_, number) => answers[number]?.memory.room_bytes >= 0);
      if (!fits) remedy("Fits with", other && other.choice);
      rows.replaceChildren(...held.map((one, number) => {
        const found = answers[number], choose = make("button", { type: "button" }, Object.values(one.choice).join(", "));
        const row = make("tr", one === chosen ? { class: "chosen", "aria-current": "true" } : {}, make("th", { scope: "row", class: "left" }, choose));
        const cells = found ? [found.memory.room_bytes >= 0 ? "yes" : "no", found.tpot_s === null ? "–" : digits(1 / found.tpot_s), seconds(found.ttft_s), bytes(found.memory.total_bytes)] : ["not recorded", "–", "–", "–"];
        cells.forEach((text, column) => row.append(make("td", column ? {} : { class: found && found.memory.room_bytes >= 0 ? "left" : "left bad" }, text)));
        row.addEventListener("click", () => { state({ ...asked(), ...one.choice }); ask(); });
        return row;
      }));
      if (seen !== chosen) rows.closest(".scroll").scrollTop = rows.querySelector(".chosen").offsetTop - 80;
      seen = chosen;
    };
    setTimeout(() => next(0), 30);
  }

  /* The largest batch that fits at these lengths, found by halving; null where not even one request does. */
  function largestBatch(one, sizes) {
    let low = 0, high = sizes.batch_size;
    while (high - low > 1) {
      const middle = (low + high) >> 1, found = one.answer(middle, sizes.input_len, sizes.output_len);
      if (found && found.memory.room_bytes >= 0) low = middle; else high = middle;
    }
    return low ? { batch_size: low } : null;
  }
  function remedy(name, values) {
    if (!values) return;
    const set = make("button", { type: "button" }, `${name}: ${Object.values(values).join(", ")}`);
    set.addEventListener("click", () => { state({ ...asked(), ...values }); ask(); });
    $("remedies").append(set);
  }

  function tell(text) {
    $("alert").textContent = text;
    $("alert").hidden = !text;
  }

  function ask(before = "") {
    const sizes = asked(), one = held.find(each => menus.every(name => each.choice[name] === sizes[name]));
    for (const name of SIZES) {
      $(`${name}-slider`).value = stopOf(name, sizes[name]);
      $(`${name}-slider`).setAttribute("aria-valuetext", `${sizes[name]}`);
    }
    const outside = SIZES.filter(name => !(Number.isInteger(sizes[name]) && sizes[name] >= 1 && sizes[name] <= setup.largest[name]));
    const asks = one && !outside.length, whole = value => value.toLocaleString("en-US");
    const started = performance.now(), answer = asks ? one.answer(...SIZES.map(name => sizes[name])) : null;
    document.documentElement.dataset.answeredMs = (performance.now() - started).toFixed(2);
    $("drawn").hidden = $("verdict").hidden = !answer;
    if (asks) { // the question, whether or not it has an answer
      const plain = ["none", "auto", "0", "1"];
      const others = menus.filter(name => !["model", "hardware"].includes(name) && !plain.includes(one.choice[name]))
        .map(name => /^[\d.]+$/.test(one.choice[name]) ? `${names(name)} ${one.choice[name]}` : one.choice[name]);
      const title = `${setup.model} on ${one.devices} × ${one.hardware}${others.length ? `, ${others.join(", ")}` : ""}, batch ${whole(sizes.batch_size)}, ${whole(sizes.input_len)} + ${whole(sizes.output_len)}`;
      $("title").textContent = title;
      document.title = `${title} – llmviewer`;
      $("line").textContent = line(one, sizes);
    }
    if (!answer) {
      tell(before + (!one ? "This combination is not on this page; choose another chip or format." : outside.length ? outside.map(name => `${names(name)} has to be a whole number from 1 to ${whole(setup.largest[name])}.`).join(" ") : `No operations were recorded for this request, so the page shows no figure; ask llmviewer: ${line(one, sizes)}`));
      return;
    }
    const beyond = one.most_context !== null && sizes.input_len + sizes.output_len > one.most_context ? `${whole(sizes.input_len + sizes.output_len)} tokens are beyond the model's longest context of ${whole(one.most_context)}. ` : "";
    tell(before + beyond);
    $("verdict").replaceChildren(...verdict(one, answer, sizes).map(([name, text, bad]) => make("div", {}, make("dt", bad ? { class: "bad" } : {}, name), make("dd", bad ? { class: "bad" } : {}, text))));
    $("origin").textContent = `${one.chip}; ${one.origin}${one.notes.length ? `. ${one.notes.join(". ")}` : ""}`;
    const hash = `#${new URLSearchParams(sizes)}`;
    $("link").href = hash;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    const totals = stageTotals(one, answer, stage());
    drawMemory(answer);
    drawTime(one, totals);
    drawNetwork(totals);
    drawRoofline(one, totals);
    drawRows(sizes, one, answer.memory.room_bytes >= 0);
  }
  const line = (one, sizes) => `${one.line} --batch-size ${sizes.batch_size} --input-len ${sizes.input_len} --output-len ${sizes.output_len}`;

  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; ask(); } });
  addEventListener("hashchange", () => ask(fromAddress()));
  ask(fromAddress());
})();
