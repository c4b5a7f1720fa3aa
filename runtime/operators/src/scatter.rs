//! Operators that put elements at places that indices name, over those of another tensor or together with
//! them.

use super::index::{Indices, each_row, fits};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis, typed};
use smallvec::smallvec;
use stepalloc_kernels::no;
use stepalloc_kernels::strided::strides;
use stepalloc_tensor::{Number, OpError, Shape, Type, View, ViewMut, by_number, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let reduction = || match attributes.text("reduction", "none") {
        "none" => Ok(Reduction::None),
        "add" => Ok(Reduction::Add),
        "mul" => Ok(Reduction::Mul),
        "max" => Ok(Reduction::Max),
        "min" => Ok(Reduction::Min),
        other => Err(OpError::attribute(format!("there is no reduction {other:?}"))),
    };
    Some(match node.op {
        "Scatter" | "ScatterElements" => reduction().map(|reduction| {
            Box::new(ScatterElements { axis: attributes.int("axis", 0), reduction }) as Box<dyn Operator>
        }),
        "ScatterND" => reduction().map(|reduction| Box::new(ScatterND { reduction }) as Box<dyn Operator>),
        "TensorScatter" => match attributes.text("mode", "linear") {
            mode @ ("linear" | "circular") => {
                Ok(Box::new(TensorScatter { axis: attributes.int("axis", -2), circular: mode == "circular" }))
            }
            mode => Err(OpError::attribute(format!("there is no mode {mode:?}"))),
        },
        _ => return None,
    })
}

/// What becomes of an element and one that is put in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    /// The other.
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// A way through the updates: each run of elements that lie in a row (where in the target, where among the
/// updates, how many).
type Way<'w> = &'w dyn Fn(&mut dyn FnMut(usize, usize, usize)) -> Result<(), OpError>;

impl Reduction {
    fn apply(self, target: ViewMut<'_>, updates: &View<'_>, way: Way<'_>) -> Result<(), OpError> {
        if self == Self::None {
            return by_width!(target.dtype, T => {
                let (target, updates) = (target.raw::<T>(), updates.raw::<T>());
                way(&mut |to, from, length| match length {
                    1 => target[to] = updates[from],
                    _ => target[to..to + length].copy_from_slice(&updates[from..from + length]),
                })
            });
        }
        by_number!(target.dtype, T => {
            let (target, updates) = (target.elements::<T>(), updates.elements::<T>());
            let join: fn(T, T) -> T = match self {
                Self::Add => T::plus,
                Self::Mul => T::times,
                Self::Max => |old, new| if new > old { new } else { old },
                Self::Min => |old, new| if new < old { new } else { old },
                Self::None => |_, new| new,
            };
            way(&mut |to, from, length| {
                let places = target[to..to + length].iter_mut();
                places.zip(&updates[from..from + length]).for_each(|(place, &new)| *place = join(*place, new));
            })
        }, Err(no(target.dtype)))
    }
}

/// Output 0 with the elements of input 0 in it.
fn begun<'a>(call: &mut Call<'_, 'a>) -> Result<ViewMut<'a>, OpError> {
    let output = call.output(0)?;
    if call.in_place().is_none() {
        output.bytes.copy_from_slice(call.input(0)?.bytes);
    }
    Ok(output)
}

/// That updates have the type they should.
fn same(updates: &Type, wanted: &Type) -> Result<(), OpError> {
    if updates == wanted {
        Ok(())
    } else {
        Err(OpError::shape(format!("updates are {updates} instead of {wanted}")))
    }
}

/// Single elements along a dimension.
struct ScatterElements {
    axis: i64,
    reduction: Reduction,
}

