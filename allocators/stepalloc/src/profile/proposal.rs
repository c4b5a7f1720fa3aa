//! Plans as the matcher and the arena take them.

use super::step_profile::{Lane, Start, StepProfile};
use crate::arena::cells::Cut;
use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT, granules_for};
use crate::lookup::{Class, ClassSlots, Tables};
use crate::os;
use core::ops::ControlFlow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stepalloc_planner::{Block, Effort, Key, Planner, Problem, StepProblem, locality};

/// What a lower plan is worth: while it is looked for, the backend serves. Nearly all recorded steps take far less. Of
/// several variants, all plans together.
const TIME_LIMIT: Duration = Duration::from_millis(250);

/// Memory that looking for a lower plan may take: it is the process's, and a plan saves no more than some percent of its arena.
const SEARCH_BYTES: u64 = 4 << 20;

/// Or one part in this many of the process's peak.
const SEARCH_SHARE: u64 = 100;

/// A plan is near its bound that exceeds it by at most one part in this many. Such a plan of three hundred blocks whose sizes follow the data is
/// found in 10 ms, one half as far above in 100.
const NEAR_SHARE: u64 = 100;

/// What such a plan is worth: it is found soon, or not at all.
const NEAR_TIME_LIMIT: Duration = Duration::from_millis(25);

/// Memory in which looking for such a plan remembers what is hopeless.
const NEAR_BYTES: usize = 256 << 10;

/// Traffic after which a processor's own cache of 2 MiB has forgotten a block: blocks are placed where one was freed since then.
const CACHE_BYTES: u64 = 4 << 20;

/// Steps of more blocks are not looked through for that: the time grows with their square.
const REUSED_BLOCKS: usize = 4096;

/// The share of the load that rounding sizes up to a granule may add: one part in this many. Below what users notice;
/// smaller granules make gaps dearer.
pub(crate) const ROUNDING_SHARE: u64 = 128;

/// Bytes by which one plan for all variants may be higher than one for each, where blocks live on from step
/// to step: one part in this many. Plans made for each variant alone have another place for them.
const SHARED_COSTS: u64 = 50;

/// How low a plan is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// What placing the blocks in some orders finds, at once.
    Quick,
    /// Near its bound, where a search in little memory finds such a plan; of several variants as [`Aim::Quick`].
    Near,
    /// As low as it is found in time.
    Lowest,
}

/// Plans as the matcher and the arena take them, one for each step variant.
pub(crate) struct Proposal {
    /// What was planned.
    pub(crate) profiles: Vec<Arc<StepProfile>>,
    /// The offsets of each one's blocks, in bytes.
    pub(super) offsets: Vec<Vec<u64>>,
    /// The slots of each.
    slots: Vec<Vec<ClassSlots>>,
    /// The arena cut at all slots' edges.
    pub(crate) cut: Cut,
    /// log2 of the granule's bytes.
    pub(crate) shift: u32,
    /// Height of the highest plan in granules.
    granules: u32,
    /// The largest load in bytes, sizes rounded up to a cache line only: no plan is smaller.
    pub(crate) lower_bound: u64,
    /// Whether no plan of these granules is lower.
    pub(crate) optimal: bool,
    /// Blocks planned.
    pub(crate) blocks: u64,
    /// Where steps begin, if they were detected.
    pub(crate) start: Option<Start>,
}

