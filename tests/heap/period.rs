//! Detected steps: found in recorded traces, not found in programs without a period, planned anew when the
//! program changes.

use crate::process::{self, AT_ONCE};
use crate::shadow::{Block, Random};
use crate::{scaled, test_name};
use std::alloc::{Layout, alloc, dealloc};
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stepalloc::Phase;
use stepalloc_planner::{Event, Trace, trace};

/// Names the trace that a child replays.
const TRACE: &str = "STEPALLOC_TEST_TRACE";
/// Steps replayed of each trace: it is gone through again and again.
const REPLAYED: usize = 240;
/// A step's time: planning beside the program takes some, too.
const STEP: Duration = Duration::from_millis(5);
/// Steps within which a period must be planned: 27 of the 8 allocations of the smallest one, and what may
/// pass while a plan is looked for.
const PLANNED_WITHIN: usize = 96;

/// `L` lines, and `S` lines but for counting, are not looked at.
#[test]
fn the_steps_of_recorded_programs_are_found_without_their_marks() {
    let name = test_name!(the_steps_of_recorded_programs_are_found_without_their_marks);
    if process::is_child(name) {
        let path = env::var(TRACE).expect("a path");
        return replay(&trace::read(path).expect("a trace"));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: no traces in {}", folder.display());
        return;
    };
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file of the directory").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    assert!(!paths.is_empty(), "no traces in {}", folder.display());
    paths.sort();
    for path in paths {
        process::run(name, &[AT_ONCE, (TRACE, path.to_str().expect("a readable name"))]);
    }
}

/// Replays the steps without marking them, and compares what was found with where they were marked.
fn replay(trace: &Trace) {
    let blocks =
        1 + trace.steps.iter().flat_map(|step| &step.events).map(block).max().expect("events") as usize;
    let mut live: Vec<Option<(*mut u8, Layout)>> = vec![None; blocks];
    let mut found = Vec::with_capacity(REPLAYED);
    let mut planned = None;
    let mut steps = trace.steps.iter();
    while found.len() < REPLAYED {
        let Some(step) = steps.next() else {
            // From the second step on again: the first one is the program's warm-up.
            live.iter_mut().for_each(|block| free(block.take()));
            steps = trace.steps[2..].iter();
            continue;
        };
        for event in &step.events {
            match *event {
                Event::Allocate { block, size, align, .. } => {
                    let layout =
                        Layout::from_size_align(size as usize, align as usize).expect("a recorded size");
                    // SAFETY: recorded sizes are not 0.
                    let address = unsafe { alloc(layout) };
                    assert!(!address.is_null());
                    free(live[block as usize].replace((address, layout)));
                }
                Event::Free { block } => free(live[block as usize].take()),
            }
        }
        // As long as steps take at least.
        std::thread::sleep(STEP);
        let statistics = stepalloc::statistics();
        // The first plan may be that of layers within the step; the last one is looked at.
        if planned.is_none_or(|(_, plans)| plans < statistics.plans) && statistics.phase == Phase::Planned {
            planned = Some((found.len(), statistics.plans));
        }
        found.push(statistics.steps);
    }
    let (planned, _) = planned.unwrap_or_else(|| panic!("{}: no plan in {REPLAYED} steps", trace.name));
    // Where steps of several sizes take turns, one boundary stands for all of them.
    let turns: Vec<u64> = found.windows(2).map(|pair| pair[1] - pair[0]).skip(planned + 1).collect();
    let each = *turns.iter().max().expect("steps after the plan");
    let windows = turns.windows(each.max(1) as usize);
    let (all, right) = (windows.len(), windows.filter(|turns| turns.iter().sum::<u64>() == each).count());
    let statistics = stepalloc::statistics();
    let last = statistics.last_steps;
    println!(
        "figures: {} period={:?} planned_at={planned} steps_at_once={each} right={right} of={all} plans={} gap_per_mille={} \
         fallback_per_mille={}",
        trace.name,
        statistics.period_allocations,
        statistics.plans,
        last.gap_bytes * 1000 / last.planned_bytes.max(1),
        last.fallback_bytes * 1000 / (last.planned_bytes + last.fallback_bytes).max(1),
    );
    assert!(!statistics.marked && each > 0);
    assert!(right * 100 >= all * 99, "{}: {right} of {all} steps: {turns:?}", trace.name);
    assert!(planned <= PLANNED_WITHIN * each as usize, "{}: planned in step {planned}", trace.name);
}

