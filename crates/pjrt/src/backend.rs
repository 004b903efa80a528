//! Backend over the devices of a PJRT plugin: runs and trains on one device or on all devices of a mesh.

use crate::client::{Client, LoadedExecutable, PjrtBuffer, RunInput};
use crate::compile_options::of_gpus;
use crate::profile::ProgramProfiler;
use crate::program_text::{located_text, program_text, spread_text};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;
use systole_ir::{
    Graph, GraphBuilder, Literal, Mesh, Result, ResultExt, Shape, Sharding, Shardings, TensorType, bug, cost,
    interp,
};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceData, DeviceId, DeviceInfo, Executable, ExecutableArg,
    ExecutableReport, HostGroup, ShardedArray, sharded_array::split,
};

/// Backend over the devices of a PJRT client. Programs run on this process's first device; sharded programs run on the
/// first devices of the mesh, with each process running its part.
pub struct PjrtBackend {
    name: String,
    client: Client,
    loops: bool,
    /// Programs that gather an array to every host, by its type and sharding.
    gathering: Mutex<HashMap<(TensorType, Sharding), Arc<MeshProgram>>>,
    /// Backends of the same plugin with more devices, by their number.
    larger: Mutex<HashMap<usize, Arc<PjrtBackend>>>,
}

impl PjrtBackend {
    /// Creates a backend for a PJRT client, with the name that users select it by.
    pub fn new(name: impl Into<String>, client: Client) -> PjrtBackend {
        // XLA for GPUs is as fast with unrolled programs, which need half the memory traffic of those that stack
        // weights.
        let loops = !of_gpus(client.form());
        PjrtBackend {
            name: name.into(),
            client,
            loops,
            gathering: Mutex::default(),
            larger: Mutex::default(),
        }
    }

    fn gathering(&self, ty: &TensorType, pieces: &ShardedArray) -> Result<Arc<MeshProgram>> {
        let mut known = self.gathering.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ty.clone(), pieces.sharding.clone());
        if let Some(program) = known.get(&key).filter(|p| p.mesh == pieces.mesh) {
            return Ok(program.clone());
        }
        let g = GraphBuilder::new("gather");
        let x = g.parameter(ty.clone(), "x");
        let spread = Shardings {
            mesh: (*pieces.mesh).clone(),
            params: vec![pieces.sharding.clone()],
            results: vec![Sharding::replicated(ty.rank())],
        };
        let program = Arc::new(MeshProgram::compile(&self.client, &g.finish(&[x])?, &spread, &[], None)?);
        known.insert(key, program.clone());
        Ok(program)
    }
}

impl HostGroup for PjrtBackend {
    fn index(&self) -> usize {
        self.client.process().0
    }

    fn count(&self) -> usize {
        self.client.process().1
    }

    fn gather(&self, array: &Buffer) -> Result<Buffer> {
        match array.data::<ShardedArray>() {
            Some(pieces) if !pieces.are_whole() => {
                let program = self.gathering(array.ty(), pieces)?;
                Ok(program.run(vec![ExecutableArg::Borrow(array)])?.remove(0))
            }
            _ => Ok(array.clone()),
        }
    }

    fn share(&self, own: &Literal) -> Result<Buffer> {
        let all = self.client.devices().len();
        let row = Literal::from_bytes(one_more_dimension(own.ty(), 1), own.bytes())?;
        let ty = one_more_dimension(own.ty(), all);
        let put = |device| Ok(Buffer::new(row.ty().clone(), Arc::new(self.client.put(&row, device)?)));
        let local = self.client.local();
        let rows = ShardedArray {
            mesh: Arc::new(Mesh::new([("host", all)])?),
            sharding: Sharding::replicated(ty.rank()).split(0, 0),
            parts: local.clone().map(put).collect::<Result<_>>()?,
            first: local.start,
        };
        self.gather(&rows.buffer(ty)?)
    }
}

fn named(label: &str) -> &str {
    if label.is_empty() { "a program" } else { label }
}

/// Adds a leading dimension: `T[…] → T[n, …]`.
fn one_more_dimension(ty: &TensorType, n: usize) -> TensorType {
    ty.with_shape(std::iter::once(n).chain(ty.shape.iter().copied()).collect::<Shape>())
}

