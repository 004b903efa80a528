//! Reads and writes `.tflite` files, and runs them in an interpreter that matches LiteRT's reference kernels
//! (`OpResolverType.BUILTIN_REF`), int8 bit for bit.
//!
//! Systole models are converted to `.tflite` in `systole-quant`. Files are untrusted: every offset and length is
//! checked, and memory use is limited.
//!
//! ```
//! use systole_base::{DType, Literal};
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
//! let file = model.to_bytes()?;
//! let read = Model::from_bytes("relu.tflite", &file)?;
//! let x = Literal::from_slice([1, 3], &[-100i8, -3, 50])?;
//! assert_eq!(Interpreter::new(&read)?.run(&[x])?[0].as_slice::<i8>()?, [-3, -3, 50]);
//! # Ok::<(), systole_base::Error>(())
//! ```

mod fixed_point;
mod flatbuffer_read;
mod flatbuffer_write;
mod interpreter;
mod kernels;
mod model;
mod op;
mod read;
mod write;

pub use fixed_point::{
    activation_range, mean_multiplier, multiply_by_quantized_multiplier, quantize_multiplier, sum_multipliers,
};
pub use interpreter::TfliteInterpreter;
pub use kernels::{IntegerSoftmax, WindowStride};
pub use model::{TfliteModel, TfliteOperator, TfliteQuantization, TfliteTensor, axis_of};
pub use op::{FusedActivation, OptionField, ScaleRule, TfliteOp, TflitePadding};
