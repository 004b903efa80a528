//! The reference interpreter: every node by its op's naive `eval`. Slow on purpose; the oracle for backends.

use crate::graph::Graph;
use crate::op::{Devices, Op, While, agreed};
use systole_base::{Error, ErrorKind, Literal, Result, ResultExt, Scalar, TensorType};

/// What `eval` rules may use besides their operands: running bodies.
#[derive(Default)]
pub struct EvalCx {
    depth: usize,
}

/// Bodies nested deeper than this are refused: hostile text must not overflow the stack.
const MAX_DEPTH: usize = 64;

impl EvalCx {
    /// Runs a body on arrays.
    pub fn run(&mut self, graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep());
        }
        self.depth += 1;
        let result = run_nodes(self, graph, args);
        self.depth -= 1;
        result
    }

    /// Runs a body of rank-0 parameters and results on single elements.
    pub fn run_scalars(&mut self, graph: &Graph, args: &[Scalar]) -> Result<Vec<Scalar>> {
        if let Some(values) = run_elementwise(graph, args) {
            return Ok(values);
        }
        let arrays: Vec<Literal> = graph
            .params
            .iter()
            .zip(args)
            .map(|(&p, &s)| Literal::splat(TensorType::scalar(graph.ty(p).dtype), s))
            .collect();
        let refs: Vec<&Literal> = arrays.iter().collect();
        Ok(self.run(graph, &refs)?.iter().map(|l| l.get(0)).collect())
    }
}

/// The common scalar bodies without arrays in between; `None` when an op is not of the simple families.
fn run_elementwise(graph: &Graph, args: &[Scalar]) -> Option<Vec<Scalar>> {
    let mut values: Vec<Scalar> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let arg = |k: usize| values[node.inputs[k].index()];
        let dtype = node.outs[0].dtype;
        values.push(match &node.op {
            Op::Parameter(p) => args[p.index],
            Op::Constant(c) => c.value.get(0),
            Op::Binary(op) => op.apply(dtype, arg(0), arg(1)),
            Op::Unary(op) => op.apply(graph.ty(node.inputs[0]).dtype, arg(0)),
            Op::Compare(op) => Scalar::Bool(op.apply(arg(0), arg(1))),
            Op::Select(_) => arg(if arg(0).as_bool() { 1 } else { 2 }),
            Op::Convert(op) => arg(0).convert_to(op.to),
            _ => return None,
        });
    }
    Some(graph.results.iter().map(|r| values[r.index()]).collect())
}

/// Runs a graph on arrays of its parameters' types and returns its results.
pub fn run(graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
    EvalCx::default().run(graph, args)
}

/// Runs one program on several devices in lock-step: each device's arguments in, each device's results out. Loops and
/// branches with collectives take the same way on all devices, or fail.
///
/// ```
/// use systole_ir::{interp, op::Devices, text, Literal};
/// let program = text::parse(r#"module @m { func.func public @main(%arg0: tensor<f32>) -> (tensor<f32>) {
///   %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
///     ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
///       %1 = "stablehlo.add"(%arg1, %arg2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
///       "stablehlo.return"(%1) : (tensor<f32>) -> ()
///   }) : (tensor<f32>) -> tensor<f32>
///   return %0 : tensor<f32>
/// } }"#)?;
/// let [a, b] = [1.0, 2.0].map(|v| Literal::scalar(systole_ir::DType::F32, v));
/// let out = interp::run_devices(&program, Devices::replicas(2), &[vec![&a], vec![&b]])?;
/// assert_eq!(out[1][0].to_f32s(), [3.0]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn run_devices(graph: &Graph, devices: Devices, args: &[Vec<&Literal>]) -> Result<Vec<Vec<Literal>>> {
    for own in args {
        check_args(graph, &own.iter().map(|a| a.ty()).collect::<Vec<_>>())?;
    }
    in_step(graph, devices, args, 0)
}

fn in_step(
    graph: &Graph,
    devices: Devices,
    args: &[Vec<&Literal>],
    depth: usize,
) -> Result<Vec<Vec<Literal>>> {
    if depth == MAX_DEPTH {
        return Err(too_deep());
    }
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
    devices: Devices,
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

fn too_deep() -> Error {
    Error::new(ErrorKind::Unsupported, format!("bodies nest deeper than {MAX_DEPTH}"))
}

/// Checks arguments against a graph's parameters.
pub fn check_args(graph: &Graph, args: &[&TensorType]) -> Result<()> {
    if args.len() != graph.params.len() {
        return Err(Error::new(
            ErrorKind::Graph,
            format!("`{}` takes {} arguments, got {}", graph.name, graph.params.len(), args.len()),
        ));
    }
    for (i, (&p, &arg)) in graph.params.iter().zip(args).enumerate() {
        if graph.ty(p) != arg {
            return Err(Error::new(
                ErrorKind::Graph,
                format!(
                    "argument `{}` of `{}` is {arg}, not {}",
                    graph.param_names[i],
                    graph.name,
                    graph.ty(p)
                ),
            ));
        }
    }
    Ok(())
}

fn run_nodes(cx: &mut EvalCx, graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
    let types: Vec<&TensorType> = args.iter().map(|a| a.ty()).collect();
    check_args(graph, &types)?;
    let mut uses_left = graph.use_counts();
    let mut values: Vec<Vec<Literal>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let outs = match &node.op {
            Op::Parameter(p) => vec![args[p.index].clone()],
            op => {
                let inputs: Vec<&Literal> =
                    node.inputs.iter().map(|v| &values[v.index()][v.out as usize]).collect();
                op.rule().eval(cx, &inputs, &node.outs).at(|| {
                    let place = graph.scope(node);
                    if place.is_empty() {
                        op.name().to_string()
                    } else {
                        format!("{} of layer {place}", op.name())
                    }
                })?
            }
        };
        values.push(outs);
        for v in &node.inputs {
            uses_left[v.index()] -= 1;
            if uses_left[v.index()] == 0 {
                values[v.index()].clear();
            }
        }
    }
    Ok(graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect())
}
