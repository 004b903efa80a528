//! `batch`: consecutive samples stacked along a new first dimension.

use super::{Access, Cursor, Node, Owner, Stage, access, open};
use crate::HostArray;
use crate::array::unfilled;
use crate::dataset::Cardinality;
use crate::place::Place;
use crate::pump::Pump;
use crate::run::Run;
use crate::sample::{ElementSpec, Sample};
use std::ops::Range;
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Literal, Result, TensorType};

pub(crate) struct Batch {
    pub up: Node,
    pub batching: Batching,
    /// Which rows are wanted; the others may be anything.
    pub share: Option<Share>,
}

/// Of each batch that divides into `of` equal parts, some parts: what one of several hosts needs of it.
///
/// ```
/// use systole_data::Share;
/// let half = Share { parts: 2..4, of: 4 };
/// assert_eq!(half.rows(64), 32..64);
/// assert_eq!(half.rows(7), 0..7); // what does not divide is everybody's
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The parts, from 0.
    pub parts: Range<usize>,
    /// How many parts there are.
    pub of: usize,
}

impl Share {
    /// The rows of a batch of `size`.
    pub fn rows(&self, size: usize) -> Range<usize> {
        let fits = self.parts.start < self.parts.end && self.parts.end <= self.of;
        if !fits || !size.is_multiple_of(self.of) {
            return 0..size;
        }
        let each = size / self.of;
        self.parts.start * each..self.parts.end * each
    }
}

impl Batch {
    fn check(&self) -> Result<()> {
        if self.batching.size > 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Config, "the batch size is 0").at(self.name()).hint("use at least 1"))
    }
}

/// How elements become batches.
#[derive(Clone, Copy)]
pub(crate) struct Batching {
    pub size: usize,
    pub drop_remainder: bool,
}

impl Batching {
    /// How many batches `n` elements are.
    pub fn batches(self, n: u64) -> u64 {
        let size = self.size.max(1) as u64;
        if self.drop_remainder { n / size } else { n.div_ceil(size) }
    }

    /// How many elements the last of so many elements' batches lacks.
    pub fn lacking(self, elements: usize) -> u64 {
        (self.batches(elements as u64).saturating_mul(self.size as u64)).saturating_sub(elements as u64)
    }

    /// Stacks elements as they come; `first` is the number of the first batch.
    pub fn stack(
        self,
        first: u64,
        items: impl ExactSizeIterator<Item = Result<Sample>>,
    ) -> Vec<Result<Sample>> {
        let count = self.batches(items.len() as u64);
        let (mut items, mut batches) = (items, Vec::new());
        for number in first..first + count {
            let size = self.size.min(items.len());
            batches.push(stack(items.by_ref().take(size), size).map_err(|e| place(e, number)));
        }
        batches
    }
}

impl Stage for Batch {
    fn label(&self) -> String {
        let name = if self.batching.drop_remainder { "batch_drop_remainder" } else { "batch" };
        format!("{name}({})", self.batching.size)
    }

    fn inputs(&self) -> Vec<Node> {
        vec![self.up.clone()]
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| self.batching.batches(n))
    }

    fn access(&self, run: &Run) -> Result<Option<Box<dyn Access>>> {
        self.check()?;
        let Some(up) = access(&self.up, run)? else { return Ok(None) };
        let len = up.len().map(|n| self.batching.batches(n));
        Ok(Some(Box::new(Gathered { up, size: self.batching.size as u64, len, share: self.share.clone() })))
    }

    fn stream(&self, run: &Run) -> Result<Box<dyn Cursor>> {
        self.check()?;
        if let Some((up, f, threads)) = self.up.mapped()
            && self.is_ahead(run)
        {
            // The threads of the map put the batches together too: an element never leaves its core's cache.
            let owner = Owner::of(self);
            let gauge = run.tuner().gauge(&owner, threads, None);
            let (up, map) = (open(&up, run)?, run.watch().id(Owner::of(&*self.up).address));
            return Ok(Box::new(Pump::over_batches(owner, run.clone(), up, gauge, (f, map), self.batching)));
        }
        let up = open(&self.up, run)?;
        Ok(Box::new(Collected { up, batching: self.batching, at: 0 }))
    }

    fn is_ahead(&self, run: &Run) -> bool {
        self.up.mapped().is_some() && run.has_threads() && run.is_deterministic()
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.check()?;
        let one = self.up.spec()?;
        match self.up.cardinality() {
            Cardinality::Finite(n) if n < self.batching.size as u64 && !self.batching.drop_remainder => {
                Ok(one.stacked(n as usize))
            }
            _ => Ok(one.stacked(self.batching.size)),
        }
    }
}

