//! Attention: softmax(Q K^T + bias) V, head by head.
//!
//! Here inputs are checked and laid out: keys and values of the past in front of the new ones, halves as f32. What is done to each
//! head is in `stepalloc_kernels::attention`; linear and flexible attention, the one that passes make,
//! and that of com.microsoft, have files of their own.

mod flex;
mod linear;
mod microsoft;
mod rotary;
mod scaled;

use crate::{Call, Definition, Known, Made, Operator, Types, Unclear, ints, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_graph::Attributes;
use stepalloc_kernels::{
    attention::{Bias, Heads, Job, Mask, Rule, Sizes, repack},
    real::{Real, Space, Target, is_double, widened, widened_bytes},
};
use stepalloc_tensor::{DataType, OpError, Type, View, ViewMut};

/// Inputs of an attention at most.
const FEW: usize = 8;

pub(crate) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "Attention" if node.domain == "com.microsoft" => {
            microsoft::Fused::new(node).map(|made| Box::new(made) as _)
        }
        "Attention" if node.domain != "ai.onnx.preview" => {
            Attention::new(node).map(|made| Box::new(made) as _)
        }
        "FlexAttention" => flex::FlexAttention::new(node).map(|made| Box::new(made) as _),
        "LinearAttention" => linear::LinearAttention::new(node).map(|made| Box::new(made) as _),
        "ScaledDotProductAttention" if node.domain == crate::INTERNAL => {
            scaled::ScaledDotProduct::new(node).map(|made| Box::new(made) as _)
        }
        "RotaryEmbedding" => rotary::RotaryEmbedding::new(node).map(|made| Box::new(made) as _),
        _ => return None,
    })
}

struct Attention {
    q_heads: Option<i64>,
    kv_heads: Option<i64>,
    scale: Option<f32>,
    rule: Rule,
    /// Masks shorter than the keys are padded, even those of one column.
    pads_masks: bool,
    wanted: [bool; 4],
}

