//! Tensors: elements of one type in a shape, row by row (C order), in memory of their own or lent.

use crate::element::{DataType, Element};
use crate::error::OpError;
use crate::growing::{Blocks, Grown};
use crate::mapped::{Copied, Halves, Order, copied, reordered, widened};
use crate::shape::Shape;
use crate::shared::{Leased, Lender, Owner, Shared};
use bytemuck::allocation::try_zeroed_vec;
use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use smallvec::SmallVec;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Addresses of tensors are multiples of so many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;
/// The most bytes that a tensor may have: what a pointer's offset can say.
const MOST_BYTES: usize = isize::MAX as usize;

/// The system has no memory for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of memory are wanted: the system has no more")]
pub struct OutOfMemory {
    /// As many as were asked for.
    pub bytes: u64,
}

/// Type of the elements, and sizes of the dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Of each element.
    pub dtype: DataType,
    /// Elements along each dimension; empty for a scalar.
    pub shape: Shape,
}

impl Type {
    /// `None` if so many elements cannot be addressed.
    pub fn new(dtype: DataType, shape: impl Into<Shape>) -> Option<Self> {
        let shape = shape.into();
        // A zero among the dimensions must not hide that the others are beyond all bounds.
        let elements =
            shape.iter().filter(|&&dim| dim != 0).try_fold(1usize, |all, &dim| all.checked_mul(dim))?;
        elements.checked_mul(dtype.bytes()).filter(|&bytes| bytes <= MOST_BYTES)?;
        Some(Self { dtype, shape })
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (index, dim) in self.shape.iter().enumerate() {
            write!(f, "{}{dim}", if index > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// A few integers: of shapes, axes, pads.
pub type Ints = SmallVec<[i64; 8]>;

/// A dimension's number from one that may count from the end.
pub fn axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|&counted| counted < rank)
        .ok_or_else(|| OpError::shape(format!("there is no axis {axis} among {rank} dimensions")))
}

/// A tensor to be read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Of each element.
    pub dtype: DataType,
    /// Elements along each dimension.
    pub shape: &'a [usize],
    /// All elements, aligned as they are: a session refuses others.
    pub bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The elements.
    ///
    /// # Panics
    /// When they are of another type: operators look at the types first.
    pub fn elements<T: Element>(&self) -> &'a [T] {
        assert_eq!(self.dtype, T::DTYPE, "elements of another type");
        // No elements may lie anywhere.
        if self.bytes.is_empty() { &[] } else { bytemuck::cast_slice(self.bytes) }
    }

    /// The elements as integers of the same width, whatever they are.
    pub fn raw<T: Pod>(&self) -> &'a [T] {
        assert_eq!(self.dtype.bytes(), size_of::<T>(), "elements of another width");
        // No elements may lie anywhere.
        if self.bytes.is_empty() { &[] } else { bytemuck::cast_slice(self.bytes) }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A tensor of its own.
    pub fn to_tensor(&self) -> Tensor {
        let mut tensor = Tensor::zeroed(Type { dtype: self.dtype, shape: self.shape.into() });
        tensor.view_mut().bytes.copy_from_slice(self.bytes);
        tensor
    }
}

/// A tensor to be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Of each element.
    pub dtype: DataType,
    /// Elements along each dimension.
    pub shape: &'a [usize],
    /// All elements. What is in them before they are written is anything, but initialised.
    pub bytes: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// The same elements, to be written for a while.
    pub fn lend(&mut self) -> ViewMut<'_> {
        ViewMut { dtype: self.dtype, shape: self.shape, bytes: self.bytes }
    }

    /// The elements.
    ///
    /// # Panics
    /// When they are of another type.
    pub fn elements<T: Element>(self) -> &'a mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "elements of another type");
        if self.bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(self.bytes) }
    }

    /// The elements as integers of the same width, whatever they are.
    pub fn raw<T: Pod>(self) -> &'a mut [T] {
        assert_eq!(self.dtype.bytes(), size_of::<T>(), "elements of another width");
        if self.bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(self.bytes) }
    }
}

/// Tensors of so few bytes are copied at once: to do it later would take as much memory as they do.
const FEW_BYTES: usize = 256;

/// What tensors' memory is made of, so that it is aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; ALIGNMENT]);

impl Default for Line {
    fn default() -> Self {
        Self::zeroed()
    }
}

