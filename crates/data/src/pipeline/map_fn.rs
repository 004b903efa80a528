//! [`MapFn`]: the function of a `map` stage, which the stage or its threads call.

use crate::sample::Sample;
use std::sync::Arc;
use systole_base::Result;

/// A function of a sample.
pub type MapFn = Arc<dyn Fn(Sample) -> Result<Sample> + Send + Sync>;

/// The function may build a sample anew: the origin must survive that, for messages further down.
pub(crate) fn apply(f: &MapFn, sample: Sample) -> Result<Sample> {
    let origin = sample.origin();
    match f(sample) {
        Ok(out) => out.with_origin(origin).check(),
        Err(e) => Err(Sample::default().with_origin(origin).locate(e)),
    }
}
