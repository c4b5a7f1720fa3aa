//! Detected steps: their period is looked for in the size log, followed in the recorder, planned, and watched
//! while the plan serves.
//!
//! What a boundary call does for marked steps happens within allocations here: while idle, when the size log
//! has grown enough for another sample; while following, when the recorder has what was asked for; while a
//! plan serves, at the first allocation of a step, which the matcher knows by its class and by all others
//! having come.

use super::machine::{Action, Machine, MissWindow, Mode, Plan, Snapshot};
use super::work::{Outcome, Work};
use crate::backend::Retention;
use crate::detect::{DetectedSteps, Recorded};
use crate::lookup::Class;
use crate::policy::*;
use crate::profile::step_profile::{FINGERPRINT, with_others};
use crate::statistics::StepFigures;
use crate::switches::Watch;
use stepalloc_planner::{Period, period};

impl Machine {
    /// The size log or the recorder has as much as was asked for.
    pub(super) fn sampled(&mut self, now: &Snapshot<'_>) {
        let enabled = self.settings.enabled;
        if enabled && self.look_at_cache(now) {
            return;
        }
        if self.marked || !enabled {
            // Recording may have begun just now.
            if self.is_idle() {
                self.observe(Watch::Nothing);
            }
            return;
        }
        match &self.mode {
            Mode::Idle => self.look_for_period(now),
            _ => self.follow(now),
        }
    }

    fn look_for_period(&mut self, now: &Snapshot<'_>) {
        if now.is_limited {
            self.drop_cached();
            self.drop_events();
            return self.observe(Watch::Nothing);
        }
        if now.is_young || self.keeps_to_too_small(now) || now.sizes.is_of_one_size() {
            return self.found_nothing(now);
        }
        let looked_up = self.looked_up.take();
        let newest = match &looked_up {
            // As much as it was found in.
            Some(Some(_)) => now.sizes.newest(usize::MAX),
            _ => now.sizes.sample(),
        };
        // The sample may be half a MiB: without a plan there is one copy of it, which becomes the sizes in place.
        let beside_plan = if self.plan.is_some() { newest.clone() } else { Vec::new() };
        let sizes: Vec<u64> = newest.into_iter().map(|class| class.bytes()).collect();
        let found = match looked_up {
            // Found beside the program, which has gone on meanwhile.
            Some(found) => {
                found.filter(|period| period.holds(&sizes[sizes.len().saturating_sub(period.recent())..]))
            }
            None => match period::find_within(&sizes, COMPARISONS_HERE) {
                Ok(found) => found,
                Err(period::TooLong) => return self.look_beside(sizes),
            },
        };
        let bytes = |period: &Period| sizes[sizes.len() - period.allocations..].iter().sum::<u64>();
        if self.plan.is_none() && found.is_some_and(|period| bytes(&period) < self.least_bytes()) {
            self.too_small = found;
            return self.found_nothing(now);
        }
        let found = found.map(|period| {
            // Steps of sizes that do not come again are variants of their own.
            if period.repeats() { period.repeated(LEAST_PERIOD) } else { period }
        });
        let news = found.filter(|found| match &self.plan {
            Some(_) => self.is_news(found, &beside_plan, now),
            None => true,
        });
        let all = now.sizes.logged() as usize;
        let followed = news.filter(|period| self.rejected.follows(period, &sizes, all));
        let Some(mut period) = followed else { return self.found_nothing(now) };
        let known = self.plan.as_ref().and_then(|plan| plan.start).map(|start| start.period);
        if let Some(known) = known.filter(|known| !known.repeats())
            && period.allocations.is_multiple_of(known.allocations)
        {
            // Step variants that take turns.
            period.steps = period.steps.max(period.allocations / known.allocations * known.steps);
        }
        self.drop_cached();
        let start = self.settings.start(false);
        if self.waited < start {
            let wait = (start - self.waited).saturating_mul(period.allocations as u64);
            self.waited = start;
            return self.act(Action::WakeAfterSizes(wait));
        }
        let mut recorded = self.recorded.take();
        let goes_on =
            recorded.as_mut().is_some_and(|recorded| recorded.read(now.recorder, now.recorder.head()));
        let recorded = recorded.filter(|_| goes_on).map(|recorded| *recorded);
        let detected = Box::new(DetectedSteps::new(period, &sizes, all, now.sizes.head(), recorded));
        let needed = detected.needed();
        self.mode = Mode::Following(detected);
        // What small blocks of a step leave, the next one wants again.
        self.act(Action::Retain(Retention::Retain));
        self.act(Action::AwaitPlan(true));
        self.act(Action::WakeWhenGrown);
        if goes_on {
            return self.follow_now(now);
        }
        self.act(Action::WakeAfterEvents(Some(needed)));
        self.act(Action::Record { serving: self.plan.is_some(), watch: Watch::All });
    }