pub(crate) enum Memory {
    Own(Vec<Line>),
    /// Of the caller, or of other tensors as well.
    Shared(Shared),
    /// For as long as the tensor is there.
    Leased(Leased),
    /// The first rows of blocks that have room for more.
    Grown(Grown),
    /// Of a mapped file, or of a message read from one. Aligned for the elements.
    Lent(Bytes),
    /// Of a mapped file as well, but copied when they are first read.
    Copied(Arc<Copied>),
}

/// A tensor with memory of its own, that it is lent for a while ([`Tensor::leased`]), of a file that stays mapped as long as any of its tensors, or of somebody else
/// ([`Tensor::borrowed`]).
pub struct Tensor {
    ty: Type,
    memory: Memory,
}

impl Clone for Tensor {
    /// Memory that may be written is copied.
    fn clone(&self) -> Self {
        let memory = match &self.memory {
            Memory::Own(lines) => Memory::Own(lines.clone()),
            Memory::Shared(_) | Memory::Leased(_) => return self.view().to_tensor(),
            Memory::Grown(grown) => Memory::Grown(grown.clone()),
            Memory::Lent(bytes) => Memory::Lent(bytes.clone()),
            Memory::Copied(copied) => Memory::Copied(Arc::clone(copied)),
        };
        Self { ty: self.ty.clone(), memory }
    }
}

impl Tensor {
    /// All elements are zero.
    pub fn zeroed(ty: Type) -> Self {
        let lines = ty.bytes().div_ceil(ALIGNMENT);
        Self { ty, memory: Memory::Own(vec![Line::zeroed(); lines]) }
    }

    /// All elements are zero; an error if there is no memory for them.
    pub fn try_zeroed(ty: Type) -> Result<Self, OutOfMemory> {
        let lines = try_zeroed_vec(ty.bytes().div_ceil(ALIGNMENT));
        let fail = |()| OutOfMemory { bytes: ty.bytes() as u64 };
        Ok(Self { memory: Memory::Own(lines.map_err(fail)?), ty })
    }

    /// Copies elements; `None` if they are not as many as the shape says.
    pub fn from_elements<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Option<Self> {
        let ty = Type::new(T::DTYPE, shape).filter(|ty| ty.elements() == elements.len())?;
        let mut tensor = Self::zeroed(ty);
        tensor.view_mut().elements().copy_from_slice(elements);
        Some(tensor)
    }

    /// Takes bytes in the machine's order: without copying them where that saves memory and their address allows it, else, if they
    /// are of a mapped file, with a copy that is made when they are first read. `None` if they are not as many as the type says.
    pub fn from_bytes(ty: Type, bytes: Bytes) -> Option<Self> {
        if bytes.len() != ty.bytes() {
            return None;
        }
        if bytes.len() > FEW_BYTES
            && let Some(copied) = copied(&bytes, ty.dtype.bytes())
        {
            return Some(Self { ty, memory: Memory::Copied(copied) });
        }
        if bytes.len() > FEW_BYTES && (bytes.as_ptr() as usize).is_multiple_of(ty.dtype.bytes()) {
            return Some(Self { ty, memory: Memory::Lent(bytes) });
        }
        let mut tensor = Self::zeroed(ty);
        tensor.view_mut().bytes.copy_from_slice(&bytes);
        Some(tensor)
    }

    /// A tensor in memory that somebody else has, read and written where it is. Its owner is dropped with it. `None` where the address is
    /// null, or no multiple of an element's bytes, unless there are no elements.
    ///
    /// # Safety
    /// As long as the owner lives, `begin` is valid for reads and writes of as many initialised bytes as the type has. Nobody writes
    /// them while a view of the tensor is looked at, nor looks at them while it is written. (Memory of a tensor that is never written may
    /// be read-only.)
    pub unsafe fn borrowed(ty: Type, begin: *mut u8, owner: Owner) -> Option<Self> {
        let begin = match NonNull::new(begin) {
            _ if ty.bytes() == 0 => NonNull::dangling(),
            begin => begin.filter(|begin| begin.addr().get().is_multiple_of(ty.dtype.bytes()))?,
        };
        // SAFETY: the caller's promise; no bytes may lie anywhere.
        let shared = unsafe { Shared::new(begin, ty.bytes(), owner) };
        Some(Self { ty, memory: Memory::Shared(shared) })
    }

