//! Classes of blocks: what is one size to a plan.

use crate::arena::granules_for;

/// Bytes to which sizes are rounded before they are compared: a cache line, the smallest granule.
pub(super) const SIZE_STEP: usize = 1 << crate::arena::GRANULE_MIN_SHIFT;

/// A class of blocks: size rounded up to 64 bytes, with log2 of an alignment above 64 in the low bits, and in the bits that no size has
/// the number of a thread, where each thread's blocks are planned by themselves. Never 0 for a size that is planned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Class(pub(super) u64);

/// The first bit of a thread's number.
const LANE_SHIFT: u32 = 48;
/// Bits of sizes.
const BYTES: u64 = (1 << LANE_SHIFT) - SIZE_STEP as u64;

impl Class {
    /// The class of a request; `None` for sizes no object can have.
    #[inline]
    pub(crate) fn of(bytes: usize, align: usize) -> Option<Self> {
        if bytes > isize::MAX as usize - SIZE_STEP {
            return None;
        }
        let rounded = Self::round(bytes);
        Some(Self(if align <= SIZE_STEP {
            rounded as u64
        } else {
            rounded as u64 | u64::from(align.trailing_zeros())
        }))
    }

    /// The class of a request at an alignment that every slot has; for a size no object can have, one that no plan
    /// knows or that is 0.
    #[inline(always)]
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self(Self::round(bytes) as u64)
    }

    #[inline(always)]
    fn round(bytes: usize) -> usize {
        bytes.wrapping_add(SIZE_STEP - 1) & !(SIZE_STEP - 1)
    }

    /// The class of as much aligned blocks of so many bytes, which are whole cache lines.
    pub(crate) fn with_bytes(self, bytes: u64) -> Self {
        Self(bytes | self.0 & !BYTES)
    }

    /// The class among those of a thread's own; of all threads for 0.
    #[inline]
    pub(crate) fn in_lane(self, thread: u16) -> Self {
        Self(self.0 & ((1 << LANE_SHIFT) - 1) | u64::from(thread) << LANE_SHIFT)
    }

    /// Whether it is one of [`Class::of`] for a size that some machine has, at an alignment that slots can have.
    pub(crate) fn is_possible(self) -> bool {
        let log2 = self.0 & (SIZE_STEP as u64 - 1);
        let aligned = log2 == 0 || (7..=crate::os::BASE_ALIGN.trailing_zeros().into()).contains(&log2);
        aligned && (1..=1 << 46).contains(&self.bytes())
    }

    /// The class as a number, never 0.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The class of a number that is not 0.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// The rounded size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.0 & BYTES
    }

    /// Granules of `1 << shift` bytes that a slot has.
    pub(crate) fn granules(self, shift: u32) -> u64 {
        granules_for(self.bytes() as usize, self.align() as usize, shift) as u64
    }

    /// The alignment a slot must have; 1 where every slot is aligned enough.
    pub(crate) fn align(self) -> u64 {
        match self.0 & (SIZE_STEP as u64 - 1) {
            0 => 1,
            log2 => 1 << log2,
        }
    }
}
