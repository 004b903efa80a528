//! CPU implementation of [`Backend`]: compiles graphs to programs of kernels and runs them on host memory.
//!
//! Each run takes its own arena for intermediate values, so that runs of one executable may overlap. Donated arguments
//! become results if the buffer plan allows.

use crate::kernel::KernelContext;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::{ThreadPool, flush_denormals, restore_denormals};
use crate::run::arena_pool::{ArenaPool, ArenaUser};
use crate::run::buffer::{CpuData, copied};
use crate::run::executor::Executor;
use crate::run::explain::StepKernel;
use crate::run::panel_layout::PanelLayout;
use crate::run::{ALL_FAMILIES, explain, memory_limit, panel_layout, profile_tables};
use crate::select;
use crate::select::{KernelRegistry, Preference};
use crate::simd::level::{CompileTarget, Level};
use std::sync::Arc;
use std::time::Instant;
use systole_compile::{
    ConstantSubgraph, Location, PassStat, PipelineOptions, RoundingOptions, RowBlocksMode, footprint,
    hold_float16_in_float32, optimize_with, remat, schedule,
};
use systole_ir::{DType, Graph, Literal, Result, ResultExt, TensorType, cost, ensure, interp, knobs};
use systole_runtime::{
    Backend, BackendProvider, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ExecutableArg,
    ExecutableReport, events,
};

/// Fractions of the arena that rematerialization tries to save, in order, when a program exceeds the memory limit.
const REMAT_SHARES: [f64; 4] = [0.2, 0.4, 0.7, 1.0];

/// Backend that runs on this machine's CPU.
pub struct CpuBackend {
    team: Arc<ThreadPool>,
    target: CompileTarget,
    blocks: RowBlocksMode,
    panels: bool,
    /// Candidate that is tried before or after the others of its family.
    preference: Option<Preference>,
    arenas: ArenaPool,
}

/// Cache size in bytes that row blocks are chosen for. It is a constant, because blocks determine the order of
/// additions, and results must not depend on the machine's cache.
const CACHE: usize = 1 << 20;

/// Registers this backend as `cpu`; its rank places it before the interpreter.
pub fn provider() -> BackendProvider {
    BackendProvider { name: "cpu", rank: 10, open: || Ok(Arc::new(CpuBackend::new()?)) }
}

/// Returns `family/candidate` of every kernel, and the instruction-set levels at which each is tried.
pub fn kernel_names() -> Vec<(String, &'static [Level])> {
    select::paths(ALL_FAMILIES)
}

/// Returns the tables of all kernels as Markdown: `docs/internals/kernels.md`.
pub fn kernel_tables() -> String {
    select::tables(ALL_FAMILIES)
}

impl CpuBackend {
    /// Creates a CPU backend with the threads and instruction-set level selected by environment variables.
    pub fn new() -> Result<CpuBackend> {
        CpuBackend::with(ThreadPool::from_knob(), Level::from_knob()?)
    }

    /// Creates a CPU backend with a thread pool and level; fails if this machine does not support the level.
    pub fn with(team: ThreadPool, level: Level) -> Result<CpuBackend> {
        ensure!(level.is_available(), level.lacking());
        #[cfg(feature = "linalg")]
        crate::simd::linalg_kernels::install(level);
        let blocks = match knobs::BLOCKS.get().as_str() {
            "on" => RowBlocksMode::Cache(CACHE),
            "off" => RowBlocksMode::Off,
            n => RowBlocksMode::Rows(n.parse().map_err(|_| knobs::BLOCKS.no_value(n))?),
        };
        // The JIT reads this variable itself; it is read here to report invalid values.
        knobs::JIT.is_on()?;
        let tensor_float_32 = knobs::TENSOR_FLOAT_32.is_on()?;
        let winograd = knobs::WINOGRAD.is_on()?;
        let excess_precision = knobs::EXCESS_PRECISION.is_on()?;
        let preference = match knobs::KERNEL.get().trim() {
            "" => None,
            name => Some(select::preference(ALL_FAMILIES, name).map_err(|e| e.at(knobs::KERNEL.name))?),
        };
        Ok(CpuBackend {
            team: Arc::new(team),
            target: CompileTarget { level, tensor_float_32, winograd, excess_precision, flush: false },
            blocks,
            panels: true,
            preference,
            arenas: ArenaPool::default(),
        })
    }

