//! A loop of allocate/free pairs, for `instructions.rs` to count under callgrind.
//!
//! `pairs WAY BACKEND SIZE PHASE COUNT`: WAY is `bare` (the backend alone), `rust` (`StatisticAllocator`) or `c`
//! (malloc and free of what is preloaded) or `bare-c` (the backend's own malloc and free) or `nothing` (the loop alone, of
//! BACKEND `rust` or `c`); PHASE is `waiting`, `collecting` or `planned`. First the phase is reached by steps of 5000 pairs;
//! then COUNT pairs are made in one more step; at most 5000 of a planned size, so that each finds the slot planned for it.
//!
//! `CELLS` in the environment: each step begins with so many blocks, alive together, that have 1/CELLS of SIZE; so the
//! pairs' slots lie over as many cells of the arena, 32 of which have their states in one word.

mod bare;

use bare::Bare;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use stepalloc::{Glibc, Jemalloc, Mimalloc, Phase, StatisticAllocator};

/// One pair of a way to allocate.
type Pair = fn(usize);

/// Steps of a plan before its pairs are counted.
const SETTLING: u32 = 3;
/// Pairs a step.
const STEP: u64 = 5000;

fn rust(size: usize, allocator: &impl GlobalAlloc) {
    let layout = Layout::from_size_align(size, 16).expect("a small size");
    free(allocator, black_box(take(allocator, black_box(layout))), black_box(layout));
}

/// As `__rust_alloc`, the function through which every Rust program reaches its global allocator.
#[inline(never)]
fn take(allocator: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
    // SAFETY: the size is not 0.
    unsafe { allocator.alloc(layout) }
}

/// As `__rust_dealloc`.
#[inline(never)]
fn free(allocator: &impl GlobalAlloc, block: *mut u8, layout: Layout) {
    // SAFETY: `rust` frees each block once, with its layout.
    unsafe { allocator.dealloc(block, layout) }
}

/// Allocates nothing: what is left is the loop.
struct Nothing;

// SAFETY: not an allocator at all, but `rust` never uses what it gets.
unsafe impl GlobalAlloc for Nothing {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        layout.size() as *mut u8
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        black_box((block, layout.size()));
    }
}

fn pair(way: &str, backend: &str) -> Option<Pair> {
    Some(match (way, backend) {
        ("bare", "glibc") => |size| rust(size, &Bare::<Glibc>::new()),
        ("bare", "jemalloc") => |size| rust(size, &Bare::<Jemalloc>::new()),
        ("bare", "mimalloc") => |size| rust(size, &Bare::<Mimalloc>::new()),
        ("rust", "glibc") => |size| rust(size, &const { StatisticAllocator::new(Glibc) }),
        ("rust", "jemalloc") => |size| rust(size, &const { StatisticAllocator::new(Jemalloc) }),
        ("rust", "mimalloc") => |size| rust(size, &const { StatisticAllocator::new(Mimalloc) }),
        // SAFETY: malloc's own block is freed once.
        ("c", _) => |size| unsafe { libc::free(black_box(libc::malloc(black_box(size)))) },
        // SAFETY: as above.
        ("bare-c", "glibc") => |size| unsafe { libc::free(black_box(libc::malloc(black_box(size)))) },
        // SAFETY: as above.
        ("bare-c", "jemalloc") => |size| unsafe {
            tikv_jemalloc_sys::free(black_box(tikv_jemalloc_sys::malloc(black_box(size))));
        },
        // SAFETY: as above.
        ("bare-c", "mimalloc") => |size| unsafe {
            libmimalloc_sys::mi_free(black_box(libmimalloc_sys::mi_malloc(black_box(size))));
        },
        ("nothing", "c") => |size| {
            black_box(black_box(black_box(size) as *mut u8));
        },
        ("nothing", "rust") => |size| rust(size, &Nothing),
        _ => return None,
    })
}

