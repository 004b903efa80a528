//! `skip`: all but the first n elements.

use super::{Access, Cursor, Node, Stage, open};
use crate::dataset::Cardinality;
use crate::sample::{ElementSpec, Sample};
use systole_base::Result;

pub(crate) struct Skip {
    pub up: Node,
    pub n: u64,
}

impl Stage for Skip {
    fn name(&self) -> String {
        format!("{}.skip({})", self.up.name(), self.n)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| n.saturating_sub(self.n))
    }

    fn access(&self, epoch: u64) -> Result<Option<Box<dyn Access>>> {
        Ok(self.up.access(epoch)?.map(|up| Box::new(Later { up, n: self.n }) as _))
    }

    fn stream(&self, epoch: u64) -> Result<Box<dyn Cursor>> {
        let mut up = open(&self.up, epoch)?;
        up.skip(self.n);
        Ok(up)
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec()
    }
}

struct Later {
    up: Box<dyn Access>,
    n: u64,
}

impl Access for Later {
    fn len(&self) -> Option<u64> {
        self.up.len().map(|n| n.saturating_sub(self.n))
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.up.get(index.saturating_add(self.n))
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};

    #[test]
    fn skips_no_more_than_there_is() {
        for d in [ints(5), stream(5)] {
            assert_eq!(values(&d.skip(3)), [3, 4]);
            assert_eq!(values(&d.skip(9)), [] as [i64; 0]);
            assert_eq!(values(&d.skip(4).repeat_n(2)), [4, 4]);
        }
    }
}
