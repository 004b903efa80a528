//! Function table of all AMX kernels, instantiated for one [`TileUnit`].

use crate::simd::amx::strided::StridedKernels;
use crate::simd::amx::tile::{
    Bf16Dot, LANES, SignedDot, SplitF32Dot, TileConfig, TileDot, TileUnit, TileWork, UnsignedDot, dots,
};
use crate::simd::gemm::{MicrokernelShape, MicrokernelTable, TileKernel, TileRegisters};
use std::marker::PhantomData;

/// KC, in words along K. A larger KC reads and writes partial sums less often, but a panel of A has to stay in L1.
const CHAIN: usize = 256;

/// All AMX kernels (function pointers) of one tile unit.
#[derive(Clone, Copy)]
pub struct AmxKernels {
    pub bf16: MicrokernelShape<f32>,
    /// f32 as split bf16, see [`SplitF32Dot`].
    pub split: MicrokernelShape<f32>,
    pub signed: MicrokernelShape<i32>,
    pub unsigned: MicrokernelShape<i32>,
    /// bf16 products that read operands in place.
    pub spread: StridedKernels,
    /// Peak-rate loops of bf16 and int8: run [`AT_MOST`] operations on registers the given number of times.
    pub at_most: [unsafe fn(usize); 2],
}

/// Operations (two per multiply-add) of one iteration of [`AmxKernels::at_most`], of bf16 and int8: four accumulator
/// tiles.
pub const AT_MOST: [usize; 2] = [LANES.pow(3) * 4 * 2 * 2, LANES.pow(3) * 4 * 4 * 2];

/// Peak-rate loop: multiplies register contents this many times.
struct PeakLoop<D>(usize, PhantomData<D>);

impl<D: TileDot> TileWork for PeakLoop<D> {
    #[inline(always)]
    unsafe fn run<U: TileUnit>(&self) {
        // SAFETY: guaranteed by the contract of `TileWork`; all registers are set.
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

unsafe fn at_most<U: TileUnit, D: TileDot>(times: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe {
        configure::<U>(2 * LANES);
        U::enter(&PeakLoop::<D>(times, PhantomData));
        U::release();
    }
}

/// Kernels of a unit for one kind of dot product.
pub(crate) struct UnitKernels<U, D = ()>(PhantomData<(U, D)>);

impl<U: TileUnit, D: TileDot> UnitKernels<U, D> {
    const TABLE: MicrokernelTable<D::Sum> =
        MicrokernelTable { packed: &[U::run::<D> as TileKernel<D::Sum>; 2 * LANES], strided: &[] };
    const SHAPE: MicrokernelShape<D::Sum> = {
        let registers = TileRegisters { configure: configure::<U>, release: U::release };
        MicrokernelShape::tiled(&Self::TABLE, LANES, (CHAIN, D::UNIT), registers)
    };
}

impl<U: TileUnit> UnitKernels<U> {
    pub(crate) const KERNELS: AmxKernels = AmxKernels {
        bf16: UnitKernels::<U, Bf16Dot>::SHAPE,
        split: UnitKernels::<U, SplitF32Dot>::SHAPE,
        signed: UnitKernels::<U, SignedDot>::SHAPE,
        unsigned: UnitKernels::<U, UnsignedDot>::SHAPE,
        spread: StridedKernels::of::<U>(),
        at_most: [at_most::<U, Bf16Dot>, at_most::<U, SignedDot>],
    };
}

unsafe fn configure<U: TileUnit>(height: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&TileConfig::of(height)) };
}
