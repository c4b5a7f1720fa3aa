// The picture of a plan: blocks by time and address, the load drawn over them, and where one looks. It is drawn in animation
// frames only: the picture when the view changed, the marks on the canvas over it when the pointer moved.

/// Of a circle of time this share more is shown at either end, dimmed: there blocks that wrap round go on.
const BEYOND = 0.03;
/// The least that a view shows, in events and bytes.
const LEAST_EVENTS = 2, LEAST_BYTES = 32;
const OVERLAP = '#d4003c';

/// The picture of a plan: a view (x0 to x1 in events, y0 to y1 in bytes), the block under the pointer, the chosen one.
class Picture {
  constructor(data, listeners) {
    this.data = data;
    this.listeners = listeners;
    this.canvas = byId('picture');
    this.marks = byId('marks');
    this.raster = new Raster();
    this.hatch = hatching();
    this.hovered = this.chosen = -1;
    this.loadShown = true;
    this.gestures = new Gestures(this);
    new ResizeObserver(() => this.redraw()).observe(byId('plot'));
  }

  open(plan, mode) {
    const colours = colouring(plan, mode, this.data);
    if (this.plan !== plan) {
      this.plan = plan;
      this.hovered = this.chosen = -1;
      this.reset();
    }
    this.colours = colours;
    this.redraw();
  }

  whole() {
    const { events, around, top } = this.plan;
    const beyond = around === Infinity ? 0 : events * BEYOND;
    return { x0: -beyond, x1: events + beyond, y0: 0, y1: top * 1.07 };
  }

  reset() {
    this.look(this.whole());
  }

  /// Shows a view, moved and made smaller so that it lies within the whole.
  look(view) {
    const whole = this.whole();
    const axis = (low, high, from, to, least) => {
      const span = Math.min(to - from, Math.max(high - low, Math.min(least, to - from)));
      const start = Math.min(to - span, Math.max(from, (low + high - span) / 2));
      return [start, start + span];
    };
    const [x0, x1] = axis(view.x0, view.x1, whole.x0, whole.x1, LEAST_EVENTS);
    const [y0, y1] = axis(view.y0, view.y1, whole.y0, whole.y1, LEAST_BYTES);
    this.view = { x0, x1, y0, y1 };
    const all = this.showsAll();
    // A finger scrolls the page over a plan shown whole, and moves the plan where it is zoomed.
    this.marks.style.touchAction = all ? 'pan-y' : 'none';
    this.redraw();
  }

  showsAll() {
    const whole = this.whole();
    return ['x0', 'x1', 'y0', 'y1'].every((edge) => Math.abs(whole[edge] - this.view[edge]) < 1e-9 * whole.y1);
  }

  /// The part of the canvas that shows the plan, without its axes, in CSS pixels.
  frame() {
    return this.framed || this.measure();
  }

  measure() {
    const { width, height } = this.marks.getBoundingClientRect();
    const left = width < 500 ? 64 : 84;
    this.framed = { left, top: 4, width: Math.max(1, width - left - 2), height: Math.max(1, height - 4 - 38) };
    return this.framed;
  }

  x(event) {
    const { left, width } = this.frame();
    return left + ((event - this.view.x0) / (this.view.x1 - this.view.x0)) * width;
  }

  y(byte) {
    const { top, height } = this.frame();
    return top + height - ((byte - this.view.y0) / (this.view.y1 - this.view.y0)) * height;
  }

  eventAt(x) {
    const { left, width } = this.frame();
    return this.view.x0 + ((x - left) / width) * (this.view.x1 - this.view.x0);
  }

  byteAt(y) {
    const { top, height } = this.frame();
    return this.view.y0 + ((top + height - y) / height) * (this.view.y1 - this.view.y0);
  }

  /// The block at a point of the canvas, or the nearest within three pixels; -1 where there is none.
  blockAt(x, y) {
    const { plan } = this;
    const event = this.eventAt(x), byte = this.byteAt(y);
    const frame = this.frame();
    if (x < frame.left || x > frame.left + frame.width || y < frame.top || y > frame.top + frame.height) return -1;
    const acrossPixels = frame.width / (this.view.x1 - this.view.x0), upPixels = frame.height / (this.view.y1 - this.view.y0);
    let nearest = -1, least = 3;
    for (let block = 0; block < plan.count; block++) {
      const from = plan.offset[block];
      const above = Math.max(0, from - byte, byte - from - plan.size[block]) * upPixels;
      if (above >= least) continue;
      const start = plan.copyAfter(block, event - (least / acrossPixels));
      const beside = Math.max(0, start - event, event - start - plan.length[block]) * acrossPixels;
      const distance = Math.max(above, beside);
      if (distance < least) [nearest, least] = [block, distance];
      if (distance === 0) return block;
    }
    return nearest;
  }

