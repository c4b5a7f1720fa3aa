//! Broadcasting, as numpy does it: shapes are aligned at their ends, and dimensions of 1 repeat.

use bytemuck::Pod;
use smallvec::SmallVec;
use stepalloc_tensor::Shape;
use stepalloc_threads as threads;

/// Elements from which on several cores share the work: below, waking them takes longer.
pub const PARALLEL: usize = 1 << 16;
/// Elements that one core takes at a time: few enough to stay in its first caches.
pub const PART: usize = 1 << 13;

/// The shape that all of these have when they repeat; `None` if they do not fit.
pub fn broadcast<'a>(shapes: impl IntoIterator<Item = &'a [usize]>) -> Option<Shape> {
    let mut all = Shape::default();
    for shape in shapes {
        let missing = shape.len().saturating_sub(all.len());
        all.insert_many(0, std::iter::repeat_n(1, missing));
        let skipped = all.len() - shape.len();
        for (to, &from) in all[skipped..].iter_mut().zip(shape) {
            match (*to, from) {
                (to, from) if to == from => {}
                (1, from) => *to = from,
                (_, 1) => {}
                _ => return None,
            }
        }
    }
    Some(all)
}

/// Dimensions along which nothing has to be looked at anew are one here: at most so many are left of two operands in practice; more
/// are borne.
const FEW: usize = 6;

/// How operands are walked through while an output of some shape is written element by element.
pub struct Walk<const N: usize> {
    /// Sizes of the dimensions left after those that can be were made one, the innermost last.
    dims: SmallVec<[usize; FEW]>,
    /// For each of them, what each operand moves on by, in elements.
    strides: SmallVec<[[usize; N]; FEW]>,
}

impl<const N: usize> Walk<N> {
    /// Operands of these shapes, each of which fits `out`.
    pub fn new(out: &[usize], shapes: [&[usize]; N]) -> Self {
        let mut walk = Self { dims: SmallVec::new(), strides: SmallVec::new() };
        let mut next = [1; N];
        // From the innermost outwards; reversed below.
        for (at, &dim) in out.iter().enumerate().rev() {
            let mut stride = [0; N];
            for ((stride, next), shape) in stride.iter_mut().zip(&mut next).zip(shapes) {
                let Some(index) = (at + shape.len()).checked_sub(out.len()) else { continue };
                if shape[index] != 1 {
                    *stride = *next;
                    *next *= shape[index];
                }
            }
            if dim == 1 {
                continue;
            }
            let merges = match (walk.dims.last(), walk.strides.last()) {
                (Some(&inner), Some(inner_stride)) => (0..N).all(|n| stride[n] == inner_stride[n] * inner),
                _ => false,
            };
            if merges {
                *walk.dims.last_mut().expect("there is one") *= dim;
            } else {
                walk.dims.push(dim);
                walk.strides.push(stride);
            }
        }
        walk.dims.reverse();
        walk.strides.reverse();
        walk
    }

