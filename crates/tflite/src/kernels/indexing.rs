//! TFLite kernels of indices and shapes: GATHER_ND, SCATTER_ND, ONE_HOT, TOPK_V2, WHERE, UNIQUE, SHAPE, RANGE, FILL and
//! others.

use super::call::{KernelOperand, OperatorCall};
use super::data_movement::{picked, taken};
use super::op_row::operators;
use super::slicing::places;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, Shape, ensure};

operators! {
    EmbeddingLookup "EMBEDDING_LOOKUP" 7; options 0 []; versions 1 3; NoInt8; embedding_lookup
    TopK "TOPK_V2" 48; options 34 []; versions 1 2; NoInt8; top_k
    SparseToDense "SPARSE_TO_DENSE" 68; options 50 []; versions 1 3; NoInt8; sparse_to_dense
    Shape "SHAPE" 77; options 55 [0 OutputType]; versions 1 1; NoInt8;
        |call| call.made_ints(&call.input(0)?.dims().iter().map(|&d| d as i64).collect::<Vec<_>>())
    OneHot "ONE_HOT" 85; options 61 [0 Axis]; versions 1 1; NoInt8; one_hot
    Fill "FILL" 94; options 68 []; versions 1 3; NoInt8; fill
    Range "RANGE" 96; options 73 []; versions 1 1; NoInt8; range
    Unique "UNIQUE" 103; options 80 [0 OutputType]; versions 1 1; NoInt8; unique
    GatherNd "GATHER_ND" 107; options 83 []; versions 1 2; Same; gather_nd
    Where "WHERE" 109; options 85 []; versions 1 1; NoInt8; coordinates
    Rank "RANK" 110; options 86 []; versions 1 1; NoInt8;
        |call| call.made_ints(&[call.input(0)?.dims().len() as i64])
    MatrixDiag "MATRIX_DIAG" 113; options 88 []; versions 1 1; NoInt8; matrix_diagonal
    MatrixSetDiag "MATRIX_SET_DIAG" 115; options 90 []; versions 1 1; NoInt8; matrix_set_diagonal
    ScatterNd "SCATTER_ND" 122; options 97 []; versions 1 1; NoInt8; scatter_nd
    SegmentSum "SEGMENT_SUM" 125; options 100 []; versions 1 1; NoInt8;
        |call| segments(call, 0.0, |a, b| a + b, (0, i64::wrapping_add))
    BroadcastArgs "BROADCAST_ARGS" 145; options 0 []; versions 1 1; NoInt8; broadcast_args
    Bucketize "BUCKETIZE" 147; options 115 [0 Boundaries]; versions 1 1; NoInt8; bucketize
    DynamicUpdateSlice "DYNAMIC_UPDATE_SLICE" 151; options 117 []; versions 1 1; NoInt8; update_slice
    UnsortedSegmentProd "UNSORTED_SEGMENT_PROD" 153; options 118 []; versions 1 1; NoInt8;
        |call| segments(call, 1.0, |a, b| a * b, (1, i64::wrapping_mul))
    UnsortedSegmentMax "UNSORTED_SEGMENT_MAX" 154; options 119 []; versions 1 1; NoInt8;
        |call| segments(call, f32::MIN, f32::max, (i64::from(i32::MIN), i64::max))
    UnsortedSegmentSum "UNSORTED_SEGMENT_SUM" 155; options 121 []; versions 1 1; NoInt8;
        |call| segments(call, 0.0, |a, b| a + b, (0, i64::wrapping_add))
    UnsortedSegmentMin "UNSORTED_SEGMENT_MIN" 157; options 120 []; versions 1 1; NoInt8;
        |call| segments(call, f32::MAX, f32::min, (i64::from(i32::MAX), i64::min))
}

fn index(k: i64, n: usize) -> Result<usize> {
    let found = usize::try_from(k).ok().filter(|&k| k < n);
    found.ok_or_else(|| broken(format!("index {k} is out of range for size {n}")))
}

