//! Where there is less than a plan wants, and where a process becomes two.

use crate::process::{self, scenario};
use crate::shadow::{Block, disjoint};
use crate::test_name;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stepalloc::Phase;

const MIB: usize = 1 << 20;
const STEPS: [(&str, &str); 3] =
    [("START_STATISTIC_STEP", "3"), ("STABLE_STATISTIC_STEP", "2"), ("MAX_STATISTIC_STEP", "20")];

fn block(size: usize) -> Block {
    Block::new(size, 64, false).expect("memory")
}

#[test]
fn the_arena_stays_within_its_bound_and_the_backend_serves_the_rest() {
    let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_MAX_ARENA", "1000000")]).collect();
    scenario(test_name!(the_arena_stays_within_its_bound_and_the_backend_serves_the_rest), &settings, || {
        let mut arena = 0;
        for _ in 0..30 {
            stepalloc::boundary();
            let blocks: Vec<_> = (0..10).map(|number| block(200_000 + 1_000 * number)).collect();
            disjoint(blocks.iter()).expect("live blocks");
            arena = blocks.iter().filter(|block| block.is_in_arena()).count();
            blocks.into_iter().try_for_each(Block::free).expect("as it was");
        }
        let statistics = stepalloc::statistics();
        assert_eq!(statistics.phase, Phase::Planned);
        assert!(
            statistics.lower_bound_bytes >= 2_000_000 && statistics.arena_bytes <= 1_000_000,
            "{statistics:?}"
        );
        assert!((3..=4).contains(&arena), "{arena} of 10 blocks fit");
        assert_eq!(statistics.planned_blocks as usize, arena, "blocks with a slot");
        assert_eq!(statistics.blocks_beyond_limit as usize, 10 - arena);
    });
}

/// A step of some blocks in the arena; keeps one of them over the step's end.
fn keeping(kept: &mut Option<Block>) {
    stepalloc::boundary();
    let first = block(3_000_000);
    if let Some(kept) = kept.replace(block(1_000_000)) {
        kept.free().expect("as it was");
    }
    let second = block(2_000_000);
    first.free().and_then(|()| second.free()).expect("as it was");
}

#[test]
fn memory_goes_back_on_request_and_comes_again() {
    scenario(test_name!(memory_goes_back_on_request_and_comes_again), &STEPS, || {
        let mut kept = None;
        (0..30).for_each(|_| keeping(&mut kept));
        let before = stepalloc::statistics();
        assert!(before.phase == Phase::Planned && before.arena_occupied_bytes >= 1_000_000, "{before:?}");
        let given = stepalloc::release() as u64;
        let after = stepalloc::statistics();
        let free = before.arena_bytes - before.arena_occupied_bytes;
        // The large heap has free pages too where the kernel does not move them to the arena.
        let heap = before.heap_resident_bytes - before.heap_bytes;
        assert!(given <= free + heap && given + 3 * 4096 >= free, "{given} of {free} bytes");
        assert!(after.vm_rss_bytes + given / 10 * 9 <= before.vm_rss_bytes, "{before:?} {after:?}");
        // The block that lives is as it was: it is checked when it is freed. Plans stay.
        (0..10).for_each(|_| keeping(&mut kept));
        let last = stepalloc::statistics();
        assert_eq!((last.plans, last.arena_bytes), (before.plans, before.arena_bytes));
        assert_eq!(last.last_steps.fallback_allocations + last.last_steps.gap_allocations, 0);
        assert!(last.vm_rss_bytes + given / 10 >= before.vm_rss_bytes);
    });
}

