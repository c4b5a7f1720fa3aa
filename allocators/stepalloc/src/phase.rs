//! The engine: counts steps, and leads the process through its phases.
//!
//! *Waiting* counts. *Collecting* records, and merges each step into the plan's needs at its end. *Planned* serves;
//! when too little of a step finds its slot for several steps, the needs are collected again while the old plan
//! serves. Everything happens at step boundaries, under one lock that no allocation waits for.
//!
//! Steps that nobody marks are found: [`unmarked`] listens for a rhythm, and then does what boundaries do here.
//!
//! Merging and planning run in the thread of the step where they are sure to be short, else in a thread beside it
//! that blocks all signals and ends with its work; the program goes on meanwhile, and the result is taken at a later
//! boundary.

use crate::backend::Retention;
use crate::collector::{Collector, Needs, Proposal, with_others};
use crate::found::{Found, Start};
use crate::heap::HEAP;
use crate::journal::{self, Journal};
use crate::listener::LISTENER;
use crate::lock::{self, Lock};
use crate::misses::MISSES;
use crate::os::{self, Text};
use crate::recorder::RECORDER;
use crate::route::{self, STATE, Watch};
use crate::settings::{self, HugePages, Settings};
use crate::statistics::{Count, History, JSON_BYTES, LastSteps, Phase, Statistics, StepFigures};
use crate::step;
use crate::tracer;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use stepalloc_planner::{Effort, Rhythm, rhythm};

mod kept;
mod unmarked;
mod watch;

use kept::{KEPT_STEPS, Kept, write_kept_by_use};
use unmarked::Fitting;
pub(crate) use unmarked::{end_trace, found_boundary, listen, open_heap, out_of_rhythm};
pub use watch::release;
pub(crate) use watch::{relieve, watch_heap};

/// Events merged in the thread of the step: about 2 ms. A step of 10,000 blocks has twice as many events.
const EVENTS_HERE: u64 = 20_000;
/// Blocks planned in the thread of the step: about 2 ms.
const BLOCKS_HERE: usize = 200;
/// A plan is good enough when its arena exceeds the load by one part in this many at most of the load, or
const GOOD_SHARE: u64 = 200;
/// by one in this many of what the process has resident.
const GOOD_RESIDENT_SHARE: u64 = 1000;
/// The backend's caches are given back when a plan comes into force and at this many boundaries after: blocks that
/// were alive then are freed within the next step or two. From the last of them on it may keep what is not in use.
const TRIMS: u8 = 2;
/// A step misses when less than this share of its bytes found a slot, in percent.
const HIT_PERCENT: u64 = 90;
/// From here on steps count as running at once.
const CROWDED: u32 = 16;
/// Steps in a row that must miss before the needs are collected again.
const MISSED_STEPS: u32 = 4;
/// Times that the arena's free pages may go back to keep the process's peak, before the plan is left.
const PRESSURES: u32 = 4;
/// Steps a new plan is given at least; doubled with every plan that did not help, so that a program without a rhythm
/// is collected ever more rarely.
const PATIENCE: u64 = 8;
/// Steps in a row without a miss by which a plan has helped.
const HELPED_STEPS: u32 = 8;
/// At most so many.
const PATIENCE_MAX: u64 = 4096;
/// Of marked steps that do not repeat it is asked whether they do now after so many times as many.
const ASKED_AGAIN: u64 = 4;
/// The lock is waited for at most this often at the end of the process, when its holder may be gone.
const EXIT_ATTEMPTS: u32 = 1000;

static ENGINE: Locked = Locked { lock: Lock::new(), engine: UnsafeCell::new(Engine::new()) };
/// What a fork left in this process: nothing, or one of the two below. The next boundary sees to it.
static FORKED: AtomicU8 = AtomicU8::new(0);
/// This process was forked.
const CHILD: u8 = 1;
/// It was forked while another thread held the lock: the engine may be half changed.
const TORN: u8 = 2;

/// The engine and its lock.
struct Locked {
    lock: Lock,
    engine: UnsafeCell<Engine>,
}

// SAFETY: the engine is reached through `Locked::with` only, by one thread at a time.
unsafe impl Sync for Locked {}

impl Locked {
    fn with<R>(&self, attempts: Option<u32>, body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.lock.with(attempts, |torn| {
            if torn {
                FORKED.store(TORN, Relaxed);
            }
            // SAFETY: the lock is held.
            body(unsafe { &mut *self.engine.get() })
        })
    }
}

