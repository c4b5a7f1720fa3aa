//! Workloads of blocks from 32 KiB on, for `large.py`: the CPU time and memory that an allocator needs for blocks which no
//! step repeats, and what it holds after a peak. Each prints one JSON line of what it took.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use std::{fs, mem, ptr, thread};

use stepalloc_planner::generate::Dice;

use super::{Block, marker, size};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Blocks that a thread of `replace` holds.
const TABLE: usize = 48;
/// Blocks that a thread replaces in a round: five times its table, so that few of the older ones are left.
const REPLACED: usize = 5 * TABLE;
/// What `sparse` asks for zeroed in each step, and in how many places it writes a byte there.
const SPARSE_BYTES: usize = 256 * MIB;
const SPARSE_WRITES: usize = 256;
const SPARSE_BLOCKS: usize = 6;
/// What is alive at the end of a step of `leaves`.
const STEP_BYTES: usize = 180 * MIB;
/// Single blocks after the last step of `leaves`, and small ones between two of them.
const SINGLES: usize = 12;
const SMALL_BLOCKS: usize = 20;
/// What `peak` and `push` reach.
const PEAK_BYTES: usize = 1024 * MIB;
/// Of each 16 blocks `peak` keeps one.
const KEPT: usize = 16;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static ALIVE_PEAK: AtomicUsize = AtomicUsize::new(0);

/// How a new block is filled.
#[derive(Clone, Copy)]
pub enum Fill {
    /// Every byte.
    Written,
    /// One byte of each page.
    Touched,
}

/// A block whose bytes count as alive until just before it is freed.
struct Counted(Block);

impl Counted {
    fn new(size: usize, fill: Fill) -> Counted {
        let block = Block::untouched(size, 16);
        let alive = ALIVE.fetch_add(size, Relaxed) + size;
        ALIVE_PEAK.fetch_max(alive, Relaxed);
        match fill {
            // SAFETY: the block has that many bytes.
            Fill::Written => unsafe { ptr::write_bytes(black_box(block.0.as_ptr()), 1, block.1.size()) },
            Fill::Touched => block.touch(),
        }
        black_box(&block);
        Counted(block)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(self.0.1.size(), Relaxed);
    }
}

/// What the process has used so far: CPU time of all its threads in seconds, and minor page faults.
fn used() -> (f64, i64) {
    // SAFETY: zeroes are a valid `rusage`, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    // SAFETY: zeroes are a valid `timespec`, which the call fills. It is more exact than the CPU time of `rusage`.
    let time = unsafe {
        let mut time: libc::timespec = mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    (time.tv_sec as f64 + time.tv_nsec as f64 / 1e9, usage.ru_minflt)
}

/// The part of a workload that is measured, from its making on.
struct Measured {
    begun: Instant,
    cpu_seconds: f64,
    minor_faults: i64,
}

impl Measured {
    fn begin() -> Measured {
        let (cpu_seconds, minor_faults) = used();
        Measured { begun: Instant::now(), cpu_seconds, minor_faults }
    }

    /// Prints what it took; per block as well, if blocks are what it is about.
    fn print(self, blocks: Option<usize>) {
        let wall_seconds = self.begun.elapsed().as_secs_f64();
        let (cpu_seconds, minor_faults) = used();
        let (cpu_seconds, minor_faults) = (cpu_seconds - self.cpu_seconds, minor_faults - self.minor_faults);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
            kib.unwrap_or_default() * KIB
        };
        let (hwm, rss, alive) = (bytes("VmHWM:"), bytes("VmRSS:"), ALIVE_PEAK.load(Relaxed));
        print!("{{\"vm_hwm_bytes\": {hwm}, \"vm_rss_bytes\": {rss}, \"alive_peak_bytes\": {alive}, ");
        if let Some(blocks) = blocks {
            let (cpu, faults) = (cpu_seconds * 1e9 / blocks as f64, minor_faults as f64 / blocks as f64);
            print!(
                "\"blocks\": {blocks}, \"cpu_ns_per_block\": {cpu:.1}, \"minor_faults_per_block\": {faults:.3}, "
            );
        }
        print!("\"cpu_seconds\": {cpu_seconds:.6}, \"wall_seconds\": {wall_seconds:.6}, ");
        println!("\"minor_faults\": {minor_faults}}}");
    }
}

