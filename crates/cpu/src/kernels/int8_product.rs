//! Int8 GEMMs and convolutions with int32 accumulators: zero-point padding, packed weights, element-wise epilogue.

use crate::int8::{Int8Gemm, Int8Isa, Int8WindowDim};
use crate::kernel::elementwise::MapKernel;
use crate::kernel::{Io, Kernel, KernelContext, OutputBlock, Ptr, with_scratch};
use crate::select::{CandidateResult, EVERY, Family, KernelCandidate, Problem, SelectResult};
use smallvec::SmallVec;
use systole_compile::{Int8Product, Kernel as Plan, Step};
use systole_ir::op::Convolution;
use systole_ir::{Op, Result, TensorType};

/// Kernel family for int8 products.
pub static FAMILY: Family = Family {
    name: "int8_product",
    doc: "int8 GEMM or convolution with int32 sums, and the element-wise program that is the only reader of the sums",
    takes: |step| matches!(step.kernel, Plan::Int8Product(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("by_blocks", EVERY, "VNNI, AMX or int16 pairs; the program runs on each block of sums, or \
             there is none. The sums are never stored",
            by_blocks),
        KernelCandidate::new("whole", EVERY, "the sums are stored, then read by the program: supports every int8 product",
            whole),
    ],
};

/// What happens with blocks of sums.
enum SumsUse {
    /// They are copied to the result.
    Copied,
    /// JIT code reads each block while it is in cache.
    Blocks(Box<MapKernel>),
    /// They are stored in scratch; then a program reads all of them.
    Whole(Box<dyn Kernel>),
}

/// A bound int8 product.
struct Int8ProductKernel {
    gemm: Int8Gemm,
    /// Bytes of the left operand.
    input: usize,
    /// Strides of the weights along N and K.
    strides: [usize; 2],
    sums: usize,
    then: SumsUse,
}

fn plan<'a>(p: &Problem<'a>) -> SelectResult<&'a Int8Product, &'static str> {
    match &p.step.kernel {
        Plan::Int8Product(plan) => Ok(plan),
        _ => Err("not an int8 product"),
    }
}

fn by_blocks(p: &Problem<'_>) -> CandidateResult {
    let plan = plan(p)?;
    let (gemm, strides) = gemm_of(plan, p)?;
    let then = match &plan.map {
        None => SumsUse::Copied,
        Some(map) => {
            let columns = columns(plan);
            let kernel = MapKernel::epilogue(map, columns, p.target.level);
            SumsUse::Blocks(Box::new(
                kernel.ok_or("its element-wise program cannot run on blocks of the sums")?,
            ))
        }
    };
    Ok(Box::new(Int8ProductKernel::new(gemm, strides, plan, p.step, then)))
}

fn whole(p: &Problem<'_>) -> CandidateResult {
    let plan = plan(p)?;
    let (gemm, strides) = gemm_of(plan, p)?;
    let map = plan.map.clone().ok_or("nothing reads the sums in the same step")?;
    let (mut inputs, mut input_types) = (p.step.inputs[2..].to_vec(), p.step.input_types[2..].to_vec());
    inputs.push(p.step.outputs[0]);
    input_types.push(plan.sums.clone());
    let step = Step { kernel: Plan::Map(map), inputs, input_types, ..p.step.clone() };
    let then = SumsUse::Whole(p.bind(&step)?);
    Ok(Box::new(Int8ProductKernel::new(gemm, strides, plan, p.step, then)))
}

/// Returns N: the last dimension of the sums.
fn columns(plan: &Int8Product) -> usize {
    plan.sums.shape.last().copied().unwrap_or(1)
}

/// Returns the product, and the strides of its weights along N and K.
fn gemm_of(plan: &Int8Product, p: &Problem<'_>) -> SelectResult<(Int8Gemm, [usize; 2])> {
    let unit = Int8Isa::of(p.target.level);
    let (x, w) = (&p.step.input_types[0], &p.step.input_types[1]);
    let n = columns(plan);
    let (gemm, strides) = match &plan.op {
        Op::DotGeneral(d) => {
            let k = x.shape.last().copied().unwrap_or(1);
            let strides = if d.rhs_contract[..] == [0] { [1, n] } else { [k, 1] };
            (Int8Gemm::dense(unit, k, n), strides)
        }
        Op::Convolution(c) => {
            let along = [0, 1].map(|i| window(c, i, [x, w, &plan.sums]));
            (Int8Gemm::convolution(unit, along, x.shape[3], plan.padding, n), [1, n])
        }
        _ => return Err("not a dot_general or convolution".into()),
    };
    Ok((gemm.ok_or("it has no elements, or K is too large")?, strides))
}

