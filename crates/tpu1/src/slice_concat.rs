//! Lowers slices, splits and concatenations for TPU v1.
//!
//! Pixels are copied by 1×1 max pooling. Channels are moved by products with a part of the identity matrix, which
//! preserves integer values.

use super::tflite_graph::{ChipTensor, GraphConverter, picture, unsupported};
use crate::model::{
    ADD_SHIFT, Arithmetic, ChipConvolution, ChipOp, ConvWindow, ImageShape, OutputRange, ScaledOperand,
};
use crate::rescale::ScaleFactor;
use systole_base::{Literal, Result};
use systole_tflite::{OptionField, TfliteOperator, TfliteTensor};

/// Creates a product with a matrix `i8[to, from]` that preserves integer values for any zero point.
fn moving(from: usize, to: usize, weights: Vec<i8>) -> ChipConvolution {
    debug_assert_eq!(weights.len(), from * to);
    ChipConvolution {
        window: ConvWindow::of([1, 1]),
        filters: to,
        is_depthwise: false,
        weights,
        bias: vec![0; to],
        input_zero: 0,
        scale: ScaleFactor::Real(1.0),
        output: OutputRange { zero: 0, low: -128, high: 127 },
    }
}

impl GraphConverter<'_> {
    /// Returns the chip tensor of an operand. A constant operand is computed from the `other` one, with zero weights
    /// and a bias.
    pub(super) fn operand(&mut self, o: &TfliteOperator, n: usize, other: usize) -> Result<usize> {
        let tensor = self.tensor(o, n)?;
        let Some(data) = &tensor.data else { return self.plain(o, n) };
        let (mut values, name) = (data.as_slice::<i8>()?.to_vec(), tensor.name.clone());
        let source = self.plain(o, other)?;
        let from = self.model.tensors[source];
        // A scalar is broadcast.
        if let &[value] = &values[..] {
            values = vec![value; from.channels];
        }
        if values.len() != from.channels {
            let what =
                format!("its constant operand has {} values for {} channels", values.len(), from.channels);
            return Err(unsupported(what, "use one constant per channel"));
        }
        let c = moving(from.channels, values.len(), vec![0; from.channels * values.len()]);
        let bias = values.iter().map(|v| i32::from(*v)).collect();
        Ok(self.add(name, vec![source], from, ChipOp::Convolution(ChipConvolution { bias, ..c })))
    }

    /// Maps a tensor's axis to rows (0), columns (1) or channels (2); `None` for the batch axis.
    fn dimension(tensor: &TfliteTensor, axis: i64) -> Option<usize> {
        let rank = tensor.dims().len() as i64;
        let axis = if axis < 0 { axis + rank } else { axis };
        // Sequences have no rows; vectors have neither rows nor columns.
        usize::try_from(axis + 3 - rank).ok().filter(|d| *d < 3 && axis > 0)
    }

    /// Computes tensor `made` as a slice of an operand that starts at row, column and channel `first`.
    fn part(&mut self, o: &TfliteOperator, (n, made): (usize, usize), first: [usize; 3]) -> Result<()> {
        let source = self.plain(o, n)?;
        if self.tensor(o, n)?.scale()? != self.graph.tensor(made)?.scale()? {
            return Err(unsupported(
                "its result has a different scale than its operand",
                "quantize the model again",
            ));
        }
        let (from, to) = (self.model.tensors[source], picture(self.graph.tensor(made)?)?);
        let name = self.graph.tensor(made)?.name.clone();
        let [line, column, channel] = first;
        let mut at = source;
        let cut = ImageShape { channels: from.channels, ..to };
        if (cut.height, cut.width) != (from.height, from.width) {
            at = self.add(name.clone(), vec![at], cut, ChipOp::Crop([line, column]));
        }
        if to.channels != from.channels {
            let mut weights = vec![0i8; to.channels * from.channels];
            for k in (0..to.channels).filter(|k| channel + k < from.channels) {
                weights[k * from.channels + channel + k] = 1;
            }
            let c = moving(from.channels, to.channels, weights);
            at = self.add(name, vec![at], to, ChipOp::Convolution(c));
        }
        self.places.insert(made, ChipTensor { tensor: at, before: [0, 0], is_padded: false });
        Ok(())
    }

    pub(super) fn split(&mut self, o: &TfliteOperator) -> Result<()> {
        let axis = self.tensor(o, 0)?.data.as_ref().and_then(|d| d.to_f64s().first().copied());
        let x = self.tensor(o, 1)?;
        let dimension = axis.and_then(|axis| Self::dimension(x, axis as i64)).ok_or_else(|| {
            unsupported(
                "a split along the batch axis, or along a computed axis, is not supported",
                "use a model that processes one sample at a time",
            )
        })?;
        let sizes = |p: ImageShape| [p.height, p.width, p.channels];
        let mut first = [0; 3];
        for &made in &o.outputs {
            self.part(o, (1, made), first)?;
            first[dimension] += sizes(picture(self.graph.tensor(made)?)?)[dimension];
        }
        Ok(())
    }

    pub(super) fn slice(&mut self, o: &TfliteOperator) -> Result<()> {
        let begin = self.tensor(o, 1)?.data.as_ref().map(Literal::to_f64s).unwrap_or_default();
        let (x, made) = (self.tensor(o, 0)?, o.outputs.first().copied().unwrap_or(usize::MAX));
        if begin.len() != x.dims().len() || begin.first() != Some(&0.0) {
            return Err(unsupported(
                "a slice of the batch axis, or with a computed start, is not supported",
                "use a model that processes one sample at a time",
            ));
        }
        let mut first = [0; 3];
        for (axis, from) in begin.iter().enumerate().skip(1) {
            if let Some(d) = Self::dimension(x, axis as i64) {
                first[d] = *from as usize;
            }
        }
        self.part(o, (0, made), first)
    }

    /// Lowers a concatenation: along pixels by copies, along channels as a sum of tensors padded with zeros.
    pub(super) fn concatenation(&mut self, o: &TfliteOperator) -> Result<()> {
        let made = self.made(o)?;
        let (to, scale) = (picture(made)?, made.scale()?);
        let dimension = Self::dimension(made, o.int(OptionField::Axis));
        let sources = (0..o.inputs.len()).map(|n| self.plain(o, n)).collect::<Result<Vec<_>>>()?;
        for n in 0..o.inputs.len() {
            if self.tensor(o, n)?.scale()? != scale {
                return Err(unsupported(
                    "its operands and its result have different scales",
                    "quantize the model again",
                ));
            }
        }
        match dimension {
            Some(1) if to.height == 1 => self.push(o, sources, to, ChipOp::Join),
            Some(2) => {
                let (mut first, mut sum) = (0, None);
                for source in sources {
                    let own = self.model.tensors[source].channels;
                    let mut weights = vec![0i8; to.channels * own];
                    (0..own).for_each(|k| weights[(first + k) * own + k] = 1);
                    first += own;
                    let (name, c) = (self.made(o)?.name.clone(), moving(own, to.channels, weights));
                    let wide = self.add(name.clone(), vec![source], to, ChipOp::Convolution(c));
                    sum = Some(match sum {
                        None => wide,
                        Some(before) => {
                            let half = ScaledOperand { zero: 0, scale: ScaleFactor::fixed(0.5) };
                            let whole = ScaleFactor::fixed(2.0 / f64::from(1 << ADD_SHIFT));
                            let all = OutputRange { zero: 0, low: -128, high: 127 };
                            self.add(
                                name,
                                vec![before, wide],
                                to,
                                ChipOp::Arithmetic(Arithmetic::Add, [half, half], whole, all),
                            )
                        }
                    });
                }
                let tensor =
                    sum.ok_or_else(|| unsupported("it has no operands", "export the model again"))?;
                self.set(o, ChipTensor { tensor, before: [0, 0], is_padded: false });
                Ok(())
            }
            _ => Err(unsupported(
                "concatenation of images along rows is not supported",
                "concatenate along channels",
            )),
        }
    }
}
