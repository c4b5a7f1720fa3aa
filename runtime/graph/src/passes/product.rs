//! Activations that are written as products: x times a function of x.

use super::edit::Editor;
use crate::graph::{Attribute, Node, ValueId};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use stepalloc_tensor::DataType;

/// Numbers that are the same but for how they are rounded.
fn is(number: f64, wanted: f64) -> bool {
    (number - wanted).abs() <= 2e-6 * wanted.abs()
}

/// What a tree of products comes to: a number times some values.
struct Product {
    number: f64,
    of: Vec<ValueId>,
    /// Places of its nodes.
    places: Vec<usize>,
    /// The numbers in it.
    numbers: Vec<ValueId>,
}

impl Product {
    /// What the node at a place comes to, if it is a product.
    fn at(editor: &Editor, at: usize) -> Option<Self> {
        let node = editor.node(at)?;
        let by_number = || node.input(1).is_some_and(|id| editor.scalar(id).is_some());
        node.output().filter(|_| editor.is(at, "Mul") || editor.is(at, "Div") && by_number())?;
        let mut product = Self { number: 1.0, of: Vec::new(), places: Vec::new(), numbers: Vec::new() };
        product.expand(editor, at);
        (product.of.len() <= 4).then_some(product)
    }

    /// What makes a value that only `user` needs; the value itself if that is no product.
    fn of(editor: &Editor, id: ValueId, user: usize) -> Self {
        let mut product = Self { number: 1.0, of: Vec::new(), places: Vec::new(), numbers: Vec::new() };
        product.take(editor, id, user);
        product
    }

    fn expand(&mut self, editor: &Editor, at: usize) {
        let Some(node) = editor.node(at) else { return };
        self.places.push(at);
        let divides = node.op_type == "Div";
        for (index, id) in node.inputs.iter().flatten().enumerate() {
            match editor.scalar(*id) {
                Some(number) if divides && index == 1 => self.number /= f64::from(number),
                Some(number) => self.number *= f64::from(number),
                None => {
                    self.take(editor, *id, at);
                    continue;
                }
            }
            self.numbers.push(*id);
        }
    }

    fn take(&mut self, editor: &Editor, id: ValueId, user: usize) {
        let product = editor.made_by(id, "Mul").or_else(|| {
            let at = editor.made_by(id, "Div")?;
            // One over something is no product.
            editor.scalar(editor.node(at)?.input(1)?).map(|_| at)
        });
        match product.filter(|_| editor.only_user(id) == Some(user) && self.places.len() < 8) {
            Some(at) => self.expand(editor, at),
            None => self.of.push(id),
        }
    }

    /// The other one of two values.
    fn beside(&self, id: ValueId) -> Option<ValueId> {
        match self.of[..] {
            [a, b] if a == id => Some(b),
            [a, b] if b == id => Some(a),
            _ => None,
        }
    }
}

/// What was found: the value that is the argument, places of nodes, and numbers.
struct Found {
    x: ValueId,
    places: Vec<usize>,
    numbers: Vec<ValueId>,
}

impl Found {
    fn with(mut self, product: &Product) -> Self {
        self.places.extend(&product.places);
        self.numbers.extend(&product.numbers);
        self
    }

    /// Whether all that was found is about real numbers of 32 bits, and its numbers have no more dimensions than `x`.
    fn is_right(&self, editor: &Editor) -> bool {
        let rank = editor.facts.rank(self.x);
        let fits = |&id: &ValueId| {
            let own = editor.constant(id).map_or(usize::MAX, |number| number.ty().rank());
            own == 0 || rank.is_some_and(|rank| own <= rank)
        };
        let is_f32 = editor.facts.dtype(self.x) == Some(DataType::F32)
            || self.numbers.first().is_some_and(|&id| editor.scalar(id).is_some());
        is_f32 && self.numbers.iter().all(fits)
    }

    /// Puts one node in the place of all of them.
    fn put(
        self,
        editor: &mut Editor,
        at: usize,
        op: (&str, &str),
        attributes: &[(&str, Attribute)],
    ) -> Option<()> {
        let node = editor.node(at)?;
        let node = editor.make(&node.name, op, attributes, &[Some(self.x)], &[node.output()])?;
        self.places.iter().for_each(|&place| drop(editor.remove(place)));
        editor.put(at, node);
        Some(())
    }
}

fn each(editor: &mut Editor, mut change: impl FnMut(&mut Editor, usize) -> Option<()>) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(change(editor, at).is_some());
    }
    changed
}