impl Backend for PjrtBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let list = self.client.devices().iter().enumerate();
        list.map(|(i, d)| {
            let memory = d.memory_limit.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
            DeviceInfo { id: DeviceId(i), description: format!("{}{memory}", d.kind) }
        })
        .collect()
    }

    fn memory_limit(&self) -> Option<u64> {
        let own = self.client.devices().get(self.client.local()).unwrap_or_default();
        own.iter().map(|device| device.memory_limit).min().flatten()
    }

    fn wants_loops(&self) -> bool {
        self.loops
    }

    fn with_devices(&self, count: usize) -> Option<Result<Arc<dyn Backend>>> {
        let mut known = self.larger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = known.get(&count) {
            return Some(Ok(backend.clone()));
        }
        let client = match self.client.with_devices(count)? {
            Ok(client) => client,
            Err(e) => return Some(Err(e.at(format!("opening {} with {count} devices", self.name)))),
        };
        let backend = Arc::new(PjrtBackend::new(self.name.clone(), client));
        known.insert(count, backend.clone());
        Some(Ok(backend))
    }

    fn hosts(&self) -> Option<&dyn HostGroup> {
        (self.count() > 1).then_some(self as &dyn HostGroup)
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let start = Instant::now();
        graph.verify()?;
        let place = || format!("compiling {} for {}", named(&options.label), self.name);
        let watch = ProgramProfiler::of(&options.label);
        let said = self.client.as_it_is_right(graph).at(place)?;
        let text = match &watch {
            Some(watch) => located_text(&said, watch.module(), &options.donated, None),
            None => program_text(&said, &options.donated),
        };
        let loaded = self.client.compile(&text, self.client.local().start).at(place)?;
        let report = report(graph, start, &loaded);
        let (params, results) = (graph.param_types(), graph.result_types());
        Ok(Arc::new(SingleDeviceProgram {
            graph: graph.clone(),
            client: self.client.clone(),
            program: ProfiledExecutable { loaded, watch },
            copies: Mutex::default(),
            params,
            results,
            report,
        }))
    }

    fn compile_spread(
        &self,
        graph: &Arc<Graph>,
        spread: &Shardings,
        options: &CompileOptions,
    ) -> Option<Result<Arc<dyn Executable>>> {
        let place = || {
            format!("compiling {} for the devices {} of {}", named(&options.label), spread.mesh, self.name)
        };
        let watch = ProgramProfiler::of(&options.label);
        let program = MeshProgram::compile(&self.client, graph, spread, &options.donated, watch).at(place);
        Some(program.map(|p| Arc::new(p) as Arc<dyn Executable>))
    }

    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        let device = self.client.local().start + device.0;
        Ok(Buffer::new(value.ty().clone(), Arc::new(self.client.put(value, device)?)))
    }
}

fn report(graph: &Graph, began: Instant, loaded: &LoadedExecutable) -> ExecutableReport {
    let compile_ms = began.elapsed().as_secs_f64() * 1e3;
    let peak_bytes = loaded.peak_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    ExecutableReport { compile_ms, flops: cost::cost(graph).flops, peak_bytes, ..ExecutableReport::default() }
}

/// A run's argument on the device.
enum DeviceArg {
    Itself,
    /// Used only in this run.
    Copy(PjrtBuffer),
    Kept(Arc<PjrtBuffer>),
}

/// Device copies of host arrays that are passed to more than one run, such as loaded weights, by host address. A copy
/// is dropped with its host array.
#[derive(Default)]
struct HostCopies(HashMap<usize, HostCopy>);

/// A host array passed to a run, and its device copy from the second run on.
struct HostCopy {
    of: Weak<dyn DeviceData>,
    copy: Option<Arc<PjrtBuffer>>,
}

impl HostCopies {
    /// Returns an argument on the device; the second run with an array keeps the copy. Dead entries must be removed
    /// first, since their address may be reused.
    fn of(&mut self, buffer: &Buffer, copy: impl Fn() -> Result<PjrtBuffer>) -> Result<DeviceArg> {
        let of = buffer.storage();
        match self.0.entry(of.as_ptr().cast::<()>().addr()) {
            Entry::Vacant(new) => {
                new.insert(HostCopy { of, copy: None });
                copy().map(DeviceArg::Copy)
            }
            Entry::Occupied(mut known) => {
                let kept = &mut known.get_mut().copy;
                Ok(DeviceArg::Kept(match kept {
                    Some(array) => array.clone(),
                    None => kept.insert(Arc::new(copy()?)).clone(),
                }))
            }
        }
    }
}

