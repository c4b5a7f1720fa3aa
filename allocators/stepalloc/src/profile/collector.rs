//! The collector: merges the steps of the recorder's log, each with others of its variant.
//!
//! It works on whole steps, between boundaries, in the thread of the step or beside it (see [`crate::engine`]); it is
//! ordinary code that allocates, and runs where allocations go to the backend unrecorded.

use super::lanes::Lanes;
use super::step_profile::{Lane, SAME_VARIANT, StepProfile, common_bytes};
use crate::lookup::{Begin, Class, VARIANTS};
use crate::record::recorder::{self, Recorder};
use crate::settings::Settings;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use stepalloc_planner::{Event, Families, Steps};

/// Detected steps that are merged of each variant: the first shows what a step asks for, the second what
/// lives on into it.
const DETECTED_STEPS: u32 = 2;
/// Detected steps after which no other variant is waited for, times the variants seen.
const NO_OTHER_VARIANT: u64 = 3;
/// Detected steps that are collected at most, where none is like another.
const DETECTED_STEPS_MOST: u64 = 3 * VARIANTS as u64;
/// Marked steps do not repeat where the load of their union is so many times the most live bytes.
const UNALIKE: u64 = 2;

/// What collecting has learned so far.
pub(crate) struct Collector {
    variants: Vec<StepVariant>,
    /// Blocks that lived on when their step ended, and the number of its variant.
    left: HashMap<u32, u64>,
    /// Variants seen so far, also those that were forgotten.
    numbers: u64,
    /// Sizes that follow the data.
    families: Families,
    /// Sizes of the last step's allocations.
    last: Vec<u64>,
    translator: Translator,
    /// Events of the current step, and the thread of each. The vectors are reused from step to step.
    events: Vec<Event>,
    threads: Vec<u16>,
    /// Marked steps by thread; and what is to be planned of these, where that is what repeats.
    lanes: Lanes,
    in_lanes: Option<Vec<Lane>>,
    collected: u64,
    stable: u64,
    /// Steps since a variant was seen for the first time.
    nothing_new: u64,
}

/// When collecting is over.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// When more than so many steps in a row changed nothing, as DeepRec's STABLE says.
    Stable(u64),
    /// When at least so many variants were seen, each of them twice; or no other variant for some time.
    Seen { variants: usize },
}

/// A variant of the step.
struct StepVariant {
    number: u64,
    steps: Steps,
    /// Sizes of a step, ascending, and their sum.
    sizes: Vec<u64>,
    bytes: u64,
    /// A step's allocations in their order.
    sequence: Vec<Class>,
    /// When it was seen last.
    newest: u64,
    /// Blocks that were freed in steps of other variants since.
    freed: Vec<Event>,
}

