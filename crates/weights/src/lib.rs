//! Imports and exports weights: PyTorch `.pt`, safetensors, Hugging Face directories, Keras `.keras` and `.h5`.
//!
//! Files are untrusted: nothing in them is executed, every length and offset is checked, and all arrays together may
//! take eight times the file size plus 1 MiB. Layers are defined in `systole-nn`.
//!
//! ```
//! use systole_nn::{Model, layers::dense};
//! use systole_ir::{DType, TensorType};
//! use systole_weights::{WeightFormat, WeightSource, export};
//! let mut model = Model::sequential([dense(3), dense(2)]);
//! model.build(&[TensorType::new(DType::F32, [4])])?;
//! let file = export(&model, WeightFormat::Torch, "model.pt".as_ref())?.bytes;
//! let source = WeightSource::from_bytes("model.pt", file)?;
//! let mut other = Model::sequential([dense(3), dense(2)]);
//! other.build(&[TensorType::new(DType::F32, [4])])?;
//! let report = source.fill(&mut other, false)?;
//! assert_eq!(report.rows[0].theirs, "dense.weight");
//! assert_eq!(other.weight("dense_1/kernel")?, model.weight("dense_1/kernel")?);
//! # Ok::<(), systole_ir::Error>(())
//! ```

mod arrays;
mod export;
mod folder_settings;
mod hdf5;
mod huggingface;
mod keras;
mod legacy_torch;
mod names;
mod pickle;
mod pretrained;
mod safetensors;
mod source;
mod torch;
mod weight_mapping;

pub use export::{WeightFormat, export};
pub use folder_settings::{ImageProcessor, ResizeTarget};
pub use names::families;
pub use names::family::{FamilyInfo, Tower};
pub use pretrained::{FetchedModel, PretrainedEntry, PretrainedName, pretrained_entries};
pub use source::WeightSource;
pub use weight_mapping::{ExportedFile, ImportReport, ImportRow};
