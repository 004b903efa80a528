//! What a run is to have: a TPU slice, or GPUs of one machine.

use super::args::CloudArgs;
use super::facts::Facts;
use systole_ir::{Error, ErrorKind, Result};
use systole_plan::{Slice, Tables};

/// A TPU slice (or several equal ones), or GPUs of one machine.
pub(super) enum Chips {
    Tpu(Slice, &'static Facts),
    Gpu { kind: String, count: usize },
}

/// GPUs of notebooks, for which the tables of `plan` have no row.
const SMALL: [&str; 3] = ["t4", "l4", "p100"];

impl Chips {
    /// Of `--slice` and `--num-slices`.
    ///
    /// # Errors
    /// When there are no such chips, or slices that cannot be joined.
    pub fn of(args: &CloudArgs, tables: &Tables) -> Result<Chips> {
        let chips = named(&args.slice, tables).map_err(|e| e.at("--slice"))?;
        let Some(n) = args.num_slices.map(usize::from) else {
            return chips.joined();
        };
        let refused =
            |what: &str, hint: String| Err(Error::new(ErrorKind::Config, what).at("--num-slices").hint(hint));
        match chips {
            Chips::Gpu { kind, .. } => refused(
                "only TPUs have slices",
                format!("write --slice 8*{kind} for the GPUs of one machine"),
            ),
            Chips::Tpu(slice, _) if slice.slices > 1 && slice.slices != n => refused(
                "--slice names another number of slices",
                format!("write --slice {} --num-slices {n}", slice.name),
            ),
            Chips::Tpu(slice, facts) => Chips::Tpu(Slice { slices: n, ..slice }, facts).joined(),
        }
    }

    /// As `plan` calls them: `2*v5litepod-16`, `8*h100`.
    pub fn title(&self) -> String {
        match self {
            Chips::Tpu(slice, _) => slice.title(),
            Chips::Gpu { kind, count: 1 } => kind.clone(),
            Chips::Gpu { kind, count } => format!("{count}*{kind}"),
        }
    }

    /// The name that prices have: `v5e`, `h100`.
    pub fn kind(&self) -> &str {
        match self {
            Chips::Tpu(slice, _) => &slice.generation,
            Chips::Gpu { kind, .. } => kind,
        }
    }

    /// Chips of all slices.
    pub fn count(&self) -> usize {
        match self {
            Chips::Tpu(slice, _) => slice.all_chips(),
            Chips::Gpu { count, .. } => *count,
        }
    }

    /// Devices that a program sees.
    pub fn devices(&self) -> usize {
        match self {
            Chips::Tpu(slice, _) => slice.all_devices(),
            Chips::Gpu { count, .. } => *count,
        }
    }

    /// Machines of all slices, each with a process of the run.
    pub fn machines(&self) -> usize {
        match self {
            Chips::Tpu(slice, facts) => slice.slices * facts.machines(slice.chips),
            Chips::Gpu { .. } => 1,
        }
    }

    /// `4 machines of 4 chips`, where there are several.
    pub fn parts(&self) -> Option<String> {
        let Chips::Tpu(slice, facts) = self else { return None };
        let n = self.machines();
        (n > 1).then(|| format!("{n} machines of {} chips", facts.chips_of_a_machine(slice.chips)))
    }

    /// Several slices are joined machine by machine; Google joins none that have only one.
    fn joined(self) -> Result<Chips> {
        match &self {
            Chips::Tpu(slice, facts) if slice.slices > 1 && facts.machines(slice.chips) == 1 => {
                let what = format!("slices of one machine, as {}, are not joined", slice.name);
                let larger =
                    format!("one larger slice, or several of 16 chips: --slice {}:", slice.generation);
                let topology = if slice.topology.len() == 3 { "2x2x4" } else { "4x4" };
                Err(Error::new(ErrorKind::Config, what)
                    .at("--num-slices")
                    .hint(format!("take {larger}{topology}")))
            }
            _ => Ok(self),
        }
    }
}

fn named(name: &str, tables: &Tables) -> Result<Chips> {
    let (count, kind) = name.split_once('*').unwrap_or(("1", name));
    let kind = kind.trim().to_lowercase();
    let known = tables.gpu(&kind).map(|gpu| gpu.name.clone());
    if let Some(kind) = known.or_else(|| SMALL.contains(&kind.as_str()).then_some(kind)) {
        let number = count.trim().parse().ok().filter(|n| (1..=16).contains(n));
        let count = number.ok_or_else(|| {
            let e = Error::new(ErrorKind::Config, format!("`{name}` is not the GPUs of one machine"));
            e.hint(format!("write 8*{kind}: 1 to 16 of them"))
        })?;
        return Ok(Chips::Gpu { kind, count });
    }
    let slice = Slice::of(name, tables)?;
    let facts = Facts::of(&slice.generation).ok_or_else(|| {
        let what = format!("what clouds call machines with {} is not known here", slice.generation);
        Error::new(ErrorKind::Config, what).hint("take a slice of v2 to v6e or tpu7x: systole chips")
    })?;
    Ok(Chips::Tpu(slice, facts))
}
