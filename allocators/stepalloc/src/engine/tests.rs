//! The machine on recorded traces and on made-up programs, without a process round it.

use super::machine::{Action, Event, Machine, Snapshot};
use super::work::{Means, Outcome, Place, Work};
use crate::arena::Arena;
use crate::lookup::{Class, Match, Matcher};
use crate::policy::*;
use crate::record::recorder::{self, Recorder};
use crate::record::size_log::SizeLog;
use crate::settings::Settings;
use crate::statistics::{Phase, StepFigures};
use crate::switches::Watch;
use std::collections::HashMap;
use std::path::Path;
use stepalloc_planner::{Event as Traced, trace};

/// A program under a machine, and as much of a process as it takes.
struct Simulation {
    machine: Machine,
    sizes: SizeLog,
    recorder: Recorder,
    matcher: Matcher,
    arena: Arena,
    /// The thread that runs.
    thread: u16,
    serving: bool,
    watch: Watch,
    miss_limit: u32,
    misses: u32,
    pressures: u32,
    /// Of the running step.
    figures: StepFigures,
    /// What work beside the program came to.
    beside: Option<Outcome>,
    /// Where blocks live that a slot serves.
    slots: HashMap<usize, usize>,
    /// Times that an arena was retired.
    retired: u32,
    /// There is no memory to record with, or to install in.
    no_memory: bool,
}

impl Simulation {
    fn new(settings: Settings) -> Self {
        let mut machine = Machine::new(settings);
        machine.open_cache(None, false);
        Self {
            machine,
            sizes: SizeLog::closed(),
            recorder: Recorder::closed(),
            matcher: Matcher::empty(),
            arena: Arena::closed(),
            thread: 0,
            serving: false,
            watch: Watch::Sizes,
            miss_limit: u32::MAX,
            misses: 0,
            pressures: 0,
            figures: StepFigures::NONE,
            beside: None,
            slots: HashMap::new(),
            retired: 0,
            no_memory: false,
        }
    }

