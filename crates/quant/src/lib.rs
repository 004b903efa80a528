//! Models of Systole as graphs of `.tflite`: lowered with batch normalisation folded, ranges found on samples or while training, int8.
//!
//! ```
//! use systole_ir::{DType, Literal, TensorType};
//! use systole_nn::{Model, layers::dense};
//! use systole_quant::{Calibration, Options, lower, quantize};
//! use systole_tflite::Interpreter;
//! let mut model = Model::sequential([dense(8).activation("relu"), dense(3).activation("softmax")]);
//! model.build(&[TensorType::new(DType::F32, [4])])?;
//! let float = lower(&model)?;
//! let samples: Vec<Literal> = (0..20)
//!     .map(|i| Literal::from_slice([1, 4], &[i as f32, 1.0, -0.5 * i as f32, 2.0]))
//!     .collect::<Result<_, _>>()?;
//! let ranges = Calibration::default().ranges(&float, &samples)?;
//! let int8 = quantize(&float, &ranges, &Options::default())?;
//! let x = Literal::from_slice([1, 4], &[1i8, 2, 3, 4])?;
//! assert_eq!(Interpreter::new(&int8)?.run(&[x])?[0].dtype(), DType::I8);
//! # Ok::<(), systole_ir::Error>(())
//! ```

mod builder;
mod calibrate;
mod dynamic;
mod edgetpu;
mod ends;
mod equalize;
mod floats;
mod fold;
mod integers;
mod lower;
mod quantize;
mod report;
mod scales;
mod trained;

pub use calibrate::{Calibration, Method, Ranges};
pub use dynamic::dynamic;
pub use edgetpu::{CACHE, Mapping, Placed, edgetpu};
pub use ends::{Answers, Engine, answers, dequantized, quantized};
pub use equalize::{correct_bias, equalize};
pub use floats::in_floats;
pub use lower::{lower, onnx};
pub use quantize::{Options, quantize};
pub use report::{LayerReport, alone, report};
pub use trained::{Trained, trained};
