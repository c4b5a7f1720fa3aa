//! Operators that run graphs: If, Loop and Scan.
//!
//! Each graph has an executor of its own, which keeps plans by the types it is given. Where these types tell those of what comes out
//! (a Scan over a sequence of known length, an If whose branches make the same), the node is planned as others are; else it runs
//! freely. The inputs of a node are followed by what its graphs take from outside, graph after graph in the order of the
//! attributes' names.

use super::{Call, Definition, Known, Made, Operator, Stacked, Types, Unclear, axis, copied, typed};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use stepalloc_graph::{Declared, Dim, Graph, RunContext, Subgraph, Tensors};
use stepalloc_tensor::{Bool, DataType, OpError, Shape, Tensor, Type, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "If" => If::new(node).map(|made| Box::new(made) as _),
        "Loop" => Loop::new(node).map(|made| Box::new(made) as _),
        "Scan" => super::scan::Scan::new(node).map(|made| Box::new(made) as _),
        _ => return None,
    })
}

/// What a graph is given, in practice, at most; more takes memory in each run.
pub(super) const FEW: usize = 16;

/// A graph within a node.
pub(super) struct Body {
    graph: Subgraph,
    /// What it takes from outside, among the node's inputs.
    captures: Range<usize>,
    pub inputs: usize,
    pub outputs: usize,
    /// What the model says of its inputs and outputs.
    declared_inputs: Vec<Option<Declared>>,
    declared_outputs: Vec<Option<Declared>>,
    is_pure: bool,
}

/// The graphs of these attributes, which are sorted by name; `None` for those that are left out.
pub(super) fn bodies<const N: usize>(
    node: &Definition<'_>,
    names: [&str; N],
) -> Result<[Option<Body>; N], OpError> {
    debug_assert!(names.is_sorted(), "captures come in the order of the names");
    let mut begin = node.inputs.len();
    Ok(names.map(|name| {
        let graph = node.attributes.graph(name)?;
        let captures = begin..begin + graph.captured.len();
        begin = captures.end;
        let declared = |ids: &[usize]| ids.iter().map(|&id| graph.values[id].declared.clone()).collect();
        Some(Body {
            captures,
            inputs: graph.inputs.len(),
            outputs: graph.outputs.len(),
            declared_inputs: declared(&graph.inputs),
            declared_outputs: declared(&graph.outputs),
            is_pure: is_pure(&graph),
            graph: Subgraph::new(graph, node.registry),
        })
    }))
}

/// The graph of an attribute that must be there, the only one of its node.
pub(super) fn body(node: &Definition<'_>) -> Result<Body, OpError> {
    let [body] = bodies(node, ["body"])?;
    body.ok_or_else(|| OpError::attribute("it has no graph called body"))
}

fn is_pure(graph: &Graph) -> bool {
    graph.nodes.iter().all(|node| node.operator.is_pure())
}

impl Body {
    pub(super) fn is_pure(&self) -> bool {
        self.is_pure
    }

    /// Runs it on `own` inputs, of a node whose inputs are `all`.
    pub(super) fn run<'a>(
        &self,
        own: impl IntoIterator<Item = View<'a>>,
        all: &[Option<View<'a>>],
        context: &RunContext,
    ) -> Result<Tensors, OpError> {
        let mut views: SmallVec<[_; FEW]> = own.into_iter().map(Some).collect();
        views.extend_from_slice(
            all.get(self.captures.clone()).ok_or_else(|| OpError::arity("it lacks what its graph takes"))?,
        );
        Ok(self.graph.run(&views, context)?)
    }

    /// Types of what comes out, as far as those of `own` inputs tell them; of a node whose inputs are `all`.
    pub(super) fn infer(&self, own: &[Type], all: &Known<'_>) -> Vec<Option<Type>> {
        let unknown = vec![None; self.outputs];
        let mut types: Vec<_> = own.iter().cloned().map(Some).collect();
        for index in self.captures.clone() {
            match all.opt(index) {
                Some(ty) => types.push(Some(ty.clone())),
                None => return unknown,
            }
        }
        // What is wrong with the graph is told when it runs: it may never do so.
        self.graph.output_types(&types, all.context).unwrap_or(unknown)
    }

    /// The type that the model says an output has, where open dimensions are 0.
    pub(super) fn declared_output(&self, index: usize) -> Option<Type> {
        let declared = self.declared_outputs.get(index)?.as_ref()?;
        let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 0 };
        Type::new(declared.dtype, declared.dims.as_ref()?.iter().map(size).collect::<Vec<_>>())
    }

    /// The shape of an input that is one number: of one dimension if the model says so.
    fn shape_of_number(&self, index: usize) -> Shape {
        let declared = self.declared_inputs.get(index).and_then(Option::as_ref);
        let rank = declared.and_then(|declared| declared.dims.as_ref()).map_or(0, Vec::len);
        (0..rank.min(1)).map(|_| 1).collect()
    }
}

