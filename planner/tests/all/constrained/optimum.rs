//! Small problems, solved by trying everything.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stepalloc_planner::{Effort, Planner, verify, verify_bound};

use super::brute::Rules;
use super::cases::{Extent, problems};

/// Problems tried: enough for every pair of kinds of constraints to meet often.
const PROBLEMS: usize = 1500;

#[test]
fn no_bound_lies_above_the_optimum_and_no_plan_below_it() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = problems(Extent { blocks: 6, events: 8, size: 5, align: 2 });
    let planner = Planner::new().effort(Effort::Thorough);
    let (mut tight, mut equal, mut constrained) = (0, 0, 0);
    for _ in 0..PROBLEMS {
        let problem = strategy.new_tree(&mut runner).expect("a problem").current();
        let optimum = Rules::new(&problem).optimum();
        let bound = problem.lower_bound();
        assert!(bound.bytes <= optimum, "bound {bound:?} above {optimum}: {problem:?}");
        let witness = bound.witness(&problem);
        assert_eq!(verify_bound(&problem, &bound, &witness), Ok(()), "{bound:?} {witness:?}: {problem:?}");
        let plan = planner.plan(&problem).expect("a sound problem");
        assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()), "{problem:?}");
        assert!(plan.height >= optimum, "a plan of {} below {optimum}: {problem:?}", plan.height);
        constrained += usize::from(!problem.constraints.is_empty());
        tight += usize::from(bound.bytes == optimum);
        equal += usize::from(plan.height == optimum);
    }
    let percent = |count: usize| 100.0 * count as f64 / PROBLEMS as f64;
    println!(
        "of {PROBLEMS} problems ({constrained} with constraints), {:.1} % are planned to the optimum, and {:.1} % of the bounds are it",
        percent(equal),
        percent(tight)
    );
    // A regression would show here first.
    assert!(percent(equal) >= 95.0, "{:.1} % optimal", percent(equal));
}
