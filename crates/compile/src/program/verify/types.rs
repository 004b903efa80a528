//! Types of the operands and results of each kernel.

use crate::program::kernel::{Kernel, Step};
use crate::program::map::{Load, Map};
use crate::program::moments::Moments;
use crate::program::nested::Rows;
use crate::program::pooling::{Pool, Unpool, UnpooledGradient};
use crate::program::product_epilogue::ProductEpilogue;
use crate::program::strided_map::StridedMap;
use systole_ir::attention::{AttentionMatch, Wanted};
use systole_ir::{DType, Op, TensorType};

type Checked = Result<(), String>;

/// Checks one step, without the programs inside it.
pub fn check(step: &Step) -> Checked {
    let (ins, outs) = (&step.input_types[..], &step.output_types[..]);
    match &step.kernel {
        Kernel::Map(m) => map(m, ins).and_then(|()| stores(m, outs)),
        Kernel::StridedMap(p) => map(&p.map, ins).and_then(|()| strided(p, outs)),
        Kernel::Reduce { map: m, folded, .. } => reduce(m, folded, ins, outs),
        Kernel::ProductEpilogue(h) => product_epilogue(h, ins, outs),
        Kernel::Rows(r) => rows(r, ins, outs),
        Kernel::Op { op, bias } => op_with_bias(op, *bias, ins, outs),
        Kernel::Accumulate { op } => {
            let (addend, operands) = ins.split_last().ok_or("nothing is added to")?;
            same("the addend", addend, outs.first().ok_or("there is no result")?)?;
            infers(op, operands, outs)
        }
        Kernel::Attention(a) => attention(a, ins, outs),
        Kernel::Pool(p) => pool(p, ins, outs),
        Kernel::Unpool(u) => unpool(u, ins, outs),
        Kernel::UnpooledGradient(g) => unpooled_gradient(g, ins, outs),
        Kernel::Moments(m) => moments(m, ins, outs),
        // Types of these are those of their bodies.
        Kernel::Blocks(_) | Kernel::While { .. } | Kernel::Case { .. } => Ok(()),
    }
}

/// An error unless the condition holds.
pub fn holds(condition: bool, what: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(what()) }
}

/// An error unless two types are one.
pub fn same(what: &str, have: &TensorType, want: &TensorType) -> Checked {
    holds(have == want, || format!("{what} is {have}, not {want}"))
}

/// An error unless two lists have the same types in the same order.
pub fn alike(what: &str, have: &[TensorType], want: &[TensorType]) -> Checked {
    holds(have.len() == want.len(), || format!("{what}: {} of {}", have.len(), want.len()))?;
    have.iter().zip(want).try_for_each(|(have, want)| same(what, have, want))
}

fn infers(op: &Op, operands: &[TensorType], outs: &[TensorType]) -> Checked {
    let operands: Vec<&TensorType> = operands.iter().collect();
    let inferred = op.rule().infer(&operands).map_err(|c| format!("({}) {}", c.label, c.message))?;
    holds(inferred[..] == *outs, || format!("results {outs:?} are not the inferred {inferred:?}"))
}

fn op_with_bias(op: &Op, bias: bool, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let Some((last, operands)) = ins.split_last().filter(|_| bias) else { return infers(op, ins, outs) };
    let out = outs.first().ok_or("there is no result")?;
    holds(out.shape.last() == Some(&last.elements()), || format!("a bias {last} for {out}"))?;
    infers(op, operands, outs)
}

/// Loads are inside their arrays, and every instruction has operands of its types.
fn map(m: &Map, ins: &[TensorType]) -> Checked {
    for (e, load) in m.loads.iter().enumerate() {
        let Load::Array { input, dtype, strides, offset } = load else { continue };
        let ty = ins.get(*input).ok_or_else(|| format!("register {e} reads no input"))?;
        holds(ty.dtype == *dtype, || format!("register {e} reads {ty} as {dtype}"))?;
        inside(m, strides, *offset, ty).map_err(|what| format!("register {e} {what}"))?;
    }
    for (k, instr) in m.instrs.iter().enumerate() {
        let e = m.loads.len() + k;
        holds(instr.args.iter().all(|&a| a < e), || format!("register {e} is made of later ones"))?;
        let scalars: Vec<TensorType> = instr.args.iter().map(|&a| TensorType::scalar(m.dtype(a))).collect();
        infers(&instr.op, &scalars, &[TensorType::scalar(instr.to)])
            .map_err(|what| format!("register {e}: {what}"))?;
        let first = &scalars[usize::from(matches!(instr.op, Op::Select(_)))];
        holds(first.dtype == instr.from, || format!("register {e} takes {first} for {}", instr.from))?;
    }
    let registers = m.loads.len() + m.instrs.len();
    holds(m.stores.iter().all(|&e| e < registers), || "a register that does not exist is stored".into())
}

