// The report's page: opens the data, and joins picture, legend, block and tables. Runs last; the other files only define.

const OPENED = { ready: false, openedMs: null, lastDrawMs: null };
window.stepallocReport = OPENED;


/// The parts of the page that follow the plan: picture, legend, block, peak, call sites.
class PlanPage {
  constructor(data) {
    this.data = data;
    this.plans = data.plans.map(() => null);
    this.picture = new Picture(data, {
      hovered: (block, event) => this.tell(block, event),
      chosen: (block) => this.detail(block),
      painted: (ms) => painted(ms),
    });
    byId('plan-choice').replaceChildren(...data.plans.map(({ name }, at) => element('option', { value: at }, name)));
    byId('plan-label').hidden = data.plans.length < 2;
    show('plan');
    this.listen();
    this.openPlan(0);
  }

  listen() {
    const { picture } = this;
    byId('plan-choice').addEventListener('change', (event) => this.openPlan(Number(event.target.value)));
    byId('colour-choice').addEventListener('change', () => this.colour());
    byId('load-choice').addEventListener('change', (event) => {
      picture.loadShown = event.target.checked;
      picture.redraw();
    });
    byId('zoom-in').addEventListener('click', () => picture.zoomMiddle(1.6));
    byId('zoom-out').addEventListener('click', () => picture.zoomMiddle(1 / 1.6));
    byId('zoom-reset').addEventListener('click', () => picture.reset());
    byId('search').addEventListener('submit', (event) => {
      event.preventDefault();
      this.find(byId('search-id').value);
    });
    byId('peak-show').addEventListener('click', () => this.showPeak());
  }

  /// A plan is decoded when it is looked at first.
  openPlan(at) {
    this.plans[at] = this.plans[at] || new Plan(this.data.plans[at]);
    const plan = this.plan = this.plans[at];
    byId('plan-choice').value = at;
    const { data } = this;
    const modes = [['size', 'size'], plan.kind && data.kinds && ['kind', 'kind'], plan.thread && ['thread', 'thread'],
      plan.site && data.sites && ['site', 'call site']].filter(Boolean);
    const before = byId('colour-choice').value;
    byId('colour-choice').replaceChildren(...modes.map(([value, words]) => element('option', { value }, words)));
    byId('colour-choice').value = modes.some(([value]) => value === before) ? before : 'size';
    const words = this.words();
    byId('plan-words').textContent = words;
    byId('plan-time').textContent = plan.unit === 'event' ? 'events of the step' : `${plan.unit}s`;
    byId('search-id').placeholder = plan.labels ? 'name' : 'number';
    for (const id of ['picture', 'marks']) byId(id).setAttribute('aria-label', `Plan ${plan.name}: ${words}`);
    this.colour();
    this.detail(-1);
    if (OPENED.ready) this.openTables();
  }

  /// A block's name in any of the plans.
  nameOf(at, block) {
    this.plans[at] = this.plans[at] || new Plan(this.data.plans[at]);
    return this.plans[at].nameOf(block);
  }

  words() {
    const { plan } = this;
    const time = `${plural(plan.events, plan.unit)}${plan.period ? ' that repeat' : ''}`;
    const ratio = plan.lower_bound > 0 ? plan.height / plan.lower_bound : 1;
    const above = ratio < 1.00005 ? `${exact(plan.height - plan.lower_bound)} above` : `${ratio.toFixed(4)} times`;
    const distance = plan.optimal ? 'which is optimal' : `${above} the lower bound of ${bytes(plan.lower_bound)}`;
    const wrapping = plan.wrapping.length;
    const round = wrapping ? ` ${plural(wrapping, 'block')} wrap${wrapping === 1 ? 's' : ''} round into the next repetition.` : '';
    return `${plural(plan.count, 'block')} over ${time}, in an arena of ${bytes(plan.height)}, ${distance}.${round}`;
  }

  colour() {
    const mode = byId('colour-choice').value;
    this.picture.open(this.plan, mode);
    this.legend(mode);
  }

