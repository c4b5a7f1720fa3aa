//! Problems and plans, judged by the definition alone: quadratic, and nothing of the planner's own.

use stepalloc_planner::{Block, Effort, Plan, Planner, Problem, verify, verify_bound};

/// Problems of more blocks are not planned here: the judgement is quadratic.
const MOST_BLOCKS: usize = 160;
/// Problems of so few are planned with [`Effort::Normal`], which takes long for many.
const FEW_BLOCKS: usize = 8;

/// Whether two lifetimes of a problem have an event in common.
pub fn meet(a: &Block, b: &Block, period: Option<u64>) -> bool {
    let alive = |block: &Block, at: u64| {
        (block.lower..block.upper).contains(&at)
            || period
                .and_then(|period| at.checked_add(period))
                .is_some_and(|again| (block.lower..block.upper).contains(&again))
    };
    a.length() > 0 && b.length() > 0 && (alive(a, b.lower) || alive(b, a.lower))
}

/// The most bytes that are alive at once.
fn load(problem: &Problem) -> u128 {
    let blocks = &problem.blocks;
    let at = |block: &Block| -> u128 {
        let point = Block { upper: block.lower + 1, ..*block };
        blocks
            .iter()
            .filter(|other| meet(&point, other, problem.period))
            .map(|other| u128::from(other.size))
            .sum()
    };
    blocks.iter().filter(|block| block.length() > 0).map(at).max().unwrap_or(0)
}

/// Asserts that a plan keeps the rules, by the definition.
pub fn holds(problem: &Problem, offsets: &[u64], height: u64) {
    assert_eq!(offsets.len(), problem.blocks.len());
    let period = problem.period;
    for (index, (block, &offset)) in problem.blocks.iter().zip(offsets).enumerate() {
        let end = offset.checked_add(block.size).expect("no block ends beyond 64 bits");
        assert!(end <= height && offset.is_multiple_of(block.align), "{block:?} at {offset} of {height}");
        for (other, &at) in problem.blocks[..index].iter().zip(offsets) {
            let apart = block.size == 0 || other.size == 0 || end <= at || at + other.size <= offset;
            assert!(apart || !meet(block, other, period), "{block:?} at {offset} and {other:?} at {at}");
        }
    }
}

/// Plans a problem, and asserts that the plan keeps its rules and is as high as it must be at least; `None` where the problem
/// cannot be planned, which must be an error then, or has too many blocks for this.
pub fn plan(problem: &Problem) -> Option<Plan> {
    if problem.blocks.len() > MOST_BLOCKS {
        return None;
    }
    let effort = if problem.blocks.len() <= FEW_BLOCKS { Effort::Normal } else { Effort::Quick };
    let made = Planner::new().effort(effort).plan(problem);
    if problem.check().is_err() {
        assert!(made.is_err(), "a problem that cannot be planned was: {problem:?}");
        return None;
    }
    let plan = made.expect("a problem that passes its check can be planned");
    assert_eq!(verify(problem, &plan.offsets, plan.height), Ok(()));
    let bound = problem.lower_bound();
    assert_eq!(verify_bound(problem, &bound, &bound.witness(problem)), Ok(()));
    assert!(bound.bytes <= plan.lower_bound && plan.lower_bound <= plan.height, "{bound:?}: {plan:?}");
    if problem.constraints.is_empty() {
        holds(problem, &plan.offsets, plan.height);
        let load = load(problem);
        assert_eq!(u128::from(problem.load().max), load, "the load by the definition");
        assert!(load <= u128::from(plan.lower_bound), "load {load}: {plan:?}");
    }
    Some(plan)
}