    /// Sets whether f32 matrix products may use reduced precision if that is faster (off by default; TensorFlow's
    /// `enable_tensor_float_32_execution`).
    ///
    /// At [`Level::Amx`] each factor is then the sum of two bf16, which keeps 16 of its 24 significant bits, and three
    /// of the four partial products are accumulated in f32. Errors are about 1e-5 of the sum of absolute products
    /// instead of 1e-7. Denormal f32 factors count as zero there, and those that bf16 rounds to infinity (above
    /// 3.39e38) as infinite. All other levels, and all convolutions, keep full f32 precision.
    ///
    /// ```
    /// use systole_cpu::{CpuBackend, Level, ThreadPool};
    /// use systole_runtime::Backend;
    /// let backend = CpuBackend::with(ThreadPool::new(1), Level::Portable)?.with_tensor_float_32(true);
    /// assert_eq!(backend.name(), "cpu");
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn with_tensor_float_32(mut self, on: bool) -> CpuBackend {
        self.target.tensor_float_32 = on;
        self
    }

    /// Sets the row blocking mode (mini-batch blocking). It changes the order of additions, and therefore rounding.
    pub fn with_blocks(self, blocks: RowBlocksMode) -> CpuBackend {
        CpuBackend { blocks, ..self }
    }

    /// Sets whether programs may keep weights and optimizer state in panel layout (on by default). Results are the
    /// same.
    pub fn with_panels(self, panels: bool) -> CpuBackend {
        CpuBackend { panels, ..self }
    }

    /// Sets a kernel, `family/candidate`, that is tried before the others of its family, or after them with a `-`
    /// before its name. For tests and measurements (`SYSTOLE_KERNEL`). Results stay within tolerances, but may differ
    /// in bits.
    ///
    /// # Errors
    /// If there is no such kernel; the error lists all names ([`kernel_names`]).
    ///
    /// ```
    /// use systole_cpu::{CpuBackend, Level, ThreadPool};
    /// let backend = CpuBackend::with(ThreadPool::new(1), Level::Portable)?.with_kernel("rng/reference")?;
    /// assert!(backend.with_kernel("rng/dice").is_err());
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn with_kernel(self, name: &str) -> Result<CpuBackend> {
        Ok(CpuBackend { preference: Some(select::preference(ALL_FAMILIES, name)?), ..self })
    }

    /// Returns the kernel of each step that a graph compiles to, and why candidates of higher priority rejected it.
    /// Steps of loops, branches and row blocks follow the step that runs them.
    ///
    /// # Errors
    /// As for [`Backend::compile`].
    pub fn explain(&self, graph: &Graph, options: &CompileOptions) -> Result<Vec<StepKernel>> {
        graph.verify()?;
        let (optimized, _) = self.optimized(graph, options)?;
        let optimized = self.with_constants(optimized, options)?;
        Ok(explain::steps(&self.bind(&optimized, options, true)?))
    }

    fn optimized(&self, graph: &Graph, options: &CompileOptions) -> Result<(Graph, Vec<PassStat>)> {
        let has_float16 = graph.nodes.iter().any(|node| node.outs.iter().any(|ty| ty.dtype == DType::F16));
        match options.wide_float16 && has_float16 {
            true => optimize_with(&hold_float16_in_float32(graph), self.excess_precision(options)),
            false => optimize_with(graph, self.excess_precision(options)),
        }
    }

    fn excess_precision(&self, options: &CompileOptions) -> bool {
        self.target.excess_precision && options.excess_precision
    }

    /// Computes what depends on constants alone, such as transposed weights, once instead of in every run.
    fn with_constants(&self, graph: Graph, options: &CompileOptions) -> Result<Graph> {
        let Some(part) = ConstantSubgraph::of(&graph) else { return Ok(graph) };
        // Nothing is donated, and the caller's arguments are not among these parameters.
        // As in XLA's constant folding, subnormal constants stay as they are, and each op rounds.
        let exact = CompileOptions { flush_denormals: false, contraction: false, ..options.clone() };
        let options = CompileOptions { donated: Vec::new(), ..exact };
        let executor = self.bind_in_order(&part.graph, &options, false)?;
        let computed = self.run_constants(&executor)?;
        Ok(part.replace(&graph, &computed))
    }

