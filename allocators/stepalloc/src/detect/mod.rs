//! Detected steps: the recorder's log of a program that marks nothing is cut into steps by the program's
//! period.
//!
//! A period ([`stepalloc_planner::period`]) was found in the size log; then everything is recorded for a
//! while. If the period holds, the place in it with the fewest live bytes becomes the boundary. The log is
//! cut there, and its steps are merged as marked ones are.

use crate::lookup::VARIANTS;
use crate::policy::{COMPARISONS_HERE, RECORDED_MOST, RECORDED_SHARE};
use crate::profile::collector::{Collector, Translator, Until};
use crate::profile::step_profile::{Start, StepProfile};
use crate::record::recorder::{Event, Recorder};
use crate::settings::Settings;
use core::mem;
use std::sync::Arc;
use stepalloc_planner::Event as StepEvent;
use stepalloc_planner::period::{self, Change, Period};

/// A period over which live bytes do not return to the same level must hold for one part in this many of the
/// allocations logged before it: the layers within a step do not.
const CONFIRMED: usize = 4;

/// Allocations after a first whole step that show when most of the blocks are freed that live on beyond it. Steps of less than twice as many are
/// seen twice as a whole.
const BEYOND: usize = 512;

/// Bytes that are kept of an event, roughly: in the recorder, and as part of the log.
const RECORDED_BYTES: u64 = 64;

/// Upper bound of the allocations for which a rejected period must hold before it is followed again.
const LEAST_MOST: usize = 1 << 20;
/// Rejected periods that are remembered: those of the loops within a step.
const REJECTED: usize = 8;

/// Steps that are being detected.
pub(crate) struct DetectedSteps {
    period: Period,
    /// Two periods are taken as one, because blocks live on beyond one.
    doubled: bool,
    /// Allocations logged before recording began.
    logged: usize,
    /// The period has lasted for long already.
    lasts: bool,
    /// It was checked whether live bytes return to the same level.
    checked: bool,
    /// Sizes of the last period before recording began.
    earlier: Vec<u64>,
    /// All logged sizes, where they do not come again after a period: they may after several.
    sizes: Vec<u64>,
    /// The boundaries since recording began in that case, as allocations before each.
    boundaries: Vec<usize>,
    /// The allocation in the size log at which recording began.
    since: u64,
    /// What was recorded before that, and is no part of the log.
    before: Option<Recorded>,
    /// The log goes back as far as the period holds.
    takes_all: bool,
    /// Allocations to be recorded before the first cut.
    needed: usize,
    /// Allocations before those below.
    merged: u64,
    /// What was not merged yet.
    log: Log,
    /// The boundary: allocations in the log before it.
    at: Option<usize>,
    translator: Translator,
    collector: Collector,
}

/// What was recorded while periods were followed that turned out to be none.
pub(crate) struct Recorded {
    /// The allocation in the size log at which that began.
    since: u64,
    log: Log,
    translator: Translator,
}

/// Allocations and what lies between them.
#[derive(Default)]
struct Log {
    events: Vec<StepEvent>,
    /// The same as bytes; only while the boundary is looked for, or may be again.
    changes: Vec<Change>,
    /// For each allocation its index among the events and its bytes.
    starts: Vec<usize>,
    sizes: Vec<u64>,
}

/// What came of following the log.
pub(crate) enum Followed {
    /// So many more allocations are wanted.
    More(u64),
    /// Enough steps were seen.
    Enough,
    /// The program does not repeat with this period, but with another where one was found.
    Lost(Option<Period>),
}

/// Periods that were followed and rejected: loops within a step, which come again with each step.
pub(crate) struct RejectedPeriods {
    /// Each period in allocations, and for how many allocations it must hold to be followed again. The newest
    /// first.
    rejected: Vec<(usize, usize)>,
    /// The same of the period that is followed now.
    followed: (usize, usize),
}

impl RejectedPeriods {
    pub(crate) const fn new() -> Self {
        Self { rejected: Vec::new(), followed: (0, 0) }
    }

