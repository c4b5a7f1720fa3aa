//! Steps that nobody marks: heard, followed, planned, and told from each other while a plan serves.
//!
//! What a boundary call does for marked steps happens within allocations here: while waiting, when the
//! [listener](crate::listener) has heard enough for another look; while collecting, when the recorder has what was asked
//! for; while a plan serves, at the first allocation of a step, which the [matcher](crate::matcher) knows by its class and
//! by all others having come. An allocation asks for the engine's lock once and goes on where it is held.

use super::{
    ENGINE, EVENTS_HERE, Engine, FORKED, Kept, Outcome, PATIENCE_MAX, Phase, TORN, Work, easy_plan, plan,
    trim,
};
use crate::collector::{Proposal, TELLING, with_others};
use crate::found::{Followed, Found, Start};
use crate::heap::HEAP;
use crate::listener::LISTENER;
use crate::matcher::Class;
use crate::misses::MISSES;
use crate::os;
use crate::recorder::RECORDER;
use crate::route::{self, STATE, UNFIT, UNFIT_MOST, Watch};
use crate::settings::{self, Settings};
use crate::statistics::StepFigures;
use core::sync::atomic::Ordering::*;
use std::sync::Arc;
use stepalloc_planner::{Effort, Rhythm, rhythm};

/// Allocations from one boundary to the next at least; of shorter steps several are taken together. A boundary costs about
/// two microseconds, most of them for the system's figures.
const LEAST_PERIOD: usize = 40;
/// Events between two looks at a thread that plans beside the program.
const SOON: u64 = 64;
/// Requests without a slot that a step may have at least before the program counts as out of its rhythm.
const UNFIT_LEAST: u32 = 32;
/// After so many steps without a slot at most it is looked for another rhythm, however often that was in vain.
const UNFIT_STEPS: u32 = 8;
/// The backend's caches are given back so often in the first period of a plan, and at the boundaries after it: what was alive
/// when it came into force is freed by and by, and a period may be many steps.
const TRIMS_WITHIN: u8 = 8;
/// Bytes of a period that must be of sizes the plan knows if it is to be the plan's, in percent.
const KNOWN_PERCENT: u64 = 90;
/// Steps after which it is asked whether the rhythm is the right one; doubled whenever the answer was no.
pub(super) const TRIED_STEPS: u32 = 16;
/// At most so many.
const TRIED_STEPS_MOST: u32 = 1 << 14;
/// Bytes that may find no slot before another rhythm is looked for, in parts per thousand.
const MISFIT: u64 = 20;
/// The same before a longer one is believed that was heard just after the first plan.
const MISFIT_SETTLING: u64 = 5;
/// Steps after which a plan that serves all but this is believed, once as much was heard again as before it.
const FITTING_STEPS: u32 = 4;
/// Steps after which those before count half.
const FADING_STEPS: u32 = 32;
/// Allocations heard while a plan serves after which a better rhythm is given up looking for; and until it is looked again,
/// where there was no memory for a plan.
pub(super) const DEAF: u64 = 1 << 16;
/// The same for the first plan of a rhythm, in parts of what was heard before: what was planned first may be the layers of
/// a step.
const SETTLING: u64 = 8;

/// What is alive of a step at most must be so many times the least size that is planned: less (1 MiB) any backend keeps at
/// hand by itself, and what steps are learned with takes as much. (Of the recorded programs the smallest has 9 MiB.)
const LEAST_STEP: u64 = 32;
/// Layers that a step has at most, if they are to be told from steps.
const LAYERS: usize = 64;

/// Planned-size bytes, and those of them that found no slot.
#[derive(Clone, Copy)]
pub(super) struct Fitting {
    steps: u32,
    all: u64,
    unfit: u64,
}

impl Fitting {
    pub(super) const fn new() -> Self {
        Self { steps: 0, all: 0, unfit: 0 }
    }

