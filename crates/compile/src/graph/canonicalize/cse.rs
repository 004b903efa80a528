//! Common-subexpression elimination: computes equal ops on equal operands once.
//!
//! Every op is a pure function; even random bits depend only on their state operand. So equality of op and operands
//! suffices.

use crate::graph::rewrite::{NodeResults, rebuild};
use smallvec::SmallVec;
use std::collections::HashMap;
use systole_ir::{Graph, Op, ValueId};

/// Runs common-subexpression elimination (CSE).
pub fn run(graph: &Graph) -> Graph {
    let mut seen: HashMap<(Op, SmallVec<[ValueId; 4]>), u32> = HashMap::new();
    let mut made = 0u32;
    rebuild(graph, |_, _, node, inputs| {
        if !matches!(node.op, Op::Parameter(_)) {
            let key = (node.op.clone(), SmallVec::from_slice(inputs));
            if let Some(&first) = seen.get(&key) {
                return Some(
                    (0..node.outs.len())
                        .map(|k| ValueId { node: first, out: k as u32 })
                        .collect::<NodeResults>(),
                );
            }
            seen.insert(key, made);
        }
        made += 1;
        None
    })
}
