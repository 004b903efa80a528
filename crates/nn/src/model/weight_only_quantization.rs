//! Weight-only quantization of model files: quantizes large weights to int8 or int4 and reads such files.

use crate::layer::quantized_weight::{
    LEAST, QuantizedWeight, QuantizedWeightLayout, QuantizedWeightReport, WeightBits,
};
use crate::model::model_file::ModelFile;
use std::collections::BTreeMap;
use systole_ir::{Literal, Result, ResultExt, err};

/// Metadata key of the quantized weights' layouts.
const KEY: &str = "packed_weights";
const WEIGHTS: &str = "weights/";
const SCALES: &str = "scales/";

impl ModelFile {
    /// Quantizes kernels and embedding tables of 1024 elements or more, and drops the optimizer's state. The file is
    /// for inference; it loads like any other, with rounded weights.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::{CustomObjects, dense}, Model, WeightBits};
    /// let mut model = Model::sequential([dense(64).name("wide")]);
    /// model.build(&[TensorType::new(F32, [256])])?;
    /// let mut file = model.to_file()?;
    /// let packed = file.pack_weights(WeightBits::Int4)?;
    /// assert_eq!((packed[0].path.as_str(), packed[0].bytes), ("wide/kernel", (65536, 8704)));
    /// let again = Model::from_file(file, &CustomObjects::new())?;
    /// assert!(packed[0].error < 0.1 && again.weight("wide/bias")? == model.weight("wide/bias")?);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the file already has quantized weights, no weight is large enough, or a weight is NaN or infinite (names it).
    pub fn pack_weights(&mut self, bits: WeightBits) -> Result<Vec<QuantizedWeightReport>> {
        if self.metadata.contains_key(KEY) {
            return Err(err!(Config, "the weights of the file are already quantized")
                .hint("quantize the original model file"));
        }
        let (mut told, mut kept, mut packings) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (name, value) in std::mem::take(&mut self.tensors) {
            let Some(path) = name.strip_prefix(WEIGHTS) else { continue };
            let Some(packing) = QuantizedWeightLayout::of(path, value.ty(), bits) else {
                kept.push((name, value));
                continue;
            };
            let w = value.as_slice::<f32>()?;
            if w.iter().any(|v| !v.is_finite()) {
                return Err(err!(Numeric, "the weight contains NaN or infinite values")
                    .at(format!("weight {path}"))
                    .hint("load an earlier checkpoint"));
            }
            let (scales, q) = packing.pack(w);
            let stored = packing.stored(&q)?;
            let scales = Literal::from_slice([packing.outputs(), packing.blocks()], &scales)?;
            let error = error(w, &packing.unpack(&stored, &scales)?)?;
            let size = stored.bytes().len() + scales.bytes().len();
            told.push(QuantizedWeightReport { path: path.into(), bytes: (value.bytes().len(), size), error });
            packings.insert(path.to_string(), packing);
            kept.push((format!("{SCALES}{path}"), scales));
            kept.push((name, stored));
        }
        self.tensors = kept;
        if told.is_empty() {
            return Err(err!(Config, "no weight is large enough to be quantized")
                .because(format!("only kernels and embeddings of at least {LEAST} elements are quantized")));
        }
        let json = serde_json::to_string(&packings).map_err(|e| {
            err!(Bug, "cannot serialize the layout of quantized weights").because(e.to_string())
        })?;
        self.metadata.insert(KEY.into(), json);
        Ok(told)
    }

