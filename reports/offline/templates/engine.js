"use strict";
/* Runs recorded operations (llmviewer/core/scalars.py) on the passes of a request.  No formula of the model stands here:
   they are data.  Only the list of passes (llmviewer/serving/schedule.py) and sums over it do. */
const Recorded = (() => {
  const COLUMNS = 5; // of a pass: sequences, new tokens, cached ones, logits, 1 for a decode step
  const CONTEXT = 2; // number of the input that differs between decode steps
  const CHUNK = 128; // passes at once: their values stay in the processor's caches
  const each1 = f => (out, n, a) => { for (let i = 0; i < n; i++) out[i] = f(a[i]); };
  const rint = x => { const low = Math.floor(x), rest = x - low; return rest < 0.5 ? low : rest > 0.5 ? low + 1 : low % 2 ? low + 1 : low; };
  /* name -> operation on `n` passes; loops are written out, as a call per number takes longer than the number */
  const OPERATIONS = {
    add: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] + b[i]; },
    sub: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] - b[i]; },
    mul: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] * b[i]; },
    div: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] / b[i]; },
    pow: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] === 1 ? 1 : Math.pow(a[i], b[i]); },
    mod: (o, n, a, b) => { for (let i = 0; i < n; i++) { const r = a[i] % b[i]; o[i] = r !== 0 && r < 0 !== b[i] < 0 ? r + b[i] : r; } },
    max: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = Math.max(a[i], b[i]); },
    min: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = Math.min(a[i], b[i]); },
    where: (o, n, c, a, b) => { for (let i = 0; i < n; i++) o[i] = c[i] !== 0 ? a[i] : b[i]; },
    lt: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] < b[i] ? 1 : 0; },
    le: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] <= b[i] ? 1 : 0; },
    eq: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] === b[i] ? 1 : 0; },
    ne: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = a[i] !== b[i] ? 1 : 0; },
    hypot: (o, n, a, b) => { for (let i = 0; i < n; i++) o[i] = Math.hypot(a[i], b[i]); },
    floor: each1(Math.floor), ceil: each1(Math.ceil), rint: each1(rint), sqrt: each1(Math.sqrt), exp: each1(Math.exp),
    log: each1(Math.log), log2: each1(Math.log2), abs: each1(Math.abs), isnan: each1(x => (x !== x ? 1 : 0)),
  };

  /* All operations of a page: inputs, constants, then one number per operation. */
  class Pool {
    constructor(data) {
      this.inputs = data.inputs;
      this.constants = data.constants;
      this.first = data.inputs + data.constants.length;
      this.steps = [];
      this.varies = new Set([CONTEXT]); // numbers that follow from the context of a pass
      for (let at = 0; at < data.code.length;) {
        const [name, count] = data.operations[data.code[at]], operands = data.code.slice(at + 1, at + 1 + count);
        if (operands.some(one => this.varies.has(one))) this.varies.add(this.first + this.steps.length);
        this.steps.push([OPERATIONS[name], operands]);
        at += 1 + count;
      }
      this.values = [];
    }

    value(number) {
      if (!this.values[number]) {
        this.values[number] = new Float64Array(CHUNK);
        if (number >= this.inputs && number < this.first) this.values[number].fill(this.constants[number - this.inputs] ?? NaN);
      }
      return this.values[number];
    }

    /* The operations that some numbers need, in order. */
    needed(numbers) {
      const waiting = [...numbers], found = new Set();
      while (waiting.length) {
        const number = waiting.pop();
        if (number >= this.first && !found.has(number)) {
          found.add(number);
          waiting.push(...this.steps[number - this.first][1]);
        }
      }
      return [...found].sort((a, b) => a - b);
    }

    run(numbers, n) {
      for (const number of numbers) {
        const [operation, [a, b, c]] = this.steps[number - this.first];
        operation(this.value(number), n, this.value(a), b === undefined ? null : this.value(b), c === undefined ? null : this.value(c));
      }
    }
  }

  /* One way that the branches of a configuration go: what it needs, and the guards that say for which passes. */
  class Program {
    constructor(pool, data) {
      Object.assign(this, data);
      this.pool = pool;
      const guards = data.guards.map(([number]) => number);
      this.whole = pool.needed([...guards, data.time, data.others, ...data.totals, ...data.rows.flat(), ...data.engine, ...data.memory, ...data.interval]);
      this.guarding = pool.needed(guards);
      this.times = pool.needed([...guards, data.time]);
      this.varying = this.times.filter(number => pool.varies.has(number));
    }

    holds(at) {
      return this.guards.every(([number, wanted]) => this.pool.value(number)[at] === wanted);
    }
  }

  /* Passes of the prompts within a token budget: [sequences, new, cached, logits, decodes, how often];
     serving/prompts.py. */
  function prompts(batch, length, budget) {
    if (batch * length <= budget) return [[batch, length, 0, 1, 0, 1]];
    if (length > budget) {
      const found = [];
      for (let at = 0; at < length; at += budget) {
        found.push([1, Math.min(budget, length - at), at, length - at <= budget ? 1 : 0, 0, batch]);
      }
      return found;
    }
    const each = Math.min(Math.floor(budget / length), batch), whole = Math.floor(batch / each), rest = batch % each;
    return [[each, length, 0, 1, 0, whole], ...(rest ? [[rest, length, 0, 1, 0, 1]] : [])];
  }

  /* A configuration: its programs, each for the passes at which its guards hold. */
  class Configuration {
    constructor(pool, data) {
      Object.assign(this, data);
      this.pool = pool;
      this.programs = data.programs.map(one => new Program(pool, one));
      this.orders = [[...this.programs], [...this.programs]];
    }

    /* Read every pass after the program that holds for it has run; false where none does.
       growing: passes differ in their context alone, so all that does not follow from it is computed once. */
    each(passes, sizes, growing, read) {
      const order = this.orders[+growing];
      let left = passes.map((pass, at) => [pass, at]);
      for (const program of [...order]) {
        const others = [];
        let known = false;
        for (let start = 0; start < left.length; start += CHUNK) {
          const part = left.slice(start, start + CHUNK), lanes = growing && left.length > CHUNK ? CHUNK : part.length;
          for (let column = 0; column < COLUMNS; column++) {
            const values = this.pool.value(column);
            part.forEach(([pass], at) => { values[at] = pass[column]; });
            values.fill(part[0][0][column], part.length, lanes);
          }
          sizes.forEach((size, at) => this.pool.value(COLUMNS + at).fill(size));
          this.pool.run(program.guarding, lanes);
          const holds = part.map((_, at) => program.holds(at));
          if (holds.some(one => one)) this.pool.run(!growing ? program.whole : known ? program.varying : program.times, lanes);
          known = known || holds.some(one => one);
          part.forEach((one, at) => { if (holds[at]) read(program, at, one[1]); else others.push(one); });
        }
        if (known) order.sort((one, other) => (other === program) - (one === program)); // the next passes are probably alike
        left = others;
        if (!left.length) return true;
      }
      return !left.length;
    }

    /* All figures of a request; null where nothing was recorded for it. */
    answer(batchSize, inputLen, outputLen) {
      const replica = Math.ceil(batchSize / this.data), parts = Math.min(replica, this.microbatches);
      const own = Math.ceil(replica / parts), sizes = [batchSize, inputLen, outputLen], steps = outputLen - 1;
      const first = prompts(own, inputLen, this.budget ?? Infinity);
      const decode = context => [own, 1, context, 1, 1, 1];
      const shown = [...first, decode(inputLen - 1), ...(steps ? [decode(inputLen + steps - 1)] : [])];
      const read = [];
      const known = this.each(shown, sizes, false, (program, at, number) => {
        const take = one => this.pool.value(one)[at];
        read[number] = {
          times: shown[number][COLUMNS] * (number < first.length ? parts : 1), time_s: take(program.time), others_s: take(program.others), totals: program.totals.map(take), rows: program.rows.map(row => row.map(take)),
          names: program.names, engine: program.engine.map(take), memory: program.memory.map(take), interval: program.interval.map(take),
        };
      });
      if (!known) return null;
      let decodeS = 0;
      const real = Array.from({ length: steps }, (_, at) => decode(inputLen + at));
      if (!this.each(real, sizes, true, (program, at) => { decodeS += this.pool.value(program.time)[at]; })) return null;
      const prefill = read.slice(0, first.length), step = read[first.length];
      const others = prefill.reduce((most, one) => Math.max(most, one.others_s), -Infinity);
      const prefillS = prefill.reduce((sum, one) => sum + one.times * one.time_s, others);
      const ttft = prefillS + this.request_s + this.late_steps * (decodeS / Math.max(steps, 1));
      const tightest = read.reduce((a, b) => (b.memory[0] > a.memory[0] ? b : a));
      return {
        ttft_s: ttft, tpot_s: steps ? decodeS / steps : null, e2e_s: ttft + decodeS, prefill_s: prefillS, decode_s: decodeS,
        prefill, others_s: others, step, memory: Object.fromEntries(this.memory.map((name, at) => [name, tightest.memory[at]])),
        ttft_interval: first.length === 1 && prefill[0].interval.length ? prefill[0].interval.slice(0, 2).map(x => x * ttft) : null,
        tpot_interval: steps && step.interval.length ? step.interval.slice(2, 4).map(x => x * decodeS / steps) : null,
      };
    }
  }

  /* Text of gzip in base64. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function read(data) {
    const pool = new Pool(data);
    return data.configurations.map(one => new Configuration(pool, { ...one, memory: data.memory }));
  }
  return { read, unpacked };
})();