impl Proposal {
    /// Plans step variants. `shift` fixes the granule where the arena is open already.
    pub(crate) fn of(profiles: Vec<Arc<StepProfile>>, aim: Aim, shift: Option<u32>) -> Option<Self> {
        let shift = shift.unwrap_or_else(|| {
            let largest = profiles.iter().map(|profile| profile.load()).max().unwrap_or(0);
            let shift = |step: &StepProblem, load: u64| granule_shift(&step.problem, load);
            let shifts = profiles.iter().flat_map(|profile| match profile.only() {
                Some(only) => vec![shift(only, largest)],
                None => profile
                    .lanes
                    .iter()
                    .map(|Lane { step, .. }| shift(step, step.problem.load().max))
                    .collect(),
            });
            shifts.min().unwrap_or(GRANULE_MIN_SHIFT)
        });
        // Each lane; or each variant alone, and all together.
        let plans = match &profiles[..] {
            [only] => only.lanes.len() as u32,
            profiles => profiles.len() as u32 + 1,
        };
        let (peak, touched) = (os::peak_bytes(), os::bytes_faulted_by_thread());
        let more = (peak / SEARCH_SHARE).max(SEARCH_BYTES);
        // Below the peak of whoever executed this program its own does not show.
        let is_large = move || match os::peak_bytes() {
            now if os::peak_is_its_own(now) => now > peak + more,
            _ => os::bytes_faulted_by_thread() > touched + SEARCH_BYTES,
        };
        let stops = move || is_large() || os::first_thread_was_seen_to_end();
        let watch = move |_| if stops() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let effort = if aim == Aim::Quick { Effort::Quick } else { Effort::Normal };
        let time_limit = if aim == Aim::Near { NEAR_TIME_LIMIT } else { TIME_LIMIT };
        let planner = Planner::new().effort(effort).time_limit(Some(time_limit / plans)).watch(watch);
        let (offsets, height, optimal) = match &profiles[..] {
            [only] => plan_lanes(&planner, only, aim, shift)?,
            profiles => plan_variants(&planner, profiles, shift)?,
        };
        Self::with_offsets(profiles, offsets, height, shift, optimal)
    }

    /// Plans whose offsets are known.
    pub(crate) fn with_offsets(
        profiles: Vec<Arc<StepProfile>>,
        offsets: Vec<Vec<u64>>,
        height: u64,
        shift: u32,
        optimal: bool,
    ) -> Option<Self> {
        let variants = profiles.iter().zip(&offsets);
        let slots = variants.map(|(profile, offsets)| classes(&profile.lanes, offsets, shift));
        let slots = slots.collect::<Option<Vec<_>>>()?;
        let granules = u32::try_from(height >> shift).ok()?;
        Some(Self {
            cut: cut(&slots, shift, granules),
            blocks: profiles.iter().map(|profile| profile.blocks().count() as u64).sum(),
            lower_bound: profiles.iter().map(|profile| profile.load()).max()?,
            slots,
            offsets,
            profiles,
            shift,
            granules,
            optimal,
            start: None,
        })
    }

    /// Steps are marked.
    pub(crate) fn ignore_begin(&mut self) {
        self.profiles.iter_mut().for_each(|profile| Arc::make_mut(profile).begin = None);
        self.start = None;
    }

    /// What the matcher takes.
    pub(crate) fn tables(&self) -> Vec<Tables<'_>> {
        let variants = self.profiles.iter().zip(&self.slots);
        variants
            .map(|(profile, classes)| Tables { classes, families: &profile.families, begin: profile.begin })
            .collect()
    }

    /// Whether each thread has a part of the arena for itself.
    pub(crate) fn in_lanes(&self) -> bool {
        self.profiles.iter().any(|profile| profile.only().is_none())
    }

    /// Height of the plan in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.granules) << self.shift
    }

    /// Leaves blocks that would end beyond `bytes` to the backend.
    pub(crate) fn limit(&mut self, bytes: usize) {
        if let Ok(granules) = u32::try_from(bytes >> self.shift)
            && granules < self.granules
        {
            self.granules = granules;
            self.retain(|start, length| u64::from(start) + length <= u64::from(granules));
        }
    }

    /// Leaves blocks whose slots would be smaller than `bytes` to the backend.
    pub(crate) fn leave_smaller(&mut self, bytes: usize) {
        let (shift, bytes) = (self.shift, bytes as u64);
        if self.slots.iter().flatten().any(|class| class.class.granules(shift) << shift < bytes) {
            self.retain(|_, length| length << shift >= bytes);
        }
    }

    /// Keeps the slots that are to stay, by their first granule and their number of granules.
    fn retain(&mut self, stays: impl Fn(u32, u64) -> bool) {
        for class in self.slots.iter_mut().flatten() {
            let length = class.class.granules(self.shift);
            for slot in &mut class.slots {
                if slot.is_some_and(|start| !stays(start, length)) {
                    *slot = None;
                    self.blocks -= 1;
                }
            }
        }
        self.cut = cut(&self.slots, self.shift, self.granules);
    }
}

