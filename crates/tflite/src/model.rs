//! Plain data types for the contents of a `.tflite` file: tensors, operators, inputs and outputs.

use crate::op::{FusedActivation, OptionField, TfliteOp};
use std::collections::BTreeMap;
use systole_base::{DType, Error, Literal, Result, Shape, TensorType, ensure, err};

/// Quantization parameters of a TFLite tensor: real = scale · (q − zero point).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TfliteQuantization {
    /// One scale, or one for each index along `dimension`.
    pub scale: Vec<f32>,
    /// Zero points, one per scale.
    pub zero_point: Vec<i64>,
    /// Quantized dimension, if there are several scales.
    pub dimension: usize,
}

impl TfliteQuantization {
    /// Returns per-tensor quantization parameters.
    pub fn per_tensor(scale: f32, zero_point: i32) -> TfliteQuantization {
        TfliteQuantization { scale: vec![scale], zero_point: vec![zero_point.into()], dimension: 0 }
    }

    /// Returns symmetric per-channel quantization parameters: a scale for each index along a dimension.
    pub fn per_channel(scale: Vec<f32>, dimension: usize) -> TfliteQuantization {
        TfliteQuantization { zero_point: vec![0; scale.len()], scale, dimension }
    }
}

/// A TFLite tensor: its type, and its value if it is constant.
#[derive(Clone, Debug, PartialEq)]
pub struct TfliteTensor {
    /// Name in the file.
    pub name: String,
    /// Element type and shape, including the batch.
    pub ty: TensorType,
    /// Value of a constant.
    pub data: Option<Literal>,
    /// Quantization parameters; `None` for plain numbers.
    pub quantization: Option<TfliteQuantization>,
    /// Whether the shape is known only when the model runs: in files with control flow.
    pub is_dynamic: bool,
    /// Whether it is the state of a recurrent layer, 0 at the start of each run.
    pub is_variable: bool,
}

impl TfliteTensor {
    /// Whether the tensor has integers that stand for reals.
    pub fn is_quantized(&self) -> bool {
        self.quantization.is_some() && self.ty.dtype.is_int()
    }

    /// Creates a TFLite input or computed tensor.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> TfliteTensor {
        TfliteTensor {
            name: name.into(),
            ty: TensorType::new(dtype, shape),
            data: None,
            quantization: None,
            is_dynamic: false,
            is_variable: false,
        }
    }

    /// Creates a constant TFLite tensor.
    pub fn constant(name: impl Into<String>, data: Literal) -> TfliteTensor {
        TfliteTensor {
            data: Some(data.clone()),
            ..TfliteTensor::new(name, data.shape().clone(), data.dtype())
        }
    }

    /// Adds quantization parameters to the tensor.
    pub fn quantized(mut self, quantization: TfliteQuantization) -> TfliteTensor {
        self.quantization = Some(quantization);
        self
    }

    /// Returns the tensor's dimensions.
    pub fn dims(&self) -> &[usize] {
        self.ty.shape.dims()
    }

    /// Returns the scale and zero point of a tensor that is quantized per tensor.
    ///
    /// # Errors
    /// If it is not quantized, has several scales, or a scale that is not positive.
    pub fn scale(&self) -> Result<(f32, i32)> {
        match &self.quantization {
            Some(q) if q.scale.len() == 1 && q.zero_point.len() == 1 => {
                let zero_point = i32::try_from(q.zero_point[0]).unwrap_or(i32::MAX);
                let (low, high) = match self.ty.dtype {
                    DType::I8 => (-128, 127),
                    DType::U8 => (0, 255),
                    _ => (0, 0),
                };
                let holds = q.scale[0].is_finite() && q.scale[0] > 0.0 && (low..=high).contains(&zero_point);
                let wrong =
                    || self.wrong(format!("invalid scale {} and zero point {zero_point}", q.scale[0]));
                holds.then_some((q.scale[0], zero_point)).ok_or_else(wrong)
            }
            Some(q) => Err(self.wrong(format!("{} scales, expected one", q.scale.len()))),
            None => Err(self.wrong("no scale".into())),
        }
    }

    fn wrong(&self, has: String) -> Error {
        err!(Data, "tensor {} of type {} has {has}", self.name, self.ty)
            .hint("quantize the model again, or use the float version of the model")
    }
}