    /// Runs a program without arguments.
    fn run_constants(&self, executor: &Executor) -> Result<Vec<Literal>> {
        let types = executor.schedule().results.iter().map(|r| r.ty.clone());
        let mut values: Vec<Literal> = types.map(Literal::zeros).collect();
        let memory = AlignedMemory::new(executor.memory_bytes()?)?;
        let results: Vec<*mut u8> = values.iter_mut().map(|v| v.bytes_mut().as_mut_ptr()).collect();
        let cx = KernelContext { team: &self.team, flush: false };
        // SAFETY: there are no parameters; each result has memory of its type, and `memory` is new.
        unsafe { executor.run_raw(&cx, &[], &results, memory.ptr(), &[])? };
        Ok(values)
    }

    /// Selects the kernels of a program; `explains`: also keeps why candidates rejected a step.
    fn bind(&self, graph: &Graph, options: &CompileOptions, explains: bool) -> Result<Executor> {
        let mut executor = self.bind_in_order(graph, options, explains)?;
        if self.panels {
            executor.arrange();
        }
        Ok(executor)
    }

    /// Selects the kernels of a program whose arrays are all row-major.
    fn bind_in_order(&self, graph: &Graph, options: &CompileOptions, explains: bool) -> Result<Executor> {
        let winograd = self.target.winograd && options.winograd;
        let excess_precision = self.excess_precision(options);
        let target =
            CompileTarget { winograd, excess_precision, flush: options.flush_denormals, ..self.target };
        let program = schedule(graph, &self.program_options(options))?;
        Executor::new(Arc::new(program), target, self.registry(explains))
    }

    /// Returns the compiler options of this backend, for listings of compiler stages.
    pub fn program_options(&self, options: &CompileOptions) -> PipelineOptions {
        let donated = options.donated.clone();
        let rounding = RoundingOptions {
            excess_precision: self.excess_precision(options),
            contraction: options.contraction,
        };
        PipelineOptions { donated, state_at: None, blocks: self.blocks, rounding }
    }

    fn registry(&self, explains: bool) -> KernelRegistry {
        KernelRegistry { families: ALL_FAMILIES, preference: self.preference, explains }
    }

    /// Compiles the program with the least rematerialization of [`REMAT_SHARES`] that fits the memory limit.
    fn fitting(&self, graph: &Graph, options: &CompileOptions, names: &[String]) -> Result<Executor> {
        let whole = self.bind(graph, options, false)?;
        let Err(refused) = memory_limit::check(&whole, names) else { return Ok(whole) };
        let arena = whole.schedule().arena_bytes;
        drop(whole);
        for save in REMAT_SHARES.map(|share| (arena as f64 * share) as usize) {
            let Some(less) = remat(graph, save) else { break };
            let executor = self.bind(&less, options, false)?;
            if memory_limit::check(&executor, names).is_ok() {
                events::emit(1, || {
                    format!(
                        "{}: intermediate values of {} MiB exceed the memory limit; recomputing in {} more steps reduces them to {} MiB",
                        options.label,
                        arena >> 20,
                        less.nodes.len() - graph.nodes.len(),
                        executor.schedule().arena_bytes >> 20,
                    )
                });
                return Ok(executor);
            }
        }
        Err(refused)
    }

    fn build(&self, graph: &Graph, options: &CompileOptions) -> Result<CpuExecutable> {
        let start = Instant::now();
        graph.verify()?;
        let (optimized, stats) = self.optimized(graph, options)?;
        events::emit(3, || {
            let each = stats.iter().map(|s| format!("{} {}→{}", s.name, s.before, s.after));
            format!("{}: {}", options.label, each.collect::<Vec<_>>().join(", "))
        });
        let optimized = self.with_constants(optimized, options)?;
        let executor = self.fitting(&optimized, options, &graph.param_names)?;
        events::emit(4, || listing(&executor));
        let arena_bytes = executor.memory_bytes()?;
        let held = footprint(executor.schedule());
        let report = ExecutableReport {
            compile_ms: start.elapsed().as_secs_f64() * 1e3,
            arena_bytes,
            peak_bytes: held.arguments.saturating_add(held.results).saturating_add(arena_bytes),
            kernels: executor.schedule().steps.len(),
            flops: cost::cost(graph).flops,
        };
        let params = graph.param_types();
        Ok(CpuExecutable {
            panels: (0..params.len()).map(|p| executor.panels_of_param(p)).collect(),
            params,
            param_names: graph.param_names.clone(),
            name: graph.name.clone(),
            executor,
            team: self.team.clone(),
            level: self.target.level,
            arenas: self.arenas.user(arena_bytes),
            flush: options.flush_denormals,
            label: options.label.clone(),
            report,
        })
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let threads = self.team.threads();
        let end = if threads == 1 { "" } else { "s" };
        let description = format!("{threads} thread{end}, {}", self.target.level.name());
        vec![DeviceInfo { id: DeviceId(0), description }]
    }