/// The node that makes a value for one other alone.
fn only(editor: &Editor, id: ValueId, op: &str, user: usize) -> Option<usize> {
    editor.made_by(id, op).filter(|_| editor.only_user(id) == Some(user))
}

/// The other operand of a sum with this number, and the number's value.
fn sum_with(editor: &Editor, at: usize, number: f64) -> Option<(ValueId, ValueId)> {
    let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
    let is = |id: ValueId| editor.scalar(id).is_some_and(|found| is(f64::from(found), number));
    if is(b) {
        Some((a, b))
    } else if is(a) {
        Some((b, a))
    } else {
        None
    }
}

/// Bounds of a `Clip`, by inputs or by attributes.
pub(super) fn bounds(editor: &Editor, node: &Node) -> Option<(f32, f32)> {
    if node.opset < 11 {
        return Some((node.attributes.float("min", f32::MIN), node.attributes.float("max", f32::MAX)));
    }
    let bound = |index: usize, open: f32| node.input(index).map_or(Some(open), |id| editor.scalar(id));
    Some((bound(1, f32::MIN)?, bound(2, f32::MAX)?))
}

/// Whether a product at a place is a hard swish.
fn find_hard_swish(editor: &Editor, at: usize) -> Option<Found> {
    let product = Product::at(editor, at)?;
    let [a, b] = product.of[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let clip = product.places.iter().find_map(|&user| only(editor, gate, "Clip", user))?;
        let add = only(editor, editor.node(clip)?.input(0)?, "Add", clip)?;
        let (argument, three) = sum_with(editor, add, 3.0)?;
        let (least, most) = bounds(editor, editor.node(clip)?)?;
        if argument != x || least != 0.0 || !is(most.into(), 6.0) || !is(product.number, 1.0 / 6.0) {
            return None;
        }
        Some(Found { x, places: vec![clip, add], numbers: vec![three] }.with(&product))
    })
}

/// Whether there is a hard swish that an operator of version 14 could do.
pub(super) fn has_hard_swish(editor: &Editor) -> bool {
    editor.places().any(|at| {
        find_hard_swish(editor, at)
            .or_else(|| find_gated(editor, at))
            .is_some_and(|found| found.is_right(editor))
    })
}

/// The same with `HardSigmoid`.
fn find_gated(editor: &Editor, at: usize) -> Option<Found> {
    let product = Product::at(editor, at).filter(|product| is(product.number, 1.0))?;
    let [a, b] = product.of[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let place = product.places.iter().find_map(|&user| only(editor, gate, "HardSigmoid", user))?;
        let node = editor.node(place)?;
        let (alpha, beta) = (node.attributes.float("alpha", 0.2), node.attributes.float("beta", 0.5));
        let fits = node.input(0) == Some(x) && is(alpha.into(), 1.0 / 6.0) && is(beta.into(), 0.5);
        fits.then(|| Found { x, places: vec![place], numbers: Vec::new() }.with(&product))
    })
}

/// `HardSwish` from version 14 on, before that `HardSigmoid` and `Mul`.
pub(super) fn hard_swish(editor: &mut Editor) -> usize {
    each(editor, |editor, at| {
        let found = find_hard_swish(editor, at);
        if editor.opset >= 14 {
            let found = found.or_else(|| find_gated(editor, at)).filter(|found| found.is_right(editor))?;
            return found.put(editor, at, ("", "HardSwish"), &[]);
        }
        let found = found.filter(|found| found.is_right(editor))?;
        // The gate takes the place of the clip; it makes what the clip made.
        let (clip, node) = (found.places[0], editor.node(at)?);
        let gate = editor.node(clip)?.output();
        let parameters = [("alpha", Attribute::Float(1.0 / 6.0)), ("beta", Attribute::Float(0.5))];
        let name = editor.node(clip)?.name.clone();
        let x = Some(found.x);
        let sigmoid = editor.make(&name, ("", "HardSigmoid"), &parameters, &[x], &[gate])?;
        let product = editor.make(&node.name, ("", "Mul"), &[], &[x, gate], &[node.output()])?;
        found.places.iter().for_each(|&place| drop(editor.remove(place)));
        editor.put(clip, sigmoid);
        editor.put(at, product);
        Some(())
    })
}

