//! Estimates which kernels XLA fuses a program's ops into, each with its matrix product and the arrays it reads and
//! writes, for the performance model.
//!
//! The grouping follows XLA's observed fusion: element-wise ops and data movement join the kernel that reads them; ops
//! after a product join the product. A value with readers in several kernels is written once and read by each. Cheap
//! values are recomputed instead.

use systole_compile::PASSES;
use systole_ir::op::{Convolution, DotGeneral, LoweringClass};
use systole_ir::{DType, Graph, Node, Op, TensorType, ValueId};

/// A program as a list of accelerator kernels.
#[derive(Clone, Debug, Default)]
pub struct KernelList {
    /// Kernels in execution order.
    pub kernels: Vec<KernelWork>,
    /// Arguments of the program.
    pub arguments: Vec<ProgramArgument>,
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// Number of loops whose iteration count is unknown; each counts as one iteration.
    pub unknown_loops: usize,
}

/// An argument of a program: its type and role.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramArgument {
    /// Name in the program.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Role in the training step.
    pub role: ArgumentRole,
}

/// Role of a program argument. Only training steps define roles; other arguments are `Input`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentRole {
    /// Trainable weights.
    Trainable,
    /// Frozen weights.
    Frozen,
    /// Optimizer state.
    Optimizer,
    /// Batch, metrics, controls, or any argument of a program that is not a training step.
    Input,
}

/// Work of a kernel (matrix product, bytes read and written), executed `trips` times.
#[derive(Clone, Debug)]
pub struct KernelWork {
    /// Op that names the kernel.
    pub name: String,
    /// Layer of the kernel; empty if there is none.
    pub scope: String,
    /// Matrix product or convolution in the kernel.
    pub product: Option<MatrixProduct>,
    /// Arrays read from memory.
    pub reads: Vec<MemoryArray>,
    /// Arrays written to memory.
    pub writes: Vec<MemoryArray>,
    /// Number of element-wise operations.
    pub ops: f64,
    /// Number of random values generated.
    pub draws: f64,
    /// Whether the kernel only changes an array's layout, which devices without tiles do not need.
    pub reorders: bool,
    /// Executions per step.
    pub trips: f64,
    /// Index of the program or loop body, within which array ids are unique.
    pub graph: usize,
}

/// An array in device memory; equal arrays of one program have equal ids.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryArray {
    /// Id within the program or loop body.
    pub id: usize,
    /// Type.
    pub ty: TensorType,
    /// Fraction that the kernel touches: slices read, and in-place updates write, only a part of large arrays.
    pub part: f64,
    /// Whether only products read it: then it is stored as bf16 where f32 factors are multiplied as bf16.
    pub factor: bool,
}

/// A sum of matrix products: `batch · taps` products of `[rows, inner]` and `[inner, columns]`.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixProduct {
    /// Number of independent products.
    pub batch: f64,
    /// Number of convolution window positions; 1 for plain products.
    pub taps: f64,
    /// Rows of the result.
    pub rows: f64,
    /// Contracted dimension.
    pub inner: f64,
    /// Columns of the result.
    pub columns: f64,
    /// Alternative to the columns: the batch of a convolution.
    pub lanes: f64,
    /// Whether it is a convolution.
    pub convolution: bool,
    /// Element type of the factors.
    pub dtype: DType,
}

impl MatrixProduct {
    /// Arithmetic operations that the product requires; a multiply-add counts as two.
    pub fn flops(&self) -> f64 {
        2.0 * self.batch * self.taps * self.rows * self.inner * self.columns
    }
}

impl KernelList {
    /// Extracts the kernels of a program's graph. Loop bodies count once per iteration.
    pub fn of(graph: &Graph) -> KernelList {
        let simple = simplified(graph);
        let mut work = KernelList {
            arguments: arguments(graph),
            results: graph.result_types(),
            unknown_loops: unknown_loops(&simple),
            ..KernelList::default()
        };
        let mut graphs = 0;
        add(&simple, 1.0, &mut graphs, &mut work.kernels);
        work
    }

