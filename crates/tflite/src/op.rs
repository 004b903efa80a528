//! The table of operators: codes, options and versions of the schema's numbers. What each computes is in `kernels`.

use std::fmt;

/// An option of an operator. Numbers, switches and choices are one kind of value here: the schema's default is 0 for all but
/// the dilations, which are 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Field {
    /// See [`Padding`].
    Padding,
    /// Step from column to column.
    StrideW,
    /// Step from row to row.
    StrideH,
    /// Columns of a pooling's window.
    FilterW,
    /// Rows of a pooling's window.
    FilterH,
    /// See [`Activation`].
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
pub(crate) enum Stored {
    Byte,
    Int,
    Float,
    List,
}

impl Field {
    pub(crate) fn stored(self) -> Stored {
        use Field::*;
        match self {
            Padding | Activation | WeightsFormat | KeepNumDims | AsymmetricInputs | KeepDims
            | AlignCorners | HalfPixelCenters | AdjX | AdjY | OutputType | Approximate => Stored::Byte,
            Beta | Alpha => Stored::Float,
            NewShape | SqueezeDims => Stored::List,
            _ => Stored::Int,
        }
    }

    pub(crate) fn default(self) -> f64 {
        if matches!(self, Field::DilationW | Field::DilationH) { 1.0 } else { 0.0 }
    }
}

/// What happens at the border of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// As many places as the strides leave.
    Same,
    /// Only whole windows.
    Valid,
}

/// What an operator applies to its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Activation {
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

impl Activation {
    pub(crate) fn of_code(code: i64) -> Option<Activation> {
        use Activation::*;
        [None, Relu, ReluN1To1, Relu6].get(usize::try_from(code).ok()?).copied()
    }

    /// The schema's number.
    pub fn code(self) -> f64 {
        f64::from(self as u8)
    }

    /// The least and the greatest value, in floats.
    pub(crate) fn bounds(self) -> (f32, f32) {
        match self {
            Activation::None => (f32::NEG_INFINITY, f32::INFINITY),
            Activation::Relu => (0.0, f32::INFINITY),
            Activation::ReluN1To1 => (-1.0, 1.0),
            Activation::Relu6 => (0.0, 6.0),
        }
    }
}

/// A row of the table.
pub(crate) struct OpRow {
    pub op: Op,
    pub name: &'static str,
    pub code: i32,
    /// The union's number of its options; 0: it has none.
    pub union: u8,
    /// Versions for floats and for int8, where nothing else raises them.
    pub versions: (i32, i32),
    /// Its options: slot in the table, and which.
    pub fields: &'static [(u16, Field)],
}

macro_rules! ops {
    ($($op:ident $name:literal $code:literal $union:literal $float:literal $int8:literal [$($slot:literal $field:ident),*];)*) => {
        /// An operator that is known here, by the schema's name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($op),* }

        pub(crate) const TABLE: &[OpRow] = &[$(OpRow {
            op: Op::$op, name: $name, code: $code, union: $union, versions: ($float, $int8),
            fields: &[$(($slot, Field::$field)),*],
        }),*];

        impl Op {
            pub(crate) fn row(self) -> &'static OpRow {
                &TABLE[self as usize]
            }
        }
    };
}

