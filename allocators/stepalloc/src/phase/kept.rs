//! Plans kept in a file: opened, recognised by what the program asks for, put in force, and written.

use super::{ENGINE, EXIT_ATTEMPTS, Engine, FORKED, Phase, Work};
use crate::collector::{Proposal, TELLING};
use crate::kept::{PlanFile, Plans};
use crate::listener::LISTENER;
use crate::matcher::Class;
use crate::route::{self, STATE};
use crate::settings::Settings;
use core::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Steps after which plans of a file are given up, where nothing was recognised or no step began.
const KEPT_PERIODS: u64 = 16;
/// The same counts steps as at least so long.
const KEPT_LEAST: usize = 1024;
/// From one look for a file's steps to the next, what was heard grows by one part in this many at least.
const KEPT_GROWTH: u64 = 64;
/// Allocations of a step after which it may still be served from the plans of a file.
const BEGINNING: usize = 2 * TELLING;
/// Marked steps before which nothing is collected while a program may still be recognised by the plans of a file.
pub(super) const KEPT_STEPS: u64 = 8;

/// The file of plans that the environment names.
pub(super) enum Kept {
    /// Not looked at yet.
    Unread,
    /// There is none.
    None,
    /// Plans were read; it is not known yet whether they fit.
    Waiting {
        file: Box<PlanFile>,
        plans: Box<Plans>,
        /// Allocations heard when the program was recognised first, and the kind of its step.
        recognised: Option<(u64, usize)>,
        /// Allocations heard after which any rhythm is looked for.
        look: u64,
    },
    /// It is to be written only; with what it is to hold.
    Written(Box<PlanFile>, Option<Box<Plans>>),
}

impl Engine {
    /// Looks at the file of plans, once.
    pub(super) fn open_kept(&mut self, settings: &Settings) {
        if !matches!(self.kept, Kept::Unread) {
            return;
        }
        self.kept = match PlanFile::open() {
            None => Kept::None,
            Some((file, plans)) => {
                let usable = |plans: &Plans| plans.min_bytes == settings.min_bytes && !STATE.arena.is_open();
                match plans.filter(usable) {
                    Some(plans) => Kept::Waiting {
                        file: Box::new(file),
                        plans: Box::new(plans),
                        recognised: None,
                        look: 0,
                    },
                    None => Kept::Written(Box::new(file), None),
                }
            }
        };
    }

    /// The kind of step by which the program was recognised, if it waits for a boundary to be served.
    pub(super) fn recognised_kind(&self) -> Option<usize> {
        let Kept::Waiting { recognised: Some((_, kind)), .. } = self.kept else { return None };
        (matches!(self.work, Work::None) && self.phase == Phase::Waiting).then_some(kind)
    }

    fn write_kept(&mut self, plans: Plans) {
        if let Kept::Written(file, written) = &mut self.kept {
            file.write(&plans);
            *written = Some(Box::new(plans));
        }
    }

    /// At the end: the kinds of steps that were in use last come first in the file. What a smaller process has written over
    /// it is written again.
    fn write_kept_by_use(&mut self) {
        let Kept::Written(file, Some(plans)) = &mut self.kept else { return };
        let mut order: Vec<(u64, usize)> = STATE.matcher.unused().zip(0..).collect();
        order.sort_unstable();
        if order.len() != plans.needs.len() {
            return;
        }
        if order.is_sorted_by_key(|&(_, kind)| kind) {
            if !file.is_as_seen() {
                file.write(plans);
            }
            return;
        }
        let mut plans = Plans::clone(plans);
        plans.needs = order.iter().map(|&(_, kind)| Arc::clone(&plans.needs[kind])).collect();
        plans.offsets = order.iter().map(|&(_, kind)| plans.offsets[kind].clone()).collect();
        self.write_kept(plans);
    }

