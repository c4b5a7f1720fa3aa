//! What a file seems to be that is no model of ONNX, and what to do with it: by how it begins.

/// A kind of file.
struct Kind {
    /// Where its mark is.
    at: usize,
    mark: &'static [u8],
    /// What it is, and what to do.
    is: &'static str,
}

const fn kind(at: usize, mark: &'static [u8], is: &'static str) -> Kind {
    Kind { at, mark, is }
}

/// Kinds by their marks.
const KINDS: &[Kind] = &[
    kind(0, b"GGUF", "weights of llama.cpp (GGUF): export the model that they were made of to ONNX"),
    kind(0, b"\x89HDF\r\n\x1a\n", "a model of Keras (HDF5): convert it with tf2onnx"),
    kind(4, b"TFL3", "a model of TensorFlow Lite: convert it with tf2onnx --tflite"),
    kind(4, b"ORTM", "a model in ONNX Runtime's own format (.ort): take the .onnx that it was made of"),
    kind(0, b"\x93NUMPY", "an array of numpy: it may be an input (--input NAME=FILE)"),
    kind(
        0,
        b"version https://git-lfs",
        "what Git LFS has in a file's place: fetch the file with git lfs pull",
    ),
    kind(0, b"7767517", "a model of ncnn: export the model that it was made of to ONNX"),
    kind(
        0,
        b"ptrt",
        "an engine of TensorRT, which runs on one GPU alone: take the model that it was built of",
    ),
    kind(
        0,
        b"ftrt",
        "an engine of TensorRT, which runs on one GPU alone: take the model that it was built of",
    ),
    kind(0, b"\x1f\x8b", "compressed (gzip): unpack it"),
    kind(0, b"\x28\xb5\x2f\xfd", "compressed (zstd): unpack it"),
    kind(0, b"\xfd7zXZ", "compressed (xz): unpack it"),
    kind(0, b"BZh", "compressed (bzip2): unpack it"),
    kind(0, b"7z\xbc\xaf", "an archive (7z): unpack it"),
    kind(257, b"ustar", "an archive (tar): unpack it"),
    kind(0, b"\x7fELF", "a program or library (ELF)"),
    kind(0, b"%PDF", "a document (PDF)"),
];

/// Bytes in which names are looked for.
const HEAD: usize = 4096;

/// What a file seems to be that could not be read; `None` where it looks like nothing in particular.
pub(super) fn seems(bytes: &[u8]) -> Option<&'static str> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let has = |text: &[u8]| head.windows(text.len()).any(|window| window == text);
    if bytes.is_empty() {
        return Some("empty");
    }
    let is = |kind: &&Kind| bytes.get(kind.at..).is_some_and(|rest| rest.starts_with(kind.mark));
    if let Some(kind) = KINDS.iter().find(is) {
        return Some(kind.is);
    }
    if bytes.starts_with(b"PK\x03\x04") {
        return Some(match () {
            () if has(b"data.pkl") || has(b"constants.pkl") => {
                "weights or a script of PyTorch (a zip archive): export the model with torch.onnx.export"
            }
            () if has(b".npy") => "arrays of numpy (.npz): an input is one array (.npy)",
            () if has(b"keras") || has(b"config.json") => {
                "a model of Keras (a zip archive): convert it with tf2onnx"
            }
            () => "a zip archive: unpack it",
        });
    }
    if let [0x80, 2..=5, ..] = bytes {
        return Some(
            "a pickle of Python, as old PyTorch saves models: export the model with torch.onnx.export",
        );
    }
    // The length of a header in JSON, and that.
    let length = bytes.first_chunk().map(|&length| u64::from_le_bytes(length));
    if bytes.get(8) == Some(&b'{') && length.is_some_and(|length| length < bytes.len() as u64) {
        return Some("weights without a graph (safetensors): export the model that they are of to ONNX");
    }
    let text = head.trim_ascii_start();
    let begins = |mark: &[u8]| text.len() >= mark.len() && text[..mark.len()].eq_ignore_ascii_case(mark);
    if begins(b"<!doctype html") || begins(b"<html") {
        return Some("a page of the web, as servers answer in place of a file: fetch the file itself");
    }
    // Nodes of a graph of TensorFlow are its first field, and these are in all of them.
    if bytes.first() == Some(&0x0a) && (has(b"Placeholder") || has(b"VarHandleOp")) {
        return Some("a graph of TensorFlow: convert it with tf2onnx");
    }
    if begins(b"{") || begins(b"[") {
        return Some("JSON");
    }
    let is_text = |&letter: &u8| letter.is_ascii_graphic() || letter.is_ascii_whitespace();
    head.iter().all(is_text).then_some("text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_how_they_begin() {
        let zip = |name: &[u8]| [b"PK\x03\x04........", name].concat();
        let safetensors = [&20u64.to_le_bytes()[..], b"{\"w\":{}}            ", &[0; 64]].concat();
        let tar = [&[b'a'; 257][..], b"ustar", &[0; 100]].concat();
        let cases: [(&[u8], &str); 15] = [
            (b"", "empty"),
            (b"GGUF\x03\0\0\0", "llama.cpp"),
            (&zip(b"archive/data.pkl"), "torch.onnx.export"),
            (&zip(b"x.npy"), "npz"),
            (&zip(b"other"), "zip archive: unpack"),
            (b"\x80\x02}q\0", "pickle"),
            (&safetensors, "safetensors"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (b"\x1c\0\0\0ORTM", "ONNX Runtime's own format"),
            (b"\n<!DOCTYPE html><html>", "page of the web"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder", "graph of TensorFlow"),
            (b"{\"a\": 1}", "JSON"),
            (b"weights: none\n", "text"),
            (&tar, "tar"),
        ];
        for (bytes, said) in cases {
            let seems = seems(bytes).unwrap_or_default();
            assert!(seems.contains(said), "{said}: {seems}");
        }
        assert_eq!(seems(b"\x08\x07\x12\x04test\xff"), None);
    }
}
