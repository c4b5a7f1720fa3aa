//! What callers ask for beyond lifetimes, sizes and alignments: blocks that have their place already, that share one on
//! purpose, or that are not in use all the time.
//!
//! Blocks are named by their index in [`crate::Problem::blocks`]. A block may lie inside one other; with the views of its
//! views they are one *family*, whose members may all share bytes with each other. What a view and a stranger may share
//! is decided for each pair alone: that a block may share bytes with another says nothing about the other's views.

use thiserror::Error;

use crate::problem::MAX_BLOCKS;

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

/// Why the constraints of a problem cannot be kept, or not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A constraint about a block that is not there.
    #[error(
        "{list}[{at}] names block index {index}, but there are only {blocks} blocks, from index 0; correct the index"
    )]
    NoSuchBlock {
        /// The list of [`Constraints`].
        list: &'static str,
        /// The place in it.
        at: usize,
        /// The index named.
        index: usize,
        /// Blocks in the problem.
        blocks: usize,
    },
    /// More gaps than ranks of 32 bits can tell apart.
    #[error(
        "{gaps} gaps are too many: blocks and twice the gaps together may be {MAX_BLOCKS}; split the problem"
    )]
    TooManyGaps {
        /// How many there are.
        gaps: usize,
    },
    /// A gap that is empty or ends before it begins.
    #[error(
        "block {id}: gap [{lower}, {upper}) has no event; a gap's lower lies below its upper, or leave it out"
    )]
    EmptyGap {
        /// The block's id.
        id: u64,
        /// The gap's first event.
        lower: u64,
        /// Its end.
        upper: u64,
    },
    /// A gap that is not part of its block's lifetime.
    #[error(
        "block {id}: gap [{lower}, {upper}) is not within its lifetime [{from}, {to}); cut it off at the lifetime's ends"
    )]
    GapOutside {
        /// The block's id.
        id: u64,
        /// The gap's first event.
        lower: u64,
        /// Its end.
        upper: u64,
        /// The block's first event.
        from: u64,
        /// Its end.
        to: u64,
    },
    /// Two gaps of one block that share an event.
    #[error(
        "block {id}: gaps [{}, {}) and [{}, {}) overlap; make them one, or cut one off",
        first.0, first.1, second.0, second.1
    )]
    GapsOverlap {
        /// The block's id.
        id: u64,
        /// The gap that begins first.
        first: (u64, u64),
        /// The other.
        second: (u64, u64),
    },
    /// A window that reaches beyond its block or is reversed.
    #[error(
        "block {id}: window [{from}, {to}) of a gap is not within the block's bytes [0, {size}); correct it"
    )]
    Window {
        /// The block's id.
        id: u64,
        /// First byte of the window.
        from: u64,
        /// Its end.
        to: u64,
        /// Bytes of the block.
        size: u64,
    },
    /// A fixed offset that is not a multiple of the block's alignment.
    #[error(
        "block {id}: fixed offset {offset} is not a multiple of its alignment {align}; change one of the two"
    )]
    FixedMisaligned {
        /// The block's id.
        id: u64,
        /// The fixed offset.
        offset: u64,
        /// The block's alignment.
        align: u64,
    },
    /// A fixed block beyond what can be addressed, with all other blocks on top of it.
    #[error(
        "block {id}: fixed offset {offset} + size {size} leaves too few of 2^64 bytes for the other blocks; lower the offset"
    )]
    FixedOverflow {
        /// The block's id.
        id: u64,
        /// The fixed offset.
        offset: u64,
        /// Bytes of the block.
        size: u64,
    },
    /// Two different offsets for one block.
    #[error("block {id}: fixed at offset {first} and at offset {second}; keep one of them")]
    FixedTwice {
        /// The block's id.
        id: u64,
        /// The one offset.
        first: u64,
        /// The other.
        second: u64,
    },
    /// A fixed view that would begin before the arena, or contradicts another fixed block of its family.
    #[error(
        "block {id}: fixed offset {offset}, but {}; change one of the offsets or leave it out",
        contrary(*id, *root, *distance, *root_offset)
    )]
    FixedView {
        /// The block's id.
        id: u64,
        /// The fixed offset.
        offset: u64,
        /// The id of the block it lies in at the end.
        root: u64,
        /// Bytes from that one's beginning.
        distance: u64,
        /// That one's offset by another fixed block; `None` where it would lie below 0.
        root_offset: Option<u64>,
    },
    /// Two fixed blocks that share a byte while both are in use.
    #[error(
        "blocks {first} and {second} are fixed so that both use byte {byte} at event {at}; move one of them, or let them share as in_place"
    )]
    FixedOverlap {
        /// The id of the one.
        first: u64,
        /// The id of the other.
        second: u64,
        /// A byte that both use.
        byte: u64,
        /// An event at which they do.
        at: u64,
    },
    /// A view that lies in two blocks, or in one at two distances.
    #[error(
        "block {id}: lies inside block {first} and inside block {second}, or at two distances; keep one of the two"
    )]
    InsideTwice {
        /// The id of the view.
        id: u64,
        /// The id of the one block.
        first: u64,
        /// The id of the other.
        second: u64,
    },
    /// Views of each other.
    #[error("block {id}: lies inside itself, by way of its views; leave one of these views out")]
    InsideCycle {
        /// The id of a block on the way.
        id: u64,
    },
    /// A view that reaches beyond the block it lies in.
    #[error(
        "block {id}: {size} bytes at distance {distance} do not lie within the {of_size} bytes of block {of}; correct distance or size"
    )]
    InsideBeyond {
        /// The id of the view.
        id: u64,
        /// Its bytes.
        size: u64,
        /// Bytes from the other's beginning to its own.
        distance: u64,
        /// The id of the block it lies in.
        of: u64,
        /// That block's bytes.
        of_size: u64,
    },
    /// Alignments of a family that no offset can satisfy together.
    #[error(
        "block {id}: its alignment {align}{} cannot be had together with the other alignments and offsets there; lower it or change the distance",
        if id == root { ", with views inside,".to_owned() } else { format!(" at {distance} bytes into block {root}") }
    )]
    InsideMisaligned {
        /// The block's id.
        id: u64,
        /// Its alignment.
        align: u64,
        /// The id of the block it lies in at the end, or its own.
        root: u64,
        /// Bytes from that one's beginning.
        distance: u64,
    },
    /// A block that may share bytes with itself.
    #[error("block {id}: cannot work in place of itself; name two different blocks, or leave it out")]
    InPlaceSelf {
        /// The block's id.
        id: u64,
    },
}

