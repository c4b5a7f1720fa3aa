//! The engine: counts steps, and leads the process from the first allocation to a plan, and from one plan to the next.
//!
//! What is decided stands in [`machine`], which is pure; here is what it takes to observe and to act: one
//! lock that no allocation waits for, a thread where work is long, the plan file, forks. Everything happens
//! at step boundaries, or of detected steps, within allocations that reach a wake-up; these ask for the lock
//! once and go on where it is held.
//!
//! A panic in here ends planning, and not the program: see [`Engine::stop`].

mod cache;
mod detected;
mod idle;
mod machine;
mod process;
#[cfg(test)]
mod tests;
mod work;

use crate::backend::{self, Retention};
use crate::heap::HEAP;
use crate::lock::Lock;
use crate::lookup::Class;
use crate::lookup::counter::Count;
use crate::lookup::misses::MISSES;
use crate::os;
use crate::policy::{LEARNING_SHARE, YOUNG_NANOSECONDS};
use crate::profile::plan_file::{PlanFile, Plans};
use crate::profile::proposal::Proposal;
use crate::record::journal::{self, Journal};
use crate::record::recorder::RECORDER;
use crate::record::size_log::SIZE_LOG;
use crate::record::tracer;
use crate::reentrant;
use crate::scarcity;
use crate::settings::{self, HugePages, Settings};
use crate::statistics::{History, Phase, Statistics, StepFigures};
use crate::switches::{self, MISS_LIMIT, MISSES_IN_STEP, STATE, Watch};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem;
use core::ptr;
use core::sync::atomic::Ordering::*;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub use idle::release;
pub(crate) use idle::{relieve, relieve_of_zeros, trim_backend, watch_heap};
use machine::{Action, Event, Machine, Origin, Snapshot};
pub(crate) use process::{EXIT_ATTEMPTS, log_unwritten};
use work::{Means, Outcome, Place, Work};

static ENGINE: Locked = Locked { lock: Lock::new(), engine: UnsafeCell::new(Engine::new()) };

/// The engine and its lock.
struct Locked {
    lock: Lock,
    engine: UnsafeCell<Engine>,
}

// SAFETY: the engine is reached through `Locked::with` only, by one thread at a time.
unsafe impl Sync for Locked {}

impl Locked {
    fn with<R>(&self, attempts: Option<u32>, body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.lock.with(attempts, |poisoned| {
            if poisoned {
                process::is_poisoned();
            }
            // SAFETY: the lock is held.
            body(unsafe { &mut *self.engine.get() })
        })
    }
}

/// The machine, and what it observes and acts with.
struct Engine {
    machine: Machine,
    /// The settings were read.
    is_ready: bool,
    /// No period is looked for yet.
    is_young: bool,
    /// This process's rank among those that one launcher has started.
    rank: Option<u64>,
    /// The plan file, and what it holds.
    file: Option<Box<PlanFile>>,
    cached: Option<Box<Plans>>,
    /// Work in a thread of its own.
    beside: Option<Arc<Beside>>,
    /// The backend's current retention.
    retention: Retention,
    history: History,
    journal: Journal,
    /// Faults and time at the last boundary.
    faults: u64,
    nanoseconds: u64,
    /// Why nothing is planned any more.
    stopped: Option<&'static str>,
}

/// Work for a thread of its own, which nobody waits for.
struct Beside {
    /// The arena's, as [`Means::shift`].
    shift: Option<u32>,
    stage: Mutex<Stage>,
}

enum Stage {
    Begins(Work),
    Runs,
    /// With an outcome, or in a panic.
    Ended(thread::Result<Outcome>),
}

impl Beside {
    fn change(&self, to: Stage) -> Stage {
        mem::replace(&mut *self.stage.lock().unwrap_or_else(PoisonError::into_inner), to)
    }

    /// What is to be done.
    fn begin(&self) -> Option<Work> {
        match self.change(Stage::Runs) {
            Stage::Begins(work) => Some(work),
            Stage::Runs | Stage::Ended(_) => None,
        }
    }

    /// What came of it, where that is known.
    fn outcome(&self) -> Option<thread::Result<Outcome>> {
        let mut stage = self.stage.try_lock().ok()?;
        match mem::replace(&mut *stage, Stage::Runs) {
            Stage::Ended(outcome) => Some(outcome),
            other => {
                *stage = other;
                None
            }
        }
    }
}