  /// A block's rectangles in the view, in CSS pixels.
  rectangles(block) {
    const { plan } = this;
    return this.boxes(plan.lower[block], plan.length[block], plan.offset[block], plan.size[block]);
  }

  boxes(lower, length, from, size) {
    const { view } = this, { around } = this.plan;
    const found = [];
    let start = lower;
    if (around !== Infinity) start += Math.ceil((view.x0 - lower - length) / around) * around;
    for (; start < view.x1; start += around) {
      const x = this.x(start), y = this.y(from + size);
      found.push({ x, y, width: this.x(start + length) - x, height: this.y(from) - y });
      if (around === Infinity) break;
    }
    return found;
  }

  redraw() {
    this.stale = true;
    this.remark();
  }

  remark() {
    if (this.pending || !this.plan) return;
    this.pending = requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.pending);
    this.pending = null;
    const begun = performance.now();
    if (this.stale && this.paintPicture()) {
      this.stale = false;
      this.listeners.painted(performance.now() - begun);
    }
    this.paintMarks();
  }

  paintPicture() {
    const fitted = fit(this.canvas);
    if (!fitted) return false;
    const { pen, scale } = fitted;
    const look = theme(), frame = this.measure();
    const left = Math.round(frame.left * scale), top = Math.round(frame.top * scale);
    this.raster.resize(Math.round(frame.width * scale), Math.round(frame.height * scale));
    this.raster.draw(this.plan, this.view, this.colours.index, this.colours.palette(), look);
    pen.putImageData(this.raster.image, left, top);
    pen.font = FONT;
    pen.save();
    pen.beginPath();
    pen.rect(frame.left, frame.top, frame.width, frame.height);
    pen.clip();
    this.paintEnds(pen, frame, look);
    this.paintOverlaps(pen);
    if (this.loadShown) this.paintLoad(pen, look);
    this.paintLevels(pen, frame, look);
    pen.restore();
    this.paintAxes(pen, frame, look);
    return true;
  }

  /// Beyond the ends of a circle the picture is dimmed; where a block goes on across an end stands an arrow.
  paintEnds(pen, frame, look) {
    const { plan, view } = this;
    if (plan.around === Infinity) return;
    const bottom = frame.top + frame.height;
    pen.fillStyle = look.ground;
    pen.globalAlpha = 0.62;
    const begin = this.x(0), end = this.x(plan.events);
    if (begin > frame.left) pen.fillRect(frame.left, frame.top, begin - frame.left, frame.height);
    if (end < frame.left + frame.width) pen.fillRect(end, frame.top, frame.left + frame.width - end, frame.height);
    pen.globalAlpha = 1;
    for (const edge of [0, plan.events]) {
      if (edge < view.x0 || edge > view.x1) continue;
      const x = this.x(edge);
      stroke(pen, [[x, frame.top], [x, bottom]], look.ink, 1, [2, 3]);
      for (const block of plan.wrapping) {
        const low = Math.min(bottom, this.y(plan.offset[block]));
        const high = Math.max(frame.top, this.y(plan.offset[block] + plan.size[block]));
        if (low - high < 9) continue;
        const y = (low + high) / 2;
        const arrow = [[x - 3, y - 4], [x + 3, y], [x - 3, y + 4]];
        stroke(pen, arrow, look.ground, 4.5);
        stroke(pen, arrow, look.ink, 1.8);
      }
    }
  }

  /// Bytes that two blocks share while both are alive: hatched, never below five pixels, and ringed where they are small.
  paintOverlaps(pen) {
    for (const pair of this.plan.overlaps.pairs) {
      const length = overlapLength(this.plan, pair);
      for (const box of this.boxes(pair.from_event, length, pair.from_byte, pair.to_byte - pair.from_byte)) {
        const [x, y, width, height] = atLeast(box, 5);
        rim(pen, () => pen.rect(x, y, width, height), OVERLAP, 2.5);
        pen.fillStyle = this.hatch;
        pen.fillRect(x, y, width, height);
        if (width > 14 || height > 14) continue;
        rim(pen, () => pen.arc(x + width / 2, y + height / 2, 14, 0, 2 * Math.PI), OVERLAP, 2.5);
      }
    }
  }

  paintLoad(pen, look) {
    const { plan, view } = this;
    if (!plan.load) return;
    const { event, bytes: live } = plan.load;
    const points = [];
    for (let copy = plan.around === Infinity ? 0 : -1; copy <= (plan.around === Infinity ? 0 : 1); copy++) {
      const shift = copy === 0 ? 0 : copy * plan.around;
      if (shift > view.x1 || shift + plan.events < view.x0) continue;
      for (let at = 0; at < event.length; at++) {
        const next = at + 1 < event.length ? event[at + 1] : plan.events;
        if (next + shift < view.x0 || event[at] + shift > view.x1) continue;
        const y = this.y(live[at]);
        points.push([this.x(event[at] + shift), y], [this.x(next + shift), y]);
      }
    }
    stroke(pen, points, look.ground, 4);
    stroke(pen, points, look.ink, 1.6);
  }

  /// The arena's height and the lower bound, and the peak's moment.
  paintLevels(pen, frame, look) {
    const { plan } = this;
    const right = frame.left + frame.width;
    const level = (byte, dash) => {
      const y = this.y(byte);
      stroke(pen, [[frame.left, y], [right, y]], look.ground, 4);
      stroke(pen, [[frame.left, y], [right, y]], look.ink, 1.5, dash);
      return y;
    };
    const bound = level(plan.lower_bound, [7, 4]);
    const height = level(plan.height, plan.height === plan.lower_bound ? [7, 4] : []);
    pen.textBaseline = 'bottom';
    pen.textAlign = 'left';
    const write = (text, y) => rimmed(pen, text, frame.left + 8, y - 4, look.ink, look.ground);
    if (plan.height === plan.lower_bound) write(`arena = lower bound ${bytes(plan.height)}`, height);
    else if (Math.abs(bound - height) < 19) {
      write(`arena ${bytes(plan.height)}, lower bound ${bytes(plan.lower_bound)}`, Math.min(bound, height));
    } else {
      write(`arena ${bytes(plan.height)}`, height);
      write(`lower bound ${bytes(plan.lower_bound)}`, bound);
    }
    if (!plan.peak || !this.loadShown) return;
    const x = this.x(plan.peak.event + 0.5), y = this.y(plan.peak.bytes);
    pen.beginPath();
    pen.arc(x, y, 4.5, 0, 2 * Math.PI);
    pen.fillStyle = look.ground;
    pen.fill();
    pen.lineWidth = 2;
    pen.strokeStyle = look.ink;
    pen.stroke();
  }

  paintAxes(pen, frame, look) {
    const { plan, view } = this;
    const bottom = frame.top + frame.height, right = frame.left + frame.width;
    pen.fillStyle = look.faint;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    const byteStep = tickStep(view.y1 - view.y0, frame.height / 52, true, 1);
    for (const tick of ticks(view.y0, view.y1, byteStep)) {
      const y = this.y(tick);
      stroke(pen, [[frame.left - 5, y], [frame.left, y]], look.line, 1);
      pen.fillText(tickBytes(tick, byteStep, view.y1), frame.left - 8, Math.max(8, y), frame.left - 10);
    }
    pen.textAlign = 'center';
    pen.textBaseline = 'top';
    const eventStep = tickStep(view.x1 - view.x0, frame.width / 75, false, 1);
    for (const tick of ticks(Math.max(0, view.x0), Math.min(plan.events, view.x1), eventStep)) {
      const x = this.x(tick);
      stroke(pen, [[x, bottom], [x, bottom + 5]], look.line, 1);
      pen.fillText(grouped(tick), Math.min(x, right - 12), bottom + 7);
    }
    pen.textAlign = 'right';
    pen.fillText(plan.period ? `${plan.unit} of ${grouped(plan.events)}, after which all repeats` : plan.unit, right, bottom + 23);
  }

  paintMarks() {
    const fitted = fit(this.marks);
    if (!fitted) return;
    const { pen } = fitted;
    const look = theme(), frame = this.frame();
    pen.beginPath();
    pen.rect(frame.left, frame.top, frame.width, frame.height);
    pen.clip();
    if (this.hovered >= 0 && this.hovered !== this.chosen) this.outline(pen, this.hovered, look, 1.5);
    if (this.chosen >= 0) this.outline(pen, this.chosen, look, 3);
  }

  outline(pen, block, look, line) {
    for (const box of this.rectangles(block)) {
      const edges = atLeast(box, 6);
      rim(pen, () => pen.rect(...edges), look.ink, line, look.ground);
    }
  }

  // Moving about.

  zoomAt(x, y, factor, along = 'both') {
    const { x0, x1, y0, y1 } = this.view;
    const event = this.eventAt(x), byte = this.byteAt(y);
    const across = along === 'bytes' ? 1 : factor, up = along === 'time' ? 1 : factor;
    this.lookAround(event, byte, {
      x0: event - (event - x0) / across, x1: event + (x1 - event) / across,
      y0: byte - (byte - y0) / up, y1: byte + (y1 - byte) / up,
    });
  }

  /// A view around a point. A span below the least keeps the point where it is.
  lookAround(event, byte, view) {
    const keep = (low, high, at, least) => {
      const share = Math.min(1, Math.max(0, (at - low) / (high - low)));
      return high - low >= least ? [low, high] : [at - share * least, at + (1 - share) * least];
    };
    const [x0, x1] = keep(view.x0, view.x1, event, LEAST_EVENTS);
    const [y0, y1] = keep(view.y0, view.y1, byte, LEAST_BYTES);
    this.look({ x0, x1, y0, y1 });
  }

  zoomMiddle(factor) {
    const { left, top, width, height } = this.frame();
    this.zoomAt(left + width / 2, top + height / 2, factor);
  }

  /// Moves by CSS pixels.
  pan(right, down) {
    const { width, height } = this.frame();
    const events = (right / width) * (this.view.x1 - this.view.x0), above = (down / height) * (this.view.y1 - this.view.y0);
    const { x0, x1, y0, y1 } = this.view;
    this.look({ x0: x0 - events, x1: x1 - events, y0: y0 + above, y1: y1 + above });
  }

  /// Zooms to a rectangle of the plan, with room around it.
  zoomTo(lower, length, from, size, room) {
    const events = Math.max(8, length * room), height = Math.max(256, size * room);
    this.look({
      x0: lower + length / 2 - events / 2, x1: lower + length / 2 + events / 2,
      y0: from + size / 2 - height / 2, y1: from + size / 2 + height / 2,
    });
  }

  /// Chooses a block and moves the view where it cannot be seen; `near` zooms to it.
  choose(block, near) {
    const { plan, view } = this;
    this.chosen = block;
    if (block >= 0) {
      const [lower, length, from, size] = ['lower', 'length', 'offset', 'size'].map((name) => plan[name][block]);
      const middle = lower + length / 2, centre = from + size / 2;
      if (near) this.zoomTo(lower, length, from, size, 5);
      else if (lower + length < view.x0 || lower > view.x1 || from + size < view.y0 || from > view.y1) {
        const across = (view.x1 - view.x0) / 2, up = (view.y1 - view.y0) / 2;
        this.look({ x0: middle - across, x1: middle + across, y0: centre - up, y1: centre + up });
      }
    }
    this.remark();
    this.listeners.chosen(block);
  }

  /// To the next block in the order of allocation, or the one before.
  stepBy(difference) {
    const { plan } = this;
    if (plan.count === 0) return;
    const from = this.chosen >= 0 ? plan.rank(this.chosen) : difference > 0 ? -1 : plan.count;
    this.choose(plan.order[(from + difference + plan.count) % plan.count], false);
  }

  hover(block, event) {
    if (block !== this.hovered) {
      this.hovered = block;
      this.remark();
    }
    this.listeners.hovered(block, event);
  }
}