    /// Looks for a period in a thread beside the program, as it takes long.
    fn look_beside(&mut self, sizes: Vec<u64>) {
        self.come_back_soon();
        self.work(Work::Look { sizes }, false, 0);
    }

    /// The least bytes of an arena for detected steps.
    fn least_bytes(&self) -> u64 {
        LEAST_STEP * self.settings.min_bytes as u64
    }

    /// Whether the program still repeats with a period that was too small to plan. The newest part of the
    /// size log decides.
    fn keeps_to_too_small(&mut self, now: &Snapshot<'_>) -> bool {
        self.too_small = self.too_small.filter(|period| {
            let newest = now.sizes.newest(period.recent());
            period.holds(&newest.iter().map(|class| class.bytes()).collect::<Vec<u64>>())
        });
        self.too_small.is_some()
    }

    /// Goes on with the size log, or ends it where a plan has served for long enough.
    fn found_nothing(&mut self, now: &Snapshot<'_>) {
        let logged = now.sizes.logged();
        if let Some(recorded) = &self.recorded
            && now.recorder.unread(now.recorder.head()) >= recorded.more()
        {
            self.drop_events();
            self.observe(Watch::Sizes);
        }
        let is_done = self
            .plan
            .as_ref()
            .is_some_and(|plan| logged >= plan.cutoff || logged >= plan.early_cutoff && plan.fits());
        if is_done {
            // Large blocks take the short way from now on.
            self.observe(Watch::Nothing);
        }
        if self.may_be_cached() {
            self.act(Action::WakeAfterSizes(FINGERPRINT as u64));
        } else {
            self.act(Action::WakeWhenGrown);
        }
    }

    /// Whether a period calls for plans other than those in force: these leave something over, and no variant has its sizes, or it is
    /// longer, and not by contours alone. (The same period is found again where a program has left its plan for a while; a shorter one,
    /// of layers, within each step; and a longer one where step variants take turns.)
    fn is_news(&mut self, found: &Period, newest: &[Class], now: &Snapshot<'_>) -> bool {
        let Some(plan) = &self.plan else { return true };
        let Some(start) = plan.start else { return true };
        // What was planned may be a layer of the step, also where it serves the rest of the step as well. (Several turns of variants are
        // no step of layers.)
        let step_of_layers = found.repeats()
            && start.period.repeats()
            && found.allocations > start.period.allocations
            && found.allocations <= LAYERS * start.period.allocations;
        let same_steps = !found.repeats()
            && found.allocations > start.period.allocations
            && found.allocations.is_multiple_of(start.period.allocations);
        if same_steps || plan.fits() && !step_of_layers {
            return false;
        }
        let last = &newest[newest.len().saturating_sub(found.allocations)..];
        let bytes: u64 = last.iter().map(|class| class.bytes()).sum();
        let Some((best, missing)) = now.matcher.best(last) else { return true };
        if (bytes - missing) * 100 < bytes * KNOWN_PERCENT
            || found.allocations > start.period.allocations
                && plan.window.misses_more_than(MISSES_TOLERATED_EARLY)
        {
            return true;
        }
        // Its beginning was missed, perhaps.
        let missed = plan.window.steps == 0 || plan.window.misses_more_than(MISSES_TOLERATED);
        let profile = plan.profiles.get(best).filter(|_| missed);
        let place = profile.and_then(|profile| Some((profile, profile.place(newest)?.1)));
        if let Some((profile, at)) = place {
            let running = profile.sequence[..at].to_vec();
            self.act(Action::Resume { variant: best, running });
        }
        false
    }

    /// Goes on with cutting the log into steps.
    fn follow(&mut self, now: &Snapshot<'_>) {
        if matches!(self.mode, Mode::Working { .. }) {
            return self.come_back_soon();
        }
        if !now.recorder.wakes() {
            return self.act(Action::WakeWhenGrown);
        }
        self.follow_now(now);
    }

