//! CausalConvWithState: each channel convolved with what came before, across calls.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::no;
use stepalloc_tensor::{Number, OpError, by_float};

pub(super) fn make(node: &Definition<'_>) -> Made {
    (node.op == "CausalConvWithState").then(|| match node.attributes.text("activation", "none") {
        "none" | "" => Ok(Box::new(CausalConv { silu: false }) as _),
        "silu" | "swish" => Ok(Box::new(CausalConv { silu: true }) as _),
        other => Err(OpError::attribute(format!("its activation is {other:?}"))),
    })
}

/// Convolves a row: the output, the input, what came before, weights, and a bias.
type Row = fn(&CausalConv, &mut [u8], &[u8], Option<&[u8]>, &[u8], Option<&[u8]>);

struct CausalConv {
    /// Sums are multiplied by their sigmoids.
    silu: bool,
}

impl Operator for CausalConv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        let (&[batch, channels, _], &[filters, 1, size]) = (&x.shape[..], &w.shape[..]) else {
            return Err(OpError::shape(format!(
                "an input {x} and weights {w} are not of channels of one row"
            ))
            .into());
        };
        let state = size.checked_sub(1).filter(|_| filters == channels);
        let state = state.ok_or_else(|| OpError::shape(format!("weights {w} do not fit an input {x}")))?;
        let state = typed(x.dtype, [batch, channels, state])?;
        if inputs.opt(2).is_some_and(|bias| bias.shape != [channels])
            || inputs.opt(3).is_some_and(|past| past.shape != state.shape)
        {
            return Err(OpError::shape(format!("its bias or its state does not fit {x} and {w}")).into());
        }
        if (1..4).filter_map(|at| inputs.opt(at)).any(|input| input.dtype != x.dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        Ok(smallvec![x.clone(), state])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let row: Row = by_float!(dtype, T => CausalConv::row::<T>, return Err(no(dtype)));
        self.convolve(call, row)
    }
}

impl CausalConv {
    fn convolve(&self, call: &mut Call<'_, '_>, row_of: Row) -> Result<(), OpError> {
        let (x, w) = (call.input(0)?, call.input(1)?);
        let (channels, width) = (x.shape[1], x.dtype.bytes());
        // In bytes.
        let (length, size) = (x.shape[2] * width, w.shape[2] * width);
        let state = size - width;
        let (bias, past) = (call.opt(2).map(|bias| bias.bytes), call.opt(3).map(|past| past.bytes));
        let mut out = call.opt_output(0).map(|out| out.bytes);
        let mut present = call.opt_output(1).map(|present| present.bytes);
        let rows = out.as_ref().map_or(0, |out| out.len().checked_div(length).unwrap_or(0));
        let rows =
            rows.max(present.as_ref().map_or(0, |present| present.len().checked_div(state).unwrap_or(0)));
        for row in 0..rows {
            let x = &x.bytes[row * length..][..length];
            let past = past.map(|past| &past[row * state..][..state]);
            if let Some(present) = &mut present {
                let present = &mut present[row * state..][..state];
                // The end of the past and the input, one after the other.
                let (old, new) = present.split_at_mut(state.saturating_sub(length));
                match past {
                    Some(past) => old.copy_from_slice(&past[state - old.len()..]),
                    None => old.fill(0),
                }
                new.copy_from_slice(&x[length - new.len()..]);
            }
            let Some(out) = &mut out else { continue };
            let channel = row % channels;
            row_of(
                self,
                &mut out[row * length..][..length],
                x,
                past,
                &w.bytes[channel * size..][..size],
                bias.map(|bias| &bias[channel * width..][..width]),
            );
        }
        Ok(())
    }

    fn row<T: Number>(&self, out: &mut [u8], x: &[u8], past: Option<&[u8]>, w: &[u8], bias: Option<&[u8]>) {
        let (out, x): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(x));
        let (past, w): (Option<&[T]>, &[T]) = (past.map(bytemuck::cast_slice), bytemuck::cast_slice(w));
        let bias = bias.map_or(T::Wide::default(), |bias| bytemuck::cast_slice::<u8, T>(bias)[0].wide());
        let state = w.len() - 1;
        for (at, to) in out.iter_mut().enumerate() {
            let mut sum = T::Wide::default();
            // Weights of the past come first.
            let old = state.saturating_sub(at);
            for (n, w) in w[..old].iter().enumerate() {
                let x = past.map_or(T::default(), |past| past[state - old + n]);
                sum = sum.plus(w.wide().times(x.wide()));
            }
            for (w, x) in w[old..].iter().zip(&x[(at + old) - state..]) {
                sum = sum.plus(w.wide().times(x.wide()));
            }
            *to = self.finish(sum.plus(bias));
        }
    }

    fn finish<T: Number>(&self, sum: T::Wide) -> T {
        if !self.silu {
            return T::narrow(sum);
        }
        let sum = sum.to_f64();
        T::from_f64(sum / (1.0 + (-sum).exp()))
    }
}