impl Attention {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let bound = |name: &str| Some(attributes.int(name, -1)).filter(|&bound| bound >= 0);
        let mode = attributes.int("qk_matmul_output_mode", 0);
        if !(0..4).contains(&mode) {
            return Err(OpError::attribute(format!("there is no output mode {mode}")));
        }
        Ok(Self {
            q_heads: attributes.opt_int("q_num_heads"),
            kv_heads: attributes.opt_int("kv_num_heads"),
            scale: attributes.opt_float("scale"),
            rule: Rule {
                softcap: attributes.float("softcap", 0.0),
                is_causal: attributes.int("is_causal", 0) != 0,
                window: [bound("left_window_size"), bound("right_window_size")],
                mode,
                precision: softmax_precision(attributes)?,
                nothing_is_zero: true,
            },
            pads_masks: node.opset >= 24,
            wanted: std::array::from_fn(|index| node.outputs.get(index).copied().unwrap_or(false)),
        })
    }

    /// Checks that the inputs fit.
    fn sizes(&self, inputs: &Known<'_>) -> Result<Sizes, Unclear> {
        let (q, k, v) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let wrong = || OpError::shape(format!("queries {q}, keys {k} and values {v} do not fit"));
        let (sizes, others) = match (&q.shape[..], &k.shape[..], &v.shape[..]) {
            (&[batch, q_heads, queries, head], &[kb, kv_heads, keys, kd], &[vb, vh, vk, v_head]) => (
                Sizes { batch, q_heads, kv_heads, queries, past: 0, keys, head, v_head, packed: false },
                kb == batch && vb == batch && kd == head && vh == kv_heads && vk == keys,
            ),
            (&[batch, queries, q_width], &[kb, keys, k_width], &[vb, vk, v_width]) => {
                let q_heads = heads(self.q_heads, "q_num_heads")?;
                let kv_heads = heads(self.kv_heads, "kv_num_heads")?;
                let (head, v_head) = (q_width / q_heads, v_width / kv_heads);
                let divides = q_width == head * q_heads
                    && Some(k_width) == head.checked_mul(kv_heads)
                    && v_width == v_head * kv_heads;
                (
                    Sizes { batch, q_heads, kv_heads, queries, past: 0, keys, head, v_head, packed: true },
                    kb == batch && vb == batch && vk == keys && divides,
                )
            }
            _ => return Err(wrong().into()),
        };
        if !others || sizes.q_heads != 0 && (sizes.kv_heads == 0 || sizes.q_heads % sizes.kv_heads != 0) {
            return Err(wrong().into());
        }
        [q, k, v].into_iter().try_for_each(|ty| is_double(ty.dtype).map(drop))?;
        let sizes = self.with_past(sizes, inputs)?;
        // A dimension of zero may hide that others are beyond all bounds.
        typed(DataType::F64, [sizes.batch, sizes.q_heads, sizes.queries, sizes.keys])?;
        typed(DataType::F64, [sizes.batch, sizes.q_heads, sizes.queries, sizes.v_head])?;
        typed(DataType::F64, [sizes.batch, sizes.kv_heads, sizes.keys, sizes.head.max(sizes.v_head)])?;
        if let Some(mask) = inputs.opt(3) {
            self.mask_strides(mask, sizes)?;
        }
        Ok(sizes)
    }

    fn with_past(&self, mut sizes: Sizes, inputs: &Known<'_>) -> Result<Sizes, OpError> {
        let lengths = inputs.opt(6);
        match (inputs.opt(4), inputs.opt(5)) {
            (None, None) => {}
            (Some(key), Some(value)) => {
                let past = key.shape.get(2).copied().unwrap_or(0);
                let shape = |width| [sizes.batch, sizes.kv_heads, past, width];
                let fits = key.shape == shape(sizes.head) && value.shape == shape(sizes.v_head);
                let dtype = |index: usize| inputs.opt(index).map(|ty| ty.dtype);
                if !fits || dtype(1) != Some(key.dtype) || dtype(2) != Some(value.dtype) {
                    return Err(OpError::shape(format!(
                        "keys {key} and values {value} of the past do not fit the new ones"
                    )));
                }
                sizes.past = past;
                sizes.keys =
                    sizes.keys.checked_add(past).ok_or_else(|| OpError::shape("there are too many keys"))?;
            }
            _ => {
                return Err(OpError::arity(
                    "it has either keys or values of the past, and takes both or none",
                ));
            }
        }
        if let Some(lengths) = lengths {
            if inputs.opt(4).is_some() {
                return Err(OpError::arity("it takes either a past or numbers of valid keys, not both"));
            }
            if lengths.dtype != DataType::I64 || lengths.elements() != sizes.batch {
                return Err(OpError::shape(format!(
                    "numbers of valid keys are {lengths} for a batch of {}",
                    sizes.batch
                )));
            }
        }
        Ok(sizes)
    }

    /// How far members of the batch, heads, queries and keys are apart in a mask, and the keys it tells of.
    fn mask_strides(&self, mask: &Type, sizes: Sizes) -> Result<([usize; 4], usize), OpError> {
        let wrong = || {
            OpError::shape(format!(
                "a mask {mask} does not fit {} queries and {} keys",
                sizes.queries, sizes.keys
            ))
        };
        let Sizes { batch, q_heads, queries, keys, .. } = sizes;
        if mask.rank() > 4 || mask.dtype != DataType::Bool && !mask.dtype.is_float() {
            return Err(wrong());
        }
        let (mut strides, mut stride) = ([0; 4], 1);
        for (at, (&dim, size)) in mask.shape.iter().rev().zip([keys, queries, q_heads, batch]).enumerate() {
            if dim != 1 {
                strides[3 - at] = stride;
            }
            stride *= dim;
            if at > 0 && dim != 1 && dim != size || dim > size {
                return Err(wrong());
            }
        }
        let told = match mask.shape.last() {
            None => keys,
            Some(1) if !self.pads_masks => keys,
            Some(&told) => told,
        };
        Ok((strides, told))
    }

    /// Scratch memory apart from that for blocks.
    fn scratch_of<W: Real>(&self, sizes: Sizes, inputs: &Known<'_>) -> usize {
        let mut bytes = 0;
        for index in 0..3 {
            let Some(ty) = inputs.opt(index) else { continue };
            let mut elements = ty.elements();
            if index > 0 && inputs.opt(index + 3).is_some() {
                let width = if index == 1 { sizes.head } else { sizes.v_head };
                elements = sizes.batch * sizes.kv_heads * sizes.keys * width;
                if !self.wanted[index] {
                    bytes += Space::bytes::<u8>(elements * ty.dtype.bytes());
                }
            }
            bytes += widened_bytes::<W>(ty.dtype, elements);
        }
        if let Some(mask) = inputs.opt(3).filter(|mask| mask.dtype.is_float()) {
            bytes += widened_bytes::<W>(mask.dtype, mask.elements());
        }
        let (y, scores) = sizes.outputs();
        let dtype = inputs.opt(0).map_or(W::DTYPE, |q| q.dtype);
        if sizes.repacks() || !self.wanted[0] {
            bytes += Space::bytes::<W>(y);
        }
        bytes += widened_bytes::<W>(dtype, y);
        bytes + if self.wanted[3] { widened_bytes::<W>(dtype, scores) } else { 0 }
    }

    fn compute<W: Real>(&self, sizes: Sizes, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let Sizes { kv_heads, keys, head, v_head, .. } = sizes;
        let mut space = Space(call.scratch());
        let q = widened::<W>(&call.input(0)?, &mut space)?;
        let (k, k_packed) = self.side(1, sizes, call, &mut space)?;
        let (v, v_packed) = self.side(2, sizes, call, &mut space)?;
        let (k, v) = (widened::<W>(&k, &mut space)?, widened::<W>(&v, &mut space)?);
        let mask = match call.opt(3) {
            None => Mask { bias: Bias::None, strides: [0; 4], keys },
            Some(view) => {
                let ty = Type { dtype: view.dtype, shape: view.shape.into() };
                let (strides, keys) = self.mask_strides(&ty, sizes)?;
                let bias = match view.dtype {
                    DataType::Bool => Bias::Bool { mask: view.elements(), shows: true, hidden: W::LOWEST },
                    _ => Bias::Real(widened::<W>(&view, &mut space)?),
                };
                Mask { bias, strides, keys }
            }
        };
        let lengths = call.opt(6).and_then(|view| ints(&view));
        if let Some(length) = lengths.iter().flatten().find(|&&length| length < 0 || length > keys as i64) {
            return Err(OpError::value(format!("{length} of {keys} keys are said to be valid")));
        }
        let (rows, group) = sizes.grouped();
        let job = Job {
            rule: &self.rule,
            sizes: rows,
            group,
            scale: self.scale.unwrap_or(1.0 / (head as f32).sqrt()),
            q: Heads::new(q, rows.packed, rows.q_heads, rows.queries, head),
            k: Heads::new(k, k_packed, kv_heads, keys, head),
            v: Heads::new(v, v_packed, kv_heads, keys, v_head),
            mask,
            lengths,
        };
        let mut y = call.opt_output(0).map(|output| Target::new(output, &mut space)).transpose()?;
        let mut scores = call.opt_output(3).map(|output| Target::new(output, &mut space)).transpose()?;
        let shown = scores.as_mut().map(|scores| &mut *scores.wide);
        match &mut y {
            Some(y) if !sizes.repacks() => job.run(y.wide, shown, space.0)?,
            y => {
                let by_heads = space.take::<W>(sizes.outputs().0)?;
                job.run(by_heads, shown, space.0)?;
                if let Some(y) = y {
                    repack(by_heads, y.wide, sizes);
                }
            }
        }
        [y, scores].into_iter().flatten().try_for_each(Target::finish)
    }

    /// Keys (1) or values (2), those of the past in front, and whether they are packed. Writes the output that has them, if wanted.
    fn side<'a>(
        &self,
        index: usize,
        sizes: Sizes,
        call: &mut Call<'_, 'a>,
        space: &mut Space<'a>,
    ) -> Result<(View<'a>, bool), OpError> {
        let (new, past) = (call.input(index)?, call.opt(index + 3));
        let width = if index == 1 { sizes.head } else { sizes.v_head } * new.dtype.bytes();
        let bytes = match (call.opt_output(index), past) {
            (Some(ViewMut { bytes, .. }), _) => bytes,
            (None, Some(_)) => space.take::<u8>(sizes.batch * sizes.kv_heads * sizes.keys * width)?,
            (None, None) => return Ok((new, sizes.packed)),
        };
        let (heads, rows) = (sizes.kv_heads, sizes.keys - sizes.past);
        let fresh = Heads::new(new.bytes, sizes.packed, heads, rows, width);
        let block = sizes.keys * width;
        for at in 0..if block == 0 { 0 } else { sizes.batch * heads } {
            let (old, to) = bytes[at * block..][..block].split_at_mut(sizes.past * width);
            if let Some(past) = past {
                old.copy_from_slice(&past.bytes[at * old.len()..][..old.len()]);
            }
            let from = fresh.rows(at / heads, at % heads, 0..rows);
            for (row, to) in to.chunks_exact_mut(width).enumerate() {
                to.copy_from_slice(&from.data[row * from.row_stride..][..width]);
            }
        }
        if past.is_none() {
            return Ok((new, sizes.packed));
        }
        Ok((View { dtype: new.dtype, shape: &[], bytes }, false))
    }
}

