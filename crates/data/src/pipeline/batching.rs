//! Stacks elements along a new leading dimension; shared by `batch`, windows and fused map-and-batch threads.

use super::cursor::ElementCursor;
use crate::HostArray;
use crate::host_array::unfilled;
use crate::sample::Sample;
use std::ops::Range;
use std::sync::Arc;
use systole_base::{Error, Literal, Result, TensorType, err};

/// Batch size and handling of the remainder.
#[derive(Clone, Copy)]
pub(crate) struct Batching {
    pub size: usize,
    pub drop_remainder: bool,
}

impl Batching {
    /// Rejects a batch size of 0.
    pub fn check(self, stage: impl FnOnce() -> String) -> Result<()> {
        if self.size > 0 {
            return Ok(());
        }
        Err(err!(Config, "the batch size of the stage `batch` is 0")
            .at(stage())
            .hint("use a batch size of at least 1"))
    }

    /// Returns the elements of the next batch; `None` at the end.
    pub fn next(self, up: &mut dyn ElementCursor) -> Option<Vec<Result<Sample>>> {
        let items: Vec<Result<Sample>> = std::iter::from_fn(|| up.next()).take(self.size).collect();
        let is_one = !items.is_empty() && (items.len() == self.size || !self.drop_remainder);
        is_one.then_some(items)
    }

    /// Skips up to `n` batches of a stream's elements and returns the number skipped.
    pub fn skip(self, up: &mut dyn ElementCursor, n: u64) -> u64 {
        self.batches(up.skip(n.saturating_mul(self.size as u64)))
    }

    /// Returns the number of batches for `n` elements.
    pub fn batches(self, n: u64) -> u64 {
        let size = self.size.max(1) as u64;
        if self.drop_remainder { n / size } else { n.div_ceil(size) }
    }

    /// Number of elements missing in the last batch of `elements` elements.
    pub fn lacking(self, elements: usize) -> u64 {
        (self.batches(elements as u64).saturating_mul(self.size as u64)).saturating_sub(elements as u64)
    }

    /// Stacks elements into batches as they arrive; `first` is the index of the first batch.
    pub fn stack(
        self,
        first: u64,
        items: impl ExactSizeIterator<Item = Result<Sample>>,
    ) -> Vec<Result<Sample>> {
        let count = self.batches(items.len() as u64);
        let (mut items, mut batches) = (items, Vec::new());
        for number in first..first + count {
            let size = self.size.min(items.len());
            batches.push(stack(items.by_ref().take(size), size).map_err(|e| at_batch(e, number)));
        }
        batches
    }
}

/// Stacks all elements to one batch.
pub(crate) fn stack_all(items: Vec<Result<Sample>>) -> Result<Sample> {
    let count = items.len();
    stack(items.into_iter(), count)
}

/// Stacks `count` elements to one batch. A failed element fails the batch; its other elements are consumed, so that
/// positions stay fixed.
fn stack(mut items: impl Iterator<Item = Result<Sample>>, count: usize) -> Result<Sample> {
    let Some(first) = items.next() else { return Ok(Sample::default()) };
    let mut pushed = first.and_then(|first| BatchBuilder::new(first, count, 0));
    for item in items {
        if let Ok(stack) = &mut pushed
            && let Err(e) = item.and_then(|item| stack.push(item))
        {
            pushed = Err(e);
        }
    }
    pushed.map(BatchBuilder::finish)
}

/// Adds the batch index to an error.
pub(crate) fn at_batch(e: Error, batch: u64) -> Error {
    e.at(format!("batch {batch}"))
}

/// Batch under construction: one array per field, filled row by row.
pub(crate) struct BatchBuilder {
    fields: Vec<(Arc<str>, TensorType, Literal)>,
    filled: usize,
}

impl BatchBuilder {
    /// Creates a batch of `count` rows: those before `at` are zeros, row `at` is `first`.
    pub fn new(first: Sample, count: usize, at: usize) -> Result<BatchBuilder> {
        let first = first.check()?;
        let mut fields = Vec::new();
        for (i, (_, array)) in first.fields().enumerate() {
            let ty = array.ty()?;
            let dims: Vec<usize> = std::iter::once(count).chain(ty.shape.iter().copied()).collect();
            fields.push((first.shared_name(i), ty.clone(), unfilled(ty.with_shape(dims))?));
        }
        let mut stack = BatchBuilder { fields, filled: at };
        stack.clear(0..at);
        stack.push(first)?;
        Ok(stack)
    }

    /// Fills the remaining rows of the batch with zeros.
    pub fn rest(&mut self) {
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

    pub fn push(&mut self, sample: Sample) -> Result<()> {
        let mut given = 0;
        for ((name, array), (expected, ty, out)) in sample.fields().zip(&mut self.fields) {
            let x = array.get()?;
            // Usually the same pointer, not only equal text.
            let is_named = std::ptr::eq(name, &**expected) || name == &**expected;
            if !is_named || x.ty() != ty {
                return Err(sample.locate(mismatch(self.filled, name, x.ty(), expected, ty)));
            }
            let bytes = x.bytes();
            out.bytes_mut()[self.filled * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            given += 1;
        }
        if given != self.fields.len() || sample.fields().count() != given {
            return Err(sample.locate(err!(
                Data,
                "element {} of the batch has other fields than the first element",
                self.filled
            )));
        }
        self.filled += 1;
        Ok(())
    }

    pub fn finish(self) -> Sample {
        let fields = self.fields.into_iter().map(|(name, _, x)| (name, HostArray::from(x))).collect();
        Sample::from_parts(fields, None)
    }
}

fn mismatch(at: usize, name: &str, ty: &TensorType, expected: &str, expected_ty: &TensorType) -> Error {
    err!(Data, "element {at} of the batch has another type than the first element")
        .because(format!(
            "this element has {name}: {ty}, but the first element has {expected}: {expected_ty}"
        ))
        .hint("make the types equal with map (cast, resize) before batch")
}
