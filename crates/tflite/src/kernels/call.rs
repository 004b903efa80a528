//! Arguments of a TFLite kernel: an operator and its operands, with checked access.

use crate::model::{MOST_BYTES, TfliteModel, TfliteOperator, TfliteTensor, axis_of, broken};
use crate::op::OptionField;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use systole_base::{DType, Element, Error, Literal, Result, Shape, TensorType, err};

/// Runs a graph by its index in the file.
pub(crate) type GraphRunner<'a> = &'a dyn Fn(usize, &[Literal]) -> Result<Vec<Literal>>;

/// Access of control flow to the other graphs of the file, and to the variables of a run.
pub(crate) struct RunContext<'a> {
    pub run_graph: GraphRunner<'a>,
    /// Values of variables by handle.
    pub variables: &'a RefCell<BTreeMap<i64, Literal>>,
}

/// An operator with its operands.
pub(crate) struct OperatorCall<'a> {
    pub context: &'a RunContext<'a>,
    pub model: &'a TfliteModel,
    pub operator: &'a TfliteOperator,
    /// Current values of the tensors.
    pub values: &'a [Option<Literal>],
    /// Shape of the output, once it is known.
    pub shape: OnceCell<Shape>,
}

/// An operand.
#[derive(Clone, Copy)]
pub(crate) struct KernelOperand<'a> {
    pub tensor: &'a TfliteTensor,
    pub value: &'a Literal,
}

impl<'a> KernelOperand<'a> {
    pub fn dims(&self) -> &'a [usize] {
        self.value.shape().dims()
    }

    /// Returns the type of the value, whose shape may be open in the file.
    pub fn ty(&self) -> &'a TensorType {
        self.value.ty()
    }

    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    pub fn elements<T: Element>(&self) -> Result<&'a [T]> {
        self.value.as_slice().map_err(|e| e.at(format!("tensor {}", self.tensor.name)))
    }

    /// Returns the operand's dimensions; its rank must be `N`.
    pub fn of_rank<const N: usize>(&self) -> Result<[usize; N]> {
        self.dims().try_into().map_err(|_| {
            broken(format!("tensor {} is {}, expected {N} dimensions", self.tensor.name, self.ty()))
        })
    }

    /// Returns the elements of an operand of small integers: axes, shapes, paddings.
    pub fn indices(&self) -> Result<Vec<i64>> {
        match self.dtype() {
            DType::I64 => Ok(self.elements::<i64>()?.to_vec()),
            DType::I32 => Ok(self.elements::<i32>()?.iter().map(|&v| v.into()).collect()),
            _ => {
                Err(broken(format!("tensor {} is {}, expected integer indices", self.tensor.name, self.ty())))
            }
        }
    }
}

