//! A model that is ready to run: plans by the types of the inputs, and memory for them.

mod warm_up;

use crate::arena::{Arenas, Charge, Statistics, Taking};
use crate::binding::Binding;
use crate::context::RunContext;
use crate::error::Error;
use crate::graph::{Declared, Dim, Graph, Node, ValueId};
use crate::model::Model;
use crate::needs::Needs;
use crate::operator::Registry;
use crate::options::Options;
use crate::outputs::Outputs;
use crate::passes::{Changes, Optimization};
use crate::plan::room::{Fit, LEAST_RUNS, covers, growth, runs_ahead, with_room};
use crate::plan::{Appended, Figures, Plan, PlannedRun, Sharing};
use crate::run::{Formers, Frame, Tensors};
use crate::watch::{Cancel, RunOptions};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use stepalloc_tensor::growing::Append;
use stepalloc_tensor::{Tensor, Type, View};
use stepalloc_threads::Threads;

/// Integers and truth values with so many elements at most may decide shapes and branches: where a plan leaves nodes out, it is made
/// anew for what they are.
const TELLING: usize = 16;
/// Plans are made for so many different elements of such inputs: they are data, not parameters, where there are more.
const MOST_TOLD: usize = 64;
/// Plans with room that are kept: for inputs that grow from different beginnings.
const ROOMY: usize = 4;

/// A model and its memory. Runs may come from several threads at once: each has an arena to itself as long as it runs. With
/// [`Options::intra_op_num_threads`] they share these threads, and may wait for one another. A clone is the same session.
#[derive(Clone)]
pub struct Session {
    executor: Arc<Executor>,
    /// What runs take memory from.
    arenas: Arenas,
}

/// What a plan was made for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Those of the runs that it is for; 0 for the caller's.
    threads: usize,
    types: Vec<Option<Type>>,
    /// The elements of inputs that decide; nothing for the others.
    told: Vec<Vec<u8>>,
}

impl Key {
    fn is_for(&self, inputs: &[Option<View<'_>>]) -> bool {
        let is_like = |(ty, view): (&Option<Type>, &Option<View<'_>>)| match (ty, view) {
            (Some(ty), Some(view)) => ty.dtype == view.dtype && ty.shape == *view.shape,
            (None, None) => true,
            _ => false,
        };
        self.types.len() == inputs.len() && self.types.iter().zip(inputs).all(is_like)
    }
}

/// Whether an input may decide: its elements are few, no reals, and there.
fn tells(view: &View<'_>) -> bool {
    let is_there = view.bytes.len() == view.len() * view.dtype.bytes();
    !view.dtype.is_float() && view.len() <= TELLING && is_there
}

/// Whether inputs are what a plan was made for.
fn is_told(known: &[Vec<u8>], inputs: &[Option<View<'_>>]) -> bool {
    known.iter().zip(inputs).all(|(known, view)| match view.as_ref().filter(|view| tells(view)) {
        Some(view) => known == view.bytes,
        None => known.is_empty(),
    })
}

fn by_number(told: &[Option<Arc<Tensor>>]) -> Told {
    let there = told.iter().enumerate().filter_map(|(index, told)| Some((index, Arc::clone(told.as_ref()?))));
    (!told.is_empty()).then(|| there.collect())
}

/// A plan in use, and the elements of inputs it was made for.
pub(crate) struct Chosen {
    pub plan: Arc<Plan>,
    /// What values are, where the plan has room for more.
    fit: Option<Fit>,
    told: Told,
}

/// What inputs are, by number, that a plan was made for.
type Told = Option<Arc<[(usize, Arc<Tensor>)]>>;

impl From<Arc<Plan>> for Chosen {
    fn from(plan: Arc<Plan>) -> Self {
        Self { plan, fit: None, told: None }
    }
}

impl Chosen {
    fn ty(&self, id: ValueId) -> Option<&Type> {
        let varying = self.fit.as_ref().and_then(|fit| fit.ty(&self.plan, id));
        varying.unwrap_or(&self.plan.types[id]).as_ref()
    }

    fn told(&self) -> impl Iterator<Item = &(usize, Arc<Tensor>)> {
        self.told.iter().flat_map(|told| told.iter())
    }

    /// Whether it was made for these inputs, whose types are right.
    pub(crate) fn is_for<'a>(&self, input: impl Fn(usize) -> Option<View<'a>>) -> bool {
        self.told().all(|(index, told)| input(*index).is_some_and(|view| view.bytes == told.view().bytes))
    }
}

/// A graph and its plans. Graphs within nodes have one of their own. What it has of a run, or of the run around it, comes with each call.
pub(crate) struct Executor {
    // Both are found by a graph's address, weights by that of the graph in `common`: they must be gone before it is.
    /// What counts from the first plan on for weights that are not used where they lie in the file, where there is a limit.
    weights: OnceLock<(u64, Option<Arc<Charge>>)>,
    common: Arc<Common>,
    /// As the model has it.
    graph: Arc<Graph>,
    /// Where operators of nodes that planning makes are found.
    registry: Registry,
    /// `None` for a graph within a node.
    model: Option<Model>,
    options: Options,
    /// Those it runs on.
    threads: Threads,
}

/// What sessions of one graph have in common, if they plan alike: plans, and arenas unless they have others.
#[derive(Default)]
struct Common {
    arenas: Arenas,
    kept: Mutex<Kept>,
    /// The graph that is run, and what was done to it.
    optimized: OnceLock<(Arc<Graph>, Changes)>,
}

/// What makes sessions of a graph, by its address, different.
type Which = (usize, Sharing, Optimization);

/// What is in common now. A session keeps its graph alive.
static COMMON: Mutex<Vec<(Which, Weak<Common>)>> = Mutex::new(Vec::new());

impl Common {
    fn of(graph: &Arc<Graph>, options: &Options) -> Arc<Self> {
        let mut all = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, common)| common.strong_count() > 0);
        let which = (Arc::as_ptr(graph) as usize, options.sharing, options.optimization.clone());
        let found = all.iter().find(|(other, _)| *other == which);
        if let Some(common) = found.and_then(|(_, common)| common.upgrade()) {
            return common;
        }
        let common = Arc::new(Self::default());
        all.push((which, Arc::downgrade(&common)));
        common
    }
}

