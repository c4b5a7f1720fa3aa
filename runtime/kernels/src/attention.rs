//! The heads of an attention: scores, probabilities and what they make of the values.
//!
//! Queries are taken in blocks: only a block's scores are in memory, and only for keys that one of its queries may look at. Heads are
//! shared out among threads, each with scratch memory for one block.

use crate::gemm::Matrix;
use crate::real::{Real, Space};
use bytemuck::{Pod, cast_slice};
use std::ops::Range;
use stepalloc_tensor::Ints;
use stepalloc_tensor::growing::Blocks;
use stepalloc_tensor::{Bool, DataType, Number, OpError, bf16, f16};
use stepalloc_threads as threads;

/// Queries of a block: so many that packing the keys for a product is little work beside it.
const ROWS: usize = 128;

/// Multiplications from which on threads share the work.
const WORTH_SHARING: usize = 1 << 20;

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Members of the batch.
    pub batch: usize,
    /// Heads of the queries.
    pub q_heads: usize,
    /// Heads of keys and values: those of the queries share them.
    pub kv_heads: usize,
    /// Queries of a head.
    pub queries: usize,
    /// Keys that were there before the queries' own.
    pub past: usize,
    /// Keys, those of the past included.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub head: usize,
    /// Elements of a value.
    pub v_head: usize,
    /// Heads lie beside each other in rows, not one behind the other.
    pub packed: bool,
}

impl Sizes {
    /// Elements of Y, and of the scores.
    pub fn outputs(&self) -> (usize, usize) {
        let rows = self.batch * self.q_heads * self.queries;
        (rows * self.v_head, rows * self.keys)
    }

    /// The output cannot be written head by head.
    pub fn repacks(&self) -> bool {
        self.packed && self.q_heads > 1 && self.queries > 1
    }

    /// A single query of heads that share keys is as many queries of one head; with how many they are then.
    pub fn grouped(self) -> (Self, usize) {
        match self.q_heads.checked_div(self.kv_heads) {
            Some(group) if self.queries == 1 && group > 1 => {
                (Self { q_heads: self.kv_heads, queries: group, packed: false, ..self }, group)
            }
            _ => (self, 1),
        }
    }

    /// The number of threads that heads are shared among, where a run has `threads`.
    pub fn threads(&self, threads: usize) -> usize {
        let heads = self.batch * self.q_heads;
        let work = self.outputs().1.saturating_mul(self.head + self.v_head);
        if work < WORTH_SHARING { 1 } else { threads.clamp(1, heads.max(1)) }
    }

    /// Elements of a block's scores.
    pub fn block(&self) -> usize {
        self.queries.min(ROWS) * self.keys
    }
}

/// How scores become probabilities.
pub struct Rule {
    /// Scores x become softcap tanh(x / softcap); 0 leaves them.
    pub softcap: f32,
    /// Whether a query looks at no key behind its own place.
    pub is_causal: bool,
    /// Keys before and after its own place that a query may look at.
    pub window: [Option<i64>; 2],
    /// What the scores that come out are: 0 products, 1 capped, 2 with bias, 3 probabilities.
    pub mode: i64,
    /// What the scores are rounded to before the softmax.
    pub precision: Option<DataType>,
    /// A query that may look at nothing gets zeros, not NaN.
    pub nothing_is_zero: bool,
}

