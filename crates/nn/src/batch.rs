//! A batch taken apart: inputs, labels, sample weights; on the host and on the device.

use systole_data::Sample;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_runtime::{Backend, Buffer, DeviceId};

/// Field names that hold what a model is to predict, in order of preference.
pub const LABEL_FIELDS: [&str; 4] = ["label", "labels", "y", "target"];
/// Field name that holds the weight of each sample.
pub const WEIGHT_FIELD: &str = "sample_weight";

/// Inputs, labels and weights as a step takes them.
pub(crate) type DeviceBatch = (Vec<Buffer>, Buffer, Vec<Buffer>);

/// The arrays of one step.
#[derive(Clone, Debug)]
pub struct Batch {
    /// One array for each input of the model: `T[B, …]`.
    pub inputs: Vec<Literal>,
    /// What to predict.
    pub label: Option<Literal>,
    /// Weight of each sample: `f32[B]`.
    pub weight: Option<Literal>,
}

impl Batch {
    /// Takes a batch of the pipeline apart. Fields with the inputs' names feed them; a model of one input takes the
    /// first field that is neither label nor weight.
    pub fn from_sample(sample: &Sample, inputs: &[String]) -> Result<Batch> {
        Batch::of_fields(sample, inputs, true)
    }

    /// As [`Batch::from_sample`]; where it need not be `labelled`, labels are taken if there are some.
    pub(crate) fn of_fields(sample: &Sample, inputs: &[String], labelled: bool) -> Result<Batch> {
        let mut batch = Batch::inputs_only(sample, inputs)?;
        let label = LABEL_FIELDS.iter().find(|f| sample.names().any(|n| n == **f));
        if label.is_none() && !labelled {
            batch.check()?;
            return Ok(batch);
        }
        let label = label.ok_or_else(|| {
            Error::new(ErrorKind::Data, "the data has no labels")
                .because(format!("its fields are: {}", sample.names().collect::<Vec<_>>().join(", ")))
                .hint(format!("name the field with the labels one of: {}", LABEL_FIELDS.join(", ")))
        })?;
        batch.label = Some(sample.get(label)?.clone());
        if sample.names().any(|n| n == WEIGHT_FIELD) {
            batch.weight = Some(sample.get(WEIGHT_FIELD)?.convert(DType::F32));
        }
        batch.check()?;
        Ok(batch)
    }

    /// Only the inputs, for prediction.
    pub fn inputs_only(sample: &Sample, inputs: &[String]) -> Result<Batch> {
        let known = |n: &str| LABEL_FIELDS.contains(&n) || n == WEIGHT_FIELD;
        let mut arrays = Vec::new();
        for name in inputs {
            let field = match sample.names().find(|n| n == name) {
                Some(field) => Some(field),
                None if inputs.len() == 1 => sample.names().find(|n| !known(n)),
                None => None,
            };
            let field = field.ok_or_else(|| {
                Error::new(ErrorKind::Data, format!("the data has no field for the model's input {name}"))
                    .because(format!("its fields are: {}", sample.names().collect::<Vec<_>>().join(", ")))
                    .hint("rename a field of the data, or the input")
            })?;
            arrays.push(sample.get(field)?.clone());
        }
        Ok(Batch { inputs: arrays, label: None, weight: None })
    }

    /// Number of samples.
    pub fn size(&self) -> usize {
        self.inputs.first().and_then(|x| x.shape().first().copied()).unwrap_or(0)
    }

    /// Types of one sample of each input.
    pub fn sample_types(&self) -> Result<Vec<TensorType>> {
        let single = |why: &str| {
            Error::new(ErrorKind::Data, "a batch must have a first dimension of samples")
                .because(why)
                .hint("add .batch(n) to the pipeline")
        };
        if self.label.as_ref().is_some_and(|label| label.shape().rank() == 0) {
            return Err(single("the label is a single value: these are samples, not batches"));
        }
        let of = |x: &Literal| match x.shape().rank() {
            0 => Err(single("the data are single values")),
            _ => Ok(without_batch(x.ty())),
        };
        self.inputs.iter().map(of).collect()
    }

    /// Inputs, label and sample weights as arguments of a step.
    pub(crate) fn buffers(&self) -> DeviceBatch {
        let label = self.label.clone().unwrap_or_else(|| Literal::zeros(TensorType::new(DType::I32, [0])));
        let inputs = self.inputs.iter().cloned().map(Buffer::from).collect();
        (inputs, label.into(), self.weight.iter().cloned().map(Buffer::from).collect())
    }

    /// Begins to copy the batch to the device.
    pub(crate) fn put(&self, device: &dyn Backend) -> Result<DeviceBatch> {
        let (inputs, label, weight) = self.buffers();
        let all = |list: Vec<Buffer>| list.into_iter().map(|b| put(b, device)).collect::<Result<_>>();
        Ok((all(inputs)?, put(label, device)?, all(weight)?))
    }

    fn check(&self) -> Result<()> {
        self.sample_types()?;
        let n = self.size();
        let others = self.inputs.iter().chain(&self.label).chain(&self.weight);
        for array in others {
            if array.shape().first() != Some(&n) {
                return Err(Error::new(
                    ErrorKind::Data,
                    format!("the arrays of a batch differ in length: {n} samples and {}", array.ty()),
                )
                .hint("images, labels and weights must be batched together"));
            }
        }
        Ok(())
    }
}

/// The type of one sample of a batch.
pub(crate) fn without_batch(ty: &TensorType) -> TensorType {
    ty.with_shape(ty.shape.get(1..).unwrap_or(&[]))
}

/// An array on the device; one that is on the host begins to be copied there.
pub(crate) fn put(buffer: Buffer, device: &dyn Backend) -> Result<Buffer> {
    match buffer.host() {
        Some(host) => device.put(&host, DeviceId(0)),
        None => Ok(buffer),
    }
}