/// Threads that replace blocks of a table each, at random; each goes on with the next one's table in every round where tables
/// `rotate`, so that most blocks are freed by another thread than allocated them.
pub fn replace(rounds: usize, threads: usize, fill: Fill, rotate: bool) {
    let block = |dice: &mut Dice| Counted::new(size(dice, 32 * KIB, 4 * MIB), fill);
    let tables: Vec<_> = (0..threads).map(|_| Mutex::new(Vec::new())).collect();
    // Of the threads, and of these and the one that measures.
    let (round_ends, begins_or_ends) = (Barrier::new(threads), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for thread in 0..threads {
            let (tables, round_ends, begins_or_ends) = (&tables, &round_ends, &begins_or_ends);
            scope.spawn(move || {
                let mut dice = Dice::new(thread as u64 + 1);
                let table = |round: usize| {
                    let owner = if rotate { (thread + round) % threads } else { thread };
                    tables[owner].lock().expect("nobody panics")
                };
                table(0).extend((0..TABLE).map(|_| Some(block(&mut dice))));
                begins_or_ends.wait();
                begins_or_ends.wait();
                for round in 0..rounds {
                    let mut table = table(round);
                    for _ in 0..REPLACED {
                        let at = dice.below(TABLE as u64) as usize;
                        table[at] = None;
                        table[at] = Some(block(&mut dice));
                    }
                    drop(table);
                    round_ends.wait();
                }
                begins_or_ends.wait();
            });
        }
        begins_or_ends.wait();
        let measured = Measured::begin();
        begins_or_ends.wait();
        begins_or_ends.wait();
        measured.print(Some(rounds * threads * REPLACED));
    });
}

/// Steps that each ask for much zeroed memory and write little of it, beside some ordinary blocks.
pub fn sparse(steps: usize, marked: bool) {
    let (measured, mark, mut dice) = (Measured::begin(), marker(), Dice::new(1));
    let sizes = [(); SPARSE_BLOCKS].map(|()| size(&mut dice, 64 * KIB, 8 * MIB));
    for _ in 0..steps {
        if marked {
            mark();
        }
        // SAFETY: only bytes of the block are written and read, and it is freed once.
        unsafe {
            let zeroed = libc::calloc(1, black_box(SPARSE_BYTES)).cast::<u8>();
            assert!(!zeroed.is_null(), "out of memory");
            for at in (0..SPARSE_BYTES).step_by(SPARSE_BYTES / SPARSE_WRITES) {
                zeroed.add(at).write_volatile(1);
                // After the write, as a first read would be a page fault of its own.
                assert!(zeroed.add(at + 1).read_volatile() == 0, "calloc's memory is not zeroed");
            }
            let blocks = sizes.map(|size| Block::new(size, 16));
            libc::free(zeroed.cast());
            drop(blocks);
        }
    }
    measured.print(None);
}

/// Marked steps, and after the last of them single blocks larger than a whole step, with small ones between.
pub fn leaves(steps: usize) {
    let (measured, mark, mut dice) = (Measured::begin(), marker(), Dice::new(1));
    let (mut sizes, mut left) = (Vec::new(), STEP_BYTES);
    while left > 0 {
        sizes.push(size(&mut dice, MIB, 40 * MIB).min(left));
        left -= sizes[sizes.len() - 1];
    }
    for _ in 0..steps {
        mark();
        let blocks = sizes.iter().map(|&size| Counted::new(size, Fill::Touched));
        drop(blocks.collect::<Vec<_>>());
    }
    for _ in 0..SINGLES {
        drop(Counted::new((300 + dice.below(55) as usize) * MIB, Fill::Touched));
        let small = (0..SMALL_BLOCKS).map(|_| Counted::new(size(&mut dice, 33 * KIB, MIB), Fill::Touched));
        drop(small.collect::<Vec<_>>());
    }
    measured.print(None);
}

/// 1 GiB alive, of which little is left; then `seconds` of sleep, in which an allocator may give memory back.
pub fn peak(seconds: u64) {
    let (measured, mut dice, mut blocks, mut index) = (Measured::begin(), Dice::new(1), Vec::new(), 0);
    while ALIVE.load(Relaxed) < PEAK_BYTES {
        blocks.push(Counted::new(size(&mut dice, MIB, 16 * MIB), Fill::Touched));
    }
    blocks.retain(|_| {
        index += 1;
        index % KEPT == 0
    });
    thread::sleep(Duration::from_secs(seconds));
    measured.print(None);
    drop(blocks);
}

/// A vector that grows to 1 GiB by pushes of 8 bytes.
pub fn push() {
    let (measured, mut numbers) = (Measured::begin(), Vec::new());
    for number in 0..PEAK_BYTES / size_of::<usize>() {
        numbers.push(black_box(number));
    }
    ALIVE_PEAK.store(numbers.capacity() * size_of::<usize>(), Relaxed);
    measured.print(None);
    drop(black_box(numbers));
}
