//! Running a program: kernels bound to its steps, control flow, blocks of rows, arrays in panels, profiles.

pub mod buffer;
pub mod control;
pub mod executor;
pub mod limit;
pub mod panels;
pub mod profile;
pub mod row_blocks;
