//! A step on a machine: time, memory, what limits it. Estimators fill the same [`Estimate`].

use crate::collective;
use crate::device::Device;
use crate::memory::{Memory, memory};
use crate::placement::Placement;
use crate::roofline::{Padding, Time, paddings, time};
use crate::slice::Slice;
use crate::table::{Gpu, Tables};
use crate::work::{Kernel, Role, Work};
use systole_ir::{Error, ErrorKind, Result};
use systole_runtime::AheadSlice;

/// Where a program could run.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    /// A TPU slice, or several.
    Slice(Slice),
    /// So many GPUs of one machine.
    Gpus(Gpu, usize),
    /// This computer.
    Cpu(Cpu),
}

fn gpus(tables: &Tables) -> Vec<&str> {
    tables.gpus.iter().map(|g| g.name.as_str()).collect()
}

/// The nearest GPUs are those with the longest common beginning.
fn unknown(name: &str, family: &str, tables: &Tables) -> Error {
    let family = family.trim_start_matches(|c: char| c.is_ascii_digit() || c == 'x');
    let mut near = gpus(tables);
    let common = |gpu: &str| family.bytes().zip(gpu.bytes()).take_while(|(a, b)| a == b).count();
    near.sort_by_key(|gpu| std::cmp::Reverse(common(gpu)));
    Error::new(ErrorKind::Config, format!("there is no TPU slice and no GPU `{name}`"))
        .because(format!("the table of GPUs has {}", gpus(tables).join(", ")))
        .hint(format!(
            "the nearest: {}; several GPUs are written 8*h100, slices v5e-8 or v5e:2x2",
            near[..near.len().min(2)].join(", ")
        ))
}

/// A computer's ceilings, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// f32 operations a second of all threads.
    pub flops: f64,
    /// The same of factors of 16 bits.
    pub bf16_flops: f64,
    /// Caches and main memory, nearest first: bytes that all threads together keep there, and bytes a second.
    pub tiers: Vec<(f64, f64)>,
    /// Threads.
    pub threads: usize,
    /// Bytes of memory.
    pub memory: f64,
}

impl Machine {
    /// The machine of a name: a slice's, `h100`, `8*h100`.
    pub fn of(name: &str, tables: &Tables) -> Result<Machine> {
        let (count, rest) = match name.split_once('*') {
            Some((n, rest)) => (n.trim().parse::<usize>().ok(), rest.trim()),
            None => (Some(1), name.trim()),
        };
        let rest = rest.to_lowercase();
        let (family, size) = rest.split_once([':', '-']).map_or((rest.as_str(), None), |(f, s)| (f, Some(s)));
        let Some(gpu) = tables.gpu(family) else {
            // What is written as slices are is taken for one.
            let a_slice = size.is_some() || tables.tpu(family).is_some();
            return Slice::of(name, tables).map(Machine::Slice).map_err(|e| match a_slice {
                true => e.because(format!("and it is no GPU of the table: {}", gpus(tables).join(", "))),
                false => unknown(name, family, tables),
            });
        };
        let count = count.filter(|n| size.is_none() && (1..=8).contains(n)).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("`{name}` is no machine of GPUs"))
                .because("GPUs of one machine are supported, and not yet those of several")
                .hint(format!("1 to 8 of them, as {0} or 8*{0}", gpu.name))
        })?;
        Ok(Machine::Gpus(gpu.clone(), count))
    }

    /// As [`Machine::of`], and besides the slices of [`Slice::compilable`].
    pub fn compilable(name: &str, tables: &Tables) -> Result<Machine> {
        let unsold = || Slice::compilable(name, tables).map(Machine::Slice);
        Machine::of(name, tables).or_else(|refused| unsold().map_err(|_| refused))
    }

    /// What a compiler is told of it; nothing compiles ahead of time for this computer.
    ///
    /// # Errors
    /// When the tables do not say what the compiler must know.
    pub fn ahead(&self, tables: &Tables) -> Result<AheadSlice> {
        match self {
            Machine::Slice(slice) => Ok(slice.ahead(tables)),
            Machine::Gpus(gpu, count) => gpu.ahead(*count),
            Machine::Cpu(_) => {
                Err(Error::new(ErrorKind::Unsupported, "programs for this CPU are made when they run"))
            }
        }
    }

    /// As the table shows it.
    pub fn title(&self) -> String {
        match self {
            Machine::Slice(s) => s.title(),
            Machine::Gpus(g, 1) => g.name.clone(),
            Machine::Gpus(g, n) => format!("{n}*{}", g.name),
            Machine::Cpu(_) => "this CPU".into(),
        }
    }

    /// Devices that the batch is split over.
    pub fn devices(&self) -> usize {
        match self {
            Machine::Slice(s) => s.all_devices(),
            Machine::Gpus(_, n) => *n,
            Machine::Cpu(_) => 1,
        }
    }

    /// The name in the price table and how many of it are paid; none for this computer.
    pub fn billed(&self) -> Option<(&str, usize)> {
        match self {
            Machine::Slice(s) => Some((&s.generation, s.all_chips())),
            Machine::Gpus(g, n) => Some((&g.name, *n)),
            Machine::Cpu(_) => None,
        }
    }

    /// Watts of all chips, where a figure is published.
    pub fn watts(&self, tables: &Tables) -> Option<f64> {
        match self {
            Machine::Slice(s) => Some(tables.tpu(&s.generation)?.watts? * s.all_chips() as f64),
            Machine::Gpus(g, n) => Some(g.watts * *n as f64),
            Machine::Cpu(_) => None,
        }
    }

    /// Computers that bring the batch.
    fn hosts(&self) -> usize {
        match self {
            Machine::Slice(s) => s.hosts * s.slices,
            Machine::Gpus(..) | Machine::Cpu(_) => 1,
        }
    }

    /// One of its devices.
    pub fn device(&self, tables: &Tables, half: Half) -> Result<Device> {
        Ok(match self {
            Machine::Slice(s) => Device::tpu(tables.tpu(&s.generation).ok_or_else(|| {
                Error::new(ErrorKind::Config, format!("no table has the generation `{}`", s.generation))
            })?),
            Machine::Gpus(g, _) => Device::gpu(g, half == Half::F16),
            Machine::Cpu(cpu) => Device::cpu(cpu),
        })
    }

    /// Seconds in which all devices have the sum of `bytes` of each.
    fn all_reduce(&self, tables: &Tables, bytes: f64) -> f64 {
        match self {
            Machine::Slice(s) => collective::all_reduce(s, tables, bytes),
            Machine::Gpus(_, 1) | Machine::Cpu(_) => 0.0,
            // A ring over all links: 2 (n − 1) / n of the bytes pass each GPU.
            Machine::Gpus(g, n) => {
                2.0 * bytes * (*n as f64 - 1.0) / *n as f64 / (g.link_gb_per_s * 1e9 * 0.8) + 20e-6
            }
        }
    }

    /// Bytes a second in which the hosts bring a batch to the devices.
    fn input_rate(&self, tables: &Tables) -> f64 {
        match self {
            Machine::Slice(s) => {
                let per_chip = tables.tpu(&s.generation).map_or(0.0, |t| t.host_pcie_gb_per_s);
                per_chip * 1e9 * s.all_chips() as f64
            }
            Machine::Gpus(_, n) => 25e9 * *n as f64,
            Machine::Cpu(_) => f64::INFINITY,
        }
    }
}

