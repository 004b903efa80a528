//! What can be told of data before the first step: that they never end.

use systole_data::{Cardinality, Dataset};
use systole_ir::{Error, ErrorKind, Result};

/// Refuses data without an end where nobody says how many batches are wanted.
pub(crate) fn check_end(data: &Dataset, steps: Option<usize>, what: &str, say: &str) -> Result<()> {
    if steps.is_some() || data.cardinality() != Cardinality::Infinite {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Config, format!("{what} never ends"))
        .at(format!("{data:?}"))
        .because("the data set repeats for ever")
        .hint(format!("{say}, or leave `repeat` out")))
}
