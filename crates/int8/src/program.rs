//! Compiled int8 graph: chooses a kernel per operator, then runs batches of samples on all threads.

use crate::kernels::{OpKernel, OpKernelContext, choose};
use crate::op_context::OpContext;
use crate::plan::{MemoryPlan, Segment, StepTensors, TensorSlot};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_base::{DType, Literal, Result, err};
use systole_cpu::int8::Int8Isa;
use systole_cpu::{Level, ThreadPool};
use systole_tflite::{TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator};

/// Settings of int8 compilation: threads and instruction set.
#[derive(Clone)]
pub struct Settings {
    /// Thread pool.
    pub team: Arc<ThreadPool>,
    /// Instruction set of int8 kernels.
    pub unit: Int8Isa,
}

impl Default for Settings {
    /// One thread, and the fastest instruction set of this machine.
    fn default() -> Settings {
        Settings { team: Arc::new(ThreadPool::new(1)), unit: Int8Isa::of(Level::best()) }
    }
}

impl Settings {
    /// Reads the number of threads and the instruction-set level from the environment.
    ///
    /// # Errors
    /// If this machine does not support the level.
    pub fn from_knobs() -> Result<Settings> {
        Ok(Settings { team: Arc::new(ThreadPool::from_knob()), unit: Int8Isa::of(Level::from_knob()?) })
    }
}

/// Kernels of an operator, one per output.
type OpKernels = Vec<Box<dyn OpKernel>>;

/// How an operator is executed.
enum OpExecution {
    /// Not executed: the result is the operand reshaped, or padded for a convolution that handles the padding itself.
    Alias,
    /// One engine kernel per output.
    Forms(OpKernels),
    /// The interpreter's kernel.
    Interpreter,
}

struct ProgramStep {
    operator: usize,
    way: OpExecution,
}

/// Nanoseconds per operator.
type OpTimes = Vec<AtomicU64>;

/// Outputs of some samples.
type SampleOutputs = Result<Vec<Vec<Literal>>>;

/// A compiled int8 graph; may run on any number of threads at once.
pub struct Int8Program {
    model: TfliteModel,
    settings: Settings,
    ways: Vec<(&'static str, bool)>,
    steps: Vec<ProgramStep>,
    plan: MemoryPlan,
    /// Whether the interpreter runs the whole graph, sample by sample.
    is_plain: bool,
    /// Memory that no run uses at the moment.
    free: Mutex<Vec<Vec<AlignedSlot>>>,
}

impl Int8Program {
    /// Compiles an int8 `.tflite` graph.
    ///
    /// # Errors
    /// If the graph is invalid ([`TfliteModel::check`]).
    pub fn new(model: TfliteModel, settings: &Settings) -> Result<Int8Program> {
        model.check()?;
        let mut root: Vec<usize> = (0..model.tensors.len()).collect();
        let (mut steps, mut ways) = (Vec::new(), Vec::new());
        // Convolutions that read the unpadded image of a preceding PAD operator.
        let mut bordered: HashMap<usize, OpKernels> = HashMap::new();
        for (n, operator) in model.operators.iter().enumerate() {
            let site = OpContext { model: &model, operator, unit: settings.unit, inside: None };
            let way = if let Some(forms) = bordered.remove(&n) {
                OpExecution::Forms(forms)
            } else if let Some((x, y)) = alias(&site) {
                root[y] = root[x];
                OpExecution::Alias
            } else if let Some(([x, y], reader, forms)) = border(&site) {
                root[y] = root[x];
                bordered.insert(reader, forms);
                OpExecution::Alias
            } else {
                choose(&site).map_or(OpExecution::Interpreter, OpExecution::Forms)
            };
            ways.push(match &way {
                OpExecution::Alias => ("alias", true),
                OpExecution::Forms(forms) => (forms.first().map_or("nothing", |f| f.name()), true),
                OpExecution::Interpreter => ("interpreter", false),
            });
            if !matches!(way, OpExecution::Alias) {
                steps.push(ProgramStep { operator: n, way });
            }
        }
        let uses: Vec<StepTensors> = steps.iter().map(|s| uses(&model, s, &root)).collect();
        let plan = MemoryPlan::new(&model, &uses, &root);
        // Outputs that an operator lists but does not compute are reported when they are read.
        let several = |s: &ProgramStep| match &s.way {
            OpExecution::Interpreter => model.operators.get(s.operator).is_some_and(|o| o.outputs.len() != 1),
            _ => false,
        };
        // Variables and open shapes exist within a whole run.
        let is_plain = steps.iter().any(several) || !model.subgraphs.is_empty();
        let free = Mutex::new(Vec::new());
        Ok(Int8Program { settings: settings.clone(), ways, steps, plan, is_plain, free, model })
    }

