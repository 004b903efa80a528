//! Workarounds for bugs and missing ops in XLA's compilers: rewrites graphs to equivalent ones. GPU bugs were observed
//! with `jax-cuda13-pjrt` 0.11.2 on an H100 (docs/results/gpu.md); XLA for CPUs lacks collective_broadcast.

use std::borrow::Cow;
use std::sync::Arc;
use systole_ir::op::{
    AllGather, Binary, Case, CollectiveBroadcast, Convert, Op, ReplicaGroups, Scatter, While,
};
use systole_ir::{DType, Graph, GraphBuilder, Literal, Node, Result, Tensor, TensorType, ValueId};

/// XLA compilers with workarounds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum XlaTarget {
    Cpu,
    Gpu,
}

/// Rewrites a graph, including bodies. For GPUs:
/// - Scatters with out-of-bounds updates write those to an added padding position, which is cut off:
///   `xla_gpu_deterministic_ops` uses linear indices, so an index out of bounds in one dimension would write to the
///   next row.
/// - Sums of bools become `or`: they wrapped around.
/// - Products of `i8` in `i32` with sizes that tensor cores do not support convert their operands: results were twice
///   too large, or did not compile.
///
/// For CPUs: collective_broadcast becomes an all_gather whose first entry is used.
pub(crate) fn mended(graph: &Graph, xla: XlaTarget) -> Result<Cow<'_, Graph>> {
    if !graph.nodes.iter().any(|n| needs(n, xla)) {
        return Ok(Cow::Borrowed(graph));
    }
    let mut new = Graph { nodes: Vec::with_capacity(graph.nodes.len()), ..graph.clone() };
    // Results of each node.
    let mut at: Vec<Vec<ValueId>> = Vec::with_capacity(graph.nodes.len());
    let moved = |v: &ValueId, at: &[Vec<ValueId>]| at[v.index()][v.out as usize];
    for node in &graph.nodes {
        let inputs = node.inputs.iter().map(|v| moved(v, &at)).collect();
        at.push(mend(Node { inputs, ..node.clone() }, xla, &mut new)?);
    }
    new.params = graph.params.iter().map(|v| moved(v, &at)).collect();
    new.results = graph.results.iter().map(|v| moved(v, &at)).collect();
    Ok(Cow::Owned(new))
}

fn needs(node: &Node, xla: XlaTarget) -> bool {
    let in_body = |g: &Arc<Graph>| g.nodes.iter().any(|n| needs(n, xla));
    match (&node.op, xla) {
        (Op::While(While { cond, body, .. }), _) => [cond, body].into_iter().any(in_body),
        (Op::Case(Case { branches }), _) => branches.iter().any(in_body),
        (Op::CollectiveBroadcast(_), XlaTarget::Cpu) => true,
        (Op::Scatter(op), XlaTarget::Gpu) => may_leak(op),
        (Op::Binary(Binary::Add), XlaTarget::Gpu) => node.outs[0].dtype == DType::Bool,
        (Op::DotGeneral(op), XlaTarget::Gpu) => op.element_type == DType::I32,
        _ => false,
    }
}

/// Whether an out-of-bounds index could alias a valid linear index. Indexing only the outermost dimension cannot.
fn may_leak(op: &Scatter) -> bool {
    op.scatter_dims_to_operand_dims[..] != [0] || !op.input_batching_dims.is_empty()
}

/// Appends the node or its replacement; returns its results.
fn mend(mut node: Node, xla: XlaTarget, new: &mut Graph) -> Result<Vec<ValueId>> {
    let whole = |g: &mut Arc<Graph>| -> Result<()> {
        if let Cow::Owned(other) = mended(g, xla)? {
            *g = Arc::new(other);
        }
        Ok(())
    };
    match &mut node.op {
        Op::While(op) => [&mut op.cond, &mut op.body].into_iter().try_for_each(whole)?,
        Op::Case(op) => op.branches.iter_mut().try_for_each(whole)?,
        Op::CollectiveBroadcast(op) if xla == XlaTarget::Cpu => {
            let gathered = gathered(op, &node.outs[0])?;
            return Ok(vec![splice(&gathered, node.inputs[0], node.scope, new)]);
        }
        _ if xla == XlaTarget::Cpu => {}
        Op::Scatter(op) if may_leak(op) => return scatter(&op.clone(), node, new),
        Op::Binary(op @ Binary::Add) if node.outs[0].dtype == DType::Bool => *op = Binary::Or,
        Op::DotGeneral(op) if op.element_type == DType::I32 => {
            for i in 0..2 {
                let ty = new.ty(node.inputs[i]).clone();
                if ty.dtype == DType::I8 && is_odd(new, &node.inputs) {
                    let outs = [ty.with_dtype(DType::I32)].into_iter().collect();
                    let inputs = [node.inputs[i]].into_iter().collect();
                    let op = Convert { to: DType::I32 }.into();
                    node.inputs[i] = ValueId::new(new.nodes.len(), 0);
                    new.nodes.push(Node { op, inputs, outs, loc: node.loc, scope: node.scope });
                }
            }
        }
        _ => {}
    }
    Ok(push(node, new))
}

