//! Recomputes values rather than keeping them (rematerialization).

pub mod recompute;
pub mod remat;
pub mod rematerializable;