    /// Returns the `.tflite` graph that was compiled.
    pub fn model(&self) -> &TfliteModel {
        &self.model
    }

    /// Returns the kernel name of each operator; `interpreter` if it has no kernel.
    pub fn forms(&self) -> impl Iterator<Item = &'static str> {
        self.ways.iter().map(|(name, _)| *name)
    }

    /// Returns the number of operators that run in the interpreter.
    pub fn interpreted(&self) -> usize {
        self.ways.iter().filter(|(_, fast)| !fast).count()
    }

    /// Returns the bytes of intermediate results for one sample.
    pub fn arena_bytes(&self) -> usize {
        self.plan.slots.iter().sum()
    }

    /// Runs one sample and returns its outputs, as `Interpreter::run` does.
    ///
    /// # Errors
    /// If an input has the wrong shape or type, or an operator cannot be computed.
    pub fn run(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let mut all = self.run_all(&[inputs])?;
        all.pop().ok_or_else(|| err!(Bug, "a run of one sample returned no outputs"))
    }

    /// Runs many samples, each with its inputs, and returns their outputs.
    ///
    /// # Errors
    /// See [`Int8Program::run`].
    pub fn run_all(&self, samples: &[&[Literal]]) -> Result<Vec<Vec<Literal>>> {
        self.run_with(samples, None)
    }

    /// Like [`Int8Program::run_all`], but also returns the time of each operator, summed over threads that ran samples
    /// in parallel.
    ///
    /// # Errors
    /// See [`Int8Program::run`].
    pub fn run_timed(&self, samples: &[&[Literal]]) -> Result<(Vec<Vec<Literal>>, Vec<Duration>)> {
        let times: OpTimes = self.ways.iter().map(|_| AtomicU64::new(0)).collect();
        let made = self.run_with(samples, Some(&times))?;
        Ok((made, times.into_iter().map(|ns| Duration::from_nanos(ns.into_inner())).collect()))
    }

    fn run_with(&self, samples: &[&[Literal]], times: Option<&OpTimes>) -> Result<Vec<Vec<Literal>>> {
        samples.iter().try_for_each(|inputs| self.check(inputs))?;
        let interpreter = TfliteInterpreter::new(&self.model)?;
        let team = &self.settings.team;
        // Threads take batches of samples. Within a batch, or with fewer batches than threads, they share each step.
        let each = samples.len().div_ceil(team.threads()).clamp(1, self.plan.samples);
        let parts: Vec<&[&[Literal]]> = samples.chunks(each).collect();
        let made: Vec<Mutex<Option<SampleOutputs>>> = parts.iter().map(|_| Mutex::new(None)).collect();
        let one = |n: usize| {
            let found = self.part(parts[n], &interpreter, times);
            *made[n].lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        };
        if parts.len() < team.threads() {
            (0..parts.len()).for_each(one);
        } else {
            team.run(parts.len(), 1e9, &one);
        }
        let lost = || err!(Bug, "a batch of samples was not run");
        let mut all = Vec::with_capacity(samples.len());
        for part in made {
            let part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.ok_or_else(lost)??);
        }
        Ok(all)
    }

    /// Checks inputs, with the interpreter's errors.
    fn check(&self, inputs: &[Literal]) -> Result<()> {
        if inputs.len() != self.model.inputs.len() {
            return Err(err!(Data, "got {} inputs, the model has {}", inputs.len(), self.model.inputs.len()));
        }
        for (&i, given) in self.model.inputs.iter().zip(inputs) {
            let t = self.model.tensor(i)?;
            if given.ty() != &t.ty {
                return Err(err!(Data, "input {} is {}, expected {}", t.name, given.ty(), t.ty)
                    .hint("run `systole summary FILE.tflite` to list the model's inputs"));
            }
        }
        Ok(())
    }

    /// Runs some samples through all segments.
    fn part(
        &self,
        samples: &[&[Literal]],
        interpreter: &TfliteInterpreter,
        times: Option<&OpTimes>,
    ) -> SampleOutputs {
        if self.is_plain {
            return samples.iter().map(|inputs| interpreter.run(inputs)).collect();
        }
        let memory = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut run = SegmentRun {
            program: self,
            interpreter,
            times,
            slots: memory.unwrap_or_else(|| self.plan.slots.iter().map(|_| AlignedSlot::default()).collect()),
        };
        let made = run.samples(samples);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(run.slots);
        made
    }
}

