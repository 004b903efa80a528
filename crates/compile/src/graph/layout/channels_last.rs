//! Computes channels-first convolutions, as PyTorch, Equinox and XLA's own layouts have them, with channels last.
//!
//! The convolution kernels read channels last. Operands of a convolution whose spatial dimensions come at the end are
//! transposed, and so is its result. Transposes move from operands to results of the ops that follow (element-wise ops,
//! pooling, reductions, padding and other data movement), so that a network is transposed at its edges only, and weights
//! that are constant not at all. Graphs without such convolutions stay as they are.

use crate::graph::canonicalize::dead_code;
use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{
    BroadcastInDim, Concatenate, ConvDims, Convolution, LoweringClass, Pad, Reduce, ReduceWindow, Reshape,
    Reverse, SelectAndScatter, Slice, Transpose, Window,
};
use systole_ir::{Dims, Graph, Node, Op, Shape, ValueId};

/// Order of dimensions: dimension `i` of the array in this order is dimension `order[i]` of the original.
type Order = Dims;

/// Computes channels-first convolutions and what follows them with channels last.
pub fn run(graph: &Graph) -> Graph {
    let is_first = |node: &Node| matches!(&node.op, Op::Convolution(c) if is_channels_first(c));
    if !graph.nodes.iter().any(is_first) {
        return graph.clone();
    }
    let mut layouts = LayoutPropagation::default();
    let new = rebuild(graph, |g, _, node, inputs| layouts.replace(g, node, inputs));
    dead_code::run(&new)
}

fn is_channels_first(c: &Convolution) -> bool {
    is_last(&c.dims.input_spatial) || is_last(&c.dims.output_spatial)
}

/// Whether the spatial dimensions are the last ones, in order.
fn is_last(spatial: &[usize]) -> bool {
    !spatial.is_empty() && spatial.iter().copied().eq(2..spatial.len() + 2)
}

#[derive(Default)]
struct LayoutPropagation {
    /// Values that are transposes of an array in another order: that array, and its order.
    moved: HashMap<ValueId, (ValueId, Order)>,
    /// Arrays that were transposed for their readers.
    transposed: HashMap<(ValueId, Order), ValueId>,
}

