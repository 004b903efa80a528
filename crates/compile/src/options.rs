//! What a compilation may assume, and which parts of a graph it cuts into blocks.

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
