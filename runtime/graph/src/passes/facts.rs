//! What is known of values' types without inputs.
//!
//! Types follow from those of inputs as in planning. Sizes that a model leaves open are tried out, with some numbers: element types and
//! ranks that come out are those of every run, and so are sizes that are the same each time, as far as no operator cuts them off at a
//! bound (`Slice` up to 10 of 64 and of 96); passes that ask for a size have a reason of their own why it must be that one. Numbers that a
//! model does not take (a height that it reshapes to 1) give nothing. A type is exact where no open size had a part in it.

use crate::context::RunContext;
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::operator::Known;
use crate::run::run_one;
use std::sync::Arc;
use stepalloc_tensor::{DataType, Tensor, Type, View};

/// Open sizes are taken to be these: multiples of what networks halve images by. The third time each is another one, so that those that
/// only happen to be equal are seen.
const SIZES: [usize; 3] = [64, 96, 128];
/// How far these are apart.
const APART: usize = 32;
/// What is computed on the way has so many bytes at most: shapes.
const MOST_BYTES: usize = 64 << 10;

/// What is known of a value's type.
#[derive(Clone, Debug, Default)]
struct Fact {
    tried: [Option<Type>; 3],
    exact: bool,
    /// As the model declares it.
    dtype: Option<DataType>,
    rank: Option<usize>,
}

/// What is known of all values' types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts(Vec<Fact>);

impl Facts {
    /// Of a graph, and of what it takes from outside. A graph within a node is given what it is given: of its inputs only the element
    /// types that it declares are taken for certain.
    pub(crate) fn new(
        graph: &Graph,
        outside: &[(ValueId, &Facts)],
        is_inner: bool,
        context: &RunContext,
    ) -> Self {
        let mut facts = vec![Fact::default(); graph.values.len()];
        for (fact, value) in facts.iter_mut().zip(&graph.values) {
            fact.dtype = value.declared.as_ref().map(|declared| declared.dtype);
            fact.rank = value.declared.as_ref().and_then(|declared| Some(declared.dims.as_ref()?.len()));
        }
        if is_inner {
            graph.inputs.iter().for_each(|&id| facts[id].rank = None);
        }
        for (number, size) in SIZES.into_iter().enumerate() {
            let mut attempt = Attempt::new(graph, size, if number == 2 { APART } else { 0 });
            if is_inner {
                graph.inputs.iter().for_each(|&id| attempt.types[id] = None);
            }
            for (&id, (outer, known)) in graph.captured.iter().zip(outside) {
                let Some(fact) = known.0.get(*outer) else { continue };
                attempt.types[id] = fact.tried[number].clone();
                attempt.exact[id] = fact.exact;
            }
            graph.nodes.iter().for_each(|node| attempt.learn(node, context));
            for ((fact, ty), exact) in facts.iter_mut().zip(attempt.types).zip(attempt.exact) {
                fact.tried[number] = ty;
                if number == 0 {
                    fact.exact = exact;
                }
            }
        }
        Self(facts)
    }

    pub(super) fn push(&mut self, ty: Type) {
        self.0.push(Fact::default());
        self.set(self.0.len() - 1, ty);
    }

    pub(super) fn set(&mut self, id: ValueId, ty: Type) {
        self.0[id] =
            Fact { tried: std::array::from_fn(|_| Some(ty.clone())), exact: true, dtype: None, rank: None };
    }

    /// The graph has more values than before.
    pub(super) fn extend(&mut self, graph: &Graph) {
        for value in &graph.values[self.0.len()..] {
            match &value.constant {
                Some(tensor) => self.push(tensor.ty().clone()),
                None => self.0.push(Fact::default()),
            }
        }
    }

    /// The type, where no size is open.
    pub(crate) fn exact(&self, id: ValueId) -> Option<&Type> {
        let fact = &self.0[id];
        fact.tried[0].as_ref().filter(|_| fact.exact)
    }

    pub(crate) fn dtype(&self, id: ValueId) -> Option<DataType> {
        let fact = &self.0[id];
        fact.tried.iter().flatten().map(|ty| ty.dtype).next().or(fact.dtype)
    }

    /// The number of dimensions: no operator's depends on sizes but of those that are left out here.
    pub(crate) fn rank(&self, id: ValueId) -> Option<usize> {
        let fact = &self.0[id];
        let mut ranks = fact.tried.iter().flatten().map(Type::rank);
        let first = ranks.next();
        if first.is_some() && ranks.all(|rank| Some(rank) == first) {
            first
        } else {
            fact.rank.filter(|_| first.is_none())
        }
    }

    /// Sizes; `None` for open ones. See the module's text for how sure they are.
    pub(crate) fn sizes(&self, id: ValueId) -> Option<Vec<Option<usize>>> {
        let [Some(a), Some(b), _] = &self.0[id].tried else { return None };
        let same = |(&a, &b): (&usize, &usize)| (a == b).then_some(a);
        (a.rank() == b.rank()).then(|| a.shape.iter().zip(&b.shape).map(same).collect())
    }
}

