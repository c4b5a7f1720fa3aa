//! The collector: merges the steps of the recorder's log, each with others of its kind.
//!
//! It works on whole steps, between boundaries, in the thread of the step or beside it (see [`crate::engine`]); it is
//! ordinary code that allocates, and runs where allocations go to the backend unrecorded.

use super::step_profile::{SAME_KIND, StepProfile, common_bytes};
use crate::lookup::{Begin, Class, KINDS};
use crate::record::recorder::{self, Recorder};
use crate::settings::Settings;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use stepalloc_planner::{Event, Families, Steps};

/// Steps of a rhythm that are merged of each kind: the first shows what a step asks for, the second what lives on into it.
const FOUND_STEPS: u32 = 2;
/// Steps of a rhythm that are waited for in vain for another kind, for each kind seen.
const NO_OTHER_KIND: u64 = 3;
/// Steps of a rhythm that are collected at most, where none is like another.
const FOUND_STEPS_MOST: u64 = 3 * KINDS as u64;
/// Marked steps do not repeat where the union of their needs is so many times what was ever alive.
const UNALIKE: u64 = 2;

/// What collecting has learned so far.
pub(crate) struct Collector {
    kinds: Vec<Kind>,
    /// Blocks that lived on when their step ended, and the number of its kind.
    left: HashMap<u32, u64>,
    /// Kinds seen so far, also such as were forgotten.
    numbers: u64,
    /// Sizes that follow the data.
    families: Families,
    /// Sizes of the last step's allocations.
    last: Vec<u64>,
    translator: Translator,
    /// Events of the step at hand, kept from step to step for their room.
    events: Vec<Event>,
    collected: u64,
    stable: u64,
    /// Steps since a kind was seen for the first time.
    nothing_new: u64,
}

/// When collecting is over.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// When more than so many steps in a row changed nothing, as DeepRec's STABLE says.
    Stable(u64),
    /// When steps of so many kinds at least were seen, each of them twice; or no other kind for some time.
    Seen { kinds: usize },
}

/// A kind of step.
struct Kind {
    number: u64,
    steps: Steps,
    /// Sizes of a step, ascending, and their sum.
    sizes: Vec<u64>,
    bytes: u64,
    /// A step's allocations in their order.
    sequence: Vec<Class>,
    /// When it was seen last.
    newest: u64,
    /// Blocks that were freed in steps of other kinds since.
    freed: Vec<Event>,
}

/// Turns addresses into handles of blocks.
#[derive(Default)]
pub(crate) struct Translator {
    /// Handle and bytes of the block that lives at an address.
    live: HashMap<usize, (u32, u64), BuildHasherDefault<AddressHasher>>,
    next_block: u32,
    /// Address and handle of the block freed last.
    freed: (usize, u32),
    /// Bytes of those blocks, and the most they ever were.
    alive: u64,
    most_alive: u64,
    /// The most blocks.
    most_blocks: usize,
}

impl Collector {
    pub(crate) fn new() -> Self {
        Self {
            kinds: Vec::new(),
            left: HashMap::new(),
            numbers: 0,
            families: Families::default(),
            last: Vec::new(),
            translator: Translator::default(),
            events: Vec::new(),
            collected: 0,
            stable: 0,
            nothing_new: 0,
        }
    }

    /// Begins again, with what it knows of sizes that follow the data.
    pub(crate) fn begin_again(&mut self) {
        *self = Self { families: core::mem::take(&mut self.families), ..Self::new() };
    }

    /// Kinds of steps seen.
    pub(crate) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Whether blocks take turns with those of the step before: the new one is allocated before the old one is freed.
    pub(crate) fn recurs(&self) -> bool {
        self.kinds.iter().any(|kind| kind.steps.recurs())
    }