/// A compiled program, and the profiler of its runs if profiling is enabled.
struct ProfiledExecutable {
    loaded: LoadedExecutable,
    watch: Option<ProgramProfiler>,
}

impl ProfiledExecutable {
    fn run<R>(&self, run: impl FnOnce(&LoadedExecutable) -> Result<R>) -> Result<R> {
        match &self.watch {
            Some(watch) => watch.run(&self.loaded, || run(&self.loaded)),
            None => run(&self.loaded),
        }
    }
}

impl Drop for ProfiledExecutable {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.end(&self.loaded);
        }
    }
}

/// A graph compiled for one device.
struct SingleDeviceProgram {
    graph: Arc<Graph>,
    client: Client,
    program: ProfiledExecutable,
    copies: Mutex<HostCopies>,
    params: Vec<TensorType>,
    results: Vec<TensorType>,
    report: ExecutableReport,
}

impl SingleDeviceProgram {
    /// Returns the array on this client: the argument itself, or a copy.
    fn at_device(&self, arg: &ExecutableArg<'_>, copies: &mut HostCopies) -> Result<DeviceArg> {
        let buffer = arg.buffer();
        if buffer.data::<PjrtBuffer>().is_some_and(|array| array.belongs_to(&self.client)) {
            return Ok(DeviceArg::Itself);
        }
        let copy = || self.client.put(&buffer.to_literal()?, self.client.local().start);
        match matches!(arg, ExecutableArg::Donate(_)) && buffer.is_unique() {
            true => copy().map(DeviceArg::Copy),
            false => copies.of(buffer, copy),
        }
    }
}

impl Executable for SingleDeviceProgram {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        let types: Vec<&TensorType> = args.iter().map(|a| a.buffer().ty()).collect();
        interp::check_args(&self.graph, &types)?;
        let mut kept = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.retain(|_, known| known.of.strong_count() > 0);
        let places = args.iter().map(|a| self.at_device(a, &mut kept)).collect::<Result<Vec<_>>>()?;
        drop(kept);
        let inputs = args.iter().zip(&places).map(|(arg, place)| match place {
            // A copy may be donated.
            DeviceArg::Copy(copy) => RunInput::Donated(copy),
            DeviceArg::Kept(copy) => RunInput::Kept(copy),
            DeviceArg::Itself => {
                let Some(array) = arg.buffer().data::<PjrtBuffer>() else {
                    systole_ir::bug!("an argument without a copy is on the device")
                };
                let ours = matches!(arg, ExecutableArg::Donate(buffer) if buffer.is_unique());
                if ours { RunInput::Donated(array) } else { RunInput::Kept(array) }
            }
        });
        let inputs: Vec<_> = inputs.collect();
        let results = self.program.run(|loaded| loaded.run(&inputs))?;
        let typed = self.results.iter().zip(results);
        Ok(typed.map(|(ty, array)| Buffer::new(ty.clone(), Arc::new(array))).collect())
    }

    fn report(&self) -> &ExecutableReport {
        &self.report
    }
}

/// A graph compiled for the devices of a mesh.
struct MeshProgram {
    graph: Arc<Graph>,
    client: Client,
    program: ProfiledExecutable,
    mesh: Arc<Mesh>,
    /// Positions in the mesh of this process's devices.
    own: Range<usize>,
    params: Vec<TensorType>,
    param_shardings: Vec<Sharding>,
    results: Vec<(TensorType, TensorType, Sharding)>,
    report: ExecutableReport,
}

