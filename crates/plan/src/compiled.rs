//! The estimate from the compiler's own program: its cycles for kernels with products, bytes over bandwidth for the rest.
//!
//! Why not its cycles for the rest: they are pessimistic for kernels that memory limits (1.7 times on v5e). Why not its
//! `optimal_seconds`: each custom call counts −1 s there, and collectives count as memory traffic.

use crate::device::Device;
use crate::estimate::{Estimate, Half, KernelTime, Machine, assembled};
use crate::hlo::{Computation, Instruction, Module};
use crate::memory::{Memory, memory};
use crate::roofline::Time;
use crate::table::{Tables, Tpu};
use crate::work::Work;
use std::collections::HashMap;
use systole_ir::{Error, ErrorKind, Result};

/// What a compiler said of a program for one device; sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// A serialized `HloModuleProtoWithConfig`.
    pub hlo: &'a [u8],
    /// Arguments.
    pub arguments: f64,
    /// Results outside the memory of arguments.
    pub results: f64,
    /// Intermediate values.
    pub temporaries: f64,
    /// The program.
    pub code: f64,
    /// What a device gives, where the compiler says so.
    pub limit: Option<f64>,
}

/// The estimate of a step whose devices each do `work`, from what the compiler said of its program for a TPU.
pub fn compiled(said: &Said, work: &Work, machine: &Machine, tables: &Tables) -> Result<Estimate> {
    let Machine::Slice(slice) = machine else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "only programs for TPU slices have a compiler's estimate",
        ));
    };
    let tpu = tables.tpu(&slice.generation).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("no table has the generation `{}`", slice.generation))
    })?;
    let device = machine.device(tables, Half::Bf16)?;
    let module = Module::read(said.hlo)?;
    let entry = module.computations.get(&module.entry).ok_or_else(|| {
        Error::new(ErrorKind::Data, "the compiler's program has no entry")
            .hint("is it an HloModuleProtoWithConfig?")
    })?;
    let reader = Reader { module: &module, tpu, device: &device };
    let mut kernels = Vec::new();
    reader.add(entry, 1.0, &mut kernels);
    let memory = divided(said, work, &device);
    Ok(assembled("compiled", work, machine, tables, &device, memory, kernels))
}

/// The compiler's sums, divided as the analytic model divides them.
fn divided(said: &Said, work: &Work, device: &Device) -> Memory {
    let m = memory(work, device);
    let arguments = (m.parameters + m.optimizer + m.inputs).max(1.0);
    let between = (m.activations + m.temporaries).max(1.0);
    let a = said.arguments / arguments;
    let t = said.temporaries / between;
    let nothing = m.activations + m.temporaries == 0.0;
    Memory {
        parameters: m.parameters * a,
        optimizer: m.optimizer * a,
        inputs: m.inputs * a,
        results: said.results,
        activations: m.activations * t,
        temporaries: if nothing { said.temporaries } else { m.temporaries * t },
        code: said.code,
        limit: said.limit.unwrap_or(m.limit),
    }
}

struct Reader<'a> {
    module: &'a Module,
    tpu: &'a Tpu,
    device: &'a Device,
}

impl Reader<'_> {
    fn add(&self, c: &Computation, trips: f64, kernels: &mut Vec<KernelTime>) {
        let shapes: HashMap<u64, f64> = c.instructions.iter().map(|i| (i.id, i.shape.bytes())).collect();
        for i in &c.instructions {
            match i.opcode.as_str() {
                "while" => {
                    let body = i.called.first().and_then(|b| self.module.computations.get(b));
                    let n = trips * self.module.trips(i);
                    body.into_iter().for_each(|b| self.add(b, n, kernels));
                }
                "call" | "conditional" => {
                    let called = i.called.iter().filter_map(|b| self.module.computations.get(b));
                    // Of a conditional the longest branch is what must be planned for; a call has one.
                    let longest = called.max_by_key(|c| c.instructions.len());
                    longest.into_iter().for_each(|b| self.add(b, trips, kernels));
                }
                op if is_free(op) => {}
                _ => kernels.push(self.kernel(i, &shapes, trips)),
            }
        }
    }

    fn kernel(&self, i: &Instruction, shapes: &HashMap<u64, f64>, trips: f64) -> KernelTime {
        let read: f64 = i.operands.iter().filter_map(|o| shapes.get(o)).sum();
        let written = i.shape.bytes();
        // Slices and updates of large arrays in place touch the small array only.
        let bytes = match i.opcode.as_str() {
            "dynamic-slice" | "slice" | "gather" => 2.0 * written,
            "dynamic-update-slice" => 2.0 * i.operands.get(1).and_then(|o| shapes.get(o)).unwrap_or(&0.0),
            _ => read + written,
        };
        let memory = bytes / (self.device.bytes_per_s * self.device.memory_share);
        let clock = self.tpu.clock_mhz * 1e6;
        let time = match i.cycles.filter(|_| self.module.multiplies(i)) {
            Some(cycles) => {
                let total = cycles / clock;
                Time {
                    products: total,
                    memory: memory.min(total),
                    total,
                    floor: total.min(memory),
                    ..Time::default()
                }
            }
            None => {
                let start = self.device.start[1];
                Time { memory, start, total: memory + start, floor: memory, ..Time::default() }
            }
        };
        let name = if i.name.is_empty() { i.opcode.clone() } else { i.name.clone() };
        KernelTime { scope: String::new(), name, time, trips, bytes, flops: 0.0, padding: Vec::new() }
    }
}

/// Instructions that move nothing, or whose work their start stands for. Collectives have a model of their own.
fn is_free(opcode: &str) -> bool {
    let free = [
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
        "iota",
    ];
    let network =
        ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "send", "recv"];
    // Prefetches run beside kernels; `copy-start` and the like have their bytes in the kernel that would read them.
    free.contains(&opcode)
        || opcode.ends_with("-done")
        || opcode.ends_with("-start")
        || network.iter().any(|n| opcode.starts_with(n))
}
