//! MatMul and Conv with constant weights: products of integers.

use super::graph::{Rewriter, Why, make};
use super::weights::Scheme;
use stepalloc_onnx::proto::{NodeProto, TensorProto};
use stepalloc_tensor::DataType;

impl Rewriter<'_> {
    /// MatMul -> DynamicQuantizeLinear, MatMulInteger, Cast, Mul.
    pub(super) fn matmul(&mut self, node: &NodeProto) -> Result<(), Why> {
        let axis = self.options.per_channel.then_some(-1);
        self.product(node, "MatMulInteger", axis, |_, _, _| ())
    }

    /// Conv -> DynamicQuantizeLinear, ConvInteger, Cast, Mul, and Add for the bias. Weights have one scale.
    pub(super) fn conv(&mut self, node: &NodeProto) -> Result<(), Why> {
        let rank =
            node.input.get(1).and_then(|name| self.initializer(name)).map_or(0, |tensor| tensor.dims.len());
        if rank < 3 {
            let weights = node.input.get(1).map_or("", String::as_str);
            return Err(Why::unfit(format!("{weights} is computed")));
        }
        self.product(node, "ConvInteger", None, |rewriter, scaled, bias| {
            rewriter.bias(&node.output[0], scaled, bias, rank);
        })
    }

    /// A product of integers in the place of a node; what it adds to is added by `add`.
    fn product(
        &mut self,
        node: &NodeProto,
        op: &str,
        axis: Option<i64>,
        add: impl FnOnce(&mut Self, &str, &str),
    ) -> Result<(), Why> {
        let (Some(x), Some(w), Some(y)) = (node.input.first(), node.input.get(1), node.output.first()) else {
            return Err(Why::Expected);
        };
        let scheme = Scheme {
            ty: self.options.weight_type,
            symmetric: self.options.is_symmetric(),
            reduced: self.options.reduce_range,
        };
        if self.initializer(w).is_none() {
            return Err(Why::unfit(format!("{w} is computed")));
        }
        // Weights that cannot be quantized are seen before anything is added.
        let w = self.weight(w, scheme, axis)?;
        let x = self.activation(x)?;
        let name = node.name.as_deref().filter(|name| !name.is_empty());
        let integer = name.map_or(String::new(), |name| self.names.node(&format!("{name}_quant")));
        let sums = self.names.value(&format!("{y}_output_quantized"));
        let mut made = make(op, &[&x.name, &w.name, &x.zero, &w.zero], &[&sums], &integer);
        made.attribute = node.attribute.clone();
        made.metadata_props = node.metadata_props.clone();
        self.push(made);
        match node.input.get(2).filter(|bias| !bias.is_empty()) {
            None => self.scaled(&sums, [&x, &w], y, &integer),
            Some(bias) => {
                let scaled = self.names.value(&format!("{y}quant_scaled_output"));
                self.scaled(&sums, [&x, &w], &scaled, &integer);
                add(self, &scaled, bias);
            }
        }
        Ok(())
    }

    /// Adds a bias of channels, which lie in the second dimension.
    fn bias(&mut self, output: &str, scaled: &str, bias: &str, rank: usize) {
        let shape = self.names.value(&format!("{output}_bias_reshape_shape"));
        let reshaped = self.names.value(&format!("{output}_bias_reshape_output"));
        self.add(TensorProto {
            name: Some(shape.clone()),
            data_type: Some(DataType::I64 as i32),
            dims: vec![rank as i64],
            int64_data: (0..rank).map(|dim| if dim == 1 { -1 } else { 1 }).collect(),
            ..TensorProto::default()
        });
        self.emit("Reshape", &[bias, &shape], &[&reshaped], "");
        self.emit("Add", &[scaled, &reshaped], &[output], &format!("{output}_bias_add"));
    }
}
