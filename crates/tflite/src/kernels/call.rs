//! An operator with what it reads, as kernels see it: every access checked.

use crate::model::{TfliteModel, TfliteOperator, TfliteTensor, axis_of, broken};
use crate::op::OptionField;
use systole_base::{DType, Element, Error, ErrorKind, Literal, Result};

/// An operator with what it reads.
pub(crate) struct OperatorCall<'a> {
    pub model: &'a TfliteModel,
    pub operator: &'a TfliteOperator,
    /// What tensors hold by now.
    pub values: &'a [Option<Literal>],
}

/// An operand.
#[derive(Clone, Copy)]
pub(crate) struct KernelOperand<'a> {
    pub tensor: &'a TfliteTensor,
    pub value: &'a Literal,
}

impl<'a> KernelOperand<'a> {
    pub fn dims(&self) -> &'a [usize] {
        self.tensor.dims()
    }

    pub fn dtype(&self) -> DType {
        self.tensor.ty.dtype
    }

    pub fn elements<T: Element>(&self) -> Result<&'a [T]> {
        self.value.as_slice().map_err(|e| e.at(format!("tensor {}", self.tensor.name)))
    }

    /// Its dimensions, which must be so many.
    pub fn of_rank<const N: usize>(&self) -> Result<[usize; N]> {
        self.dims().try_into().map_err(|_| {
            broken(format!("tensor {} is {}, {N} dimensions are needed", self.tensor.name, self.tensor.ty))
        })
    }

    /// Small integers: axes, shapes, paddings.
    pub fn indices(&self) -> Result<Vec<i64>> {
        match self.dtype() {
            DType::I64 => Ok(self.elements::<i64>()?.to_vec()),
            DType::I32 => Ok(self.elements::<i32>()?.iter().map(|&v| v.into()).collect()),
            _ => {
                Err(broken(format!("tensor {} is {}, indices are needed", self.tensor.name, self.tensor.ty)))
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
        self.optional(n)?.ok_or_else(|| broken(format!("its input {n} is left out")))
    }

    pub fn output(&self) -> Result<&'a TfliteTensor> {
        let i = self.operator.outputs.first().copied();
        self.model.tensor(i.ok_or_else(|| broken("it has no output".into()))?)
    }

    pub fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unsupported, format!("{} with {what}", self.operator.op))
            .hint("run this file with the LiteRT runtime")
    }

    /// The output, with these elements in the file's shape.
    pub fn made<T: Element>(&self, elements: &[T]) -> Result<Vec<Literal>> {
        Ok(vec![Literal::from_slice(&self.output()?.ty.shape, elements)?])
    }

    /// Elements of the output, which must be those of `dims`.
    pub fn check_output(&self, dims: &[usize]) -> Result<usize> {
        let output = self.output()?;
        if output.dims() != dims {
            return Err(broken(format!("it makes a tensor of shape {dims:?}, the file says {}", output.ty)));
        }
        Ok(output.ty.elements())
    }

    /// The scale of an operand or of the output.
    pub fn output_scale(&self) -> Result<(f32, i32)> {
        self.output()?.scale()
    }

    /// An axis, counted from the end where negative.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        axis_of(axis, rank).ok_or_else(|| broken(format!("there is no axis {axis} among {rank}")))
    }

    /// What multiplies windows or rows: its bias.
    pub fn bias<T: Element>(&self, n: usize, channels: usize) -> Result<Option<&'a [T]>> {
        let Some(bias) = self.optional(n)? else { return Ok(None) };
        let found = bias.elements::<T>()?;
        if found.len() != channels {
            return Err(broken(format!("{} biases for {channels} channels", found.len())));
        }
        Ok(Some(found))
    }

    /// An option of at least 1.
    pub fn at_least_1(&self, field: OptionField) -> Result<usize> {
        let count = self.operator.count(field);
        count.ok_or_else(|| broken(format!("its {field:?} is {}", self.operator.int(field))))
    }
}