    fn shares_cores(&self) -> bool {
        true
    }

    /// Returns the computer's available memory, if the system reports it.
    fn memory_limit(&self) -> Option<u64> {
        crate::machine::memory::available().and_then(|bytes| bytes.try_into().ok())
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(self.build(graph, options).at(|| format!("compiling {} for cpu", options.label))?))
    }

    fn put(&self, value: &Literal, _: DeviceId) -> Result<Buffer> {
        copied(value.ty().clone(), value.bytes())
    }
}

/// Memory of a result (unless it is an alias), and the donated parameter that the memory comes from.
type ResultMemory = (Option<AlignedMemory>, Option<usize>);

/// A compiled graph. Runs may overlap: each takes an arena.
struct CpuExecutable {
    params: Vec<TensorType>,
    /// Required panel layout of each parameter; `None`: row-major.
    panels: Vec<Option<PanelLayout>>,
    param_names: Vec<String>,
    name: String,
    executor: Executor,
    team: Arc<ThreadPool>,
    level: Level,
    arenas: ArenaUser,
    flush: bool,
    label: String,
    report: ExecutableReport,
}

fn listing(executor: &Executor) -> String {
    format!("{}{}", executor.schedule(), executor.panels())
}

/// Restores the calling thread's floating-point mode when dropped, also on errors and panics.
struct FloatMode(Option<u32>);

impl Drop for FloatMode {
    fn drop(&mut self) {
        restore_denormals(self.0);
    }
}