/// The thread of [`Engine::run`]. It allocates nothing as the program would: its first block would cost a backend a heap for the thread.
extern "C" fn run_beside(shared: *mut c_void) -> *mut c_void {
    os::name_thread(c"stepalloc");
    reentrant::guard(|| {
        // SAFETY: a count of the two was made for this thread.
        let beside = unsafe { Arc::from_raw(ptr::with_exposed_provenance::<Beside>(shared.addr())) };
        if let Some(work) = beside.begin() {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                scarcity::may_wait(|| run(work, beside.shift, Place::Beside))
            }));
            beside.change(Stage::Ended(outcome));
        }
    });
    ptr::null_mut()
}

fn run(work: Work, shift: Option<u32>, place: Place) -> Outcome {
    crate::fail_point::reach(if place == Place::Beside { "beside" } else { "here" });
    let peak = peak_bytes();
    let learning = backend::attached().map_or(0, |backend| backend.learning_bytes);
    let shows = learning as u64 > peak / LEARNING_SHARE;
    if shows {
        HEAP.learns_with(learning);
    }
    let outcome = work.run(Means { recorder: &RECORDER, shift, peak, place });
    if shows {
        // What finds a period, merges steps and plans them is never needed at once.
        end_learning();
        HEAP.learns_with(0);
    }
    outcome
}

/// The process's peak of resident bytes: what is known of it where the system's figure is that of whoever executed this program.
fn peak_bytes() -> u64 {
    /// What a process has beside large blocks.
    const OTHERS: u64 = 16 << 20;
    match os::peak_bytes() {
        peak if os::peak_is_its_own(peak) => peak,
        peak => peak.min(HEAP.held().resident as u64 + STATE.arena.committed() as u64 + OTHERS),
    }
}

/// Ends the running step and begins the next one. From any thread.
///
/// The first call begins step 0.
pub fn boundary() {
    boundary_among(false);
}

/// A boundary of one thread's step, while others may be in the midst of theirs.
pub(crate) fn boundary_among(concurrent: bool) {
    enter(None, |engine| engine.boundary(concurrent));
}

/// A snapshot of what the allocator does in this process.
pub fn statistics() -> Statistics {
    reentrant::guard(|| ENGINE.with(None, |engine| engine.statistics()))
        .unwrap_or_else(|| Engine::new().statistics())
}

/// Reads the settings, installs what they ask for (the statistics signal, the file written at exit), and complains
/// about bad ones, before the first step does. Needed only where complaints must not wait.
pub fn initialise() {
    process::begin();
    os::keeping_errno(|| {
        ENGINE.with(None, |engine| {
            engine.settings();
            // Where an earlier request had the settings read already.
            process::install_handlers();
        })
    });
}

/// Plans nothing from now on, as `ENABLE_MEMORY_OPTIMIZATION=0` does, whatever the environment says: for a program that uses
/// [`StatisticAllocator`](crate::StatisticAllocator) in some of its ways to run only. Best called first in `main`; no settings are
/// read, nothing is traced, and no figures are written at the end then. What a plan has served stays where it is until it is freed.
pub fn disable() {
    os::keeping_errno(|| reentrant::guard(|| ENGINE.with(None, Engine::disable)));
}

/// The phase now. A plan that serves is "planned" even while the next one is being made.
pub fn phase() -> Phase {
    ENGINE.with(None, |engine| engine.machine.phase()).unwrap_or(Phase::Waiting)
}

/// Looks at what was logged or recorded. Called within an allocation, when either has as much as was asked for.
#[cold]
pub(crate) fn sampled() {
    enter(Some(1), |engine| {
        engine.settings();
        engine.open_cache();
        engine.happen(Event::Sampled, None);
        engine.finish_work();
    });
}

/// Ends the running detected step, `step` for the matcher, of which `class` was the first allocation too many; `false` where another
/// thread is about it.
#[cold]
pub(crate) fn detected_boundary(class: Class, step: u64) -> bool {
    let ended = enter(Some(1), |engine| {
        // Another thread may have ended it just now.
        STATE.matcher.step() != step || engine.detected_boundary(class)
    });
    ended.unwrap_or(false)
}

