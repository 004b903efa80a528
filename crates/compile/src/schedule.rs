//! The compiled program as data: steps over storage slots.
//!
//! A slot is a run of bytes with a lifetime; types ride on the steps, so that reshapes cost nothing.

use crate::parts::Parts;
use smallvec::SmallVec;
use systole_ir::{DType, Error, ErrorKind, Literal, Op, Result, Scalar, Shape, TensorType};

/// Index into [`Schedule::slots`].
pub type Slot = usize;

/// What a schedule may assume about its runs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Parameters whose memory runs may overwrite.
    pub donated: Vec<usize>,
    /// For bodies of loops: result `k` may be written into parameter `state_at + k` only, so that states stay put.
    pub state_at: Option<usize>,
    /// Which parts of the graph run for blocks of rows.
    pub blocks: Blocking,
    /// Whether narrow floats may keep more digits than their type has until they are stored.
    pub excess_precision: bool,
}

/// How a graph is cut into blocks of rows. Blocks decide in which order sums are added, so this must not depend on the
/// machine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Blocking {
    /// Not at all.
    #[default]
    Off,
    /// Where that gains with a near cache of so many bytes.
    Cache(usize),
    /// Wherever it is possible, by so many rows: to test what blocks compute.
    Rows(usize),
}

/// A program: what to compute, in order, and where every array lies.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// Name of the graph.
    pub name: String,
    /// Kernels in order.
    pub steps: Vec<Step>,
    /// Storage of every array that exists.
    pub slots: Vec<Storage>,
    /// Arrays known at compile time.
    pub constants: Vec<Literal>,
    /// Types of the parameters.
    pub params: Vec<TensorType>,
    /// Where the results come from.
    pub results: Vec<ResultPlan>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// What lies inside another array.
    pub views: Vec<View>,
}

/// Where an array lies that is a contiguous part of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// The other array's.
    pub of: Slot,
    /// The step that slices it, whose indices say where. It moves nothing.
    pub by: usize,
}

/// One kernel call.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it computes.
    pub kernel: Kernel,
    /// Slots that it reads.
    pub inputs: Vec<Slot>,
    /// How it sees them.
    pub input_types: Vec<TensorType>,
    /// Slots that it writes; one may be an input's where that is legal (see [`Storage::place`]).
    pub outputs: Vec<Slot>,
    /// Types of the results.
    pub output_types: Vec<TensorType>,
    /// Layer path, for profiles.
    pub scope: String,
    /// Arithmetic operations.
    pub flops: f64,
}

/// Storage of one array.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Size.
    pub bytes: usize,
    /// Where it lies.
    pub place: Place,
    /// The step that writes it (0 for parameters and constants).
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
}

/// Where an array lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The caller's argument.
    Param(usize),
    /// [`Schedule::constants`].
    Constant(usize),
    /// At this byte of the arena. Slots whose lifetimes do not overlap share bytes; an element-wise step may write
    /// over an operand that it is the last to read.
    Arena(usize),
    /// The memory of a result.
    Result(usize),
    /// Inside another array; see [`Schedule::views`].
    View(usize),
}

/// One result.
#[derive(Clone, Debug)]
pub struct ResultPlan {
    /// Its type.
    pub ty: TensorType,
    /// The slot that holds it: its own, another result's, a parameter's or a constant's.
    pub slot: Slot,
    /// A donated parameter of the same size into whose memory it may be written.
    pub reuse: Option<usize>,
}

/// What a step computes.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few steps, and no arrays of them are moved about.
pub enum Kernel {
    /// Fused element-wise work: one output for each store.
    Map(Map),
    /// Fused element-wise work some of whose results are parts of arrays.
    Parts(crate::parts::Parts),
    /// Folds dimensions of each value that `map` yields; inputs are those of `map`, then the values' initial ones.
    Reduce {
        /// Computes the elements to fold: a store for each output, all of one type.
        map: Map,
        /// Which of `map`'s dimensions are folded.
        folded: Vec<bool>,
        /// How.
        monoid: systole_ir::op::Monoid,
    },
    /// A product whose elements an element-wise program takes as they are complete.
    HandOn(crate::handon::HandOn),
    /// Maps and folds, row by row.
    Rows(crate::rows::Rows),
    /// One op; with `bias` the last input is added along the result's last dimension.
    Op {
        /// The op.
        op: Op,
        /// Whether a bias follows the op's own operands.
        bias: bool,
    },
    /// `op(inputs…) + the last input`, which is in the memory of the result where that is legal.
    Onto {
        /// The op: a product or a convolution.
        op: Op,
    },
    /// A part of the graph that runs for a block of rows at a time.
    Blocks(Box<Blocks>),
    /// Attention of several heads, or its derivative; the last input is of no use.
    Attention(systole_ir::attention::Recognised),
    /// Max pooling with what stands before and after it.
    Pool(crate::templates::Pool),
    /// The derivative of max pooling.
    Unpool(crate::templates::Unpool),
    /// Gradients of a convolution from that of its pooled result.
    UnpooledGradient(crate::templates::UnpooledGradient),
    /// A convolution with the statistics of its result.
    Moments(crate::templates::Moments),
    /// `captures…, state…`: runs `body` while `cond`.
    While {
        /// Leading inputs that do not change.
        captures: usize,
        /// The input that each state starts as; `None` where that does not matter.
        starts: Vec<Option<usize>>,
        /// `(captures…, state…) → bool[]`.
        cond: Box<Schedule>,
        /// `(captures…, state…) → state…`, in place where legal.
        body: Box<Schedule>,
    },
    /// `index, captures…`: runs one branch.
    Case {
        /// The branches.
        branches: Vec<Schedule>,
    },
}