  legend(mode) {
    const { colours } = this.picture;
    const palette = colours.palette().map(css);
    const parts = [element('h3', {}, { size: 'Size', kind: 'Kind', thread: 'Thread', site: 'Call site' }[mode])];
    if (colours.sizes) {
      parts.push(element('div', { className: 'ramp', style: `background: linear-gradient(to right, ${palette.join(', ')})` }),
        element('div', { className: 'ends' }, colours.sizes.map((size) => element('span', {}, bytes(size)))));
    }
    const item = (mark, text, sum) => element('li', {}, mark, element('span', { title: text }, text), element('span', {}, sum));
    const mark = (name, text = '') => element('span', { className: name }, text);
    const items = (colours.legend || []).map(({ at, text, sum }) => item(swatch(palette[at]), text, bytes(sum)));
    items.push(item(mark('stroke'), 'load (live bytes), ○ its peak', ''), item(mark('stroke dashed'), 'lower bound', ''));
    if (this.plan.wrapping.length > 0) items.push(item(mark('arrow', '›'), 'goes on in the next repetition', ''));
    if (this.plan.overlaps.total > 0) items.push(item(mark('swatch hatch'), 'overlap', ''));
    byId('legend').replaceChildren(...parts, element('ul', {}, items));
  }

  /// What is known of a block, as terms and texts.
  facts(block) {
    const { plan, data } = this;
    const length = plan.length[block];
    const facts = [
      ['size', exact(plan.size[block])],
      ['offset', exact(plan.offset[block])],
      ['order', `${grouped(plan.rank(block) + 1)} of ${grouped(plan.count)}`],
      ['alive', `${plan.lifetime(block)} (${plural(length, plan.unit)})`],
    ];
    if (plan.align && plan.align[block]) facts.push(['alignment', grouped(plan.align[block])]);
    if (plan.thread) facts.push(['thread', String(plan.thread[block])]);
    if (plan.kind) facts.push(['kind', (data.kinds || [])[plan.kind[block]] || String(plan.kind[block])]);
    if (plan.holds) facts.push(['holds', plan.holds[block]]);
    if (plan.site && data.sites) facts.push(['asked by', stackOf(data.sites[plan.site[block] - 1])]);
    return facts;
  }

  list(block, frames) {
    const text = (value) => {
      if (!Array.isArray(value)) return value;
      if (value.length === 0) return 'unknown';
      const rest = value.length > frames ? [`… ${value.length - frames} more`] : [];
      return element('ol', {}, [...value.slice(0, frames), ...rest].map((frame) => element('li', {}, frame)));
    };
    const pairs = this.facts(block).flatMap(([term, value]) => [element('dt', {}, term), element('dd', {}, text(value))]);
    return [element('h3', {}, `Block ${this.plan.nameOf(block)}`), element('dl', { className: 'block' }, pairs)];
  }

  /// The tooltip beside the pointer.
  tell(block, event) {
    const tip = byId('tip');
    tip.hidden = block < 0;
    if (block < 0) {
      this.told = -1;
      return;
    }
    if (this.told !== block) tip.replaceChildren(...this.list(block, 5));
    this.told = block;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > window.innerWidth ? event.clientX - 16 - width : event.clientX + 16;
    const top = Math.min(event.clientY + 16, window.innerHeight - height - 6);
    tip.style.transform = `translate(${Math.max(6, left)}px, ${Math.max(6, top)}px)`;
  }

  /// The chosen block, kept beside the picture and told to screen readers.
  detail(block) {
    const place = byId('details');
    if (block < 0) {
      place.replaceChildren(element('p', {}, 'Click a block to keep what is known of it here.'));
      byId('announce').textContent = '';
      return;
    }
    const near = element('button', { type: 'button' }, 'Zoom to it'), away = element('button', { type: 'button' }, 'Let go');
    near.addEventListener('click', () => this.picture.choose(block, true));
    away.addEventListener('click', () => this.picture.choose(-1, false));
    place.replaceChildren(...this.list(block, 40), element('div', { className: 'controls' }, near, away));
    const facts = this.facts(block).map(([term, value]) => `${term} ${Array.isArray(value) ? value[0] || 'unknown' : value}`);
    byId('announce').textContent = `Block ${this.plan.nameOf(block)}: ${facts.join(', ')}`;
  }

  find(text) {
    const input = byId('search-id');
    const block = this.plan.find(text.trim());
    input.setAttribute('aria-invalid', String(block < 0));
    if (block >= 0) this.picture.choose(block, true);
    else byId('announce').textContent = `There is no block ${text}.`;
  }

  goTo(block) {
    this.intoView();
    this.picture.choose(block, true);
  }

  intoView() {
    byId('plot').scrollIntoView({ block: 'nearest' });
    byId('marks').focus({ preventScroll: true });
  }

  showPeak() {
    const { plan } = this;
    this.intoView();
    const across = Math.max(10, plan.events * 0.1), { y0, y1 } = this.picture.whole();
    this.picture.look({ x0: plan.peak.event + 0.5 - across, x1: plan.peak.event + 0.5 + across, y0, y1 });
  }