impl MeshProgram {
    fn compile(
        client: &Client,
        graph: &Arc<Graph>,
        spread: &Shardings,
        donated: &[usize],
        watch: Option<ProgramProfiler>,
    ) -> Result<MeshProgram> {
        let start = Instant::now();
        graph.verify()?;
        let mesh = Arc::new(spread.mesh.clone());
        let params = graph.param_types();
        let (fits, types) = (spread.params.iter().zip(&params), graph.result_types());
        fits.map(|(s, ty)| s.local(&mesh, ty)).collect::<Result<Vec<_>>>()?;
        let results = types.into_iter().zip(&spread.results);
        let results =
            results.map(|(ty, s)| Ok((s.local(&mesh, &ty)?, ty, s.clone()))).collect::<Result<_>>()?;
        let said = client.as_it_is_right(graph)?;
        let text = match &watch {
            Some(watch) => located_text(&said, watch.module(), donated, Some(spread)),
            None => spread_text(&said, donated, spread),
        };
        let loaded = client.compile_parts(&text, mesh.devices())?;
        let report = report(graph, start, &loaded);
        let own = client.local();
        let own = own.start.min(mesh.devices())..own.end.min(mesh.devices());
        Ok(MeshProgram {
            graph: graph.clone(),
            client: client.clone(),
            program: ProfiledExecutable { loaded, watch },
            mesh,
            own,
            params,
            param_shardings: spread.params.clone(),
            results,
            report,
        })
    }

    /// Returns each device's shard if the array is on this client with the required sharding.
    fn in_place<'a>(&self, buffer: &'a Buffer, sharding: &Sharding) -> Option<Vec<&'a PjrtBuffer>> {
        let pieces = buffer.data::<ShardedArray>()?;
        if *pieces.mesh != *self.mesh || pieces.sharding != *sharding {
            return None;
        }
        let here = |part: &'a Buffer| part.data::<PjrtBuffer>().filter(|a| a.belongs_to(&self.client));
        pieces.parts.iter().map(here).collect()
    }

    /// Splits the array and copies the shards to this process's devices.
    fn copies(&self, buffer: &Buffer, sharding: &Sharding) -> Result<Vec<PjrtBuffer>> {
        let parts = split(&buffer.to_literal()?, &self.mesh, sharding, self.own.clone())?;
        self.own.clone().zip(&parts).map(|(device, part)| self.client.put(part, device)).collect()
    }
}

impl Executable for MeshProgram {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        let types: Vec<&TensorType> = args.iter().map(|a| a.buffer().ty()).collect();
        interp::check_args(&self.graph, &types)?;
        let wanted = args.iter().zip(&self.param_shardings);
        let copies = wanted.map(|(arg, sharding)| match self.in_place(arg.buffer(), sharding) {
            Some(_) => Ok(None),
            None => self.copies(arg.buffer(), sharding).map(Some),
        });
        let copies = copies.collect::<Result<Vec<_>>>()?;
        let mut inputs: Vec<Vec<RunInput<'_>>> = self.own.clone().map(|_| Vec::new()).collect();
        for ((arg, sharding), copies) in args.iter().zip(&self.param_shardings).zip(&copies) {
            let (arrays, ours) = match copies {
                // Copies may be donated.
                Some(copies) => (copies.iter().collect(), true),
                None => match self.in_place(arg.buffer(), sharding) {
                    Some(arrays) => (arrays, donated(arg)),
                    None => bug!("an argument has neither copies nor shards on the devices"),
                },
            };
            for (list, array) in inputs.iter_mut().zip(arrays) {
                list.push(if ours { RunInput::Donated(array) } else { RunInput::Kept(array) });
            }
        }
        let lists: Vec<&[RunInput<'_>]> = inputs.iter().map(Vec::as_slice).collect();
        let results = self.program.run(|loaded| loaded.run_parts(&lists))?;
        let mut devices: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
        let whole = |(local, ty, sharding): &(TensorType, TensorType, Sharding)| {
            let arrays = devices.iter_mut().filter_map(Iterator::next);
            let parts = arrays.map(|a| Buffer::new(local.clone(), Arc::new(a))).collect();
            let (mesh, sharding, first) = (self.mesh.clone(), sharding.clone(), self.own.start);
            ShardedArray { mesh, sharding, parts, first }.buffer(ty.clone())
        };
        self.results.iter().map(whole).collect()
    }

    fn report(&self) -> &ExecutableReport {
        &self.report
    }
}

/// Whether nobody else refers to the array or a shard of it.
fn donated(arg: &ExecutableArg<'_>) -> bool {
    let ExecutableArg::Donate(buffer) = arg else { return false };
    let parts = buffer.data::<ShardedArray>().map_or(&[][..], |pieces| &pieces.parts);
    buffer.is_unique() && parts.iter().all(Buffer::is_unique)
}