impl CpuExecutable {
    fn check(&self, args: &[ExecutableArg<'_>]) -> Result<()> {
        let fits = args.len() == self.params.len()
            && args.iter().zip(&self.params).all(|(a, t)| a.buffer().ty() == t);
        if fits {
            return Ok(());
        }
        // The interpreter's check produces the error message; it needs only a graph's signature.
        let g = systole_ir::GraphBuilder::new(&self.name);
        for (t, name) in self.params.iter().zip(&self.param_names) {
            g.parameter(t.clone(), name);
        }
        let types: Vec<&TensorType> = args.iter().map(|a| a.buffer().ty()).collect();
        interp::check_args(&*g.finish(&[])?, &types)
    }

    /// Returns memory for each result that needs some: that of a donated argument, if the plan allows and there is no
    /// other reference to it; otherwise new memory.
    fn result_memory(&self, args: &mut [ExecutableArg<'_>]) -> Result<Vec<ResultMemory>> {
        let s = self.executor.schedule();
        let mut out = Vec::with_capacity(s.results.len());
        for (k, r) in s.results.iter().enumerate() {
            if s.slots[r.slot].place != Location::Result(k) {
                out.push((None, None));
                continue;
            }
            let bytes = s.slots[r.slot].bytes;
            let donated = r.reuse.and_then(|p| {
                let ExecutableArg::Donate(buffer) = &mut args[p] else { return None };
                let data = buffer.data_mut::<CpuData>()?;
                if data.memory.len() < bytes {
                    return None;
                }
                let empty = AlignedMemory::new(0).ok()?;
                Some((Some(std::mem::replace(&mut data.memory, empty)), Some(p)))
            });
            out.push(match donated {
                Some(taken) => taken,
                // Every byte of a result is written.
                None => (Some(AlignedMemory::unfilled(bytes)?), None),
            });
        }
        Ok(out)
    }

    /// Moves a donated host array whose memory a result may reuse to memory of the backend; initial weights are drawn
    /// here. Arrays are moved one by one: the first step of a training run would otherwise hold its state twice.
    fn take_in(&self, p: usize, buffer: &mut Buffer) -> Result<()> {
        if !self.executor.schedule().results.iter().any(|r| r.reuse == Some(p)) {
            return Ok(());
        }
        if let Some(host) = buffer.host() {
            *buffer = copied(host.ty().clone(), host.bytes())?;
        }
        Ok(())
    }

    /// Converts a donated argument, in its buffer, to the layout required for parameter `p`, if there is no other
    /// reference to it.
    fn lay_out(&self, cx: &KernelContext<'_>, p: usize, buffer: &mut Buffer) -> Result<()> {
        let size = buffer.ty().dtype.size();
        let Some(data) = buffer.data_mut::<CpuData>().filter(|d| d.panels != self.panels[p]) else {
            return Ok(());
        };
        // SAFETY: the argument has the parameter's type (checked).
        let memory = unsafe {
            panel_layout::turned(cx, [data.panels, self.panels[p]], size, data.memory.ptr().cast_const())?
        };
        *data = CpuData::new(memory, self.panels[p]);
        Ok(())
    }

    /// Returns the results as buffers: new memory, or an alias of an argument, a constant or an earlier result.
    fn results(&self, args: &[ExecutableArg<'_>], memories: &mut [ResultMemory]) -> Vec<Buffer> {
        let s = self.executor.schedule();
        let mut buffers: Vec<Buffer> = Vec::with_capacity(s.results.len());
        for (k, r) in s.results.iter().enumerate() {
            buffers.push(match (memories[k].0.take(), s.slots[r.slot].place) {
                (Some(memory), _) => {
                    let panels = self.executor.panels_of(r.slot);
                    Buffer::new(r.ty.clone(), Arc::new(CpuData::new(memory, panels)))
                }
                (None, Location::Param(p)) => args[p].buffer().clone(),
                (None, Location::Constant(c)) => s.constants[c].clone().into(),
                (None, Location::Result(j)) => buffers[j].clone(),
                (None, Location::Arena(_) | Location::View(_)) => {
                    systole_ir::bug!("result {k} is in the arena")
                }
            });
        }
        buffers
    }
}

impl Executable for CpuExecutable {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, mut args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        self.check(&args)?;
        let cx = KernelContext { team: &self.team, flush: self.flush };
        for (p, arg) in args.iter_mut().enumerate() {
            if let ExecutableArg::Donate(buffer) = arg {
                self.take_in(p, buffer)?;
                self.lay_out(&cx, p, buffer)?;
            }
        }
        let mut memories = self.result_memory(&mut args)?;
        let mut copies: Vec<Literal> = Vec::new();
        let mut laid_out: Vec<AlignedMemory> = Vec::new();
        let mut params: Vec<*const u8> = Vec::with_capacity(args.len());
        for (arg, &wanted) in args.iter().zip(&self.panels) {
            let buffer = arg.buffer();
            let size = buffer.ty().dtype.size();
            let (lies, at) = if let Some(data) = buffer.data::<CpuData>() {
                match wanted {
                    None => (None, data.in_order(&self.team, size)?.ptr().cast_const()),
                    Some(_) => (data.panels, data.memory.ptr().cast_const()),
                }
            } else if let Some(host) = buffer.data::<Literal>() {
                (None, host.bytes().as_ptr())
            } else {
                copies.push(buffer.to_literal()?);
                (None, copies.last().map_or(std::ptr::null(), |c| c.bytes().as_ptr()))
            };
            params.push(if lies == wanted {
                at
            } else {
                // SAFETY: the argument has the parameter's type (checked).
                laid_out.push(unsafe { panel_layout::turned(&cx, [lies, wanted], size, at)? });
                laid_out.last().map_or(std::ptr::null(), |m| m.ptr().cast_const())
            });
        }
        for (memory, taken_from) in &memories {
            if let (Some(m), Some(p)) = (memory, taken_from) {
                params[*p] = m.ptr().cast_const();
            }
        }
        let results: Vec<*mut u8> = memories
            .iter()
            .map(|(m, _)| m.as_ref().map_or(std::ptr::null_mut(), AlignedMemory::ptr))
            .collect();
        let arena = self.arenas.take()?;
        {
            let _mode = FloatMode(flush_denormals(self.flush));
            // SAFETY: arguments have the parameters' types (checked) and live until the end; results have memory of
            // their sizes, and alias a parameter only as planned; no other run uses the arena.
            unsafe { self.executor.run(&cx, &params, &results, arena.ptr())? };
        }
        self.arenas.give(arena);
        Ok(self.results(&args, &mut memories))
    }

    fn report(&self) -> &ExecutableReport {
        &self.report
    }

    fn listing(&self) -> String {
        listing(&self.executor)
    }
}

impl Drop for CpuExecutable {
    fn drop(&mut self) {
        if !events::wanted(2) {
            return;
        }
        let table = match knobs::PROFILE.get().as_str() {
            "layers" => profile_tables::summary,
            _ => profile_tables::all_kernels,
        };
        if let Some(table) = table(&self.executor, self.level, self.team.threads()) {
            events::emit(2, || format!("kernels of {}:\n{table}", self.label));
        }
    }
}
