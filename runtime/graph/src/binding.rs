//! Inputs and outputs that stay where they are from run to run.

use crate::error::Error;
use crate::outputs::Outputs;
use crate::session::{Chosen, Session};
use crate::watch::RunOptions;
use stepalloc_tensor::{Tensor, View, ViewMut};

/// Tensors bound to a session's inputs and outputs: from the second run on no tensor is allocated, and from the third on nothing is asked
/// of the heap, as long as inputs are of the same types and what elements decide becomes no larger.
///
/// ```no_run
/// # use stepalloc_graph::{Error, Model, Session};
/// # use stepalloc_tensor::Tensor;
/// # fn run(model: &Model) -> Result<(), Error> {
/// let session = Session::new(model);
/// let mut binding = session.binding();
/// binding.bind_input("x", Tensor::from_elements([1, 4], &[0.0f32, 1.0, 2.0, 3.0]).expect("four elements"))?;
/// binding.run()?;
/// let y = binding.output("y")?.elements::<f32>();
/// # Ok(())
/// # }
/// ```
pub struct Binding {
    session: Session,
    inputs: Vec<Option<Tensor>>,
    outputs: Outputs,
    /// Outputs that become inputs of the next run, by number.
    fed_back: Vec<(usize, usize)>,
    /// What the inputs are planned as; forgotten when one of another type is bound.
    planned: Option<Chosen>,
}

impl Binding {
    pub(crate) fn new(session: Session) -> Self {
        let graph = session.graph();
        Self {
            inputs: vec![None; graph.inputs.len()],
            outputs: Outputs::new(graph.outputs.len(), session.arenas()),
            fed_back: Vec::new(),
            planned: None,
            session,
        }
    }

    /// The session it runs.
    pub fn session(&self) -> &Session {
        &self.session
    }

    fn input_number(&self, name: &str) -> Result<usize, Error> {
        let graph = self.session.graph();
        let found = graph.inputs.iter().position(|&id| graph.values[id].name == name);
        found.ok_or_else(|| Error::Argument(format!("there is no input {name}")))
    }

    fn output_number(&self, name: &str) -> Result<usize, Error> {
        let graph = self.session.graph();
        let found = graph.outputs.iter().position(|&id| graph.values[id].name == name);
        found.ok_or_else(|| Error::Argument(format!("there is no output {name}")))
    }

    /// Binds an input, in place of the tensor that was bound to it before, which is returned.
    pub fn bind_input(&mut self, name: &str, tensor: Tensor) -> Result<Option<Tensor>, Error> {
        let number = self.input_number(name)?;
        self.bind_number(number, tensor)
    }

    fn bind_number(&mut self, number: usize, tensor: Tensor) -> Result<Option<Tensor>, Error> {
        self.session.check(number, &type_of(&tensor))?;
        let before = self.inputs[number].replace(tensor);
        if before.as_ref().map(Tensor::ty) != self.inputs[number].as_ref().map(Tensor::ty) {
            self.planned = None;
        }
        Ok(before)
    }

    /// From now on, what comes out of `output` is what `input` is in the next run: nothing is copied for it. Where the output is the
    /// input with rows appended, and whoever reads it can take it in blocks (the keys and values of a decoder), rows are appended
    /// where the input lies, from the second run on. [`Binding::output`] copies such an output when it is asked for.
    ///
    /// The first run takes what is bound to the input, and so does one after something else was bound to it with the output taken
    /// ([`Binding::take_output`]) or cleared.
    pub fn feed_back(&mut self, output: &str, input: &str) -> Result<(), Error> {
        let (output, input) = (self.output_number(output)?, self.input_number(input)?);
        if self.fed_back.iter().any(|&(from, to)| from == output || to == input) {
            return Err(Error::Argument("an output or input is fed back already".into()));
        }
        self.fed_back.push((output, input));
        Ok(())
    }

    /// An output of the newest run as a tensor of the caller's; the next run makes another one.
    pub fn take_output(&mut self, name: &str) -> Result<Tensor, Error> {
        let number = self.output_number(name)?;
        let made = self.outputs.take(number);
        made.ok_or_else(|| Error::Argument(format!("output {name} was not made yet")))
    }

