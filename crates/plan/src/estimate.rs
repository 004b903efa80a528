//! Step-time estimate of a program on a machine: device time, host time, collectives, memory and the limiting resource.

use crate::device_model::DeviceModel;
use crate::kernel_list::{ArgumentRole, KernelList, KernelWork};
use crate::machine::{HalfType, Machine};
use crate::memory::{MemoryNeed, memory};
use crate::roofline::{DimPadding, KernelTimeParts, paddings, time};
use crate::table::ChipTables;
use crate::value_placement::ValuePlacement;
use systole_ir::Result;

/// Estimated seconds with lower and upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeRange {
    /// Lower bound: peak rates, no padding, no start time, collectives hidden behind work.
    pub low: f64,
    /// Expected value.
    pub likely: f64,
    /// Upper bound: everything in sequence.
    pub high: f64,
}

/// Host time per step in seconds. Hosts work ahead of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Dispatching the step.
    pub dispatch: f64,
    /// Transferring the batch to the devices.
    pub feed: f64,
    /// Producing the batch (reading, decoding, augmenting), in parallel with the other two; 0 if the rate is unknown.
    pub pipeline: f64,
}

impl HostTime {
    /// Minimum step time due to the host.
    pub fn total(&self) -> f64 {
        (self.dispatch + self.feed).max(self.pipeline)
    }

    /// Returns the slowest host activity: `host dispatch` or `host input`.
    fn limit(&self) -> &'static str {
        let dispatch = self.dispatch >= self.feed && self.pipeline <= self.dispatch + self.feed;
        if dispatch { "host dispatch" } else { "host input" }
    }
}

/// Estimated time, memory and limits of a step on a machine.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Name of the estimator: `analytic`, `compiled` or `measured`.
    pub by: &'static str,
    /// Device time, including collectives.
    pub device: TimeRange,
    /// Time of collectives.
    pub collective: f64,
    /// Host time.
    pub host: HostTime,
    /// Memory of one device.
    pub memory: MemoryNeed,
    /// Required matrix operations per device and step.
    pub flops: f64,
    /// Peak operations per second of one device.
    pub peak: f64,
    /// Time per kernel.
    pub kernels: Vec<KernelTime>,
}

/// Time of one kernel on one device.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// Layer of the kernel.
    pub scope: String,
    /// Op that names the kernel.
    pub name: String,
    /// Time of one execution.
    pub time: KernelTimeParts,
    /// Executions per step.
    pub trips: f64,
    /// Bytes moved per execution.
    pub bytes: f64,
    /// Required matrix operations per execution.
    pub flops: f64,
    /// Padded dimensions.
    pub padding: Vec<DimPadding>,
}

impl Estimate {
    /// Estimated step time: the host works ahead, so the slower of host and device decides.
    pub fn step(&self) -> TimeRange {
        let with_host = |t: f64| t.max(self.host.total());
        TimeRange {
            low: with_host(self.device.low),
            likely: with_host(self.device.likely),
            high: self.device.high + self.host.total(),
        }
    }
}

impl Estimate {
    /// Sets the host's dispatch time and its input rate in samples per second, for `samples` per step.
    pub fn hosted(
        self,
        machine: &Machine,
        dispatch: Option<f64>,
        rate: Option<f64>,
        samples: f64,
    ) -> Estimate {
        if matches!(machine, Machine::Cpu(_)) {
            return self;
        }
        let pipeline = rate.map_or(0.0, |r| samples / (r * machine.hosts() as f64));
        let host = HostTime { dispatch: dispatch.unwrap_or(self.host.dispatch), pipeline, ..self.host };
        Estimate { host, ..self }
    }

    /// Replaces the device time by a measurement on this computer.
    pub fn measured(self, device: TimeRange) -> Estimate {
        Estimate { by: "measured", device, ..self }
    }

    /// Sets the time of collectives.
    pub(crate) fn with_collective(self, collective: f64) -> Estimate {
        Estimate { device: range(&self.kernels, collective), collective, ..self }
    }

    /// Estimates the step with fully sharded weights and optimizer state: weights are all-gathered in forward and
    /// backward, gradients are reduce-scattered.
    pub fn fully_sharded(self, work: &KernelList, machine: &Machine, tables: &ChipTables) -> Estimate {
        let n = machine.devices() as f64;
        if n < 2.0 {
            return self;
        }
        let weights = work.arguments.iter().filter(|a| a.role == ArgumentRole::Trainable);
        let largest = weights.map(|a| a.ty.bytes() as f64).fold(0.0, f64::max);
        let memory = MemoryNeed {
            parameters: self.memory.parameters / n,
            optimizer: self.memory.optimizer / n,
            // One gathered weight in use, and the next in transfer.
            temporaries: self.memory.temporaries + 2.0 * largest,
            ..self.memory.clone()
        };
        // An all-reduce is a reduce-scatter plus an all-gather; full sharding needs one more all-gather.
        let collective = 1.5 * machine.all_reduce(tables, work.bytes_of(ArgumentRole::Trainable));
        Estimate { memory, ..self }.with_collective(collective)
    }

