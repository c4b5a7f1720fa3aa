//! The certificate of a bound: do the blocks it names need so many bytes? Trusts nobody, as all of `verify`.

use std::collections::{BTreeMap, HashSet};

use thiserror::Error;

use super::{families, uses};
use crate::bound::LowerBound;
use crate::constraints::InPlace;
use crate::problem::Problem;

/// Why a witness does not prove a bound.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unproven {
    /// A block that is not there, or named twice.
    #[error("the witness names the block of index {index} twice, or there is no such block")]
    Named {
        /// The index.
        index: usize,
    },
    /// A constraint about a block that is not there.
    #[error("a constraint names the block of index {index}, but there are only {blocks} blocks")]
    NoSuchBlock {
        /// The index named.
        index: usize,
        /// Blocks in the problem.
        blocks: usize,
    },
    /// A block that uses no bytes at the event.
    #[error("the block of index {index} uses no bytes at event {at}")]
    NotInUse {
        /// The block's index.
        index: usize,
        /// The event.
        at: u64,
    },
    /// Two blocks that need not lie apart, or that count as one.
    #[error("the blocks of index {first} and {second} may share bytes")]
    MayShare {
        /// The index of the one.
        first: usize,
        /// The index of the other.
        second: usize,
    },
    /// A block whose beginning is not a multiple of the bound's alignment.
    #[error("the block of index {index} need not begin at a multiple of {align}")]
    Unaligned {
        /// The block's index.
        index: usize,
        /// The bound's alignment.
        align: u64,
    },
    /// The blocks need fewer bytes than the bound says.
    #[error("the bound is {bound} bytes, but the blocks of its witness need only {needed}")]
    TooHigh {
        /// The bound in bytes.
        bound: u64,
        /// What the blocks need.
        needed: u128,
    },
}

/// Checks that the blocks of `witness` (indices, see [`LowerBound::witness`]) really need the bytes of `bound`, by
/// themselves: one block by its size or its fixed place; several by what they use at the bound's event, views and what
/// they lie in counted once.
///
/// # Errors
/// The first reason found why they need not.
pub fn verify_bound(problem: &Problem, bound: &LowerBound, witness: &[usize]) -> Result<(), Unproven> {
    let blocks = &problem.blocks;
    let mut named = HashSet::new();
    if let Some(&index) = witness.iter().find(|&&index| index >= blocks.len() || !named.insert(index)) {
        return Err(Unproven::Named { index });
    }
    let views = problem.constraints.inside.iter().flat_map(|view| [view.block, view.of]);
    if let Some(index) = views.into_iter().find(|&index| index >= blocks.len()) {
        return Err(Unproven::NoSuchBlock { index, blocks: blocks.len() });
    }
    let mut needed = 0u128;
    if let [index] = *witness {
        needed = fixed_end(problem, index).max(u128::from(blocks[index].size));
    } else {
        let mut gaps = problem.constraints.gaps.clone();
        gaps.sort_by_key(|gap| (gap.block, gap.lower));
        let (families, parents) = (families(problem), parents(problem));
        let align = bound.align.max(1);
        // By family: the ranges in use, in the root's bytes.
        let mut ranges: BTreeMap<usize, Vec<(u64, u64, usize)>> = BTreeMap::new();
        for &index in witness {
            let again = problem.period.map_or(bound.at, |period| bound.at.saturating_add(period));
            let covers = |&(lower, upper, ..): &(u64, u64, u64, u64)| {
                [bound.at, again].iter().any(|at| (lower..upper).contains(at))
            };
            let Some((.., from, to)) = uses(problem, &gaps, index).into_iter().find(covers) else {
                return Err(Unproven::NotInUse { index, at: bound.at });
            };
            if !blocks[index].align.is_multiple_of(align) || !from.is_multiple_of(align) {
                return Err(Unproven::Unaligned { index, align });
            }
            let root = depth(&parents, index);
            // Distances that overflow are not within any block; what they make shorter proves less.
            let (from, to) = (root.saturating_add(from), root.saturating_add(to));
            ranges.entry(families[index]).or_default().push((from, to, index));
        }
        for &InPlace { first, second } in &problem.constraints.in_place {
            if named.contains(&first) && named.contains(&second) && families[first] != families[second] {
                return Err(Unproven::MayShare { first, second });
            }
        }
        let mut slack = 0;
        for (_, mut ranges) in ranges {
            ranges.sort_unstable();
            if let (true, [(.., first), (.., second), ..]) = (align > 1, &ranges[..]) {
                return Err(Unproven::MayShare { first: *first, second: *second });
            }
            let mut reach = 0;
            for (from, to, _) in ranges {
                let bytes = u128::from(to.saturating_sub(from.max(reach)));
                let whole = bytes.next_multiple_of(u128::from(align));
                needed += whole;
                slack = slack.max(whole - bytes);
                reach = reach.max(to);
            }
        }
        needed -= slack;
    }
    if needed < u128::from(bound.bytes) {
        return Err(Unproven::TooHigh { bound: bound.bytes, needed });
    }
    Ok(())
}

/// By view: the block it lies in and the distance. Its steps are counted, so that views in a circle end, too.
type Parents = BTreeMap<usize, (usize, u64)>;

fn parents(problem: &Problem) -> Parents {
    problem.constraints.inside.iter().map(|view| (view.block, (view.of, view.distance))).collect()
}

/// Bytes from the beginning of the block that a view lies in at the end to its own.
fn depth(parents: &Parents, index: usize) -> u64 {
    let (mut depth, mut block) = (0u64, index);
    for _ in 0..parents.len() {
        let Some(&(of, distance)) = parents.get(&block) else { break };
        depth = depth.saturating_add(distance);
        block = of;
    }
    depth
}

/// The end of a block that is fixed, or in which a fixed view lies; 0 without one.
fn fixed_end(problem: &Problem, index: usize) -> u128 {
    let size = u128::from(problem.blocks[index].size);
    let parents = parents(problem);
    let ends = problem.constraints.fixed.iter().map(|fixed| {
        let (mut offset, mut block) = (i128::from(fixed.offset), fixed.block);
        for _ in 0..=parents.len() {
            if block == index {
                return u128::try_from(offset).map_or(0, |offset| offset + size);
            }
            let Some(&(of, distance)) = parents.get(&block) else { break };
            offset -= i128::from(distance);
            block = of;
        }
        0
    });
    ends.max().unwrap_or(0)
}
