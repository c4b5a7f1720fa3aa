//! What a program needs to bring operators of its own, for nodes that the runtime has none for.
//!
//! [`CustomOperators`] has a factory for each domain and name, which reads a node's attributes from its [`Definition`] and makes an
//! [`Operator`]. [`Model::open_with`](crate::Model::open_with) makes a model whose nodes are of the runtime's operators and of these.
//! Both are planned and run alike: [`Operator::infer`] says what types come out, [`Operator::scratch`] what memory is needed beside them,
//! [`Operator::reuse`] whether the output may be written over an input, and [`Operator::run`] is given all of it in a [`Call`].
//!
//! - `infer` is called for types that no run has, too, when a graph is optimized; an error says that they do not fit.
//! - An operator that does not always give the same for the same inputs must say so ([`Operator::is_pure`]).
//! - `run` may be called from several threads at once.
//! - Passes know nothing of custom operators, and leave their nodes as they are. Where these take or make float16 or bfloat16, the model's
//!   halves are not widened to float32.
//! - A model that is saved keeps their nodes, with domain, version and attributes; to read it again, they are needed again.
//! - Layers of OpenVINO become the runtime's own operators, whatever custom ones there are.
//!
//! ```
//! use stepalloc_runtime::operator::{Call, CustomOperators, Definition, Known, Operator, Reuse, Types, Unclear};
//! use stepalloc_runtime::{DataType, Error, Model, OpError, Session, Tensor};
//!
//! /// Each element times a number, which is an attribute of the node.
//! struct Scale {
//!     by: f32,
//! }
//!
//! impl Scale {
//!     fn of_node(node: &Definition<'_>) -> Result<Box<dyn Operator>, OpError> {
//!         let by = node.attributes.float("by", 2.0);
//!         if !by.is_finite() {
//!             return Err(OpError::attribute(format!("by is {by}")));
//!         }
//!         Ok(Box::new(Self { by }))
//!     }
//! }
//!
//! impl Operator for Scale {
//!     fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
//!         let x = inputs.ty(0)?;
//!         if x.dtype != DataType::F32 {
//!             return Err(OpError::element_type(format!("{x} is not of float32")).into());
//!         }
//!         Ok(Types::from_iter([x.clone()]))
//!     }
//!
//!     fn reuse(&self) -> Reuse {
//!         Reuse::InPlace(&[0])
//!     }
//!
//!     fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
//!         call.map(|x: f32| x * self.by)
//!     }
//! }
//!
//! fn main() -> Result<(), Error> {
//!     # use prost::Message;
//!     # use stepalloc_onnx::proto::{
//!     #     AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, type_proto,
//!     # };
//!     # let value = |name: &str| {
//!     #     let tensor = type_proto::Tensor { elem_type: Some(1), shape: None };
//!     #     let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
//!     #     ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
//!     # };
//!     # let by = AttributeProto { name: Some("by".into()), r#type: Some(1), f: Some(3.0), ..Default::default() };
//!     # let node = NodeProto {
//!     #     op_type: Some("Scale".into()),
//!     #     domain: Some("com.example".into()),
//!     #     input: vec!["x".into()],
//!     #     output: vec!["y".into()],
//!     #     attribute: vec![by],
//!     #     ..NodeProto::default()
//!     # };
//!     # let graph = GraphProto {
//!     #     node: vec![node],
//!     #     input: vec![value("x")],
//!     #     output: vec![value("y")],
//!     #     ..GraphProto::default()
//!     # };
//!     # let net = ModelProto { graph: Some(graph), ir_version: Some(8), ..ModelProto::default() }.encode_to_vec();
//!     // y = Scale(x), of domain com.example, with by = 3.
//!     let operators = CustomOperators::new().with("com.example", "Scale", Scale::of_node);
//!     let session = Session::new(&Model::from_bytes_with(net, &operators)?);
//!     let x = Tensor::from_elements([2], &[1.0f32, 2.0]).expect("two elements");
//!     let y = session.run(&[("x", x.view())])?;
//!     assert_eq!(y[0].1.view().elements::<f32>(), [3.0, 6.0]);
//!     Ok(())
//! }
//! ```

pub use stepalloc_graph::operator::{
    Call, Definition, Known, Operator, Registry, Reuse, Types, Unclear, ints, typed,
};
pub use stepalloc_graph::{Attribute, Attributes, CustomOperators, PackSpec, Prepacked, Tensors};