/// x * sigmoid(a * x).
pub(super) fn quick_gelu(editor: &mut Editor) -> usize {
    each(editor, |editor, at| {
        let product = Product::at(editor, at).filter(|product| is(product.number, 1.0))?;
        let [a, b] = product.of[..] else { return None };
        let (found, alpha) = [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
            let place = product.places.iter().find_map(|&user| only(editor, gate, "Sigmoid", user))?;
            let inner = editor.node(place)?.input(0)?;
            let inner = if inner == x { None } else { Some(Product::of(editor, inner, place)) };
            let alpha = inner.as_ref().map_or(1.0, |inner| inner.number);
            if inner.as_ref().is_some_and(|inner| inner.of[..] != [x]) {
                return None;
            }
            let found = Found { x, places: vec![place], numbers: Vec::new() }.with(&product);
            Some((inner.iter().fold(found, Found::with), alpha))
        })?;
        let alpha = [("alpha", Attribute::Float(alpha as f32))];
        Some(found).filter(|found| found.is_right(editor))?.put(
            editor,
            at,
            ("com.microsoft", "QuickGelu"),
            &alpha,
        )
    })
}

/// 0.5 * x * (1 + f(..)) with f of this name: the argument, the place of f, and what was found.
fn half_of(editor: &Editor, at: usize, function: &str) -> Option<(usize, Found)> {
    let product = Product::at(editor, at).filter(|product| is(product.number, 0.5))?;
    let [a, b] = product.of[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let add = product.places.iter().find_map(|&user| only(editor, gate, "Add", user))?;
        let (inner, one) = sum_with(editor, add, 1.0)?;
        let place = only(editor, inner, function, add)?;
        Some((place, Found { x, places: vec![add, place], numbers: vec![one] }.with(&product)))
    })
}

pub(super) fn gelu(editor: &mut Editor) -> usize {
    each(editor, |editor, at| {
        let (erf, found) = half_of(editor, at, "Erf")?;
        let inner = Product::of(editor, editor.node(erf)?.input(0)?, erf);
        if inner.of[..] != [found.x] || !is(inner.number, FRAC_1_SQRT_2) {
            return None;
        }
        let found = found.with(&inner);
        let domain = if editor.opset >= 20 { "" } else { "com.microsoft" };
        Some(found).filter(|found| found.is_right(editor))?.put(editor, at, (domain, "Gelu"), &[])
    })
}

/// The number before x^3.
const CUBIC: f64 = 0.044_715;

pub(super) fn fast_gelu(editor: &mut Editor) -> usize {
    each(editor, |editor, at| {
        let (tanh, found) = half_of(editor, at, "Tanh")?;
        let x = found.x;
        let outer = Product::of(editor, editor.node(tanh)?.input(0)?, tanh);
        if !is(outer.number, FRAC_2_SQRT_PI * FRAC_1_SQRT_2) {
            return None;
        }
        let sum_of = |id: ValueId| outer.places.iter().find_map(|&user| only(editor, id, "Add", user));
        let mut found = found.with(&outer);
        let term = if let [sum] = outer.of[..] {
            // x + 0.044715 x^3
            let add = sum_of(sum)?;
            let term = Product::of(editor, editor.node(add)?.beside(x)?, add);
            found.places.push(add);
            cube(editor, term, x, 3)?
        } else {
            // x * (1 + 0.044715 x^2)
            let add = sum_of(outer.beside(x)?)?;
            let (term, one) = sum_with(editor, add, 1.0)?;
            found.places.push(add);
            found.numbers.push(one);
            cube(editor, Product::of(editor, term, add), x, 2)?
        };
        let found = Some(found.with(&term)).filter(|found| found.is_right(editor))?;
        if editor.opset >= 20 {
            return found.put(editor, at, ("", "Gelu"), &[("approximate", Attribute::String("tanh".into()))]);
        }
        found.put(editor, at, ("com.microsoft", "FastGelu"), &[])
    })
}

/// Whether a product is 0.044715 times a power of x, written as a product or with `Pow`.
fn cube(editor: &Editor, mut product: Product, x: ValueId, power: usize) -> Option<Product> {
    if !is(product.number, CUBIC) {
        return None;
    }
    if product.of.len() == power && product.of.iter().all(|&id| id == x) {
        return Some(product);
    }
    let [id] = product.of[..] else { return None };
    let place = product.places.iter().find_map(|&user| only(editor, id, "Pow", user))?;
    let node = editor.node(place)?;
    let exponent = node.input(1)?;
    if node.input(0) != Some(x) || editor.scalar(exponent) != Some(power as f32) {
        return None;
    }
    product.places.push(place);
    product.numbers.push(exponent);
    Some(product)
}
