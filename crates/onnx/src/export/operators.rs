//! Operators on elements, products, and what moves elements.

use super::emit::{Emit, Order, operand_of};
use crate::model::{Attribute, Node};
use systole_base::{Error, ErrorKind, Result};
use systole_tflite::{Activation, Field, Op, Operator};

/// Where a dimension is.
fn place(dim: usize, order: Order) -> usize {
    match (order, dim) {
        (Order::Plain, d) | (Order::First, d @ 0) => d,
        (Order::First, 3) => 1,
        (Order::First, d) => d + 1,
    }
}

/// One operand and one node.
pub(super) fn unary(e: &mut Emit, o: &Operator, y: usize, op: &str) -> Result<()> {
    let x = operand_of(o, 0)?;
    let order = e.order_of(&[x], y)?;
    let input = e.real(x, order)?;
    let alpha = o.number(Field::Alpha) as f32;
    e.finish(y, order, Activation::None, |out| match op {
        "LeakyRelu" => Node::new(op, [input], out).with("alpha", Attribute::Float(alpha)),
        op => Node::new(op, [input], out),
    })
}

/// At least and at most so much.
pub(super) fn clamped(e: &mut Emit, o: &Operator, y: usize, activation: Activation) -> Result<()> {
    let x = operand_of(o, 0)?;
    let order = e.order_of(&[x], y)?;
    let input = e.real(x, order)?;
    if activation == Activation::Relu {
        return e.finish(y, order, Activation::None, |out| Node::new("Relu", [input], out));
    }
    let own = e.names[y].clone();
    let (low, high) = if activation == Activation::Relu6 { (0.0, 6.0) } else { (-1.0, 1.0) };
    let (low, high) = (e.number(&format!("{own}/min"), low)?, e.number(&format!("{own}/max"), high)?);
    e.finish(y, order, Activation::None, |out| Node::new("Clip", [input, low, high], out))
}

/// Two operands.
pub(super) fn binary(e: &mut Emit, o: &Operator, y: usize, op: &str) -> Result<()> {
    let (a, b) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let order = e.order_of(&[a, b], y)?;
    let inputs = [e.real(a, order)?, e.real(b, order)?];
    e.finish(y, order, o.activation()?, |out| Node::new(op, inputs, out))
}

/// 1 / √x.
pub(super) fn inverse_root(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let x = operand_of(o, 0)?;
    let order = e.order_of(&[x], y)?;
    let (own, input) = (e.names[y].clone(), e.real(x, order)?);
    let root = e.made(&format!("{own}/sqrt"), "Sqrt", [input.as_str()]);
    e.finish(y, order, Activation::None, |out| Node::new("Reciprocal", [root], out))
}

/// (a − b)².
pub(super) fn squared_difference(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (a, b) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let order = e.order_of(&[a, b], y)?;
    let inputs = [e.real(a, order)?, e.real(b, order)?];
    let own = e.names[y].clone();
    let d = e.made(&format!("{own}/difference"), "Sub", inputs.iter().map(String::as_str));
    e.finish(y, order, Activation::None, |out| Node::new("Mul", [d.clone(), d], out))
}

/// By erf or by tanh: the operator of its own is in later versions alone.
pub(super) fn gelu(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let x = operand_of(o, 0)?;
    let order = e.order_of(&[x], y)?;
    let (own, input) = (e.names[y].clone(), e.real(x, order)?);
    let named = |of: &str| format!("{own}/{of}");
    let x = input.as_str();
    let inner = if o.is(Field::Approximate) {
        let square = e.made(&named("square"), "Mul", [x, x]);
        let cube = e.made(&named("cube"), "Mul", [square.as_str(), x]);
        let small = e.number(&named("share"), 0.044_715)?;
        let bent = e.made(&named("bent"), "Mul", [cube.as_str(), &small]);
        let sum = e.made(&named("sum"), "Add", [x, &bent]);
        let factor = e.number(&named("factor"), (2.0 / std::f64::consts::PI).sqrt() as f32)?;
        let inner = e.made(&named("inner"), "Mul", [sum.as_str(), &factor]);
        e.made(&named("tanh"), "Tanh", [inner.as_str()])
    } else {
        let factor = e.number(&named("factor"), std::f32::consts::FRAC_1_SQRT_2)?;
        let inner = e.made(&named("inner"), "Mul", [x, &factor]);
        e.made(&named("erf"), "Erf", [inner.as_str()])
    };
    let (one, half) = (e.number(&named("one"), 1.0)?, e.number(&named("half"), 0.5)?);
    let gate = e.made(&named("gate"), "Add", [inner.as_str(), &one]);
    let both = e.made(&named("both"), "Mul", [x, &gate]);
    e.finish(y, order, Activation::None, |out| Node::new("Mul", [both, half], out))
}

