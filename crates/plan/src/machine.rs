//! Resolves a machine name ([`Machine`]) to a TPU slice, GPUs or this computer, with its devices, hosts and
//! collectives.

use crate::collective;
use crate::device_model::{CpuCeilings, DeviceModel};
use crate::table::{ChipTables, Gpu};
use crate::tpu_slice::TpuSlice;
use systole_ir::{Error, Result, err};
use systole_runtime::AotTopology;

/// A machine that can run a program: a TPU slice, GPUs or this computer.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    /// A TPU slice, or several.
    Slice(TpuSlice),
    /// GPUs of one machine, and their number.
    Gpus(Gpu, usize),
    /// This computer.
    Cpu(CpuCeilings),
}

fn gpus(tables: &ChipTables) -> Vec<&str> {
    tables.gpus.iter().map(|g| g.name.as_str()).collect()
}

/// Whether the number is a valid GPU count of one machine.
fn is_a_few(n: &&str) -> bool {
    n.parse::<usize>().is_ok_and(|n| (1..=8).contains(&n))
}

/// Error for an unknown machine, with the GPUs that share the longest prefix.
fn unknown(name: &str, family: &str, tables: &ChipTables) -> Error {
    let family = family.trim_start_matches(|c: char| c.is_ascii_digit() || c == 'x');
    let mut near = gpus(tables);
    let common = |gpu: &str| family.bytes().zip(gpu.bytes()).take_while(|(a, b)| a == b).count();
    near.sort_by_key(|gpu| std::cmp::Reverse(common(gpu)));
    err!(Config, "unknown TPU slice or GPU `{name}`")
        .because(format!("the available GPUs are {}", gpus(tables).join(", ")))
        .hint(format!(
            "did you mean {}? Write several GPUs as 8*h100, slices as v5e-8 or v5e:2x2",
            near[..near.len().min(2)].join(", ")
        ))
}

impl Machine {
    /// Resolves a machine name: a slice, `h100` or `8*h100`.
    pub fn of(name: &str, tables: &ChipTables) -> Result<Machine> {
        let (count, rest) = match name.split_once('*') {
            Some((n, rest)) => (n.trim().parse::<usize>().ok(), rest.trim()),
            None => (Some(1), name.trim()),
        };
        let rest = rest.to_lowercase();
        let (family, size) = rest.split_once([':', '-']).map_or((rest.as_str(), None), |(f, s)| (f, Some(s)));
        let Some(gpu) = tables.gpu(family) else {
            // A name in the form of a slice is treated as a slice.
            let a_slice = size.is_some() || tables.tpu(family).is_some();
            return TpuSlice::of(name, tables).map(Machine::Slice).map_err(|e| match a_slice {
                true => e.because(format!(
                    "the name is not a GPU of the tables either; available GPUs: {}",
                    gpus(tables).join(", ")
                )),
                false => unknown(name, family, tables),
            });
        };
        let count = count.filter(|n| size.is_none() && (1..=8).contains(n)).ok_or_else(|| {
            err!(Config, "expected GPUs of one machine, got `{name}`")
                .because("GPUs of several machines are not supported")
                .hint(format!(
                    "use 1 to 8 GPUs, such as {0} or {1}*{0}",
                    gpu.name,
                    size.filter(is_a_few).unwrap_or("8")
                ))
        })?;
        Ok(Machine::Gpus(gpu.clone(), count))
    }

    /// Like [`Machine::of`], but also accepts the slices of [`TpuSlice::compilable`].
    pub fn compilable(name: &str, tables: &ChipTables) -> Result<Machine> {
        let unsold = || TpuSlice::compilable(name, tables).map(Machine::Slice);
        Machine::of(name, tables).or_else(|refused| unsold().map_err(|_| refused))
    }

    /// Returns the machine's target for ahead-of-time compilation; this computer has none.
    ///
    /// # Errors
    /// If the tables lack data for the compiler.
    pub fn ahead(&self, tables: &ChipTables) -> Result<AotTopology> {
        match self {
            Machine::Slice(slice) => Ok(slice.ahead(tables)),
            Machine::Gpus(gpu, count) => gpu.ahead(*count),
            Machine::Cpu(_) => {
                Err(err!(Unsupported, "ahead-of-time compilation is not available for this CPU"))
            }
        }
    }

    /// Name of the machine in the plan's table.
    pub fn title(&self) -> String {
        match self {
            Machine::Slice(s) => s.title(),
            Machine::Gpus(g, 1) => g.name.clone(),
            Machine::Gpus(g, n) => format!("{n}*{}", g.name),
            Machine::Cpu(_) => "this CPU".into(),
        }
    }

