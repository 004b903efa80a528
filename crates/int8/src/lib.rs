//! `.tflite` graphs compiled for the CPU engine: what the interpreter of `systole-tflite` computes, to the bit, and fast.
//!
//! Operators on int8 get a form that the engine's kernels compute (`forms`): weights are packed once, samples of a batch go
//! through the graph together, threads share them. An operator without one (floats, and what is rare) is computed by the
//! interpreter's kernel, sample by sample. Forms are chosen only where all that the interpreter checks is known to hold; what
//! is wrong with a file is told by the interpreter, too.
//!
//! ```
//! use systole_base::{DType, Literal};
//! use systole_int8::{Program, Settings};
//! use systole_tflite::{Interpreter, Model, Op, Operator, Quantization, Tensor};
//! let per_tensor = || Quantization::per_tensor(0.1, -3);
//! let model = Model {
//!     tensors: vec![
//!         Tensor::new("x", [1, 3], DType::I8).quantized(per_tensor()),
//!         Tensor::new("y", [1, 3], DType::I8).quantized(per_tensor()),
//!     ],
//!     operators: vec![Operator::new(Op::Relu, [0], [1])],
//!     inputs: vec![0],
//!     outputs: vec![1],
//!     ..Model::default()
//! };
//! let x = Literal::from_slice([1, 3], &[-100i8, -3, 50])?;
//! let expected = Interpreter::new(&model)?.run(&[x.clone()])?;
//! let program = Program::new(model, &Settings::default())?;
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