/// Where a fixed view puts the block it lies in, or a block with fixed views is put by these.
fn contrary(id: u64, root: u64, distance: u64, root_offset: Option<u64>) -> String {
    let begins =
        root_offset.map_or("a negative offset".to_owned(), |at| format!("{at} by another fixed offset"));
    if id == root {
        format!("with views inside it begins at {begins}")
    } else {
        format!("it lies {distance} bytes into block {root}, which therefore begins at {begins}")
    }
}

impl ConstraintError {
    /// The ids of the blocks named, the one to be changed first.
    pub fn blocks(&self) -> Vec<u64> {
        match *self {
            ConstraintError::NoSuchBlock { .. } | ConstraintError::TooManyGaps { .. } => Vec::new(),
            ConstraintError::EmptyGap { id, .. }
            | ConstraintError::GapOutside { id, .. }
            | ConstraintError::GapsOverlap { id, .. }
            | ConstraintError::Window { id, .. }
            | ConstraintError::FixedMisaligned { id, .. }
            | ConstraintError::FixedOverflow { id, .. }
            | ConstraintError::FixedTwice { id, .. }
            | ConstraintError::InsideCycle { id }
            | ConstraintError::InPlaceSelf { id } => vec![id],
            // A block is the root of its own family.
            ConstraintError::FixedView { id, root, .. }
            | ConstraintError::InsideMisaligned { id, root, .. } => {
                if id == root {
                    vec![id]
                } else {
                    vec![id, root]
                }
            }
            ConstraintError::InsideBeyond { id, of, .. } => vec![id, of],
            ConstraintError::FixedOverlap { first, second, .. } => vec![first, second],
            ConstraintError::InsideTwice { id, first, second } => vec![id, first, second],
        }
    }
}
