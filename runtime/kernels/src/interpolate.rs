//! Dimensions resized one after another: elements of the output are weighted sums of some of the input.

use crate::no;
use bytemuck::Pod;
use smallvec::SmallVec;
use stepalloc_tensor::{DataType, Number, OpError, View, ViewMut, by_number};
use stepalloc_threads as threads;

/// As many elements at once are computed by one thread, and planes are joined until they have as many.
const ALONE: usize = 1 << 16;

/// How elements are weighted by their distance.
#[derive(Clone, Copy)]
pub enum Filter {
    /// By the distance itself.
    Linear,
    /// Cubic convolution with this slope at distance 1: R. Keys, "Cubic convolution interpolation for digital
    /// image processing".
    Cubic(f32),
}

impl Filter {
    fn weight(self, distance: f32) -> f32 {
        let x = distance.abs();
        match self {
            Self::Linear => (1.0 - x).max(0.0),
            Self::Cubic(a) if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic(a) if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Self::Cubic(_) => 0.0,
        }
    }
}

/// A dimension to be resized.
pub struct Line {
    /// Elements around it when its turn comes: the outer dimensions have their sizes of the input then.
    pub outer: usize,
    /// Elements along it.
    pub input: usize,
    /// Elements along it afterwards.
    pub output: usize,
    /// Elements within it: the inner dimensions have their sizes of the output.
    pub inner: usize,
    /// How they are weighted.
    pub filter: Filter,
    /// What distances are multiplied by: less than 1 takes more elements than the filter reaches over by
    /// itself.
    pub scale: f32,
    /// Elements beyond the ends have no weight; else those at the ends stand for them.
    pub exclude_outside: bool,
}

impl Line {
    /// Elements on either side that have weight.
    fn reach(&self) -> usize {
        let own = if let Filter::Linear = self.filter { 1.0 } else { 2.0 };
        (own / self.scale).ceil() as usize
    }

    fn taps(&self) -> usize {
        self.reach().saturating_mul(2)
    }

    /// Elements before and after it is resized.
    fn sizes(&self) -> (usize, usize) {
        let around = self.outer.saturating_mul(self.inner);
        (around.saturating_mul(self.input), around.saturating_mul(self.output))
    }
}

/// Whether f32 cannot hold all elements of a type.
pub fn is_wide(dtype: DataType) -> bool {
    dtype == DataType::F64 || !dtype.is_float() && dtype.bytes() >= 4
}

/// How planes are gone through.
struct Course {
    /// How many at once.
    group: usize,
    /// Elements of two buffers: intermediate results lie in one and the other in turns. What can be read from
    /// the input and written to the output does not.
    buffers: [usize; 2],
}

impl Course {
    fn new(lines: &[Line], planes: usize, is_direct: bool) -> Self {
        let largest = lines.iter().map(|line| line.sizes().0.max(line.sizes().1)).max().unwrap_or(1);
        let group = (ALONE / largest.max(1)).clamp(1, planes.max(1));
        let mut buffers = [0; 2];
        let mut hold = |stage: usize, size: usize| {
            buffers[stage % 2] = size.saturating_mul(group).max(buffers[stage % 2])
        };
        for (stage, line) in lines.iter().rev().enumerate() {
            let (before, after) = line.sizes();
            if stage == 0 && !is_direct {
                hold(stage, before);
            }
            if stage + 1 < lines.len() || !is_direct {
                hold(stage + 1, after);
            }
        }
        Self { group, buffers }
    }
}

/// Bytes that so many elements take of memory that is dealt out in parts, each of which begins at a multiple
/// of 8.
fn part<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>()).checked_next_multiple_of(8).unwrap_or(usize::MAX)
}

/// Takes a part.
fn take<'a, T: Pod>(rest: &mut &'a mut [u8], count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    let (taken, more) = std::mem::take(rest).split_at_mut(part::<T>(count));
    *rest = more;
    &mut bytemuck::cast_slice_mut(taken)[..count]
}

