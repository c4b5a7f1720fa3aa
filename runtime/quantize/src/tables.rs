//! Gather of constant tables, and Transpose: what only moves elements moves those of 8 bits.

use super::graph::{Rewriter, Why};
use super::weights::Scheme;
use stepalloc_onnx::proto::NodeProto;

impl Rewriter<'_> {
    /// Gather of a table of 8 bits. Whoever needs f32 makes it of what was taken out.
    pub(super) fn gather(&mut self, node: &NodeProto) -> Result<(), Why> {
        let Some(table) = node.input.first() else { return Err(Why::Expected) };
        // Most tables are shapes, computed or constant.
        let is_float = |number| matches!(number, 1 | 10 | 11 | 16);
        if !self.initializer(table).is_some_and(|tensor| is_float(tensor.data_type.unwrap_or_default())) {
            return Err(Why::Expected);
        }
        let eight = self.weight(table, Scheme::DATA, None)?;
        self.moved(node, &eight)
    }

    /// Transpose of what is there in 8 bits.
    pub(super) fn transpose(&mut self, node: &NodeProto) -> Result<(), Why> {
        let eight = node.input.first().and_then(|name| self.eight(name)).filter(|eight| eight.axis.is_none());
        let eight = eight.cloned().ok_or(Why::Expected)?;
        self.moved(node, &eight)
    }

    fn moved(&mut self, node: &NodeProto, eight: &super::graph::Eight) -> Result<(), Why> {
        let Some(output) = node.output.first() else { return Err(Why::Expected) };
        let mut node = node.clone();
        node.output[0] = self.computed(output, eight);
        node.input[0].clone_from(&eight.name);
        self.push(node);
        Ok(())
    }
}
