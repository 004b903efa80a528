//! Backend wrapper that shards each program over several devices according to a [`Strategy`].

use crate::strategy::StrategyKind;
use crate::{DeviceOwnership, SimulatedMesh, Strategy, partition};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use systole_ir::op::DeviceCounts;
use systole_ir::{Graph, Literal, Mesh, Result, Shardings, TensorType, err};
use systole_runtime::sharded_array::{self, ShardedArray};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ExecutableArg, ExecutableReport,
    HostGroup, ValueRoles, events,
};

/// A backend that shards each program over a mesh according to a [`Strategy`]. Created by [`Strategy::on`].
pub struct DistributedBackend {
    inner: Arc<dyn Backend>,
    strategy: Strategy,
    mesh: Mesh,
    /// Largest batch size of each program whose batch was split.
    split: Mutex<HashMap<String, usize>>,
}

impl Strategy {
    /// Wraps `backend` so that it runs programs with this distribution strategy.
    ///
    /// # Errors
    /// If the mesh has more devices than `backend` has and can create, or does not use all devices of several hosts.
    pub fn on(&self, backend: Arc<dyn Backend>) -> Result<Arc<dyn Backend>> {
        let there = backend.devices().len();
        let mesh = match (&self.mesh, self.kind) {
            (_, StrategyKind::OneDevice) => return Ok(backend),
            (None, StrategyKind::Auto) if there == 1 && self.devices.is_none() => return Ok(backend),
            (Some(mesh), _) => mesh.clone(),
            (None, _) => Mesh::new([("data", self.devices.unwrap_or(there))])?,
        };
        let more = (mesh.devices() > there).then(|| backend.with_devices(mesh.devices())).flatten();
        let backend = more.transpose()?.unwrap_or(backend);
        let there = backend.devices().len();
        if there > 1 && mesh.devices() > there {
            return Err(err!(
                Config,
                "the mesh {mesh} has {} devices, but {} has {there}",
                mesh.devices(),
                backend.name()
            )
            .hint(format!("use a mesh of at most {there} devices, such as data={there}")));
        }
        self.takes_all(&*backend, mesh.devices())?;
        Ok(Arc::new(DistributedBackend::new(backend, self.clone(), mesh)))
    }

    /// Rejects a mesh that would leave some hosts without work and waiting forever.
    fn takes_all(&self, backend: &dyn Backend, devices: usize) -> Result<()> {
        let there = backend.devices().len();
        let Some(hosts) = backend.hosts().filter(|_| devices < there) else { return Ok(()) };
        Err(err!(Config, "{self} uses {devices} of {there} devices on {} hosts", hosts.count())
            .because("every host runs the same program and needs at least one of its devices")
            .hint(format!("use data_parallel or fully_sharded over all {there} devices")))
    }
}

impl DistributedBackend {
    fn new(inner: Arc<dyn Backend>, strategy: Strategy, mesh: Mesh) -> DistributedBackend {
        DistributedBackend { inner, strategy, mesh, split: Mutex::default() }
    }

    /// The mesh of devices that the backend distributes programs over.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Whether the batch is split, which requires that it divides evenly. The last, smaller batch of an epoch may be
    /// replicated instead, with the same result. For the first batch this is an error, since nothing would be gained.
    fn splits(&self, graph: &Graph, options: &CompileOptions) -> Result<bool> {
        let ValueRoles { batch, any_batch, .. } = &options.roles;
        let parts = self.mesh.axes()[self.mesh.axis("data").unwrap_or(0)].1;
        let sizes = batch.iter().filter_map(|&i| graph.ty(graph.params[i]).shape.first().copied());
        let sizes: Vec<usize> = sizes.collect();
        let size = sizes.iter().copied().max().unwrap_or(0);
        let mut split = self.split.lock().unwrap_or_else(PoisonError::into_inner);
        let greatest = split.entry(options.label.clone()).or_default();
        if sizes.iter().all(|n| n.is_multiple_of(parts)) {
            *greatest = size.max(*greatest);
            return Ok(true);
        }
        if *any_batch || size < *greatest {
            events::emit(1, || {
                format!(
                    "{}: {size} samples cannot be split evenly over {parts} devices; each device computes all of them",
                    options.label
                )
            });
            return Ok(false);
        }
        let (less, more) = (size / parts * parts, size.div_ceil(parts) * parts);
        let near = if less > 0 { format!("{less} or {more}") } else { more.to_string() };
        Err(err!(Config, "cannot split a batch of {size} samples evenly over {parts} devices")
            .at(format!("mesh {}", self.mesh))
            .hint(format!("use a batch size of {near}; the last batch of an epoch may be smaller")))
    }
}

