//! `enumerate`: adds a field `index: i64[]`, counting from 0 in each epoch.

use crate::Dataset;
use crate::HostArray;
use crate::pipeline::{DatasetStage, ElementCursor, PipelineRun, RandomAccess, StageNode, access, open};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use systole_base::{Literal, Result, err};

impl Dataset {
    /// Adds a field `index: i64[]` that counts the elements of the epoch from 0.
    pub fn enumerate(&self) -> Dataset {
        self.then(|up| EnumerateStage { up })
    }
}

pub(crate) struct EnumerateStage {
    pub up: StageNode,
}

impl DatasetStage for EnumerateStage {
    delegate!(inputs);

    fn label(&self) -> String {
        "enumerate".into()
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(access(&self.up, run)?.map(|up| Box::new(EnumerateReader { up, at: 0, number: count }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(EnumerateReader { up: open(&self.up, run)?, at: 0, number: count }))
    }
}

/// Adds the index to each element.
pub(super) struct EnumerateReader<U> {
    pub(super) up: U,
    pub(super) at: u64,
    pub(super) number: fn(Sample, u64) -> Result<Sample>,
}

fn count(sample: Sample, index: u64) -> Result<Sample> {
    if sample.names().any(|n| n == "index") {
        return Err(err!(Data, "enumerate would overwrite the field `index`")
            .hint("rename the existing field before enumerate"));
    }
    let index = Literal::from_slice([], &[index as i64]);
    Ok(sample.with("index", HostArray::from(index)))
}

impl RandomAccess for EnumerateReader<Box<dyn RandomAccess>> {
    delegate!(len);

    fn get(&mut self, index: u64) -> Result<Sample> {
        (self.number)(self.up.get(index)?, index)
    }
}

impl ElementCursor for EnumerateReader<Box<dyn ElementCursor>> {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.up.next()?;
        self.at += 1;
        Some(item.and_then(|s| (self.number)(s, self.at - 1)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let skipped = self.up.skip(n);
        self.at += skipped;
        skipped
    }

    delegate!(position at);
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream};

    #[test]
    fn counts_what_comes() {
        for d in [ints(9), stream(9)] {
            let d = d.skip(5).enumerate();
            let got: Vec<i64> = d.iter().map(|s| s.unwrap().get("index").unwrap().get(0).as_i64()).collect();
            assert_eq!(got, [0, 1, 2, 3]);
            assert_eq!(d.element_spec().unwrap().to_string(), "x: i32[], index: i64[]");
            assert!(d.enumerate().iter().next().unwrap().unwrap_err().to_string().contains("rename"));
        }
    }
}