impl Facts {
    /// The shapes that were tried. See the module's text for how sure they are.
    pub(crate) fn shapes(&self, id: ValueId) -> Option<[&[usize]; 3]> {
        let [Some(a), Some(b), Some(c)] = &self.0[id].tried else { return None };
        Some([&a.shape, &b.shape, &c.shape])
    }

    /// Whether two values are of one type whatever open sizes are.
    pub(crate) fn alike(&self, a: ValueId, b: ValueId) -> bool {
        let both = self.0[a].tried.iter().zip(&self.0[b].tried);
        both.into_iter().all(|(a, b)| a.is_some() && a == b)
    }
}

/// Types where open sizes are some numbers.
struct Attempt {
    types: Vec<Option<Type>>,
    known: Vec<Option<Arc<Tensor>>>,
    exact: Vec<bool>,
}

impl Attempt {
    /// Open sizes are `size`, or that and so much more for each other name.
    fn new(graph: &Graph, size: usize, apart: usize) -> Self {
        let mut names: Vec<String> = Vec::new();
        let mut open = |dim: &Dim| {
            let name = if let Dim::Named(name) = dim { name.clone() } else { String::new() };
            let known = names.iter().position(|known| !name.is_empty() && *known == name);
            let number = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            size + number * apart
        };
        let known: Vec<_> = graph.values.iter().map(|value| value.constant.clone()).collect();
        let types = known.iter().map(|known| known.as_ref().map(|known| known.ty().clone())).collect();
        let exact = known.iter().map(Option::is_some).collect();
        let mut attempt = Self { types, known, exact };
        for &id in &graph.inputs {
            let declared = graph.values[id].declared.as_ref();
            let dims = declared.and_then(|declared| declared.dims.as_ref());
            let (Some(declared), Some(dims)) = (declared, dims) else {
                (attempt.types[id], attempt.known[id], attempt.exact[id]) = (None, None, false);
                continue;
            };
            let fixed = |dim: &Dim| if let Dim::Fixed(size) = dim { Some(*size) } else { None };
            let shape: Vec<_> = dims.iter().map(|dim| fixed(dim).unwrap_or_else(|| open(dim))).collect();
            attempt.types[id] = Type::new(declared.dtype, shape);
            attempt.known[id] = None;
            attempt.exact[id] = dims.iter().all(|dim| fixed(dim).is_some());
        }
        attempt
    }

    fn learn(&mut self, node: &Node, context: &RunContext) {
        if let (Some(tensor), [Some(id), ..]) = (node.operator.constant(), &node.outputs[..]) {
            self.types[*id] = Some(tensor.ty().clone());
            self.known[*id] = Some(tensor);
            self.exact[*id] = true;
            return;
        }
        // What comes out of these may be of another rank for other sizes.
        let exact = super::edit::taken(node).all(|id| self.exact[id]);
        let may_change = node.graphs().next().is_some() || node.op_type == "Squeeze" && !has_axes(node);
        if !exact && may_change || super::edit::taken(node).any(|id| self.types[id].is_none()) {
            return;
        }
        let ids = || node.inputs.iter().copied().chain(node.captures.iter().copied().map(Some));
        let types: Vec<_> = ids().map(|id| self.types[id?].as_ref()).collect();
        // Large ones tell no shapes, and would be read from the file.
        let known = |id: usize| self.known[id].as_ref().filter(|known| known.ty().bytes() <= MOST_BYTES);
        let views: Vec<_> = ids().map(|id| Some(known(id?)?.view())).collect();
        let known = Known { types: &types, values: &views, context };
        let Ok(made) = node.operator.infer(&known) else { return };
        let all_known = ids().zip(&views).all(|(id, view)| id.is_none() || view.is_some());
        let small = made.iter().map(Type::bytes).sum::<usize>() <= MOST_BYTES;
        let run = |views: &[Option<View<'_>>]| {
            let made = run_one(&*node.operator, views, made.clone(), node.outputs.len(), context);
            made.unwrap_or_default()
        };
        let mut outputs = Vec::new();
        if small && node.operator.is_pure() && made.len() >= node.outputs.len() {
            if all_known {
                outputs = run(&views);
            } else if node.operator.looks_at_types_only() {
                let views = types
                    .iter()
                    .map(|ty| ty.map(|ty| View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] }));
                outputs = run(&views.collect::<Vec<_>>());
            }
        }
        let known = outputs.into_iter().map(|tensor| Some(Arc::new(tensor))).chain(std::iter::repeat(None));
        for ((id, ty), known) in node.outputs.iter().zip(made).zip(known) {
            if let Some(id) = *id {
                self.types[id] = Some(known.as_ref().map_or(ty, |known| known.ty().clone()));
                self.known[id] = known;
                self.exact[id] = exact;
            }
        }
    }
}

/// Whether a node is told axes, by attribute or input.
fn has_axes(node: &Node) -> bool {
    node.attributes.ints("axes").is_some() || node.input(1).is_some()
}