    fn add(&mut self, figures: &StepFigures) {
        self.steps += 1;
        self.all += figures.planned.bytes + figures.fallback.bytes;
        self.unfit += figures.gap.bytes + figures.fallback.bytes;
    }

    /// As [`Fitting::add`]; steps count the less the longer ago they were.
    fn add_fading(&mut self, figures: &StepFigures) {
        if self.steps == FADING_STEPS {
            *self = Self { steps: self.steps / 2, all: self.all / 2, unfit: self.unfit / 2 };
        }
        self.add(figures);
    }

    fn unfit_exceeds(&self, per_thousand: u64) -> bool {
        self.unfit * 1000 > self.all * per_thousand
    }
}

/// Looks at what was heard or recorded. Called within an allocation, when the listener or the recorder says so.
#[cold]
pub(crate) fn listen() {
    within_allocation(Engine::listen);
}

/// Ends the running step, `step` for the matcher, of which `class` was the first allocation too many; `false` where another
/// thread is about it.
#[cold]
pub(crate) fn found_boundary(class: Class, step: u64) -> bool {
    within_allocation(|engine| {
        // Another thread may have ended it just now.
        STATE.matcher.step() != step || engine.found_boundary(class)
    })
    .unwrap_or(false)
}

/// Called when more requests than a step has found no slot since the last boundary.
#[cold]
pub(crate) fn out_of_rhythm() {
    within_allocation(Engine::out_of_rhythm);
}

/// Called when the trace is as long as it may be.
#[cold]
pub(crate) fn end_trace() {
    within_allocation(|engine| route::stop_tracing(engine.settings().min_bytes));
}

/// Opens the large heap, before the first block that it is to serve.
#[cold]
pub(crate) fn open_heap() {
    within_allocation(Engine::open_heap);
}

pub(super) fn within_allocation<R>(body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    os::keeping_errno(|| {
        route::inside(|| {
            ENGINE.with(Some(1), |engine| {
                let forked = FORKED.swap(0, Acquire);
                if forked != 0 {
                    engine.begin_anew(forked == TORN);
                }
                body(engine)
            })
        })
    })
}

impl Engine {
    /// Says nothing of bad settings: nearly every process asks for some large block.
    fn open_heap(&mut self) {
        // Another thread may have done it just now.
        if !HEAP.is_unopened() {
            return;
        }
        // Both lie in one range, or the arena has its own.
        if STATE.arena.is_open() || !HEAP.open() {
            HEAP.disable();
        }
        // No block comes from it before its address is watched.
        route::refresh(route::threshold());
        HEAP.begin_serving(settings::least_bytes());
    }

    /// The program marks its steps: what was found is forgotten.
    pub(super) fn believe_marks(&mut self, settings: &Settings) {
        self.marked = true;
        self.start = None;
        self.steps = 0;
        self.planned_at_step = self.planned_at_step.map(|_| 0);
        self.patient_until = 0;
        RECORDER.wake_after(None);
        UNFIT_MOST.store(u32::MAX, Relaxed);
        STATE.matcher.ignore_begin();
        self.kinds.iter_mut().for_each(|kind| Arc::make_mut(kind).begin = None);
        if !matches!(self.work, Work::Beside(_)) {
            self.work = Work::None;
        }
        if self.phase == Phase::Collecting {
            self.phase = Phase::Waiting;
        }
        self.open_kept(settings);
        let waiting = matches!(self.kept, Kept::Waiting { .. }) && settings.enabled;
        if waiting {
            // Where a step was marked before anything was allocated, nobody has said so.
            LISTENER.wake_after(TELLING as u64);
        }
        let watch = if waiting { Watch::Sizes } else { Watch::Nothing };
        route::set(self.phase == Phase::Planned, watch, settings.min_bytes);
    }