    /// Splits the quantized weights, by path, from the rest of the file.
    pub(crate) fn split_packed(mut self) -> Result<(ModelFile, BTreeMap<String, QuantizedWeight>)> {
        let Some(json) = self.metadata.remove(KEY) else { return Ok((self, BTreeMap::new())) };
        let mut packings: BTreeMap<String, QuantizedWeightLayout> =
            serde_json::from_str(&json).map_err(|e| {
                err!(Data, "cannot read the `{KEY}` entry of the metadata").because(e.to_string())
            })?;
        let (mut tensors, mut numbers, mut scales) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (name, value) in self.tensors {
            let path = name.strip_prefix(WEIGHTS).filter(|path| packings.contains_key(*path));
            match (name.strip_prefix(SCALES), path) {
                (Some(path), _) => drop(scales.insert(path.to_string(), value)),
                (None, Some(path)) => drop(numbers.insert(path.to_string(), value)),
                (None, None) => tensors.push((name, value)),
            }
        }
        let mut all = BTreeMap::new();
        for (path, numbers) in numbers {
            let place = || format!("weight {path}");
            let lacks = || err!(Data, "the file contains no scales for the quantized weight");
            let scales = scales.remove(&path).ok_or_else(lacks).at(place)?;
            let Some(packing) = packings.remove(&path) else { continue };
            packing.check_arrays(&numbers, &scales).at(place)?;
            all.insert(path, QuantizedWeight { packing, numbers, scales });
        }
        Ok((ModelFile { tensors, ..self }, all))
    }
}

fn error(w: &[f32], rounded: &Literal) -> Result<f64> {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let (mut of_all, mut of_error) = (0.0, 0.0);
    for (w, r) in w.iter().zip(rounded.as_slice::<f32>()?) {
        of_all += square(*w);
        of_error += square(w - r);
    }
    Ok(if of_all == 0.0 { 0.0 } else { (of_error / of_all).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_their_bits() {
        let shape = [300, 5];
        let w: Vec<f32> = (0..1500).map(|i| ((i * 37 % 101) as f32 - 50.0) / 10.0).collect();
        let value = Literal::from_slice(shape, &w).unwrap();
        for (path, bits, scales, most) in [
            ("a/kernel", WeightBits::Int8, [5, 1], 5.0 / 127.0),
            ("a/kernel", WeightBits::Int4, [5, 3], 5.0 / 7.0),
            ("a/embeddings", WeightBits::Int8, [300, 1], 5.0 / 127.0),
            ("a/embeddings", WeightBits::Int4, [300, 1], 5.0 / 7.0),
        ] {
            let mut file = ModelFile::default();
            file.tensors.push((format!("weights/{path}"), value.clone()));
            file.pack_weights(bits).unwrap();
            assert_eq!(file.get(&format!("scales/{path}")).unwrap().shape().dims(), scales, "{path}");
            let bytes = file.to_bytes().unwrap();
            let read = ModelFile::read(&mut &bytes[..], bytes.len() as u64).unwrap();
            let back = read.split_packed().unwrap().1[path].floats().unwrap().to_f32s();
            // At most half a quantization step.
            let worst = w.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= most / 2.0 * 1.0001 && worst > 0.0, "{path} {bits:?}: {worst}");
            assert!(file.pack_weights(bits).unwrap_err().to_string().contains("already"));
        }
    }

    #[test]
    fn a_file_that_does_not_fit_its_packing_is_an_error() {
        let value = Literal::from_slice([32, 32], &[1f32; 1024]).unwrap();
        let packed = || {
            let mut file = ModelFile::default();
            file.tensors.push(("weights/a/kernel".into(), value.clone()));
            file.pack_weights(WeightBits::Int4).unwrap();
            file
        };
        let mut short = packed();
        short.tensors[1].1 = Literal::from_slice([3], &[1u8, 2, 3]).unwrap();
        let mut bare = packed();
        bare.tensors.remove(0);
        let mut odd = packed();
        let said = odd.metadata[KEY].replace("\"inputs\":32", "\"inputs\":33");
        odd.metadata.insert(KEY.into(), said);
        for (file, part) in [(short, "expected 512 elements"), (bare, "no scales"), (odd, "do not divide")] {
            let e = file.split_packed().unwrap_err().to_string();
            assert!(e.contains(part), "{part}: {e}");
        }
    }
}
