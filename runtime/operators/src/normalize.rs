//! Normalizations: the elements of a stretch are made to have mean 0 and variance 1, then scaled and shifted.

use super::reduce::offset;
use super::slabs::{self, Affine, Kernel, Real};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::broadcast::Walk;
use stepalloc_tensor::{DataType, OpError, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let what = match node.op {
        "LayerNormalization" => What::Layer,
        "RMSNormalization" => What::Rms,
        // What ONNX Runtime calls it.
        "SimplifiedLayerNormalization" if node.outputs.get(1).copied().unwrap_or(false) => {
            return Some(Err(OpError::unsupported("its deviation is not among what it gives here")));
        }
        "SimplifiedLayerNormalization" => What::Rms,
        "InstanceNormalization" => What::Instance,
        "GroupNormalization" => match attributes.opt_int("num_groups").map(usize::try_from) {
            Some(Ok(groups @ 1..)) => What::Group { groups, each: node.opset >= 21 },
            _ => return Some(Err(OpError::attribute("it does not say how many groups there are"))),
        },
        _ => return None,
    };
    let stash = match attributes.int("stash_type", 1) {
        1 => DataType::F32,
        10 => DataType::F16,
        11 => DataType::F64,
        16 => DataType::BF16,
        other => {
            return Some(Err(OpError::attribute(format!(
                "its stash_type is {other}, no type of real numbers"
            ))));
        }
    };
    let figures = matches!(what, What::Layer) && node.outputs.iter().skip(1).any(|&wanted| wanted);
    Some(Ok(Box::new(Normalization {
        what,
        axis: attributes.int("axis", -1),
        epsilon: attributes.float("epsilon", 1e-5),
        stash,
        outputs: node.outputs.len(),
        figures,
    })))
}

enum What {
    Layer,
    /// No mean is subtracted.
    Rms,
    /// A stretch is a channel.
    Instance,
    /// A stretch is a group of channels; parameters are those of a channel each, or of a group.
    Group {
        groups: usize,
        each: bool,
    },
}

struct Normalization {
    what: What,
    axis: i64,
    epsilon: f32,
    /// Type of mean and deviation where they are outputs.
    stash: DataType,
    outputs: usize,
    /// Whether they are wanted.
    figures: bool,
}

impl Normalization {
    fn stretch(&self, shape: &[usize], scale: &[usize], bias: Option<&[usize]>) -> Result<Stretch, OpError> {
        let rank = shape.len();
        let centre = !matches!(self.what, What::Rms);
        let (dims, split, groups): (SmallVec<[usize; 6]>, _, _) = match self.what {
            What::Layer | What::Rms => {
                let at = axis(self.axis, rank)?;
                return Stretch::new(shape, at, [scale, bias.unwrap_or(&[])], centre, self.epsilon);
            }
            _ if rank < 2 => return Err(OpError::shape(format!("shape {shape:?} has no channels"))),
            What::Instance => {
                (smallvec::smallvec![shape[0], shape[1], shape[2..].iter().product()], 2, [shape[1], 1])
            }
            What::Group { groups, each } => {
                let channels = shape[1];
                if !channels.is_multiple_of(groups) {
                    return Err(OpError::shape(format!(
                        "{channels} channels cannot be put into {groups} groups of one size"
                    )));
                }
                let group = channels / groups;
                let inner = shape[2..].iter().product();
                let dims = smallvec::smallvec![shape[0], groups, group, inner];
                (dims, 2, [groups, if each { group } else { 1 }])
            }
        };
        // A number for each channel or group, in the shape that broadcasts.
        let mut parameter: SmallVec<[usize; 4]> = SmallVec::from_slice(&groups);
        parameter.resize(dims.len() - 1, 1);
        for given in [Some(scale), bias].into_iter().flatten() {
            let wanted = groups[0] * groups[1];
            if given != [wanted] {
                return Err(OpError::shape(format!(
                    "its parameters are of shape {given:?} instead of [{wanted}]"
                )));
            }
        }
        let bias = bias.map_or(&[][..], |_| &parameter);
        Stretch::new(&dims, split, [&parameter, bias], centre, self.epsilon)
    }

    /// Numbers of the inputs that are parameters.
    fn parameters(bias: bool) -> &'static [usize] {
        if bias { &[1, 2] } else { &[1] }
    }

    fn has_bias(&self) -> bool {
        !matches!(self.what, What::Rms)
    }
}