impl Operator for ScatterElements {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (data, indices, updates) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        fits(indices, data, axis(self.axis, data.rank())?)?;
        same(updates, &Type { dtype: data.dtype, shape: indices.shape.clone() })?;
        Ok(smallvec![data.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = begun(call)?;
        let (view, updates) = (call.input(1)?, call.input(2)?);
        let at = axis(self.axis, output.shape.len())?;
        let (dim, strides, indices) = (output.shape[at], strides(output.shape), Indices::new(&view)?);
        if view.is_empty() {
            return Ok(());
        }
        // Updates that lie in a row in the target too, if they have the same index: as where a slice's index was expanded to all of
        // its elements, which are put there at once.
        let lengths = view.shape[at + 1..].iter().zip(&output.shape[at + 1..]);
        let inner = lengths.rev().take_while(|(update, target)| update == target).count();
        let (outer, block) = view.shape.split_at(view.shape.len() - inner);
        let (last, block) = (outer.len() - 1, block.iter().product::<usize>());
        let (step, length) = (strides[at], outer[last]);
        // Along the dimension itself, indices are all that moves; else columns move too.
        let column = if last == at { 0 } else { strides[last] };
        self.reduction.apply(output, &updates, &|put| {
            each_row(outer, &strides, at, &mut |row, begin| {
                for n in 0..length {
                    let (from, begin) = ((row * length + n) * block, begin + n * column);
                    if indices.are_one(from..from + block) {
                        put(begin + indices.get(from, dim)? * step, from, block);
                        continue;
                    }
                    for n in 0..block {
                        put(begin + n + indices.get(from + n, dim)? * step, from + n, 1);
                    }
                }
                Ok(())
            })
        })
    }
}

/// Slices, each of which is named by a row of indices.
struct ScatterND {
    reduction: Reduction,
}

impl Operator for ScatterND {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (data, indices, updates) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let rows = indices.shape.split_last().filter(|&(&named, _)| named <= data.rank());
        let (&named, outer) =
            rows.ok_or_else(|| OpError::shape(format!("indices {indices} do not fit {data}")))?;
        let shape: Shape = [outer, &data.shape[named..]].into_iter().flatten().copied().collect();
        same(updates, &typed(data.dtype, shape)?)?;
        Ok(smallvec![data.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = begun(call)?;
        let (view, updates) = (call.input(1)?, call.input(2)?);
        let (strides, indices) = (strides(output.shape), Indices::new(&view)?);
        let (&named, outer) =
            view.shape.split_last().ok_or_else(|| OpError::shape("its indices are a scalar"))?;
        let (shape, inner) = (&output.shape[..named], output.shape[named..].iter().product::<usize>());
        let rows: usize = if inner == 0 { 0 } else { outer.iter().product() };
        self.reduction.apply(output, &updates, &|put| {
            for row in 0..rows {
                put(indices.place(row * named, shape, &strides)?, row * inner, inner);
            }
            Ok(())
        })
    }
}

/// Steps of sequences into a cache, from where each sample of the batch has come to.
struct TensorScatter {
    axis: i64,
    /// Beyond the end goes on at the beginning.
    circular: bool,
}

impl Operator for TensorScatter {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (cache, update) = (inputs.ty(0)?, inputs.ty(1)?);
        let at = axis(self.axis, cache.rank())?;
        let mut wanted = cache.clone();
        wanted.shape[at] = update.shape.get(at).map_or(0, |&steps| steps.min(cache.shape[at]));
        same(update, &wanted)?;
        if at == 0 {
            return Err(OpError::attribute("axis 0 is the batch").into());
        }
        if let Some(indices) = inputs.opt(2)
            && indices.shape != [cache.shape[0]]
        {
            return Err(OpError::shape(format!(
                "{indices} is not one for each of {} samples",
                cache.shape[0]
            ))
            .into());
        }
        Ok(smallvec![cache.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = begun(call)?;
        let update = call.input(1)?;
        let indices = call.opt(2).map(|indices| {
            super::ints(&indices).ok_or_else(|| OpError::element_type("its indices are no integers"))
        });
        let indices = indices.transpose()?;
        let at = axis(self.axis, output.shape.len())?;
        let (most, steps) = (output.shape[at], update.shape[at]);
        let row = output.shape[at + 1..].iter().product::<usize>() * output.dtype.bytes();
        if update.bytes.is_empty() {
            return Ok(());
        }
        let sequences: usize = output.shape[1..at].iter().product();
        let blocks = output.bytes.chunks_exact_mut(most * row).zip(update.bytes.chunks_exact(steps * row));
        for (n, (cache, update)) in blocks.enumerate() {
            let told = indices.as_ref().map_or(0, |indices| indices[n / sequences]);
            let begin = if self.circular { told.rem_euclid(most as i64) } else { told };
            let begin = usize::try_from(begin).ok().filter(|&begin| self.circular || begin <= most - steps);
            let begin = begin
                .ok_or_else(|| OpError::value(format!("{steps} steps from {told} on are beyond {most}")))?;
            let first = steps.min(most - begin) * row;
            cache[begin * row..][..first].copy_from_slice(&update[..first]);
            cache[..update.len() - first].copy_from_slice(&update[first..]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, counting, tensor};
    use stepalloc_graph::Attribute;

    #[test]
    fn over_the_data_is_what_comes_out_elsewhere() {
        let (data, updates) = (counting(&[3, 4]), tensor(&[2, 4], &[-1.0f32; 8]));
        let columns = tensor(&[2, 4], &[0i64, -1, 1, 2, 2, 0, 0, 1]);
        let rows = tensor(&[2, 1], &[2i64, 2]);
        let cache = tensor(&[1, 3, 4], &[0.0f32; 12]);
        let update = tensor(&[1, 2, 4], &[1.0f32; 8]);
        let at = tensor(&[1], &[2i64]);
        let add = [("reduction", Attribute::String("add".into()))];
        let circular = [("mode", Attribute::String("circular".into()))];
        for trial in [
            Trial::new("ScatterElements", &[], [&data, &columns, &updates]),
            Trial::new("ScatterElements", &add, [&data, &columns, &updates]),
            Trial::new("ScatterND", &add, [&data, &rows, &updates]),
            Trial::new("TensorScatter", &circular, [&cache, &update, &at]),
        ] {
            let (apart, over) = (trial.run().expect("it runs"), trial.run_over(Some(0)).expect("it runs"));
            assert_eq!(apart[0].view().bytes, over[0].view().bytes, "{}", trial.op);
        }
    }

    /// Against a loop over all elements: rows whose index is one and others, and indices that reach not as far as the data.
    #[test]
    fn slices_with_one_index_are_put_as_their_elements_are() {
        let shape = [3usize, 4, 2, 5];
        let data: Vec<f32> = (0..120).map(|n| n as f32).collect();
        for (axis, updates) in
            [(0, [2, 4, 2, 5]), (0, [2, 4, 1, 5]), (1, [3, 2, 2, 5]), (1, [2, 2, 2, 3]), (3, [3, 4, 2, 2])]
        {
            let count: usize = updates.iter().product();
            let inner: usize = updates[axis + 1..].iter().product();
            let news: Vec<f32> = (0..count).map(|n| -1.0 - n as f32).collect();
            for all_alike in [true, false] {
                // Of a slice along the dimension all the same, or not.
                let index = |n: usize| {
                    let slice = n / inner;
                    (if all_alike { slice + slice / 7 } else { slice + n / 3 }) % shape[axis]
                };
                let indices: Vec<i64> = (0..count).map(|n| index(n) as i64).collect();
                for reduction in ["none", "add"] {
                    let mut wanted = data.clone();
                    for (n, &new) in news.iter().enumerate() {
                        let (mut rest, mut at, mut stride) = (n, 0, 1);
                        for dim in (0..4).rev() {
                            let own = rest % updates[dim];
                            rest /= updates[dim];
                            at += stride * if dim == axis { index(n) } else { own };
                            stride *= shape[dim];
                        }
                        wanted[at] = if reduction == "add" { wanted[at] + new } else { new };
                    }
                    let inputs = [tensor(&shape, &data), tensor(&updates, &indices), tensor(&updates, &news)];
                    let trial = Trial::new("ScatterElements", &[], inputs).int("axis", axis as i64);
                    let outputs = trial.text("reduction", reduction).run().expect("it runs");
                    assert_eq!(outputs[0].view().elements::<f32>(), wanted, "{updates:?} along {axis}");
                }
            }
        }
    }

    #[test]
    fn places_that_do_not_exist_are_errors() {
        let data = counting(&[3, 4]);
        let one = tensor(&[1, 1], &[0.0f32]);
        for index in [3, -4, i64::MIN, i64::MAX] {
            let index = tensor(&[1, 1], &[index]);
            let trial = Trial::new("ScatterElements", &[], [&data, &index, &one]);
            assert!(trial.run().is_err_and(|why| why.to_string().contains("beyond 3 elements")));
        }
        let cache = counting(&[1, 3, 4]);
        let late = tensor(&[1], &[2i64]);
        let update = counting(&[1, 2, 4]);
        assert!(Trial::new("TensorScatter", &[], [&cache, &update, &late]).run().is_err());
    }
}