/// Copies what ran freely to the outputs of a call.
pub(super) fn deliver(call: &mut Call<'_, '_>, made: &[Tensor]) -> Result<(), OpError> {
    for (index, tensor) in made.iter().enumerate() {
        let Some(output) = call.opt_output(index) else { continue };
        let (from, got) = (tensor.view(), tensor.ty());
        if output.dtype != from.dtype || output.shape != from.shape {
            return Err(OpError::shape(format!(
                "output {index} is {got} instead of {}{:?}",
                output.dtype, output.shape
            )));
        }
        output.bytes.copy_from_slice(from.bytes);
    }
    Ok(())
}

/// Types, if all are known.
pub(super) fn certain(types: impl IntoIterator<Item = Option<Type>>) -> Result<Types, Unclear> {
    types.into_iter().collect::<Option<_>>().ok_or(Unclear::Needs(0))
}

/// One truth value.
fn truth(view: &View<'_>) -> Result<bool, OpError> {
    match (view.dtype, view.len()) {
        (DataType::Bool, 1) => Ok(view.elements::<Bool>()[0].get()),
        _ => {
            Err(OpError::shape(format!("a condition is {}{:?}, not one truth value", view.dtype, view.shape)))
        }
    }
}

/// One of two graphs runs.
struct If {
    branches: [Body; 2],
}

impl If {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let [Some(no), Some(yes)] = bodies(node, ["else_branch", "then_branch"])? else {
            return Err(OpError::attribute("it has not both branches"));
        };
        if let Some(branch) = [&no, &yes].into_iter().find(|branch| branch.outputs < node.outputs.len()) {
            return Err(OpError::arity(format!(
                "it has {} outputs, a branch {}",
                node.outputs.len(),
                branch.outputs
            )));
        }
        Ok(Self { branches: [no, yes] })
    }

    fn choose(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<Tensors, OpError> {
        let condition = inputs.first().copied().flatten().ok_or(OpError::MissingInput(0))?;
        self.branches[usize::from(truth(&condition)?)].run([], inputs, context)
    }
}

impl Operator for If {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        if let Ok(condition) = inputs.value(0) {
            return certain(self.branches[usize::from(truth(&condition)?)].infer(&[], inputs));
        }
        let [no, yes] = &self.branches;
        let (no, yes) = (certain(no.infer(&[], inputs))?, certain(yes.infer(&[], inputs))?);
        if no == yes { Ok(yes) } else { Err(Unclear::Needs(0)) }
    }

    fn is_pure(&self) -> bool {
        self.branches.iter().all(Body::is_pure)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let made = self.choose(call.inputs, call.context)?;
        deliver(call, &made)
    }

    fn run_freely(
        &self,
        inputs: &[Option<View<'_>>],
        context: &RunContext,
    ) -> Option<Result<Tensors, OpError>> {
        Some(self.choose(inputs, context))
    }
}

/// A graph runs again and again: so many times, or as long as it says.
struct Loop {
    body: Body,
    /// Values that go from one run to the next.
    states: usize,
}