fn block(event: &Event) -> u32 {
    match *event {
        Event::Allocate { block, .. } | Event::Free { block } => block,
    }
}

fn free(block: Option<(*mut u8, Layout)>) {
    if let Some((address, layout)) = block {
        // SAFETY: allocated with this layout, and taken from where it was.
        unsafe { dealloc(address, layout) };
    }
}

/// Layers of a step here.
const LAYERS: usize = 16;

/// A step of some layers, each of which keeps a block for the way back. Blocks grow with the `length` of what is worked on,
/// in parts of 40, but for one.
fn step(length: usize, noise: &mut impl FnMut() -> usize) -> Result<(), String> {
    let block = |bytes: usize, align| Block::new(bytes * length / 40, align, false);
    let input = block(40_000, 1)?;
    let mut kept = Vec::with_capacity(LAYERS);
    for layer in 0..LAYERS {
        let scratch = block(90_000 + noise(), 1)?;
        kept.push(block(50_000 + 4_000 * layer, 64)?);
        scratch.free()?;
    }
    let output = Block::new(70_000, 1, true)?;
    while let Some(kept) = kept.pop() {
        let gradient = block(64_000 + noise(), 1)?;
        kept.free()?;
        gradient.free()?;
    }
    output.free()?;
    input.free()
}

/// Hundreds of rounds, as many as `least` at least, until plans serve: where the processors are busy, the thread that plans comes late.
fn rounds_until_served(least: usize, mut round: impl FnMut(usize)) {
    for hundred in (0..2400).step_by(100) {
        if hundred >= least && is_served() {
            return;
        }
        (hundred..hundred + 100).for_each(&mut round);
    }
}

/// Whether the newest of the last steps found all it asked for in the arena, and nearly all in its slots.
fn is_served() -> bool {
    let last = stepalloc::statistics().last_steps;
    last.fallback_bytes == 0 && last.gap_bytes * 50 <= last.planned_bytes
}

#[test]
fn a_program_that_changes_is_planned_anew_and_nothing_grows() {
    let name = test_name!(a_program_that_changes_is_planned_anew_and_nothing_grows);
    process::scenario(name, &[AT_ONCE], || {
        let mut resident = Vec::new();
        for change in 0..40usize {
            // No two in a row alike, the first as long as any.
            let length = 81 - change * 7 % 41;
            let mut plans = Vec::new();
            for _ in 0..50 {
                step(length, &mut || 0).expect("blocks as they were");
                std::thread::sleep(STEP);
                plans.push(stepalloc::statistics().plans);
            }
            let before = if change == 0 { 0 } else { plans[0] };
            let after = plans.iter().position(|&plans| plans > before);
            assert!(after.is_some_and(|after| after < 30), "change {change}: {plans:?}");
            resident.push(stepalloc::statistics().vm_rss_bytes);
        }
        let (early, late) = (resident[9], resident[39]);
        let statistics = stepalloc::statistics();
        println!(
            "figures: resident_early={early} resident_late={late} plans={} kinds={}",
            statistics.plans, statistics.kinds
        );
        // Thirty plans later. What plans are made with is freed, and lies between what others have in glibc's heaps: up to 2.2 % were
        // seen, in jumps that become fewer. A page left behind by each of 1,500 steps would be more than a third.
        assert!(late <= early + early / 25, "{resident:?}");
        assert!(statistics.kinds <= 8, "as many as are kept");
    });
}

