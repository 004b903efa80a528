//! What splitting an array means to each op.
//!
//! An op runs over indices: a product of matrices over rows, columns and what is summed. A [`Factor`] is one of them: the
//! dimension that it runs along in each operand, and in the result, or that it is folded away. Where devices divide one
//! factor, each can do its part alone. (Shardy calls this an op's sharding rule.)
//!
//! `rules.rs` of the compiler knows likewise what an op becomes for a block of leading rows; there dimensions are joined
//! and operands turned for the sake of caches, here any one dimension is divided and ops keep their form.

use smallvec::SmallVec;
use systole_ir::op::{
    BroadcastInDim, Convolution, DotGeneral, Gather, Iota, Monoid, Reduce, Reshape, Scatter, Slice, Window,
};
use systole_ir::{DType, Graph, Node, Op, Shape, TensorType, ValueId};

/// The dimension of each operand that a factor runs along; `None`: every device needs all of it.
pub type Operands = SmallVec<[Option<usize>; 3]>;

/// What becomes of a factor in the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Along {
    /// Its dimension in every result.
    Dim(usize),
    /// It is folded: results of devices are folded to the whole.
    Fold(Monoid),
}

/// An index that an op runs over.
#[derive(Clone, Debug)]
pub struct Factor {
    /// Where it is in the operands.
    pub operands: Operands,
    /// Where it is in the results.
    pub along: Along,
}

fn dim(operands: impl IntoIterator<Item = Option<usize>>, along: usize) -> Factor {
    Factor { operands: operands.into_iter().collect(), along: Along::Dim(along) }
}

fn fold(operands: impl IntoIterator<Item = Option<usize>>, monoid: Monoid) -> Factor {
    Factor { operands: operands.into_iter().collect(), along: Along::Fold(monoid) }
}

/// The factors of a node; none for ops that must be computed whole.
pub fn factors(graph: &Graph, node: &Node) -> Vec<Factor> {
    let ty = |k: usize| graph.ty(node.inputs[k]);
    let out = &node.outs[0];
    let every = |d: usize| dim(node.inputs.iter().map(|_| Some(d)), d);
    // The first `n` operands along a dimension, the others whole.
    let first = |n: usize, d: usize| dim((0..node.inputs.len()).map(|k| (k < n).then_some(d)), d);
    let dims = |keep: &dyn Fn(usize) -> bool| (0..out.rank()).filter(|&d| keep(d)).collect::<Vec<_>>();
    match &node.op {
        Op::OptimizationBarrier(_) => Vec::new(),
        Op::BroadcastInDim(b) => broadcast(b, ty(0), out),
        Op::Iota(Iota { dim: own, .. }) => dims(&|d| d != *own).into_iter().map(|d| dim([], d)).collect(),
        Op::Reshape(_) => reshape(ty(0), out),
        Op::Transpose(t) => t.permutation.iter().enumerate().map(|(d, &k)| dim([Some(k)], d)).collect(),
        Op::Reverse(r) => dims(&|d| !r.dims.contains(&d)).into_iter().map(every).collect(),
        Op::Concatenate(c) => dims(&|d| d != c.dim).into_iter().map(every).collect(),
        Op::Sort(s) => dims(&|d| d != s.dim).into_iter().map(every).collect(),
        Op::Slice(s) => {
            let whole = |d: usize| s.start[d] == 0 && s.limit[d] == ty(0).shape[d] && s.strides[d] == 1;
            dims(&whole).into_iter().map(every).collect()
        }
        Op::Pad(p) => {
            let none = |d: usize| p.low[d] == 0 && p.high[d] == 0 && p.interior[d] == 0;
            dims(&none).into_iter().map(|d| first(1, d)).collect()
        }
        Op::DynamicSlice(s) => {
            dims(&|d| s.sizes[d] == ty(0).shape[d]).into_iter().map(|d| first(1, d)).collect()
        }
        Op::DynamicUpdateSlice(_) => {
            dims(&|d| ty(1).shape[d] == ty(0).shape[d]).into_iter().map(|d| first(2, d)).collect()
        }
        Op::DotGeneral(d) => dot(d, ty(0), ty(1)),
        Op::Convolution(c) => convolution(c),
        Op::Reduce(r) => reduce(graph, node, r),
        Op::ReduceWindow(w) => {
            let n = node.inputs.len() / 2;
            dims(&|d| is_single(&w.window, d)).into_iter().map(|d| first(n, d)).collect()
        }
        Op::SelectAndScatter(s) => {
            let trivial = |d: usize| s.dimensions[d] == 1 && s.strides[d] == 1 && s.padding[d] == [0, 0];
            dims(&trivial).into_iter().map(|d| first(2, d)).collect()
        }
        Op::Gather(g) => gather(g, ty(1), out),
        Op::Scatter(s) => scatter(graph, node, s),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) => {
            elementwise(graph, node)
        }
        Op::Convert(_) | Op::ReducePrecision(_) => elementwise(graph, node),
        // Between widths an element becomes several along a dimension of its own.
        Op::BitcastConvert(_) => Vec::new(),
        // The caller says how these lie.
        Op::Parameter(_) | Op::Constant(_) => Vec::new(),
        // Drawn whole and cut, so that the bits are those of one device.
        Op::RngBitGenerator(_) => Vec::new(),
        // The partitioner looks into their bodies.
        Op::While(_) | Op::Case(_) => Vec::new(),
        // They are exchanges between devices themselves.
        Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_) => Vec::new(),
        Op::CollectivePermute(_) | Op::PartitionId(_) | Op::ReplicaId(_) => Vec::new(),
    }
}

