//! A schedule with kernels bound to its steps, and its run over raw memory.

use crate::arena::Memory;
use crate::detect::Target;
use crate::kernels::{Inner, Io, Kernel, bind};
use crate::panels::{self, Panels};
use crate::profile::{self, Profile};
use crate::team::Team;
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use systole_compile::{ALIGN, Place, Schedule, Step};
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// What kernels may use while they run.
pub struct Cx<'a> {
    /// Threads.
    pub team: &'a Team,
    /// Whether tiny numbers are flushed to zero.
    pub flush: bool,
}

thread_local! {
    /// Working memory of this thread, reused from call to call; several while calls nest.
    static SCRATCH: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// Lends `bytes` of this thread's working memory to `f`. Its contents are left over from earlier use.
pub fn with_scratch<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mine = SCRATCH.with(|s| s.borrow_mut().pop());
    let memory = match mine {
        Some(m) if m.len() >= bytes => m,
        _ => match Memory::new(bytes.next_power_of_two()) {
            Ok(m) => m,
            // A few MiB at most; without them nothing can go on.
            Err(e) => panic!("{e}"),
        },
    };
    let result = f(memory.ptr());
    SCRATCH.with(|s| s.borrow_mut().push(memory));
    result
}

/// A program ready to run.
pub struct Executor {
    schedule: Schedule,
    kernels: Vec<Box<dyn Kernel>>,
    scratch: usize,
    /// For each step the view that it only looks up the place of, if it does.
    makes_view: Vec<Option<usize>>,
    /// The panels in which each slot lies, if it does; none: all lie as rows.
    panels: Vec<Option<Panels>>,
    profile: Profile,
}

