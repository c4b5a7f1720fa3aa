//! The stream of requests that every strategy serves: the same blocks that the planner plans, in the order they came.
//!
//! The planner leaves step 0 out, and blocks that are held for many steps (weights), which stay with the backend: see
//! `stepalloc_planner::steps`, whose words and rules are followed here. A fair comparison leaves out the same, instance by
//! instance:
//!
//! - of a planned key, what was freed before its key came again, or lives in the newest step still;
//! - of a recurring key (two blocks in the plan), also what was freed before its key came a second time;
//! - nothing else: no block of a held key, and no odd instance that outlived what the plan has room for.
//!
//! Any two of them that were ever alive together have bytes of their own in the plan, so that the plan is at least as high
//! as this stream's load.

use std::collections::{HashMap, HashSet};

use stepalloc_planner::{Key, StepProblem, Trace};

use crate::report::walk::{Change, Walk};

/// What one block asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub size: u64,
    /// Power of two.
    pub align: u64,
}

/// One thing asked of an allocator; blocks are named by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allocate(usize),
    Free(usize),
}

/// Requests in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// What each block asks for, in order of birth.
    pub blocks: Vec<Request>,
    /// Allocations and frees; time is the index here.
    pub actions: Vec<Action>,
    /// How many actions there were at the end of each step.
    pub ends: Vec<usize>,
}

/// How long a block lived, in turns of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Less than a period, or unknown yet.
    Shorter,
    /// Less than two.
    Recurring,
    /// Longer, or never freed.
    Held,
}

/// A block with its key.
struct Instance {
    key: usize,
    step: usize,
    request: Request,
    fate: Fate,
}

/// The keys of a trace, numbered.
#[derive(Default)]
struct Keys {
    numbers: HashMap<Key, usize>,
    /// Of each size and alignment: the step it came in last, how often in that step, how often in any at most.
    kinds: HashMap<(u64, u64), (usize, u32, u32)>,
    /// The step in which each came last.
    seen: Vec<usize>,
}

impl Keys {
    /// The key of an allocation.
    fn take(&mut self, step: usize, size: u64, align: u64) -> usize {
        let (last, count, most) = self.kinds.entry((size, align)).or_insert((step, 0, 0));
        if *last != step {
            (*last, *count) = (step, 0);
        }
        let key = Key { size, align, nth: *count };
        *count += 1;
        *most = (*count).max(*most);
        let number = *self.numbers.entry(key).or_insert(self.seen.len());
        if number == self.seen.len() {
            self.seen.push(step);
        }
        self.seen[number] = step;
        number
    }

    /// By number: whether a key is planned, and whether as a recurring one.
    fn classes(&self, needs: &StepProblem) -> (Vec<bool>, Vec<bool>) {
        let held: HashSet<&Key> = needs.held.iter().collect();
        let mut planned = vec![false; self.seen.len()];
        let mut recurring = planned.clone();
        for (key, &number) in &self.numbers {
            planned[number] = !held.contains(key);
        }
        for pair in needs.keys.windows(2) {
            // A recurring key is followed by its second block, whose `nth` no step asks for.
            let asked = self.kinds.get(&(pair[1].size, pair[1].align)).map_or(0, |kind| kind.2);
            if pair[1].nth >= asked
                && let Some(&number) = self.numbers.get(&pair[0])
            {
                recurring[number] = true;
            }
        }
        (planned, recurring)
    }
}

impl Stream {
    /// The blocks of a trace's steps that the plan of these needs serves; `needs` is the trace's problem for the same
    /// `min_bytes`.
    pub fn new(trace: &Trace, min_bytes: u64, needs: &StepProblem) -> Stream {
        let first = usize::from(trace.steps.len() > 1);
        let newest = trace.steps.len().saturating_sub(1);
        let mut keys = Keys::default();
        let mut instances: Vec<Instance> = Vec::new();
        let mut moments: Vec<(usize, Action)> = Vec::new();
        for moment in Walk::new(trace, first, min_bytes) {
            let step = moment.step;
            match moment.change {
                Change::Born { block, size, align } => {
                    let key = keys.take(step, size, align);
                    let fate = if step == newest { Fate::Shorter } else { Fate::Held };
                    instances.push(Instance { key, step, request: Request { size, align }, fate });
                    moments.push((step, Action::Allocate(block)));
                }
                Change::Died { block } => {
                    let instance = &mut instances[block];
                    instance.fate = fate(instance.step, step, keys.seen[instance.key]);
                    moments.push((step, Action::Free(block)));
                }
            }
        }

        let (planned, recurring) = keys.classes(needs);
        let mut stream = Stream::default();
        // The index here of each instance that is served.
        let mut indices: Vec<Option<usize>> = Vec::with_capacity(instances.len());
        for instance in &instances {
            let served = match instance.fate {
                Fate::Shorter => planned[instance.key],
                Fate::Recurring => recurring[instance.key],
                Fate::Held => false,
            };
            indices.push(served.then_some(stream.blocks.len()));
            if served {
                stream.blocks.push(instance.request);
            }
        }
        for (step, action) in moments {
            while stream.ends.len() < step.saturating_sub(first) {
                stream.ends.push(stream.actions.len());
            }
            stream.actions.extend(match action {
                Action::Allocate(block) => indices[block].map(Action::Allocate),
                Action::Free(block) => indices[block].map(Action::Free),
            });
        }
        stream.ends.push(stream.actions.len());
        stream
    }