/// x · min(max(x + 3, 0), 6) / 6.
pub(super) fn hard_swish(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    unary(e, o, y, "HardSwish")
}

pub(super) fn softmax(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let x = operand_of(o, 0)?;
    if o.op == Op::Softmax && o.number(Field::Beta) != 1.0 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("a softmax with beta {}", o.number(Field::Beta)),
        ));
    }
    let order = e.order_of(&[x], y)?;
    let last = e.tensor(x)?.dims().len().saturating_sub(1);
    let (input, axis) = (e.real(x, order)?, if order == Order::First { 1 } else { last });
    e.finish(y, order, Activation::None, |out| {
        Node::new("Softmax", [input], out).with("axis", Attribute::Int(axis as i64))
    })
}

/// `x: [N, I], w: [O, I]`: as Gemm; of more dimensions as a product and a sum.
pub(super) fn dense(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, w) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let bias = o.inputs.get(2).copied().flatten();
    let (rank, own) = (e.tensor(x)?.dims().len(), e.names[y].clone());
    let activation = o.activation()?;
    let input = e.real(x, Order::Plain)?;
    if rank > 2 && o.is(Field::KeepNumDims) {
        let inputs = [input, e.weights(w, &[1, 0])?];
        let Some(bias) = bias else {
            return e.finish(y, Order::Plain, activation, |out| Node::new("MatMul", inputs, out));
        };
        let product = e.made(&format!("{own}/product"), "MatMul", inputs.iter().map(String::as_str));
        let bias = e.weights(bias, &[0])?;
        return e.finish(y, Order::Plain, activation, |out| Node::new("Add", [product, bias], out));
    }
    let rows = match rank {
        2 => input,
        _ => {
            let inner = e.tensor(w)?.dims().last().copied().unwrap_or(1);
            let shape = e.list(&format!("{own}/rows/shape"), &[-1, inner as i64])?;
            e.made(&format!("{own}/rows"), "Reshape", [input.as_str(), &shape])
        }
    };
    let mut inputs = vec![rows, e.weights(w, &[0, 1])?];
    if let Some(bias) = bias {
        inputs.push(e.weights(bias, &[0])?);
    }
    e.finish(y, Order::Plain, activation, |out| {
        Node::new("Gemm", inputs, out).with("transB", Attribute::Int(1))
    })
}

/// Products of many matrices.
pub(super) fn batch_matmul(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let own = e.names[y].clone();
    let mut inputs = Vec::new();
    for (i, field) in [Field::AdjX, Field::AdjY].into_iter().enumerate() {
        let t = operand_of(o, i)?;
        let mut name = e.real(t, Order::Plain)?;
        if o.is(field) {
            let rank = e.tensor(t)?.dims().len() as i64;
            let order: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            let output = e.unique(&format!("{own}/turned"));
            e.push(Node::new("Transpose", [name], output.clone()).ints("perm", order));
            name = output;
        }
        inputs.push(name);
    }
    e.finish(y, Order::Plain, Activation::None, |out| Node::new("MatMul", inputs, out))
}

/// Means, sums and greatest over dimensions.
pub(super) fn reduce(e: &mut Emit, o: &Operator, y: usize, op: &str) -> Result<()> {
    let x = operand_of(o, 0)?;
    let rank = e.tensor(x)?.dims().len();
    let keeps = o.is(Field::KeepDims);
    let dims: Vec<usize> = e
        .integers(o, 1)?
        .iter()
        .map(|&d| usize::try_from(if d < 0 { d + rank as i64 } else { d }).unwrap_or(0))
        .collect();
    let is_picture = rank == 4 && dims == [1, 2];
    let order = if e.is_first(x) && (keeps || is_picture) { Order::First } else { Order::Plain };
    let axes: Vec<i64> = dims.iter().map(|&d| place(d, order) as i64).collect();
    let mut inputs = vec![e.real(x, order)?];
    let own = e.names[y].clone();
    // Sums take their axes as an operand from version 13 on, means and greatest from version 18 on.
    let is_operand = op == "ReduceSum";
    if is_operand {
        inputs.push(e.list(&format!("{own}/axes"), &axes)?);
    }
    let made = if keeps { order } else { Order::Plain };
    e.finish(y, made, Activation::None, |out| {
        let node = Node::new(op, inputs, out).with("keepdims", Attribute::Int(i64::from(keeps)));
        if is_operand { node } else { node.ints("axes", axes) }
    })
}

