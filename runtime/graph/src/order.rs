//! Orders in which nodes can run, with less alive at once than in the file's.
//!
//! Which order is best is a hard problem (one-shot pebbling). Two are tried beside the file's: *greedy*, always the node that adds
//! least to what is alive; and *depth first* (Sethi and Ullman's order for expressions): before a node, those whose subgraphs need
//! much for a small result. Who asks for them compares the loads of all, so that none can make it worse.

use std::cmp::Reverse;

/// Nodes at most: greedy looks at all that could run for each that does.
const MOST: usize = 1 << 12;

/// A node: what it takes and makes, by number; and whether it must keep its place among those that do.
pub(crate) struct Task {
    pub takes: Vec<usize>,
    pub makes: Vec<usize>,
    pub keeps_order: bool,
}

struct Tasks<'t> {
    tasks: &'t [Task],
    bytes: &'t [u64],
    /// Tasks before each.
    before: Vec<Vec<usize>>,
    /// Tasks that take a value, and one more for those that are to last.
    uses: Vec<usize>,
}

/// Other orders of tasks that are in one that can be; `bytes` of each value, those that `last` to the end.
pub(crate) fn others(tasks: &[Task], bytes: &[u64], lasting: &[usize]) -> Vec<Vec<usize>> {
    if tasks.len() > MOST {
        return Vec::new();
    }
    let mut maker = vec![None; bytes.len()];
    let (mut before, mut uses, mut keeper) = (Vec::with_capacity(tasks.len()), vec![0; bytes.len()], None);
    for (at, task) in tasks.iter().enumerate() {
        let mut earlier: Vec<usize> = task.takes.iter().filter_map(|&value| maker[value]).collect();
        if task.keeps_order {
            earlier.extend(keeper.replace(at));
        }
        earlier.sort_unstable();
        earlier.dedup();
        before.push(earlier);
        distinct(&task.takes).for_each(|value| uses[value] += 1);
        task.makes.iter().for_each(|&value| maker[value] = Some(at));
    }
    lasting.iter().for_each(|&value| uses[value] += 1);
    let tasks = Tasks { tasks, bytes, before, uses };
    let file: Vec<_> = (0..tasks.tasks.len()).collect();
    let mut orders = vec![tasks.greedy(), tasks.depth_first()];
    orders.retain(|order| *order != file);
    orders.dedup();
    orders
}

/// Each value once.
fn distinct(values: &[usize]) -> impl Iterator<Item = usize> {
    values.iter().enumerate().filter(|(at, value)| !values[..*at].contains(value)).map(|(_, &value)| value)
}

