//! Hardware that a cloud job requests: a TPU slice, GPUs of one machine, or CPU machines.

use crate::CloudOptions;
use systole_ir::{Error, ErrorKind, Result, err};
use systole_plan::{ChipTables, CloudNames, TpuSlice};

/// A TPU slice (or several equal ones), GPUs of one machine, or CPU cores per machine.
pub(super) enum RequestedChips {
    Tpu(TpuSlice, Box<CloudNames>),
    Gpu { kind: String, count: usize },
    Cpu { cores: usize, machines: usize },
}

/// Name of CPUs on the command line.
const CPU: &str = "cpu";
/// Upper limit for the cores of a machine.
const MOST_CORES: usize = 1024;
/// GPUs of notebook services that the tables of `plan` do not list.
const SMALL: [&str; 3] = ["t4", "l4", "p100"];

impl RequestedChips {
    /// Parses `--slice`, `--num-slices` and `--nodes` to the hardware that a cloud job requests.
    ///
    /// # Errors
    /// If the chips are unknown, or the slices or machines cannot be joined.
    pub fn of(args: &CloudOptions, tables: &ChipTables) -> Result<RequestedChips> {
        let chips = named(&args.slice, tables).map_err(|e| e.at("--slice"))?;
        let chips = chips.on(args.nodes.map_or(1, usize::from))?;
        let Some(n) = args.num_slices.map(usize::from) else { return chips.joined() };
        let refused = |what: &str, hint: String| {
            Err(Error::new(ErrorKind::Config, what).at("--num-slices").hint_command(hint))
        };
        match chips {
            RequestedChips::Gpu { kind, .. } => refused(
                "only TPUs have slices",
                format!("for the GPUs of one machine write --slice 8*{kind}"),
            ),
            RequestedChips::Cpu { .. } => {
                refused("only TPUs have slices", format!("for several SLURM machines pass --nodes {n}"))
            }
            RequestedChips::Tpu(slice, _) if slice.slices > 1 && slice.slices != n => refused(
                "--slice and --num-slices give different numbers of slices",
                format!("write --slice {} --num-slices {n}", slice.name),
            ),
            RequestedChips::Tpu(slice, cloud) => {
                RequestedChips::Tpu(TpuSlice { slices: n, ..slice }, cloud).joined()
            }
        }
    }

    /// Name of the requested chips as in `systole plan`: `2*v5litepod-16`, `8*h100`.
    pub fn title(&self) -> String {
        match self {
            RequestedChips::Tpu(slice, _) => slice.title(),
            RequestedChips::Gpu { kind, count: 1 } => kind.clone(),
            RequestedChips::Gpu { kind, count } => format!("{count}*{kind}"),
            RequestedChips::Cpu { cores, .. } => format!("{cores}*cpu"),
        }
    }

    /// Name of the chips in the price table: `v5e`, `h100`.
    pub fn kind(&self) -> &str {
        match self {
            RequestedChips::Tpu(slice, _) => &slice.generation,
            RequestedChips::Gpu { kind, .. } => kind,
            RequestedChips::Cpu { .. } => CPU,
        }
    }

    /// Number of chips in all slices.
    pub fn count(&self) -> usize {
        match self {
            RequestedChips::Tpu(slice, _) => slice.all_chips(),
            RequestedChips::Gpu { count, .. } => *count,
            RequestedChips::Cpu { cores, machines } => cores * machines,
        }
    }

    /// Number of devices that a program sees on the requested chips.
    pub fn devices(&self) -> usize {
        match self {
            RequestedChips::Tpu(slice, _) => slice.all_devices(),
            RequestedChips::Gpu { count, .. } => *count,
            RequestedChips::Cpu { machines, .. } => *machines,
        }
    }

    /// Number of machines of all slices; each runs a process.
    pub fn machines(&self) -> usize {
        match self {
            RequestedChips::Tpu(slice, cloud) => slice.slices * cloud.machines(slice.chips),
            RequestedChips::Gpu { .. } => 1,
            RequestedChips::Cpu { machines, .. } => *machines,
        }
    }

    /// Formats the request as `4 machines of 4 chips` if there are several machines.
    pub fn parts(&self) -> Option<String> {
        let each = match self {
            RequestedChips::Tpu(slice, cloud) => format!("{} chips", cloud.chips_of_a_machine(slice.chips)),
            RequestedChips::Gpu { .. } => return None,
            RequestedChips::Cpu { cores, .. } => format!("{cores} cores"),
        };
        let n = self.machines();
        (n > 1).then(|| format!("{n} machines of {each}"))
    }