/// Called when more slots were missed since the last boundary than a step has allocations.
#[cold]
pub(crate) fn period_lost() {
    enter(Some(1), |engine| {
        MISSES_IN_STEP.store(0, Relaxed);
        engine.happen(Event::PeriodLost, None);
    });
}

/// Called when the trace is as long as it may be.
#[cold]
pub(crate) fn end_trace() {
    enter(Some(1), |engine| switches::stop_tracing(engine.settings().min_bytes));
}

/// Opens the large heap, before the first block that it is to serve. Says nothing of bad settings: nearly every process asks for some
/// large block.
#[cold]
pub(crate) fn open_heap() {
    enter(Some(1), |_| {
        // Another thread may have done it just now.
        if !HEAP.is_unopened() {
            return;
        }
        // Both lie in one range, or the arena has its own.
        if STATE.arena.is_open() || !HEAP.open() {
            HEAP.disable();
        }
        // No block comes from it before its address is watched.
        switches::refresh(switches::threshold());
        process::handle_heap();
        HEAP.begin_serving(settings::least_bytes());
    });
}

/// Runs `body` with the engine, after what a fork has left to be done. A panic ends planning.
fn enter<R>(attempts: Option<u32>, body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    os::keeping_errno(|| {
        reentrant::guard(|| {
            let guarded = |engine: &mut Engine| {
                // What a panic leaves half changed, `stop` replaces.
                let result = panic::catch_unwind(AssertUnwindSafe(|| {
                    if let Some(poisoned) = process::forked() {
                        engine.begin_anew(poisoned);
                    }
                    if scarcity::was_refused() {
                        engine.end_learning();
                    }
                    body(engine)
                }));
                result.inspect_err(|_| engine.stop()).ok()
            };
            os::uncancelled(|| ENGINE.with(attempts, guarded).flatten())
        })
    })
}

impl Engine {
    const fn new() -> Self {
        Self {
            machine: Machine::new(Settings::DEFAULT),
            is_ready: false,
            is_young: true,
            rank: None,
            file: None,
            cached: None,
            beside: None,
            retention: Retention::Default,
            history: History::new(),
            journal: Journal::new(),
            faults: 0,
            nanoseconds: 0,
            stopped: None,
        }
    }

    fn settings(&mut self) -> Settings {
        if !self.is_ready {
            self.is_ready = true;
            os::begin();
            settings::read_paths();
            backend::read_environment();
            self.machine.settings = Settings::from_environment();
            self.rank = os::rank();
            process::install_handlers();
            settings::all_reported();
        }
        self.machine.settings
    }

    /// Reads the plan file, once.
    fn open_cache(&mut self) {
        if self.machine.knows_cache() || !self.machine.settings.enabled {
            return;
        }
        let (file, plans) = PlanFile::open().unzip();
        self.file = file.map(Box::new);
        self.machine.open_cache(plans, STATE.arena.is_open());
    }