    /// Bytes alive at the worst moment.
    pub fn load(&self) -> u64 {
        let (mut live, mut most) = (0u64, 0);
        for action in &self.actions {
            match *action {
                Action::Allocate(block) => live += self.blocks[block].size,
                Action::Free(block) => live -= self.blocks[block].size,
            }
            most = live.max(most);
        }
        most
    }

    /// Bytes that all blocks side by side need at most, under any of the strategies; `None` beyond what 64 bits can hold
    /// with room to spare. Where there is a sum, no strategy's arithmetic overflows.
    pub fn bounded(&self) -> Option<u64> {
        // Rounding takes less than the size again (powers of two), or an alignment, a header and a bin each.
        const ROUNDING: u64 = 64 << 10;
        let most = |request: &Request| {
            request.size.checked_mul(2)?.checked_add(request.align.checked_mul(4)?)?.checked_add(ROUNDING)
        };
        let sum = self.blocks.iter().try_fold(0u64, |sum, request| sum.checked_add(most(request)?))?;
        (sum <= u64::MAX >> 2).then_some(sum)
    }
}

/// The fate of a block that was allocated in step `born`, freed in step `died`, when its key had come last in step `seen`.
fn fate(born: usize, died: usize, seen: usize) -> Fate {
    if born == died {
        return Fate::Shorter;
    }
    // Times its own place in the step has come by.
    match died - born - 1 + usize::from(seen == died) {
        0 => Fate::Shorter,
        1 if seen > born => Fate::Recurring,
        _ => Fate::Held,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::walk::tests::{allocate, free, trace};

    /// A stream by hand: positive numbers are sizes of new blocks, negative ones free the block of that number, from 1.
    pub fn stream(actions: &[i64]) -> Stream {
        let mut stream = Stream::default();
        for &action in actions {
            if action > 0 {
                stream.actions.push(Action::Allocate(stream.blocks.len()));
                stream.blocks.push(Request { size: action.unsigned_abs(), align: 16 });
            } else {
                stream.actions.push(Action::Free(action.unsigned_abs() as usize - 1));
            }
        }
        stream.ends.push(stream.actions.len());
        stream
    }

    fn of(trace: &Trace) -> Stream {
        Stream::new(trace, 0, &trace.problem(0))
    }

    #[test]
    fn what_is_held_and_step_0_are_left_out() {
        let step = |n: u32| vec![allocate(10 * n, 100), allocate(10 * n + 1, 30), free(10 * n)];
        let stream = of(&trace((0..5).map(step).collect()));
        // The blocks of 30 are never freed, except that the newest step's may be yet.
        assert_eq!(stream.blocks.len(), 4);
        assert!(stream.blocks.iter().all(|request| request.size == 100), "{stream:?}");
        assert_eq!(stream.ends, [2, 4, 6, 8]);
        assert_eq!(stream.load(), 100);
    }

    #[test]
    fn blocks_freed_in_the_next_step_are_served() {
        let step = |n: u32| vec![free(n.wrapping_sub(1)), allocate(n, 100)];
        let stream = of(&trace((0..5).map(step).collect()));
        assert_eq!((stream.blocks.len(), stream.load()), (4, 100));
    }

    #[test]
    fn double_buffers_are_served_by_two_blocks() {
        let step = |n: u32| vec![allocate(n, 100), free(n.wrapping_sub(1))];
        let trace = trace((0..6).map(step).collect());
        let stream = of(&trace);
        assert_eq!((stream.blocks.len(), stream.load()), (5, 200));
        assert_eq!(trace.problem(0).problem.blocks.len(), 2);
    }

    #[test]
    fn an_odd_block_that_stays_is_left_out_and_its_key_is_served() {
        // The block of step 2 stays for ever.
        let step = |n: u32| if n == 2 { vec![allocate(n, 100)] } else { vec![allocate(n, 100), free(n)] };
        let stream = of(&trace((0..8).map(step).collect()));
        assert_eq!((stream.blocks.len(), stream.load()), (6, 100));
    }

    #[test]
    fn a_lone_step_is_served_whole() {
        let stream = of(&trace(vec![vec![allocate(0, 100), allocate(1, 50), free(0)]]));
        assert_eq!((stream.blocks.len(), stream.load()), (2, 150));
    }

    #[test]
    fn an_empty_trace_is_an_empty_stream() {
        let stream = of(&Trace::default());
        assert_eq!((stream.load(), stream.bounded()), (0, Some(0)));
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        assert_eq!(stream(&[i64::MAX]).bounded(), None);
    }
}