impl Loop {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let body = body(node)?;
        let states =
            node.inputs.len().checked_sub(2).ok_or_else(|| OpError::arity("it has fewer than two inputs"))?;
        if body.inputs != states + 2 || body.outputs < states + 1 || body.outputs - 1 < node.outputs.len() {
            return Err(OpError::arity(format!(
                "with {states} values to carry and {} outputs, its graph has {} inputs and {} outputs",
                node.outputs.len(),
                body.inputs,
                body.outputs
            )));
        }
        Ok(Self { body, states })
    }

    /// Types of the graph's inputs.
    fn types(&self, states: impl IntoIterator<Item = Type>) -> Result<Types, OpError> {
        let mut types: Types = smallvec![
            typed(DataType::I64, self.body.shape_of_number(0))?,
            typed(DataType::Bool, self.body.shape_of_number(1))?,
        ];
        types.extend(states);
        Ok(types)
    }

    fn repeat(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<Tensors, OpError> {
        let given = |index: usize| inputs.get(index).copied().flatten();
        let most = match given(0) {
            None => i64::MAX,
            Some(count) => match super::ints(&count).as_deref() {
                Some(&[count]) => count,
                _ => {
                    return Err(OpError::shape(format!(
                        "its trip count is {}{:?}",
                        count.dtype, count.shape
                    )));
                }
            },
        };
        let mut goes_on = given(1).map_or(Ok(true), |condition| truth(&condition))?;
        let mut states = Tensors::new();
        for index in 0..self.states {
            let state = given(index + 2).ok_or(OpError::MissingInput(index + 2))?;
            states.push(copied(&state, context)?);
        }
        let scans = self.body.outputs - 1 - self.states;
        let mut stacks: SmallVec<[Stack<'_>; 4]> = (0..scans).map(|_| Stack::new(context)).collect();
        let shapes = [0, 1].map(|index| self.body.shape_of_number(index));
        let mut round = 0i64;
        while round < most && goes_on {
            let (number, condition) = ([round], [u8::from(goes_on)]);
            let number =
                View { dtype: DataType::I64, shape: &shapes[0], bytes: bytemuck::cast_slice(&number) };
            let condition = View { dtype: DataType::Bool, shape: &shapes[1], bytes: &condition };
            let own = [number, condition].into_iter().chain(states.iter().map(Tensor::view));
            let mut made = self.body.run(own, inputs, context)?.into_iter();
            goes_on = truth(&made.next().ok_or_else(|| OpError::arity("its graph has no outputs"))?.view())?;
            states.clear();
            states.extend(made.by_ref().take(self.states));
            for (stack, element) in stacks.iter_mut().zip(made) {
                stack.push(&element.view())?;
            }
            round += 1;
        }
        for (index, stack) in stacks.into_iter().enumerate() {
            let at = 1 + self.states + index;
            let empty = || {
                // No element was made: what it would have been is all that is known.
                let types = self.types(states[..self.states].iter().map(|state| state.ty().clone())).ok()?;
                let known: SmallVec<[_; FEW]> = inputs
                    .iter()
                    .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
                    .collect();
                let known: SmallVec<[_; FEW]> = known.iter().map(Option::as_ref).collect();
                let made = self.body.infer(&types, &Known { types: &known, values: inputs, context });
                made.get(at).cloned().flatten().or_else(|| self.body.declared_output(at))
            };
            states.push(stack.finish(empty)?);
        }
        Ok(states)
    }
}

impl Operator for Loop {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        // How many elements are stacked is seen when it has run.
        if self.body.outputs > self.states + 1 {
            return Err(Unclear::Needs(0));
        }
        let states =
            (0..self.states).map(|index| inputs.ty(index + 2).cloned()).collect::<Result<Types, _>>()?;
        let made = certain(self.body.infer(&self.types(states.iter().cloned())?, inputs))?;
        if made[1..] == states[..] { Ok(states) } else { Err(Unclear::Needs(0)) }
    }

    /// Nobody knows before how long it takes: it is not run while planning.
    fn is_pure(&self) -> bool {
        false
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let made = self.repeat(call.inputs, call.context)?;
        deliver(call, &made)
    }

    fn run_freely(
        &self,
        inputs: &[Option<View<'_>>],
        context: &RunContext,
    ) -> Option<Result<Tensors, OpError>> {
        Some(self.repeat(inputs, context))
    }
}

/// Tensors of one type that become one, of one more dimension.
struct Stack<'c> {
    ty: Option<Type>,
    count: usize,
    stacked: Stacked<'c>,
}

impl<'c> Stack<'c> {
    fn new(context: &'c RunContext) -> Self {
        Self { ty: None, count: 0, stacked: Stacked::new(context) }
    }

    fn push(&mut self, element: &View<'_>) -> Result<(), OpError> {
        let ty = Type { dtype: element.dtype, shape: element.shape.into() };
        if let Some(first) = self.ty.as_ref().filter(|first| **first != ty) {
            return Err(OpError::operand(&ty, first.dtype, format!("{ty} is to be stacked on {first}")));
        }
        self.ty = Some(ty);
        self.count += 1;
        self.stacked.push(element.bytes)
    }

    /// All of them, each of the type `empty` if there are none.
    fn finish(self, empty: impl FnOnce() -> Option<Type>) -> Result<Tensor, OpError> {
        let ty = self
            .ty
            .or_else(empty)
            .ok_or_else(|| OpError::unsupported("nothing tells the type of what was made not once"))?;
        let mut shape = ty.shape;
        shape.insert(0, self.count);
        self.stacked.finish(typed(ty.dtype, shape)?)
    }
}

