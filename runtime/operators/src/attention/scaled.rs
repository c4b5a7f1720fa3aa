//! Attention as passes make it of `MatMul`, `Softmax` and `MatMul`: softmax(scale Q K^T + mask) V.
//!
//! Unlike ONNX's operator it takes each operand, and gives its output, with heads before rows (`BHSD`) or behind them (`BSHD`), as the
//! graph has them, and its results are those of the nodes it stands for: a query that may look at no key gets NaN.

use super::{FEW, clear, types_of};
use crate::{Call, Definition, Known, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    attention::{Bias, Heads, Job, Mask, Rule, Sizes, repack},
    real::{Real, Space, Target, is_double, widened, widened_bytes},
};
use stepalloc_tensor::{DataType, OpError, Type};

pub(super) struct ScaledDotProduct {
    scale: f32,
    /// Whether queries, keys, values and the output have their heads behind the rows.
    rows_first: [bool; 4],
    /// A true element of the mask hides a key, instead of showing it.
    mask_hides: bool,
    /// What a hidden score becomes.
    hidden: f32,
}

impl ScaledDotProduct {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let layout = |name: &str| match node.attributes.text(name, "BHSD") {
            "BHSD" => Ok(false),
            "BSHD" => Ok(true),
            other => Err(OpError::attribute(format!("there is no layout {other:?}"))),
        };
        Ok(Self {
            scale: node.attributes.float("scale", 1.0),
            rows_first: [layout("q_layout")?, layout("k_layout")?, layout("v_layout")?, layout("y_layout")?],
            mask_hides: node.attributes.int("mask_hides", 0) != 0,
            hidden: node.attributes.float("hidden", f32::NEG_INFINITY),
        })
    }

    /// Checks that the inputs fit.
    fn sizes(&self, inputs: &Known<'_>) -> Result<Sizes, Unclear> {
        let types = [inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?];
        let [q, k, v] = types;
        let wrong =
            || Unclear::Wrong(OpError::shape(format!("queries {q}, keys {k} and values {v} do not fit")));
        let dims = |index: usize| match (&types[index].shape[..], self.rows_first[index]) {
            (&[batch, rows, heads, cols], true) | (&[batch, heads, rows, cols], false) => {
                Ok([batch, heads, rows, cols])
            }
            _ => Err(wrong()),
        };
        let ([batch, q_heads, queries, head], [k_batch, kv_heads, keys, k_head]) = (dims(0)?, dims(1)?);
        let [v_batch, v_heads, v_keys, v_head] = dims(2)?;
        let fits = [k_batch, v_batch] == [batch; 2] && [v_heads, v_keys, k_head] == [kv_heads, keys, head];
        let shares = q_heads == 0 || kv_heads != 0 && q_heads % kv_heads == 0;
        if !fits || !shares || k.dtype != q.dtype || v.dtype != q.dtype {
            return Err(wrong());
        }
        is_double(q.dtype)?;
        typed(DataType::F64, [batch, q_heads, queries, keys])?;
        let packed = self.rows_first[3];
        let sizes = Sizes { batch, q_heads, kv_heads, queries, past: 0, keys, head, v_head, packed };
        if let Some(mask) = inputs.opt(3) {
            mask_strides(mask, sizes)?;
        }
        Ok(sizes)
    }

    fn scratch_of<W: Real>(&self, sizes: Sizes, inputs: &Known<'_>) -> usize {
        let widened = |index: usize| match inputs.opt(index) {
            Some(ty) if ty.dtype.is_float() => widened_bytes::<W>(ty.dtype, ty.elements()),
            _ => 0,
        };
        let (y, _) = sizes.outputs();
        let dtype = inputs.opt(0).map_or(W::DTYPE, |q| q.dtype);
        let by_heads = if sizes.repacks() { Space::bytes::<W>(y) } else { 0 };
        let rows = sizes.grouped().0;
        let blocks = rows.threads(inputs.context.threads()) * Space::bytes::<W>(rows.block());
        (0..4).map(widened).sum::<usize>() + by_heads + widened_bytes::<W>(dtype, y) + blocks
    }

    fn compute<W: Real>(&self, sizes: Sizes, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let mut space = Space(call.scratch());
        let q = widened::<W>(&call.input(0)?, &mut space)?;
        let keys = sizes.keys;
        let mut side = |index: usize, cols: usize| match call.blocks(index) {
            Some(blocks) => Ok(Heads::in_blocks(blocks, self.rows_first[index], sizes.kv_heads, cols)),
            None => {
                let data = widened::<W>(&call.input(index)?, &mut space)?;
                Ok::<_, OpError>(Heads::new(data, self.rows_first[index], sizes.kv_heads, keys, cols))
            }
        };
        let (k, v) = (side(1, sizes.head)?, side(2, sizes.v_head)?);
        let mask = match call.opt(3) {
            None => Mask { bias: Bias::None, strides: [0; 4], keys },
            Some(view) => {
                let ty = Type { dtype: view.dtype, shape: view.shape.into() };
                let hidden = W::from_f64(self.hidden.into());
                let bias = match view.dtype {
                    DataType::Bool => Bias::Bool { mask: view.elements(), shows: !self.mask_hides, hidden },
                    _ => Bias::Real(widened::<W>(&view, &mut space)?),
                };
                Mask { bias, strides: mask_strides(&ty, sizes)?, keys }
            }
        };
        let rule = Rule {
            softcap: 0.0,
            is_causal: false,
            window: [None; 2],
            mode: 0,
            precision: None,
            nothing_is_zero: false,
        };
        let (rows, group) = sizes.grouped();
        let q_packed = self.rows_first[0] && group == 1;
        let job = Job {
            rule: &rule,
            sizes: rows,
            group,
            scale: self.scale,
            q: Heads::new(q, q_packed, rows.q_heads, rows.queries, sizes.head),
            k,
            v,
            mask,
            lengths: None,
        };
        let y = Target::new(call.output(0)?, &mut space)?;
        if sizes.repacks() {
            let by_heads = space.take::<W>(sizes.outputs().0)?;
            job.run(by_heads, None, space.0)?;
            repack(by_heads, y.wide, sizes);
        } else {
            job.run(y.wide, None, space.0)?;
        }
        y.finish()
    }
}

