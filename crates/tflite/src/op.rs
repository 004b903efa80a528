//! Types of TFLite operators, their options and their int8 scale rules. The operator table is in `kernels`.

use std::fmt;

/// An option of a TFLite operator. Numbers, bools and enums share one representation: the schema's default is 0, except
/// 1 for dilations and `TimeFirst`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OptionField {
    /// See [`TflitePadding`].
    Padding,
    /// Stride along the width.
    StrideW,
    /// Stride along the height.
    StrideH,
    /// Width of a pooling window.
    FilterW,
    /// Height of a pooling window.
    FilterH,
    /// See [`FusedActivation`].
    Activation,
    /// Dilation along the width.
    DilationW,
    /// Dilation along the height.
    DilationH,
    /// Output channels per input channel of a depthwise convolution.
    DepthMultiplier,
    /// Layout of FULLY_CONNECTED's weights; only 0 is supported.
    WeightsFormat,
    /// Whether FULLY_CONNECTED keeps the leading dimensions.
    KeepNumDims,
    /// Whether dynamically quantized inputs have a zero point.
    AsymmetricInputs,
    /// Axis.
    Axis,
    /// Leading batch dimensions of GATHER.
    BatchDims,
    /// List: output shape of RESHAPE.
    NewShape,
    /// List: dimensions of size 1 that SQUEEZE removes.
    SqueezeDims,
    /// Block size of SPACE_TO_DEPTH and DEPTH_TO_SPACE.
    BlockSize,
    /// Factor of SOFTMAX's input.
    Beta,
    /// Whether a reduction keeps dimensions with size 1.
    KeepDims,
    /// Whether resizing aligns the corners.
    AlignCorners,
    /// Whether resizing uses half-pixel centers.
    HalfPixelCenters,
    /// Number of outputs of SPLIT.
    NumSplits,
    /// Whether the first operand is transposed.
    AdjX,
    /// Whether the second operand is transposed.
    AdjY,
    /// Schema code of an element type.
    OutputType,
    /// Slope below zero.
    Alpha,
    /// Whether GELU uses the tanh approximation.
    Approximate,
    /// Bit mask of dimensions whose begin is ignored.
    BeginMask,
    /// Bit mask of dimensions whose end is ignored.
    EndMask,
    /// Bit mask of the ellipsis.
    EllipsisMask,
    /// Bit mask of new dimensions of size 1.
    NewAxisMask,
    /// Bit mask of removed dimensions.
    ShrinkAxisMask,
    /// Number of operands of PACK.
    ValuesCount,
    /// Number of results of UNPACK.
    Num,
    /// Whether CUMSUM leaves out each element's own value.
    Exclusive,
    /// Whether CUMSUM starts at the end.
    Reverse,
    /// Kind of MIRROR_PAD: 0 without the edge (REFLECT), 1 with it (SYMMETRIC).
    MirrorMode,
    /// Dimension that REVERSE_SEQUENCE reverses.
    SeqDim,
    /// Dimension of the samples of REVERSE_SEQUENCE.
    BatchDim,
    /// Whether STRIDED_SLICE's end counts from its begin.
    Offset,
    /// Neighbors of a channel on each side in LOCAL_RESPONSE_NORMALIZATION.
    Radius,
    /// Constant that LOCAL_RESPONSE_NORMALIZATION adds.
    Bias,
    /// Stride along the depth.
    StrideD,
    /// Dilation along the depth.
    DilationD,
    /// Graph that IF runs for true, that CALL runs, or that CALL_ONCE runs.
    Graph,
    /// Graph that IF runs for false.
    ElseGraph,
    /// Graph of WHILE's condition.
    CondGraph,
    /// Graph of WHILE's body.
    BodyGraph,
    /// Whether sequences are `[time, batch, …]`.
    TimeMajor,
    /// The same in BIDIRECTIONAL_SEQUENCE_LSTM, where the schema's default is true.
    TimeFirst,
    /// Limit of a recurrent layer's cell state; 0 for none.
    CellClip,
    /// Limit of a recurrent layer's projection; 0 for none.
    ProjClip,
    /// Kind of LSTM: 0 with all gates as operands, 1 with one product.
    KernelType,
    /// Filters of each unit of SVDF.
    Rank,
    /// List: boundaries of BUCKETIZE, as bits of floats.
    Boundaries,
    /// Whether a bidirectional layer concatenates its outputs.
    MergeOutputs,
    /// Name of a variable, as a hash.
    SharedName,
}

