//! Reductions: sums, products, extremes and norms along some of the dimensions.
//!
//! Dimensions that lie next to each other and are both kept or both reduced count as one. What is left is walked through so that the
//! innermost loop is along memory: over a row that becomes one number, or over as many columns as fit a small block of accumulators.

use super::{Definition, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use crate::Call;
use rten_simd::SimdOp;
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    blocks::{BLOCK, SIGN, Source, Wide, by_wide, number},
    no,
};
use stepalloc_tensor::{DataType, Ints, Number, OpError, Shape};
use stepalloc_threads as threads;

/// Work, in elements, that is worth being shared among threads.
pub(super) const PARALLEL: usize = 64 << 10;
/// Accumulators of a row: as many as let the compiler use vector registers.
const LANES: usize = 16;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let kind = match node.op {
        "ReduceSum" => Kind::Sum,
        "ReduceMean" => Kind::Mean,
        "ReduceMax" => Kind::Max,
        "ReduceMin" => Kind::Min,
        "ReduceProd" => Kind::Prod,
        "ReduceL1" => Kind::L1,
        "ReduceL2" => Kind::L2,
        "ReduceLogSum" => Kind::LogSum,
        "ReduceLogSumExp" => Kind::LogSumExp,
        "ReduceSumSquare" => Kind::SumSquare,
        _ => return None,
    };
    Some(Ok(Box::new(Reduce {
        kind,
        axes: node.attributes.ints("axes"),
        keep: node.attributes.int("keepdims", 1) != 0,
        none_if_empty: node.attributes.int("noop_with_empty_axes", 0) != 0,
    })))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

struct Reduce {
    kind: Kind,
    /// In old versions; an input in new ones.
    axes: Option<Vec<i64>>,
    keep: bool,
    /// No axes are none at all, and not all.
    none_if_empty: bool,
}

impl Reduce {
    /// For each dimension, whether it is reduced.
    fn reduced(&self, axes: Option<&[i64]>, rank: usize) -> Result<SmallVec<[bool; 8]>, OpError> {
        let axes = axes.unwrap_or_default();
        if axes.is_empty() {
            return Ok(smallvec::smallvec![!self.none_if_empty; rank]);
        }
        let mut reduced = smallvec::smallvec![false; rank];
        for &at in axes {
            reduced[axis(at, rank)?] = true;
        }
        Ok(reduced)
    }
}

impl Operator for Reduce {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let axes = match &self.axes {
            Some(axes) => Some(Ints::from_slice(axes)),
            None => inputs.opt_ints(1)?,
        };
        let reduced = self.reduced(axes.as_deref(), input.rank())?;
        let dims = input.shape.iter().zip(reduced);
        let shape: Shape = if self.keep {
            dims.map(|(&dim, reduced)| if reduced { 1 } else { dim }).collect()
        } else {
            dims.filter(|(_, reduced)| !reduced).map(|(&dim, _)| dim).collect()
        };
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let given = match (&self.axes, call.opt(1)) {
            (None, Some(axes)) => {
                Some(ints(&axes).ok_or_else(|| OpError::element_type("its axes are not integers"))?)
            }
            _ => None,
        };
        let axes = self.axes.as_deref().or(given.as_deref());
        let groups = Groups::new(input.shape, &self.reduced(axes, input.shape.len())?);
        let output = call.output(0)?;
        let (dtype, kind, count) = (input.dtype, self.kind, groups.count());
        let extreme = matches!(kind, Kind::Max | Kind::Min);
        if matches!(dtype, DataType::Bool | DataType::I8 | DataType::U8) && !extreme {
            return Err(no(dtype));
        }
        if dtype != DataType::Bool {
            number(dtype)?;
        }
        let source = if extreme { Source::flipped(&input) } else { Source::new(&input) };
        let clamp = extreme || matches!(kind, Kind::L2 | Kind::LogSum);
        let to = Target { dtype, bytes: output.bytes, clamp };
        match dtype {
            DataType::I16 | DataType::U16 => return Err(no(dtype)),
            DataType::F32 | DataType::F16 | DataType::BF16 if kind == Kind::LogSumExp => {
                reduce(&log_sum_exp::<f32>(row_of_f32), source, to, &groups);
            }
            _ if kind == Kind::LogSumExp => reduce(&log_sum_exp::<f64>(each_of), source, to, &groups),
            DataType::U64 => reduce_numbers::<i64>(kind, source, to, &groups, &|sum| {
                let unsigned = sum as u64;
                let made = match kind {
                    Kind::Mean => unsigned.checked_div(count as u64).unwrap_or(0),
                    Kind::L2 => (unsigned as f64).sqrt() as u64,
                    Kind::LogSum => (unsigned as f64).ln() as u64,
                    Kind::Max | Kind::Min => unsigned ^ SIGN as u64,
                    _ => unsigned,
                };
                made as i64
            }),
            // As numbers 0 and 1; the least of none is true.
            DataType::Bool => reduce_numbers::<i64>(kind, source, to, &groups, &|x| i64::from(x > 0)),
            _ => by_wide!(dtype, W => {
                reduce_numbers::<W>(kind, source, to, &groups, &|state| match kind {
                    Kind::Mean => state.over(W::from_i64(count as i64)),
                    Kind::L2 => W::from_f64(state.to_f64().sqrt()),
                    Kind::LogSum => W::from_f64(state.to_f64().ln()),
                    _ => state,
                });
            }, return Err(no(dtype))),
        }
        Ok(())
    }
}

