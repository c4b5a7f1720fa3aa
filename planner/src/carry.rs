//! Carries a plan over to another problem: finds by id what stayed, and leaves the rest to the replanner.
//!
//! A block of the new problem *stays* where its namesake was if size and offset still suit it and it meets nothing else
//! there that stays. So a changed trace, in which every event after an inserted one has another number, costs only the
//! blocks that came, went or grew, or that meet each other newly.

use std::collections::BTreeMap;

use crate::plan::{Plan, Proof};
use crate::problem::{Block, Problem};
use crate::replan::{Change, Placed, ReplanError, Replanner};
use crate::verify::Violation;

/// A block that may stay.
#[derive(Clone, Copy)]
struct Stayer {
    offset: u64,
    /// Whether lifetime, alignment and period are those of its namesake, too. Two such blocks never conflict where the
    /// old plan was valid, so they all stay.
    same: bool,
}

/// A plan for `new` that leaves every block where `plan` put its namesake in `old`, as far as that is possible.
///
/// Blocks are the same if they have the same id; of several with one id the first is the first, and so on. A block of
/// unchanged size, lifetime and alignment keeps its offset exactly. One of unchanged size and another lifetime keeps it
/// if its offset is aligned and nothing that stays is in the way; else it is put into a gap, as are new blocks and those
/// of another size. O(n log n) for n blocks; [`Replanner`] keeps its index where changes come again and again.
///
/// # Errors
/// What [`Problem::check`] finds in `new`; [`ReplanError::Plan`] where `plan` has not one offset per block;
/// [`ReplanError::Constraints`] where either problem has any; [`ReplanError::TooLarge`]. That `plan` is valid for `old`
/// is not checked: blocks in conflict are put into gaps, whatever the reason.
pub fn replan(old: &Problem, plan: &Plan, new: &Problem) -> Result<Plan, ReplanError> {
    if !old.constraints.is_empty() || !new.constraints.is_empty() {
        return Err(ReplanError::Constraints);
    }
    new.check()?;
    let (offsets, blocks) = (plan.offsets.len(), old.blocks.len());
    if offsets != blocks {
        return Err(Violation::Length { offsets, blocks }.into());
    }
    let mut stayers = namesakes(old, &plan.offsets, new);
    settle(new, &mut stayers);
    let placed = |(&block, stayer): (&Block, &Option<Stayer>)| {
        stayer.map(|Stayer { offset, .. }| Placed { block, offset })
    };
    let kept: Vec<Option<Placed>> = new.blocks.iter().zip(&stayers).map(placed).collect();
    let bound = new.lower_bound();
    let mut replanner = Replanner::of(kept, new.period, bound.align)?;
    let rest = new.blocks.iter().zip(&stayers).filter(|(_, stayer)| stayer.is_none());
    let changes: Vec<Change> = rest.map(|(&block, _)| Change::Add(block)).collect();
    let answer = replanner.apply(&changes)?;
    let mut put = answer.placed.iter().map(|&(_, offset)| offset);
    // Additions were answered in the order of the blocks that do not stay.
    let offset =
        |stayer: &Option<Stayer>| stayer.map_or_else(|| put.next().unwrap_or(0), |stayer| stayer.offset);
    let offsets: Vec<u64> = stayers.iter().map(offset).collect();
    let proof = (answer.height == bound.bytes).then_some(Proof::LoadBound);
    let algorithm = format!("{}, then {} blocks by best fit", plan.algorithm, changes.len());
    Ok(Plan { offsets, height: answer.height, lower_bound: bound.bytes, proof, algorithm })
}

/// Where the namesakes of the new blocks were, for those that they suit.
fn namesakes(old: &Problem, offsets: &[u64], new: &Problem) -> Vec<Option<Stayer>> {
    let mut by_id: Vec<usize> = (0..old.blocks.len()).collect();
    by_id.sort_by_key(|&index| old.blocks[index].id);
    let mut order: Vec<usize> = (0..new.blocks.len()).collect();
    order.sort_by_key(|&index| new.blocks[index].id);
    let mut stayers = vec![None; new.blocks.len()];
    let mut rest = by_id.into_iter().peekable();
    for index in order {
        let block = &new.blocks[index];
        while rest.next_if(|&other| old.blocks[other].id < block.id).is_some() {}
        let Some(other) = rest.next_if(|&other| old.blocks[other].id == block.id) else { continue };
        let (was, offset) = (&old.blocks[other], offsets[other]);
        let fits = offset % block.align == 0 && offset.checked_add(block.size).is_some();
        if was.size == block.size && fits {
            stayers[index] = Some(Stayer { offset, same: was == block && old.period == new.period });
        }
    }
    stayers
}

/// Leaves only those that meet nothing else that stays. Of two in conflict the unchanged one stays, else the larger.
fn settle(problem: &Problem, stayers: &mut [Option<Stayer>]) {
    // Event, whether something begins there, index; ends sort before starts.
    let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * stayers.len());
    for (index, block) in problem.blocks.iter().enumerate() {
        if stayers[index].is_none() || block.size == 0 || block.length() == 0 {
            continue;
        }
        edges.push((block.lower, true, index));
        match problem.period {
            Some(period) if block.upper > period => {
                edges.push((0, true, index));
                edges.push((block.upper - period, false, index));
            }
            _ => edges.push((block.upper, false, index)),
        }
    }
    edges.sort_unstable();
    let rank = |stayer: Stayer, index: usize| (stayer.same, problem.blocks[index].size);
    // First byte -> index; ranges in it never overlap.
    let mut held: BTreeMap<u64, usize> = BTreeMap::new();
    let mut in_the_way = Vec::new();
    for (_, starts, index) in edges {
        // One that lost its place before is out of the map already.
        let Some(stayer) = stayers[index] else { continue };
        if !starts {
            held.remove(&stayer.offset);
            continue;
        }
        let end = stayer.offset + problem.blocks[index].size;
        let below = held.range(..end).rev().map(|(&offset, &other)| (offset, other));
        in_the_way.clear();
        in_the_way
            .extend(below.take_while(|&(offset, other)| offset + problem.blocks[other].size > stayer.offset));
        let outranks = |&(_, other): &(u64, usize)| {
            stayers[other].is_none_or(|held| rank(held, other) < rank(stayer, index))
        };
        if in_the_way.iter().all(outranks) {
            for &(offset, other) in &in_the_way {
                held.remove(&offset);
                stayers[other] = None;
            }
            held.insert(stayer.offset, index);
        } else {
            stayers[index] = None;
        }
    }
}
