//! `padded_batch`: pads elements of different sizes to one size and stacks them.

use crate::host_array::zeros;
use crate::pipeline::{Batching, Cardinality, DatasetStage, ElementCursor, PipelineRun, StageNode, open};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use crate::{Dataset, HostArray};
use std::sync::Arc;
use systole_base::{Literal, Result, Scalar, TensorType, err};

/// Padded sizes and padding values of the fields in `padded_batch`.
#[derive(Clone, Debug, Default)]
pub struct PaddingOptions {
    /// Sizes of each dimension by field; `None`: the largest in the batch. Other fields use the largest in all
    /// dimensions.
    pub shapes: Vec<(Arc<str>, Vec<Option<usize>>)>,
    /// Padding value by field; 0 for others.
    pub values: Vec<(Arc<str>, f64)>,
    /// First dimension of every field that is not in `shapes`.
    pub(crate) first: Option<usize>,
}

impl PaddingOptions {
    /// Sets a field's size in each dimension; `None`: the largest in the batch.
    pub fn shape(mut self, field: &str, sizes: impl Into<Vec<Option<usize>>>) -> PaddingOptions {
        self.shapes.push((field.into(), sizes.into()));
        self
    }

    /// Sets the padding value of a field.
    pub fn value(mut self, field: &str, value: f64) -> PaddingOptions {
        self.values.push((field.into(), value));
        self
    }
}

impl Dataset {
    /// Pads with zeros at the ends and stacks: `name: T[len, …] → name: T[n, longest, …]`; the last batch may be
    /// smaller.
    pub fn padded_batch(&self, n: usize) -> Dataset {
        self.padded_batch_with(n, PaddingOptions::default(), false)
    }

    /// [`Dataset::padded_batch`] with all options.
    pub fn padded_batch_with(&self, n: usize, padding: PaddingOptions, drop_remainder: bool) -> Dataset {
        let batching = Batching { size: n, drop_remainder };
        self.then(|up| PaddedBatchStage { up, batching, padding: Arc::new(padding) })
    }
}

struct PaddedBatchStage {
    up: StageNode,
    batching: Batching,
    padding: Arc<PaddingOptions>,
}

impl DatasetStage for PaddedBatchStage {
    delegate!(inputs);

    fn label(&self) -> String {
        format!("padded_batch({})", self.batching.size)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| self.batching.batches(n))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        self.batching.check(|| self.name())?;
        let up = open(&self.up, run)?;
        Ok(Box::new(PaddedBatchCursor { up, batching: self.batching, padding: self.padding.clone() }))
    }
}

struct PaddedBatchCursor {
    up: Box<dyn ElementCursor>,
    batching: Batching,
    padding: Arc<PaddingOptions>,
}

impl ElementCursor for PaddedBatchCursor {
    delegate!(position);

