//! StableHLO portable artifacts, which `jax.export` writes and PJRT plugins are given: MLIR bytecode with the VHLO dialect, and
//! with Shardy's. They are read into the form that StableHLO text is read into as well, and written from it for any version.
//!
//! ```
//! let text = "func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
//!     %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
//!     return %0 : tensor<2xf32>
//! }";
//! let module = systole_mlir::text::parse(text)?;
//! let bytes = systole_bytecode::write(&module, systole_bytecode::Version::new(1, 9, 0))?;
//! assert_eq!(systole_bytecode::parse(&bytes)?.functions[0].body.operations[0].name, "stablehlo.add");
//! # Ok::<(), systole_base::Error>(())
//! ```
//!
//! Hostile bytes end in an error. What is read takes at most [`MOST_BYTES_PER_BYTE`] bytes of memory for each byte of the
//! input, and [`SPARE_BYTES`]: attributes refer to each other, so that few bytes could stand for very many.
//!
//! Arrays are read as little-endian bytes, those of i1 packed, one element where all are one. What the form of text does not keep
//! is not kept here either: locations (but the names of arguments), the order of uses, a module's name, whether a sharding is open.
//!
//! Source: MLIR's "Bytecode Format", the VHLO dialect's and Shardy's encodings.

mod byte_io;
mod file;
mod read;
mod version;
mod vhlo_tables;
mod write;

pub use read::{MOST_BYTES_PER_BYTE, SPARE_BYTES, parse};
pub use version::{CURRENT, StablehloVersion, version_of};
pub use write::write;