/// What 16-bit factors are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

/// Seconds: what is expected, and between what it may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// Peak rates, no padding, nothing started, collectives hidden behind work.
    pub low: f64,
    /// Expected.
    pub likely: f64,
    /// One thing after the other.
    pub high: f64,
}

/// What the hosts do for a step, in seconds. They work ahead of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Host {
    /// Starting it.
    pub dispatch: f64,
    /// Bringing the batch to the devices.
    pub feed: f64,
    /// Making the batch, beside the other two: reading, decoding, augmenting. 0 where its rate is not known.
    pub pipeline: f64,
}

impl Host {
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
    pub device: Range,
    /// Collectives.
    pub collective: f64,
    /// On the hosts.
    pub host: Host,
    /// Of one device.
    pub memory: Memory,
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
    pub time: Time,
    /// Trips in a step.
    pub trips: f64,
    /// Bytes of one trip.
    pub bytes: f64,
    /// Needed operations of its product in one trip.
    pub flops: f64,
    /// What is padded.
    pub padding: Vec<Padding>,
}

impl Estimate {
    /// A step: the host works ahead, so the slower of the two decides.
    pub fn step(&self) -> Range {
        let with_host = |t: f64| t.max(self.host.total());
        Range {
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
        let host = Host { dispatch: dispatch.unwrap_or(self.host.dispatch), pipeline, ..self.host };
        Estimate { host, ..self }
    }

    /// The same with collectives that take so many seconds.
    pub(crate) fn with_collective(self, collective: f64) -> Estimate {
        Estimate { device: range(&self.kernels, collective), collective, ..self }
    }

    /// The same step of `work` where each device keeps a part of weights and optimizer state: weights are gathered
    /// before they are used, forward and backward, and gradients are scattered.
    pub fn fully_sharded(self, work: &Work, machine: &Machine, tables: &Tables) -> Estimate {
        let n = machine.devices() as f64;
        if n < 2.0 {
            return self;
        }
        let weights = work.arguments.iter().filter(|a| a.role == Role::Trainable);
        let largest = weights.map(|a| a.ty.bytes() as f64).fold(0.0, f64::max);
        let memory = Memory {
            parameters: self.memory.parameters / n,
            optimizer: self.memory.optimizer / n,
            // One gathered weight in use, the next on its way.
            temporaries: self.memory.temporaries + 2.0 * largest,
            ..self.memory.clone()
        };
        // An all-reduce is a scatter and a gather; here one more gather passes.
        let collective = 1.5 * machine.all_reduce(tables, work.bytes_of(Role::Trainable));
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

/// The analytic estimate of a step whose devices each do `work`.
pub fn analytic(work: &Work, machine: &Machine, tables: &Tables, half: Half) -> Result<Estimate> {
    let device = machine.device(tables, half)?;
    let placement = Placement::of(work, &device);
    let kernel = |k: &Kernel| {
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
    let mut kernels: Vec<KernelTime> =
        work.kernels.iter().filter(|k| k.runs_on(&device)).map(kernel).collect();
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
        time: Time { memory: rest, total: rest, floor: rest, ..Time::default() },
        trips: 1.0,
        bytes: 0.0,
        flops: 0.0,
        padding: Vec::new(),
    })
}

/// Kernels and collectives one after the other, at best beside each other.
fn range(kernels: &[KernelTime], collective: f64) -> Range {
    let sum = |of: &dyn Fn(&Time) -> f64| kernels.iter().map(|k| of(&k.time) * k.trips).sum::<f64>();
    let likely = sum(&|t| t.total);
    Range {
        low: sum(&|t| t.floor).max(collective),
        likely: likely + collective,
        high: sum(&|t| t.start + t.products + t.results + t.memory + t.vector).max(likely) + collective,
    }
}

/// An estimate from the times of its kernels.
pub(crate) fn assembled(
    by: &'static str,
    work: &Work,
    machine: &Machine,
    tables: &Tables,
    device: &Device,
    memory: Memory,
    kernels: Vec<KernelTime>,
) -> Estimate {
    let gradients = if machine.devices() > 1 { work.bytes_of(Role::Trainable) } else { 0.0 };
    let collective = if gradients > 0.0 { machine.all_reduce(tables, gradients) } else { 0.0 };
    let device_time = range(&kernels, collective);
    // A training step gets a batch from the host; the arguments of other programs lie on the device already.
    let trains = work.arguments.iter().any(|a| a.role == Role::Trainable);
    let fed = if trains { work.bytes_of(Role::Input) * machine.devices() as f64 } else { 0.0 };
    let input = fed / machine.input_rate(tables);
    let host = match machine {
        Machine::Cpu(_) => Host::default(),
        _ => Host { dispatch: DISPATCH, feed: input, pipeline: 0.0 },
    };
    let peak_type = work.kernels.iter().filter_map(|k| k.product.as_ref()).map(|p| p.dtype).next();
    let peak = peak_type.map_or(device.flops[1], |d| device.peak(d));
    Estimate { by, device: device_time, collective, host, memory, flops: work.product_flops(), peak, kernels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_have_names_and_numbers() {
        let tables = Tables::built_in().unwrap();
        let titles = |name: &str| Machine::of(name, &tables).map(|m| (m.title(), m.devices()));
        assert_eq!(titles("H100").unwrap(), ("h100".into(), 1));
        assert_eq!(titles("8*b200").unwrap(), ("8*b200".into(), 8));
        let told = |name: &str| titles(name).unwrap_err().to_string();
        for name in ["9*h100", "0*h100", "x*h100", "h100-8", "h100:2x2", "h100-pcie"] {
            assert!(told(name).contains("1 to 8") && told(name).contains("8*h100"), "{}", told(name));
        }
        assert!(told("h10").contains("nearest: h100") && told("h10").contains("b200"), "{}", told("h10"));
        assert!(told("8xh100").contains("nearest: h100"), "{}", told("8xh100"));
        assert!(told("a10").contains("nearest: a100"), "{}", told("a10"));
        assert!(told("v5e-10").contains("no TPU slice"), "{}", told("v5e-10"));
    }

    #[test]
    fn compilers_are_told_of_slices_and_gpus() {
        let tables = Tables::built_in().unwrap();
        let ahead = |name: &str| Machine::compilable(name, &tables).unwrap().ahead(&tables).unwrap();
        assert_eq!((ahead("v4").topology.as_str(), ahead("v4").gpu), ("v4:1x1x1", None));
        let gpus = ahead("2*a100");
        assert_eq!((gpus.topology.as_str(), gpus.extents), ("2*a100", vec![1, 1, 2]));
        assert!(gpus.gpu.is_some_and(|text| text.contains("major: 8 minor: 0")));
        let cpu = Cpu { flops: 1e9, bf16_flops: 1e9, tiers: Vec::new(), threads: 1, memory: 1e9 };
        assert!(Machine::Cpu(cpu).ahead(&tables).is_err());
    }
}