    /// Looks whether the program does what the plans of the file were made for, and serves from them then; `true` where there
    /// is nothing else to do now.
    ///
    /// They serve from the beginning of a step that follows one in which the program was recognised: what lives on from a
    /// program's first step (an optimizer's state) is not of the steps that were planned, and would keep their slots.
    pub(super) fn begin_with_kept(&mut self, settings: &Settings) -> bool {
        self.open_kept(settings);
        if !matches!(self.work, Work::None) || self.phase != Phase::Waiting {
            return false;
        }
        let Kept::Waiting { plans, recognised, look, .. } = &mut self.kept else { return false };
        let usable = self.marked || plans.rhythm.is_some();
        let found = plans.find(&LISTENER.newest(plans.longest())).filter(|_| usable);
        let heard = LISTENER.heard();
        if let Some(place) = found {
            let length = place.length as u64;
            let (before, _) = *recognised.get_or_insert((heard, place.kind));
            let begins = place.at <= BEGINNING.min(place.length / 4) && heard - before >= length / 2;
            if begins || place.whole && heard - before >= length {
                let running = plans.needs[place.kind].sequence[..place.at].to_vec();
                return self.serve_kept(place.kind, &running, settings);
            }
            // What repeats within its steps meanwhile are layers.
            *look = (*look).max(heard + 2 * length);
        }
        let in_vain = match recognised {
            Some((before, kind)) => heard - *before > KEPT_PERIODS * plans.needs[*kind].sequence.len() as u64,
            None => heard > KEPT_PERIODS * plans.longest().max(KEPT_LEAST) as u64,
        };
        if in_vain {
            self.drop_kept();
            return false;
        }
        // Ever more rarely, as long as nothing is recognised.
        let pause = if recognised.is_some() { 0 } else { heard / KEPT_GROWTH };
        LISTENER.wake_after(pause.max(TELLING as u64));
        // Another rhythm may be there all the while.
        let due = heard >= *look && !self.marked;
        if due {
            *look = heard + heard / 8;
        }
        !due
    }

    /// Puts the plans of the file in force, in the midst of a step of a kind that has asked for `running` so far; `false`
    /// where there is no memory.
    pub(super) fn serve_kept(&mut self, kind: usize, running: &[Class], settings: &Settings) -> bool {
        let Kept::Waiting { file, plans, .. } = core::mem::replace(&mut self.kept, Kept::None) else {
            return false;
        };
        self.kept = Kept::Written(file, Some(plans.clone()));
        let Some(mut proposal) = plans.into_proposal() else { return false };
        if self.marked {
            proposal.ignore_begin();
        }
        let (start, before) = (proposal.found, self.plans);
        self.steps = self.steps.max(1);
        self.install(proposal, settings);
        if self.plans == before {
            return false;
        }
        (self.start, self.kept_serves) = (start, true);
        STATE.matcher.resume(kind, running);
        if !self.marked {
            self.listen_beside();
        }
        true
    }

    /// Puts a plan in force, and writes it to the file of plans.
    pub(super) fn install_and_keep(&mut self, proposal: Proposal, settings: &Settings) {
        let is_kept = matches!(self.kept, Kept::Written(..));
        let keep = is_kept.then(|| proposal.to_keep(settings.min_bytes));
        let plans = self.plans;
        self.install(proposal, settings);
        if let Some(keep) = keep.filter(|_| self.plans > plans) {
            self.write_kept(keep);
        }
    }

    /// The plans of the file do not fit.
    pub(super) fn drop_kept(&mut self) {
        if let Kept::Waiting { .. } = self.kept
            && let Kept::Waiting { file, .. } = core::mem::replace(&mut self.kept, Kept::None)
        {
            self.kept = Kept::Written(file, None);
        }
    }
}

/// Called when the process ends.
pub(super) extern "C" fn write_kept_by_use() {
    if FORKED.load(Relaxed) == 0 {
        route::inside(|| ENGINE.with(Some(EXIT_ATTEMPTS), Engine::write_kept_by_use));
    }
}