const overlapLength = (plan, pair) => {
  const length = pair.to_event - pair.from_event;
  return length > 0 ? length : length + (plan.period || 0);
};

/// A box grown about its middle to so many pixels each way.
function atLeast(box, least) {
  const width = Math.max(least, box.width), height = Math.max(least, box.height);
  return [box.x - (width - box.width) / 2, box.y - (height - box.height) / 2, width, height];
}

/// A line around a shape, on a wider one that sets it off from what is below.
function rim(pen, shape, colour, line, ground = '#ffffff') {
  pen.beginPath();
  shape();
  pen.lineWidth = line + 3;
  pen.strokeStyle = ground;
  pen.stroke();
  pen.lineWidth = line;
  pen.strokeStyle = colour;
  pen.stroke();
}

function stroke(pen, points, colour, width, dash = []) {
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.setLineDash(dash);
  pen.lineJoin = 'round';
  pen.lineWidth = width;
  pen.strokeStyle = colour;
  pen.stroke();
  pen.setLineDash([]);
}

function hatching() {
  const tile = element('canvas', { width: 8, height: 8 });
  const pen = tile.getContext('2d');
  pen.fillStyle = '#ffffff';
  pen.fillRect(0, 0, 8, 8);
  for (const shift of [-8, 0, 8]) stroke(pen, [[shift - 2, 10], [shift + 10, -2]], OVERLAP, 3.6);
  return pen.createPattern(tile, 'repeat');
}
