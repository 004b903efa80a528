//! Pooling and window reduction kernels (`reduce_window`, `select_and_scatter`), and their gradients.

pub mod max_pool;
pub mod reduce_window;

use crate::select::{EVERY, Family, KernelCandidate, answer};
use systole_compile::Kernel;
use systole_ir::Op;

/// Kernel family for pooling and reductions over windows: `reduce_window`, `select_and_scatter`, and their fusions.
pub static FAMILY: Family = Family {
    name: "pool",
    doc: "reduce_window, max pooling and their gradients",
    takes: |step| {
        matches!(step.kernel, Kernel::Pool(_) | Kernel::Unpool(_))
            || matches!(&step.kernel, Kernel::Op { op: Op::ReduceWindow(_) | Op::SelectAndScatter(_), .. })
    },
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("max_pool", EVERY, "max pooling of an array, with the argmax of each window if its \
             gradient needs it",
            |p| match &p.step.kernel {
                Kernel::Pool(pool) => answer(
                    max_pool::PoolKernel::new(pool, p.step, p.target.level.vectors()),
                    "its elements are neither f32 nor bf16",
                ),
                _ => Err("not a max pooling that the compiler fuses".into()),
            }),
        KernelCandidate::new("unpool", EVERY, "gradient of max pooling from the argmax that the forward pass stored; \
             gradient of sum pooling without an argmax",
            |p| match &p.step.kernel {
                Kernel::Unpool(unpool) => answer(
                    max_pool::UnpoolKernel::new(unpool, p.step, p.target.level.vectors()),
                    "its elements are neither f32 nor bf16",
                ),
                _ => Err("not a gradient of pooling that the compiler fuses".into()),
            }),
        KernelCandidate::new("cumulative", EVERY, "windows that all start or end at the same end of one dimension, \
             as in a cumulative sum: each result takes one operation on the adjacent result",
            reduce_window::cumulative),
        KernelCandidate::new("reduce_window", EVERY, "any other windows, each reduced separately: strips of pixels, \
             in vectors of channels",
            reduce_window::reduce_window),
        KernelCandidate::new("select_and_scatter_disjoint", EVERY, "windows that do not overlap: each element of \
             the result is written once, by any thread",
            reduce_window::select_and_scatter_disjoint),
        KernelCandidate::new("select_and_scatter", EVERY, "windows that overlap and add to the same elements: each \
             thread has separate images, or channels of a single image",
            reduce_window::select_and_scatter),
        crate::kernels::reference::CANDIDATE,
    ],
};