/// A TFLite operator with its inputs, outputs and options.
#[derive(Clone, Debug, PartialEq)]
pub struct TfliteOperator {
    /// Operator type.
    pub op: TfliteOp,
    /// Version in the file; 0 lets the writer choose the lowest version for the types.
    pub version: i32,
    /// Tensor indices; `None` for an omitted optional input.
    pub inputs: Vec<Option<usize>>,
    /// Tensor indices.
    pub outputs: Vec<usize>,
    numbers: BTreeMap<OptionField, f64>,
    lists: BTreeMap<OptionField, Vec<i32>>,
}

impl TfliteOperator {
    /// Creates a TFLite operator with default options.
    pub fn new(
        op: TfliteOp,
        inputs: impl IntoIterator<Item = usize>,
        outputs: impl IntoIterator<Item = usize>,
    ) -> TfliteOperator {
        let inputs = inputs.into_iter().map(Some).collect();
        let outputs = outputs.into_iter().collect();
        TfliteOperator { op, version: 0, inputs, outputs, numbers: BTreeMap::new(), lists: BTreeMap::new() }
    }

    /// Sets an option of the TFLite operator.
    pub fn with(mut self, field: OptionField, value: impl Into<f64>) -> TfliteOperator {
        self.numbers.insert(field, value.into());
        self
    }

    /// Sets a list option of the TFLite operator.
    pub fn with_list(mut self, field: OptionField, value: Vec<i32>) -> TfliteOperator {
        self.lists.insert(field, value);
        self
    }

    /// Returns an option of the TFLite operator as stored.
    pub fn number(&self, field: OptionField) -> f64 {
        self.numbers.get(&field).copied().unwrap_or(field.default())
    }

    /// Returns an integer option of the TFLite operator.
    pub fn int(&self, field: OptionField) -> i64 {
        self.number(field) as i64
    }

    /// Returns a bool option of the TFLite operator.
    pub fn is(&self, field: OptionField) -> bool {
        self.number(field) != 0.0
    }

    /// Returns an option of the TFLite operator that is at least 1.
    pub fn count(&self, field: OptionField) -> Option<usize> {
        usize::try_from(self.int(field)).ok().filter(|v| (1..1 << 30).contains(v))
    }

    /// Whether the operator's padding is SAME; `None` if the option is not a value of [`crate::TflitePadding`].
    pub fn is_same(&self) -> Option<bool> {
        match self.int(OptionField::Padding) {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    /// Returns a list option of the TFLite operator.
    pub fn list(&self, field: OptionField) -> &[i32] {
        self.lists.get(&field).map_or(&[], Vec::as_slice)
    }

    /// Returns the activation fused into the TFLite operator.
    ///
    /// # Errors
    /// If it is not a value of [`FusedActivation`].
    pub fn activation(&self) -> Result<FusedActivation> {
        let code = self.int(OptionField::Activation);
        FusedActivation::of_code(code)
            .ok_or_else(|| err!(Unsupported, "{} with fused activation {code} is not supported", self.op))
    }
}

/// Normalizes an axis for `rank` dimensions; negative ones count from the end.
pub fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(from_start).ok().filter(|a| *a < rank)
}

/// A TFLite model: a graph of operators in execution order, and the graphs that its control flow runs.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TfliteModel {
    /// Description, often the writer.
    pub description: String,
    /// All tensors, by index.
    pub tensors: Vec<TfliteTensor>,
    /// Operators, each after those that feed it.
    pub operators: Vec<TfliteOperator>,
    /// Input tensors.
    pub inputs: Vec<usize>,
    /// Output tensors.
    pub outputs: Vec<usize>,
    /// Metadata by name, such as class names and pixel scaling.
    pub notes: BTreeMap<String, String>,
    /// Other graphs of the file, which control flow runs: graph 1 is the first of them.
    pub subgraphs: Vec<TfliteModel>,
}

/// Maximum total bytes of non-constant tensors.
pub(crate) const MOST_BYTES: usize = 1 << 29;

impl TfliteModel {
    /// Returns a tensor of the TFLite model by index.
    pub fn tensor(&self, index: usize) -> Result<&TfliteTensor> {
        self.tensors.get(index).ok_or_else(|| broken(format!("tensor {index} does not exist")))
    }

    /// Returns an operator's position for messages: `CONV_2D 3 (conv2d)`.
    pub fn place(&self, operator: usize) -> String {
        let Some(o) = self.operators.get(operator) else { return format!("operator {operator}") };
        let made = o.outputs.first().and_then(|&t| self.tensors.get(t)).map_or("", |t| t.name.as_str());
        format!("operator {operator} ({}, output {made})", o.op)
    }