/// Bytes of scratch memory that an interpolation takes.
pub fn room(lines: &[Line], planes: usize, dtype: DataType) -> usize {
    if is_wide(dtype) {
        room_of::<f64>(lines, planes, dtype == DataType::F64)
    } else {
        room_of::<f32>(lines, planes, dtype == DataType::F32)
    }
}

fn room_of<W>(lines: &[Line], planes: usize, is_direct: bool) -> usize {
    let table = |line: &Line| {
        let taps = line.taps().saturating_mul(line.output);
        part::<W>(taps).saturating_add(part::<u32>(taps))
    };
    let buffers = Course::new(lines, planes, is_direct).buffers;
    lines.iter().map(table).chain(buffers.map(part::<W>)).fold(0, usize::saturating_add)
}

/// Which elements of the input each element of the output is a sum of, and their weights.
struct Table<'a, W> {
    taps: usize,
    weights: &'a [W],
    index: &'a [u32],
    /// Some are beyond the input: their weights are no numbers.
    has_beyond: bool,
    /// Twice as many elements come out: all but those at the ends have these weights, the even ones of an
    /// element and that before it, the odd ones of it and that after it.
    doubled: Option<[W; 4]>,
}

impl<'a, W: Number> Table<'a, W> {
    fn new(
        line: &Line,
        weights: &'a mut [W],
        index: &'a mut [u32],
        place: &dyn Fn(usize) -> Option<f32>,
    ) -> Self {
        let (taps, reach, last) = (line.taps(), line.reach(), line.input as i64 - 1);
        let mut has_beyond = false;
        let rows = weights.chunks_exact_mut(taps).zip(index.chunks_exact_mut(taps)).enumerate();
        for (at, (weights, index)) in rows {
            let Some(place) = place(at) else {
                weights.fill(W::from_f64(f64::NAN));
                index.fill(0);
                has_beyond = true;
                continue;
            };
            let before = place.ceil() - 1.0;
            let first = (before as i64).saturating_sub(reach as i64 - 1);
            let mut sum = 0.0;
            for (n, (weight, index)) in weights.iter_mut().zip(index).enumerate() {
                let from = first.saturating_add(n as i64);
                let distance = (n as f32 - (reach - 1) as f32) - (place - before);
                let is_outside = !(0..=last).contains(&from);
                let own = if line.exclude_outside && is_outside {
                    0.0
                } else {
                    f64::from(line.filter.weight(distance * line.scale))
                };
                *weight = W::from_f64(own);
                *index = from.clamp(0, last) as u32;
                sum += own;
            }
            if (line.scale < 1.0 || line.exclude_outside) && sum != 0.0 {
                weights.iter_mut().for_each(|weight| *weight = W::from_f64(weight.to_f64() / sum));
            }
        }
        let mut table = Self { taps, weights, index, has_beyond, doubled: None };
        table.doubled = table.doubled(line);
        table
    }

    fn doubled(&self, line: &Line) -> Option<[W; 4]> {
        if self.taps != 2 || self.has_beyond || line.input < 3 || line.output != 2 * line.input {
            return None;
        }
        let &[a, b, c, d] = self.weights.get(4..8)? else { return None };
        let is_regular = (1..line.input - 1).all(|n| {
            let n32 = n as u32;
            self.weights[4 * n..4 * n + 4] == [a, b, c, d]
                && self.index[4 * n..4 * n + 4] == [n32 - 1, n32, n32, n32 + 1]
        });
        is_regular.then_some([a, b, c, d])
    }

    /// Where the elements of an output come from, with their weights.
    fn of(&self, at: usize) -> impl Iterator<Item = (usize, W)> {
        let range = at * self.taps..(at + 1) * self.taps;
        self.index[range.clone()]
            .iter()
            .zip(&self.weights[range])
            .map(|(&index, &weight)| (index as usize, weight))
    }

