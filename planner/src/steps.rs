//! Steps: the needs of a repeated step, merged from recorded ones into one periodic problem.
//!
//! A block is found again in the next step by its [`Key`]: size, alignment, and how many of exactly these came before in
//! the step. The keys stand in a *reference order*, the order in which they were first allocated; a key new in a later
//! step is put right behind the key allocated before it there (at the front, where it is the step's first). A key's
//! place in that order is its *position*, and positions are the time of the resulting problem: its period is their
//! number, so that only which allocations fall into a lifetime matters, not when exactly a block is freed.
//!
//! A key's lifetime is the union over its *instances* (one per step that allocates it): from its own position to the
//! furthest position reached by
//!
//! 1. what was allocated in the same step while it was alive;
//! 2. what was alive, of the same step, when it was allocated, though positioned behind it (the step ran in another
//!    order than the reference);
//! 3. where it lived on into the next step: the last position of its own step, and, one turn further, what was
//!    allocated in the next step while it was alive.
//!
//! Reaches are kept as (turns, key), so a key inserted later shifts them rightly. Two instances that were ever alive
//! together thus overlap on the circle, and no planner gives them the same bytes.
//!
//! **Instances of a whole period or longer** are alive when their own key is allocated again, or still when the step
//! after theirs ends. Freed within the second period, they are *recurring* (double buffering: the new one is
//! allocated before the old one is freed); never freed while seen, freed later, or freed without their key having come
//! again, they are *held* (weights, optimizer state). They do not lengthen their key's lifetime. Instead the majority
//! of a key's instances decides, once their fates are known:
//!
//! - at least half of them shorter than a period: the key is planned by those, and an odd persistent allocation does not
//!   blow up the plan (its one instance will find its slot busy or keep it busy, which a matcher must bear anyway);
//! - else recurring at least as often as held: the key gets two blocks of the whole period;
//! - else it is persistent, and not planned.
//!
//! An instance of the newest step that is alive at its end counts as reaching that end, for now.
//!
//! One step costs O(n log n) for its n events: two passes over them, a monotone stack for the furthest allocation within
//! a lifetime, and a heap cleaned lazily for the live block positioned furthest back. All storage is kept from step to
//! step.

use std::collections::{BinaryHeap, HashMap};

use crate::problem::{Block, Problem};

/// One event of a step. Blocks are named by handles the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A block comes alive.
    Allocate {
        /// Unique among the live blocks; free to be used again after its `Free`.
        block: u32,
        /// Bytes.
        size: u64,
        /// Power of two.
        align: u64,
        /// For a reallocation: the block moved from. Its `Free` comes immediately before this event, but both were
        /// alive while the bytes were copied, and are taken so.
        moved_from: Option<u32>,
    },
    /// A block is freed. Blocks whose allocation was not seen may be freed, too; that means nothing.
    Free {
        /// The handle given at its allocation.
        block: u32,
    },
}

/// The name of a block from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Bytes.
    pub size: u64,
    /// Power of two.
    pub align: u64,
    /// How many allocations of exactly this size and alignment came before it in its step.
    pub nth: u32,
}

/// The needs of the steps seen, as one periodic problem.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepProblem {
    /// The planned blocks in reference order; `id` is the index. The period is the number of positions (at least 1).
    pub problem: Problem,
    /// The key of each planned block, in the same order. A recurring key has two blocks: its own, and one with an `nth`
    /// beyond all others of its size and alignment, which no step asks for.
    pub keys: Vec<Key>,
    /// Persistent keys: not planned, but they count when the n-th of a size is told.
    pub held: Vec<Key>,
}

/// No key.
const NONE: u32 = u32::MAX;

/// How far a lifetime reaches: the position of `key`, `turns` steps after the lifetime's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reach {
    turns: u32,
    key: u32,
}

/// What is to be done about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Planned,
    Recurring,
    Held,
}

/// Instances of a key by their fate.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    shorter: u32,
    recurring: u32,
    held: u32,
}

impl Tally {
    fn class(self) -> Class {
        if self.shorter >= self.recurring + self.held {
            Class::Planned
        } else if self.recurring >= self.held {
            Class::Recurring
        } else {
            Class::Held
        }
    }
}

