//! GEMM with a fused element-wise epilogue, which is the only reader of the product.
//!
//! [`PanelByPanel`]: the program runs on each block of C as soon as its sums are complete, while they are in cache, and C
//! is never stored. [`WholeProductEpilogue`]: C is computed to scratch first, then the program runs.

use crate::kernel::{GemmSide, Io, Kernel, KernelContext, OutputBlock, Ptr};
use crate::select::{CandidateResult, EVERY, Family, KernelCandidate, Problem, Rejection, SelectResult};
use smallvec::SmallVec;
use systole_compile::{Kernel as StepKernel, ProductEpilogue as Plan, Step};
use systole_ir::{Op, Result, ensure};

/// Minimum N: with shorter rows, the program's overhead per run exceeds what fusion saves.
const MIN_N: usize = 32;

/// Maximum K: with longer K blocks, so few columns of B fit L2 that the program would run on short pieces of rows.
const MAX_K: usize = 256;

/// Kernel family for a GEMM with an element-wise epilogue.
pub static FAMILY: Family = Family {
    name: "product_epilogue",
    doc: "GEMM fused with the element-wise program that is the only reader of its result",
    takes: |step| matches!(step.kernel, StepKernel::ProductEpilogue(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("panel_by_panel", EVERY, "the GEMM result is never stored. N of at least 32 and K of \
             at most 256: with a longer K only few columns fit L2, and the program would run on short pieces \
             of rows",
            |p| PanelByPanel::bind(plan(p)?, p)),
        KernelCandidate::new("whole", EVERY, "the GEMM result is stored, then read by the program: supports every \
             product with an epilogue",
            |p| Ok(Box::new(WholeProductEpilogue::new(plan(p)?, p)?))),
    ],
};

fn plan<'a>(p: &Problem<'a>) -> SelectResult<&'a Plan, &'static str> {
    match &p.step.kernel {
        StepKernel::ProductEpilogue(plan) => Ok(plan),
        _ => Err("not a product with an epilogue"),
    }
}

/// Returns the step's product as a separate step.
fn product_step(plan: &Plan, step: &Step) -> Step {
    let operands = plan.operands();
    Step {
        kernel: StepKernel::Op { op: plan.op.clone(), bias: plan.bias },
        inputs: step.inputs[..operands].to_vec(),
        input_types: step.input_types[..operands].to_vec(),
        outputs: step.outputs[..1].to_vec(),
        output_types: vec![plan.product.clone()],
        ..step.clone()
    }
}

/// Returns the step's element-wise program as a separate step, whose last operand is the product.
fn map_step(plan: &Plan, step: &Step) -> Step {
    let operands = plan.operands();
    let (mut inputs, mut input_types) =
        (step.inputs[operands..].to_vec(), step.input_types[operands..].to_vec());
    inputs.push(step.outputs[0]);
    input_types.push(plan.product.clone());
    Step { kernel: StepKernel::Map(plan.map.clone()), inputs, input_types, ..step.clone() }
}

/// Returns the kernels of a product that passes blocks of C to an epilogue, and of the program that accepts them; or
/// why there are none.
fn handing_over(plan: &Plan, alone: &Step, p: &Problem<'_>) -> SelectResult<[Box<dyn Kernel>; 2]> {
    let Op::DotGeneral(d) = &plan.op else {
        return Err("only dot_general can pass blocks of its result to an epilogue".into());
    };
    let right = &alone.input_types[1];
    let columns: usize = d.rhs_free(right.rank()).iter().map(|&d| right.shape[d]).product();
    ensure!(columns >= MIN_N, format!("N is {columns}, expected at least {MIN_N}").into());
    let map = p.bind(&map_step(plan, p.step))?;
    ensure!(map.takes_blocks(columns), "its element-wise program cannot run on blocks of the result".into());
    let mut product = p.bind(alone)?;
    ensure!(product.hand_over_blocks(), "the GEMM rounds its sums, or splits K among tasks".into());
    Ok([product, map])
}

/// Returns K of the product.
fn products(plan: &Plan, alone: &Step) -> usize {
    let Op::DotGeneral(d) = &plan.op else { return 0 };
    d.lhs_contract.iter().map(|&d| alone.input_types[0].shape[d]).product()
}

/// Product whose blocks are passed to the program; C is not stored.
struct PanelByPanel {
    product: Box<dyn Kernel>,
    map: Box<dyn Kernel>,
    /// Number of inputs of the product; the remaining inputs belong to the program.
    operands: usize,
}

impl PanelByPanel {
    fn bind(plan: &Plan, p: &Problem<'_>) -> CandidateResult {
        let alone = product_step(plan, p.step);
        let length = products(plan, &alone);
        ensure!(length <= MAX_K, format!("K is {length}, expected at most {MAX_K}").into());
        let [product, map] = handing_over(plan, &alone, p)?;
        Ok(Box::new(PanelByPanel { product, map, operands: plan.operands() }))
    }
}

