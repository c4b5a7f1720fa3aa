//! Operators that put borders around a tensor, or take them off.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::no;
use stepalloc_kernels::strided::{copy, strides, window};
use stepalloc_tensor::{DataType, Number, OpError, by_float, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    match node.op {
        "Pad" => {
            let mode = match attributes.text("mode", "constant") {
                "constant" => Mode::Constant,
                "edge" => Mode::Edge,
                "reflect" => Mode::Reflect,
                "wrap" => Mode::Wrap,
                mode => return Some(Err(OpError::attribute(format!("there is no mode {mode:?}")))),
            };
            let (pads, value) = (attributes.ints("pads"), attributes.float("value", 0.0));
            Some(Ok(Box::new(Pad { mode, pads, value })))
        }
        "CenterCropPad" => Some(Ok(Box::new(CenterCropPad { axes: attributes.ints("axes") }))),
        _ => None,
    }
}

/// How a dimension is laid into another: of the source, elements from `from` on lie in the target from `to`
/// on.
#[derive(Clone, Copy)]
struct Laid {
    from: usize,
    to: usize,
    length: usize,
    /// Elements of the target.
    whole: usize,
}

impl Laid {
    /// With so many elements more, or less, at either end.
    fn new(dim: usize, before: i64, after: i64) -> Result<Self, OpError> {
        let wrong =
            || OpError::value(format!("a dimension of {dim} cannot have {before} and {after} at its ends"));
        let whole = i64::try_from(dim).ok().and_then(|dim| dim.checked_add(before)?.checked_add(after));
        let whole = whole.and_then(|whole| usize::try_from(whole).ok()).ok_or_else(wrong)?;
        let cut = |pad: i64| usize::try_from(pad.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let (from, end) = (cut(before).min(dim), dim.saturating_sub(cut(after)));
        let to = before.max(0) as usize;
        Ok(Self { from, to, length: end.saturating_sub(from).min(whole.saturating_sub(to)), whole })
    }
}

type Laids = SmallVec<[Laid; 8]>;

fn wholes(laids: &Laids) -> SmallVec<[usize; 8]> {
    laids.iter().map(|laid| laid.whole).collect()
}

/// Copies what lies in both.
fn lay<T: Copy + Default + Send + Sync>(laids: &Laids, shape: &[usize], source: &[T], target: &mut [T]) {
    let lengths: SmallVec<[usize; 8]> = laids.iter().map(|laid| laid.length).collect();
    let whole = wholes(laids);
    let from = laids.iter().zip(strides(shape)).map(|(laid, stride)| laid.from * stride).sum();
    let to = laids.iter().zip(strides(&whole)).map(|(laid, stride)| laid.to * stride).sum();
    copy(&window(&lengths, shape, &whole), source, from, target, to);
}

/// What is put into a border.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Constant,
    Edge,
    Reflect,
    Wrap,
}

impl Mode {
    /// Which of `dim` elements, at least one, is put `at` places after the first, or before.
    fn inside(self, at: i64, dim: usize) -> usize {
        let dim = dim as i64;
        let inside = match self {
            Self::Constant | Self::Edge => at.clamp(0, dim - 1),
            Self::Wrap => at.rem_euclid(dim),
            Self::Reflect if dim == 1 => 0,
            Self::Reflect => {
                let period = 2 * (dim - 1);
                let at = at.rem_euclid(period);
                at.min(period - at)
            }
        };
        inside as usize
    }
}

/// Borders.
struct Pad {
    mode: Mode,
    /// An attribute in old versions, an input in new ones.
    pads: Option<Vec<i64>>,
    /// What is put there in old versions.
    value: f32,
}

impl Pad {
    fn laids(&self, shape: &[usize], pads: &[i64], axes: Option<&[i64]>) -> Result<Laids, OpError> {
        let count = axes.map_or(shape.len(), <[i64]>::len);
        if pads.len() != 2 * count {
            return Err(OpError::shape(format!("{} pads for {count} axes", pads.len())));
        }
        let mut laids = shape.iter().map(|&dim| Laid::new(dim, 0, 0)).collect::<Result<Laids, _>>()?;
        for n in 0..count {
            let at = axis(axes.map_or(n as i64, |axes| axes[n]), shape.len())?;
            let laid = Laid::new(shape[at], pads[n], pads[n + count])?;
            if self.mode != Mode::Constant && laid.length == 0 && laid.whole > 0 {
                return Err(OpError::shape(format!(
                    "axis {at} of {shape:?} has no elements to fill its borders with"
                )));
            }
            laids[at] = laid;
        }
        Ok(laids)
    }

    /// The bytes of an element that is put into borders.
    fn value(&self, call: &Call<'_, '_>, dtype: DataType) -> Result<[u8; 8], OpError> {
        let mut value = [0; 8];
        let given = if self.pads.is_none() { call.opt(2) } else { None };
        if let Some(given) = given {
            if given.dtype != dtype || given.len() != 1 {
                let shape = given.shape;
                return Err(OpError::element_type(format!(
                    "{}{shape:?} is no value of {dtype}",
                    given.dtype
                )));
            }
            value[..given.bytes.len()].copy_from_slice(given.bytes);
        } else if self.value != 0.0 {
            by_float!(dtype, T => {
                let own = T::from_f64(self.value.into());
                value[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&own));
            }, return Err(no(dtype)));
        }
        Ok(value)
    }
}

