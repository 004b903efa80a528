//! A model as data: tensors, operators, what goes in and what comes out. What the bytes of a file say, in plain types.

use crate::op::{FusedActivation, OptionField, TfliteOp};
use std::collections::BTreeMap;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType};

/// real = scale · (q − zero point).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TfliteQuantization {
    /// One, or one for each entry of `dimension`.
    pub scale: Vec<f32>,
    /// As many as scales.
    pub zero_point: Vec<i64>,
    /// The dimension along which scales differ, where there are several.
    pub dimension: usize,
}

impl TfliteQuantization {
    /// One scale for all.
    pub fn per_tensor(scale: f32, zero_point: i32) -> TfliteQuantization {
        TfliteQuantization { scale: vec![scale], zero_point: vec![zero_point.into()], dimension: 0 }
    }

    /// A scale for each entry of a dimension, all around 0.
    pub fn per_channel(scale: Vec<f32>, dimension: usize) -> TfliteQuantization {
        TfliteQuantization { zero_point: vec![0; scale.len()], scale, dimension }
    }
}

/// A tensor: its type, and its values where they are constant.
#[derive(Clone, Debug, PartialEq)]
pub struct TfliteTensor {
    /// Its name in the file.
    pub name: String,
    /// Element type and shape, the batch included.
    pub ty: TensorType,
    /// Its values, of a constant.
    pub data: Option<Literal>,
    /// How its integers are numbers; `None`: they are what they are.
    pub quantization: Option<TfliteQuantization>,
}

impl TfliteTensor {
    /// A tensor that is computed or given.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> TfliteTensor {
        TfliteTensor { name: name.into(), ty: TensorType::new(dtype, shape), data: None, quantization: None }
    }

    /// A constant.
    pub fn constant(name: impl Into<String>, data: Literal) -> TfliteTensor {
        TfliteTensor { name: name.into(), ty: data.ty().clone(), data: Some(data), quantization: None }
    }

    /// With a quantisation.
    pub fn quantized(mut self, quantization: TfliteQuantization) -> TfliteTensor {
        self.quantization = Some(quantization);
        self
    }

    /// Its dimensions.
    pub fn dims(&self) -> &[usize] {
        self.ty.shape.dims()
    }

    /// The one scale and zero point of its integers.
    ///
    /// # Errors
    /// When it is not quantised, has several scales, or a scale that is no positive number.
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
                let wrong = || self.wrong(format!("scale {} and zero point {zero_point}", q.scale[0]));
                holds.then_some((q.scale[0], zero_point)).ok_or_else(wrong)
            }
            Some(q) => Err(self.wrong(format!("{} scales where one is needed", q.scale.len()))),
            None => Err(self.wrong("no scale".into())),
        }
    }

    fn wrong(&self, has: String) -> Error {
        let what = format!("tensor {} of type {} has {has}", self.name, self.ty);
        Error::new(ErrorKind::Data, what).hint("quantise the model anew, or use its float version")
    }
}

/// An operator in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TfliteOperator {
    /// What it computes.
    pub op: TfliteOp,
    /// Its version in the file; 0: the writer chooses the lowest that there is for its types.
    pub version: i32,
    /// Numbers of tensors; `None` where an optional one is left out.
    pub inputs: Vec<Option<usize>>,
    /// Numbers of tensors.
    pub outputs: Vec<usize>,
    numbers: BTreeMap<OptionField, f64>,
    lists: BTreeMap<OptionField, Vec<i32>>,
}

impl TfliteOperator {
    /// An operator with its options at their defaults.
    pub fn new(
        op: TfliteOp,
        inputs: impl IntoIterator<Item = usize>,
        outputs: impl IntoIterator<Item = usize>,
    ) -> TfliteOperator {
        let inputs = inputs.into_iter().map(Some).collect();
        let outputs = outputs.into_iter().collect();
        TfliteOperator { op, version: 0, inputs, outputs, numbers: BTreeMap::new(), lists: BTreeMap::new() }
    }

    /// With an option.
    pub fn with(mut self, field: OptionField, value: impl Into<f64>) -> TfliteOperator {
        self.numbers.insert(field, value.into());
        self
    }

    /// With an option that is a list.
    pub fn with_list(mut self, field: OptionField, value: Vec<i32>) -> TfliteOperator {
        self.lists.insert(field, value);
        self
    }

    /// An option as it is stored.
    pub fn number(&self, field: OptionField) -> f64 {
        self.numbers.get(&field).copied().unwrap_or(field.default())
    }

    /// An option that is an integer.
    pub fn int(&self, field: OptionField) -> i64 {
        self.number(field) as i64
    }

    /// An option that is a switch.
    pub fn is(&self, field: OptionField) -> bool {
        self.number(field) != 0.0
    }

    /// An option of at least 1.
    pub fn count(&self, field: OptionField) -> Option<usize> {
        usize::try_from(self.int(field)).ok().filter(|v| (1..1 << 30).contains(v))
    }