#[test]
fn a_process_that_has_hardly_run_is_left_alone() {
    let name = test_name!(a_process_that_has_hardly_run_is_left_alone);
    process::scenario(name, &[], || {
        let cpu_ms = || {
            // SAFETY: the kernel fills the structure; zeros are a valid value before that.
            let usage = unsafe {
                let mut usage = std::mem::zeroed::<libc::rusage>();
                assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
                usage
            };
            let ms = |time: libc::timeval| time.tv_sec * 1000 + time.tv_usec / 1000;
            ms(usage.ru_utime) + ms(usage.ru_stime)
        };
        let mut steps = 0;
        while cpu_ms() < 200 {
            step(40, &mut || 0).expect("blocks as they were");
            steps += 1;
        }
        assert!(steps > 2 * PLANNED_WITHIN, "{steps} steps");
        assert_eq!(stepalloc::statistics().plans, 0, "{steps} steps in {} ms", cpu_ms());
        while stepalloc::statistics().plans == 0 {
            step(40, &mut || 0).expect("blocks as they were");
            assert!(cpu_ms() < 20_000, "nothing is planned");
        }
    });
}

#[test]
fn step_variants_that_come_again_have_their_plans() {
    let name = test_name!(step_variants_that_come_again_have_their_plans);
    process::scenario(name, &[AT_ONCE], || {
        let lengths = [40, 80, 56, 120];
        let mut plans = Vec::new();
        for change in 0..40 {
            for _ in 0..50 {
                step(lengths[change % 4], &mut || 0).expect("blocks as they were");
                std::thread::sleep(STEP / 5);
            }
            plans.push(stepalloc::statistics().plans);
        }
        let statistics = stepalloc::statistics();
        assert!(plans[11] <= 8 && statistics.plans == plans[11], "none is planned again: {plans:?}");
        assert_eq!(statistics.kinds, 4);
        assert!(is_served(), "{:?}", statistics.last_steps);
        // From one step to the next.
        rounds_until_served(300, |round| step(lengths[round % 4], &mut || 0).expect("blocks as they were"));
        assert!(is_served(), "{:?}", stepalloc::statistics().last_steps);
    });
}

#[test]
fn steps_of_several_lengths_at_random_find_their_slots() {
    for marked in [false, true] {
        let name = test_name!(steps_of_several_lengths_at_random_find_their_slots);
        let settings = [
            ("START_STATISTIC_STEP", "5"),
            ("STABLE_STATISTIC_STEP", if marked { "20" } else { "0" }),
            ("STEPALLOC_TEST_MARKED", if marked { "1" } else { "0" }),
        ];
        process::scenario(name, &settings, || {
            let marked = env::var("STEPALLOC_TEST_MARKED").is_ok_and(|value| value == "1");
            let mut random = Random::new(11);
            rounds_until_served(400, |_| {
                if marked {
                    stepalloc::boundary();
                }
                let length = [40, 80, 56, 120, 160][random.below(5)];
                step(length, &mut || 0).expect("blocks as they were");
                std::thread::sleep(STEP);
            });
            let statistics = stepalloc::statistics();
            println!("figures: marked={marked} {}", statistics.to_json());
            assert_eq!((statistics.marked, statistics.kinds), (marked, 5));
            assert!(is_served(), "{:?}", statistics.last_steps);
        });
    }
}

#[test]
fn what_begins_counts_detected_steps() {
    const FIRST: u64 = 50;
    let name = test_name!(what_begins_counts_detected_steps);
    process::scenario(name, &[("START_STATISTIC_STEP", "50")], || {
        let mut planned = None;
        for number in 0..3 * FIRST {
            step(40, &mut || 0).expect("blocks as they were");
            if planned.is_none() && stepalloc::phase() == Phase::Planned {
                planned = Some(number);
            }
        }
        println!("figures: planned_at={planned:?}");
        assert!(planned.is_some_and(|at| (FIRST..=FIRST + 20).contains(&at)), "{planned:?}");
        assert!(is_served(), "{:?}", stepalloc::statistics().last_steps);
    });
}