    /// Arithmetic operations of all matrix products in one run of the program.
    pub fn product_flops(&self) -> f64 {
        self.kernels.iter().filter_map(|k| Some(k.product.as_ref()?.flops() * k.trips)).sum()
    }

    /// Batch size of a training step: the leading dimension of its largest input.
    pub(crate) fn batch(&self) -> Option<usize> {
        let inputs = self.arguments.iter().filter(|a| a.role == ArgumentRole::Input && a.ty.rank() > 0);
        inputs.max_by_key(|a| a.ty.bytes()).map(|a| a.ty.shape[0])
    }

    /// Bytes of the program arguments with a role.
    pub fn bytes_of(&self, role: ArgumentRole) -> f64 {
        self.arguments.iter().filter(|a| a.role == role).map(|a| a.ty.bytes() as f64).sum()
    }
}

/// Number of loops with an unknown iteration count, in a graph and the bodies of its loops.
fn unknown_loops(graph: &Graph) -> usize {
    let of = |node: &Node| match &node.op {
        Op::While(w) => usize::from(w.trip_count.is_none()) + unknown_loops(&w.body),
        _ => 0,
    };
    graph.nodes.iter().map(of).sum()
}

/// Applies the passes that every compiler has, without CPU-specific ones.
fn simplified(graph: &Graph) -> Graph {
    let usual = PASSES.iter().filter(|p| ["prune", "simplify", "cse"].contains(&p.name));
    usual.fold(graph.clone(), |g, pass| (pass.run)(&g))
}

/// Derives roles from argument names, which start with the position in the argument tree: weights, frozen weights,
/// optimizer.
fn arguments(graph: &Graph) -> Vec<ProgramArgument> {
    let role = |name: &str| match name.split_once('/') {
        Some(("0", _)) => ArgumentRole::Trainable,
        Some(("1", _)) => ArgumentRole::Frozen,
        Some(("2", _)) => ArgumentRole::Optimizer,
        _ => ArgumentRole::Input,
    };
    let each = graph.params.iter().zip(&graph.param_names);
    each.map(|(&p, name)| ProgramArgument { name: name.clone(), ty: graph.ty(p).clone(), role: role(name) })
        .collect()
}

fn add(graph: &Graph, trips: f64, graphs: &mut usize, kernels: &mut Vec<KernelWork>) {
    let groups = KernelGroups::of(graph);
    let own = *graphs;
    *graphs += 1;
    for root in 0..graph.nodes.len() {
        if groups.of[root] != Some(root) {
            continue;
        }
        match &graph.nodes[root].op {
            Op::While(w) => {
                let n = trips * w.trip_count.unwrap_or(1) as f64;
                add(&simplified(&w.body), n, graphs, kernels);
            }
            // Only one branch runs: plan for the most expensive one.
            Op::Case(c) => {
                let dearest = c.branches.iter().max_by(|a, b| {
                    systole_ir::cost::cost(a).flops.total_cmp(&systole_ir::cost::cost(b).flops)
                });
                if let Some(branch) = dearest {
                    add(&simplified(branch), trips, graphs, kernels);
                }
            }
            _ => {
                let Some(kernel) = groups.kernel(graph, root, trips) else { continue };
                let kernel = KernelWork { graph: own, ..kernel };
                let (before, kernel, after) = reordered(graph, &groups, root, kernel);
                kernels.extend(before.into_iter().chain([kernel]).chain(after));
            }
        }
    }
}

