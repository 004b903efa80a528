//! Reads and writes `.tflite` files, and runs them in an interpreter that matches LiteRT's reference kernels
//! (`OpResolverType.BUILTIN_REF`), int8 bit for bit.
//!
//! Systole models are converted to `.tflite` in `systole-quant`. Files are untrusted: every offset and length is
//! checked, and memory use is limited.
//!
//! ```
//! use systole_base::{DType, Literal};
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
//! let file = model.to_bytes()?;
//! let read = TfliteModel::from_bytes("relu.tflite", &file)?;
//! let x = Literal::from_slice([1, 3], &[-100i8, -3, 50])?;
//! assert_eq!(TfliteInterpreter::new(&read)?.run(&[x])?[0].as_slice::<i8>()?, [-3, -3, 50]);
//! # Ok::<(), systole_base::Error>(())
//! ```

mod custom_operators;
mod fixed_point;
mod flatbuffer_read;
mod flatbuffer_write;
mod fold_constants;
mod interpreter;
mod kernels;
mod model;
mod op;
mod read;
mod schema_names;
mod sparse;
mod write;

pub use fixed_point::{
    activation_range, mean_multiplier, multiply_by_quantized_multiplier, quantize_multiplier, sum_multipliers,
};
pub use interpreter::TfliteInterpreter;
pub use kernels::{IntegerSoftmax, WindowStride};
pub use model::{TfliteModel, TfliteOperator, TfliteQuantization, TfliteTensor, axis_of};
pub use op::{FusedActivation, OptionField, ScaleRule, TfliteOp, TflitePadding};