/// Whether a window sees one element along a dimension, each once.
fn is_single(w: &Window, d: usize) -> bool {
    w.dimensions[d] == 1
        && w.strides[d] == 1
        && w.base_dilations[d] == 1
        && w.window_dilations[d] == 1
        && w.padding[d] == [0, 0]
}

/// Operands of the result's shape along the same dimension, scalars whole.
fn elementwise(graph: &Graph, node: &Node) -> Vec<Factor> {
    let out = &node.outs[0];
    let same = |v: &ValueId| graph.ty(*v).shape == out.shape;
    if !node.inputs.iter().all(|v| same(v) || graph.ty(*v).rank() == 0) {
        return Vec::new();
    }
    (0..out.rank()).map(|d| dim(node.inputs.iter().map(|v| same(v).then_some(d)), d)).collect()
}

fn broadcast(b: &BroadcastInDim, x: &TensorType, out: &TensorType) -> Vec<Factor> {
    let along = |d: usize| match b.dims.iter().position(|&to| to == d) {
        Some(k) if x.shape[k] == out.shape[d] => dim([Some(k)], d),
        _ => dim([None], d),
    };
    (0..out.rank()).map(along).collect()
}

/// Equal parts of a dimension are equal parts of another where the same elements lie before both.
fn reshape(x: &TensorType, out: &TensorType) -> Vec<Factor> {
    let before = |t: &TensorType, d: usize| t.shape[..d].iter().product::<usize>();
    let pairs = (0..x.rank()).flat_map(|k| (0..out.rank()).map(move |d| (k, d)));
    pairs.filter(|&(k, d)| before(x, k) == before(out, d)).map(|(k, d)| dim([Some(k)], d)).collect()
}

fn dot(d: &DotGeneral, a: &TensorType, b: &TensorType) -> Vec<Factor> {
    let batch = d.lhs_batch.iter().zip(&d.rhs_batch).enumerate();
    let batch = batch.map(|(i, (&l, &r))| dim([Some(l), Some(r)], i));
    let (rows, columns) = (d.lhs_free(a.rank()), d.rhs_free(b.rank()));
    let at = d.lhs_batch.len();
    let left = rows.iter().enumerate().map(|(i, &l)| dim([Some(l), None], at + i));
    let right = columns.iter().enumerate().map(|(i, &r)| dim([None, Some(r)], at + rows.len() + i));
    let summed = d.lhs_contract.iter().zip(&d.rhs_contract);
    let summed = summed.map(|(&l, &r)| fold([Some(l), Some(r)], Monoid::Add));
    batch.chain(left).chain(right).chain(summed).collect()
}

fn convolution(c: &Convolution) -> Vec<Factor> {
    let d = &c.dims;
    let mut all = Vec::new();
    if c.batch_groups == 1 {
        all.push(dim([Some(d.input_batch), None], d.output_batch));
    }
    if c.batch_groups == 1 && c.feature_groups == 1 {
        all.push(dim([None, Some(d.kernel_output_feature)], d.output_feature));
        all.push(fold([Some(d.input_feature), Some(d.kernel_input_feature)], Monoid::Add));
    }
    all
}

