//! Merged steps against a quadratic reference that follows the definitions word for word.

use proptest::prelude::*;
use stepalloc_planner::{Block, Event, Key, Problem, StepProblem, Steps};

/// One thing a random program does. Ranks pick among the live blocks.
#[derive(Debug, Clone, Copy)]
enum Op {
    Allocate(u64),
    Free(usize),
    Move(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![4 => Just(64u64), 2 => Just(100), 1 => Just(4096)];
    prop_oneof![
        5 => size.clone().prop_map(Op::Allocate),
        4 => (0usize..8).prop_map(Op::Free),
        1 => ((0usize..8), size).prop_map(|(rank, size)| Op::Move(rank, size)),
    ]
}

/// Steps that repeat a base with some operations replaced, dropped or put in.
fn programs() -> impl Strategy<Value = Vec<Vec<Op>>> {
    let change = (0usize..30, prop::option::of(op()), any::<bool>());
    (prop::collection::vec(op(), 0..24), prop::collection::vec(prop::collection::vec(change, 0..4), 1..7))
        .prop_map(|(base, steps)| {
            let step = |changes: &Vec<(usize, Option<Op>, bool)>| {
                let mut ops = base.clone();
                for &(at, op, replace) in changes {
                    let at = at.min(ops.len());
                    if replace && at < ops.len() {
                        ops.remove(at);
                    }
                    if let Some(op) = op {
                        ops.insert(at, op);
                    }
                }
                ops
            };
            steps.iter().map(step).collect()
        })
}

/// Runs the programs: events with handles that are used again as soon as they are free.
fn events(programs: &[Vec<Op>]) -> Vec<Vec<Event>> {
    let mut live: Vec<u32> = Vec::new();
    let unused = |live: &[u32]| (0..).find(|handle| !live.contains(handle)).expect("handles do not run out");
    let mut steps = Vec::new();
    for ops in programs {
        let mut step = Vec::new();
        for &op in ops {
            match op {
                Op::Allocate(size) => {
                    let block = unused(&live);
                    live.push(block);
                    step.push(Event::Allocate { block, size, align: 16, moved_from: None });
                }
                Op::Free(rank) if !live.is_empty() => {
                    let block = live.remove(rank % live.len());
                    step.push(Event::Free { block });
                }
                Op::Move(rank, size) if !live.is_empty() => {
                    let old = live.remove(rank % live.len());
                    let block = unused(&live);
                    live.push(block);
                    step.push(Event::Free { block: old });
                    step.push(Event::Allocate { block, size, align: 16, moved_from: Some(old) });
                }
                _ => {}
            }
        }
        steps.push(step);
    }
    steps
}

/// One allocation, by global time.
#[derive(Debug, Clone)]
struct Instance {
    step: usize,
    key: usize,
    born: usize,
    died: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Shorter,
    Recurring,
    Held,
    Young,
}

#[derive(Default)]
struct Reference {
    keys: Vec<Key>,
    /// Reference order, and for each step the key that was last at its end.
    order: Vec<usize>,
    ends: Vec<Option<usize>>,
    instances: Vec<Instance>,
    /// Time at which each step ends.
    boundaries: Vec<usize>,
}

impl Reference {
    fn new(steps: &[Vec<Event>]) -> Reference {
        let mut this = Reference::default();
        let mut live: Vec<(u32, usize)> = Vec::new();
        let mut time = 0;
        for (step, events) in steps.iter().enumerate() {
            let mut previous: Option<usize> = None;
            let mut i = 0;
            while i < events.len() {
                time += 2;
                match events[i] {
                    Event::Free { block } => {
                        let at = live.iter().position(|&(handle, _)| handle == block).expect("a live block");
                        let (_, instance) = live.remove(at);
                        // A block that is moved dies after the allocation it moves to.
                        let moves =
                            matches!(events.get(i + 1), Some(Event::Allocate { moved_from: Some(_), .. }));
                        this.instances[instance].died = Some(if moves { time + 3 } else { time });
                    }
                    Event::Allocate { block, size, align, .. } => {
                        let same = |instance: &&Instance| {
                            let key = this.keys[instance.key];
                            instance.step == step && (key.size, key.align) == (size, align)
                        };
                        let nth = this.instances.iter().filter(same).count() as u32;
                        let key = Key { size, align, nth };
                        let key = this.keys.iter().position(|&other| other == key).unwrap_or_else(|| {
                            let new = this.keys.len();
                            this.keys.push(key);
                            let at = previous.map_or(0, |previous| this.position(previous) + 1);
                            this.order.insert(at, new);
                            new
                        });
                        previous = Some(key);
                        live.push((block, this.instances.len()));
                        this.instances.push(Instance { step, key, born: time, died: None });
                    }
                }
                i += 1;
            }
            time += 2;
            this.boundaries.push(time);
            this.ends.push(this.order.last().copied());
        }
        this
    }