fn scalar(x: &KernelOperand) -> Result<i64> {
    match x.indices()?[..] {
        [one] => Ok(one),
        _ => Err(broken(format!("tensor {} is {}, expected one integer", x.tensor.name, x.ty()))),
    }
}

/// Checks that a shape operand equals the output's shape in the file.
fn check_shape(call: &OperatorCall, shape: &KernelOperand) -> Result<usize> {
    let dims = shape.indices()?.into_iter().map(|d| index(d, 1 << 31)).collect::<Result<Vec<_>>>()?;
    call.check_output(&dims)
}

/// Computes WHERE: the indices of the elements that are not 0, one row each.
fn coordinates(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let strides = x.value.shape().strides();
    let mut table = Vec::new();
    for i in (0..x.ty().elements()).filter(|&i| x.value.get(i).as_f64() != 0.0) {
        table.extend(strides.iter().zip(x.dims()).map(|(s, d)| (i / s % d) as i64));
    }
    call.check_output(&[table.len() / x.dims().len().max(1), x.dims().len()])?;
    call.made_ints(&table)
}

/// Computes UNIQUE: the different elements of a vector in the order of their first, and for each element its index there.
fn unique(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let [n] = x.of_rank::<1>()?;
    let mut found: std::collections::HashMap<&[u8], usize> = std::collections::HashMap::new();
    let (mut firsts, mut indices) = (Vec::new(), Vec::new());
    for (i, element) in x.value.bytes().chunks_exact(x.dtype().size()).enumerate() {
        let next = found.len();
        let at = *found.entry(element).or_insert_with(|| {
            firsts.push(i);
            next
        });
        indices.push(at as i64);
    }
    call.check_output(&[firsts.len()])?;
    let values = taken(&x, &[firsts.len()], &firsts)?;
    // Type 4 of the schema is int64.
    let index = match call.operator.int(OptionField::OutputType) {
        4 => Literal::from_slice([n], &indices)?,
        _ => Literal::from_slice([n], &indices.iter().map(|&i| i as i32).collect::<Vec<_>>())?,
    };
    Ok(vec![values, index])
}

/// Computes BUCKETIZE: the number of boundaries that are at most each element.
fn bucketize(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let bits = call.operator.list(OptionField::Boundaries);
    let boundaries: Vec<f64> = bits.iter().map(|&b| f64::from(f32::from_bits(b as u32))).collect();
    // As LiteRT, which compares floats.
    let value = |i: usize| f64::from(x.value.get(i).as_f64() as f32);
    let bucket = |i: usize| boundaries.partition_point(|b| *b <= value(i)) as i64;
    call.made_ints(&(0..x.ty().elements()).map(bucket).collect::<Vec<_>>())
}

/// Computes EMBEDDING_LOOKUP: the rows `ids` of a table.
fn embedding_lookup(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (ids, table) = (call.input(0)?, call.input(1)?);
    ensure!(
        table.dtype() == call.output()?.ty.dtype,
        call.unsupported(format_args!("a table of {}", table.dtype()))
    );
    let rows = table.dims().first().copied().unwrap_or(0);
    let chosen = ids.indices()?.into_iter().map(|k| index(k, rows)).collect::<Result<Vec<_>>>()?;
    let mut indices: Vec<Vec<usize>> = table.dims().iter().map(|&d| (0..d).collect()).collect();
    let first = indices.first_mut().ok_or_else(|| broken("the table is a scalar".into()))?;
    *first = chosen;
    call.check_output(&indices.iter().map(Vec::len).collect::<Vec<_>>())?;
    picked(call, &table, &places(table.dims(), &indices))
}