fn reduce(graph: &Graph, node: &Node, r: &Reduce) -> Vec<Factor> {
    let n = node.inputs.len() / 2;
    let x = graph.ty(node.inputs[0]);
    let along = |d: usize| (0..2 * n).map(move |k| (k < n).then_some(d));
    let kept: Vec<usize> = (0..x.rank()).filter(|d| !r.dims.contains(d)).collect();
    let mut all: Vec<Factor> = kept.iter().enumerate().map(|(to, &d)| dim(along(d), to)).collect();
    if let (1, Some(monoid)) = (n, Monoid::of(&r.body)) {
        let neutral = match &graph.node(node.inputs[1]).op {
            Op::Constant(c) => c.value.get(0) == monoid.identity(x.dtype),
            _ => false,
        };
        if neutral {
            all.extend(r.dims.iter().map(|&d| fold(along(d), monoid)));
        }
    }
    all
}

/// Dimensions of the indices. The table is whole, except where it has such dimensions too.
fn gather(g: &Gather, indices: &TensorType, out: &TensorType) -> Vec<Factor> {
    let batch = (0..out.rank()).filter(|d| !g.offset_dims.contains(d));
    let own = (0..indices.rank()).filter(|&d| d != g.index_vector_dim);
    let paired = |i: usize| {
        let at = g.start_indices_batching_dims.iter().position(|&d| d == i)?;
        Some(g.operand_batching_dims[at])
    };
    own.zip(batch).map(|(i, d)| dim([paired(i), Some(i)], d)).collect()
}

/// Dimensions that blocks show whole; and those of the indices, where updates are folded into what changes nothing.
fn scatter(graph: &Graph, node: &Node, s: &Scatter) -> Vec<Factor> {
    if node.inputs.len() != 3 {
        return Vec::new();
    }
    let [x, indices, updates] = [0, 1, 2].map(|k| graph.ty(node.inputs[k]));
    let hidden = |d: &usize| s.inserted_window_dims.contains(d) || s.input_batching_dims.contains(d);
    let shown = (0..x.rank()).filter(|d| !hidden(d)).zip(&s.update_window_dims);
    let mut all: Vec<Factor> = shown
        .filter(|&(d, &u)| x.shape[d] == updates.shape[u])
        .map(|(d, &u)| dim([Some(d), None, Some(u)], d))
        .collect();
    let adds = Monoid::of(&s.body) == Some(Monoid::Add) && is_zeros(graph, node.inputs[0]);
    let batch = (0..updates.rank()).filter(|d| !s.update_window_dims.contains(d));
    let own = (0..indices.rank()).filter(|&d| d != s.index_vector_dim);
    for (i, u) in own.zip(batch) {
        match s.scatter_indices_batching_dims.iter().position(|&d| d == i) {
            Some(at) => {
                let d = s.input_batching_dims[at];
                all.push(dim([Some(d), Some(i), Some(u)], d));
            }
            None if adds => all.push(fold([None, Some(i), Some(u)], Monoid::Add)),
            None => {}
        }
    }
    all
}

/// Whether a value is zeros by its making.
pub fn is_zeros(graph: &Graph, v: ValueId) -> bool {
    let node = graph.node(v);
    match &node.op {
        Op::Constant(c) => c.value.bytes().iter().all(|&b| b == 0),
        Op::BroadcastInDim(_) => is_zeros(graph, node.inputs[0]),
        _ => false,
    }
}

/// The op for one of `parts` equal parts of a factor: where attributes hold sizes they shrink.
pub fn part_of(op: &Op, along: Along, parts: usize) -> Op {
    let Along::Dim(d) = along else { return wide(op) };
    let shrunk = |shape: &Shape| {
        let mut dims = shape.to_vec();
        dims[d] /= parts;
        Shape::new(dims)
    };
    match op {
        Op::BroadcastInDim(b) => BroadcastInDim { shape: shrunk(&b.shape), ..b.clone() }.into(),
        Op::Reshape(r) => Reshape { shape: shrunk(&r.shape) }.into(),
        Op::Iota(i) => Iota { ty: i.ty.with_shape(shrunk(&i.ty.shape)), ..i.clone() }.into(),
        Op::Slice(s) => {
            let mut limit = s.limit.clone();
            limit[d] /= parts;
            Slice { limit, ..s.clone() }.into()
        }
        Op::DynamicSlice(s) => {
            let mut sizes = s.sizes.clone();
            sizes[d] /= parts;
            systole_ir::op::DynamicSlice { sizes }.into()
        }
        op => op.clone(),
    }
}

/// Element type in which devices' sums of `dtype` are added: narrow floats would be rounded once for each device.
fn sum_type(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

fn wide(op: &Op) -> Op {
    match op {
        Op::DotGeneral(d) => DotGeneral { element_type: sum_type(d.element_type), ..d.clone() }.into(),
        Op::Convolution(c) => Convolution { element_type: sum_type(c.element_type), ..c.clone() }.into(),
        op => op.clone(),
    }
}