/// Offsets, height, and whether no plan is lower, of one variant. Lanes lie one above the other.
fn plan_lanes(
    planner: &Planner,
    profile: &StepProfile,
    aim: Aim,
    shift: u32,
) -> Option<(Vec<Vec<u64>>, u64, bool)> {
    let (mut offsets, mut height, mut optimal) = (Vec::new(), 0u64, true);
    for lane in &profile.lanes {
        let problem = rounded(&lane.step.problem, shift);
        let mut plan = if aim == Aim::Near {
            let load = problem.load().max;
            let planner = planner.clone().search_memory(NEAR_BYTES);
            planner.plan_within(&problem, load + load / NEAR_SHARE).ok()?.into_plan()
        } else {
            planner.plan(&problem).ok()?
        };
        if problem.blocks.len() <= REUSED_BLOCKS {
            locality::reuse_recent(&problem, &mut plan.offsets, plan.height, CACHE_BYTES);
        }
        let align = problem.blocks.iter().map(|block| block.align).max().unwrap_or(1);
        let start = height.next_multiple_of(align);
        offsets.extend(plan.offsets.iter().map(|offset| start + offset));
        height = start + plan.height;
        optimal &= plan.optimal();
    }
    Some((vec![offsets], height, optimal))
}

/// The offsets of each variant's blocks, the height of the highest plan, and whether none is lower.
fn plan_variants(
    planner: &Planner,
    profiles: &[Arc<StepProfile>],
    shift: u32,
) -> Option<(Vec<Vec<u64>>, u64, bool)> {
    let variant = |step: &StepProblem| stepalloc_planner::Kind {
        problem: rounded(&step.problem, shift),
        keys: step.keys.clone(),
    };
    let variants: Option<Vec<_>> = profiles.iter().map(|profile| Some(variant(profile.only()?))).collect();
    let variants = variants?;
    let plans = planner.plan_kinds(&variants).ok()?;
    let lives_on = |problem: &Problem| {
        problem.blocks.iter().any(|block| problem.period.is_some_and(|period| block.upper > period))
    };
    let alone = plans.alone_height();
    let may_cost =
        if variants.iter().any(|variant| lives_on(&variant.problem)) { alone / SHARED_COSTS } else { 0 };
    if plans.shared.height <= alone + may_cost {
        let offsets: Option<_> = variants.iter().map(|variant| plans.offsets(&variant.keys)).collect();
        return Some((offsets?, plans.shared.height, plans.shared.optimal()));
    }
    let optimal = plans.alone.iter().any(|plan| plan.optimal() && plan.height == alone);
    Some((plans.alone.into_iter().map(|plan| plan.offsets).collect(), alone, optimal))
}

/// The arena cut at the slots' edges.
fn cut(variants: &[Vec<ClassSlots>], shift: u32, granules: u32) -> Cut {
    let runs: Vec<_> = variants.iter().flatten().flat_map(|class| class.runs(shift)).flatten().collect();
    Cut::of(&runs, granules)
}

/// The largest granule that adds little to the load.
fn granule_shift(problem: &Problem, load: u64) -> u32 {
    let bearable = load + load / ROUNDING_SHARE;
    (GRANULE_MIN_SHIFT + 1..=GRANULE_MAX_SHIFT)
        .rev()
        // What spreads the starts is not counted.
        .find(|&shift| {
            with_sizes(problem, shift, |block| block.size.next_multiple_of(1 << shift)).load().max <= bearable
        })
        .unwrap_or(GRANULE_MIN_SHIFT)
}

