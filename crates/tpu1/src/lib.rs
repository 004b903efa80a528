//! Simulator of TPU v1 (2015): instruction set, systolic array, bit-exact results and cycle breakdown.
//!
//! [`Tpu1Chip`] has the hardware parameters. [`Preset`] has the paper's six applications, with reconstructed shapes. A
//! [`ChipProgram`] is a list of instructions; [`ChipProgram::timing`] computes its cycles. Each item documents which
//! facts are published and which are our own choice.
//!
//! ```
//! use systole_tpu1::{Tpu1Chip, Preset};
//! let chip = Tpu1Chip::v1();
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
mod paper_comparison;
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
pub use paper_comparison::{ApplicationComparison, PaperComparison, PaperValue, SpeedupComparison};
pub use preset::{PREFIX, Preset};
pub use program::{ChipProgram, ProgramLayer};
pub use report::ChipReport;
pub use rescale::ScaleFactor;
pub use run::BatchResult;
pub use sensitivity::{
    CALIBRATED_ON, ScaledParameter, calibrate, difference, figure_11, predicted, roof, speedup, what_if,
};
pub use tflite_graph::of_graph;
pub use timing::{BatchTiming, ISSUE_AHEAD, PassTimes, UnitEvent, timing};
pub use trace::trace;

// Names of the previous version.
systole_base::renamed! { Chip => Tpu1Chip, Event => UnitEvent, Part => ProgramLayer, Program => ChipProgram, Report => ChipReport, Run => BatchResult, Scale => ScaleFactor, Scaled => ScaledParameter, Timing => BatchTiming }
systole_base::renamed! { mod array => systolic_array }