/// Fills borders with elements of the part that lies within, dimension by dimension from the innermost: what
/// a border takes from another, that one has by then.
fn fill_borders<T: Copy>(mode: Mode, laids: &Laids, target: &mut [T]) {
    if target.is_empty() {
        return;
    }
    for (at, laid) in laids.iter().enumerate().rev().filter(|(_, laid)| laid.length < laid.whole) {
        let inner: usize = laids[at + 1..].iter().map(|laid| laid.whole).product();
        for block in target.chunks_exact_mut(laid.whole * inner) {
            for place in (0..laid.to).chain(laid.to + laid.length..laid.whole) {
                let from = laid.to + mode.inside(place as i64 - laid.to as i64, laid.length);
                block.copy_within(from * inner..(from + 1) * inner, place * inner);
            }
        }
    }
}

impl Operator for Pad {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let laids = match &self.pads {
            Some(pads) => self.laids(&input.shape, pads, None)?,
            None => self.laids(&input.shape, &inputs.ints(1)?, inputs.opt_ints(3)?.as_deref())?,
        };
        Ok(smallvec![typed(input.dtype, &wholes(&laids)[..])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let laids = match &self.pads {
            Some(pads) => self.laids(input.shape, pads, None)?,
            None => {
                let pads =
                    ints(&call.input(1)?).ok_or_else(|| OpError::element_type("its pads are no integers"))?;
                let axes = call
                    .opt(3)
                    .map(|axes| ints(&axes).ok_or_else(|| OpError::element_type("its axes are no integers")));
                self.laids(input.shape, &pads, axes.transpose()?.as_deref())?
            }
        };
        let value = self.value(call, input.dtype)?;
        by_width!(input.dtype, T => {
            let target = output.raw::<T>();
            if self.mode == Mode::Constant && laids.iter().any(|laid| laid.length < laid.whole) {
                target.fill(bytemuck::pod_read_unaligned(&value[..size_of::<T>()]));
            }
            lay(&laids, input.shape, input.raw::<T>(), target);
            if self.mode != Mode::Constant {
                fill_borders(self.mode, &laids, target);
            }
        });
        Ok(())
    }
}

/// The middle of a tensor, or a tensor in the middle of zeros.
struct CenterCropPad {
    axes: Option<Vec<i64>>,
}

impl CenterCropPad {
    fn laids(&self, shape: &[usize], wanted: &[i64]) -> Result<Laids, OpError> {
        let count = self.axes.as_ref().map_or(shape.len(), Vec::len);
        if wanted.len() != count {
            return Err(OpError::shape(format!("{} sizes for {count} axes", wanted.len())));
        }
        let mut laids = shape.iter().map(|&dim| Laid::new(dim, 0, 0)).collect::<Result<Laids, _>>()?;
        for (n, &whole) in wanted.iter().enumerate() {
            let at = axis(self.axes.as_ref().map_or(n as i64, |axes| axes[n]), shape.len())?;
            let (dim, wrong) = (shape[at], || OpError::value(format!("{whole} is no size")));
            let whole = usize::try_from(whole).map_err(|_| wrong())?;
            // Of an odd number, the larger half is at the end.
            laids[at] = Laid {
                from: dim.saturating_sub(whole) / 2,
                to: whole.saturating_sub(dim) / 2,
                length: dim.min(whole),
                whole,
            };
        }
        Ok(laids)
    }
}

impl Operator for CenterCropPad {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        Ok(smallvec![typed(input.dtype, &wholes(&self.laids(&input.shape, &inputs.ints(1)?)?)[..])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let laids = self.laids(
            input.shape,
            &ints(&call.input(1)?).ok_or_else(|| OpError::element_type("its sizes are no integers"))?,
        )?;
        output.bytes.fill(0);
        by_width!(input.dtype, T => lay(&laids, input.shape, input.raw::<T>(), output.raw::<T>()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(mode: Mode, input: &[u8], before: i64, after: i64) -> Vec<u8> {
        let laids = Laids::from_elem(Laid::new(input.len(), before, after).expect("it fits"), 1);
        let mut target = vec![0; laids[0].whole];
        lay(&laids, &[input.len()], input, &mut target);
        fill_borders(mode, &laids, &mut target);
        target
    }

    #[test]
    fn borders_may_be_wider_than_what_they_surround() {
        assert_eq!(padded(Mode::Reflect, &[1, 2, 3], 4, 3), [1, 2, 3, 2, 1, 2, 3, 2, 1, 2]);
        assert_eq!(padded(Mode::Wrap, &[1, 2], 3, 2), [2, 1, 2, 1, 2, 1, 2]);
        assert_eq!(padded(Mode::Edge, &[7], 2, 1), [7; 4]);
    }

    #[test]
    fn less_than_nothing_is_taken_off_before_borders_are_put_on() {
        assert_eq!(padded(Mode::Edge, &[1, 2, 3, 4], -1, 2), [2, 3, 4, 4, 4]);
        assert_eq!(padded(Mode::Edge, &[1, 2, 3, 4], 1, -3), [1, 1]);
        assert!(Laid::new(4, -3, -2).is_err());
        assert!(Laid::new(4, i64::MAX, 1).is_err());
    }
}
