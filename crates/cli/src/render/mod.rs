//! Output for people: text lines, tables, charts, timing statistics.

pub(crate) mod chart;
pub(crate) mod screen;
pub(crate) mod timing_stats;