impl Executor {
    /// Binds each step to a kernel.
    pub fn new(schedule: Schedule, target: Target) -> Result<Executor> {
        let mut kernels = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            kernels.push(bind(step, target)?);
        }
        let scratch = kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
        let profile = Profile::new(kernels.len());
        let makes_view = (0..kernels.len()).map(|i| schedule.views.iter().position(|v| v.by == i)).collect();
        Ok(Executor { schedule, kernels, scratch, makes_view, panels: Vec::new(), profile })
    }

    /// Lets state lie in panels of columns where that gains: see [`panels`].
    pub fn arrange(&mut self) {
        self.panels = panels::arrange(&self.schedule, &mut self.kernels);
        self.scratch = self.kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
    }

    /// Lines for listings: which parameters lie in panels.
    pub fn panels(&self) -> String {
        let of_param = |p: usize| {
            let Panels { rows, columns, width } = self.panels_of_param(p)?;
            Some(format!("  @param{p} [{rows}, {columns}] lies in panels of {width} columns\n"))
        };
        (0..self.schedule.params.len()).filter_map(of_param).collect()
    }

    /// The panels in which parameter `p` has to lie, if not as rows.
    pub fn panels_of_param(&self, p: usize) -> Option<Panels> {
        let slot = self.schedule.slots.iter().position(|x| x.place == Place::Param(p))?;
        self.panels_of(slot)
    }

    /// The panels in which a slot lies, if not as rows.
    pub fn panels_of(&self, slot: usize) -> Option<Panels> {
        self.panels.get(slot).copied().flatten()
    }

    /// The program.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The kernels of its steps, and the times that they took while somebody watched.
    pub(crate) fn measured(&self) -> (&[Box<dyn Kernel>], &Profile) {
        (&self.kernels, &self.profile)
    }

    /// Bytes of working memory that [`Executor::run`] needs.
    pub fn memory_bytes(&self) -> Result<usize> {
        let arena = self.schedule.arena_bytes.checked_next_multiple_of(ALIGN);
        arena.and_then(|a| a.checked_add(self.scratch)).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the program's working memory does not fit an address space")
        })
    }

    /// Bytes of what each kernel can make once of parameters that are the same for many runs; 0: nothing.
    pub fn kept(&self, same: &dyn Fn(usize) -> bool) -> Vec<usize> {
        let is_same = |&x: &usize| matches!(self.schedule.slots[x].place, Place::Param(p) if same(p));
        let steps = self.schedule.steps.iter().zip(&self.kernels);
        steps.map(|(step, k)| k.kept(&step.inputs.iter().map(is_same).collect::<Vec<bool>>())).collect()
    }

    /// Makes what kernels keep; a null address: nothing.
    ///
    /// # Safety
    /// `params` point to the parameters that are the same, as far as the last of them, `kept` to room for [`Executor::kept`] bytes each.
    pub unsafe fn keep(&self, cx: &Cx<'_>, params: &[*const u8], kept: &[*mut u8]) {
        let address = |&x: &usize| match self.schedule.slots[x].place {
            Place::Param(p) => params.get(p).copied().unwrap_or(std::ptr::null()),
            _ => std::ptr::null(),
        };
        let made = kept.iter().enumerate().filter(|(_, to)| !to.is_null());
        for (i, &to) in made {
            let inputs: SmallVec<[*const u8; 8]> =
                self.schedule.steps[i].inputs.iter().map(address).collect();
            // SAFETY: by the caller's promise.
            unsafe { self.kernels[i].keep(cx, &inputs, to) };
        }
    }

    /// Runs all steps.
    ///
    /// # Safety
    /// `params` point to arrays of the parameters' types; `results` has an address for each result that owns its
    /// memory (see [`Place::Result`]), which is a parameter's only where the plan's `reuse` says so; `memory` points
    /// to [`Executor::memory_bytes`] bytes that nothing else uses.
    pub unsafe fn run(
        &self,
        cx: &Cx<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, params, results, memory, &[]) }
    }

    /// Runs all steps with what [`Executor::keep`] made; no addresses: nothing.
    ///
    /// # Safety
    /// As for [`Executor::run`]; parameters that something was made of are the same.
    unsafe fn run_kept(
        &self,
        cx: &Cx<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
        kept: &[*mut u8],
    ) -> Result<()> {
        let s = &self.schedule;
        let scratch = memory.wrapping_add(s.arena_bytes.next_multiple_of(ALIGN));
        let mut views: SmallVec<[*mut u8; 8]> = smallvec![std::ptr::null_mut(); s.views.len()];
        let address = |slot: usize, views: &[*mut u8]| match s.slots[slot].place {
            Place::Param(p) => params[p].cast_mut(),
            Place::Constant(c) => s.constants[c].bytes().as_ptr().cast_mut(),
            Place::Arena(at) => memory.wrapping_add(at),
            Place::Result(k) => results[k],
            Place::View(v) => views[v],
        };
        let watched = profile::wanted();
        for (i, (step, kernel)) in s.steps.iter().zip(&self.kernels).enumerate() {
            let inputs: SmallVec<[*const u8; 8]> =
                step.inputs.iter().map(|&x| address(x, &views).cast_const()).collect();
            if let Some(v) = self.makes_view[i] {
                // SAFETY: the indices can be read.
                let before = unsafe { kernel.part_at(&inputs) };
                views[v] = inputs[0].cast_mut().wrapping_add(before);
                continue;
            }
            let outputs: SmallVec<[*mut u8; 4]> = step.outputs.iter().map(|&x| address(x, &views)).collect();
            let start = watched.then(|| self.profile.begin(s, i));
            let io = Io { inputs: &inputs, outputs: &outputs, scratch };
            // SAFETY: the plan gives every slot memory of its size, apart from others alive at the same time.
            let ran = unsafe {
                match kept.get(i) {
                    Some(kept) if !kept.is_null() => kernel.run_kept(cx, &io, *kept),
                    _ => kernel.run(cx, &io),
                }
            };
            ran.at(|| place_of(step))?;
            if let Some(start) = start {
                self.profile.end(s, i, start);
            }
        }
        Ok(())
    }

    /// Runs as [`Executor::run`] and copies the results that have no memory of their own (arguments and constants
    /// passed through, and repeated ones) to `results` too.
    ///
    /// # Safety
    /// As for [`Executor::run`], with an address for every result that is not a parameter's; `kept` is what
    /// [`Executor::keep`] made of the same parameters, or empty.
    pub unsafe fn run_raw(
        &self,
        cx: &Cx<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
        kept: &[*mut u8],
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, params, results, memory, kept)? };
        let s = &self.schedule;
        for (k, r) in s.results.iter().enumerate() {
            let from = match s.slots[r.slot].place {
                Place::Param(p) => params[p],
                Place::Constant(c) => s.constants[c].bytes().as_ptr(),
                Place::Result(j) if j != k => results[j].cast_const(),
                _ => continue,
            };
            if !std::ptr::eq(from, results[k]) {
                // SAFETY: both hold arrays of the result's type, in different memory.
                unsafe { std::ptr::copy_nonoverlapping(from, results[k], r.ty.bytes()) };
            }
        }
        Ok(())
    }
}

