//! What is drawn for people: lines, charts, the terminal dashboard.

pub(crate) mod chart;
pub(crate) mod screen;
pub(crate) mod timing_stats;