/// Storage of an option field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldStorage {
    Byte,
    Int,
    Float,
    List,
    /// A text, of which the hash is read.
    Text,
}

impl OptionField {
    pub(crate) fn stored(self) -> FieldStorage {
        use OptionField::*;
        match self {
            Padding | Activation | WeightsFormat | KeepNumDims | AsymmetricInputs | KeepDims
            | AlignCorners | HalfPixelCenters | AdjX | AdjY | OutputType | Approximate | Exclusive
            | Reverse | MirrorMode | Offset | TimeMajor | TimeFirst | MergeOutputs | KernelType => {
                FieldStorage::Byte
            }
            Beta | Alpha | Bias | CellClip | ProjClip => FieldStorage::Float,
            SharedName => FieldStorage::Text,
            NewShape | SqueezeDims | Boundaries => FieldStorage::List,
            _ => FieldStorage::Int,
        }
    }

    pub(crate) fn default(self) -> f64 {
        if matches!(
            self,
            OptionField::DilationD | OptionField::DilationW | OptionField::DilationH | OptionField::TimeFirst
        ) {
            1.0
        } else {
            0.0
        }
    }
}

/// Padding at the borders of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TflitePadding {
    /// SAME: as many output positions as the stride allows.
    Same,
    /// VALID: only complete windows.
    Valid,
}

/// Activation fused into a TFLite operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActivation {
    /// None.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// Clamps to −1 … 1.
    ReluN1To1,
    /// Clamps to 0 … 6.
    Relu6,
}

impl FusedActivation {
    pub(crate) fn of_code(code: i64) -> Option<FusedActivation> {
        use FusedActivation::*;
        [None, Relu, ReluN1To1, Relu6].get(usize::try_from(code).ok()?).copied()
    }

    /// Returns the TFLite schema code of the activation.
    pub fn code(self) -> f64 {
        f64::from(self as u8)
    }

    /// Returns the smallest and largest output, as floats.
    pub(crate) fn bounds(self) -> (f32, f32) {
        match self {
            FusedActivation::None => (f32::NEG_INFINITY, f32::INFINITY),
            FusedActivation::Relu => (0.0, f32::INFINITY),
            FusedActivation::ReluN1To1 => (-1.0, 1.0),
            FusedActivation::Relu6 => (0.0, 6.0),
        }
    }
}

/// A TFLite operator type, by its schema name: `TfliteOp::Conv2D`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TfliteOp {
    code: i32,
    name: &'static str,
}

impl TfliteOp {
    /// Creates the operator type of a table row.
    pub(crate) const fn of_row(code: i32, name: &'static str) -> TfliteOp {
        TfliteOp { code, name }
    }

    /// Returns the TFLite schema code of the operator type.
    pub fn code(self) -> i32 {
        self.code
    }

    /// Returns the TFLite schema name of the operator type: `CONV_2D`.
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

/// Scale rule of an int8 TFLite operator: shared, fixed or free scales, or quantized weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ScaleRule {
    /// Weights and bias are the second and third operand, or in TRANSPOSE_CONV's order.
    Weights,
    /// Operands and results share one scale.
    Same,
    /// The result has this scale and zero point.
    Fixed(f32, i32),
    /// Any scales.
    Free,
    /// The operator has no int8 form, or converts to int8.
    None,
}
