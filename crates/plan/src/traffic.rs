//! Lists the collectives of a compiled program, with the number of runs and the bytes exchanged.

use crate::hlo_module::{HloComputation, HloInstruction, OptimizedHlo};
use std::collections::{BTreeMap, HashMap, HashSet};
use systole_ir::Result;

/// Collectives of one kind in a compiled program: number of runs and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTraffic {
    /// HLO opcode: `all-reduce`, `all-gather`, `reduce-scatter`, …
    pub op: String,
    /// Number of executions per program run, including loop iterations.
    pub count: usize,
    /// Total bytes of the full arrays on one device: gathered, or before the scatter.
    pub bytes: f64,
}

const COLLECTIVES: [&str; 6] =
    ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "send"];

/// Returns the collectives of a serialized `HloModuleProtoWithConfig`, by name.
pub fn traffic(hlo: &[u8]) -> Result<Vec<CollectiveTraffic>> {
    let module = OptimizedHlo::read(hlo)?;
    let mut counted = CollectiveCount { module: &module, seen: HashSet::new(), found: BTreeMap::new() };
    if let Some(entry) = module.computations.get(&module.entry) {
        counted.add(entry, 1.0);
    }
    let list = counted.found.into_iter().map(|(op, (count, bytes))| CollectiveTraffic {
        op: op.into(),
        count,
        bytes,
    });
    Ok(list.collect())
}

struct CollectiveCount<'a> {
    module: &'a OptimizedHlo,
    seen: HashSet<(&'static str, u64)>,
    found: BTreeMap<&'static str, (usize, f64)>,
}

impl CollectiveCount<'_> {
    fn add(&mut self, c: &HloComputation, trips: f64) {
        let known: HashMap<u64, &HloInstruction> = c.instructions.iter().map(|i| (i.id, i)).collect();
        for i in &c.instructions {
            let trips = if i.opcode == "while" { trips * self.module.trips(i) } else { trips };
            let Some(op) = collective(c, i) else {
                let called = i.called.iter().filter_map(|c| self.module.computations.get(c));
                called.for_each(|c| self.add(c, trips));
                continue;
            };
            // An asynchronous collective occurs in several computations: its start, the overlapped work, its end.
            if i.channel.is_some_and(|channel| !self.seen.insert((op, channel))) {
                continue;
            }
            let given: f64 = i.operands.iter().filter_map(|o| known.get(o)).map(|o| o.shape.whole()).sum();
            let entry = self.found.entry(op).or_default();
            entry.0 += trips as usize;
            entry.1 += trips * given.max(i.made().whole());
        }
    }
}

/// Returns the collective that an instruction starts; `…-done` ends what `…-start` started.
fn collective(c: &HloComputation, i: &HloInstruction) -> Option<&'static str> {
    let name = i.opcode.strip_suffix("-start").unwrap_or(&i.opcode);
    let op = COLLECTIVES.into_iter().find(|op| *op == name)?;
    // libtpu's own form: an all-reduce followed by a slice of its result in the same computation.
    let scattered = op == "all-reduce" && c.name.starts_with("all-reduce-scatter");
    Some(if scattered { "reduce-scatter" } else { op })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    }

    fn number(number: u64, value: u64) -> Vec<u8> {
        [varint(number << 3), varint(value)].concat()
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    }

    /// `f32[n]`
    fn array(n: u64) -> Vec<u8> {
        [number(2, 11), number(3, n)].concat()
    }

    fn instruction(opcode: &str, shape: &[u8], id: u64, more: &[Vec<u8>]) -> Vec<u8> {
        field(2, &[field(2, opcode.as_bytes()), field(3, shape), number(35, id), more.concat()].concat())
    }

    fn computation(name: &str, id: u64, instructions: &[Vec<u8>]) -> Vec<u8> {
        field(3, &[field(1, name.as_bytes()), instructions.concat(), number(5, id)].concat())
    }

    #[test]
    fn collectives_are_counted_once_and_in_loops_once_a_trip() {
        let gather = |id| instruction("all-gather", &array(64), id, &[number(26, 5)]);
        let constant = instruction("constant", &number(2, 4), 20, &[field(8, &number(4, 3))]);
        let pair = [field(4, &array(8)), field(4, &array(32))].concat();
        let entry = [
            instruction("parameter", &array(64), 1, &[]),
            instruction("all-reduce", &array(16), 2, &[number(26, 1)]),
            instruction("fusion", &array(64), 3, &[number(38, 2)]),
            instruction("fusion", &array(64), 4, &[number(38, 3)]),
            instruction("fusion", &array(4), 5, &[number(38, 4)]),
            instruction("while", &array(4), 6, &[number(38, 5), number(38, 6)]),
            instruction("all-gather-start", &pair, 7, &[number(26, 9)]),
            instruction("all-gather-done", &array(32), 8, &[]),
        ];
        let module = [
            computation("main", 1, &entry),
            computation("begin", 2, &[gather(10)]),
            computation("end", 3, &[gather(11)]),
            computation(
                "all-reduce-scatter.2",
                4,
                &[instruction("all-reduce", &array(100), 12, &[number(26, 1)])],
            ),
            computation("body", 5, &[instruction("collective-permute", &array(2), 13, &[number(26, 1)])]),
            computation("condition", 6, &[constant]),
            number(6, 1),
        ];
        let told = traffic(&field(1, &module.concat())).unwrap();
        let told: Vec<_> = told.iter().map(|t| (t.op.as_str(), t.count, t.bytes)).collect();
        let expected = [
            ("all-gather", 2, 4.0 * 96.0),
            ("all-reduce", 1, 4.0 * 16.0),
            ("collective-permute", 3, 3.0 * 4.0 * 2.0),
            ("reduce-scatter", 1, 4.0 * 100.0),
        ];
        assert_eq!(told, expected);
        assert!(traffic(&[0x0a, 0x7f]).is_err());
    }
}
