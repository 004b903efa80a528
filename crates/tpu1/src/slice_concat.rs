//! Parts of tensors and tensors side by side on the chip: pixels are copied as the largest of one, channels are moved by products
//! with a part of the identity matrix, which gives whole numbers as they are.

use super::tflite_graph::{ChipTensor, GraphConverter, picture, unsupported};
use crate::model::{
    ADD_SHIFT, Arithmetic, ChipConvolution, ChipOp, ConvWindow, ImageShape, OutputRange, ScaledOperand,
};
use crate::rescale::ScaleFactor;
use systole_base::{Literal, Result};
use systole_tflite::{OptionField, TfliteOperator, TfliteTensor};

/// A product with a matrix `i8[to, from]` that gives whole numbers as they are, whatever stands for 0.
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
    /// Where an operand is; one that is constant is what weights of 0 and a bias make beside the `other` one.
    pub(super) fn operand(&mut self, o: &TfliteOperator, n: usize, other: usize) -> Result<usize> {
        let tensor = self.tensor(o, n)?;
        let Some(data) = &tensor.data else { return self.plain(o, n) };
        let (mut values, name) = (data.as_slice::<i8>()?.to_vec(), tensor.name.clone());
        let source = self.plain(o, other)?;
        let from = self.model.tensors[source];
        // One for all.
        if let &[value] = &values[..] {
            values = vec![value; from.channels];
        }
        if values.len() != from.channels {
            let what =
                format!("its constant operand has {} values for {} channels", values.len(), from.channels);
            return Err(unsupported(what, "a constant for each channel"));
        }
        let c = moving(from.channels, values.len(), vec![0; from.channels * values.len()]);
        let bias = values.iter().map(|v| i32::from(*v)).collect();
        Ok(self.add(name, vec![source], from, ChipOp::Convolution(ChipConvolution { bias, ..c })))
    }

    /// Which of lines, columns and channels a dimension of a tensor is; none: the samples.
    fn dimension(tensor: &TfliteTensor, axis: i64) -> Option<usize> {
        let rank = tensor.dims().len() as i64;
        let axis = if axis < 0 { axis + rank } else { axis };
        // Vectors and lines have no lines, vectors no columns.
        usize::try_from(axis + 3 - rank).ok().filter(|d| *d < 3 && axis > 0)
    }

    /// The part of an operand from these lines, columns and channels on that the tensor `made` holds.
    fn part(&mut self, o: &TfliteOperator, (n, made): (usize, usize), first: [usize; 3]) -> Result<()> {
        let source = self.plain(o, n)?;
        if self.tensor(o, n)?.scale()? != self.graph.tensor(made)?.scale()? {
            return Err(unsupported("its part has another scale", "quantise the model again"));
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
            unsupported("a split of samples, or along an axis that is computed", "one sample at a time")
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
            return Err(unsupported("a slice of samples, or from where is computed", "one sample at a time"));
        }
        let mut first = [0; 3];
        for (axis, from) in begin.iter().enumerate().skip(1) {
            if let Some(d) = Self::dimension(x, axis as i64) {
                first[d] = *from as usize;
            }
        }
        self.part(o, (0, made), first)
    }

    /// Pixels one after the other; channels side by side, as the sum of tensors that are 0 where others are not.
    pub(super) fn concatenation(&mut self, o: &TfliteOperator) -> Result<()> {
        let made = self.made(o)?;
        let (to, scale) = (picture(made)?, made.scale()?);
        let dimension = Self::dimension(made, o.int(OptionField::Axis));
        let sources = (0..o.inputs.len()).map(|n| self.plain(o, n)).collect::<Result<Vec<_>>>()?;
        for n in 0..o.inputs.len() {
            if self.tensor(o, n)?.scale()? != scale {
                return Err(unsupported(
                    "its operands have other scales than it",
                    "quantise the model again",
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
                let tensor = sum.ok_or_else(|| unsupported("nothing side by side", "export it again"))?;
                self.set(o, ChipTensor { tensor, before: [0, 0], is_padded: false });
                Ok(())
            }
            _ => Err(unsupported(
                "lines of pictures below one another",
                "tensors side by side in their channels",
            )),
        }
    }
}
