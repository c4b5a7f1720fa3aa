//! Inputs from files or at random, and outputs to files.

use npyz::WriterBuilder;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use stepalloc_runtime::{
    Bool, DataType, Dim, Element, Error, Graph, Light, Tensor, Type, Value, bf16, f16, read_tensor,
};

/// What the user says of an input.
#[derive(Clone, Debug)]
pub(super) enum Given {
    /// Its elements are in a file.
    File(String, PathBuf),
    /// Its shape.
    Shape(String, Vec<usize>),
}

impl Given {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::File(name, _) | Self::Shape(name, _) => name,
        }
    }
}

/// `NAME=FILE`.
pub(super) fn given(text: &str) -> Result<Given, String> {
    let (name, path) = text.split_once('=').ok_or("it must be NAME=FILE")?;
    Ok(Given::File(name.into(), path.into()))
}

/// `NAME=1x3x224x224`, or `NAME=` for a scalar.
pub(super) fn shaped(text: &str) -> Result<Given, String> {
    let (name, dims) = text.split_once('=').ok_or("it must be NAME=SIZExSIZE...")?;
    let dims = dims.split('x').filter(|dim| !dim.is_empty()).map(str::parse);
    let dims: Result<Vec<usize>, _> = dims.collect();
    Ok(Given::Shape(name.into(), dims.map_err(|_| "sizes are numbers with x between them, as 1x3x224x224")?))
}

/// The graph's inputs, as far as planning needs them; `None` for those that have a value and are not given.
pub(super) fn light(graph: &Graph, given: &[Given]) -> Result<Vec<Option<Light>>, String> {
    let inputs = graph.inputs.iter().map(|&id| &graph.values[id]);
    let one = |value: &Value| match given.iter().find(|given| given.name() == value.name) {
        None if value.constant.is_some() => Ok(None),
        Some(Given::File(_, path)) => Ok(Some(read(path)?.into())),
        told => Ok(Some(type_of(value, told)?.into())),
    };
    inputs.map(one).collect()
}

/// The type of an input that is filled at random.
fn type_of(value: &Value, told: Option<&Given>) -> Result<Type, String> {
    let name = &value.name;
    let declared = value.declared.as_ref().ok_or_else(|| {
        format!("the model does not say what input {name} is: give it by --input {name}=FILE")
    })?;
    let shape = match told {
        Some(Given::Shape(_, shape)) => shape.clone(),
        _ => {
            let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
            declared.dims.iter().flatten().map(size).collect()
        }
    };
    Type::new(declared.dtype, shape).ok_or_else(|| format!("input {name} would be too large"))
}

/// The graph's inputs by name: as given, else at random; `None` for those that have a value and are not given.
pub(super) fn tensors(graph: &Graph, given: &[Given]) -> Result<Vec<(String, Option<Tensor>)>, String> {
    let names: Vec<_> = graph.inputs.iter().map(|&id| graph.values[id].name.as_str()).collect();
    if let Some(unknown) = given.iter().find(|given| !names.contains(&given.name())) {
        return Err(format!("there is no input {}; inputs are {}", unknown.name(), names.join(", ")));
    }
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut made = Vec::new();
    for &id in &graph.inputs {
        let value = &graph.values[id];
        let told = given.iter().find(|given| given.name() == value.name);
        if told.is_none() && value.constant.is_some() {
            made.push((value.name.clone(), None));
            continue;
        }
        if let Some(Given::File(_, path)) = told {
            made.push((value.name.clone(), Some(read(path)?)));
            continue;
        }
        let ty = type_of(value, told)?;
        let tensor = random.tensor(ty).map_err(|error| format!("input {}: {error}", value.name))?;
        made.push((value.name.clone(), Some(tensor)));
    }
    Ok(made)
}

/// Those inputs that are given by files.
pub(super) fn only(graph: &Graph, files: &[Given]) -> Result<Vec<(String, Tensor)>, String> {
    let named = |name: &str| graph.inputs.iter().any(|&id| graph.values[id].name == name);
    let files = files.iter().filter_map(|given| match given {
        Given::File(name, path) if named(name) => Some((name.clone(), path)),
        _ => None,
    });
    files.map(|(name, path)| Ok((name, read(path)?))).collect()
}