  showOverlap(at, pair) {
    if (this.plan !== this.plans[at] || !this.plan) this.openPlan(at);
    this.intoView();
    this.picture.choose(pair.a, false);
    this.picture.zoomTo(pair.from_event, overlapLength(this.plan, pair), pair.from_byte, pair.to_byte - pair.from_byte, 4);
  }

  openTables() {
    this.openPeak();
    this.openSites();
  }

  openPeak() {
    const { plan, data } = this;
    byId('peak').hidden = !plan.peak;
    if (!plan.peak) return;
    const { event, bytes: live, total, blocks, name } = plan.peak;
    const most = Math.max(1, ...blocks.map((block) => plan.size[block]));
    const least = live === plan.lower_bound ? ' No plan can be smaller.' : '';
    const moment = `${plan.unit} ${grouped(event)}${name ? `, ${name}` : ''}`;
    byId('peak-words').textContent = `${bytes(live)} in ${plural(total, 'block')} are alive at ${moment}.${least}`;
    const rows = blocks.map((block) => [this.blockButton(block), bytes(plan.size[block]),
      [percent(plan.size[block] / live), bar(plan.size[block] / most)], plan.lifetime(block),
      ...(plan.holds ? [holdsCell(plan.holds[block])] : []),
      ...(plan.site && data.sites ? [stackCell(data.sites[plan.site[block] - 1])] : [])]);
    const headers = [['Block'], ['Size', 'number'], ['Share of the peak', 'number'], ['Alive', 'whole'],
      ...(plan.holds ? [['Holds', 'wide']] : []), ...(plan.site && data.sites ? [['Who asked', 'wide']] : [])];
    const all = plural(total, 'block');
    const caption = blocks.length < total ? `The largest ${grouped(blocks.length)} of ${all}` : `All ${all}, largest first`;
    table('peak-table', caption, headers, rows, 12);
  }

  blockButton(block) {
    const name = this.plan.nameOf(block);
    const button = element('button', { type: 'button', 'aria-label': `Show block ${name} in the plan` }, name);
    button.addEventListener('click', () => this.goTo(block));
    return button;
  }

  /// Call sites by their bytes at the peak and in all.
  openSites() {
    const { plan, data } = this;
    byId('sites').hidden = !(plan.site && data.sites && plan.peak);
    if (byId('sites').hidden) return;
    const sums = new Map();
    for (let block = 0; block < plan.count; block++) {
      const site = plan.site[block];
      if (!sums.has(site)) sums.set(site, { site, blocks: 0, all: 0, peak: 0 });
      const sum = sums.get(site);
      sum.blocks++;
      sum.all += plan.size[block];
      if (plan.aliveAt(block, plan.peak.event)) sum.peak += plan.size[block];
    }
    const sorted = [...sums.values()].sort((a, b) => b.peak - a.peak || b.all - a.all);
    const mostPeak = Math.max(1, ...sorted.map(({ peak }) => peak)), mostAll = Math.max(1, ...sorted.map(({ all }) => all));
    const rows = sorted.slice(0, 500).map(({ site, blocks, all, peak }) => [stackCell(data.sites[site - 1]),
      [bytes(peak), bar(peak / mostPeak)], percent(peak / (plan.peak.bytes || 1)), [bytes(all), bar(all / mostAll)],
      grouped(blocks)]);
    byId('sites-words').textContent = 'The line of a script and what it called, or the innermost functions; open a line for the whole stack.';
    const headers = [['Call site', 'wide'], ...['At the peak', 'Share', 'In all', 'Blocks'].map((text) => [text, 'number'])];
    table('sites-table', `${plural(sums.size, 'call site')} by bytes at the peak`, headers, rows, 15);
  }
}

/// The list of overlaps, each a button that goes there.
function showOverlaps(data, page) {
  const found = data.plans.flatMap((plan, at) => plan.overlaps.pairs.map((pair) => ({ plan, at, pair })));
  const total = data.plans.reduce((sum, plan) => sum + plan.overlaps.total, 0);
  if (total === 0) return;
  const several = data.plans.length > 1;
  const most = 200;
  byId('overlap-list').replaceChildren(...found.slice(0, most).map(({ plan, at, pair }) => {
    const name = (block) => page.nameOf(at, block);
    const shared = `bytes ${pair.from_byte} to ${pair.to_byte} from ${plan.unit || 'event'} ${pair.from_event} to ${pair.to_event}`;
    const text = `Blocks ${name(pair.a)} and ${name(pair.b)} share ${shared}`;
    const button = element('button', { type: 'button' }, several ? `${plan.name}: ${text}` : text);
    button.addEventListener('click', () => page.showOverlap(at, pair));
    return element('li', {}, button);
  }));
  const rest = total - Math.min(most, found.length);
  byId('overlap-rest').hidden = rest <= 0;
  byId('overlap-rest').textContent = `And ${grouped(rest)} more.`;
  show('overlaps');
}