/// Where matrices are.
#[derive(Clone, Copy)]
enum Source<'a, W> {
    Whole(&'a [W]),
    /// One for each head.
    BlockPerHead(Blocks<'a>),
    /// One for each member of the batch.
    BlockPerMember(Blocks<'a>),
}

/// Matrices of all heads.
#[derive(Clone, Copy)]
pub struct Heads<'a, W> {
    source: Source<'a, W>,
    /// Number of them in a member of the batch.
    heads: usize,
    /// How far members of the batch, heads and rows are apart.
    batch: usize,
    head: usize,
    row: usize,
    cols: usize,
}

impl<'a, W: Pod> Heads<'a, W> {
    /// Heads that lie beside each other in rows (`packed`), or one behind the other.
    pub fn new(data: &'a [W], packed: bool, heads: usize, rows: usize, cols: usize) -> Self {
        let (head, row) = if packed { (cols, heads * cols) } else { (rows * cols, cols) };
        Self { source: Source::Whole(data), heads, batch: heads * rows * cols, head, row, cols }
    }

    /// The same where they lie in blocks: one for each member of the batch if they are `packed`, else one for each head.
    pub fn in_blocks(blocks: Blocks<'a>, packed: bool, heads: usize, cols: usize) -> Self {
        match packed {
            true => {
                let source = Source::BlockPerMember(blocks);
                Self { source, heads, batch: 0, head: cols, row: heads * cols, cols }
            }
            false => Self { source: Source::BlockPerHead(blocks), heads, batch: 0, head: 0, row: cols, cols },
        }
    }

    /// Some rows of one head.
    pub fn rows(&self, batch: usize, head: usize, rows: Range<usize>) -> Matrix<'a, W> {
        let begin = batch * self.batch + head * self.head + rows.start * self.row;
        let data = match self.source {
            Source::Whole(data) => data,
            Source::BlockPerHead(blocks) => cast_slice(blocks.block(batch * self.heads + head)),
            Source::BlockPerMember(blocks) => cast_slice(blocks.block(batch)),
        };
        let data = data.get(begin..).unwrap_or_default();
        Matrix { data, rows: rows.len(), cols: self.cols, row_stride: self.row, col_stride: 1 }
    }
}

/// What is added to scores.
pub enum Bias<'a, W> {
    /// Nothing.
    None,
    /// Whether a query may look at a key.
    Bool {
        /// For each query and key.
        mask: &'a [Bool],
        /// What an element is where the query may.
        shows: bool,
        /// What a score becomes where it may not.
        hidden: W,
    },
    /// A number for each.
    Real(&'a [W]),
}

/// What is added to scores, and where it lies.
pub struct Mask<'a, W> {
    /// The numbers.
    pub bias: Bias<'a, W>,
    /// How far members of the batch, heads, queries and keys are apart.
    pub strides: [usize; 4],
    /// It says something of so many keys; the others are out of sight.
    pub keys: usize,
}

/// Some of the heads.
struct Part<'a, W> {
    heads: Range<usize>,
    y: &'a mut [W],
    shown: Option<&'a mut [W]>,
    /// Memory for the scores of a block, for each thread.
    scratch: &'a mut [u8],
}

/// What all heads share.
pub struct Job<'a, W> {
    /// From scores to probabilities.
    pub rule: &'a Rule,
    /// Of all heads.
    pub sizes: Sizes,
    /// So many heads have become the queries of one; see [`Sizes::grouped`].
    pub group: usize,
    /// Products of queries and keys are multiplied by it.
    pub scale: f32,
    /// Queries.
    pub q: Heads<'a, W>,
    /// Keys, those of the past included.
    pub k: Heads<'a, W>,
    /// Values.
    pub v: Heads<'a, W>,
    /// What is added to the scores.
    pub mask: Mask<'a, W>,
    /// Keys of each member of the batch that are no padding.
    pub lengths: Option<Ints>,
}

/// Rows of heads to rows of all heads.
pub fn repack<W: Real>(by_heads: &[W], y: &mut [W], sizes: Sizes) {
    let Sizes { q_heads, queries, v_head, .. } = sizes;
    for (at, from) in by_heads.chunks_exact(v_head.max(1)).enumerate() {
        let (batch, head, query) = (at / (q_heads * queries), at / queries % q_heads, at % queries);
        y[((batch * queries + query) * q_heads + head) * v_head..][..v_head].copy_from_slice(from);
    }
}