/// A plan with room.
struct Roomy {
    /// As in [`Key`].
    threads: usize,
    /// The largest inputs that it is for.
    types: Vec<Option<Type>>,
    plan: Arc<Plan>,
}

/// A plan that is kept.
struct Made {
    plan: Arc<Plan>,
    told: Told,
    /// When it was used last.
    used: u64,
}

#[derive(Default)]
struct Kept {
    /// Plans with room for larger inputs than were there.
    roomy: Vec<Roomy>,
    /// Types of inputs that no plan was there for, the newest ones, and by how much they had grown.
    newest: Vec<Option<Type>>,
    grown: Option<Vec<Vec<usize>>>,
    /// Runs that are left until a plan with room is tried again, after one could not be made.
    refused: usize,
    plans: HashMap<Key, Made>,
    /// The one for inputs of any types, which of them are there, and threads as in [`Key`].
    open: Option<(usize, Vec<bool>, Arc<Plan>)>,
    /// What inputs were told to be where plans were made for that, not for their types alone.
    told: Vec<Vec<Vec<u8>>>,
    /// Uses so far.
    clock: u64,
    /// Plans made so far.
    made: u64,
}

impl Executor {
    pub(crate) fn new(graph: Arc<Graph>, registry: Registry, sharing: Sharing) -> Self {
        let options = Options { sharing, ..Options::default() };
        let threads = Threads::default();
        Self {
            graph,
            registry,
            model: None,
            options,
            threads,
            weights: OnceLock::new(),
            common: Arc::default(),
        }
    }

    /// For a session, with what that takes memory from.
    fn with_options(model: &Model, options: Options) -> (Self, Arenas) {
        let graph = Arc::clone(&model.graph);
        let mut options = options;
        let limited = options.max_mem < u64::MAX;
        options.sharing.packed &= !limited && !options.arenas.as_ref().is_some_and(Arenas::is_limited);
        let common = Common::of(&graph, &options);
        let arenas = match &options.arenas {
            Some(arenas) => arenas.clone(),
            None if limited => Arenas::with_max_mem(options.max_mem),
            None => common.arenas.clone(),
        };
        let registry = model.registry.clone();
        let (model, weights) = (Some(model.clone()), OnceLock::new());
        let threads = Threads::new(options.intra_op_num_threads);
        (Self { graph, registry, model, options, threads, weights, common }, arenas)
    }

    /// The graph that is run: optimized when it is first asked for.
    fn optimized(&self, context: &RunContext) -> &(Arc<Graph>, Changes) {
        if let Some(optimized) = self.common.optimized.get() {
            return optimized;
        }
        // Not within the cell: its work is shared among threads, which may come back here meanwhile. The first to be done is kept.
        let made = match &self.model {
            Some(model) => {
                let optimization = self.options.optimization.clone().for_sessions();
                let optimize =
                    |context: &RunContext| model.clone().optimize_with(&optimization, context.clone());
                let (model, changes) = self.preparing(context, optimize);
                (model.graph, changes)
            }
            None => (Arc::clone(&self.graph), Changes::default()),
        };
        self.common.optimized.get_or_init(|| made)
    }

