//! Tensors of ONNX files: elements in one of several fields, or in a file of their own.

use super::proto::TensorProto;
use bytes::Bytes;
use prost::Message;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use stepalloc_graph::Error;
use stepalloc_tensor::raw::{from_raw, unpack};
use stepalloc_tensor::{DataType, Tensor, Type, bf16, f16, mapped};

/// `TensorProto.DataLocation.EXTERNAL`.
pub const EXTERNAL: i32 = 1;
/// `TensorProto.DataType.STRING`.
pub const STRING: i32 = 8;

/// Reads a serialized `TensorProto`, as ONNX's test data are kept. Returns its name and itself.
pub fn read_tensor(bytes: Bytes) -> Result<(String, Tensor), Error> {
    let proto =
        TensorProto::decode(bytes).map_err(|error| Error::model(format!("no TensorProto: {error}")))?;
    let tensor = tensor(&proto, &mut Folder::default())?;
    Ok((proto.name.unwrap_or_default(), tensor))
}

/// The folder of a model, and the files mapped from it.
#[derive(Default)]
pub struct Folder {
    /// `None` where the model came from memory.
    pub path: Option<PathBuf>,
    mapped: HashMap<PathBuf, Bytes>,
}

impl Folder {
    /// Nothing is mapped yet.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, mapped: HashMap::new() }
    }

    /// Whether nothing was mapped from it.
    pub fn is_unused(&self) -> bool {
        self.mapped.is_empty()
    }

    /// A part of a file beside the model.
    fn part(&mut self, location: &str, offset: usize, length: Option<usize>) -> Result<Bytes, Error> {
        let in_memory = || Error::model("its elements are in a file, and the model came from memory");
        let folder = self.path.as_ref().ok_or_else(in_memory)?;
        let relative = Path::new(location);
        // A model must not make us read any file of the system.
        if !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::model(format!("its file {location:?} is not below the model's folder")));
        }
        let path = folder.join(relative);
        let bytes = match self.mapped.get(&path) {
            Some(bytes) => bytes.clone(),
            None => {
                let bytes =
                    mapped::open(&path).map_err(|source| Error::File { path: path.clone(), source })?;
                self.mapped.insert(path, bytes.clone());
                bytes
            }
        };
        let end = length.map_or(Some(bytes.len()), |length| offset.checked_add(length));
        match end {
            Some(end) if offset <= end && end <= bytes.len() => Ok(bytes.slice(offset..end)),
            _ => Err(Error::model(format!("its file {location} has {} bytes only", bytes.len()))),
        }
    }
}

/// The tensor of a message, with its elements where they are in the message or the file if they may lie there.
pub fn tensor(proto: &TensorProto, folder: &mut Folder) -> Result<Tensor, Error> {
    let ty = ty(proto)?;
    let raw = if proto.data_location == Some(EXTERNAL) {
        Some(external(proto, folder)?)
    } else {
        proto.raw_data.clone()
    };
    match raw {
        // Writers give an empty field beside one of the others.
        Some(raw) if !raw.is_empty() || ty.elements() == 0 => raw_tensor(ty, raw),
        _ => from_fields(ty, proto),
    }
}

/// The tensor of the bytes that a file has for its elements.
fn raw_tensor(ty: Type, raw: Bytes) -> Result<Tensor, Error> {
    from_raw(ty, raw).map_err(|error| Error::model(error.to_string()))
}

fn ty(proto: &TensorProto) -> Result<Type, Error> {
    let number = proto.data_type.unwrap_or_default();
    let dtype = DataType::from_onnx(number).ok_or_else(|| match number {
        STRING => Error::model("it is a tensor of strings: strings are not supported"),
        _ => Error::model(format!("element type {number} is not known")),
    })?;
    let shape: Option<Vec<_>> = proto.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let ty = shape.and_then(|shape| Type::new(dtype, shape));
    ty.ok_or_else(|| Error::model(format!("its shape {:?} cannot be", proto.dims)))
}

