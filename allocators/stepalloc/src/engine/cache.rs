//! The plan cache: plans of the plan file are recognised by the program's allocations, and put in force.

use super::machine::{Action, Machine, Origin, Snapshot};
use crate::lookup::Class;
use crate::policy::*;
use crate::profile::plan_file::Plans;
use crate::profile::step_profile::FINGERPRINT;
use crate::switches::Watch;
use core::mem;

/// Allocations of a step after which it may still be served from cached plans.
const BEGINNING: usize = 2 * FINGERPRINT;

/// What is known of the plan file.
pub(crate) enum Cache {
    /// It was not looked at yet.
    Unknown,
    /// There is none.
    None,
    /// Plans were read; it is not known yet whether they fit.
    Waiting {
        plans: Box<Plans>,
        /// Allocations in the size log when the program was recognised first, and the variant of its step.
        recognised: Option<(u64, usize)>,
        /// Allocations after which any period is looked for.
        look: u64,
    },
    /// It is to be written.
    Writable,
}

impl Machine {
    /// Whether the plan file was looked at.
    pub(crate) fn knows_cache(&self) -> bool {
        !matches!(self.cache, Cache::Unknown)
    }

    /// Takes what the plan file holds, if there is one.
    pub(crate) fn open_cache(&mut self, file: Option<Option<Plans>>, has_arena: bool) {
        self.cache = match file {
            None => Cache::None,
            Some(Some(plans)) if plans.min_bytes == self.settings.min_bytes && !has_arena => {
                Cache::Waiting { plans: Box::new(plans), recognised: None, look: 0 }
            }
            Some(_) => Cache::Writable,
        };
    }

    /// Observes as much as it takes to recognise marked steps.
    pub(super) fn observe_for_cache(&mut self) {
        let waits = self.may_be_cached() && self.settings.enabled;
        if waits {
            // Where a step was marked before anything was allocated, the log has no such wake-up yet.
            self.act(Action::WakeAfterSizes(FINGERPRINT as u64));
        }
        self.observe(if waits { Watch::Sizes } else { Watch::Nothing });
    }

    /// Whether cached plans may still come into force.
    pub(super) fn may_be_cached(&self) -> bool {
        matches!(self.cache, Cache::Waiting { .. })
    }

    /// The same for marked steps, which are not recorded meanwhile.
    pub(super) fn waits_for_cache(&self) -> bool {
        self.may_be_cached() && self.running() < CACHE_STEPS
    }

    /// Whether new plans go to the file.
    pub(super) fn writes_cache(&self) -> bool {
        matches!(self.cache, Cache::Writable)
    }

    /// The variant by which the program was recognised, if it waits for a boundary to be served.
    pub(super) fn recognised(&self) -> Option<usize> {
        match self.cache {
            Cache::Waiting { recognised: Some((_, variant)), .. }
                if self.is_idle() && self.plan.is_none() =>
            {
                Some(variant)
            }
            _ => None,
        }
    }

    /// Looks whether the program does what the cached plans were made for, and serves from them then; `true` where there is nothing else
    /// to do now.
    ///
    /// They serve from the beginning of a step that follows one in which the program was recognised: what lives on from a program's first
    /// step (an optimizer's state) is not of the steps that were planned, and would keep their slots.
    pub(super) fn look_at_cache(&mut self, now: &Snapshot<'_>) -> bool {
        if !self.is_idle() || self.plan.is_some() {
            return false;
        }
        let Cache::Waiting { plans, recognised, look } = &mut self.cache else { return false };
        let usable = self.marked || plans.period.is_some();
        let place = plans.find(&now.sizes.newest(plans.longest())).filter(|_| usable);
        let logged = now.sizes.logged();
        if let Some(place) = place {
            let length = place.length as u64;
            let (before, _) = *recognised.get_or_insert((logged, place.variant));
            let begins = place.at <= BEGINNING.min(place.length / 4) && logged - before >= length / 2;
            if begins || place.whole && logged - before >= length {
                let running = plans.profiles[place.variant].sequence[..place.at].to_vec();
                self.serve_cached(place.variant, running);
                return true;
            }
            // What repeats within its steps meanwhile are layers.
            *look = (*look).max(logged + 2 * length);
        }
        let is_given_up = match recognised {
            Some((before, variant)) => {
                logged - *before > CACHE_PERIODS * plans.profiles[*variant].sequence.len() as u64
            }
            None => logged > CACHE_PERIODS * plans.longest().max(CACHE_LEAST) as u64,
        };
        // Another period may be there all the while.
        let due = logged >= *look && !self.marked;
        if due {
            *look = logged + logged / 8;
        }
        let pause = match (recognised, place) {
            // Half of what is left of the step, so that its end is not missed where it is shorter.
            (Some(_), Some(place)) => place.length.saturating_sub(place.at) as u64 / 2,
            // Ever more rarely, as long as nothing is recognised, or again.
            (Some((before, _)), None) => (logged - *before) / CACHE_GROWTH,
            (None, _) => logged / CACHE_GROWTH,
        };
        if is_given_up {
            self.drop_cached();
            return false;
        }
        self.act(Action::WakeAfterSizes(pause.max(FINGERPRINT as u64)));
        !due
    }

    /// Puts the cached plans in force, in the midst of a step that has asked for `running` so far.
    pub(super) fn serve_cached(&mut self, variant: usize, running: Vec<Class>) {
        let Cache::Waiting { plans, .. } = mem::replace(&mut self.cache, Cache::Writable) else { return };
        self.steps = self.steps.max(1);
        self.act(Action::Cache { plans: plans.clone(), write: false });
        if let Some(mut proposal) = plans.into_proposal() {
            if self.marked {
                proposal.ignore_begin();
            }
            let origin = Origin::Cache { variant, running };
            self.act(Action::Install { proposal: Box::new(proposal), origin });
        }
    }

    /// The cached plans do not fit.
    pub(super) fn drop_cached(&mut self) {
        if self.may_be_cached() {
            self.cache = Cache::Writable;
        }
    }
}
