//! Prints the listing of a schedule: one line per step, then its map and bodies.

use super::kernel::{Kernel, ProgramSchedule};
use super::map::{Contraction, Map, MapLoad};
use super::storage::{Location, SlotId};
use super::strided_map::StridedStore;
use std::fmt;
use std::sync::Arc;

impl fmt::Display for ProgramSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "schedule `{}`: {} steps, arena {} bytes",
            self.name,
            self.steps.len(),
            self.arena_bytes
        )?;
        for (i, step) in self.steps.iter().enumerate() {
            let show = |slots: &[SlotId], types: &[systole_ir::TensorType]| {
                let each = slots.iter().zip(types).map(|(&s, t)| format!("{t} @{}", self.place(s)));
                each.collect::<Vec<_>>().join(", ")
            };
            let outs = show(&step.outputs, &step.output_types);
            let ins = show(&step.inputs, &step.input_types);
            let scope = if step.scope.is_empty() { String::new() } else { format!("  # {}", step.scope) };
            writeln!(f, "{i:4} {outs} = {}({ins}){scope}", step.kernel.name())?;
            if let Some(m) = step.kernel.map() {
                write_map(f, m)?;
            }
            if let Kernel::StridedMap(p) = &step.kernel {
                let to =
                    |part: &StridedStore| format!("{}{:?}+{}", part.output, &part.strides[..], part.offset);
                writeln!(f, "       to {}", p.stores.iter().map(to).collect::<Vec<_>>().join(", "))?;
            }
            let bodies: &[Arc<ProgramSchedule>] = match &step.kernel {
                Kernel::Blocks(b) => std::slice::from_ref(&b.body),
                Kernel::While { body, .. } => std::slice::from_ref(body),
                Kernel::Case { branches } => branches,
                _ => &[],
            };
            for body in bodies {
                for line in body.to_string().lines() {
                    writeln!(f, "     | {line}")?;
                }
            }
            if let Kernel::Rows(r) = &step.kernel {
                for stage in &r.stages {
                    let (ins, outs) = (&stage.inputs, &stage.outputs);
                    writeln!(f, "       {} rows: {outs:?} = {}({ins:?})", r.rows, stage.kernel.name())?;
                    if let Kernel::Map(m) | Kernel::Reduce { map: m, .. } = &stage.kernel {
                        write_map(f, m)?;
                    }
                }
            }
        }
        for (k, r) in self.results.iter().enumerate() {
            let reuse = r.reuse.map_or(String::new(), |p| format!(", into parameter {p} if donated"));
            writeln!(f, "result {k}: {} @{}{reuse}", r.ty, self.place(r.slot))?;
        }
        Ok(())
    }
}

impl ProgramSchedule {
    fn place(&self, slot: SlotId) -> String {
        match self.slots[slot].place {
            Location::Param(p) => format!("param{p}"),
            Location::Constant(c) => format!("const{c}"),
            Location::Arena(at) => format!("{at}"),
            Location::Result(k) => format!("result{k}"),
            Location::View(v) => format!("in {}", self.place(self.views[v].of)),
        }
    }
}

fn write_map(f: &mut fmt::Formatter<'_>, m: &Map) -> fmt::Result {
    if m.instrs.len() < 2 {
        return Ok(());
    }
    write!(f, "       over {}:", m.shape)?;
    for (k, load) in m.loads.iter().enumerate() {
        match load {
            MapLoad::Array { input, .. } if m.is_linear(load) => write!(f, " r{k}=in{input};")?,
            MapLoad::Array { input, strides, offset, .. } => {
                let from = if *offset == 0 { String::new() } else { format!("+{offset}") };
                write!(f, " r{k}=in{input}{:?}{from};", &strides[..])?
            }
            MapLoad::Splat { value, .. } => write!(f, " r{k}={};", value.as_f64())?,
            MapLoad::Iota { inner, size, .. } => write!(f, " r{k}=i/{inner}%{size};")?,
        }
    }
    for (k, instr) in m.instrs.iter().enumerate() {
        let args: Vec<String> = instr.args.iter().map(|a| format!("r{a}")).collect();
        let args = match (instr.contraction, &args[..]) {
            (Some(Contraction::Left), [a, b, c]) => format!("{a}·{b},{c}"),
            (Some(Contraction::Right), [a, b, c]) => format!("{c},{a}·{b}"),
            _ => args.join(","),
        };
        write!(f, " r{}={}({args});", m.loads.len() + k, instr.op.name())?;
    }
    let stores: Vec<String> = m.stores.iter().map(|s| format!("r{s}")).collect();
    writeln!(f, " → {}", stores.join(", "))
}