    fn position(&self, key: usize) -> usize {
        self.order.iter().position(|&other| other == key).expect("a key in order")
    }

    fn alive_at(&self, instance: &Instance, time: usize) -> bool {
        instance.born < time && instance.died.is_none_or(|died| died > time)
    }

    /// When the instance's own position comes by in a later step, and whether by its own key.
    fn passes(&self, instance: &Instance, step: usize) -> Option<(usize, bool)> {
        let again = self.instances.iter().find(|other| other.step == step && other.key == instance.key);
        match again {
            Some(again) => Some((again.born, true)),
            None => self.boundaries.get(step).map(|&end| (end, false)),
        }
    }

    fn fate(&self, instance: &Instance) -> Fate {
        let died = instance.died.unwrap_or(usize::MAX);
        match self.passes(instance, instance.step + 1) {
            None if instance.died.is_none() => Fate::Young,
            Some((time, own)) if died > time => match self.passes(instance, instance.step + 2) {
                Some((second, _)) if died > second => Fate::Held,
                _ if instance.died.is_some() && own => Fate::Recurring,
                _ => Fate::Held,
            },
            _ => Fate::Shorter,
        }
    }

    /// (turns, position) of the furthest reach of an instance that is shorter than a period.
    fn reach(&self, instance: &Instance) -> (usize, usize) {
        let own = self.position(instance.key);
        let mut reach = (0, own);
        for other in &self.instances {
            let position = self.position(other.key);
            let same = other.step == instance.step;
            if same && other.born > instance.born && self.alive_at(instance, other.born) {
                reach = reach.max((0, position));
            }
            if same && other.born < instance.born && self.alive_at(other, instance.born) {
                reach = reach.max((0, position));
            }
            if other.step == instance.step + 1 && self.alive_at(instance, other.born) {
                reach = reach.max((1, position));
            }
        }
        if self.alive_at(instance, self.boundaries[instance.step]) {
            reach = reach.max((0, self.position(self.ends[instance.step].expect("a key"))));
        }
        reach
    }

    fn fates(&self, key: usize) -> Vec<Fate> {
        self.instances
            .iter()
            .filter(|instance| instance.key == key)
            .map(|instance| self.fate(instance))
            .collect()
    }

    fn class(&self, key: usize) -> Fate {
        let fates = self.fates(key);
        let count = |fate: Fate| fates.iter().filter(|&&other| other == fate).count();
        if count(Fate::Shorter) >= count(Fate::Recurring) + count(Fate::Held) {
            Fate::Shorter
        } else if count(Fate::Recurring) >= count(Fate::Held) {
            Fate::Recurring
        } else {
            Fate::Held
        }
    }

