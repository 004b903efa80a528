//! Row blocks (mini-batch blocking): runs part of the program for a few samples at a time, to stay in cache.
//!
//! One parallel loop runs all blocks. Results are either rows, which blocks write to disjoint ranges, or sums over all
//! rows, such as weight gradients. Blocks are assigned to a fixed number of groups in contiguous runs. The blocks of a
//! group run in order on one thread and add to the group's own sums; a tree adds the groups' sums. The number of groups
//! is part of the plan, so the order of additions does not depend on the number of threads. Blocks of a single group
//! (row chunks) run one after another, and the threads share the work of each kernel.

use crate::kernel::{InnerProgram, Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::run::executor::Executor;
use crate::select::Problem;
use crate::simd::level::TileFn;
use crate::simd::reduce_loops::adder;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use systole_compile::{ALIGN, Location, ProgramSchedule, RowBlockLoop};
use systole_ir::{Error, Result, err};

/// Elements per block of the parallel loop that adds the groups' sums.
const PART: usize = 1 << 13;

/// A result that is summed over all blocks; every group has its own array.
struct BlockSum {
    elements: usize,
    bytes: usize,
    /// Bytes of an element.
    size: usize,
    add: TileFn,
    /// Offset in scratch of the arrays of groups 1 and up. Group 0 uses the result's memory.
    at: usize,
}

/// A bound step of row blocks.
pub struct BlocksKernel {
    plan: RowBlockLoop,
    body: BlockProgram,
    /// Program of the last block, if that is shorter.
    rest: Option<BlockProgram>,
    sums: Vec<BlockSum>,
    /// Offset in scratch of the blocks' memory if they run one after another; otherwise each thread has its own.
    memory: Option<usize>,
    scratch: usize,
    work_ns: f64,
}

/// The program for one block.
struct BlockProgram {
    executor: Executor,
    /// Per sum: offset in the thread's memory of the new sum, if it cannot be updated in place.
    apart: Vec<Option<usize>>,
    /// Bytes of memory per thread: the executor's, then the sums of `apart`.
    memory: usize,
    /// Per step: scratch offset of the data that its kernel precomputes from operands that every block reads completely
    /// (packed weights), if any. All blocks share it.
    kept: Vec<Option<usize>>,
}

impl BlockProgram {
    fn new(plan: &Arc<ProgramSchedule>, sums: &[BlockSum], problem: &Problem<'_>) -> Result<BlockProgram> {
        let executor = Executor::of(plan, problem)?;
        let mut memory = executor.memory_bytes()?.next_multiple_of(ALIGN);
        let mut apart = Vec::new();
        for (k, sum) in sums.iter().enumerate() {
            let result = &executor.schedule().results[k];
            let own = executor.schedule().slots[result.slot].place == Location::Result(k);
            let in_place = !own || result.reuse == Some(k);
            apart.push((!in_place).then_some(memory));
            memory += if in_place { 0 } else { sum.bytes.next_multiple_of(ALIGN) };
        }
        Ok(BlockProgram { executor, apart, memory, kept: Vec::new() })
    }

    /// Reserves scratch, from offset `scratch` on, for data that kernels precompute from parameters that are the `same`
    /// for all blocks.
    fn take_kept(&mut self, same: &dyn Fn(usize) -> bool, scratch: &mut usize) {
        let take = |bytes: usize| {
            let at = *scratch;
            *scratch += bytes.next_multiple_of(ALIGN);
            (bytes > 0).then_some(at)
        };
        self.kept = self.executor.kept(same).into_iter().map(take).collect();
    }

    /// Returns the addresses of precomputed data; null if there is none.
    fn kept(&self, scratch: Ptr) -> Vec<*mut u8> {
        self.kept.iter().map(|at| at.map_or(std::ptr::null_mut(), |at| scratch.at(at))).collect()
    }

    /// Runs one block.
    ///
    /// # Safety
    /// As for [`Executor::run_raw`], except that a sum's parameter and result may be the same array. `memory` has
    /// `self.memory` bytes.
    unsafe fn run(
        &self,
        cx: &KernelContext<'_>,
        sums: &[BlockSum],
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
        kept: &[*mut u8],
    ) -> Result<()> {
        let mut targets = results.to_vec();
        for (target, at) in targets.iter_mut().zip(&self.apart) {
            if let Some(at) = at {
                *target = memory.wrapping_add(*at);
            }
        }
        // SAFETY: guaranteed by the caller; sums that the program does not update in place are written to `memory`
        // first.
        unsafe {
            self.executor.run_raw(cx, params, &targets, memory, kept)?;
            for ((target, result), sum) in targets.iter().zip(results).zip(sums) {
                if !std::ptr::eq(*target, *result) {
                    std::ptr::copy_nonoverlapping(target.cast_const(), *result, sum.bytes);
                }
            }
        }
        Ok(())
    }
}

impl BlocksKernel {
    pub fn new(plan: &RowBlockLoop, problem: &Problem<'_>) -> Result<BlocksKernel> {
        let target = problem.target;
        let mut scratch = 0usize;
        let mut sums = Vec::new();
        for ty in &plan.sums {
            let bytes = ty.bytes();
            let (elements, size) = (ty.elements(), ty.dtype.size());
            sums.push(BlockSum { elements, bytes, size, add: adder(ty.dtype, target.level), at: scratch });
            let copies = bytes.checked_next_multiple_of(ALIGN).and_then(|b| b.checked_mul(plan.groups - 1));
            scratch = copies
                .and_then(|c| scratch.checked_add(c))
                .ok_or_else(|| err!(Unsupported, "the sums of all groups exceed the address space"))?;
        }
        let mut body = BlockProgram::new(&plan.body, &sums, problem)?;
        let mut rest = plan.rest.as_ref().map(|rest| BlockProgram::new(rest, &sums, problem)).transpose()?;
        // Packed operands of chunks would be copies of weights that fit no cache.
        let same = |p: usize| plan.groups > 1 && p >= sums.len() && plan.inputs[p - sums.len()].is_none();
        for program in std::iter::once(&mut body).chain(&mut rest) {
            program.take_kept(&same, &mut scratch);
        }
        let memory = (plan.groups == 1).then_some(scratch);
        if memory.is_some() {
            scratch += rest.as_ref().map_or(0, |r| r.memory).max(body.memory);
        }
        let work_ns = plan.flops() / 60.0 + (plan.rows / plan.block) as f64 * 10_000.0;
        Ok(BlocksKernel { plan: plan.clone(), body, rest, sums, memory, scratch, work_ns })
    }

    /// Returns the array of group `g` for a sum.
    fn sum_at(&self, sum: &BlockSum, g: usize, result: Ptr, scratch: Ptr) -> *mut u8 {
        match g {
            0 => result.at(0),
            _ => scratch.at(sum.at + (g - 1) * sum.bytes.next_multiple_of(ALIGN)),
        }
    }

    /// Runs the blocks of group `g` in order.
    unsafe fn group(
        &self,
        g: usize,
        cx: &KernelContext<'_>,
        inputs: &[Ptr],
        outputs: &[Ptr],
        scratch: Ptr,
    ) -> Result<()> {
        let plan = &self.plan;
        let count = plan.rows.div_ceil(plan.block);
        let memory = self.rest.as_ref().map_or(0, |r| r.memory).max(self.body.memory);
        let sums: Vec<*mut u8> =
            self.sums.iter().zip(outputs).map(|(s, &out)| self.sum_at(s, g, out, scratch)).collect();
        for (sum, &at) in self.sums.iter().zip(&sums) {
            // SAFETY: the array has `sum.bytes` bytes and belongs to this group.
            unsafe { std::ptr::write_bytes(at, 0, sum.bytes) };
        }
        let blocks = |memory: *mut u8| {
            let kept = self.body.kept(scratch);
            let kept_of_rest = self.rest.as_ref().map(|rest| rest.kept(scratch)).unwrap_or_default();
            let mut params: Vec<*const u8> = Vec::new();
            let mut results: Vec<*mut u8> = Vec::new();
            for block in g * count / plan.groups..(g + 1) * count / plan.groups {
                let row = block * plan.block;
                let (program, kept) = match &self.rest {
                    Some(rest) if block + 1 == count => (rest, &kept_of_rest),
                    _ => (&self.body, &kept),
                };
                params.clear();
                params.extend(sums.iter().map(|p| p.cast_const()));
                let input = |(p, each): (&Ptr, &Option<usize>)| p.at(row * each.unwrap_or(0)).cast_const();
                params.extend(inputs.iter().zip(&plan.inputs).map(input));
                results.clear();
                results.extend(&sums);
                let rows = outputs[self.sums.len()..].iter().zip(&plan.outputs);
                results.extend(rows.map(|(p, each)| p.at(row * each)));
                // SAFETY: the addresses are those of the block's rows in arrays of `plan.rows` rows; other groups write
                // other rows and sums.
                unsafe { program.run(cx, &self.sums, &params, &results, memory, kept)? };
            }
            Ok(())
        };
        match self.memory {
            Some(at) => blocks(scratch.at(at)),
            None => with_scratch(memory, blocks),
        }
    }

    /// Adds the groups' arrays in a tree, into the array of group 0, which is the result.
    unsafe fn add_groups(&self, cx: &KernelContext<'_>, sum: &BlockSum, result: Ptr, scratch: Ptr) {
        let groups = self.plan.groups;
        let body = |part: usize| {
            let from = part * PART;
            let n = PART.min(sum.elements - from);
            let at = |g: usize| self.sum_at(sum, g, result, scratch).wrapping_add(from * sum.size);
            let mut step = 1;
            while step < groups {
                for g in (0..groups - step).step_by(2 * step) {
                    let other = at(g + step).cast_const();
                    // SAFETY: parts are disjoint ranges of the arrays; different groups' arrays do not overlap.
                    unsafe { (sum.add)(at(g), other, other, other, n) };
                }
                step *= 2;
            }
        };
        let work = (sum.elements * groups) as f64 * 0.2;
        cx.team.run_with(sum.elements.div_ceil(PART), work, cx.flush, &body);
    }
}

impl Kernel for BlocksKernel {
    fn scratch(&self) -> usize {
        self.scratch
    }

    fn inner(&self) -> Vec<InnerProgram<'_>> {
        let rest = self.rest.iter().map(|r| ("last block".into(), &r.executor as _));
        std::iter::once(("block".into(), &self.body.executor as _)).chain(rest).collect()
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let inputs: Vec<Ptr> = io.inputs.iter().map(|&p| Ptr::of(p)).collect();
        let outputs: Vec<Ptr> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let scratch = Ptr(io.scratch);
        let none = std::iter::repeat_n(std::ptr::null(), self.sums.len());
        let params: Vec<*const u8> = none.chain(io.inputs.iter().copied()).collect();
        for program in std::iter::once(&self.body).chain(&self.rest) {
            // SAFETY: `kept` covers only inputs that every block reads completely; scratch has room for the precomputed
            // data.
            unsafe { program.executor.keep(cx, &params, &program.kept(scratch)) };
        }
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let body = |g: usize| {
            // SAFETY: by the contract of `Kernel::run`; each group writes its own rows and sums.
            if let Err(e) = unsafe { self.group(g, cx, &inputs, &outputs, scratch) } {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        };
        cx.team.run_with(self.plan.groups, self.work_ns, cx.flush, &body);
        if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(e);
        }
        if self.plan.groups > 1 {
            for (sum, &result) in self.sums.iter().zip(&outputs) {
                // SAFETY: all groups are done, so nothing else uses their arrays.
                unsafe { self.add_groups(cx, sum, result, scratch) };
            }
        }
        Ok(())
    }
}
