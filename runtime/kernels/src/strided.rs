//! Copies between tensors that are walked through with strides of their own: transposes, slices, repetitions.

use smallvec::SmallVec;
use stepalloc_threads as threads;

/// A dimension of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Elements along it.
    pub length: usize,
    /// From one of them to the next in the source, in elements: 0 repeats, and less runs backwards.
    pub from: isize,
    /// From one of them to the next in the target, in elements.
    pub to: usize,
}

/// The dimensions of a copy, the outermost first. More than so many are borne.
pub type Axes = SmallVec<[Axis; 8]>;

/// What a transpose moves at once: as many elements of 4 bytes as a vector register of AVX2 holds, in as many
/// rows.
const TILE: usize = 8;
/// Copies of fewer elements are not split among threads: waking one takes as long as copying some 100 KiB.
const ALONE: usize = 1 << 16;

/// How many elements each dimension of a tensor in C order moves on by.
pub fn strides(shape: &[usize]) -> SmallVec<[usize; 8]> {
    let mut strides = SmallVec::from_elem(1, shape.len());
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at];
    }
    strides
}

/// Lays the target out in C order.
pub fn lay_out(axes: &mut [Axis]) {
    let mut next = 1;
    for axis in axes.iter_mut().rev() {
        axis.to = next;
        next *= axis.length;
    }
}

/// A transpose: the target's dimensions are those of a source of this shape, in this order.
pub fn permuted(shape: &[usize], order: &[usize]) -> Axes {
    let strides = strides(shape);
    let mut axes: Axes =
        order.iter().map(|&at| Axis { length: shape[at], from: strides[at] as isize, to: 0 }).collect();
    lay_out(&mut axes);
    axes
}

/// A part of a source of shape `from` to a part of a target of shape `to`; `lengths` are those of the part.
pub fn window(lengths: &[usize], from: &[usize], to: &[usize]) -> Axes {
    let strides = strides(from).into_iter().zip(strides(to));
    let axis = |(&length, (from, to)): (&usize, (usize, usize))| Axis { length, from: from as isize, to };
    lengths.iter().zip(strides).map(axis).collect()
}

/// Copies elements, beginning with `source[from]` and `target[to]`.
pub fn copy<T: Copy + Default + Send + Sync>(
    axes: &[Axis],
    source: &[T],
    from: usize,
    target: &mut [T],
    to: usize,
) {
    if axes.iter().any(|axis| axis.length == 0) {
        return;
    }
    let axes = merged(axes);
    let mut elements = 1;
    let mut is_dense = true;
    for axis in axes.iter().rev() {
        is_dense &= axis.to == elements;
        elements *= axis.length;
    }
    if is_dense {
        split(&axes, source, from as isize, &mut target[to..to + elements]);
    } else {
        walk(&tiled(axes), source, from as isize, target, to);
    }
}