/// A program for a block of rows, run for one block after the other.
///
/// The blocks are dealt out to groups in runs; the blocks of a group are in order, the sums of the groups are added
/// in a tree.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// `(sums so far…, inputs…) → (sums…, outputs…)` for a block.
    pub body: Schedule,
    /// The same for the last block where that is shorter.
    pub rest: Option<Schedule>,
    /// Rows in all.
    pub rows: usize,
    /// Rows of a block.
    pub block: usize,
    /// Runs of blocks that may run at the same time.
    pub groups: usize,
    /// Types of the sums: the step's first results.
    pub sums: Vec<TensorType>,
    /// Bytes of one row of each input of the step; `None`: every block reads all of it.
    pub inputs: Vec<Option<usize>>,
    /// Bytes of one row of each result after the sums.
    pub outputs: Vec<usize>,
}

impl Blocks {
    /// Arithmetic operations of all blocks.
    pub fn flops(&self) -> f64 {
        let of = |s: &Schedule| s.steps.iter().map(|step| step.flops).sum::<f64>();
        of(&self.body) * (self.rows / self.block) as f64 + self.rest.as_ref().map_or(0.0, of)
    }
}

impl Kernel {
    /// A short name for listings and profiles.
    pub fn name(&self) -> String {
        match self {
            Kernel::Map(m) | Kernel::Parts(Parts { map: m, .. }) => match &m.instrs[..] {
                [] => "copy".into(),
                [one] => one.op.name().into(),
                many => format!("map[{}]", many.len()),
            },
            Kernel::Reduce { monoid, map, .. } if map.instrs.is_empty() => {
                format!("reduce_{}", monoid.op().row().name)
            }
            Kernel::Reduce { monoid, map, .. } => {
                format!("map[{}]+reduce_{}", map.instrs.len(), monoid.op().row().name)
            }
            Kernel::HandOn(h) => h.name(),
            Kernel::Rows(r) => format!("rows[{}]", r.stages.len()),
            Kernel::Op { op, bias } => format!("{}{}", op.name(), if *bias { "+bias" } else { "" }),
            Kernel::Onto { op } => format!("{}+=", op.name()),
            Kernel::Blocks(b) => format!("blocks[{}×{}]", b.rows.div_ceil(b.block), b.block),
            Kernel::Attention(a) if a.gradient.is_some() => "attention gradient".into(),
            Kernel::Attention(_) => "attention".into(),
            Kernel::Pool(p) => p.name(),
            Kernel::Unpool(u) => u.name(),
            Kernel::UnpooledGradient(g) if g.product => "product+unpooled kernel gradient".into(),
            Kernel::UnpooledGradient(_) => "unpooled kernel gradient".into(),
            Kernel::Moments(m) => format!("convolution{}+moments", if m.bias { "+bias" } else { "" }),
            Kernel::While { .. } => "while".into(),
            Kernel::Case { .. } => "case".into(),
        }
    }
}

/// A register of a [`Map`]: first the loads, then the instructions' results.
pub type Expr = usize;

/// An element-wise program over a common index space.
#[derive(Clone, Debug)]
pub struct Map {
    /// The index space, neighbouring dimensions joined where all loads allow it.
    pub shape: Shape,
    /// Registers `0..loads.len()`.
    pub loads: Vec<Load>,
    /// The registers after them.
    pub instrs: Vec<Instr>,
    /// The register that each output holds.
    pub stores: Vec<Expr>,
}

impl Map {
    /// Element type of a register.
    pub fn dtype(&self, e: Expr) -> DType {
        match self.loads.get(e) {
            Some(Load::Array { dtype, .. } | Load::Iota { dtype, .. } | Load::Splat { dtype, .. }) => *dtype,
            None => self.instrs[e - self.loads.len()].to,
        }
    }

    /// Whether a load reads element `i` for index `i`.
    pub fn is_linear(&self, load: &Load) -> bool {
        let Load::Array { strides, offset: 0, .. } = load else { return false };
        let own = self.shape.strides();
        (0..self.shape.rank()).all(|d| self.shape[d] == 1 || strides[d] == own[d])
    }
}

/// Where a register's value comes from.
#[derive(Clone, Debug)]
pub enum Load {
    /// An array, with the distance in elements between neighbours along each dimension of the index space.
    Array {
        /// Which input of the step.
        input: usize,
        /// Its element type.
        dtype: DType,
        /// Strides; 0 repeats.
        strides: SmallVec<[usize; 4]>,
        /// The element of the array that index 0 reads: where a slice begins.
        offset: usize,
    },
    /// One value everywhere.
    Splat {
        /// The value.
        value: Scalar,
        /// Its element type.
        dtype: DType,
    },
    /// The coordinate along a dimension: `index / inner % size`.
    Iota {
        /// Elements per step of the coordinate.
        inner: usize,
        /// Size of the dimension.
        size: usize,
        /// Element type.
        dtype: DType,
    },
}

/// One element-wise op on registers.
#[derive(Clone, Debug)]
pub struct Instr {
    /// The op.
    pub op: Op,
    /// Operands.
    pub args: SmallVec<[Expr; 3]>,
    /// Element type of the first operand that is not a predicate.
    pub from: DType,
    /// Element type of the result.
    pub to: DType,
}

/// Bytes of an array; an error where they overflow.
pub fn array_bytes(ty: &TensorType) -> Result<usize> {
    ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size())).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("an array of type {ty} does not fit an address space"))
            .hint("use smaller shapes")
    })
}