    /// Whether a period found in these sizes, the newest of `logged`, is to be followed; it counts as
    /// followed then.
    pub(crate) fn follows(&mut self, period: &Period, sizes: &[u64], logged: usize) -> bool {
        let rejected = self.rejected.iter().find(|(allocations, _)| *allocations == period.allocations);
        let least = rejected.map_or(period.allocations.max(period::EXACT_EVIDENCE), |&(_, least)| least);
        let from = sizes.len().checked_sub(least + period.allocations + 1);
        let follows = rejected.is_none()
            || from.is_some_and(|from| period.holds(&sizes[from..]))
            || period.lasts(sizes, logged);
        if follows {
            self.followed = (period.allocations, least);
        }
        follows
    }

    /// The period that is followed was lost: the next time it must hold for twice as long.
    pub(crate) fn reject(&mut self) {
        let (allocations, least) = self.followed;
        self.rejected.retain(|&(other, _)| other != allocations);
        self.rejected.truncate(REJECTED - 1);
        self.rejected.insert(0, (allocations, (2 * least).min(LEAST_MOST)));
    }
}

impl DetectedSteps {
    /// Begins to follow a period found in these sizes, the newest of `logged`, at an allocation `since` which all is recorded, and maybe for
    /// longer. What was recorded before that is of use as far back as the period holds, but to a short one whose sizes come again: that may be one
    /// of layers, which will not hold for another.
    pub(crate) fn new(
        period: Period,
        sizes: &[u64],
        logged: usize,
        since: u64,
        mut before: Option<Recorded>,
    ) -> Self {
        let is_short = period.repeats() && period.allocations <= 2 * BEYOND;
        let takes_all = before.is_some() && !is_short;
        let (mut since, mut log, mut translator, mut other) =
            (since, Log::default(), Translator::default(), 0);
        if let Some(before) = &mut before {
            translator = mem::take(&mut before.translator);
            if takes_all {
                (since, log) = (before.since, mem::take(&mut before.log));
                other = log.sizes.len() - period.repeating(&log.sizes);
                before.log = log.forget(other);
            }
        }
        // Where sizes do not come again, two periods are compared at their fewest live bytes.
        let periods = if period.repeats() { 1 } else { 2 };
        let earlier = sizes[sizes.len() - period.allocations..].to_vec();
        Self {
            period,
            doubled: false,
            logged,
            lasts: period.lasts(sizes, logged),
            checked: false,
            earlier: if takes_all { Vec::new() } else { earlier },
            sizes: if period.repeats() { Vec::new() } else { sizes.to_vec() },
            boundaries: Vec::new(),
            since,
            before,
            takes_all,
            needed: if takes_all && period.repeats() {
                period.allocations + period::EXACT_EVIDENCE
            } else {
                (periods * period.allocations + 1).max(period::EVIDENCE)
            },
            merged: other as u64,
            log,
            at: None,
            translator,
            collector: Collector::new(),
        }
    }

    /// Allocations of a period.
    pub(crate) fn allocations(&self) -> u64 {
        self.period.allocations as u64
    }

    /// Allocations wanted at first.
    pub(crate) fn needed(&self) -> u64 {
        self.needed as u64
    }

