//! The large heap: blocks of at least 32 KiB that no plan serves.

use crate::limits::in_fork;
use crate::one_size::minor_faults;
use crate::process::{self, scenario};
use crate::scaled;
use crate::shadow::{Block, LARGEST, Random, disjoint};
use crate::test_name;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stepalloc::{Statistics, route, statistics};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn is_extent(block: &Block) -> bool {
    route::owns(block.start()) && !route::in_arena(block.start())
}

fn free(block: Block) {
    block.free().expect("as it was");
}

/// A size from 32 KiB to the largest, of all magnitudes alike.
fn size(random: &mut Random) -> usize {
    let magnitude = random.below(1 << 20) as f64 / f64::from(1 << 20);
    ((32 * KIB) as f64 * (LARGEST as f64 / (32 * KIB) as f64).powf(magnitude)) as usize
}

/// KiB of `/proc/self/status`.
fn kibibytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
    let line = status.lines().find(|line| line.starts_with(field)).expect("a field of it");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn it_serves_large_blocks_from_the_first_on_unless_it_is_switched_off() {
    let name = test_name!(it_serves_large_blocks_from_the_first_on_unless_it_is_switched_off);
    let off: [&[(&str, &str)]; 2] =
        [&[("STEPALLOC_LARGE", "backend")], &[("ENABLE_MEMORY_OPTIMIZATION", "0")]];
    let bounded: &[(&str, &str)] = &[("STEPALLOC_MIN_BYTES", "1000000")];
    if process::is_child(name) {
        let sizes = [31 * KIB, 32 * KIB, MIB, LARGEST];
        let served = sizes.map(|size| {
            let block = Block::new(size, 16, false).expect("memory");
            let is_extent = is_extent(&block);
            free(block);
            is_extent
        });
        println!("figures: served={}", served.iter().rev().fold(0, |bits, &one| 10 * bits + u64::from(one)));
        return;
    }
    let served = |settings: &[(&str, &str)]| process::run(name, settings).figure("served");
    assert_eq!(served(&[]), 1110);
    assert_eq!(served(bounded), 1100);
    assert_eq!(off.map(served), [0, 0]);
}

#[test]
fn blocks_are_apart_aligned_and_keep_their_bytes() {
    for backend in ["glibc", "jemalloc", "mimalloc"] {
        let settings = [("STEPALLOC_BACKEND", backend)];
        scenario(test_name!(blocks_are_apart_aligned_and_keep_their_bytes), &settings, || {
            let mut random = Random::new(11);
            let mut blocks: Vec<Block> = Vec::new();
            for turn in 0..scaled(6_000) {
                let align = 1 << random.below(23);
                match random.below(8) {
                    0..3 if !blocks.is_empty() => free(blocks.swap_remove(random.below(blocks.len()))),
                    3 if !blocks.is_empty() => {
                        let at = random.below(blocks.len());
                        blocks[at].resize(size(&mut random)).expect("as it was");
                    }
                    _ if blocks.len() < 60 => {
                        let zeroed = random.below(3) == 0;
                        blocks.push(Block::new(size(&mut random), align, zeroed).expect("a sound block"));
                    }
                    _ => free(blocks.swap_remove(random.below(blocks.len()))),
                }
                if turn % 64 == 0 {
                    disjoint(blocks.iter()).expect("live blocks");
                    route::give_back_extents();
                }
            }
            let held = |statistics: &Statistics| (statistics.heap_bytes, statistics.heap_resident_bytes);
            let (alive, resident) = held(&statistics());
            assert!(alive > 0 && resident >= alive, "{:?}", statistics());
            blocks.into_iter().for_each(free);
            stepalloc::release();
            let (alive, resident) = held(&statistics());
            assert!(resident < alive + MIB as u64, "all free pages went back: {:?}", statistics());
        });
    }
}