/// Returns operand and result of an operator that only changes the shape.
fn alias(site: &OpContext) -> Option<(usize, usize)> {
    if !matches!(site.operator.op, TfliteOp::Reshape | TfliteOp::Squeeze | TfliteOp::ExpandDims) {
        return None;
    }
    let (x, y) = (site.input(0)?, site.output()?);
    let holds = x.data.is_none() && x.ty.dtype == y.ty.dtype && x.ty.elements() == y.ty.elements();
    holds.then_some((site.operand(0)?, *site.operator.outputs.first()?))
}

/// Matches a PAD whose result only one convolution reads. Returns the operand and result of the PAD, and the index and
/// kernels of the convolution, which then reads the unpadded image.
fn border(site: &OpContext) -> Option<([usize; 2], usize, OpKernels)> {
    let (x, inside) = site.padded()?;
    let y = *site.operator.outputs.first()?;
    let reads = |o: &TfliteOperator| o.inputs.iter().filter(|x| **x == Some(y)).count();
    let mut readers = site.model.operators.iter().enumerate().filter(|(_, o)| reads(o) > 0);
    let (reader, operator) = readers.next()?;
    let is_alone = readers.next().is_none() && reads(operator) == 1 && !site.model.outputs.contains(&y);
    let is_window =
        matches!(operator.op, TfliteOp::Conv2D | TfliteOp::DepthwiseConv2D) && operator.inputs[0] == Some(y);
    if !is_alone || !is_window {
        return None;
    }
    Some(([x, y], reader, choose(&OpContext { operator, inside: Some(inside), ..*site })?))
}

/// Returns the tensors that a step reads (without constants) and writes.
fn uses(model: &TfliteModel, step: &ProgramStep, root: &[usize]) -> StepTensors {
    let Some(o) = model.operators.get(step.operator) else {
        return StepTensors { reads: Vec::new(), makes: Vec::new() };
    };
    let is_made = |t: &usize| model.tensors.get(*t).is_some_and(|t| t.data.is_none());
    let reads = o.inputs.iter().flatten().copied().filter(is_made).map(|t| root[t]).collect();
    StepTensors { reads, makes: o.outputs.clone() }
}

/// Bytes of a cache line; slots are aligned to it.
const LINE: usize = 64;

/// Memory aligned to a cache line.
#[derive(Default)]
struct AlignedSlot {
    memory: Vec<u8>,
    from: usize,
}

impl AlignedSlot {
    /// Grows to at least `bytes` bytes.
    fn reserve(&mut self, bytes: usize) {
        if self.memory.len() < bytes + LINE {
            self.memory = vec![0; bytes + LINE];
            self.from = self.memory.as_ptr().align_offset(LINE).min(LINE);
        }
    }

    fn bytes(&self) -> &[u8] {
        self.memory.get(self.from..).unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.from..).unwrap_or_default()
    }
}

/// One run of a batch of samples.
struct SegmentRun<'a> {
    program: &'a Int8Program,
    interpreter: &'a TfliteInterpreter<'a>,
    times: Option<&'a OpTimes>,
    slots: Vec<AlignedSlot>,
}

/// Samples that a step processes.
#[derive(Clone, Copy)]
struct SampleRange {
    from: usize,
    samples: usize,
}

impl TensorSlot {
    /// Returns the byte range of the samples in the slot.
    fn place(self, part: SampleRange) -> std::ops::Range<usize> {
        let from = if self.is_whole { part.from * self.bytes } else { 0 };
        from..from + part.samples * self.bytes
    }
}