impl Backend for DistributedBackend {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let own = self.inner.devices();
        if own.len() >= self.mesh.devices() {
            return own.into_iter().take(self.mesh.devices()).collect();
        }
        let logical = |i: usize| DeviceInfo {
            id: DeviceId(i),
            description: format!(
                "logical device {i} of {}: for testing numerics, not speed",
                self.inner.name()
            ),
        };
        (0..self.mesh.devices()).map(logical).collect()
    }

    fn wants_loops(&self) -> bool {
        self.inner.wants_loops()
    }

    fn shares_cores(&self) -> bool {
        self.inner.shares_cores()
    }

    fn hosts(&self) -> Option<&dyn HostGroup> {
        self.inner.hosts()
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let split = self.splits(graph, options)?;
        let spread = self.strategy.spread(&self.mesh, graph, &options.roles, split)?;
        if let Some(compiled) = self.inner.compile_spread(graph, &spread, options) {
            return compiled;
        }
        let state: Vec<usize> =
            (0..graph.params.len()).filter(|i| !options.roles.batch.contains(i)).collect();
        let own = partition(graph, &spread, &state)?;
        let team = DeviceOwnership::alone(DeviceCounts::replicas(self.mesh.devices()));
        let program = SimulatedMesh::compile(&*self.inner, &own, &team, options)?;
        Ok(Arc::new(SimulatedExecutable {
            params: graph.param_types(),
            results: graph.result_types(),
            mesh: Arc::new(self.mesh.clone()),
            spread,
            program,
        }))
    }

    fn compile_spread(
        &self,
        graph: &Arc<Graph>,
        spread: &Shardings,
        options: &CompileOptions,
    ) -> Option<Result<Arc<dyn Executable>>> {
        self.inner.compile_spread(graph, spread, options)
    }

    /// Keeps the array on the host: only the programs that use it know its sharding.
    fn put(&self, value: &Literal, _: DeviceId) -> Result<Buffer> {
        Ok(value.clone().into())
    }
}

/// A program on logical devices with sharded arguments and results.
struct SimulatedExecutable {
    params: Vec<TensorType>,
    results: Vec<TensorType>,
    mesh: Arc<Mesh>,
    spread: Shardings,
    program: SimulatedMesh,
}

impl SimulatedExecutable {
    /// Splits an argument into the shards of the devices.
    fn parts(&self, k: usize, arg: ExecutableArg<'_>) -> Result<Vec<ExecutableArg<'static>>> {
        let sharding = &self.spread.params[k];
        let fits = |p: &ShardedArray| *p.mesh == *self.mesh && p.sharding == *sharding;
        let mut buffer = match arg {
            ExecutableArg::Donate(buffer) => buffer,
            ExecutableArg::Borrow(buffer) => buffer.clone(),
        };
        // Takes shards without other owners out of the array, so that they can be donated.
        if let Some(own) = buffer.data_mut::<ShardedArray>()
            && fits(own)
        {
            return Ok(std::mem::take(&mut own.parts).into_iter().map(ExecutableArg::Donate).collect());
        }
        if let Some(shared) = buffer.data::<ShardedArray>()
            && fits(shared)
        {
            return Ok(shared.parts.iter().cloned().map(ExecutableArg::Donate).collect());
        }
        let parts =
            sharded_array::split(&buffer.to_literal()?, &self.mesh, sharding, 0..self.mesh.devices())?;
        Ok(parts.into_iter().map(|l| ExecutableArg::Donate(l.into())).collect())
    }
}

impl Executable for SimulatedExecutable {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        let mut own: Vec<Vec<ExecutableArg<'static>>> =
            (0..self.mesh.devices()).map(|_| Vec::new()).collect();
        for (k, arg) in args.into_iter().enumerate() {
            own.iter_mut().zip(self.parts(k, arg)?).for_each(|(own, part)| own.push(part));
        }
        let out = self.program.run(own)?;
        let mut devices: Vec<_> = out.into_iter().map(Vec::into_iter).collect();
        let whole = |(ty, sharding): (&TensorType, _)| {
            let parts = devices.iter_mut().filter_map(Iterator::next).collect();
            ShardedArray { mesh: self.mesh.clone(), sharding, parts, first: 0 }.buffer(ty.clone())
        };
        self.results.iter().zip(self.spread.results.iter().cloned()).map(whole).collect()
    }

    fn report(&self) -> &ExecutableReport {
        self.program.report()
    }
}
