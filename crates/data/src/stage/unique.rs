//! `unique`: drops duplicate elements.
//!
//! Keeps a 128-bit hash per distinct element; restoring a position reads the elements before it again.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, PipelineRun, StageNode, open};
use crate::sample::Sample;
use crate::stage::delegate::{delegate, replayed_position};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use systole_base::Result;

impl Dataset {
    /// Drops elements equal to an earlier one of the epoch in names, types and values.
    ///
    /// Needs 16 bytes per distinct element. Resuming reads the elements before the position again.
    pub fn unique(&self) -> Dataset {
        self.then(|up| UniqueStage { up })
    }
}

struct UniqueStage {
    up: StageNode,
}

impl DatasetStage for UniqueStage {
    delegate!(inputs, fewer, spec);

    fn label(&self) -> String {
        "unique".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(UniqueCursor { up: open(&self.up, run)?, seen: HashSet::new(), taken: 0 }))
    }
}

struct UniqueCursor {
    up: Box<dyn ElementCursor>,
    seen: HashSet<u128>,
    /// Number of elements yielded by this stage.
    taken: u64,
}

/// Hashes names, types and values with two hash functions, so that collisions are negligible.
fn mark(sample: &Sample) -> Result<u128> {
    let mut halves = [DefaultHasher::new(), DefaultHasher::new()];
    for (salt, half) in halves.iter_mut().enumerate() {
        salt.hash(half);
        for (name, x) in sample.fields() {
            let x = x.get()?;
            (name, x.ty().to_string()).hash(half);
            x.bytes().hash(half);
        }
    }
    let [high, low] = halves.map(|h| u128::from(h.finish()));
    Ok(high << 64 | low)
}

impl ElementCursor for UniqueCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            let item = self.up.next()?;
            match item.as_ref().map_err(Clone::clone).and_then(mark) {
                Ok(mark) if !self.seen.insert(mark) => continue,
                Ok(_) => {}
                Err(e) => {
                    self.taken += 1;
                    return Some(Err(e));
                }
            }
            self.taken += 1;
            return Some(item);
        }
    }

    replayed_position!();
}

#[cfg(test)]
mod tests {
    use crate::Sample;
    use crate::stage::test::{ints, resumes, stream, values};
    use systole_base::DType;

    #[test]
    fn each_element_comes_once_an_epoch() {
        for d in [ints(12), stream(12)] {
            let rest = d.map(|s| s.map("x", |x| x.then(|x| Ok(x.convert(DType::F32)))));
            let rest = rest.map(|s: Sample| {
                let v = s.get("x").unwrap().get(0).as_i64() * 7 % 5;
                s.map("x", |x| x * 0.0 + v as f64)
            });
            assert_eq!(values(&rest.unique()), [0, 2, 4, 1, 3]);
            assert_eq!(values(&rest.unique().repeat_n(2)).len(), 10);
            assert_eq!(
                values(&rest.batch(5).unique()).len(),
                5 + 2,
                "equal batches are one, a smaller one is another"
            );
            resumes(&rest.unique().repeat_n(2).batch(2));
            resumes(&rest.shuffle(4, 3).unique());
        }
    }
}