    /// A tensor in memory that is lent to it until it is dropped, the first of `bytes` bytes. What is in it is anything.
    ///
    /// # Panics
    /// Where the type needs more bytes, or they do not begin at a multiple of [`ALIGNMENT`].
    ///
    /// # Safety
    /// As long as the tensor lives, `begin` is valid for reads and writes of as many initialised bytes, and nobody else reads or writes them.
    pub unsafe fn leased(ty: Type, begin: NonNull<u8>, bytes: usize, lender: Arc<dyn Lender>) -> Self {
        assert!(
            ty.bytes() <= bytes && begin.addr().get().is_multiple_of(ALIGNMENT),
            "memory that does not fit"
        );
        // SAFETY: the caller's promise.
        let leased = unsafe { Leased::new(begin, bytes, lender) };
        Self { ty, memory: Memory::Leased(leased) }
    }

    /// Whether its memory is lent to it ([`Tensor::leased`]).
    pub fn is_leased(&self) -> bool {
        matches!(self.memory, Memory::Leased(_))
    }

    /// A tensor of another type in the same memory, with the bytes that are in it; `None`, and it is gone, where it has no memory of its
    /// own with room for it.
    pub fn retyped(self, ty: Type) -> Option<Self> {
        let room = match &self.memory {
            Memory::Own(lines) => lines.len() * ALIGNMENT,
            Memory::Leased(leased) => leased.get().len(),
            _ => return None,
        };
        (ty.bytes() <= room).then_some(Self { ty, ..self })
    }

    /// A second tensor of the same memory, which lives as long as any of both; of memory that is never written, a clone.
    ///
    /// # Safety
    /// Neither is written while the other is looked at or written.
    pub unsafe fn share(&mut self) -> Self {
        if let Memory::Own(lines) = &mut self.memory {
            let mut lines = std::mem::take(lines);
            let begin = NonNull::from(&mut lines[..]).cast();
            // SAFETY: the vector keeps its lines where they are, and nobody has it but as their owner. Of them these bytes are the first.
            self.memory = Memory::Shared(unsafe { Shared::new(begin, self.ty.bytes(), Arc::new(lines)) });
        }
        match &self.memory {
            Memory::Shared(shared) => {
                // SAFETY: the caller's promise.
                let memory = Memory::Shared(unsafe { shared.again() });
                Self { ty: self.ty.clone(), memory }
            }
            _ => self.clone(),
        }
    }

    /// The first rows of blocks that may get more.
    pub(crate) fn grown(ty: Type, grown: Grown) -> Self {
        Self { ty, memory: Memory::Grown(grown) }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its elements where they are, if it has grown along an axis ([`growing`](crate::growing)): then a view of it is a copy, made
    /// when it is first asked for.
    pub fn blocks(&self) -> Option<Blocks<'_>> {
        if let Memory::Grown(grown) = &self.memory { Some(grown.blocks()) } else { None }
    }