    /// Whether windows have as many positions as the strides leave; `None`: the option is neither of [`crate::Padding`]'s.
    pub fn is_same(&self) -> Option<bool> {
        match self.int(OptionField::Padding) {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    /// An option that is a list.
    pub fn list(&self, field: OptionField) -> &[i32] {
        self.lists.get(&field).map_or(&[], Vec::as_slice)
    }

    /// What is applied to the result.
    ///
    /// # Errors
    /// When it is none of [`Activation`]'s.
    pub fn activation(&self) -> Result<FusedActivation> {
        let code = self.int(OptionField::Activation);
        FusedActivation::of_code(code).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{} with fused activation {code}", self.op))
        })
    }
}

/// An axis among `rank`, counted from the end where negative.
pub fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(from_start).ok().filter(|a| *a < rank)
}

/// A model: one graph of operators in the order of their execution.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TfliteModel {
    /// A note of who wrote it.
    pub description: String,
    /// All tensors, by number.
    pub tensors: Vec<TfliteTensor>,
    /// Each after those that feed it.
    pub operators: Vec<TfliteOperator>,
    /// Tensors that are given.
    pub inputs: Vec<usize>,
    /// Tensors that are asked for.
    pub outputs: Vec<usize>,
    /// Free notes by name: names of classes, how pixels are scaled. Kept as metadata.
    pub notes: BTreeMap<String, String>,
}

/// Bytes that all tensors that are no constants may have together.
const MOST_BYTES: usize = 1 << 29;

impl TfliteModel {
    /// The tensor of a number.
    pub fn tensor(&self, index: usize) -> Result<&TfliteTensor> {
        self.tensors.get(index).ok_or_else(|| broken(format!("there is no tensor {index}")))
    }

    /// Where an operator stands, for people: `CONV_2D 3 (conv2d)`.
    pub fn place(&self, operator: usize) -> String {
        let Some(o) = self.operators.get(operator) else { return format!("operator {operator}") };
        let made = o.outputs.first().and_then(|&t| self.tensors.get(t)).map_or("", |t| t.name.as_str());
        format!("operator {operator} ({}, which makes {made})", o.op)
    }

    /// Bytes of its constants.
    pub fn constant_bytes(&self) -> usize {
        self.tensors.iter().filter_map(|t| t.data.as_ref()).map(|d| d.ty().bytes()).sum()
    }

    /// What every runtime asks of a graph.
    ///
    /// # Errors
    /// When a number names no tensor, an operator reads what is made later, a tensor is made twice, scales do not fit their
    /// tensor, or tensors are too large.
    pub fn check(&self) -> Result<()> {
        let mut bytes = 0usize;
        for t in &self.tensors {
            self.check_tensor(t)?;
            if t.data.is_none() {
                let own = t.ty.shape.checked_elements().and_then(|n| n.checked_mul(t.ty.dtype.size()));
                bytes = own.and_then(|own| bytes.checked_add(own)).unwrap_or(usize::MAX);
            }
        }
        if bytes > MOST_BYTES {
            return Err(broken("its tensors take more than 512 MiB".into()));
        }
        self.check_order()
    }

    fn check_order(&self) -> Result<()> {
        let mut known: Vec<bool> = self.tensors.iter().map(|t| t.data.is_some()).collect();
        for &i in &self.inputs {
            self.tensor(i)?;
            if std::mem::replace(&mut known[i], true) {
                return Err(broken(format!("input tensor {i} is a constant, or listed twice")));
            }
        }
        for (n, o) in self.operators.iter().enumerate() {
            for &i in o.inputs.iter().flatten() {
                if !known.get(i).copied().ok_or_else(|| broken(format!("there is no tensor {i}")))? {
                    return Err(broken(format!("it reads tensor {i} before that is made")).at(self.place(n)));
                }
            }
            for &i in &o.outputs {
                let slot = known.get_mut(i).ok_or_else(|| broken(format!("there is no tensor {i}")))?;
                if std::mem::replace(slot, true) {
                    return Err(
                        broken(format!("it makes tensor {i}, which is there already")).at(self.place(n))
                    );
                }
            }
        }
        for &i in &self.outputs {
            self.tensor(i)?;
            if !known[i] {
                return Err(broken(format!("nothing makes output tensor {i}")));
            }
        }
        Ok(())
    }

    fn check_tensor(&self, t: &TfliteTensor) -> Result<()> {
        if t.data.as_ref().is_some_and(|d| d.ty() != &t.ty) {
            return Err(broken(format!("the values of tensor {} are not of its type", t.name)));
        }
        // None without elements: so no size can be larger than all of them.
        if t.dims().contains(&0) {
            return Err(broken(format!("tensor {} of type {} has no elements", t.name, t.ty)));
        }
        let Some(q) = &t.quantization else { return Ok(()) };
        let channels = t.dims().get(q.dimension).copied();
        let fits =
            q.scale.len() == q.zero_point.len() && (q.scale.len() == 1 || channels == Some(q.scale.len()));
        if !fits {
            let why = format!("the {} scales of tensor {} do not fit {}", q.scale.len(), t.name, t.ty);
            return Err(broken(why));
        }
        Ok(())
    }
}

/// A file or graph that is none.
pub(crate) fn broken(why: String) -> Error {
    Error::new(ErrorKind::Data, "this is no sound .tflite model").because(why)
}
