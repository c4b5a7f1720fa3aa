// A plan, decoded, and what its blocks can be coloured by. A block is named by its index in the columns.

/// One plan. On a circle of time a block comes again every period, at the same offset.
class Plan {
  constructor(source) {
    Object.assign(this, source);
    this.events = Math.max(1, source.events);
    this.count = source.blocks.count;
    for (const [name, column] of Object.entries(source.blocks.columns)) {
      if (typeof column !== 'string') continue;
      this[name] = decode(column);
      if (this[name].length !== this.count) {
        throw new Error(`column ${name} of plan ${source.name} has ${this[name].length} values for ${this.count} blocks`);
      }
    }
    this.unit = source.unit || 'event';
    this.labels = source.blocks.labels;
    this.holds = source.blocks.holds;
    this.load = source.load && { event: decode(source.load.event), bytes: decode(source.load.bytes) };
    this.around = source.period || Infinity;
    this.wrapping = this.around === Infinity ? [] : [...this.lower.keys()].filter((block) => this.wraps(block));
    this.top = Math.max(1, source.height, source.lower_bound, this.load ? maximum(this.load.bytes) : 0);
  }

  /// The least x of a block's rectangles that ends after `from`: on a circle blocks come again every period.
  copyAfter(block, from) {
    if (this.around === Infinity) return this.lower[block];
    const end = this.lower[block] + this.length[block];
    return this.lower[block] + Math.ceil((from - end) / this.around + 1e-12) * this.around;
  }

  wraps(block) {
    return this.lower[block] + this.length[block] > this.around;
  }

  aliveAt(block, event) {
    const start = this.copyAfter(block, event);
    return start <= event && event < start + this.length[block];
  }

  /// Blocks in the order of their allocation. Made when first asked for.
  get order() {
    if (this.ordered) return this.ordered;
    this.ordered = Uint32Array.from({ length: this.count }, (_, block) => block);
    const { lower, ordered } = this;
    if (lower.some((event, at) => at > 0 && event < lower[at - 1])) ordered.sort((a, b) => lower[a] - lower[b] || a - b);
    this.ranks = new Uint32Array(this.count);
    ordered.forEach((block, rank) => { this.ranks[block] = rank; });
    return ordered;
  }

  /// What a block is called: its label, where blocks have one, else its number.
  nameOf(block) {
    return String(this.labels ? this.labels[block] : this.id[block]);
  }

  /// The block of a name or number, else the first with the text in its name or in what it holds; -1 where there is none.
  find(text) {
    const labelled = this.labels ? this.labels.indexOf(text) : -1;
    if (labelled >= 0 || text === '') return labelled;
    const numbered = this.id.indexOf(Number(text));
    if (numbered >= 0 || !this.labels) return numbered;
    const named = this.labels.findIndex((label) => label.includes(text));
    return named >= 0 || !this.holds ? named : this.holds.findIndex((lines) => lines.some((line) => line.includes(text)));
  }

  rank(block) {
    return this.order && this.ranks[block];
  }

  lifetime(block) {
    const start = this.lower[block], end = start + this.length[block];
    if (!this.wraps(block)) return `${grouped(start)} to ${grouped(end)}`;
    return `${grouped(start)} to ${grouped(end - this.around)} of the next repetition`;
  }
}

function maximum(values) {
  let most = -Infinity;
  for (const value of values) if (value > most) most = value;
  return most;
}

/// A block's call stack, innermost first; empty where nobody knows.
const stackOf = (site) => (site ? site.split(';').reverse() : []);

/// A frame of a script, as an interpreter names it.
const SCRIPT = /\(.+:\d+\)$/;
/// A frame that tells little: an allocator's, or one without a name.
const VAGUE = /alloc|\+0x/i;

/// What tells a stack from others at a glance: the innermost line of a script and what it called; without one, the two
/// innermost frames that tell something.
function headline(frames) {
  const short = (frame) => frame.replace(/\(.*$/, '');
  const script = frames.findIndex((frame) => SCRIPT.test(frame));
  if (script >= 0) {
    const called = frames.slice(0, script).reverse().find((frame) => !VAGUE.test(frame));
    return called ? `${frames[script]} → ${short(called)}` : frames[script];
  }
  const telling = frames.filter((frame) => !VAGUE.test(frame));
  return (telling.length > 0 ? telling : frames).slice(0, 2).map(short).join(' ← ');
}

/// What a plan's blocks can be coloured by: a palette index for each block, and the legend's words.
function colouring(plan, mode, data) {
  if (mode === 'size') return colouringBySize(plan);
  const values = plan[mode];
  const sums = new Map();
  for (let block = 0; block < plan.count; block++) {
    sums.set(values[block], (sums.get(values[block]) || 0) + plan.size[block]);
  }
  const unknown = mode === 'site' ? 0 : null;
  const named = [...sums.keys()].filter((value) => value !== unknown).sort((a, b) => sums.get(b) - sums.get(a));
  // Eight values have a colour each; of more the eighth is for all others.
  const place = new Map(named.map((value, at) => [value, Math.min(at, OTHERS)]));
  if (unknown !== null) place.set(unknown, UNKNOWN);
  const index = Uint8Array.from({ length: plan.count }, (_, block) => place.get(values[block]));
  const words = {
    kind: (value) => (data.kinds || [])[value] || `kind ${value}`,
    thread: (value) => `thread ${value}`,
    site: (value) => headline(stackOf(data.sites[value - 1])),
  }[mode];
  const entries = named.slice(0, OTHERS).map((value) => [words(value), sums.get(value)]);
  const rest = named.slice(OTHERS);
  if (rest.length > 0) {
    const sum = rest.reduce((all, value) => all + sums.get(value), 0);
    entries.push([rest.length === 1 ? words(rest[0]) : `${rest.length} others`, sum]);
  }
  const legend = entries.map(([text, sum], at) => ({ at, text, sum }));
  if (sums.has(unknown)) legend.push({ at: UNKNOWN, text: 'unknown', sum: sums.get(unknown) });
  return { index, legend, palette: () => DISTINCT.map(channels) };
}

function colouringBySize(plan) {
  let least = Infinity, most = 1;
  for (const size of plan.size) {
    if (size < least) least = size;
    if (size > most) most = size;
  }
  const low = Math.log2(Math.max(1, Math.min(least, most)));
  const span = Math.max(1e-9, Math.log2(most) - low);
  const index = Uint8Array.from(plan.size, (size) => ((SHADES - 1) * (Math.log2(Math.max(1, size)) - low)) / span + 0.5);
  const sizes = [0, 0.5, 1].map((share) => 2 ** (low + span * share));
  return { index, sizes, palette: () => Array.from({ length: SHADES }, (_, at) => shade(at / (SHADES - 1))) };
}
