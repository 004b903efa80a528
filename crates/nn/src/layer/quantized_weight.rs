//! Large weights as whole numbers of eight or four bits with a scale for each channel or block: in model files, which are smaller and
//! load as any other, to f32 when something first reads them; and in memory beside adapters that train ([`Model::enable_lora`]).

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Tensor, TensorType, bug};
use systole_runtime::Buffer;

/// Smaller weights stay floats.
pub(crate) const LEAST: usize = 1024;

/// Inputs of four bits that share a scale, as in Keras's `quantize("int4")`.
pub(crate) const BLOCK: usize = 128;

/// Of what weights are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightBits {
    /// −127 to 127, with a scale for each output channel; of embeddings for each row.
    Int8,
    /// −7 to 7, two in a byte, with a scale for each 128 inputs of an output channel; of embeddings of a row.
    Int4,
}

impl WeightBits {
    fn most(self) -> f32 {
        match self {
            WeightBits::Int8 => 127.0,
            WeightBits::Int4 => 7.0,
        }
    }
}

/// A weight that was packed.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeightReport {
    /// `dense/kernel`.
    pub path: String,
    /// Its bytes as floats, and packed with its scales.
    pub bytes: (usize, usize),
    /// The root of the mean squared error over that of the mean square.
    pub error: f64,
}

/// How a weight lies in a file or in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuantizedWeightLayout {
    bits: WeightBits,
    shape: Vec<usize>,
    /// How many numbers each output is a sum of.
    inputs: usize,
    /// Whether the inputs of an output lie side by side, as in embeddings.
    by_output: bool,
    /// Inputs that share a scale.
    block: usize,
    /// Whether scales are `[blocks, outputs]`; in files they are `[outputs, blocks]`.
    #[serde(skip)]
    by_block: bool,
}

impl QuantizedWeightLayout {
    /// Of the weight at a path, where it is one of those that are packed: kernels and tables of vectors.
    pub(crate) fn of(path: &str, ty: &TensorType, bits: WeightBits) -> Option<QuantizedWeightLayout> {
        let (layer, name) = path.rsplit_once('/').unwrap_or(("", path));
        let shape = ty.shape.to_vec();
        let by_output = name.ends_with("embeddings");
        let is_meant = by_output || name.ends_with("kernel");
        if !is_meant || shape.len() < 2 || ty.elements() < LEAST || ty.dtype != DType::F32 {
            return None;
        }
        let layer = layer.rsplit('/').next().unwrap_or(layer);
        // Kernels of an attention's heads are [inputs, heads, outputs of each].
        let of_heads = ["query", "key", "value"].contains(&layer);
        let inputs = match (by_output, of_heads) {
            (true, _) => shape.last().copied(),
            (_, true) => shape.first().copied(),
            _ => Some(shape[..shape.len() - 1].iter().product()),
        };
        let inputs = inputs.filter(|n| *n > 0)?;
        let block = if bits == WeightBits::Int4 { BLOCK } else { inputs };
        Some(QuantizedWeightLayout { bits, shape, inputs, by_output, block, by_block: false })
    }

    fn elements(&self) -> usize {
        self.shape.iter().fold(1, |n, d| n.saturating_mul(*d))
    }

    pub(crate) fn outputs(&self) -> usize {
        self.elements() / self.inputs.max(1)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.inputs.div_ceil(self.block.max(1))
    }

    /// Which scale the element at a place has: those of an output lie side by side.
    fn scale_of(&self, at: usize) -> usize {
        let (input, output) = match self.by_output {
            true => (at % self.inputs, at / self.inputs),
            false => (at / self.outputs(), at % self.outputs()),
        };
        output * self.blocks() + input / self.block
    }

    /// Scales, and whole numbers.
    pub(crate) fn pack(&self, w: &[f32]) -> (Vec<f32>, Vec<i8>) {
        let mut scales = vec![0f32; self.outputs() * self.blocks()];
        for (at, v) in w.iter().enumerate() {
            let scale = &mut scales[self.scale_of(at)];
            *scale = scale.max(v.abs());
        }
        let most = self.bits.most();
        scales.iter_mut().for_each(|s| *s = if *s == 0.0 { 1.0 } else { *s / most });
        let whole = |(at, v): (usize, &f32)| (v / scales[self.scale_of(at)]).round().clamp(-most, most) as i8;
        let q = w.iter().enumerate().map(whole).collect();
        (scales, q)
    }

    /// The array of whole numbers in the file: int8 of the weight's shape, or two of four bits in each byte, the first below.
    pub(crate) fn stored(&self, q: &[i8]) -> Result<Literal> {
        match self.bits {
            WeightBits::Int8 => Literal::from_slice(&self.shape[..], q),
            WeightBits::Int4 => {
                let nibble = |q: i8| (q as u8) & 15;
                let pair = |p: &[i8]| nibble(p[0]) | nibble(p.get(1).copied().unwrap_or(0)) << 4;
                let bytes: Vec<u8> = q.chunks(2).map(pair).collect();
                Literal::from_slice([bytes.len()], &bytes)
            }
        }
    }