#[test]
fn memory_goes_back_when_nothing_is_asked_for() {
    let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_IDLE", "1")]).collect();
    scenario(test_name!(memory_goes_back_when_nothing_is_asked_for), &settings, || {
        let mut kept = None;
        for round in 1..=2 {
            (0..30).for_each(|_| keeping(&mut kept));
            let before = stepalloc::statistics();
            let started = std::time::Instant::now();
            while stepalloc::statistics().idle_releases < round {
                assert!(started.elapsed().as_secs() < 20, "{:?}", stepalloc::statistics());
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            let after = stepalloc::statistics();
            assert!(after.vm_rss_bytes + 3_000_000 <= before.vm_rss_bytes, "{before:?} {after:?}");
        }
    });
}

#[test]
fn blocks_are_claimed_and_freed_while_memory_goes_back() {
    scenario(test_name!(blocks_are_claimed_and_freed_while_memory_goes_back), &STEPS, || {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    stepalloc::release();
                }
            });
            // Every block is filled, and checked when it is freed.
            let mut kept = None;
            (0..crate::scaled(400)).for_each(|_| keeping(&mut kept));
            done.store(true, Relaxed);
        });
    });
}

#[test]
fn a_populated_arena_has_no_faults_in_its_first_step() {
    let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_POPULATE", "1")]).collect();
    scenario(test_name!(a_populated_arena_has_no_faults_in_its_first_step), &settings, || {
        let mut kept = None;
        while stepalloc::phase() != Phase::Planned {
            keeping(&mut kept);
        }
        // The step in which it was planned, and two to whose beginnings the backend gave back what it kept.
        (0..4).for_each(|_| keeping(&mut kept));
        stepalloc::boundary();
        let statistics = stepalloc::statistics();
        assert!(statistics.arena_bytes >= 4_000_000 && statistics.last_steps.count >= 2);
        assert!(statistics.last_steps.minor_faults_max < 100, "{statistics:?}");
    });
}

/// KiB of the mappings between two addresses: resident, and of those in huge pages.
fn resident(from: usize, to: usize) -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("of this process");
    let (mut within, mut figures) = (false, (0, 0));
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().expect("a line has words");
        if let Some((start, end)) = first.split_once('-') {
            let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).expect("an address"));
            within = start < to && end > from;
        } else if within && matches!(first, "Rss:" | "AnonHugePages:") {
            let figure: u64 = words.next().and_then(|figure| figure.parse().ok()).expect("a figure");
            *(if first == "Rss:" { &mut figures.0 } else { &mut figures.1 }) += figure;
        }
    }
    figures
}

/// Whether this system unites pages when asked to.
fn unites_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let bytes = 4 * MIB;
    // SAFETY: a mapping of our own, all of which is written, and that is undone.
    let united = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().write_bytes(1, bytes);
        let united = libc::madvise(start, bytes, libc::MADV_COLLAPSE) == 0;
        libc::munmap(start, bytes);
        united
    };
    united && !enabled.contains("[never]")
}

/// Steps over some seconds with blocks that are filled and one that is hardly touched; the arena's memory before and after.
fn filled_and_hardly_touched() -> [(u64, u64); 2] {
    let layout = Layout::from_size_align(16 * MIB, 64).expect("a layout");
    let step = || {
        stepalloc::boundary();
        let filled: Vec<_> = (0..4).map(|_| block(4 * MIB)).collect();
        let serves = stepalloc::phase() == Phase::Planned;
        assert!(filled.iter().all(|block| block.is_in_arena() == serves));
        // SAFETY: a block of its size, freed once.
        let memory = unsafe {
            let hardly = alloc_zeroed(layout);
            hardly.write_volatile(1);
            let starts = filled.iter().map(Block::start).chain([hardly.addr()]);
            let ends = filled.iter().map(Block::end).chain([hardly.addr() + layout.size()]);
            let memory = resident(starts.min().unwrap_or(0), ends.max().unwrap_or(0));
            dealloc(hardly, layout);
            memory
        };
        filled.into_iter().try_for_each(Block::free).expect("as it was");
        memory
    };
    while stepalloc::phase() != Phase::Planned {
        step();
    }
    let before = step();
    let started = std::time::Instant::now();
    let mut after = before;
    while started.elapsed().as_secs() < 5 {
        after = step();
    }
    assert_eq!(stepalloc::statistics().idle_releases, 0);
    [before, after]
}