/// Several micro-batches to an update, and an evaluation after every hundred updates.
#[test]
fn periods_within_periods_are_served() {
    const UPDATES: usize = 500;
    let name = test_name!(periods_within_periods_are_served);
    process::scenario(name, &[AT_ONCE], || {
        for number in 1..=UPDATES {
            for _ in 0..4 {
                step(40, &mut || 0).expect("blocks as they were");
            }
            let update = (0..12).map(|at| Block::new(300_000 + 20_000 * at, 64, false));
            update
                .collect::<Result<Vec<_>, _>>()
                .expect("memory")
                .into_iter()
                .for_each(|block| block.free().expect("as it was"));
            if number % 100 == 0 {
                for _ in 0..3 {
                    step(64, &mut || 0).expect("blocks as they were");
                }
            }
            std::thread::sleep(STEP / 5);
        }
        let statistics = stepalloc::statistics();
        println!("figures: {}", statistics.to_json());
        assert!(is_served(), "{:?}", statistics.last_steps);
        assert!(statistics.plans <= 6, "it settles: {statistics:?}");
    });
}

/// Names the file of plans to the library.
const PLAN: &str = "STEPALLOC_PLAN";

#[test]
fn a_second_run_begins_with_the_plan_of_the_first() {
    let name = test_name!(a_second_run_begins_with_the_plan_of_the_first);
    let marked = || env::var("STEPALLOC_TEST_MARKED").is_ok_and(|value| value == "1");
    if process::is_child(name) {
        let steps: usize = env::var("STEPALLOC_TEST_STEPS").expect("a number").parse().expect("a number");
        let length = env::var("STEPALLOC_TEST_LENGTH").map_or(40, |length| length.parse().expect("a number"));
        // What a program does before its first step.
        for size in 0..30 {
            Block::new(40_000 + 5_000 * size, 1, false).and_then(Block::free).expect("memory");
        }
        for _ in 0..steps {
            if marked() {
                stepalloc::boundary();
            }
            step(length, &mut || 0).expect("blocks as they were");
        }
        println!("figures: {}", stepalloc::statistics().to_json());
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for marked in ["0", "1"] {
        let file = folder.path().join(format!("plan-{marked}"));
        let plan = file.to_str().expect("a readable name");
        let run = |steps: &str, length: &str| {
            let settings = [
                (PLAN, plan),
                ("STEPALLOC_TEST_MARKED", marked),
                ("STEPALLOC_TEST_STEPS", steps),
                ("STEPALLOC_TEST_LENGTH", length),
                ("START_STATISTIC_STEP", "3"),
                ("STABLE_STATISTIC_STEP", "2"),
            ];
            let said = process::run(name, &settings);
            let at = said.out.find("figures: ").expect("figures") + 9;
            let figures = said.out[at..].lines().next().expect("a line").to_owned();
            println!("figures: {figures}");
            (serde_json::from_str::<serde_json::Value>(&figures).expect("JSON"), said.err)
        };
        let (first, _) = run("60", "40");
        assert_eq!((&first["phase"], &first["kept"]), (&"planned".into(), &false.into()));
        let written = std::fs::read(&file).expect("it was written");
        // Three steps only: the first is served from where the plan was recognised on.
        let (second, _) = run("3", "40");
        assert_eq!((&second["phase"], &second["kept"]), (&"planned".into(), &true.into()), "{second}");
        assert_eq!(second["planned_at_step"], u64::from(marked == "1"), "{second}");
        let last = &second["last_steps"];
        assert_eq!((&last["fallback_bytes"], &last["gap_bytes"]), (&0.into(), &0.into()), "{second}");
        assert_eq!(std::fs::read(&file).expect("it is there"), written);
        // Another program: dropped, planned anew and written.
        let (other, _) = run("90", "70");
        assert_eq!((&other["phase"], &other["kept"]), (&"planned".into(), &false.into()), "{other}");
        assert_ne!(std::fs::read(&file).expect("it is there"), written);
        // A damaged one: said, planned anew and written.
        std::fs::write(&file, &written[..written.len() / 2]).expect("to be written");
        let (after, said) = run("60", "40");
        assert_eq!((&after["phase"], &after["kept"]), (&"planned".into(), &false.into()), "{after}");
        assert_eq!(said.matches("damaged").count(), 1, "{said}");
        assert_eq!(std::fs::read(&file).expect("it is there"), written);
        // What is no plan is not touched.
        std::fs::write(&file, "import torch\n").expect("to be written");
        let (_, said) = run("60", "40");
        assert_eq!(said.matches("not a file of plans").count(), 1, "{said}");
        assert_eq!(std::fs::read(&file).expect("it is there"), b"import torch\n");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing else is left");
}

/// While a plan is about to serve, glibc maps blocks from 128 KiB on one by one: not for ever, and not in a forked child.
#[test]
fn memory_is_kept_again_where_the_plan_does_not_come() {
    let name = test_name!(memory_is_kept_again_where_the_plan_does_not_come);
    let is_mapped = || {
        // SAFETY: malloc's contract; mallinfo2 has no conditions.
        unsafe {
            let mapped = || libc::mallinfo2().hblks;
            let before = mapped();
            let block = std::hint::black_box(libc::malloc(10 << 20));
            let is_mapped = mapped() > before;
            libc::free(block);
            is_mapped
        }
    };
    if process::is_child(name) {
        let steps: usize = env::var("STEPALLOC_TEST_STEPS").expect("a number").parse().expect("a number");
        for _ in 0..steps {
            step(40, &mut || 0).expect("blocks as they were");
        }
        if steps > 0 {
            return;
        }
        // Freed, it would lead glibc to take such blocks from its heap from then on.
        let large = |bytes| drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes)));
        (0..30).for_each(|size| large(40_000 + 5_000 * size));
        large(20 << 20);
        assert!(is_mapped(), "the plan may come");
        // SAFETY: the child calls malloc, which fork keeps usable, and ends at once.
        let status = unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(is_mapped())),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status
                }
            }
        };
        assert_eq!(status, 0, "the child has no plan to wait for");
        std::thread::sleep(Duration::from_secs(8));
        assert!(!is_mapped(), "the plan has not come");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan");
    for steps in ["60", "0"] {
        let settings = [
            AT_ONCE,
            (PLAN, file.to_str().expect("a readable name")),
            ("STEPALLOC_BACKEND", "glibc"),
            ("STEPALLOC_TEST_STEPS", steps),
        ];
        process::run(name, &settings);
    }
}

