// Charts of the recording and of the steps: one small plot for all of them.

const charts = [];

/// A plot of series over one x: { title, words, x, xName, format, binary, series: [{ name, colour, y, style }], marks, stacked }.
/// Styles: line, steps, dots. Stacked series are filled, each upon the one before; missing values are null or NaN.
function chart(parent, options) {
  const output = element('output', {});
  const canvas = element('canvas', { role: 'img', 'aria-label': `${options.title}: ${options.words}` });
  const keys = options.series.length > 1 ? element('ul', { className: 'keys' }, options.series.map(key)) : null;
  parent.append(element('div', { className: 'chart' },
    element('div', { className: 'head' }, element('h3', {}, options.title), output), canvas, keys));
  const plot = { ...options, canvas, output };
  output.textContent = options.words;
  canvas.addEventListener('pointermove', (event) => readOut(plot, event.offsetX));
  canvas.addEventListener('pointerleave', () => {
    output.textContent = options.words;
    drawChart(plot, null);
  });
  new ResizeObserver(() => requestAnimationFrame(() => drawChart(plot, null))).observe(canvas);
  charts.push(() => drawChart(plot, null));
}

const swatch = (colour) => element('span', { className: 'swatch', style: `background: ${colour}` });
const key = ({ name, colour }) => element('li', {}, swatch(colour), name);

/// Where a plot's values lie on its canvas.
function scaleOf(plot, width, height) {
  const low = plot.x[0], high = Math.max(low + 1, plot.end || plot.x[plot.x.length - 1]);
  const most = plot.stacked ? 1 : Math.max(1e-9, ...plot.series.map(({ y }) => maximum(y.filter(Number.isFinite))));
  const area = { left: 68, top: 8, right: width - 8, bottom: height - 34 };
  const top = plot.stacked ? 1 : most * 1.06;
  return {
    ...area, low, high, most: top,
    x: (value) => area.left + ((value - low) / (high - low)) * (area.right - area.left),
    y: (value) => area.bottom - (value / top) * (area.bottom - area.top),
  };
}

function drawChart(plot, at) {
  const fitted = fit(plot.canvas);
  if (!fitted || plot.x.length === 0) return;
  const { pen, width, height } = fitted;
  const look = theme(), scale = scaleOf(plot, width, height);
  pen.font = FONT;
  chartAxes(pen, plot, scale, look);
  if (plot.stacked) drawStacked(pen, plot, scale);
  else for (const series of plot.series) drawSeries(pen, plot, series, scale, look);
  if (at === null) return;
  const x = scale.x(plot.x[at]);
  stroke(pen, [[x, scale.top], [x, scale.bottom]], look.faint, 1);
  for (const { y } of plot.stacked ? [] : plot.series) {
    if (!Number.isFinite(y[at])) continue;
    pen.beginPath();
    pen.arc(x, scale.y(y[at]), 3.5, 0, 2 * Math.PI);
    pen.fillStyle = look.ink;
    pen.fill();
  }
}

function chartAxes(pen, plot, scale, look) {
  const step = tickStep(scale.most, (scale.bottom - scale.top) / 30, plot.binary, plot.least || 0);
  pen.fillStyle = look.faint;
  pen.textAlign = 'right';
  pen.textBaseline = 'middle';
  for (const tick of ticks(0, scale.most, step)) {
    const y = scale.y(tick);
    stroke(pen, [[scale.left, y], [scale.right, y]], look.line, tick === 0 ? 1.5 : 0.7);
    pen.fillText(plot.binary ? tickBytes(tick, step, scale.most) : plot.format(tick), scale.left - 7, y, scale.left - 9);
  }
  pen.textAlign = 'center';
  pen.textBaseline = 'top';
  const across = tickStep(scale.high - scale.low, (scale.right - scale.left) / 65, false, 1);
  for (const tick of ticks(scale.low, scale.high, across)) {
    const half = pen.measureText(grouped(tick)).width / 2;
    pen.fillText(grouped(tick), Math.min(scale.x(tick), scale.right + 7 - half), scale.bottom + 5);
  }
  pen.textAlign = 'right';
  pen.fillText(plot.xName, scale.right, scale.bottom + 19);
  const marks = plot.marks || [];
  // Marks nearer than four pixels would be one grey.
  if (marks.length * 4 > scale.right - scale.left) return;
  for (const mark of marks) stroke(pen, [[scale.x(mark), scale.top], [scale.x(mark), scale.bottom]], look.line, 1);
}

function drawSeries(pen, plot, { y, colour, style }, scale, look) {
  pen.fillStyle = pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.lineJoin = 'round';
  const radius = plot.x.length > 400 ? 1.2 : 2;
  pen.beginPath();
  let before = null;
  for (let at = 0; at < plot.x.length; at++) {
    if (!Number.isFinite(y[at])) {
      before = null;
      continue;
    }
    const x = scale.x(plot.x[at]), high = scale.y(y[at]);
    if (style === 'dots') {
      pen.moveTo(x + radius, high);
      pen.arc(x, high, radius, 0, 2 * Math.PI);
    } else if (before === null) pen.moveTo(x, high);
    else {
      if (style === 'steps') pen.lineTo(x, before);
      pen.lineTo(x, high);
    }
    before = high;
  }
  if (style === 'steps' && before !== null) pen.lineTo(scale.x(scale.high), before);
  if (style === 'dots') pen.fill();
  else pen.stroke();
}

