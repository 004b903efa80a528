//! Compiles the kernels of `systole_linalg` (dot products, matrix products, rotations) for AVX2 with FMA and for AVX-512, and
//! installs them.

use super::level::Level;

/// Makes linear algebra use the kernels of a level.
pub(crate) fn install(level: Level) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512 {
        avx512::install();
    } else if level >= Level::Avx2 {
        avx2::install();
    }
}

/// Defines a vector type; every function is used only on processors with its instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    ($name:ident, $real:ty, $vector:ty, $count:literal, $set1:ident, $load:ident, $load_few:expr, $store:ident, $store_few:expr, $fma:ident, $mul:ident, $swap:expr, $sums:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name($vector);

        impl RealLanes<$real> for $name {
            const COUNT: usize = $count;

            #[inline(always)]
            fn splat(x: $real) -> $name {
                // SAFETY: used on processors with the instructions only, like all of these.
                $name(unsafe { $set1(x) })
            }

            #[inline(always)]
            fn load<T: MatrixScalar<Real = $real>>(from: &[T]) -> $name {
                assert!(size_of_val(from) >= size_of::<$vector>());
                // SAFETY: scalars are one real number or two, and the elements are as many as the vector's.
                $name(unsafe { $load(from.as_ptr().cast()) })
            }

            #[inline(always)]
            fn load_few<T: MatrixScalar<Real = $real>>(from: &[T]) -> $name {
                let count = size_of_val(from) / size_of::<$real>();
                assert!(count <= $count);
                // SAFETY: the mask selects the elements that there are.
                $name(unsafe { $load_few(count, from.as_ptr().cast()) })
            }

            #[inline(always)]
            fn store<T: MatrixScalar<Real = $real>>(self, to: &mut [T]) {
                assert!(size_of_val(to) >= size_of::<$vector>());
                // SAFETY: as for `load`.
                unsafe { $store(to.as_mut_ptr().cast(), self.0) }
            }

            #[inline(always)]
            fn store_few<T: MatrixScalar<Real = $real>>(self, to: &mut [T]) {
                let count = size_of_val(to) / size_of::<$real>();
                assert!(count <= $count);
                // SAFETY: as for `load_few`.
                unsafe { $store_few(count, to.as_mut_ptr().cast(), self.0) }
            }

            #[inline(always)]
            fn mul_add(self, a: $name, b: $name) -> $name {
                // SAFETY: as for `splat`.
                $name(unsafe { $fma(a.0, b.0, self.0) })
            }

            #[inline(always)]
            fn mul(self, other: $name) -> $name {
                // SAFETY: as for `splat`.
                $name(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn swapped(self) -> $name {
                // SAFETY: as for `splat`.
                $name(unsafe { $swap(self.0) })
            }

            #[inline(always)]
            fn sums(self) -> ($real, $real) {
                // SAFETY: as for `splat`.
                unsafe { $sums(self.0) }
            }
        }
    };
}

/// Compiles the kernels with instructions, and a function `all` that returns them.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled {
    ($instructions:literal: $($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        mod features {
            use super::*;
            $(#[target_feature(enable = $instructions)]
            pub(super) fn $name<T: MatrixScalar, V: RealLanes<T::Real>>($($arg: $ty),*) $(-> $out)? {
                kernels::$name::<T, V>($($arg),*)
            })*
        }
        $(fn $name<T: MatrixScalar, V: RealLanes<T::Real>>($($arg: $ty),*) $(-> $out)? {
            // SAFETY: installed on processors with the instructions only.
            unsafe { features::$name::<T, V>($($arg),*) }
        })*
        fn all<T: MatrixScalar, V: RealLanes<T::Real>>() -> Kernels<T> {
            Kernels { $($name: $name::<T, V>),* }
        }
    };
}