/// Replaces a broadcast from a group's first device by an all_gather along a new dimension and its first entry.
/// Partition groups use device numbers, which are equal with one replica.
fn gathered(op: &CollectiveBroadcast, ty: &TensorType) -> Result<Arc<Graph>> {
    let g = GraphBuilder::new("broadcast");
    let x = g.parameter(ty.clone(), "x");
    let wide: Vec<usize> = std::iter::once(1).chain(ty.shape.iter().copied()).collect();
    let groups = ReplicaGroups { global: op.groups.channel > 0, ..op.groups.clone() };
    let all = g.emit(AllGather { groups, dim: 0 }, &[&x.reshape(&wide[..])]).remove(0);
    g.finish(&[all.slice_dim(0, 0, 1).reshape(&ty.shape)])
}

fn push(node: Node, new: &mut Graph) -> Vec<ValueId> {
    let (at, outs) = (new.nodes.len(), node.outs.len());
    new.nodes.push(node);
    (0..outs).map(|k| ValueId::new(at, k)).collect()
}

/// Scatters into operands padded by one window in the first indexed dimension.
fn scatter(op: &Scatter, mut node: Node, new: &mut Graph) -> Result<Vec<ValueId>> {
    let (half, scope, outs) = (node.inputs.len() / 2, node.scope, node.outs.clone());
    let indices = new.ty(node.inputs[half]).clone();
    let windows = windows(op, &outs[0], new.ty(node.inputs[half + 1]));
    let beside = op.scatter_dims_to_operand_dims[0];
    for k in 0..half {
        let g = GraphBuilder::new("longer");
        let x = g.parameter(outs[k].clone(), "x");
        let mut room = outs[k].shape.to_vec();
        room[beside] = windows[0];
        let room = g.full(&outs[k].with_shape(room), 0.0);
        let longer = g.finish(&[Tensor::concatenate(&[&x, &room], beside)])?;
        node.inputs[k] = splice(&longer, node.inputs[k], scope, new);
        node.outs[k] = new.ty(node.inputs[k]).clone();
    }
    let guard = beside_where_outside(op, [&outs[0], &indices], &windows)?;
    node.inputs[half] = splice(&guard, node.inputs[half], scope, new);
    let longer: Vec<TensorType> = node.outs.to_vec();
    let results = push(node, new);
    let cut = |((v, from), to): ((ValueId, &TensorType), &TensorType)| -> Result<ValueId> {
        let g = GraphBuilder::new("cut");
        let x = g.parameter(from.clone(), "x");
        let cut = g.finish(&[x.slice_dim(beside, 0, to.shape[beside])])?;
        Ok(splice(&cut, v, scope, new))
    };
    results.into_iter().zip(&longer).zip(&outs).map(cut).collect()
}

/// Returns the sizes of an update's window in the indexed dimensions.
fn windows(op: &Scatter, operand: &TensorType, updates: &TensorType) -> Vec<usize> {
    let kept = |dim: &usize| !op.inserted_window_dims.contains(dim) && !op.input_batching_dims.contains(dim);
    let all: Vec<usize> = (0..operand.rank()).filter(kept).collect();
    let window = |dim: &usize| {
        let k = all.iter().position(|w| w == dim);
        k.map_or(1, |k| updates.shape[op.update_window_dims[k]])
    };
    op.scatter_dims_to_operand_dims.iter().map(window).collect()
}

/// Whether a size is not a multiple of four, as tensor cores require for int8.
fn is_odd(new: &Graph, inputs: &[ValueId]) -> bool {
    inputs.iter().any(|v| new.ty(*v).shape.iter().any(|n| !n.is_multiple_of(4)))
}

/// Appends a graph with one parameter and one result.
fn splice(part: &Graph, argument: ValueId, scope: u32, new: &mut Graph) -> ValueId {
    let mut at = Vec::with_capacity(part.nodes.len());
    let place = |v: &ValueId, at: &[ValueId]| {
        ValueId::new(at[v.index()].index(), (at[v.index()].out + v.out) as usize)
    };
    for node in &part.nodes {
        at.push(if matches!(node.op, Op::Parameter(_)) {
            argument
        } else {
            let inputs = node.inputs.iter().map(|v| place(v, &at)).collect();
            new.nodes.push(Node { inputs, scope, ..node.clone() });
            ValueId::new(new.nodes.len() - 1, 0)
        });
    }
    place(&part.results[0], &at)
}

