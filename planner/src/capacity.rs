//! Many short searches within a capacity, each with another strategy.
//!
//! How long a search takes depends on its first decisions far more than on the problem: most that end do so after a few
//! hundred, others never. So searches are started again and again with orders that chance changes a little, and are given
//! up after `SLICE` decisions an item, times 1, 1, 2, 1, 1, 2, 4, ... (Luby, Sinclair, Zuckerman 1993), which is at
//! most a logarithm slower than the best limit. A turn is one search of each kind; what the searches of one kind found
//! to be hopeless is kept for the next of that kind. Kinds share nothing, so that a turn gives the same on one thread
//! and on several.

use std::thread;

use crate::dice::Dice;
use crate::search::{self, Failures, Limits, Outcome, Search, Strategy};
use crate::sections::{Member, Sections};

/// Decisions of the shortest search, for each item: two are enough for one that hardly fails.
const SLICE: u64 = 2;
/// Steps for each look of the caller's after which a search is given up whatever it has decided: thousands of blocks that
/// all meet are looked at a million times for one decision. Where they are fewer a search takes 2 to 4 for each of its
/// looks, and ends long before.
const STEPS: u64 = 5;
/// How far chance moves an item's key, as a part of the key; by measurement on instances A to F of google/minimalloc and
/// generated ones, where 0.4 to 0.8 do alike.
const NOISE: f64 = 0.6;

/// What is tried first in a valley.
#[derive(Debug, Clone, Copy)]
enum First {
    /// The item with most sections.
    Widest,
    /// The largest item.
    Largest,
}

/// The kinds of searches in a turn: where they decide, and what they try first.
const KINDS: [(bool, First); 4] =
    [(true, First::Widest), (true, First::Largest), (false, First::Widest), (false, First::Largest)];

/// Searches within one capacity.
pub(crate) struct Attempt<'a> {
    sections: &'a Sections,
    keys: Vec<u128>,
    capacity: u64,
    /// Turns made.
    turn: u64,
    kinds: Vec<Kind>,
}

/// What one kind of searches keeps.
struct Kind {
    lowest: bool,
    first: First,
    dice: Dice,
    failures: Failures,
    /// What its last search came to.
    outcome: Outcome,
    offsets: Vec<u64>,
    looks: u64,
}