/// The type that an attribute wants scores to be rounded to.
pub(super) fn softmax_precision(attributes: &Attributes) -> Result<Option<DataType>, OpError> {
    let Some(number) = attributes.opt_int("softmax_precision") else { return Ok(None) };
    let known = i32::try_from(number).ok().and_then(DataType::from_onnx).filter(|dtype| dtype.is_float());
    known.map(Some).ok_or_else(|| OpError::attribute(format!("it is told a softmax of precision {number}")))
}

/// A number of heads that is an attribute.
pub(super) fn heads(told: Option<i64>, name: &str) -> Result<usize, OpError> {
    let told = told.ok_or_else(|| OpError::attribute(format!("inputs of three dimensions need {name}")))?;
    usize::try_from(told)
        .ok()
        .filter(|&told| told > 0)
        .ok_or_else(|| OpError::attribute(format!("{name} is {told}")))
}

/// The types of inputs that are there.
pub(super) fn types_of(inputs: &[Option<View<'_>>]) -> SmallVec<[Option<Type>; FEW]> {
    inputs.iter().map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() })).collect()
}

/// What is unclear when all is known is wrong.
pub(super) fn clear<T>(made: Result<T, Unclear>) -> Result<T, OpError> {
    made.map_err(|unclear| match unclear {
        Unclear::Wrong(error) => error,
        Unclear::Needs(index) => OpError::MissingInput(index),
    })
}