/// Maps index vectors whose window is not fully inside the operand to the padding position: `indices → indices`.
fn beside_where_outside(
    op: &Scatter,
    [operand, indices]: [&TensorType; 2],
    windows: &[usize],
) -> Result<Arc<Graph>> {
    let g = GraphBuilder::new("guard");
    let given = g.parameter(indices.clone(), "indices");
    // Unsigned indices from 2⁶³ on are out of bounds, like negative ones.
    let x = given.convert(if indices.dtype == DType::I32 { DType::I32 } else { DType::I64 });
    let dims = &op.scatter_dims_to_operand_dims;
    let last: Vec<i64> =
        dims.iter().zip(windows).map(|(&d, &w)| operand.shape[d] as i64 - w as i64).collect();
    let mut beside = vec![0; dims.len()];
    beside[0] = operand.shape[dims[0]] as i64;
    let along = |values: &[i64]| -> Result<Tensor> {
        let vector = g.constant(Literal::from_slice([values.len()], values)?).convert(x.dtype());
        Ok(match op.index_vector_dim == indices.rank() {
            // Scalar indices without an index dimension.
            true => vector.reshape([]).broadcast_in_dim(&x.shape().clone(), &[]),
            false => vector.broadcast_in_dim(&x.shape().clone(), &[op.index_vector_dim]),
        })
    };
    let is_off = x.less(&x.zeros_like()).or(&x.greater(&along(&last)?));
    let is_off = match op.index_vector_dim == indices.rank() {
        true => is_off,
        false => {
            let others: Vec<usize> = (0..indices.rank()).filter(|d| *d != op.index_vector_dim).collect();
            is_off.any(&[op.index_vector_dim]).broadcast_in_dim(&x.shape().clone(), &others)
        }
    };
    g.finish(&[is_off.select(&along(&beside)?, &x)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::interp;
    use systole_ir::op::{Binary, Monoid, TABLE};

    #[test]
    fn what_is_mended_computes_the_same() {
        let mut changed = 0;
        let rewritten = ["scatter", "dot_general", "while", "case", "collective_broadcast"];
        let samples = TABLE.iter().filter(|entry| rewritten.contains(&entry.name));
        for sample in samples.flat_map(|entry| (entry.samples)()) {
            let is_of_cpu = sample.graph.nodes.iter().any(|n| matches!(n.op, Op::CollectiveBroadcast(_)));
            let other =
                mended(&sample.graph, if is_of_cpu { XlaTarget::Cpu } else { XlaTarget::Gpu }).unwrap();
            assert!(other.nodes.iter().all(|n| !matches!(n.op, Op::CollectiveBroadcast(_))));
            changed += usize::from(matches!(other, Cow::Owned(_)));
            other.verify().unwrap_or_else(|e| panic!("{}: {e}", sample.label));
            for seed in 0..3 {
                let args = sample.arguments(seed);
                let args: Vec<&Literal> = args.iter().collect();
                let [was, is] = [&sample.graph, &*other].map(|g| interp::run(g, &args).unwrap());
                assert_eq!(was, is, "{}", sample.label);
            }
        }
        assert!(changed > 20, "{changed}");
    }

    #[test]
    fn no_place_is_outside_the_operand_that_is_written() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F32, [4, 5]), "x");
        let at = g.parameter(TensorType::new(DType::I32, [6, 2]), "at");
        let u = g.parameter(TensorType::new(DType::F32, [6]), "u");
        let op = Scatter {
            update_window_dims: Default::default(),
            inserted_window_dims: [0, 1].into_iter().collect(),
            input_batching_dims: Default::default(),
            scatter_indices_batching_dims: Default::default(),
            scatter_dims_to_operand_dims: [0, 1].into_iter().collect(),
            index_vector_dim: 1,
            indices_are_sorted: false,
            unique_indices: false,
            body: Monoid::Add.body(DType::F32),
        };
        let graph = g.finish(&[x.scatter(&at, &u, op)]).unwrap();
        let other = mended(&graph, XlaTarget::Gpu).unwrap();
        let scatter = other.nodes.iter().find(|n| matches!(n.op, Op::Scatter(_))).unwrap();
        assert_eq!(scatter.outs[0].shape[..], [5, 5]);
        let seen = Graph { results: vec![scatter.inputs[1]], ..other.clone().into_owned() };
        let given = [0, 7, -1, 2, 3, 4, 4, 0, 3, -1, i32::MIN, i32::MAX];
        let args = [
            Literal::zeros(x.ty().clone()),
            Literal::from_slice([6, 2], &given).unwrap(),
            Literal::zeros(u.ty().clone()),
        ];
        let got = interp::run(&seen, &args.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(got[0].to_f64s(), [4., 0., 4., 0., 3., 4., 4., 0., 4., 0., 4., 0.]);
    }

    #[test]
    fn truth_values_are_not_added_but_joined_in_branches_too() {
        let ty = TensorType::new(DType::Bool, [2]);
        let g = GraphBuilder::new("branch");
        let a = g.parameter(ty.clone(), "a");
        let branch = g.finish(&[&a + &a]).unwrap();
        let g = GraphBuilder::new("main");
        let [a, at] =
            [(ty, "a"), (TensorType::scalar(DType::I32), "at")].map(|(ty, name)| g.parameter(ty, name));
        let branches = vec![branch.clone(), branch];
        let graph = g.finish(&g.emit(Case { branches }, &[&a, &at])).unwrap();
        let other = mended(&graph, XlaTarget::Gpu).unwrap();
        let Op::Case(case) = &other.nodes.last().unwrap().op else { panic!("{other:?}") };
        assert!(case.branches.iter().all(|b| matches!(b.nodes.last().unwrap().op, Op::Binary(Binary::Or))));
    }
}
