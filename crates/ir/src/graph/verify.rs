//! Graph verifier: re-infers all types. Runs after each pass in debug builds and tests.

use super::{Graph, Op};
use systole_base::{Error, ErrorKind, Result, TensorType, err};

impl Graph {
    /// Verifies a graph: values are defined before they are used, every op satisfies its constraints, and stored types
    /// match the inferred ones. Includes nested bodies.
    pub fn verify(&self) -> Result<()> {
        for (i, node) in self.nodes.iter().enumerate() {
            let broken = |what: String| {
                Error::new(ErrorKind::Graph, what).at(format!(
                    "node %{i} {} of `{}`",
                    node.op.name(),
                    self.name
                ))
            };
            for v in &node.inputs {
                if v.index() >= i || v.out as usize >= self.nodes[v.index()].outs.len() {
                    return Err(broken(format!(
                        "operand %{}:{} is used before it is defined",
                        v.node, v.out
                    )));
                }
            }
            let args: Vec<&TensorType> = node.inputs.iter().map(|&v| self.ty(v)).collect();
            let outs =
                node.op.rule().infer(&args).map_err(|c| broken(format!("({}) {}", c.label, c.message)))?;
            if outs != node.outs {
                return Err(broken(format!("stored types {:?} differ from inferred {outs:?}", node.outs)));
            }
            for region in node.op.rule().regions() {
                region.verify()?;
            }
        }
        for (index, p) in self.params.iter().enumerate() {
            if !matches!(&self.nodes[p.index()].op, Op::Parameter(q) if q.index == index) {
                return Err(err!(Graph, "parameter {index} of `{}` is at the wrong position", self.name));
            }
        }
        match self.results.iter().find(|r| r.index() >= self.nodes.len()) {
            Some(r) => Err(err!(Graph, "result %{} of `{}` does not exist", r.node, self.name)),
            None => Ok(()),
        }
    }
}