impl<W: Real> Job<'_, W> {
    /// Computes all heads; `y` and `scores` have them one behind the other.
    pub fn run(&self, y: &mut [W], scores: Option<&mut [W]>, scratch: &mut [u8]) -> Result<(), OpError> {
        let Sizes { batch, q_heads, .. } = self.sizes;
        let block = Space::bytes::<W>(self.sizes.block());
        let heads = batch * q_heads;
        let threads = scratch.len().checked_div(block).unwrap_or(1).clamp(1, heads.max(1));
        self.part(Part { heads: 0..heads, y, shown: scores, scratch }, heads.div_ceil(threads).max(1))
    }

    /// Computes a part's heads, `share` on each thread: one half and the other, which needs no list of the parts.
    fn part(&self, part: Part<'_, W>, share: usize) -> Result<(), OpError> {
        let Sizes { q_heads, queries, keys, v_head, .. } = self.sizes;
        let Part { heads, mut y, mut shown, scratch } = part;
        let parts = heads.len().div_ceil(share);
        if parts < 2 {
            let block = if parts == 0 { &mut [] } else { Space(scratch).take::<W>(self.sizes.block())? };
            for head in heads {
                let y = split_off(&mut y, queries * v_head);
                let shown = shown.as_mut().map(|shown| split_off(shown, queries * keys));
                self.head(head / q_heads, head % q_heads, y, shown, block);
            }
            return Ok(());
        }
        let count = parts / 2 * share;
        let middle = heads.start + count;
        let (first, second) = scratch.split_at_mut(parts / 2 * Space::bytes::<W>(self.sizes.block()));
        let one = Part {
            heads: heads.start..middle,
            y: split_off(&mut y, count * queries * v_head),
            shown: shown.as_mut().map(|shown| split_off(shown, count * queries * keys)),
            scratch: first,
        };
        let two = Part { heads: middle..heads.end, y, shown, scratch: second };
        let (mut one, mut two) = ((Some(one), Ok(())), (Some(two), Ok(())));
        let compute = |(part, done): &mut (Option<Part<'_, W>>, Result<(), OpError>)| {
            *done = part.take().map_or(Ok(()), |part| self.part(part, share));
        };
        threads::join(&mut || compute(&mut one), &mut || compute(&mut two));
        one.1.and(two.1)
    }

    /// Keys that a query may look at, as far as the mask is not asked.
    fn range(&self, batch: usize, query: usize) -> Range<usize> {
        let sizes = &self.sizes;
        let length = self.lengths.as_ref().and_then(|lengths| lengths.get(batch)).copied();
        let (queries, query) = if self.group > 1 { (1, 0) } else { (sizes.queries, query) };
        let before = length.map_or(sizes.past as i64, |length| length - queries as i64);
        let place = before + query as i64;
        let mut end = length.unwrap_or(i64::MAX).min(self.mask.keys as i64).min(sizes.keys as i64);
        if self.rule.is_causal {
            end = end.min(place + 1);
        }
        let [left, right] = self.rule.window;
        if let Some(right) = right {
            end = end.min(place.saturating_add(right).saturating_add(1));
        }
        let begin = left.map_or(0, |left| place.saturating_sub(left).max(0));
        let end = end.max(0);
        begin.min(end) as usize..end as usize
    }

    fn head(&self, batch: usize, head: usize, y: &mut [W], shown: Option<&mut [W]>, space: &mut [W]) {
        let Sizes { q_heads, kv_heads, queries, keys, v_head, .. } = self.sizes;
        let (mode, softcap) = (self.rule.mode, W::from_f64(self.rule.softcap.into()));
        let kv_head = head / (q_heads / kv_heads);
        let mut shown = shown;
        for first in (0..queries).step_by(ROWS) {
            let rows = first..queries.min(first + ROWS);
            let seen = match shown {
                Some(_) => 0..keys,
                None => {
                    let ranges =
                        rows.clone().map(|row| self.range(batch, row)).filter(|range| !range.is_empty());
                    let all = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
                    all.unwrap_or(0..0)
                }
            };
            let width = seen.len();
            let scores = &mut space[..rows.len() * width];
            let mut show = |at: i64, scores: &[W]| {
                if let Some(shown) = shown.as_mut().filter(|_| at == mode) {
                    shown[first * keys..][..scores.len()].copy_from_slice(scores);
                }
            };
            let q = self.q.rows(batch, head, rows.clone());
            let k = self.k.rows(batch, kv_head, seen.clone());
            W::multiply(scores, q, k.transposed(), self.scale, W::default());
            show(0, scores);
            if softcap != W::default() {
                scores.iter_mut().for_each(|x| *x = *x / softcap);
                W::tanh(scores);
                scores.iter_mut().for_each(|x| *x = *x * softcap);
            }
            show(1, scores);
            for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(width.max(1))) {
                let range = self.range(batch, row);
                let range = range.start.clamp(seen.start, seen.end)..range.end.clamp(seen.start, seen.end);
                let inner = range.start - seen.start..range.end - seen.start;
                scores[..inner.start].fill(W::LOWEST);
                scores[inner.end..].fill(W::LOWEST);
                let (head, row) = if self.group > 1 { (head * self.group + row, 0) } else { (head, row) };
                self.mask.add(&mut scores[inner], [batch, head, row, range.start]);
            }
            show(2, scores);
            for scores in scores.chunks_exact_mut(width.max(1)) {
                match self.rule.nothing_is_zero {
                    true => probabilities(scores, self.rule.precision),
                    false if scores.is_empty() => {}
                    false => W::softmax(scores),
                }
            }
            show(3, scores);
            let v = self.v.rows(batch, kv_head, seen);
            let y = &mut y[first * v_head..rows.end * v_head];
            W::multiply(y, Matrix::new(scores, rows.len(), width), v, 1.0, W::default());
        }
    }
}