    /// Number of devices of the machine that the batch is split over.
    pub fn devices(&self) -> usize {
        match self {
            Machine::Slice(s) => s.all_devices(),
            Machine::Gpus(_, n) => *n,
            Machine::Cpu(_) => 1,
        }
    }

    /// Name of the machine in the price table and number of billed chips; `None` for this computer.
    pub fn billed(&self) -> Option<(&str, usize)> {
        match self {
            Machine::Slice(s) => Some((&s.generation, s.all_chips())),
            Machine::Gpus(g, n) => Some((&g.name, *n)),
            Machine::Cpu(_) => None,
        }
    }

    /// Power of all chips of the machine in watts, if published.
    pub fn watts(&self, tables: &ChipTables) -> Option<f64> {
        match self {
            Machine::Slice(s) => Some(tables.tpu(&s.generation)?.watts? * s.all_chips() as f64),
            Machine::Gpus(g, n) => Some(g.watts * *n as f64),
            Machine::Cpu(_) => None,
        }
    }

    /// Number of hosts that provide the batch.
    pub fn hosts(&self) -> usize {
        match self {
            Machine::Slice(s) => s.hosts * s.slices,
            Machine::Gpus(..) | Machine::Cpu(_) => 1,
        }
    }

    /// Returns the performance model of one device of the machine.
    pub fn device(&self, tables: &ChipTables, half: HalfType) -> Result<DeviceModel> {
        Ok(match self {
            Machine::Slice(s) => {
                DeviceModel::tpu(tables.tpu(&s.generation).ok_or_else(|| {
                    err!(Config, "the tables do not have the generation `{}`", s.generation)
                })?)
            }
            Machine::Gpus(g, _) => DeviceModel::gpu(g, half == HalfType::F16),
            Machine::Cpu(cpu) => DeviceModel::cpu(cpu),
        })
    }

    /// Seconds for an all-reduce of `bytes` per device.
    pub(crate) fn all_reduce(&self, tables: &ChipTables, bytes: f64) -> f64 {
        match self {
            Machine::Slice(s) => collective::all_reduce(s, tables, bytes),
            Machine::Gpus(_, 1) | Machine::Cpu(_) => 0.0,
            // A ring over all links: 2 (n − 1) / n of the bytes pass each GPU.
            Machine::Gpus(g, n) => {
                2.0 * bytes * (*n as f64 - 1.0) / *n as f64 / (g.link_gb_per_s * 1e9 * 0.8) + 20e-6
            }
        }
    }

    /// Bytes per second from the hosts to the devices.
    pub(crate) fn input_rate(&self, tables: &ChipTables) -> f64 {
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

/// Element type of 16-bit matrix factors: bf16 or f16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HalfType {
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_have_names_and_numbers() {
        let tables = ChipTables::built_in().unwrap();
        let titles = |name: &str| Machine::of(name, &tables).map(|m| (m.title(), m.devices()));
        assert_eq!(titles("H100").unwrap(), ("h100".into(), 1));
        assert_eq!(titles("8*b200").unwrap(), ("8*b200".into(), 8));
        let told = |name: &str| titles(name).unwrap_err().to_string();
        for name in ["9*h100", "0*h100", "x*h100", "h100-8", "h100:2x2", "h100-pcie"] {
            assert!(told(name).contains("1 to 8") && told(name).contains("8*h100"), "{}", told(name));
        }
        assert!(told("h10").contains("h100") && told("h10").contains("b200"), "{}", told("h10"));
        assert!(told("8xh100").contains("h100"), "{}", told("8xh100"));
        assert!(told("a10").contains("a100"), "{}", told("a10"));
        assert!(told("v5e-10").contains("unknown TPU slice"), "{}", told("v5e-10"));
    }

    #[test]
    fn compilers_are_told_of_slices_and_gpus() {
        let tables = ChipTables::built_in().unwrap();
        let ahead = |name: &str| Machine::compilable(name, &tables).unwrap().ahead(&tables).unwrap();
        assert_eq!((ahead("v4").topology.as_str(), ahead("v4").gpu), ("v4:1x1x1", None));
        let gpus = ahead("2*a100");
        assert_eq!((gpus.topology.as_str(), gpus.extents), ("2*a100", vec![1, 1, 2]));
        assert!(gpus.gpu.is_some_and(|text| text.contains("major: 8 minor: 0")));
        let cpu = CpuCeilings { flops: 1e9, bf16_flops: 1e9, tiers: Vec::new(), threads: 1, memory: 1e9 };
        assert!(Machine::Cpu(cpu).ahead(&tables).is_err());
    }
}
