//! Outputs of a graph: tensors that stay where they are as long as they are of the right type.

use crate::arena::{Arenas, Charge};
use crate::error::Error;
use smallvec::SmallVec;
use stepalloc_tensor::growing::Append;
use stepalloc_tensor::{Tensor, Type};

/// Outputs of a graph at most, in practice; more take memory when they are first made.
const FEW: usize = 4;

/// A graph's outputs, and what those of them count that were made here.
pub(crate) struct Outputs {
    pub tensors: SmallVec<[Option<Tensor>; FEW]>,
    /// What each counts; nothing if it is the caller's.
    counted: SmallVec<[u64; FEW]>,
    charge: Charge,
    /// Bytes of inputs that were copied as outputs are to grow where they are.
    pub copied_bytes: u64,
    /// Those of a run that are made where an input is; none between runs.
    pub appends: Vec<Option<Append>>,
    /// Those of a graph within a node are in the memory of the run around.
    within: Option<Arenas>,
}

impl Outputs {
    /// So many, none of them made.
    pub(crate) fn new(count: usize, arenas: &Arenas) -> Self {
        Self {
            tensors: (0..count).map(|_| None).collect(),
            counted: (0..count).map(|_| 0).collect(),
            charge: Charge::new(arenas),
            copied_bytes: 0,
            appends: Vec::new(),
            within: None,
        }
    }

    /// The same for a graph within a node.
    pub(crate) fn within(count: usize, arenas: &Arenas) -> Self {
        let charge = Charge::of_tensors(arenas);
        Self { charge, within: Some(arenas.clone()), ..Self::new(count, arenas) }
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

    /// Takes an output out.
    pub(crate) fn take(&mut self, index: usize) -> Option<Tensor> {
        self.charge.shrink(std::mem::take(&mut self.counted[index]));
        self.tensors[index].take()
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
        match (ty, &self.tensors[index]) {
            (Some(ty), tensor) => tensor.as_ref().map(Tensor::ty) == Some(ty),
            // Its memory may be used again.
            (None, tensor) => tensor.is_some(),
        }
    }

    /// Makes outputs of these types where there are others; `None` for those that are only known when it ran. If that is beyond the
    /// limit, it is an error, and nothing has changed; if the system has no memory for one, it is missing, as others may be.
    pub(crate) fn make<'t>(
        &mut self,
        types: impl Iterator<Item = Option<&'t Type>> + Clone,
    ) -> Result<(), Error> {
        let (wanted, counted) = (self.wanted(types.clone()), self.bytes());
        if wanted > counted {
            self.charge.grow(wanted - counted)?;
        }
        let made = self.replace(types);
        self.charge.shrink(wanted.max(counted) - self.bytes());
        made
    }

    /// Drops outputs of other types, then makes those that are missing.
    fn replace<'t>(&mut self, types: impl Iterator<Item = Option<&'t Type>> + Clone) -> Result<(), Error> {
        for (index, ty) in types.clone().enumerate() {
            if !self.fits(index, ty) {
                (self.tensors[index], self.counted[index]) = (None, 0);
            }
        }
        for (index, ty) in types.enumerate() {
            let Some(ty) = ty.filter(|_| self.tensors[index].is_none()) else { continue };
            let made = match &self.within {
                Some(arenas) => arenas.tensor(ty.clone())?,
                None => Tensor::try_zeroed(ty.clone())?,
            };
            self.tensors[index] = Some(made);
            self.counted[index] = ty.bytes() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_tensor::DataType;

    #[test]
    fn what_is_not_to_be_had_is_not_counted() {
        let floats = |count: usize| Some(Type::new(DataType::F32, [count]).expect("it can be addressed"));
        let all =
            |types: &[Option<Type>], outputs: &mut Outputs| outputs.make(types.iter().map(Option::as_ref));
        let arenas = Arenas::new();
        let mut outputs = Outputs::new(3, &arenas);
        all(&[floats(100), floats(10), floats(1)], &mut outputs).expect("a few bytes");
        assert_eq!(arenas.statistics().total_allocated, 444);
        // More than any system has addresses for.
        let huge = [floats(100), floats(20), floats(1 << 60)];
        assert!(matches!(all(&huge, &mut outputs), Err(Error::Memory { .. })));
        assert_eq!((outputs.bytes(), arenas.statistics().total_allocated), (480, 480));
        assert!(outputs.tensors[2].is_none());
        all(&[floats(100), floats(20), floats(1)], &mut outputs).expect("a few bytes");
        assert_eq!(arenas.statistics().total_allocated, 484);
        drop(outputs);
        assert_eq!(arenas.statistics().total_allocated, 0);
    }
}