impl<'a> OperatorCall<'a> {
    pub fn optional(&self, n: usize) -> Result<Option<KernelOperand<'a>>> {
        let Some(i) = self.operator.inputs.get(n).copied().flatten() else { return Ok(None) };
        let value = self.values.get(i).and_then(Option::as_ref);
        let value = value.ok_or_else(|| broken(format!("tensor {i} has no value")))?;
        Ok(Some(KernelOperand { tensor: self.model.tensor(i)?, value }))
    }

    pub fn input(&self, n: usize) -> Result<KernelOperand<'a>> {
        self.optional(n)?.ok_or_else(|| broken(format!("input {n} is missing")))
    }

    pub fn output(&self) -> Result<&'a TfliteTensor> {
        let i = self.operator.outputs.first().copied();
        self.model.tensor(i.ok_or_else(|| broken("the operator has no output".into()))?)
    }

    pub fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        err!(Unsupported, "{} with {what} is not supported", self.operator.op)
            .hint("run this file with the LiteRT runtime")
    }

    /// Returns the operator's output with these elements and the shape in the file.
    pub fn made<T: Element>(&self, elements: &[T]) -> Result<Vec<Literal>> {
        Ok(vec![Literal::from_slice(self.output_type()?.shape, elements)?])
    }

    /// Returns the elements of an operand of integers without a scale, or of bools.
    pub fn ints(&self, x: &KernelOperand) -> Result<Vec<i64>> {
        if x.tensor.quantization.as_ref().is_some_and(|q| q.scale.iter().any(|s| *s != 1.0)) {
            return Err(self.unsupported(format_args!("quantized {}", x.dtype())));
        }
        match x.dtype() {
            DType::I64 => Ok(x.elements::<i64>()?.to_vec()),
            DType::I32 => Ok(x.elements::<i32>()?.iter().map(|&v| v.into()).collect()),
            dtype if dtype.is_int() || dtype == DType::Bool => {
                Ok((0..x.ty().elements()).map(|i| x.value.get(i).as_i64()).collect())
            }
            other => Err(self.unsupported(format_args!("element type {other}"))),
        }
    }

    /// Returns the operator's output of integers or bools with these elements, truncated to its type.
    pub fn made_ints(&self, elements: &[i64]) -> Result<Vec<Literal>> {
        let ty = self.output_type()?;
        match ty.dtype {
            DType::I64 => self.made(elements),
            DType::I32 => self.made(&elements.iter().map(|&v| v as i32).collect::<Vec<_>>()),
            DType::Bool => Ok(vec![Literal::from_bools(
                &ty.shape,
                &elements.iter().map(|&v| v != 0).collect::<Vec<_>>(),
            )?]),
            dtype if dtype.is_int() => {
                let size = dtype.size();
                let bytes: Vec<u8> =
                    elements.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect();
                Ok(vec![Literal::from_bytes(ty.clone(), &bytes)?])
            }
            other => Err(self.unsupported(format_args!("result type {other}"))),
        }
    }

    /// Returns the number of elements of the operator's output; checks that its shape is `dims`.
    pub fn check_output(&self, dims: &[usize]) -> Result<usize> {
        let output = self.output()?;
        let bytes = dims.iter().try_fold(output.ty.dtype.size(), |n, d| n.checked_mul(*d));
        let is_open = output.is_dynamic && output.dims().len() == dims.len();
        if output.dims() != dims && !(is_open && bytes.is_some_and(|n| n <= MOST_BYTES)) {
            return Err(broken(format!(
                "it computes a tensor of shape {dims:?}, the file states {}",
                output.ty
            )));
        }
        Ok(self.shape.get_or_init(|| Shape::from(dims)).elements())
    }

    /// Returns the type of the operator's output, with the shape that was checked if it is open in the file.
    pub fn output_type(&self) -> Result<TensorType> {
        let ty = &self.output()?.ty;
        Ok(self.shape.get().map_or_else(|| ty.clone(), |shape| ty.with_shape(shape)))
    }

    /// Returns the scale and zero point of the operator's output.
    pub fn output_scale(&self) -> Result<(f32, i32)> {
        self.output()?.scale()
    }

    /// Normalizes an axis of a TFLite operator; negative ones count from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        axis_of(axis, rank).ok_or_else(|| broken(format!("axis {axis} is out of range for rank {rank}")))
    }

    /// Returns the bias of a TFLite operator with weights.
    pub fn bias<T: Element>(&self, n: usize, channels: usize) -> Result<Option<&'a [T]>> {
        let Some(bias) = self.optional(n)? else { return Ok(None) };
        let found = bias.elements::<T>()?;
        if found.len() != channels {
            return Err(broken(format!("got {} biases for {channels} channels", found.len())));
        }
        Ok(Some(found))
    }

    /// Returns a TFLite operator option that must be at least 1.
    pub fn at_least_1(&self, field: OptionField) -> Result<usize> {
        let count = self.operator.count(field);
        count.ok_or_else(|| {
            broken(format!("option {field:?} must be at least 1, got {}", self.operator.int(field)))
        })
    }
}
