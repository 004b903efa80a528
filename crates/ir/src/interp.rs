//! Reference interpreter: evaluates each node with its op's naive `eval`. Slow; serves as test oracle for backends.

use crate::ensure;
use crate::graph::{Graph, MAX_DEPTH, Op, While, too_deep};
use crate::op::{DeviceCounts, agreed};
use systole_base::{Literal, Result};

pub use crate::graph::{EvalCx, check_args};

/// Interprets a graph on arrays with the types of its parameters; returns its results.
pub fn run(graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
    EvalCx::default().run(graph, args)
}

/// Runs one program on several devices in lockstep; takes the arguments and returns the results of each device. Loops
/// and branches with collectives must run the same iterations and branches on all devices.
///
/// ```
/// use systole_ir::{interp, op::DeviceCounts, text, Literal};
/// let program = text::parse(r#"module @m { func.func public @main(%arg0: tensor<f32>) -> (tensor<f32>) {
///   %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
///     ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
///       %1 = "stablehlo.add"(%arg1, %arg2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
///       "stablehlo.return"(%1) : (tensor<f32>) -> ()
///   }) : (tensor<f32>) -> tensor<f32>
///   return %0 : tensor<f32>
/// } }"#)?;
/// let [a, b] = [1.0, 2.0].map(|v| Literal::scalar(systole_ir::DType::F32, v));
/// let out = interp::run_devices(&program, DeviceCounts::replicas(2), &[vec![&a], vec![&b]])?;
/// assert_eq!(out[1][0].to_f32s(), [3.0]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn run_devices(
    graph: &Graph,
    devices: DeviceCounts,
    args: &[Vec<&Literal>],
) -> Result<Vec<Vec<Literal>>> {
    for own in args {
        check_args(graph, &own.iter().map(|a| a.ty()).collect::<Vec<_>>())?;
    }
    in_step(graph, devices, args, 0)
}

fn in_step(
    graph: &Graph,
    devices: DeviceCounts,
    args: &[Vec<&Literal>],
    depth: usize,
) -> Result<Vec<Vec<Literal>>> {
    ensure!(depth != MAX_DEPTH, too_deep());
    let mut values: Vec<Vec<Vec<Literal>>> = vec![Vec::new(); devices.count()];
    for node in &graph.nodes {
        let inputs: Vec<Vec<&Literal>> = values
            .iter()
            .map(|own| node.inputs.iter().map(|v| &own[v.index()][v.out as usize]).collect())
            .collect();
        let outs: Vec<Vec<Literal>> = match (&node.op, node.op.collective()) {
            (Op::Parameter(p), _) => args.iter().map(|own| vec![own[p.index].clone()]).collect(),
            (_, Some(op)) => op.together(devices, &inputs)?.into_iter().map(|l| vec![l]).collect(),
            (Op::While(w), None) if node.op.meets() => loop_in_step(w, devices, &inputs, depth + 1)?,
            (Op::Case(c), None) if node.op.meets() => {
                let index = agreed(inputs.iter().filter_map(|own| Some(own.last()?.get(0))))?;
                let captures: Vec<Vec<&Literal>> =
                    inputs.iter().map(|own| own[..own.len() - 1].to_vec()).collect();
                in_step(&c.branches[c.taken(index)], devices, &captures, depth + 1)?
            }
            (op, None) => {
                let eval = |x: &Vec<&Literal>| op.rule().eval(&mut EvalCx::default(), x, &node.outs);
                inputs.iter().map(eval).collect::<Result<_>>()?
            }
        };
        values.iter_mut().zip(outs).for_each(|(own, outs)| own.push(outs));
    }
    let results = |own: &Vec<Vec<Literal>>| {
        graph.results.iter().map(|r| own[r.index()][r.out as usize].clone()).collect()
    };
    Ok(values.iter().map(results).collect())
}

fn loop_in_step(
    w: &While,
    devices: DeviceCounts,
    inputs: &[Vec<&Literal>],
    depth: usize,
) -> Result<Vec<Vec<Literal>>> {
    let mut state: Vec<Vec<Literal>> =
        inputs.iter().map(|own| own[w.captures..].iter().map(|&l| l.clone()).collect()).collect();
    loop {
        let captures = inputs.iter().map(|own| &own[..w.captures]);
        let all: Vec<Vec<&Literal>> =
            captures.zip(&state).map(|(c, s)| c.iter().copied().chain(s).collect()).collect();
        let said = in_step(&w.cond, devices, &all, depth)?;
        if !agreed(said.iter().map(|own| own[0].get(0)))?.as_bool() {
            return Ok(state);
        }
        state = in_step(&w.body, devices, &all, depth)?;
    }
}
