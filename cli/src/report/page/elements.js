// Elements: making them, saying what went wrong, and canvases in the screen's own pixels. Text of the data becomes text nodes
// only, for names may hold anything.

const byId = (id) => document.getElementById(id);

/// An element with properties and children; strings become text nodes, null is left out.
function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const show = (id) => { byId(id).hidden = false; };

/// Says on the page what went wrong; of several things the first.
function trouble(error) {
  const place = byId('trouble');
  if (!place.hidden) return;
  place.textContent = `This report cannot be shown in full: ${error && error.message ? error.message : error}`;
  place.hidden = false;
}

/// Does a part of the page, so that what is wrong in it leaves the others.
function attempt(part) {
  try {
    return part();
  } catch (error) {
    trouble(error);
    return null;
  }
}

window.addEventListener('error', (event) => trouble(event.error || event.message));
window.addEventListener('unhandledrejection', (event) => trouble(event.reason));

/// Fits a canvas to its place on the screen, in the screen's own pixels. Returns null where it has no place.
function fit(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  const across = Math.round(width * scale), down = Math.round(height * scale);
  if (across < 1 || down < 1) return null;
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height, scale };
}

/// Text with a rim of the ground's colour, readable on any block.
function rimmed(pen, text, x, y, ink, rim) {
  pen.lineJoin = 'round';
  pen.lineWidth = 4;
  pen.strokeStyle = rim;
  pen.strokeText(text, x, y);
  pen.fillStyle = ink;
  pen.fillText(text, x, y);
}