    /// Begins to listen where nothing was heard yet, or what was heard is of another time.
    pub(super) fn listen_anew(&mut self, serving: bool, settings: &Settings) {
        LISTENER.clear();
        UNFIT.store(0, Relaxed);
        let watch = if settings.enabled && !self.marked { Watch::Sizes } else { Watch::Nothing };
        route::set(serving, watch, settings.min_bytes);
    }

    fn listen(&mut self) {
        let settings = self.settings();
        if settings.enabled && self.begin_with_kept(&settings) {
            return;
        }
        let gives_back = settings.enabled && self.phase == Phase::Planned && self.trims_within > 0;
        if gives_back {
            self.give_back();
        }
        if (self.marked && self.trims_within == 0) || !settings.enabled {
            route::set(self.phase == Phase::Planned, Watch::Nothing, settings.min_bytes);
        }
        if self.marked || gives_back || !settings.enabled {
            return;
        }
        if matches!(self.work, Work::None) {
            self.look_for_rhythm(&settings);
        } else {
            self.follow(&settings);
        }
    }

    /// Has what the backend no longer needs given back several times in the first period of a plan.
    pub(super) fn give_back_soon(&mut self) {
        self.trims_within = TRIMS_WITHIN;
        route::set(true, Watch::Sizes, self.settings().min_bytes);
        LISTENER.wake_after(1);
    }

    /// Gives back what the backend no longer needs, now that a plan serves.
    fn give_back(&mut self) {
        trim();
        self.trims_within -= 1;
        let period = self.start.map_or(self.planned_blocks, |start| start.rhythm.period as u64);
        LISTENER.wake_after(period / u64::from(TRIMS_WITHIN));
    }

    fn look_for_rhythm(&mut self, settings: &Settings) {
        if os::address_space_is_limited() {
            // What is learned and planned with would be taken from the program.
            self.drop_kept();
            route::set(self.phase == Phase::Planned, Watch::Nothing, settings.min_bytes);
            return;
        }
        if self.keeps_to_too_small() {
            return self.found_nothing(settings);
        }
        let planned = self.phase == Phase::Planned;
        if LISTENER.is_of_one_size() {
            return self.found_nothing(settings);
        }
        let heard = LISTENER.classes(0);
        let sizes: Vec<u64> = heard.iter().map(|class| class.bytes()).collect();
        let found = rhythm::find(&sizes);
        let bytes = |rhythm: &Rhythm| sizes[sizes.len() - rhythm.period..].iter().sum::<u64>();
        if !planned && found.is_some_and(|rhythm| bytes(&rhythm) < least_bytes(settings)) {
            self.too_small = found;
            return self.found_nothing(settings);
        }
        let found = found.map(|rhythm| {
            // Steps of sizes that do not come again are kinds of their own.
            if rhythm.repeats() { rhythm.repeated(LEAST_PERIOD) } else { rhythm }
        });
        let news = found.filter(|found| !planned || self.is_news(found, &heard));
        let Some(mut rhythm) = news else { return self.found_nothing(settings) };
        if let Some(known) = self.start.map(|start| start.rhythm).filter(|known| !known.repeats())
            && rhythm.period.is_multiple_of(known.period)
        {
            // Kinds of steps that take turns.
            rhythm.steps = rhythm.steps.max(rhythm.period / known.period * known.steps);
        }
        self.drop_kept();
        let start = settings.start(false);
        if self.waited < start {
            LISTENER.wake_after((start - self.waited).saturating_mul(rhythm.period as u64));
            self.waited = start;
            return;
        }
        if !RECORDER.open() {
            self.failed_plans += 1;
            return LISTENER.wake_later();
        }
        let found = Box::new(Found::new(rhythm, &sizes));
        RECORDER.clear();
        RECORDER.wake_after(Some(found.needed()));
        LISTENER.wake_later();
        self.heard = LISTENER.head();
        self.work = Work::Following(found);
        if self.phase == Phase::Waiting {
            self.phase = Phase::Collecting;
        }
        route::set(self.phase == Phase::Planned, Watch::All, settings.min_bytes);
    }