ops! {
    Add "ADD" 0 11 1 2 [0 Activation];
    AveragePool2D "AVERAGE_POOL_2D" 1 5 1 2 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation];
    Concatenation "CONCATENATION" 2 10 1 2 [0 Axis, 1 Activation];
    Conv2D "CONV_2D" 3 1 1 3 [0 Padding, 1 StrideW, 2 StrideH, 3 Activation, 4 DilationW, 5 DilationH];
    DepthwiseConv2D "DEPTHWISE_CONV_2D" 4 2 1 3
        [0 Padding, 1 StrideW, 2 StrideH, 3 DepthMultiplier, 4 Activation, 5 DilationW, 6 DilationH];
    DepthToSpace "DEPTH_TO_SPACE" 5 94 1 1 [0 BlockSize];
    Dequantize "DEQUANTIZE" 6 38 2 2 [];
    FullyConnected "FULLY_CONNECTED" 9 8 1 4 [0 Activation, 1 WeightsFormat, 2 KeepNumDims, 3 AsymmetricInputs];
    L2Normalization "L2_NORMALIZATION" 11 12 1 2 [0 Activation];
    Logistic "LOGISTIC" 14 0 1 2 [];
    MaxPool2D "MAX_POOL_2D" 17 5 1 2 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation];
    Mul "MUL" 18 21 1 2 [0 Activation];
    Relu "RELU" 19 0 1 2 [];
    ReluN1To1 "RELU_N1_TO_1" 20 0 1 1 [];
    Relu6 "RELU6" 21 0 1 2 [];
    Reshape "RESHAPE" 22 17 1 1 [0 NewShape];
    ResizeBilinear "RESIZE_BILINEAR" 23 15 1 2 [2 AlignCorners, 3 HalfPixelCenters];
    Softmax "SOFTMAX" 25 9 1 2 [0 Beta];
    SpaceToDepth "SPACE_TO_DEPTH" 26 19 1 2 [0 BlockSize];
    Tanh "TANH" 28 0 1 2 [];
    Pad "PAD" 34 22 1 2 [];
    Gather "GATHER" 36 23 1 2 [0 Axis, 1 BatchDims];
    Transpose "TRANSPOSE" 39 26 1 2 [];
    Mean "MEAN" 40 27 1 2 [0 KeepDims];
    Sub "SUB" 41 28 1 2 [0 Activation];
    Div "DIV" 42 29 1 1 [0 Activation];
    Squeeze "SQUEEZE" 43 30 1 1 [0 SqueezeDims];
    StridedSlice "STRIDED_SLICE" 45 32 1 2
        [0 BeginMask, 1 EndMask, 2 EllipsisMask, 3 NewAxisMask, 4 ShrinkAxisMask];
    Exp "EXP" 47 33 1 2 [];
    Split "SPLIT" 49 35 1 2 [0 NumSplits];
    Prelu "PRELU" 54 0 1 1 [];
    Maximum "MAXIMUM" 55 39 1 2 [];
    ArgMax "ARG_MAX" 56 40 1 2 [0 OutputType];
    Minimum "MINIMUM" 57 39 1 2 [];
    Neg "NEG" 59 42 1 2 [];
    Slice "SLICE" 65 48 1 2 [];
    TransposeConv "TRANSPOSE_CONV" 67 49 1 2 [0 Padding, 1 StrideW, 2 StrideH, 3 Activation];
    ExpandDims "EXPAND_DIMS" 70 52 1 1 [];
    Sum "SUM" 74 27 1 2 [0 KeepDims];
    Sqrt "SQRT" 75 0 1 2 [];
    Rsqrt "RSQRT" 76 0 1 2 [];
    ReduceMax "REDUCE_MAX" 82 27 1 2 [0 KeepDims];
    ResizeNearest "RESIZE_NEAREST_NEIGHBOR" 97 74 1 2 [0 AlignCorners, 1 HalfPixelCenters];
    LeakyRelu "LEAKY_RELU" 98 75 1 2 [0 Alpha];
    SquaredDifference "SQUARED_DIFFERENCE" 99 76 1 2 [];
    Elu "ELU" 111 0 1 1 [];
    Quantize "QUANTIZE" 114 89 1 1 [];
    HardSwish "HARD_SWISH" 117 91 1 1 [];
    BatchMatmul "BATCH_MATMUL" 126 101 1 2 [0 AdjX, 1 AdjY, 2 AsymmetricInputs];
    BroadcastTo "BROADCAST_TO" 130 104 2 3 [];
    Gelu "GELU" 150 116 1 2 [0 Approximate];
}

impl Op {
    /// The schema's name: `CONV_2D`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The operator of the schema's number.
    pub fn of_code(code: i32) -> Option<Op> {
        TABLE.iter().find(|row| row.code == code).map(|row| row.op)
    }

    /// Every operator, in the order of the schema's numbers.
    pub fn all() -> impl Iterator<Item = Op> {
        TABLE.iter().map(|row| row.op)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_their_codes_and_found_by_them() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(Op::of_code(row.code), Some(row.op));
            assert_eq!(row.op.row().name, row.name);
            assert!(i == 0 || TABLE[i - 1].code < row.code, "{}", row.name);
        }
    }
}