impl<'a> Attempt<'a> {
    /// Which searches are hopeless is remembered in at most `memory` bytes.
    pub fn new(sections: &'a Sections, capacity: u64, seed: u64, memory: usize) -> Attempt<'a> {
        let items = sections.items.len();
        let kind = |(number, &(lowest, first)): (usize, &(bool, First))| Kind {
            lowest,
            first,
            dice: Dice::new(seed.wrapping_mul(KINDS.len() as u64).wrapping_add(number as u64)),
            failures: Failures::new(items, memory / KINDS.len()),
            outcome: Outcome::Unknown,
            offsets: Vec::new(),
            looks: 0,
        };
        let kinds = KINDS.iter().enumerate().map(kind).collect();
        Attempt { sections, keys: search::keys(items), capacity, turn: 0, kinds }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Makes one turn on so many threads; returns what it came to and how many looks it took. Of `looks`, all that the
    /// caller has for all turns, one search is given no more than [`STEPS`] for each.
    pub fn turn(&mut self, threads: usize, looks: u64, over: &(dyn Fn() -> bool + Sync)) -> (Outcome, u64) {
        self.turn += 1;
        let steps = looks.saturating_mul(STEPS);
        let limit = SLICE * self.sections.items.len() as u64 * luby(self.turn);
        let (sections, keys, capacity, first) = (self.sections, &self.keys, self.capacity, self.turn == 1);
        let run = |kind: &mut Kind| {
            let strategy = kind.strategy(sections, first);
            let mut search = Search::new(sections, &strategy, keys, capacity);
            let limits = Limits { decisions: limit, steps, over };
            kind.outcome = search.run(limits, &mut kind.failures);
            kind.looks = search.looks.max(search.steps / STEPS);
            if kind.outcome == Outcome::Found {
                kind.offsets.clear();
                kind.offsets.extend_from_slice(search.offsets());
            }
        };
        let mut looks = 0;
        for group in self.kinds.chunks_mut(threads.max(1)) {
            if let [kind] = group {
                run(kind);
            } else {
                thread::scope(|scope| {
                    for kind in group.iter_mut() {
                        scope.spawn(|| run(kind));
                    }
                });
            }
            // As if one had run after the other.
            for kind in group {
                looks += kind.looks;
                if kind.outcome != Outcome::Unknown {
                    return (kind.outcome, looks);
                }
            }
        }
        (Outcome::Unknown, looks)
    }

    /// The offsets by item, after [`Outcome::Found`].
    pub fn offsets(&self) -> Option<&[u64]> {
        self.kinds.iter().find(|kind| kind.outcome == Outcome::Found).map(|kind| kind.offsets.as_slice())
    }
}

impl Kind {
    /// The order of the first turn is the pure one.
    fn strategy(&mut self, sections: &Sections, pure: bool) -> Strategy {
        let key = |item: &Member| match self.first {
            First::Widest => f64::from(item.width),
            First::Largest => item.size as f64,
        };
        let noise = |dice: &mut Dice| if pure { 1.0 } else { 1.0 + NOISE * (dice.unit() - 0.5) };
        let keys: Vec<f64> = sections.items.iter().map(|item| key(item) * noise(&mut self.dice)).collect();
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        let item = |index: u32| &sections.items[index as usize];
        order.sort_by(|&a, &b| {
            let by_key = keys[b as usize].total_cmp(&keys[a as usize]);
            by_key.then((item(b).size, item(b).length).cmp(&(item(a).size, item(a).length)))
        });
        let mut places = vec![0; order.len()];
        for (place, &index) in order.iter().enumerate() {
            places[index as usize] = place as u32;
        }
        Strategy { places, lowest: self.lowest }
    }
}

/// Term `turn`, from 1 on, of the sequence 1, 1, 2, 1, 1, 2, 4, ...
fn luby(turn: u64) -> u64 {
    let mut turn = turn;
    loop {
        let bits = u64::BITS - turn.leading_zeros();
        if turn == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        turn -= (1 << (bits - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::SEARCH_MEMORY;
    use crate::problem::{Block, Problem};
    use crate::timeline::Timeline;

    /// Blocks that begin one after the other and live for half of the circle.
    fn stairs(count: u64) -> Sections {
        let block = |id| Block { id, lower: id, upper: id + count / 2, size: 1 + id * 7919 % 1000, align: 1 };
        let problem = Problem::new((0..count).map(block).collect()).with_period(count);
        Sections::new(&Timeline::new(&problem)).expect("a small problem")
    }

    #[test]
    fn a_search_among_blocks_that_nearly_all_meet_keeps_to_its_looks() {
        let sections = stairs(400);
        let most: u64 = 200_000;
        let (outcome, looks) = Attempt::new(&sections, 130_000, 0, SEARCH_MEMORY).turn(1, most, &|| false);
        assert_eq!(outcome, Outcome::Unknown);
        assert!(looks <= KINDS.len() as u64 * STEPS * (most + most / 10), "{looks}");
    }

    #[test]
    fn a_search_among_blocks_that_nearly_all_meet_stops_soon_when_told_to() {
        let sections = stairs(400);
        let (outcome, looks) = Attempt::new(&sections, 130_000, 0, SEARCH_MEMORY).turn(1, u64::MAX, &|| true);
        assert_eq!(outcome, Outcome::Unknown);
        assert!(looks < 2_000_000, "{looks}");
    }

    #[test]
    fn limits_grow_as_in_the_sequence_of_luby() {
        let terms: Vec<u64> = (1..=15).map(luby).collect();
        assert_eq!(terms, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
