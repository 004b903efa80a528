//! A schedule with kernels bound to its steps, and its execution over raw memory.
//!
//! All addresses come from the compiler's buffer plan: an arena, parameters, constants, results, and views of other
//! arrays. The executor itself allocates nothing large and adds no synchronisation: steps run in order, and each kernel
//! shares its own work among the threads.

use crate::kernel::{Io, Kernel, KernelChoice, KernelContext, KernelTimes, ProgramView};
use crate::machine::trace_spans;
use crate::run::panel_layout;
use crate::run::panel_layout::PanelLayout;
use crate::run::profile::ProgramProfile;
use crate::select::{KernelRegistry, Problem, choose};
use crate::simd::level::CompileTarget;
use smallvec::{SmallVec, smallvec};
use systole_compile::{ALIGN, Location, ProgramSchedule, Step};
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// A program ready to run.
pub struct Executor {
    schedule: ProgramSchedule,
    kernels: Vec<Box<dyn Kernel>>,
    choices: Vec<KernelChoice>,
    scratch: usize,
    /// Per step: the view whose address it computes instead of copying a slice, if it is such a step.
    makes_view: Vec<Option<usize>>,
    /// Per slot: the panels in which it is stored. Empty or `None`: row-major.
    panels: Vec<Option<PanelLayout>>,
    profile: ProgramProfile,
}

