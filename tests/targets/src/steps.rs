//! Step boundaries at arbitrary points of an event stream: merging, planning, replanning.

use crate::feed::Feed;
use crate::plans;
use std::collections::HashMap;
use stepalloc_planner::{Event, Key, Plan, Problem, ReplanError, StepProblem, Steps, replan, verify};

/// Blocks that are alive at once, at most: handles are used again.
const HANDLES: u32 = 24;
/// Events of an input, at most.
const MOST: usize = 1500;

/// Arenas of so many bytes need not be followed: alignments count besides, and 2^59 bytes are the limit for all together.
const VAST: u64 = 1 << 40;

/// Steps: whatever the stream, the needs can be planned, plans keep the rules by their definition and are no lower than what
/// is alive, blocks that were alive together within a step overlap in the problem, and a plan that follows the needs keeps the
/// rules as well. An event takes two bytes; boundaries come where the first is one of 16 values.
pub fn steps(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut steps = Steps::new();
    let mut running: Vec<Event> = Vec::new();
    let mut all: Vec<Vec<Event>> = Vec::new();
    let mut before: Option<(Problem, Plan)> = None;
    let mut count = 0;
    while let (Some(what), Some(which)) = (feed.byte(), feed.byte()) {
        count += 1;
        if count > MOST {
            break;
        }
        let block = u32::from(which) % HANDLES;
        match what % 16 {
            0 => {
                end(&mut steps, std::mem::take(&mut running), &mut all, &mut before);
                continue;
            }
            1..=5 => running.push(Event::Free { block }),
            6 => {
                running.push(Event::Free { block });
                let size = size(what.rotate_left(3) ^ which);
                running.push(Event::Allocate { block, size, align: 16, moved_from: Some(block) });
            }
            7 => {
                let moved_from = Some((block + 1) % HANDLES);
                running.push(Event::Allocate { block, size: size(what), align: 64, moved_from });
            }
            _ => {
                let align = if what.is_multiple_of(5) { 1 << (which % 16) } else { 16 };
                running.push(Event::Allocate { block, size: size(what), align, moved_from: None });
            }
        }
    }
    end(&mut steps, running, &mut all, &mut before);
}

/// Sizes of which some come again and again, some rarely; none; and more than any machine has.
fn size(byte: u8) -> u64 {
    match byte {
        0xff => u64::MAX >> 8,
        0xfe => 0,
        _ => u64::from(byte / 16 + 1) << 12,
    }
}

fn end(
    steps: &mut Steps,
    events: Vec<Event>,
    all: &mut Vec<Vec<Event>>,
    before: &mut Option<(Problem, Plan)>,
) {
    let seen = steps.seen();
    steps.step(events.iter().copied());
    assert_eq!(steps.seen(), seen + 1);
    all.push(events);
    let needs = steps.problem();
    let blocks = needs.problem.blocks.len();
    assert_eq!((needs.keys.len(), needs.problem.period.is_some()), (blocks, true));
    together(&needs, all);
    let Some(plan) = plans::plan(&needs.problem) else {
        *before = None;
        return;
    };
    if let Some((old, old_plan)) = before.take() {
        let followed = match replan(&old, &old_plan, &needs.problem) {
            Ok(followed) => followed,
            Err(ReplanError::TooLarge) if old_plan.height.max(plan.height) >= VAST => {
                *before = Some((needs.problem, plan));
                return;
            }
            Err(error) => panic!("what can be planned can be followed: {error}"),
        };
        assert_eq!(verify(&needs.problem, &followed.offsets, followed.height), Ok(()));
        plans::holds(&needs.problem, &followed.offsets, followed.height);
        assert!(followed.lower_bound <= followed.height && plan.lower_bound <= followed.height);
    }
    *before = Some((needs.problem, plan));
}

/// Blocks of planned keys that came and went within a step and were alive together have lifetimes that meet.
fn together(needs: &StepProblem, all: &[Vec<Event>]) {
    let place: HashMap<Key, usize> =
        needs.keys.iter().enumerate().map(|(index, &key)| (key, index)).collect();
    for events in all.iter().rev().take(3) {
        let mut numbers: HashMap<(u64, u64), u32> = HashMap::new();
        // By handle: the block's place, when it came, and which others were alive meanwhile.
        let mut alive: HashMap<u32, usize> = HashMap::new();
        let mut born: Vec<(Option<usize>, usize, Option<usize>)> = Vec::new();
        for (at, event) in events.iter().enumerate() {
            match *event {
                Event::Free { block } => {
                    if let Some(index) = alive.remove(&block) {
                        born[index].2 = Some(at);
                    }
                }
                Event::Allocate { block, size, align, .. } => {
                    let nth = numbers.entry((size, align)).or_default();
                    let key = Key { size, align, nth: *nth };
                    *nth += 1;
                    if let Some(lost) = alive.insert(block, born.len()) {
                        born[lost].2 = Some(at);
                    }
                    born.push((place.get(&key).copied(), at, None));
                }
            }
        }
        let whole: Vec<(usize, usize, usize)> =
            born.into_iter().filter_map(|(place, from, to)| Some((place?, from, to?))).collect();
        for (index, &(a, from, to)) in whole.iter().enumerate() {
            for &(b, other_from, other_to) in &whole[..index] {
                if from < other_to && other_from < to {
                    let blocks = &needs.problem.blocks;
                    assert!(
                        plans::meet(&blocks[a], &blocks[b], needs.problem.period),
                        "{:?} and {:?} were alive together, {:?} and {:?} are not",
                        needs.keys[a],
                        needs.keys[b],
                        blocks[a],
                        blocks[b]
                    );
                }
            }
        }
    }
}
