//! Samples: tiny graphs and the domains of their arguments, from which the tests of every op are generated.

use crate::Graph;
use std::sync::Arc;

/// From which values a test draws the elements of one argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Domain {
    /// Uniform in an interval; integers and bool are drawn from its whole numbers.
    Uniform(f64, f64),
    /// Distinct values in random order, at least `gap` apart: no ties.
    Distinct(f64),
}

/// One tiny program around an op.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Names the case in test output.
    pub label: String,
    /// The program.
    pub graph: Arc<Graph>,
    /// Domain of each parameter.
    pub domains: Vec<Domain>,
    /// How far a backend's floats may be from the interpreter's, in units in the last place of the result's type.
    pub ulp: u32,
    /// Whether the derivative is checked against differences.
    pub differentiable: bool,
}
