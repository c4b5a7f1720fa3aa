//! What a first run would do before it computes, done beforehand.

use super::{Chosen, Executor, Session, types_of};
use crate::context::RunContext;
use crate::error::Error;
use crate::needs::Needs;
use std::sync::Arc;
use stepalloc_tensor::View;

/// Pages of all systems begin at multiples of this.
const PAGE: usize = 4096;

impl Session {
    /// Gets ready for inputs of the types that are expected, one set after the other, each in the order of the graph's inputs with `None`
    /// for those with a default. Views without bytes stand for their types. The graph is optimized, a plan is made for each set, constant
    /// inputs are packed, and an arena as large as the largest plan's is taken and its pages are touched. A first run on each of these then
    /// neither plans nor takes an arena, nor does it fault pages of the arena in. (OpenVINO has a model reshaped and compiled for such,
    /// TensorRT a profile.)
    ///
    /// What remains for the first run: outputs; what cannot be planned, such as graphs within Loop and Scan, which plan as they run; and pages of
    /// weights that are used where they lie in a file. Where nodes are left unplanned, a session plans for what small inputs of integers are, too
    /// (shapes, numbers of rounds): these need their elements here. Runs at the same time have an arena each, and this is one.
    ///
    /// An error says that a run would be one, because an input is not as declared or a limit is too low, or that more plans are wanted than
    /// are kept ([`Options::plans`](crate::Options::plans)). With [`Options::memory_arena`](crate::Options::memory_arena) off no arena is kept, and none
    /// is taken here.
    ///
    /// ```no_run
    /// # use stepalloc_graph::{Error, Session};
    /// # use stepalloc_tensor::{DataType, View};
    /// # fn warm(session: &Session) -> Result<(), Error> {
    /// // The only input, in batches of 1 and of 8.
    /// let shapes = [[1, 3, 224, 224], [8, 3, 224, 224]];
    /// session.warm_up(&shapes.each_ref().map(|shape| [Some(View { dtype: DataType::F32, shape, bytes: &[] })]))
    /// # }
    /// ```
    pub fn warm_up<'v>(&self, sets: &[impl AsRef<[Option<View<'v>>]>]) -> Result<(), Error> {
        let sets: Vec<_> = sets.iter().map(AsRef::as_ref).collect();
        sets.iter().try_for_each(|inputs| self.check_given(inputs))?;
        self.executor.warm_up(&sets, &self.context(None))
    }
}

impl Executor {
    fn warm_up(&self, sets: &[&[Option<View<'_>>]], context: &RunContext) -> Result<(), Error> {
        let mut made = Vec::with_capacity(sets.len());
        for &inputs in sets {
            made.push((inputs, self.choose_exact(inputs, types_of(inputs), context)?));
        }
        for (inputs, chosen) in &made {
            let kept = self.chosen_before(inputs, context.threads);
            if !kept.is_some_and(|kept| Arc::ptr_eq(&kept.plan, &chosen.plan)) {
                return Err(Error::Argument(format!(
                    "{} sets of inputs want more plans than are kept, which are {} for each session of the model: see Options::plans",
                    sets.len(),
                    self.options.plans
                )));
            }
            let needs = Needs::new(&chosen.plan, &self.optimized(context).0, inputs);
            if needs.limited_bytes() > self.options.max_mem {
                let why = format!("max_mem allows {} bytes", self.options.max_mem);
                let error = Error::Memory { bytes: needs.limited_bytes(), why };
                return Err(self.explained(error, chosen, &|index| inputs[index], context));
            }
        }
        // On the threads that it runs on, which are there from then on.
        self.threads.run(|| {
            made.iter().try_for_each(|(_, chosen)| pack(chosen))?;
            self.touch(&mut made, context)
        })
    }

    /// Takes arenas as runs of these plans would, one after the other, the largest first, so that the others lie within it.
    fn touch(&self, made: &mut [(&[Option<View<'_>>], Chosen)], context: &RunContext) -> Result<(), Error> {
        if !self.options.keep_arenas {
            return Ok(());
        }
        made.sort_by_key(|(_, chosen)| std::cmp::Reverse(chosen.plan.figures.arena_bytes));
        for (inputs, chosen) in made {
            let arena = context.arenas.arena(chosen.plan.figures.arena_bytes as usize, self.taking());
            let mut arena =
                arena.map_err(|error| self.explained(error, chosen, &|index| inputs[index], context))?;
            // What is in an arena between runs is anything.
            arena.memory().iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
        }
        Ok(())
    }
}

/// Packs what runs of a plan want packed.
fn pack(chosen: &Chosen) -> Result<(), Error> {
    let (steps, nodes) = (chosen.plan.steps.iter(), &chosen.plan.graph.nodes);
    steps.filter_map(|step| Some((&nodes[step.node], step.prepacked.as_ref()?))).try_for_each(
        |(node, prepacked)| node.operator.prepack(prepacked).map_err(|error| Error::node(node, error)),
    )
}
