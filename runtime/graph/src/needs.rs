//! What a run takes of memory, part by part.

use crate::graph::Graph;
use crate::plan::Plan;
use std::collections::HashSet;
use std::sync::Arc;
use stepalloc_tensor::{Tensor, View};

/// What a run takes of memory, as its plan tells it before it runs: bytes of each part. What nodes take that cannot be planned is not
/// there, nor is what graph, plans and the operators' small blocks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Intermediate values and scratch memory.
    pub arena_bytes: u64,
    /// Outputs.
    pub output_bytes: u64,
    /// Inputs.
    pub input_bytes: u64,
    /// Pages of weights that are used where they lie in a file, with those around them that the system maps along.
    pub mapped_weight_bytes: u64,
    /// Weights in memory of their own: copied from a file when they are first used, or made by a pass.
    pub copied_weight_bytes: u64,
    /// Those of them that are there already.
    pub present_weight_bytes: u64,
    /// Factors that are packed, where [`Options::prepacking`](crate::Options::prepacking) is on, and the largest of them as it was
    /// loaded, which is there beside them while it is packed. The others as they were loaded are not counted.
    pub packed_weight_bytes: u64,
    /// Nodes whose memory is only known when they run.
    pub unplanned_nodes: u64,
}

/// The system maps as many bytes around a page that is read, and may do so on either side of a weight.
const AROUND: usize = 64 << 10;
/// Columns of a packed factor are a multiple of this at most.
const PACKED_COLUMNS: usize = 64;

impl Needs {
    /// Of a plan, and the graph that it was made of.
    pub(crate) fn new(plan: &Plan, graph: &Graph, inputs: &[Option<View<'_>>]) -> Self {
        let bytes = |view: &View<'_>| (view.len() as u64).saturating_mul(view.dtype.bytes() as u64);
        let outputs = plan.graph.outputs.iter().filter_map(|&id| plan.types[id].as_ref());
        let mut packed: Vec<(*const Tensor, u64, u64)> = Vec::new();
        for prepacked in plan.steps.iter().filter_map(|step| step.prepacked.as_ref()) {
            let tensor = prepacked.tensor();
            if !packed.iter().any(|&(other, ..)| other == Arc::as_ptr(tensor)) {
                let columns = prepacked.spec.cols.next_multiple_of(PACKED_COLUMNS);
                let bytes = (prepacked.spec.rows as u64) * (columns as u64) * size_of::<f32>() as u64;
                packed.push((Arc::as_ptr(tensor), bytes, tensor.ty().bytes() as u64));
            }
        }
        let is_packed: HashSet<_> = packed.iter().map(|&(tensor, ..)| tensor).collect();
        let all = graph.weights();
        let used: Vec<_> = all.iter().filter(|tensor| !is_packed.contains(&Arc::as_ptr(tensor))).collect();
        let own = used.iter().filter(|tensor| !tensor.is_lent());
        // What is packed as it was loaded is there for a moment each.
        let loaded = packed.iter().map(|&(.., bytes)| bytes).max().unwrap_or(0);
        Self {
            arena_bytes: plan.figures.arena_bytes,
            output_bytes: outputs.fold(0, |all, ty| all.saturating_add(ty.bytes() as u64)),
            input_bytes: inputs.iter().flatten().map(bytes).fold(0, u64::saturating_add),
            mapped_weight_bytes: pages(
                used.iter().filter(|tensor| tensor.is_lent()).map(|tensor| tensor.view()),
            ),
            copied_weight_bytes: own.clone().map(|tensor| tensor.ty().bytes() as u64).sum(),
            present_weight_bytes: own.map(|tensor| tensor.own_bytes() as u64).sum(),
            packed_weight_bytes: packed.iter().map(|&(_, bytes, _)| bytes).sum::<u64>() + loaded,
            unplanned_nodes: plan.figures.unplanned_nodes,
        }
    }

    /// What counts towards [`Options::max_mem`](crate::Options::max_mem): arena, outputs and copied weights.
    pub fn limited_bytes(&self) -> u64 {
        self.arena_bytes.saturating_add(self.output_bytes).saturating_add(self.copied_weight_bytes)
    }
}

/// Bytes of the pages that are mapped where these are read, each counted once.
fn pages<'t>(views: impl Iterator<Item = View<'t>>) -> u64 {
    let range = |view: View<'_>| {
        let begin = view.bytes.as_ptr() as usize;
        (begin / AROUND * AROUND, (begin + view.bytes.len()).next_multiple_of(AROUND))
    };
    let mut ranges: Vec<_> = views.map(range).collect();
    ranges.sort_unstable();
    let (mut all, mut end) = (0, 0);
    for (from, to) in ranges {
        all += to.saturating_sub(from.max(end)) as u64;
        end = end.max(to);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_tensor::DataType;

    #[test]
    fn pages_that_several_lie_in_count_once() {
        let bytes = vec![0u8; 8 * AROUND];
        let first = bytes.as_ptr().align_offset(AROUND);
        let view = |from: usize, length: usize| View {
            dtype: DataType::U8,
            shape: &[],
            bytes: &bytes[first + from..][..length],
        };
        assert_eq!(pages(std::iter::empty()), 0);
        assert_eq!(pages([view(10, 100)].into_iter()), AROUND as u64);
        assert_eq!(pages([view(10, 100), view(AROUND - 1, 2), view(200, 5)].into_iter()), 2 * AROUND as u64);
        assert_eq!(pages([view(5 * AROUND, AROUND), view(0, 1)].into_iter()), 2 * AROUND as u64);
    }
}