    fn happen(&mut self, event: Event, step: Option<StepFigures>) {
        let now = Snapshot {
            sizes: &self.sizes,
            recorder: &self.recorder,
            matcher: &self.matcher,
            step,
            pressures: self.pressures,
            has_arena: self.arena.is_open(),
            is_limited: false,
            is_young: false,
        };
        for action in self.machine.on(event, &now) {
            if let Some(event) = self.act(action) {
                self.happen(event, None);
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Observe { serving, watch } => (self.serving, self.watch) = (serving, watch),
            Action::Record { .. } if self.no_memory => return Some(Event::NotRecorded),
            Action::Record { serving, watch } => {
                assert!(self.recorder.open());
                self.recorder.clear();
                (self.serving, self.watch) = (serving, watch);
            }
            Action::DropEvents => self.recorder.clear(),
            Action::WakeAfterEvents(events) => self.recorder.wake_after(events),
            Action::WakeAfterSizes(allocations) => self.sizes.wake_after(allocations),
            Action::WakeWhenGrown => self.sizes.wake_later(),
            Action::DropSizes => self.sizes.clear(),
            Action::Run { work, here } => {
                let place = match &work {
                    _ if here => Place::Here,
                    Work::Look { .. } => Place::Beside,
                    _ => Place::HereOnly,
                };
                let shift = self.arena.fixed_shift();
                let outcome = work.run(Means { recorder: &self.recorder, shift, peak: 0, place });
                if here {
                    return Some(Event::Worked(outcome));
                }
                self.beside = Some(outcome);
            }
            Action::Install { .. } if self.no_memory => return Some(Event::NotInstalled),
            Action::Install { proposal, origin } => {
                let bytes = proposal.bytes() as usize;
                assert!(self.arena.is_open() || self.arena.open(proposal.shift, bytes, 1, None));
                assert!(self.arena.commit(bytes, false) >= bytes);
                // SAFETY: the arena was made usable up to the plan's bytes.
                assert!(unsafe { self.matcher.install(&self.arena, &proposal.tables(), &proposal.cut) });
                return Some(Event::Installed { proposal, origin, beyond_limit: 0 });
            }
            Action::Resume { variant, running } => self.matcher.resume(variant, &running),
            Action::IgnoreBegin => self.matcher.ignore_begin(),
            Action::LimitMisses(limit) => self.miss_limit = limit,
            Action::DropMisses => self.misses = 0,
            Action::RetireArena => self.retired += 1,
            Action::Fill(_)
            | Action::Settle
            | Action::AwaitPlan(_)
            | Action::Retain(_)
            | Action::Cache { .. } => {}
        }
        None
    }

    fn finish_work(&mut self) {
        if let Some(outcome) = self.beside.take() {
            self.happen(Event::Worked(outcome), None);
        }
    }

    /// The program marks a step.
    fn mark(&mut self, concurrent: bool) {
        if !self.machine.marked {
            self.happen(Event::FirstMark, None);
        }
        let step = self.end_step();
        self.matcher.expect(None);
        let was_working = self.beside.is_some();
        self.happen(Event::Boundary { concurrent }, step);
        if was_working {
            self.finish_work();
        }
        self.matcher.next_step();
    }

    fn end_step(&mut self) -> Option<StepFigures> {
        self.matcher.next_step();
        let figures = std::mem::take(&mut self.figures);
        (self.machine.phase() == Phase::Planned).then_some(figures)
    }

    /// The program asks for a block.
    fn allocate(&mut self, id: usize, bytes: u64, align: u64) {
        if bytes < Settings::DEFAULT.min_bytes as u64 {
            return;
        }
        let class = Class::of(bytes as usize, align as usize).expect("a size that can be");
        if self.serving {
            let in_lanes = self.machine.plan.as_ref().is_some_and(|plan| plan.profiles[0].only().is_none());
            self.claim(id, class.in_lane(if in_lanes { self.thread } else { 0 }));
        }
        let mut wakes = false;
        if matches!(self.watch, Watch::Events | Watch::All) {
            self.recorder.log(recorder::Event::Allocate { address: id, class }, self.thread);
            wakes = self.recorder.wakes();
        }
        if matches!(self.watch, Watch::Sizes | Watch::All) {
            wakes |= self.sizes.log(class);
        }
        if wakes {
            let was_working = self.beside.is_some();
            self.happen(Event::Sampled, None);
            if was_working {
                self.finish_work();
            }
        }
    }

    fn claim(&mut self, id: usize, class: Class) {
        let mut found = self.matcher.claim(&self.arena, class);
        if matches!(found, Match::Over(_)) && !self.machine.marked {
            self.matcher.uncount(class);
            let step = self.end_step();
            self.matcher.expect(Some(class));
            self.misses = 0;
            self.happen(Event::DetectedBoundary, step);
            found = self.matcher.claim(&self.arena, class);
        }
        match found {
            Match::Slot(block) => {
                self.figures.planned.bytes += class.bytes();
                self.figures.planned.allocations += 1;
                self.slots.insert(id, block as usize);
            }
            Match::Unplanned => {}
            _ => {
                self.figures.fallback.bytes += class.bytes();
                self.figures.fallback.allocations += 1;
                self.misses += 1;
                if self.misses > self.miss_limit {
                    self.misses = 0;
                    self.happen(Event::PeriodLost, None);
                }
            }
        }
    }

    fn free(&mut self, id: usize, bytes: usize) {
        if matches!(self.watch, Watch::Events | Watch::All) && bytes >= Settings::DEFAULT.min_bytes {
            self.recorder.log(recorder::Event::Free { address: id, bytes }, self.thread);
        }
        if let Some(block) = self.slots.remove(&id) {
            self.arena.release(block);
        }
    }

    /// A step of blocks that are allocated one after the other, and freed in the same order.
    fn step_of(&mut self, sizes: &[u64]) {
        for (at, &bytes) in sizes.iter().enumerate() {
            self.allocate(1 + at, bytes, 1);
        }
        for (at, &bytes) in sizes.iter().enumerate() {
            self.free(1 + at, bytes as usize);
        }
    }

    fn is_planned(&self) -> bool {
        self.machine.phase() == Phase::Planned
    }
}

/// Unlike each other: sizes of a step of so many blocks, of about a MiB each.
fn sizes(count: u64, seed: u64) -> Vec<u64> {
    (0..count).map(|at| (600 << 10) + (at * at * 7919 + at * seed) % 1000 * 1024).collect()
}

fn marked(start: u64, stable: u64) -> Settings {
    Settings { start_step: Some(start), stable_steps: Some(stable), ..Settings::DEFAULT }
}

/// What became of a recorded program.
struct Replayed {
    /// The step in which a plan came into force first.
    planned: usize,
    plans: u64,
    /// The share of the large bytes of the last steps that find their slots, in percent.
    served: u64,
    /// Allocations of the period that is planned at the end.
    period: Option<usize>,
}

/// Replays a recorded program, which marks nothing, some rounds of its steps after `before` blocks of libraries being loaded.
fn replay(name: &str, before: usize, rounds: usize) -> Option<Replayed> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: no {}", path.display());
        return None;
    }
    let trace = trace::read(path).expect("a trace");
    let mut simulation = Simulation::new(Settings::DEFAULT);
    let mut state = 1;
    for _ in 0..before {
        let bytes = (32 << 10) + random(&mut state) % 100_000;
        simulation.allocate(usize::MAX, bytes, 1);
        simulation.free(usize::MAX, bytes as usize);
    }
    let (mut planned, mut count) = (None, 0);
    let mut live = HashMap::new();
    let (mut served, mut missed) = (0, 0);
    for round in 0..rounds {
        // From the third step on again: the first ones are the program's warm-up.
        for step in &trace.steps[if round == 0 { 0 } else { 2 }..] {
            for event in &step.events {
                match *event {
                    Traced::Allocate { block, size, align, .. } => {
                        simulation.allocate(1 + block as usize, size, align);
                        live.insert(block, size);
                    }
                    Traced::Free { block } => {
                        let size = live.remove(&block).unwrap_or(0);
                        simulation.free(1 + block as usize, size as usize);
                    }
                }
            }
            count += 1;
            if simulation.is_planned() && planned.is_none() {
                planned = Some(count);
            }
            if round + 1 == rounds {
                served += simulation.figures.planned.bytes;
                missed += simulation.figures.fallback.bytes;
            }
        }
        for (block, size) in std::mem::take(&mut live) {
            simulation.free(1 + block as usize, size as usize);
        }
    }
    let planned = planned.unwrap_or_else(|| panic!("{name} after {before}: no plan within {count} steps"));
    let served = served * 100 / (served + missed).max(1);
    let plan = simulation.machine.plan.as_ref();
    let period = plan.and_then(|plan| plan.start).map(|start| start.period.allocations);
    Some(Replayed { planned, plans: simulation.machine.plans, served, period })
}