#[test]
fn threads_free_what_others_allocate_while_pages_go_back() {
    const THREADS: usize = 8;
    scenario(test_name!(threads_free_what_others_allocate_while_pages_go_back), &[], || {
        let tables: Vec<Mutex<Vec<Block>>> = (0..THREADS).map(|_| Mutex::new(Vec::new())).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    stepalloc::release();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let tables = &tables;
                    scope.spawn(move || {
                        let mut random = Random::new(number as u64);
                        for turn in 0..scaled(2_000) as usize {
                            let size = 32 * KIB + random.below(300 * KIB);
                            let block = Block::new(size, 64, turn % 5 == 0).expect("a sound block");
                            let mut table =
                                tables[(number + turn) % THREADS].lock().expect("no thread panicked");
                            table.push(block);
                            if table.len() > 20 {
                                free(table.swap_remove(random.below(20)));
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().expect("no thread panicked"));
            done.store(true, Relaxed);
        });
        for table in tables {
            table.into_inner().expect("no thread panicked").into_iter().for_each(free);
        }
    });
}

#[test]
fn children_forked_amid_the_work_of_threads_go_on() {
    scenario(test_name!(children_forked_amid_the_work_of_threads_go_on), &[], || {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random::new(number);
                    while !done.load(Relaxed) {
                        free(Block::new(size(&mut random), 16, false).expect("a sound block"));
                    }
                });
            }
            for _ in 0..scaled(100).max(5) {
                let kept = Block::new(MIB, 16, false).expect("memory");
                let child = in_fork(|| {
                    let mut random = Random::new(5);
                    kept.check()?;
                    for _ in 0..20 {
                        let mut block = Block::new(size(&mut random), 16, true)?;
                        if !is_extent(&block) {
                            return Err(format!("{block} is not of the heap"));
                        }
                        block.resize(size(&mut random))?;
                        block.free()?;
                    }
                    Ok(())
                });
                child.expect("a child that goes on");
                free(kept);
            }
            done.store(true, Relaxed);
        });
    });
}

#[test]
fn untouched_memory_of_a_zeroed_block_stays_untouched() {
    const BYTES: usize = 256 * MIB;
    scenario(test_name!(untouched_memory_of_a_zeroed_block_stays_untouched), &[], || {
        let layout = Layout::from_size_align(BYTES, 16).expect("a layout");
        let before = kibibytes("VmHWM");
        for round in 0..20 {
            // What is large and used goes through the same pages.
            let dense = Block::new(LARGEST, 16, round % 2 == 0).expect("a sound block");
            // SAFETY: not 0 bytes, written within, freed with its layout.
            unsafe {
                let block = alloc_zeroed(layout);
                assert!(!block.is_null());
                for at in (0..BYTES).step_by(BYTES / 64) {
                    assert_eq!(block.add(at + round).read(), 0);
                    block.add(at + round).write_volatile(7);
                }
                dealloc(block, layout);
            }
            free(dense);
        }
        let risen = kibibytes("VmHWM") - before;
        assert!(risen < 20 << 10, "{risen} KiB for 64 bytes of each");
    });
}

#[test]
fn a_block_that_grows_is_neither_copied_nor_held_twice() {
    const LAST: usize = 256 * MIB;
    scenario(test_name!(a_block_that_grows_is_neither_copied_nor_held_twice), &[], || {
        let before = kibibytes("VmHWM");
        let align = 16;
        let layout = |size| Layout::from_size_align(size, align).expect("a layout");
        let mut neighbours = Vec::new();
        // SAFETY: each realloc has the block's own layout; reads and writes lie within it.
        unsafe {
            let mut size = 4 * KIB;
            let mut block = alloc(layout(size));
            let mut filled = 0;
            while size < LAST {
                for at in (filled..size).step_by(KIB) {
                    block.add(at).cast::<usize>().write(at);
                }
                filled = size;
                // Somebody is behind it now and then, so that it has to move.
                if size < 64 * MIB {
                    neighbours.push(Block::new(40 * KIB, 16, false).expect("memory"));
                }
                block = realloc(block, layout(size), 2 * size);
                assert!(!block.is_null());
                size *= 2;
            }
            assert!((0..filled).step_by(KIB).all(|at| block.add(at).cast::<usize>().read() == at));
            block = realloc(block, layout(size), 64 * KIB);
            assert!((0..64 * KIB).step_by(KIB).all(|at| block.add(at).cast::<usize>().read() == at));
            dealloc(block, layout(64 * KIB));
        }
        neighbours.into_iter().for_each(free);
        let risen = (kibibytes("VmHWM") - before) / KIB as u64;
        assert!(risen < (LAST / 2 / MIB) as u64 + 16, "{risen} MiB for {} written", LAST / 2 / MIB);
    });
}