/// The kernels of a level with these vectors of f32 and f64.
#[cfg(target_arch = "x86_64")]
macro_rules! level {
    ($instructions:literal, $f32:ident, $f64:ident) => {
        compiled! {
            $instructions:
            dot(x: &[T], y: &[T]) -> T;
            axpy(a: T, x: &[T], y: &mut [T]);
            gemv(alpha: T, a: MatrixSlice<T>, x: &[T], y: &mut [T]);
            gemv_adjoint(alpha: T, a: MatrixSlice<T>, x: &[T], y: &mut [T]);
            ger(alpha: T, x: &[T], y: &[T], a: MatrixSliceMut<T>);
            hemv(a: MatrixSlice<T>, x: &[T], y: &mut [T]);
            her2(x: &[T], y: &[T], a: MatrixSliceMut<T>);
            gemm(alpha: T, a: MatrixSlice<T>, b: MatrixSlice<T>, c: MatrixSliceMut<T>);
            solve_right(l: MatrixSlice<T>, unit: bool, b: MatrixSliceMut<T>);
            cholesky(a: MatrixSliceMut<T>) -> i32;
            rotate(rotations: &[Rotation<T>], x: MatrixSliceMut<T>);
        }

        #[cfg(test)]
        pub(super) fn tables() -> (Kernels<f32>, Kernels<f64>, Kernels<Complex<f32>>, Kernels<Complex<f64>>) {
            (all::<f32, $f32>(), all::<f64, $f64>(), all::<_, $f32>(), all::<_, $f64>())
        }

        pub(super) fn install() {
            kernels::F32.install(all::<f32, $f32>());
            kernels::F64.install(all::<f64, $f64>());
            kernels::complex::F32.install(all::<Complex<f32>, $f32>());
            kernels::complex::F64.install(all::<Complex<f64>, $f64>());
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;
    use systole_linalg::kernels::{self, Kernels, RealLanes, Rotation};
    use systole_linalg::matrix::{MatrixSlice, MatrixSliceMut};
    use systole_linalg::scalar::{Complex, MatrixScalar};

    /// Masks of the first lanes: a part that starts with as many −1 as there are elements.
    const MASKS_32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    const MASKS_64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

    /// Mask of the first elements.
    ///
    /// # Safety
    /// There are at most as many elements as lanes, and the processor has AVX2.
    #[inline(always)]
    unsafe fn mask_32(count: usize) -> __m256i {
        // SAFETY: eight numbers from there on.
        unsafe { _mm256_loadu_si256(MASKS_32[8 - count..][..8].as_ptr().cast()) }
    }

    /// Like [`mask_32`].
    ///
    /// # Safety
    /// See [`mask_32`].
    #[inline(always)]
    unsafe fn mask_64(count: usize) -> __m256i {
        // SAFETY: four numbers from there on.
        unsafe { _mm256_loadu_si256(MASKS_64[4 - count..][..4].as_ptr().cast()) }
    }

    lanes!(
        F32x8,
        f32,
        __m256,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        |count, from| _mm256_maskload_ps(from, mask_32(count)),
        _mm256_storeu_ps,
        |count, to, x| _mm256_maskstore_ps(to, mask_32(count), x),
        _mm256_fmadd_ps,
        _mm256_mul_ps,
        |x| _mm256_permute_ps::<0b10_11_00_01>(x),
        |x| {
            let half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            (_mm_cvtss_f32(pair), _mm_cvtss_f32(_mm_movehdup_ps(pair)))
        }
    );
    lanes!(
        F64x4,
        f64,
        __m256d,
        4,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        |count, from| _mm256_maskload_pd(from, mask_64(count)),
        _mm256_storeu_pd,
        |count, to, x| _mm256_maskstore_pd(to, mask_64(count), x),
        _mm256_fmadd_pd,
        _mm256_mul_pd,
        |x| _mm256_permute_pd::<0b0101>(x),
        |x| {
            let pair = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
            (_mm_cvtsd_f64(pair), _mm_cvtsd_f64(_mm_unpackhi_pd(pair, pair)))
        }
    );
    level!("avx2,fma", F32x8, F64x4);
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    use systole_linalg::kernels::{self, Kernels, RealLanes, Rotation};
    use systole_linalg::matrix::{MatrixSlice, MatrixSliceMut};
    use systole_linalg::scalar::{Complex, MatrixScalar};

    /// Mask of the first elements.
    #[inline(always)]
    fn first(count: usize) -> u32 {
        (1 << count) - 1
    }

    lanes!(
        F32x16,
        f32,
        __m512,
        16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        |count, from| _mm512_maskz_loadu_ps(first(count) as u16, from),
        _mm512_storeu_ps,
        |count, to, x| _mm512_mask_storeu_ps(to, first(count) as u16, x),
        _mm512_fmadd_ps,
        _mm512_mul_ps,
        |x| _mm512_permute_ps::<0b10_11_00_01>(x),
        |x| {
            let even = _mm512_mask_reduce_add_ps(0x5555, x);
            (even, _mm512_mask_reduce_add_ps(0xAAAA, x))
        }
    );
    lanes!(
        F64x8,
        f64,
        __m512d,
        8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        |count, from| _mm512_maskz_loadu_pd(first(count) as u8, from),
        _mm512_storeu_pd,
        |count, to, x| _mm512_mask_storeu_pd(to, first(count) as u8, x),
        _mm512_fmadd_pd,
        _mm512_mul_pd,
        |x| _mm512_permute_pd::<0b0101_0101>(x),
        |x| {
            let even = _mm512_mask_reduce_add_pd(0x55, x);
            (even, _mm512_mask_reduce_add_pd(0xAA, x))
        }
    );
    level!("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16, F64x8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_linalg::kernels::{Kernels, Rotation};
    use systole_linalg::matrix::Matrix;
    use systole_linalg::scalar::{MatrixScalar, Real};

    fn numbers<T: MatrixScalar>(rows: usize, columns: usize) -> Matrix<T> {
        let part = |i: usize| T::Real::of(((i * 7919 + 13) % 997) as f64 / 499.0 - 1.0);
        Matrix::from_fn(rows, columns, |i, j| T::new(part(i + 31 * j), part(i * 3 + j)))
    }

    fn close<T: MatrixScalar>(what: &str, a: &[T], b: &[T]) {
        let bound = T::Real::of(200.0) * T::Real::EPSILON;
        let near = |(x, y): (&T, &T)| (*x - *y).size() <= bound * (T::Real::ONE + y.size());
        assert!(a.iter().zip(b).all(near), "{what} of {} differs", std::any::type_name::<T>());
    }

    /// Portable and compiled kernels, on lengths with and without a tail.
    fn compare<T: MatrixScalar>(portable: Kernels<T>, compiled: Kernels<T>) {
        for (m, n) in [(1, 1), (3, 2), (8, 6), (17, 13), (40, 33), (130, 70)] {
            let (a, b): (Matrix<T>, Matrix<T>) = (numbers(m, n), numbers(n, 9));
            let (x, y) = (a.column(0).to_vec(), numbers::<T>(m, 1).data);
            let square: Matrix<T> = numbers(m, m);
            let runs = [portable, compiled].map(|k| {
                let (mut axpy, mut gemv, mut ger, mut hemv) = (y.clone(), y.clone(), a.clone(), y.clone());
                let (mut adjoint, mut her2, mut gemm) = (b.column(0).to_vec(), square.clone(), numbers(m, 9));
                let (mut solved, mut rotated) = (numbers(5, m.min(32)), a.clone());
                (k.axpy)(x[0], &x, &mut axpy);
                (k.gemv)(T::ONE, a.view(), b.column(1), &mut gemv);
                (k.gemv_adjoint)(T::ONE, a.view(), &x, &mut adjoint);
                (k.ger)(T::ONE, &x, b.column(2), ger.view_mut());
                (k.hemv)(square.view(), &x, &mut hemv);
                (k.her2)(&x, &y, her2.view_mut());
                (k.gemm)(T::ONE, a.view(), b.view(), gemm.view_mut());
                let mut unit = square.clone();
                unit.data.iter_mut().for_each(|v| *v = v.scale(T::Real::of(0.01)));
                let few = m.min(32);
                let mut factor = unit.clone();
                (0..few).for_each(|i| factor.set(i, i, T::ONE));
                assert_eq!((k.cholesky)(factor.block_mut((0, few), (0, few))), 0);
                (k.solve_right)(unit.block((0, few), (0, few)), true, solved.view_mut());
                let (c, s) = (T::real(T::Real::of(0.6)), T::real(T::Real::of(0.8)));
                let up = (0..n as u32 - 1).map(|k| Rotation { k, c, s });
                let rotations: Vec<_> = up.clone().chain(up.rev()).collect();
                if !T::IS_COMPLEX {
                    (k.rotate)(&rotations, rotated.view_mut());
                }
                let vectors = [vec![(k.dot)(&x, &y)], axpy, gemv, adjoint, hemv];
                (vectors, [ger, her2, gemm, solved, factor, rotated])
            });
            let [(vectors, matrices), (other_vectors, other_matrices)] = runs;
            vectors.iter().zip(&other_vectors).for_each(|(a, b)| close("a vector", a, b));
            matrices.iter().zip(&other_matrices).for_each(|(a, b)| close("a matrix", &a.data, &b.data));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn compiled_kernels_compute_what_portable_ones_do() {
        use systole_linalg::kernels::{F32, F64, complex};
        for (level, tables) in [(Level::Avx2, avx2::tables()), (Level::Avx512, avx512::tables())] {
            if level.is_available() {
                compare(*F32.portable(), tables.0);
                compare(*F64.portable(), tables.1);
                compare(*complex::F32.portable(), tables.2);
                compare(*complex::F64.portable(), tables.3);
            }
        }
    }
}
