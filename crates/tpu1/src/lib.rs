//! The first TPU (2015), simulated: its instructions, the array as registers, a program's result to the bit, and where its
//! cycles went, as the paper's Table 3 counts them.
//!
//! [`Chip`] has the sizes. [`Preset`]s are the paper's six applications with reconstructed shapes. A [`Program`] is
//! instructions; [`Program::timing`] says how long they take. What is published and what is ours stands beside each.
//!
//! ```
//! use systole_tpu1::{Chip, Preset};
//! let chip = Chip::v1();
//! let timing = Preset::of("tpu1/mlp0")?.program(&chip, None)?.timing(&chip);
//! // Table 3: the array is active in 12.7 % of the cycles, and waits for weights in 53.9 %.
//! let [active, stall, _, _] = timing.shares();
//! assert!((active - 0.127).abs() < 0.005 && (stall - 0.539).abs() < 0.005);
//! # Ok::<(), systole_base::Error>(())
//! ```

pub mod animate;
mod chip;
pub mod compare;
mod compile;
mod explain;
mod instruction;
pub mod model;
pub mod paper;
mod preset;
mod program;
mod report;
mod rescale;
mod run;
mod sensitivity;
mod slice_concat;
pub mod systolic_array;
mod tflite_graph;
mod timing;
mod trace;

pub use chip::Tpu1Chip;
pub use compile::compile;
pub use explain::explain;
pub use instruction::{BYTES, Function, Instruction, Register, Speed};
pub use preset::{PREFIX, Preset};
pub use program::{ChipProgram, ProgramLayer};
pub use report::ChipReport;
pub use rescale::ScaleFactor;
pub use run::BatchResult;
pub use sensitivity::{
    CALIBRATED_ON, ScaledParameter, calibrate, difference, figure_11, predicted, roof, what_if,
};
pub use tflite_graph::of_graph;
pub use timing::{BatchTiming, PassTimes, UnitEvent, timing};
pub use trace::trace;
