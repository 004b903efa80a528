//! Recognizes model files of other programs by content, for error messages that name the format and its commands.

/// Format of a model file of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFormat {
    /// llama.cpp.
    Gguf,
    /// HDF5: Keras `.h5`.
    Hdf5,
    /// PyTorch of before 1.6, or another pickle.
    Pickle,
    /// ZIP archive: PyTorch `.pt` or `.keras`.
    Zip,
    /// ONNX.
    Onnx,
    /// LiteRT `.tflite`.
    Tflite,
}

impl ModelFormat {
    /// Recognizes a file by its first 16 bytes; safetensors files are not recognized.
    pub fn of(start: &[u8]) -> Option<ModelFormat> {
        let is_onnx = matches!(start, [0x08, 3..=0x20, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42, ..]);
        // The length of a safetensors header may look like the start of a pickle or an ONNX model.
        let is_safetensors = start.get(4..9) == Some(b"\0\0\0\0{");
        match start {
            _ if is_safetensors => None,
            _ if start.starts_with(b"GGUF") => Some(ModelFormat::Gguf),
            _ if start.starts_with(b"\x89HDF\r\n\x1a\n") => Some(ModelFormat::Hdf5),
            _ if start.starts_with(b"PK\x03\x04") => Some(ModelFormat::Zip),
            _ if start.get(4..8) == Some(b"TFL3") => Some(ModelFormat::Tflite),
            [0x80, 2..=5, ..] => Some(ModelFormat::Pickle),
            _ if is_onnx => Some(ModelFormat::Onnx),
            _ => None,
        }
    }

    /// Returns the format with an article: "an ONNX model".
    pub fn name(self) -> &'static str {
        match self {
            ModelFormat::Gguf => "a GGUF file",
            ModelFormat::Hdf5 => "an HDF5 file, such as Keras weights (.h5)",
            ModelFormat::Pickle => "a pickle, such as a legacy PyTorch file (.pth)",
            ModelFormat::Zip => "a ZIP archive, such as a PyTorch (.pt, .pth) or Keras (.keras) file",
            ModelFormat::Onnx => "an ONNX model",
            ModelFormat::Tflite => "a .tflite model",
        }
    }

    /// Returns which commands read the format, in the imperative.
    pub fn hint(self) -> &'static str {
        match self {
            ModelFormat::Gguf => {
                "import the model's Hugging Face folder instead: systole import FOLDER --out model.safetensors; GGUF is not supported"
            }
            ModelFormat::Hdf5 | ModelFormat::Pickle | ModelFormat::Zip => {
                "convert it first: systole import FILE --out model.safetensors"
            }
            ModelFormat::Onnx => {
                "use a command that reads ONNX models: summary, predict, evaluate, run, check, show, plan, compile or translate"
            }
            ModelFormat::Tflite => {
                "use a command that reads .tflite models: summary, predict, evaluate, run, tpu1, check, show, plan, compile or translate"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        for (start, format) in [
            (&b"GGUF\x03\0\0\0"[..], Some(ModelFormat::Gguf)),
            (b"\x89HDF\r\n\x1a\n", Some(ModelFormat::Hdf5)),
            (b"\x80\x02\x8a\x0a", Some(ModelFormat::Pickle)),
            (b"PK\x03\x04", Some(ModelFormat::Zip)),
            (b"\x08\x08\x12\x04", Some(ModelFormat::Onnx)),
            (b"\x1c\0\0\0TFL3", Some(ModelFormat::Tflite)),
            (b"\x40\0\0\0\0\0\0\0{\"", None),
            (b"\x80\x02\0\0\0\0\0\0{\"", None),
            (b"\x08\x08\x12\0\0\0\0\0{\"", None),
            (b"module {", None),
            (b"", None),
        ] {
            assert_eq!(ModelFormat::of(start), format, "{start:?}");
            assert!(format.is_none_or(|f| f.name().starts_with("a") && f.hint().contains(' ')));
        }
    }
}
