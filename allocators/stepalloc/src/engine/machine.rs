//! What the engine decides, as a state machine: an [`Event`] comes in with a [`Snapshot`] of what can be observed, and [`Action`]s go out.
//!
//! A *mode* says what is being learned, a *plan* what serves; they change independently of each other: the old plan serves while steps are
//! learned again. No locks, threads, files or system calls here: the [engine](super) has them, so that whole runs can be tested in
//! milliseconds on recorded traces.
//!
//! Marked steps are here; [detected](super::detected) steps and the [plan cache](super::cache) have files of
//! their own.

use super::work::{Outcome, Work};
use crate::backend::Retention;
use crate::detect::{DetectedSteps, Recorded, RejectedPeriods};
use crate::lookup::{Class, Matcher};
use crate::policy::*;
use crate::profile::collector::Collector;
use crate::profile::plan_file::Plans;
use crate::profile::proposal::Proposal;
use crate::profile::step_profile::{Start, StepProfile, with_others};
use crate::record::recorder::Recorder;
use crate::record::size_log::SizeLog;
use crate::settings::Settings;
use crate::statistics::{Phase, StepFigures};
use crate::switches::Watch;
use core::mem;
use std::sync::Arc;
use stepalloc_planner::Period;

/// What happened.
pub(crate) enum Event {
    /// The program marks its first step.
    FirstMark,
    /// A marked step ended, and the next begins; `concurrent` where another thread has a step open.
    Boundary { concurrent: bool },
    /// A detected step ended: the next one's first allocation has come.
    DetectedBoundary,
    /// The size log or the recorder has as much as was asked for.
    Sampled,
    /// More slot misses than [`Action::LimitMisses`] allows since the last boundary.
    PeriodLost,
    /// [`Action::Record`] found no memory.
    NotRecorded,
    /// [`Action::Run`] has come to an end.
    Worked(Outcome),
    /// [`Action::Install`] has put a plan in force, without so many of its blocks, as the arena may not be larger.
    Installed { proposal: Box<Proposal>, origin: Origin, beyond_limit: u64 },
    /// [`Action::Install`] found no memory.
    NotInstalled,
    /// The process was forked; a plan may serve on.
    Forked { serving: bool },
    /// The program wants no plans.
    Disabled,
}

/// What can be observed when an event happens.
pub(crate) struct Snapshot<'a> {
    pub(crate) sizes: &'a SizeLog,
    pub(crate) recorder: &'a Recorder,
    pub(crate) matcher: &'a Matcher,
    /// What the step that ends asked for, where a plan served it.
    pub(crate) step: Option<StepFigures>,
    /// Times so far that the arena's free pages went back to keep the process's peak.
    pub(crate) pressures: u32,
    /// There is an arena, perhaps of an earlier plan.
    pub(crate) has_arena: bool,
    /// The address space is limited: memory to learn with would be taken from the program.
    pub(crate) is_limited: bool,
    /// The process has hardly run yet, which matters where a period is looked for.
    pub(crate) is_young: bool,
}

/// What is to be done, in this order. Those marked last are followed by none: they lead to an event.
pub(crate) enum Action {
    /// Says what is observed of large blocks, and whether a plan serves.
    Observe { serving: bool, watch: Watch },
    /// Opens the recorder, empty, and observes. Leads to [`Event::NotRecorded`] where there is no memory.
    Record { serving: bool, watch: Watch },
    /// Drops what was recorded.
    DropEvents,
    /// [`Event::Sampled`] is wanted after so many more events; `None` for never.
    WakeAfterEvents(Option<u64>),
    /// The same after so many more allocations in the size log.
    WakeAfterSizes(u64),
    /// The same when the log has grown enough for another look.
    WakeWhenGrown,
    /// Empties the size log.
    DropSizes,
    /// Last: does work, in this thread or beside the program.
    Run { work: Work, here: bool },
    /// Last: puts a plan in force.
    Install { proposal: Box<Proposal>, origin: Origin },
    /// Continues a step of this variant, which has asked for these classes so far.
    Resume { variant: usize, running: Vec<Class> },
    /// Steps are marked: how they begin no longer counts.
    IgnoreBegin,
    /// [`Event::PeriodLost`] is wanted after so many slot misses in a step.
    LimitMisses(u32),
    /// Forgets the slot misses of the running step.
    DropMisses,
    /// Takes the free pages of an arena that serves no more.
    RetireArena,
    /// Slots take over the large heap's free pages as they are first claimed, or no more.
    Fill(bool),
    /// Each slot was claimed once: the large heap forgets its peak, where the plan has taken that over.
    Settle,
    /// Says whether a plan of detected steps is about to come, for which the large heap keeps no more pages meanwhile.
    AwaitPlan(bool),
    /// Says what the backend is to do with unused memory.
    Retain(Retention),
    /// The plan file holds these plans, or is to.
    Cache { plans: Box<Plans>, write: bool },
}

