//! Output for people: text lines, tables, charts, timing statistics, the version, the first commands.

pub(crate) mod chart;
pub(crate) mod download_progress;
pub(crate) mod first_steps;
pub(crate) mod screen;
pub(crate) mod timing_stats;
pub(crate) mod version;
