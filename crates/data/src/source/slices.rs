//! `from_tensor_slices`: a dataset whose elements are the rows of arrays in memory.

use crate::Dataset;
use crate::HostArray;
use crate::host_array::unfilled;
use crate::pipeline::{Cardinality, DatasetStage, PipelineRun, RandomAccess};
use crate::sample::{Sample, SampleOrigin};
use std::sync::Arc;
use systole_base::{Literal, Result, err};

impl Dataset {
    /// Slices arrays along the first dimension: `name: T[N, …] → N samples of name: T[…]`, without copying the whole.
    ///
    /// # Errors
    /// If there is no field, a field has rank 0, or the first dimensions differ (names both).
    pub fn from_tensor_slices<N: Into<Arc<str>>>(
        fields: impl IntoIterator<Item = (N, Literal)>,
    ) -> Result<Dataset> {
        let fields: Vec<(Arc<str>, Literal)> = fields.into_iter().map(|(n, x)| (n.into(), x)).collect();
        let names: Vec<&str> = fields.iter().map(|(n, _)| &**n).collect();
        let source = format!("from_tensor_slices({})", names.join(", "));
        Ok(Dataset::new(SlicesStage::new(source.into(), fields)?))
    }

    /// [`Dataset::from_tensor_slices`] with a source name for error messages.
    pub fn from_named_slices<N: Into<Arc<str>>>(
        source: impl Into<Arc<str>>,
        fields: impl IntoIterator<Item = (N, Literal)>,
    ) -> Result<Dataset> {
        let fields = fields.into_iter().map(|(n, x)| (n.into(), x)).collect();
        Ok(Dataset::new(SlicesStage::new(source.into(), fields)?))
    }
}

pub(crate) struct SlicesStage {
    data: Arc<SliceFields>,
}

struct SliceFields {
    source: Arc<str>,
    fields: Vec<(Arc<str>, Literal)>,
    rows: usize,
}

impl SlicesStage {
    pub fn new(source: Arc<str>, fields: Vec<(Arc<str>, Literal)>) -> Result<SlicesStage> {
        let rows =
            rows(fields.iter().map(|(n, x)| (&**n, x)).collect()).map_err(|e| e.at(source.to_string()))?;
        Ok(SlicesStage { data: Arc::new(SliceFields { source, fields, rows }) })
    }
}

/// Returns the common first dimension of arrays.
pub(crate) fn rows(fields: Vec<(&str, &Literal)>) -> Result<usize> {
    let (first, rest) = fields.split_first().ok_or_else(|| err!(Data, "the list of fields is empty"))?;
    for (name, x) in &fields {
        if x.ty().rank() == 0 {
            return Err(err!(Data, "field {name} has no rows")
                .because(format!("the array's type {} has rank 0", x.ty())));
        }
    }
    match rest.iter().find(|(_, x)| x.shape()[0] != first.1.shape()[0]) {
        None => Ok(first.1.shape()[0]),
        Some((name, x)) => Err(err!(Data, "{} and {name} have different numbers of elements", first.0)
            .because(format!("{} has the type {}, but {name} has the type {}", first.0, first.1.ty(), x.ty()))
            .hint("make the first dimensions equal: each element is one row of every field")),
    }
}

/// Returns a copy of row `i`.
pub(crate) fn slice(x: &Literal, i: usize) -> Result<Literal> {
    let ty = x.ty().with_shape(&x.shape().dims()[1..]);
    let size = ty.bytes();
    Literal::from_bytes(ty, &x.bytes()[i * size..][..size])
}

/// Copies rows: `x: T[N, …] → T[indices, …]`.
fn rows_of(x: &Literal, indices: &[u64]) -> Result<Literal> {
    let row = &x.shape().dims()[1..];
    let mut out = unfilled(x.ty().with_shape([&[indices.len()], row].concat()))?;
    let size = x.ty().with_shape(row).bytes();
    if size > 0 {
        for (to, &i) in out.bytes_mut().chunks_exact_mut(size).zip(indices) {
            to.copy_from_slice(&x.bytes()[i as usize * size..][..size]);
        }
    }
    Ok(out)
}

impl DatasetStage for SlicesStage {
    fn label(&self) -> String {
        self.data.source.to_string()
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.data.rows as u64)
    }

    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(Some(Box::new(SlicesAccess(self.data.clone()))))
    }
}

struct SlicesAccess(Arc<SliceFields>);

impl RandomAccess for SlicesAccess {
    fn len(&self) -> Option<u64> {
        Some(self.0.rows as u64)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let fields = self.0.fields.iter();
        let fields =
            fields.map(|(name, x)| (name.clone(), HostArray::from(slice(x, index as usize)))).collect();
        Ok(Sample::from_parts(fields, Some(SampleOrigin { source: self.0.source.clone(), index })))
    }

    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let fields = self.0.fields.iter().map(|(name, x)| Ok((name.clone(), rows_of(x, indices)?.into())));
        Some(fields.collect::<Result<_>>().map(|fields| Sample::from_parts(fields, None)))
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use systole_base::{DType, ErrorKind, Literal, TensorType};

    #[test]
    fn lengths_must_agree() {
        let zeros = |dims: &[usize]| Literal::zeros(TensorType::new(DType::U8, dims));
        let e = Dataset::from_tensor_slices([("image", zeros(&[3, 2])), ("label", zeros(&[4]))]).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("image") && text.contains("label") && text.contains("ui8[4]"), "{text}");
        assert!(Dataset::from_tensor_slices([("image", zeros(&[]))]).is_err());
        assert!(Dataset::from_tensor_slices([] as [(&str, Literal); 0]).is_err());
        let empty = Dataset::from_tensor_slices([("image", zeros(&[0, 2]))]).unwrap();
        assert_eq!(empty.iter().count(), 0);
        assert_eq!(empty.element_spec().unwrap_err().kind(), ErrorKind::Data);
    }
}