/// Merging or planning, and where it runs.
enum Work {
    /// Nothing to do.
    None,
    /// Ready for the next step.
    Here(Box<Collector>),
    /// Ready for what follows of steps that nobody marks.
    Following(Box<Found>),
    /// In a thread of its own.
    Beside(JoinHandle<Outcome>),
}

/// What came of it.
enum Outcome {
    /// More steps are wanted.
    More(Box<Collector>),
    /// Enough were seen.
    Enough(Vec<Arc<Needs>>),
    /// Enough were seen to say that steps do not repeat.
    Unalike,
    /// A plan, or `None` if none could be made.
    Plan(Option<Box<Proposal>>),
    /// So many more allocations of steps that nobody marks are wanted.
    Follow(Box<Found>, u64),
    /// There is no rhythm to follow.
    Lost,
}

struct Engine {
    /// `None` before the first boundary or statistics.
    settings: Option<Settings>,
    phase: Phase,
    /// The program has marked a step.
    marked: bool,
    /// The rhythm of the steps that were found.
    start: Option<Start>,
    /// A rhythm that takes too little to be worth a plan.
    too_small: Option<Rhythm>,
    /// Allocations heard when the recording began.
    heard: u64,
    /// Steps found before collecting began, as START wants.
    waited: u64,
    steps: u64,
    planned_at_step: Option<u64>,
    plans: u64,
    failed_plans: u64,
    refused_plans: u64,
    /// The kinds of steps planned.
    kinds: Vec<Arc<Needs>>,
    /// This process's rank among those that one launcher has started.
    rank: Option<u64>,
    /// The file of plans.
    kept: Kept,
    /// What serves came from it.
    kept_serves: bool,
    /// What the backend was told last.
    retention: Retention,
    lower_bound: u64,
    planned_blocks: u64,
    work: Work,
    /// Log indexes at which steps ended that are not merged yet.
    ends: Vec<u64>,
    history: History,
    journal: Journal,
    /// Faults and time at the last boundary.
    faults: u64,
    nanoseconds: u64,
    trims_left: u8,
    /// The same within the first period of steps that nobody marks.
    trims_within: u8,
    /// Blocks left to the backend because the arena may not be as large as the plan.
    beyond_limit: u64,
    missed_steps: u32,
    /// [`Heap::pressures`](crate::heap::Heap::pressures) when the plan came into force.
    pressures: u32,
    helped_steps: u32,
    /// There were [`HELPED_STEPS`] since the plan came into force.
    has_helped: bool,
    /// Steps that were found since it was last asked whether they are the right ones.
    tried: Fitting,
    /// Steps after which it is asked.
    tried_for: u32,
    /// The same since the plan came into force.
    fitting: Fitting,
    /// Allocations to be heard before the rhythm that was planned counts as the right one.
    horizon: u64,
    /// The same where the plan leaves next to nothing over.
    settling: u64,
    patience: u64,
    /// No new collecting before this step.
    patient_until: u64,
    /// How often steps began lately while others were running, up to twice [`CROWDED`].
    crowded: u32,
}

/// Ends the running step and begins the next one. From any thread.
///
/// The first call begins step 0.
pub fn boundary() {
    boundary_among(false);
}

/// A boundary of one thread's step, while others may be in the midst of theirs.
pub(crate) fn boundary_among(others: bool) {
    os::keeping_errno(|| {
        route::inside(|| ENGINE.with(None, |engine| engine.boundary(others)));
    });
}

/// A snapshot of what the allocator does in this process.
pub fn statistics() -> Statistics {
    route::inside(|| ENGINE.with(None, |engine| engine.statistics()))
        .unwrap_or_else(|| Engine::new().statistics())
}

/// Reads the settings, installs what they ask for (the statistics signal, the file written at exit), and complains
/// about bad ones, before the first step does. Needed only where complaints must not wait.
pub fn initialise() {
    os::keeping_errno(|| ENGINE.with(None, |engine| engine.settings()));
}

/// Plans nothing from now on, as `ENABLE_MEMORY_OPTIMIZATION=0` does, whatever the environment says: for a program that uses
/// [`StatisticAllocator`](crate::StatisticAllocator) in some of its ways to run only. Best called first in `main`; no settings are
/// read, nothing is traced, and no figures are written at the end then. What a plan has served stays where it is until it is freed.
pub fn disable() {
    os::keeping_errno(|| route::inside(|| ENGINE.with(None, Engine::disable)));
}