    /// Bytes of inputs that were copied so far, so that outputs that are fed back may grow where they are.
    pub fn copied_bytes(&self) -> u64 {
        self.outputs.copied_bytes
    }

    /// The elements of a bound input, to be changed between runs.
    pub fn input_mut(&mut self, name: &str) -> Result<ViewMut<'_>, Error> {
        let number = self.input_number(name)?;
        let bound = self.inputs[number].as_mut();
        bound
            .map(Tensor::view_mut)
            .ok_or_else(|| Error::Argument(format!("nothing is bound to input {name}")))
    }

    /// Binds memory to an output; without, it is made at the first run. A tensor of another type than the output turns out to be
    /// of is replaced.
    pub fn bind_output(&mut self, name: &str, tensor: Tensor) -> Result<(), Error> {
        let number = self.output_number(name)?;
        self.outputs.put(number, Some(tensor));
        Ok(())
    }

    /// An output of the newest run.
    pub fn output(&self, name: &str) -> Result<View<'_>, Error> {
        let made = self.outputs.tensors[self.output_number(name)?].as_ref();
        made.map(Tensor::view).ok_or_else(|| Error::Argument(format!("output {name} was not made yet")))
    }

    /// An output of the newest run as a second tensor of the same memory, for who cannot borrow it: the next run writes there again.
    ///
    /// # Safety
    /// Nobody looks at it while the binding runs, nor writes it while the binding's own is looked at.
    pub unsafe fn share_output(&mut self, name: &str) -> Result<Tensor, Error> {
        let number = self.output_number(name)?;
        let made = self.outputs.tensors[number].as_mut();
        let made = made.ok_or_else(|| Error::Argument(format!("output {name} was not made yet")))?;
        // SAFETY: the caller's promise.
        Ok(unsafe { made.share() })
    }

    /// All outputs of the newest run, in the model's order.
    pub fn outputs(&self) -> impl Iterator<Item = Option<&Tensor>> {
        self.outputs.tensors.iter().map(Option::as_ref)
    }

    /// Forgets all inputs.
    pub fn clear_inputs(&mut self) {
        self.inputs.fill(None);
        self.planned = None;
    }

    /// Forgets all outputs.
    pub fn clear_outputs(&mut self) {
        (0..self.outputs.tensors.len()).for_each(|index| self.outputs.put(index, None));
    }

    /// Gives arenas back to the system until the next run.
    pub fn release_memory(&self) {
        self.session.release_memory();
    }

    /// Runs the model on what is bound.
    pub fn run(&mut self) -> Result<(), Error> {
        self.run_with(RunOptions::new())
    }

    /// The same, as told.
    pub fn run_with(&mut self, mut options: RunOptions<'_>) -> Result<(), Error> {
        let done = self.run_bound(&mut options);
        if options.shrinks() {
            self.session.release_memory();
        }
        done
    }

    fn run_bound(&mut self, options: &mut RunOptions<'_>) -> Result<(), Error> {
        for number in 0..self.fed_back.len() {
            let (output, input) = self.fed_back[number];
            if let Some(tensor) = self.outputs.take(output) {
                self.bind_number(input, tensor)?;
            }
        }
        let stale = |chosen: &Chosen| !chosen.is_for(|index| self.inputs[index].as_ref().map(type_of));
        if self.planned.as_ref().is_some_and(stale) {
            self.planned = None;
        }
        let (session, inputs) = (&self.session, &self.inputs);
        let context = session.context(options.cancelled_by());
        let chosen = match &mut self.planned {
            Some(planned) => planned,
            None => {
                let views: Vec<_> = inputs.iter().map(|input| input.as_ref().map(type_of)).collect();
                session.check_all(&views)?;
                self.planned.insert(session.executor().choose(&views, &context)?)
            }
        };
        let given = (&inputs[..], &self.fed_back[..]);
        session.executor().run_in(chosen, given, &mut self.outputs, options, &context)
    }
}

/// A view of a tensor; without elements where they lie in blocks, and would be copied.
fn type_of(tensor: &Tensor) -> View<'_> {
    match tensor.blocks() {
        Some(_) => View { dtype: tensor.ty().dtype, shape: &tensor.ty().shape, bytes: &[] },
        None => tensor.view(),
    }
}
