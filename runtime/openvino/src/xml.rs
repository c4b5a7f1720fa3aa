//! The text of an IR: layers with ports, and edges between them. Nothing is believed of it yet but its form.

use roxmltree::Node;
use stepalloc_tensor::{DataType, OpError};

/// Layers and edges of a model, or of a graph within one of its layers.
pub(super) struct Net<'x> {
    pub layers: Vec<Layer<'x>>,
    pub edges: Vec<Edge>,
}

/// From an output port to an input port, by the ids of layers and ports.
pub(super) struct Edge {
    pub from: (u64, u64),
    pub to: (u64, u64),
}

/// An operation.
pub(super) struct Layer<'x> {
    pub id: u64,
    pub name: &'x str,
    /// The operation's name.
    pub kind: &'x str,
    /// The set of operations it is from, as `opset8`.
    pub version: &'x str,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    element: Node<'x, 'x>,
}

/// A place where an edge begins or ends.
#[derive(Default)]
pub(super) struct Port {
    pub id: u64,
    /// Type of the elements, where it is one that is known.
    pub dtype: Option<DataType>,
    /// Sizes of the dimensions, as far as they are fixed. None of a scalar, and of what has any number of dimensions.
    pub dims: Vec<Option<usize>>,
    /// Names of what goes through it.
    pub names: Vec<String>,
}

impl<'x> Net<'x> {
    /// Of an element that has `layers` and `edges`.
    pub(super) fn parse(element: Node<'x, 'x>) -> Result<Self, OpError> {
        let layers = child(element, "layers").ok_or_else(|| OpError::arity("there are no layers"))?;
        let layers = children(layers, "layer").map(Layer::parse).collect::<Result<Vec<_>, _>>()?;
        let edges = child(element, "edges").into_iter().flat_map(|edges| children(edges, "edge"));
        let edge = |edge: Node<'_, '_>| {
            let end = |layer, port| Ok::<_, OpError>((number(edge, layer)?, number(edge, port)?));
            Ok::<_, OpError>(Edge { from: end("from-layer", "from-port")?, to: end("to-layer", "to-port")? })
        };
        Ok(Self { layers, edges: edges.map(edge).collect::<Result<_, _>>()? })
    }
}

impl<'x> Layer<'x> {
    fn parse(element: Node<'x, 'x>) -> Result<Self, OpError> {
        let id = number(element, "id")?;
        let text = |name| element.attribute(name).unwrap_or_default();
        let ports = |name| -> Result<Vec<Port>, OpError> {
            let ports = child(element, name).into_iter().flat_map(|ports| children(ports, "port"));
            ports
                .map(|port| {
                    Port::parse(port).map_err(|error| OpError::attribute(format!("layer {id}: {error}")))
                })
                .collect()
        };
        Ok(Self {
            id,
            name: text("name"),
            kind: element
                .attribute("type")
                .ok_or_else(|| OpError::attribute(format!("layer {id} has no type")))?,
            version: text("version"),
            inputs: ports("input")?,
            outputs: ports("output")?,
            element,
        })
    }

    /// What the layer is told beside its inputs.
    pub(super) fn data(&self, name: &str) -> Option<&'x str> {
        child(self.element, "data")?.attribute(name)
    }

    /// An attribute of the layer's own element.
    pub(super) fn attribute(&self, name: &str) -> Option<&'x str> {
        self.element.attribute(name)
    }

    /// An element within the layer's.
    pub(super) fn child(&self, name: &str) -> Option<Node<'x, 'x>> {
        child(self.element, name)
    }
}

impl Port {
    fn parse(element: Node<'_, '_>) -> Result<Self, OpError> {
        let dim = |dim: Node<'_, '_>| {
            let text = dim.text().unwrap_or_default().trim();
            let size =
                text.parse::<i64>().map_err(|_| OpError::attribute(format!("a dimension is {text:?}")))?;
            Ok::<_, OpError>(usize::try_from(size).ok())
        };
        Ok(Self {
            id: number(element, "id")?,
            dtype: element.attribute("precision").and_then(dtype),
            dims: children(element, "dim").map(dim).collect::<Result<_, _>>()?,
            names: element.attribute("names").map(names).unwrap_or_default(),
        })
    }
}

/// The first element of a name right below another.
pub(super) fn child<'x>(element: Node<'x, 'x>, name: &str) -> Option<Node<'x, 'x>> {
    element.children().find(|child| child.has_tag_name(name))
}

/// All elements of a name right below another.
pub(super) fn children<'x>(element: Node<'x, 'x>, name: &'static str) -> impl Iterator<Item = Node<'x, 'x>> {
    element.children().filter(move |child| child.has_tag_name(name))
}

/// An attribute that is a number.
pub(super) fn number(element: Node<'_, '_>, name: &str) -> Result<u64, OpError> {
    let kind = element.tag_name().name();
    let text = element
        .attribute(name)
        .ok_or_else(|| OpError::attribute(format!("an element {kind} has no {name}")))?;
    text.trim().parse().map_err(|_| OpError::attribute(format!("an element {kind} has {name} {text:?}")))
}

/// Names with commas between them; one within a name has a backslash before it.
fn names(text: &str) -> Vec<String> {
    let (mut names, mut name, mut letters) = (Vec::new(), String::new(), text.chars());
    while let Some(letter) = letters.next() {
        match letter {
            ',' => names.push(std::mem::take(&mut name)),
            '\\' => name.extend(letters.next()),
            _ => name.push(letter),
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

/// Types of elements as ports (`FP32`) and attributes (`f32`) spell them.
pub(super) fn dtype(text: &str) -> Option<DataType> {
    Some(match text.to_ascii_lowercase().as_str() {
        "f32" | "fp32" => DataType::F32,
        "f16" | "fp16" => DataType::F16,
        "bf16" => DataType::BF16,
        "f64" | "fp64" => DataType::F64,
        "i8" => DataType::I8,
        "i16" => DataType::I16,
        "i32" => DataType::I32,
        "i64" => DataType::I64,
        "u8" => DataType::U8,
        "u16" => DataType::U16,
        "u32" => DataType::U32,
        "u64" => DataType::U64,
        "bool" | "boolean" => DataType::Bool,
        "f8e4m3" => DataType::F8E4M3FN,
        "f8e5m2" => DataType::F8E5M2,
        "f8e8m0" => DataType::F8E8M0,
        "f4e2m1" => DataType::F4E2M1,
        "i4" => DataType::I4,
        "u4" => DataType::U4,
        "u2" => DataType::U2,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parted_by_commas_that_are_not_escaped() {
        assert_eq!(names("x"), ["x"]);
        assert_eq!(names("x,y\\,z,"), ["x", "y,z"]);
        assert_eq!(names("\\"), [""; 0]);
    }
}