/// As few dimensions as do the same.
fn merged(axes: &[Axis]) -> Axes {
    let mut merged = Axes::new();
    for &axis in axes.iter().filter(|axis| axis.length > 1) {
        match merged.last_mut() {
            Some(outer)
                if outer.from == axis.from * axis.length as isize && outer.to == axis.to * axis.length =>
            {
                *outer = Axis { length: outer.length * axis.length, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Copies to all of `target`, which is in C order, with all threads if it is large.
fn split<T: Copy + Default + Send + Sync>(axes: &Axes, source: &[T], from: isize, target: &mut [T]) {
    let outermost = axes.iter().position(|axis| axis.length > 1);
    let Some(at) = outermost.filter(|_| target.len() > ALONE) else {
        return walk(&tiled(axes.clone()), source, from, target, 0);
    };
    let axis = axes[at];
    let half = axis.length / 2;
    let (mut one, mut two) = (axes.clone(), axes.clone());
    one[at].length = half;
    two[at].length = axis.length - half;
    let (left, right) = target.split_at_mut(half * axis.to);
    threads::join(&mut || split(&one, source, from, left), &mut || {
        split(&two, source, from + half as isize * axis.from, right);
    });
}

/// Brings the dimension along which the source lies in a row next to that along which the target does, where
/// these are two.
fn tiled(mut axes: Axes) -> Axes {
    if let Some((last, outer)) = axes.split_last()
        && last.to == 1
        && last.from > 1
        && let Some(at) = outer.iter().position(|axis| axis.from == 1)
    {
        let axis = axes.remove(at);
        axes.insert(axes.len() - 1, axis);
    }
    axes
}

fn walk<T: Copy + Default>(axes: &[Axis], source: &[T], from: isize, target: &mut [T], to: usize) {
    match axes {
        [] => target[to] = source[from as usize],
        [row] => copy_row(*row, source, from as usize, target, to),
        [outer, inner] if outer.from == 1 && inner.to == 1 && inner.from > 1 => {
            transpose(*outer, *inner, source, from as usize, target, to);
        }
        [first, rest @ ..] => {
            for n in 0..first.length {
                walk(rest, source, from + n as isize * first.from, target, to + n * first.to);
            }
        }
    }
}

fn copy_row<T: Copy>(row: Axis, source: &[T], from: usize, target: &mut [T], to: usize) {
    let length = row.length;
    match (row.from, row.to) {
        (1, 1) => target[to..to + length].copy_from_slice(&source[from..from + length]),
        (0, 1) => target[to..to + length].fill(source[from]),
        (step, 1) if step > 0 => {
            let places = target[to..to + length].iter_mut();
            places.zip(source[from..].iter().step_by(step as usize)).for_each(|(place, &x)| *place = x);
        }
        (1, step) => {
            let places = target[to..].iter_mut().step_by(step);
            places.zip(&source[from..from + length]).for_each(|(place, &x)| *place = x);
        }
        _ => {
            for n in 0..length {
                target[to + n * row.to] = source[(from as isize + n as isize * row.from) as usize];
            }
        }
    }
}

/// Rows of the source become columns of the target: `outer` lies in a row in the source, and `inner` does in
/// the target.
fn transpose<T: Copy + Default>(
    outer: Axis,
    inner: Axis,
    source: &[T],
    from: usize,
    target: &mut [T],
    to: usize,
) {
    let step = inner.from as usize;
    let (rows, columns) = (outer.length / TILE * TILE, inner.length / TILE * TILE);
    for row in (0..rows).step_by(TILE) {
        for column in (0..columns).step_by(TILE) {
            let mut tile = [[T::default(); TILE]; TILE];
            for n in 0..TILE {
                let line = &source[from + (column + n) * step + row..][..TILE];
                for (m, &x) in line.iter().enumerate() {
                    tile[m][n] = x;
                }
            }
            for (m, line) in tile.iter().enumerate() {
                target[to + (row + m) * outer.to + column..][..TILE].copy_from_slice(line);
            }
        }
    }
    // What fills no tile: columns of the target whole, then the ends of the others.
    for column in 0..inner.length {
        let begin = if column < columns { rows } else { 0 };
        if begin < outer.length {
            let line = &source[from + column * step..][begin..outer.length];
            let places = target[to + begin * outer.to + column..].iter_mut().step_by(outer.to);
            places.zip(line).for_each(|(place, &x)| *place = x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of dimensions that fill tiles, or not, or are split among threads, gives what an index
    /// computes.
    #[test]
    fn transposes_are_what_indices_say() {
        for shape in [[3, 17, 9], [8, 16, 24], [1, 40, 2], [70, 33, 41], [2, 0, 3]] {
            let source: Vec<u32> = (0..shape.iter().product::<usize>() as u32).collect();
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let mut target = vec![u32::MAX; source.len()];
                copy(&permuted(&shape, &order), &source, 0, &mut target, 0);
                let (of, dims) = (strides(&shape), order.map(|at| shape[at]));
                let to = strides(&dims);
                for (at, &got) in target.iter().enumerate() {
                    let from: usize = (0..3).map(|d| at / to[d] % dims[d] * of[order[d]]).sum();
                    assert_eq!(got, source[from], "{shape:?} in order {order:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn a_row_may_run_backwards_and_repeat() {
        let axes = [Axis { length: 2, from: 0, to: 3 }, Axis { length: 3, from: -2, to: 1 }];
        let mut target = [0u8; 6];
        copy(&axes, &[1, 2, 3, 4, 5], 4, &mut target, 0);
        assert_eq!(target, [5, 3, 1, 5, 3, 1]);
    }
}