#[test]
fn huge_pages_come_where_the_memory_is_there_and_take_no_more() {
    let name = test_name!(huge_pages_come_where_the_memory_is_there_and_take_no_more);
    scenario(name, &STEPS, || {
        let [before, after] = filled_and_hardly_touched();
        assert!((16 << 10..20 << 10).contains(&before.0) && before.1 == 0, "{before:?}");
        assert_eq!(after.0, before.0);
        // But for the ends of each block, whose pages came from elsewhere: they are a mapping of their own.
        let huge = if unites_pages() { 8 << 10..=16 << 10 } else { 0..=0 };
        assert!(huge.contains(&after.1), "{after:?} KiB");
    });
}

#[test]
fn no_huge_pages_come_where_they_are_not_wanted() {
    let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_HUGEPAGES", "0")]).collect();
    scenario(test_name!(no_huge_pages_come_where_they_are_not_wanted), &settings, || {
        let [_, after] = filled_and_hardly_touched();
        assert_eq!(after.1, 0);
    });
}

#[test]
fn an_arena_bound_of_nothing_leaves_everything_to_the_backend() {
    let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_MAX_ARENA", "0")]).collect();
    scenario(test_name!(an_arena_bound_of_nothing_leaves_everything_to_the_backend), &settings, || {
        for _ in 0..60 {
            stepalloc::boundary();
            let mut block = block(200_000);
            assert!(!block.is_in_arena());
            block.resize(300_000).expect("kept");
            block.free().expect("as it was");
        }
        assert_eq!(stepalloc::statistics().arena_bytes, 0);
    });
}

/// Address space of this process in bytes.
fn address_space() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    pages.split(' ').next().and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