    /// Hands an event to the machine, and carries its actions out. Returns whether there were any.
    fn happen(&mut self, event: Event, step: Option<StepFigures>) -> bool {
        // Only where a period is looked for does it matter.
        let is_limited = matches!(event, Event::Sampled) && os::address_space_is_limited();
        if self.is_young && matches!(event, Event::Sampled) {
            self.is_young = self.machine.settings.start_step.is_none() && os::cpu_ns() < YOUNG_NANOSECONDS;
        }
        let now = Snapshot {
            sizes: &SIZE_LOG,
            recorder: &RECORDER,
            matcher: &STATE.matcher,
            step,
            pressures: HEAP.pressures(),
            has_arena: STATE.arena.is_open(),
            is_limited,
            is_young: self.is_young,
        };
        let actions = self.machine.on(event, &now);
        let acts = !actions.is_empty();
        for action in actions {
            if let Some(event) = self.act(action) {
                self.happen(event, None);
            }
        }
        acts
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        let min_bytes = self.machine.settings.min_bytes;
        match action {
            Action::Observe { serving, watch } => {
                switches::set(serving, watch, min_bytes);
                if watch == Watch::Nothing {
                    // Nor is a period looked for beside a plan.
                    end_learning();
                }
            }
            Action::Record { serving, watch } => {
                if !RECORDER.open() {
                    return Some(Event::NotRecorded);
                }
                RECORDER.clear();
                switches::set(serving, watch, min_bytes);
            }
            Action::DropEvents => RECORDER.clear(),
            Action::WakeAfterEvents(events) => RECORDER.wake_after(events),
            Action::WakeAfterSizes(allocations) => SIZE_LOG.wake_after(allocations),
            Action::WakeWhenGrown => SIZE_LOG.wake_later(),
            Action::DropSizes => {
                SIZE_LOG.clear();
                MISSES_IN_STEP.store(0, Relaxed);
            }
            Action::Run { work, here } => return self.run(work, here),
            Action::Install { proposal, origin } => return Some(self.install(proposal, origin)),
            Action::Resume { variant, running } => STATE.matcher.resume(variant, &running),
            Action::IgnoreBegin => STATE.matcher.ignore_begin(),
            Action::LimitMisses(limit) => MISS_LIMIT.store(limit, Relaxed),
            Action::DropMisses => {
                MISSES.forget_step();
                MISSES_IN_STEP.store(0, Relaxed);
                self.begin_figures();
            }
            Action::RetireArena => {
                STATE.arena.each_free(|start, bytes| HEAP.adopt(start, bytes, usize::MAX, false));
                HEAP.arena_retires(STATE.arena.occupied_bytes());
            }
            Action::Fill(filling) => {
                switches::set_filling(filling && HEAP.is_open());
                if !filling {
                    // What learning, installing a plan and filling it have run is not run again soon.
                    end_learning();
                    if STATE.arena.is_open() {
                        HEAP.arena_is_filled(STATE.arena.bytes());
                    }
                }
            }
            Action::Settle => HEAP.plan_has_filled(STATE.arena.bytes()),
            Action::AwaitPlan(awaits) => HEAP.await_plan(awaits),
            Action::Retain(retention) => {
                if let Some(backend) = backend::attached().filter(|_| self.retention != retention) {
                    (backend.retain)(retention);
                    self.retention = retention;
                }
            }
            Action::Cache { plans, write } => {
                if let Some(file) = self.file.as_mut().filter(|_| write) {
                    file.write(&plans);
                }
                self.cached = Some(plans);
            }
        }
        None
    }

    /// Does work in this thread, or starts it in another.
    fn run(&mut self, work: Work, here: bool) -> Option<Event> {
        let shift = STATE.arena.fixed_shift();
        if here {
            return Some(Event::Worked(run(work, shift, Place::Here)));
        }
        let beside = Arc::new(Beside { shift, stage: Mutex::new(Stage::Begins(work)) });
        let shared = Arc::into_raw(Arc::clone(&beside));
        if os::start_thread(run_beside, shared.expose_provenance(), os::PLANNING_STACK_BYTES) {
            self.beside = Some(beside);
            return None;
        }
        // SAFETY: no thread has the count that was made for it.
        unsafe { Arc::decrement_strong_count(shared) };
        let work = beside.begin();
        work.map(|work| Event::Worked(run(work, shift, Place::HereOnly)))
    }

    /// Takes the outcome of work beside the program, where it is done. Returns whether it was.
    fn finish_work(&mut self) -> bool {
        let Some(outcome) = self.beside.as_ref().and_then(|beside| beside.outcome()) else { return false };
        self.beside = None;
        match outcome {
            Ok(outcome) => {
                self.happen(Event::Worked(outcome), None);
            }
            Err(_) => self.stop(),
        }
        true
    }

