//! Operators that choose among what they are given: what differs from the rest, and boxes that do not overlap
//! better ones.

use super::fills::single;
use super::{Call, Definition, Known, Made, Operator, Unclear, axis, typed};
use std::cmp::Ordering;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Element, Tensor, Type, View, by_type, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Unique" => {
            let (axis, sorted) = (attributes.opt_int("axis"), attributes.int("sorted", 1) != 0);
            Box::new(Unique { axis, sorted, outputs: node.outputs.len() })
        }
        "NonMaxSuppression" => {
            Box::new(NonMaxSuppression { centered: attributes.int("center_point_box", 0) != 0 })
        }
        _ => return None,
    }))
}

/// Elements, or slices along a dimension, each once.
struct Unique {
    axis: Option<i64>,
    /// In ascending order; else in that of their first appearance.
    sorted: bool,
    outputs: usize,
}

/// In the order of slices: where those begin that are alike.
const BEGINS: u64 = 1 << 63;

impl Unique {
    /// Elements before, along and after the dimension.
    fn split(&self, shape: &[usize]) -> Result<[usize; 3], String> {
        let Some(at) = self.axis else { return Ok([1, shape.iter().product(), 1]) };
        let at = axis(at, shape.len())?;
        Ok([shape[..at].iter().product(), shape[at], shape[at + 1..].iter().product()])
    }

    /// Sorts slices into `order`, where the first one of each kind is marked, and says in `begins` where each
    /// kind begins there, in the order of the output. Returns how many kinds there are. Both have room for
    /// all slices.
    fn sort(&self, input: &View<'_>, order: &mut [u64], begins: &mut [u64]) -> Result<usize, String> {
        let [outer, dim, inner] = self.split(input.shape)?;
        order.iter_mut().enumerate().for_each(|(n, place)| *place = n as u64);
        let rows: fn(&[u8], &[u8]) -> Ordering = by_type!(
            input.dtype, [F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, Bool],
            T => compare_rows::<T>,
            return Err(no(input.dtype))
        );
        let inner = inner * input.dtype.bytes();
        let compare = |a: u64, b: u64| {
            let slice = |block: usize, n: u64| &input.bytes[(block * dim + n as usize) * inner..][..inner];
            let blocks = (0..outer).map(|block| rows(slice(block, a), slice(block, b)));
            { blocks }.find(|&ordering| ordering != Ordering::Equal).unwrap_or(Ordering::Equal)
        };
        order.sort_unstable_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
        let mut kinds = 0;
        for at in 0..order.len() {
            if at == 0 || compare(order[at - 1] & !BEGINS, order[at]) != Ordering::Equal {
                order[at] |= BEGINS;
                begins[kinds] = at as u64;
                kinds += 1;
            }
        }
        if !self.sorted {
            begins[..kinds].sort_unstable_by_key(|&begin| order[begin as usize]);
        }
        Ok(kinds)
    }
}

