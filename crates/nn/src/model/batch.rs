//! [`Batch`]: inputs, labels and sample weights of one step, extracted from dataset samples and copied to the device.

use crate::model::step_input::StepInput;
use systole_data::{HostArray, Rescale, Sample};
use systole_ir::{DType, Literal, Result, TensorType, err};
use systole_runtime::{Backend, Buffer, DeviceId};

/// Field names that are recognized as labels, in order of preference.
pub const LABEL_FIELDS: [&str; 4] = ["label", "labels", "y", "target"];
/// Field name that is recognized as sample weights.
pub const WEIGHT_FIELD: &str = "sample_weight";

/// Inputs, labels and sample weights as arguments of a step.
pub(crate) type DeviceBatch = (Vec<StepInput<Buffer>>, Vec<Buffer>, Vec<Buffer>);

/// Names of the fields that make up a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchFields {
    /// Input fields.
    pub inputs: Vec<String>,
    /// Whether labels are required.
    pub labelled: bool,
    /// Outputs that have labels; empty for a single output.
    pub outputs: Vec<String>,
    /// Whether the step converts pixels ([`Batch::rescale`]).
    pub are_rescaled_later: bool,
}

impl BatchFields {
    /// Names of the label fields, in order.
    pub fn label_names(&self) -> Vec<String> {
        if self.outputs.is_empty() {
            return vec![LABEL_FIELDS[0].into()];
        }
        self.outputs.iter().map(|output| label_field(output, &self.inputs)).collect()
    }

    /// Names of the sample weight fields, in order.
    pub fn weight_names(&self) -> Vec<String> {
        if self.outputs.is_empty() {
            return vec![WEIGHT_FIELD.into()];
        }
        self.outputs.iter().map(|output| weight_field(output)).collect()
    }
}

/// Arrays of one training or evaluation step: inputs, labels and sample weights.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// One array for each input of the model: `T[B, …]`.
    pub inputs: Vec<Literal>,
    /// Labels. With several outputs, those of the first output that has a loss or metrics.
    pub label: Option<Literal>,
    /// Weight of each sample: `f32[B]`.
    pub weight: Option<Literal>,
    /// Labels and sample weights of the further outputs.
    pub more: Vec<(Literal, Option<Literal>)>,
    /// For each input, how steps convert it first, if it is pixels as integers; empty: no input is.
    pub rescale: Vec<Option<Rescale>>,
}

impl Batch {
    /// Extracts a batch from a dataset element. Fields named like the inputs feed them; a model with one input uses the
    /// first field that is neither label nor weight.
    pub fn from_sample(sample: &Sample, inputs: &[String]) -> Result<Batch> {
        let fields = BatchFields { inputs: inputs.to_vec(), labelled: true, ..BatchFields::default() };
        Batch::of_fields(sample, &fields)
    }

    /// Like [`Batch::from_sample`], but labels are optional unless `fields.labelled` is set.
    pub(crate) fn of_fields(sample: &Sample, fields: &BatchFields) -> Result<Batch> {
        let mut batch = Batch::inputs_beside(sample, fields)?;
        if !fields.outputs.is_empty() {
            return batch.labelled_by_name(sample, fields);
        }
        let label = LABEL_FIELDS.iter().find(|f| sample.names().any(|n| n == **f));
        if label.is_none() && !fields.labelled {
            batch.check()?;
            return Ok(batch);
        }
        let label = label.ok_or_else(|| {
            err!(Data, "the data contains no field `label`")
                .because(fields_of(sample))
                .hint(format!("rename the label field to one of: {}", LABEL_FIELDS.join(", ")))
        })?;
        batch.label = Some(sample.get(label)?.clone());
        if sample.names().any(|n| n == WEIGHT_FIELD) {
            batch.weight = Some(sample.get(WEIGHT_FIELD)?.convert(DType::F32));
        }
        batch.check()?;
        Ok(batch)
    }

    /// Adds the labels and sample weights of several outputs.
    fn labelled_by_name(mut self, sample: &Sample, fields: &BatchFields) -> Result<Batch> {
        let has = |name: &str| sample.names().any(|n| n == name);
        let mut all = Vec::new();
        for output in &fields.outputs {
            let label = label_field(output, &fields.inputs);
            if !has(&label) {
                return Err(err!(Data, "the data contains no labels for output `{output}`")
                    .because(fields_of(sample))
                    .hint(format!("rename the label field to `{label}`")));
            }
            let own = weight_field(output);
            let weight = [own.as_str(), WEIGHT_FIELD].into_iter().find(|name| has(name));
            let weight = weight.map(|name| sample.get(name)).transpose()?;
            all.push((sample.get(&label)?.clone(), weight.map(|w| w.convert(DType::F32))));
        }
        self.more = all.split_off(all.len().min(1));
        for (label, weight) in all {
            (self.label, self.weight) = (Some(label), weight);
        }
        self.check()?;
        Ok(self)
    }

    /// Extracts only a batch's inputs, for prediction.
    pub fn inputs_only(sample: &Sample, inputs: &[String]) -> Result<Batch> {
        Batch::inputs_beside(sample, &BatchFields { inputs: inputs.to_vec(), ..BatchFields::default() })
    }

