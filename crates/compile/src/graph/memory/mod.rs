//! Recomputes values rather than keeping them (rematerialization).

pub mod cheap;
pub mod recompute;
pub mod remat;
