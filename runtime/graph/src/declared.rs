//! Inputs and outputs as a model declares them.

use crate::graph::{Graph, Value};
use crate::model::Model;
use crate::session::Session;

impl Graph {
    /// What is to be given, in order: [`Value::declared`] is its type, [`Value::constant`] what it is where it is left out.
    pub fn input_values(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.inputs.iter().map(|&id| &self.values[id])
    }

    /// What comes out, in order.
    pub fn output_values(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.outputs.iter().map(|&id| &self.values[id])
    }
}

impl Model {
    /// Inputs in order, with their names and declared types. One that has a [`Value::constant`] may be left out.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.graph.input_values()
    }

    /// Outputs in order, with their names and declared types.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.graph.output_values()
    }
}

impl Session {
    /// Inputs in order, with their names and declared types. One that has a [`Value::constant`] may be left out.
    ///
    /// ```no_run
    /// # fn list(session: &stepalloc_graph::Session) {
    /// for input in session.inputs() {
    ///     // None where the model says nothing of its type.
    ///     if let Some(declared) = &input.declared {
    ///         println!("{}: {} {:?}", input.name, declared.dtype, declared.dims);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.graph().input_values()
    }

    /// Outputs in order, with their names and declared types.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.graph().output_values()
    }
}
