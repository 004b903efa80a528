//! `range`: the integers from 0, as `value: i64[]`.

use crate::HostArray;
use crate::dataset::Cardinality;
use crate::run::Run;
use crate::sample::{Origin, Sample};
use crate::stage::{Access, Stage};
use std::sync::Arc;
use systole_base::{Literal, Result};

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
