//! The collector: turns the recorder's log into the needs of a step, and these into a proposal for the matcher.
//!
//! It works on whole steps, between boundaries, in the thread of the step or beside it (see [`crate::engine`]); it is
//! ordinary code that allocates, and runs where allocations go to the backend unrecorded.

use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT};
use crate::cells::Cut;
use crate::found::Start;
use crate::kept::Plans;
use crate::matcher::{Begin, Class, ClassSlots, KINDS, Tables};
use crate::os;
use crate::recorder::{self, Recorder};
use crate::settings::Settings;
use core::ops::ControlFlow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;
use stepalloc_planner::{Block, Effort, Event, Families, Planner, Problem, StepProblem, Steps, rhythm};

/// What a lower plan is worth: while it is looked for, the backend serves. Nearly all recorded steps take far less. Of
/// several kinds, all plans together.
const TIME_LIMIT: Duration = Duration::from_millis(250);

/// Memory that looking for a lower plan may take: it is the process's, and a plan saves no more than some percent of its arena.
const SEARCH_BYTES: u64 = 4 << 20;
/// Or one part in this many of what the process has resident.
const SEARCH_SHARE: u64 = 100;

/// The share of the load that rounding sizes up to a granule may add: one part in this many. Below what users notice;
/// smaller granules make gaps and the table of blocks dearer.
pub(crate) const ROUNDING_SHARE: u64 = 128;

/// Steps of a rhythm that are merged of each kind: the first shows what a step asks for, the second what lives on into it.
const FOUND_STEPS: u32 = 2;
/// Steps of a rhythm that are waited for in vain for another kind, for each kind seen.
const NO_OTHER_KIND: u64 = 3;
/// Steps of a rhythm that are collected at most, where none is like another.
const FOUND_STEPS_MOST: u64 = 3 * KINDS as u64;
/// Steps are of one kind when so many of their bytes are asked for in blocks of the same sizes, in percent.
const SAME_KIND: u64 = 90;
/// The newest allocations that must be a step's, one after the other, if it is to be known by them.
pub(crate) const TELLING: usize = 24;
/// So many of them may differ.
const DIFFERING: usize = 2;
/// A place in a step is given up looking for after comparing so many times as many allocations as it has.
const MOST_LOOKS: usize = 16;
/// Bytes by which one plan for all kinds may be higher than one for each, where blocks live on from step to step: one part
/// in this many. Plans made for each kind alone have another place for them.
const SHARED_COSTS: u64 = 50;
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

/// What is to be planned of one kind of step.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    pub(crate) step: StepProblem,
    /// Smallest and largest size of each family.
    pub(crate) families: Vec<(u64, u64)>,
    /// How steps are known to begin, where nobody marks them.
    pub(crate) begin: Option<Begin>,
    /// What a step asks for, in its order.
    pub(crate) sequence: Vec<Class>,
}

/// Plans in the words of the matcher and the arena, one for each kind of step.
pub(crate) struct Proposal {
    /// What was planned.
    pub(crate) needs: Vec<Arc<Needs>>,
    /// The offsets of each one's blocks, in bytes.
    offsets: Vec<Vec<u64>>,
    /// The slots of each.
    slots: Vec<Vec<ClassSlots>>,
    /// The arena cut at all slots' edges.
    pub(crate) cut: Cut,
    /// log2 of the granule's bytes.
    pub(crate) shift: u32,
    /// Height of the highest plan in granules.
    granules: u32,
    /// The largest load in bytes, sizes rounded up to a cache line only: no plan is smaller.
    pub(crate) lower_bound: u64,
    /// Whether no plan of these granules is lower.
    pub(crate) optimal: bool,
    /// Blocks planned.
    pub(crate) blocks: u64,
    /// The rhythm of the steps, where it was found.
    pub(crate) found: Option<Start>,
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
    pub(crate) fn is_unalike(&self, needs: &[Arc<Needs>]) -> bool {
        let load = needs.iter().map(|needs| needs.step.problem.load().max).max();
        load.unwrap_or(0) > UNALIKE * self.translator.most_alive
    }