/// All that is known about a key.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    /// Behind it in the reference order.
    next: u32,
    position: u32,
    /// The last step that allocated it.
    seen: u32,
    /// The furthest reach of its finished instances shorter than a period.
    reach: Reach,
    tally: Tally,
    /// Class and reach at the last boundary, unfinished instances included.
    class: Class,
    needs: Reach,
    /// What `needs` is about to become.
    open: Reach,
    /// Unfinished instances a period old at the last boundary: they count as held.
    overdue: u32,
}

/// The keys of one size and alignment.
#[derive(Debug, Default)]
struct Kind {
    /// By `nth`.
    members: Vec<u32>,
    /// The step `count` is about.
    step: u32,
    /// Allocations so far in that step.
    count: u32,
}

/// One block that is alive, or died in the running step.
#[derive(Debug, Clone, Copy)]
struct Instance {
    key: u32,
    handle: u32,
    step: u32,
    /// How many allocations came before it in its step.
    at: u32,
    reach: Reach,
    alive: bool,
}

/// An event with its block found.
#[derive(Debug, Clone, Copy)]
enum Action {
    Allocate(u32),
    Free(u32),
}

/// The union of the needs of the steps seen.
#[derive(Debug)]
pub struct Steps {
    kinds: HashMap<(u64, u64), Kind>,
    entries: Vec<Entry>,
    /// Keys in reference order.
    order: Vec<u32>,
    /// The first of them, from which `Entry::next` leads on.
    head: u32,
    /// Steps seen, the running one included; the first is 1.
    step: u32,
    instances: Vec<Instance>,
    /// Indices of `instances` free for use.
    vacant: Vec<u32>,
    /// Handle to instance.
    live: HashMap<u32, u32>,
    /// Instances alive at the last boundary and not yet held for good.
    carried: Vec<u32>,
    /// The last key in order at the last boundary.
    end: u32,
    // Scratch of one step:
    actions: Vec<Action>,
    /// Instances of the running step.
    born: Vec<u32>,
    /// Allocations (how many came before, position) after which none was positioned further; positions descend.
    furthest: Vec<(u32, u32)>,
    /// (position, instance) of this step's blocks; the dead are dropped when they come up.
    backmost: BinaryHeap<(u32, u32)>,
    touched: Vec<u32>,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps::new()
    }
}

impl Steps {
    /// No step seen yet.
    pub fn new() -> Steps {
        Steps {
            kinds: HashMap::new(),
            entries: Vec::new(),
            order: Vec::new(),
            head: NONE,
            step: 0,
            instances: Vec::new(),
            vacant: Vec::new(),
            live: HashMap::new(),
            carried: Vec::new(),
            end: NONE,
            actions: Vec::new(),
            born: Vec::new(),
            furthest: Vec::new(),
            backmost: BinaryHeap::new(),
            touched: Vec::new(),
        }
    }

    /// How many steps were seen.
    pub fn seen(&self) -> u32 {
        self.step
    }

    /// Whether a key is recurring, whose two blocks take turns from step to step. Where two steps are taken as one, each has
    /// a lifetime of its own, and the bytes of both are other blocks' meanwhile.
    pub fn recurs(&self) -> bool {
        self.entries.iter().any(|entry| entry.class == Class::Recurring)
    }

    /// Takes in one whole step, from boundary to boundary.
    ///
    /// Returns whether the needs changed: a new key, a lifetime that grew, or a key that is to be treated differently.
    /// The first step always changes them. A lifetime that shrinks, because an instance turned out to be an odd
    /// persistent one, is no change: the needs as they were still cover it.
    pub fn step(&mut self, events: impl IntoIterator<Item = Event>) -> bool {
        self.step += 1;
        let keys_before = self.entries.len();
        self.resolve(events);
        let grown = self.entries.len() > keys_before;
        if grown {
            self.number();
        }
        self.touched.clear();
        self.touched.extend(self.carried.iter().map(|&i| self.instances[i as usize].key));
        self.touched.extend(self.born.iter().map(|&i| self.instances[i as usize].key));
        self.measure();
        self.close();
        self.settle() | grown | (self.step == 1)
    }

