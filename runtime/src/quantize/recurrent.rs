//! LSTM with constant weights.

use super::graph::{Rewriter, Why};
use crate::onnx::proto::NodeProto;

impl Rewriter<'_> {
    /// LSTM -> DynamicQuantizeLSTM of ONNX Runtime's domain.
    pub(super) fn lstm(&mut self, _node: &NodeProto) -> Result<(), Why> {
        Err(None)
    }
}
