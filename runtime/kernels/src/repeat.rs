//! Dimensions resized without weights: each element of the output is one of the input.

use bytemuck::Pod;
use stepalloc_tensor::{Number, OpError, View, ViewMut, by_number, by_width};
use stepalloc_threads as threads;

/// As many elements at once are copied by one thread.
const ALONE: usize = 1 << 16;

/// A dimension of which elements are repeated, or left out.
pub struct Level<'a> {
    input: usize,
    /// Which element of the input each of the output is; beyond its last one, none.
    map: &'a [u32],
    /// Each is there twice.
    is_doubled: bool,
}

impl<'a> Level<'a> {
    /// Of `input` elements; `map` says which one each of the output is.
    pub fn new(input: usize, map: &'a [u32]) -> Self {
        let is_doubled =
            map.len() == 2 * input && map.iter().enumerate().all(|(at, &from)| from as usize == at / 2);
        Self { input, map, is_doubled }
    }

    /// A row, or several.
    fn copy_row<T: Copy>(&self, source: &[T], target: &mut [T], outside: T) {
        if self.is_doubled {
            for (pair, &x) in target.chunks_exact_mut(2).zip(source) {
                (pair[0], pair[1]) = (x, x);
            }
        } else {
            let from = |&at: &u32| source.get(at as usize).copied().unwrap_or(outside);
            target.iter_mut().zip(self.map).for_each(|(place, at)| *place = from(at));
        }
    }
}

/// Repeats elements of `planes` blocks of dimensions, all of which have some. `outside` is put where there is
/// none to repeat.
pub fn repeat(
    levels: &[Level<'_>],
    planes: usize,
    input: &View<'_>,
    output: ViewMut<'_>,
    outside: f32,
) -> Result<(), OpError> {
    let mut value = [0; 8];
    by_number!(input.dtype, T => {
        value[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::from_f64(outside.into())));
    }, ());
    by_width!(input.dtype, T => {
        let outside = bytemuck::pod_read_unaligned(&value[..size_of::<T>()]);
        let (source, target) = (input.raw::<T>(), output.raw::<T>());
        let (before, after) = (source.len() / planes, target.len() / planes);
        if target.len() > ALONE {
            threads::pieces(target, after, (ALONE / 4).div_ceil(after), &|n, target| {
                repeat_plane(levels, &source[n * before..][..before], target, outside);
            });
        } else {
            for (target, source) in target.chunks_exact_mut(after).zip(source.chunks_exact(before)) {
                repeat_level(levels, source, target, outside);
            }
        }
    });
    Ok(())
}

/// With all threads, if the plane is large.
fn repeat_plane<T: Pod + Send + Sync>(levels: &[Level<'_>], source: &[T], target: &mut [T], outside: T) {
    let Some((first, rest)) =
        levels.split_first().filter(|(_, rest)| target.len() > ALONE && !rest.is_empty())
    else {
        return repeat_level(levels, source, target, outside);
    };
    let (before, after) = (source.len() / first.input, target.len() / first.map.len());
    threads::pieces(target, after, (ALONE / 4).div_ceil(after), &|n, block| {
        let from = first.map[n] as usize;
        if from < first.input {
            repeat_level(rest, &source[from * before..][..before], block, outside);
        } else {
            block.fill(outside);
        }
    });
}

fn repeat_level<T: Copy>(levels: &[Level<'_>], source: &[T], target: &mut [T], outside: T) {
    let Some((first, rest)) = levels.split_first() else { return target.copy_from_slice(source) };
    let (before, after) = (source.len() / first.input, target.len() / first.map.len());
    if before == 1 && rest.is_empty() {
        return first.copy_row(source, target, outside);
    }
    for (at, &from) in first.map.iter().enumerate() {
        let begin = at * after;
        if from as usize >= first.input {
            target[begin..begin + after].fill(outside);
        } else if at > 0 && first.map[at - 1] == from {
            target.copy_within(begin - after..begin, begin);
        } else {
            let source = &source[from as usize * before..][..before];
            repeat_level(rest, source, &mut target[begin..begin + after], outside);
        }
    }
}