/// The order of two rows. What is no number is alike, and comes last.
fn compare_rows<T: Element + PartialOrd>(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b): (&[T], &[T]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    for (a, b) in a.iter().zip(b) {
        let ordering = match a.partial_cmp(b) {
            Some(ordering) => ordering,
            None => a.partial_cmp(a).is_none().cmp(&b.partial_cmp(b).is_none()),
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    Ordering::Equal
}

impl Operator for Unique {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let input = inputs.value(0)?;
        let [_, dim, _] = self.split(input.shape)?;
        let kinds = self.sort(&input, &mut vec![0; dim], &mut vec![0; dim])?;
        let mut shape = if self.axis.is_some() { input.shape.to_vec() } else { vec![0] };
        shape[self.axis.map_or(Ok(0), |at| axis(at, input.shape.len()))?] = kinds;
        let mut types = vec![typed(input.dtype, shape)?];
        for count in [kinds, dim, kinds] {
            types.push(typed(DataType::I64, [count])?);
        }
        types.truncate(self.outputs);
        Ok(types)
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let slices =
            inputs.opt(0).and_then(|input| self.split(&input.shape).ok()).map_or(0, |split| split[1]);
        2 * size_of::<u64>() * slices.max(1)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let input = call.input(0)?;
        let [outer, dim, inner] = self.split(input.shape)?;
        let scratch: &mut [u64] = bytemuck::cast_slice_mut(call.scratch());
        let (order, begins) = scratch[..2 * dim].split_at_mut(dim);
        let kinds = self.sort(&input, order, begins)?;
        let (order, begins) = (&*order, &begins[..kinds]);
        let first = |&begin: &u64| (order[begin as usize] & !BEGINS) as usize;
        // Numbers of all slices of a kind.
        let alike = |&begin: &u64| {
            let after = &order[begin as usize + 1..];
            let more = after.iter().copied().take_while(|number| number & BEGINS == 0);
            std::iter::once(first(&begin) as u64).chain(more)
        };
        if let Some(output) = call.opt_output(0)
            && !output.bytes.is_empty()
        {
            by_width!(input.dtype, T => {
                let source = input.raw::<T>();
                let mut rows = output.raw::<T>().chunks_exact_mut(inner);
                for block in 0..outer {
                    for (begin, row) in begins.iter().zip(&mut rows) {
                        row.copy_from_slice(&source[(block * dim + first(begin)) * inner..][..inner]);
                    }
                }
            });
        }
        if let Some(output) = call.opt_output(1) {
            let places = output.elements::<i64>().iter_mut();
            places.zip(begins).for_each(|(place, begin)| *place = first(begin) as i64);
        }
        if let Some(output) = call.opt_output(2) {
            let places = output.elements::<i64>();
            for (kind, begin) in begins.iter().enumerate() {
                alike(begin).for_each(|number| places[number as usize] = kind as i64);
            }
        }
        if let Some(output) = call.opt_output(3) {
            let places = output.elements::<i64>().iter_mut();
            places.zip(begins).for_each(|(place, begin)| *place = alike(begin).count() as i64);
        }
        Ok(())
    }
}

/// The best boxes of each class, without those that overlap a better one too much.
struct NonMaxSuppression {
    /// A box is its center and its sizes (x, y, width, height); else two corners (y, x, y, x).
    centered: bool,
}

/// The inputs of a suppression.
struct Boxes<'a> {
    boxes: &'a [f32],
    scores: &'a [f32],
    batches: usize,
    classes: usize,
    /// For each sample of the batch.
    count: usize,
    /// For each class of each sample.
    most: usize,
    /// Above which the common part of two boxes, as a part of both together, is too much.
    overlap: f32,
    /// At or below which a box does not count.
    score: Option<f32>,
}

impl<'a> Boxes<'a> {
    fn new(inputs: [Option<View<'a>>; 5]) -> Result<Self, String> {
        let [Some(boxes), Some(scores), most, overlap, score] = inputs else {
            return Err("its boxes or their scores are missing".into());
        };
        let (&[batches, count, 4], &[of, classes, each]) = (boxes.shape, scores.shape) else {
            return Err(format!("boxes are {:?}, scores {:?}", boxes.shape, scores.shape));
        };
        if of != batches || each != count || boxes.dtype != DataType::F32 || scores.dtype != DataType::F32 {
            return Err(format!("boxes {:?} and scores {:?} do not fit", boxes.shape, scores.shape));
        }
        let number = |view: Option<View<'a>>| match view.filter(|view| !view.is_empty()) {
            Some(view) if view.dtype == DataType::F32 => Ok(view.elements::<f32>().first().copied()),
            Some(view) => Err(format!("a threshold is {}", view.dtype)),
            None => Ok(None),
        };
        Ok(Self {
            boxes: boxes.elements(),
            scores: scores.elements(),
            batches,
            classes,
            count,
            most: match most.filter(|most| !most.is_empty()) {
                Some(most) => usize::try_from(single(&most)?.max(0)).unwrap_or(usize::MAX),
                None => 0,
            },
            overlap: number(overlap)?.unwrap_or(0.0),
            score: number(score)?,
        })
    }
}

/// The lowest and the highest coordinate of a box in both dimensions.
fn bounds(corners: &[f32], centered: bool) -> [(f32, f32); 2] {
    let of = |at: usize| {
        if centered {
            let half = corners[at + 2] / 2.0;
            (corners[at] - half, corners[at] + half)
        } else {
            (corners[at].min(corners[at + 2]), corners[at].max(corners[at + 2]))
        }
    };
    [of(0), of(1)]
}

/// Whether the common part of two boxes is more than so much of both together.
fn overlap(one: [(f32, f32); 2], two: [(f32, f32); 2], most: f32) -> bool {
    let side = |at: usize| (one[at].1.min(two[at].1) - one[at].0.max(two[at].0)).max(0.0);
    let area = |of: [(f32, f32); 2]| (of[0].1 - of[0].0) * (of[1].1 - of[1].0);
    let (common, one, two) = (side(0) * side(1), area(one), area(two));
    let both = one + two - common;
    common > 0.0 && one > 0.0 && two > 0.0 && both > 0.0 && common / both > most
}