    /// Elements of the innermost dimension: of each row.
    fn length(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Calls `row` for each run of the innermost dimension: where in the output it begins, its length, and for each operand where it
    /// begins and by how much it moves on (0 or 1).
    pub fn rows(&self, mut row: impl FnMut(usize, usize, [(usize, usize); N])) {
        let outer = self.dims.split_last().map_or(&[][..], |(_, outer)| outer);
        let rows = if self.length() == 0 { 0 } else { outer.iter().product() };
        self.rows_of(0, rows, &mut row);
    }

    /// The same for `count` rows from number `first` on.
    fn rows_of(&self, first: usize, count: usize, row: &mut dyn FnMut(usize, usize, [(usize, usize); N])) {
        let length = self.length();
        let outer = self.dims.split_last().map_or(&[][..], |(_, outer)| outer);
        let inner = self.strides.last().copied().unwrap_or([1; N]);
        let mut counter: SmallVec<[usize; FEW]> = smallvec::smallvec![0; outer.len()];
        let (mut left, mut begins) = (first, [0; N]);
        if count == 0 {
            return;
        }
        for dim in (0..outer.len()).rev() {
            counter[dim] = left % outer[dim];
            left /= outer[dim];
            self.step(&mut begins, dim, counter[dim] as isize);
        }
        for at in first..first + count {
            let mut operands = [(0, 0); N];
            for n in 0..N {
                operands[n] = (begins[n], inner[n]);
            }
            row(at * length, length, operands);
            for dim in (0..outer.len()).rev() {
                counter[dim] += 1;
                self.step(&mut begins, dim, 1);
                if counter[dim] < outer[dim] {
                    break;
                }
                self.step(&mut begins, dim, -(outer[dim] as isize));
                counter[dim] = 0;
            }
        }
    }

    /// Moves operands along a dimension.
    fn step(&self, begins: &mut [usize; N], dim: usize, by: isize) {
        for (begin, &stride) in begins.iter_mut().zip(&self.strides[dim]) {
            *begin = begin.wrapping_add_signed(stride as isize * by);
        }
    }

    /// Calls `row` for each row of `out`, or part of one, with where each operand begins and moves on by; on all cores if `out` is
    /// large.
    pub fn write<T: Pod>(&self, out: &mut [T], row: impl Fn(&mut [T], [(usize, usize); N]) + Send + Sync) {
        self.parts(bytemuck::cast_slice_mut(out), size_of::<T>(), &|part, rows| {
            let part: &mut [T] = bytemuck::cast_slice_mut(part);
            rows.each(&mut |at, length, operands| row(&mut part[at..at + length], operands));
        });
    }

    /// Calls `part` for parts of `out`, elements of `width` bytes, with the rows in each; on all cores if `out` is large.
    pub fn parts(&self, out: &mut [u8], width: usize, part: &(dyn Fn(&mut [u8], &Rows<'_, N>) + Sync)) {
        let length = self.length();
        let count = out.len() / width;
        if count == 0 {
            return;
        }
        if count < PARALLEL {
            part(out, &Rows::Some { walk: self, first: 0, count: count / length });
        } else if length >= PART {
            self.rows_of(0, count / length, &mut |at, length, operands| {
                let row = &mut out[at * width..(at + length) * width];
                threads::pieces(row, PART * width, 1, &|number, piece| {
                    let mut operands = operands;
                    for (begin, step) in &mut operands {
                        *begin += number * PART * *step;
                    }
                    part(piece, &Rows::One { length: piece.len() / width, operands });
                });
            });
        } else {
            let rows = PART / length;
            threads::pieces(out, rows * length * width, 1, &|number, piece| {
                let count = piece.len() / width / length;
                part(piece, &Rows::Some { walk: self, first: number * rows, count });
            });
        }
    }
}

/// Rows of a part of an output.
#[allow(missing_docs, reason = "they are between this module's functions")]
pub enum Rows<'w, const N: usize> {
    /// So many of a walk's, from one on.
    Some { walk: &'w Walk<N>, first: usize, count: usize },
    /// One, or part of one.
    One { length: usize, operands: [(usize, usize); N] },
}

impl<const N: usize> Rows<'_, N> {
    /// Calls `row` for each: where in the part it begins, its length, and for each operand where it begins and moves on by.
    pub fn each(&self, row: &mut dyn FnMut(usize, usize, [(usize, usize); N])) {
        match *self {
            Self::Some { walk, first, count } => {
                let skipped = first * walk.length();
                walk.rows_of(first, count, &mut |at, length, operands| row(at - skipped, length, operands));
            }
            Self::One { length, operands } => row(0, length, operands),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of the operands for each element of the output.
    fn places(out: &[usize], a: &[usize], b: &[usize]) -> Vec<(usize, usize)> {
        let mut places = vec![[usize::MAX; 2]; out.iter().product()];
        Walk::new(out, [a, b]).write(&mut places, |row, [(a, a_step), (b, b_step)]| {
            row.iter_mut().enumerate().for_each(|(n, place)| *place = [a + n * a_step, b + n * b_step]);
        });
        places.into_iter().map(|[a, b]| (a, b)).collect()
    }

    /// The same by division.
    fn expected(out: &[usize], a: &[usize], b: &[usize]) -> Vec<(usize, usize)> {
        let of = |shape: &[usize], mut at: usize| {
            let (mut place, mut stride) = (0, 1);
            for (dim, &size) in out.iter().enumerate().rev() {
                let index = at % size;
                at /= size;
                if let Some(own) = (dim + shape.len()).checked_sub(out.len()).map(|own| shape[own]) {
                    place += if own == 1 { 0 } else { index * stride };
                    stride *= own;
                }
            }
            place
        };
        (0..out.iter().product()).map(|at| (of(a, at), of(b, at))).collect()
    }

    #[test]
    fn operands_are_where_division_finds_them() {
        let cases: [(&[usize], &[usize], &[usize]); 7] = [
            (&[], &[], &[]),
            (&[0, 3], &[0, 3], &[3]),
            (&[2, 3, 4], &[2, 1, 4], &[3, 1]),
            (&[5], &[], &[1]),
            (&[3, 50, 70, 11], &[50, 1, 11], &[3, 1, 70, 1]),
            (&[3, 40_000], &[40_000], &[3, 1]),
            (&[400, 1, 300], &[400, 1, 300], &[300]),
        ];
        for (out, a, b) in cases {
            assert_eq!(places(out, a, b), expected(out, a, b), "{out:?} {a:?} {b:?}");
        }
    }
}
