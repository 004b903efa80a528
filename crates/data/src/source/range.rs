//! `range`: the integers from 0, as `value: i64[]`.

use crate::Dataset;
use crate::HostArray;
use crate::pipeline::{Access, Cardinality, Run, Stage};
use crate::sample::{Origin, Sample};
use std::sync::Arc;
use systole_base::{Literal, Result};

impl Dataset {
    /// `0, 1, … n-1` as samples of one field, `value: i64[]`.
    pub fn range(n: u64) -> Dataset {
        Dataset::new(Range { n })
    }
}

pub(crate) struct Range {
    pub n: u64,
}

impl Stage for Range {
    fn label(&self) -> String {
        format!("range({})", self.n)
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.n)
    }

    fn access(&self, _run: &Run) -> Result<Option<Box<dyn Access>>> {
        Ok(Some(Box::new(Counter { n: self.n, source: self.label().into(), field: "value".into() })))
    }
}

struct Counter {
    n: u64,
    source: Arc<str>,
    field: Arc<str>,
}

impl Access for Counter {
    fn len(&self) -> Option<u64> {
        Some(self.n)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let value = HostArray::from(Literal::from_slice([], &[index as i64]));
        let origin = Origin { source: self.source.clone(), index };
        Ok(Sample::from_parts(vec![(self.field.clone(), value)], Some(origin)))
    }
}
