//! All kinds on one line of time, as one problem with constraints.

use super::{Kind, KindError};
use crate::constraints::{Constraints, Fixed, Gap};
use crate::pieces::{self, Piece};
use crate::problem::{Block, Problem};

/// Bytes of a key's block in use on the common line of time.
struct Use {
    lower: u64,
    upper: u64,
    /// From the block's beginning.
    window: (u64, u64),
}

/// What the kinds say about one key.
#[derive(Default)]
struct Together {
    /// The kinds that have it so far, and its id in each.
    kinds: Vec<(usize, u64)>,
    size: u64,
    align: u64,
    fixed: Vec<u64>,
    /// In the order of time.
    uses: Vec<Use>,
}

/// All kinds one behind the other, as one problem with one block for each key, in the order of the keys returned.
pub(super) fn together<K: Ord + Clone>(kinds: &[Kind<K>]) -> Result<(Vec<K>, Problem), KindError> {
    let mut keys: Vec<K> = kinds.iter().flat_map(|kind| kind.keys.iter().cloned()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut blocks: Vec<Together> = keys.iter().map(|_| Together::default()).collect();
    let mut start = 0u64;
    for (kind, needs) in kinds.iter().enumerate() {
        let problem = &needs.problem;
        if needs.keys.len() != problem.blocks.len() {
            return Err(KindError::Keys { kind, keys: needs.keys.len(), blocks: problem.blocks.len() });
        }
        if !problem.constraints.inside.is_empty() || !problem.constraints.in_place.is_empty() {
            return Err(KindError::Sharing { kind });
        }
        let places: Vec<usize> = needs.keys.iter().flat_map(|key| keys.binary_search(key)).collect();
        for (&place, block) in places.iter().zip(&problem.blocks) {
            blocks[place].meet(kind, block)?;
        }
        for given in &problem.constraints.fixed {
            blocks[places[given.block]].fixed.push(given.offset);
        }
        let (first, end) = stretch(problem);
        let next = start.checked_add(end - first).ok_or(KindError::TooLong { kind })?;
        let mut uses: Vec<(u64, u64, Piece)> = Vec::new();
        for piece in pieces::pieces(problem) {
            uses.extend(piece.spans(problem.period).map(|(lower, upper)| (lower, upper, piece)));
        }
        uses.sort_unstable_by_key(|&(lower, ..)| lower);
        for (lower, upper, Piece { block, from, to, .. }) in uses {
            let (lower, upper) = (start + (lower - first), start + (upper - first));
            blocks[places[block as usize]].uses.push(Use { lower, upper, window: (from, to) });
        }
        start = next;
    }
    let mut problem = Problem::default();
    for together in blocks {
        together.add_to(&mut problem);
    }
    Ok((keys, problem))
}

/// The events of a kind: the first, and the end.
fn stretch(problem: &Problem) -> (u64, u64) {
    let events = || problem.blocks.iter().filter(|block| block.length() > 0);
    match problem.period {
        Some(period) => (0, period),
        None => (
            events().map(|block| block.lower).min().unwrap_or(0),
            events().map(|block| block.upper).max().unwrap_or(0),
        ),
    }
}

impl Together {
    /// One more kind has a block of this key.
    fn meet(&mut self, kind: usize, block: &Block) -> Result<(), KindError> {
        if let Some(&(last, first)) = self.kinds.last()
            && last == kind
        {
            return Err(KindError::KeyTwice { kind, first, second: block.id });
        }
        self.kinds.push((kind, block.id));
        self.size = self.size.max(block.size);
        self.align = self.align.max(block.align);
        Ok(())
    }

    /// Adds the block, its gaps, and its fixed offsets.
    fn add_to(self, problem: &mut Problem) {
        let Together { kinds, size, align, fixed, uses } = self;
        let id = kinds.first().map_or(0, |&(_, id)| id);
        let block = problem.blocks.len();
        let lower = uses.first().map_or(0, |first| first.lower);
        let upper = uses.last().map_or(0, |last| last.upper);
        problem.blocks.push(Block { id, lower, upper, size, align });
        let Constraints { gaps, fixed: all_fixed, .. } = &mut problem.constraints;
        all_fixed.extend(fixed.into_iter().map(|offset| Fixed { block, offset }));
        let mut at = lower;
        for Use { lower, upper, window } in uses {
            if at < lower {
                gaps.push(Gap { block, lower: at, upper: lower, window: None });
            }
            if window != (0, size) {
                gaps.push(Gap { block, lower, upper, window: Some(window) });
            }
            at = upper;
        }
    }
}