#[test]
fn lengths_that_never_come_again_find_gaps() {
    let name = test_name!(lengths_that_never_come_again_find_gaps);
    process::scenario(name, &[AT_ONCE], || {
        let mut random = Random::new(12);
        for _ in 0..400 {
            step(40 + random.below(400), &mut || 0).expect("blocks as they were");
        }
        let statistics = stepalloc::statistics();
        let last = statistics.last_steps;
        println!("figures: {}", statistics.to_json());
        assert_eq!(statistics.phase, Phase::Planned);
        assert!(last.fallback_bytes * 10 <= last.planned_bytes, "{last:?}");
    });
}

#[test]
fn sizes_that_follow_the_data_find_their_slots() {
    let name = test_name!(sizes_that_follow_the_data_find_their_slots);
    process::scenario(name, &[AT_ONCE], || {
        let mut random = Random::new(7);
        for _ in 0..120 {
            step(40, &mut || 64 * random.below(16)).expect("blocks as they were");
        }
        let statistics = stepalloc::statistics();
        let last = statistics.last_steps;
        assert_eq!(statistics.phase, Phase::Planned);
        assert!(last.count >= 20 && last.fallback_bytes == 0, "{last:?}");
        assert!(last.gap_bytes * 50 <= last.planned_bytes, "{last:?}");
    });
}