    /// Applies `--nodes`. Only CPU machines can be joined this way, by Systole's own plugin.
    fn on(self, machines: usize) -> Result<RequestedChips> {
        let refused = |what: String, hint: String| {
            Err(Error::new(ErrorKind::Unsupported, what).at("--nodes").hint_command(hint))
        };
        match self {
            RequestedChips::Cpu { cores, .. } => Ok(RequestedChips::Cpu { cores, machines }),
            chips if machines == 1 => Ok(chips),
            RequestedChips::Gpu { kind, .. } => refused(
                format!("{kind} GPUs of {machines} machines cannot be joined"),
                format!(
                    "use the GPUs of one machine with --slice 8*{kind}, or CPUs with --slice 16*cpu --nodes {machines}"
                ),
            ),
            RequestedChips::Tpu(..) => refused(
                "the name of a TPU slice determines its number of machines".into(),
                "remove --nodes, and name a larger slice".into(),
            ),
        }
    }

    /// Checks that slices can be joined: Google joins only slices of several machines.
    fn joined(self) -> Result<RequestedChips> {
        match &self {
            RequestedChips::Tpu(slice, cloud) if slice.slices > 1 && cloud.machines(slice.chips) == 1 => {
                let what = format!("slices of one machine, such as {}, cannot be joined", slice.name);
                let larger =
                    format!("one larger slice, or several of 16 chips: --slice {}:", slice.generation);
                let topology = if slice.topology.len() == 3 { "2x2x4" } else { "4x4" };
                Err(Error::new(ErrorKind::Config, what)
                    .at("--num-slices")
                    .hint_command(format!("use {larger}{topology}")))
            }
            _ => Ok(self),
        }
    }
}

fn named(name: &str, tables: &ChipTables) -> Result<RequestedChips> {
    let (count, kind) = name.split_once('*').unwrap_or(("1", name));
    let kind = kind.trim().to_lowercase();
    if kind == CPU {
        let number = count.trim().parse().ok().filter(|n| (1..=MOST_CORES).contains(n));
        let cores = number.ok_or_else(|| {
            let e = err!(Config, "expected a number of cores, got `{name}`");
            e.hint_command("write 16*cpu for 16 cores")
        })?;
        return Ok(RequestedChips::Cpu { cores, machines: 1 });
    }
    let known = tables.gpu(&kind).map(|gpu| gpu.name.clone());
    if let Some(kind) = known.or_else(|| SMALL.contains(&kind.as_str()).then_some(kind)) {
        let number = count.trim().parse().ok().filter(|n| (1..=16).contains(n));
        let count = number.ok_or_else(|| {
            let e = err!(Config, "expected the GPUs of one machine, got `{name}`");
            e.hint_command(format!("write 8*{kind}, with 1 to 16 GPUs"))
        })?;
        return Ok(RequestedChips::Gpu { kind, count });
    }
    if let Some(meant) = gpus_meant(name, tables) {
        let e = err!(Config, "`{name}` is not a TPU slice");
        return Err(e.because("GPUs are written with an asterisk").hint_command(format!("write {meant}")));
    }
    let slice = TpuSlice::of(name, tables)?;
    let cloud = tables.tpu(&slice.generation).and_then(|tpu| tpu.cloud.clone()).ok_or_else(|| {
        err!(Config, "the cloud machine types of {} are unknown", slice.generation)
            .hint_command("use a slice of v2 to v6e or tpu7x; list all slices with `systole chips`")
    })?;
    Ok(RequestedChips::Tpu(slice, Box::new(cloud)))
}

/// Corrects GPU names written in another form: `h100-8` and `8xh100` mean `8*h100`.
fn gpus_meant(name: &str, tables: &ChipTables) -> Option<String> {
    let lower = name.trim().to_lowercase();
    let is_gpu = |kind: &str| tables.gpu(kind).is_some() || SMALL.contains(&kind);
    let parts = ['-', ':', 'x'].into_iter().filter_map(|mark| lower.split_once(mark));
    let (count, kind) = parts.flat_map(|(a, b)| [(b, a), (a, b)]).find(|(_, kind)| is_gpu(kind.trim()))?;
    let count = count.trim().parse().ok().filter(|n| (1..=16).contains(n)).unwrap_or(8);
    Some(format!("{count}*{}", kind.trim()))
}