    /// First pass: finds each event's instance and puts new keys into the order.
    fn resolve(&mut self, events: impl IntoIterator<Item = Event>) {
        self.actions.clear();
        self.born.clear();
        let mut previous = NONE;
        for event in events {
            match event {
                Event::Free { block } => {
                    if let Some(instance) = self.live.remove(&block) {
                        self.actions.push(Action::Free(instance));
                    }
                }
                Event::Allocate { block, size, align, moved_from } => {
                    // The block moved from is freed after this allocation instead of before.
                    let mut freed_after = None;
                    if let Some(&Action::Free(old)) = self.actions.last()
                        && moved_from == Some(self.instances[old as usize].handle)
                    {
                        self.actions.pop();
                        freed_after = Some(Action::Free(old));
                    }
                    let key = self.key(size, align, previous);
                    previous = key;
                    let instance = self.create(key, block);
                    let lost = self.live.insert(block, instance).map(Action::Free);
                    if moved_from == Some(block) {
                        freed_after = freed_after.or(lost);
                    } else {
                        // The handle was in use: its Free was lost, and can have been no later than now.
                        self.actions.extend(lost);
                    }
                    self.actions.push(Action::Allocate(instance));
                    self.actions.extend(freed_after);
                }
            }
        }
    }

    /// The key of the next allocation of this size and alignment, put behind `previous` where it is new.
    fn key(&mut self, size: u64, align: u64, previous: u32) -> u32 {
        let kind = self.kinds.entry((size, align)).or_default();
        if kind.step != self.step {
            kind.step = self.step;
            kind.count = 0;
        }
        let nth = kind.count;
        kind.count += 1;
        if let Some(&key) = kind.members.get(nth as usize) {
            return key;
        }
        let key = self.entries.len() as u32;
        kind.members.push(key);
        let reach = Reach { turns: 0, key };
        let link = match self.entries.get_mut(previous as usize) {
            Some(before) => &mut before.next,
            None => &mut self.head,
        };
        let next = std::mem::replace(link, key);
        self.entries.push(Entry {
            key: Key { size, align, nth },
            next,
            position: 0,
            seen: 0,
            reach,
            tally: Tally::default(),
            class: Class::Planned,
            needs: reach,
            open: reach,
            overdue: 0,
        });
        key
    }