    /// Does what is done before a run, on as many threads as that may have. What ends the run does not end it, since what it makes serves
    /// other runs too.
    fn preparing<R: Send>(&self, context: &RunContext, body: impl FnOnce(&RunContext) -> R + Send) -> R {
        let context = RunContext { cancel: None, ..context.clone() };
        match self.options.compilation_num_threads {
            0 => self.threads.run(|| body(&context)),
            own => Threads::new(own).run(|| body(&context)),
        }
    }

    /// Whether weights are within the limits.
    fn count_weights(&self, context: &RunContext) -> Result<(), Error> {
        let arenas = &context.arenas;
        let is_limited = self.options.max_mem < u64::MAX || arenas.is_limited();
        if self.model.is_some() && is_limited && self.weights.get().is_none() {
            let graph = &self.optimized(context).0;
            let bytes = graph.copied_bytes();
            let charge = (bytes > 0).then(|| arenas.weights(Arc::as_ptr(graph) as usize, bytes)).transpose();
            let charge = charge.map_err(|error| match error {
                Error::Memory { bytes, why } => {
                    let copied =
                        graph.values.iter().filter_map(|value| Some((value, value.constant.as_ref()?)));
                    let copied = copied.filter(|(_, tensor)| !tensor.is_lent());
                    let largest = copied.max_by_key(|(_, tensor)| tensor.ty().bytes());
                    let named = largest.map_or_else(String::new, |(value, tensor)| {
                        format!(", the largest of which is {} {}", value.name, tensor.ty())
                    });
                    Error::Memory {
                        bytes,
                        why: format!("{why}, and weights that are copied take them alone{named}"),
                    }
                }
                other => other,
            })?;
            let _ = self.weights.set((bytes, charge));
        }
        Ok(())
    }