/// Returns the window geometry along spatial dimension `i`.
fn window(c: &Convolution, i: usize, [x, w, y]: [&TensorType; 3]) -> Int8WindowDim {
    Int8WindowDim {
        size: x.shape[1 + i],
        window: w.shape[i],
        stride: c.strides[i],
        dilation: c.rhs_dilation[i],
        before: c.padding[i][0] as usize,
        positions: y.shape[1 + i],
    }
}

impl Int8ProductKernel {
    fn new(
        gemm: Int8Gemm,
        strides: [usize; 2],
        plan: &Int8Product,
        step: &Step,
        then: SumsUse,
    ) -> Int8ProductKernel {
        Int8ProductKernel { gemm, input: step.input_types[0].bytes(), strides, sums: plan.sums.bytes(), then }
    }

    /// Computes the product with packed weights.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `panels` are the packed weights.
    unsafe fn run_packed(&self, cx: &KernelContext<'_>, io: &Io<'_>, panels: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        let x = unsafe { std::slice::from_raw_parts(io.inputs[0].cast::<i8>(), self.input) };
        let copy_to = |to: Ptr| {
            move |block: &OutputBlock, sums: *const u8| {
                for row in 0..block.rows {
                    let (from, at) = (row * block.stride, block.first + row * block.row);
                    // SAFETY: blocks are disjoint parts of the array of sums.
                    unsafe {
                        let from = sums.cast::<i32>().add(from);
                        std::ptr::copy_nonoverlapping(from, to.elem::<i32>(at), block.columns);
                    }
                }
            }
        };
        // SAFETY: the panels were packed by `pack`; the epilogues write disjoint parts of their results.
        unsafe {
            match &self.then {
                SumsUse::Copied => self.gemm.run(cx, x, panels, &copy_to(Ptr(io.outputs[0]))),
                SumsUse::Blocks(map) => {
                    let inputs: SmallVec<[Ptr; 8]> = io.inputs[2..].iter().map(|&p| Ptr::of(p)).collect();
                    let outputs: SmallVec<[Ptr; 4]> = io.outputs.iter().map(|&p| Ptr(p)).collect();
                    let take = |block: &OutputBlock, sums: *const u8| {
                        let inputs: SmallVec<[*const u8; 8]> =
                            inputs.iter().map(|p| p.at(0).cast_const()).chain([sums]).collect();
                        let outputs: SmallVec<[*mut u8; 4]> = outputs.iter().map(|p| p.at(0)).collect();
                        map.run_block(&inputs, &outputs, block);
                    };
                    self.gemm.run(cx, x, panels, &take);
                }
                SumsUse::Whole(map) => {
                    let (sums, scratch) = (io.scratch, io.scratch.wrapping_add(self.sums_bytes()));
                    self.gemm.run(cx, x, panels, &copy_to(Ptr(sums)));
                    let inputs: SmallVec<[*const u8; 8]> =
                        io.inputs[2..].iter().copied().chain([sums.cast_const()]).collect();
                    map.run(cx, &Io { inputs: &inputs, outputs: io.outputs, scratch })?;
                }
            }
        }
        Ok(())
    }

    fn sums_bytes(&self) -> usize {
        self.sums.next_multiple_of(64)
    }
}

impl Kernel for Int8ProductKernel {
    fn scratch(&self) -> usize {
        match &self.then {
            SumsUse::Whole(map) => self.sums_bytes() + map.scratch(),
            _ => 0,
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] { self.gemm.packed_bytes() } else { 0 }
    }

    unsafe fn keep(&self, _: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.gemm.pack(inputs[1].cast(), self.strides, kept) }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        with_scratch(self.gemm.packed_bytes(), |panels| {
            // SAFETY: by the caller's promise; the scratch has room for the packed weights.
            unsafe {
                self.gemm.pack(io.inputs[1].cast(), self.strides, panels);
                self.run_packed(cx, io, panels)
            }
        })
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_packed(cx, io, kept) }
    }
}
