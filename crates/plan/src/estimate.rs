//! A step on a machine: time, memory, what limits it. Estimators fill the same [`Estimate`].

use crate::device_model::DeviceModel;
use crate::kernel_list::{ArgumentRole, KernelList, KernelWork};
use crate::machine::{HalfType, Machine};
use crate::memory::{MemoryNeed, memory};
use crate::roofline::{DimPadding, KernelTimeParts, paddings, time};
use crate::table::ChipTables;
use crate::value_placement::ValuePlacement;
use systole_ir::Result;

/// Seconds: what is expected, and between what it may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeRange {
    /// Peak rates, no padding, nothing started, collectives hidden behind work.
    pub low: f64,
    /// Expected.
    pub likely: f64,
    /// One thing after the other.
    pub high: f64,
}

/// What the hosts do for a step, in seconds. They work ahead of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Starting it.
    pub dispatch: f64,
    /// Bringing the batch to the devices.
    pub feed: f64,
    /// Making the batch, beside the other two: reading, decoding, augmenting. 0 where its rate is not known.
    pub pipeline: f64,
}

impl HostTime {
    /// What a step cannot take less than.
    pub fn total(&self) -> f64 {
        (self.dispatch + self.feed).max(self.pipeline)
    }

    /// `host dispatch` or `host input`: what takes longest.
    fn limit(&self) -> &'static str {
        let dispatch = self.dispatch >= self.feed && self.pipeline <= self.dispatch + self.feed;
        if dispatch { "host dispatch" } else { "host input" }
    }
}

/// A step on a machine.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Who says so: `analytic` or `compiled`.
    pub by: &'static str,
    /// On the device, collectives included.
    pub device: TimeRange,
    /// Collectives.
    pub collective: f64,
    /// On the hosts.
    pub host: HostTime,
    /// Of one device.
    pub memory: MemoryNeed,
    /// Operations of products that a step needs of one device.
    pub flops: f64,
    /// Those that it could do in a second.
    pub peak: f64,
    /// By kernel.
    pub kernels: Vec<KernelTime>,
}

/// One kernel of a step on one device.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The layer.
    pub scope: String,
    /// The op that gives it its name.
    pub name: String,
    /// One trip.
    pub time: KernelTimeParts,
    /// Trips in a step.
    pub trips: f64,
    /// Bytes of one trip.
    pub bytes: f64,
    /// Needed operations of its product in one trip.
    pub flops: f64,
    /// What is padded.
    pub padding: Vec<DimPadding>,
}

impl Estimate {
    /// A step: the host works ahead, so the slower of the two decides.
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
    /// The same where a host needs `dispatch` seconds to start a step and makes `rate` samples a second, of `samples`.
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

    /// The same with a step as it was measured on this computer.
    pub fn measured(self, device: TimeRange) -> Estimate {
        Estimate { by: "measured", device, ..self }
    }

    /// The same with collectives that take so many seconds.
    pub(crate) fn with_collective(self, collective: f64) -> Estimate {
        Estimate { device: range(&self.kernels, collective), collective, ..self }
    }

    /// The same step of `work` where each device keeps a part of weights and optimizer state: weights are gathered
    /// before they are used, forward and backward, and gradients are scattered.
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
            // One gathered weight in use, the next on its way.
            temporaries: self.memory.temporaries + 2.0 * largest,
            ..self.memory.clone()
        };
        // An all-reduce is a scatter and a gather; here one more gather passes.
        let collective = 1.5 * machine.all_reduce(tables, work.bytes_of(ArgumentRole::Trainable));
        Estimate { memory, ..self }.with_collective(collective)
    }

    /// Needed operations of products over those possible in the step's time.
    pub fn mfu(&self) -> f64 {
        let possible = self.step().likely * self.peak;
        if possible > 0.0 { self.flops / possible } else { 0.0 }
    }

    /// What takes longest.
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

/// Seconds in which a host starts one step of a compiled program. An assumption: PJRT's dispatch, no measurement here.
pub const DISPATCH: f64 = 0.15e-3;

/// How many times the estimate a step on a CPU may take: steps of six models took 0.9 to 1.5 times (docs/guide/plan.md).
const CPU_AT_MOST: f64 = 1.6;

/// The analytic estimate of a step whose devices each do `work`.
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

/// What copies beside kernels, of so many seconds, need of the memory's time after the kernels had theirs.
pub(crate) fn uncovered(seconds: f64, kernels: &[KernelTime]) -> Option<KernelTime> {
    let idle: f64 = kernels.iter().map(|k| (k.time.total - k.time.memory) * k.trips).sum();
    let rest = seconds - idle;
    (rest > 0.0).then(|| KernelTime {
        scope: String::new(),
        name: "copies that no kernel hides".into(),
        time: KernelTimeParts { memory: rest, total: rest, floor: rest, ..KernelTimeParts::default() },
        trips: 1.0,
        bytes: 0.0,
        flops: 0.0,
        padding: Vec::new(),
    })
}

/// Kernels and collectives one after the other, at best beside each other.
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

/// An estimate from the times of its kernels.
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
    // A training step gets a batch from the host; the arguments of other programs lie on the device already.
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
