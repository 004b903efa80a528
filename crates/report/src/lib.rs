//! HTML report of a training run: results, curves, confusion matrix, worst mistakes, timing, configuration.
//!
//! For `systole train`, `crates/cli/src/run/run_report.rs` adds what only the program knows: configuration, command
//! line, and the worst misclassified test images.

mod escape;
pub mod flame;
mod html;
mod matrix;
mod plot;
mod run_findings;
mod run_report;

pub use escape::escaped;
pub use html::{HtmlTile, Page, SectionBlock, Tone};
pub use plot::{Plot, PlotSeries};
pub use run_report::{RunReport, WrongPrediction, duration};

// Names of the previous version.
systole_ir::renamed! { Block => SectionBlock, Mistake => WrongPrediction, Series => PlotSeries, Tile => HtmlTile }
