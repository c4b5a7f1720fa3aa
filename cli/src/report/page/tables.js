// Tables: of what was left to the backend, of allocators compared, and of other ways to place the blocks.

/// A table; headers are [text, class], a row's first cell is its header. Rows beyond `limit` wait behind a button.
function table(place, caption, headers, rows, limit = Infinity) {
  const head = element('tr', {}, headers.map(([text, name]) => element('th', { scope: 'col', className: name || '' }, text)));
  const line = (cells, at) => element('tr', { hidden: at >= limit }, cells.map((cell, column) => {
    const ready = cell instanceof HTMLTableCellElement;
    const box = ready ? cell : element(column === 0 ? 'th' : 'td', column === 0 ? { scope: 'row' } : {}, cell);
    if (!ready) box.className = (headers[column] || [])[1] || '';
    return box;
  }));
  const body = element('tbody', {}, rows.map(line));
  const whole = element('table', {}, element('caption', {}, element('span', {}, caption)), element('thead', {}, head), body);
  const parts = [element('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': caption }, whole)];
  if (rows.length > limit) parts.push(moreButton(body, rows.length));
  byId(place).replaceChildren(...parts);
}

function moreButton(body, count) {
  const button = element('button', { type: 'button' }, `Show all ${grouped(count)}`);
  button.addEventListener('click', () => {
    for (const row of body.rows) row.hidden = false;
    button.parentElement.remove();
  });
  return element('p', { className: 'more' }, button);
}

/// A bar of a share of its cell's width, with a mark at another share.
function bar(share, mark) {
  const length = element('i', { style: `width: ${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%` });
  const line = mark === undefined ? null : element('b', { style: `left: ${(100 * mark).toFixed(2)}%` });
  return element('span', { className: 'bar', 'aria-hidden': 'true' }, length, line);
}

/// A call stack in a table: what tells it from others, all frames when opened.
function stackCell(site) {
  const frames = stackOf(site);
  if (frames.length === 0) return element('span', { className: 'mild' }, 'unknown');
  return element('details', { className: 'stack' }, element('summary', {}, headline(frames)),
    element('ol', {}, frames.map((frame) => element('li', {}, frame))));
}

/// What a block holds in a table: the first, all when opened.
function holdsCell(lines) {
  if (lines.length < 2) return element('span', { className: 'stack' }, lines.join());
  return element('details', { className: 'stack' }, element('summary', {}, `${lines[0]}, and ${grouped(lines.length - 1)} more`),
    element('ol', {}, lines.map((line) => element('li', {}, line))));
}

function showFallbacks({ fallbacks }) {
  const all = fallbacks.reduce((sum, row) => sum + row.bytes, 0) || 1;
  const rows = fallbacks.map((row) => [
    row.reason, exact(row.size), grouped(row.allocations), [bytes(row.bytes), bar(row.bytes / all)],
  ]);
  const headers = [['Reason'], ['Size', 'number'], ['Allocations', 'number'], ['Bytes', 'number']];
  table('fallbacks-table', `By reason and size; ${bytes(all)} in all`, headers, rows, 12);
  show('fallbacks');
}

function showComparison({ comparison }) {
  const { columns, rows } = comparison;
  const most = columns.map((_, at) => Math.max(1e-300, ...rows.map(({ cells }) => (cells && cells[at] ? cells[at].median : 0))));
  const cellOf = (cell, at) => {
    if (!cell) return element('td', { className: 'number mild' }, '–');
    const { unit } = columns[at];
    const spread = cell.spread ? element('span', { className: 'mild' }, ` ± ${figure(cell.spread, unit, cell.median)}`) : null;
    return element('td', { className: cell.verdict === 'best' ? 'number best-cell' : 'number' }, figure(cell.median, unit), spread,
      element('span', { className: 'judged' }, bar(cell.median / most[at]), verdict(cell)));
  };
  const lines = rows.map(({ allocator, cells, failure }) => (failure
    ? [allocator, element('td', { colSpan: columns.length, className: 'failed' }, failure)]
    : [allocator, ...columns.map((_, at) => cellOf((cells || [])[at], at))]));
  const headers = [['Allocator'], ...columns.map(({ words }) => [words, 'number'])];
  const caption = 'Medians with their spread, and ratios to the best; equal: the difference may be chance.';
  table('comparison-table', caption, headers, lines);
  const conclusion = (comparison.conclusion || '').split('\n').filter(Boolean);
  byId('conclusion').replaceChildren(...conclusion.map((text) => element('p', {}, text)));
  show('comparison');
}

function verdict({ verdict: word, ratio }) {
  if (word === 'best') return element('span', { className: 'best' }, 'best');
  if (word === 'equal') return element('span', { className: 'best' }, 'equal');
  const times = Number.isFinite(ratio) ? `${ratio < 100 ? ratio.toFixed(2) : grouped(ratio)} ×` : 'more';
  return element('span', { className: 'mild' }, word === 'more' || Number.isFinite(ratio) ? times : '');
}

function showWhatIf({ what_if: whatIf }) {
  const bound = whatIf.lower_bound;
  const rows = whatIf.rows || [], predictions = whatIf.predictions || [];
  const most = Math.max(1, bound || 0, ...rows.map((row) => row.bytes));
  if (rows.length > 0) {
    const lines = rows.map((row) => [row.name, [bytes(row.bytes), bar(row.bytes / most, bound ? bound / most : undefined)],
      Number.isFinite(row.ratio) ? `${row.ratio.toFixed(3)} ×` : '–', row.note || '']);
    const known = `The line in the bars is the lower bound, ${bytes(bound || 0)}: no way can take less.`;
    const caption = bound ? known : 'Bytes that each way takes.';
    table('what-if-table', caption, [['Way'], ['Bytes', 'number'], ['Ratio to the bound', 'number'], ['', 'wide']], lines);
  }
  if (predictions.length > 0) {
    const largest = Math.max(1, ...predictions.map((row) => row.bytes));
    const lines = predictions.map((row) => [grouped(row.scale), [bytes(row.bytes), bar(row.bytes / largest)], row.note || '']);
    const headers = [['Scale', 'number'], ['Bytes', 'number'], ['', 'wide']];
    table('predictions-table', 'What the step would take at other scales.', headers, lines);
  }
  if (rows.length + predictions.length > 0) show('what-if');
}