/// Computes TOPK_V2: the greatest elements of each row in order, and their indices.
fn top_k(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, k) = (call.input(0)?, scalar(&call.input(1)?)?);
    let n = x.dims().last().copied().filter(|&n| n > 0);
    let n = n.ok_or_else(|| broken("the last dimension is empty".into()))?;
    let k = index(k, n + 1)?;
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = k;
    }
    call.check_output(&dims)?;
    let values = x.value.to_f64s();
    let mut chosen = Vec::new();
    for row in values.chunks_exact(n) {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        chosen.push(order[..k].to_vec());
    }
    let from = chosen.iter().enumerate().flat_map(|(r, own)| own.iter().map(move |i| r * n + i));
    let found = taken(&x, &dims, &from.collect::<Vec<_>>())?;
    let indices: Vec<i32> = chosen.concat().iter().map(|&i| i as i32).collect();
    Ok(vec![found, Literal::from_slice(&dims[..], &indices)?])
}

/// Computes SPARSE_TO_DENSE: indices, shape, values, and the value elsewhere.
fn sparse_to_dense(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (at, values, other) = (call.input(0)?, call.input(2)?, call.input(3)?);
    let n = check_shape(call, &call.input(1)?)?;
    let ty = call.output_type()?;
    let dims = ty.shape.dims();
    let size = values.dtype().size();
    ensure!(
        other.ty().elements() == 1 && other.dtype() == values.dtype() && !dims.is_empty(),
        broken("values and default value differ in type".into())
    );
    let mut bytes = other.value.bytes().repeat(n);
    for (i, place) in at.indices()?.chunks_exact(if at.dims().len() < 2 { 1 } else { dims.len() }).enumerate()
    {
        let to = flat(place, dims)?;
        let from = if values.ty().elements() == 1 { 0 } else { i };
        let value = values.value.bytes().get(from * size..(from + 1) * size);
        let value = value.ok_or_else(|| broken("there are fewer values than indices".into()))?;
        bytes[to * size..(to + 1) * size].copy_from_slice(value);
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}

/// Returns the flat index of the leading coordinates of a shape.
fn flat(place: &[i64], dims: &[usize]) -> Result<usize> {
    let mut at = 0;
    for (k, d) in place.iter().zip(dims) {
        at = at * d + index(*k, *d)?;
    }
    Ok(at)
}

/// Computes ONE_HOT: indices, depth, the value at the index and elsewhere.
fn one_hot(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, depth, on, off) = (call.input(0)?, scalar(&call.input(1)?)?, call.input(2)?, call.input(3)?);
    let depth = index(depth, 1 << 31)?;
    let axis = call.operator.int(OptionField::Axis);
    let axis = if axis == -1 { x.dims().len() } else { call.axis(axis, x.dims().len() + 1)? };
    let mut dims = x.dims().to_vec();
    dims.insert(axis, depth);
    let n = call.check_output(&dims)?;
    ensure!(
        on.ty().elements() == 1 && off.ty().elements() == 1 && on.dtype() == off.dtype(),
        broken("the two values differ in type".into())
    );
    let inner: usize = x.dims()[axis..].iter().product();
    let mut bytes = off.value.bytes().repeat(n);
    let size = on.dtype().size();
    for (i, k) in x.indices()?.into_iter().enumerate() {
        // Indices outside have no element.
        if let Ok(k) = index(k, depth) {
            let at = (i / inner * depth + k) * inner + i % inner;
            bytes[at * size..(at + 1) * size].copy_from_slice(on.value.bytes());
        }
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}

/// Computes FILL: a shape, and one value.
fn fill(call: &OperatorCall) -> Result<Vec<Literal>> {
    let n = check_shape(call, &call.input(0)?)?;
    let value = call.input(1)?;
    ensure!(value.ty().elements() == 1, broken(format!("the value is {}", value.ty())));
    Ok(vec![Literal::from_bytes(call.output_type()?, &value.value.bytes().repeat(n))?])
}

/// Computes RANGE: start, limit, step.
fn range(call: &OperatorCall) -> Result<Vec<Literal>> {
    let ends = [call.input(0)?, call.input(1)?, call.input(2)?];
    ensure!(
        ends.iter().all(|x| x.ty().elements() == 1),
        broken("start, limit and step must be scalars".into())
    );
    let [start, limit, step] = ends.map(|x| x.value.get(0).as_f64());
    let n = ((limit - start) / step).ceil().max(0.0);
    ensure!(
        step != 0.0 && n < f64::from(1 << 30),
        broken(format!("{start} to {limit} by {step} is not a range"))
    );
    call.check_output(&[n as usize])?;
    let values = (0..n as usize).map(|k| start + k as f64 * step);
    match ends[0].dtype() {
        DType::F32 => call.made(&values.map(|v| v as f32).collect::<Vec<_>>()),
        _ => call.made_ints(&values.map(|v| v as i64).collect::<Vec<_>>()),
    }
}

/// Computes GATHER_ND: `x`, and indices whose last dimension is a place in `x`.
fn gather_nd(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, at) = (call.input(0)?, call.input(1)?);
    let (depth, lead) = at.dims().split_last().ok_or_else(|| broken("the indices are a scalar".into()))?;
    ensure!(
        (1..=x.dims().len()).contains(depth),
        broken(format!("indices of {depth} dimensions do not match {}", x.ty()))
    );
    call.check_output(&[lead, &x.dims()[*depth..]].concat())?;
    let inner: usize = x.dims()[*depth..].iter().product();
    let mut all = Vec::new();
    for place in at.indices()?.chunks_exact(*depth) {
        let start = flat(place, x.dims())? * inner;
        all.extend(start..start + inner);
    }
    picked(call, &x, &all)
}