/// How this process marks steps and asks for its phase: by the library that is preloaded, if there is one.
fn steps(way: &str) -> (fn(), Box<dyn Fn() -> i32>) {
    if way != "c" {
        return (stepalloc::boundary, Box::new(|| stepalloc::phase() as i32));
    }
    // SAFETY: the names end with nul bytes; the functions have these types (libstepalloc.so's C ABI).
    unsafe {
        let step = libc::dlsym(libc::RTLD_DEFAULT, c"stepalloc_step".as_ptr());
        let phase = libc::dlsym(libc::RTLD_DEFAULT, c"stepalloc_phase".as_ptr());
        assert!(!step.is_null() && !phase.is_null(), "the way `c` wants libstepalloc.so preloaded");
        let step = std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(step);
        let phase = std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(phase);
        C_STEP.set(step).expect("set once");
        (|| C_STEP.get().expect("set above")(), Box::new(move || phase()))
    }
}

static C_STEP: std::sync::OnceLock<extern "C" fn()> = std::sync::OnceLock::new();

fn main() {
    let usage = "pairs bare|bare-c|rust|c|nothing glibc|jemalloc|mimalloc|rust|c SIZE waiting|collecting|planned COUNT";
    let arguments: Vec<String> = std::env::args().collect();
    let [_, way, backend, size, phase, count] = &arguments[..] else { panic!("usage: {usage}") };
    let (Some(pair), Ok(size), Ok(count)) = (pair(way, backend), size.parse(), count.parse::<u64>()) else {
        panic!("usage: {usage}");
    };
    let wanted = match phase.as_str() {
        "waiting" => Phase::Waiting,
        "collecting" => Phase::Collecting,
        "planned" => Phase::Planned,
        _ => panic!("usage: {usage}"),
    };
    if way.starts_with("bare") || way == "nothing" {
        (0..STEP).for_each(|_| pair(size));
        measured_pairs(pair, size, count);
        return;
    }
    let (step, now) = steps(way);
    let cells = std::env::var("CELLS").map_or(0, |cells| cells.parse().expect("CELLS is a number"));
    for _ in 0..1000 {
        step();
        if now() == wanted as i32 {
            break;
        }
        cut(way, size, cells);
        (0..STEP).for_each(|_| pair(size));
        // So many blocks are planned beside the program.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(
        now(),
        wanted as i32,
        "the phase asked for is not reached: set START_STATISTIC_STEP and the others"
    );
    // In a plan's first step the backend's memory is given back by and by, and requests are listened to for that.
    for _ in 0..if wanted == Phase::Planned { SETTLING } else { 0 } {
        cut(way, size, cells);
        (0..STEP).for_each(|_| pair(size));
        step();
    }
    let is_planned = wanted == Phase::Planned && size >= 32 << 10;
    if !is_planned {
        (0..STEP).for_each(|_| pair(size));
    }
    cut(way, size, cells);
    measured_pairs(pair, size, if is_planned { count.min(STEP) } else { count });
}

/// Blocks alive together that fill `size` bytes.
fn cut(way: &str, size: usize, cells: usize) {
    if cells == 0 {
        return;
    }
    let layout = Layout::from_size_align(size / cells, 16).expect("a small size");
    let planned = const { StatisticAllocator::new(Glibc) };
    // SAFETY: the size is not 0, and each block is freed once, by the way it was allocated.
    unsafe {
        let take = || if way == "c" { libc::malloc(layout.size()).cast() } else { planned.alloc(layout) };
        for block in (0..cells).map(|_| take()).collect::<Vec<_>>() {
            if way == "c" { libc::free(block.cast()) } else { planned.dealloc(block, layout) }
        }
    }
}

/// What callgrind counts (`--toggle-collect`).
#[unsafe(no_mangle)]
#[inline(never)]
fn measured_pairs(pair: Pair, size: usize, count: u64) {
    (0..count).for_each(|_| pair(size));
}
