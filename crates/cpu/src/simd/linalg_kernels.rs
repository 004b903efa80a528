//! Compiles the kernels of `systole_linalg` (dot products, matrix products, rotations) for AVX2 and FMA, and installs them.

use super::level::Level;
use systole_linalg::kernels::{self, Kernels};
#[cfg(target_arch = "x86_64")]
use systole_linalg::{
    kernels::{Rotation, avx2},
    matrix::{Block, BlockMut},
    scalar::{Complex, Scalar},
};

macro_rules! safe {
    ($($name:ident[$($generic:tt)*]($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {$(
        fn $name<T: Scalar $($generic)*>($($arg: $ty),*) $(-> $out)? {
            // SAFETY: installed only if the processor has AVX2 and FMA.
            unsafe { safe!(@call $name [$($generic)*] ($($arg),*)) }
        }
    )*};
    (@call gemm [$($generic:tt)*] ($($arg:ident),*)) => { avx2::gemm::<T, M>($($arg),*) };
    (@call $name:ident [] ($($arg:ident),*)) => { avx2::$name::<T>($($arg),*) };
}

#[cfg(target_arch = "x86_64")]
safe! {
    dot[](x: &[T], y: &[T]) -> T;
    axpy[](a: T, x: &[T], y: &mut [T]);
    gemv[](alpha: T, a: Block<T>, x: &[T], y: &mut [T]);
    gemv_adjoint[](alpha: T, a: Block<T>, x: &[T], y: &mut [T]);
    ger[](alpha: T, x: &[T], y: &[T], a: BlockMut<T>);
    hemv[](a: Block<T>, x: &[T], y: &mut [T]);
    gemm[, const M: usize](alpha: T, a: Block<T>, b: Block<T>, c: BlockMut<T>);
    forward[](l: Block<T>, unit: bool, b: BlockMut<T>);
    rotate[](rotations: &[Rotation<T>], x: BlockMut<T>);
}

/// The kernels, with products of `M` rows.
#[cfg(target_arch = "x86_64")]
fn fused<T: Scalar, const M: usize>() -> Kernels<T> {
    Kernels {
        dot: dot::<T>,
        axpy: axpy::<T>,
        gemv: gemv::<T>,
        gemv_adjoint: gemv_adjoint::<T>,
        ger: ger::<T>,
        hemv: hemv::<T>,
        gemm: gemm::<T, M>,
        forward: forward::<T>,
        rotate: rotate::<T>,
    }
}

/// Makes linear algebra use the kernels of a level.
pub(crate) fn install(level: Level) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 {
        kernels::F32.install(fused::<f32, 16>());
        kernels::F64.install(fused::<f64, 8>());
        kernels::complex::F32.install(fused::<Complex<f32>, 8>());
        kernels::complex::F64.install(fused::<Complex<f64>, 4>());
    }
}