/// Whether all elements that strides lead to are elements of an array.
fn inside(m: &Map, strides: &[usize], offset: usize, ty: &TensorType) -> Checked {
    holds(strides.len() == m.shape.rank(), || "has strides of another rank".into())?;
    let last: usize = m.shape.iter().zip(strides).map(|(n, stride)| n.saturating_sub(1) * stride).sum();
    let fits = m.shape.elements() == 0 || offset + last < ty.elements();
    holds(fits, || format!("leads to element {} of {ty}", offset + last))
}

/// One whole array for each store.
fn stores(m: &Map, outs: &[TensorType]) -> Checked {
    holds(m.stores.len() == outs.len(), || format!("{} stores, {} results", m.stores.len(), outs.len()))?;
    for (&e, ty) in m.stores.iter().zip(outs) {
        let fits = m.dtype(e) == ty.dtype && m.shape.elements() == ty.elements();
        holds(fits, || format!("register {e} over {} is stored as {ty}", m.shape))?;
    }
    Ok(())
}

fn strided(p: &StridedMap, outs: &[TensorType]) -> Checked {
    holds(p.stores.len() == p.map.stores.len(), || "stores without a place".into())?;
    let mut written = vec![0; outs.len()];
    for (&e, store) in p.map.stores.iter().zip(&p.stores) {
        let ty = outs.get(store.output).ok_or("a store into no result")?;
        holds(p.map.dtype(e) == ty.dtype, || format!("register {e} is stored as {ty}"))?;
        inside(&p.map, &store.strides, store.offset, ty).map_err(|what| format!("a store {what}"))?;
        written[store.output] += p.map.shape.elements();
    }
    let whole = written.iter().zip(outs).all(|(n, ty)| *n == ty.elements());
    holds(whole, || format!("{written:?} elements are stored into {outs:?}"))
}

fn reduce(m: &Map, folded: &[bool], ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let n = m.stores.len();
    let operands = ins.len().checked_sub(n).ok_or("a fold without an initial value")?;
    holds(folded.len() == m.shape.rank() && outs.len() == n, || "a fold of other dimensions".into())?;
    map(m, &ins[..operands])?;
    let kept: usize = m.shape.iter().zip(folded).filter(|(_, folded)| !**folded).map(|(n, _)| n).product();
    for ((&e, init), out) in m.stores.iter().zip(&ins[operands..]).zip(outs) {
        let of_one_type = m.dtype(e) == out.dtype && init.dtype == out.dtype && init.elements() == 1;
        holds(of_one_type && out.elements() == kept, || format!("{kept} folds from {init} give {out}"))?;
    }
    Ok(())
}

fn product_epilogue(h: &ProductEpilogue, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let (product, others) = ins.split_at_checked(h.operands()).ok_or("a product without operands")?;
    op_with_bias(&h.op, h.bias, product, std::slice::from_ref(&h.product))?;
    let read: Vec<TensorType> = others.iter().chain([&h.product]).cloned().collect();
    map(&h.map, &read)?;
    stores(&h.map, outs)
}

/// Stages read arrays that are there, and write each array once.
fn rows(r: &Rows, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let bytes: Vec<usize> = ins.iter().chain(outs).map(TensorType::bytes).collect();
    let bytes: Vec<usize> = bytes.into_iter().chain(r.locals.iter().map(|row| row * r.rows)).collect();
    let mut made: Vec<bool> = (0..bytes.len()).map(|x| x < ins.len()).collect();
    for (k, stage) in r.stages.iter().enumerate() {
        check(stage).map_err(|what| format!("stage {k}: {what}"))?;
        for (&x, ty) in stage.inputs.iter().zip(&stage.input_types) {
            let there = made.get(x).copied().unwrap_or(false);
            holds(there, || format!("stage {k} reads array {x} before it is written"))?;
            holds(bytes[x] == ty.bytes(), || format!("stage {k} reads array {x} as {ty}"))?;
        }
        for (&x, ty) in stage.outputs.iter().zip(&stage.output_types) {
            holds(made.get(x) == Some(&false), || format!("stage {k} writes array {x} again"))?;
            holds(bytes[x] == ty.bytes(), || format!("stage {k} writes array {x} as {ty}"))?;
            made[x] = true;
        }
    }
    holds(made.iter().all(|made| *made), || "an array of the rows is never written".into())
}