/// Dimensions of the input, those of one kind that are neighbours merged.
pub(super) struct Groups {
    /// Dimensions that are kept, with their strides, the innermost last.
    pub(super) kept: SmallVec<[(usize, usize); 4]>,
    /// Those that are reduced.
    pub(super) reduced: SmallVec<[(usize, usize); 4]>,
    /// Whether the innermost one is reduced.
    pub(super) rows: bool,
}

impl Groups {
    pub(super) fn new(shape: &[usize], reduced: &[bool]) -> Self {
        let mut merged: SmallVec<[(usize, bool); 8]> = SmallVec::new();
        for (&dim, &reduced) in shape.iter().zip(reduced).filter(|(dim, _)| **dim != 1) {
            match merged.last_mut() {
                Some(last) if last.1 == reduced => last.0 *= dim,
                _ => merged.push((dim, reduced)),
            }
        }
        let rows = merged.last().is_some_and(|last| last.1);
        let mut groups = Self { kept: SmallVec::new(), reduced: SmallVec::new(), rows };
        let mut stride = 1;
        for (dim, reduced) in merged.into_iter().rev() {
            let to = if reduced { &mut groups.reduced } else { &mut groups.kept };
            to.push((dim, stride));
            stride *= dim;
        }
        groups.kept.reverse();
        groups.reduced.reverse();
        groups
    }

    /// How many elements make one.
    pub(super) fn count(&self) -> usize {
        self.reduced.iter().map(|group| group.0).product()
    }
}

/// Calls `f` with the offset of each place of these dimensions.
pub(super) fn each(dims: &[(usize, usize)], base: usize, f: &mut dyn FnMut(usize)) {
    match dims.split_first() {
        None => f(base),
        Some((&(dim, stride), inner)) => {
            (0..dim).for_each(|index| each(inner, base + index * stride, f));
        }
    }
}

/// The offset of the place with this number among those of these dimensions.
pub(super) fn offset(dims: &[(usize, usize)], mut number: usize) -> usize {
    let mut offset = 0;
    for &(dim, stride) in dims.iter().rev() {
        offset += number % dim * stride;
        number /= dim;
    }
    offset
}

/// How elements are folded into one: `S` is what is known of those folded so far.
struct Fold<'a, W, S> {
    /// Of no elements.
    none: S,
    /// Folds a row into a state.
    row: fn(S, &[W]) -> S,
    /// Folds each element of a row into a state of its own.
    columns: fn(&mut [S], &[W]),
    /// What comes out.
    finish: &'a (dyn Fn(S) -> W + Sync),
}

/// Where to write what comes out, and how.
struct Target<'a> {
    dtype: DataType,
    bytes: &'a mut [u8],
    clamp: bool,
}

