// What people do with the picture: wheel, pointer and keys.

class Gestures {
  constructor(picture) {
    this.picture = picture;
    this.pointers = new Map();
    this.listen();
  }

  listen() {
    const { marks } = this.picture;
    const handlers = {
      pointerdown: (event) => this.press(event),
      pointermove: (event) => this.move(event),
      pointerup: (event) => this.release(event),
      pointercancel: (event) => this.pointers.delete(event.pointerId),
      pointerleave: () => this.picture.hover(-1),
      dblclick: () => this.picture.reset(),
      keydown: (event) => this.key(event),
    };
    for (const [name, handler] of Object.entries(handlers)) marks.addEventListener(name, handler);
    marks.addEventListener('wheel', (event) => this.wheel(event), { passive: false });
  }

  wheel(event) {
    // With Shift browsers turn the wheel sideways.
    const turn = event.deltaY || (event.shiftKey ? event.deltaX : 0);
    if (turn === 0) return;
    // A plan shown whole cannot be zoomed out: the wheel goes on to scroll the page.
    if (turn > 0 && this.picture.showsAll()) return;
    event.preventDefault();
    const pixels = turn * (event.deltaMode === 0 ? 1 : 33);
    const factor = Math.exp(-Math.max(-240, Math.min(240, pixels)) * 0.0022);
    this.picture.zoomAt(event.offsetX, event.offsetY, factor, event.shiftKey ? 'time' : event.altKey ? 'bytes' : 'both');
    this.picture.hover(-1);
  }

  press(event) {
    if (event.button !== 0) return;
    this.picture.marks.focus({ preventScroll: true });
    try {
      this.picture.marks.setPointerCapture(event.pointerId);
    } catch {
      // A pointer that is gone already; the press counts all the same.
    }
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, moved: 0 });
  }

  move(event) {
    const held = this.pointers.get(event.pointerId);
    if (!held) return this.picture.hover(this.picture.blockAt(event.offsetX, event.offsetY), event);
    const right = event.offsetX - held.x, down = event.offsetY - held.y;
    held.moved += Math.abs(right) + Math.abs(down);
    const other = [...this.pointers.values()].find((pointer) => pointer !== held);
    if (other) this.pinch(held, other, event);
    else if (held.moved > 4) {
      this.picture.marks.classList.add('dragged');
      this.picture.hover(-1);
      this.picture.pan(right, down);
    } else return undefined;
    Object.assign(held, { x: event.offsetX, y: event.offsetY });
    return undefined;
  }

  pinch(held, other, event) {
    const before = Math.hypot(held.x - other.x, held.y - other.y);
    const after = Math.hypot(event.offsetX - other.x, event.offsetY - other.y);
    if (before > 10 && after > 10) this.picture.zoomAt(other.x, other.y, after / before);
  }

  release(event) {
    const held = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    this.picture.marks.classList.remove('dragged');
    if (held && held.moved <= 4) this.picture.choose(this.picture.blockAt(event.offsetX, event.offsetY), false);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey) return;
    const actions = {
      ArrowLeft: () => this.picture.pan(60, 0), ArrowRight: () => this.picture.pan(-60, 0),
      ArrowUp: () => this.picture.pan(0, 60), ArrowDown: () => this.picture.pan(0, -60),
      '+': () => this.picture.zoomMiddle(1.4), '=': () => this.picture.zoomMiddle(1.4), '-': () => this.picture.zoomMiddle(1 / 1.4),
      '0': () => this.picture.reset(), n: () => this.picture.stepBy(1), p: () => this.picture.stepBy(-1),
      Enter: () => this.picture.stepBy(event.shiftKey ? -1 : 1), Escape: () => this.picture.choose(-1, false),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}
