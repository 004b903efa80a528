//! `enumerate`: adds a field `index: i64[]`, counting from 0 in each epoch.

use crate::Dataset;
use crate::HostArray;
use crate::pipeline::{Access, Cursor, IteratorState, Node, Run, Stage, access, open};
use crate::sample::Sample;
use systole_base::{Error, ErrorKind, Literal, Result};

impl Dataset {
    /// Adds a field `index: i64[]` that counts the elements of the epoch from 0.
    pub fn enumerate(&self) -> Dataset {
        self.then(|up| Enumerate { up })
    }
}

pub(crate) struct Enumerate {
    pub up: Node,
}

impl Stage for Enumerate {
    fn label(&self) -> String {
        "enumerate".into()
    }

    fn inputs(&self) -> Vec<Node> {
        vec![self.up.clone()]
    }

    fn access(&self, run: &Run) -> Result<Option<Box<dyn Access>>> {
        Ok(access(&self.up, run)?.map(|up| Box::new(Counted { up, at: 0, number: count }) as _))
    }

    fn stream(&self, run: &Run) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(Counted { up: open(&self.up, run)?, at: 0, number: count }))
    }
}

/// Gives each element its number.
pub(super) struct Counted<U> {
    pub(super) up: U,
    pub(super) at: u64,
    pub(super) number: fn(Sample, u64) -> Result<Sample>,
}

fn count(sample: Sample, index: u64) -> Result<Sample> {
    if sample.names().any(|n| n == "index") {
        return Err(Error::new(ErrorKind::Data, "enumerate would replace the field index")
            .hint("rename that field before enumerate"));
    }
    let index = Literal::from_slice([], &[index as i64]);
    Ok(sample.with("index", HostArray::from(index)))
}

impl Access for Counted<Box<dyn Access>> {
    fn len(&self) -> Option<u64> {
        self.up.len()
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        (self.number)(self.up.get(index)?, index)
    }
}

impl Cursor for Counted<Box<dyn Cursor>> {
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

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.at = state.number(0)?;
        self.up.restore(state.above(0)?)
    }
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
