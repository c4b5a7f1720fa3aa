//! The collector: turns the recorder's log into the needs of a step, and these into a proposal for the matcher.
//!
//! It works on whole steps, between boundaries, in the thread of the step or beside it (see [`mod@crate::phase`]); it is
//! ordinary code that allocates, and runs where allocations go to the backend unrecorded.

use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT};
use crate::cells::Cut;
use crate::found::Start;
use crate::matcher::{Class, ClassSlots};
use crate::recorder::{self, Recorder};
use crate::settings::Settings;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;
use stepalloc_planner::{Block, Effort, Event, Families, Plan, Planner, Problem, StepProblem, Steps};

/// What a lower plan is worth: while it is looked for, the backend serves. Nearly all recorded steps take far less.
const TIME_LIMIT: Duration = Duration::from_millis(250);

/// The share of the load that rounding sizes up to a granule may add: one part in this many. Below what users notice;
/// smaller granules make gaps and the table of blocks dearer.
const ROUNDING_SHARE: u64 = 128;

/// Steps of a rhythm that are merged: the first shows what a step asks for, the second what lives on into it.
const FOUND_STEPS: u32 = 2;

/// What collecting has learned so far.
pub(crate) struct Collector {
    steps: Steps,
    /// Sizes that follow the data.
    families: Families,
    /// Sizes of the last step's allocations.
    last: Vec<u64>,
    translator: Translator,
    /// Events of the step at hand, kept from step to step for their room.
    events: Vec<Event>,
    collected: u64,
    stable: u64,
}

/// Turns addresses into handles of blocks.
#[derive(Default)]
pub(crate) struct Translator {
    /// Handle and bytes of the block that lives at an address.
    live: HashMap<usize, (u32, u64), BuildHasherDefault<AddressHasher>>,
    next_block: u32,
    /// Address and handle of the block freed last.
    freed: (usize, u32),
}

/// What is to be planned.
pub(crate) struct Needs {
    pub(crate) step: StepProblem,
    /// Smallest and largest size of each family.
    pub(crate) families: Vec<(u64, u64)>,
}

/// A plan in the words of the matcher and the arena.
pub(crate) struct Proposal {
    pub(crate) classes: Vec<ClassSlots>,
    /// Smallest and largest size of each family, whose class is that of the largest.
    pub(crate) families: Vec<(u64, u64)>,
    /// The arena cut at the slots' edges.
    pub(crate) cut: Cut,
    /// log2 of the granule's bytes.
    pub(crate) shift: u32,
    /// Height of the plan in granules.
    granules: u32,
    /// The largest load in bytes, sizes rounded up to a cache line only: no plan is smaller.
    pub(crate) lower_bound: u64,
    /// Whether no plan of these granules is lower.
    pub(crate) optimal: bool,
    /// Blocks planned.
    pub(crate) blocks: u64,
    /// How steps are known to begin, where they were found.
    pub(crate) found: Option<Start>,
}

impl Collector {
    pub(crate) fn new() -> Self {
        Self {
            steps: Steps::new(),
            families: Families::default(),
            last: Vec::new(),
            translator: Translator::default(),
            events: Vec::new(),
            collected: 0,
            stable: 0,
        }
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
        }
        let done = self.merge(&mut events, whole, settings.stable(true), settings.max_steps);
        events.clear();
        self.events = events;
        done
    }

    /// Merges the events of a step; `true` when collecting is over by DeepRec's thresholds: more than STABLE steps in a
    /// row changed nothing, or more than MAX were collected. Without STABLE two steps are enough.
    pub(crate) fn merge(
        &mut self,
        events: &mut [Event],
        whole: bool,
        stable_steps: Option<u64>,
        max_steps: u64,
    ) -> bool {
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
        let changed = self.steps.step(events.iter().copied());
        self.collected += 1;
        self.stable = if changed || !whole { 0 } else { self.stable + 1 };
        let enough = stable_steps.map_or(self.steps.seen() >= FOUND_STEPS, |steps| self.stable > steps);
        enough || self.collected > max_steps
    }

    /// Learns which sizes stand for those a period before. Where that is news, the needs begin again: their blocks had
    /// other names.
    pub(crate) fn learn(&mut self, sizes: &[u64], period: usize) {
        if self.families.learn(sizes, period) {
            self.steps = Steps::new();
        }
    }

    /// The class of a request, or of its family.
    pub(crate) fn class(&self, class: Class) -> Class {
        class.with_bytes(self.families.slot(class.bytes()))
    }

    /// What is to be planned.
    pub(crate) fn needs(&self) -> Needs {
        Needs {
            step: self.steps.problem(),
            families: self.families.iter().map(|family| (family.smallest, family.largest)).collect(),
        }
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
        lost.map_or(0, |(_, bytes)| bytes)
    }
}

impl Proposal {
    /// Plans a step. `shift` fixes the granule where the arena is open already.
    pub(crate) fn of(needs: &Needs, effort: Effort, shift: Option<u32>) -> Option<Self> {
        let step = &needs.step;
        let lower_bound = step.problem.load().max;
        let shift = shift.unwrap_or_else(|| granule_shift(&step.problem, lower_bound));
        let rounded = rounded(&step.problem, shift);
        let plan = Planner::new().effort(effort).time_limit(Some(TIME_LIMIT)).plan(&rounded).ok()?;
        let classes = classes(step, &plan, shift)?;
        let granules = u32::try_from(plan.height >> shift).ok()?;
        Some(Self {
            cut: cut(&classes, shift, granules),
            classes,
            families: needs.families.clone(),
            shift,
            granules,
            lower_bound,
            optimal: plan.optimal(),
            blocks: step.problem.blocks.len() as u64,
            found: None,
        })
    }

