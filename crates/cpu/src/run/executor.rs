//! Executor: binds kernels to the steps of a schedule and runs them on raw memory.
//!
//! All addresses come from the compiler's buffer plan: an arena, parameters, constants, results, and views of other
//! arrays. The executor itself allocates nothing large and adds no synchronization: steps run in order, and each kernel
//! shares its own work among the threads.

use crate::kernel::{Io, Kernel, KernelChoice, KernelContext, KernelTimes, ProgramView};
use crate::machine::interrupt::check_interrupt;
use crate::machine::memory::AlignedMemory;
use crate::machine::trace_spans;
use crate::run::panel_layout;
use crate::run::panel_layout::PanelLayout;
use crate::run::profile::ProgramProfile;
use crate::select::{KernelRegistry, Problem, choose};
use crate::simd::level::CompileTarget;
use smallvec::{SmallVec, smallvec};
use std::sync::{Arc, OnceLock};
use systole_compile::{ALIGN, Location, ProgramSchedule, Step};
use systole_ir::{Result, ResultExt, err};

/// An executor of a compiled program: schedule with bound kernels, ready to run.
pub struct Executor {
    /// A nested program shares the schedule with the step around it.
    schedule: Arc<ProgramSchedule>,
    kernels: Vec<Box<dyn Kernel>>,
    choices: Vec<KernelChoice>,
    scratch: usize,
    /// Per step: the view whose address it computes instead of copying a slice, if any.
    makes_view: Vec<Option<usize>>,
    /// Per slot: its panel layout. Empty or `None`: row-major.
    panels: Vec<Option<PanelLayout>>,
    profile: ProgramProfile,
    /// Data that kernels precomputed from constants, made by the first run; `None` inside: there was no memory.
    packed: OnceLock<Option<PackedConstants>>,
}

/// Data that kernels precompute from constants, such as packed weights.
struct PackedConstants {
    memory: AlignedMemory,
    /// Per step: its data's offset.
    offsets: Vec<Option<usize>>,
}

impl Executor {
    /// Creates an executor: binds each step to a kernel.
    pub fn new(
        schedule: Arc<ProgramSchedule>,
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
        let (panels, packed) = (Vec::new(), OnceLock::new());
        Ok(Executor { schedule, kernels, choices, scratch, makes_view, panels, profile, packed })
    }

    /// Selects the kernels of a nested program of a step, for the same machine and registry.
    pub fn of(schedule: &Arc<ProgramSchedule>, around: &Problem<'_>) -> Result<Executor> {
        Executor::new(schedule.clone(), around.target, around.registry)
    }

    /// Assigns panel layout to state arrays that benefit from it: see [`panel_layout`](crate::run::panel_layout).
    pub fn arrange(&mut self) {
        self.panels = panel_layout::arrange(&self.schedule, &mut self.kernels);
        self.scratch = self.kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
    }

    /// Returns listing lines for the parameters in panel layout.
    pub fn panels(&self) -> String {
        let of_param = |p: usize| {
            let PanelLayout { rows, columns, width } = self.panels_of_param(p)?;
            Some(format!("  @param{p} [{rows}, {columns}] is stored in panels of {width} columns\n"))
        };
        (0..self.schedule.params.len()).filter_map(of_param).collect()
    }

    /// Returns the panel layout that parameter `p` must have; `None`: row-major.
    pub fn panels_of_param(&self, p: usize) -> Option<PanelLayout> {
        let slot = self.schedule.slots.iter().position(|x| x.place == Location::Param(p))?;
        self.panels_of(slot)
    }

    /// Returns the panel layout of a slot; `None`: row-major.
    pub fn panels_of(&self, slot: usize) -> Option<PanelLayout> {
        self.panels.get(slot).copied().flatten()
    }

    /// Returns the schedule of the executor's program.
    pub fn schedule(&self) -> &ProgramSchedule {
        &self.schedule
    }

    /// Returns the size of the working memory that [`Executor::run`] needs, in bytes.
    pub fn memory_bytes(&self) -> Result<usize> {
        let arena = self.schedule.arena_bytes.checked_next_multiple_of(ALIGN);
        arena
            .and_then(|a| a.checked_add(self.scratch))
            .ok_or_else(|| err!(Unsupported, "the program's working memory exceeds the address space"))
    }

    /// Returns, for each step, the bytes that its kernel can precompute (pack) from parameters that stay the `same` for
    /// many runs; 0 if it precomputes nothing.
    pub fn kept(&self, same: &dyn Fn(usize) -> bool) -> Vec<usize> {
        let is_same = |&x: &usize| matches!(self.schedule.slots[x].place, Location::Param(p) if same(p));
        let steps = self.schedule.steps.iter().zip(&self.kernels);
        steps.map(|(step, k)| k.kept(&step.inputs.iter().map(is_same).collect::<Vec<bool>>())).collect()
    }

