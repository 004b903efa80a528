//! `range`: the integers from 0, as `value: i64[]`.

use crate::Dataset;
use crate::HostArray;
use crate::pipeline::{Cardinality, DatasetStage, PipelineRun, RandomAccess};
use crate::sample::{Sample, SampleOrigin};
use std::sync::Arc;
use systole_base::{Literal, Result};

impl Dataset {
    /// Creates a dataset of `0, 1, … n-1` with one field, `value: i64[]`.
    pub fn range(n: u64) -> Dataset {
        Dataset::new(RangeStage { n })
    }
}

pub(crate) struct RangeStage {
    pub n: u64,
}

impl DatasetStage for RangeStage {
    fn label(&self) -> String {
        format!("range({})", self.n)
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.n)
    }

    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(Some(Box::new(RangeAccess { n: self.n, source: self.label().into(), field: "value".into() })))
    }
}

struct RangeAccess {
    n: u64,
    source: Arc<str>,
    field: Arc<str>,
}

impl RandomAccess for RangeAccess {
    fn len(&self) -> Option<u64> {
        Some(self.n)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let value = HostArray::from(Literal::from_slice([], &[index as i64]));
        let origin = SampleOrigin { source: self.source.clone(), index };
        Ok(Sample::from_parts(vec![(self.field.clone(), value)], Some(origin)))
    }
}
