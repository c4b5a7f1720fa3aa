//! Arenas without slots, all gaps: for steps that run on several threads at once, steps whose blocks find few of their slots,
//! and loops that ask for one size only.
//!
//! Where nobody marks steps there are rounds in their place: so many requests, while what is [alive](crate::alive) is
//! counted, and while the arena serves.

use super::unmarked::{DEAF, least_bytes};
use super::{Engine, Kept, PATIENCE_MAX, Phase, Work};
use crate::alive::{Alive, Counted};
use crate::listener::LISTENER;
use crate::matcher::Class;
use crate::os;
use crate::recorder::RECORDER;
use crate::route::{self, STATE, UNFIT, UNFIT_MOST, Watch};
use crate::settings::Settings;
use core::sync::atomic::Ordering::*;

/// Requests of a round.
const ROUND: u32 = 256;
/// The same while a loop of one size is counted.
const ROUND_OF_ONE_SIZE: u32 = 64;
/// Rounds after which it is asked whether gaps alone are still the best there is; doubled each time.
const ROUNDS: u64 = 64;
/// Requests that are taken for a loop of one size,
const LOOP: usize = 256;
/// where so many of them are of it, in percent.
const ONE_SIZE_PERCENT: usize = 90;
/// One of so many of them is of that size, then, surely enough.
const FEW: usize = 16;
/// Its size is so many times the least that is planned (128 KiB): for less, backends keep memory at hand themselves.
const LARGE: u64 = 4;
/// Where gaps are preferred to slots it is asked so many times as rarely whether there is a plan.
const GAPS_PATIENCE: u64 = 16;
/// An arena overflows where so much of this many steps is left to the backend, in percent,
const OVERFLOW_PERCENT: u64 = 3;
/// although there are slots, of which so much is held by others, or none at all.
const OVERFLOW_BUSY_PERCENT: u64 = 20;
pub(super) const OVERFLOW_STEPS: u64 = 64;
/// Such an arena of gaps grows by one part in this many at least.
const MORE_ROOM: u64 = 8;

impl Engine {
    /// Whether steps that race with each other have had more alive since there is a plan than when it was made: what finds
    /// neither slot nor gap stays little enough for the plan to be kept, and is served by the backend ever after.
    pub(super) fn overflows(&self) -> bool {
        let Some(begin) = self.planned_at_step.filter(|_| self.phase == Phase::Planned) else { return false };
        let served = self.running() - begin;
        if served < self.overflow_patience || !served.is_multiple_of(OVERFLOW_STEPS) || self.beyond_limit > 0
        {
            return false;
        }
        let (mut all, mut fallback, mut busy) = (0, 0, 0);
        for step in self.history.newest(OVERFLOW_STEPS) {
            all += step.planned.bytes + step.fallback.bytes;
            fallback += step.fallback.bytes;
            busy += step.busy.bytes;
        }
        let races = self.without_slots || busy * 100 > all * OVERFLOW_BUSY_PERCENT;
        races && fallback * 100 > all * OVERFLOW_PERCENT
    }

    /// Slots are of little use: an arena of gaps alone, and for longer than any plan that did not help.
    pub(super) fn prefer_gaps(&mut self, settings: &Settings) {
        self.patience = (GAPS_PATIENCE * self.patience).min(PATIENCE_MAX);
        self.count_alive_of_steps(settings);
    }

    /// The arena overflows: gaps alone, and more of them where it has no slots already.
    pub(super) fn make_room(&mut self, settings: &Settings) {
        self.overflow_patience = (self.overflow_patience * 2).min(PATIENCE_MAX);
        if !self.without_slots {
            return self.prefer_gaps(settings);
        }
        let bytes = STATE.arena.bytes() as u64;
        let alive = Alive::of_steps_beyond(bytes + bytes / MORE_ROOM);
        self.record_for(Work::Counting(Box::new(alive)), settings);
    }

    /// Begins to count what is alive of marked steps.
    pub(super) fn count_alive_of_steps(&mut self, settings: &Settings) {
        self.record_for(Work::Counting(Box::new(Alive::of_steps())), settings);
    }