impl Operator for Attention {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let sizes = self.sizes(inputs)?;
        let Sizes { batch, q_heads, kv_heads, queries, keys, head, v_head, packed, .. } = sizes;
        let dtype = inputs.ty(0)?.dtype;
        let y = match packed {
            true => typed(dtype, [batch, queries, q_heads * v_head])?,
            false => typed(dtype, [batch, q_heads, queries, v_head])?,
        };
        Ok(smallvec![
            y,
            typed(inputs.ty(1)?.dtype, [batch, kv_heads, keys, head])?,
            typed(inputs.ty(2)?.dtype, [batch, kv_heads, keys, v_head])?,
            typed(dtype, [batch, q_heads, queries, keys])?,
        ])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(sizes), Ok(q)) = (self.sizes(inputs), inputs.ty(0)) else { return 0 };
        let (rows, _) = sizes.grouped();
        let (threads, block) = (rows.threads(inputs.context.threads()), rows.block());
        match q.dtype {
            DataType::F64 => self.scratch_of::<f64>(sizes, inputs) + threads * Space::bytes::<f64>(block),
            _ => self.scratch_of::<f32>(sizes, inputs) + threads * Space::bytes::<f32>(block),
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
    use crate::trial::{Trial, close, floats, numbers, tensor};
    use stepalloc_tensor::{Bool, Number, f16};

    #[test]
    fn many_queries_see_what_each_would_see_alone() {
        let (queries, width) = (150, 4);
        let all = [1, 2, 3].map(|seed| numbers(&[1, 2, queries, width], seed));
        let made = Trial::new("Attention", &[], &all).int("is_causal", 1).run().expect("it runs");
        let made = floats(&made[0]);
        for query in [0, 1, 127, 128, 149] {
            let part = |index: usize, from: usize| {
                let heads = floats(&all[index]).chunks(queries * width);
                let rows: Vec<f32> =
                    heads.flat_map(|rows| rows[from * width..(query + 1) * width].to_vec()).collect();
                tensor(&[1, 2, query + 1 - from, width], &rows)
            };
            let alone = Trial::new("Attention", &[], [part(0, query), part(1, 0), part(2, 0)])
                .run()
                .expect("it runs");
            let wanted = floats(&alone[0]);
            for head in 0..2 {
                let at = (head * queries + query) * width;
                assert!(close(&made[at..at + width], &wanted[head * width..][..width]), "query {query}");
            }
        }
    }

    #[test]
    fn a_past_that_nobody_wants_back_is_seen_all_the_same() {
        let halves = |shape: &[usize], seed: u32| {
            let whole = numbers(shape, seed);
            tensor(shape, &floats(&whole).iter().map(|&x| f16::narrow(x)).collect::<Vec<_>>())
        };
        let [q, k, v] = [1, 2, 3].map(|seed| halves(&[2, 3, 8], seed));
        let past = [4, 5].map(|seed| halves(&[2, 1, 2, 4], seed));
        let inputs = [Some(q), Some(k), Some(v), None].into_iter().chain(past.map(Some));
        let mut trial = Trial::new("Attention", &[], inputs).outputs(3);
        trial = trial.int("q_num_heads", 2).int("kv_num_heads", 1);
        trial.inputs[1] = Some(halves(&[2, 3, 4], 2));
        trial.inputs[2] = Some(halves(&[2, 3, 4], 3));
        let with = trial.run().expect("it runs");
        trial.outputs.truncate(1);
        let without = trial.run().expect("it runs");
        assert_eq!(with[0].view().bytes, without[0].view().bytes);
        assert_eq!(with[1].ty().shape, [2, 1, 5, 4]);
    }

    #[test]
    fn queries_that_see_nothing_make_zeros() {
        let inputs = |keys: usize| {
            [numbers(&[1, 2, 3, 4], 1), numbers(&[1, 2, keys, 4], 2), numbers(&[1, 2, keys, 4], 3)]
        };
        let made = Trial::new("Attention", &[], inputs(0)).run().expect("it runs");
        assert_eq!(floats(&made[0]), [0.0; 24]);
        let hidden = inputs(5).into_iter().chain([tensor(&[1, 5], &[Bool::default(); 5])]);
        let made = Trial::new("Attention", &[], hidden).run().expect("it runs");
        assert_eq!(floats(&made[0]), [0.0; 24]);
        let none = [numbers(&[0, 2, 3, 4], 1), numbers(&[0, 2, 3, 4], 2), numbers(&[0, 2, 3, 0], 3)];
        assert!(
            Trial::new("Attention", &[], none).outputs(4).run().is_ok(),
            "no members, and values of no elements"
        );
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let good = || [1, 2, 3].map(|seed| Some(numbers(&[1, 2, 3, 4], seed))).to_vec();
        let with = |index: usize, input| {
            let mut inputs = good();
            inputs.resize(7.min(index + 1).max(3), None);
            inputs[index] = Some(input);
            Trial::new("Attention", &[], inputs).run()
        };
        assert!(with(1, numbers(&[1, 2, 3, 5], 1)).is_err(), "keys of another width");
        assert!(with(3, numbers(&[4, 3], 1)).is_err(), "a mask of too many queries");
        assert!(with(4, numbers(&[1, 2, 3, 4], 1)).is_err(), "keys of the past without values");
        assert!(with(6, tensor(&[1], &[4i64])).is_err(), "more valid keys than keys");
        assert!(with(6, tensor(&[1], &[-1i64])).is_err(), "fewer valid keys than none");
        let flat = [1, 2, 3].map(|seed| numbers(&[1, 2, 8], seed));
        assert!(Trial::new("Attention", &[], &flat).run().is_err(), "no number of heads");
        let trial = Trial::new("Attention", &[], flat).int("q_num_heads", 3).int("kv_num_heads", 2);
        assert!(trial.run().is_err(), "heads that do not divide");
    }
}