/// Places of a list of axes, one for each of `count`; 0 where the list is left out.
pub(super) fn axis_of(axes: Option<&[i64]>, index: usize, rank: usize) -> Result<usize, OpError> {
    axis(axes.and_then(|axes| axes.get(index)).copied().unwrap_or(0), rank)
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, tensor};
    use super::*;
    use std::sync::Arc;
    use stepalloc_graph::{Attribute, Attributes, Node, Value};

    /// A graph of one operator; values are its inputs, then those from outside, then its output and what else is made.
    fn graph(op: &str, own: usize, captured: usize, taken: [usize; 2], outputs: &[usize]) -> Attribute {
        let made = own + captured;
        let node = Definition {
            op,
            domain: "",
            opset: 24,
            attributes: &Attributes::default(),
            registry: &crate::registry(),
            inputs: &[true; 2],
            outputs: &[true],
        };
        let node = Node {
            name: op.into(),
            op_type: op.into(),
            domain: String::new(),
            opset: 24,
            attributes: Attributes::default(),
            inputs: taken.map(Some).to_vec(),
            captures: Vec::new(),
            outputs: vec![Some(made)],
            operator: super::super::make(&node).expect("it is known").expect("it is right").into(),
        };
        Attribute::Graph(Arc::new(Graph {
            values: vec![Value::default(); made + 1],
            nodes: vec![node],
            inputs: (0..own).collect(),
            outputs: outputs.to_vec(),
            captured: (own..made).collect(),
            ..Graph::default()
        }))
    }

    fn floats(tensor: &Tensor) -> &[f32] {
        tensor.view().elements()
    }

    #[test]
    fn branches_take_what_is_theirs_from_outside() {
        for (condition, wanted) in [(true, 11.0), (false, -1.0)] {
            // What the graphs take follows the condition: of else_branch first.
            let values = [1.0f32, 2.0, 5.0, 6.0].map(|value| tensor(&[], &[value]));
            let condition = tensor(&[1], &[Bool::from(condition)]);
            let mut trial = Trial::new("If", &[], [condition])
                .with("then_branch", graph("Add", 0, 2, [0, 1], &[2]))
                .with("else_branch", graph("Sub", 0, 2, [0, 1], &[2]));
            let operator = trial.operator().expect("it is right");
            trial.inputs.extend(values.map(Some));
            let made = operator
                .run_freely(&trial.views(), &RunContext::new())
                .expect("it runs freely")
                .expect("it runs");
            assert_eq!(floats(&made[0]), [wanted]);
        }
    }

    #[test]
    fn a_loop_that_never_runs_still_tells_the_type_of_what_it_stacks() {
        let body = || graph("Add", 3, 0, [2, 2], &[1, 3, 3]);
        let state = || tensor(&[2], &[1.0f32, 2.0]);
        let looped = |trips: i64| {
            let trial = Trial::new("Loop", &[], [Some(tensor(&[], &[trips])), None, Some(state())]);
            let trial = trial.outputs(2).with("body", body());
            trial.run().expect("it runs")
        };
        let made = looped(0);
        assert_eq!((floats(&made[0]), &made[1].ty().shape[..]), (&[1.0, 2.0][..], &[0, 2][..]));
        let made = looped(2);
        assert_eq!((floats(&made[0]), floats(&made[1])), (&[4.0, 8.0][..], &[2.0, 4.0, 4.0, 8.0][..]));
    }

    #[test]
    fn conditions_and_counts_that_are_none_are_errors() {
        let body = || graph("Add", 3, 0, [2, 2], &[1, 3]);
        for (count, condition) in [
            (Some(tensor(&[2], &[1i64, 2])), None),
            (Some(tensor(&[], &[1.0f32])), None),
            (None, Some(tensor::<Bool>(&[0], &[]))),
        ] {
            let trial = Trial::new("Loop", &[], [count, condition, Some(tensor(&[], &[1.0f32]))])
                .with("body", body());
            assert!(trial.run().is_err());
        }
        let short = Trial::new("Loop", &[], [None::<Tensor>]).with("body", body());
        assert!(short.run().is_err(), "a loop needs two inputs");
    }

    #[test]
    fn a_batch_is_scanned_as_far_as_each_sequence_goes() {
        let scan = |lengths: &[i64]| {
            let states = tensor(&[2, 1], &[0.0f32, 10.0]);
            let sequences = tensor(&[2, 3, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
            let trial = Trial::new("Scan", &[], [tensor(&[2], lengths), states, sequences])
                .outputs(2)
                .opset(8)
                .with("body", graph("Add", 2, 0, [0, 1], &[2, 2]))
                .int("num_scan_inputs", 1);
            trial.run()
        };
        let made = scan(&[3, 1]).expect("it runs");
        assert_eq!(floats(&made[0]), [6.0, 14.0]);
        assert_eq!(floats(&made[1]), [1.0, 3.0, 6.0, 14.0, 0.0, 0.0]);
        for lengths in [[4, 1], [-1, 1]] {
            assert!(scan(&lengths).is_err(), "{lengths:?} are no lengths of sequences of 3");
        }
    }
}