/// The phase now. A plan that serves is "planned" even while the next one
/// is being collected.
pub fn phase() -> Phase {
    ENGINE.with(None, |engine| engine.phase).unwrap_or(Phase::Waiting)
}

impl Engine {
    const fn new() -> Self {
        Self {
            settings: None,
            phase: Phase::Waiting,
            marked: false,
            start: None,
            too_small: None,
            heard: 0,
            waited: 0,
            steps: 0,
            planned_at_step: None,
            plans: 0,
            failed_plans: 0,
            refused_plans: 0,
            kinds: Vec::new(),
            rank: None,
            kept: Kept::Unread,
            kept_serves: false,
            retention: Retention::Default,
            lower_bound: 0,
            planned_blocks: 0,
            work: Work::None,
            ends: Vec::new(),
            history: History::new(),
            journal: Journal::new(),
            faults: 0,
            nanoseconds: 0,
            trims_left: 0,
            trims_within: 0,
            beyond_limit: 0,
            missed_steps: 0,
            pressures: 0,
            helped_steps: 0,
            has_helped: false,
            tried_for: unmarked::TRIED_STEPS,
            tried: Fitting::new(),
            fitting: Fitting::new(),
            horizon: 0,
            settling: 0,
            patience: PATIENCE,
            patient_until: 0,
            crowded: 0,
        }
    }

    fn settings(&mut self) -> Settings {
        if let Some(settings) = self.settings {
            return settings;
        }
        let settings = Settings::from_environment();
        lock::tell_children_apart();
        os::at_fork_in_child(after_fork);
        if os::environment(c"STEPALLOC_JSON").is_some_and(|path| !path.is_empty()) {
            os::at_exit(write_json_file);
        }
        if crate::kept::name().is_some() {
            os::at_exit(write_kept_by_use);
        }
        if tracer::TRACER.is_wanted() {
            os::at_exit(tracer::flush_at_exit);
        }
        if let Some(signal) = settings::statistics_signal()
            && !os::on_signal(signal, say_statistics)
        {
            os::say(format_args!("STEPALLOC_STATS_SIGNAL: the system refuses a handler for signal {signal}"));
        }
        self.rank = os::rank();
        settings::all_said();
        self.settings = Some(settings);
        settings
    }

    fn boundary(&mut self, others: bool) {
        match FORKED.swap(0, Acquire) {
            0 => {}
            found => self.begin_anew(found == TORN),
        }
        let settings = self.settings();
        if !self.marked {
            self.believe_marks(&settings);
        }
        self.crowded =
            if others { (self.crowded + 2).min(2 * CROWDED) } else { self.crowded.saturating_sub(1) };
        let (faults, now) = (os::minor_faults(), os::now_ns());
        let counted = self.figures(1, faults, now);
        self.steps += 1;
        STATE.matcher.expect(None);
        if !settings.enabled {
            return;
        }
        if let Some(kind) = self.recognised_kind() {
            self.serve_kept(kind, &[], &settings);
        } else if !matches!(self.work, Work::None) {
            self.advance(&settings);
        } else if self.phase == Phase::Waiting
            && self.running() >= settings.start(true).max(self.patient_until)
            && self.crowded < CROWDED
            && !(matches!(self.kept, Kept::Waiting { .. }) && self.running() < KEPT_STEPS)
        {
            self.collect(&settings);
        } else if let Some(figures) = counted {
            let has_changed = self.has_changed(&figures);
            if self.presses() {
                self.serve_no_more(&settings);
            } else if has_changed {
                self.collect(&settings);
            }
        }
        if self.planned_at_step != Some(self.running()) {
            self.trim_at_boundary();
        }
        self.watch_from_beside(&settings);
        STATE.matcher.next_step();
        // What was done here is not the next step's.
        (self.faults, self.nanoseconds) = (os::minor_faults(), os::now_ns());
    }

    /// Gives back what the backend no longer needs, at the first boundaries of a plan, and what the arena no longer needs, at
    /// those after none serves any more.
    fn trim_at_boundary(&mut self) {
        if self.trims_left == 0 {
            if self.phase == Phase::Planned {
                HEAP.arena_holds(STATE.arena.bytes());
            }
            return;
        }
        self.trims_left -= 1;
        if self.phase != Phase::Planned {
            retire_arena();
            return;
        }
        trim();
        if self.trims_left == 0 {
            // Each block of a step was in its slot by now.
            route::set_filling(false);
            HEAP.settle();
        }
    }