/// Computes SCATTER_ND: indices, updates and a shape; updates of one place are added.
fn scatter_nd(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (at, updates) = (call.input(0)?, call.input(1)?);
    let n = check_shape(call, &call.input(2)?)?;
    let ty = call.output_type()?;
    let dims = ty.shape.dims();
    let depth = at.dims().last().copied().filter(|d| (1..=dims.len()).contains(d));
    let depth = depth.ok_or_else(|| broken(format!("indices {} do not match {dims:?}", at.ty())))?;
    let inner: usize = dims[depth..].iter().product();
    let starts: Vec<usize> = at
        .indices()?
        .chunks_exact(depth)
        .map(|place| Ok(flat(place, dims)? * inner))
        .collect::<Result<_>>()?;
    ensure!(
        starts.len() * inner == updates.ty().elements(),
        broken(format!("updates {} do not match the indices", updates.ty()))
    );
    let targets = starts.iter().flat_map(|&start| start..start + inner);
    match updates.dtype() {
        DType::F32 => {
            let mut y = vec![0f32; n];
            targets.zip(updates.elements::<f32>()?).for_each(|(t, v)| y[t] += v);
            call.made(&y)
        }
        _ => {
            let mut y = vec![0i64; n];
            targets.zip(call.ints(&updates)?).for_each(|(t, v)| y[t] = y[t].wrapping_add(v));
            call.made_ints(&y)
        }
    }
}

/// Computes SEGMENT_SUM and UNSORTED_SEGMENT_*: folds the rows of each segment.
fn segments(
    call: &OperatorCall,
    start: f32,
    float: fn(f32, f32) -> f32,
    (int_start, int): (i64, fn(i64, i64) -> i64),
) -> Result<Vec<Literal>> {
    let (x, ids) = (call.input(0)?, call.input(1)?.indices()?);
    let ty = call.output_type()?;
    let dims = ty.shape.dims();
    let rows = dims.first().copied().unwrap_or(0);
    let inner = x.ty().elements() / ids.len().max(1);
    ensure!(
        rows > 0 && rows * inner == call.output_type()?.elements() && ids.len() * inner == x.ty().elements(),
        broken(format!("{} segment ids do not match {}", ids.len(), x.ty()))
    );
    // Rows of a negative segment are left out.
    let target = |i: usize| match ids[i / inner] {
        ..0 => Ok(None),
        k => index(k, rows).map(|k| Some(k * inner + i % inner)),
    };
    let targets = (0..x.ty().elements()).map(target).collect::<Result<Vec<Option<usize>>>>()?;
    if x.dtype() == DType::F32 {
        let mut y = vec![start; rows * inner];
        for (t, v) in targets.iter().zip(x.elements::<f32>()?) {
            t.iter().for_each(|&t| y[t] = float(y[t], *v));
        }
        return call.made(&y);
    }
    let mut y = vec![int_start; rows * inner];
    for (t, v) in targets.iter().zip(call.ints(&x)?) {
        t.iter().for_each(|&t| y[t] = int(y[t], v));
    }
    call.made_ints(&y)
}

