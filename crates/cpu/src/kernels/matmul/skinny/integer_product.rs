//! Products of small integers, whose sums are exact: test cases of the kernels in this folder.

use crate::kernel::copy::Dim;
use crate::kernel::gemm_dims::{Epilogue, OperandDims};
use crate::kernel::{Io, Kernel, KernelContext};
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;

/// A batch of products `[M, K] · [K, N]`.
#[derive(Debug)]
pub(super) struct IntegerProduct {
    /// Batch, M, N, K.
    pub size: [usize; 4],
    /// Elements between rows of A, and along K.
    pub left: [usize; 2],
    /// Elements between columns of B, and along K.
    pub right: [usize; 2],
}

impl IntegerProduct {
    /// Dimensions of A and of B.
    pub fn operands(&self) -> [OperandDims; 2] {
        let [batch, m, n, k] = self.size;
        let dim = |size: usize, src: usize| vec![Dim { size, src: src as isize, dst: 0 }];
        let batch = |elements: usize| if batch > 1 { dim(batch, elements) } else { Vec::new() };
        [
            OperandDims { batch: batch(m * k), free: dim(m, self.left[0]), inner: dim(k, self.left[1]) },
            OperandDims { batch: batch(k * n), free: dim(n, self.right[0]), inner: dim(k, self.right[1]) },
        ]
    }

    /// Compares the kernel's results, with one and with two threads, with a plain loop.
    pub fn check(&self, kernel: &dyn Kernel, epilogue: Epilogue, place: impl std::fmt::Debug) {
        let [batch, m, n, k] = self.size;
        let array = |count: usize, by: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * by + i / 13) % 7) as f32 - 3.0).collect()
        };
        let (a, b) = (array(batch * m * k, 5), array(batch * k * n, 3));
        let (bias, old) = (array(n, 2), array(batch * m * n, 4));
        let scratch = AlignedMemory::new(kernel.scratch()).unwrap();
        for threads in [1, 2] {
            let mut c = old.clone();
            let inputs = [a.as_ptr().cast(), b.as_ptr().cast(), bias.as_ptr().cast()];
            let io = Io { inputs: &inputs, outputs: &[c.as_mut_ptr().cast()], scratch: scratch.ptr() };
            // SAFETY: all arrays have the products' sizes, scratch `scratch()` bytes.
            unsafe {
                kernel.run(&KernelContext { team: &ThreadPool::new(threads), flush: false }, &io).unwrap()
            };
            for at in 0..batch * m * n {
                let (which, i, j) = (at / (m * n), at / n % m, at % n);
                let (a, b) = (&a[which * m * k..], &b[which * k * n..]);
                let term = |x: usize| {
                    a[i * self.left[0] + x * self.left[1]] * b[j * self.right[0] + x * self.right[1]]
                };
                let mut want: f32 = (0..k).map(term).sum();
                want += if epilogue.bias { bias[j] } else { 0.0 };
                want += if epilogue.accumulate { old[at] } else { 0.0 };
                assert_eq!(c[at], want, "{place:?} {self:?} {epilogue:?} {threads} threads, element {at}");
            }
        }
    }
}