/// Where a plan to be installed comes from.
pub(crate) enum Origin {
    /// From steps recorded since so many allocations; what the plan file is to hold, where there is one.
    Learned { since: u64, plans: Option<Box<Plans>> },
    /// From the plan file: the step that is running, and what it has asked for.
    Cache { variant: usize, running: Vec<Class> },
}

/// What is being learned.
pub(super) enum Mode {
    /// Nothing.
    Idle,
    /// Marked steps are recorded.
    Recording(Box<Collector>),
    /// Detected steps are recorded.
    Following(Box<DetectedSteps>),
    /// Work is under way; meanwhile marked steps ended at these events.
    Working { ends: Vec<u64>, since: u64 },
}

/// The plan in force, and how well it serves.
pub(crate) struct Plan {
    /// The first step it served.
    pub(super) since: u64,
    /// What was planned of each step variant.
    pub(super) profiles: Vec<Arc<StepProfile>>,
    /// Where detected steps begin.
    pub(super) start: Option<Start>,
    pub(super) lower_bound: u64,
    pub(super) blocks: u64,
    /// Blocks without a slot, as the arena may not be larger.
    pub(super) beyond_limit: u64,
    pub(super) is_cached: bool,
    /// [`Snapshot::pressures`] at the last boundary, and [`PRESSED_WEIGHT`] times the steps in which it grew, less others.
    pressures: u32,
    pressed: u32,
    /// Boundaries until each block of all variants has been in its slot.
    filling: usize,
    /// Steps in a row that missed, and that did not.
    pub(super) missed_steps: u32,
    helped_steps: u32,
    /// Twice the steps of which it has served enough to be worth it, less the others, within [`HELP_MOST`].
    help: i32,
    /// What missed since the last question whether another period serves more, and since the plan came into force.
    pub(super) tried: MissWindow,
    pub(super) window: MissWindow,
    /// Allocations in the size log after which detection ends, and after which it ends where next to nothing misses.
    pub(super) cutoff: u64,
    pub(super) early_cutoff: u64,
}

/// Bytes of large blocks over some steps, and those that found no slot.
#[derive(Clone, Copy, Default)]
pub(crate) struct MissWindow {
    pub(super) steps: u32,
    all: u64,
    missed: u64,
}

impl MissWindow {
    pub(super) fn add(&mut self, figures: &StepFigures) {
        self.steps += 1;
        self.all += figures.planned.bytes + figures.fallback.bytes;
        self.missed += figures.gap.bytes + figures.fallback.bytes;
    }

    /// As [`MissWindow::add`]; steps count the less the longer ago they were.
    pub(super) fn add_fading(&mut self, figures: &StepFigures) {
        if self.steps == FADING_STEPS {
            *self = Self { steps: self.steps / 2, all: self.all / 2, missed: self.missed / 2 };
        }
        self.add(figures);
    }

    pub(super) fn misses_more_than(&self, thousandths: u64) -> bool {
        self.missed * 1000 > self.all * thousandths
    }
}

/// How long a new plan, or a failure, is given.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    steps: u64,
    /// Nothing is learned before this step.
    pub(super) until: u64,
}

impl Patience {
    const NEW: Self = Self { steps: PATIENCE, until: 0 };

    /// Waits from a step on, the next time twice as long.
    pub(super) fn wait(&mut self, from: u64) {
        self.until = from + self.steps;
        self.steps = (2 * self.steps).min(PATIENCE_MAX);
    }
}

