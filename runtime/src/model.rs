//! Models from files, whichever format they are in.

use bytes::Bytes;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Weak};
use stepalloc_graph::{self as graph, Changes, CustomOperators, Error, Graph, Header, Optimization};
use stepalloc_onnx::Folder;
use stepalloc_tensor::mapped;

/// A model that was read and understood: every node has its operator.
///
/// Weights stay in the file, which is mapped. It must not be changed while its model is in use: weights may then be those of either
/// file, and if it is shortened, the program goes down. A new file in its place (written beside it and renamed) is no change of it.
#[derive(Clone, Debug)]
pub struct Model(graph::Model);

impl Deref for Model {
    type Target = graph::Model;

    fn deref(&self) -> &graph::Model {
        &self.0
    }
}

impl AsRef<graph::Model> for Model {
    fn as_ref(&self) -> &graph::Model {
        self
    }
}

impl From<graph::Model> for Model {
    fn from(model: graph::Model) -> Self {
        Self(model)
    }
}

/// What a mapped file is as a model, as long as somebody has its graph.
struct Opened {
    graph: Weak<Graph>,
    producer: String,
    opsets: Vec<(String, i64)>,
    header: Arc<Header>,
}

impl Opened {
    fn new(model: &Model) -> Self {
        let graph::Model { graph, producer, opsets, header, .. } = model.0.clone();
        Self { graph: Arc::downgrade(&graph), producer, opsets, header }
    }

    /// `None` where nobody has its graph any more.
    fn model(&self) -> Option<Model> {
        let Self { graph, producer, opsets, header } = self;
        Some(Model(graph::Model {
            graph: graph.upgrade()?,
            producer: producer.clone(),
            opsets: opsets.clone(),
            header: Arc::clone(header),
            registry: stepalloc_operators::registry(),
        }))
    }
}

impl Model {
    /// Reads a file, and those it names for its weights. What is named .xml, or begins as XML, is read as OpenVINO's format, with
    /// its weights in the file of the same name and .bin. Opened again while its graph is in use, and if it names no other file, it is
    /// the same model: its sessions share all that sessions share.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &CustomOperators::new())
    }

    /// The same, with operators of the caller's own for nodes that the runtime has none for. Opened with any of them, a file is another
    /// model each time: sessions that are to share what they can are made of one [`Model`], or of its clones.
    pub fn open_with(path: impl AsRef<Path>, operators: &CustomOperators) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = mapped::open(path).map_err(|source| Error::File { path: path.into(), source })?;
        // Nobody can tell whether two sets of operators compute the same.
        let is_noted = operators.is_empty();
        if let Some(opened) = mapped::note::<Opened>(&bytes).filter(|_| is_noted)
            && let Some(model) = opened.model()
        {
            return Ok(model);
        }
        let mut folder = Folder::new(path.parent().map(Path::to_owned));
        let is_ir = stepalloc_openvino::is_ir(path, &bytes);
        let registry = stepalloc_operators::registry().with_custom(operators);
        let made = if is_ir {
            stepalloc_openvino::open(path, &bytes, &registry)
        } else {
            stepalloc_onnx::read(bytes.clone(), &mut folder, &registry)
        };
        // The weights of an IR lie beside it, and say nothing of themselves.
        let beside = path.with_extension("xml");
        let is_bin = path.extension().is_some_and(|extension| extension == "bin") && beside.is_file();
        let read = made.map(Self).map_err(|error| match error {
            Error::Model(_) if is_bin => Error::Model(format!(
                "{}: the weights of a model in OpenVINO's format: open {}",
                path.display(),
                beside.display()
            )),
            Error::Model(what) => Error::Model(format!("{}: {what}", path.display())),
            other => other,
        });
        mapped::settle(&bytes);
        // Other files may be new ones next time.
        if let (Ok(model), true) = (&read, folder.is_unused() && !is_ir && is_noted) {
            mapped::leave_note(&bytes, Arc::new(Opened::new(model)));
        }
        read
    }

    /// Reads an ONNX model from memory. Its weights must be in it.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Self::from_bytes_with(bytes, &CustomOperators::new())
    }

    /// The same, with operators of the caller's own for nodes that the runtime has none for.
    pub fn from_bytes_with(bytes: impl Into<Bytes>, operators: &CustomOperators) -> Result<Self, Error> {
        let registry = stepalloc_operators::registry().with_custom(operators);
        stepalloc_onnx::read(bytes.into(), &mut Folder::default(), &registry).map(Self)
    }

    /// The model with fewer nodes, computing the same but for rounding, and what was done to it. Weights that passes made lie in memory, not
    /// in the file, and are shared by all sessions of the model that is returned.
    pub fn optimize(self, optimization: &Optimization) -> (Self, Changes) {
        let (model, changes) = self.0.optimize(optimization);
        (Self(model), changes)
    }

    /// The model as an ONNX file's bytes. Function bodies are where they were called; weights from other files are in it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        stepalloc_onnx::to_bytes(self)
    }

    /// Writes the model as an ONNX file, as [`Model::to_bytes`] does. A file that is there is replaced when all is written, and may be
    /// the one the model was read from.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        stepalloc_onnx::save(self, path.as_ref())
    }
}