    fn is_beyond(&self, at: usize) -> bool {
        self.has_beyond && self.weights[at * self.taps].partial_cmp(&W::default()).is_none()
    }

    /// A row of elements that are summed with one another.
    fn along(&self, source: &[W], target: &mut [W], outside: W) {
        let sum = |at: usize| self.of(at).fold(W::default(), |sum, (n, w)| sum.plus(source[n].times(w)));
        if let Some([a, b, c, d]) = self.doubled {
            let last = target.len() - 2;
            for at in [0, 1, last, last + 1] {
                target[at] = sum(at);
            }
            for (pair, from) in target[2..last].chunks_exact_mut(2).zip(source.windows(3)) {
                pair[0] = from[0].times(a).plus(from[1].times(b));
                pair[1] = from[1].times(c).plus(from[2].times(d));
            }
        } else if self.taps == 2 {
            let rows = self.index.chunks_exact(2).zip(self.weights.chunks_exact(2));
            for (place, (index, weights)) in target.iter_mut().zip(rows) {
                let [one, two] = [source[index[0] as usize], source[index[1] as usize]];
                *place = one.times(weights[0]).plus(two.times(weights[1]));
            }
        } else {
            target.iter_mut().enumerate().for_each(|(at, place)| *place = sum(at));
        }
        if self.has_beyond {
            (0..target.len()).filter(|&at| self.is_beyond(at)).for_each(|at| target[at] = outside);
        }
    }

    /// A row of elements, each of which is summed with those at the same place in other rows.
    fn across(&self, at: usize, source: &[W], target: &mut [W], outside: W) {
        if self.is_beyond(at) {
            return target.fill(outside);
        }
        let length = target.len();
        let row = |n: usize| &source[n * length..(n + 1) * length];
        let mut first = true;
        let mut taps = self.of(at).filter(|&(_, weight)| weight != W::default()).peekable();
        while let Some((n, weight)) = taps.next() {
            match (first, taps.peek().copied()) {
                (true, Some((other, more))) => {
                    taps.next();
                    for ((place, &x), &y) in target.iter_mut().zip(row(n)).zip(row(other)) {
                        *place = x.times(weight).plus(y.times(more));
                    }
                }
                (true, None) => {
                    target.iter_mut().zip(row(n)).for_each(|(place, &x)| *place = x.times(weight));
                }
                (false, _) => {
                    target
                        .iter_mut()
                        .zip(row(n))
                        .for_each(|(place, &x)| *place = place.plus(x.times(weight)));
                }
            }
            first = false;
        }
        if first {
            target.fill(W::default());
        }
    }
}

/// Resizes one dimension.
fn pass<W: Number>(line: &Line, table: &Table<'_, W>, source: &[W], target: &mut [W], outside: W) {
    let (is_along, whole) = (line.inner == 1, line.input * line.inner);
    let length = if is_along { line.output } else { line.inner };
    let least = if target.len() > ALONE { (ALONE / 4).div_ceil(length) } else { usize::MAX };
    threads::pieces(target, length, least, &|n, place| {
        if is_along {
            table.along(&source[n * whole..(n + 1) * whole], place, outside);
        } else {
            let (block, at) = (n / line.output, n % line.output);
            table.across(at, &source[block * whole..(block + 1) * whole], place, outside);
        }
    });
}

