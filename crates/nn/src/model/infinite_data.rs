//! Rejects infinite datasets when no step count is given.

use systole_data::{Cardinality, Dataset};
use systole_ir::{Result, err};

/// Rejects an infinite dataset unless the number of batches is given.
pub(crate) fn check_end(data: &Dataset, steps: Option<usize>, what: &str, say: &str) -> Result<()> {
    if steps.is_some() || data.cardinality() != Cardinality::Infinite {
        return Ok(());
    }
    Err(err!(Config, "{what} never ends")
        .at(format!("{data:?}"))
        .because("the dataset repeats forever, so its length is infinite")
        .hint(format!("{say}, or remove `repeat`")))
}