/// Each value fills its time to the next. Several in one pixel would hide each other: of these the one with the least from the
/// first series is drawn.
function drawStacked(pen, plot, scale) {
  const first = plot.series[0].y;
  const fill = (at, from, to) => {
    if (!Number.isFinite(first[at])) return;
    let sum = 0;
    for (const { y, colour } of plot.series) {
      const bottom = scale.y(sum), top = scale.y((sum += y[at]));
      pen.fillStyle = colour;
      pen.fillRect(from, top, to - from, bottom - top);
    }
  };
  let column = Math.floor(scale.x(plot.x[0])), worst = 0;
  for (let at = 1; at < plot.x.length; at++) {
    const here = Math.floor(scale.x(plot.x[at]));
    if (here > column) {
      fill(worst, column, here);
      [column, worst] = [here, at];
    } else if (!(first[at] >= first[worst])) worst = at;
  }
  fill(worst, column, scale.right);
}

function readOut(plot, x) {
  const { width, height } = plot.canvas.getBoundingClientRect();
  const scale = scaleOf(plot, width, height);
  const value = scale.low + ((x - scale.left) / (scale.right - scale.left)) * (scale.high - scale.low);
  let at = 0, past = plot.x.length;
  while (past - at > 1) {
    const middle = (at + past) >> 1;
    if (plot.x[middle] <= value) at = middle;
    else past = middle;
  }
  const steps = plot.series.some(({ style }) => style === 'steps');
  if (!steps && at + 1 < plot.x.length && plot.x[at + 1] - value < value - plot.x[at]) at++;
  const texts = plot.series.map(({ name, y }) => {
    const text = Number.isFinite(y[at]) ? (plot.exactly || plot.format)(y[at]) : 'none';
    return plot.series.length > 1 ? `${name} ${text}` : text;
  });
  plot.output.textContent = `${plot.xName} ${grouped(plot.x[at])}: ${texts.join(', ')}`;
  drawChart(plot, at);
}

function middle(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : NaN;
}

function showCourse({ course }) {
  const x = decode(course.event), y = decode(course.bytes), marks = course.boundaries ? decode(course.boundaries) : [];
  if (x.length === 0) return;
  chart(byId('course-charts'), {
    title: 'Live bytes', x, xName: 'event', binary: true, least: 1, format: exact, marks,
    words: `${bytes(maximum(y))} at the most${marks.length ? `, ${grouped(marks.length)} step boundaries` : ''}`,
    series: [{ name: 'live', colour: DISTINCT[0], y, style: 'steps' }],
  });
  show('course');
}

/// Figures of the steps. An entry for several steps has the means of time and faults, and the sums of bytes.
function showSteps({ steps }) {
  const x = steps.map(({ step }) => step);
  const parent = byId('steps-charts');
  const each = (name) => steps.map((step) => (Number.isFinite(step[name]) ? step[name] : NaN));
  const phases = steps.filter(({ phase }, at) => at > 0 && phase !== steps[at - 1].phase).map(({ step }) => step);
  const common = { x, xName: 'step', marks: phases };
  const plot = (title, words, y, more) => {
    if (!y.some(Number.isFinite)) return;
    chart(parent, { ...common, title, words, series: [{ name: title, colour: DISTINCT[0], y, style: 'dots' }], ...more });
  };
  const ms = each('ms'), faults = each('faults'), live = each('live_bytes');
  plot('Time a step', `median ${milliseconds(middle(ms))}`, ms, { format: milliseconds });
  plot('Page faults a step', `median ${grouped(middle(faults))}`, faults, { format: grouped, least: 1 });
  showShares(parent, steps, common);
  plot('Live bytes, the most of each step', `median ${bytes(middle(live))}`, live, { format: exact, binary: true, least: 1 });
  showArenas(parent, each('arena_bytes'), each('lower_bound_bytes'), common);
  const planned = steps.find(({ phase }) => phase === 'planned');
  const count = steps.reduce((sum, step) => sum + (step.steps || 1), 0);
  const words = `${plural(count, 'step')}${planned ? `, planned from step ${grouped(planned.step)} on` : ''}.`;
  byId('steps').insertBefore(element('p', {}, phases.length ? `${words} Lines in the charts: the phase changes.` : words), parent);
  show('steps');
}

/// The arena as plans came into force; 0 is none.
function showArenas(parent, arena, bound, common) {
  const [height, least] = [arena, bound].map((values) => values.map((value) => value || NaN));
  if (!height.some(Number.isFinite)) return;
  chart(parent, {
    ...common, title: 'Arena', words: `${bytes(arena[arena.length - 1])} at the end`, format: exact, binary: true, least: 1,
    series: [
      { name: 'arena', colour: DISTINCT[0], y: height, style: 'steps' },
      { name: 'lower bound', colour: DISTINCT[1], y: least, style: 'steps' },
    ],
  });
}

/// Of the bytes that had a place in the plan: served from their slots, from gaps of the arena, by the backend.
function showShares(parent, steps, common) {
  const share = (part) => steps.map((step) => part(step) / ((step.planned_bytes || 0) + (step.fallback_bytes || 0)));
  const slots = share((step) => (step.planned_bytes || 0) - (step.gap_bytes || 0));
  if (!slots.some(Number.isFinite)) return;
  chart(parent, {
    ...common, title: 'Who served the planned bytes', words: `median ${percent(middle(slots))} from slots`,
    stacked: true, end: steps[steps.length - 1].step + (steps[steps.length - 1].steps || 1), format: percent,
    series: [
      { name: 'slots', colour: DISTINCT[0], y: slots },
      { name: 'gaps', colour: DISTINCT[4], y: share((step) => step.gap_bytes || 0) },
      { name: 'backend', colour: DISTINCT[1], y: share((step) => step.fallback_bytes || 0) },
    ],
  });
}
