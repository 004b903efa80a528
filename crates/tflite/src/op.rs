//! Operators and their options by the schema's numbers. The table of operators is in `kernels`: a row in the file of a family.

use std::fmt;

/// An option of an operator. Numbers, switches and choices are one kind of value here: the schema's default is 0 for all but
/// the dilations, which are 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OptionField {
    /// See [`TflitePadding`].
    Padding,
    /// Step from column to column.
    StrideW,
    /// Step from row to row.
    StrideH,
    /// Columns of a pooling's window.
    FilterW,
    /// Rows of a pooling's window.
    FilterH,
    /// See [`FusedActivation`].
    Activation,
    /// Distance of a window's columns.
    DilationW,
    /// Distance of a window's rows.
    DilationH,
    /// Output channels for each input channel.
    DepthMultiplier,
    /// How the weights of FULLY_CONNECTED lie; 0 alone is read.
    WeightsFormat,
    /// Whether FULLY_CONNECTED keeps the leading dimensions.
    KeepNumDims,
    /// Whether inputs that are quantised on the way have a zero point.
    AsymmetricInputs,
    /// The dimension.
    Axis,
    /// Leading dimensions that GATHER pairs.
    BatchDims,
    /// A list: the shape that RESHAPE makes.
    NewShape,
    /// A list: the dimensions of size 1 that SQUEEZE removes.
    SqueezeDims,
    /// Rows and columns that become channels.
    BlockSize,
    /// Factor of SOFTMAX's input.
    Beta,
    /// Whether a reduction leaves dimensions of size 1.
    KeepDims,
    /// Whether corners fall on corners.
    AlignCorners,
    /// Whether a pixel's place is its middle.
    HalfPixelCenters,
    /// Parts of SPLIT.
    NumSplits,
    /// Whether the first operand is transposed.
    AdjX,
    /// Whether the second operand is transposed.
    AdjY,
    /// The schema's number of an element type.
    OutputType,
    /// Slope below zero.
    Alpha,
    /// Whether GELU is by tanh.
    Approximate,
    /// Bits: dimensions whose begin is left out.
    BeginMask,
    /// Bits: dimensions whose end is left out.
    EndMask,
    /// Bits: an ellipsis.
    EllipsisMask,
    /// Bits: new dimensions of size 1.
    NewAxisMask,
    /// Bits: dimensions that vanish.
    ShrinkAxisMask,
    /// Operands of PACK.
    ValuesCount,
}

/// How a field is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldStorage {
    Byte,
    Int,
    Float,
    List,
}

impl OptionField {
    pub(crate) fn stored(self) -> FieldStorage {
        use OptionField::*;
        match self {
            Padding | Activation | WeightsFormat | KeepNumDims | AsymmetricInputs | KeepDims
            | AlignCorners | HalfPixelCenters | AdjX | AdjY | OutputType | Approximate => FieldStorage::Byte,
            Beta | Alpha => FieldStorage::Float,
            NewShape | SqueezeDims => FieldStorage::List,
            _ => FieldStorage::Int,
        }
    }

    pub(crate) fn default(self) -> f64 {
        if matches!(self, OptionField::DilationW | OptionField::DilationH) { 1.0 } else { 0.0 }
    }
}

/// What happens at the border of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TflitePadding {
    /// As many places as the strides leave.
    Same,
    /// Only whole windows.
    Valid,
}

/// What an operator applies to its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActivation {
    /// Nothing.
    #[default]
    None,
    /// At least 0.
    Relu,
    /// From −1 to 1.
    ReluN1To1,
    /// From 0 to 6.
    Relu6,
}

impl FusedActivation {
    pub(crate) fn of_code(code: i64) -> Option<FusedActivation> {
        use FusedActivation::*;
        [None, Relu, ReluN1To1, Relu6].get(usize::try_from(code).ok()?).copied()
    }

    /// The schema's number.
    pub fn code(self) -> f64 {
        f64::from(self as u8)
    }

    /// The least and the greatest value, in floats.
    pub(crate) fn bounds(self) -> (f32, f32) {
        match self {
            FusedActivation::None => (f32::NEG_INFINITY, f32::INFINITY),
            FusedActivation::Relu => (0.0, f32::INFINITY),
            FusedActivation::ReluN1To1 => (-1.0, 1.0),
            FusedActivation::Relu6 => (0.0, 6.0),
        }
    }
}

/// An operator, by the schema's name: `Op::Conv2D`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TfliteOp {
    code: i32,
    name: &'static str,
}

impl TfliteOp {
    /// The operator of a row of the table.
    pub(crate) const fn of_row(code: i32, name: &'static str) -> TfliteOp {
        TfliteOp { code, name }
    }

    /// The schema's number.
    pub fn code(self) -> i32 {
        self.code
    }

    /// The schema's name: `CONV_2D`.
    pub fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for TfliteOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for TfliteOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Which scales an operator on int8 takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ScaleRule {
    /// Weights and bias are its second and third operand, or as TRANSPOSE_CONV has them.
    Weights,
    /// Operands and results have one scale.
    Same,
    /// The result has this scale and zero point.
    Fixed(f32, i32),
    /// Any scales.
    Free,
    /// It has no int8 form, or converts to it.
    None,
}
