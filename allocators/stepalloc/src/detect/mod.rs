//! Found steps: the log of a program that marks nothing, cut into steps by its rhythm.
//!
//! A rhythm ([`stepalloc_planner::rhythm`]) was heard in the sizes; then everything is recorded for a while. If the rhythm
//! holds, the place in it where the least is alive becomes the boundary, the log is cut there, and its steps are merged
//! as marked ones are.

use crate::lookup::KINDS;
use crate::profile::collector::{Collector, Translator, Until};
use crate::profile::step_profile::{Start, StepProfile};
use crate::record::recorder::{Event, Recorder};
use crate::settings::Settings;
use std::sync::Arc;
use stepalloc_planner::Event as StepEvent;
use stepalloc_planner::rhythm::{self, Change, Rhythm};

/// A rhythm in which memory does not come back to what it was must hold for one part in this many of what was heard before it:
/// the layers within a step do not.
const CONFIRMED: usize = 4;

/// Upper bound of the allocations for which a rhythm must hold that was followed in vain.
const LEAST_MOST: usize = 1 << 20;
/// Rhythms remembered that were followed in vain: the kinds of loops within a step.
const VAIN: usize = 8;

/// Steps that are being found.
pub(crate) struct Found {
    rhythm: Rhythm,
    /// Two of its periods are taken as one, because blocks live on beyond one.
    doubled: bool,
    /// Allocations heard before the log began.
    heard: usize,
    /// It has lasted for long already.
    lasts: bool,
    /// It was asked whether what is alive comes back to what it was.
    asked: bool,
    /// Sizes of the period heard before the log began.
    earlier: Vec<u64>,
    /// All sizes heard, where they do not come again after a period: they may after several.
    sizes: Vec<u64>,
    /// The boundaries since the log began in that case, as allocations before each.
    boundaries: Vec<usize>,
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

/// Allocations and what lies between them.
#[derive(Default)]
struct Log {
    events: Vec<StepEvent>,
    /// The same as bytes; only while the boundary is looked for.
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
    /// The program does not keep the rhythm.
    Lost,
}

/// Rhythms that were followed in vain: loops within a step, which come again with each step.
pub(crate) struct Vain {
    /// Periods, and for how many allocations each must hold to be followed again. The newest first.
    lost: Vec<(usize, usize)>,
    /// The same of the rhythm that is followed now.
    followed: (usize, usize),
}

impl Vain {
    pub(crate) const fn new() -> Self {
        Self { lost: Vec::new(), followed: (0, 0) }
    }

    /// Whether a rhythm is worth being followed that was heard in these sizes, the newest of so many; it counts as followed then.
    pub(crate) fn follows(&mut self, rhythm: &Rhythm, sizes: &[u64], heard: usize) -> bool {
        let lost = self.lost.iter().find(|(period, _)| *period == rhythm.period);
        let least = lost.map_or(rhythm.period.max(rhythm::EXACT_EVIDENCE), |&(_, least)| least);
        let from = sizes.len().checked_sub(least + rhythm.period + 1);
        let follows = lost.is_none()
            || from.is_some_and(|from| rhythm.holds(&sizes[from..]))
            || rhythm.lasts(sizes, heard);
        if follows {
            self.followed = (rhythm.period, least);
        }
        follows
    }

    /// The rhythm followed has ended: the next time it must hold for twice as long.
    pub(crate) fn lose(&mut self) {
        let (period, least) = self.followed;
        self.lost.retain(|&(other, _)| other != period);
        self.lost.truncate(VAIN - 1);
        self.lost.insert(0, (period, (2 * least).min(LEAST_MOST)));
    }
}

impl Found {
    /// Begins to follow a rhythm heard in these sizes, the newest of so many.
    pub(crate) fn new(rhythm: Rhythm, sizes: &[u64], heard: usize) -> Self {
        // Of sizes that do not come again two periods are compared where the least is alive.
        let periods = if rhythm.repeats() { 1 } else { 2 };
        Self {
            rhythm,
            doubled: false,
            heard,
            lasts: rhythm.lasts(sizes, heard),
            asked: false,
            earlier: sizes[sizes.len() - rhythm.period..].to_vec(),
            sizes: if rhythm.repeats() { Vec::new() } else { sizes.to_vec() },
            boundaries: Vec::new(),
            needed: (periods * rhythm.period + 1).max(rhythm::EVIDENCE),
            merged: 0,
            log: Log::default(),
            at: None,
            translator: Translator::default(),
            collector: Collector::new(),
        }
    }

    /// Allocations wanted at first.
    pub(crate) fn needed(&self) -> u64 {
        self.needed as u64
    }

