//! Weights of a convolution that only ever meet its padding are left out.
//!
//! A window that is dilated as far as its input is wide meets it with its middle alone: of 3 x 3 weights at a distance of 24, over a plane of
//! 14 x 14, one. What is left is a smaller window with less padding. Sizes of the planes must be known.

use super::activation::is_fused;
use super::edit::Editor;
use crate::graph::{Attribute, ValueId};
use stepalloc_tensor::{DataType, Tensor};

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(trim(editor, at).is_some());
    }
    changed
}

/// One dimension of a window.
#[derive(Clone, Copy)]
struct Axis {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    begin: usize,
    end: usize,
}

impl Axis {
    fn output(&self) -> Option<usize> {
        let window = (self.kernel - 1) * self.dilation + 1;
        Some((self.input + self.begin + self.end).checked_sub(window)? / self.stride + 1)
    }

    /// Whether a weight meets an element for any place.
    fn meets(&self, weight: usize, output: usize) -> bool {
        let shift = weight * self.dilation;
        let last = shift + (output - 1) * self.stride;
        // Not before the input, nor behind it, and not over it from a stride to the next one.
        (shift..=last).step_by(self.stride).any(|at| (self.begin..self.begin + self.input).contains(&at))
    }

    /// The same without weights at either end that meet nothing, as far as there is padding for them; with how many in front.
    fn trimmed(mut self) -> Option<(Self, usize)> {
        let output = self.output().filter(|&output| output > 0)?;
        let mut front = 0;
        while self.kernel > 1 && self.begin >= self.dilation && !self.meets(0, output) {
            self.begin -= self.dilation;
            self.kernel -= 1;
            front += 1;
        }
        while self.kernel > 1 && self.end >= self.dilation && !self.meets(self.kernel - 1, output) {
            self.end -= self.dilation;
            self.kernel -= 1;
        }
        // Padding that no window reaches may be left over; the output stays as large all the same.
        (self.output() == Some(output)).then_some((self, front))
    }
}

fn trim(editor: &mut Editor, at: usize) -> Option<()> {
    let node =
        editor.node(at).filter(|node| node.op_type == "Conv" && node.domain.is_empty() || is_fused(node))?;
    let (x, w) = (node.input(0)?, node.input(1)?);
    let sizes: Vec<usize> = editor.facts.sizes(x)?.into_iter().skip(2).collect::<Option<_>>()?;
    let weights = editor.constant(w)?.ty().clone();
    let kernel = weights.shape.get(2..).filter(|kernel| kernel.len() == sizes.len())?;
    let told = |name: &str, count: usize, usual: i64| -> Option<Vec<usize>> {
        let told = node.attributes.ints(name).unwrap_or_else(|| vec![usual; count]);
        let told: Option<Vec<_>> = told.into_iter().map(|told| usize::try_from(told).ok()).collect();
        told.filter(|told| told.len() == count)
    };
    let rank = kernel.len();
    let (strides, dilations, pads) =
        (told("strides", rank, 1)?, told("dilations", rank, 1)?, told("pads", 2 * rank, 0)?);
    let is_told = node.attributes.text("auto_pad", "NOTSET") == "NOTSET";
    if !is_told
        || weights.dtype != DataType::F32
        || strides.contains(&0)
        || kernel.contains(&0)
        || weights.elements() == 0
    {
        return None;
    }
    let axes: Vec<_> = (0..rank)
        .map(|axis| Axis {
            input: sizes[axis],
            kernel: kernel[axis],
            stride: strides[axis],
            dilation: dilations[axis],
            begin: pads[axis],
            end: pads[rank + axis],
        })
        .collect();
    let trimmed = axes.iter().map(|axis| axis.trimmed()).collect::<Option<Vec<_>>>()?;
    if trimmed.iter().zip(&axes).all(|((trimmed, _), axis)| trimmed.kernel == axis.kernel) {
        return None;
    }
    let ints = |of: &dyn Fn(&Axis) -> usize| -> Vec<i64> {
        trimmed.iter().map(|(axis, _)| of(axis) as i64).collect()
    };
    let (kernel_shape, begins, ends) =
        (ints(&|axis| axis.kernel), ints(&|axis| axis.begin), ints(&|axis| axis.end));
    let mut node = node.clone();
    node.attributes.0.insert("kernel_shape".into(), Attribute::Ints(kernel_shape));
    node.attributes.0.insert("pads".into(), Attribute::Ints([begins, ends].concat()));
    let cut = cut(editor, w, &axes, &trimmed)?;
    let name = format!("{}_met", editor.value(w).name);
    node.inputs[1] = Some(editor.add_constant(&name, cut));
    let node = node.remade(&editor.tools.registry)?;
    editor.put(at, node);
    Some(())
}

/// The weights that are left.
fn cut(editor: &Editor, w: ValueId, axes: &[Axis], trimmed: &[(Axis, usize)]) -> Option<Tensor> {
    let tensor = editor.constant(w)?;
    let read = tensor.in_passing();
    let view = read.as_ref().unwrap_or(tensor).view();
    let filters: usize = view.shape[..2].iter().product();
    let kernel: usize = axes.iter().map(|axis| axis.kernel).product();
    // Places of the weights that are left, in a filter's channel.
    let mut left = vec![0];
    for (axis, (trimmed, front)) in axes.iter().zip(trimmed) {
        let next = |&outer: &usize| (0..trimmed.kernel).map(move |at| outer * axis.kernel + front + at);
        left = left.iter().flat_map(next).collect();
    }
    let from = view.elements::<f32>();
    let elements: Vec<_> =
        (0..filters).flat_map(|filter| left.iter().map(move |at| from[filter * kernel + at])).collect();
    let shape: Vec<_> =
        view.shape[..2].iter().copied().chain(trimmed.iter().map(|(axis, _)| axis.kernel)).collect();
    Tensor::from_elements(shape, &elements)
}