/// Adds layout copies as observed in the TPU compiler: a convolution's argument is brought to convolution layout, and
/// random bits, which are generated in groups of four, to the layout of their array.
fn reordered(
    graph: &Graph,
    groups: &KernelGroups,
    root: usize,
    mut kernel: KernelWork,
) -> (Option<KernelWork>, KernelWork, Vec<KernelWork>) {
    // Ids that no value of the graph has.
    let fresh = |n: usize| usize::MAX - 2 * root - n;
    let copy = |from: &MemoryArray, to: &MemoryArray| KernelWork {
        name: "copy".into(),
        product: None,
        reads: vec![from.clone()],
        writes: vec![to.clone()],
        ops: 0.0,
        draws: 0.0,
        reorders: true,
        ..kernel.clone()
    };
    if kernel.draws >= 4.0 {
        let bits = kernel.writes.iter().max_by_key(|a| a.ty.elements()).cloned();
        let fours = (kernel.draws / 4.0).ceil() as usize;
        // The bits are processed first, so bytes are transposed, not words. Four columns occupy rows of 128.
        let turned = |n, ty: TensorType| MemoryArray { id: fresh(n), ty, part: 1.0, factor: false };
        let (wide, flat) = (
            turned(0, TensorType::new(DType::Bool, [fours, 128])),
            turned(1, TensorType::new(DType::Bool, [fours * 4])),
        );
        let after = bits.map(|b| vec![copy(&b, &wide), copy(&wide, &flat)]);
        return (None, kernel, after.unwrap_or_default());
    }
    let Op::Convolution(c) = &graph.nodes[root].op else { return (None, kernel, Vec::new()) };
    let x = graph.nodes[root].inputs[0];
    if !matches!(graph.node(x).op, Op::Parameter(_)) || !comes_in_order(c, graph.ty(x)) {
        return (None, kernel, Vec::new());
    }
    let given = groups.array(graph, x);
    let own = MemoryArray { id: fresh(0), ..given.clone() };
    let before = copy(&given, &own);
    kernel.reads.iter_mut().filter(|a| a.id == given.id).for_each(|a| *a = own.clone());
    (Some(before), kernel, Vec::new())
}

/// Whether an argument's default layout has features and last spatial axis on the tiles, while convolutions need the
/// batch there. If that wastes more than the batch on the tiles, the argument already has convolution layout.
fn comes_in_order(c: &Convolution, x: &TensorType) -> bool {
    let size = |d: usize| x.shape[d];
    let Some(&last) = c.dims.input_spatial.last() else { return false };
    let (batch, features) = (size(c.dims.input_batch), size(c.dims.input_feature));
    let rows = 8 * (4 / x.dtype.size().max(1)).max(1);
    let lanes = |d: usize| d.next_multiple_of(128) as f64 / d as f64;
    size(last) % rows == 0 && lanes(features) <= lanes(batch)
}

/// Kernel of each node: the index of the node that names the kernel.
struct KernelGroups {
    of: Vec<Option<usize>>,
    users: Vec<Vec<usize>>,
    is_result: Vec<bool>,
    /// Whether each reader recomputes the value.
    again: Vec<bool>,
}

