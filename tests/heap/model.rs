//! One thread runs small programs that proptest shrinks, each repeated for some steps, with a model of the heap that
//! compares every new block's range with those of all live ones.
//!
//! The engine lives on from program to program: each one meets the plan that an earlier one has left.

use crate::process::scenario;
use crate::program::{MIN_BYTES, MIN_BYTES_SETTING};
use crate::shadow::{Block, Ranges};
use crate::{scaled, test_name};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::sync::mpsc;

const PLACES: usize = 12;
/// Steps for which each program is repeated: enough to be collected and served, if the plan's patience allows.
const STEPS: usize = 9;

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        place: usize,
        size: usize,
        align: usize,
        zeroed: bool,
    },
    Resize {
        place: usize,
        size: usize,
    },
    Free {
        place: usize,
    },
    FreeElsewhere {
        place: usize,
    },
    /// A boundary in the middle.
    Step,
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 1..MIN_BYTES,
        2 => MIN_BYTES - 2..=MIN_BYTES + 65,
        4 => (1usize..16).prop_map(|kib| kib * 1024),
        2 => MIN_BYTES..100_000,
        1 => 100_000usize..500_000,
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    let aligns = prop_oneof![20 => 0u32..7, 5 => 7u32..=13, 1 => 14u32..=22].prop_map(|log2| 1usize << log2);
    prop_oneof![
        10 => (0..PLACES, sizes(), aligns, any::<bool>())
            .prop_map(|(place, size, align, zeroed)| Operation::Allocate { place, size, align, zeroed }),
        4 => (0..PLACES, sizes()).prop_map(|(place, size)| Operation::Resize { place, size }),
        6 => (0..PLACES).prop_map(|place| Operation::Free { place }),
        2 => (0..PLACES).prop_map(|place| Operation::FreeElsewhere { place }),
        1 => Just(Operation::Step),
    ]
}

#[test]
fn programs_of_operations_agree_with_a_model_of_the_heap() {
    let settings = [
        ("START_STATISTIC_STEP", "3"),
        ("STABLE_STATISTIC_STEP", "1"),
        ("MAX_STATISTIC_STEP", "6"),
        MIN_BYTES_SETTING,
    ];
    scenario(test_name!(programs_of_operations_agree_with_a_model_of_the_heap), &settings, || {
        // A thread that frees what it is given, and answers.
        let (give, given) = mpsc::sync_channel::<Block>(1);
        let (answer, answers) = mpsc::sync_channel(1);
        let elsewhere = std::thread::spawn(move || {
            for block in given {
                answer.send(block.free()).expect("the test waits for the answer");
            }
        });
        let config =
            Config { cases: scaled(400).max(40) as u32, failure_persistence: None, ..Config::default() };
        let arena = Cell::new(0);
        let result =
            TestRunner::new(config).run(&proptest::collection::vec(operations(), 1..60), |program| {
                let free_elsewhere = |block: Block| {
                    give.send(block).expect("the thread waits for blocks");
                    answers.recv().expect("the thread answers")
                };
                arena.set(arena.get() + run(&program, free_elsewhere).map_err(TestCaseError::fail)?);
                Ok(())
            });
        drop(give);
        elsewhere.join().expect("the thread ends with its channel");
        if let Err(error) = result {
            panic!("{error}");
        }
        let (statistics, arena) = (stepalloc::statistics(), arena.get());
        println!("figures: steps={} plans={} in_arena={arena}", statistics.steps, statistics.plans);
        assert!(statistics.plans >= 2, "{statistics:?}");
        assert!(arena > 1000, "{arena} blocks lay in the arena");
    });
}

/// Runs a program for some steps; returns how many blocks lay in the arena.
fn run(program: &[Operation], free_elsewhere: impl Fn(Block) -> Result<(), String>) -> Result<u64, String> {
    let mut places: [Option<Block>; PLACES] = [const { None }; PLACES];
    let mut ranges = Ranges::default();
    let mut arena = 0;
    for _ in 0..STEPS {
        stepalloc::boundary();
        for operation in program {
            match *operation {
                Operation::Allocate { place, size, align, zeroed } => {
                    let block = Block::new(size, align, zeroed)?;
                    ranges.insert(&block)?;
                    arena += u64::from(block.is_in_arena());
                    if size < MIN_BYTES && block.is_in_arena() || align > 2 << 20 && block.is_in_arena() {
                        return Err(format!("{block} is none for the arena"));
                    }
                    if let Some(old) = places[place].replace(block) {
                        ranges.remove(&old);
                        old.free()?;
                    }
                }
                Operation::Resize { place, size } => {
                    if let Some(block) = &mut places[place] {
                        ranges.remove(block);
                        block.resize(size)?;
                        ranges.insert(block)?;
                    }
                }
                Operation::Free { place } => {
                    if let Some(block) = places[place].take() {
                        ranges.remove(&block);
                        block.free()?;
                    }
                }
                Operation::FreeElsewhere { place } => {
                    if let Some(block) = places[place].take() {
                        ranges.remove(&block);
                        free_elsewhere(block)?;
                    }
                }
                Operation::Step => stepalloc::boundary(),
            }
        }
        places.iter().flatten().try_for_each(Block::check)?;
    }
    places.into_iter().flatten().try_for_each(Block::free)?;
    Ok(arena)
}
