//! Weight-only int8 and int4 quantization of one weight, with scales per channel or block.
//!
//! Model files with quantized weights are smaller; weights are dequantized to f32 when first read. QLoRA keeps them as
//! integers in memory next to trainable adapters ([`Model::enable_lora`]).

use crate::json::{Deserialize, Serialize};
use std::sync::Arc;
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Tensor, TensorType, bug, err};
use systole_runtime::Buffer;

/// Weights with fewer elements stay float.
pub(crate) const LEAST: usize = 1024;

/// Number of int4 inputs that share a scale, as in Keras's `quantize("int4")`.
pub(crate) const BLOCK: usize = 128;

/// Bit width of quantized weights: 8 or 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightBits {
    /// −127 to 127, with one scale per output channel (per row for embeddings).
    Int8,
    /// −7 to 7, two per byte, with one scale per 128 inputs of an output channel (of a row for embeddings).
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

/// Size and error of a quantized weight, for reports.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeightReport {
    /// Path: `dense/kernel`.
    pub path: String,
    /// Size in bytes as f32, and quantized including scales.
    pub bytes: (usize, usize),
    /// Relative quantization error: RMS of the error divided by RMS of the weight.
    pub error: f64,
}

/// Layout of a quantized weight in a file or in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuantizedWeightLayout {
    bits: WeightBits,
    shape: Vec<usize>,
    /// Number of inputs that each output sums over.
    inputs: usize,
    /// Whether the inputs of an output are contiguous, as in embeddings.
    by_output: bool,
    /// Number of inputs that share a scale.
    block: usize,
    /// Whether scales are `[blocks, outputs]`; in files they are `[outputs, blocks]`.
    #[serde(skip)]
    by_block: bool,
}

impl QuantizedWeightLayout {
    /// Returns the layout for the weight at `path`, or `None` if it is not quantized. Kernels and embedding tables are
    /// quantized.
    pub(crate) fn of(path: &str, ty: &TensorType, bits: WeightBits) -> Option<QuantizedWeightLayout> {
        let (layer, name) = path.rsplit_once('/').unwrap_or(("", path));
        let shape = ty.shape.to_vec();
        let by_output = name.ends_with("embeddings");
        let is_meant = by_output || name.ends_with("kernel");
        if !is_meant || shape.len() < 2 || ty.elements() < LEAST || ty.dtype != DType::F32 {
            return None;
        }
        let layer = layer.rsplit('/').next().unwrap_or(layer);
        // Kernels of attention heads are [inputs, heads, outputs per head].
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

    /// Returns the scale index of an element; the scales of an output are contiguous.
    fn scale_of(&self, at: usize) -> usize {
        let (input, output) = match self.by_output {
            true => (at % self.inputs, at / self.inputs),
            false => (at / self.outputs(), at % self.outputs()),
        };
        output * self.blocks() + input / self.block
    }

    /// Quantizes `w`: returns scales and integers.
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

    /// Returns the integers as stored in the file: int8 in the weight's shape, or int4 packed two per byte, low nibble
    /// first.
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

    /// Rejects inconsistent sizes.
    pub(crate) fn check(&self) -> Result<()> {
        if self.inputs == 0 || self.block == 0 || !self.elements().is_multiple_of(self.inputs) {
            return Err(err!(
                Data,
                "{} inputs do not divide a weight of shape {:?}",
                self.inputs,
                self.shape
            ));
        }
        Ok(())
    }

    /// Shape of the dequantized weight.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Types of the integers and the scales.
    pub(crate) fn types(&self) -> [TensorType; 2] {
        self.layout().types()
    }

    /// Returns the IR's description of the layout.
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

    /// Rejects arrays whose types do not match the layout.
    pub(crate) fn check_arrays(&self, stored: &Literal, scales: &Literal) -> Result<()> {
        let broken = |what: String| Error::new(ErrorKind::Data, what);
        self.check()?;
        let [numbers, steps] = self.types();
        let (dtype, size) = (numbers.dtype, numbers.elements());
        if stored.dtype() != dtype || stored.ty().elements() != size {
            return Err(broken(format!("it is {}, expected {size} elements of {dtype}", stored.ty())));
        }
        if scales.dtype() != DType::F32 || scales.ty().elements() != steps.elements() {
            return Err(broken(format!(
                "its scales are {}, expected {} elements of f32",
                scales.ty(),
                steps.elements()
            )));
        }
        Ok(())
    }

    /// Dequantizes in the graph: `numbers, scales → f32[shape]`.
    pub(crate) fn unpacked_in_graph(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        self.layout().expand(numbers, scales)
    }

    /// Like `unpacked_in_graph`, but as a single node, so that products with few rows can read the integers directly.
    pub(crate) fn unpacked_in_products(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        self.layout().node(numbers, scales)
    }

    /// Dequantizes embedding rows: `numbers, scales, ids: I[…] → f32[…, inputs]`. `None` if it is not an embedding
    /// table, or rows do not start at byte boundaries.
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

    /// Dequantizes an array and its scales, as stored in the file.
    pub(crate) fn unpack(&self, stored: &Literal, scales: &Literal) -> Result<Literal> {
        self.check_arrays(stored, scales)?;
        let n = self.elements();
        let scales = scales.as_slice::<f32>()?;
        let q: Vec<i8> = match self.bits {
            WeightBits::Int8 => stored.as_slice::<i8>()?.to_vec(),
            WeightBits::Int4 => {
                let bytes = stored.as_slice::<u8>()?;
                // Sign-extends the low nibble.
                let whole = |b: u8| ((b << 4) as i8) >> 4;
                bytes.iter().flat_map(|&b| [whole(b), whole(b >> 4)]).take(n).collect()
            }
        };
        let w: Vec<f32> =
            q.iter().enumerate().map(|(at, q)| f32::from(*q) * scales[self.scale_of(at)]).collect();
        Literal::from_slice(&self.shape[..], &w)
    }
}

/// A quantized weight: layout, integers and scales.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedWeight {
    pub(crate) packing: QuantizedWeightLayout,
    pub(crate) numbers: Literal,
    pub(crate) scales: Literal,
}

impl QuantizedWeight {
    /// Returns a lazy buffer `→ f32[shape]`, dequantized when first read.
    pub(crate) fn buffer(self) -> Buffer {
        let ty = TensorType::new(DType::F32, self.packing.shape());
        let make = |held: &QuantizedWeight| match held.floats() {
            Ok(floats) => floats,
            Err(e) => bug!("cannot dequantize arrays that were checked: {e}"),
        };
        Buffer::lazy_of(ty, Arc::new(self), make)
    }

    /// Returns a copy whose scales are in the order that matrix products read.
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

    /// Dequantizes the weight to f32.
    pub(crate) fn floats(&self) -> Result<Literal> {
        self.packing.unpack(&self.numbers, &self.scales)
    }
}

/// Path suffix of the integers of a weight that is quantized in memory.
pub(crate) const NUMBERS: &str = "_numbers";

/// Paths of the integers and scales of a weight that is quantized in memory: `dense/kernel_numbers`,
/// `dense/kernel_scales`.
pub(crate) fn packed_paths(path: &str) -> [String; 2] {
    [NUMBERS, "_scales"].map(|what| format!("{path}{what}"))
}
