//! Outputs of a graph: tensors that stay where they are as long as they are of the right type.

use crate::arena::{Arenas, Charge};
use crate::error::Error;
use crate::tensor::{Tensor, Type};

/// A graph's outputs, and what those of them count that were made here.
pub(crate) struct Outputs {
    pub tensors: Vec<Option<Tensor>>,
    /// What each counts; nothing if it is the caller's.
    counted: Vec<u64>,
    charge: Charge,
}

impl Outputs {
    /// So many, none of them made.
    pub(crate) fn new(count: usize, arenas: &Arenas) -> Self {
        Self { tensors: vec![None; count], counted: vec![0; count], charge: Charge::new(arenas) }
    }

    /// What those count that were made here.
    pub(crate) fn bytes(&self) -> u64 {
        self.counted.iter().sum()
    }

    /// Puts the caller's tensor in place of an output, or none.
    pub(crate) fn put(&mut self, index: usize, tensor: Option<Tensor>) {
        self.charge.shrink(std::mem::take(&mut self.counted[index]));
        self.tensors[index] = tensor;
    }

    /// Puts a tensor that was made while running in place of an output.
    pub(crate) fn put_made(&mut self, index: usize, tensor: Tensor) -> Result<(), Error> {
        let bytes = tensor.ty().bytes() as u64;
        self.put(index, None);
        self.charge.grow(bytes)?;
        self.counted[index] = bytes;
        self.tensors[index] = Some(tensor);
        Ok(())
    }

    /// Bytes that outputs of these types will count: those of the caller that fit do not.
    pub(crate) fn wanted<'t>(&self, types: impl Iterator<Item = Option<&'t Type>>) -> u64 {
        let bytes = |(index, ty): (usize, Option<&Type>)| match ty {
            _ if self.fits(index, ty) => self.counted[index],
            Some(ty) => ty.bytes() as u64,
            None => 0,
        };
        types.enumerate().map(bytes).sum()
    }

    fn fits(&self, index: usize, ty: Option<&Type>) -> bool {
        self.tensors[index].as_ref().map(Tensor::ty) == ty
    }

    /// Makes outputs of these types where there are others; `None` for those that are only known when it ran. If that is beyond the
    /// limit, it is an error, and nothing has changed.
    pub(crate) fn make<'t>(
        &mut self,
        types: impl Iterator<Item = Option<&'t Type>> + Clone,
    ) -> Result<(), Error> {
        let (wanted, counted) = (self.wanted(types.clone()), self.bytes());
        if wanted > counted {
            self.charge.grow(wanted - counted)?;
        }
        for (index, ty) in types.enumerate() {
            if self.fits(index, ty) {
                continue;
            }
            self.tensors[index] = None;
            self.counted[index] = 0;
            if let Some(ty) = ty {
                self.tensors[index] = Some(Tensor::try_zeroed(ty.clone())?);
                self.counted[index] = ty.bytes() as u64;
            }
        }
        if wanted < counted {
            self.charge.shrink(counted - wanted);
        }
        Ok(())
    }
}