impl SegmentRun<'_> {
    fn samples(&mut self, samples: &[&[Literal]]) -> SampleOutputs {
        let (model, plan) = (&self.program.model, &self.program.plan);
        for (slot, bytes) in self.slots.iter_mut().zip(&plan.slots) {
            slot.reserve(bytes * samples.len());
        }
        for (n, &t) in model.inputs.iter().enumerate() {
            let Some(home) = plan.homes[t] else { continue };
            for (s, inputs) in samples.iter().enumerate() {
                let place = home.place(SampleRange { from: s, samples: 1 });
                self.slots[home.slot].bytes_mut()[place].copy_from_slice(inputs[n].bytes());
            }
        }
        for segment in &plan.segments {
            self.segment(segment, samples.len())?;
        }
        let output = |s: usize, t: usize| {
            let tensor = model.tensor(t)?;
            match (plan.homes[t], &tensor.data) {
                (Some(home), _) => {
                    let place = home.place(SampleRange { from: s, samples: 1 });
                    Literal::from_bytes(tensor.ty.clone(), &self.slots[home.slot].bytes()[place])
                }
                (None, Some(data)) => Ok(data.clone()),
                (None, None) => Err(err!(Bug, "no step of the program computes output tensor {t}")),
            }
        };
        (0..samples.len()).map(|s| model.outputs.iter().map(|&t| output(s, t)).collect()).collect()
    }

    fn segment(&mut self, segment: &Segment, samples: usize) -> Result<()> {
        for from in (0..samples).step_by(segment.samples) {
            let part = SampleRange { from, samples: segment.samples.min(samples - from) };
            for step in &self.program.steps[segment.steps.clone()] {
                let began = self.times.map(|_| Instant::now());
                match &step.way {
                    OpExecution::Alias => {}
                    OpExecution::Forms(forms) => self.forms(step.operator, forms, part),
                    OpExecution::Interpreter => self.interpreted(step.operator, part)?,
                }
                if let Some((began, time)) = began.zip(self.times.and_then(|t| t.get(step.operator))) {
                    time.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes of an operand: a constant once, other tensors for each sample.
    fn operand(&self, t: usize, part: SampleRange) -> &[u8] {
        match (self.program.plan.homes[t], &self.program.model.tensors[t].data) {
            (Some(home), _) => self.slots[home.slot].bytes().get(home.place(part)).unwrap_or_default(),
            (None, Some(data)) => data.bytes(),
            (None, None) => &[],
        }
    }

    fn forms(&mut self, operator: usize, forms: &[Box<dyn OpKernel>], part: SampleRange) {
        let program = self.program;
        let o = &program.model.operators[operator];
        for (form, &t) in forms.iter().zip(&o.outputs) {
            let Some(home) = program.plan.homes[t] else { continue };
            let mut slot = std::mem::take(&mut self.slots[home.slot]);
            let inputs = o.inputs.iter().map(|t| t.map_or(&[][..], |t| self.operand(t, part))).collect();
            let cx = OpKernelContext { team: &program.settings.team, samples: part.samples, inputs };
            form.run(&cx, &mut slot.bytes_mut()[home.place(part)]);
            self.slots[home.slot] = slot;
        }
    }

    fn interpreted(&mut self, operator: usize, part: SampleRange) -> Result<()> {
        let program = self.program;
        let (model, o) = (&program.model, &program.model.operators[operator]);
        let mut values: Vec<Option<Literal>> = vec![None; model.tensors.len()];
        for s in 0..part.samples {
            for &t in o.inputs.iter().flatten() {
                let tensor = &model.tensors[t];
                values[t] = match (&tensor.data, program.plan.homes[t]) {
                    (Some(data), _) => Some(data.clone()),
                    (None, Some(home)) => {
                        let from = home.place(part).start + s * home.bytes;
                        let bytes = &self.slots[home.slot].bytes()[from..from + home.bytes];
                        Some(Literal::from_bytes(tensor.ty.clone(), bytes)?)
                    }
                    (None, None) => None,
                };
            }
            let made = self.interpreter.run_operator(operator, &values)?;
            for (&t, y) in o.outputs.iter().zip(&made) {
                let Some(home) = program.plan.homes[t] else { continue };
                let from = home.place(part).start + s * home.bytes;
                self.slots[home.slot].bytes_mut()[from..from + home.bytes].copy_from_slice(y.bytes());
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Int8Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.model.tensors.iter().filter(|t| t.ty.dtype == DType::I8).count();
        write!(
            f,
            "{} operators, {} of them interpreted, {bytes} int8 tensors",
            self.ways.len(),
            self.interpreted()
        )
    }
}
