// Blocks to pixels. The blocks of a valid plan never overlap, so that a picture costs its pixels and its blocks, of which there
// may be 100,000.

/// Lines a pixel is sampled at, each way: small blocks get the share of a pixel that they cover.
const SAMPLES = 4;
const FULL = SAMPLES * SAMPLES;
/// From this many pixels on, both ways, a block is drawn with sharp edges and a border.
const SHARP = 3;
/// Up to this many blocks even one that lies between the samples is drawn; of more, that could cost blocks times pixels.
const ALL_SEEN = 5000;

/// Draws blocks into pixels. Colours are summed with their weights in two arrays, two channels of 16 bits in each: red and
/// blue, green and weight. Weights of one pixel add up to FULL where it is covered.
class Raster {
  resize(width, height) {
    if (this.width === width && this.height === height) return;
    Object.assign(this, { width, height });
    this.redBlue = new Uint32Array(width * height);
    this.greenWeight = new Uint32Array(width * height);
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  draw(plan, view, index, palette, look) {
    const { width, height } = this;
    this.redBlue.fill(0);
    this.greenWeight.fill(0);
    const border = palette.map((rgb) => mix(rgb, channels(look.ground), look.border));
    const inks = [...palette, ...border].map(([red, green, blue]) => [((red << 16) | blue) >>> 0, ((green << 16) | 1) >>> 0]);
    this.reds = Uint32Array.from(inks, ([first]) => first);
    this.greens = Uint32Array.from(inks, ([, second]) => second);
    this.borders = palette.length;
    this.seen = plan.count <= ALL_SEEN;
    const across = width / (view.x1 - view.x0), up = height / (view.y1 - view.y0);
    const { lower, length, offset, size, around } = plan;
    const circle = around !== Infinity;
    for (let block = 0; block < plan.count; block++) {
      const bottom = height - (offset[block] - view.y0) * up;
      const top = bottom - size[block] * up;
      if (bottom <= 0 || top >= height) continue;
      let start = circle ? plan.copyAfter(block, view.x0) : lower[block];
      for (; start < view.x1; start += around) {
        const left = (start - view.x0) * across, right = left + length[block] * across;
        if (right <= 0) break;
        if (right - left >= SHARP && bottom - top >= SHARP) this.sharp(left, right, top, bottom, index[block]);
        else this.soft(left, right, top, bottom, index[block]);
        if (!circle) break;
      }
    }
    this.compose(channels(look.empty));
  }

  /// A rectangle of whole pixels with a border below and to the left, so that neighbours are one line apart.
  sharp(left, right, top, bottom, colour) {
    const { width, height } = this;
    const x0 = Math.max(0, Math.round(left)), x1 = Math.min(width, Math.round(right));
    const y0 = Math.max(0, Math.round(top)), y1 = Math.min(height, Math.round(bottom));
    if (x1 <= x0) return;
    const red = this.reds[colour] * FULL, green = this.greens[colour] * FULL;
    const edgeRed = this.reds[colour + this.borders] * FULL, edgeGreen = this.greens[colour + this.borders] * FULL;
    const edgeLeft = left >= 0, last = bottom <= height ? y1 - 1 : -1;
    for (let y = y0; y < y1; y++) {
      const row = y * width;
      const edge = y === last;
      this.redBlue.fill(edge ? edgeRed : red, row + x0, row + x1);
      this.greenWeight.fill(edge ? edgeGreen : green, row + x0, row + x1);
      if (edgeLeft) {
        this.redBlue[row + x0] = edgeRed;
        this.greenWeight[row + x0] = edgeGreen;
      }
    }
  }

  /// A rectangle thinner than a few pixels: every pixel gets the samples that lie in it.
  soft(left, right, top, bottom, colour) {
    const { width, height, redBlue, greenWeight } = this;
    let x0 = Math.round(left * SAMPLES), x1 = Math.round(right * SAMPLES);
    let y0 = Math.round(top * SAMPLES), y1 = Math.round(bottom * SAMPLES);
    if (this.seen) {
      if (x0 === x1) x1++;
      if (y0 === y1) y0--;
    }
    x0 = Math.max(0, x0);
    x1 = Math.min(width * SAMPLES, x1);
    y0 = Math.max(0, y0);
    y1 = Math.min(height * SAMPLES, y1);
    if (x0 >= x1 || y0 >= y1) return;
    const red = this.reds[colour], green = this.greens[colour];
    const firstColumn = Math.floor(x0 / SAMPLES), lastColumn = Math.floor((x1 - 1) / SAMPLES);
    for (let y = Math.floor(y0 / SAMPLES); y * SAMPLES < y1; y++) {
      const tall = Math.min(y1, (y + 1) * SAMPLES) - Math.max(y0, y * SAMPLES);
      for (let x = firstColumn; x <= lastColumn; x++) {
        const wide = Math.min(x1, (x + 1) * SAMPLES) - Math.max(x0, x * SAMPLES);
        const at = y * width + x;
        redBlue[at] += red * (wide * tall);
        greenWeight[at] += green * (wide * tall);
      }
    }
  }

  /// Sums to colours, over the colour of free bytes where a pixel is not covered.
  compose([red, green, blue]) {
    const { redBlue, greenWeight, pixels } = this;
    const empty = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    for (let at = 0; at < pixels.length; at++) {
      const second = greenWeight[at];
      if (second === 0) {
        pixels[at] = empty;
        continue;
      }
      const first = redBlue[at], weight = second & 0xffff;
      if (weight === FULL) {
        pixels[at] = 0xff000000 | ((first & 0xff0) << 12) | ((second >>> 20) << 8) | (first >>> 20);
        continue;
      }
      const rest = Math.max(0, FULL - weight), whole = weight + rest;
      const r = ((first >>> 16) + rest * red) / whole;
      const g = ((second >>> 16) + rest * green) / whole;
      const b = ((first & 0xffff) + rest * blue) / whole;
      pixels[at] = 0xff000000 | (b << 16) | (g << 8) | r;
    }
  }
}