/// Computes a product with `map` as its epilogue.
///
/// # Safety
/// As for [`Kernel::run_kept`]; `product` agreed to [`Kernel::hand_over_blocks`], and `map` accepts blocks.
unsafe fn run_by_blocks(
    product: &dyn Kernel,
    map: &dyn Kernel,
    operands: usize,
    cx: &KernelContext<'_>,
    io: &Io<'_>,
    kept: *const u8,
) {
    let (operands, others) = io.inputs.split_at(operands);
    let inputs: SmallVec<[Ptr; 8]> = others.iter().map(|&p| Ptr::of(p)).collect();
    let outputs: SmallVec<[Ptr; 4]> = io.outputs.iter().map(|&p| Ptr(p)).collect();
    let take = |block: &OutputBlock, sums: *const u8| {
        let inputs: SmallVec<[*const u8; 8]> =
            inputs.iter().map(|p| p.at(0).cast_const()).chain([sums]).collect();
        let outputs: SmallVec<[*mut u8; 4]> = outputs.iter().map(|p| p.at(0)).collect();
        // SAFETY: each element is in one block, so that tasks access disjoint elements of the program's arrays.
        unsafe { map.run_block(&inputs, &outputs, block) };
    };
    let io = Io { inputs: operands, outputs: &[], scratch: io.scratch };
    // SAFETY: by the caller's promise operands and scratch are the product's.
    unsafe { product.run_by_blocks(cx, &io, &take, kept) };
}

impl Kernel for PanelByPanel {
    fn scratch(&self) -> usize {
        self.product.scratch()
    }

    fn take_panels(&mut self, which: GemmSide, on: bool) -> Option<usize> {
        self.product.take_panels(which, on)
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.product.kept(&same[..self.operands])
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.product.keep(cx, &inputs[..self.operands], kept) }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { run_by_blocks(self.product.as_ref(), self.map.as_ref(), self.operands, cx, io, kept) };
        Ok(())
    }
}

/// Product in scratch, followed by the program. With panel layout of the epilogue's arrays, blocks are passed instead.
struct WholeProductEpilogue {
    product: Box<dyn Kernel>,
    map: Box<dyn Kernel>,
    /// Second kernel of the product, which passes blocks, and whether it is in use: only while the epilogue's arrays
    /// have panel layout, because runs are long then.
    to_panels: Option<(Box<dyn Kernel>, bool)>,
    /// Number of inputs of the product; the remaining inputs belong to the program.
    operands: usize,
    /// Bytes of C in scratch.
    bytes: usize,
}

impl WholeProductEpilogue {
    fn new(plan: &Plan, p: &Problem<'_>) -> Result<WholeProductEpilogue> {
        let alone = product_step(plan, p.step);
        let (to_panels, map) = match handing_over(plan, &alone, p) {
            Ok([product, map]) => (Some((product, false)), map),
            Err(Rejection::Reason(_)) => (None, p.bind(&map_step(plan, p.step))?),
            Err(Rejection::Error(error)) => return Err(error),
        };
        Ok(WholeProductEpilogue {
            product: p.bind(&alone)?,
            map,
            to_panels,
            operands: plan.operands(),
            bytes: plan.product.bytes().next_multiple_of(64),
        })
    }

    /// Returns the kernel that passes blocks, if it is in use.
    fn handing_over(&self) -> Option<&dyn Kernel> {
        self.to_panels.as_ref().filter(|(_, now)| *now).map(|(product, _)| product.as_ref())
    }
}

impl Kernel for WholeProductEpilogue {
    fn scratch(&self) -> usize {
        match self.handing_over() {
            Some(product) => product.scratch(),
            None => self.bytes + self.product.scratch(),
        }
    }

    fn take_panels(&mut self, which: GemmSide, on: bool) -> Option<usize> {
        match &mut self.to_panels {
            Some((product, now)) if which == GemmSide::Result => {
                let width = product.take_panels(which, on)?;
                *now = on;
                Some(width)
            }
            _ if which == GemmSide::Right => self.product.take_panels(which, on),
            _ => None,
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.product.kept(&same[..self.operands])
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.product.keep(cx, &inputs[..self.operands], kept) }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        if let Some(product) = self.handing_over() {
            // SAFETY: by the caller's promise.
            unsafe { run_by_blocks(product, self.map.as_ref(), self.operands, cx, io, kept) };
            return Ok(());
        }
        let (operands, others) = io.inputs.split_at(self.operands);
        let whole = io.scratch;
        let scratch = whole.wrapping_add(self.bytes);
        let inputs: SmallVec<[*const u8; 8]> = others.iter().copied().chain([whole.cast_const()]).collect();
        // SAFETY: scratch has room for C and for the product's own scratch.
        unsafe {
            let of_product = Io { inputs: operands, outputs: &[whole], scratch };
            // Not every kernel accepts a null address for "nothing precomputed".
            match kept.is_null() {
                true => self.product.run(cx, &of_product)?,
                false => self.product.run_kept(cx, &of_product, kept)?,
            }
            self.map.run(cx, &Io { inputs: &inputs, outputs: io.outputs, scratch })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::thread_pool::ThreadPool;

    /// Test kernel that requires its precomputed data, as the kernels by strips do.
    struct Strict;

    impl Kernel for Strict {
        unsafe fn run(&self, _: &KernelContext<'_>, _: &Io<'_>) -> Result<()> {
            Ok(())
        }

        unsafe fn run_kept(&self, _: &KernelContext<'_>, _: &Io<'_>, kept: *const u8) -> Result<()> {
            assert!(!kept.is_null(), "run_kept was called without precomputed data");
            Ok(())
        }
    }

    #[test]
    fn a_product_runs_with_what_it_precomputed_or_by_itself() {
        let (product, map) = (Box::new(Strict), Box::new(Strict));
        let whole = WholeProductEpilogue { product, map, to_panels: None, operands: 0, bytes: 0 };
        let team = ThreadPool::new(1);
        let cx = KernelContext { team: &team, flush: false };
        let mut kept = [0u8];
        let io = Io { inputs: &[], outputs: &[], scratch: std::ptr::null_mut() };
        // SAFETY: neither kernel touches memory.
        unsafe {
            whole.run(&cx, &io).unwrap();
            whole.run_kept(&cx, &io, kept.as_mut_ptr()).unwrap();
        }
    }
}
