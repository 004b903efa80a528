//! Rematerialization passes: recompute values instead of keeping them.

pub mod recompute;
pub mod remat;
pub mod rematerializable;
