//! A product whose elements an element-wise program takes as soon as they are complete, panel by panel; where the product
//! cannot be handed on like that, it is computed whole first.

use crate::kernel::Cx;
use crate::kernel::Side;
use crate::kernel::product::Epilogue;
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::elementwise::map::MapKernel;
use crate::kernels::matmul::blocked::Complete;
use crate::kernels::matmul::dot_general::DotKernel;
use crate::select::Problem;
use crate::simd::level::Target;
use smallvec::SmallVec;
use systole_compile::{HandOn as Plan, Step};
use systole_ir::{Op, Result};

/// Columns of a product below which its program would take runs that are shorter than what each run costs.
const FEWEST_COLUMNS: usize = 32;

/// Products of an element of which so few columns fit a near cache that rows of the result would be taken in short runs.
const LONG: usize = 256;

/// A product and what takes its elements.
pub struct HandOn {
    product: Product,
    /// The product where it hands on to arrays in panels only, and whether these lie so.
    to_panels: Option<(Box<DotKernel>, bool)>,
    map: MapKernel,
    /// Inputs of the product; the others are the program's.
    operands: usize,
    /// Bytes of the product.
    bytes: usize,
}

enum Product {
    HandsOn(Box<DotKernel>),
    Whole(Box<dyn Kernel>),
}

impl HandOn {
    pub fn new(plan: &Plan, problem: &Problem<'_>) -> Result<HandOn> {
        let Problem { step, target, .. } = *problem;
        let operands = plan.operands();
        let alone = Step {
            kernel: systole_compile::Kernel::Op { op: plan.op.clone(), bias: plan.bias },
            inputs: step.inputs[..operands].to_vec(),
            input_types: step.input_types[..operands].to_vec(),
            outputs: step.outputs[..1].to_vec(),
            output_types: vec![plan.product.clone()],
            ..step.clone()
        };
        let map = MapKernel::new(&plan.map, target.programs());
        let (product, to_panels) = match handing_on(plan, &alone, &map, target) {
            Some(dot) if products(plan, &alone) <= LONG => (Product::HandsOn(dot), None),
            dot => {
                let whole = problem.bind(&alone)?;
                (Product::Whole(whole), dot.map(|dot| (dot, false)))
            }
        };
        Ok(HandOn { product, to_panels, map, operands, bytes: plan.product.bytes().next_multiple_of(64) })
    }

    /// The product that hands on, if one does.
    fn handing_on(&self) -> Option<&DotKernel> {
        match (&self.to_panels, &self.product) {
            (Some((dot, true)), _) | (_, Product::HandsOn(dot)) => Some(dot),
            _ => None,
        }
    }

    /// The kernel that computes the product, for what a loop keeps of its operands.
    fn inner(&self) -> &dyn Kernel {
        match &self.product {
            Product::HandsOn(dot) => dot.as_ref(),
            Product::Whole(kernel) => kernel.as_ref(),
        }
    }
}

/// The kernel of a product that hands its sums on, where there is one.
fn handing_on(plan: &Plan, alone: &Step, map: &MapKernel, target: Target) -> Option<Box<DotKernel>> {
    let Op::DotGeneral(d) = &plan.op else { return None };
    let right = &alone.input_types[1];
    let columns: usize = d.rhs_free(right.rank()).iter().map(|&d| right.shape[d]).product();
    if columns < FEWEST_COLUMNS || !map.takes_panels(columns) {
        return None;
    }
    let epilogue = Epilogue { bias: plan.bias, accumulate: false };
    let mut dot = DotKernel::new(d, epilogue, alone, target)?;
    dot.hand_on().then(|| Box::new(dot))
}

/// Products of an element.
fn products(plan: &Plan, alone: &Step) -> usize {
    let Op::DotGeneral(d) = &plan.op else { return 0 };
    d.lhs_contract.iter().map(|&d| alone.input_types[0].shape[d]).product()
}

impl Kernel for HandOn {
    fn scratch(&self) -> usize {
        match (self.handing_on(), &self.product) {
            (Some(dot), _) => dot.scratch(),
            (None, Product::Whole(kernel)) => self.bytes + kernel.scratch(),
            (None, Product::HandsOn(_)) => 0,
        }
    }

    fn take_panels(&mut self, which: Side, on: bool) -> Option<usize> {
        match (&mut self.to_panels, &mut self.product) {
            (Some((dot, now)), _) if which == Side::Result => {
                let width = dot.take_panels(which, on)?;
                *now = on;
                Some(width)
            }
            (_, Product::HandsOn(dot)) => dot.take_panels(which, on),
            (_, Product::Whole(kernel)) if which == Side::Right => kernel.take_panels(which, on),
            _ => None,
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.inner().kept(&same[..self.operands])
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.inner().keep(cx, &inputs[..self.operands], kept) }
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let (operands, others) = io.inputs.split_at(self.operands);
        if let Some(dot) = self.handing_on() {
            let inputs: SmallVec<[Ptr; 8]> = others.iter().map(|&p| Ptr::of(p)).collect();
            let outputs: SmallVec<[Ptr; 4]> = io.outputs.iter().map(|&p| Ptr(p)).collect();
            // SAFETY: each element is handed on once, so tasks read and write different ones.
            let take = |part: &Complete| unsafe { self.take(part, &inputs, &outputs) };
            let io = Io { inputs: operands, outputs: &[], scratch: io.scratch };
            // SAFETY: the operands are the product's, and so is the scratch.
            unsafe { dot.run_handing_on(cx, &io, &take, kept) };
        } else if let Product::Whole(kernel) = &self.product {
            let whole = io.scratch;
            let scratch = whole.wrapping_add(self.bytes);
            let inputs: SmallVec<[*const u8; 8]> =
                others.iter().copied().chain([whole.cast_const()]).collect();
            // SAFETY: scratch has room for the product and its kernel's own.
            unsafe {
                kernel.run_kept(cx, &Io { inputs: operands, outputs: &[whole], scratch }, kept)?;
                self.map.run(cx, &Io { inputs: &inputs, outputs: io.outputs, scratch })?;
            }
        }
        Ok(())
    }
}

impl HandOn {
    /// Runs the program for some complete sums.
    unsafe fn take(&self, part: &Complete, inputs: &[Ptr], outputs: &[Ptr]) {
        let sums = part.sums;
        let inputs: SmallVec<[*const u8; 8]> =
            inputs.iter().map(|p| p.at(0).cast_const()).chain([sums]).collect();
        let outputs: SmallVec<[*mut u8; 4]> = outputs.iter().map(|p| p.at(0)).collect();
        // SAFETY: by the caller's promise.
        unsafe { self.map.panel(&inputs, &outputs, &part.panel) };
    }
}