/// The state.
pub(crate) struct Machine {
    pub(super) settings: Settings,
    /// The program marks its steps.
    pub(super) marked: bool,
    /// Boundaries passed.
    pub(super) steps: u64,
    pub(super) mode: Mode,
    pub(super) plan: Option<Plan>,
    /// Boundaries at which pages of an arena that serves no more are still taken.
    retiring: u8,
    pub(super) patience: Patience,
    /// The step from which on marked steps were last recorded.
    recorded_since: u64,
    /// How often steps began lately while others ran, up to twice [`CONCURRENT`].
    concurrent: u32,
    /// What is known of the plan file.
    pub(super) cache: super::cache::Cache,
    /// A period whose steps are too small to be worth a plan.
    pub(super) too_small: Option<Period>,
    /// Periods that were followed and rejected.
    pub(super) rejected: RejectedPeriods,
    /// What was recorded meanwhile; recording goes on.
    pub(super) recorded: Option<Box<Recorded>>,
    /// What looking for a period beside the program has found, until it is looked at.
    pub(super) looked_up: Option<Option<Period>>,
    /// Detected steps waited for, as START says.
    pub(super) waited: u64,
    /// Steps after which it is asked whether another period serves more.
    pub(super) tried_for: u32,
    pub(super) miss_limit: u32,
    /// Since the process's start.
    pub(super) plans: u64,
    pub(super) failed_plans: u64,
    pub(super) refused_plans: u64,
    pub(super) actions: Vec<Action>,
}

impl Machine {
    pub(crate) const fn new(settings: Settings) -> Self {
        Self {
            settings,
            marked: false,
            steps: 0,
            mode: Mode::Idle,
            plan: None,
            retiring: 0,
            patience: Patience::NEW,
            recorded_since: 0,
            concurrent: 0,
            cache: super::cache::Cache::Unknown,
            too_small: None,
            rejected: RejectedPeriods::new(),
            recorded: None,
            looked_up: None,
            waited: 0,
            tried_for: TRIED_STEPS,
            miss_limit: u32::MAX,
            plans: 0,
            failed_plans: 0,
            refused_plans: 0,
            actions: Vec::new(),
        }
    }

    /// What is to be done about an event. In a planned process that goes on as it did this is nothing, and allocates nothing.
    pub(crate) fn on(&mut self, event: Event, now: &Snapshot<'_>) -> Vec<Action> {
        match event {
            Event::FirstMark => self.believe_marks(),
            Event::Boundary { concurrent } => self.boundary(concurrent, now),
            Event::DetectedBoundary => self.detected_boundary(now),
            Event::Sampled => self.sampled(now),
            Event::PeriodLost => self.period_lost(now),
            Event::NotRecorded => self.not_recorded(),
            Event::Worked(outcome) => self.worked(outcome, now),
            Event::Installed { proposal, origin, beyond_limit } => {
                self.installed(*proposal, origin, beyond_limit, now);
            }
            Event::NotInstalled => self.not_installed(),
            Event::Forked { serving } => self.begin_anew(serving, now),
            Event::Disabled => self.disable(now),
        }
        mem::take(&mut self.actions)
    }

