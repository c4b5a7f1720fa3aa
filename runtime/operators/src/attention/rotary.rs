//! Rotary embedding: pairs of a head's elements are turned by angles that grow with the place in the sequence.

use super::heads;
use crate::{Call, Definition, Known, Operator, Types, Unclear};
use smallvec::smallvec;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Number, OpError, by_float};
use stepalloc_threads as threads;

/// Fewer elements than so many are turned by one thread.
const WORTH_SHARING: usize = 1 << 16;

pub(super) struct RotaryEmbedding {
    heads: Option<i64>,
    /// Elements of a head that are turned; the others stay.
    turned: Option<usize>,
    /// Pairs lie side by side, not half a head apart.
    interleaved: bool,
}

#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    length: usize,
    head: usize,
    turned: usize,
    /// Heads lie beside each other in rows, not one behind the other.
    packed: bool,
}

impl RotaryEmbedding {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let turned = node.attributes.int("rotary_embedding_dim", 0);
        Ok(Self {
            heads: node.attributes.opt_int("num_heads").filter(|&heads| heads != 0),
            turned: match usize::try_from(turned) {
                Ok(0) => None,
                Ok(turned) => Some(turned),
                Err(_) => return Err(OpError::attribute(format!("{turned} elements are to be turned"))),
            },
            interleaved: node.attributes.int("interleaved", 0) != 0,
        })
    }

    fn sizes(&self, shape: &[usize]) -> Result<Sizes, OpError> {
        let (heads, length, head, packed) = match *shape {
            [_, heads, length, head] => (heads, length, head, false),
            [_, length, width] => {
                let heads = heads(self.heads, "num_heads")?;
                if width % heads != 0 {
                    return Err(OpError::shape(format!("rows of {width} elements are not {heads} heads")));
                }
                (heads, length, width / heads, true)
            }
            _ => {
                return Err(OpError::shape(format!(
                    "an input of shape {shape:?} has no three or four dimensions"
                )));
            }
        };
        let turned = self.turned.unwrap_or(head);
        if turned > head || !turned.is_multiple_of(2) {
            return Err(OpError::shape(format!(
                "{turned} elements of heads of {head} cannot be turned in pairs"
            )));
        }
        Ok(Sizes { heads, length, head, turned, packed })
    }

    fn compute(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, cos, sin) = (call.input(0)?, call.input(1)?, call.input(2)?);
        let sizes = self.sizes(x.shape)?;
        let Sizes { heads, length, head, turned, packed } = sizes;
        let rows = cos.shape.first().copied().unwrap_or(0);
        let places = match call.opt(3) {
            None => None,
            Some(view) => {
                let places = view.elements::<i64>();
                if let Some(place) = places.iter().find(|&&place| place < 0 || place >= rows as i64) {
                    return Err(OpError::value(format!("there is no place {place} among {rows}")));
                }
                Some(places)
            }
        };
        let (dtype, width) = (x.dtype, x.dtype.bytes());
        let y = call.output(0)?.bytes;
        if y.is_empty() {
            return Ok(());
        }
        let half = turned / 2 * width;
        let is_small = y.len() < WORTH_SHARING * width;
        let least = if is_small { usize::MAX } else { (WORTH_SHARING / 4).div_ceil(head) };
        let size = head * width;
        threads::pieces(y, size, least, &|at, y| {
            // Its number among all places of all members of the batch.
            let place = match packed {
                true => at / heads,
                false => at / (heads * length) * length + at % length,
            };
            let place = places.map_or(place, |places| places[place] as usize);
            let (cos, sin) = (&cos.bytes[place * half..][..half], &sin.bytes[place * half..][..half]);
            let (x, rest) = x.bytes[at * size..][..size].split_at(turned * width);
            let (y, kept) = y.split_at_mut(turned * width);
            kept.copy_from_slice(rest);
            by_float!(dtype, T => self.turn::<T>(x, y, cos, sin), {});
        });
        Ok(())
    }

    /// The elements of a head that are turned.
    fn turn<T: Number>(&self, x: &[u8], y: &mut [u8], cos: &[u8], sin: &[u8]) {
        let (x, y): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
        let (cos, sin): (&[T], &[T]) = (bytemuck::cast_slice(cos), bytemuck::cast_slice(sin));
        let half = cos.len();
        let turn = |a: T, b: T, cos: T, sin: T| {
            let (a, b, cos, sin) = (a.wide(), b.wide(), cos.wide(), sin.wide());
            (T::narrow(cos * a - sin * b), T::narrow(sin * a + cos * b))
        };
        if self.interleaved {
            let (y, x) = (&mut y[..2 * half], &x[..2 * half]);
            for n in 0..half {
                (y[2 * n], y[2 * n + 1]) = turn(x[2 * n], x[2 * n + 1], cos[n], sin[n]);
            }
        } else {
            let (real, imaginary) = y.split_at_mut(half);
            let (a, b, imaginary, sin) =
                (&x[..half], &x[half..][..half], &mut imaginary[..half], &sin[..half]);
            for (n, real) in real.iter_mut().enumerate() {
                (*real, imaginary[n]) = turn(a[n], b[n], cos[n], sin[n]);
            }
        }
    }
}

impl Operator for RotaryEmbedding {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, cos, sin) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let Sizes { length, turned, .. } = self.sizes(&x.shape)?;
        let (batch, half) = (x.shape[0], turned / 2);
        let fits = match inputs.opt(3) {
            None => cos.shape == [batch, length, half],
            Some(places) => {
                if places.dtype != DataType::I64 || places.shape != [batch, length] {
                    return Err(OpError::shape(format!(
                        "places of {batch} sequences of {length} are {places}"
                    ))
                    .into());
                }
                cos.rank() == 2 && cos.shape[1] == half
            }
        };
        if !fits || cos.shape != sin.shape || [cos, sin].iter().any(|ty| ty.dtype != x.dtype) {
            return Err(
                OpError::shape(format!("{x} cannot be turned by cosines {cos} and sines {sin}")).into()
            );
        }
        Ok(smallvec![x.clone()])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        if !dtype.is_float() {
            return Err(no(dtype));
        }
        self.compute(call)
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, numbers, tensor};

    #[test]
    fn places_without_angles_are_errors() {
        for (place, fits) in [(1, true), (2, false), (-1, false)] {
            let inputs = [
                numbers(&[1, 3, 1, 4], 1),
                numbers(&[2, 2], 2),
                numbers(&[2, 2], 3),
                tensor(&[1, 1], &[place as i64]),
            ];
            assert_eq!(Trial::new("RotaryEmbedding", &[], inputs).run().is_ok(), fits, "place {place}");
        }
    }
}
