//! Operators that choose among what they are given: what differs from the rest, and boxes that do not overlap
//! better ones.

use super::fills::single;
use super::{Call, Definition, Known, Made, Operator, RunContext, Stacked, Types, Unclear, axis, typed};
use smallvec::smallvec;
use std::cmp::Ordering;
use stepalloc_graph::Tensors;
use stepalloc_kernels::{no, real::Space};
use stepalloc_tensor::{DataType, Element, OpError, Shape, Type, View, by_type, by_width};

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
    fn split(&self, shape: &[usize]) -> Result<[usize; 3], OpError> {
        let Some(at) = self.axis else { return Ok([1, shape.iter().product(), 1]) };
        let at = axis(at, shape.len())?;
        Ok([shape[..at].iter().product(), shape[at], shape[at + 1..].iter().product()])
    }

    /// Sorts slices into `order`, where the first one of each kind is marked, and says in `begins` where each
    /// kind begins there, in the order of the output. Returns how many kinds there are. Both have room for
    /// all slices.
    fn sort(&self, input: &View<'_>, order: &mut [u64], begins: &mut [u64]) -> Result<usize, OpError> {
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
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.value(0)?;
        let [_, dim, _] = self.split(input.shape)?;
        let kinds = self.sort(&input, &mut vec![0; dim], &mut vec![0; dim])?;
        let mut shape = if self.axis.is_some() { Shape::from(input.shape) } else { [0].into() };
        shape[self.axis.map_or(Ok(0), |at| axis(at, input.shape.len()))?] = kinds;
        let mut types = smallvec![typed(input.dtype, shape)?];
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

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
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
    fn new(inputs: [Option<View<'a>>; 5]) -> Result<Self, OpError> {
        let [boxes, scores, most, overlap, score] = inputs;
        let (boxes, scores) =
            (boxes.ok_or(OpError::MissingInput(0))?, scores.ok_or(OpError::MissingInput(1))?);
        let (&[batches, count, 4], &[of, classes, each]) = (boxes.shape, scores.shape) else {
            return Err(OpError::shape(format!("boxes are {:?}, scores {:?}", boxes.shape, scores.shape)));
        };
        if of != batches || each != count || boxes.dtype != DataType::F32 || scores.dtype != DataType::F32 {
            return Err(OpError::shape(format!(
                "boxes {:?} and scores {:?} do not fit",
                boxes.shape, scores.shape
            )));
        }
        let number = |view: Option<View<'a>>| match view.filter(|view| !view.is_empty()) {
            Some(view) if view.dtype == DataType::F32 => Ok(view.elements::<f32>().first().copied()),
            Some(view) => Err(OpError::element_type(format!("a threshold is {}", view.dtype))),
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

/// A box: where it begins and ends in both dimensions, and its area.
type Placed = [f32; 5];

fn placed([(low, high), (left, right)]: [(f32, f32); 2]) -> Placed {
    [low, high, left, right, (high - low) * (right - left)]
}

/// Whether the common part of two boxes is more than so much of both together.
fn overlap(one: &Placed, two: &Placed, most: f32) -> bool {
    let side = |low: usize, high: usize| (one[high].min(two[high]) - one[low].max(two[low])).max(0.0);
    let (common, one, two) = (side(0, 1) * side(2, 3), one[4], two[4]);
    let both = one + two - common;
    common > 0.0 && one > 0.0 && two > 0.0 && both > 0.0 && common / both > most
}

/// Strips that boxes are sorted into by where they begin: of some thousand boxes, each is compared with those of a few strips, and
/// to look at all strips takes less than that.
const STRIPS: usize = 256;
/// Fewer boxes are compared with all others.
const FEW: usize = 64;

/// Memory for the boxes of a class.
struct Room<'a> {
    /// Candidates, the best first.
    order: &'a mut [u32],
    /// Those that are left, strip by strip.
    left: &'a mut [Placed],
    /// Where each strip begins there, and how many are left in it.
    strips: &'a mut [[u32; 2]],
    /// Where what is left in a strip ends at last.
    ends: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn bytes(count: usize) -> usize {
        let strips = Space::bytes::<[u32; 2]>(STRIPS) + Space::bytes::<f32>(STRIPS);
        Space::bytes::<u32>(count) + Space::bytes::<Placed>(count) + strips
    }

    fn new(memory: &'a mut [u8], count: usize) -> Result<Self, OpError> {
        let mut space = Space(memory);
        Ok(Self {
            order: space.take(count)?,
            left: space.take(count)?,
            strips: space.take(STRIPS)?,
            ends: space.take(STRIPS)?,
        })
    }
}

/// The strips of some boxes: which one a place along the first dimension is in.
struct Strips {
    count: usize,
    begin: f32,
    /// Strips for each unit of length.
    scale: f32,
}

impl Strips {
    /// Such that the boxes are spread over them. One strip if they are few, or their places no numbers that can be compared.
    fn new(boxes: impl ExactSizeIterator<Item = Placed>) -> Self {
        let many = boxes.len() >= FEW;
        let (mut first, mut last, mut are_finite) = (f32::INFINITY, f32::NEG_INFINITY, many);
        for placed in boxes.take(if many { usize::MAX } else { 0 }) {
            (first, last) = (first.min(placed[0]), last.max(placed[0]));
            are_finite &= placed[..4].iter().all(|place| place.is_finite());
        }
        let scale = STRIPS as f32 / (last - first);
        match are_finite && last > first && scale.is_finite() && scale > 0.0 {
            true => Self { count: STRIPS, begin: first, scale },
            false => Self { count: 1, begin: 0.0, scale: 0.0 },
        }
    }

    /// Never less for a place that is further on.
    fn of(&self, place: f32) -> usize {
        (((place - self.begin) * self.scale) as usize).min(self.count - 1)
    }
}

impl NonMaxSuppression {
    /// Calls `found` with sample, class and number of each box that is left.
    fn suppress(&self, of: &Boxes<'_>, room: &mut Room<'_>, found: &mut dyn FnMut([i64; 3])) {
        if of.most == 0 {
            return;
        }
        for sample in 0..of.batches {
            let boxes = &of.boxes[sample * of.count * 4..][..of.count * 4];
            let place = |n: u32| placed(bounds(&boxes[n as usize * 4..][..4], self.centered));
            for class in 0..of.classes {
                let scores = &of.scores[(sample * of.classes + class) * of.count..][..of.count];
                // Without the sign of zeros, which would order what is alike.
                let score = |n: u32| scores[n as usize] + 0.0;
                let mut candidates = 0;
                for n in 0..of.count as u32 {
                    if of.score.is_none_or(|least| score(n) > least) {
                        room.order[candidates] = n;
                        candidates += 1;
                    }
                }
                let order = &mut room.order[..candidates];
                order.sort_unstable_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
                let mut left = 0;
                best(
                    order,
                    place,
                    of.overlap,
                    (&mut *room.left, &mut *room.strips, &mut *room.ends),
                    &mut |n| {
                        found([sample as i64, class as i64, n.into()]);
                        left += 1;
                        left < of.most
                    },
                );
            }
        }
    }
}

/// Calls `found` for each box that no better one overlaps too much, the best first, as long as it says so.
fn best(
    order: &[u32],
    place: impl Fn(u32) -> Placed,
    most: f32,
    (left, counted, ends): (&mut [Placed], &mut [[u32; 2]], &mut [f32]),
    found: &mut dyn FnMut(u32) -> bool,
) {
    let strips = Strips::new(order.iter().map(|&n| place(n)));
    // In a single strip, all are compared.
    let none = if strips.count == 1 { f32::INFINITY } else { f32::NEG_INFINITY };
    let (counted, ends) = (&mut counted[..strips.count], &mut ends[..strips.count]);
    counted.fill([0; 2]);
    ends.fill(none);
    if strips.count > 1 {
        order.iter().for_each(|&n| counted[strips.of(place(n)[0])][0] += 1);
        let mut begin = 0;
        for [count, _] in counted.iter_mut() {
            (begin, *count) = (begin + *count, begin);
        }
    }
    for &n in order {
        let own = place(n);
        // What overlaps it begins before its end, and ends after its begin.
        let last = strips.of(own[1]);
        let overlapped = counted[..=last].iter().zip(&*ends).any(|(&[begin, count], &end)| {
            let better = &left[begin as usize..][..count as usize];
            let is_before = end <= own[0];
            !is_before && better.iter().any(|better| overlap(&own, better, most))
        });
        if overlapped {
            continue;
        }
        let strip = strips.of(own[0]);
        let [begin, count] = &mut counted[strip];
        left[(*begin + *count) as usize] = own;
        *count += 1;
        ends[strip] = ends[strip].max(own[1]);
        if !found(n) {
            return;
        }
    }
}

/// Memory of its own for [`Room`].
fn memory(count: usize) -> Vec<u32> {
    vec![0; Room::bytes(count).div_ceil(size_of::<u32>())]
}

impl Operator for NonMaxSuppression {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let mut views = [None; 5];
        for (index, view) in views.iter_mut().enumerate() {
            *view = inputs.opt(index).map(|_| inputs.value(index)).transpose()?;
        }
        let of = Boxes::new(views)?;
        let (mut memory, mut count) = (memory(of.count), 0);
        let room = &mut Room::new(bytemuck::cast_slice_mut(&mut memory), of.count)?;
        self.suppress(&of, room, &mut |_| count += 1);
        Ok(smallvec![typed(DataType::I64, [count, 3])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        inputs.opt(0).and_then(|boxes| boxes.shape.get(1)).map_or(0, |&count| Room::bytes(count))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let of = Boxes::new(std::array::from_fn(|index| call.opt(index)))?;
        let target = call.output(0)?.elements::<i64>();
        let mut rows = target.chunks_exact_mut(3);
        let room = &mut Room::new(call.scratch(), of.count)?;
        self.suppress(&of, room, &mut |found| {
            if let Some(row) = rows.next() {
                row.copy_from_slice(&found);
            }
        });
        Ok(())
    }

    // Telling the type takes all the work, which is not done twice where boxes are not known before.
    fn run_freely(
        &self,
        inputs: &[Option<View<'_>>],
        context: &RunContext,
    ) -> Option<Result<Tensors, OpError>> {
        let views = std::array::from_fn(|index| inputs.get(index).copied().flatten());
        Some(Boxes::new(views).and_then(|of| {
            let mut memory = context.tensor(typed(DataType::U8, [Room::bytes(of.count)])?)?;
            let room = &mut Room::new(memory.view_mut().bytes, of.count)?;
            let (mut all, mut count, mut done) = (Stacked::new(context), 0, Ok(()));
            self.suppress(&of, room, &mut |found| {
                count += 1;
                if done.is_ok() {
                    done = all.push(bytemuck::cast_slice(&found));
                }
            });
            done?;
            Ok(smallvec![all.finish(typed(DataType::I64, [count, 3])?)?])
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{bounds, overlap, placed};
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

    /// Many boxes in strips, wide ones among narrow ones, and places that are no numbers: against each with each.
    #[test]
    fn boxes_in_strips_are_left_as_if_each_were_compared_with_each() {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        for (count, wide, odd) in
            [(700, 0.05, None), (700, 0.9, None), (200, 0.3, Some(f32::NAN)), (200, 0.3, Some(f32::INFINITY))]
        {
            for centered in [false, true] {
                let mut boxes = Vec::new();
                for n in 0..count {
                    let side = if n % 50 == 0 { 1.0 } else { wide };
                    let (y, x) = (random() * 3.0, random());
                    let sizes = [side * random(), side * random()];
                    match centered {
                        true => boxes.extend([y, x, sizes[0], sizes[1]]),
                        false => boxes.extend([y, x, y + sizes[0], x + sizes[1]]),
                    }
                }
                if let Some(odd) = odd {
                    (boxes[5], boxes[20], boxes[43]) = (odd, odd, -odd);
                }
                let scores: Vec<f32> = (0..count).map(|_| (random() * 300.0).floor()).collect();
                for most in [0.1f32, 0.5] {
                    let mut order: Vec<usize> = (0..count).collect();
                    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                    let place = |n: usize| placed(bounds(&boxes[n * 4..][..4], centered));
                    let mut left: Vec<usize> = Vec::new();
                    for n in order {
                        if !left.iter().any(|&better| overlap(&place(n), &place(better), most)) {
                            left.push(n);
                        }
                    }
                    assert!(left.len() < count && left.len() > 20);
                    let inputs = [
                        tensor(&[1, count, 4], &boxes),
                        tensor(&[1, 1, count], &scores),
                        tensor(&[1], &[count as i64]),
                        tensor(&[1], &[most]),
                    ];
                    let trial = Trial::new("NonMaxSuppression", &[], inputs);
                    let outputs = trial.int("center_point_box", centered.into()).run().expect("it runs");
                    let found = outputs[0].view();
                    let found: Vec<_> =
                        found.elements::<i64>().chunks(3).map(|row| row[2] as usize).collect();
                    assert_eq!(found, left, "{count} boxes, {wide} wide");
                }
            }
        }
    }
}
