//! What blocks amount to under constraints: pieces in use, and families of views.
//!
//! A *piece* is a stretch of a block's lifetime and the bytes of the block in use over it: a gap cuts a lifetime into
//! pieces, a window is a piece of fewer bytes. A *family* is a block that lies inside no other, its *root*, with all
//! views of it and views of those; one offset decides the places of a whole family, and its members share bytes with
//! each other as they like. Times are the problem's, on the unrolled circle.

use crate::constraints::Gap;
use crate::problem::Problem;

/// Bytes of a block that are in use for a time. Never empty in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the block.
    pub block: u32,
    /// First event.
    pub lower: u64,
    /// First event after it, on the unrolled circle.
    pub upper: u64,
    /// First byte, from the block's beginning.
    pub from: u64,
    /// First byte after it.
    pub to: u64,
}

impl Piece {
    /// The piece within one turn: a piece that wraps, or lies in the next turn, gives what it covers of `[0, period)`.
    pub fn spans(&self, period: Option<u64>) -> impl Iterator<Item = (u64, u64)> {
        let (lower, upper) = (self.lower, self.upper);
        let (first, second) = match period {
            Some(period) if lower >= period => ((lower - period, upper - period), None),
            Some(period) if upper > period => ((lower, period), Some((0, upper - period))),
            _ => ((lower, upper), None),
        };
        [Some(first), second].into_iter().flatten()
    }
}

/// The pieces of all blocks, by block and then by time; the gaps must have passed their check.
pub(crate) fn pieces(problem: &Problem) -> Vec<Piece> {
    let mut gaps: Vec<Gap> = problem.constraints.gaps.clone();
    gaps.sort_unstable_by_key(|gap| (gap.block, gap.lower));
    let mut gaps = gaps.into_iter().peekable();
    let mut pieces = Vec::with_capacity(problem.blocks.len());
    for (index, block) in problem.blocks.iter().enumerate() {
        let mut cut = |lower, upper, from, to| {
            if lower < upper && from < to {
                // `MAX_BLOCKS` keeps indices within 32 bits.
                pieces.push(Piece { block: index as u32, lower, upper, from, to });
            }
        };
        let mut at = block.lower;
        while let Some(gap) = gaps.next_if(|gap| gap.block == index) {
            cut(at, gap.lower, 0, block.size);
            if let Some((from, to)) = gap.window {
                cut(gap.lower, gap.upper, from, to);
            }
            at = gap.upper;
        }
        cut(at, block.upper, 0, block.size);
    }
    pieces
}

/// The family of every block.
pub(crate) struct Families {
    /// By block: the index of its family's root, its own where it lies inside no other.
    pub root: Vec<u32>,
    /// By block: bytes from the root's beginning to its own.
    pub distance: Vec<u64>,
}

impl Families {
    /// Follows the views up to their roots. Where views go round in a circle, the index of a block on it.
    ///
    /// Every view must lie within its block, so that no sum of distances exceeds the root's size.
    pub fn new(problem: &Problem) -> Result<Families, usize> {
        let count = problem.blocks.len();
        let mut families = Families {
            root: (0..count as u32).collect(),
            distance: problem.blocks.iter().map(|_| 0).collect(),
        };
        let mut parent: Vec<Option<(usize, u64)>> = vec![None; count];
        for view in &problem.constraints.inside {
            parent[view.block] = Some((view.of, view.distance));
        }
        let mut known: Vec<bool> = parent.iter().map(Option::is_none).collect();
        let mut path = Vec::new();
        for start in 0..count {
            let mut block = start;
            while !known[block] {
                if path.len() == count {
                    return Err(block);
                }
                path.push(block);
                block = parent[block].map_or(block, |(of, _)| of);
            }
            while let Some(view) = path.pop() {
                let (of, distance) = parent[view].unwrap_or((view, 0));
                families.root[view] = families.root[of];
                families.distance[view] = families.distance[of] + distance;
                known[view] = true;
            }
        }
        Ok(families)
    }
}

/// Who may share bytes with whom.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Both ways round, sorted.
    pairs: Vec<(u32, u32)>,
    /// By block: whether it shares with any other.
    shares: Vec<bool>,
}

impl Sharing {
    /// From constraints that name only blocks that are there.
    pub fn new(problem: &Problem, families: &Families) -> Sharing {
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(2 * problem.constraints.in_place.len());
        let mut shares = vec![false; problem.blocks.len()];
        for pair in &problem.constraints.in_place {
            let (first, second) = (pair.first as u32, pair.second as u32);
            pairs.extend([(first, second), (second, first)]);
            shares[pair.first] = true;
            shares[pair.second] = true;
        }
        for view in &problem.constraints.inside {
            shares[view.block] = true;
            shares[families.root[view.block] as usize] = true;
        }
        pairs.sort_unstable();
        pairs.dedup();
        Sharing { pairs, shares }
    }

    /// Whether a block may share bytes with any other.
    pub fn shares(&self, block: u32) -> bool {
        self.shares[block as usize]
    }

    /// Whether the two are a pair that works in place.
    pub fn in_place(&self, a: u32, b: u32) -> bool {
        self.pairs.binary_search(&(a, b)).is_ok()
    }

    /// Whether these two blocks may share bytes: by name, or as one family.
    pub fn allows(&self, families: &Families, a: u32, b: u32) -> bool {
        families.root[a as usize] == families.root[b as usize] || self.in_place(a, b)
    }
}

/// An alignment of something that does not begin at its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Padding {
    /// A power of two.
    pub align: u64,
    /// What the offset must be modulo `align`.
    pub pad: u64,
}

impl Padding {
    /// What aligns all members, given by their distance from the beginning and their alignment; `None` where two of
    /// them contradict each other.
    pub fn of(members: &[(u64, u64)]) -> Option<Padding> {
        let (distance, align) = members.iter().copied().max_by_key(|&(_, align)| align).unwrap_or((0, 1));
        let padding = Padding { align, pad: distance.wrapping_neg() & (align - 1) };
        members.iter().all(|&(distance, align)| padding.suits(distance, align)).then_some(padding)
    }

    /// Whether what lies at `distance` is aligned to `align`, which is no more than our own.
    pub fn suits(&self, distance: u64, align: u64) -> bool {
        self.pad.wrapping_add(distance) & (align - 1) == 0
    }
}