    fn next(&mut self) -> Option<Result<Sample>> {
        let items = self.batching.next(&mut *self.up)?.into_iter().collect::<Result<Vec<_>>>();
        Some(items.and_then(|items| padded_stack(items, &self.padding)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.batching.skip(&mut *self.up, n)
    }
}

/// Pads every field of samples with the same fields to one size and stacks them.
pub(crate) fn padded_stack(items: Vec<Sample>, padding: &PaddingOptions) -> Result<Sample> {
    let items = items.into_iter().map(Sample::check).collect::<Result<Vec<_>>>()?;
    let Some(first) = items.first() else { return Ok(Sample::default()) };
    let mut fields = Vec::new();
    for (i, name) in first.names().enumerate() {
        let rows = items.iter().map(|s| s.get(name).map_err(|e| s.locate(e))).collect::<Result<Vec<_>>>()?;
        let x = pad_field(&rows, name, padding).map_err(|e| e.at(format!("field {name}")))?;
        fields.push((first.shared_name(i), HostArray::from(x)));
    }
    Ok(Sample::from_parts(fields, None))
}

fn pad_field(rows: &[&Literal], name: &str, padding: &PaddingOptions) -> Result<Literal> {
    let ty = rows[0].ty();
    if let Some(other) = rows.iter().find(|r| r.dtype() != ty.dtype || r.ty().rank() != ty.rank()) {
        return Err(err!(Data, "cannot batch an element of type {} with one of type {ty}", other.ty())
            .because("their element types or ranks differ"));
    }
    let told = padding.shapes.iter().find(|(n, _)| &**n == name).map(|(_, s)| s.as_slice());
    if told.is_some_and(|s| s.len() != ty.rank()) {
        return Err(err!(Config, "the rank of the padded shape differs from that of {ty}"));
    }
    let mut size = vec![0; ty.rank()];
    for (d, size) in size.iter_mut().enumerate() {
        let largest = rows.iter().map(|r| r.shape()[d]).max().unwrap_or(0);
        let wanted = match told {
            Some(sizes) => sizes[d],
            None => padding.first.filter(|_| d == 0),
        };
        *size = wanted.unwrap_or(largest);
        if largest > *size {
            return Err(err!(Data, "an element has size {largest} in dimension {d}")
                .because(format!("the padded size in this dimension is {size}"))
                .hint("increase the padded size, or truncate or filter such elements"));
        }
    }
    let dims: Vec<usize> = std::iter::once(rows.len()).chain(size.iter().copied()).collect();
    let value = padding.values.iter().find(|(n, _)| &**n == name).map(|(_, v)| *v);
    let mut out = match value {
        Some(v) if v != 0.0 => {
            zeros(ty.with_shape(dims.clone()))?;
            Literal::splat(ty.with_shape(dims), Scalar::Float(v))
        }
        _ => zeros(ty.with_shape(dims))?,
    };
    let one = TensorType::new(ty.dtype, size.clone()).bytes();
    for (i, row) in rows.iter().enumerate() {
        place(row, &size, &mut out.bytes_mut()[i * one..][..one]);
    }
    Ok(out)
}

/// Copies an array into the corner of a larger one, along contiguous runs of its last dimension.
fn place(x: &Literal, size: &[usize], out: &mut [u8]) {
    let dims = x.shape().dims();
    let (Some(&last), Some(&wide)) = (dims.last(), size.last()) else {
        out.copy_from_slice(x.bytes());
        return;
    };
    let bytes = x.dtype().size();
    let run = last * bytes;
    if run == 0 {
        return;
    }
    for (r, from) in x.bytes().chunks_exact(run).enumerate() {
        // The row's index in each outer dimension, then its offset in the larger array.
        let (mut rest, mut at, mut stride) = (r, 0, wide);
        for d in (0..dims.len() - 1).rev() {
            at += rest % dims[d] * stride;
            rest /= dims[d];
            stride *= size[d];
        }
        out[at * bytes..][..run].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::resumes;

    fn sequences() -> Dataset {
        Dataset::from_generator(|| {
            let all = [1usize, 5, 3, 9, 2].into_iter().enumerate();
            all.map(|(i, n)| Ok(Sample::new([("x", Literal::from_slice([n], &vec![i as i32; n])?)])))
        })
    }

    fn batches(d: &Dataset) -> Vec<(String, Vec<f64>)> {
        d.iter()
            .map(|s| {
                s.map(|s| (s.get("x").unwrap().ty().to_string(), s.get("x").unwrap().to_f64s())).unwrap()
            })
            .collect()
    }

    #[test]
    fn the_largest_of_the_batch_or_a_shape_of_ones_own() {
        let d = sequences().padded_batch(2);
        let all = batches(&d);
        assert_eq!(all[0], ("i32[2, 5]".into(), vec![0., 0., 0., 0., 0., 1., 1., 1., 1., 1.]));
        assert_eq!((all[1].0.as_str(), all[2].0.as_str()), ("i32[2, 9]", "i32[1, 2]"));
        resumes(&d);
        let six = PaddingOptions::default().shape("x", [Some(6)]).value("x", -1.0);
        let d = sequences().take(3).padded_batch_with(2, six.clone(), false);
        assert_eq!(batches(&d)[0].1, [0., -1., -1., -1., -1., -1., 1., 1., 1., 1., 1., -1.]);
        assert_eq!(batches(&sequences().take(3).padded_batch_with(2, six.clone(), true)).len(), 1);
        let e = sequences().padded_batch_with(2, six, false).iter().nth(1).unwrap().unwrap_err().to_string();
        assert!(e.contains("field x") && e.contains("dimension 0"), "{e}");
    }

    #[test]
    fn higher_ranks_are_padded_at_every_end() {
        let a = Literal::from_slice([1, 2, 1], &[1u8, 2]).unwrap();
        let b = Literal::from_slice([2, 1, 1], &[3u8, 4]).unwrap();
        let x =
            padded_stack(vec![Sample::new([("x", a)]), Sample::new([("x", b)])], &PaddingOptions::default())
                .unwrap();
        let x = x.get("x").unwrap();
        assert_eq!(
            (x.ty().to_string().as_str(), x.bytes()),
            ("ui8[2, 2, 2, 1]", &[1, 2, 0, 0, 3, 0, 4, 0][..])
        );
        let mixed = vec![
            Sample::new([("x", Literal::from_slice([1], &[1u8]).unwrap())]),
            Sample::new([("x", Literal::from_slice([1], &[1i32]).unwrap())]),
        ];
        assert!(padded_stack(mixed, &PaddingOptions::default()).is_err());
    }
}
