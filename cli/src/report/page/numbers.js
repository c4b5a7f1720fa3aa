// Numbers: the columns of the data, and how byte counts, times and shares are written.

/// A column: base64 of LEB128 varints of zigzag differences. Values go to 2^53, beyond what bit operations hold.
function decode(text) {
  const bytes = atob(text);
  const values = new Float64Array(bytes.length);
  let count = 0, value = 0, number = 0, place = 1;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes.charCodeAt(at);
    number += (byte & 127) * place;
    if (byte >= 128) {
      place *= 128;
      continue;
    }
    value += number % 2 === 0 ? number / 2 : -(number + 1) / 2;
    values[count++] = value;
    number = 0;
    place = 1;
  }
  return values.slice(0, count);
}

const UNITS = [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];
const grouped = (number) => Math.round(number).toLocaleString('en');
const plural = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? '' : 's'}`;
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;

function bytes(number) {
  const unit = UNITS.find(([, size]) => number >= size);
  return unit ? `${(number / unit[1]).toFixed(1)} ${unit[0]}` : plural(number, 'byte');
}

const exact = (number) => (number < 1024 ? bytes(number) : `${bytes(number)} (${grouped(number)} bytes)`);

function milliseconds(number) {
  if (number >= 10000) return `${(number / 1000).toFixed(1)} s`;
  if (number >= 100 || number === 0) return `${number.toFixed(0)} ms`;
  return number >= 1 ? `${number.toFixed(1)} ms` : `${(number * 1000).toPrecision(3)} µs`;
}

/// A figure of a comparison in the unit that its column names; `like` chooses decimals, so that a spread is written as its
/// median is.
function figure(value, unit, like = value) {
  if (unit === 's') return like < 1 ? milliseconds(value * 1000) : `${value.toFixed(2)} s`;
  if (unit === 'ms') return milliseconds(value);
  if (unit === 'MiB' || unit === 'KiB') return `${value.toFixed(1)} ${unit}`;
  if (unit === 'bytes' || unit === 'B') return bytes(value);
  const number = Number.isInteger(value) || like >= 100 ? grouped(value) : value.toPrecision(3);
  return unit ? `${number} ${unit}` : number;
}

/// The step between ticks: a power of two for bytes, else 1, 2 or 5 times a power of ten.
function tickStep(span, count, binary, least) {
  const rough = Math.max(span / Math.max(1, count), Number.MIN_VALUE);
  if (binary) return Math.max(least, 2 ** Math.ceil(Math.log2(rough)));
  const power = 10 ** Math.floor(Math.log10(rough));
  return Math.max(least, [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power);
}

function ticks(low, high, step) {
  const all = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) all.push(tick);
  return all;
}

/// A tick's label in the largest unit that tells neighbours apart by three decimals.
function tickBytes(value, step, high) {
  if (value === 0) return '0';
  const unit = UNITS.find(([, size]) => size <= high && step >= size / 8);
  if (!unit) return grouped(value);
  const digits = step >= unit[1] ? 0 : Math.ceil(Math.log2(unit[1] / step));
  return `${(value / unit[1]).toLocaleString('en', { maximumFractionDigits: digits })} ${unit[0]}`;
}