    fn follow_now(&mut self, now: &Snapshot<'_>) {
        if let Mode::Following(detected) = core::mem::replace(&mut self.mode, Mode::Idle) {
            let end = now.recorder.head();
            let here = now.recorder.unread(end) <= EVENTS_HERE;
            if !here {
                self.come_back_soon();
            }
            let since = detected.since();
            self.work(Work::Follow { detected, end, settings: self.settings }, here, since);
        }
    }

    pub(super) fn worked_on_detected(&mut self, outcome: Outcome, since: u64, now: &Snapshot<'_>) {
        match outcome {
            // Enough.
            Outcome::Follow(detected, 0) => {
                let Some(start) = detected.start() else { return self.lose(None) };
                let profiles = with_others(detected.profiles(), &self.profiles_by_use(now));
                self.work(Work::Plan { profiles, start: Some(start) }, true, since);
            }
            Outcome::Follow(detected, allocations) => {
                if now.sizes.head() - since > AWAITED_PERIODS * detected.allocations() {
                    self.act(Action::AwaitPlan(false));
                }
                self.mode = Mode::Following(detected);
                self.act(Action::WakeAfterEvents(Some(allocations)));
            }
            Outcome::Hard { profiles, start } => {
                // Nothing more is recorded; the size log alone shows which step the plan comes upon.
                self.observe(Watch::Sizes);
                self.drop_events();
                self.come_back_soon();
                self.work(Work::Plan { profiles, start }, false, since);
            }
            Outcome::Plan(Some(proposal)) if proposal.blocks == 0 => self.lose(None),
            Outcome::Plan(Some(proposal)) if self.plan.is_none() && proposal.bytes() < self.least_bytes() => {
                self.too_small = proposal.start.map(|start| start.period);
                self.lose(None);
            }
            Outcome::Plan(Some(proposal)) => {
                self.steps = self.steps.max(1);
                self.act(Action::WakeAfterEvents(None));
                self.drop_events();
                self.install(proposal, since);
            }
            Outcome::Looked(found) => {
                self.looked_up = Some(found);
                self.come_back_soon();
            }
            Outcome::Lost(recorded, other) => {
                self.lose(recorded);
                if other.is_some() {
                    self.looked_up = Some(other);
                    self.come_back_soon();
                }
            }
            _ => self.lose(None),
        }
    }

    /// There is no period after all, or nothing in it to plan. What was recorded may be the beginning of a longer one's steps: most often that of
    /// layers is found first.
    fn lose(&mut self, recorded: Option<Box<Recorded>>) {
        self.rejected.reject();
        self.retain_for_plan();
        self.act(Action::WakeAfterEvents(None));
        self.recorded = recorded.filter(|_| self.plan.is_none());
        if let Some(recorded) = &self.recorded {
            self.act(Action::WakeAfterEvents(Some(recorded.more())));
            self.observe(Watch::All);
        } else {
            self.drop_events();
            self.observe(Watch::Sizes);
        }
        self.act(Action::WakeWhenGrown);
    }

    /// Looks again whether the work beside the program is done.
    fn come_back_soon(&mut self) {
        if self.recorded.is_none() {
            self.act(Action::WakeAfterEvents(Some(SOON)));
        }
        self.act(Action::WakeAfterSizes(SOON));
    }

    /// Counts what the running step has allocated already, when a plan has come into force in its midst.
    pub(super) fn count_running(&mut self, since: u64, now: &Snapshot<'_>) {
        let Some(start) = self.plan.as_ref().and_then(|plan| plan.start) else { return };
        let classes = now.sizes.classes(since);
        let running = start.running(&classes).to_vec();
        let variant = now.matcher.best(&running).map_or(0, |(variant, _)| variant);
        self.act(Action::Resume { variant, running });
    }