fn limit_address_space(bytes: Option<usize>) {
    let soft = bytes.map_or(libc::RLIM_INFINITY, |bytes| bytes as u64);
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is read only.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// A block too large for the backend's caches: glibc maps it and gives it back, whatever its thresholds have become.
const MAPPED: usize = 64 * MIB;

/// A block of `MAPPED` bytes, of which the first and the last are written.
struct Large(*mut u8);

impl Large {
    const LAYOUT: Layout = Layout::new::<[u8; MAPPED]>();

    fn new() -> Self {
        // SAFETY: not 0 bytes, and the block is checked before it is written.
        unsafe {
            let block = black_box(alloc(Self::LAYOUT));
            assert!(!block.is_null(), "the backend has room");
            block.write(1);
            block.add(MAPPED - 1).write(2);
            Self(block)
        }
    }

    fn is_in_arena(&self) -> bool {
        stepalloc::route::in_arena(self.0 as usize)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        // SAFETY: live, with its layout; the bytes were written by `new`.
        unsafe {
            assert_eq!((self.0.read(), self.0.add(MAPPED - 1).read()), (1, 2));
            dealloc(self.0, Self::LAYOUT);
        }
    }
}

#[test]
fn where_no_arena_can_be_reserved_the_backend_serves_and_a_later_plan_succeeds() {
    let name = test_name!(where_no_arena_can_be_reserved_the_backend_serves_and_a_later_plan_succeeds);
    scenario(name, &STEPS, || {
        // Alive at every boundary, they leave too little then for an arena of their size.
        let mut blocks: Vec<Large> = Vec::with_capacity(4);
        let step = |blocks: &mut Vec<Large>| {
            stepalloc::boundary();
            blocks.clear();
            blocks.extend((0..4).map(|_| Large::new()));
        };
        // Four blocks, the log of 64 MiB, and as much again for everything else.
        limit_address_space(Some(address_space() + 4 * MAPPED + 128 * MIB));
        for _ in 0..80 {
            step(&mut blocks);
        }
        let statistics = stepalloc::statistics();
        let failed = statistics.failed_plans;
        assert!(failed > 0, "{statistics:?}");
        assert_eq!((statistics.plans, statistics.phase, statistics.arena_bytes), (0, Phase::Waiting, 0));
        limit_address_space(None);
        for _ in 0..200 {
            step(&mut blocks);
        }
        let statistics = stepalloc::statistics();
        println!("figures: failed_plans={failed} plans={}", statistics.plans);
        assert_eq!((statistics.plans, statistics.phase), (1, Phase::Planned), "{statistics:?}");
        assert_eq!(statistics.last_steps.fallback_allocations, 0, "{statistics:?}");
        assert!(blocks.iter().all(Large::is_in_arena));
    });
}

#[test]
fn a_plan_that_fails_keeps_no_address_space() {
    const SIZE: usize = 1 << 30;
    scenario(test_name!(a_plan_that_fails_keeps_no_address_space), &STEPS, || {
        let layout = Layout::from_size_align(SIZE, 16).expect("a legal layout");
        let mut kept = None;
        for _ in 0..60 {
            // Either the range or the megabyte of its table, but not both.
            limit_address_space(Some(address_space() + SIZE + MIB / 2));
            let before = address_space();
            stepalloc::boundary();
            if stepalloc::statistics().failed_plans > 0 && kept.is_none() {
                kept = Some(address_space().saturating_sub(before));
            }
            limit_address_space(None);
            // SAFETY: not 0 bytes, never touched, freed with its layout.
            unsafe {
                let block = black_box(alloc(layout));
                assert!(!block.is_null());
                dealloc(block, layout);
            }
        }
        let kept = kept.expect("the limit makes a plan fail");
        assert!(
            kept < 4 * MIB,
            "a plan that could not be put in force kept {} MiB of address space",
            kept / MIB
        );
    });
}

/// Runs `child` in a forked process; the reason why it failed, if it did.
pub(crate) fn in_fork(child: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // SAFETY: the child calls what is promised to work after a fork, and ends without returning.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        let code = match &result {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => {
                eprintln!("in the forked child: {error}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "fork failed");
    // A child that waits for a lock nobody holds any more would wait for ever.
    for _ in 0..30_000 {
        let mut status = 0;
        // SAFETY: our own child.
        if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == pid {
            return if status == 0 { Ok(()) } else { Err(format!("wait status {status:#x}")) };
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // SAFETY: our own child, not waited for yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    Err("the child hung for 30 s".into())
}

/// Blocks of one step.
fn some_blocks(blocks: &mut Vec<Block>) -> Result<(), String> {
    for size in [40_000, 50_000, 60_000, 400_000, 500] {
        blocks.push(Block::new(size, 64, true)?);
    }
    Ok(())
}

/// What a forked child does: frees the copies of its parent's blocks, and goes on for some steps of its own, long
/// enough to be planned anew.
fn live_on(mut blocks: Vec<Block>) -> Result<(), String> {
    for _ in 0..40 {
        disjoint(blocks.iter())?;
        stepalloc::boundary();
        blocks.drain(..).try_for_each(Block::free)?;
        some_blocks(&mut blocks)?;
        blocks[1].resize(70_000)?;
    }
    let statistics = stepalloc::statistics();
    // Blocks of threads that are gone may lie in its slots for ever: then a plan was made, and left.
    if statistics.phase != Phase::Planned && statistics.refused_plans == 0 {
        return Err(format!("not planned: {statistics:?}"));
    }
    blocks.into_iter().try_for_each(Block::free)
}

/// Where the parent had one thread, the child's blocks come from its arena again. The blocks of other threads stay in
/// the child's arena for ever, and may leave no room.
fn served() -> Result<(), String> {
    let last = stepalloc::statistics().last_steps;
    if last.planned_allocations == 0 || last.fallback_allocations > last.planned_allocations {
        return Err(format!("not served: {last:?}"));
    }
    Ok(())
}

#[test]
fn a_child_forked_in_any_phase_lives_on_and_so_does_its_parent() {
    let name = test_name!(a_child_forked_in_any_phase_lives_on_and_so_does_its_parent);
    if process::is_child(name) {
        let mut forked = [0; 3];
        let mut blocks = Vec::with_capacity(16);
        for step in 0..16 {
            stepalloc::boundary();
            some_blocks(&mut blocks).expect("memory");
            let phase = stepalloc::phase();
            forked[phase as usize] += 1;
            // In the child the vector is a copy, whose blocks are the child's own.
            let copy = std::mem::take(&mut blocks);
            // SAFETY: the value is used twice, but in two processes: the parent's copy below, the child's in it.
            let child = unsafe { std::ptr::read(&copy) };
            let child = std::mem::ManuallyDrop::new(child);
            in_fork(|| live_on(std::mem::ManuallyDrop::into_inner(child)).and_then(|()| served()))
                .unwrap_or_else(|error| panic!("forked in step {step}, {phase}: {error}"));
            blocks = copy;
            disjoint(blocks.iter()).expect("live blocks");
            blocks.drain(..).try_for_each(Block::free).expect("as it was");
        }
        assert!(forked.iter().all(|&count| count > 0), "{forked:?}");
        assert_eq!(stepalloc::statistics().steps, 16, "the children's steps are their own");
        return;
    }
    for backend in ["glibc", "jemalloc", "mimalloc"] {
        let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_BACKEND", backend)]).collect();
        process::run(name, &settings);
    }
}

#[test]
fn a_child_forked_while_other_threads_allocate_and_end_steps_lives_on() {
    let name = test_name!(a_child_forked_while_other_threads_allocate_and_end_steps_lives_on);
    if !process::is_child(name) {
        // mimalloc itself promises nothing to children of processes with threads.
        for backend in ["glibc", "jemalloc"] {
            let settings: Vec<_> = STEPS.into_iter().chain([("STEPALLOC_BACKEND", backend)]).collect();
            process::run(name, &settings);
        }
        return;
    }
    Block::new(1, 1, false).and_then(Block::free).expect("memory");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut blocks = Vec::with_capacity(16);
                while !ended.load(Relaxed) {
                    stepalloc::boundary();
                    some_blocks(&mut blocks).expect("memory");
                    blocks.drain(..).try_for_each(Block::free).expect("as it was");
                }
            });
        }
        for number in 0..60 {
            in_fork(|| live_on(Vec::with_capacity(16))).unwrap_or_else(|error| {
                eprintln!("fork {number}: {error}");
                std::process::exit(1);
            });
        }
        ended.store(true, Relaxed);
    });
    assert!(stepalloc::statistics().plans > 0);
}