struct Gathered {
    up: Box<dyn Access>,
    size: u64,
    len: Option<u64>,
    share: Option<Share>,
}

impl Access for Gathered {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        // Saturating: a damaged checkpoint may ask for any place in an endless pipeline.
        let start = index.saturating_mul(self.size);
        let count = self.size.min(self.up.len().map_or(u64::MAX, |n| n - start));
        let wanted = self.share.as_ref().map_or(0..count as usize, |share| share.rows(count as usize));
        let up = &mut self.up;
        let mut gather = || {
            let at = |i: usize| start.saturating_add(i as u64);
            let mut stack = Stack::new(up.get(at(wanted.start))?, count as usize, wanted.start)?;
            for i in wanted.start + 1..wanted.end {
                stack.push(up.get(at(i))?)?;
            }
            stack.rest();
            Ok(stack.finish())
        };
        gather().map_err(|e| place(e, index))
    }
}

struct Collected {
    up: Box<dyn Cursor>,
    batching: Batching,
    at: u64,
}

impl Cursor for Collected {
    fn next(&mut self) -> Option<Result<Sample>> {
        let Batching { size, drop_remainder } = self.batching;
        let items: Vec<Result<Sample>> = std::iter::from_fn(|| self.up.next()).take(size).collect();
        if items.is_empty() || (drop_remainder && items.len() < size) {
            return None;
        }
        self.at += 1;
        Some(stack_all(items).map_err(|e| place(e, self.at - 1)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let skipped = self.batching.batches(self.up.skip(n.saturating_mul(self.batching.size as u64)));
        self.at += skipped;
        skipped
    }

    fn save(&self) -> Place {
        Place::at([self.at]).over(self.up.save())
    }

    fn restore(&mut self, place: &Place) -> Result<()> {
        self.at = place.number(0)?;
        self.up.restore(place.above(0)?)
    }
}

/// All of the elements as one batch.
pub(crate) fn stack_all(items: Vec<Result<Sample>>) -> Result<Sample> {
    let count = items.len();
    stack(items.into_iter(), count)
}

/// `count` elements as one batch. One bad element makes a bad batch; the others are used up with it, so that places
/// stay fixed.
fn stack(mut items: impl Iterator<Item = Result<Sample>>, count: usize) -> Result<Sample> {
    let Some(first) = items.next() else { return Ok(Sample::default()) };
    let mut pushed = first.and_then(|first| Stack::new(first, count, 0));
    for item in items {
        if let Ok(stack) = &mut pushed
            && let Err(e) = item.and_then(|item| stack.push(item))
        {
            pushed = Err(e);
        }
    }
    pushed.map(Stack::finish)
}

fn place(e: Error, batch: u64) -> Error {
    e.at(format!("batch {batch}"))
}

/// Batches in the making: one array per field, filled row by row.
struct Stack {
    fields: Vec<(Arc<str>, TensorType, Literal)>,
    filled: usize,
}

impl Stack {
    /// Room for `count` rows, of which those before `at` are zeros and that one is `first`.
    fn new(first: Sample, count: usize, at: usize) -> Result<Stack> {
        let first = first.check()?;
        let mut fields = Vec::new();
        for (i, (_, array)) in first.fields().enumerate() {
            let ty = array.ty()?;
            let dims: Vec<usize> = std::iter::once(count).chain(ty.shape.iter().copied()).collect();
            fields.push((first.shared_name(i), ty.clone(), unfilled(ty.with_shape(dims))?));
        }
        let mut stack = Stack { fields, filled: at };
        stack.clear(0..at);
        stack.push(first)?;
        Ok(stack)
    }

    /// Zeros in the rows that were not pushed.
    fn rest(&mut self) {
        self.clear(self.filled..usize::MAX);
    }

    fn clear(&mut self, rows: Range<usize>) {
        for (_, ty, out) in &mut self.fields {
            let (row, all) = (ty.bytes(), out.bytes().len());
            let at = |n: usize| n.saturating_mul(row).min(all);
            if at(rows.start) < at(rows.end) {
                out.bytes_mut()[at(rows.start)..at(rows.end)].fill(0);
            }
        }
    }

    fn push(&mut self, sample: Sample) -> Result<()> {
        let mut given = 0;
        for ((name, array), (expected, ty, out)) in sample.fields().zip(&mut self.fields) {
            let x = array.get()?;
            // Mostly the same text, not only an equal one.
            let is_named = std::ptr::eq(name, &**expected) || name == &**expected;
            if !is_named || x.ty() != ty {
                return Err(sample.locate(mismatch(self.filled, name, x.ty(), expected, ty)));
            }
            let bytes = x.bytes();
            out.bytes_mut()[self.filled * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            given += 1;
        }
        if given != self.fields.len() || sample.fields().count() != given {
            return Err(sample.locate(Error::new(
                ErrorKind::Data,
                format!("element {} of the batch has other fields than the first", self.filled),
            )));
        }
        self.filled += 1;
        Ok(())
    }

    fn finish(self) -> Sample {
        let fields = self.fields.into_iter().map(|(name, _, x)| (name, HostArray::from(x))).collect();
        Sample::from_parts(fields, None)
    }
}

fn mismatch(at: usize, name: &str, ty: &TensorType, expected: &str, expected_ty: &TensorType) -> Error {
    Error::new(ErrorKind::Data, format!("element {at} of the batch does not fit the first one"))
        .because(format!("it has {name}: {ty}, the first has {expected}: {expected_ty}"))
        .hint("make the types equal with map (cast, resize) before batch")
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};
    use crate::{Cardinality, Dataset, HostArray, Sample};
    use systole_base::{DType, Literal};

    fn sizes(d: &Dataset) -> Vec<usize> {
        d.iter().map(|b| b.unwrap().get("x").unwrap().shape()[0]).collect()
    }

    #[test]
    fn the_last_batch_may_be_smaller_or_dropped() {
        for d in [ints(7), stream(7)] {
            assert_eq!(sizes(&d.batch(3)), [3, 3, 1]);
            assert_eq!(sizes(&d.batch_drop_remainder(3)), [3, 3]);
            assert_eq!(sizes(&d.batch(usize::MAX)), [7]);
            assert_eq!(values(&d.batch(3)), [0, 1, 2, 3, 4, 5, 6]);
            assert_eq!(sizes(&d.repeat().batch(5).take(4)), [5; 4], "batches cross the rounds");
        }
        assert_eq!(ints(7).batch(3).cardinality(), Cardinality::Finite(3));
        assert_eq!(ints(7).batch(3).element_spec().unwrap().to_string(), "x: i32[3]");
        assert_eq!(ints(2).batch(3).element_spec().unwrap().to_string(), "x: i32[2]");
        assert_eq!(ints(7).batch(3).batch(2).element_spec().unwrap().to_string(), "x: i32[2, 3]");
    }

    #[test]
    fn rows_are_the_elements() {
        let x = Literal::from_slice([3, 2], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let d = Dataset::from_tensor_slices([("x", x)]).unwrap();
        let b = d.batch(2).iter().next().unwrap().unwrap();
        assert_eq!(b.get("x").unwrap().ty().to_string(), "ui8[2, 2]");
        assert_eq!(b.get("x").unwrap().as_slice::<u8>().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn elements_that_differ_are_named() {
        for d in [ints(4), stream(4)] {
            let d = d.map(|s| {
                let i = s.get("x").unwrap().get(0).as_i64();
                if i == 3 { s.map("x", |x| x.cast(DType::F32)) } else { s }
            });
            let items: Vec<_> = d.batch(2).iter().collect();
            let e = items[1].as_ref().unwrap_err().to_string();
            assert!(items.len() == 2 && items[0].is_ok());
            assert!(e.contains("f32[]") && e.contains("i32[]") && e.contains("batch 1"), "{e}");
            let more = d.map(|s: Sample| {
                let extra = s.get("x").unwrap().get(0).as_i64() == 1;
                if extra { s.with("y", HostArray::scalar(DType::F32, 0.0)) } else { s }
            });
            assert!(more.batch(2).iter().next().unwrap().unwrap_err().to_string().contains("other fields"));
        }
    }
}