    /// Whether the program is still in a rhythm that was found to be too small, which is told by little of what was heard.
    fn keeps_to_too_small(&mut self) -> bool {
        self.too_small = self.too_small.filter(|rhythm| {
            let newest = LISTENER.newest(1 + rhythm.period + rhythm.period.max(rhythm::EVIDENCE));
            rhythm.holds(&newest.iter().map(|class| class.bytes()).collect::<Vec<u64>>())
        });
        self.too_small.is_some()
    }

    /// Goes on listening, or gives it up where a plan serves for long enough.
    fn found_nothing(&mut self, settings: &Settings) {
        let heard = LISTENER.heard();
        if self.phase == Phase::Planned && (heard >= self.horizon || heard >= self.settling && self.fits()) {
            // What is planned takes the short way from now on.
            route::set(true, Watch::Nothing, settings.min_bytes);
        }
        if matches!(self.kept, Kept::Waiting { .. }) {
            LISTENER.wake_after(TELLING as u64);
        } else {
            LISTENER.wake_later();
        }
    }

    /// Whether the plan serves all that it is asked for, as far as was seen.
    fn fits(&self) -> bool {
        self.fitting.steps >= FITTING_STEPS && !self.fitting.unfit_exceeds(MISFIT_SETTLING)
    }

    /// Whether a rhythm that was heard calls for plans other than those that serve: these leave something over, and no kind
    /// of step has its sizes, or it is longer, and not by contours alone. (The same rhythm is heard again where a program has
    /// left its plan for a while; a shorter one, of layers, within each step; and a longer one where kinds of steps take turns.)
    fn is_news(&self, found: &Rhythm, heard: &[Class]) -> bool {
        let Some(start) = self.start else { return true };
        // What was planned may be a layer of the step, also where it serves the rest of the step as well.
        let step_of_layers = found.repeats()
            && found.period > start.rhythm.period
            && found.period <= LAYERS * start.rhythm.period;
        let same_steps = !found.repeats()
            && found.period > start.rhythm.period
            && found.period.is_multiple_of(start.rhythm.period);
        if same_steps || self.fits() && !step_of_layers {
            return false;
        }
        let newest = &heard[heard.len().saturating_sub(found.period)..];
        let bytes: u64 = newest.iter().map(|class| class.bytes()).sum();
        let Some((best, missing)) = STATE.matcher.best(newest) else { return true };
        if (bytes - missing) * 100 < bytes * KNOWN_PERCENT
            || found.period > start.rhythm.period && self.fitting.unfit_exceeds(MISFIT_SETTLING)
        {
            return true;
        }
        // Its beginning was missed, perhaps.
        let missed = self.fitting.steps == 0 || self.fitting.unfit_exceeds(MISFIT);
        if let Some((_, at)) = self.kinds.get(best).filter(|_| missed).and_then(|kind| kind.place(heard)) {
            STATE.matcher.resume(best, &self.kinds[best].sequence[..at]);
        }
        false
    }

