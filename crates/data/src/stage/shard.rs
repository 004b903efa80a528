//! `shard`: takes every n-th element, for one of n workers.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, PipelineRun, RandomAccess, StageNode, access, open,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use systole_base::{Result, err};

impl Dataset {
    /// Takes elements `index`, `index + shards`, …: one of `shards` equal parts. Shard before shuffling.
    pub fn shard(&self, shards: u64, index: u64) -> Dataset {
        self.then(|up| ShardStage { up, shards, index })
    }
}

struct ShardStage {
    up: StageNode,
    shards: u64,
    index: u64,
}

impl ShardStage {
    fn check(&self) -> Result<()> {
        if self.index < self.shards {
            return Ok(());
        }
        Err(err!(Config, "invalid shard index {} of {} shards", self.index, self.shards)
            .at(self.label())
            .hint("use an index from 0 to the number of shards minus 1"))
    }

    fn count(&self, n: u64) -> u64 {
        n.saturating_sub(self.index).div_ceil(self.shards.max(1))
    }
}

impl DatasetStage for ShardStage {
    delegate!(inputs);

    fn label(&self) -> String {
        format!("shard({}, {})", self.shards, self.index)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| self.count(n))
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        self.check()?;
        let Some(up) = access(&self.up, run)? else { return Ok(None) };
        let len = up.len().map(|n| self.count(n));
        Ok(Some(Box::new(ShardAccess { up, shards: self.shards, index: self.index, len })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        self.check()?;
        Ok(Box::new(ShardCursor { up: open(&self.up, run)?, shards: self.shards, due: self.index }))
    }
}

struct ShardAccess {
    up: Box<dyn RandomAccess>,
    shards: u64,
    index: u64,
    len: Option<u64>,
}

impl RandomAccess for ShardAccess {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.up.get(index.saturating_mul(self.shards).saturating_add(self.index))
    }

    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let own = |i: &u64| i.saturating_mul(self.shards).saturating_add(self.index);
        self.up.gather(&indices.iter().map(own).collect::<Vec<_>>())
    }
}

struct ShardCursor {
    up: Box<dyn ElementCursor>,
    shards: u64,
    /// Number of elements to skip before the next one.
    due: u64,
}

impl ElementCursor for ShardCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let due = std::mem::replace(&mut self.due, self.shards - 1);
        if self.up.skip(due) < due { None } else { self.up.next() }
    }

    delegate!(position due);
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};

    #[test]
    fn the_shards_are_the_whole() {
        for d in [ints(10), stream(10)] {
            assert_eq!(values(&d.shard(3, 1)), [1, 4, 7]);
            let mut all: Vec<i64> = (0..4).flat_map(|i| values(&d.shard(4, i))).collect();
            all.sort();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
            resumes(&d.shard(3, 2).repeat_n(2));
            assert!(d.shard(2, 2).iter().next().unwrap().unwrap_err().to_string().contains("index 2"));
        }
        assert_eq!(ints(10).shard(3, 0).cardinality().finite(), Some(4));
    }
}