/// Numbers that only look random (xorshift64), the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Floats from 0 to 1, everything else 0 or 1.
    fn tensor(&mut self, ty: Type) -> Result<Tensor, Error> {
        let mut tensor = Tensor::try_zeroed(ty)?;
        let view = tensor.view_mut();
        let mut unit = || (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        match view.dtype {
            DataType::F32 => view.elements::<f32>().iter_mut().for_each(|x| *x = unit()),
            DataType::F64 => view.elements::<f64>().iter_mut().for_each(|x| *x = unit().into()),
            DataType::F16 => view.elements::<f16>().iter_mut().for_each(|x| *x = f16::from_f32(unit())),
            DataType::BF16 => view.elements::<bf16>().iter_mut().for_each(|x| *x = bf16::from_f32(unit())),
            dtype => {
                for element in view.bytes.chunks_exact_mut(dtype.bytes()) {
                    element[0] = (unit() + 0.5) as u8;
                }
            }
        }
        Ok(tensor)
    }
}

/// A tensor from a file.
fn read(path: &Path) -> Result<Tensor, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    if path.extension().is_some_and(|extension| extension == "pb") {
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        return read_tensor(bytes.into()).map(|(_, tensor)| tensor).map_err(|error| wrong(error.to_string()));
    }
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let npy =
        npyz::NpyFile::new(BufReader::new(file)).map_err(|error| wrong(format!("no .npy file: {error}")))?;
    if npy.order() != npyz::Order::C {
        return Err(wrong(
            "its elements are in Fortran's order; numpy.ascontiguousarray makes them C's".into(),
        ));
    }
    let shape: Vec<usize> = npy.shape().iter().map(|&dim| dim as usize).collect();
    let npyz::DType::Plain(kind) = npy.dtype() else { return Err(wrong("it is a table of records".into())) };
    let kind = kind.to_string();
    macro_rules! load {
        ($type:ty) => {{
            let elements: Vec<$type> = npy.into_vec().map_err(|error| wrong(error.to_string()))?;
            Tensor::from_elements(shape, &elements)
        }};
    }
    let tensor = match &kind.trim_matches('\'')[1..] {
        "f4" => load!(f32),
        "f8" => load!(f64),
        "f2" => load!(f16),
        "i1" => load!(i8),
        "i2" => load!(i16),
        "i4" => load!(i32),
        "i8" => load!(i64),
        "u1" => load!(u8),
        "u2" => load!(u16),
        "u4" => load!(u32),
        "u8" => load!(u64),
        "b1" => {
            let elements: Vec<bool> = npy.into_vec().map_err(|error| wrong(error.to_string()))?;
            let elements: Vec<_> = elements.into_iter().map(Bool::from).collect();
            Tensor::from_elements(shape, &elements)
        }
        _ => return Err(wrong(format!("elements of type {kind} are not known here"))),
    };
    tensor.ok_or_else(|| wrong("its shape and its length differ".into()))
}

/// Writes tensors as DIR/NAME.npy; what is not a letter, a digit, a dash or a dot in a name becomes an underscore, and names that are
/// the same then are numbered: NAME.npy, NAME.2.npy.
pub(super) fn save<'a>(
    directory: &Path,
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
) -> Result<(), String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names = Vec::new();
    for (name, tensor) in tensors {
        let plain =
            |letter: char| if letter.is_ascii_alphanumeric() || "-.".contains(letter) { letter } else { '_' };
        let name: String = name.chars().map(plain).collect();
        let numbered = (2..).map(|number| format!("{name}.{number}"));
        let name = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = name.expect("there are more numbers than names");
        let path = directory.join(format!("{name}.npy"));
        names.push(name);
        write(&path, tensor).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}

fn write(path: &Path, tensor: &Tensor) -> Result<(), String> {
    let view = tensor.view();
    fn put<T: Element + npyz::AutoSerialize>(
        path: &Path,
        shape: &[usize],
        elements: &[T],
    ) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut file).begin_nd()?;
        writer.extend(elements.iter().copied())?;
        writer.finish()?;
        file.flush()
    }
    let done = match view.dtype {
        DataType::F32 => put::<f32>(path, view.shape, view.elements()),
        DataType::F64 => put::<f64>(path, view.shape, view.elements()),
        DataType::F16 => put::<f16>(path, view.shape, view.elements()),
        DataType::I8 => put::<i8>(path, view.shape, view.elements()),
        DataType::I16 => put::<i16>(path, view.shape, view.elements()),
        DataType::I32 => put::<i32>(path, view.shape, view.elements()),
        DataType::I64 => put::<i64>(path, view.shape, view.elements()),
        DataType::U8 | DataType::Bool => put::<u8>(path, view.shape, view.raw()),
        DataType::U16 => put::<u16>(path, view.shape, view.elements()),
        DataType::U32 => put::<u32>(path, view.shape, view.elements()),
        DataType::U64 => put::<u64>(path, view.shape, view.elements()),
        other => return Err(format!("numpy has no elements of {other}")),
    };
    done.map_err(|error| error.to_string())
}