/// Turns addresses into handles of blocks.
#[derive(Default)]
pub(crate) struct Translator {
    /// Handle and bytes of the block that lives at an address, and the thread that has allocated it.
    live: HashMap<usize, (u32, u64, u16), BuildHasherDefault<AddressHasher>>,
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
            variants: Vec::new(),
            left: HashMap::new(),
            numbers: 0,
            families: Families::default(),
            last: Vec::new(),
            translator: Translator::default(),
            events: Vec::new(),
            threads: Vec::new(),
            lanes: Lanes::default(),
            in_lanes: None,
            collected: 0,
            stable: 0,
            nothing_new: 0,
        }
    }

    /// Begins again, with what it knows of sizes that follow the data.
    pub(crate) fn begin_again(&mut self) {
        *self = Self { families: core::mem::take(&mut self.families), ..Self::new() };
    }

    /// Steps merged.
    pub(crate) fn collected(&self) -> u64 {
        self.collected
    }

    /// Step variants seen.
    pub(crate) fn variants(&self) -> usize {
        self.variants.len()
    }

    /// Whether blocks take turns with those of the step before: the new one is allocated before the old one is freed.
    pub(crate) fn recurs(&self) -> bool {
        self.variants.iter().any(|variant| variant.steps.recurs())
    }

    /// Takes in the marked step whose last event has index `end - 1`; `true` when collecting is over.
    pub(crate) fn step(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> bool {
        let (mut events, mut threads) =
            (core::mem::take(&mut self.events), core::mem::take(&mut self.threads));
        let whole = recorder.read(end, |event, thread| {
            let owner = match event {
                // A block there whose free was not seen is taken for freed.
                recorder::Event::Free { address, .. }
                | recorder::Event::Allocate { address, .. }
                | recorder::Event::Move { address, .. }
                | recorder::Event::Keep { address, .. } => self.translator.owner(address),
            };
            if owner.is_some_and(|owner| owner != thread) {
                self.lanes.mix();
            }
            self.translator.take(event, thread, &mut events);
            threads.resize(events.len(), thread);
        });
        if !whole {
            // The lost events may have freed or allocated anything: the profiles begin again.
            let translator = core::mem::take(&mut self.translator);
            *self = Self { collected: self.collected, ..Self::new() };
            self.translator.next_block = translator.next_block;
            self.translator.most_alive = translator.most_alive;
            self.translator.most_blocks = translator.most_blocks;
        }
        let stable = settings.stable(true).unwrap_or_default();
        let done = self.merge(&mut events, whole, Until::Stable(stable), settings.max_steps);
        self.lanes.step(&events, &threads, whole);
        // All threads' blocks together came in another order not long ago.
        if 2 * self.stable <= stable && self.variants.len() == 1 {
            self.in_lanes = self.lanes.lanes(stable, self.translator.most_alive);
        }
        events.clear();
        threads.clear();
        (self.events, self.threads) = (events, threads);
        done || self.in_lanes.is_some()
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
        // Only steps of as many allocations are sure to stand for each other one by one; and of those that ask for the very same sizes, in
        // whatever order, none follows the data.
        let (before, now) = sizes.split_at(count);
        if now.len() == count && sorted(before) != sorted(now) {
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
        let seen_once = self.variants.iter().filter(|variant| variant.steps.seen() < DETECTED_STEPS).count();
        let no_other = self.nothing_new >= NO_OTHER_VARIANT * self.variants.len() as u64;
        let enough = match until {
            // Variants that take turns would get no plan if they were seen once; a single step that differs comes perhaps never again.
            Until::Stable(steps) => self.stable > steps && (seen_once <= 1 || no_other),
            Until::Seen { variants } => {
                seen_once == 0 && self.variants.len() >= variants
                    || no_other
                    || self.collected >= DETECTED_STEPS_MOST
            }
        };
        enough || self.collected > max_steps
    }

    /// Takes in the beginning of the step after the only one that was merged: of the blocks that lived on beyond that, it shows when they are
    /// freed. Its own are taken to be freed where it ends.
    pub(crate) fn begin_next(&mut self, events: &[Event]) {
        let [variant] = &mut self.variants[..] else { return };
        let mut alive = Vec::new();
        let mut next: Vec<Event> = Vec::with_capacity(2 * events.len());
        for event in events {
            let mut event = *event;
            match &mut event {
                Event::Allocate { block, size, .. } => {
                    *size = self.families.slot(*size);
                    alive.push(*block);
                }
                Event::Free { block } => alive.retain(|other| other != block),
            }
            next.push(event);
        }
        next.extend(alive.into_iter().map(|block| Event::Free { block }));
        variant.steps.step(next);
    }

    /// Merges a step with others of its variant; `true` where that changed the profile.
    fn take_step(&mut self, events: &[Event]) -> bool {
        let allocation = |event: &Event| match *event {
            Event::Allocate { size, align, .. } => Some((size, align)),
            Event::Free { .. } => None,
        };
        let mut sizes: Vec<u64> = events.iter().filter_map(allocation).map(|(size, _)| size).collect();
        sizes.sort_unstable();
        let alike = self.variants.iter().position(|variant| variant.is_like(&sizes));
        let at = alike.unwrap_or_else(|| {
            self.forget_one();
            self.numbers += 1;
            self.variants.push(StepVariant::new(self.numbers));
            self.variants.len() - 1
        });
        self.nothing_new = if alike.is_some() { self.nothing_new + 1 } else { 0 };
        let variant = &mut self.variants[at];
        variant.bytes = sizes.iter().sum();
        (variant.sizes, variant.newest) = (sizes, self.collected);
        let class = |(size, align): (u64, u64)| Class::of(size as usize, align as usize);
        variant.sequence = events.iter().filter_map(allocation).filter_map(class).collect();
        let freed = core::mem::take(&mut variant.freed);
        let changed = variant.steps.step(freed.into_iter().chain(events.iter().copied()));
        let number = variant.number;
        for event in events {
            let block = match *event {
                Event::Allocate { block, .. } => {
                    self.left.insert(block, number);
                    continue;
                }
                Event::Free { block } => block,
            };
            // A block that a step of another variant left: that variant merges the free with its next step.
            if let Some(other) = self.left.remove(&block).filter(|&other| other != number)
                && let Some(variant) = self.variants.iter_mut().find(|variant| variant.number == other)
            {
                variant.freed.push(*event);
            }
        }
        changed
    }

    /// Makes room for another variant: forgets the one that was seen longest ago. The largest stays: blocks
    /// without a slot find gaps in its room.
    fn forget_one(&mut self) {
        if self.variants.len() < VARIANTS {
            return;
        }
        let largest = self.variants.iter().map(|variant| variant.bytes).max().unwrap_or(0);
        let others = self.variants.iter().enumerate().filter(|(_, variant)| variant.bytes < largest);
        if let Some((at, _)) = others.min_by_key(|(_, variant)| variant.newest) {
            self.variants.swap_remove(at);
        }
    }

    /// Learns which sizes stand for those a period before. Where that is news, the profiles begin again:
    /// their blocks had other names.
    pub(crate) fn learn(&mut self, sizes: &[u64], period: usize) {
        if self.families.learn(sizes, period) {
            self.variants.clear();
            self.lanes = Lanes::default();
        }
    }

    /// Whether a plan of these profiles would take far more than the most live bytes. The steps do not repeat
    /// then, and their union grows with each of them.
    pub(crate) fn is_unalike(&self, profiles: &[Arc<StepProfile>]) -> bool {
        let load = profiles.iter().map(|profile| profile.load()).max();
        load.unwrap_or(0) > UNALIKE * self.translator.most_alive
    }

    /// The profiles to plan: of the variants that came again, the newest first; of the largest, where none
    /// has. `detected` steps begin with the first class of their sequence.
    pub(crate) fn profiles(&self, detected: bool) -> Vec<Arc<StepProfile>> {
        let families: Vec<_> = self.families.iter().map(|family| (family.smallest, family.largest)).collect();
        let came_again = |variant: &&StepVariant| variant.steps.seen() >= DETECTED_STEPS && variant.bytes > 0;
        let mut variants: Vec<&StepVariant> = self.variants.iter().filter(came_again).collect();
        if variants.is_empty() {
            variants.extend(self.variants.iter().max_by_key(|variant| variant.bytes));
        }
        variants.sort_unstable_by_key(|variant| core::cmp::Reverse(variant.newest));
        let profile = |variant: &StepVariant| {
            let allocations = u32::try_from(variant.sizes.len()).unwrap_or(u32::MAX);
            let first = variant.sequence.first().filter(|_| detected);
            let begin = first.map(|&class| Begin { class, allocations });
            Arc::new(StepProfile {
                lanes: self.in_lanes.clone().unwrap_or_else(|| vec![Lane::of_all(variant.steps.problem())]),
                families: families.clone(),
                begin,
                sequence: variant.sequence.clone(),
            })
        };
        variants.into_iter().map(profile).collect()
    }
}

fn sorted(sizes: &[u64]) -> Vec<u64> {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes
}

impl StepVariant {
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

    /// Whether most bytes of a step are in blocks of this variant's sizes, and the other way round.
    fn is_like(&self, sizes: &[u64]) -> bool {
        let bytes: u64 = sizes.iter().sum();
        common_bytes(&self.sizes, sizes) * 100 >= bytes.max(self.bytes) * SAME_VARIANT
    }
}

impl Translator {
    /// The thread that has allocated the block at an address, if it is known.
    fn owner(&self, address: usize) -> Option<u16> {
        self.live.get(&address).map(|&(.., thread)| thread)
    }

    /// The most bytes that were alive at once, of the blocks it knows.
    pub(crate) fn most_alive(&self) -> u64 {
        self.most_alive
    }

    /// Appends an event to others, or takes the last one back, a free that was none; returns the bytes that it frees, as far as they are known.
    pub(crate) fn take(&mut self, event: recorder::Event, thread: u16, events: &mut Vec<Event>) -> u64 {
        let (address, class, from) = match event {
            recorder::Event::Allocate { address, class } | recorder::Event::Keep { address, class } => {
                (address, class, None)
            }
            recorder::Event::Move { address, class, from } => (address, class, Some(from)),
            recorder::Event::Free { address, bytes } => {
                let Some((block, bytes, _)) = self.live.remove(&address) else { return bytes as u64 };
                self.alive -= bytes;
                self.freed = (address, block);
                events.push(Event::Free { block });
                return bytes;
            }
        };
        // Other threads may have logged between the free and the allocation of one realloc. Then the two blocks are
        // not known to overlap, and a slot may be occupied once; the arena bears that.
        let freed_just_now = events.last() == Some(&Event::Free { block: self.freed.1 });
        if let recorder::Event::Keep { .. } = event
            && self.freed.0 == address
            && freed_just_now
        {
            events.pop();
            self.live.insert(address, (self.freed.1, class.bytes(), thread));
            self.alive += class.bytes();
            return 0;
        }
        let moved_from = (from == Some(self.freed.0) && freed_just_now).then_some(self.freed.1);
        let block = self.next_block;
        self.next_block = block.wrapping_add(1);
        let lost = self.live.insert(address, (block, class.bytes(), thread));
        if let Some((lost, ..)) = lost {
            // Its free was not seen: a library found another free than ours.
            events.push(Event::Free { block: lost });
        }
        events.push(Event::Allocate { block, size: class.bytes(), align: class.align(), moved_from });
        let lost = lost.map_or(0, |(_, bytes, _)| bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::Class;
    use crate::record::recorder::Event as Recorded;

    #[test]
    fn a_block_that_could_not_be_reallocated_lives_on() {
        let class = |bytes| Class::of(bytes, 64).expect("a size that can be");
        let (old, new) = (class(40_000), class(41_000));
        let mut translator = Translator::default();
        let mut events = Vec::new();
        for event in [
            Recorded::Allocate { address: 64, class: old },
            Recorded::Free { address: 64, bytes: 40_000 },
            Recorded::Keep { address: 64, class: old },
            // It is copied to another place instead.
            Recorded::Free { address: 64, bytes: 40_000 },
            Recorded::Move { address: 128, class: new, from: 64 },
        ] {
            translator.take(event, 0, &mut events);
        }
        let allocate = |block, class: Class, moved_from| Event::Allocate {
            block,
            size: class.bytes(),
            align: class.align(),
            moved_from,
        };
        let lived = [allocate(0, old, None), Event::Free { block: 0 }, allocate(1, new, Some(0))];
        assert_eq!(events, lived);
        assert_eq!(translator.alive, new.bytes());
    }
}