/// Resizes `planes` blocks of dimensions, each of which has elements, in numbers of type `W`. `place` says
/// where in the input an element of a line lies; `outside` is put where that is nowhere.
pub fn interpolate<W: Number>(
    lines: &[Line],
    planes: usize,
    input: &View<'_>,
    output: ViewMut<'_>,
    scratch: &mut [u8],
    place: &dyn Fn(usize, usize) -> Option<f32>,
    outside: f32,
) -> Result<(), OpError> {
    let (Some(outer), Some(innermost)) = (lines.first(), lines.last()) else {
        return Err(OpError::shape("there is nothing to resize"));
    };
    let is_direct = input.dtype == W::DTYPE;
    let course = Course::new(lines, planes, is_direct);
    let mut rest = scratch;
    let mut tables = SmallVec::<[Table<'_, W>; 4]>::new();
    for (n, line) in lines.iter().enumerate() {
        let taps = line.taps() * line.output;
        let (weights, index) = (take::<W>(&mut rest, taps), take::<u32>(&mut rest, taps));
        tables.push(Table::new(line, weights, index, &|at| place(n, at)));
    }
    let mut buffers = course.buffers.map(|count| take::<W>(&mut rest, count));
    let (before, after) = (innermost.sizes().0, outer.sizes().1);
    let width = input.dtype.bytes();
    let outside = W::from_f64(outside.into());
    for first in (0..planes).step_by(course.group) {
        let count = course.group.min(planes - first);
        let source = &input.bytes[first * before * width..][..count * before * width];
        let target = &mut output.bytes[first * after * width..][..count * after * width];
        if !is_direct {
            read(input.dtype, source, &mut buffers[0][..count * before])?;
        }
        for (stage, (line, table)) in lines.iter().zip(&tables).rev().enumerate() {
            let [even, odd] = &mut buffers;
            let (from, to) = if stage % 2 == 0 { (even, odd) } else { (odd, even) };
            let (size, made) = line.sizes();
            let from =
                if stage == 0 && is_direct { bytemuck::cast_slice(source) } else { &from[..count * size] };
            let to = if stage + 1 == lines.len() && is_direct {
                bytemuck::cast_slice_mut(target)
            } else {
                &mut to[..count * made]
            };
            pass(line, table, from, to, outside);
        }
        if !is_direct {
            write(&buffers[lines.len() % 2][..count * after], input.dtype, target)?;
        }
    }
    Ok(())
}

/// As many elements at once go from one type to another by way of f64, which has all that are told apart here.
const BLOCK: usize = 256;

fn read<W: Number>(dtype: DataType, source: &[u8], target: &mut [W]) -> Result<(), OpError> {
    let mut room = [0.0; BLOCK];
    for (to, from) in target.chunks_mut(BLOCK).zip(source.chunks(BLOCK * dtype.bytes())) {
        to_f64s(dtype, from, &mut room)?;
        to.iter_mut().zip(&room).for_each(|(to, &x)| *to = W::from_f64(x));
    }
    Ok(())
}

fn to_f64s(dtype: DataType, from: &[u8], to: &mut [f64]) -> Result<(), OpError> {
    by_number!(dtype, T => {
        let from: &[T] = bytemuck::cast_slice(from);
        to.iter_mut().zip(from).for_each(|(to, x)| *to = x.to_f64());
    }, return Err(no(dtype)));
    Ok(())
}

/// Integers are rounded, and those that are out of range become the nearest that is not.
fn write<W: Number>(source: &[W], dtype: DataType, target: &mut [u8]) -> Result<(), OpError> {
    let mut room = [0.0; BLOCK];
    for (to, from) in target.chunks_mut(BLOCK * dtype.bytes()).zip(source.chunks(BLOCK)) {
        let room = &mut room[..from.len()];
        room.iter_mut().zip(from).for_each(|(to, x)| *to = x.to_f64());
        from_f64s(room, dtype, to)?;
    }
    Ok(())
}

fn from_f64s(from: &mut [f64], dtype: DataType, to: &mut [u8]) -> Result<(), OpError> {
    if !dtype.is_float() {
        from.iter_mut().for_each(|x| *x = x.round_ties_even());
    }
    by_number!(dtype, T => {
        let to: &mut [T] = bytemuck::cast_slice_mut(to);
        to.iter_mut().zip(from).for_each(|(to, &mut x)| *to = T::from_f64(x));
    }, return Err(no(dtype)));
    Ok(())
}
