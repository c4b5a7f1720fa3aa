//! What callers ask for beyond lifetimes, sizes and alignments: blocks that have their place already, that share one on
//! purpose, or that are not in use all the time.
//!
//! Blocks are named by their index in [`crate::Problem::blocks`].

/// The constraints of a problem. Empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Constraints {
    /// Blocks whose offset is given.
    pub fixed: Vec<Fixed>,
    /// Moments at which a block, or a part of it, is not in use.
    pub gaps: Vec<Gap>,
    /// Blocks that must lie inside others: views and aliases.
    pub inside: Vec<Inside>,
    /// Pairs of blocks that may share bytes although both are alive: an operator that works in place.
    pub in_place: Vec<InPlace>,
}

/// A block whose offset is given: memory-mapped registers, a tensor that was placed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fixed {
    /// The block's index.
    pub block: usize,
    /// Its offset in bytes.
    pub offset: u64,
}

/// Events of a block's lifetime at which it is not in use, as in google/minimalloc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The block's index.
    pub block: usize,
    /// First event of the gap; not before the block's own.
    pub lower: u64,
    /// First event after the gap; not after the block's own end.
    pub upper: u64,
    /// Bytes of the block, from and up to, that are in use in the gap all the same; `None`: none are.
    pub window: Option<(u64, u64)>,
}

/// A block that must lie inside another, at a distance from its offset. The two share bytes, also while both are alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inside {
    /// The index of the view.
    pub block: usize,
    /// The index of the block it lies in.
    pub of: usize,
    /// Bytes from the beginning of `of` to that of `block`.
    pub distance: u64,
}

/// Two blocks that may share bytes although their lifetimes overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InPlace {
    /// The index of the one.
    pub first: usize,
    /// The index of the other.
    pub second: usize,
}

impl Constraints {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.gaps.is_empty() && self.inside.is_empty() && self.in_place.is_empty()
    }
}