/// The step by whose end each recorded program is planned at the latest: of eight lengths in turn the second pass, and of steps of few
/// blocks more, for the evidence. And how much of its bytes finds slots at the end, in percent.
const RECORDED: [(&str, usize, u64); 11] = [
    ("torch_transformer_train", 8, 99),
    ("torch_convnet_train", 8, 99),
    ("torch_recommender_train", 8, 99),
    ("torch_mlp_train", 9, 99),
    ("torch_varlen_train", 16, 99),
    ("torch_transformer_infer", 8, 99),
    ("torch_convnet_infer", 8, 99),
    ("torch_mlp_infer", 24, 99),
    ("ort_transformer_arena0", 8, 98),
    ("ort_convnet_arena0", 32, 99),
    ("candle_transformer_infer", 8, 99),
];

#[test]
fn recorded_programs_are_planned_soon_and_served() {
    for (name, latest, least) in RECORDED {
        // Looks come at other places in a step after each of these.
        for before in [0, 1400, 1417, 1434] {
            let Some(found) = replay(&format!("{name}.csv.gz"), before, 7) else { continue };
            let Replayed { planned, plans, served, .. } = found;
            println!("figures: {name} after={before} planned={planned} plans={plans} served={served}");
            assert!(
                planned <= latest && served >= least,
                "{name} after {before}: step {planned}, {served} %"
            );
        }
    }
}

#[test]
fn a_turn_of_lengths_is_found_whichever_part_of_it_is_planned_first() {
    // 22 steps of 238 blocks. Eight of them come twice, and fourteen.
    const TURN: usize = 22 * 238;
    for before in (0..2000).step_by(100) {
        let Some(found) = replay("torch_varlen_train.csv.gz", before, 7) else { return };
        assert_eq!(found.period, Some(TURN), "after {before}, in {} plans", found.plans);
        assert!(found.served >= 99, "after {before}: {} %", found.served);
    }
}