#[test]
fn a_block_that_grows_beyond_the_plan_is_left_to_the_backend() {
    let name = test_name!(a_block_that_grows_beyond_the_plan_is_left_to_the_backend);
    process::scenario(name, &[AT_ONCE], || {
        for _ in 0..60 {
            step(40, &mut || 0).expect("blocks as they were");
        }
        assert_eq!(stepalloc::phase(), Phase::Planned);
        // Gaps would hold it for a while, but each of them would have to be copied to.
        let mut grown = Block::new(1000, 1, false).expect("memory");
        for size in (1..20).map(|times| times * 33_333) {
            grown.resize(size).expect("as it was");
            assert!(!grown.is_in_arena(), "{size} bytes");
        }
        grown.free().expect("as it was");
    });
}

#[test]
fn what_has_no_period_is_left_alone() {
    let name = test_name!(what_has_no_period_is_left_alone);
    process::scenario(name, &[AT_ONCE], || {
        let mut random = Random::new(3);
        for turn in 0..scaled(100_000) {
            // Sizes at random, then one size all the time.
            let size = if turn % 2000 < 1000 { 33_000 + random.below(60_000) } else { 65_536 };
            let block = Block::new(size, 1, false).expect("memory");
            block.free().expect("as it was");
        }
        let statistics = stepalloc::statistics();
        assert_eq!((statistics.phase, statistics.arena_bytes), (Phase::Waiting, 0));
        assert_eq!((statistics.steps, statistics.period_allocations), (0, None));
    });
}

#[test]
fn what_repeats_but_takes_little_is_left_alone() {
    let name = test_name!(what_repeats_but_takes_little_is_left_alone);
    // A buffer compressed after another, as git does; and a long step of blocks that live one at a time.
    for long in ["0", "1"] {
        process::scenario(name, &[AT_ONCE, ("STEPALLOC_TEST_LONG", long)], || {
            let long = env::var("STEPALLOC_TEST_LONG").is_ok_and(|value| value == "1");
            let block = |size: usize| Block::new(size, 1, false).expect("memory");
            for turn in 0..scaled(60_000) {
                if long {
                    block(33_000 + turn as usize % 100 * 7919 % 100 * 1000).free().expect("as it was");
                    continue;
                }
                let alive: Vec<Block> = [49_152, 65_536, 65_536, 65_536, 65_536].map(block).into();
                block(40_000).free().expect("as it was");
                alive.into_iter().for_each(|block| block.free().expect("as it was"));
            }
            let statistics = stepalloc::statistics();
            assert_eq!((statistics.plans, statistics.arena_bytes), (0, 0));
        });
    }
}

#[test]
fn marks_win_over_what_was_found() {
    let name = test_name!(marks_win_over_what_was_found);
    let settings = [("START_STATISTIC_STEP", "5"), ("STABLE_STATISTIC_STEP", "3")];
    process::scenario(name, &settings, || {
        for _ in 0..60 {
            step(40, &mut || 0).expect("blocks as they were");
        }
        let found = stepalloc::statistics();
        assert_eq!((found.phase, found.marked, found.plans), (Phase::Planned, false, 1));
        for _ in 0..200 {
            stepalloc::boundary();
            step(70, &mut || 0).expect("blocks as they were");
        }
        let marked = stepalloc::statistics();
        assert_eq!((marked.marked, marked.steps, marked.plans), (true, 200, 2));
        assert_eq!(marked.last_steps.fallback_allocations, 0);
    });
}

#[test]
fn threads_that_mark_nothing_lose_nothing() {
    let name = test_name!(threads_that_mark_nothing_lose_nothing);
    process::scenario(name, &[AT_ONCE], || {
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let mut random = Random::new(number);
                    for round in 0..scaled(2_000) {
                        let length = 40 + round as usize / 300;
                        let odd = if number % 2 == 0 { 64 * random.below(40) } else { 0 };
                        step(length, &mut || odd).expect("blocks as they were");
                    }
                });
            }
        });
        assert_eq!(stepalloc::statistics().arena_occupied_bytes, 0, "no block is alive");
    });
}