    /// An error where numbers do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        if self.inputs == 0 || self.block == 0 || !self.elements().is_multiple_of(self.inputs) {
            let what = format!("{} inputs do not divide a weight of {:?}", self.inputs, self.shape);
            return Err(Error::new(ErrorKind::Data, what));
        }
        Ok(())
    }

    /// The shape of the weight.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Types of the whole numbers and of their scales.
    pub(crate) fn types(&self) -> [TensorType; 2] {
        self.layout().types()
    }

    /// How it lies in memory.
    pub(crate) fn layout(&self) -> DequantizeWeights {
        DequantizeWeights {
            is_halves: self.bits == WeightBits::Int4,
            shape: self.shape[..].into(),
            inputs: self.inputs,
            by_output: self.by_output,
            block: self.block,
            by_block: self.by_block,
        }
    }

    /// An error where arrays are not those of the packing.
    pub(crate) fn check_arrays(&self, stored: &Literal, scales: &Literal) -> Result<()> {
        let broken = |what: String| Error::new(ErrorKind::Data, what);
        self.check()?;
        let [numbers, steps] = self.types();
        let (dtype, size) = (numbers.dtype, numbers.elements());
        if stored.dtype() != dtype || stored.ty().elements() != size {
            return Err(broken(format!("it is {}, not {size} of {dtype}", stored.ty())));
        }
        if scales.dtype() != DType::F32 || scales.ty().elements() != steps.elements() {
            return Err(broken(format!("its scales are {}, not {} of f32", scales.ty(), steps.elements())));
        }
        Ok(())
    }

    /// `numbers, scales → f32[shape]`: the weight in a graph.
    pub(crate) fn unpacked_in_graph(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        self.layout().expand(numbers, scales)
    }

    /// The same as one node, from which products of few rows read the numbers themselves.
    pub(crate) fn unpacked_in_products(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        self.layout().node(numbers, scales)
    }

    /// `numbers, scales, ids: I[…] → f32[…, inputs]`: rows of a table of vectors; `None` where it is none, or rows have parts of bytes.
    pub(crate) fn rows_in_graph(&self, numbers: &Tensor, scales: &Tensor, ids: &Tensor) -> Option<Tensor> {
        let own = self.layout();
        if !own.by_output || own.is_halves && !own.inputs.is_multiple_of(2) {
            return None;
        }
        let (count, outputs, each) = (ids.ty().elements(), own.outputs(), own.inputs);
        let bytes = if own.is_halves { each / 2 } else { each };
        let ids_in_line = ids.reshape([count]);
        let some = numbers.reshape([outputs, bytes]).take(&ids_in_line);
        let shape = [count, each];
        let of = DequantizeWeights { shape: shape[..].into(), ..own };
        let [numbers, _] = of.types();
        let rows = of.expand(&some.reshape(numbers.shape), &scales.take(&ids_in_line));
        Some(rows.reshape([ids.shape().dims(), &[each]].concat()))
    }

    /// The weight that an array of the file and its scales stand for.
    pub(crate) fn unpack(&self, stored: &Literal, scales: &Literal) -> Result<Literal> {
        self.check_arrays(stored, scales)?;
        let n = self.elements();
        let scales = scales.as_slice::<f32>()?;
        let q: Vec<i8> = match self.bits {
            WeightBits::Int8 => stored.as_slice::<i8>()?.to_vec(),
            WeightBits::Int4 => {
                let bytes = stored.as_slice::<u8>()?;
                // The sign is the highest of the four bits.
                let whole = |b: u8| ((b << 4) as i8) >> 4;
                bytes.iter().flat_map(|&b| [whole(b), whole(b >> 4)]).take(n).collect()
            }
        };
        let w: Vec<f32> =
            q.iter().enumerate().map(|(at, q)| f32::from(*q) * scales[self.scale_of(at)]).collect();
        Literal::from_slice(&self.shape[..], &w)
    }
}

/// A weight that is packed.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedWeight {
    pub(crate) packing: QuantizedWeightLayout,
    pub(crate) numbers: Literal,
    pub(crate) scales: Literal,
}

impl QuantizedWeight {
    /// The weight as floats: `→ f32[shape]`, made when something first reads it.
    pub(crate) fn buffer(self) -> Buffer {
        let ty = TensorType::new(DType::F32, self.packing.shape());
        let make = |held: &QuantizedWeight| match held.floats() {
            Ok(floats) => floats,
            Err(e) => bug!("arrays that were checked cannot be unpacked: {e}"),
        };
        Buffer::lazy_of(ty, Arc::new(self), make)
    }

    /// With scales in the order in which products read them.
    pub(crate) fn for_products(&self) -> Result<QuantizedWeight> {
        let mut made = self.clone();
        let (outputs, blocks) = (self.packing.outputs(), self.packing.blocks());
        if !self.packing.by_output && blocks > 1 {
            let scales = self.scales.as_slice::<f32>()?;
            let turned: Vec<f32> =
                (0..blocks * outputs).map(|i| scales[i % outputs * blocks + i / outputs]).collect();
            made.packing.by_block = true;
            made.scales = Literal::from_slice([blocks, outputs], &turned)?;
        }
        Ok(made)
    }

    /// The weight as floats.
    pub(crate) fn floats(&self) -> Result<Literal> {
        self.packing.unpack(&self.numbers, &self.scales)
    }
}

/// Ends the path of the whole numbers of a weight that is packed in memory.
pub(crate) const NUMBERS: &str = "_numbers";

/// Paths of the whole numbers and the scales of a weight that is packed in memory: `dense/kernel` has `dense/kernel_numbers`.
pub(crate) fn packed_paths(path: &str) -> [String; 2] {
    [NUMBERS, "_scales"].map(|what| format!("{path}{what}"))
}