fn place_of(step: &Step) -> String {
    match step.scope.as_str() {
        "" => step.kernel.name(),
        scope => format!("{} of layer {scope}", step.kernel.name()),
    }
}

/// `while`: the state lives in the outputs; results that cannot be written in place go to a second set of arrays.
pub struct WhileKernel {
    captures: usize,
    /// The input that each state starts as, if it matters.
    starts: Vec<Option<usize>>,
    cond: Executor,
    body: Executor,
    /// Where each state's second array lies in scratch, if it needs one.
    second: Vec<Option<usize>>,
    bytes: Vec<usize>,
    cond_at: usize,
    body_at: usize,
    flag_at: usize,
    /// Where in scratch lies what the body's kernels make once of what is captured.
    kept: Vec<Option<usize>>,
    scratch: usize,
}

impl WhileKernel {
    pub fn new(
        captures: usize,
        starts: &[Option<usize>],
        [cond, body]: [&Schedule; 2],
        step: &Step,
        target: Target,
    ) -> Result<WhileKernel> {
        let (cond, body) = (Executor::new(cond.clone(), target)?, Executor::new(body.clone(), target)?);
        let mut total = 0usize;
        let mut take = |bytes: usize| {
            let at = total;
            total =
                at.checked_add(bytes).and_then(|t| t.checked_next_multiple_of(ALIGN)).ok_or_else(|| {
                    Error::new(ErrorKind::Unsupported, "the loop's memory does not fit an address space")
                })?;
            Ok::<usize, Error>(at)
        };
        let bytes: Vec<usize> = step.output_types.iter().map(|t| t.bytes()).collect();
        let mut second = Vec::new();
        for (k, r) in body.schedule.results.iter().enumerate() {
            let stays = body.schedule.slots[r.slot].place == Place::Param(captures + k);
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
}

impl Kernel for WhileKernel {
    fn scratch(&self) -> usize {
        self.scratch
    }

    fn inner(&self) -> Vec<Inner<'_>> {
        vec![("while".into(), &self.cond), ("do".into(), &self.body)]
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let captured = &io.inputs[..self.captures];
        let mut state: Vec<*mut u8> = io.outputs.to_vec();
        for (k, (from, &to)) in self.starts.iter().zip(&state).enumerate() {
            let Some(from) = from.map(|i| io.inputs[i]) else { continue };
            if !std::ptr::eq(from, to) {
                // SAFETY: operand and result of one type, in different memory.
                unsafe { std::ptr::copy_nonoverlapping(from, to, self.bytes[k]) };
            }
        }
        let place = |at: &Option<usize>| at.map_or(std::ptr::null_mut(), |at| io.scratch.wrapping_add(at));
        let kept: Vec<*mut u8> = self.kept.iter().map(place).collect();
        // SAFETY: captures are the same in every trip; scratch has room.
        unsafe { self.body.keep(cx, captured, &kept) };
        let mut other: Vec<Option<*mut u8>> =
            self.second.iter().map(|at| at.map(|at| io.scratch.wrapping_add(at))).collect();
        let flag = io.scratch.wrapping_add(self.flag_at);
        loop {
            let params: Vec<*const u8> =
                captured.iter().copied().chain(state.iter().map(|p| p.cast_const())).collect();
            // SAFETY: states and captures have the bodies' types; each part of scratch is used by one of them.
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
                // SAFETY: the second array and the result, of one type.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, self.bytes[k]) };
            }
        }
        Ok(())
    }
}

/// `case`: one of several programs.
pub struct CaseKernel {
    branches: Vec<Executor>,
    scratch: usize,
}

impl CaseKernel {
    pub fn new(branches: &[Schedule], _: &Step, target: Target) -> Result<CaseKernel> {
        let branches =
            branches.iter().map(|b| Executor::new(b.clone(), target)).collect::<Result<Vec<Executor>>>()?;
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

    fn inner(&self) -> Vec<Inner<'_>> {
        self.branches.iter().enumerate().map(|(i, b)| (format!("case {i}"), b)).collect()
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let Some((index, captures)) = io.inputs.split_last() else {
            systole_ir::bug!("case without an index")
        };
        // SAFETY: the index is an i32 scalar.
        let index = unsafe { *index.cast::<i32>() };
        let last = self.branches.len() - 1;
        let chosen = usize::try_from(index).map_or(last, |i| i.min(last));
        // SAFETY: captures and results have the branch's types.
        unsafe { self.branches[chosen].run_raw(cx, captures, io.outputs, io.scratch, &[]) }
    }
}
