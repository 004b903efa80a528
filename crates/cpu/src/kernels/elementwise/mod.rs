//! Element-wise programs (fused loops), JIT-compiled to machine code or interpreted tile by tile.
//!
//! This file has only the table: other families also run element-wise programs, so the implementation is in
//! `kernel/program.rs` and the code generator in `simd/jit/`.

#[cfg(test)]
mod tests;

use crate::kernel::elementwise::MapKernel;
use crate::select::{AVX2_UP, EVERY, Family, KernelCandidate, Problem};
use systole_compile::Kernel;
use systole_ir::ensure;

/// Creates the kernel of an element-wise program. `fuse`: use machine code if it supports the program.
fn bind(p: &Problem<'_>, fuse: bool) -> Result<MapKernel, &'static str> {
    let level = p.target.programs();
    match &p.step.kernel {
        Kernel::Map(m) => Ok(MapKernel::with(m, level, fuse)),
        Kernel::StridedMap(m) => Ok(MapKernel::of_parts(m, level, fuse)),
        _ => Err("not an element-wise program"),
    }
}

/// Kernel family for element-wise programs.
pub static FAMILY: Family = Family {
    name: "elementwise",
    doc: "element-wise programs over one index space",
    takes: |step| matches!(step.kernel, Kernel::Map(_) | Kernel::StridedMap(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("jit", AVX2_UP, "JIT-compiled machine code: the whole program is one loop whose \
             values stay in registers",
            |p| {
                ensure!(crate::simd::jit::is_wanted(), "the JIT is disabled (SYSTOLE_JIT)".into());
                let kernel = bind(p, true)?;
                if !kernel.is_fused() {
                    return Err("an op or element type has no vector form, or the program has too many values".into());
                }
                Ok(Box::new(kernel))
            }),
        KernelCandidate::new("jit_groups", AVX2_UP, "over tiles that stay in L1: groups of instructions as \
             JIT-compiled machine code, and a vectorized loop for each op that the JIT does not know",
            |p| {
                ensure!(crate::simd::jit::is_wanted(), "the JIT is disabled (SYSTOLE_JIT)".into());
                let kernel = bind(p, true)?;
                ensure!(kernel.has_groups(), "no two instructions form a group".into());
                Ok(Box::new(kernel))
            }),
        KernelCandidate::new("interpreted", EVERY, "one vectorized loop per instruction, over tiles that stay \
             in L1; supports every program",
            |p| Ok(Box::new(bind(p, false)?))),
    ],
};