    /// Where no rhythm is heard, but a loop that asks for one size, and that a large one, counts what is alive; `false` where
    /// there is none.
    pub(super) fn counts_one_size(&mut self, settings: &Settings) -> bool {
        let heard = LISTENER.heard();
        if heard < self.count_again.max(LOOP as u64) || matches!(self.kept, Kept::Waiting { .. }) {
            return false;
        }
        // What most are of is among any few.
        let mut few = LISTENER.newest(FEW);
        few.retain(|size| size.bytes() >= LARGE * settings.min_bytes as u64);
        if few.is_empty() {
            return false;
        }
        let newest = LISTENER.newest(LOOP);
        let times = |size: Class| newest.iter().filter(|class| **class == size).count();
        let is_loop = |size: &&Class| times(**size) * 100 >= LOOP * ONE_SIZE_PERCENT;
        let Some(&size) = few.iter().find(is_loop) else { return false };
        self.count_alive(Alive::of_one_size(size), settings);
        true
    }

    /// Counts what is alive, round by round.
    pub(super) fn count_alive(&mut self, alive: Alive, settings: &Settings) {
        self.drop_kept();
        if !RECORDER.open() {
            self.failed_plans += 1;
            return LISTENER.wake_later();
        }
        RECORDER.clear();
        RECORDER.wake_after(Some(round_of(&alive)));
        LISTENER.wake_later();
        self.work = Work::Counting(Box::new(alive));
        if self.phase == Phase::Waiting {
            self.phase = Phase::Collecting;
        }
        route::set(self.phase == Phase::Planned, Watch::All, settings.min_bytes);
    }

    /// Goes on with it.
    pub(super) fn follow_alive(&mut self, mut alive: Box<Alive>, settings: &Settings) {
        let counted = alive.round(&RECORDER, RECORDER.head(), settings);
        if let Counted::More = counted {
            RECORDER.wake_after(Some(round_of(&alive)));
            self.work = Work::Counting(alive);
            return;
        }
        RECORDER.wake_after(None);
        RECORDER.clear();
        if let Counted::NoLoop = counted {
            return self.count_ever_more_rarely(settings);
        }
        let proposal = alive
            .proposal(STATE.arena.fixed_shift())
            .filter(|proposal| proposal.bytes() >= least_bytes(settings));
        if proposal.is_none() && alive.is_of_one_size() {
            return self.count_ever_more_rarely(settings);
        }
        self.steps = self.steps.max(1);
        let plans = self.plans;
        if let Some(proposal) = proposal {
            self.install(proposal, settings);
        }
        if self.plans == plans {
            // Too little, or no memory; another time, perhaps.
            self.lose(settings);
            return LISTENER.wake_after(DEAF);
        }
        self.start = None;
        self.of_one_size = alive.is_of_one_size();
        self.ask_at = self.steps + ROUNDS;
        self.listen_beside();
        UNFIT_MOST.store(ROUND, Relaxed);
    }

    /// There is no loop of one size, or too little in it.
    fn count_ever_more_rarely(&mut self, settings: &Settings) {
        self.count_again = 2 * LISTENER.heard();
        self.lose(settings);
    }

    /// A round is over in which an arena without slots served.
    pub(super) fn end_round(&mut self, settings: &Settings) {
        UNFIT.store(0, Relaxed);
        let counted = self.figures(1, os::minor_faults(), os::now_ns());
        self.steps += 1;
        self.trim_at_boundary();
        self.watch_from_beside(settings);
        let changed = counted.is_some_and(|figures| self.has_changed(&figures));
        if matches!(self.work, Work::None) {
            if changed && !self.of_one_size {
                self.missed_steps = 0;
                self.count_alive(Alive::of_steps(), settings);
            } else if changed || self.steps >= self.ask_at {
                self.ask_at = 2 * self.steps;
                self.listen_again(settings);
                UNFIT_MOST.store(ROUND, Relaxed);
            }
        }
        (self.faults, self.nanoseconds) = (os::minor_faults(), os::now_ns());
    }

    /// At a boundary that was marked: goes on with counting what is alive of steps that run at once.
    pub(super) fn advance_alive(&mut self, mut alive: Box<Alive>, end: u64, settings: &Settings) {
        self.ends.clear();
        if let Counted::More = alive.round(&RECORDER, end, settings) {
            self.work = Work::Counting(alive);
            return;
        }
        RECORDER.clear();
        match alive.proposal(STATE.arena.fixed_shift()) {
            Some(proposal) => self.install(proposal, settings),
            None => self.fail(),
        }
    }
}

/// Requests of a round while something is counted.
fn round_of(alive: &Alive) -> u64 {
    u64::from(if alive.is_of_one_size() { ROUND_OF_ONE_SIZE } else { ROUND })
}
