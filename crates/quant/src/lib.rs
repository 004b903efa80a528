//! Converts Systole models to TFLite graphs with batch normalization folded, and quantizes them to int8 with ranges
//! from calibration or quantization-aware training.
//!
//! ```
//! use systole_ir::{DType, Literal, TensorType};
//! use systole_nn::{Model, layers::dense};
//! use systole_quant::{Calibration, QuantizeOptions, lower, quantize};
//! use systole_tflite::TfliteInterpreter;
//! let mut model = Model::sequential([dense(8).activation("relu"), dense(3).activation("softmax")]);
//! model.build(&[TensorType::new(DType::F32, [4])])?;
//! let float = lower(&model)?;
//! let samples: Vec<Literal> = (0..20)
//!     .map(|i| Literal::from_slice([1, 4], &[i as f32, 1.0, -0.5 * i as f32, 2.0]))
//!     .collect::<Result<_, _>>()?;
//! let ranges = Calibration::default().ranges(&float, &samples)?;
//! let int8 = quantize(&float, &ranges, &QuantizeOptions::default())?;
//! let x = Literal::from_slice([1, 4], &[1i8, 2, 3, 4])?;
//! assert_eq!(TfliteInterpreter::new(&int8)?.run(&[x])?[0].dtype(), DType::I8);
//! # Ok::<(), systole_ir::Error>(())
//! ```

mod builder;
mod calibrate;
mod dynamic_range;
mod edgetpu;
mod equalize;
mod float_eval;
mod fold_affine;
mod io_quantization;
mod lower;
mod qat_ranges;
mod quantize;
mod quantize_weights;
mod report;
mod scales;
mod tflite_program;

pub use calibrate::{Calibration, RangeMethod, TensorRanges};
pub use dynamic_range::dynamic;
pub use edgetpu::{CACHE, EdgeTpuMapping, OperatorPlacement, edgetpu};
pub use equalize::{correct_bias, equalize};
pub use float_eval::in_floats;
pub use io_quantization::{FloatPredictor, answers, dequantized, quantized};
pub use lower::{lower, onnx};
pub use qat_ranges::{QatModel, trained};
pub use quantize::{QuantizeOptions, quantize};
pub use report::{LayerReport, alone, report};
pub use tflite_program::{GraphEngine, TfliteProgram};
