//! Programs that do nothing but allocate, for `workloads.py` to run under every allocator.
//!
//! `workloads NAME STEPS [TRACE]`: NAME is one of
//! - `tensors`: a training of 20 layers, blocks of 33 KiB to 64 MiB; what forward keeps, backward frees;
//! - `shapes`: the same with a batch of another length in every step, one of 16 at random;
//! - `threads`: 16 threads that make such steps at once, each its own of blocks up to 1 MiB;
//! - `larson`: four threads replace blocks of 16 bytes to 256 KiB at random, and each goes on with the next one's (after
//!   Larson and Krishnan, Memory Allocation for Long-Running Server Applications, ISMM 1998);
//! - `replay`: the steps of the recorded TRACE, after the first, again and again.
//!
//! Those of `large.rs` print a JSON line of what they took, for `large.py`:
//! - `workloads replace ROUNDS THREADS written|touched same|next`: threads without steps that hold 48 blocks of 32 KiB to
//!   4 MiB each and replace them at random, 240 in a round. A new block's bytes are all written, or one a page is touched.
//!   With `next` a thread goes on with the next one's blocks in each round;
//! - `workloads sparse STEPS marked|unmarked`: 256 MiB by calloc in each step, of which 256 bytes are written, and six blocks
//!   of 64 KiB to 8 MiB;
//! - `workloads leaves STEPS`: steps of 180 MiB, then 12 single blocks of 300 to 354 MiB with small ones between;
//! - `workloads peak SECONDS`: 1 GiB of blocks of 1 to 16 MiB, of which one in 16 is kept while the program sleeps;
//! - `workloads push`: a vector that grows to 1 GiB by pushes of 8 bytes.
//!
//! Each page of a block is written once, but where said otherwise. Steps are marked by `stepalloc_step`, if a library has it.

mod large;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::{Barrier, Mutex};
use std::{env, mem, process, thread};

use stepalloc_planner::generate::Dice;
use stepalloc_planner::{Event, trace};

const PAGE: usize = 4096;
const LAYERS: usize = 20;
/// Lengths of a batch, in sixteenths of the longest.
const LENGTHS: u64 = 16;
const THREADS: usize = 16;
const LARSON_THREADS: usize = 4;
const LARSON_BLOCKS: usize = 1000;
const LARSON_REPLACED: usize = 5000;

/// A block of the allocator that serves the process, freed when it is dropped.
struct Block(NonNull<u8>, Layout);

// SAFETY: the memory belongs to the block alone.
unsafe impl Send for Block {}

impl Block {
    fn untouched(size: usize, align: usize) -> Block {
        let layout = Layout::from_size_align(size.max(1), align).expect("a power of two");
        // SAFETY: the size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Block(start, layout)
    }

    /// Writes one byte of each page.
    fn touch(&self) {
        for at in (0..self.1.size()).step_by(PAGE) {
            // SAFETY: within the block.
            unsafe { black_box(self.0.as_ptr().add(at)).write_volatile(1) };
        }
    }

    fn new(size: usize, align: usize) -> Block {
        let block = Block::untouched(size, align);
        block.touch();
        block
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// A size between two, of all magnitudes alike.
fn size(dice: &mut Dice, least: usize, most: usize) -> usize {
    let magnitude = dice.below(1 << 20) as f64 / f64::from(1 << 20);
    (least as f64 * (most as f64 / least as f64).powf(magnitude)) as usize
}

/// What a layer asks for, in bytes.
#[derive(Clone, Copy)]
struct Layer {
    activation: usize,
    workspace: usize,
    weights: usize,
}

fn layers(seed: u64, most: usize) -> Vec<Layer> {
    let mut dice = Dice::new(seed);
    let mut size = || size(&mut dice, 33 << 10, most);
    (0..LAYERS).map(|_| Layer { activation: size(), workspace: size(), weights: size() }).collect()
}

/// One step of training, with a batch of so many sixteenths. The gradients of the weights live until the next step's backward
/// pass, as those of a framework do that sets them to none when a step begins.
fn train(layers: &[Layer], length: u64, gradients: &mut Vec<Block>) {
    let scaled = |size: usize| size * length as usize / LENGTHS as usize;
    let tensor = |size: usize| Block::new(size, 64);
    gradients.clear();
    let mut kept = Vec::new();
    for layer in layers {
        kept.push(tensor(scaled(layer.activation)));
        drop(tensor(scaled(layer.workspace)));
    }
    let mut gradient = tensor(scaled(layers[LAYERS - 1].activation));
    for layer in layers.iter().rev() {
        let workspace = tensor(scaled(layer.workspace));
        gradients.push(tensor(layer.weights));
        gradient = tensor(scaled(layer.activation));
        drop(workspace);
        kept.pop();
    }
    drop(gradient);
}

/// Marks a boundary where somebody wants to know.
fn marker() -> impl Fn() {
    // SAFETY: the name ends with a nul byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"stepalloc_step".as_ptr()) };
    // SAFETY: null is `None`; a function of this name takes and returns nothing.
    let step = unsafe { mem::transmute::<*mut libc::c_void, Option<extern "C" fn()>>(found) };
    move || {
        if let Some(step) = step {
            step()
        }
    }
}

fn tensors(steps: usize, lengths: u64) {
    let (layers, mark, mut dice) = (layers(1, 64 << 20), marker(), Dice::new(2));
    let mut gradients = Vec::new();
    for _ in 0..=steps {
        mark();
        train(&layers, LENGTHS - dice.below(lengths), &mut gradients);
    }
}

fn threads(steps: usize) {
    let (start, end, mark) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1), marker());
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (start, end) = (&start, &end);
            scope.spawn(move || {
                let (layers, mut gradients) = (layers(index as u64, 1 << 20), Vec::new());
                for _ in 0..=steps {
                    start.wait();
                    train(&layers, LENGTHS, &mut gradients);
                    end.wait();
                }
            });
        }
        for _ in 0..=steps {
            mark();
            start.wait();
            end.wait();
        }
    });
}