    /// Returns the same for constants, which stay the same in all runs.
    fn packed_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        let is_constant = |&x: &usize| matches!(self.schedule.slots[x].place, Location::Constant(_));
        let steps = self.schedule.steps.iter().zip(&self.kernels);
        steps.map(move |(step, k)| match step.inputs.iter().any(is_constant) {
            true => k.kept(&step.inputs.iter().map(is_constant).collect::<Vec<bool>>()),
            false => 0,
        })
    }

    /// Returns the memory that precomputed constants take from the first run on.
    pub fn constant_bytes(&self) -> usize {
        self.packed_bytes().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
    }

    /// Precomputes data of constants for all steps. Returns `None` if there is no memory for it.
    fn pack_constants(&self, cx: &KernelContext<'_>) -> Option<PackedConstants> {
        let mut end = 0;
        let mut offset = |bytes: usize| {
            let at = (bytes > 0).then_some(end);
            end += bytes.next_multiple_of(ALIGN);
            at
        };
        let offsets: Vec<Option<usize>> = self.packed_bytes().map(&mut offset).collect();
        let memory = AlignedMemory::unfilled(end).ok()?;
        let address = |&x: &usize| match self.schedule.slots[x].place {
            Location::Constant(c) => self.schedule.constants[c].bytes().as_ptr(),
            _ => std::ptr::null(),
        };
        for (i, at) in offsets.iter().enumerate().filter_map(|(i, at)| Some((i, (*at)?))) {
            let inputs: SmallVec<[*const u8; 8]> =
                self.schedule.steps[i].inputs.iter().map(address).collect();
            // SAFETY: constants have their types' sizes, other operands null addresses, which `keep` does not read;
            // `memory` has room for each step's data.
            unsafe { self.kernels[i].keep(cx, &inputs, memory.ptr().add(at)) };
        }
        Some(PackedConstants { memory, offsets })
    }

    /// Precomputes (packs) data for each step into its address in `kept`; steps with a null address are skipped.
    ///
    /// # Safety
    /// `params` has the addresses of the unchanging parameters, up to the last of them. Each address in `kept` has room
    /// for the bytes that [`Executor::kept`] returns.
    pub unsafe fn keep(&self, cx: &KernelContext<'_>, params: &[*const u8], kept: &[*mut u8]) {
        let address = |&x: &usize| match self.schedule.slots[x].place {
            Location::Param(p) => params.get(p).copied().unwrap_or(std::ptr::null()),
            _ => std::ptr::null(),
        };
        let made = kept.iter().enumerate().filter(|(_, to)| !to.is_null());
        for (i, &to) in made {
            let inputs: SmallVec<[*const u8; 8]> =
                self.schedule.steps[i].inputs.iter().map(address).collect();
            // SAFETY: guaranteed by the caller; other operands have null addresses, which `keep` does not read.
            unsafe { self.kernels[i].keep(cx, &inputs, to) };
        }
    }

    /// Returns the view whose address a step computes instead of copying a slice, if any.
    pub fn makes_view(&self, step: usize) -> Option<usize> {
        self.makes_view[step]
    }

    /// Returns the kernel of a step.
    pub fn kernel(&self, step: usize) -> &dyn Kernel {
        &*self.kernels[step]
    }

    /// Returns the data that kernels precomputed from constants.
    fn packed(&self, cx: &KernelContext<'_>) -> Option<&PackedConstants> {
        match self.schedule.constants.is_empty() {
            true => None,
            false => self.packed.get_or_init(|| self.pack_constants(cx)).as_ref(),
        }
    }

    /// Runs the kernel of one step.
    ///
    /// # Safety
    /// See [`crate::kernel`], for the step.
    pub unsafe fn run_step(&self, cx: &KernelContext<'_>, step: usize, io: &Io<'_>) -> Result<()> {
        let packed = self.packed(cx).and_then(|packed| packed.of_step(step));
        let start = trace_spans::wanted().then(|| self.profile.begin(&self.schedule, step));
        // SAFETY: guaranteed by the caller; data was precomputed from constants.
        let ran = unsafe {
            match packed {
                Some(kept) => self.kernels[step].run_kept(cx, io, kept),
                None => self.kernels[step].run(cx, io),
            }
        };
        if let Some(start) = start {
            self.profile.end(&self.schedule, step, start);
        }
        ran.at(|| place_of(&self.schedule.steps[step]))
    }

    /// Runs all steps of the compiled program.
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
        // SAFETY: guaranteed by the caller.
        unsafe { self.run_kept(cx, params, results, memory, &[]) }
    }

    /// Runs all steps, using the data that [`Executor::keep`] precomputed unless `kept` is empty.
    ///
    /// # Safety
    /// As for [`Executor::run`]. Parameters used for precomputing have not changed since.
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
        let packed = self.packed(cx);
        for (i, (step, kernel)) in s.steps.iter().zip(&self.kernels).enumerate() {
            check_interrupt()?;
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
            let of_call = kept.get(i).map(|kept| kept.cast_const()).filter(|kept| !kept.is_null());
            let of_constants = || packed.and_then(|packed| packed.of_step(i));
            // SAFETY: the plan gives every slot memory of its type's size; slots with overlapping live ranges do not
            // overlap in memory, except for the aliasing that `Kernel::run` allows.
            let ran = unsafe {
                match of_call.or_else(of_constants) {
                    Some(kept) => kernel.run_kept(cx, &io, kept),
                    None => kernel.run(cx, &io),
                }
            };
            if let Some(start) = start {
                self.profile.end(s, i, start);
            }
            ran.at(|| place_of(step))?;
        }
        Ok(())
    }

    /// Like [`Executor::run`], but fills every address in `results`. Results without memory of their own (returned
    /// parameters and constants, repeated results) are copied.
    ///
    /// # Safety
    /// As for [`Executor::run`], with an address for every result. `kept` was precomputed by [`Executor::keep`] from
    /// the same parameters, or is empty.
    pub unsafe fn run_raw(
        &self,
        cx: &KernelContext<'_>,
        params: &[*const u8],
        results: &[*mut u8],
        memory: *mut u8,
        kept: &[*mut u8],
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
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

impl PackedConstants {
    fn of_step(&self, i: usize) -> Option<*const u8> {
        self.offsets[i].map(|at| self.memory.ptr().wrapping_add(at).cast_const())
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

/// Returns the name of a step for errors.
fn place_of(step: &Step) -> String {
    match &*step.scope {
        "" => step.kernel.name(),
        scope => format!("{} of layer {scope}", step.kernel.name()),
    }
}
