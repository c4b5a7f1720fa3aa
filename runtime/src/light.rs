//! Inputs for plans alone.

use stepalloc_tensor::{Tensor, Type, View};

/// Inputs of more bytes are planned by their types: what they hold is data, and decides nothing.
const TELLING: usize = 4096;

/// An input as far as planning needs it: its type, and its elements where they are few. For [`Session::needs`](crate::Session::needs).
pub struct Light {
    ty: Type,
    few: Option<Tensor>,
}

impl From<Type> for Light {
    /// All elements are zero.
    fn from(ty: Type) -> Self {
        Self { few: (ty.bytes() <= TELLING).then(|| Tensor::zeroed(ty.clone())), ty }
    }
}

impl From<Tensor> for Light {
    fn from(tensor: Tensor) -> Self {
        Self { ty: tensor.ty().clone(), few: Some(tensor).filter(|tensor| tensor.ty().bytes() <= TELLING) }
    }
}

impl Light {
    /// To be planned with.
    pub fn view(&self) -> View<'_> {
        let by_type = View { dtype: self.ty.dtype, shape: &self.ty.shape, bytes: &[] };
        self.few.as_ref().map_or(by_type, Tensor::view)
    }
}