    /// Goes on looking beside a plan that has come into force just now.
    pub(super) fn detect_beside(&mut self, now: &Snapshot<'_>) {
        self.miss_limit = self.misses_in_a_step();
        let Some(plan) = &mut self.plan else { return };
        let steps = 4 * plan.start.map_or(0, |start| start.period.allocations);
        let logged = now.sizes.logged().max(steps.min(EARLY_ACCEPT_ALLOCATIONS) as u64);
        // Where nothing was missed, the beginning of the running step is known.
        plan.window.steps = 1;
        (plan.cutoff, plan.early_cutoff) = ((CUTOFF_GROWTH * logged).min(DETECTION_CUTOFF), 2 * logged);
        // What the plan before missed is not this one's.
        self.act(Action::DropMisses);
        self.act(Action::LimitMisses(self.miss_limit));
        self.observe(Watch::Sizes);
        self.act(Action::WakeWhenGrown);
    }

    pub(super) fn detected_boundary(&mut self, now: &Snapshot<'_>) {
        self.steps += self.steps_in_period();
        self.settle(now);
        let Some(figures) = now.step.filter(|_| self.is_idle()) else { return };
        let leaves = self.serves_too_little(&figures) | self.has_changed(&figures);
        if self.presses() {
            self.leave_plan(now);
        } else if leaves {
            self.detect_again();
        }
    }

    /// Steps that a detected boundary ends.
    pub(super) fn steps_in_period(&self) -> u64 {
        let start = self.plan.as_ref().and_then(|plan| plan.start);
        start.map_or(1, |start| start.period.steps as u64)
    }

    /// Whether a period may be there that serves more, after some steps of which a part missed: what was taken for the step was a layer of
    /// it, say.
    fn serves_too_little(&mut self, figures: &StepFigures) -> bool {
        let Some(plan) = &mut self.plan else { return false };
        plan.tried.add(figures);
        plan.window.add_fading(figures);
        if plan.tried.steps < self.tried_for {
            return false;
        }
        let little = plan.tried.misses_more_than(MISSES_TOLERATED);
        plan.tried = MissWindow::default();
        if little {
            self.tried_for = (2 * self.tried_for).min(TRIED_STEPS_MOST);
        }
        little && self.steps >= self.patience.until
    }

    /// No boundary came, and more than a step's requests missed: the program does something else.
    pub(super) fn period_lost(&mut self, now: &Snapshot<'_>) {
        if self.marked || self.plan.is_none() || !self.is_idle() {
            return;
        }
        if self.presses() {
            return self.leave_plan(now);
        }
        self.detect_again();
    }

    /// The heap serves, until there is a better plan.
    fn leave_plan(&mut self, now: &Snapshot<'_>) {
        self.be_patient();
        self.stop_serving(now);
        self.detect_anew();
    }

    /// Looks for a better period than that of the plan, which serves until then.
    fn detect_again(&mut self) {
        if let Some(plan) = &mut self.plan {
            plan.missed_steps = 0;
            (plan.cutoff, plan.early_cutoff) = (DETECTION_CUTOFF, DETECTION_CUTOFF);
            plan.window = MissWindow::default();
        }
        self.be_patient();
        self.detect_anew();
    }

    /// Begins the size log anew where it is empty, or of another time.
    pub(super) fn detect_anew(&mut self) {
        self.act(Action::DropSizes);
        let watch = if self.settings.enabled && !self.marked { Watch::Sizes } else { Watch::Nothing };
        self.observe(watch);
    }

    /// The next time that the program loses its period is given longer.
    fn be_patient(&mut self) {
        let most = self.misses_in_a_step().saturating_mul(MISSED_STEPS_MOST);
        self.miss_limit = self.miss_limit.saturating_mul(2).min(most);
        self.act(Action::LimitMisses(self.miss_limit));
        self.patience.wait(self.steps);
    }

    fn misses_in_a_step(&self) -> u32 {
        let profiles = self.plan.iter().flat_map(|plan| &plan.profiles);
        profiles
            .filter_map(|profile| profile.begin)
            .map(|begin| begin.allocations)
            .fold(MISSES_LEAST, u32::max)
    }
}

impl Plan {
    /// Whether it serves all that is asked for, as far as was seen.
    fn fits(&self) -> bool {
        let steps = self.window.steps;
        let allocations = self.start.map_or(0, |start| start.period.allocations) * steps as usize;
        let are_enough = steps >= EARLY_ACCEPT_STEPS || steps >= 2 && allocations >= EARLY_ACCEPT_ALLOCATIONS;
        are_enough && !self.window.misses_more_than(MISSES_TOLERATED_EARLY)
    }
}