#[test]
fn long_steps_of_several_lengths_are_planned_from_what_was_recorded_before_they_were_found() {
    // Each length has layers of its own, which are found and lost first, and another number of blocks.
    let length = |number: u64| {
        let layer = sizes(20 + 7 * number, 3 * number);
        [sizes(9, 40 + number), layer.repeat(10)].concat()
    };
    let lengths = [0, 1, 2, 3].map(length);
    let mut simulation = Simulation::new(Settings::DEFAULT);
    let mut planned = None;
    for step in 0..24 {
        simulation.step_of(&lengths[step % lengths.len()]);
        simulation.finish_work();
        if simulation.is_planned() && planned.is_none() {
            planned = Some(step + 1);
        }
    }
    let plan = simulation.machine.plan.as_ref().expect("a plan");
    let turn: usize = lengths.iter().map(Vec::len).sum();
    assert_eq!((plan.profiles.len(), plan.profiles[0].sequence.len()), (1, turn));
    // The evidence for so long a period is 1024 allocations more, and it is looked for after each eighth more.
    assert!(planned.is_some_and(|step| step <= 2 * lengths.len() + 1), "{planned:?}");
    let figures = simulation.figures;
    assert_eq!((figures.fallback.bytes, simulation.machine.plans), (0, 1));
    assert!(figures.planned.bytes > 0);
}

#[test]
fn so_are_steps_of_which_only_the_contour_comes_again() {
    // Each length asks for as many blocks, of other sizes. Loops within them are found and lost first.
    let step = |length: usize| -> Vec<u64> {
        let sizes = [sizes(90, 3), sizes(29, 5).repeat(4)].concat();
        sizes.iter().map(|size| size * [5, 8, 6, 7][length % 4] / 8).collect()
    };
    // Blocks of libraries being loaded come before.
    for before in [800, 1400, 1800] {
        let mut simulation = Simulation::new(Settings::DEFAULT);
        let mut state = 1;
        for _ in 0..before {
            simulation.step_of(&[(32 << 10) + random(&mut state) % 100_000]);
        }
        let mut planned = None;
        for length in 0..24 {
            simulation.step_of(&step(length));
            simulation.finish_work();
            if simulation.is_planned() && planned.is_none() {
                planned = Some(length + 1);
            }
        }
        let plan = simulation.machine.plan.as_ref().expect("a plan");
        assert_eq!((plan.profiles.len(), plan.profiles[0].sequence.len()), (1, 4 * step(0).len()));
        // Recorded from when they were found on, they would be planned one step later.
        assert!(planned.is_some_and(|step| step <= 7), "{before}: {planned:?}");
        // Those that live on at the end of the only turn that was recorded have no slots.
        assert!(simulation.figures.fallback.allocations <= 2, "{:?}", simulation.figures.fallback);
        assert_eq!(simulation.machine.plans, 1);
    }
}

#[test]
fn a_turn_is_planned_where_most_of_its_lengths_ask_for_as_many_blocks_and_one_for_fewer() {
    // Three lengths have one contour, by which a period is found that is none.
    let long = |length: usize| -> Vec<u64> {
        let sizes = [sizes(400, 3), sizes(29, 5).repeat(4), sizes(294, 7)].concat();
        sizes.iter().map(|size| size * [8, 6, 5, 7][length] / 8).collect()
    };
    let lengths = [sizes(234, 9), long(1), long(2), long(3)];
    let turn: usize = lengths.iter().map(Vec::len).sum();
    for before in (0..1000).step_by(100) {
        let mut simulation = Simulation::new(Settings::DEFAULT);
        let mut state = 1;
        for _ in 0..before {
            simulation.step_of(&[(32 << 10) + random(&mut state) % 100_000]);
        }
        let mut planned = None;
        for step in 0..16 {
            simulation.step_of(&lengths[step % lengths.len()]);
            simulation.finish_work();
            if simulation.is_planned() && planned.is_none() {
                planned = Some(step + 1);
            }
        }
        let plan = simulation.machine.plan.as_ref().expect("a plan");
        assert_eq!((plan.profiles.len(), plan.profiles[0].sequence.len()), (1, turn), "after {before}");
        assert!(planned.is_some_and(|step| step <= 2 * lengths.len()), "after {before}: {planned:?}");
        assert_eq!(simulation.machine.plans, 1, "after {before}");
    }
}

#[test]
fn steps_that_would_take_much_memory_to_learn_get_no_plan() {
    // Each block is one event, and its free another.
    let most = (STEP_BYTES / EVENT_BYTES / 2) as usize;
    for (blocks, is_planned) in [(most, true), (most + 1, false)] {
        let mut simulation = Simulation::new(marked(2, 2));
        for _ in 0..8 {
            simulation.mark(false);
            for block in 0..blocks {
                let bytes = (1 + block % 20) << 20;
                simulation.allocate(1, bytes as u64, 1);
                simulation.free(1, bytes);
            }
            simulation.finish_work();
        }
        simulation.mark(false);
        assert_eq!(simulation.is_planned(), is_planned, "{blocks} blocks");
    }
}