    /// Takes in the marked step whose last event has index `end - 1`; `true` when collecting is over.
    pub(crate) fn step(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> bool {
        let mut events = core::mem::take(&mut self.events);
        let whole = recorder.read(end, |event| {
            self.translator.take(event, &mut events);
        });
        if !whole {
            // What was lost may have freed or allocated anything: begin the needs again.
            let translator = core::mem::take(&mut self.translator);
            *self = Self { collected: self.collected, ..Self::new() };
            self.translator.next_block = translator.next_block;
            self.translator.most_alive = translator.most_alive;
            self.translator.most_blocks = translator.most_blocks;
        }
        let stable = settings.stable(true).unwrap_or_default();
        let done = self.merge(&mut events, whole, Until::Stable(stable), settings.max_steps);
        events.clear();
        self.events = events;
        done
    }

    /// Merges the events of a step; `true` when collecting is over, at most after `max_steps` and another.
    pub(crate) fn merge(&mut self, events: &mut [Event], whole: bool, until: Until, max_steps: u64) -> bool {
        let size = |event: &Event| match *event {
            Event::Allocate { size, .. } => Some(size),
            Event::Free { .. } => None,
        };
        let mut sizes = core::mem::take(&mut self.last);
        let count = sizes.len();
        sizes.extend(events.iter().filter_map(size));
        // Only steps of as many allocations are sure to stand for each other one by one.
        if sizes.len() == 2 * count {
            self.learn(&sizes, count);
        }
        sizes.drain(..count);
        self.last = sizes;
        for event in events.iter_mut() {
            if let Event::Allocate { size, .. } = event {
                *size = self.families.slot(*size);
            }
        }
        let changed = self.take_step(events);
        self.collected += 1;
        self.stable = if changed || !whole { 0 } else { self.stable + 1 };
        let seen_once = self.kinds.iter().filter(|kind| kind.steps.seen() < FOUND_STEPS).count();
        let waited_in_vain = self.nothing_new >= NO_OTHER_KIND * self.kinds.len() as u64;
        let enough = match until {
            // Variants that take turns would get no plan if they were seen once; a single step that differs comes perhaps never again.
            Until::Stable(steps) => self.stable > steps && (seen_once <= 1 || waited_in_vain),
            Until::Seen { kinds } => {
                seen_once == 0 && self.kinds.len() >= kinds
                    || waited_in_vain
                    || self.collected >= FOUND_STEPS_MOST
            }
        };
        enough || self.collected > max_steps
    }

    /// Merges a step with others of its kind; `true` where that changed what is needed.
    fn take_step(&mut self, events: &[Event]) -> bool {
        let allocation = |event: &Event| match *event {
            Event::Allocate { size, align, .. } => Some((size, align)),
            Event::Free { .. } => None,
        };
        let mut sizes: Vec<u64> = events.iter().filter_map(allocation).map(|(size, _)| size).collect();
        sizes.sort_unstable();
        let alike = self.kinds.iter().position(|kind| kind.is_like(&sizes));
        let at = alike.unwrap_or_else(|| {
            self.forget_one();
            self.numbers += 1;
            self.kinds.push(Kind::new(self.numbers));
            self.kinds.len() - 1
        });
        self.nothing_new = if alike.is_some() { self.nothing_new + 1 } else { 0 };
        let kind = &mut self.kinds[at];
        kind.bytes = sizes.iter().sum();
        (kind.sizes, kind.newest) = (sizes, self.collected);
        let class = |(size, align): (u64, u64)| Class::of(size as usize, align as usize);
        kind.sequence = events.iter().filter_map(allocation).filter_map(class).collect();
        let freed = core::mem::take(&mut kind.freed);
        let changed = kind.steps.step(freed.into_iter().chain(events.iter().copied()));
        let number = kind.number;
        for event in events {
            let block = match *event {
                Event::Allocate { block, .. } => {
                    self.left.insert(block, number);
                    continue;
                }
                Event::Free { block } => block,
            };
            // What a step of another kind has left, that kind is told with its next step.
            if let Some(other) = self.left.remove(&block).filter(|&other| other != number)
                && let Some(kind) = self.kinds.iter_mut().find(|kind| kind.number == other)
            {
                kind.freed.push(*event);
            }
        }
        changed
    }

    /// Makes room for another kind: forgets the one that was seen longest ago. The largest stays: what finds no slot
    /// finds gaps in its room.
    fn forget_one(&mut self) {
        if self.kinds.len() < KINDS {
            return;
        }
        let largest = self.kinds.iter().map(|kind| kind.bytes).max().unwrap_or(0);
        let others = self.kinds.iter().enumerate().filter(|(_, kind)| kind.bytes < largest);
        if let Some((at, _)) = others.min_by_key(|(_, kind)| kind.newest) {
            self.kinds.swap_remove(at);
        }
    }

    /// Learns which sizes stand for those a period before. Where that is news, the needs begin again: their blocks had
    /// other names.
    pub(crate) fn learn(&mut self, sizes: &[u64], period: usize) {
        if self.families.learn(sizes, period) {
            self.kinds.clear();
        }
    }

    /// Whether a plan of these needs would take far more than was ever alive, as the steps do not repeat, and the union of what
    /// they ask for grows with each of them.
    pub(crate) fn is_unalike(&self, needs: &[Arc<StepProfile>]) -> bool {
        let load = needs.iter().map(|needs| needs.step.problem.load().max).max();
        load.unwrap_or(0) > UNALIKE * self.translator.most_alive
    }

    /// What is to be planned: the kinds that came again, the newest first; the largest, where none has.
    pub(crate) fn needs(&self, found: bool) -> Vec<Arc<StepProfile>> {
        let families: Vec<_> = self.families.iter().map(|family| (family.smallest, family.largest)).collect();
        let mut kinds: Vec<&Kind> =
            self.kinds.iter().filter(|kind| kind.steps.seen() >= FOUND_STEPS && kind.bytes > 0).collect();
        if kinds.is_empty() {
            kinds.extend(self.kinds.iter().max_by_key(|kind| kind.bytes));
        }
        kinds.sort_unstable_by_key(|kind| core::cmp::Reverse(kind.newest));
        let needs = |kind: &Kind| {
            let allocations = u32::try_from(kind.sizes.len()).unwrap_or(u32::MAX);
            let first = kind.sequence.first().filter(|_| found);
            let begin = first.map(|&class| Begin { class, allocations });
            Arc::new(StepProfile {
                step: kind.steps.problem(),
                families: families.clone(),
                begin,
                sequence: kind.sequence.clone(),
            })
        };
        kinds.into_iter().map(needs).collect()
    }
}

impl Kind {
    fn new(number: u64) -> Self {
        Self {
            number,
            steps: Steps::new(),
            sizes: Vec::new(),
            bytes: 0,
            sequence: Vec::new(),
            newest: 0,
            freed: Vec::new(),
        }
    }