    /// Takes in the log up to index `end`.
    pub(crate) fn follow(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> Followed {
        let looking = self.at.is_none();
        let before = self.log.sizes.len();
        if !recorder.read(end, |event| self.log.take(event, &mut self.translator, looking)) {
            return Followed::Lost;
        }
        if !self.rhythm.repeats() {
            self.sizes.extend(&self.log.sizes[before..]);
        }
        let mut period = self.rhythm.period;
        let mut at = match self.at {
            Some(at) => at,
            None if self.log.sizes.len() < self.needed => {
                return Followed::More((self.needed - self.log.sizes.len()) as u64);
            }
            None => {
                let sizes = [&*self.earlier, &self.log.sizes].concat();
                if !self.rhythm.holds(&sizes) {
                    return Followed::Lost;
                }
                if !self.asked && !self.rhythm.is_balanced(&self.log.changes) {
                    if !self.lasts {
                        return Followed::Lost;
                    }
                    self.needed = self.needed.max(self.heard / CONFIRMED);
                }
                self.asked = true;
                if self.log.sizes.len() < self.needed {
                    return Followed::More((self.needed - self.log.sizes.len()) as u64);
                }
                let boundary = rhythm::boundary(&self.earlier, &self.log.changes, &self.rhythm);
                let Some(boundary) = boundary else { return Followed::Lost };
                self.collector.learn(&sizes, period);
                self.log.changes = Vec::new();
                boundary
            }
        };
        // Where sizes do not come again a period later, there are several kinds of steps.
        let kinds = if self.rhythm.repeats() { 1 } else { 2 };
        let until = settings.stable(false).map_or(Until::Seen { kinds }, Until::Stable);
        if self.boundaries.is_empty() {
            self.boundaries.push(at);
        }
        while let Some(next) = rhythm::next_boundary(&self.log.sizes, at, period) {
            let events = &mut self.log.events[self.log.starts[at]..self.log.starts[next]];
            at = next;
            let enough = self.collector.merge(events, true, until, settings.max_steps);
            if !self.lasts && self.rhythm.repeats() && self.collector.kinds() > 1 {
                // What was repeated has ended.
                return Followed::Lost;
            }
            if !self.rhythm.repeats() {
                self.boundaries.push(at);
                if self.merge_turns(settings) {
                    self.at = Some(at);
                    return Followed::Enough;
                }
            }
            if !enough {
                continue;
            }
            if self.doubled || !self.rhythm.repeats() || !self.collector.recurs() {
                self.at = Some(at);
                return Followed::Enough;
            }
            self.doubled = true;
            self.rhythm = self.rhythm.repeated(2 * period);
            period = self.rhythm.period;
            self.collector.begin_again();
        }
        if self.rhythm.repeats() {
            self.log.forget(at);
            self.merged += at as u64;
            at = 0;
        }
        self.at = Some(at);
        Followed::More((period + rhythm::HEAD).saturating_sub(self.log.sizes.len()).max(1) as u64)
    }

    /// Steps whose sizes come again after several of them take turns: one turn is merged as one step, in which all lifetimes are known.
    /// `false` where two steps in a row were not seen again yet, or no whole turn was recorded.
    fn merge_turns(&mut self, settings: &Settings) -> bool {
        let Some(turns) = self.rhythm.turns(&self.sizes, KINDS) else { return false };
        let Some(first) = self.boundaries.len().checked_sub(turns + 1) else { return false };
        let starts = &self.log.starts;
        let events =
            &mut self.log.events[starts[self.boundaries[first]]..starts[self.boundaries[first + turns]]];
        self.collector.begin_again();
        self.collector.merge(events, true, Until::Seen { kinds: 1 }, settings.max_steps);
        let (period, steps) = (turns * self.rhythm.period, turns * self.rhythm.steps);
        self.rhythm = Rhythm { period, steps, share: 1.0 };
        true
    }

    /// Where the steps begin.
    pub(crate) fn start(&self) -> Option<Start> {
        Some(Start { rhythm: self.rhythm, boundary: self.merged + self.at? as u64 })
    }

    /// What is to be planned.
    pub(crate) fn needs(&self) -> Vec<Arc<StepProfile>> {
        self.collector.needs(true)
    }
}

impl Log {
    fn take(&mut self, event: Event, translator: &mut Translator, looking: bool) {
        let freed = translator.take(event, &mut self.events);
        if looking && freed > 0 {
            self.changes.push(Change::Free(freed));
        }
        if let Event::Allocate { class, .. } | Event::Move { class, .. } = event {
            self.starts.push(self.events.len() - 1);
            self.sizes.push(class.bytes());
            if looking {
                self.changes.push(Change::Allocate(class.bytes()));
            }
        }
    }

    /// Drops everything before an allocation.
    fn forget(&mut self, allocations: usize) {
        let events = self.starts.get(allocations).copied().unwrap_or(self.events.len());
        self.events.drain(..events);
        self.starts.drain(..allocations);
        self.starts.iter_mut().for_each(|start| *start -= events);
        self.sizes.drain(..allocations);
    }
}