/// The first elements of what is left.
fn split_off<'a, T>(rest: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let (part, after) = std::mem::take(rest).split_at_mut(count);
    *rest = after;
    part
}

impl<W: Real> Mask<'_, W> {
    /// Adds the bias of a query to scores of keys from this one on. What is out of sight stays so, whatever the score is.
    fn add(&self, scores: &mut [W], [batch, head, row, key]: [usize; 4]) {
        let [to_batch, to_head, to_row, step] = self.strides;
        let begin = batch * to_batch + head * to_head + row * to_row + key * step;
        let length = scores.len() * step.min(1) + (1 - step.min(1));
        match self.bias {
            _ if scores.is_empty() => {}
            Bias::None => {}
            Bias::Bool { mask, shows, hidden } => {
                let mask = &mask[begin..begin + length];
                let hide = |(score, allowed): (&mut W, &Bool)| {
                    *score = if allowed.get() == shows { *score } else { hidden }
                };
                match step {
                    0 => scores.iter_mut().for_each(|score| hide((score, &mask[0]))),
                    _ => scores.iter_mut().zip(mask).for_each(hide),
                }
            }
            Bias::Real(mask) => {
                let mask = &mask[begin..begin + length];
                let add = |(score, &bias): (&mut W, &W)| {
                    *score = if bias == W::LOWEST { bias } else { *score + bias };
                };
                match step {
                    0 => scores.iter_mut().for_each(|score| add((score, &mask[0]))),
                    _ => scores.iter_mut().zip(mask).for_each(add),
                }
            }
        }
    }
}

/// Scores to probabilities; a query that may look at nothing has none.
pub fn probabilities<W: Real>(scores: &mut [W], precision: Option<DataType>) {
    if scores.iter().all(|&score| score == W::LOWEST) {
        return scores.fill(W::default());
    }
    round(scores, precision);
    if precision == Some(DataType::F64) && W::DTYPE != DataType::F64 {
        let most = scores.iter().fold(f64::MIN, |most, score| most.max(score.to_f64()));
        let sum: f64 = scores.iter().map(|score| (score.to_f64() - most).exp()).sum();
        scores.iter_mut().for_each(|score| *score = W::from_f64((score.to_f64() - most).exp() / sum));
        return;
    }
    W::softmax(scores);
    round(scores, precision);
}

/// To a narrower type and back.
fn round<W: Real>(scores: &mut [W], precision: Option<DataType>) {
    fn each<W: Real, T: Number>(scores: &mut [W]) {
        scores.iter_mut().for_each(|score| *score = W::from_f64(T::from_f64(score.to_f64()).to_f64()));
    }
    match precision {
        Some(DataType::F16) => each::<W, f16>(scores),
        Some(DataType::BF16) => each::<W, bf16>(scores),
        Some(DataType::F32) if W::DTYPE == DataType::F64 => each::<W, f32>(scores),
        _ => {}
    }
}
