//! Options of a compilation: donated parameters, row blocks and rounding.

/// Options of [`crate::schedule`].
#[derive(Clone, Debug, Default)]
pub struct PipelineOptions {
    /// Indices of parameters whose memory a run may overwrite (donated inputs).
    pub donated: Vec<usize>,
    /// Set for loop bodies: result `k` may alias parameter `state_at + k` only, so that each state keeps its buffer
    /// from iteration to iteration.
    pub state_at: Option<usize>,
    /// Which segments of the graph run as row blocks.
    pub blocks: RowBlocksMode,
    /// Which results may be rounded less often.
    pub rounding: RoundingOptions,
}

/// Freedom of a compilation to round less often than once for each op.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoundingOptions {
    /// Whether intermediate bf16 and f16 values may stay in f32 until they are stored.
    pub excess_precision: bool,
    /// Whether a product and a sum may be contracted to a fused multiply-add.
    pub contraction: bool,
}

/// How segments of a graph are split into row blocks. The split determines the summation order, so it must not depend
/// on the machine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RowBlocksMode {
    /// No row blocks.
    #[default]
    Off,
    /// Row blocks if the cost model expects a gain with a cache of this many bytes per core.
    Cache(usize),
    /// Row blocks of this many rows wherever they are legal. For tests of their results.
    Rows(usize),
}