impl KernelGroups {
    fn of(graph: &Graph) -> KernelGroups {
        let n = graph.nodes.len();
        let mut users = vec![Vec::new(); n];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.inputs {
                if users[v.index()].last() != Some(&i) {
                    users[v.index()].push(i);
                }
            }
        }
        let mut is_result = vec![false; n];
        graph.results.iter().for_each(|r| is_result[r.index()] = true);
        let again = recomputed(graph, &users);
        let mut g = KernelGroups { of: vec![None; n], users, is_result, again };
        g.join_producers(graph);
        g.join_after_products(graph);
        g
    }

    /// From the last node to the first: a value whose readers are all in one kernel joins that kernel.
    fn join_producers(&mut self, graph: &Graph) {
        for i in (0..graph.nodes.len()).rev() {
            let node = &graph.nodes[i];
            if is_free(node) || (self.again[i] && !self.is_result[i]) {
                continue;
            }
            let readers = self.kernels_of_readers(i);
            self.of[i] = match &readers[..] {
                [one] if joins(node) && takes_in(&graph.nodes[*one]) => Some(*one),
                _ => Some(i),
            };
        }
    }

    /// Returns the kernels that read a value, including through recomputed values.
    fn kernels_of_readers(&self, i: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let mut open = vec![i];
        while let Some(v) = open.pop() {
            for &u in &self.users[v] {
                match self.of[u] {
                    Some(k) if !found.contains(&k) => found.push(k),
                    Some(_) => {}
                    None => open.push(u),
                }
            }
        }
        found
    }

    /// Element-wise ops on a product's result join the product's kernel, if nothing else reads the result.
    fn join_after_products(&mut self, graph: &Graph) {
        for i in 0..graph.nodes.len() {
            let node = &graph.nodes[i];
            if self.of[i] != Some(i) || node.op.rule().lower() != LoweringClass::Contract || self.is_result[i]
            {
                continue;
            }
            let [after] = self.kernels_of_readers(i)[..] else { continue };
            let same_size = graph.nodes[after].outs[0].elements() == node.outs[0].elements();
            let products = (0..graph.nodes.len()).any(|j| {
                self.of[j] == Some(after) && graph.nodes[j].op.rule().lower() == LoweringClass::Contract
            });
            if same_size && !products && joins(&graph.nodes[after]) {
                self.of.iter_mut().filter(|g| **g == Some(i)).for_each(|g| *g = Some(after));
            }
        }
    }

    fn kernel(&self, graph: &Graph, root: usize, trips: f64) -> Option<KernelWork> {
        let members: Vec<usize> = (0..graph.nodes.len()).filter(|&i| self.of[i] == Some(root)).collect();
        let contraction = members.iter().find_map(|&i| Some((i, product(graph, &graph.nodes[i])?)));
        let named = &graph.nodes[contraction.as_ref().map_or(root, |c| c.0)];
        let outside = |v: &&ValueId| self.of[v.index()] != Some(root);
        let mut reads: Vec<MemoryArray> = Vec::new();
        for &i in &members {
            let node = &graph.nodes[i];
            for (place, v) in node.inputs.iter().enumerate().filter(|(_, v)| outside(v)) {
                self.sources(graph, *v, root, touched(graph, node, place), &mut reads);
            }
        }
        let written = |i: &&usize| {
            let read_elsewhere = self.kernels_of_readers(**i).iter().any(|&k| k != root);
            self.is_result[**i] || read_elsewhere || **i == root
        };
        let writes: Vec<MemoryArray> = members
            .iter()
            .filter(written)
            .flat_map(|&i| (0..graph.nodes[i].outs.len()).map(move |o| ValueId::new(i, o)))
            .map(|v| MemoryArray { part: written_part(graph, v), ..self.array(graph, v) })
            .collect();
        let small = |a: &[MemoryArray]| a.iter().all(|x| x.ty.elements() <= 1);
        // The scalar core computes scalars in parallel with the kernels.
        if contraction.is_none() && small(&reads) && small(&writes) {
            return None;
        }
        let ops = members.iter().map(|&i| own_ops(graph, &graph.nodes[i])).sum();
        let scope = std::iter::once(named).chain(members.iter().map(|&i| &graph.nodes[i]));
        let scope = scope.map(|n| graph.scope(n)).find(|s| !s.is_empty()).unwrap_or("").to_string();
        Some(KernelWork {
            name: named.op.name().into(),
            scope,
            product: contraction.map(|c| c.1),
            reads,
            writes,
            ops,
            draws: members.iter().map(|&i| draws(&graph.nodes[i])).sum(),
            reorders: false,
            trips,
            graph: 0,
        })
    }

    /// Collects the arrays in memory that a value is computed from: itself, or the operands of recomputed ops.
    fn sources(&self, graph: &Graph, v: ValueId, root: usize, part: f64, found: &mut Vec<MemoryArray>) {
        let node = graph.node(v);
        let made_here = self.of[v.index()].is_none() && !matches!(node.op, Op::Parameter(_));
        if made_here {
            let outside = node.inputs.iter().enumerate().filter(|(_, w)| self.of[w.index()] != Some(root));
            for (place, w) in outside {
                self.sources(graph, *w, root, part * touched(graph, node, place), found);
            }
            return;
        }
        let read = MemoryArray { part, ..self.array(graph, v) };
        match found.iter_mut().find(|a| a.id == read.id) {
            Some(known) => known.part = known.part.max(part),
            None => found.push(read),
        }
    }

    fn array(&self, graph: &Graph, v: ValueId) -> MemoryArray {
        let made = !matches!(graph.node(v).op, Op::Parameter(_)) && !self.is_result[v.index()];
        let factor = made && self.only_multiplied(graph, v.index());
        MemoryArray { id: v.index() * 8 + v.out as usize, ty: graph.ty(v).clone(), part: 1.0, factor }
    }

    fn only_multiplied(&self, graph: &Graph, i: usize) -> bool {
        let users = &self.users[i];
        !users.is_empty()
            && users.iter().all(|&u| match &graph.nodes[u].op {
                Op::Reshape(_) | Op::Transpose(_) | Op::Convert(_) => {
                    !self.is_result[u] && self.only_multiplied(graph, u)
                }
                op => op.rule().lower() == LoweringClass::Contract,
            })
    }
}