impl Executor {
    /// Binds each step to a kernel.
    pub fn new(
        schedule: ProgramSchedule,
        target: CompileTarget,
        registry: KernelRegistry,
    ) -> Result<Executor> {
        let mut kernels = Vec::with_capacity(schedule.steps.len());
        let mut choices = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            let (kernel, choice) = choose(&Problem::new(step, target, registry))?;
            kernels.push(kernel);
            choices.push(choice);
        }
        let scratch = kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
        let profile = ProgramProfile::new(kernels.len());
        let makes_view = (0..kernels.len()).map(|i| schedule.views.iter().position(|v| v.by == i)).collect();
        Ok(Executor { schedule, kernels, choices, scratch, makes_view, panels: Vec::new(), profile })
    }

    /// Binds a program inside a step, for the same machine and registry.
    pub fn of(schedule: &ProgramSchedule, around: &Problem<'_>) -> Result<Executor> {
        Executor::new(schedule.clone(), around.target, around.registry)
    }

    /// Stores state in panels of columns where that pays off: see [`panels`].
    pub fn arrange(&mut self) {
        self.panels = panel_layout::arrange(&self.schedule, &mut self.kernels);
        self.scratch = self.kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
    }

    /// Lines for listings: the parameters that are stored in panels.
    pub fn panels(&self) -> String {
        let of_param = |p: usize| {
            let PanelLayout { rows, columns, width } = self.panels_of_param(p)?;
            Some(format!("  @param{p} [{rows}, {columns}] lies in panels of {width} columns\n"))
        };
        (0..self.schedule.params.len()).filter_map(of_param).collect()
    }

    /// The panels in which the caller has to store parameter `p`; `None`: row-major.
    pub fn panels_of_param(&self, p: usize) -> Option<PanelLayout> {
        let slot = self.schedule.slots.iter().position(|x| x.place == Location::Param(p))?;
        self.panels_of(slot)
    }

    /// The panels in which a slot is stored; `None`: row-major.
    pub fn panels_of(&self, slot: usize) -> Option<PanelLayout> {
        self.panels.get(slot).copied().flatten()
    }

    /// The program.
    pub fn schedule(&self) -> &ProgramSchedule {
        &self.schedule
    }

    /// Bytes of working memory that [`Executor::run`] needs.
    pub fn memory_bytes(&self) -> Result<usize> {
        let arena = self.schedule.arena_bytes.checked_next_multiple_of(ALIGN);
        arena.and_then(|a| a.checked_add(self.scratch)).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the program's working memory does not fit an address space")
        })
    }

    /// Per step: bytes of what its kernel can precompute (pack) from parameters that are the `same` for many runs; 0:
    /// nothing.
    pub fn kept(&self, same: &dyn Fn(usize) -> bool) -> Vec<usize> {
        let is_same = |&x: &usize| matches!(self.schedule.slots[x].place, Location::Param(p) if same(p));
        let steps = self.schedule.steps.iter().zip(&self.kernels);
        steps.map(|(step, k)| k.kept(&step.inputs.iter().map(is_same).collect::<Vec<bool>>())).collect()
    }

    /// Precomputes that, each to its address in `kept`; steps with a null address are skipped.
    ///
    /// # Safety
    /// `params` has the addresses of the parameters that are the same, as far as the last of them; each address in
    /// `kept` has room for the bytes that [`Executor::kept`] says.
    pub unsafe fn keep(&self, cx: &KernelContext<'_>, params: &[*const u8], kept: &[*mut u8]) {
        let address = |&x: &usize| match self.schedule.slots[x].place {
            Location::Param(p) => params.get(p).copied().unwrap_or(std::ptr::null()),
            _ => std::ptr::null(),
        };
        let made = kept.iter().enumerate().filter(|(_, to)| !to.is_null());
        for (i, &to) in made {
            let inputs: SmallVec<[*const u8; 8]> =
                self.schedule.steps[i].inputs.iter().map(address).collect();
            // SAFETY: by the caller's promise; other operands have null addresses, which `keep` does not read.
            unsafe { self.kernels[i].keep(cx, &inputs, to) };
        }
    }

    /// Runs all steps.
    ///
    /// # Safety
    /// `params` point to arrays of the parameters' types. `results` has an address for each result that owns its memory
    /// (see [`Location::Result`]); it may alias a parameter only where the plan's `reuse` says so. `memory` points to
    /// [`Executor::memory_bytes`] bytes that nothing else uses.
    pub unsafe fn run(
        &self,
        cx: &KernelContext<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, params, results, memory, &[]) }
    }

    /// Runs all steps, with what [`Executor::keep`] precomputed unless `kept` is empty.
    ///
    /// # Safety
    /// As for [`Executor::run`]; parameters that something was precomputed from have not changed since.
    unsafe fn run_kept(
        &self,
        cx: &KernelContext<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
        kept: &[*mut u8],
    ) -> Result<()> {
        let s = &self.schedule;
        let scratch = memory.wrapping_add(s.arena_bytes.next_multiple_of(ALIGN));
        let mut views: SmallVec<[*mut u8; 8]> = smallvec![std::ptr::null_mut(); s.views.len()];
        let address = |slot: usize, views: &[*mut u8]| match s.slots[slot].place {
            Location::Param(p) => params[p].cast_mut(),
            Location::Constant(c) => s.constants[c].bytes().as_ptr().cast_mut(),
            Location::Arena(at) => memory.wrapping_add(at),
            Location::Result(k) => results[k],
            Location::View(v) => views[v],
        };
        let watched = trace_spans::wanted();
        for (i, (step, kernel)) in s.steps.iter().zip(&self.kernels).enumerate() {
            let inputs: SmallVec<[*const u8; 8]> =
                step.inputs.iter().map(|&x| address(x, &views).cast_const()).collect();
            if let Some(v) = self.makes_view[i] {
                // SAFETY: steps before this one have written the indices.
                let before = unsafe { kernel.part_at(&inputs) };
                views[v] = inputs[0].cast_mut().wrapping_add(before);
                continue;
            }
            let outputs: SmallVec<[*mut u8; 4]> = step.outputs.iter().map(|&x| address(x, &views)).collect();
            let start = watched.then(|| self.profile.begin(s, i));
            let io = Io { inputs: &inputs, outputs: &outputs, scratch };
            // SAFETY: the plan gives every slot memory of its type's size; slots with overlapping live ranges do not
            // overlap in memory, except for the aliasing that `Kernel::run` allows.
            let ran = unsafe {
                match kept.get(i) {
                    Some(kept) if !kept.is_null() => kernel.run_kept(cx, &io, *kept),
                    _ => kernel.run(cx, &io),
                }
            };
            if let Some(start) = start {
                self.profile.end(s, i, start);
            }
            ran.at(|| place_of(step))?;
        }
        Ok(())
    }

    /// As [`Executor::run`], but fills every address in `results`: also those of results without memory of their own
    /// (parameters and constants that are returned unchanged, and repeated results), by copying.
    ///
    /// # Safety
    /// As for [`Executor::run`], with an address for every result; `kept` is what [`Executor::keep`] made of the same
    /// parameters, or empty.
    pub unsafe fn run_raw(
        &self,
        cx: &KernelContext<'_>,
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
                Location::Param(p) => params[p],
                Location::Constant(c) => s.constants[c].bytes().as_ptr(),
                Location::Result(j) if j != k => results[j].cast_const(),
                _ => continue,
            };
            if !std::ptr::eq(from, results[k]) {
                // SAFETY: both are arrays of the result's type and, being different, do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, results[k], r.ty.bytes()) };
            }
        }
        Ok(())
    }
}

impl ProgramView for Executor {
    fn steps(&self) -> &[Step] {
        &self.schedule.steps
    }

    fn kernels(&self) -> &[Box<dyn Kernel>] {
        &self.kernels
    }

    fn choices(&self) -> &[KernelChoice] {
        &self.choices
    }

    fn times(&self, step: usize) -> Option<KernelTimes> {
        self.profile.times(step)
    }
}

/// Names a step in errors.
fn place_of(step: &Step) -> String {
    match &*step.scope {
        "" => step.kernel.name(),
        scope => format!("{} of layer {scope}", step.kernel.name()),
    }
}