function showHead(data) {
  byId('title').textContent = data.title || 'Report';
  byId('subtitle').textContent = data.subtitle || '';
  byId('made').textContent = ['Made by stepalloc', data.made, data.machine].filter(Boolean).join(' · ');
  if (data.notices && data.notices.length > 0) {
    byId('notices').replaceChildren(...data.notices.map((text) => element('li', {}, text)));
    show('notices');
  }
  if (data.facts && data.facts.length > 0) {
    const fact = ([term, value]) => element('div', {}, element('dt', {}, term), element('dd', {}, value));
    byId('facts').replaceChildren(...data.facts.map(fact));
    show('facts');
  }
}

function showContents() {
  const sections = [...document.querySelectorAll('main > section:not([hidden])')];
  byId('contents').hidden = sections.length < 2;
  byId('contents').replaceChildren(...sections.map(({ id, dataset }) => (
    element('a', { href: `#${id}` }, dataset.short || byId(`${id}-heading`).textContent))));
}

function listenToTheme(redraw) {
  const root = document.documentElement;
  const label = () => {
    byId('theme').setAttribute('aria-pressed', String(isDark()));
    redraw();
  };
  byId('theme').addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    label();
  });
  prefersDark.addEventListener('change', label);
  // Paper is light and has its own width, and does not wait for animation frames.
  let kept;
  window.addEventListener('beforeprint', () => {
    kept = root.dataset.theme;
    root.dataset.theme = 'light';
    root.classList.add('printing');
    redraw(true);
  });
  window.addEventListener('afterprint', () => {
    root.classList.remove('printing');
    if (kept) root.dataset.theme = kept;
    else delete root.dataset.theme;
    redraw();
  });
  label();
}

/// What tests ask of the page.
function openToTests(page) {
  const { picture } = page;
  Object.assign(OPENED, {
    view: () => ({ ...picture.view }),
    zoomAt: (x, y, factor) => picture.zoomAt(x, y, factor),
    blockAt: (x, y) => picture.blockAt(x, y),
    chosen: () => picture.chosen,
    reset: () => picture.reset(),
    showsAll: () => picture.showsAll(),
    /// The middle of what is seen of a block, in the window's pixels; null where nothing is.
    place: (block) => {
      const frame = picture.frame(), at = picture.marks.getBoundingClientRect();
      const clip = (from, size, low, span) => [Math.max(from, low), Math.min(from + size, low + span)];
      const seen = picture.rectangles(block)
        .map((box) => [clip(box.x, box.width, frame.left, frame.width), clip(box.y, box.height, frame.top, frame.height)])
        .filter(([[left, right], [top, bottom]]) => right >= left && bottom >= top)
        .sort(([one], [other]) => other[1] - other[0] - (one[1] - one[0]));
      if (seen.length === 0) return null;
      const [[left, right], [top, bottom]] = seen[0];
      return { x: at.left + (left + right) / 2, y: at.top + (top + bottom) / 2 };
    },
  });
}

function painted(ms) {
  OPENED.lastDrawMs = ms;
  opened();
}

function opened() {
  if (!OPENED.ready) Object.assign(OPENED, { ready: true, openedMs: performance.now() });
}

function open() {
  const data = JSON.parse(byId('data').textContent);
  if (data.version !== 1) throw new Error(`its data are of version ${data.version}, and this page reads version 1`);
  if (data.sites && data.sites.length === 0) data.sites = null;
  attempt(() => showHead(data));
  const page = data.plans && data.plans.length > 0 ? attempt(() => new PlanPage(data)) : null;
  listenToTheme((now) => {
    for (const draw of charts) draw();
    if (!page) return;
    page.colour();
    if (now) page.picture.paint();
  });
  if (page) {
    openToTests(page);
    attempt(() => showOverlaps(data, page));
  }
  // The rest comes after the first picture.
  requestAnimationFrame(() => setTimeout(() => showRest(data, page)));
}

function showRest(data, page) {
  const parts = [
    [page, () => page.openTables()],
    [data.course, () => showCourse(data)],
    [data.steps && data.steps.length > 0, () => showSteps(data)],
    [data.fallbacks && data.fallbacks.length > 0, () => showFallbacks(data)],
    [data.comparison, () => showComparison(data)],
    [data.what_if, () => showWhatIf(data)],
  ];
  for (const [there, part] of parts) if (there) attempt(part);
  showContents();
  if (!page) opened();
}

attempt(open);