    /// The step that is running.
    fn running(&self) -> u64 {
        self.steps - 1
    }

    /// Counts what ends now, so many steps, if a plan served it.
    fn figures(&mut self, steps: u64, faults: u64, now: u64) -> Option<StepFigures> {
        route::trace_boundary();
        let seen = STATE.matcher.next_step();
        let (counted, gap, fallback) = (MISSES.counted.take(), MISSES.gap.take(), MISSES.fallback.take());
        if self.steps == 0 {
            return None;
        }
        let planned = Count {
            allocations: (seen.allocations + gap.allocations).saturating_sub(counted.allocations),
            bytes: (seen.bytes + gap.bytes).saturating_sub(counted.bytes),
        };
        let figures = StepFigures {
            minor_faults: faults.saturating_sub(self.faults),
            nanoseconds: now.saturating_sub(self.nanoseconds),
            planned,
            fallback,
            gap,
            busy: MISSES.busy.take(),
        };
        let state = journal::State {
            step: self.steps - 1,
            phase: self.phase as u8,
            plans: self.plans,
            arena_bytes: STATE.arena.bytes() as u64,
            lower_bound: self.lower_bound,
        };
        self.journal.add(steps, &figures, &state);
        if self.phase != Phase::Planned {
            return None;
        }
        self.history.push(figures);
        Some(figures)
    }

    /// True when the program has left its plan for good.
    fn has_changed(&mut self, figures: &StepFigures) -> bool {
        let all = figures.planned.bytes + figures.fallback.bytes;
        let hit = figures.planned.bytes.saturating_sub(figures.gap.bytes);
        if hit * 100 >= all * HIT_PERCENT {
            self.missed_steps = 0;
            self.helped_steps += 1;
            if self.helped_steps == HELPED_STEPS {
                self.has_helped = true;
                self.patience = PATIENCE;
                self.patient_until = 0;
            }
            return false;
        }
        self.helped_steps = 0;
        self.missed_steps += 1;
        self.missed_steps >= MISSED_STEPS && self.running() >= self.patient_until
    }

    /// True when the arena costs the process's peak again and again: the heap serves better then, until there is another plan.
    fn presses(&self) -> bool {
        HEAP.pressures() - self.pressures >= PRESSURES
    }

    /// Begins collecting.
    fn collect(&mut self, settings: &Settings) {
        if self.crowded >= CROWDED {
            // Of steps that run at once, what one of them needs says nothing; the heap serves them all.
            return self.serve_no_more(settings);
        }
        self.record_for(Work::Here(Box::new(Collector::new())), settings);
    }

    /// Records marked steps from now on.
    fn record_for(&mut self, work: Work, settings: &Settings) {
        self.drop_kept();
        if !RECORDER.open() {
            self.fail();
            return;
        }
        RECORDER.clear();
        self.missed_steps = 0;
        self.ends.clear();
        self.work = work;
        if self.phase == Phase::Waiting {
            self.phase = Phase::Collecting;
        }
        route::set(self.phase == Phase::Planned, Watch::Events, settings.min_bytes);
    }

