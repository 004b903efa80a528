//! Compiles int8 `.tflite` graphs for the CPU engine; results are bit-identical to the `systole-tflite` interpreter.
//!
//! Int8 operators run on the engine's kernels (`kernels`): weights are packed once, samples are batched, and threads
//! share the work. Other operators (floats, rare ones) fall back to the interpreter, sample by sample. A kernel is
//! chosen only if all checks of the interpreter are known to pass; errors in a file are reported by the interpreter.
//!
//! ```
//! use systole_base::{DType, Literal};
//! use systole_int8::{Int8Program, Settings};
//! use systole_tflite::{TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor};
//! let per_tensor = || TfliteQuantization::per_tensor(0.1, -3);
//! let model = TfliteModel {
//!     tensors: vec![
//!         TfliteTensor::new("x", [1, 3], DType::I8).quantized(per_tensor()),
//!         TfliteTensor::new("y", [1, 3], DType::I8).quantized(per_tensor()),
//!     ],
//!     operators: vec![TfliteOperator::new(TfliteOp::Relu, [0], [1])],
//!     inputs: vec![0],
//!     outputs: vec![1],
//!     ..TfliteModel::default()
//! };
//! let x = Literal::from_slice([1, 3], &[-100i8, -3, 50])?;
//! let expected = TfliteInterpreter::new(&model)?.run(&[x.clone()])?;
//! let program = Int8Program::new(model, &Settings::default())?;
//! assert_eq!(program.run(&[x])?, expected);
//! assert_eq!(program.forms().collect::<Vec<_>>(), ["table"]);
//! # Ok::<(), systole_base::Error>(())
//! ```

mod kernels;
mod op_context;
mod plan;
mod probe;
mod program;

pub use program::{Int8Program, Settings};