    /// Puts a plan in force.
    fn install(&self, mut proposal: Box<Proposal>, origin: Origin) -> Event {
        let settings = &self.machine.settings;
        let blocks = proposal.blocks;
        let wanted = usize::try_from(proposal.bytes()).unwrap_or(usize::MAX).min(settings.max_arena);
        let within = HEAP.range().map(|(base, bytes)| (base, bytes / 2));
        // What was planned may be smaller than the setting, where that was raised later.
        let least = settings.min_bytes.min(switches::threshold());
        if !STATE.arena.is_open() && wanted > 0 && !STATE.arena.open(proposal.shift, wanted, least, within) {
            return Event::NotInstalled;
        }
        proposal.limit(wanted.min(STATE.arena.reserved()));
        proposal.leave_smaller(STATE.arena.least_bytes());
        let granted = STATE.arena.commit(proposal.bytes() as usize, settings.huge_pages == HugePages::Always);
        proposal.limit(granted);
        HEAP.reach_in_arena(STATE.arena.committed());
        if proposal.in_lanes() && HEAP.is_open() {
            // The sum of the threads' peaks may be more than the peak of their sum was so far.
            HEAP.expect(proposal.bytes() as usize);
        }
        if settings.populate {
            STATE.arena.populate(proposal.bytes() as usize);
            HEAP.arena_is_filled(proposal.bytes() as usize);
        }
        // SAFETY: the arena was made usable up to the bytes granted, and the proposal limited to them.
        if !unsafe { STATE.matcher.install(&STATE.arena, &proposal.tables(), &proposal.cut) } {
            return Event::NotInstalled;
        }
        // Requests in between find no slot of theirs, and are served by gaps or the heap.
        switches::set_in_lanes(proposal.in_lanes());
        MISSES.forget_reasons();
        let beyond_limit = blocks - proposal.blocks;
        Event::Installed { proposal, origin, beyond_limit }
    }

    fn boundary(&mut self, concurrent: bool) {
        crate::fail_point::reach("boundary");
        self.settings();
        if !self.machine.marked {
            self.open_cache();
            self.happen(Event::FirstMark, None);
        }
        let step = self.end_step(1);
        STATE.matcher.expect(None);
        let acts = self.happen(Event::Boundary { concurrent }, step) | self.finish_work();
        self.look_after_arena();
        STATE.matcher.next_step();
        if acts {
            // What was done here is not the next step's.
            self.begin_figures();
        }
    }

    fn detected_boundary(&mut self, class: Class) -> bool {
        if self.machine.marked || self.machine.phase() != Phase::Planned {
            return false;
        }
        STATE.matcher.uncount(class);
        let step = self.end_step(self.machine.steps_in_period());
        STATE.matcher.expect(Some(class));
        MISSES_IN_STEP.store(0, Relaxed);
        let acts = self.happen(Event::DetectedBoundary, step);
        self.look_after_arena();
        if acts {
            self.begin_figures();
        }
        true
    }

    /// Reports the arena's bytes to the heap once it is full, and starts the thread that looks whether it is
    /// used.
    fn look_after_arena(&mut self) {
        if self.machine.has_settled() {
            // Also what was touched again since pages went back.
            HEAP.arena_is_filled(STATE.arena.bytes());
            HEAP.arena_holds(STATE.arena.bytes());
        }
        if self.machine.phase() == Phase::Planned || HEAP.wants_watch() {
            idle::watch(&self.settings());
        }
    }

    /// Counts what ends now, so many steps, and begins to count what follows; returns it where a plan served it.
    fn end_step(&mut self, steps: u64) -> Option<StepFigures> {
        let (faults, now) = (os::minor_faults(), os::now_ns());
        tracer::boundary();
        let seen = STATE.matcher.next_step();
        let (counted, gap, fallback) = (MISSES.counted.take(), MISSES.gap.take(), MISSES.fallback.take());
        let minor_faults = faults.saturating_sub(mem::replace(&mut self.faults, faults));
        let nanoseconds = now.saturating_sub(mem::replace(&mut self.nanoseconds, now));
        let step = self.machine.steps.checked_sub(1)?;
        let planned = Count {
            allocations: (seen.allocations + gap.allocations).saturating_sub(counted.allocations),
            bytes: (seen.bytes + gap.bytes).saturating_sub(counted.bytes),
        };
        let figures =
            StepFigures { minor_faults, nanoseconds, planned, fallback, gap, busy: MISSES.busy.take() };
        let machine = &self.machine;
        let state = journal::State {
            step,
            phase: machine.phase() as u8,
            plans: machine.plans,
            arena_bytes: STATE.arena.bytes() as u64,
            lower_bound: machine.plan.as_ref().map_or(0, |plan| plan.lower_bound),
        };
        self.journal.add(steps, &figures, &state);
        if machine.phase() != Phase::Planned {
            return None;
        }
        self.history.push(figures);
        Some(figures)
    }

    fn begin_figures(&mut self) {
        (self.faults, self.nanoseconds) = (os::minor_faults(), os::now_ns());
    }