/// How far members of the batch, heads, queries and keys are apart in a mask.
fn mask_strides(mask: &Type, sizes: Sizes) -> Result<[usize; 4], OpError> {
    let Sizes { batch, q_heads, queries, keys, .. } = sizes;
    let (mut strides, mut stride) = ([0; 4], 1);
    let fits = |(&dim, size): (&usize, usize)| dim == 1 || dim == size;
    let all = mask.shape.iter().rev().zip([keys, queries, q_heads, batch]);
    let is_mask = mask.dtype == DataType::Bool || mask.dtype.is_float();
    if mask.rank() > 4 || !is_mask || !all.clone().all(fits) {
        return Err(OpError::shape(format!("a mask {mask} does not fit {queries} queries and {keys} keys")));
    }
    for (at, (&dim, _)) in all.enumerate() {
        if dim != 1 {
            strides[3 - at] = stride;
        }
        stride *= dim;
    }
    Ok(strides)
}

impl Operator for ScaledDotProduct {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let Sizes { batch, q_heads, queries, v_head, packed, .. } = self.sizes(inputs)?;
        let shape =
            if packed { [batch, queries, q_heads, v_head] } else { [batch, q_heads, queries, v_head] };
        Ok(smallvec![typed(inputs.ty(0)?.dtype, shape)?])
    }

    fn takes_blocks(&self, input: usize, dtype: DataType) -> bool {
        matches!(input, 1 | 2) && matches!(dtype, DataType::F32 | DataType::F64)
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(sizes), Ok(q)) = (self.sizes(inputs), inputs.ty(0)) else { return 0 };
        match q.dtype {
            DataType::F64 => self.scratch_of::<f64>(sizes, inputs),
            _ => self.scratch_of::<f32>(sizes, inputs),
        }
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let types = types_of(call.inputs);
        let types: SmallVec<[_; FEW]> = types.iter().map(Option::as_ref).collect();
        let sizes = clear(self.sizes(&Known { types: &types, values: call.inputs, context: call.context }))?;
        if is_double(call.dtype(0)?)? {
            self.compute::<f64>(sizes, call)
        } else {
            self.compute::<f32>(sizes, call)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::INTERNAL;
    use crate::trial::{Trial, close, floats, numbers, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Bool, Tensor};

    /// Softmax, mask and products by ONNX's operator, which takes heads first and masks that show.
    fn wanted(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Vec<f32> {
        let inputs = [Some(q), Some(k), Some(v), mask];
        let trial = Trial::new("Attention", &[("scale", Attribute::Float(0.3))], inputs);
        floats(&trial.run().expect("it runs")[0]).to_vec()
    }

    /// Heads and rows of a tensor of four dimensions change places.
    fn swapped(from: &Tensor) -> Tensor {
        let [batch, heads, rows, cols] = from.ty().shape[..] else { panic!("four dimensions") };
        let elements = floats(from);
        let mut to: Vec<f32> = Vec::with_capacity(elements.len());
        for (batch, row) in (0..batch).flat_map(|batch| (0..rows).map(move |row| (batch, row))) {
            for head in 0..heads {
                to.extend(&elements[((batch * heads + head) * rows + row) * cols..][..cols]);
            }
        }
        tensor(&[batch, rows, heads, cols], &to)
    }

    fn fused<'a>(inputs: [Option<Tensor>; 4]) -> Trial<'a> {
        let attributes = [("scale", Attribute::Float(0.3))];
        Trial { domain: INTERNAL, ..Trial::new("ScaledDotProductAttention", &attributes, inputs) }
    }

    #[test]
    fn it_computes_what_attention_does_in_every_layout() {
        for (heads, kv_heads, queries) in [(4, 4, 5), (4, 2, 5), (6, 2, 1), (1, 1, 200)] {
            let (q, k) = (numbers(&[2, heads, queries, 8], 1), numbers(&[2, kv_heads, 7, 8], 2));
            let v = numbers(&[2, kv_heads, 7, 6], 3);
            let wanted = wanted(&q, &k, &v, None);
            for layout in 0..16 {
                let rows_first: [bool; 4] = std::array::from_fn(|at| layout >> at & 1 == 1);
                let side = |at: usize, x: &Tensor| Some(if rows_first[at] { swapped(x) } else { x.clone() });
                let mut trial = fused([side(0, &q), side(1, &k), side(2, &v), None]);
                for (name, rows_first) in
                    ["q_layout", "k_layout", "v_layout", "y_layout"].into_iter().zip(rows_first)
                {
                    trial = trial.text(name, if rows_first { "BSHD" } else { "BHSD" });
                }
                let y = trial.run().expect("it runs").remove(0);
                let back = if rows_first[3] { swapped(&y) } else { y };
                assert!(close(floats(&back), &wanted), "{heads} {kv_heads} {queries} {rows_first:?}");
            }
        }
    }

    #[test]
    fn masks_hide_what_they_say() {
        let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[1, 2, 3, 4], seed));
        let shown = [true, true, false, true, false, false, true, true, true];
        let bools = |flip: bool| tensor(&[3, 3], &shown.map(|shown| Bool::from(shown != flip)));
        let wanted = wanted(&q, &k, &v, Some(&bools(false)));
        let inputs = |mask| [Some(q.clone()), Some(k.clone()), Some(v.clone()), Some(mask)];
        let made = |trial: Trial<'_>| floats(&trial.run().expect("it runs")[0]).to_vec();
        assert!(close(&made(fused(inputs(bools(false)))), &wanted));
        assert!(close(&made(fused(inputs(bools(true))).int("mask_hides", 1)), &wanted));
        let bias = tensor(&[1, 1, 3, 3], &shown.map(|shown| if shown { 0.0 } else { f32::NEG_INFINITY }));
        assert!(close(&made(fused(inputs(bias))), &wanted));
    }

    #[test]
    fn a_query_that_may_look_at_nothing_gets_what_softmax_gives() {
        let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[1, 1, 2, 4], seed));
        let mask = tensor(&[2, 2], &[true, true, false, false].map(Bool::from));
        let inputs = [Some(q), Some(k), Some(v.clone()), Some(mask)];
        let hidden = fused(inputs.clone()).run().expect("it runs");
        assert!(floats(&hidden[0])[4..].iter().all(|x| x.is_nan()));
        let low = fused(inputs).with("hidden", Attribute::Float(-1e9)).run().expect("it runs");
        let mean: Vec<_> = (0..4).map(|at| (floats(&v)[at] + floats(&v)[at + 4]) / 2.0).collect();
        assert!(close(&floats(&low[0])[4..], &mean));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let good = || [1, 2, 3].map(|seed| Some(numbers(&[1, 2, 3, 4], seed)));
        let with = |index: usize, input: Tensor| {
            let [q, k, v] = good();
            let mut inputs = [q, k, v, None];
            inputs[index] = Some(input);
            fused(inputs).run()
        };
        assert!(with(3, numbers(&[3, 3], 1)).is_ok());
        assert!(with(1, numbers(&[1, 2, 3, 5], 1)).is_err(), "keys of another width");
        assert!(with(2, numbers(&[1, 2, 4, 4], 1)).is_err(), "more values than keys");
        assert!(with(0, numbers(&[1, 3, 3, 4], 1)).is_err(), "heads that do not divide");
        assert!(with(0, numbers(&[2, 3, 4], 1)).is_err(), "three dimensions");
        assert!(with(3, numbers(&[2, 3], 1)).is_err(), "a mask of other queries");
        let [q, k, v] = good();
        assert!(fused([q, k, v, None]).text("q_layout", "SBHD").run().is_err(), "a layout that is none");
    }
}