    /// Goes on with merging and planning at a boundary.
    fn advance(&mut self, settings: &Settings) {
        let end = RECORDER.head();
        self.ends.push(end);
        let outcome = match core::mem::replace(&mut self.work, Work::None) {
            Work::None | Work::Following(_) => return,
            Work::Here(_) if self.crowded >= CROWDED => {
                // Steps have begun to run at once.
                return self.serve_no_more(settings);
            }
            Work::Beside(thread) if !thread.is_finished() => {
                self.work = Work::Beside(thread);
                return;
            }
            Work::Beside(thread) => thread.join().unwrap_or(Outcome::Plan(None)),
            Work::Here(collector) => Outcome::More(collector),
        };
        let outcome = match outcome {
            Outcome::More(collector) if !self.ends.is_empty() => {
                let ends = core::mem::take(&mut self.ends);
                let settings = *settings;
                let others = self.others();
                self.run(RECORDER.unread(end) <= EVENTS_HERE, move |here| {
                    merge(collector, &ends, &settings, &others, here)
                })
            }
            other => Some(other),
        };
        let outcome = match outcome {
            Some(Outcome::Enough(needs)) => {
                route::set(self.phase == Phase::Planned, Watch::Nothing, settings.min_bytes);
                let needs = with_others(needs, &self.others());
                match easy_plan(&needs) {
                    Some(plan) => Some(Outcome::Plan(Some(plan))),
                    None => self.run(false, move |here| {
                        Outcome::Plan(plan(needs, if here { Effort::Quick } else { Effort::Normal }))
                    }),
                }
            }
            other => other,
        };
        match outcome {
            Some(Outcome::Unalike) => self.refuse(settings),
            // What was found before the program began to mark its steps is forgotten.
            None | Some(Outcome::Enough(_) | Outcome::Follow(..) | Outcome::Lost) => {}
            Some(Outcome::Plan(Some(proposal))) if proposal.found.is_some() => {}
            Some(Outcome::More(collector)) => self.work = Work::Here(collector),
            Some(Outcome::Plan(proposal)) => {
                RECORDER.clear();
                match proposal {
                    Some(proposal) => self.install_and_keep(*proposal, settings),
                    None => self.fail(),
                }
            }
        }
    }

    /// Runs a piece of work here, or starts it beside; `None` when it is on its way.
    fn run(&mut self, here: bool, work: impl FnOnce(bool) -> Outcome + Send + 'static) -> Option<Outcome> {
        if here {
            return Some(work(true));
        }
        // The closure is lost if no thread can be made, so it is kept where both can take it.
        let shared = Arc::new(std::sync::Mutex::new(Some(work)));
        let beside = Arc::clone(&shared);
        let take = |shared: &std::sync::Mutex<Option<_>>| shared.lock().ok().and_then(|mut work| work.take());
        let started = os::with_signals_blocked(|| {
            thread::Builder::new().name("stepalloc".into()).spawn(move || {
                route::inside(|| take(&beside).map_or(Outcome::Plan(None), |work| work(false)))
            })
        });
        match started {
            Ok(thread) => {
                self.work = Work::Beside(thread);
                None
            }
            Err(_) => Some(take(&shared).map_or(Outcome::Plan(None), |work| work(true))),
        }
    }

    /// Puts a plan in force.
    fn install(&mut self, mut proposal: Proposal, settings: &Settings) {
        let blocks = proposal.blocks;
        let wanted = usize::try_from(proposal.bytes()).unwrap_or(usize::MAX).min(settings.max_arena);
        let within = HEAP.range().map(|(base, bytes)| (base, bytes / 2));
        if !STATE.arena.is_open() && wanted > 0 && !STATE.arena.open(proposal.shift, wanted, within) {
            self.fail();
            return;
        }
        proposal.limit(wanted.min(STATE.arena.reserved()));
        let granted = STATE.arena.commit(proposal.bytes() as usize, settings.huge_pages == HugePages::Always);
        proposal.limit(granted);
        HEAP.reach_in_arena(STATE.arena.committed());
        if settings.populate {
            STATE.arena.populate(proposal.bytes() as usize);
        }
        // SAFETY: the arena was made usable up to the bytes granted, and the proposal limited to them.
        if !unsafe { STATE.matcher.install(&STATE.arena, &proposal.tables(), &proposal.cut) } {
            self.fail();
            return;
        }
        self.phase = Phase::Planned;
        self.plans += 1;
        self.planned_at_step = Some(self.running());
        self.lower_bound = proposal.lower_bound;
        self.planned_blocks = proposal.blocks;
        self.beyond_limit = blocks - proposal.blocks;
        self.patient_until = self.running() + self.patience;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.trims_left = TRIMS;
        self.helped_steps = 0;
        self.pressures = HEAP.pressures();
        self.has_helped = false;
        self.kinds = proposal.needs;
        self.kept_serves = false;
        MISSES.forget_reasons();
        route::set(true, Watch::Nothing, settings.min_bytes);
        route::set_filling(HEAP.is_open());
        self.retain(Retention::Retain);
        trim();
        if self.marked {
            // What lives into this step is freed in it, and would be kept beside an arena that fills.
            self.give_back_soon();
        }
    }

    /// Tells the backend what is to become of unused memory, where that is news.
    fn retain(&mut self, retention: Retention) {
        if let Some(backend) = route::attached().filter(|_| self.retention != retention) {
            (backend.retain)(retention);
            self.retention = retention;
        }
    }

