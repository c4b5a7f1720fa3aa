//! Work that takes longer than a boundary may: merging recorded steps, cutting them, planning.

use crate::detect::{DetectedSteps, Followed, Recorded};
use crate::policy::*;
use crate::profile::collector::Collector;
use crate::profile::proposal::{Aim, Proposal};
use crate::profile::step_profile::{Start, StepProfile, with_others};
use crate::record::recorder::Recorder;
use crate::settings::Settings;
use std::sync::Arc;
use stepalloc_planner::{Period, period};

/// What is to be done.
pub(crate) enum Work {
    /// Merges marked steps, which ended at these events; beside the program, plans them where they are enough.
    Merge { collector: Box<Collector>, ends: Vec<u64>, settings: Settings, others: Vec<Arc<StepProfile>> },
    /// Cuts the events up to `end` into steps.
    Follow { detected: Box<DetectedSteps>, end: u64, settings: Settings },
    /// Looks for the period of these sizes, the newest last.
    Look { sizes: Vec<u64> },
    /// Plans step variants.
    Plan { profiles: Vec<Arc<StepProfile>>, start: Option<Start> },
}

/// What came of it.
pub(crate) enum Outcome {
    /// More steps are wanted.
    More(Box<Collector>),
    /// Enough were seen.
    Enough(Vec<Arc<StepProfile>>),
    /// No plan is worth it: the steps do not repeat, or learning one takes too much memory.
    Refused,
    /// So many more allocations of detected steps are wanted; 0 where they are enough.
    Follow(Box<DetectedSteps>, u64),
    /// The period is not to be followed; what was recorded, where that may be of use for another, and that other, where it was found.
    Lost(Option<Box<Recorded>>, Option<Period>),
    /// The period, where there is one.
    Looked(Option<Period>),
    /// To be planned beside the program.
    Hard { profiles: Vec<Arc<StepProfile>>, start: Option<Start> },
    /// A plan, or `None` where none could be made.
    Plan(Option<Box<Proposal>>),
}

/// What work may take of the process.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) recorder: &'a Recorder,
    /// log2 of the arena's granule, once it is open.
    pub(crate) shift: Option<u32>,
    /// The process's peak of resident bytes.
    pub(crate) peak: u64,
    pub(crate) place: Place,
}

/// Where work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the thread of the step.
    Here,
    /// The same, as no thread could be had.
    HereOnly,
    /// In a thread beside the program.
    Beside,
}

impl Work {
    /// Does it.
    pub(crate) fn run(self, means: Means<'_>) -> Outcome {
        match self {
            Self::Merge { mut collector, ends, settings, others } => {
                let most = (means.peak / STEP_SHARE).max(STEP_BYTES) / EVENT_BYTES;
                let mut enough = false;
                for end in ends {
                    if means.recorder.unread(end) > most {
                        return Outcome::Refused;
                    }
                    enough = collector.step(means.recorder, end, &settings);
                    if enough {
                        break;
                    }
                }
                if !enough {
                    return Outcome::More(collector);
                }
                let profiles = collector.profiles(false);
                match means.place {
                    _ if collector.is_unalike(&profiles) => Outcome::Refused,
                    Place::Beside => Outcome::Plan(plan(with_others(profiles, &others), means)),
                    Place::Here | Place::HereOnly => Outcome::Enough(profiles),
                }
            }
            Self::Follow { mut detected, end, settings } => {
                match detected.follow(means.recorder, end, &settings) {
                    Followed::More(allocations) => Outcome::Follow(detected, allocations.max(1)),
                    Followed::Enough => Outcome::Follow(detected, 0),
                    Followed::Lost(other) => Outcome::Lost(detected.into_recorded().map(Box::new), other),
                }
            }
            Self::Look { sizes } => Outcome::Looked(match means.place {
                Place::Beside => period::find(&sizes),
                // Where no thread can be had, the program is not held up for it.
                Place::Here | Place::HereOnly => None,
            }),
            Self::Plan { profiles, start } => {
                let planned = match means.place {
                    Place::Here => match easy_plan(&profiles, means) {
                        Some(plan) => Some(plan),
                        None => return Outcome::Hard { profiles, start },
                    },
                    Place::HereOnly => Proposal::of(profiles, Aim::Quick, means.shift).map(Box::new),
                    Place::Beside => plan(profiles, means),
                };
                Outcome::Plan(planned.map(|mut plan| {
                    plan.start = start;
                    plan
                }))
            }
        }
    }
}

/// A plan of what is easy, made at once. Anything else may take some tenths of a second.
fn easy_plan(profiles: &[Arc<StepProfile>], means: Means<'_>) -> Option<Box<Proposal>> {
    match profiles {
        [only] if only.blocks().count() <= BLOCKS_HERE => {
            Proposal::of(profiles.to_vec(), Aim::Quick, means.shift).filter(|plan| plan.optimal).map(Box::new)
        }
        _ => None,
    }
}

/// A plan that is good enough, or as low as it is found in time; until then the heap serves.
fn plan(profiles: Vec<Arc<StepProfile>>, means: Means<'_>) -> Option<Box<Proposal>> {
    let is_good = |plan: &Proposal, bearable: u64| {
        let bearable = bearable.max(plan.lower_bound / GOOD_SHARE).max(means.peak / GOOD_RESIDENT_SHARE);
        plan.optimal || plan.bytes().saturating_sub(plan.lower_bound) <= bearable
    };
    let mut plan = Proposal::of(profiles, Aim::Quick, means.shift)?;
    if plan.profiles.len() == 1 && plan.lower_bound >= NEAR_LEAST && !is_good(&plan, 0) {
        plan = Proposal::of(plan.profiles, Aim::Near, means.shift)?;
    }
    if !is_good(&plan, GOOD_BYTES) {
        plan = Proposal::of(plan.profiles, Aim::Lowest, means.shift)?;
    }
    Some(Box::new(plan))
}