    /// Whether most bytes of a step are in blocks of this kind's sizes, and the other way round.
    fn is_like(&self, sizes: &[u64]) -> bool {
        let bytes: u64 = sizes.iter().sum();
        common_bytes(&self.sizes, sizes) * 100 >= bytes.max(self.bytes) * SAME_KIND
    }
}

impl Translator {
    /// Appends an event to others; returns the bytes that it frees, as far as they are known.
    pub(crate) fn take(&mut self, event: recorder::Event, events: &mut Vec<Event>) -> u64 {
        let (address, class, from) = match event {
            recorder::Event::Allocate { address, class } => (address, class, None),
            recorder::Event::Move { address, class, from } => (address, class, Some(from)),
            recorder::Event::Free { address, bytes } => {
                let Some((block, bytes)) = self.live.remove(&address) else { return bytes as u64 };
                self.alive -= bytes;
                self.freed = (address, block);
                events.push(Event::Free { block });
                return bytes;
            }
        };
        // Other threads may have logged between the free and the allocation of one realloc. Then the two blocks are
        // not known to overlap, and the slots may prove busy once; the arena bears that.
        let freed_just_now = events.last() == Some(&Event::Free { block: self.freed.1 });
        let moved_from = (from == Some(self.freed.0) && freed_just_now).then_some(self.freed.1);
        let block = self.next_block;
        self.next_block = block.wrapping_add(1);
        let lost = self.live.insert(address, (block, class.bytes()));
        if let Some((lost, _)) = lost {
            // Its free was not seen: a library found another free than ours.
            events.push(Event::Free { block: lost });
        }
        events.push(Event::Allocate { block, size: class.bytes(), align: class.align(), moved_from });
        let lost = lost.map_or(0, |(_, bytes)| bytes);
        self.alive = self.alive + class.bytes() - lost;
        self.most_alive = self.most_alive.max(self.alive);
        self.most_blocks = self.most_blocks.max(self.live.len());
        lost
    }
}

/// Addresses are spread by a multiplication; nobody chooses them to collide.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        let mixed = (self.0 ^ value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