/// Computes BROADCAST_ARGS: the shape to which two shapes broadcast.
fn broadcast_args(call: &OperatorCall) -> Result<Vec<Literal>> {
    let dims = |n: usize| -> Result<Vec<usize>> {
        call.input(n)?.indices()?.into_iter().map(|d| index(d, 1 << 31)).collect()
    };
    let common = super::binary::common_shape(&dims(0)?, &dims(1)?)?;
    call.check_output(&[common.len()])?;
    call.made_ints(&common.iter().map(|&d| d as i64).collect::<Vec<_>>())
}

/// Computes DYNAMIC_UPDATE_SLICE: replaces a block of `x` at an index, which is moved inside.
fn update_slice(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, update, at) = (call.input(0)?, call.input(1)?, call.input(2)?.indices()?);
    call.check_output(x.dims())?;
    let fits = update.dtype() == x.dtype()
        && at.len() == x.dims().len()
        && update.dims().len() == at.len()
        && update.dims().iter().zip(x.dims()).all(|(u, d)| u <= d);
    ensure!(fits, broken(format!("an update of {} does not match {}", update.ty(), x.ty())));
    let mut indices = Vec::new();
    for ((&k, &u), &d) in at.iter().zip(update.dims()).zip(x.dims()) {
        let start = k.clamp(0, (d - u) as i64) as usize;
        indices.push((start..start + u).collect::<Vec<usize>>());
    }
    let size = x.dtype().size();
    let mut bytes = x.value.bytes().to_vec();
    for (to, element) in places(x.dims(), &indices).into_iter().zip(update.value.bytes().chunks_exact(size)) {
        bytes[to * size..(to + 1) * size].copy_from_slice(element);
    }
    Ok(vec![Literal::from_bytes(x.ty().clone(), &bytes)?])
}

/// Computes MATRIX_DIAG, `x: T[…, N] → T[…, N, N]`: matrices with the diagonal `x`.
fn matrix_diagonal(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let n = x.dims().last().copied().ok_or_else(|| broken("the operand is a scalar".into()))?;
    let total = call.check_output(&[x.dims(), &[n]].concat())?;
    let zeros = Literal::zeros(x.ty().with_shape(Shape::from([total])));
    with_diagonal(call, &zeros, &x, (n, n))
}

/// Computes MATRIX_SET_DIAG: replaces the main diagonal of matrices.
fn matrix_set_diagonal(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, diagonal) = (call.input(0)?, call.input(1)?);
    call.check_output(x.dims())?;
    let Some((_, &[rows, columns])) = x.dims().split_last_chunk::<2>() else {
        return Err(broken(format!("{} is not a matrix", x.ty())));
    };
    ensure!(diagonal.dtype() == x.dtype(), broken("matrix and diagonal differ in type".into()));
    with_diagonal(call, x.value, &diagonal, (rows, columns))
}

fn with_diagonal(
    call: &OperatorCall,
    matrices: &Literal,
    diagonal: &KernelOperand,
    (rows, columns): (usize, usize),
) -> Result<Vec<Literal>> {
    let (n, size) = (rows.min(columns), diagonal.dtype().size());
    let mut bytes = matrices.bytes().to_vec();
    ensure!(
        diagonal.ty().elements() * rows * columns * size == bytes.len() * n,
        broken(format!("a diagonal of {} does not match its matrices", diagonal.ty()))
    );
    for (i, element) in diagonal.value.bytes().chunks_exact(size).enumerate() {
        let at = (i / n * rows * columns + i % n * (columns + 1)) * size;
        bytes[at..at + size].copy_from_slice(element);
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}