    /// What is to be planned: the kinds that came again, the newest first; the largest, where none has.
    pub(crate) fn needs(&self, found: bool) -> Vec<Arc<Needs>> {
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
            Arc::new(Needs {
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

/// Bytes of what is alike in two ascending sequences of sizes.
fn common_bytes(one: &[u64], other: &[u64]) -> u64 {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut bytes = 0;
    while let (Some(&&left), Some(&&right)) = (one.peek(), other.peek()) {
        let alike = rhythm::alike(left, right);
        if alike || left < right {
            one.next();
        }
        if alike || right < left {
            other.next();
        }
        bytes += if alike { left.min(right) } else { 0 };
    }
    bytes
}

impl Needs {
    /// The class of a request, or of its family.
    pub(crate) fn class(&self, class: Class) -> Class {
        let bytes = class.bytes();
        let of = |family: &&(u64, u64)| family.0 <= bytes && bytes <= family.1;
        self.families.iter().find(of).map_or(class, |family| class.with_bytes(family.1))
    }

    /// Where in a step the program is that has asked for `heard`: how many of the newest are those of a step, but for
    /// [`DIFFERING`], and the number of the step's allocations before the next. Steps follow each other, so a step's beginning
    /// may come after its end. `None` where fewer than [`TELLING`] are alike, or no fewer elsewhere in the step; but of a step
    /// that repeats within itself, and was seen whole, the first such place.
    pub(crate) fn place(&self, heard: &[Class]) -> Option<(usize, usize)> {
        let length = self.sequence.len();
        let telling = TELLING.min(length);
        let newest: Vec<Class> =
            heard.iter().rev().take(length.max(telling)).map(|&class| self.class(class)).collect();
        if telling == 0 || newest.len() < telling {
            return None;
        }
        let differing = DIFFERING.min(telling / 8);
        // Where a step is mostly of one size, it is alike everywhere, and tells nothing.
        let mut looks = MOST_LOOKS * length;
        let mut alike = |at: usize| {
            let before = self.sequence[..at].iter().rev().chain(self.sequence.iter().rev());
            let mut differ = 0;
            let pairs = newest.iter().zip(before).take_while(|(one, other)| {
                differ += usize::from(one != other);
                differ <= differing
            });
            let count = pairs.count();
            looks = looks.saturating_sub(count);
            (looks > 0).then_some(count)
        };
        let (mut best, mut second) = ((0, 0), 0);
        for at in 0..length {
            let alike = alike(at)?;
            if alike > best.0 {
                (best, second) = ((alike, at), best.0);
            } else {
                second = second.max(alike);
            }
        }
        (best.0 >= telling && (best.0 > second + differing || best.0 >= length)).then_some(best)
    }

    /// Whether most of another's bytes are asked for in blocks that this has as well.
    fn covers(&self, other: &Self) -> bool {
        let sizes = |needs: &Self| {
            let mut sizes: Vec<u64> = needs.step.problem.blocks.iter().map(|block| block.size).collect();
            sizes.sort_unstable();
            sizes
        };
        let (mine, others) = (sizes(self), sizes(other));
        common_bytes(&mine, &others) * 100 >= others.iter().sum::<u64>() * SAME_KIND
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

/// Adds to new kinds those planned before that they do not stand for, in their order and as many as are kept.
pub(crate) fn with_others(mut new: Vec<Arc<Needs>>, others: &[Arc<Needs>]) -> Vec<Arc<Needs>> {
    let fresh = new.len();
    for other in others {
        if new.len() < KINDS && !new[..fresh].iter().any(|needs| needs.covers(other)) {
            new.push(Arc::clone(other));
        }
    }
    new
}

impl Proposal {
    /// Plans kinds of steps. `shift` fixes the granule where the arena is open already.
    pub(crate) fn of(needs: Vec<Arc<Needs>>, effort: Effort, shift: Option<u32>) -> Option<Self> {
        let loads = needs.iter().map(|needs| needs.step.problem.load().max);
        let lower_bound = loads.max()?;
        let shift = shift.unwrap_or_else(|| {
            let shifts = needs.iter().map(|needs| granule_shift(&needs.step.problem, lower_bound));
            shifts.min().unwrap_or(GRANULE_MIN_SHIFT)
        });
        // Each alone, and all together.
        let plans = if needs.len() == 1 { 1 } else { needs.len() as u32 + 1 };
        let most = os::resident_bytes().0;
        let most = most + (most / SEARCH_SHARE).max(SEARCH_BYTES);
        let is_large = move || os::resident_bytes().0 > most;
        let watch = move |_| if is_large() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let planner = Planner::new().effort(effort).time_limit(Some(TIME_LIMIT / plans)).watch(watch);
        let (offsets, height, optimal) = plan_kinds(&planner, &needs, shift)?;
        Self::with_offsets(needs, offsets, height, shift, optimal)
    }

    /// Plans whose offsets are known.
    pub(crate) fn with_offsets(
        needs: Vec<Arc<Needs>>,
        offsets: Vec<Vec<u64>>,
        height: u64,
        shift: u32,
        optimal: bool,
    ) -> Option<Self> {
        let kinds = needs.iter().zip(&offsets);
        let slots =
            kinds.map(|(needs, offsets)| classes(&needs.step, offsets, shift)).collect::<Option<Vec<_>>>()?;
        let granules = u32::try_from(height >> shift).ok()?;
        Some(Self {
            cut: cut(&slots, shift, granules),
            blocks: needs.iter().map(|needs| needs.step.problem.blocks.len() as u64).sum(),
            lower_bound: needs.iter().map(|needs| needs.step.problem.load().max).max()?,
            slots,
            offsets,
            needs,
            shift,
            granules,
            optimal,
            found: None,
        })
    }

    /// Steps are marked.
    pub(crate) fn ignore_begin(&mut self) {
        self.needs.iter_mut().for_each(|needs| Arc::make_mut(needs).begin = None);
        self.found = None;
    }

    /// The same as they are kept in a file. Before they are limited.
    pub(crate) fn to_keep(&self, min_bytes: usize) -> Plans {
        Plans {
            needs: self.needs.clone(),
            offsets: self.offsets.clone(),
            shift: self.shift,
            height: self.bytes(),
            min_bytes,
            rhythm: self.found.map(|start| start.rhythm),
        }
    }

    /// What the matcher is to be told.
    pub(crate) fn tables(&self) -> Vec<Tables<'_>> {
        let kinds = self.needs.iter().zip(&self.slots);
        kinds
            .map(|(needs, classes)| Tables { classes, families: &needs.families, begin: needs.begin })
            .collect()
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
        for class in self.slots.iter_mut().flatten() {
            let length = class.class.bytes().div_ceil(1 << self.shift);
            for slot in &mut class.slots {
                if slot.is_some_and(|start| u64::from(start) + length > u64::from(granules)) {
                    *slot = None;
                    self.blocks -= 1;
                }
            }
        }
        self.granules = granules;
        self.cut = cut(&self.slots, self.shift, granules);
    }
}

/// The offsets of each kind's blocks, the height of the highest plan, and whether none is lower.
fn plan_kinds(planner: &Planner, needs: &[Arc<Needs>], shift: u32) -> Option<(Vec<Vec<u64>>, u64, bool)> {
    let problem = |needs: &Arc<Needs>| rounded(&needs.step.problem, shift);
    if let [needs] = needs {
        let plan = planner.plan(&problem(needs)).ok()?;
        let optimal = plan.optimal();
        return Some((vec![plan.offsets], plan.height, optimal));
    }
    let kind = |needs: &Arc<Needs>| stepalloc_planner::Kind {
        problem: problem(needs),
        keys: needs.step.keys.clone(),
    };
    let kinds: Vec<_> = needs.iter().map(kind).collect();
    let plans = planner.plan_kinds(&kinds).ok()?;
    let lives_on = |problem: &Problem| {
        problem.blocks.iter().any(|block| problem.period.is_some_and(|period| block.upper > period))
    };
    let alone = plans.alone_height();
    let may_cost = if kinds.iter().any(|kind| lives_on(&kind.problem)) { alone / SHARED_COSTS } else { 0 };
    if plans.shared.height <= alone + may_cost {
        let offsets: Option<_> = kinds.iter().map(|kind| plans.offsets(&kind.keys)).collect();
        return Some((offsets?, plans.shared.height, plans.shared.optimal()));
    }
    let optimal = plans.alone.iter().any(|plan| plan.optimal() && plan.height == alone);
    Some((plans.alone.into_iter().map(|plan| plan.offsets).collect(), alone, optimal))
}

/// The arena cut at the slots' edges.
fn cut(kinds: &[Vec<ClassSlots>], shift: u32, granules: u32) -> Cut {
    let runs: Vec<_> = kinds.iter().flatten().flat_map(|class| class.runs(shift)).flatten().collect();
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
fn classes(step: &StepProblem, offsets: &[u64], shift: u32) -> Option<Vec<ClassSlots>> {
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
    for (key, offset) in step.keys.iter().zip(offsets) {
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