impl NonMaxSuppression {
    /// Calls `found` with sample, class and number of each box that is left. `order` has room for the boxes
    /// of a sample.
    fn suppress(&self, of: &Boxes<'_>, order: &mut [u32], found: &mut dyn FnMut([i64; 3])) {
        if of.most == 0 {
            return;
        }
        for sample in 0..of.batches {
            let boxes = &of.boxes[sample * of.count * 4..][..of.count * 4];
            let bounds = |n: u32| bounds(&boxes[n as usize * 4..][..4], self.centered);
            for class in 0..of.classes {
                let scores = &of.scores[(sample * of.classes + class) * of.count..][..of.count];
                // Without the sign of zeros, which would order what is alike.
                let score = |n: u32| scores[n as usize] + 0.0;
                let mut candidates = 0;
                for n in 0..of.count as u32 {
                    if of.score.is_none_or(|least| score(n) > least) {
                        order[candidates] = n;
                        candidates += 1;
                    }
                }
                order[..candidates].sort_unstable_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
                // Those that are left gather at the beginning.
                let mut left = 0;
                for at in 0..candidates {
                    let own = bounds(order[at]);
                    if order[..left].iter().any(|&better| overlap(own, bounds(better), of.overlap)) {
                        continue;
                    }
                    order[left] = order[at];
                    found([sample as i64, class as i64, order[left].into()]);
                    left += 1;
                    if left == of.most {
                        break;
                    }
                }
            }
        }
    }
}

impl Operator for NonMaxSuppression {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let mut views = [None; 5];
        for (index, view) in views.iter_mut().enumerate() {
            *view = inputs.opt(index).map(|_| inputs.value(index)).transpose()?;
        }
        let of = Boxes::new(views)?;
        let mut count = 0;
        self.suppress(&of, &mut vec![0; of.count], &mut |_| count += 1);
        Ok(vec![typed(DataType::I64, [count, 3])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        inputs.opt(0).and_then(|boxes| boxes.shape.get(1)).map_or(0, |count| count.max(&1) * size_of::<u32>())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let of = Boxes::new(std::array::from_fn(|index| call.opt(index)))?;
        let target = call.output(0)?.elements::<i64>();
        let mut rows = target.chunks_exact_mut(3);
        let order: &mut [u32] = bytemuck::cast_slice_mut(call.scratch());
        self.suppress(&of, order, &mut |found| {
            if let Some(row) = rows.next() {
                row.copy_from_slice(&found);
            }
        });
        Ok(())
    }

    // Telling the type takes all the work, which is not done twice where boxes are not known before.
    fn run_freely(&self, inputs: &[Option<View<'_>>]) -> Option<Result<Vec<Tensor>, String>> {
        let views = std::array::from_fn(|index| inputs.get(index).copied().flatten());
        Some(Boxes::new(views).and_then(|of| {
            let mut all = Vec::new();
            self.suppress(&of, &mut vec![0; of.count], &mut |found| all.extend(found));
            let tensor = Tensor::from_elements([all.len() / 3, 3], &all).ok_or("three of each box")?;
            Ok(vec![tensor])
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, tensor};

    #[test]
    fn what_is_no_number_is_one_kind_and_comes_last() {
        let input = tensor(&[5], &[f32::NAN, 0.0, 2.0, -0.0, f32::NAN]);
        let trial = Trial::new("Unique", &[], [&input]).outputs(4);
        let outputs = trial.run().expect("it runs");
        assert_eq!(outputs[1].view().elements::<i64>(), [1, 2, 0]);
        assert_eq!(outputs[2].view().elements::<i64>(), [2, 0, 1, 0, 2]);
        assert_eq!(outputs[3].view().elements::<i64>(), [2, 1, 2]);
    }

    #[test]
    fn of_nothing_nothing_is_left() {
        let empty = tensor(&[0], &[0i64; 0]);
        let outputs = Trial::new("Unique", &[], [&empty]).outputs(4).run().expect("it runs");
        assert!(outputs.iter().all(|output| output.ty().elements() == 0));
        let boxes = tensor(&[1, 0, 4], &[0.0f32; 0]);
        let scores = tensor(&[1, 2, 0], &[0.0f32; 0]);
        let most = tensor(&[1], &[3i64]);
        let outputs = Trial::new("NonMaxSuppression", &[], [&boxes, &scores, &most]).run().expect("it runs");
        assert_eq!(outputs[0].ty().shape, [0, 3]);
    }
}