    pub(crate) fn phase(&self) -> Phase {
        match (&self.plan, &self.mode) {
            (Some(_), _) => Phase::Planned,
            (None, Mode::Idle) => Phase::Waiting,
            _ => Phase::Collecting,
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn observe(&mut self, watch: Watch) {
        self.act(Action::Observe { serving: self.plan.is_some(), watch });
    }

    /// Nothing that was recorded is of use any more.
    pub(super) fn drop_events(&mut self) {
        if self.recorded.take().is_some() {
            self.act(Action::WakeAfterEvents(None));
        }
        self.act(Action::DropEvents);
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.mode, Mode::Idle)
    }

    /// The step that is running.
    pub(super) fn running(&self) -> u64 {
        self.steps.saturating_sub(1)
    }

    /// The variants planned now, those used last first.
    pub(super) fn profiles_by_use(&self, now: &Snapshot<'_>) -> Vec<Arc<StepProfile>> {
        let profiles = self.plan.iter().flat_map(|plan| &plan.profiles);
        let mut profiles: Vec<_> = now.matcher.unused().zip(profiles).collect();
        profiles.sort_by_key(|&(unused, _)| unused);
        profiles.into_iter().map(|(_, profile)| Arc::clone(profile)).collect()
    }

    /// The program marks its steps: what was detected is forgotten.
    fn believe_marks(&mut self) {
        self.marked = true;
        (self.steps, self.recorded_since) = (0, 0);
        self.looked_up = None;
        self.patience.until = 0;
        self.miss_limit = u32::MAX;
        if let Some(plan) = &mut self.plan {
            (plan.since, plan.start) = (0, None);
            plan.profiles.iter_mut().for_each(|profile| Arc::make_mut(profile).begin = None);
        }
        self.act(Action::WakeAfterEvents(None));
        self.act(Action::LimitMisses(self.miss_limit));
        self.act(Action::IgnoreBegin);
        self.retain_for_plan();
        if !matches!(self.mode, Mode::Working { .. }) {
            self.mode = Mode::Idle;
        }
        if self.recorded.is_some() {
            self.drop_events();
        }
        self.observe_for_cache();
    }

    fn boundary(&mut self, concurrent: bool, now: &Snapshot<'_>) {
        self.concurrent = if concurrent {
            (self.concurrent + 2).min(2 * CONCURRENT)
        } else {
            self.concurrent.saturating_sub(1)
        };
        self.steps += 1;
        if !self.settings.enabled {
            return;
        }
        self.settle(now);
        if let Some(variant) = self.recognised() {
            return self.serve_cached(variant, Vec::new());
        }
        // Also while steps are recorded for a better plan; one that is being made comes soon.
        if self.presses() && !matches!(self.mode, Mode::Working { .. }) {
            return self.refuse(now);
        }
        match mem::replace(&mut self.mode, Mode::Idle) {
            Mode::Recording(_) if self.is_concurrent() => self.stop_serving(now),
            Mode::Recording(collector) => self.merge(collector, vec![now.recorder.head()], now),
            Mode::Working { mut ends, since } => {
                ends.push(now.recorder.head());
                self.mode = Mode::Working { ends, since };
            }
            Mode::Idle | Mode::Following(_) => self.look_at_step(now),
        }
    }

    fn is_concurrent(&self) -> bool {
        self.concurrent >= CONCURRENT
    }

    /// Begins to record, where it is time for that.
    fn look_at_step(&mut self, now: &Snapshot<'_>) {
        if let Some(figures) = &now.step {
            let has_changed = self.has_changed(figures);
            if has_changed && !self.has_helped() {
                // Not even its own steps: they run in another order each time.
                self.refused_plans += 1;
                self.patience.wait(self.steps + REJECTED_GROWTH * (self.steps - self.recorded_since));
                self.stop_serving(now);
            } else if has_changed {
                self.collect(now);
            }
        } else if self.plan.is_none()
            && self.running() >= self.settings.start(true).max(self.patience.until)
            && !self.is_concurrent()
            && !self.waits_for_cache()
        {
            self.collect(now);
        }
    }

    /// At the first boundaries of a plan its slots fill; at those after none serves any more, what lived in the arena is freed.
    pub(super) fn settle(&mut self, now: &Snapshot<'_>) {
        let Some(plan) = &mut self.plan else {
            if self.retiring > 0 {
                self.retiring -= 1;
                self.act(Action::RetireArena);
            }
            return;
        };
        if now.pressures != plan.pressures {
            // Its slots have holes again.
            plan.pressures = now.pressures;
            plan.pressed += PRESSED_WEIGHT;
            return self.fill();
        }
        plan.pressed = plan.pressed.saturating_sub(1);
        if plan.filling > 0 {
            plan.filling -= 1;
            if plan.filling == 0 {
                self.act(Action::Fill(false));
                self.act(Action::Settle);
            }
        }
    }

    /// Slots take over free pages of the heap until each has been claimed: the first step may be under way already.
    fn fill(&mut self) {
        if let Some(plan) = &mut self.plan {
            plan.filling = 1 + plan.profiles.len();
            self.act(Action::Fill(true));
        }
    }

    /// Whether the arena is as full as it will be.
    pub(super) fn has_settled(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.filling == 0)
    }