#[test]
fn marked_steps_are_recorded_from_start_until_stable_and_then_served() {
    let mut simulation = Simulation::new(marked(4, 3));
    let sizes = sizes(20, 3);
    let mut phases = Vec::new();
    for _ in 0..14 {
        simulation.mark(false);
        phases.push(simulation.machine.phase());
        simulation.step_of(&sizes);
    }
    let row = |phase, count| std::iter::repeat_n(phase, count);
    let expected: Vec<_> =
        row(Phase::Waiting, 4).chain(row(Phase::Collecting, 5)).chain(row(Phase::Planned, 5)).collect();
    assert_eq!(phases, expected);
    assert_eq!(simulation.figures.fallback.bytes, 0);
    assert_eq!(simulation.figures.planned.allocations, 20);
}

#[test]
fn threads_that_take_turns_as_they_like_are_planned_each_by_itself() {
    let mut simulation = Simulation::new(marked(4, 3));
    // Which of four threads allocates or frees its next block is another one each time.
    let (mut dice, mut planned) = (7u64, None);
    for step in 0..40 {
        simulation.mark(false);
        let mut next = [0usize; 4];
        while next.iter().any(|&next| next < 24) {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let thread = (dice >> 33) as usize % 4;
            let at = next[thread];
            let size = |at: usize| sizes(12, 5 + thread as u64)[at];
            simulation.thread = 1 + thread as u16;
            match at {
                0..4 => simulation.allocate(100 * (1 + thread) + at, size(at), 1),
                4..20 if at % 2 == 0 => {
                    let freed = at / 2 - 2;
                    simulation.free(100 * (1 + thread) + freed, size(freed) as usize);
                }
                4..20 => simulation.allocate(100 * (1 + thread) + at / 2 + 2, size(at / 2 + 2), 1),
                20..24 => simulation.free(100 * (1 + thread) + at - 12, size(at - 12) as usize),
                _ => continue,
            }
            next[thread] += 1;
        }
        planned = planned.or(simulation.is_planned().then_some(step));
    }
    assert!(planned.is_some_and(|step| step <= 12), "planned at {planned:?}");
    assert_eq!((simulation.machine.plans, simulation.figures.fallback.bytes), (1, 0));
    assert_eq!(simulation.machine.plan.as_ref().map(|plan| plan.profiles[0].lanes.len()), Some(4));
}

#[test]
fn a_program_that_changes_is_recorded_again_while_the_old_plan_serves() {
    let mut simulation = Simulation::new(marked(0, 1));
    let run = |simulation: &mut Simulation, sizes: &[u64], steps: u32| {
        for _ in 0..steps {
            simulation.mark(false);
            assert!(simulation.serving || simulation.machine.plans == 0);
            simulation.step_of(sizes);
        }
    };
    run(&mut simulation, &sizes(20, 3), 12);
    assert_eq!(simulation.machine.plans, 1);
    run(&mut simulation, &sizes(25, 11), MISSED_STEPS - 1);
    simulation.mark(false);
    assert_eq!(simulation.watch, Watch::Nothing, "some steps that miss are no change");
    run(&mut simulation, &sizes(25, 11), 12);
    assert_eq!((simulation.machine.plans, simulation.figures.fallback.bytes), (2, 0));
}

#[test]
fn steps_that_do_not_repeat_get_no_plan_and_are_asked_ever_more_rarely() {
    let mut simulation = Simulation::new(Settings { max_steps: 20, ..marked(0, 2) });
    // A table of which each step replaces most: other sizes, that live on into steps to come.
    let mut table = [0u64; 200];
    let mut state = 1;
    for _ in 0..200 {
        simulation.mark(false);
        for (at, bytes) in table.iter_mut().enumerate() {
            if !random(&mut state).is_multiple_of(4) {
                simulation.free(1 + at, *bytes as usize);
                *bytes = (40 << 10) + random(&mut state) % (4 << 20);
                simulation.allocate(1 + at, *bytes, 1);
            }
        }
    }
    let machine = &simulation.machine;
    assert!(!simulation.is_planned());
    assert!((1..=3).contains(&machine.refused_plans), "{} refused", machine.refused_plans);
}

/// xorshift64 (Marsaglia 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn concurrent_steps_are_not_recorded() {
    let mut simulation = Simulation::new(marked(u64::from(CONCURRENT), 1));
    let sizes = sizes(20, 3);
    for _ in 0..2 * CONCURRENT {
        simulation.mark(true);
        simulation.step_of(&sizes);
    }
    assert!(!simulation.is_planned());
    for _ in 0..3 * CONCURRENT {
        simulation.mark(false);
        simulation.step_of(&sizes);
    }
    assert!(simulation.is_planned(), "they are, once they run one after the other");
}

