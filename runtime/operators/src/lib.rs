//! The operators of ONNX, and some of ONNX Runtime's own domain, one file a family.
//!
//! [`registry`] has them all. What they compute with is in `stepalloc-kernels`.

use stepalloc_graph::RunContext;
use stepalloc_graph::operator::{
    Call, Definition, INTERNAL, Known, Made, Operator, Registry, Reuse, Types, Unclear, ints, typed,
};
use stepalloc_tensor::{DataType, Ints, OpError, Tensor, Type, View, axis};

mod attention;
mod batchnorm;
mod bias_gelu;
mod borders;
mod cast;
mod causal;
mod control;
mod conv;
mod conv_transpose;
mod cumulative;
mod deform;
mod determinant;
mod einsum;
mod elementwise;
mod embed;
mod extremes;
mod fills;
mod fourier;
mod fused_gemm;
mod grid;
mod image;
mod index;
mod integer;
mod integer_products;
mod logic;
mod loss;
mod matmul;
mod matmul_nbits;
mod movement;
mod ngrams;
mod normalize;
mod numeric;
mod optimize;
mod pool;
mod qlinear;
mod quantize;
mod quantized;
mod quantized_lstm;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod scan;
mod scatter;
mod select;
mod shape;
mod signal;
mod skip_normalize;
mod slabs;
mod sliding;
mod softmax;
#[cfg(test)]
pub(crate) mod trial;
#[cfg(test)]
mod trials;
mod unary;
mod variadic;

/// All operators that are known here.
pub fn registry() -> Registry {
    Registry::new(make)
}

/// The operator of a node.
pub fn make(node: &Definition<'_>) -> Made {
    if node.domain == "com.microsoft" {
        return microsoft(node);
    }
    if node.domain == INTERNAL {
        return attention::make(node).or_else(|| quantized::make(node));
    }
    if !matches!(node.domain, "" | "ai.onnx" | "ai.onnx.preview" | "ai.onnx.preview.training") {
        return None;
    }
    const FAMILIES: &[fn(&Definition<'_>) -> Made] = &[
        attention::make,
        batchnorm::make,
        borders::make,
        cast::make,
        causal::make,
        control::make,
        conv::make,
        conv_transpose::make,
        cumulative::make,
        deform::make,
        determinant::make,
        einsum::make,
        elementwise::make,
        extremes::make,
        fills::make,
        fourier::make,
        grid::make,
        image::make,
        index::make,
        integer::make,
        logic::make,
        loss::make,
        matmul::make,
        movement::make,
        ngrams::make,
        normalize::make,
        numeric::make,
        optimize::make,
        pool::make,
        quantize::make,
        random::make,
        recurrent::make,
        reduce::make,
        resize::make,
        scatter::make,
        select::make,
        shape::make,
        signal::make,
        softmax::make,
        unary::make,
        variadic::make,
    ];
    FAMILIES.iter().find_map(|make| make(node))
}

/// Operators of ONNX Runtime's own domain: those that passes make, and those that it writes when it saves a model that it optimized
/// or quantized.
fn microsoft(node: &Definition<'_>) -> Made {
    match node.op {
        "Attention" => attention::make(node),
        "BiasGelu" => bias_gelu::make(node),
        "DynamicQuantizeLSTM" => quantized_lstm::make(node),
        "DynamicQuantizeMatMul" | "MatMulIntegerToFloat" | "QGemm" => integer_products::make(node),
        "EmbedLayerNormalization" => embed::make(node),
        "FastGelu" if node.inputs.get(1) == Some(&true) => bias_gelu::make(node),
        "FusedConv" => conv::make(node),
        "FusedGemm" => fused_gemm::make(node),
        "FusedMatMul" => matmul::make(node),
        "Gelu" | "FastGelu" | "QuickGelu" => unary::make(node),
        "MatMulNBits" => matmul_nbits::make(node),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => skip_normalize::make(node),
        _ => qlinear::make(node),
    }
}

/// The same elements in memory of the run.
fn copied(view: &View<'_>, context: &RunContext) -> Result<Tensor, OpError> {
    let mut tensor = context.tensor(Type { dtype: view.dtype, shape: view.shape.into() })?;
    tensor.view_mut().bytes.copy_from_slice(view.bytes);
    Ok(tensor)
}

/// Bytes behind one another, in memory of the run that grows by doubling.
struct Stacked<'c> {
    context: &'c RunContext,
    memory: Option<Tensor>,
    length: usize,
}

impl<'c> Stacked<'c> {
    /// Bytes that there is room for at first.
    const FIRST: usize = 1024;

    fn new(context: &'c RunContext) -> Self {
        Self { context, memory: None, length: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        let end = self.length + bytes.len();
        let room = self.memory.as_ref().map_or(0, |memory| memory.ty().bytes());
        if end > room {
            let larger = typed(DataType::U8, [end.max(2 * room).max(Self::FIRST)])?;
            let mut larger = self.context.tensor(larger)?;
            if let Some(memory) = &self.memory {
                larger.view_mut().bytes[..self.length].copy_from_slice(&memory.view().bytes[..self.length]);
            }
            self.memory = Some(larger);
        }
        if let Some(memory) = &mut self.memory {
            memory.view_mut().bytes[self.length..end].copy_from_slice(bytes);
        }
        self.length = end;
        Ok(())
    }

    /// A tensor of them.
    fn finish(self, ty: Type) -> Result<Tensor, OpError> {
        match self.memory {
            Some(memory) => {
                memory.retyped(ty).ok_or_else(|| OpError::internal("less was stacked than is wanted"))
            }
            None => Ok(self.context.tensor(ty)?),
        }
    }
}

/// A tensor of zeros, for what is not known before it runs.
fn zeroed(ty: Type) -> Result<Tensor, OpError> {
    Ok(Tensor::try_zeroed(ty)?)
}