fn larson(steps: usize) {
    let small = |dice: &mut Dice| Block::new(size(dice, 16, 256 << 10), 16);
    let mut dice = Dice::new(3);
    let tables = [(); LARSON_THREADS]
        .map(|()| Mutex::new((0..LARSON_BLOCKS).map(|_| small(&mut dice)).collect::<Vec<_>>()));
    let mark = marker();
    for step in 0..=steps {
        mark();
        // A new thread each time, as a server starts them.
        thread::scope(|scope| {
            for thread in 0..LARSON_THREADS {
                let table = &tables[(thread + step) % LARSON_THREADS];
                scope.spawn(move || {
                    let mut table = table.lock().expect("nobody panics");
                    let mut dice = Dice::new((step * LARSON_THREADS + thread) as u64);
                    for _ in 0..LARSON_REPLACED {
                        let at = dice.below(LARSON_BLOCKS as u64) as usize;
                        table[at] = small(&mut dice);
                    }
                });
            }
        });
    }
}

fn replay(steps: usize, path: &str) {
    let trace = trace::read(path).unwrap_or_else(|error| fail(&error.to_string()));
    // The first step is the program's warm-up.
    let first = usize::from(trace.steps.len() > 1);
    let recorded: Vec<Vec<Event>> = trace.steps.into_iter().skip(first).map(|step| step.events).collect();
    let (mut alive, mark) = (HashMap::new(), marker());
    for step in 0..=steps {
        if step % recorded.len() == 0 {
            // What the last recorded step has left is not freed by the first one.
            alive.clear();
        }
        mark();
        for event in &recorded[step % recorded.len()] {
            match *event {
                Event::Allocate { block, size, align, .. } => {
                    alive.insert(block, Block::new(size as usize, (align as usize).max(16)));
                }
                Event::Free { block } => drop(alive.remove(&block)),
            }
        }
    }
}

fn fail(what: &str) -> ! {
    eprintln!("workloads: {what}");
    process::exit(2)
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let steps =
        |text: &str| text.parse().unwrap_or_else(|_| fail(&format!("{text:?} is no number of steps")));
    let one_of = |text: &str, first: &str, second: &str| match text {
        _ if text == first => true,
        _ if text == second => false,
        _ => fail(&format!("{text:?} is neither {first} nor {second}")),
    };
    match words[..] {
        ["tensors", count] => tensors(steps(count), 1),
        ["shapes", count] => tensors(steps(count), LENGTHS),
        ["threads", count] => threads(steps(count)),
        ["larson", count] => larson(steps(count)),
        ["replay", count, path] => replay(steps(count), path),
        ["replace", rounds, threads, fill, freed_by] => {
            let written = one_of(fill, "written", "touched");
            let fill = if written { large::Fill::Written } else { large::Fill::Touched };
            large::replace(steps(rounds), steps(threads).max(1), fill, one_of(freed_by, "next", "same"));
        }
        ["sparse", count, marks] => large::sparse(steps(count), one_of(marks, "marked", "unmarked")),
        ["leaves", count] => large::leaves(steps(count)),
        ["peak", seconds] => large::peak(steps(seconds) as u64),
        ["push"] => large::push(),
        _ => fail(
            "expected tensors|shapes|threads|larson STEPS, replay STEPS TRACE, \
             replace ROUNDS THREADS written|touched same|next, sparse STEPS marked|unmarked, leaves STEPS, \
             peak SECONDS, or push",
        ),
    }
}