/// Every size up to four times the natural alignment at every alignment, and blocks that shrink to them.
#[test]
fn small_blocks_keep_alignments_larger_than_their_size() {
    let name = test_name!(small_blocks_keep_alignments_larger_than_their_size);
    if !process::is_child(name) {
        for backend in ["glibc", "jemalloc", "mimalloc"] {
            process::run(name, &[("STEPALLOC_BACKEND", backend)]);
        }
        return;
    }
    let mut blocks = Vec::new();
    for align in (0..=22).map(|log2| 1 << log2) {
        for size in 1..=64 {
            blocks.push(Block::new(size, align, size % 2 == 0).expect("aligned memory"));
            let mut shrunk = Block::new(100 * size, align, false).expect("aligned memory");
            shrunk.resize(size).expect("kept, and still aligned");
            blocks.push(shrunk);
        }
    }
    disjoint(blocks.iter()).expect("live blocks");
    blocks.into_iter().try_for_each(Block::free).expect("as it was");
}

/// The log of what was merged goes back to the system, also where a step fills less than a page of it.
#[test]
fn a_long_collection_of_short_steps_keeps_little_of_its_log() {
    const COLLECTED: u64 = 10_000;
    let settings = [
        ("START_STATISTIC_STEP", "3"),
        ("STABLE_STATISTIC_STEP", "1000000"),
        ("MAX_STATISTIC_STEP", "1000000"),
    ];
    scenario(test_name!(a_long_collection_of_short_steps_keeps_little_of_its_log), &settings, || {
        let layout = Layout::new::<[u8; 40_000]>();
        let mut settled = 0;
        for step in 0..COLLECTED {
            stepalloc::boundary();
            for _ in 0..50 {
                // SAFETY: not 0 bytes, never touched, freed with its layout.
                unsafe { dealloc(black_box(alloc(layout)), layout) };
            }
            if step == 100 {
                settled = stepalloc::statistics().vm_rss_bytes;
            }
        }
        assert_eq!(stepalloc::phase(), Phase::Collecting);
        let grown = stepalloc::statistics().vm_rss_bytes.saturating_sub(settled);
        println!("figures: grown_by={grown}");
        // A hundred events a step, of 32 bytes each, would be 32 MB.
        assert!(grown < 4 << 20, "{COLLECTED} short steps made the process grow by {grown} bytes");
    });
}