fn reduce<W: Wide, S: Copy + Send + Sync>(
    fold: &Fold<'_, W, S>,
    input: Source<'_>,
    output: Target<'_>,
    groups: &Groups,
) {
    let (count, Target { dtype, bytes: output, clamp }) = (groups.count(), output);
    let (bytes, most) = (dtype.bytes(), input.most::<W>());
    let finish = |states: &[S], to: &mut [u8]| {
        let made = &mut [W::default(); BLOCK][..states.len()];
        for (made, &state) in made.iter_mut().zip(states) {
            *made = (fold.finish)(state);
        }
        W::store(made, clamp, dtype, to);
    };
    if input.len() == 0 {
        return output.chunks_mut(bytes).for_each(|to| finish(&[fold.none], to));
    }
    let parallel = input.len() >= PARALLEL;
    if let Some((&(length, _), outer)) = groups.reduced.split_last().filter(|_| groups.rows) {
        // As many at once as are worth a thread's while.
        let size = if parallel { (PARALLEL / 4 / count.max(1)).clamp(1, BLOCK) } else { BLOCK };
        let least = if parallel { (PARALLEL / 4 / (count * size).max(1)).max(1) } else { usize::MAX };
        return threads::pieces(output, size * bytes, least, &|number, to| {
            let states = &mut [fold.none; BLOCK][..to.len() / bytes];
            let mut block = [W::default(); BLOCK];
            for (at, state) in states.iter_mut().enumerate() {
                let base = offset(&groups.kept, number * size + at);
                each(outer, base, &mut |at| {
                    let (mut at, end) = (at, at + length);
                    while at < end {
                        let next = at + most.min(end - at);
                        *state = (fold.row)(*state, input.read(at..next, &mut block));
                        at = next;
                    }
                });
            }
            finish(states, to);
        });
    }
    let (width, outer) = match groups.kept.split_last() {
        Some((&(width, _), outer)) => (width, outer),
        None => (1, &[][..]),
    };
    let (rows, blocks) = match parallel {
        true => ((PARALLEL / 4 / (count * width).max(1)).max(1), 1),
        false => (usize::MAX, usize::MAX),
    };
    threads::pieces(output, width * bytes, rows, &|index, to| {
        let base = offset(outer, index);
        threads::pieces(to, BLOCK * bytes, blocks, &|column, to| {
            let length = to.len() / bytes;
            let states = &mut [fold.none; BLOCK][..length];
            let mut block = [W::default(); BLOCK];
            each(&groups.reduced, base + column * BLOCK, &mut |at| {
                (fold.columns)(states, input.read(at..at + length, &mut block));
            });
            finish(states, to);
        });
    });
}

fn reduce_numbers<W: Wide>(
    kind: Kind,
    input: Source<'_>,
    output: Target<'_>,
    groups: &Groups,
    finish: &(dyn Fn(W) -> W + Sync),
) {
    // Unsigned numbers of 64 bits look like negative ones.
    let unsigned = output.dtype == DataType::U64;
    let fold = match kind {
        Kind::L1 if !unsigned => simple::<W, Amounts>(finish),
        Kind::Sum | Kind::Mean | Kind::LogSum | Kind::LogSumExp | Kind::L1 => simple::<W, Sums>(finish),
        Kind::L2 | Kind::SumSquare => simple::<W, Squares>(finish),
        Kind::Prod => simple::<W, Products>(finish),
        Kind::Max => simple::<W, Greatest>(finish),
        Kind::Min => simple::<W, Least>(finish),
    };
    reduce(&fold, input, output, groups);
}

/// Of all numbers, a NaN alone differs from itself.
#[inline(always)]
#[allow(clippy::eq_op, reason = "that is what is asked")]
pub(super) fn is_nan<W: PartialEq + Copy>(x: W) -> bool {
    x != x
}

/// The greater of two; a NaN if there is one.
#[inline(always)]
pub(super) fn greater<W: PartialOrd + Copy>(a: W, b: W) -> W {
    if a >= b || is_nan(a) { a } else { b }
}