impl Tasks<'_> {
    fn greedy(&self) -> Vec<usize> {
        let mut waits: Vec<_> = self.before.iter().map(Vec::len).collect();
        let mut after = vec![Vec::new(); self.tasks.len()];
        for (at, before) in self.before.iter().enumerate() {
            before.iter().for_each(|&earlier| after[earlier].push(at));
        }
        let mut uses = self.uses.clone();
        let mut ready: Vec<_> = (0..self.tasks.len()).filter(|&at| waits[at] == 0).collect();
        let mut order = Vec::with_capacity(self.tasks.len());
        while !ready.is_empty() {
            let adds = |at: usize| {
                let made: u64 = self.tasks[at].makes.iter().map(|&value| self.bytes[value]).sum();
                let freed = distinct(&self.tasks[at].takes).filter(|&value| uses[value] == 1);
                made as i128 - freed.map(|value| i128::from(self.bytes[value])).sum::<i128>()
            };
            let next = (0..ready.len()).min_by_key(|&index| (adds(ready[index]), ready[index]));
            let Some(at) = next.map(|index| ready.swap_remove(index)) else { break };
            distinct(&self.tasks[at].takes).for_each(|value| uses[value] -= 1);
            for &later in &after[at] {
                waits[later] -= 1;
                if waits[later] == 0 {
                    ready.push(later);
                }
            }
            order.push(at);
        }
        order
    }

    fn depth_first(&self) -> Vec<usize> {
        let made = |at: usize| self.tasks[at].makes.iter().map(|&value| self.bytes[value]).sum::<u64>();
        // What a task and all before it need, if nothing of it is there; those before in the order that needs least.
        let mut need = vec![0u64; self.tasks.len()];
        let mut sorted = self.before.clone();
        for at in 0..self.tasks.len() {
            sorted[at].sort_by_key(|&earlier| Reverse(need[earlier].saturating_sub(made(earlier))));
            let (mut held, mut most) = (0u64, 0u64);
            for &earlier in &sorted[at] {
                most = most.max(held.saturating_add(need[earlier]));
                held = held.saturating_add(made(earlier));
            }
            need[at] = most.max(held.saturating_add(made(at)));
        }
        let mut done = vec![false; self.tasks.len()];
        let mut order = Vec::with_capacity(self.tasks.len());
        // From those that no other one needs.
        let mut needed = vec![false; self.tasks.len()];
        self.before.iter().flatten().for_each(|&at| needed[at] = true);
        for root in (0..self.tasks.len()).filter(|&at| !needed[at]) {
            let mut stack = vec![(root, 0)];
            while let Some((at, next)) = stack.pop() {
                if done[at] {
                    continue;
                }
                match sorted[at].get(next) {
                    Some(&earlier) => {
                        stack.push((at, next + 1));
                        stack.push((earlier, 0));
                    }
                    None => {
                        done[at] = true;
                        order.push(at);
                    }
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(takes: &[usize], makes: &[usize]) -> Task {
        Task { takes: takes.to_vec(), makes: makes.to_vec(), keeps_order: false }
    }

    /// The most that is alive in an order.
    fn peak(tasks: &[Task], bytes: &[u64], lasting: &[usize], order: &[usize]) -> u64 {
        let made: Vec<_> = tasks.iter().flat_map(|task| task.makes.clone()).collect();
        let (mut alive, mut most) = (0, 0);
        for (step, &at) in order.iter().enumerate() {
            alive += tasks[at].makes.iter().map(|&value| bytes[value]).sum::<u64>();
            most = most.max(alive);
            let later = |value: usize| order[step + 1..].iter().any(|&at| tasks[at].takes.contains(&value));
            let gone = |&value: &usize| made.contains(&value) && !later(value) && !lasting.contains(&value);
            alive -= distinct(&tasks[at].takes).filter(gone).map(|value| bytes[value]).sum::<u64>();
        }
        most
    }

    /// Branches whose first node makes much of the input and whose second little of that, all first ones first.
    fn branches() -> (Vec<Task>, Vec<u64>) {
        let mut tasks: Vec<_> = (0..4).map(|branch| task(&[0], &[1 + branch])).collect();
        tasks.extend((0..4).map(|branch| task(&[1 + branch], &[5 + branch])));
        tasks.push(task(&[5, 6, 7, 8], &[9]));
        (tasks, vec![0, 100, 100, 100, 100, 1, 1, 1, 1, 4])
    }

    #[test]
    fn branches_are_finished_one_by_one() {
        let (tasks, bytes) = branches();
        let file: Vec<_> = (0..tasks.len()).collect();
        assert_eq!(peak(&tasks, &bytes, &[9], &file), 401);
        for order in others(&tasks, &bytes, &[9]) {
            assert_eq!(peak(&tasks, &bytes, &[9], &order), 104, "{order:?}");
        }
    }

    #[test]
    fn each_order_has_every_task_after_those_it_needs() {
        let (mut tasks, bytes) = branches();
        (tasks[1].keeps_order, tasks[4].keeps_order) = (true, true);
        for order in others(&tasks, &bytes, &[9]) {
            let at = |task: usize| order.iter().position(|&other| other == task).expect("it is there");
            assert_eq!(order.len(), tasks.len());
            assert!((0..4).all(|branch| at(branch) < at(4 + branch)) && at(8) == 8);
            assert!(at(1) < at(4));
        }
    }

    #[test]
    fn chains_have_one_order() {
        let tasks: Vec<_> = (0..9).map(|at| task(&[at], &[at + 1])).collect();
        assert!(others(&tasks, &[8; 10], &[9]).is_empty());
    }
}
