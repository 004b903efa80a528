//! An operator as forms see it. All is checked: what is not as a form needs it is `None`, and the interpreter's to judge.

use systole_base::{DType, Element};
use systole_cpu::int8::{Along, Unit};
use systole_tflite::{Field, Model, Operator, Slide, Tensor, activation_range};

/// An operator, and what multiplies bytes.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub model: &'a Model,
    pub operator: &'a Operator,
    pub unit: Unit,
}

impl<'a> Site<'a> {
    /// The number of an operand.
    pub fn operand(&self, n: usize) -> Option<usize> {
        self.operator.inputs.get(n).copied().flatten()
    }

    /// An operand, constant or not.
    pub fn input(&self, n: usize) -> Option<&'a Tensor> {
        self.model.tensors.get(self.operand(n)?)
    }

    /// An operand that is computed or given, of int8.
    pub fn bytes(&self, n: usize) -> Option<&'a Tensor> {
        self.input(n).filter(|t| t.data.is_none() && t.ty.dtype == DType::I8)
    }

    /// A constant operand's elements.
    pub fn constant<T: Element>(&self, n: usize) -> Option<&'a [T]> {
        self.input(n)?.data.as_ref()?.as_slice().ok()
    }

    /// Small integers that are constant.
    pub fn indices(&self, n: usize) -> Option<Vec<i64>> {
        match self.constant::<i32>(n) {
            Some(list) => Some(list.iter().map(|&v| v.into()).collect()),
            None => self.constant::<i64>(n).map(<[i64]>::to_vec),
        }
    }

    /// The one output.
    pub fn output(&self) -> Option<&'a Tensor> {
        match self.operator.outputs[..] {
            [one] => self.model.tensors.get(one),
            _ => None,
        }
    }

    /// The one output, of int8 and this shape.
    pub fn byte_output(&self, dims: &[usize]) -> Option<&'a Tensor> {
        self.output().filter(|t| t.ty.dtype == DType::I8 && t.dims() == dims)
    }

    /// The least and greatest value that a fused activation leaves, under the scale of the output.
    pub fn range(&self, scale: f32, zero: i32) -> Option<(i32, i32)> {
        Some(activation_range(self.operator.activation().ok()?, scale, zero))
    }

    /// An option of at least 1.
    pub fn at_least_1(&self, field: Field) -> Option<usize> {
        usize::try_from(self.operator.int(field)).ok().filter(|v| (1..1 << 30).contains(v))
    }

    /// An axis, counted from the end where negative.
    pub fn axis(&self, axis: i64, rank: usize) -> Option<usize> {
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(from_start).ok().filter(|a| *a < rank)
    }

    /// How windows move over lines and columns.
    pub fn slides(&self, size: [usize; 2], window: [usize; 2], dilated: bool) -> Option<[Along; 2]> {
        let same = match self.operator.int(Field::Padding) {
            0 => true,
            1 => false,
            _ => return None,
        };
        let dilation = |field| if dilated { self.at_least_1(field) } else { Some(1) };
        let strides = [self.at_least_1(Field::StrideH)?, self.at_least_1(Field::StrideW)?];
        let dilations = [dilation(Field::DilationH)?, dilation(Field::DilationW)?];
        let one = |d: usize| {
            let s = Slide::new(size[d], window[d], strides[d], dilations[d], same).ok()?;
            Some(Along {
                size: s.size,
                window: s.window,
                stride: s.stride,
                dilation: s.dilation,
                before: s.before,
                positions: s.positions,
            })
        };
        Some([one(0)?, one(1)?])
    }
}