impl LayoutPropagation {
    fn replace(&mut self, g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<NodeResults> {
        if let Op::Convolution(c) = &node.op {
            return is_channels_first(c).then(|| smallvec![self.convolution(g, c, node, inputs)]);
        }
        let (array, order) = inputs.iter().find_map(|v| self.moved.get(v)).cloned()?;
        let rank = order.len();
        match &node.op {
            op if is_map(g, node, inputs) && node.outs[0].rank() == rank => {
                Some(self.in_one_order(g, op.clone(), order, node, inputs))
            }
            Op::Reduce(r) => Some(self.reduce(g, r, &order, node, inputs)),
            Op::ReduceWindow(w) => {
                let op = ReduceWindow { window: window_in(&w.window, &order), body: w.body.clone() };
                Some(self.in_one_order(g, op, order, node, inputs))
            }
            Op::SelectAndScatter(s) => {
                let op = SelectAndScatter {
                    dimensions: sorted(&s.dimensions, &order),
                    strides: sorted(&s.strides, &order),
                    padding: sorted(&s.padding, &order),
                    select: s.select.clone(),
                    scatter: s.scatter.clone(),
                };
                Some(self.in_one_order(g, op, order, node, inputs))
            }
            Op::Pad(p) => {
                let op = Pad {
                    low: sorted(&p.low, &order),
                    high: sorted(&p.high, &order),
                    interior: sorted(&p.interior, &order),
                };
                Some(self.in_one_order(g, op, order, node, inputs))
            }
            Op::Slice(s) => {
                let [start, limit, strides] = [&s.start, &s.limit, &s.strides].map(|all| sorted(all, &order));
                Some(self.in_one_order(g, Slice { start, limit, strides }, order, node, inputs))
            }
            Op::Reverse(r) => {
                let op = Reverse { dims: r.dims.iter().map(|&d| place(&order, d)).collect() };
                Some(self.in_one_order(g, op, order, node, inputs))
            }
            Op::Concatenate(c) => {
                let op = Concatenate { dim: place(&order, c.dim) };
                Some(self.in_one_order(g, op, order, node, inputs))
            }
            Op::Transpose(t) => {
                // Result dimension i is dimension permutation[i] of the operand.
                let order = order.iter().map(|&d| place(&t.permutation, d)).collect();
                Some(smallvec![self.result(g, array, order, node)])
            }
            Op::Reshape(_) => self.reshape(g, array, &order, node).map(|v| smallvec![v]),
            _ => None,
        }
    }

    /// Adds a convolution that reads and writes channels last.
    fn convolution(&mut self, g: &mut Rewriter, c: &Convolution, node: &Node, inputs: &[ValueId]) -> ValueId {
        let d = &c.dims;
        let n = d.input_spatial.len();
        // [N, C, …] becomes [N, …, C], [F, C, …] becomes […, C, F]. In the gradient of a kernel, C is the batch, the
        // cotangent is the kernel, and the result is a kernel.
        let images: Order = [0].into_iter().chain(2..n + 2).chain([1]).collect();
        let filters: Order = (2..n + 2).chain([1, 0]).collect();
        let same: Order = (0..n + 2).collect();
        let is_forward = d.input_batch < d.input_feature;
        let [kernel_order, output_order] = if is_forward { [&filters, &images] } else { [&images, &filters] };
        let order =
            |spatial: &[usize], order: &Order| if is_last(spatial) { order.clone() } else { same.clone() };
        let x = order(&d.input_spatial, &images);
        let kernel = order(&d.kernel_spatial, kernel_order);
        let output = order(&d.output_spatial, output_order);
        let places = |order: &Order, dims: &[usize]| dims.iter().map(|&d| place(order, d)).collect();
        let dims = ConvDims {
            input_batch: place(&x, d.input_batch),
            input_feature: place(&x, d.input_feature),
            input_spatial: places(&x, &d.input_spatial),
            kernel_input_feature: place(&kernel, d.kernel_input_feature),
            kernel_output_feature: place(&kernel, d.kernel_output_feature),
            kernel_spatial: places(&kernel, &d.kernel_spatial),
            output_batch: place(&output, d.output_batch),
            output_feature: place(&output, d.output_feature),
            output_spatial: places(&output, &d.output_spatial),
        };
        let operands = [self.in_order(g, inputs[0], &x, node), self.in_order(g, inputs[1], &kernel, node)];
        let y = g.push(Convolution { dims, ..c.clone() }, &operands, node);
        self.result(g, y, output, node)
    }

    /// Adds an op whose arrays, operands and results, all have the same dimensions.
    fn in_one_order(
        &mut self,
        g: &mut Rewriter,
        op: impl Into<Op>,
        order: Order,
        node: &Node,
        inputs: &[ValueId],
    ) -> NodeResults {
        let all: Vec<ValueId> = inputs.iter().map(|&v| self.in_order(g, v, &order, node)).collect();
        let first = g.push(op, &all, node);
        self.results(g, first, &order, node)
    }

    fn reduce(
        &mut self,
        g: &mut Rewriter,
        r: &Reduce,
        order: &Order,
        node: &Node,
        inputs: &[ValueId],
    ) -> NodeResults {
        let dims: Dims = r.dims.iter().map(|&d| place(order, d)).collect();
        let all: Vec<ValueId> = inputs.iter().map(|&v| self.in_order(g, v, order, node)).collect();
        let first = g.push(Reduce { dims, body: r.body.clone() }, &all, node);
        let kept: Dims = (0..order.len()).filter(|d| !r.dims.contains(d)).collect();
        let kept_order = order.iter().filter(|d| !r.dims.contains(d)).map(|&d| place(&kept, d)).collect();
        self.results(g, first, &kept_order, node)
    }

    /// Adds a reshape that merges or splits dimensions that are neighbors in both orders, or inserts or removes
    /// dimensions of size 1; `None` for others.
    fn reshape(&mut self, g: &mut Rewriter, array: ValueId, order: &Order, node: &Node) -> Option<ValueId> {
        let to = node.outs[0].shape.clone();
        let from = g.ty(array).shape.clone();
        // Sizes in the original order.
        let sizes: Dims = (0..order.len()).map(|d| from[place(order, d)]).collect();
        let mut left: Order = order.iter().copied().filter(|&d| sizes[d] != 1).collect();
        let groups = dimension_groups(&sizes, to.dims())?;
        let mut new_order: Order = (0..to.rank()).filter(|&d| to[d] == 1).collect();
        while let Some(&first) = left.first() {
            let (before, after) = groups.iter().find(|(before, _)| before.first() == Some(&first))?;
            if !left.starts_with(before) {
                return None;
            }
            left.drain(..before.len());
            new_order.extend(after.iter().copied());
        }
        let shape: Shape = new_order.iter().map(|&d| to[d]).collect();
        let y = g.push(Reshape { shape }, &[array], node);
        Some(self.result(g, y, new_order, node))
    }

    /// Returns the results of a node in the original order.
    fn results(&mut self, g: &mut Rewriter, first: ValueId, order: &Order, node: &Node) -> NodeResults {
        let one = |k: usize| ValueId { node: first.node, out: k as u32 };
        (0..node.outs.len()).map(|k| self.result(g, one(k), order.clone(), node)).collect()
    }

    /// Returns the array in the original order, for readers that need it.
    fn result(&mut self, g: &mut Rewriter, array: ValueId, order: Order, like: &Node) -> ValueId {
        if is_sorted(&order) {
            return array;
        }
        let permutation: Dims = (0..order.len()).map(|d| place(&order, d)).collect();
        let v = g.push(Transpose { permutation }, &[array], like);
        self.moved.insert(v, (array, order));
        v
    }

    /// Returns a value in an order; scalars as they are.
    fn in_order(&mut self, g: &mut Rewriter, v: ValueId, order: &Order, like: &Node) -> ValueId {
        if is_sorted(order) || g.ty(v).rank() != order.len() {
            return v;
        }
        let (array, permutation) = match self.moved.get(&v) {
            Some((array, own)) => (*array, order.iter().map(|&d| place(own, d)).collect()),
            None => (v, order.clone()),
        };
        if is_sorted(&permutation) {
            return array;
        }
        if let Some(&known) = self.transposed.get(&(array, permutation.clone())) {
            return known;
        }
        let producer = g.node(array).clone();
        let y = match &producer.op {
            Op::BroadcastInDim(b) => self.broadcast(g, b, &permutation, &producer, like),
            Op::Reverse(r) => {
                let x = self.in_order(g, producer.inputs[0], &permutation, like);
                g.push(Reverse { dims: r.dims.iter().map(|&d| place(&permutation, d)).collect() }, &[x], like)
            }
            Op::Transpose(t) => {
                let order = permutation.iter().map(|&d| t.permutation[d]).collect();
                self.in_order(g, producer.inputs[0], &order, like)
            }
            Op::Convert(c) => {
                let x = self.in_order(g, producer.inputs[0], &permutation, like);
                g.push(*c, &[x], like)
            }
            _ => g.push(Transpose { permutation: permutation.clone() }, &[array], like),
        };
        self.transposed.insert((array, permutation), y);
        y
    }

    /// Broadcasts the operand of a broadcast to an array in another order.
    fn broadcast(
        &mut self,
        g: &mut Rewriter,
        b: &BroadcastInDim,
        order: &Order,
        producer: &Node,
        like: &Node,
    ) -> ValueId {
        let dims: Dims = b.dims.iter().map(|&d| place(order, d)).collect();
        let mut operand_order: Order = (0..dims.len()).collect();
        operand_order.sort_unstable_by_key(|&k| dims[k]);
        let x = self.in_order(g, producer.inputs[0], &operand_order, like);
        let shape: Shape = order.iter().map(|&d| b.shape[d]).collect();
        g.push(BroadcastInDim { dims: sorted(&dims, &operand_order), shape }, &[x], like)
    }
}

/// Whether each element depends only on the same element of the operands, and on scalars.
fn is_map(g: &Rewriter, node: &Node, inputs: &[ValueId]) -> bool {
    let alike = |&v: &ValueId| g.ty(v).rank() == 0 || g.ty(v).shape == node.outs[0].shape;
    node.op.rule().lower() == LoweringClass::Map && node.outs.len() == 1 && inputs.iter().all(alike)
}

/// Returns the smallest groups of dimensions that a reshape maps to each other, without dimensions of size 1; `None` if an
/// array is empty.
fn dimension_groups(from: &[usize], to: &[usize]) -> Option<Vec<(Dims, Dims)>> {
    let long = |sizes: &[usize]| (0..sizes.len()).filter(|&d| sizes[d] != 1).collect::<Dims>();
    let (mut before, mut after) = (long(from).into_iter(), long(to).into_iter());
    let mut groups = Vec::new();
    while let Some(first) = before.next() {
        let (mut own, mut made) = (Dims::from_slice(&[first]), Dims::from_slice(&[after.next()?]));
        let (mut m, mut n) = (from[own[0]], to[made[0]]);
        while m != n {
            let (product, dims, rest, sizes) = if m < n {
                (&mut m, &mut own, &mut before, from)
            } else {
                (&mut n, &mut made, &mut after, to)
            };
            let d = rest.next()?;
            *product *= sizes[d];
            dims.push(d);
        }
        groups.push((own, made));
    }
    Some(groups)
}

fn window_in(w: &Window, order: &[usize]) -> Window {
    Window {
        dimensions: sorted(&w.dimensions, order),
        strides: sorted(&w.strides, order),
        base_dilations: sorted(&w.base_dilations, order),
        window_dilations: sorted(&w.window_dilations, order),
        padding: sorted(&w.padding, order),
    }
}

/// Returns one entry for each dimension in another order.
fn sorted<T: Clone, C: FromIterator<T>>(all: &[T], order: &[usize]) -> C {
    order.iter().map(|&d| all[d].clone()).collect()
}

/// Returns where an order has a dimension.
fn place(order: &[usize], dim: usize) -> usize {
    order.iter().position(|&d| d == dim).unwrap_or(dim)
}

fn is_sorted(order: &[usize]) -> bool {
    order.iter().copied().eq(0..order.len())
}