    /// Its type.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// To be read.
    pub fn view(&self) -> View<'_> {
        let bytes = match &self.memory {
            Memory::Own(lines) => &bytemuck::cast_slice(lines)[..self.ty.bytes()],
            Memory::Shared(shared) => shared.get(),
            Memory::Leased(leased) => &leased.get()[..self.ty.bytes()],
            Memory::Lent(bytes) => &bytes[..],
            Memory::Copied(copied) => &copied.copy()[..self.ty.bytes()],
            Memory::Grown(grown) => grown.whole(),
        };
        View { dtype: self.ty.dtype, shape: &self.ty.shape, bytes }
    }

    /// To be written; memory that is lent is copied first.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        if !matches!(self.memory, Memory::Own(_) | Memory::Shared(_) | Memory::Leased(_)) {
            *self = self.view().to_tensor();
        }
        let bytes = match &mut self.memory {
            Memory::Own(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.ty.bytes()],
            Memory::Shared(shared) => shared.get_mut(),
            Memory::Leased(leased) => &mut leased.get_mut()[..self.ty.bytes()],
            _ => unreachable!("it was copied"),
        };
        ViewMut { dtype: self.ty.dtype, shape: &self.ty.shape, bytes }
    }

    /// The same elements in another shape; `None` if they are not as many.
    pub fn reshaped(mut self, shape: impl Into<Shape>) -> Option<Self> {
        let ty = Type::new(self.ty.dtype, shape).filter(|ty| ty.elements() == self.ty.elements())?;
        self.ty = ty;
        Some(self)
    }

    /// Whether its memory is that of a file.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent(_))
    }

    /// The same elements with their blocks in another order, into whose blocks they can be cut: copied when they are first read if this
    /// one lies in a mapped file, else now.
    pub fn reordered(&self, order: Order) -> Self {
        if let Some(copied) = self.in_file().and_then(|bytes| reordered(bytes, order)) {
            return Self { ty: self.ty.clone(), memory: Memory::Copied(copied) };
        }
        let (mut made, from) = (Self::zeroed(self.ty.clone()), self.view().bytes);
        order.fill(made.view_mut().bytes, |at, to| to.copy_from_slice(&from[at..][..to.len()]));
        made
    }

    /// The same in memory of its own, if it is to be copied from a file and was not yet: for who looks at it once.
    pub fn in_passing(&self) -> Option<Self> {
        match &self.memory {
            Memory::Copied(copied) if !copied.is_there() => {
                let mut read = Self::zeroed(self.ty.clone());
                copied.read(read.view_mut().bytes);
                Some(read)
            }
            _ => None,
        }
    }

    /// Its bytes, so many at a time, and the index of the first of them: of what is to be copied from a file and was not yet no copy
    /// stays, and pages of a mapped file go back to the system.
    pub fn pieces(&self, length: usize, each: &mut dyn FnMut(usize, &[u8])) {
        let copied = match &self.memory {
            Memory::Copied(copied) if !copied.is_there() => copied,
            _ => {
                for (number, piece) in self.view().bytes.chunks(length).enumerate() {
                    each(number * length, piece);
                    if self.is_lent() {
                        crate::mapped::settle_part(piece);
                    }
                }
                return;
            }
        };
        let bytes = self.ty.bytes();
        let mut lines = vec![Line::default(); length.min(bytes).div_ceil(ALIGNMENT)];
        for begin in (0..bytes).step_by(length) {
            let piece = &mut bytemuck::cast_slice_mut(&mut lines)[..length.min(bytes - begin)];
            copied.read_part(begin, piece);
            each(begin, piece);
        }
    }

    /// Whether it has the same bytes as another one, which are looked at as by [`Tensor::pieces`].
    pub fn is_alike(&self, other: &Self) -> bool {
        const PIECE: usize = 1 << 18;
        let (mut is_alike, mut read) = (self.ty.bytes() == other.ty.bytes(), Vec::new());
        if !is_alike {
            return false;
        }
        self.pieces(PIECE, &mut |begin, piece| {
            if !is_alike {
                return;
            }
            let end = begin + piece.len();
            is_alike = match &other.memory {
                Memory::Copied(copied) if !copied.is_there() => {
                    read.resize(piece.len(), 0);
                    copied.read_part(begin, &mut read);
                    read == piece
                }
                _ => {
                    let there = &other.view().bytes[begin..end];
                    let equal = there == piece;
                    if other.is_lent() {
                        crate::mapped::settle_part(there);
                    }
                    equal
                }
            };
        });
        is_alike
    }

    /// Halves as f32: those of a mapped file when they are first read, others now. `None` of other types.
    pub fn widened(&self) -> Option<Self> {
        let halves = Halves::of(self.ty.dtype)?;
        let ty = Type::new(DataType::F32, self.ty.shape.clone())?;
        if ty.bytes() > FEW_BYTES
            && let Some(copied) = self.in_file().and_then(|bytes| widened(bytes, halves))
        {
            return Some(Self { ty, memory: Memory::Copied(copied) });
        }
        let read = self.in_passing();
        let mut made = Self::zeroed(ty);
        halves.widen(read.as_ref().unwrap_or(self).view().bytes, made.view_mut().elements());
        Some(made)
    }

    /// Where its elements lie in a file.
    fn in_file(&self) -> Option<&Bytes> {
        match &self.memory {
            Memory::Lent(bytes) => Some(bytes),
            Memory::Copied(copied) => copied.as_it_is(),
            Memory::Own(_) | Memory::Grown(_) | Memory::Shared(_) | Memory::Leased(_) => None,
        }
    }

    /// Whether nothing has to be copied for a view of it.
    pub fn is_read(&self) -> bool {
        !matches!(&self.memory, Memory::Copied(copied) if !copied.is_there())
    }

    /// Whether a file has its elements, which can be read there again.
    pub fn is_of_file(&self) -> bool {
        matches!(self.memory, Memory::Lent(_) | Memory::Copied(_))
    }

    /// Bytes of memory that it takes now, those of a file not counted.
    pub fn own_bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(_) | Memory::Grown(_) | Memory::Shared(_) | Memory::Leased(_) => self.ty.bytes(),
            Memory::Copied(copied) if copied.is_there() => self.ty.bytes(),
            _ => 0,
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.ty)
    }
}
