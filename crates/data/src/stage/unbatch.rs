//! `unbatch`: the rows of each element as elements of their own.

use super::{Cursor, Node, Stage, open};
use crate::HostArray;
use crate::dataset::Cardinality;
use crate::sample::Sample;
use crate::source::slices::{rows, slice};
use systole_base::Result;

pub(crate) struct Unbatch {
    pub up: Node,
}

impl Stage for Unbatch {
    fn name(&self) -> String {
        format!("{}.unbatch", self.up.name())
    }

    fn cardinality(&self) -> Cardinality {
        match self.up.cardinality() {
            Cardinality::Finite(0) => Cardinality::Finite(0),
            _ => Cardinality::Unknown,
        }
    }

    fn stream(&self, epoch: u64) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(Rows { up: open(&self.up, epoch)?, batch: Sample::default(), at: 0, count: 0 }))
    }
}

struct Rows {
    up: Box<dyn Cursor>,
    batch: Sample,
    at: usize,
    count: usize,
}

impl Rows {
    fn refill(&mut self, batch: Result<Sample>) -> Result<()> {
        let batch = batch?.check()?;
        let arrays = batch.fields().map(|(name, x)| Ok((name, x.get()?)));
        self.count = rows(arrays.collect::<Result<Vec<_>>>()?).map_err(|e| batch.locate(e))?;
        self.at = 0;
        self.batch = batch;
        Ok(())
    }

    fn row(&self, i: usize) -> Result<Sample> {
        let mut fields = Vec::new();
        for (k, (_, x)) in self.batch.fields().enumerate() {
            fields.push((self.batch.shared_name(k), HostArray::from(slice(x.get()?, i))));
        }
        Ok(Sample::from_parts(fields, self.batch.origin()))
    }
}

impl Cursor for Rows {
    fn next(&mut self) -> Option<Result<Sample>> {
        while self.at == self.count {
            let batch = self.up.next()?;
            if let Err(e) = self.refill(batch) {
                return Some(Err(e));
            }
        }
        self.at += 1;
        Some(self.row(self.at - 1))
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};

    #[test]
    fn undoes_batch() {
        for d in [ints(7), stream(7)] {
            assert_eq!(values(&d.batch(3).unbatch()), [0, 1, 2, 3, 4, 5, 6]);
            assert_eq!(d.batch(3).unbatch().element_spec().unwrap().to_string(), "x: i32[]");
        }
    }

    #[test]
    fn scalars_have_no_rows() {
        let items: Vec<_> = ints(2).unbatch().iter().collect();
        assert_eq!(items.len(), 2);
        assert!(items[0].as_ref().unwrap_err().to_string().contains("rank 0"));
    }
}
