//! The verifier: re-infers every type. Passes call it between stages in debug builds and tests.

use super::{Graph, Op};
use systole_base::{Error, ErrorKind, Result, TensorType};

impl Graph {
    /// Checks that operands exist before they are used, that every op's constraints hold and that stored types are
    /// the inferred ones; bodies included.
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
                        "operand %{}:{} is not made before it is used",
                        v.node, v.out
                    )));
                }
            }
            let args: Vec<&TensorType> = node.inputs.iter().map(|&v| self.ty(v)).collect();
            let outs =
                node.op.rule().infer(&args).map_err(|c| broken(format!("({}) {}", c.label, c.message)))?;
            if outs != node.outs {
                return Err(broken(format!("stored types {:?} are not the inferred {outs:?}", node.outs)));
            }
            for region in node.op.rule().regions() {
                region.verify()?;
            }
        }
        for (index, p) in self.params.iter().enumerate() {
            if !matches!(&self.nodes[p.index()].op, Op::Parameter(q) if q.index == index) {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!("parameter {index} of `{}` is misplaced", self.name),
                ));
            }
        }
        match self.results.iter().find(|r| r.index() >= self.nodes.len()) {
            Some(r) => Err(Error::new(
                ErrorKind::Graph,
                format!("result %{} of `{}` does not exist", r.node, self.name),
            )),
            None => Ok(()),
        }
    }
}