/// `q: T[B, S, N, K], k: T[B, S', N, K], v: T[B, S', N, V] → T[B, S, N, V]`, or the gradients of these operands.
fn attention(a: &AttentionMatch, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let (index, operands) = ins.split_last().ok_or("attention has no operands")?;
    same("the branch index of attention", index, &TensorType::scalar(DType::I32))?;
    let operand = |what: &str, i: usize| {
        operands.get(i).ok_or_else(|| format!("{what} of attention: operand {i} of {}", operands.len()))
    };
    let (q, k, v) = (operand("the queries", a.q)?, operand("the keys", a.k)?, operand("the values", a.v)?);
    let (&[batch, queries, heads, width], &[_, keys, _, _], &[_, _, _, depth]) =
        (q.shape.dims(), k.shape.dims(), v.shape.dims())
    else {
        return Err(format!("attention of {q}, {k} and {v}, which are not all of rank 4"));
    };
    let has_kernel = matches!(q.dtype, DType::F32 | DType::BF16 | DType::F16);
    holds(has_kernel, || format!("attention of {q}, a type that no kernel takes"))?;
    same("the keys of attention", k, &q.with_shape([batch, keys, heads, width]))?;
    same("the values of attention", v, &q.with_shape([batch, keys, heads, depth]))?;
    match (a.random, a.attention.dropout) {
        (None, None) => {}
        (Some(i), Some(_)) => {
            let state = operand("the random state", i)?;
            let words = state.shape.first().copied().filter(|words| [2, 3].contains(words)).unwrap_or(2);
            same("the random state of attention", state, &TensorType::new(DType::U64, [words]))?;
        }
        _ => return Err("attention has dropout without a random state, or the other way round".into()),
    }
    let y = q.with_shape([batch, queries, heads, depth]);
    let Some((dy, wanted)) = &a.gradient else {
        return alike("the result of attention", outs, std::slice::from_ref(&y));
    };
    same("the output gradient of attention", operand("the output gradient", *dy)?, &y)?;
    let twice = wanted.iter().enumerate().any(|(i, w)| wanted[..i].contains(w));
    holds(!twice, || format!("attention computes one gradient twice: {wanted:?}"))?;
    let of = |w: &Wanted| match w {
        Wanted::Queries => q.clone(),
        Wanted::Keys => k.clone(),
        Wanted::Values => v.clone(),
    };
    alike("a gradient of attention", outs, &wanted.iter().map(of).collect::<Vec<_>>())
}

fn pool(p: &Pool, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let missing = || format!("{} operands for a pooling and {} of a product", ins.len(), p.product);
    let count = ins.len().checked_sub(p.product).ok_or_else(missing)?;
    let (operands, of_product) = ins.split_at(count);
    match &p.conv {
        Some(conv) => {
            holds(matches!(count, 2 | 3), missing)?;
            op_with_bias(&conv.clone().into(), count == 3, operands, std::slice::from_ref(&p.operand))?;
        }
        None => {
            holds(count == 1 && p.product == 0, missing)?;
            same("the operand", &operands[0], &p.operand)?;
        }
    }
    let x = &p.operand.shape;
    let fits = x.rank() == 4 && (0..2).all(|d| (1..=x[d + 1]).contains(&p.window[d]) && p.strides[d] > 0);
    holds(fits, || format!("windows {:?} at strides {:?} over {}", p.window, p.strides, p.operand))?;
    let windows = |d: usize| (x[d + 1] - p.window[d]) / p.strides[d] + 1;
    let y = p.operand.with_shape([x[0], windows(0), windows(1), x[3]]);
    let (pooled, argmax) = match outs.split_last() {
        Some((product, rest)) if p.product > 0 => {
            pooled_product(&y, of_product, product)?;
            (rest.first(), rest.get(1..).unwrap_or_default())
        }
        _ => (outs.first(), outs.get(1..).unwrap_or_default()),
    };
    same("the pooled array", pooled.ok_or("there is no result")?, &y)?;
    holds(argmax.len() <= 1, || format!("{} results of a pooling", outs.len()))?;
    argmax.iter().try_for_each(|ty| same("the place of the maximum", ty, &y.with_dtype(DType::U8)))
}

