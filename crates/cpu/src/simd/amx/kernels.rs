//! The table of AMX kernels, built for one [`Unit`].

use crate::simd::amx::strided::Spread;
use crate::simd::amx::tile::{Bf16, Config, Dot, LANES, Signed, Split, Unit, Unsigned, Work, dots};
use crate::simd::gemm::{Registers, Shape, Table, TileKernel};
use std::marker::PhantomData;

/// KC, in words along K. A larger KC reads and writes partial sums less often, but a panel of A has to stay in L1.
const CHAIN: usize = 256;

/// The kernels of one unit.
#[derive(Clone, Copy)]
pub struct Kernels {
    pub bf16: Shape<f32>,
    /// f32 as split bf16, see [`Split`].
    pub split: Shape<f32>,
    pub signed: Shape<i32>,
    pub unsigned: Shape<i32>,
    /// bf16 products that read operands in place.
    pub spread: Spread,
    /// Peak-rate loops of bf16 and int8: this many times [`AT_MOST`] operations on registers alone.
    pub at_most: [unsafe fn(usize); 2],
}

/// Operations (two per multiply-add) of one iteration of [`Kernels::at_most`], of bf16 and int8: four accumulator
/// tiles.
pub const AT_MOST: [usize; 2] = [LANES.pow(3) * 4 * 2 * 2, LANES.pow(3) * 4 * 4 * 2];

/// Products of register contents, this many times.
struct Rounds<D>(usize, PhantomData<D>);

impl<D: Dot> Work for Rounds<D> {
    #[inline(always)]
    unsafe fn run<U: Unit>(&self) {
        // SAFETY: by the promise of `Work`; all registers are set.
        unsafe {
            U::zero::<0>();
            U::zero::<1>();
            U::zero::<2>();
            U::zero::<3>();
            U::zero::<4>();
            U::zero::<5>();
            U::zero::<6>();
            U::zero::<7>();
            for _ in 0..self.0 {
                dots::<U, D, true, true>();
            }
        }
    }
}

unsafe fn at_most<U: Unit, D: Dot>(times: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe {
        configure::<U>(2 * LANES);
        U::enter(&Rounds::<D>(times, PhantomData));
        U::release();
    }
}

/// Kernels of a unit, and of one kind of dot product.
pub(crate) struct Of<U, D = ()>(PhantomData<(U, D)>);

impl<U: Unit, D: Dot> Of<U, D> {
    const TABLE: Table<D::Sum> =
        Table { packed: &[U::run::<D> as TileKernel<D::Sum>; 2 * LANES], strided: &[] };
    const SHAPE: Shape<D::Sum> = {
        let registers = Registers { configure: configure::<U>, release: U::release };
        Shape::tiled(&Self::TABLE, LANES, (CHAIN, D::UNIT), registers)
    };
}

impl<U: Unit> Of<U> {
    pub(crate) const KERNELS: Kernels = Kernels {
        bf16: Of::<U, Bf16>::SHAPE,
        split: Of::<U, Split>::SHAPE,
        signed: Of::<U, Signed>::SHAPE,
        unsigned: Of::<U, Unsigned>::SHAPE,
        spread: Spread::of::<U>(),
        at_most: [at_most::<U, Bf16>, at_most::<U, Signed>],
    };
}

unsafe fn configure<U: Unit>(height: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&Config::of(height)) };
}