    /// The kinds planned now, those that were in use last first.
    fn others(&self) -> Vec<Arc<Needs>> {
        let mut kinds: Vec<_> = STATE.matcher.unused().zip(&self.kinds).collect();
        kinds.sort_by_key(|&(unused, _)| unused);
        kinds.into_iter().map(|(_, needs)| Arc::clone(needs)).collect()
    }

    /// No memory for the log, the arena or the tables: what served before goes on serving.
    fn fail(&mut self) {
        self.failed_plans += 1;
        self.patient_until = self.steps + self.patience;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        let planned = self.phase == Phase::Planned;
        if !planned {
            self.phase = Phase::Waiting;
        }
        route::set(planned, Watch::Nothing, self.settings().min_bytes);
    }

    /// The marked steps that were collected do not repeat: a plan would take far more memory than they do, and serve little of
    /// it twice. The heap serves, and it is asked again ever more rarely.
    fn refuse(&mut self, settings: &Settings) {
        self.refused_plans += 1;
        self.patient_until = ASKED_AGAIN * self.running();
        self.serve_no_more(settings);
    }

    /// The backend serves, and nothing is collected.
    fn serve_no_more(&mut self, settings: &Settings) {
        RECORDER.clear();
        self.phase = Phase::Waiting;
        self.planned_at_step = None;
        self.kinds.clear();
        route::set_filling(false);
        if STATE.arena.is_open() {
            retire_arena();
        }
        // What lives in the arena is freed by and by.
        self.trims_left = if STATE.arena.is_open() { TRIMS } else { 0 };
        self.retain(Retention::Default);
        route::set(false, Watch::Nothing, settings.min_bytes);
    }

    fn disable(&mut self) {
        let settings = Settings { enabled: false, ..self.settings.unwrap_or(Settings::DEFAULT) };
        self.settings = Some(settings);
        route::stop_tracing(settings.min_bytes);
        HEAP.disable();
        self.serve_no_more(&settings);
    }

    /// In a forked child: the thread beside is gone, the log stands for nothing, steps are counted from 0 again. The
    /// arena and the plan in force were copied, and serve on.
    fn begin_anew(&mut self, torn: bool) {
        let (settings, retention) = (self.settings.filter(|_| !torn), self.retention);
        // What the parent's threads held cannot be dropped here: they do not exist.
        core::mem::forget(core::mem::replace(self, Self::new()));
        let serving = route::is_serving();
        if torn {
            // It may have been the first boundary that was torn.
            os::at_fork_in_child(after_fork);
        }
        let settings = settings.unwrap_or_else(Settings::from_environment);
        self.settings = Some(settings);
        self.rank = os::rank();
        // The file is the parent's, which has more to plan.
        self.kept = Kept::None;
        // Torn, it may have been about to change.
        self.retention = if torn { Retention::Immediate } else { retention };
        self.retain(if serving { Retention::Retain } else { Retention::Default });
        watch::forget_threads();
        if serving {
            self.phase = Phase::Planned;
            self.planned_at_step = Some(0);
            self.plans = 1;
        }
        RECORDER.clear();
        // The parent's plan is filled, as far as it will be.
        route::set_filling(false);
        self.pressures = HEAP.pressures();
        self.listen_anew(serving, &settings);
    }

    fn statistics(&self) -> Statistics {
        let (vm_rss_bytes, vm_hwm_bytes) = os::resident_bytes();
        let last_steps: LastSteps = self.history.last_steps();
        let heap = HEAP.held();
        Statistics {
            pid: os::pid(),
            rank: self.rank,
            backend: route::attached().map_or("", |backend| (backend.name)()),
            phase: self.phase,
            marked: self.marked,
            period_allocations: self.start.map(|start| start.rhythm.period as u64),
            steps: self.steps,
            planned_at_step: self.planned_at_step,
            plans: self.plans,
            failed_plans: self.failed_plans,
            refused_plans: self.refused_plans,
            arena_bytes: STATE.arena.bytes() as u64,
            arena_occupied_bytes: if STATE.arena.is_open() { STATE.arena.occupied_bytes() as u64 } else { 0 },
            heap_bytes: heap.alive as u64,
            heap_resident_bytes: heap.resident as u64,
            heap_moved_bytes: heap.moved as u64,
            heap_returned_bytes: heap.returned as u64,
            kept: self.kept_serves,
            kinds: self.kinds.len() as u64,
            lower_bound_bytes: self.lower_bound,
            planned_blocks: self.planned_blocks,
            blocks_beyond_limit: self.beyond_limit,
            idle_releases: watch::releases(),
            misses: MISSES.largest(|class| STATE.matcher.has_alike(class)),
            last_steps,
            vm_rss_bytes,
            vm_hwm_bytes,
        }
    }
}