    /// Takes in the log up to index `end`.
    pub(crate) fn follow(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> Followed {
        let looking = self.at.is_none() || !self.period.repeats();
        let before = self.log.sizes.len();
        if !recorder.read(end, |event, _| self.log.take(event, &mut self.translator, looking)) {
            return Followed::Lost(None);
        }
        if !self.period.repeats() {
            self.sizes.extend(&self.log.sizes[before..]);
        }
        let mut length = self.period.allocations;
        let mut at = match self.at {
            Some(at) => at,
            None if self.log.sizes.len() < self.needed => {
                return Followed::More((self.needed - self.log.sizes.len()) as u64);
            }
            None => {
                let sizes = [&*self.earlier, &self.log.sizes].concat();
                if !self.period.holds(&sizes) {
                    return Followed::Lost(None);
                }
                if !self.checked && !self.period.is_balanced(&self.log.changes) {
                    if !self.lasts {
                        return Followed::Lost(None);
                    }
                    self.needed = self.needed.max(self.logged / CONFIRMED);
                }
                self.checked = true;
                if self.log.sizes.len() < self.needed {
                    return Followed::More((self.needed - self.log.sizes.len()) as u64);
                }
                let boundary = period::boundary(&self.earlier, &self.log.changes, &self.period);
                let Some(boundary) = boundary else { return Followed::Lost(None) };
                self.collector.learn(&sizes, length);
                if self.period.repeats() {
                    self.log.changes = Vec::new();
                }
                boundary
            }
        };
        // Where sizes do not come again a period later, there are several step variants.
        let variants = if self.period.repeats() { 1 } else { 2 };
        let until = settings.stable(false).map_or(Until::Seen { variants }, Until::Stable);
        if self.boundaries.is_empty() {
            self.boundaries.push(at);
        }
        let mut looked = false;
        while let Some(next) = period::next_boundary(&self.log.sizes, at, length) {
            let events = &mut self.log.events[self.log.starts[at]..self.log.starts[next]];
            at = next;
            let enough = self.collector.merge(events, true, until, settings.max_steps);
            if !self.lasts && self.period.repeats() && self.collector.variants() > 1 {
                // What was repeated has ended.
                return Followed::Lost(None);
            }
            if !self.period.repeats() {
                self.boundaries.push(at);
                if self.merge_turns(settings) {
                    self.at = Some(at);
                    return Followed::Enough;
                }
                // The sizes are the same at each boundary of this call.
                if !mem::replace(&mut looked, true)
                    && let Some(turn) = self.other_turn()
                {
                    return Followed::Lost(Some(turn));
                }
            }
            if !enough {
                continue;
            }
            if self.doubled || !self.period.repeats() || !self.collector.recurs() {
                self.at = Some(at);
                return Followed::Enough;
            }
            self.doubled = true;
            self.period = self.period.repeated(2 * length);
            length = self.period.allocations;
            self.collector.begin_again();
        }
        let mut next = at + length + period::FINGERPRINT;
        if self.plans_one_step(until) {
            next = at + BEYOND;
            if self.log.sizes.len() >= next {
                self.collector.begin_next(&self.log.events[self.log.starts[at]..]);
                self.at = Some(at);
                return Followed::Enough;
            }
        }
        let more = next.saturating_sub(self.log.sizes.len()).max(1) as u64;
        if self.period.repeats() {
            self.log.forget(at);
            self.merged += at as u64;
            at = 0;
        }
        self.at = Some(at);
        Followed::More(more)
    }

    /// Whether one step was merged of those recorded before their period was found, and another is not waited for: they are long.
    fn plans_one_step(&self, until: Until) -> bool {
        let is_counted = matches!(until, Until::Seen { .. });
        self.takes_all
            && self.period.repeats()
            && !self.doubled
            && is_counted
            && self.collector.collected() == 1
    }

    /// Steps whose sizes come again after several of them take turns: one turn is merged as one step, in which all lifetimes are known.
    /// `false` where two steps in a row were not seen again yet, or no whole turn was recorded.
    fn merge_turns(&mut self, settings: &Settings) -> bool {
        let Some(turns) = self.period.turns(&self.sizes, VARIANTS) else { return false };
        let Some(first) = self.boundaries.len().checked_sub(turns + 1) else { return false };
        let starts = &self.log.starts;
        let events =
            &mut self.log.events[starts[self.boundaries[first]]..starts[self.boundaries[first + turns]]];
        self.collector.begin_again();
        self.collector.merge(events, true, Until::Seen { variants: 1 }, settings.max_steps);
        let (allocations, steps) = (turns * self.period.allocations, turns * self.period.steps);
        self.period = Period { allocations, steps, share: 1.0 };
        true
    }

    /// The period of sizes that come again after some time that is no multiple of this one: the steps that take turns differ in how many
    /// allocations they have, and only some of them have as many as this.
    fn other_turn(&self) -> Option<Period> {
        let found = period::find_within(&self.sizes, COMPARISONS_HERE).ok()??;
        let length = self.period.allocations;
        let is_other = found.allocations > length && !found.allocations.is_multiple_of(length);
        (found.repeats() && is_other).then_some(found)
    }

    /// The allocation in the size log at which recording began.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// What was recorded, as long as nothing was dropped of it.
    pub(crate) fn into_recorded(self) -> Option<Recorded> {
        if self.at.is_some() && self.period.repeats() {
            return None;
        }
        let (since, mut log) =
            self.before.map_or((self.since, Log::default()), |before| (before.since, before.log));
        log.append(self.log);
        log.undo_merging();
        Some(Recorded { since, log, translator: self.translator })
    }

    /// Where the steps begin.
    pub(crate) fn start(&self) -> Option<Start> {
        Some(Start { period: self.period, boundary: self.merged + self.at? as u64 })
    }

    /// What is to be planned.
    pub(crate) fn profiles(&self) -> Vec<Arc<StepProfile>> {
        self.collector.profiles(true)
    }
}

impl Recorded {
    /// Takes in the recorder's log up to index `end`; `false` where events were lost.
    pub(crate) fn read(&mut self, recorder: &Recorder, end: u64) -> bool {
        recorder.read(end, |event, _| self.log.take(event, &mut self.translator, true))
    }

