//! Control-flow kernels: `while` and `case` run their bodies as nested programs.

use crate::kernel::{InnerProgram, Io, Kernel, KernelContext};
use crate::run::executor::Executor;
use crate::select::Problem;
use std::any::Any;
use std::sync::Arc;
use systole_compile::{ALIGN, Location, ProgramSchedule};
use systole_ir::{Error, Result, err};

/// `while`: the state is stored in the step's outputs. States that the body cannot update in place are double-buffered:
/// their second array is in scratch, and the two swap after each iteration.
pub struct WhileKernel {
    /// Number of leading inputs that are loop-invariant.
    pub captures: usize,
    /// Per state: the input with its initial value; `None` if the initial value is never read.
    pub starts: Vec<Option<usize>>,
    pub cond: Arc<Executor>,
    pub body: Arc<Executor>,
    /// Per state: offset of its second array in scratch, if it is double-buffered.
    second: Vec<Option<usize>>,
    /// Bytes per state.
    bytes: Vec<usize>,
    /// Offsets in scratch: working memory of the condition and of the body, and the condition's result.
    pub cond_at: usize,
    pub body_at: usize,
    flag_at: usize,
    /// Per step of the body: scratch offset of the data that its kernel precomputes from captures (packed operands), if
    /// any.
    kept: Vec<Option<usize>>,
    scratch: usize,
}

impl WhileKernel {
    pub fn new(
        captures: usize,
        starts: &[Option<usize>],
        [cond, body]: [&Arc<ProgramSchedule>; 2],
        problem: &Problem<'_>,
    ) -> Result<WhileKernel> {
        let step = problem.step;
        let (cond, body) = (Arc::new(Executor::of(cond, problem)?), Arc::new(Executor::of(body, problem)?));
        let mut total = 0usize;
        let mut take = |bytes: usize| {
            let at = total;
            total = at
                .checked_add(bytes)
                .and_then(|t| t.checked_next_multiple_of(ALIGN))
                .ok_or_else(|| err!(Unsupported, "the loop's memory exceeds the address space"))?;
            Ok::<usize, Error>(at)
        };
        let bytes: Vec<usize> = step.output_types.iter().map(|t| t.bytes()).collect();
        let mut second = Vec::new();
        for (k, r) in body.schedule().results.iter().enumerate() {
            let stays = body.schedule().slots[r.slot].place == Location::Param(captures + k);
            let in_place = r.reuse == Some(captures + k);
            second.push(if stays || in_place { None } else { Some(take(bytes[k])?) });
        }
        let (cond_at, body_at) = (take(cond.memory_bytes()?)?, take(body.memory_bytes()?)?);
        let flag_at = take(1)?;
        let mut kept = Vec::new();
        for bytes in body.kept(&|p| p < captures) {
            kept.push(if bytes > 0 { Some(take(bytes)?) } else { None });
        }
        let starts = starts.to_vec();
        Ok(WhileKernel {
            captures,
            starts,
            cond,
            body,
            second,
            bytes,
            cond_at,
            body_at,
            flag_at,
            kept,
            scratch: total,
        })
    }

    /// Whether no kernel of the body precomputes data of loop-invariant inputs.
    pub fn precomputes_nothing(&self) -> bool {
        self.kept.iter().all(Option::is_none)
    }

    /// Whether the states of more than `small` bytes are updated in place.
    pub fn updates_in_place(&self, small: usize) -> bool {
        self.second.iter().zip(&self.bytes).all(|(second, &bytes)| second.is_none() || bytes <= small)
    }
}

impl Kernel for WhileKernel {
    fn scratch(&self) -> usize {
        self.scratch
    }

    fn inner(&self) -> Vec<InnerProgram<'_>> {
        vec![("while".into(), &*self.cond as _), ("do".into(), &*self.body as _)]
    }

    fn control_flow(&self) -> Option<&dyn Any> {
        Some(self)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let captured = &io.inputs[..self.captures];
        let mut state: Vec<*mut u8> = io.outputs.to_vec();
        for (k, (from, &to)) in self.starts.iter().zip(&state).enumerate() {
            let Some(from) = from.map(|i| io.inputs[i]) else { continue };
            if !std::ptr::eq(from, to) {
                // SAFETY: input and output have one type and, being different arrays, do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, self.bytes[k]) };
            }
        }
        let place = |at: &Option<usize>| at.map_or(std::ptr::null_mut(), |at| io.scratch.wrapping_add(at));
        let kept: Vec<*mut u8> = self.kept.iter().map(place).collect();
        // SAFETY: captures are loop-invariant; the offsets `kept` have room for the data that each kernel precomputes.
        unsafe { self.body.keep(cx, captured, &kept) };
        let mut other: Vec<Option<*mut u8>> =
            self.second.iter().map(|at| at.map(|at| io.scratch.wrapping_add(at))).collect();
        let flag = io.scratch.wrapping_add(self.flag_at);
        loop {
            let params: Vec<*const u8> =
                captured.iter().copied().chain(state.iter().map(|p| p.cast_const())).collect();
            // SAFETY: captures and states have the types of the programs' parameters; condition, body, second arrays
            // and flag use disjoint ranges of scratch.
            unsafe {
                self.cond.run_raw(cx, &params, &[flag], io.scratch.wrapping_add(self.cond_at), &[])?;
                if *flag == 0 {
                    break;
                }
                let results: Vec<*mut u8> = state.iter().zip(&other).map(|(&s, o)| o.unwrap_or(s)).collect();
                let memory = io.scratch.wrapping_add(self.body_at);
                self.body.run_raw(cx, &params, &results, memory, &kept)?;
            }
            for (s, o) in state.iter_mut().zip(&mut other) {
                if let Some(o) = o {
                    std::mem::swap(s, o);
                }
            }
        }
        for (k, (&from, &to)) in state.iter().zip(io.outputs).enumerate() {
            if !std::ptr::eq(from, to) {
                // SAFETY: the state's second array and its output have one type and do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, self.bytes[k]) };
            }
        }
        Ok(())
    }
}

/// `case`: runs one of several programs. An index out of range selects the last one.
pub struct CaseKernel {
    pub branches: Vec<Arc<Executor>>,
    scratch: usize,
}

impl CaseKernel {
    pub fn new(branches: &[Arc<ProgramSchedule>], problem: &Problem<'_>) -> Result<CaseKernel> {
        let bind = |b| Executor::of(b, problem).map(Arc::new);
        let branches = branches.iter().map(bind).collect::<Result<Vec<Arc<Executor>>>>()?;
        let mut scratch = 0;
        for b in &branches {
            scratch = scratch.max(b.memory_bytes()?);
        }
        Ok(CaseKernel { branches, scratch })
    }
}

impl Kernel for CaseKernel {
    fn scratch(&self) -> usize {
        self.scratch
    }

    fn inner(&self) -> Vec<InnerProgram<'_>> {
        self.branches.iter().enumerate().map(|(i, b)| (format!("case {i}"), &**b as _)).collect()
    }

    fn control_flow(&self) -> Option<&dyn Any> {
        Some(self)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let Some((index, captures)) = io.inputs.split_last() else {
            systole_ir::bug!("case without an index")
        };
        // SAFETY: the last input is the index, an i32 scalar.
        let index = unsafe { *index.cast::<i32>() };
        let last = self.branches.len() - 1;
        let chosen = usize::try_from(index).map_or(last, |i| i.min(last));
        // SAFETY: captures and outputs have the types of every branch's parameters and results; scratch is large enough
        // for the largest branch.
        unsafe { self.branches[chosen].run_raw(cx, captures, io.outputs, io.scratch, &[]) }
    }
}