/// Merges the steps that ended; beside the program, planning follows at once.
fn merge(
    mut collector: Box<Collector>,
    ends: &[u64],
    settings: &Settings,
    others: &[Arc<Needs>],
    here: bool,
) -> Outcome {
    if ends.iter().any(|&end| collector.step(&RECORDER, end, settings)) {
        let needs = collector.needs(false);
        if collector.is_unalike(&needs) {
            return Outcome::Unalike;
        }
        return if here {
            Outcome::Enough(needs)
        } else {
            Outcome::Plan(plan(with_others(needs, others), Effort::Normal))
        };
    }
    Outcome::More(collector)
}

/// A plan of what is easy, made at once. Anything else may take some tenths of a second.
fn easy_plan(needs: &[Arc<Needs>]) -> Option<Box<Proposal>> {
    match needs {
        [only] if only.step.problem.blocks.len() <= BLOCKS_HERE => {
            plan(needs.to_vec(), Effort::Quick).filter(|plan| plan.optimal)
        }
        _ => None,
    }
}

fn plan(needs: Vec<Arc<Needs>>, effort: Effort) -> Option<Box<Proposal>> {
    let shift = STATE.arena.fixed_shift();
    let quick = Proposal::of(needs, Effort::Quick, shift)?;
    // While a better one is looked for, the backend serves.
    let over = quick.bytes().saturating_sub(quick.lower_bound);
    let good = quick.optimal
        || over <= (quick.lower_bound / GOOD_SHARE).max(os::resident_bytes().0 / GOOD_RESIDENT_SHARE);
    let plan =
        if good || effort == Effort::Quick { quick } else { Proposal::of(quick.needs, effort, shift)? };
    Some(Box::new(plan))
}

/// Takes the arena's free pages away, for the large heap where there is one: no plan serves from them.
fn retire_arena() {
    STATE.arena.each_free(|start, bytes| HEAP.adopt(start, bytes));
    HEAP.arena_holds(STATE.arena.occupied_bytes());
}

fn trim() {
    if let Some(backend) = route::attached() {
        (backend.trim)();
    }
}

extern "C" fn after_fork() {
    lock::own();
    step::after_fork();
    // A child of a child that has not looked at it yet stays torn.
    FORKED.fetch_max(CHILD, Relaxed);
    route::stop_recording();
}

extern "C" fn write_json_file() {
    // A child that made no step of its own has nothing to tell.
    if FORKED.load(Relaxed) != 0 {
        return;
    }
    let mut text = Text::<JSON_BYTES>::new();
    let snapshot = ENGINE.with(Some(EXIT_ATTEMPTS), |engine| engine.statistics());
    let Some(snapshot) =
        snapshot.filter(|snapshot| snapshot.steps > 0 || LISTENER.heard() >= rhythm::EVIDENCE as u64)
    else {
        return;
    };
    let _ = snapshot.write_json(&mut text);
    let _ = core::fmt::Write::write_str(&mut text, "\n");
    let mut path = [0; 4096];
    let Some(value) = os::environment(c"STEPALLOC_JSON").filter(|value| value.len() < path.len()) else {
        return;
    };
    path[..value.len()].copy_from_slice(value);
    let Ok(name) = CStr::from_bytes_until_nul(&path) else { return };
    if !os::append(name, text.as_bytes()) {
        os::say(format_args!("STEPALLOC_JSON={}: cannot be written", name.to_str().unwrap_or("(not UTF-8)")));
    }
}

extern "C" fn say_statistics(_signal: i32) {
    os::keeping_errno(|| {
        let mut text = Text::<JSON_BYTES>::new();
        let snapshot = ENGINE.with(Some(1), |engine| engine.statistics());
        let _ = match snapshot {
            Some(snapshot) => snapshot.write_json(&mut text),
            None => {
                core::fmt::Write::write_str(&mut text, "stepalloc: at a step boundary just now; ask again")
            }
        };
        let _ = core::fmt::Write::write_str(&mut text, "\n");
        os::write_all(2, text.as_bytes());
    });
}