/// The shape of a tensor, for any number of samples where it begins with one.
pub(super) fn reshape(e: &mut Emit, o: &Operator, y: usize, open_batch: bool) -> Result<()> {
    let x = operand_of(o, 0)?;
    let mut shape: Vec<i64> = e.tensor(y)?.dims().iter().map(|&d| d as i64).collect();
    if let Some(first) = shape.first_mut()
        && open_batch
    {
        // 0: as before.
        *first = 0;
    }
    let own = e.names[y].clone();
    let inputs = [e.real(x, Order::Plain)?, e.list(&format!("{own}/shape"), &shape)?];
    e.finish(y, Order::Plain, Activation::None, |out| Node::new("Reshape", inputs, out))
}

pub(super) fn transpose(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, order) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let input = e.real(x, Order::Plain)?;
    e.finish(y, Order::Plain, Activation::None, |out| {
        Node::new("Transpose", [input], out).ints("perm", order)
    })
}

pub(super) fn concatenation(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let operands: Vec<usize> = o.inputs.iter().flatten().copied().collect();
    let order = e.order_of(&operands, y)?;
    let rank = e.tensor(y)?.dims().len() as i64;
    let axis = o.int(Field::Axis);
    let axis = place(usize::try_from(if axis < 0 { axis + rank } else { axis }).unwrap_or(0), order);
    let inputs = operands.iter().map(|&t| e.real(t, order)).collect::<Result<Vec<_>>>()?;
    e.finish(y, order, o.activation()?, |out| {
        Node::new("Concat", inputs, out).with("axis", Attribute::Int(axis as i64))
    })
}

pub(super) fn pad(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, list) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let order = e.order_of(&[x], y)?;
    let rank = list.len() / 2;
    let mut pads = vec![0; 2 * rank];
    for (d, pair) in list.chunks_exact(2).enumerate() {
        let d = place(d, order);
        (pads[d], pads[d + rank]) = (pair[0], pair[1]);
    }
    let own = e.names[y].clone();
    let inputs = [e.real(x, order)?, e.list(&format!("{own}/pads"), &pads)?];
    e.finish(y, order, Activation::None, |out| Node::new("Pad", inputs, out))
}

/// Equal parts of a dimension, each as a slice: SPLIT has no form that all versions share.
pub(super) fn split(e: &mut Emit, o: &Operator) -> Result<()> {
    let (axes, x) = (e.integers(o, 0)?, operand_of(o, 1)?);
    let rank = e.tensor(x)?.dims().len() as i64;
    let axis = axes.first().map_or(0, |&a| if a < 0 { a + rank } else { a });
    let axis = usize::try_from(axis).unwrap_or(0);
    let whole = e.tensor(x)?.dims().get(axis).copied().unwrap_or(0);
    let own = (whole / o.outputs.len().max(1)) as i64;
    for (k, &y) in o.outputs.iter().enumerate() {
        let order = e.order_of(&[x], y)?;
        let (name, input) = (e.names[y].clone(), e.real(x, order)?);
        let mut lists = Vec::new();
        for (what, value) in
            [("starts", k as i64 * own), ("ends", (k as i64 + 1) * own), ("axes", place(axis, order) as i64)]
        {
            lists.push(e.list(&format!("{name}/{what}"), &[value])?);
        }
        let inputs = std::iter::once(input).chain(lists).collect::<Vec<_>>();
        e.finish(y, order, Activation::None, |out| Node::new("Slice", inputs, out))?;
    }
    Ok(())
}

/// Entries of an axis by their numbers, which are no reals.
pub(super) fn gather(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, chosen) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let inputs = [e.real(x, Order::Plain)?, e.real(chosen, Order::Plain)?];
    let axis = o.int(Field::Axis);
    e.finish(y, Order::Plain, Activation::None, |out| {
        Node::new("Gather", inputs, out).with("axis", Attribute::Int(axis))
    })
}

/// Only dimensions that become smaller are named.
pub(super) fn slice(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, begin) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let order = e.order_of(&[x], y)?;
    let (mut starts, mut ends, mut axes) = (Vec::new(), Vec::new(), Vec::new());
    for (d, ((&from, &size), &all)) in
        begin.iter().zip(e.tensor(y)?.dims()).zip(e.tensor(x)?.dims()).enumerate()
    {
        if size != all {
            starts.push(from);
            ends.push(from + size as i64);
            axes.push(place(d, order) as i64);
        }
    }
    let (own, input) = (e.names[y].clone(), e.real(x, order)?);
    if axes.is_empty() {
        return e.finish(y, order, Activation::None, |out| Node::new("Identity", [input], out));
    }
    let mut inputs = vec![input];
    for (name, list) in [("starts", &starts), ("ends", &ends), ("axes", &axes)] {
        inputs.push(e.list(&format!("{own}/{name}"), list)?);
    }
    e.finish(y, order, Activation::None, |out| Node::new("Slice", inputs, out))
}
