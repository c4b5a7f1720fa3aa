//! `model infer --profile`: which nodes take the time.

use crate::size;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;
use stepalloc_runtime::{NodeProfile, Profile};

/// Nodes that are told of at most.
const SHOWN: usize = 20;

/// All nodes, in the order in which they ran.
pub(super) fn json(profile: &Profile) -> Value {
    let node = |node: &NodeProfile| {
        json!({
            "name": node.name,
            "op": node.op_type,
            "ms": ms(profile, node),
            "output_bytes": node.output_bytes,
            "scratch_bytes": node.scratch_bytes,
            "in_place": node.in_place,
        })
    };
    profile.nodes.iter().map(node).collect()
}

fn ms(profile: &Profile, node: &NodeProfile) -> f64 {
    node.time.as_secs_f64() * 1e3 / profile.runs.max(1) as f64
}

/// Operators, then nodes, the slowest first.
pub(super) fn table(profile: &Profile) -> String {
    let total: f64 = profile.nodes.iter().map(|node| ms(profile, node)).sum();
    let share = |ms: f64| 100.0 * ms / total.max(f64::MIN_POSITIVE);
    let mut operators: HashMap<&str, (usize, f64)> = HashMap::new();
    for node in &profile.nodes {
        let (count, sum) = operators.entry(&node.op_type).or_default();
        *count += 1;
        *sum += ms(profile, node);
    }
    let mut operators: Vec<_> = operators.into_iter().collect();
    operators.sort_by(|(_, (_, a)), (_, (_, b))| b.total_cmp(a));
    let mut text = String::new();
    let _ = writeln!(text, "\n{:>10} {:>6} {:>6}  operator", "ms a run", "%", "nodes");
    for (op, (count, ms)) in operators.iter().take(SHOWN) {
        let _ = writeln!(text, "{ms:>10.3} {:>6.1} {count:>6}  {op}", share(*ms));
    }
    let mut nodes: Vec<_> = profile.nodes.iter().collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(node.time));
    let _ =
        writeln!(text, "\n{:>10} {:>6} {:>10} {:>10}  node (operator)", "ms a run", "%", "output", "scratch");
    for node in nodes.iter().take(SHOWN) {
        let ms = ms(profile, node);
        let over = if node.in_place { ", in place" } else { "" };
        let _ = writeln!(
            text,
            "{ms:>10.3} {:>6.1} {:>10} {:>10}  {} ({}{over})",
            share(ms),
            size::show(node.output_bytes),
            size::show(node.scratch_bytes),
            node.name,
            node.op_type
        );
    }
    text
}