/// The problem with sizes and alignments of whole granules, as slots have them.
pub(super) fn rounded(problem: &Problem, shift: u32) -> Problem {
    with_sizes(problem, shift, |block| {
        (granules_for(block.size as usize, block.align as usize, shift) as u64) << shift
    })
}

/// The problem with other sizes, and alignments of whole granules.
fn with_sizes(problem: &Problem, shift: u32, size: impl Fn(&Block) -> u64) -> Problem {
    let granule = 1u64 << shift;
    let blocks = problem.blocks.iter().map(|block| Block {
        size: size(block),
        align: block.align.max(granule),
        ..*block
    });
    Problem { blocks: blocks.collect(), period: problem.period, ..Problem::default() }
}

/// The plan's slots by class and number in the step; `None` where a granule cannot be named in 32 bits.
fn classes(lanes: &[Lane], offsets: &[u64], shift: u32) -> Option<Vec<ClassSlots>> {
    let mut by_class: HashMap<Class, Vec<Option<u32>>> = HashMap::new();
    let mut put = |thread: u16, key: &Key, start: Option<u32>| {
        let class = Class::of(usize::try_from(key.size).ok()?, usize::try_from(key.align).ok()?)?;
        let slots = by_class.entry(class.in_lane(thread)).or_default();
        let nth = key.nth as usize;
        if slots.len() <= nth {
            slots.resize(nth + 1, None);
        }
        slots[nth] = start;
        Some(())
    };
    let mut offsets = offsets.iter();
    for Lane { thread, step } in lanes {
        for (key, offset) in step.keys.iter().zip(&mut offsets) {
            put(*thread, key, Some(u32::try_from(offset >> shift).ok()?))?;
        }
        step.held.iter().try_for_each(|key| put(*thread, key, None))?;
    }
    let mut classes: Vec<_> =
        by_class.into_iter().map(|(class, slots)| ClassSlots { class, slots }).collect();
    classes.sort_unstable_by_key(|class| class.class.to_bits());
    Some(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::granules::Run;
    use crate::settings::Settings;
    use std::path::Path;
    use stepalloc_planner::{Input, read_any};

    /// The README's shares: `cargo test --release -p stepalloc slots_of_recorded -- --nocapture` prints them.
    #[test]
    fn slots_of_recorded_steps_lie_in_a_word_of_cells_or_two() {
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
        let Ok(files) = std::fs::read_dir(&traces) else {
            eprintln!("SKIPPED: no traces in {}", traces.display());
            return;
        };
        let paths = files.map(|file| file.expect("a file of the directory").path());
        for path in paths.filter(|path| path.to_string_lossy().ends_with(".csv.gz")) {
            let input = read_any(&path, Settings::DEFAULT.min_bytes as u64).expect("a trace");
            let Input::Trace { steps, .. } = input else { panic!("{}: no trace", path.display()) };
            let shift = granule_shift(&steps.problem, steps.problem.load().max);
            let problem = rounded(&steps.problem, shift);
            let mut plan = Planner::new().plan(&problem).expect("a plan");
            locality::reuse_recent(&problem, &mut plan.offsets, plan.height, CACHE_BYTES);
            let granules = |bytes: u64| (bytes >> shift) as u32;
            let blocks = problem.blocks.iter().zip(&plan.offsets);
            let runs: Vec<_> =
                blocks.map(|(block, &at)| Run::new(granules(at), granules(block.size))).collect();
            let cut = Cut::of(&runs, granules(plan.height));
            let slots = cut.words().count();
            let of = |words: u32| cut.words().filter(|&count| count == words).count();
            let (one, two) = (of(1), of(2));
            println!(
                "figures: {} slots={slots} one_word={one} two={two} more={}",
                path.file_name().unwrap_or_default().display(),
                slots - one - two
            );
            assert!(slots > 0 && one * 100 >= slots * 80 && (one + two) * 100 >= slots * 98);
        }
    }
}
