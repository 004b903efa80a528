//! Systole (being built).
pub mod datasets;