    /// Goes on with cutting the log into steps, merging and planning them.
    fn follow(&mut self, settings: &Settings) {
        if !RECORDER.wakes() && !matches!(self.work, Work::Beside(_)) {
            return LISTENER.wake_later();
        }
        let end = RECORDER.head();
        let outcome = match core::mem::replace(&mut self.work, Work::None) {
            Work::None | Work::Here(_) => return,
            Work::Beside(thread) if !thread.is_finished() => {
                self.work = Work::Beside(thread);
                return self.come_back_soon();
            }
            Work::Beside(thread) => Some(thread.join().unwrap_or(Outcome::Lost)),
            Work::Following(found) => {
                let settings = *settings;
                self.run(RECORDER.unread(end) <= EVENTS_HERE, move |_| follow(found, end, &settings))
            }
        };
        let outcome = match outcome {
            // As for marked steps: what is easy is planned at once.
            Some(Outcome::Follow(found, 0)) => {
                let needs = with_others(found.needs(), &self.others());
                let start = found.start();
                match easy_plan(&needs) {
                    Some(plan) => Some(with_start(start, Some(plan))),
                    None => {
                        // Nothing more is recorded; only the order of sizes says what the plan will come upon.
                        route::set(self.phase == Phase::Planned, Watch::Sizes, settings.min_bytes);
                        RECORDER.clear();
                        self.run(false, move |here| {
                            let effort = if here { Effort::Quick } else { Effort::Normal };
                            with_start(start, plan(needs, effort))
                        })
                    }
                }
            }
            other => other,
        };
        match outcome {
            None => self.come_back_soon(),
            Some(Outcome::Plan(Some(proposal))) if proposal.blocks == 0 => self.lose(settings),
            Some(Outcome::Plan(Some(proposal)))
                if self.phase != Phase::Planned && proposal.bytes() < least_bytes(settings) =>
            {
                self.too_small = proposal.found.map(|start| start.rhythm);
                self.lose(settings);
            }
            Some(Outcome::Follow(found, allocations)) => {
                self.work = Work::Following(found);
                RECORDER.wake_after(Some(allocations));
            }
            Some(Outcome::Plan(Some(proposal))) => {
                RECORDER.wake_after(None);
                RECORDER.clear();
                self.steps = self.steps.max(1);
                let (start, plans) = (proposal.found, self.plans);
                self.install_and_keep(*proposal, settings);
                if self.plans == plans {
                    // No memory; another time, perhaps.
                    route::set(self.phase == Phase::Planned, Watch::Sizes, settings.min_bytes);
                    return LISTENER.wake_after(DEAF);
                }
                self.start = start;
                self.count_running();
            }
            Some(_) => self.lose(settings),
        }
    }

    /// There is no rhythm after all, or nothing in it to plan.
    pub(super) fn lose(&mut self, settings: &Settings) {
        RECORDER.wake_after(None);
        RECORDER.clear();
        if self.phase == Phase::Collecting {
            self.phase = Phase::Waiting;
        }
        route::set(self.phase == Phase::Planned, Watch::Sizes, settings.min_bytes);
        LISTENER.wake_later();
    }

    /// Looks again whether the thread beside is done.
    fn come_back_soon(&mut self) {
        RECORDER.wake_after(Some(SOON));
        LISTENER.wake_after(SOON);
    }

    /// Counts what the running step has allocated already, when a plan has come into force in its midst.
    fn count_running(&mut self) {
        let Some(start) = self.start.filter(|_| self.phase == Phase::Planned) else { return };
        let heard = LISTENER.classes(self.heard);
        let running = start.running(&heard);
        let kind = STATE.matcher.best(running).map_or(0, |(kind, _)| kind);
        STATE.matcher.resume(kind, running);
        self.listen_beside();
    }

    /// Goes on listening beside a plan that has come into force just now.
    pub(super) fn listen_beside(&mut self) {
        let heard = LISTENER.heard().max(4 * self.start.map_or(0, |start| start.rhythm.period as u64));
        // What the plan before missed is not this one's.
        MISSES.forget_step();
        UNFIT.store(0, Relaxed);
        UNFIT_MOST.store(self.unfit_in_a_step(), Relaxed);
        self.give_back_soon();
        // Where nothing was missed, the beginning of the running step is known.
        self.fitting = Fitting { steps: 1, ..Fitting::new() };
        self.horizon = (SETTLING * heard).min(DEAF);
        self.settling = 2 * heard;
        (self.faults, self.nanoseconds) = (os::minor_faults(), os::now_ns());
    }