#[test]
fn a_plan_that_presses_on_the_peak_is_left_and_its_arena_retired() {
    let mut simulation = Simulation::new(marked(0, 1));
    for _ in 0..10 {
        simulation.mark(false);
        simulation.step_of(&sizes(20, 3));
    }
    for _ in 0..100 {
        simulation.pressures += 1;
        (0..17).for_each(|_| simulation.mark(false));
        assert!(simulation.is_planned(), "now and then it may");
    }
    for _ in 0..PRESSED_STEPS {
        assert!(simulation.is_planned());
        simulation.pressures += 1;
        simulation.mark(false);
    }
    assert!(!simulation.is_planned() && !simulation.serving);
    assert_eq!(simulation.machine.refused_plans, 1);
    assert_eq!(simulation.machine.patience.until, REJECTED_GROWTH * simulation.machine.running());
    let retired = simulation.retired;
    (0..2 * RETIRING).for_each(|_| simulation.mark(false));
    assert_eq!((retired, simulation.retired), (1, 1 + u32::from(RETIRING)));
}

#[test]
fn where_there_is_no_memory_nothing_changes_and_it_is_tried_again() {
    let mut simulation = Simulation::new(marked(0, 1));
    simulation.no_memory = true;
    for _ in 0..PATIENCE {
        simulation.mark(false);
        simulation.step_of(&sizes(20, 3));
    }
    assert_eq!((simulation.machine.failed_plans, simulation.machine.phase()), (1, Phase::Waiting));
    simulation.no_memory = false;
    for _ in 0..2 * PATIENCE {
        simulation.mark(false);
        simulation.step_of(&sizes(20, 3));
    }
    assert!(simulation.is_planned());
}

#[test]
fn a_forked_child_goes_on_with_the_plan_and_counts_anew() {
    let mut simulation = Simulation::new(marked(0, 1));
    for _ in 0..10 {
        simulation.mark(false);
        simulation.step_of(&sizes(20, 3));
    }
    simulation.machine = Machine::new(marked(0, 1));
    simulation.happen(Event::Forked { serving: true }, None);
    assert!(simulation.serving && simulation.is_planned());
    assert_eq!((simulation.machine.steps, simulation.machine.plans), (0, 1));
    simulation.happen(Event::Disabled, None);
    assert!(!simulation.serving && simulation.watch == Watch::Nothing);
}

#[test]
fn detected_steps_are_planned_and_left_for_others() {
    let mut simulation = Simulation::new(Settings::DEFAULT);
    for _ in 0..12 {
        simulation.step_of(&sizes(60, 3));
    }
    assert!(simulation.is_planned() && !simulation.machine.marked);
    for _ in 0..200 {
        simulation.step_of(&sizes(75, 11));
    }
    assert_eq!(simulation.machine.plans, 2);
    let missed = simulation.figures.fallback.bytes;
    (0..10).for_each(|_| simulation.step_of(&sizes(75, 11)));
    assert_eq!(simulation.figures.fallback.bytes, missed);
}

#[test]
fn what_has_no_period_or_takes_little_is_not_recorded() {
    let mut simulation = Simulation::new(Settings::DEFAULT);
    let mut state = 1u64;
    for at in 0..100_000 {
        simulation.allocate(1 + at % 100, (40 << 10) + random(&mut state) % (1 << 20), 1);
        assert!(matches!(simulation.watch, Watch::Sizes));
    }
    let mut simulation = Simulation::new(Settings::DEFAULT);
    for _ in 0..1000 {
        simulation.step_of(&[40 << 10, 50 << 10, 60 << 10, 33 << 10]);
        assert!(matches!(simulation.watch, Watch::Sizes));
    }
}

#[test]
fn marks_win_over_what_was_detected() {
    let mut simulation = Simulation::new(marked(0, 1));
    for _ in 0..12 {
        simulation.step_of(&sizes(60, 3));
    }
    assert!(simulation.is_planned());
    for _ in 0..12 {
        simulation.mark(false);
        simulation.step_of(&sizes(60, 3));
    }
    let machine = &simulation.machine;
    assert!(simulation.is_planned() && machine.marked && machine.steps == 12);
    assert_eq!((machine.plans, simulation.figures.fallback.bytes), (1, 0));
}