    fn disable(&mut self) {
        self.is_ready = true;
        switches::stop_tracing(self.machine.settings.min_bytes);
        HEAP.disable();
        self.happen(Event::Disabled, None);
    }

    /// There was no memory to learn with: what was learned so far is given up, and the heap and the backend serve.
    #[cold]
    fn end_learning(&mut self) {
        if self.stopped.is_none() {
            self.stopped = Some("no memory");
            switches::stop_tracing(self.machine.settings.min_bytes);
            self.happen(Event::Disabled, None);
        }
    }

    /// After a panic of our own: nothing is known of the machine any more, so nothing is planned, and the backend serves. What lives in the
    /// arena and the large heap is freed there.
    #[cold]
    fn stop(&mut self) {
        self.stopped = Some("panic");
        let settings = Settings { enabled: false, ..self.machine.settings };
        // Parts may be half changed: not even to be dropped.
        mem::forget(mem::replace(&mut self.machine, Machine::new(settings)));
        mem::forget(self.beside.take());
        mem::forget(self.file.take());
        mem::forget(self.cached.take());
        self.machine.open_cache(None, true);
        switches::stop_tracing(settings.min_bytes);
        HEAP.disable();
        switches::set_filling(false);
        switches::set(false, Watch::Nothing, settings.min_bytes);
        RECORDER.clear();
    }

    /// In a forked child: the thread beside is gone, and the log stands for nothing.
    fn begin_anew(&mut self, poisoned: bool) {
        let (settings, retention) =
            ((self.is_ready && !poisoned).then_some(self.machine.settings), self.retention);
        let stopped = self.stopped;
        // What the parent's threads held cannot be dropped here: they do not exist.
        mem::forget(mem::replace(self, Self::new()));
        if poisoned {
            // It may have been the first boundary that was interrupted.
            process::handle_forks();
        }
        self.machine = Machine::new(settings.unwrap_or_else(Settings::from_environment));
        (self.is_ready, self.stopped) = (true, stopped);
        self.rank = os::rank();
        // The file is the parent's, which has more to plan.
        self.machine.open_cache(None, true);
        // Poisoned, it may have been about to change.
        self.retention = if poisoned { Retention::Immediate } else { retention };
        idle::forget_threads();
        self.happen(Event::Forked { serving: switches::is_serving() }, None);
    }

    fn statistics(&self) -> Statistics {
        let (vm_rss_bytes, vm_hwm_bytes) = os::resident_bytes();
        let heap = HEAP.held();
        let machine = &self.machine;
        let plan = machine.plan.as_ref();
        Statistics {
            pid: os::pid(),
            rank: self.rank,
            backend: backend::attached().map_or("", |backend| (backend.name)()),
            phase: machine.phase(),
            stopped: self.stopped,
            marked: machine.marked,
            period_allocations: plan.and_then(|plan| plan.start).map(|start| start.period.allocations as u64),
            steps: machine.steps,
            planned_at_step: plan.map(|plan| plan.since),
            plans: machine.plans,
            failed_plans: machine.failed_plans,
            refused_plans: machine.refused_plans,
            arena_bytes: STATE.arena.bytes() as u64,
            arena_occupied_bytes: if STATE.arena.is_open() { STATE.arena.occupied_bytes() as u64 } else { 0 },
            heap_bytes: heap.alive as u64,
            heap_resident_bytes: heap.resident as u64,
            heap_moved_bytes: heap.moved as u64,
            heap_returned_bytes: heap.returned as u64,
            kept: plan.is_some_and(|plan| plan.is_cached),
            kinds: plan.map_or(0, |plan| plan.profiles.len() as u64),
            lower_bound_bytes: plan.map_or(0, |plan| plan.lower_bound),
            planned_blocks: plan.map_or(0, |plan| plan.blocks),
            blocks_beyond_limit: plan.map_or(0, |plan| plan.beyond_limit),
            idle_releases: idle::releases(),
            misses: MISSES.largest(|class| STATE.matcher.has_alike(class)),
            last_steps: self.history.last_steps(),
            vm_rss_bytes,
            vm_hwm_bytes,
        }
    }
}

fn end_learning() {
    if let Some(backend) = backend::attached() {
        (backend.end_learning)();
    }
}

fn trim() {
    if let Some(backend) = backend::attached() {
        (backend.trim)();
    }
}