#[test]
fn what_one_peak_leaves_goes_back_when_nothing_is_asked_for() {
    let settings = [("STEPALLOC_IDLE", "1")];
    scenario(test_name!(what_one_peak_leaves_goes_back_when_nothing_is_asked_for), &settings, || {
        let before = kibibytes("VmRSS");
        let blocks: Vec<_> = (0..60).map(|_| Block::new(LARGEST, 64, false).expect("memory")).collect();
        blocks.into_iter().for_each(free);
        let began = Instant::now();
        // The pages are gone a little before that is counted.
        while kibibytes("VmRSS") > before + (16 << 10) || statistics().idle_releases == 0 {
            assert!(began.elapsed().as_secs() < 20, "{:?}", statistics());
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn what_is_freed_long_after_the_last_request_goes_back_too() {
    let settings = [("STEPALLOC_IDLE", "1")];
    scenario(test_name!(what_is_freed_long_after_the_last_request_goes_back_too), &settings, || {
        let before = kibibytes("VmRSS");
        let blocks: Vec<_> = (0..60).map(|_| Block::new(LARGEST, 64, false).expect("memory")).collect();
        // What is alive needs nobody: the process has no thread more.
        std::thread::sleep(Duration::from_millis(1500));
        let is_ours = |task: std::io::Result<std::fs::DirEntry>| {
            let name = std::fs::read_to_string(task.expect("a task").path().join("comm"));
            name.expect("its name").trim() == "stepalloc"
        };
        assert!(!std::fs::read_dir("/proc/self/task").expect("tasks").any(is_ours));
        blocks.into_iter().for_each(free);
        let began = Instant::now();
        while kibibytes("VmRSS") > before + (16 << 10) {
            assert!(began.elapsed().as_secs() < 20, "{:?}", statistics());
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_least_size_that_is_raised_later_leaves_no_block_to_the_backend() {
    let settings = [("START_STATISTIC_STEP", "3"), ("STABLE_STATISTIC_STEP", "2")];
    scenario(test_name!(a_least_size_that_is_raised_later_leaves_no_block_to_the_backend), &settings, || {
        let block = Block::new(100 * KIB, 16, false).expect("memory");
        assert!(is_extent(&block));
        // SAFETY: no other thread reads the environment.
        unsafe { std::env::set_var("STEPALLOC_MIN_BYTES", "1000000") };
        stepalloc::boundary();
        free(block);
        // Nor two of them to one entry of the arena's table.
        for _ in 0..20 {
            stepalloc::boundary();
            let blocks: Vec<_> =
                (0..40).map(|at| Block::new((64 + at) * KIB, 16, true).expect("memory")).collect();
            blocks.into_iter().for_each(free);
        }
        assert_eq!(stepalloc::phase(), stepalloc::Phase::Planned);
    });
}

/// The handlers below are to do something.
static HANDLES_FORK: AtomicBool = AtomicBool::new(false);

/// A handler of fork that takes a large block, and has it at once.
unsafe extern "C" fn allocate_at_fork() {
    if HANDLES_FORK.load(Relaxed) {
        let began = Instant::now();
        free(Block::new(MIB, 16, false).expect("memory"));
        assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
    }
}

extern "C" fn register() {
    // SAFETY: the handlers are of this image.
    unsafe { libc::pthread_atfork(Some(allocate_at_fork), Some(allocate_at_fork), Some(allocate_at_fork)) };
}

/// Before the first block, with which the heap registers its own: these run between them.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

#[test]
fn handlers_of_fork_may_allocate() {
    scenario(test_name!(handlers_of_fork_may_allocate), &[], || {
        free(Block::new(MIB, 16, false).expect("memory"));
        HANDLES_FORK.store(true, Relaxed);
        for _ in 0..3 {
            in_fork(|| {
                HANDLES_FORK.store(false, Relaxed);
                let block = Block::new(MIB, 16, false)?;
                if is_extent(&block) { block.free() } else { Err(format!("{block} is not of the heap")) }
            })
            .expect("a child that goes on");
        }
    });
}

#[test]
fn random_replacement_takes_little_more_than_is_alive() {
    scenario(test_name!(random_replacement_takes_little_more_than_is_alive), &[], || {
        let mut random = Random::new(3);
        let mut new = || Block::new(size(&mut random), 64, false).expect("memory");
        let mut table: Vec<_> = (0..48).map(|_| new()).collect();
        // The template of the blocks' contents is there now.
        let (before, mut most) = (kibibytes("VmHWM") as usize * KIB, 0);
        let alive = |table: &[Block]| table.iter().map(Block::size).sum::<usize>();
        let first = alive(&table);
        for turn in 0..scaled(4_000) as usize {
            free(std::mem::replace(&mut table[turn * 7 % 48], new()));
            most = most.max(alive(&table));
        }
        let risen = kibibytes("VmHWM") as usize * KIB - before;
        assert!(first + risen < most + most / 5 + 4 * MIB, "{risen} bytes beside {first} for {most} alive");
        table.into_iter().for_each(free);
    });
}

#[test]
fn what_the_backend_keeps_free_goes_back_where_the_heap_grows() {
    scenario(test_name!(what_the_backend_keeps_free_goes_back_where_the_heap_grows), &[], || {
        let mut small: Vec<_> = (0..100 * KIB).map(|at| Some(vec![at as u8; 1000])).collect();
        // One in 256 stays, and the last, so that the backend does not give the others back by itself.
        for kept in small.iter_mut().rev().enumerate().filter(|(at, _)| at % 256 != 0) {
            *kept.1 = None;
        }
        let before = kibibytes("VmHWM");
        let large: Vec<_> = (0..24).map(|_| Block::new(4 * MIB, 16, false).expect("memory")).collect();
        let risen = (kibibytes("VmHWM") - before) / KIB as u64;
        assert!(risen < 48, "{risen} MiB for 96 MiB of large blocks after 100 MiB of small ones");
        large.into_iter().for_each(free);
        black_box(small);
    });
}

#[test]
fn slots_of_a_new_plan_take_over_the_pages_of_the_heap() {
    let settings = [("START_STATISTIC_STEP", "2"), ("STABLE_STATISTIC_STEP", "2")];
    scenario(test_name!(slots_of_a_new_plan_take_over_the_pages_of_the_heap), &settings, || {
        let mut before = None;
        for step in 0..20 {
            // The heap has served two steps, and there is no plan yet.
            if step == 2 {
                before = Some((kibibytes("VmHWM"), minor_faults()));
            }
            stepalloc::boundary();
            let blocks: Vec<_> = (0..10).map(|_| Block::new(4 * MIB, 64, false).expect("memory")).collect();
            blocks.into_iter().for_each(free);
        }
        assert!(statistics().arena_bytes >= 40 * MIB as u64, "{:?}", statistics());
        let (peak, faults) = before.expect("of 20 steps");
        let (risen, faults) = (kibibytes("VmHWM") - peak, minor_faults() - faults);
        assert!(risen < 8 << 10, "an arena of 40 MiB has made the peak rise by {risen} KiB");
        assert!(faults < 2048, "{faults} page faults for an arena of 10,240 pages");
    });
}

#[test]
fn the_arena_gives_way_to_larger_blocks_when_its_steps_are_over() {
    let settings = [("START_STATISTIC_STEP", "2"), ("STABLE_STATISTIC_STEP", "2")];
    scenario(test_name!(the_arena_gives_way_to_larger_blocks_when_its_steps_are_over), &settings, || {
        for _ in 0..20 {
            stepalloc::boundary();
            let blocks: Vec<_> = (0..10).map(|_| Block::new(4 * MIB, 64, false).expect("memory")).collect();
            blocks.into_iter().for_each(free);
        }
        assert!(statistics().arena_bytes >= 40 * MIB as u64, "{:?}", statistics());
        let before = kibibytes("VmHWM");
        let layout = Layout::from_size_align(70 * MIB, 64).expect("a layout");
        // SAFETY: written within, freed with its layout.
        unsafe {
            let block = alloc(layout);
            block.write_bytes(1, layout.size());
            black_box(block);
            dealloc(block, layout);
        }
        let risen = kibibytes("VmHWM") - before;
        assert!(risen < 36 << 10, "{risen} KiB for 70 MiB beside an arena of 40");
    });
}

#[test]
fn a_block_freed_twice_ends_the_process_and_says_why() {
    let name = test_name!(a_block_freed_twice_ends_the_process_and_says_why);
    scenario(name, &[], || {
        let layout = Layout::from_size_align(MIB, 16).expect("a layout");
        // SAFETY: none: the second free is what is tested, in a child that ends with it.
        let child = in_fork(|| unsafe {
            let block = black_box(alloc(layout));
            dealloc(block, layout);
            dealloc(black_box(block), layout);
            Ok(())
        });
        let ended = child.expect_err("the second free is noticed");
        assert_eq!(ended, format!("wait status {:#x}", libc::SIGABRT));
    });
}