    /// Events that may be recorded before it is given up: it must not show in the memory of a small program.
    pub(crate) fn more(&self) -> u64 {
        let most = (self.translator.most_alive() / RECORDED_SHARE / RECORDED_BYTES).min(RECORDED_MOST);
        most.saturating_sub(self.log.events.len() as u64)
    }
}

impl Log {
    fn take(&mut self, event: Event, translator: &mut Translator, looking: bool) {
        let before = self.events.len();
        let freed = translator.take(event, 0, &mut self.events);
        if self.events.len() < before {
            // The newest free was none.
            self.changes.pop_if(|change| matches!(change, Change::Free(_)));
            return;
        }
        if looking && freed > 0 {
            self.changes.push(Change::Free(freed));
        }
        if let Event::Allocate { class, .. } | Event::Move { class, .. } | Event::Keep { class, .. } = event {
            self.starts.push(self.events.len() - 1);
            self.sizes.push(class.bytes());
            if looking {
                self.changes.push(Change::Allocate(class.bytes()));
            }
        }
    }

    fn append(&mut self, mut log: Log) {
        let events = self.events.len();
        self.starts.extend(log.starts.iter().map(|start| start + events));
        self.events.append(&mut log.events);
        self.changes.append(&mut log.changes);
        self.sizes.append(&mut log.sizes);
    }

    /// Gives the events the sizes that were asked for, which merging replaced by those of slots.
    fn undo_merging(&mut self) {
        for (&start, &asked) in self.starts.iter().zip(&self.sizes) {
            if let StepEvent::Allocate { size, .. } = &mut self.events[start] {
                *size = asked;
            }
        }
    }

    /// Drops everything before an allocation, and returns it.
    fn forget(&mut self, allocations: usize) -> Self {
        let events = self.starts.get(allocations).copied().unwrap_or(self.events.len());
        let is_allocation = |change: &Change| matches!(change, Change::Allocate(_));
        let mut allocated = self.changes.iter().enumerate().filter(|(_, change)| is_allocation(change));
        let changes = allocated.nth(allocations).map_or(self.changes.len(), |(at, _)| at);
        let forgotten = Self {
            events: self.events.drain(..events).collect(),
            changes: self.changes.drain(..changes).collect(),
            starts: self.starts.drain(..allocations).collect(),
            sizes: self.sizes.drain(..allocations).collect(),
        };
        self.starts.iter_mut().for_each(|start| *start -= events);
        forgotten
    }
}
