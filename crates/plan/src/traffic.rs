//! What devices exchange in one run of a compiled program: its collectives, counted.

use crate::hlo::{Computation, Instruction, Module};
use std::collections::{BTreeMap, HashMap};
use systole_ir::Result;

/// Collectives of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// HLO's name: `all-reduce`, `all-gather`, `reduce-scatter`, …
    pub op: String,
    /// How many run in one run of the program, those in loops once for each trip.
    pub count: usize,
    /// Bytes of the arrays that they work on, on one device: the gathered array, the array before it is scattered.
    pub bytes: f64,
}

const COLLECTIVES: [&str; 6] =
    ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "send"];

/// The collectives of a serialized `HloModuleProtoWithConfig`, by name.
pub fn traffic(hlo: &[u8]) -> Result<Vec<Traffic>> {
    let module = Module::read(hlo)?;
    let mut found = BTreeMap::new();
    if let Some(entry) = module.computations.get(&module.entry) {
        add(&module, entry, 1.0, &mut found);
    }
    let list = found.into_iter().map(|(op, (count, bytes))| Traffic { op: op.into(), count, bytes });
    Ok(list.collect())
}

type Found = BTreeMap<&'static str, (usize, f64)>;

fn add(module: &Module, c: &Computation, trips: f64, found: &mut Found) {
    let known: HashMap<u64, &Instruction> = c.instructions.iter().map(|i| (i.id, i)).collect();
    for i in &c.instructions {
        let trips = if i.opcode == "while" { trips * module.trips(i) } else { trips };
        if let Some(op) = collective(c, i) {
            let given: f64 = i.operands.iter().filter_map(|o| known.get(o)).map(|o| o.shape.whole()).sum();
            let entry = found.entry(op).or_default();
            entry.0 += trips as usize;
            entry.1 += trips * given.max(i.made().whole());
            continue;
        }
        let called = i.called.iter().filter_map(|c| module.computations.get(c));
        called.for_each(|c| add(module, c, trips, found));
    }
}

/// The collective that an instruction begins. `…-done` ends what `…-start` began.
fn collective(c: &Computation, i: &Instruction) -> Option<&'static str> {
    let name = i.opcode.strip_suffix("-start").unwrap_or(&i.opcode);
    let op = COLLECTIVES.into_iter().find(|op| *op == name)?;
    // The compiler's own form of a scattered sum: a sum of which only a slice is taken.
    let users = || c.instructions.iter().filter(|u| u.operands.contains(&i.id));
    let sliced =
        op == "all-reduce" && users().next().is_some() && users().all(|u| u.opcode == "dynamic-slice");
    Some(if sliced { "reduce-scatter" } else { op })
}
