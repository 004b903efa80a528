//! Checked access to an operator's operands and attributes, for kernel selection.
//!
//! `None` means that the operator falls back to the interpreter.

use systole_base::{DType, Element};
use systole_cpu::int8::{Int8Isa, Int8WindowDim};
use systole_tflite::{
    OptionField, TfliteModel, TfliteOp, TfliteOperator, TfliteTensor, WindowStride, activation_range,
};

/// An operator, its graph, and the instruction set to use.
#[derive(Clone, Copy)]
pub(crate) struct OpContext<'a> {
    pub model: &'a TfliteModel,
    pub operator: &'a TfliteOperator,
    pub unit: Int8Isa,
    /// The unpadded image inside the first operand, if the kernel reads that directly.
    pub inside: Option<BorderedInput>,
}

/// An image inside zero-point padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BorderedInput {
    /// Padding rows and columns before it.
    pub before: [usize; 2],
    /// Rows and columns of the image.
    pub size: [usize; 2],
}

impl<'a> OpContext<'a> {
    /// Returns the tensor index of operand `n` of the operator.
    pub fn operand(&self, n: usize) -> Option<usize> {
        self.operator.inputs.get(n).copied().flatten()
    }

    /// Returns operand `n` of the operator, constant or not.
    pub fn input(&self, n: usize) -> Option<&'a TfliteTensor> {
        self.model.tensors.get(self.operand(n)?)
    }

    /// Returns operand `n` of the operator if it is int8 and not constant.
    pub fn bytes(&self, n: usize) -> Option<&'a TfliteTensor> {
        self.input(n).filter(|t| t.data.is_none() && t.ty.dtype == DType::I8)
    }

    /// Returns the elements of a constant operand of the operator.
    pub fn constant<T: Element>(&self, n: usize) -> Option<&'a [T]> {
        self.input(n)?.data.as_ref()?.as_slice().ok()
    }

    /// Returns a constant operand of small integers.
    pub fn indices(&self, n: usize) -> Option<Vec<i64>> {
        match self.constant::<i32>(n) {
            Some(list) => Some(list.iter().map(|&v| v.into()).collect()),
            None => self.constant::<i64>(n).map(<[i64]>::to_vec),
        }
    }

    /// Returns the operator's output if there is exactly one.
    pub fn output(&self) -> Option<&'a TfliteTensor> {
        match self.operator.outputs[..] {
            [one] => self.model.tensors.get(one),
            _ => None,
        }
    }

    /// Returns the only output if it is int8 with shape `dims`.
    pub fn byte_output(&self, dims: &[usize]) -> Option<&'a TfliteTensor> {
        self.output().filter(|t| t.ty.dtype == DType::I8 && t.dims() == dims)
    }

    /// Returns the minimum and maximum that the fused activation allows, quantized with `scale` and `zero`.
    pub fn range(&self, scale: f32, zero: i32) -> Option<(i32, i32)> {
        Some(activation_range(self.operator.activation().ok()?, scale, zero))
    }

    /// Matches a spatial PAD: returns the padded tensor and its position in the result.
    pub fn padded(&self) -> Option<(usize, BorderedInput)> {
        let (x, y, pads) = (self.bytes(0)?, self.output()?, self.constant::<i32>(1)?);
        let (&[b, h, w, c], &[b_y, h_y, w_y, c_y]) = (x.dims(), y.dims()) else { return None };
        let &[0, 0, top, bottom, left, right, 0, 0] = pads else { return None };
        let [top, bottom, left, right] = [top, bottom, left, right].map(|n| usize::try_from(n).ok());
        let (before, after) = ([top?, left?], [bottom?, right?]);
        let fits = self.operator.op == TfliteOp::Pad
            && y.ty.dtype == DType::I8
            && x.scale().ok()? == y.scale().ok()?
            && [b, c] == [b_y, c_y]
            && [before[0] + h + after[0], before[1] + w + after[1]] == [h_y, w_y];
        fits.then_some((self.operand(0)?, BorderedInput { before, size: [h, w] }))
    }

    /// Returns the window geometry of rows and columns.
    pub fn slides(&self, size: [usize; 2], window: [usize; 2], dilated: bool) -> Option<[Int8WindowDim; 2]> {
        let (o, same) = (self.operator, self.operator.is_same()?);
        let dilation = |field| if dilated { o.count(field) } else { Some(1) };
        let strides = [o.count(OptionField::StrideH)?, o.count(OptionField::StrideW)?];
        let dilations = [dilation(OptionField::DilationH)?, dilation(OptionField::DilationW)?];
        let one = |d: usize| {
            let s = WindowStride::new(size[d], window[d], strides[d], dilations[d], same).ok()?;
            let (size, before) = match self.inside {
                Some(inside) => (inside.size[d], s.before + inside.before[d]),
                None => (s.size, s.before),
            };
            let (window, stride, dilation) = (s.window, s.stride, s.dilation);
            Some(Int8WindowDim { size, window, stride, dilation, before, positions: s.positions })
        };
        Some([one(0)?, one(1)?])
    }
}