/// The product `y: T[B, H', W', C] · (right: T[N, H' W' C])ᵀ [+ bias: T[N]] → T[B, N]` that follows a pooling.
fn pooled_product(y: &TensorType, operands: &[TensorType], out: &TensorType) -> Checked {
    let (right, bias) = match operands {
        [right] => (right, None),
        [right, bias] => (right, Some(bias)),
        _ => return Err(format!("{} operands of the product with a pooled array", operands.len())),
    };
    let (images, rows) = (y.shape[0], right.shape.first().copied().unwrap_or(0));
    let elements = y.elements() / images.max(1);
    same("the right operand of the pooled product", right, &y.with_shape([rows, elements]))?;
    bias.map_or(Ok(()), |ty| same("the bias of the pooled product", ty, &y.with_shape([rows])))?;
    same("the pooled product", out, &y.with_shape([images, rows]))
}

fn unpool(u: &Unpool, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let (Some(dy), Some(dx)) = (ins.first(), outs.first()) else { return Err("nothing is unpooled".into()) };
    if let Some(place) = ins.get(1) {
        same("the place of the maximum", place, &dy.with_dtype(DType::U8))?;
    }
    let fits = ins.len() <= 2
        && outs.len() == 1
        && dy.rank() == 4
        && dx.rank() == 4
        && dy.dtype == dx.dtype
        && [0, 3].iter().all(|&d| dy.shape[d] == dx.shape[d])
        && (0..2).all(|d| u.covered(d, dy.shape[d + 1]) <= dx.shape[d + 1]);
    holds(fits, || format!("{dy} is unpooled to {dx}"))
}

fn unpooled_gradient(g: &UnpooledGradient, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let [x, place, of_dy @ ..] = ins else { return Err(format!("{} operands for a gradient", ins.len())) };
    let dy = place.with_dtype(g.full.dtype);
    unpool(&g.unpool, &[dy.clone(), place.clone()], std::slice::from_ref(&g.full))?;
    match of_dy {
        [whole] if !g.product => same("the pooled gradient", whole, &dy)?,
        [left, right] if g.product => {
            let (images, terms) = (dy.shape[0], left.shape.last().copied().unwrap_or(0));
            let elements = dy.elements() / images.max(1);
            same("the left operand of the pooled gradient", left, &dy.with_shape([images, terms]))?;
            same("the right operand of the pooled gradient", right, &dy.with_shape([terms, elements]))?;
        }
        _ => return Err(format!("{} operands for a gradient", ins.len())),
    }
    same("the element type of the input", &TensorType::scalar(x.dtype), &TensorType::scalar(g.full.dtype))?;
    let kernel = g.conv.clone();
    let inferred = Op::from(kernel).rule().infer(&[x, &g.full]).map_err(|c| c.message)?;
    let dkernel = outs.first().ok_or("there is no result")?;
    let fits = |ty: &TensorType| ty.elements() == dkernel.elements() && ty.dtype == dkernel.dtype;
    holds(inferred.first().is_some_and(fits), || format!("{dkernel} is not the inferred {inferred:?}"))?;
    let dbias = outs.get(1);
    let is_sum = |dtype: DType| dtype == g.full.dtype || dtype == DType::F32;
    let fits = |ty: &TensorType| ty.elements() == g.full.shape[3] && is_sum(ty.dtype);
    holds(outs.len() <= 2 && dbias.is_none_or(fits), || format!("a bias's gradient {dbias:?}"))
}

fn moments(m: &Moments, ins: &[TensorType], outs: &[TensorType]) -> Checked {
    let [y, sum, squares] = outs else { return Err(format!("{} results of statistics", outs.len())) };
    op_with_bias(&m.conv.clone().into(), m.bias, ins, std::slice::from_ref(y))?;
    let elements = y.shape[0] * y.shape[y.rank() - 1];
    let fits = |ty: &TensorType| ty.dtype == DType::F32 && ty.elements() == elements;
    holds(fits(sum) && fits(squares), || format!("statistics {sum}, {squares} of {y}"))
}
