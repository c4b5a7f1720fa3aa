//! LSTM with constant weights, whose sums ONNX Runtime makes of integers in an operator of its own.

use super::MICROSOFT;
use super::graph::{FLOAT, Rewriter, Why, make};
use super::weights::{Scheme, WeightType, quantize};
use stepalloc_onnx::proto::{NodeProto, TensorProto};
use stepalloc_onnx::tensors::packed;
use stepalloc_tensor::View;

impl Rewriter<'_> {
    /// LSTM -> DynamicQuantizeLSTM of ONNX Runtime's domain. Its weights are signed whatever the others are.
    pub(super) fn lstm(&mut self, node: &NodeProto) -> Result<(), Why> {
        let (Some(w), Some(r)) = (node.input.get(1), node.input.get(2)) else { return Err(Why::Expected) };
        let is_layout = |name: &Option<String>| name.as_deref() == Some("layout");
        if node.attribute.iter().any(|attribute| is_layout(&attribute.name) && attribute.i.unwrap_or(0) != 0)
        {
            return Err(Why::unfit("DynamicQuantizeLSTM has no layout 1"));
        }
        for weights in [w, r] {
            self.initializer(weights).ok_or_else(|| Why::unfit(format!("{weights} is computed")))?;
        }
        let (w, r) = (self.gates(w)?, self.gates(r)?);
        let given = |index: usize| node.input.get(index).map_or("", String::as_str);
        for index in [0, 3, 4, 5, 6, 7] {
            self.float(given(index));
        }
        let mut inputs = vec![given(0), &w[0], &r[0]];
        inputs.extend([3, 4, 5, 6, 7].map(given));
        inputs.extend([&w[1][..], &w[2], &r[1], &r[2]]);
        let outputs: Vec<_> = node.output.iter().map(String::as_str).collect();
        let name = node.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map_or(String::new(), |name| self.names.node(&format!("{name}_quant")));
        let mut made = make("DynamicQuantizeLSTM", &inputs, &outputs, &name);
        made.domain = Some(MICROSOFT.into());
        made.attribute =
            node.attribute.iter().filter(|attribute| !is_layout(&attribute.name)).cloned().collect();
        made.metadata_props.clone_from(&node.metadata_props);
        self.push(made);
        Ok(())
    }

    /// Weights in 8 bits with their last two dimensions swapped, their scales and their zero points: one of each direction, or of each
    /// gate's row.
    fn gates(&mut self, name: &str) -> Result<[String; 3], Why> {
        let level = self.level_of(name).unwrap_or_default();
        if let Some(made) = self.levels[level].recurrent.get(name) {
            return Ok(made.clone());
        }
        let weights = self.read(name)?;
        let View { shape, .. } = weights.view();
        let &[directions, gates, input] = shape else {
            return Err(Why::unfit(format!("{name} does not have three dimensions")));
        };
        let scheme = Scheme {
            ty: WeightType::QInt8,
            symmetric: self.options.weight_symmetric.unwrap_or(true),
            reduced: self.options.reduce_range,
        };
        let (channels, along) = match self.options.per_channel {
            true => (directions * gates, vec![directions as i64, gates as i64]),
            false => (directions, vec![directions as i64]),
        };
        let inner = weights.view().len().checked_div(channels).unwrap_or(0);
        let made = quantize(weights.view().elements(), channels, inner, scheme)
            .ok_or_else(|| Why::unfit(format!("{name} has elements that are not finite")))?;
        let mut turned = Vec::with_capacity(made.elements.len());
        for direction in 0..directions {
            for column in 0..input {
                let row = |gate: usize| made.elements[(direction * gates + gate) * input + column];
                turned.extend((0..gates).map(row));
            }
        }
        let names =
            ["quantized", "scale", "zero_point"].map(|what| self.names.value(&format!("{name}_{what}")));
        let tensor = |name: &String, ty: i32, dims: Vec<i64>| TensorProto {
            name: Some(name.clone()),
            data_type: Some(ty),
            dims,
            ..TensorProto::default()
        };
        let dims = vec![directions as i64, input as i64, gates as i64];
        let eight = scheme.ty.dtype() as i32;
        let level = &mut self.levels[level];
        level
            .add(TensorProto { float_data: packed(&made.scales), ..tensor(&names[1], FLOAT, along.clone()) });
        level.add(TensorProto { int32_data: made.zeros, ..tensor(&names[2], eight, along) });
        level.add(TensorProto { raw_data: Some(turned.into()), ..tensor(&names[0], eight, dims) });
        level.recurrent.insert(name.to_owned(), names.clone());
        Ok(names)
    }
}