    /// Whether a tensor has integers that stand for reals.
    pub fn is_quantized(&self) -> bool {
        self.tensors.iter().any(TfliteTensor::is_quantized)
    }

    /// Returns the size of the model's constants in bytes.
    pub fn constant_bytes(&self) -> usize {
        self.tensors.iter().filter_map(|t| t.data.as_ref()).map(|d| d.ty().bytes()).sum()
    }

    /// Checks the validity of the TFLite graph.
    ///
    /// # Errors
    /// If an index names no tensor, an operator reads a tensor before it is computed, a tensor is computed twice,
    /// scales do not match their tensor, or tensors are too large.
    pub fn check(&self) -> Result<()> {
        self.subgraphs.iter().try_for_each(TfliteModel::check)?;
        let mut bytes = 0usize;
        for t in &self.tensors {
            self.check_tensor(t)?;
            if t.data.is_none() {
                let own = t.ty.shape.checked_elements().and_then(|n| n.checked_mul(t.ty.dtype.size()));
                bytes = own.and_then(|own| bytes.checked_add(own)).unwrap_or(usize::MAX);
            }
        }
        ensure!(bytes <= MOST_BYTES, broken("the tensors take more than 512 MiB".into()));
        self.check_order()
    }

    fn check_order(&self) -> Result<()> {
        let mut known: Vec<bool> = self.tensors.iter().map(|t| t.data.is_some()).collect();
        for &i in &self.inputs {
            self.tensor(i)?;
            if std::mem::replace(&mut known[i], true) {
                return Err(broken(format!("input tensor {i} is a constant or listed twice")));
            }
        }
        for (n, o) in self.operators.iter().enumerate() {
            for &i in o.inputs.iter().flatten() {
                if !known.get(i).copied().ok_or_else(|| broken(format!("tensor {i} does not exist")))? {
                    return Err(
                        broken(format!("it reads tensor {i} before it is computed")).at(self.place(n))
                    );
                }
            }
            for &i in &o.outputs {
                let slot = known.get_mut(i).ok_or_else(|| broken(format!("tensor {i} does not exist")))?;
                if std::mem::replace(slot, true) {
                    return Err(broken(format!("it computes tensor {i}, which already has a value"))
                        .at(self.place(n)));
                }
            }
        }
        for &i in &self.outputs {
            self.tensor(i)?;
            ensure!(known[i], broken(format!("no operator computes output tensor {i}")));
        }
        Ok(())
    }

    fn check_tensor(&self, t: &TfliteTensor) -> Result<()> {
        if t.data.as_ref().is_some_and(|d| d.ty() != &t.ty) {
            return Err(broken(format!("the value of tensor {} does not have its type", t.name)));
        }
        // Without empty tensors no size can exceed the number of elements.
        let is_empty_list = t.data.is_some() && t.dims() == [0];
        if t.dims().contains(&0) && !is_empty_list {
            return Err(broken(format!("tensor {} of type {} has no elements", t.name, t.ty)));
        }
        let Some(q) = &t.quantization else { return Ok(()) };
        let channels = t.dims().get(q.dimension).copied();
        let fits =
            q.scale.len() == q.zero_point.len() && (q.scale.len() == 1 || channels == Some(q.scale.len()));
        if !fits {
            let why = format!("the {} scales of tensor {} do not match {}", q.scale.len(), t.name, t.ty);
            return Err(broken(why));
        }
        Ok(())
    }
}

/// Returns an error about an invalid file or graph.
pub(crate) fn broken(why: String) -> Error {
    err!(Data, "invalid .tflite model").because(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;

    #[test]
    fn computed_tensors_take_at_most_512_mib() {
        let model = |bytes: usize| TfliteModel {
            tensors: vec![
                TfliteTensor::new("x", [1 << 28], DType::I8),
                TfliteTensor::new("y", [bytes - (1 << 28)], DType::I8),
                TfliteTensor::constant("c", Literal::zeros(TensorType::new(DType::I8, [16]))),
            ],
            inputs: vec![0, 1],
            outputs: vec![1],
            ..TfliteModel::default()
        };
        assert!(model(MOST_BYTES).check().is_ok());
        for bytes in [MOST_BYTES + 1, 2 * MOST_BYTES] {
            assert_eq!(model(bytes).check().unwrap_err().kind(), ErrorKind::Data);
        }
        let mut huge = model(MOST_BYTES);
        huge.tensors[0] = TfliteTensor::new("x", [usize::MAX, 2], DType::F32);
        assert_eq!(huge.check().unwrap_err().kind(), ErrorKind::Data);
    }
}