/// Fraction of an operand that a node reads.
fn touched(graph: &Graph, node: &Node, place: usize) -> f64 {
    let whole = graph.ty(node.inputs[place]).elements().max(1) as f64;
    match (&node.op, place) {
        (Op::DynamicSlice(_) | Op::Slice(_) | Op::Gather(_), 0) => {
            (node.outs[0].elements() as f64 / whole).min(1.0)
        }
        (Op::DynamicUpdateSlice(_), 0) => 0.0,
        _ => 1.0,
    }
}

/// Fraction of a value that its kernel writes: updates are in place.
fn written_part(graph: &Graph, v: ValueId) -> f64 {
    let node = graph.node(v);
    match (&node.op, node.inputs.get(1)) {
        (Op::DynamicUpdateSlice(_), Some(update)) => {
            graph.ty(*update).elements() as f64 / node.outs[0].elements().max(1) as f64
        }
        _ => 1.0,
    }
}

fn draws(node: &Node) -> f64 {
    match node.op.rule().lower() {
        LoweringClass::Draw => node.outs.last().map_or(0.0, |t| t.elements() as f64),
        _ => 0.0,
    }
}

/// Whether a node is an argument or a constant, which no kernel computes.
fn is_free(node: &Node) -> bool {
    matches!(node.op.rule().lower(), LoweringClass::Leaf)
}

/// Determines the values that each reader recomputes: reshapes, broadcasts, conversions, small values, and cheap ops on
/// one array, whose operand is no larger than the result. Readers that cannot fuse their operands need the value
/// stored.
fn recomputed(graph: &Graph, users: &[Vec<usize>]) -> Vec<bool> {
    // The array in memory that each value is computed from; several are not distinguished.
    let mut made_from: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    let mut again = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let elements = |i: usize| graph.nodes[i].outs.first().map_or(0, |t| t.elements());
        let source = |v: &ValueId| if again[v.index()] { made_from[v.index()] } else { Some(v.index()) };
        let large = |s: &usize| elements(*s) > 1 && elements(*s) * SMALL > elements(i);
        let mut sources: Vec<usize> = node.inputs.iter().filter_map(source).filter(large).collect();
        sources.sort_unstable();
        sources.dedup();
        again[i] = match &node.op {
            _ if users[i].iter().any(|&u| !takes_in(&graph.nodes[u])) => false,
            Op::BroadcastInDim(_)
            | Op::Reshape(_)
            | Op::Iota(_)
            | Op::Convert(_)
            | Op::OptimizationBarrier(_)
            | Op::Compare(_) => true,
            _ if !joins(node) => false,
            _ if node.inputs.iter().all(|v| graph.ty(*v).elements() <= 1) => true,
            op => CHEAP.contains(&op.name()) && sources.len() <= 1,
        };
        made_from[i] = sources.first().copied();
    }
    again
}