/// The lesser of two; a NaN if there is one.
#[inline(always)]
fn less<W: PartialOrd + Copy>(a: W, b: W) -> W {
    if a <= b || is_nan(a) { a } else { b }
}

/// How a number takes in another.
trait Simple {
    /// What is made of none.
    fn none<W: Wide>() -> W;
    /// An element to a state.
    fn add<W: Wide>(state: W, x: W) -> W;
    /// Two states to one.
    fn merge<W: Wide>(a: W, b: W) -> W;
}

macro_rules! simple {
    ($($name:ident: $none:expr, $add:expr, $merge:expr;)*) => { $(
        struct $name;

        impl Simple for $name {
            #[inline(always)]
            fn none<W: Wide>() -> W { let none: fn() -> W = $none; none() }
            #[inline(always)]
            fn add<W: Wide>(state: W, x: W) -> W { let add: fn(W, W) -> W = $add; add(state, x) }
            #[inline(always)]
            fn merge<W: Wide>(a: W, b: W) -> W { let merge: fn(W, W) -> W = $merge; merge(a, b) }
        }
    )* };
}

simple!(
    Sums: W::default, W::plus, W::plus;
    Amounts: W::default, |sum, x| sum.plus(if x < W::default() { W::default().minus(x) } else { x }), W::plus;
    Squares: W::default, |sum, x| sum.plus(x.times(x)), W::plus;
    Products: || W::from_i64(1), W::times, W::times;
    Greatest: || W::from_f64(f64::NEG_INFINITY), greater, greater;
    Least: || W::from_f64(f64::INFINITY), less, less;
);

fn simple<W: Wide, O: Simple>(finish: &(dyn Fn(W) -> W + Sync)) -> Fold<'_, W, W> {
    Fold { none: O::none(), row: row::<W, O>, columns: columns::<W, O>, finish }
}

fn row<W: Wide, O: Simple>(mut state: W, row: &[W]) -> W {
    let (chunks, rest) = row.as_chunks::<LANES>();
    for &x in rest {
        state = O::add(state, x);
    }
    if !chunks.is_empty() {
        let mut lanes = [O::none(); LANES];
        for chunk in chunks {
            for at in 0..LANES {
                lanes[at] = O::add(lanes[at], chunk[at]);
            }
        }
        for lane in lanes {
            state = O::merge(state, lane);
        }
    }
    state
}

fn columns<W: Wide, O: Simple>(states: &mut [W], row: &[W]) {
    for (state, &x) in states.iter_mut().zip(row) {
        *state = O::add(*state, x);
    }
}

/// The logarithm of a sum of exponentials: the state is the greatest element, and the sum of the exponentials less that.
type Exponentials = (f64, f64);

fn log_sum_exp<W: Wide>(row: fn(Exponentials, &[W]) -> Exponentials) -> Fold<'static, W, Exponentials> {
    let columns = |states: &mut [Exponentials], row: &[W]| {
        for (state, x) in states.iter_mut().zip(row) {
            *state = merge(*state, (x.to_f64(), 1.0));
        }
    };
    let finish =
        &|(most, sum): Exponentials| W::from_f64(if most.is_finite() { most + sum.ln() } else { most });
    Fold { none: (f64::NEG_INFINITY, 0.0), row, columns, finish }
}

fn merge((most, sum): Exponentials, (other, more): Exponentials) -> Exponentials {
    let all = greater(most, other);
    if !all.is_finite() {
        // Infinities less each other are no numbers; NaNs stay.
        return (all, 1.0);
    }
    (all, sum * (most - all).exp() + more * (other - all).exp())
}

fn row_of_f32(state: Exponentials, row: &[f32]) -> Exponentials {
    let mut most = f32::NEG_INFINITY;
    for &x in row {
        most = greater(most, x);
    }
    let sum = if most.is_finite() { rten_vecmath::SumExpSub::new(row, most).dispatch() } else { 1.0 };
    merge(state, (most.into(), sum.into()))
}

