//! Found steps: the log of a program that marks nothing, cut into steps by its rhythm.
//!
//! A rhythm ([`stepalloc_planner::rhythm`]) was heard in the sizes; then everything is recorded for a while. If the rhythm
//! holds, the place in it where the least is alive becomes the boundary, the log is cut there, and its steps are merged
//! as marked ones are.

use crate::collector::{Collector, Needs, Translator, Until};
use crate::matcher::Class;
use crate::recorder::{Event, Recorder};
use crate::settings::Settings;
use std::sync::Arc;
use stepalloc_planner::Event as StepEvent;
use stepalloc_planner::rhythm::{self, Change, Rhythm};

/// A rhythm must hold for one part in this many of what was heard before it: the layers within a step do not.
const CONFIRMED: usize = 4;

/// Steps that are being found.
pub(crate) struct Found {
    rhythm: Rhythm,
    /// Two of its periods are taken as one, because blocks live on beyond one.
    doubled: bool,
    /// Sizes of the period heard before the log began.
    earlier: Vec<u64>,
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
    /// For each allocation its index among the events, its class and its bytes.
    starts: Vec<usize>,
    classes: Vec<Class>,
    sizes: Vec<u64>,
}

/// Where a plan's steps begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) rhythm: Rhythm,
    /// Allocations from the beginning of the recording to a boundary.
    pub(crate) boundary: u64,
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

impl Found {
    /// Begins to follow a rhythm heard in these sizes.
    pub(crate) fn new(rhythm: Rhythm, heard: &[u64]) -> Self {
        Self {
            rhythm,
            doubled: false,
            earlier: heard[heard.len() - rhythm.period..].to_vec(),
            needed: (rhythm.period + 1).max(rhythm::EVIDENCE).max(heard.len() / CONFIRMED),
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
        if !recorder.read(end, |event| self.log.take(event, &mut self.translator, looking)) {
            return Followed::Lost;
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
        while let Some(next) = rhythm::next_boundary(&self.log.sizes, at, period) {
            let events = &mut self.log.events[self.log.starts[at]..self.log.starts[next]];
            at = next;
            if !self.collector.merge(events, true, until, settings.max_steps) {
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
        self.log.forget(at);
        self.merged += at as u64;
        self.at = Some(0);
        Followed::More((period + rhythm::HEAD).saturating_sub(self.log.sizes.len()).max(1) as u64)
    }

    /// Where the steps begin.
    pub(crate) fn start(&self) -> Option<Start> {
        Some(Start { rhythm: self.rhythm, boundary: self.merged + self.at? as u64 })
    }

    /// What is to be planned.
    pub(crate) fn needs(&self) -> Vec<Arc<Needs>> {
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
            self.classes.push(class);
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
        self.classes.drain(..allocations);
        self.sizes.drain(..allocations);
    }
}

impl Start {
    /// The allocations of the running step, by what was heard since the recording began.
    pub(crate) fn running<'a>(&self, heard: &'a [Class]) -> &'a [Class] {
        let sizes: Vec<u64> = heard.iter().map(|class| class.bytes()).collect();
        let Ok(mut at) = usize::try_from(self.boundary) else { return &[] };
        if at > sizes.len() {
            return &[];
        }
        while let Some(next) = rhythm::next_boundary(&sizes, at, self.rhythm.period) {
            at = next;
        }
        // So near to the next boundary that its head was not yet seen.
        if at + self.rhythm.period <= sizes.len() {
            at += self.rhythm.period;
        }
        &heard[at..]
    }
}
