//! Estimate from a compiled TPU program: the compiler's cycles for kernels with products, bytes over bandwidth for the
//! rest.
//!
//! The compiler's cycles are too pessimistic for memory-bound kernels (1.7 times on v5e). Its `optimal_seconds` is
//! unusable: each custom call counts −1 s, and collectives count as memory traffic.

use crate::collective::of_traffic;
use crate::device_model::DeviceModel;
use crate::estimate::{Estimate, KernelTime, assembled, uncovered};
use crate::hlo_module::{HloComputation, HloInstruction, HloShape, OptimizedHlo};
use crate::kernel_list::KernelList;
use crate::machine::{HalfType, Machine};
use crate::memory::{MemoryNeed, memory};
use crate::roofline::KernelTimeParts;
use crate::table::{ChipTables, Tpu};
use crate::traffic::traffic;
use crate::value_placement::ValuePlacement;
use std::collections::HashMap;
use systole_ir::{Result, err};
use systole_runtime::AotReport;

/// Estimates the time of a step whose devices each do `work`, from the compiler's report for a TPU.
pub fn compiled(
    said: &AotReport,
    work: &KernelList,
    machine: &Machine,
    tables: &ChipTables,
) -> Result<Estimate> {
    let Machine::Slice(slice) = machine else {
        return Err(err!(Unsupported, "compiled estimates support only TPU slices"));
    };
    let tpu = tables
        .tpu(&slice.generation)
        .ok_or_else(|| err!(Config, "the tables do not have the generation `{}`", slice.generation))?;
    let device = machine.device(tables, HalfType::Bf16)?;
    let module = OptimizedHlo::read(&said.hlo)?;
    let entry = module.computations.get(&module.entry).ok_or_else(|| {
        err!(Data, "the compiled program has no entry computation")
            .hint("check that the file is an HloModuleProtoWithConfig")
    })?;
    let reader = HloReader { module: &module, tpu, device: &device };
    let mut kernels = Vec::new();
    reader.add(entry, 1.0, &mut kernels);
    kernels.extend(uncovered(reader.beside(entry), &kernels));
    let memory = divided(said, work, &device);
    let estimate = assembled("compiled", work, machine, tables, &device, memory, kernels);
    // A sharded program contains its own collectives; for a single-device program, the gradient all-reduce is estimated
    // by a formula.
    let traffic = traffic(&said.hlo)?;
    Ok(match traffic.is_empty() {
        true => estimate,
        false => estimate.with_collective(of_traffic(slice, tables, &traffic)),
    })
}

/// Splits the compiler's memory totals into categories in the proportions of the analytic model.
fn divided(said: &AotReport, work: &KernelList, device: &DeviceModel) -> MemoryNeed {
    let m = memory(work, device, &ValuePlacement::of(work, device));
    let arguments = (m.parameters + m.optimizer + m.inputs).max(1.0);
    let between = (m.activations + m.temporaries).max(1.0);
    let told = &said.memory;
    let a = told.arguments as f64 / arguments;
    let t = told.temporaries as f64 / between;
    let nothing = m.activations + m.temporaries == 0.0;
    MemoryNeed {
        parameters: m.parameters * a,
        optimizer: m.optimizer * a,
        inputs: m.inputs * a,
        results: told.results() as f64,
        activations: m.activations * t,
        temporaries: if nothing { told.temporaries as f64 } else { m.temporaries * t },
        code: told.code as f64,
        limit: said.memory_limit.map_or(m.limit, |l| l as f64),
    }
}

struct HloReader<'a> {
    module: &'a OptimizedHlo,
    tpu: &'a Tpu,
    device: &'a DeviceModel,
}

impl HloReader<'_> {
    fn add(&self, c: &HloComputation, trips: f64, kernels: &mut Vec<KernelTime>) {
        let known: HashMap<u64, &HloInstruction> = c.instructions.iter().map(|i| (i.id, i)).collect();
        // The scalar core computes scalars in parallel with the kernels.
        let scalar = |o: &u64| known.get(o).is_none_or(|k| k.shape.is_scalar());
        let only_scalars = |i: &HloInstruction| i.shape.is_scalar() && i.operands.iter().all(scalar);
        for i in &c.instructions {
            match i.opcode.as_str() {
                "while" => {
                    let body = i.called.first().and_then(|b| self.module.computations.get(b));
                    let n = trips * self.module.trips(i);
                    body.into_iter().for_each(|b| self.add(b, n, kernels));
                }
                "call" | "conditional" => {
                    let called = i.called.iter().filter_map(|b| self.module.computations.get(b));
                    // Plan for the longest branch of a conditional; a call has one.
                    let longest = called.max_by_key(|c| c.instructions.len());
                    longest.into_iter().for_each(|b| self.add(b, trips, kernels));
                }
                op if is_free(op) || only_scalars(i) => {}
                _ => kernels.push(self.kernel(i, &known, trips)),
            }
        }
    }

    fn kernel(&self, i: &HloInstruction, known: &HashMap<u64, &HloInstruction>, trips: f64) -> KernelTime {
        let bytes = touched(i, known, HloShape::bytes);
        let memory = bytes / (self.device.bytes_per_s * self.device.memory_share);
        let start = self.device.start[1];
        let cycles = i.cycles.map(|c| c / (self.tpu.clock_mhz * 1e6));
        let products = cycles.filter(|_| self.module.multiplies(i));
        let near = (touched(i, known, HloShape::whole) - bytes).max(0.0);
        let vector = near / self.device.on_chip_bytes_per_s;
        let time = match products {
            Some(total) => KernelTimeParts {
                products: total,
                memory: memory.min(total),
                total,
                floor: total.min(memory),
                ..KernelTimeParts::default()
            },
            None => {
                let total = start + memory.max(vector);
                KernelTimeParts { memory, start, vector, total, floor: memory, ..KernelTimeParts::default() }
            }
        };
        let name = if i.name.is_empty() { i.opcode.clone() } else { i.name.clone() };
        KernelTime { scope: String::new(), name, time, trips, bytes, flops: 0.0, padding: Vec::new() }
    }

    /// Seconds of memory traffic by asynchronous copies.
    fn beside(&self, entry: &HloComputation) -> f64 {
        let copies = entry.instructions.iter().filter(|i| i.opcode == "copy-start");
        let bytes: f64 = copies.map(|i| i.made().whole()).sum();
        bytes / (self.device.bytes_per_s * self.device.memory_share)
    }
}

/// Returns the bytes that an instruction reads and writes, with arrays measured by `of`. Slices and in-place updates of
/// large arrays touch only the small array.
fn touched(i: &HloInstruction, known: &HashMap<u64, &HloInstruction>, of: fn(&HloShape) -> f64) -> f64 {
    let operand = |o: &u64| known.get(o).map_or(0.0, |k| of(&k.shape));
    match i.opcode.as_str() {
        "dynamic-slice" | "slice" | "gather" => 2.0 * of(&i.shape),
        "dynamic-update-slice" => 2.0 * i.operands.get(1).map_or(0.0, operand),
        _ => i.operands.iter().map(operand).sum::<f64>() + of(&i.shape),
    }
}

/// Whether an instruction moves no data, or is covered by its start instruction. Collectives are modeled separately.
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
    // Prefetches run in parallel with kernels; the bytes of `copy-start` etc. are counted at the kernel that reads
    // them.
    free.contains(&opcode)
        || opcode.ends_with("-done")
        || opcode.ends_with("-start")
        || network.iter().any(|n| opcode.starts_with(n))
}