impl Operator for Normalization {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, scale) = (inputs.ty(0)?, inputs.ty(1)?);
        let bias = inputs.opt(2).filter(|_| self.has_bias());
        self.stretch(&input.shape, &scale.shape, bias.map(|ty| &ty.shape[..]))?;
        let dtype = if matches!(self.what, What::Rms) { scale.dtype } else { input.dtype };
        let mut types = smallvec![typed(dtype, input.shape.clone())?];
        if matches!(self.what, What::Layer) {
            let at = axis(self.axis, input.rank())?;
            let mut shape = input.shape.clone();
            shape[at..].fill(1);
            types.resize(self.outputs.clamp(1, 3), typed(self.stash, shape)?);
        }
        Ok(types)
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Some(input), Some(scale), [output, ..]) = (inputs.opt(0), inputs.opt(1), outputs) else {
            return 0;
        };
        let bias = inputs.opt(2).filter(|_| self.has_bias());
        let stretch = self.stretch(&input.shape, &scale.shape, bias.map(|ty| &ty.shape[..]));
        let parameters = Self::parameters(bias.is_some());
        stretch
            .map_or(0, |stretch| slabs::scratch(inputs, output.dtype, stretch.size, parameters, self.figures))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let shape = call.outputs.first().and_then(|output| Some(output.as_ref()?.shape));
        let shape = shape.ok_or_else(|| OpError::arity("output 0 is wanted by nobody"))?;
        let scale = call.input(1)?;
        let bias = call.opt(2).filter(|_| self.has_bias());
        let stretch = self.stretch(shape, scale.shape, bias.map(|bias| bias.shape))?;
        slabs::run(call, stretch.size, Self::parameters(bias.is_some()), self.figures, &stretch)
    }
}

/// Elements that are normalized together, and how they are scaled and shifted afterwards.
struct Stretch {
    size: usize,
    /// How scale and bias are walked through along a stretch.
    walk: Walk<2>,
    /// Where they begin for each stretch: dimensions outside of it, and strides; empty if always at the beginning.
    begins: [SmallVec<[(usize, usize); 4]>; 2],
    centre: bool,
    epsilon: f64,
}

impl Stretch {
    /// Stretches are the dimensions of `shape` from `split` on, and `parameters` are shapes that broadcast to it.
    fn new(
        shape: &[usize],
        split: usize,
        parameters: [&[usize]; 2],
        centre: bool,
        epsilon: f32,
    ) -> Result<Self, OpError> {
        for parameter in parameters {
            let fits = parameter.len() <= shape.len()
                && parameter.iter().rev().zip(shape.iter().rev()).all(|(&own, &dim)| own == 1 || own == dim);
            if !fits {
                return Err(OpError::shape(format!(
                    "a parameter of shape {parameter:?} does not fit {shape:?}"
                )));
            }
        }
        let (outer, inner) = shape.split_at(split);
        // A parameter's dimensions outside of a stretch, and within.
        let parts = parameters.map(|shape| shape.split_at(shape.len().saturating_sub(inner.len())));
        let begins = parts.map(|(own, within)| {
            let mut stride = within.iter().product::<usize>();
            let mut begins: SmallVec<[(usize, usize); 4]> = SmallVec::new();
            for (at, &dim) in outer.iter().enumerate().rev() {
                let own = (at + own.len()).checked_sub(outer.len()).map_or(1, |at| own[at]);
                begins.push((dim, if own == 1 { 0 } else { stride }));
                stride *= own;
            }
            begins.reverse();
            if begins.iter().all(|&(_, stride)| stride == 0) { SmallVec::new() } else { begins }
        });
        let walk = Walk::new(inner, parts.map(|(_, within)| within));
        Ok(Self { size: inner.iter().product(), walk, begins, centre, epsilon: epsilon.into() })
    }
}

impl Kernel for Stretch {
    fn run<R: Real>(&self, slab: &mut [R], number: usize, parameters: &[&[R]]) -> [R; 2] {
        let count = R::from_i64(slab.len() as i64);
        let mean = if self.centre { R::sum(slab) / count } else { R::default() };
        let variance = R::sum_of_squares(slab, mean) / count;
        let by = R::from_i64(1) / (variance + R::from_f64(self.epsilon)).sqrt();
        let none = &[R::default()][..];
        let scale = &parameters[0][offset(&self.begins[0], number)..];
        let bias = &parameters.get(1).unwrap_or(&none)[offset(&self.begins[1], number)..];
        self.walk.rows(|at, length, [(scale_at, scale_step), (bias_at, bias_step)]| {
            let (row, scale, bias) = (&mut slab[at..at + length], &scale[scale_at..], &bias[bias_at..]);
            let mut how = Affine { less: mean, by, plus: R::default(), by_each: None, plus_each: None };
            match scale_step {
                0 => how.by = by * scale[0],
                _ => how.by_each = Some(&scale[..length]),
            }
            match bias_step {
                0 => how.plus = bias[0],
                _ => how.plus_each = Some(&bias[..length]),
            }
            R::shift_and_scale(row, &how);
        });
        [mean, by]
    }
}