    fn problem(&self) -> StepProblem {
        let period = self.order.len();
        let mut result = StepProblem::default();
        result.problem.period = Some(period.max(1) as u64);
        let mut add = |key: Key, lower: usize, upper: usize| {
            let (id, lower, upper) = (result.keys.len() as u64, lower as u64, upper as u64);
            result.problem.blocks.push(Block { id, lower, upper, size: key.size, align: key.align });
            result.keys.push(key);
        };
        let mut all = self.keys.clone();
        for (position, &index) in self.order.iter().enumerate() {
            let key = self.keys[index];
            match self.class(index) {
                Fate::Held => result.held.push(key),
                Fate::Recurring => {
                    let same = |other: &&Key| (other.size, other.align) == (key.size, key.align);
                    let extra = Key { nth: all.iter().filter(same).count() as u32, ..key };
                    all.push(extra);
                    add(key, 0, period);
                    add(extra, 0, period);
                }
                _ => {
                    let short = |instance: &&Instance| {
                        instance.key == index && matches!(self.fate(instance), Fate::Shorter | Fate::Young)
                    };
                    let reach =
                        self.instances.iter().filter(short).map(|instance| self.reach(instance)).max();
                    let (turns, last) = reach.unwrap_or((0, position));
                    add(key, position, (last + 1 + turns * period).min(position + period));
                }
            }
        }
        result
    }
}

/// Whether two lifetimes share an event on the circle, event by event.
fn meet(problem: &Problem, a: usize, b: usize) -> bool {
    let period = problem.period.expect("a period");
    let events = |block: &Block| (block.lower..block.upper).map(|time| time % period).collect::<Vec<_>>();
    let (a, b) = (events(&problem.blocks[a]), events(&problem.blocks[b]));
    a.iter().any(|time| b.contains(time))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merged_steps_equal_the_reference(programs in programs()) {
        let steps = events(&programs);
        let mut merged = Steps::new();
        for (index, step) in steps.iter().enumerate() {
            let before = merged.problem();
            let changed = merged.step(step.iter().copied());
            let after = merged.problem();
            prop_assert_eq!(&after, &Reference::new(&steps[..=index]).problem());
            prop_assert!(after.problem.check().is_ok());
            if changed {
                prop_assert!(index == 0 || before != after);
            } else {
                prop_assert_eq!(&before.keys, &after.keys);
                for (before, after) in before.problem.blocks.iter().zip(&after.problem.blocks) {
                    prop_assert!(before.lower == after.lower && before.upper >= after.upper);
                }
            }
        }
    }

    #[test]
    fn what_was_alive_together_meets_in_the_plan(programs in programs()) {
        let steps = events(&programs);
        let mut merged = Steps::new();
        for step in &steps {
            merged.step(step.iter().copied());
        }
        let StepProblem { problem, keys, .. } = merged.problem();
        let reference = Reference::new(&steps);
        // Instances that the needs speak of: planned, and no odd one of a period or longer.
        let planned: Vec<(&Instance, usize)> = reference
            .instances
            .iter()
            .filter(|instance| {
                let class = reference.class(instance.key);
                class == Fate::Recurring
                    || class == Fate::Shorter && matches!(reference.fate(instance), Fate::Shorter | Fate::Young)
            })
            .map(|instance| {
                let key = reference.keys[instance.key];
                (instance, keys.iter().position(|&other| other == key).expect("planned"))
            })
            .collect();
        for (i, &(a, block_a)) in planned.iter().enumerate() {
            for &(b, block_b) in &planned[i + 1..] {
                let (first, second) = if a.born < b.born { (a, b) } else { (b, a) };
                if a.key != b.key && reference.alive_at(first, second.born) {
                    prop_assert!(meet(&problem, block_a, block_b), "{:?} and {:?}", keys[block_a], keys[block_b]);
                }
            }
        }
    }
}

/// `+n` allocates the handle n with size n, `-n` frees it.
fn script(text: &str) -> Vec<Event> {
    text.split_whitespace()
        .map(|word| {
            let block: u32 = word[1..].parse().expect("a handle");
            if word.starts_with('+') {
                Event::Allocate { block, size: u64::from(block % 1000), align: 1, moved_from: None }
            } else {
                Event::Free { block }
            }
        })
        .collect()
}

fn lifetimes(steps: &Steps) -> Vec<(u64, u64, u64)> {
    steps.problem().problem.blocks.iter().map(|block| (block.size, block.lower, block.upper)).collect()
}

#[test]
fn an_exactly_repeated_step_changes_nothing() {
    let mut steps = Steps::new();
    assert!(steps.step(script("+1 +2 -1 +3 -3 -2")));
    assert!(!steps.step(script("+1 +2 -1 +3 -3 -2")));
    assert!(!steps.step(script("+1 +2 -1 +3 -2 -3")), "the order of frees between allocations means nothing");
    assert_eq!(lifetimes(&steps), [(1, 0, 2), (2, 1, 3), (3, 2, 3)]);
}

#[test]
fn a_block_freed_in_the_next_step_wraps() {
    let mut steps = Steps::new();
    steps.step(script("+1 -1 +2 +3 -2"));
    assert!(steps.step(script("+1 -3 -1 +2 +3 -2")));
    assert_eq!(lifetimes(&steps), [(1, 0, 1), (2, 1, 3), (3, 2, 4)]);
}

#[test]
fn a_block_freed_before_the_next_allocation_reaches_the_end_without_wrapping() {
    let mut steps = Steps::new();
    steps.step(script("+1 +2 -2 +3 -3"));
    assert!(!steps.step(script("-1 +1 +2 -2 +3 -3")));
    assert_eq!(lifetimes(&steps)[0], (1, 0, 3));
}

#[test]
fn a_new_allocation_stands_behind_the_one_before_it() {
    let mut steps = Steps::new();
    steps.step(script("+1 +2 -1 -2"));
    assert!(steps.step(script("+7 -7 +1 +9 -9 +2 -1 -2")));
    assert_eq!(lifetimes(&steps), [(7, 0, 1), (1, 1, 4), (9, 2, 3), (2, 3, 4)]);
}

#[test]
fn weights_are_held() {
    let mut steps = Steps::new();
    steps.step(script("+5 +1 -1"));
    assert!(steps.step(script("+1 -1")), "the block turns out to be persistent");
    assert!(!steps.step(script("+1 -1")));
    let needs = steps.problem();
    assert_eq!(needs.held, [Key { size: 5, align: 1, nth: 0 }]);
    assert_eq!(needs.keys, [Key { size: 1, align: 1, nth: 0 }]);
}

#[test]
fn a_double_buffer_gets_two_blocks_of_a_whole_period() {
    let mut steps = Steps::new();
    steps.step(script("+1 -1 +5"));
    steps.step(script("+1 -1 +1005 -5"));
    steps.step(script("+1 -1 +5 -1005"));
    assert!(!steps.step(script("+1 -1 +1005 -5")));
    assert_eq!(lifetimes(&steps), [(1, 0, 1), (5, 0, 2), (5, 0, 2)]);
    assert_eq!(steps.problem().keys[2], Key { size: 5, align: 1, nth: 1 });
}

#[test]
fn an_odd_persistent_block_does_not_blow_up_the_plan() {
    let mut steps = Steps::new();
    for _ in 0..3 {
        steps.step(script("+5 -5 +1 -1 +2 -2"));
    }
    let before = steps.problem();
    // It takes the place of the one of its size that lives shortly, and stays.
    steps.step(script("+1005 +5 -5 +1 -1 +2 -2"));
    for _ in 0..3 {
        steps.step(script("+5 -5 +1 -1 +2 -2"));
    }
    let after = steps.problem();
    assert_eq!(after.problem.blocks.len(), before.problem.blocks.len() + 1);
    assert!(after.held.is_empty());
    assert!(after.problem.blocks.iter().all(|block| block.length() == 1), "{after:?}");
}

#[test]
fn a_moved_block_is_alive_beside_the_one_it_moves_to() {
    let step = [
        Event::Allocate { block: 0, size: 10, align: 1, moved_from: None },
        Event::Free { block: 0 },
        Event::Allocate { block: 0, size: 20, align: 1, moved_from: Some(0) },
        Event::Free { block: 0 },
    ];
    let mut steps = Steps::new();
    steps.step(step);
    assert!(!steps.step(step));
    assert_eq!(lifetimes(&steps), [(10, 0, 2), (20, 1, 2)]);
}

#[test]
fn frees_of_unknown_blocks_and_empty_steps_mean_nothing() {
    let mut steps = Steps::new();
    assert!(steps.step(script("-8 -9")));
    assert_eq!(steps.problem().problem.period, Some(1));
    assert!(!steps.step(script("-8")));
    assert!(steps.step(script("+1 -1")));
    assert!(!steps.step(script("")));
}
