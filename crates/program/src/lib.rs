//! Tools for external program files (StableHLO, ONNX): open them ([`program_file`]), pass named arrays ([`files`], [`inputs`]),
//! run them ([`run`]), find the first op that differs between two devices ([`bisect`]), minimize a failing program
//! ([`shrink`]).
//!
//! ```
//! use systole_program::{inputs, program_file::open, run::ProgramRunner, summary};
//! let text = b"func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
//!     %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
//!     return %0 : tensor<2xf32>
//! }";
//! let program = open(text)?.imported;
//! let inputs = inputs::random(&program.interface.arguments, 0)?;
//! let runner = ProgramRunner::new(&program, &systole_runtime::backend("ref")?)?;
//! let ran = runner.results(&runner.run(&runner.put(&inputs)?)?)?;
//! assert_eq!(ran.values[0].ty(), "f32[2]");
//! # Ok::<(), systole_base::Error>(())
//! ```
//!
//! Devices are passed in as [`Backend`](systole_runtime::Backend)s.

#![forbid(unsafe_code)]

pub mod bisect;
pub mod compare;
pub mod files;
pub mod inputs;
pub mod program_file;
pub mod run;
pub mod shrink;
pub mod summary;