    /// Whether the program has left its plan for good.
    pub(super) fn has_changed(&mut self, figures: &StepFigures) -> bool {
        let running = self.running();
        let Some(plan) = &mut self.plan else { return false };
        let all = figures.planned.bytes + figures.fallback.bytes;
        let hit = figures.planned.bytes.saturating_sub(figures.gap.bytes);
        let helped = if hit * 100 >= all * HELPED_PERCENT { 2 } else { -1 };
        plan.help = (plan.help + helped).clamp(-HELP_MOST, HELP_MOST);
        if hit * 100 >= all * HIT_PERCENT {
            plan.missed_steps = 0;
            plan.helped_steps += 1;
            if plan.helped_steps == HELPED_STEPS {
                self.patience = Patience::NEW;
            }
            return false;
        }
        plan.helped_steps = 0;
        plan.missed_steps += 1;
        plan.missed_steps >= MISSED_STEPS && running >= self.patience.until
    }

    fn has_helped(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.help > 0)
    }

    /// Whether the arena would cost the process's peak again and again: the heap serves better then.
    pub(super) fn presses(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.pressed >= PRESSED_WEIGHT * PRESSED_STEPS)
    }

    /// Begins to record marked steps.
    fn collect(&mut self, now: &Snapshot<'_>) {
        if self.is_concurrent() {
            return self.stop_serving(now);
        }
        self.drop_cached();
        if let Some(plan) = &mut self.plan {
            plan.missed_steps = 0;
        }
        self.recorded_since = self.steps;
        self.mode = Mode::Recording(Box::new(Collector::new()));
        self.act(Action::Record { serving: self.plan.is_some(), watch: Watch::Events });
    }

    /// There is no memory to record with.
    fn not_recorded(&mut self) {
        let detected = matches!(self.mode, Mode::Following(_));
        self.mode = Mode::Idle;
        if detected {
            self.failed_plans += 1;
            self.retain_for_plan();
            self.observe(Watch::Sizes);
            self.act(Action::WakeWhenGrown);
        } else {
            self.fail();
        }
    }

    fn merge(&mut self, collector: Box<Collector>, ends: Vec<u64>, now: &Snapshot<'_>) {
        let here = ends.last().is_none_or(|&end| now.recorder.unread(end) <= EVENTS_HERE);
        let work =
            Work::Merge { collector, ends, settings: self.settings, others: self.profiles_by_use(now) };
        self.work(work, here, 0);
    }

    pub(super) fn work(&mut self, work: Work, here: bool, since: u64) {
        self.mode = Mode::Working { ends: Vec::new(), since };
        self.act(Action::Run { work, here });
    }

    fn worked(&mut self, outcome: Outcome, now: &Snapshot<'_>) {
        if !matches!(self.mode, Mode::Working { .. }) {
            return;
        }
        let Mode::Working { ends, since } = mem::replace(&mut self.mode, Mode::Idle) else { return };
        if !self.marked {
            return self.worked_on_detected(outcome, since, now);
        }
        match outcome {
            Outcome::More(collector) if ends.is_empty() => self.mode = Mode::Recording(collector),
            Outcome::More(collector) => self.merge(collector, ends, now),
            Outcome::Enough(profiles) => {
                self.observe(Watch::Nothing);
                let profiles = with_others(profiles, &self.profiles_by_use(now));
                self.work(Work::Plan { profiles, start: None }, true, since);
            }
            Outcome::Hard { profiles, start } => self.work(Work::Plan { profiles, start }, false, since),
            Outcome::Refused => self.refuse(now),
            // Of steps that were detected before the program marked any.
            Outcome::Follow(..) | Outcome::Lost(..) | Outcome::Looked(_) => {}
            Outcome::Plan(Some(proposal)) if proposal.start.is_some() => {}
            Outcome::Plan(proposal) => {
                self.drop_events();
                match proposal {
                    Some(proposal) => self.install(proposal, since),
                    None => self.fail(),
                }
            }
        }
    }

    pub(super) fn install(&mut self, proposal: Box<Proposal>, since: u64) {
        let plans = if self.writes_cache() { proposal.to_cache(self.settings.min_bytes) } else { None };
        let plans = plans.map(Box::new);
        self.act(Action::Install { proposal, origin: Origin::Learned { since, plans } });
    }

    fn installed(&mut self, proposal: Proposal, origin: Origin, beyond_limit: u64, now: &Snapshot<'_>) {
        self.plans += 1;
        self.patience.wait(self.running());
        self.plan = Some(Plan {
            since: self.running(),
            start: proposal.start,
            lower_bound: proposal.lower_bound,
            blocks: proposal.blocks,
            beyond_limit,
            is_cached: matches!(origin, Origin::Cache { .. }),
            profiles: proposal.profiles,
            ..Plan::new(now.pressures)
        });
        self.fill();
        self.retiring = 0;
        self.act(Action::AwaitPlan(false));
        if self.recorded.is_some() {
            self.drop_events();
        }
        self.observe(Watch::Nothing);
        self.act(Action::Retain(Retention::Retain));
        match origin {
            Origin::Learned { since, plans } => {
                if let Some(plans) = plans {
                    self.act(Action::Cache { plans, write: true });
                }
                if !self.marked {
                    self.count_running(since, now);
                }
            }
            Origin::Cache { variant, running } => self.act(Action::Resume { variant, running }),
        }
        if !self.marked {
            self.detect_beside(now);
        }
    }

    /// There is no memory for the arena or the tables.
    fn not_installed(&mut self) {
        self.fail();
        if !self.marked {
            self.retain_for_plan();
            self.observe(Watch::Sizes);
            self.act(Action::WakeAfterSizes(DETECTION_CUTOFF));
        }
    }

    /// Detected steps are recorded no more: unused memory is kept for a plan that serves, or not.
    pub(super) fn retain_for_plan(&mut self) {
        self.act(Action::AwaitPlan(false));
        if self.plan.is_none() {
            self.act(Action::Retain(Retention::Default));
        }
    }

    /// No plan could be made; what served before goes on serving.
    fn fail(&mut self) {
        self.failed_plans += 1;
        self.patience.wait(self.steps);
        self.observe(Watch::Nothing);
    }

    /// A plan of these marked steps does not pay: they do not repeat, so that it would take far more memory than they do and serve little
    /// of it twice, or it presses on the process's peak.
    fn refuse(&mut self, now: &Snapshot<'_>) {
        self.refused_plans += 1;
        self.patience.until = REJECTED_GROWTH * self.running();
        self.stop_serving(now);
    }

    /// No plan serves from now on, and nothing is recorded.
    pub(super) fn stop_serving(&mut self, now: &Snapshot<'_>) {
        self.mode = Mode::Idle;
        self.plan = None;
        self.drop_events();
        self.observe(Watch::Nothing);
        self.act(Action::AwaitPlan(false));
        self.act(Action::Fill(false));
        if now.has_arena {
            self.act(Action::RetireArena);
            // What lives in the arena is freed by and by.
            self.retiring = RETIRING;
        }
        self.act(Action::Retain(Retention::Default));
    }

    fn disable(&mut self, now: &Snapshot<'_>) {
        self.settings.enabled = false;
        self.stop_serving(now);
    }

    /// In a forked child: steps are counted from 0 again. The arena and the plan in force were copied, and serve on.
    fn begin_anew(&mut self, serving: bool, now: &Snapshot<'_>) {
        if serving {
            self.plans = 1;
            self.plan = Some(Plan { help: HELP_MOST, ..Plan::new(now.pressures) });
        }
        if now.has_arena {
            self.act(Action::Fill(false));
        }
        self.act(Action::AwaitPlan(false));
        self.act(Action::Retain(if serving { Retention::Retain } else { Retention::Default }));
        self.drop_events();
        self.detect_anew();
    }
}

impl Plan {
    fn new(pressures: u32) -> Self {
        Self {
            since: 0,
            profiles: Vec::new(),
            start: None,
            lower_bound: 0,
            blocks: 0,
            beyond_limit: 0,
            is_cached: false,
            pressures,
            pressed: 0,
            filling: 0,
            missed_steps: 0,
            helped_steps: 0,
            help: 0,
            tried: MissWindow::default(),
            window: MissWindow::default(),
            cutoff: 0,
            early_cutoff: 0,
        }
    }
}