    fn create(&mut self, key: u32, handle: u32) -> u32 {
        let instance =
            Instance { key, handle, step: self.step, at: 0, reach: Reach { turns: 0, key }, alive: true };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.instances[index as usize] = instance;
                index
            }
            None => {
                self.instances.push(instance);
                self.instances.len() as u32 - 1
            }
        };
        self.born.push(index);
        index
    }

    /// Gives the keys their positions.
    fn number(&mut self) {
        self.order.clear();
        let mut key = self.head;
        while key != NONE {
            let entry = &mut self.entries[key as usize];
            entry.position = self.order.len() as u32;
            self.order.push(key);
            key = entry.next;
        }
    }

    /// The further of two reaches of one lifetime.
    fn further(&self, a: Reach, b: Reach) -> Reach {
        let place = |reach: Reach| (reach.turns, self.entries[reach.key as usize].position);
        if place(b) > place(a) { b } else { a }
    }

    /// The end of a key's lifetime on the unrolled circle.
    fn upper(&self, key: u32, reach: Reach) -> u64 {
        let period = self.order.len() as u64;
        let last = u64::from(self.entries[reach.key as usize].position);
        let upper = last + 1 + u64::from(reach.turns) * period;
        // Freed before its own key comes again, it never meets itself: a whole turn meets all others.
        upper.min(u64::from(self.entries[key as usize].position) + period)
    }

    /// Second pass: how far each lifetime reaches, now that positions are final for this step.
    fn measure(&mut self) {
        self.furthest.clear();
        self.backmost.clear();
        let mut count = 0;
        let actions = std::mem::take(&mut self.actions);
        for &action in &actions {
            match action {
                Action::Allocate(index) => {
                    let key = self.instances[index as usize].key;
                    let position = self.entries[key as usize].position;
                    self.entries[key as usize].seen = self.step;
                    while let Some(&(_, live)) = self.backmost.peek()
                        && !self.instances[live as usize].alive
                    {
                        self.backmost.pop();
                    }
                    let instance = &mut self.instances[index as usize];
                    instance.at = count;
                    if let Some(&(behind, _)) = self.backmost.peek()
                        && behind > position
                    {
                        instance.reach = Reach { turns: 0, key: self.order[behind as usize] };
                    }
                    self.backmost.push((position, index));
                    while self.furthest.last().is_some_and(|&(_, other)| other < position) {
                        self.furthest.pop();
                    }
                    self.furthest.push((count, position));
                    count += 1;
                }
                Action::Free(index) => self.finish(index),
            }
        }
        self.actions = actions;
    }

    /// A block is freed: its fate is known.
    fn finish(&mut self, index: u32) {
        let instance = &mut self.instances[index as usize];
        instance.alive = false;
        let Instance { key, step, at, mut reach, .. } = *instance;
        let Entry { seen, .. } = self.entries[key as usize];
        if step == self.step {
            let after = self.furthest.partition_point(|&(other, _)| other <= at);
            if let Some(&(_, position)) = self.furthest.get(after) {
                reach = self.further(reach, Reach { turns: 0, key: self.order[position as usize] });
            }
        } else {
            // Times its own position has come by: at its key's allocation, or at the end of a step without one.
            let passed = self.step - step - 1 + u32::from(seen == self.step);
            if passed > 0 {
                let tally = &mut self.entries[key as usize].tally;
                if passed == 1 && seen > step {
                    tally.recurring += 1;
                } else {
                    tally.held += 1;
                }
                return;
            }
            reach = self.further(reach, Reach { turns: 0, key: self.end });
            if let Some(&(_, position)) = self.furthest.first() {
                reach = self.further(reach, Reach { turns: 1, key: self.order[position as usize] });
            }
        }
        let furthest = self.further(self.entries[key as usize].reach, reach);
        let entry = &mut self.entries[key as usize];
        entry.reach = furthest;
        entry.tally.shorter += 1;
    }

    /// The boundary: who lives on, and who is held for good.
    fn close(&mut self) {
        self.end = self.order.last().copied().unwrap_or(NONE);
        let mut carried = std::mem::take(&mut self.carried);
        carried.append(&mut self.born);
        carried.retain(|&index| {
            let Instance { key, handle, step, alive, .. } = self.instances[index as usize];
            let stays = alive && self.step - step < 2;
            if !stays {
                self.vacant.push(index);
                if alive {
                    self.entries[key as usize].tally.held += 1;
                    self.live.remove(&handle);
                }
            }
            stays
        });
        self.carried = carried;
    }

    /// Compares the needs of all keys that may have changed with what they were; returns whether any did.
    fn settle(&mut self) -> bool {
        for &key in &self.touched {
            let entry = &mut self.entries[key as usize];
            entry.overdue = 0;
            entry.open = entry.reach;
        }
        for &index in &self.carried {
            let Instance { key, step, reach, .. } = self.instances[index as usize];
            if step < self.step {
                self.entries[key as usize].overdue += 1;
                continue;
            }
            let reach = self.further(reach, Reach { turns: 0, key: self.end });
            self.entries[key as usize].open = self.further(self.entries[key as usize].open, reach);
        }
        let mut changed = false;
        for &key in &self.touched {
            let Entry { mut tally, overdue, open, class: old, needs, .. } = self.entries[key as usize];
            tally.held += overdue;
            let class = tally.class();
            changed |= class != old;
            changed |= class == Class::Planned && self.upper(key, open) > self.upper(key, needs);
            let entry = &mut self.entries[key as usize];
            entry.class = class;
            entry.needs = open;
        }
        changed
    }

    /// The needs of the steps seen so far.
    pub fn problem(&self) -> StepProblem {
        let period = self.order.len() as u64;
        let mut result = StepProblem {
            problem: Problem {
                blocks: Vec::with_capacity(self.order.len()),
                period: Some(period.max(1)),
                ..Problem::default()
            },
            ..StepProblem::default()
        };
        // How many blocks each size and alignment has, extra ones included.
        let mut extra: HashMap<(u64, u64), u32> = HashMap::new();
        for &index in &self.order {
            let Entry { key, position, needs, class, .. } = self.entries[index as usize];
            let mut add = |key: Key, lower: u64, upper: u64| {
                let id = result.keys.len() as u64;
                result.problem.blocks.push(Block { id, lower, upper, size: key.size, align: key.align });
                result.keys.push(key);
            };
            match class {
                Class::Held => result.held.push(key),
                Class::Planned => add(key, u64::from(position), self.upper(index, needs)),
                Class::Recurring => {
                    let kind = (key.size, key.align);
                    let nth = extra
                        .entry(kind)
                        .or_insert_with(|| self.kinds.get(&kind).map_or(0, |kind| kind.members.len() as u32));
                    add(key, 0, period);
                    add(Key { nth: *nth, ..key }, 0, period);
                    *nth += 1;
                }
            }
        }
        result
    }
}