    /// Extracts the inputs; labels and weights are other fields.
    pub(crate) fn inputs_beside(sample: &Sample, fields: &BatchFields) -> Result<Batch> {
        let (inputs, outputs) = (&fields.inputs, &fields.outputs);
        let of_outputs: Vec<String> =
            outputs.iter().flat_map(|name| [label_field(name, inputs), weight_field(name)]).collect();
        let known = |n: &str| {
            LABEL_FIELDS.contains(&n) || n == WEIGHT_FIELD || of_outputs.iter().any(|field| field == n)
        };
        let (mut arrays, mut rescale) = (Vec::new(), Vec::new());
        for name in inputs {
            let field = match sample.names().find(|n| n == name) {
                Some(field) => Some(field),
                None if inputs.len() == 1 => sample.names().find(|n| !known(n)),
                None => None,
            };
            let field = field.ok_or_else(|| {
                err!(Data, "the data contains no field for the model's input {name}")
                    .because(fields_of(sample))
                    .hint("rename a field of the data, or the input")
            })?;
            let array = sample.fields().find(|(name, _)| *name == field).map(|(_, array)| array);
            let integers = array.filter(|_| fields.are_rescaled_later).and_then(HostArray::before_rescale);
            arrays.push(integers.map_or_else(|| sample.get(field).cloned(), |(x, _)| Ok(x.clone()))?);
            rescale.push(integers.map(|(_, rescale)| rescale));
        }
        Ok(Batch { inputs: arrays, rescale, ..Batch::default() })
    }

    /// Labels, in order.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &Literal> {
        self.label.iter().chain(self.more.iter().map(|(label, _)| label))
    }

    /// Sample weights of each label, in order: empty if no label has weights, ones for labels without.
    pub(crate) fn weights(&self) -> Vec<Literal> {
        let all =
            || self.label.iter().map(|_| &self.weight).chain(self.more.iter().map(|(_, weight)| weight));
        if all().all(Option::is_none) {
            return self.weight.iter().cloned().collect();
        }
        let ones = || {
            let ones = vec![1f32; self.size()];
            Literal::from_slice([ones.len()], &ones).unwrap_or_else(|_| Literal::scalar(DType::F32, 1.0))
        };
        all().map(|weight| weight.clone().unwrap_or_else(ones)).collect()
    }

    /// Number of samples of the batch.
    pub fn size(&self) -> usize {
        self.inputs.first().and_then(|x| x.shape().first().copied()).unwrap_or(0)
    }

    /// Types of one sample of each input of the batch.
    pub fn sample_types(&self) -> Result<Vec<TensorType>> {
        let single = |why: &str| {
            err!(Data, "a batch must have a first dimension of samples")
                .because(why)
                .hint("add .batch(n) to the pipeline")
        };
        if self.labels().any(|label| label.shape().rank() == 0) {
            return Err(single("the label is a scalar: the dataset yields samples, not batches"));
        }
        let of = |(i, x): (usize, &Literal)| match x.shape().rank() {
            0 => Err(single("the data is a scalar")),
            _ if self.rescale_of(i).is_some() => {
                Ok(without_batch(&TensorType::new(DType::F32, x.shape().clone())))
            }
            _ => Ok(without_batch(x.ty())),
        };
        self.inputs.iter().enumerate().map(of).collect()
    }

    /// How steps convert input `i` first.
    pub(crate) fn rescale_of(&self, i: usize) -> Option<Rescale> {
        self.rescale.get(i).copied().flatten()
    }

    /// Inputs, labels and sample weights as arguments of a step.
    pub(crate) fn buffers(&self) -> DeviceBatch {
        let inputs = self.inputs.iter().cloned().map(Buffer::from).enumerate();
        let inputs = inputs.map(|(i, value)| StepInput { value, rescale: self.rescale_of(i) }).collect();
        let labels = self.labels().cloned().map(Buffer::from).collect();
        (inputs, labels, self.weights().into_iter().map(Buffer::from).collect())
    }

    /// Starts copying the batch to the device.
    pub(crate) fn put(&self, device: &dyn Backend) -> Result<DeviceBatch> {
        let (inputs, labels, weights) = self.buffers();
        let all = |list: Vec<Buffer>| list.into_iter().map(|b| put(b, device)).collect::<Result<_>>();
        let input = |x: StepInput<Buffer>| Ok(StepInput { value: put(x.value, device)?, ..x });
        Ok((inputs.into_iter().map(input).collect::<Result<_>>()?, all(labels)?, all(weights)?))
    }

    fn check(&self) -> Result<()> {
        self.sample_types()?;
        let n = self.size();
        let weights = self.weight.iter().chain(self.more.iter().filter_map(|(_, weight)| weight.as_ref()));
        let others = self.inputs.iter().chain(self.labels()).chain(weights);
        for array in others {
            if array.shape().first() != Some(&n) {
                return Err(err!(Data, "arrays of a batch differ in length: {n} samples and {}", array.ty())
                    .hint("batch inputs, labels and weights together"));
            }
        }
        Ok(())
    }
}

/// Label field of one of several outputs: the output's name, unless an input has it.
pub(crate) fn label_field(output: &str, inputs: &[String]) -> String {
    if inputs.iter().any(|input| input == output) { format!("{output}_label") } else { output.into() }
}

/// Sample weight field of one of several outputs.
pub(crate) fn weight_field(output: &str) -> String {
    format!("{output}_{WEIGHT_FIELD}")
}

/// Returns the type of one sample of a batch.
pub(crate) fn without_batch(ty: &TensorType) -> TensorType {
    ty.with_shape(ty.shape.get(1..).unwrap_or(&[]))
}

/// Returns an array on the device; starts copying it if it is on the host.
pub(crate) fn put(buffer: Buffer, device: &dyn Backend) -> Result<Buffer> {
    match buffer.host() {
        Some(host) => device.put(&host, DeviceId(0)),
        None => Ok(buffer),
    }
}

fn fields_of(sample: &Sample) -> String {
    format!("the fields of the data are: `{}`", sample.names().collect::<Vec<_>>().join("`, `"))
}