    /// Model FLOPs utilization: required matrix operations relative to the peak over the step time.
    pub fn mfu(&self) -> f64 {
        let possible = self.step().likely * self.peak;
        if possible > 0.0 { self.flops / possible } else { 0.0 }
    }

    /// Returns the resource that limits the step.
    pub fn limit(&self) -> &'static str {
        if self.host.total() >= self.device.likely {
            return self.host.limit();
        }
        let by_kind = |kind: &str| {
            let own = self.kernels.iter().filter(|k| k.time.limit() == kind);
            own.map(|k| k.time.total * k.trips).sum::<f64>()
        };
        let kinds = ["MXU", "HBM", "VPU", "start"].map(|kind| (kind, by_kind(kind)));
        let parts = kinds.into_iter().chain([("interconnect", self.collective)]);
        parts.max_by(|a, b| a.1.total_cmp(&b.1)).map_or("start", |p| p.0)
    }
}

/// Seconds in which a host dispatches a step of a compiled program. Assumed for PJRT, not measured.
pub const DISPATCH: f64 = 0.15e-3;

/// Upper bound for CPU steps relative to the estimate: steps of six models took 0.9 to 1.5 times (docs/guide/plan.md).
const CPU_AT_MOST: f64 = 1.6;

/// Computes the analytic estimate of a step whose devices each do `work`.
pub fn analytic(
    work: &KernelList,
    machine: &Machine,
    tables: &ChipTables,
    half: HalfType,
) -> Result<Estimate> {
    let device = machine.device(tables, half)?;
    let placement = ValuePlacement::of(work, &device);
    let kernel = |k: &KernelWork| {
        let moved = placement.moved(k, &device);
        KernelTime {
            scope: k.scope.clone(),
            name: k.name.clone(),
            time: time(k, &moved, &device),
            trips: k.trips,
            bytes: moved.bytes,
            flops: k.product.as_ref().map_or(0.0, |p| p.flops()),
            padding: k.product.as_ref().map_or_else(Vec::new, |p| paddings(p, &device)),
        }
    };
    let mut kernels: Vec<KernelTime> = work.kernels.iter().filter(|k| device.runs(k)).map(kernel).collect();
    let beside = work.kernels.iter().map(|k| placement.moved(k, &device).beside * k.trips).sum();
    kernels.extend(uncovered(beside, &kernels));
    let memory = memory(work, &device, &placement);
    Ok(assembled("analytic", work, machine, tables, &device, memory, kernels))
}

/// Exposed time of asynchronous copies after they overlap with the kernels' idle memory time.
pub(crate) fn uncovered(seconds: f64, kernels: &[KernelTime]) -> Option<KernelTime> {
    let idle: f64 = kernels.iter().map(|k| (k.time.total - k.time.memory) * k.trips).sum();
    let rest = seconds - idle;
    (rest > 0.0).then(|| KernelTime {
        scope: String::new(),
        name: "copies not hidden by kernels".into(),
        time: KernelTimeParts { memory: rest, total: rest, floor: rest, ..KernelTimeParts::default() },
        trips: 1.0,
        bytes: 0.0,
        flops: 0.0,
        padding: Vec::new(),
    })
}

/// Time range of kernels and collectives: in sequence, or at best overlapped.
fn range(kernels: &[KernelTime], collective: f64) -> TimeRange {
    let sum =
        |of: &dyn Fn(&KernelTimeParts) -> f64| kernels.iter().map(|k| of(&k.time) * k.trips).sum::<f64>();
    let likely = sum(&|t| t.total);
    TimeRange {
        low: sum(&|t| t.floor).max(collective),
        likely: likely + collective,
        high: sum(&|t| t.start + t.products + t.results + t.memory + t.vector).max(likely) + collective,
    }
}

/// Assembles an estimate from the times of its kernels.
pub(crate) fn assembled(
    by: &'static str,
    work: &KernelList,
    machine: &Machine,
    tables: &ChipTables,
    device: &DeviceModel,
    memory: MemoryNeed,
    kernels: Vec<KernelTime>,
) -> Estimate {
    let gradients = if machine.devices() > 1 { work.bytes_of(ArgumentRole::Trainable) } else { 0.0 };
    let collective = if gradients > 0.0 { machine.all_reduce(tables, gradients) } else { 0.0 };
    let device_time = match (range(&kernels, collective), machine) {
        (r, Machine::Cpu(_)) => TimeRange { high: r.high.max(CPU_AT_MOST * r.likely), ..r },
        (r, _) => r,
    };
    // A training step receives a batch from the host; other programs have their arguments on the device.
    let trains = work.arguments.iter().any(|a| a.role == ArgumentRole::Trainable);
    let fed = if trains { work.bytes_of(ArgumentRole::Input) * machine.devices() as f64 } else { 0.0 };
    let input = fed / machine.input_rate(tables);
    let host = match machine {
        Machine::Cpu(_) => HostTime::default(),
        _ => HostTime { dispatch: DISPATCH, feed: input, pipeline: 0.0 },
    };
    let peak_type = work.kernels.iter().filter_map(|k| k.product.as_ref()).map(|p| p.dtype).next();
    let peak = peak_type.map_or(device.flops[1], |d| device.peak(d));
    Estimate { by, device: device_time, collective, host, memory, flops: work.product_flops(), peak, kernels }
}