fn each_of(state: Exponentials, row: &[f64]) -> Exponentials {
    row.iter().fold(state, |state, &x| merge(state, (x, 1.0)))
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, numbers, row};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{OpError, Tensor};

    fn reduced(op: &str, input: Tensor, axes: &[i64]) -> Result<Tensor, OpError> {
        let keep = [("keepdims", Attribute::Int(0))];
        let inputs = [input, row(axes)];
        let trial = Trial::new(op, &keep, &inputs).opset(18);
        Ok(trial.run()?.swap_remove(0))
    }

    #[test]
    fn dimensions_may_be_kept_and_reduced_by_turns() {
        // The second is large enough for threads.
        for shape in [[3, 4, 5, 6], [30, 7, 20, 40]] {
            let input = numbers(&shape, 1);
            let elements = input.view().elements::<f32>();
            for mask in 0..16usize {
                let axes: Vec<i64> = (0..4).filter(|at| mask >> at & 1 == 1).map(|at| at as i64).collect();
                if axes.is_empty() {
                    continue;
                }
                let out: Vec<usize> = (0..4).filter(|at| mask >> at & 1 == 0).map(|at| shape[at]).collect();
                let mut sums = vec![0f64; out.iter().product()];
                for (number, &x) in elements.iter().enumerate() {
                    let (mut rest, mut place, mut stride) = (number, 0, 1);
                    for at in (0..4).rev() {
                        if mask >> at & 1 == 0 {
                            place += rest % shape[at] * stride;
                            stride *= shape[at];
                        }
                        rest /= shape[at];
                    }
                    sums[place] += f64::from(x);
                }
                let got = reduced("ReduceSum", numbers(&shape, 1), &axes).unwrap();
                assert_eq!(got.ty().shape, out);
                for (got, wanted) in got.view().elements::<f32>().iter().zip(&sums) {
                    assert!((f64::from(*got) - wanted).abs() < 0.5, "{shape:?} {axes:?}: {got} {wanted}");
                }
            }
        }
    }

    #[test]
    fn nothing_reduced_is_what_the_operator_starts_with() {
        let first = |op| reduced(op, numbers(&[2, 0, 3], 1), &[1]).unwrap().view().elements::<f32>().to_vec();
        assert_eq!(first("ReduceSum"), [0.0; 6]);
        assert_eq!(first("ReduceProd"), [1.0; 6]);
        assert_eq!(first("ReduceMax"), [f32::NEG_INFINITY; 6]);
        assert_eq!(first("ReduceLogSumExp"), [f32::NEG_INFINITY; 6]);
        assert!(first("ReduceMean")[0].is_nan());
        assert!(reduced("ReduceSum", numbers(&[2, 0, 3], 1), &[0]).unwrap().view().is_empty());
    }

    #[test]
    fn one_nan_makes_the_extreme_nan_wherever_it_is() {
        for place in 0..40 {
            let mut elements = [1f32; 40];
            elements[place] = f32::NAN;
            for op in ["ReduceMax", "ReduceMin", "ReduceLogSumExp"] {
                let input = Tensor::from_elements([40], &elements).unwrap();
                let got = reduced(op, input, &[-1]).unwrap();
                assert!(got.view().elements::<f32>()[0].is_nan(), "{op} {place}");
            }
        }
    }

    #[test]
    fn logarithms_of_sums_bear_infinities() {
        let of = |elements: &[f32]| {
            let input = Tensor::from_elements([elements.len()], elements).unwrap();
            reduced("ReduceLogSumExp", input, &[0]).unwrap().view().elements::<f32>()[0]
        };
        assert_eq!(of(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), f32::NEG_INFINITY);
        assert_eq!(of(&[f32::INFINITY, 1.0, f32::NEG_INFINITY]), f32::INFINITY);
        assert_eq!(of(&[1000.0, f32::NEG_INFINITY]), 1000.0);
    }

    #[test]
    fn axes_beyond_the_rank_are_an_error() {
        for axes in [[2], [-3], [i64::MIN], [i64::MAX]] {
            assert!(reduced("ReduceMax", numbers(&[2, 3], 1), &axes).is_err());
        }
    }
}
