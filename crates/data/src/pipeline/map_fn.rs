//! [`MapFn`]: function of a `map` stage, called by the stage or its threads.

use crate::sample::Sample;
use std::sync::Arc;
use systole_base::Result;

/// Map function: sample to sample.
pub type MapFn = Arc<dyn Fn(Sample) -> Result<Sample> + Send + Sync>;

/// Applies a map function. If it builds a new sample, the origin is carried over for later messages.
pub(crate) fn apply(f: &MapFn, sample: Sample) -> Result<Sample> {
    let origin = sample.origin();
    match f(sample) {
        Ok(out) => out.with_origin(origin).check(),
        Err(e) => Err(Sample::default().with_origin(origin).locate(e)),
    }
}
