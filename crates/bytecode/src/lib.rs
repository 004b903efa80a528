//! Reads and writes StableHLO portable artifacts (MLIR bytecode with the VHLO dialect, and Shardy), as `jax.export`
//! emits them and PJRT plugins receive them. Both use the syntax tree of the text parser; any artifact version can be
//! written.
//!
//! ```
//! let text = "func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
//!     %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
//!     return %0 : tensor<2xf32>
//! }";
//! let module = systole_mlir::text::parse(text)?;
//! let bytes = systole_bytecode::write(&module, systole_bytecode::StablehloVersion::new(1, 9, 0))?;
//! assert_eq!(systole_bytecode::parse(&bytes)?.functions[0].body.operations[0].name, "stablehlo.add");
//! # Ok::<(), systole_base::Error>(())
//! ```
//!
//! Malformed input is an error. Memory is limited to [`MOST_BYTES_PER_BYTE`] bytes per input byte plus [`SPARE_BYTES`],
//! since attributes refer to each other and a few bytes could expand to very many.
//!
//! Arrays are read as little-endian bytes, with i1 bit-packed and splats as one element. Like the text parser, the
//! reader drops locations (except argument names), the order of uses, the module name, and whether a sharding is open.
//!
//! Sources: MLIR's "Bytecode Format", the encodings of the VHLO and Shardy dialects.

mod byte_io;
mod file;
mod read;
mod version;
mod vhlo_tables;
mod write;

pub use read::{MOST_BYTES_PER_BYTE, SPARE_BYTES, parse};
pub use version::{CURRENT, StablehloVersion, version_of};
pub use write::write;
