//! A training run as one HTML file that needs nothing else: what came out, how it went, where it errs, what it was made of.
//!
//! Where `systole train` writes one, `crates/cli/src/run/html_report.rs` gathers what only the program knows: the configuration, the command,
//! the test pictures that were mistaken most.

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