/// Bytes of a tensor in a file.
fn in_file(ty: &Type) -> usize {
    (ty.elements() as u128 * ty.dtype.file_bits() as u128).div_ceil(8) as usize
}

/// The elements of a tensor that are in a file beside the model.
pub fn external(proto: &TensorProto, folder: &mut Folder) -> Result<Bytes, Error> {
    let entry = |key: &str| {
        let found = proto.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
        found.and_then(|entry| entry.value.as_deref())
    };
    let number = |key: &str| {
        let wrong = |text| Error::model(format!("its {key} is {text:?}"));
        entry(key).map(|text| text.parse::<usize>().map_err(|_| wrong(text))).transpose()
    };
    let location = entry("location").ok_or_else(|| Error::model("its file has no name"))?;
    let length = match number("length")? {
        Some(length) => Some(length),
        None => ty(proto).ok().map(|ty| in_file(&ty)),
    };
    folder.part(location, number("offset")?.unwrap_or(0), length)
}

/// Elements as `float_data` has them.
pub fn packed(elements: &[f32]) -> Vec<Bytes> {
    vec![elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<_>>().into()]
}

/// The tensor of packed floats, which are the bytes of a raw one: in one part, or more if the writer liked.
fn from_parts(ty: Type, parts: &[Bytes]) -> Result<Tensor, Error> {
    let given: usize = parts.iter().map(Bytes::len).sum();
    if given != ty.bytes() {
        return Err(Error::model(format!("{ty} has {} elements", given / ty.dtype.bytes())));
    }
    match parts {
        [part] => raw_tensor(ty, part.clone()),
        _ => raw_tensor(ty, parts.concat().into()),
    }
}

/// Elements in the fields for their types.
fn from_fields(ty: Type, proto: &TensorProto) -> Result<Tensor, Error> {
    let (elements, dtype, text) = (ty.elements(), ty.dtype, ty.to_string());
    // Checked before anything of the size is allocated: a file can claim any shape.
    let given = match dtype {
        DataType::F32 => return from_parts(ty, &proto.float_data),
        DataType::F64 => return from_parts(ty, &proto.double_data),
        DataType::I64 => proto.int64_data.len(),
        DataType::U32 | DataType::U64 => proto.uint64_data.len(),
        _ if dtype.file_bits() < 8 => {
            let each = 8 / dtype.file_bits();
            let wanted = elements.div_ceil(each);
            if proto.int32_data.len() == wanted { elements } else { proto.int32_data.len() }
        }
        _ => proto.int32_data.len(),
    };
    if given != elements {
        return Err(Error::model(format!("{text} has {given} elements")));
    }
    let mut tensor = Tensor::zeroed(ty);
    let out = tensor.view_mut();
    let ints = proto.int32_data.iter();
    macro_rules! fill {
        ($from:expr, $type:ty, $make:expr) => {
            out.elements::<$type>().iter_mut().zip($from).for_each(|(to, from)| *to = $make(*from))
        };
    }
    match dtype {
        DataType::I64 => out.elements().copy_from_slice(&proto.int64_data),
        DataType::U64 => out.elements().copy_from_slice(&proto.uint64_data),
        DataType::U32 => fill!(&proto.uint64_data, u32, |value| value as u32),
        DataType::I32 => fill!(ints, i32, |value| value),
        DataType::I16 => fill!(ints, i16, |value| value as i16),
        DataType::U16 => fill!(ints, u16, |value| value as u16),
        DataType::F16 => fill!(ints, f16, |value| f16::from_bits(value as u16)),
        DataType::BF16 => fill!(ints, bf16, |value| bf16::from_bits(value as u16)),
        _ if dtype.file_bits() < 8 => {
            let packed: Vec<_> = ints.map(|&value| value as u8).collect();
            unpack(dtype.file_bits(), &packed, out.bytes);
        }
        _ => out.bytes.iter_mut().zip(ints).for_each(|(to, &from)| *to = from as u8),
    }
    Ok(tensor)
}
