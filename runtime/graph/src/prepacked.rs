//! Constant inputs that an operator reads in an order of its own, made once for all runs of a plan.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use stepalloc_tensor::{OpError, Tensor};

/// How a product reads its right factor, a matrix of f32 row by row. The weights of a convolution are one, with a column for each filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackSpec {
    /// The input that it is.
    pub input: usize,
    /// Rows as it is multiplied.
    pub rows: usize,
    /// Columns as it is multiplied.
    pub cols: usize,
    /// Whether the tensor has them the other way round.
    pub transposed: bool,
    /// As many columns of each group are packed by themselves.
    pub groups: usize,
    /// Elements of a convolution's window where each is packed apart from its neighbours, else 1: see the kernels' `Layout`.
    pub taps: usize,
}

/// A constant input of one node, and what its operator made of it when it was first needed.
pub struct Prepacked {
    /// How it is read.
    pub spec: PackSpec,
    tensor: Arc<Tensor>,
    packed: OnceLock<Result<Arc<dyn Any + Send + Sync>, OpError>>,
}

impl Prepacked {
    /// Nothing is packed yet.
    pub(crate) fn new(spec: PackSpec, tensor: Arc<Tensor>) -> Self {
        Self { spec, tensor, packed: OnceLock::new() }
    }

    /// What is packed.
    pub(crate) fn tensor(&self) -> &Arc<Tensor> {
        &self.tensor
    }

    /// What `pack` makes of the tensor, or made of it before.
    ///
    /// # Panics
    /// If it made something of another type before: a node has one operator.
    pub fn packed<T: Any + Send + Sync>(
        &self,
        pack: impl FnOnce(&Arc<Tensor>, PackSpec) -> Result<Arc<T>, OpError>,
    ) -> Result<&T, OpError> {
        let packed = self.packed.get_or_init(|| pack(&self.tensor, self.spec).map(|packed| packed as _));
        let packed = packed.as_ref().map_err(Clone::clone)?;
        Ok((**packed).downcast_ref().expect("a node has one operator"))
    }
}