/// An operand smaller than the result by this factor has negligible cost for the reader.
const SMALL: usize = 16;

/// Element-wise ops that compilers recompute rather than store.
const CHEAP: [&str; 8] = ["add", "subtract", "multiply", "maximum", "minimum", "negate", "select", "abs"];

/// Whether a node may fuse into its reader's kernel.
fn joins(node: &Node) -> bool {
    let moved = matches!(node.op.rule().lower(), LoweringClass::Map | LoweringClass::Move);
    moved && !matches!(node.op, Op::Gather(_) | Op::Scatter(_) | Op::DynamicUpdateSlice(_) | Op::Sort(_))
}

/// Whether a kernel may fuse the ops that compute its operands.
fn takes_in(root: &Node) -> bool {
    matches!(
        root.op.rule().lower(),
        LoweringClass::Map | LoweringClass::Move | LoweringClass::Fold | LoweringClass::Contract
    ) && !matches!(root.op, Op::SelectAndScatter(_) | Op::Scatter(_) | Op::Sort(_) | Op::Gather(_))
}

fn own_ops(graph: &Graph, node: &Node) -> f64 {
    let args: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
    match node.op.rule().lower() {
        LoweringClass::Map | LoweringClass::Fold | LoweringClass::Draw => {
            node.op.rule().cost(&args, &node.outs).flops
        }
        _ => 0.0,
    }
}

fn product(graph: &Graph, node: &Node) -> Option<MatrixProduct> {
    let types = (graph.ty(*node.inputs.first()?), graph.ty(*node.inputs.get(1)?));
    match &node.op {
        Op::DotGeneral(d) => Some(dot(d, types.0, types.1)),
        Op::Convolution(c) => Some(convolution(c, types.0, types.1, &node.outs[0])),
        _ => None,
    }
}

fn dot(d: &DotGeneral, a: &TensorType, b: &TensorType) -> MatrixProduct {
    let size = |t: &TensorType, dims: &[usize]| dims.iter().map(|&d| t.shape[d] as f64).product::<f64>();
    let columns = size(b, &d.rhs_free(b.rank()));
    MatrixProduct {
        batch: size(a, &d.lhs_batch),
        taps: 1.0,
        rows: size(a, &d.lhs_free(a.rank())),
        inner: size(a, &d.lhs_contract),
        columns,
        lanes: size(a, &d.lhs_free(a.rank())),
        convolution: false,
        dtype: a.dtype,
    }
}

/// Taps on holes of a dilated input (gradients of strided convolutions) multiply nothing and are not counted.
fn convolution(c: &Convolution, x: &TensorType, kernel: &TensorType, y: &TensorType) -> MatrixProduct {
    let groups = (c.feature_groups * c.batch_groups).max(1) as f64;
    let features = kernel.shape[c.dims.kernel_output_feature] as f64;
    let window: f64 = c.dims.kernel_spatial.iter().map(|&d| kernel.shape[d] as f64).product();
    let holes: f64 = c.lhs_dilation.iter().map(|&d| d as f64).product();
    MatrixProduct {
        batch: groups,
        taps: (window / holes).max(1.0),
        rows: y.elements() as f64 / features.max(1.0),
        inner: kernel.shape[c.dims.kernel_input_feature] as f64,
        columns: features / groups,
        lanes: y.shape[c.dims.output_batch].max(x.shape[c.dims.input_batch]) as f64,
        convolution: true,
        dtype: x.dtype,
    }
}