    /// Height of the plan in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.granules) << self.shift
    }

    /// Leaves blocks that would end beyond `bytes` to the backend.
    pub(crate) fn limit(&mut self, bytes: usize) {
        let granules = match u32::try_from(bytes >> self.shift) {
            Ok(granules) if granules < self.granules => granules,
            _ => return,
        };
        for class in &mut self.classes {
            let length = class.class.bytes().div_ceil(1 << self.shift);
            for slot in &mut class.slots {
                if slot.is_some_and(|start| u64::from(start) + length > u64::from(granules)) {
                    *slot = None;
                    self.blocks -= 1;
                }
            }
        }
        self.granules = granules;
        self.cut = cut(&self.classes, self.shift, granules);
    }
}

/// The arena cut at the slots' edges.
fn cut(classes: &[ClassSlots], shift: u32, granules: u32) -> Cut {
    let runs: Vec<_> = classes.iter().flat_map(|class| class.runs(shift)).flatten().collect();
    Cut::of(&runs, granules)
}

/// The largest granule that adds little to the load.
fn granule_shift(problem: &Problem, load: u64) -> u32 {
    let bearable = load + load / ROUNDING_SHARE;
    (GRANULE_MIN_SHIFT + 1..=GRANULE_MAX_SHIFT)
        .rev()
        .find(|&shift| rounded(problem, shift).load().max <= bearable)
        .unwrap_or(GRANULE_MIN_SHIFT)
}

/// The problem with sizes and alignments of whole granules.
fn rounded(problem: &Problem, shift: u32) -> Problem {
    let granule = 1u64 << shift;
    let blocks = problem.blocks.iter().map(|block| Block {
        size: block.size.next_multiple_of(granule),
        align: block.align.max(granule),
        ..*block
    });
    Problem { blocks: blocks.collect(), period: problem.period, ..Problem::default() }
}

/// The plan's slots by class and number in the step; `None` where a granule cannot be named in 32 bits.
fn classes(step: &StepProblem, plan: &Plan, shift: u32) -> Option<Vec<ClassSlots>> {
    let mut by_class: HashMap<Class, Vec<Option<u32>>> = HashMap::new();
    let mut put = |size: u64, align: u64, nth: u32, start: Option<u32>| {
        let class = Class::of(usize::try_from(size).ok()?, usize::try_from(align).ok()?)?;
        let slots = by_class.entry(class).or_default();
        let nth = nth as usize;
        if slots.len() <= nth {
            slots.resize(nth + 1, None);
        }
        slots[nth] = start;
        Some(())
    };
    for (key, offset) in step.keys.iter().zip(&plan.offsets) {
        put(key.size, key.align, key.nth, Some(u32::try_from(offset >> shift).ok()?))?;
    }
    for key in &step.held {
        put(key.size, key.align, key.nth, None)?;
    }
    let mut classes: Vec<_> =
        by_class.into_iter().map(|(class, slots)| ClassSlots { class, slots }).collect();
    classes.sort_unstable_by_key(|class| class.class.to_bits());
    Some(classes)
}

/// Addresses are spread by a multiplication; nobody chooses them to collide.
#[derive(Default)]
struct AddressHasher(u64);

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
    use crate::granules::Run;
    use std::path::Path;
    use stepalloc_planner::{Input, read_any};

    /// The README's shares: `cargo test --release -p stepalloc slots_of_recorded -- --nocapture` prints them.
    #[test]
    fn slots_of_recorded_steps_lie_in_a_word_of_cells_or_two() {
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
        let Ok(files) = std::fs::read_dir(&traces) else {
            eprintln!("SKIPPED: no traces in {}", traces.display());
            return;
        };
        let paths = files.map(|file| file.expect("a file of the directory").path());
        for path in paths.filter(|path| path.to_string_lossy().ends_with(".csv.gz")) {
            let input = read_any(&path, Settings::DEFAULT.min_bytes as u64).expect("a trace");
            let Input::Trace { steps, .. } = input else { panic!("{}: no trace", path.display()) };
            let shift = granule_shift(&steps.problem, steps.problem.load().max);
            let problem = rounded(&steps.problem, shift);
            let plan = Planner::new().plan(&problem).expect("a plan");
            let granules = |bytes: u64| (bytes >> shift) as u32;
            let blocks = problem.blocks.iter().zip(&plan.offsets);
            let runs: Vec<_> =
                blocks.map(|(block, &at)| Run::new(granules(at), granules(block.size))).collect();
            let cut = Cut::of(&runs, granules(plan.height));
            let slots = cut.words().count();
            let of = |words: u32| cut.words().filter(|&count| count == words).count();
            let (one, two) = (of(1), of(2));
            println!(
                "figures: {} slots={slots} one_word={one} two={two} more={}",
                path.file_name().unwrap_or_default().display(),
                slots - one - two
            );
            assert!(slots > 0 && one * 100 >= slots * 80 && (one + two) * 100 >= slots * 98);
        }
    }
}
