//! `unbatch`: splits each element into its rows.

use crate::Dataset;
use crate::HostArray;
use crate::pipeline::{DatasetStage, ElementCursor, IteratorState, PipelineRun, StageNode, foreign, open};
use crate::sample::Sample;
use crate::source::slices::{rows, slice};
use crate::stage::delegate::delegate;
use systole_base::Result;

impl Dataset {
    /// Splits along the first dimension: `name: T[n, …] → n samples of name: T[…]`.
    pub fn unbatch(&self) -> Dataset {
        self.then(|up| UnbatchStage { up })
    }
}

pub(crate) struct UnbatchStage {
    pub up: StageNode,
}

impl DatasetStage for UnbatchStage {
    delegate!(inputs, fewer);

    fn label(&self) -> String {
        "unbatch".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(UnbatchCursor::new(open(&self.up, run)?)))
    }
}

struct UnbatchCursor {
    up: Box<dyn ElementCursor>,
    batch: Sample,
    /// State before the batch.
    before: IteratorState,
    at: usize,
    count: usize,
}

impl UnbatchCursor {
    fn new(up: Box<dyn ElementCursor>) -> UnbatchCursor {
        UnbatchCursor { up, batch: Sample::default(), before: IteratorState::default(), at: 0, count: 0 }
    }

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

impl ElementCursor for UnbatchCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        while self.at == self.count {
            self.before = self.up.save();
            let batch = self.up.next()?;
            if let Err(e) = self.refill(batch) {
                return Some(Err(e));
            }
        }
        self.at += 1;
        Some(self.row(self.at - 1))
    }

    fn save(&self) -> IteratorState {
        if self.at == self.count {
            return IteratorState::at([0]).over(self.up.save());
        }
        IteratorState::at([self.at as u64]).over(self.before.clone())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let at = state.number(0)? as usize;
        self.up.restore(state.above(0)?)?;
        if at > 0 {
            self.before = state.above(0)?.clone();
            let batch = self.up.next().ok_or_else(foreign)?;
            self.refill(batch)?;
            self.at = if at <= self.count { at } else { return Err(foreign()) };
        }
        Ok(())
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