    fn found_boundary(&mut self, class: Class) -> bool {
        if self.marked || self.phase != Phase::Planned {
            return false;
        }
        STATE.matcher.uncount(class);
        let settings = self.settings();
        let (faults, now) = (os::minor_faults(), os::now_ns());
        let steps = self.start.map_or(1, |start| start.rhythm.steps as u64);
        let counted = self.figures(steps, faults, now);
        self.steps += steps;
        STATE.matcher.expect(Some(class));
        UNFIT.store(0, Relaxed);
        self.trim_at_boundary();
        self.watch_from_beside(&settings);
        if let Some(figures) = counted
            && matches!(self.work, Work::None)
        {
            let leaves = self.serves_too_little(&figures) | self.has_changed(&figures);
            if self.presses() {
                self.leave_plan(&settings);
            } else if leaves {
                self.missed_steps = 0;
                self.listen_again(&settings);
            }
        }
        (self.faults, self.nanoseconds) = (os::minor_faults(), os::now_ns());
        true
    }

    /// True when a rhythm may be there that serves more, after some steps of which a part found no slot: what was taken for
    /// the step was a layer of it, say.
    fn serves_too_little(&mut self, figures: &StepFigures) -> bool {
        self.tried.add(figures);
        self.fitting.add_fading(figures);
        if self.tried.steps < self.tried_for {
            return false;
        }
        let little = self.tried.unfit_exceeds(MISFIT);
        self.tried = Fitting::new();
        if little {
            self.tried_for = (2 * self.tried_for).min(TRIED_STEPS_MOST);
        }
        little && self.steps >= self.patient_until
    }

    /// No boundary came, and more than a step's requests found no slot: the program does something else.
    fn out_of_rhythm(&mut self) {
        let settings = self.settings();
        UNFIT.store(0, Relaxed);
        if self.marked || self.phase != Phase::Planned || !matches!(self.work, Work::None) {
            return;
        }
        if self.presses() {
            return self.leave_plan(&settings);
        }
        self.listen_again(&settings);
    }

    /// The heap serves, until there is a better plan.
    fn leave_plan(&mut self, settings: &Settings) {
        self.missed_steps = 0;
        self.be_patient();
        self.serve_no_more(settings);
        self.start = None;
        self.listen_anew(false, settings);
    }

    fn unfit_in_a_step(&self) -> u32 {
        let allocations = self.kinds.iter().filter_map(|kind| kind.begin).map(|begin| begin.allocations);
        allocations.fold(UNFIT_LEAST, u32::max)
    }

    /// Looks for a better rhythm than that of the plan, which serves until then.
    pub(super) fn listen_again(&mut self, settings: &Settings) {
        (self.horizon, self.settling) = (DEAF, DEAF);
        self.fitting = Fitting::new();
        self.be_patient();
        self.listen_anew(true, settings);
    }

    /// The next time that the program leaves its rhythm is given longer.
    fn be_patient(&mut self) {
        let most = self.unfit_in_a_step().saturating_mul(UNFIT_STEPS);
        UNFIT_MOST.store(UNFIT_MOST.load(Relaxed).saturating_mul(2).min(most), Relaxed);
        self.patient_until = self.steps + self.patience;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }
}

/// The least bytes of an arena for steps that nobody marks.
pub(super) fn least_bytes(settings: &Settings) -> u64 {
    LEAST_STEP * settings.min_bytes as u64
}

/// Cuts the log; where nothing more is wanted, `Follow` says so with 0.
fn follow(mut found: Box<Found>, end: u64, settings: &Settings) -> Outcome {
    match found.follow(&RECORDER, end, settings) {
        Followed::More(allocations) => Outcome::Follow(found, allocations.max(1)),
        Followed::Enough => Outcome::Follow(found, 0),
        Followed::Lost => Outcome::Lost,
    }
}

fn with_start(start: Option<Start>, proposal: Option<Box<Proposal>>) -> Outcome {
    let Some(start) = start else { return Outcome::Lost };
    Outcome::Plan(proposal.map(|mut proposal| {
        proposal.found = Some(start);
        proposal
    }))
}