    /// What counts for weights.
    fn weight_bytes(&self) -> u64 {
        self.weights.get().map_or(0, |(bytes, _)| *bytes)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.common.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan for inputs of these types, whatever is in them.
    fn plan(&self, types: &[Option<Type>], context: &RunContext) -> Result<Arc<Plan>, Error> {
        let key = Key { threads: context.threads, types: types.to_vec(), told: Vec::new() };
        self.plan_told(key, &[], context)
    }

    /// A plan with room for inputs of these types, if they go on growing as they did, or one that was made for such.
    fn roomy(&self, types: &[Option<Type>], context: &RunContext) -> Option<Chosen> {
        // Within a limit no plan takes more than it must.
        if self.options.max_mem < u64::MAX || context.arenas.is_limited() {
            return None;
        }
        let threads = context.threads;
        let mut kept = self.kept();
        if kept.plans.contains_key(&Key { threads, types: types.to_vec(), told: Vec::new() }) {
            return None;
        }
        let before = std::mem::replace(&mut kept.newest, types.to_vec());
        let grown = growth(&before, types);
        // Twice by as much: other inputs only happen to be larger than those before.
        let goes_on = grown.is_some() && grown == std::mem::replace(&mut kept.grown, grown.clone());
        kept.refused = kept.refused.saturating_sub(1);
        let is_refused = kept.refused > 0;
        let fitting =
            kept.roomy.iter().rev().filter(|roomy| roomy.threads == threads && covers(&roomy.types, types));
        let fitting: SmallVec<[_; ROOMY]> = fitting.map(|roomy| Arc::clone(&roomy.plan)).collect();
        drop(kept);
        let fits = |plan: Arc<Plan>| Some(Chosen { fit: Some(plan.fit(types, context)?), plan, told: None });
        if let Some(chosen) = fitting.into_iter().find_map(fits) {
            return Some(chosen);
        }
        let grown = grown.filter(|_| goes_on && !is_refused)?;
        let grow: Vec<_> = grown.iter().map(|by| by.iter().any(|&by| by > 0)).collect();
        let graph = &self.optimized(context).0;
        let make = |runs: usize| {
            let roomy = with_room(types, &grown, runs)?;
            let make =
                |context: &RunContext| Plan::with_room(graph, &roomy, &grow, self.options.sharing, context);
            let plan = self.preparing(context, make)?;
            Some((roomy, fits(Arc::new(plan))?))
        };
        // A model may have a bound on what it takes, as a table of positions has.
        let most = runs_ahead(types, &grown);
        let tries = [most, LEAST_RUNS, LEAST_RUNS / 4].into_iter();
        let found = tries.skip(usize::from(most == LEAST_RUNS)).find_map(make);
        let mut kept = self.kept();
        let Some((types, chosen)) = found else {
            kept.refused = LEAST_RUNS;
            return None;
        };
        // Those that have less room are of no more use.
        kept.roomy.retain(|smaller| smaller.threads != threads || !covers(&types, &smaller.types));
        if kept.roomy.len() >= ROOMY {
            kept.roomy.remove(0);
        }
        kept.roomy.push(Roomy { threads, types, plan: Arc::clone(&chosen.plan) });
        kept.made += 1;
        Some(chosen)
    }

    /// The plan for these inputs: for what some of them are, where types alone leave nodes out.
    pub(crate) fn choose(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<Chosen, Error> {
        self.count_weights(context)?;
        if let Some(chosen) = self.chosen_before(inputs, context.threads) {
            return Ok(chosen);
        }
        if self.model.is_none()
            && let Some(chosen) = self.open(inputs, context)?
        {
            return Ok(chosen);
        }
        let types = types_of(inputs);
        if let Some(chosen) = self.roomy(&types, context) {
            return Ok(chosen);
        }
        self.choose_exact(inputs, types, context)
    }

    /// The plan that was made for inputs of these types, or for what they are, found without any memory.
    fn chosen_before(&self, inputs: &[Option<View<'_>>], threads: usize) -> Option<Chosen> {
        let mut kept = self.kept();
        let is_full = self.model.is_none() && kept.plans.len() >= self.options.plans;
        let Kept { plans, told, clock, .. } = &mut *kept;
        let (mut plain, mut exact) = (None, None);
        for (key, made) in plans.iter_mut().filter(|(key, _)| key.threads == threads && key.is_for(inputs)) {
            if key.told.is_empty() {
                plain = Some(made);
            } else if is_told(&key.told, inputs) {
                exact = Some(made);
            }
        }
        let plain = plain?;
        let decides = plain.plan.figures.unplanned_nodes > 0 && inputs.iter().flatten().any(tells);
        let is_data = told.len() >= MOST_TOLD && !told.iter().any(|told| is_told(told, inputs));
        let made = match exact {
            Some(exact) if decides => exact,
            None if decides && !is_data && !is_full => return None,
            _ => plain,
        };
        *clock += 1;
        made.used = *clock;
        Some(Chosen { plan: Arc::clone(&made.plan), fit: None, told: made.told.clone() })
    }

    /// For a graph within a node, whose inputs' sizes elements may decide: the plan for inputs of any types, once there have been as many
    /// as plans are kept.
    fn open(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<Option<Chosen>, Error> {
        let kept = self.kept();
        if kept.plans.len() < self.options.plans {
            return Ok(None);
        }
        let is_for = |threads: usize, there: &[bool]| {
            threads == context.threads && there.iter().copied().eq(inputs.iter().map(Option::is_some))
        };
        if let Some((.., plan)) = kept.open.as_ref().filter(|(threads, there, _)| is_for(*threads, there)) {
            return Ok(Some(Arc::clone(plan).into()));
        }
        drop(kept);
        let there: Vec<_> = inputs.iter().map(Option::is_some).collect();
        let graph = &self.optimized(context).0;
        let make = |context: &RunContext| Plan::open(graph, &there, self.options.sharing, context);
        let plan = Arc::new(self.preparing(context, make)?);
        let mut kept = self.kept();
        kept.open = Some((context.threads, there, Arc::clone(&plan)));
        kept.made += 1;
        Ok(Some(plan.into()))
    }

    /// The same, made for just these types.
    fn choose_exact(
        &self,
        inputs: &[Option<View<'_>>],
        types: Vec<Option<Type>>,
        context: &RunContext,
    ) -> Result<Chosen, Error> {
        let plan = self.plan(&types, context)?;
        if plan.figures.unplanned_nodes == 0 || !inputs.iter().flatten().any(tells) {
            return Ok(plan.into());
        }
        let kept = self.kept();
        if kept.told.len() >= MOST_TOLD && !kept.told.iter().any(|told| is_told(told, inputs)) {
            return Ok(plan.into());
        }
        drop(kept);
        let told: Vec<_> =
            inputs.iter().map(|view| view.filter(tells).map(|view| Arc::new(view.to_tensor()))).collect();
        let bytes = |told: &Option<Arc<Tensor>>| {
            told.as_ref().map_or_else(Vec::new, |told| told.view().bytes.to_vec())
        };
        let key = Key { threads: context.threads, types, told: told.iter().map(bytes).collect() };
        let plan = self.plan_told(key, &told, context)?;
        Ok(Chosen { plan, fit: None, told: by_number(&told) })
    }

    /// What the plan for these inputs says of a run.
    fn planned_run(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<PlannedRun, Error> {
        let chosen = self.choose_exact(inputs, types_of(inputs), context)?;
        let mut told = vec![None; inputs.len()];
        chosen.told().for_each(|(index, tensor)| told[*index] = Some(Arc::clone(tensor)));
        chosen.plan.planned_run(&types_of(inputs), &told, self.options.sharing, context)
    }

    /// The same for what some inputs are.
    fn plan_told(
        &self,
        key: Key,
        told: &[Option<Arc<Tensor>>],
        context: &RunContext,
    ) -> Result<Arc<Plan>, Error> {
        self.count_weights(context)?;
        let mut kept = self.kept();
        kept.clock += 1;
        let now = kept.clock;
        if let Some(made) = kept.plans.get_mut(&key) {
            made.used = now;
            return Ok(Arc::clone(&made.plan));
        }
        drop(kept);
        let (graph, sharing) = (&self.optimized(context).0, self.options.sharing);
        let make =
            |context: &RunContext| Plan::new(graph, &key.types, told, sharing, &self.registry, context);
        let plan = Arc::new(self.preparing(context, make)?);
        let mut kept = self.kept();
        while kept.plans.len() >= self.options.plans.saturating_mul(Arc::strong_count(&self.common)) {
            let oldest = kept.plans.iter().min_by_key(|(_, made)| made.used).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| kept.plans.remove(&oldest));
        }
        if !told.is_empty() && kept.told.len() < MOST_TOLD && !kept.told.contains(&key.told) {
            kept.told.push(key.told.clone());
        }
        kept.plans.insert(key, Made { plan: Arc::clone(&plan), told: by_number(told), used: now });
        kept.made += 1;
        Ok(plan)
    }

    /// Types of the outputs for inputs of these types, as far as they are known before it runs.
    pub(crate) fn output_types(
        &self,
        types: &[Option<Type>],
        context: &RunContext,
    ) -> Result<Vec<Option<Type>>, Error> {
        let plan = self.plan(types, context)?;
        Ok(plan.graph.outputs.iter().map(|&id| plan.types[id].clone()).collect())
    }

    /// Runs the graph on inputs followed by what it takes from outside.
    pub(crate) fn run(
        &self,
        inputs: &[Option<View<'_>>],
        options: &mut RunOptions<'_>,
        context: &RunContext,
    ) -> Result<Tensors, Error> {
        let chosen = self.choose(inputs, context)?;
        let (count, arenas) = (self.graph.outputs.len(), &context.arenas);
        let mut outputs =
            if self.model.is_some() { Outputs::new(count, arenas) } else { Outputs::within(count, arenas) };
        self.run_views(&chosen, &|index| inputs[index], &mut outputs, options, context)?;
        // Each was made or it was an error.
        Ok(outputs.tensors.into_iter().flatten().collect())
    }

    /// Runs the graph on tensors, into outputs that are kept where they are of the right type. Those that are `fed_back` are made where
    /// an input is, if they are that with rows appended.
    pub(crate) fn run_in(
        &self,
        chosen: &Chosen,
        (inputs, fed_back): (&[Option<Tensor>], &[(usize, usize)]),
        outputs: &mut Outputs,
        options: &mut RunOptions<'_>,
        context: &RunContext,
    ) -> Result<(), Error> {
        let append = |appended: &Appended| {
            let past = inputs[appended.input]
                .as_ref()
                .filter(|_| fed_back.iter().any(|&(output, _)| output == appended.output))?;
            Some(Append::new(past, chosen.ty(appended.id)?.clone(), appended.axis))
        };
        outputs.appends.clear();
        for appended in &chosen.plan.appended {
            let append = append(appended).transpose()?;
            outputs.copied_bytes += append.as_ref().map_or(0, |append| append.copied_bytes() as u64);
            outputs.appends.push(append);
        }
        let inputs = |index: usize| inputs[index].as_ref().map(Tensor::view);
        let done = self.run_views(chosen, &inputs, outputs, options, context);
        outputs.appends.clear();
        done
    }

    fn run_views<'a>(
        &self,
        chosen: &Chosen,
        inputs: &(dyn Fn(usize) -> Option<View<'a>> + Sync),
        outputs: &mut Outputs,
        options: &mut RunOptions<'_>,
        context: &RunContext,
    ) -> Result<(), Error> {
        let plan = &chosen.plan;
        let appends = std::mem::take(&mut outputs.appends);
        let is_appended = |index: usize| {
            let mut all = plan.appended.iter().zip(appends.iter());
            all.any(|(appended, append)| appended.output == index && append.is_some())
        };
        let types = plan.graph.outputs.iter().enumerate();
        let types = types.map(|(index, &id)| chosen.ty(id).filter(|_| !is_appended(index)));
        if self.options.max_mem < u64::MAX || context.arenas.is_limited() {
            // No memory is kept for those whose types are known only when it runs.
            let unknown = types.clone().enumerate().filter(|(_, ty)| ty.is_none());
            unknown.for_each(|(index, _)| outputs.put(index, None));
        }
        // Arenas that the session shares know nothing of the limit of its own.
        let total = self.weight_bytes() + plan.figures.arena_bytes + outputs.wanted(types.clone());
        if total > self.options.max_mem {
            let why = format!("max_mem allows {} bytes", self.options.max_mem);
            return Err(self.explained(Error::Memory { bytes: total, why }, chosen, inputs, context));
        }
        outputs.make(types).map_err(|error| self.explained(error, chosen, inputs, context))?;
        outputs.appends = appends;
        let free = self.threads.run(|| self.run_frame(chosen, inputs, outputs, options, context))?;
        let mut appends = std::mem::take(&mut outputs.appends);
        for (index, tensor) in free {
            outputs.put_made(index, tensor)?;
        }
        for (appended, append) in plan.appended.iter().zip(&mut appends) {
            if let Some(append) = append.take() {
                outputs.put_made(appended.output, append.finish())?;
            }
        }
        outputs.appends = appends;
        match outputs.tensors.iter().position(Option::is_none) {
            Some(index) => {
                let name = &self.graph.values[self.graph.outputs[index]].name;
                Err(Error::model(format!("output {name} was not made")))
            }
            None => Ok(()),
        }
    }

    /// An error of memory with what the memory is for: the parts, where most is alive, and the largest tensors.
    fn explained<'a>(
        &self,
        error: Error,
        chosen: &Chosen,
        inputs: &(dyn Fn(usize) -> Option<View<'a>> + Sync),
        context: &RunContext,
    ) -> Error {
        let Error::Memory { bytes, why } = error else { return error };
        // Graphs within nodes do not know what is told of their inputs, and are the node's that is named.
        if self.model.is_none() {
            return Error::Memory { bytes, why };
        }
        let graph = &chosen.plan.graph;
        let given: Vec<_> = (0..graph.inputs.len()).map(inputs).collect();
        let mut told = vec![None; given.len()];
        chosen.told().for_each(|(index, tensor)| told[*index] = Some(Arc::clone(tensor)));
        let run = chosen.plan.planned_run(&types_of(&given), &told, self.options.sharing, context);
        let outputs = graph.outputs.iter().filter_map(|&id| Some((id, chosen.ty(id)?)));
        let output_bytes = outputs.clone().fold(0u64, |all, (_, ty)| all.saturating_add(ty.bytes() as u64));
        let (arena, weights) = (chosen.plan.figures.arena_bytes, self.weight_bytes());
        let mut why =
            format!("{why}; the arena is {arena} of them, outputs {output_bytes}, copied weights {weights}");
        if let Some((step, block)) = run.as_ref().ok().and_then(PlannedRun::peak) {
            let largest = match block.values.last() {
                Some(value) => format!("{} {}", value.name, value.ty),
                None => "scratch memory".into(),
            };
            why += &format!(
                "; most of the arena is in use at node {} ({}), where {largest} is the largest, {} bytes",
                step.name, step.op_type, block.bytes
            );
        }
        if let Some((id, ty)) = outputs.max_by_key(|(_, ty)| ty.bytes()) {
            why += &format!("; the largest output is {} {ty}", graph.values[id].name);
        }
        Error::Memory { bytes, why }
    }

    /// How it takes arenas.
    fn taking(&self) -> Taking {
        let Options { extend, huge_pages, keep_arenas: keep, .. } = self.options;
        Taking { extend, huge_pages, keep }
    }

    /// Runs a plan in an arena; what was made beside it is returned, by the number of the output.
    fn run_frame<'a>(
        &self,
        chosen: &Chosen,
        inputs: &(dyn Fn(usize) -> Option<View<'a>> + Sync),
        outputs: &mut Outputs,
        options: &mut RunOptions<'_>,
        context: &RunContext,
    ) -> Result<Formers, Error> {
        let plan = &*chosen.plan;
        let arena = context.arenas.arena(plan.figures.arena_bytes as usize, self.taking());
        let mut arena = arena.map_err(|error| self.explained(error, chosen, inputs, context))?;
        // Views of a shorter life.
        let inputs = |index: usize| inputs(index);
        let mut formers = Formers::new();
        for (index, &id) in plan.graph.outputs.iter().enumerate() {
            if chosen.ty(id).is_none() {
                formers.extend(outputs.tensors[index].take().map(|former| (index, former)));
            }
        }
        let made = (plan, chosen.fit.as_ref());
        // Those of graphs within nodes are values of the run around.
        let Outputs { tensors, appends, .. } = outputs;
        let outputs = (&mut tensors[..], self.model.is_some().then_some(&mut formers));
        let frame = Frame::new(made, &inputs, arena.memory(), outputs, appends, context);
        frame.run(options)
    }
}

impl Session {
    /// Prepares a model.
    pub fn new(model: &impl AsRef<Model>) -> Self {
        Self::with_options(model, Options::default())
    }

    /// The same, as told.
    pub fn with_options(model: &impl AsRef<Model>, options: Options) -> Self {
        let (executor, arenas) = Executor::with_options(model.as_ref(), options);
        Self { executor: Arc::new(executor), arenas }
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    pub(crate) fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    /// What its runs have, those that are planned too.
    pub(crate) fn context(&self, cancel: Option<&Cancel>) -> RunContext {
        let Options { intra_op_num_threads: runs, compilation_num_threads: own, .. } = self.executor.options;
        // Where it is planned on threads of its own, the caller's are counted here.
        let threads = if runs == 0 && own > 0 { stepalloc_threads::count() } else { runs };
        RunContext { arenas: self.arenas.clone(), cancel: cancel.cloned(), threads }
    }

    /// The graph that is run, and what was done to it.
    fn optimized(&self) -> &(Arc<Graph>, Changes) {
        self.executor.optimized(&self.context(None))
    }

    /// The plan for just these inputs.
    fn exact(&self, inputs: &[Option<View<'_>>]) -> Result<Arc<Plan>, Error> {
        self.check_given(inputs)?;
        Ok(self.executor.choose_exact(inputs, types_of(inputs), &self.context(None))?.plan)
    }

    /// What it computes.
    pub fn graph(&self) -> &Graph {
        &self.executor.graph
    }

    /// What was done to optimize the graph; it is done now if no plan was made yet.
    pub fn changes(&self) -> &Changes {
        &self.optimized().1
    }

    /// How good the plan for these inputs is, in the order of the graph's inputs; `None` for those with a default. Views without bytes
    /// stand for their types: what elements would tell is left open.
    pub fn figures(&self, inputs: &[Option<View<'_>>]) -> Result<Figures, Error> {
        Ok(self.exact(inputs)?.figures)
    }

    /// What runs when on these inputs, and what lies where in the arena meanwhile, by the plan of [`Session::figures`]. It is put
    /// together anew each time: plans do not keep it.
    pub fn planned_run(&self, inputs: &[Option<View<'_>>]) -> Result<PlannedRun, Error> {
        self.check_given(inputs)?;
        self.executor.planned_run(inputs, &self.context(None))
    }

    /// Whether all inputs, in the order of the graph's, are as the model declares them.
    fn check_given(&self, inputs: &[Option<View<'_>>]) -> Result<(), Error> {
        let (given, wanted) = (inputs.len(), self.graph().inputs.len());
        if given != wanted {
            return Err(Error::Argument(format!("there are {wanted} inputs, and {given} are given")));
        }
        for (number, view) in
            inputs.iter().enumerate().filter_map(|(number, view)| Some((number, view.as_ref()?)))
        {
            self.check(number, view)?;
        }
        self.check_all(inputs)
    }

    /// Bytes that a run on these inputs counts towards [`Options::max_mem`], as the plan tells: without those of nodes that cannot be
    /// planned. Views without bytes stand for their types.
    pub fn wanted_bytes(&self, inputs: &[Option<View<'_>>]) -> Result<u64, Error> {
        self.needs(inputs).map(|needs| needs.limited_bytes())
    }

    /// What a run on these inputs takes, part by part, as the plan tells: without what nodes take that cannot be planned. Views without
    /// bytes stand for their types.
    pub fn needs(&self, inputs: &[Option<View<'_>>]) -> Result<Needs, Error> {
        let plan = self.exact(inputs)?;
        Ok(Needs::new(&plan, &self.optimized().0, inputs))
    }

    /// What its arenas have and had; with those of others, if it shares them.
    pub fn statistics(&self) -> Statistics {
        self.arenas.statistics()
    }

    /// Plans made so far, for all sessions of its model that plan as it does.
    pub fn plans_made(&self) -> u64 {
        self.executor.kept().made
    }

    /// Gives arenas that no run has now back to the system. The next run takes one anew.
    pub fn release_memory(&self) {
        self.arenas.release_memory();
    }

    /// Pairs of an output and an input, by name, where the output is the input with rows appended, as a decoder's keys and values are: what
    /// [`Binding::feed_back`] takes.
    pub fn appended(&self) -> Vec<(&str, &str)> {
        let (run, graph) = (&self.optimized().0, self.graph());
        let name = |id: ValueId| &*graph.values[id].name;
        let pair = |node: &Node| {
            let (past, present) = (node.inputs.first().copied()??, node.outputs.first().copied()??);
            let input = run.inputs.iter().position(|&id| id == past)?;
            let output = run.outputs.iter().position(|&id| id == present)?;
            Some((name(graph.outputs[output]), name(graph.inputs[input])))
        };
        let is_concat = |node: &&Node| node.op_type == "Concat" && node.domain.is_empty();
        run.nodes.iter().filter(is_concat).filter_map(pair).collect()
    }

    /// Tensors that stay bound from run to run.
    pub fn binding(&self) -> Binding {
        Binding::new(self.clone())
    }

    /// Whether an input is as the model declares it.
    pub(crate) fn check(&self, number: usize, view: &View<'_>) -> Result<(), Error> {
        let value = &self.graph().values[self.graph().inputs[number]];
        check(&value.name, view, value.declared.as_ref())
    }

    /// Whether every input is there that must be.
    pub(crate) fn check_all(&self, inputs: &[Option<View<'_>>]) -> Result<(), Error> {
        let values = self.graph().inputs.iter().map(|&id| &self.graph().values[id]);
        match values.zip(inputs).find(|(value, given)| given.is_none() && value.constant.is_none()) {
            Some((value, _)) => Err(Error::Argument(format!("input {} is missing", value.name))),
            None => Ok(()),
        }
    }

    /// Runs the model on inputs by name; outputs in the model's order.
    pub fn run(&self, inputs: &[(&str, View<'_>)]) -> Result<Vec<(String, Tensor)>, Error> {
        self.run_with(inputs, RunOptions::new())
    }

    /// The same, as told.
    pub fn run_with(
        &self,
        inputs: &[(&str, View<'_>)],
        mut options: RunOptions<'_>,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let graph = self.graph();
        let name = |id: usize| graph.values[id].name.as_str();
        for (index, (given, view)) in inputs.iter().enumerate() {
            if inputs[..index].iter().any(|(other, _)| other == given) {
                return Err(Error::Argument(format!("input {given} is given twice")));
            }
            check_bytes(given, view)?;
            if !graph.inputs.iter().any(|&id| name(id) == *given) {
                let names: Vec<_> = graph.inputs.iter().map(|&id| name(id)).collect();
                return Err(Error::Argument(format!(
                    "there is no input {given}; inputs are {}",
                    names.join(", ")
                )));
            }
        }
        let mut views = Vec::with_capacity(graph.inputs.len());
        for (number, &id) in graph.inputs.iter().enumerate() {
            let given = inputs.iter().find(|(given, _)| *given == name(id)).map(|(_, view)| *view);
            match given {
                Some(view) => self.check(number, &view)?,
                None if graph.values[id].constant.is_none() => {
                    return Err(Error::Argument(format!("input {} is missing", name(id))));
                }
                None => {}
            }
            views.push(given);
        }
        let context = self.context(options.cancelled_by());
        let outputs = self.executor.run(&views, &mut options, &context);
        if options.shrinks() {
            self.release_memory();
        }
        let outputs = outputs?;
        Ok(graph.outputs.iter().map(|&id| name(id).to_owned()).zip(outputs).collect())
    }
}

fn types_of(inputs: &[Option<View<'_>>]) -> Vec<Option<Type>> {
    let ty = |view: &View<'_>| Type { dtype: view.dtype, shape: view.shape.into() };
    inputs.iter().map(|view| view.as_ref().map(ty)).collect()
}

/// Whether the bytes of an input are those of its elements.
fn check_bytes(name: &str, view: &View<'_>) -> Result<(), Error> {
    let width = view.dtype.bytes();
    let bytes = view.shape.iter().try_fold(width, |bytes, &size| bytes.checked_mul(size));
    let wrong =
        |what: String| Err(Error::Argument(format!("input {name} of {}{:?} {what}", view.dtype, view.shape)));
    if bytes != Some(view.bytes.len()) {
        return wrong(format!("has {} bytes", view.bytes.len()));
    }
    if !view.bytes.is_empty() && !(view.bytes.as_ptr() as usize).is_multiple_of(width) {
        return wrong(format!("does not begin at a multiple of {width} bytes: copy it to a Tensor"));
    }
    Ok(())
}

/// Whether an input is as the model declares it.
fn check(name: &str, view: &View<'_>, declared: Option<&Declared>) -> Result<(), Error> {
    let Some(declared) = declared else { return Ok(()) };
    let fits = |(dim, &size): (&Dim, &usize)| !matches!(dim, Dim::Fixed(fixed) if *fixed != size);
    let shape_fits = declared
        .dims
        .as_ref()
        .is_none_or(|dims| dims.len() == view.shape.len() && dims.iter().zip(view.shape).all(fits));
    if view.dtype == declared.dtype && shape_fits {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "input {name} is {}{:?}; the model takes {}{}",
        view.dtype,
        view.shape,
        declared.dtype,
        dims_text(declared)
    )))
}

/// Dimensions as a model declares them.
fn dims_text(declared: &Declared) -> String {
    let Some(dims) = &declared.dims else { return " of any shape".into() };
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => size.to_string(),
        Dim::Named(name) => name.clone(),
        Dim::Any => "?".into(),
    };
    format!("[{}]", dims.iter().map(dim).collect::<Vec<_>>().join(", "))
}
