//! Quantizes a float TFLite graph to int8 (post-training quantization).

use crate::calibrate::{TensorRanges, is_float, layer_of};
use crate::quantize_weights::{QuantWeightLayout, constant, weighted};
use crate::scales::assign;
use std::collections::BTreeMap;
use systole_ir::{DType, Result, ResultExt, err};
use systole_nn::did_you_mean::suggestion;
use systole_nn::with_defaults;
use systole_tflite::{ScaleRule, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor};

with_defaults! {
    /// Options of int8 quantization.
    #[derive(Clone, PartialEq, Debug)]
    pub struct QuantizeOptions {
        /// Whether each output channel of a convolution has its own weight scale.
        pub per_channel: bool = true,
        /// The same for dense layers; old runtimes and the Edge TPU compiler do not support it.
        pub per_channel_dense: bool = false,
        /// Names of layers that stay in floats.
        pub skip: Vec<String> = Vec::new(),
        /// Whether inputs and outputs are floats.
        pub float_interface: bool = false,
    }
}

impl QuantizeOptions {
    /// Returns quantization options with one scale per tensor, also for weights.
    pub fn per_tensor() -> QuantizeOptions {
        QuantizeOptions { per_channel: false, ..QuantizeOptions::default() }
    }
}

/// Quantizes a float TFLite graph to int8: inputs, outputs and everything between, except skipped layers.
///
/// # Errors
/// If a layer has no int8 form, a range is invalid, or a scale underflows; names the layer.
pub fn quantize(
    model: &TfliteModel,
    ranges: &TensorRanges,
    options: &QuantizeOptions,
) -> Result<TfliteModel> {
    let is_int8 = choose(model, options)?;
    let scales = assign(model, ranges, &is_int8)?;
    let made = TfliteModel { tensors: Vec::new(), operators: Vec::new(), ..model.clone() };
    let n = model.tensors.len();
    let (int8, plain, steps) = (vec![None; n], vec![None; n], &ranges.steps);
    let mut work = GraphQuantizer { from: model, made, scales, options, steps, int8, plain };
    work.inputs(&is_int8)?;
    for (n, o) in model.operators.iter().enumerate() {
        let place = || format!("layer {}", layer_of(&work_name(model, o)));
        if is_int8[n] { work.on_int8(o).at(place)? } else { work.on_floats(o).at(place)? }
    }
    work.outputs()?;
    work.made.check()?;
    Ok(work.made)
}

fn work_name(model: &TfliteModel, o: &TfliteOperator) -> String {
    o.outputs.first().and_then(|&t| model.tensors.get(t)).map_or(String::new(), |t| t.name.clone())
}

/// Returns which operators compute in int8.
pub(crate) fn choose(model: &TfliteModel, options: &QuantizeOptions) -> Result<Vec<bool>> {
    let layers: Vec<String> =
        model.operators.iter().map(|o| layer_of(&work_name(model, o)).to_string()).collect();
    if let Some(unknown) = options.skip.iter().find(|name| !layers.contains(name)) {
        let mut known: Vec<&str> = layers.iter().map(String::as_str).collect();
        known.dedup();
        return Err(err!(Config, "no layer `{unknown}` to skip").hint_command(suggestion(unknown, &known)));
    }
    let one = |(o, layer): (&TfliteOperator, &String)| {
        if options.skip.contains(layer) {
            return Ok(false);
        }
        let floats = o.outputs.iter().all(|&y| is_float(model, y));
        match (o.op.scales(), floats) {
            (_, false) => Ok(false),
            (ScaleRule::None, true) => Err(err!(Unsupported, "{} has no int8 form", o.op)
                .at(format!("layer {layer}"))
                .hint_command(format!("keep the layer in floats: --skip {layer}"))),
            (_, true) => Ok(true),
        }
    };
    model.operators.iter().zip(&layers).map(one).collect()
}

/// A graph being quantized.
struct GraphQuantizer<'a> {
    from: &'a TfliteModel,
    made: TfliteModel,
    scales: Vec<Option<(f32, i32)>>,
    options: &'a QuantizeOptions,
    /// Trained weight scales.
    steps: &'a BTreeMap<usize, Vec<f32>>,
    /// Index of each tensor's int8 version.
    int8: Vec<Option<usize>>,
    /// Index of each tensor's unquantized version.
    plain: Vec<Option<usize>>,
}

impl GraphQuantizer<'_> {
    fn add(&mut self, tensor: TfliteTensor) -> usize {
        self.made.tensors.push(tensor);
        self.made.tensors.len() - 1
    }

    fn scheme(&self, t: usize) -> Result<TfliteQuantization> {
        let (scale, zero) = self.scales[t].ok_or_else(|| {
            err!(Bug, "tensor {} was not observed in calibration", self.from.tensors[t].name)
        })?;
        Ok(TfliteQuantization::per_tensor(scale, zero))
    }

    /// Adds the int8 version of a computed tensor.
    fn new_int8(&mut self, t: usize, suffix: &str) -> Result<usize> {
        let tensor = &self.from.tensors[t];
        let made = TfliteTensor::new(format!("{}{suffix}", tensor.name), &tensor.ty.shape, DType::I8);
        let made = made.quantized(self.scheme(t)?);
        Ok(self.add(made))
    }

    fn inputs(&mut self, is_int8: &[bool]) -> Result<()> {
        let mut inputs = Vec::new();
        for &i in &self.from.inputs {
            let readers =
                self.from.operators.iter().zip(is_int8).filter(|(o, _)| o.inputs.contains(&Some(i)));
            let any_int8 = readers.clone().any(|(_, int8)| *int8);
            let stays = self.options.float_interface || !is_float(self.from, i) || !any_int8;
            inputs.push(match stays {
                true => {
                    let tensor = self.from.tensors[i].clone();
                    let made = self.add(tensor);
                    self.plain[i] = Some(made);
                    made
                }
                false => {
                    let made = self.new_int8(i, "")?;
                    self.int8[i] = Some(made);
                    made
                }
            });
        }
        self.made.inputs = inputs;
        Ok(())
    }

    fn outputs(&mut self) -> Result<()> {
        let mut outputs = Vec::new();
        for &i in &self.from.outputs {
            let now = match (self.int8[i], self.options.float_interface) {
                (Some(now), false) => now,
                _ => self.plain(i)?,
            };
            outputs.push(now);
        }
        self.made.outputs = outputs;
        Ok(())
    }

    /// Returns a tensor as int8 with its own scale.
    fn int8(&mut self, t: usize) -> Result<usize> {
        if let Some(now) = self.int8[t] {
            return Ok(now);
        }
        let tensor = &self.from.tensors[t];
        let now = match &tensor.data {
            Some(_) => {
                let q = self.scheme(t)?;
                let made = constant(tensor, q.scale[0], q.zero_point[0] as i32)?;
                self.add(made)
            }
            None => {
                let plain = self.plain(t)?;
                let made = self.new_int8(t, "/int8")?;
                self.made.operators.push(TfliteOperator::new(TfliteOp::Quantize, [plain], [made]));
                made
            }
        };
        self.int8[t] = Some(now);
        Ok(now)
    }

    /// Returns a tensor unquantized: floats, or integers such as indices.
    fn plain(&mut self, t: usize) -> Result<usize> {
        if let Some(now) = self.plain[t] {
            return Ok(now);
        }
        let tensor = self.from.tensors[t].clone();
        let now = match (tensor.data.is_some(), self.int8[t]) {
            (false, Some(int8)) => {
                let made = self.add(TfliteTensor::new(
                    format!("{}/float", tensor.name),
                    &tensor.ty.shape,
                    DType::F32,
                ));
                self.made.operators.push(TfliteOperator::new(TfliteOp::Dequantize, [int8], [made]));
                made
            }
            _ => self.add(tensor),
        };
        self.plain[t] = Some(now);
        Ok(now)
    }

    fn push(&mut self, o: &TfliteOperator, inputs: Vec<Option<usize>>, outputs: Vec<usize>) {
        let mut o = o.clone();
        (o.inputs, o.outputs, o.version) = (inputs, outputs, 0);
        self.made.operators.push(o);
    }

    fn on_floats(&mut self, o: &TfliteOperator) -> Result<()> {
        let mut inputs = Vec::new();
        for i in &o.inputs {
            inputs.push(i.map(|t| self.plain(t)).transpose()?);
        }
        let mut outputs = Vec::new();
        for &y in &o.outputs {
            outputs.push(self.plain(y)?);
        }
        self.push(o, inputs, outputs);
        Ok(())
    }

    fn on_int8(&mut self, o: &TfliteOperator) -> Result<()> {
        let inputs = match o.op.scales() {
            ScaleRule::Weights => self.weights(o)?,
            scales => {
                let mut inputs = Vec::new();
                for t in &o.inputs {
                    inputs.push(match t {
                        Some(t) if !is_float(self.from, *t) => Some(self.plain(*t)?),
                        Some(t) if scales == ScaleRule::Same => {
                            Some(self.requantized(*t, o.outputs.first().copied().unwrap_or(*t))?)
                        }
                        Some(t) => Some(self.int8(*t)?),
                        None => None,
                    });
                }
                inputs
            }
        };
        let mut outputs = Vec::new();
        for &y in &o.outputs {
            let made = self.new_int8(y, "")?;
            self.int8[y] = Some(made);
            outputs.push(made);
        }
        self.push(o, inputs, outputs);
        Ok(())
    }

    /// Returns an operand requantized to the result's scale.
    fn requantized(&mut self, t: usize, y: usize) -> Result<usize> {
        if self.scales[t] == self.scales[y] {
            return self.int8(t);
        }
        let (tensor, scheme) = (&self.from.tensors[t], self.scheme(y)?);
        if tensor.data.is_some() {
            let made = constant(tensor, scheme.scale[0], scheme.zero_point[0] as i32)?;
            return Ok(self.add(made));
        }
        let own = self.int8(t)?;
        let name = format!("{}/requantized", self.from.tensors[t].name);
        let made = TfliteTensor::new(name, &self.from.tensors[t].ty.shape, DType::I8).quantized(scheme);
        let made = self.add(made);
        self.made.operators.push(TfliteOperator::new(TfliteOp::Quantize, [own], [made]));
        Ok(made)
    }

    fn weights(&mut self, o: &TfliteOperator) -> Result<Vec<Option<usize>>> {
        let [x, w, bias] = if o.op == TfliteOp::TransposeConv { [2, 1, 3] } else { [0, 1, 2] };
        let operand = |n: usize| o.inputs.get(n).copied().flatten();
        let (Some(x), Some(w), Some(bias)) = (operand(x), operand(w), operand(bias)) else {
            return Err(err!(Unsupported, "the operator {} has no bias", o.op));
        };
        let now = self.int8(x)?;
        let input_scale = self.scales[x].map_or(1.0, |(scale, _)| scale);
        let (weights, biases) = (&self.from.tensors[w], &self.from.tensors[bias]);
        let dimension = if o.op == TfliteOp::DepthwiseConv2D { 3 } else { 0 };
        let per_channel = match o.op {
            TfliteOp::FullyConnected => self.options.per_channel_dense,
            _ => self.options.per_channel,
        };
        let channels = weights.dims().get(dimension).copied().unwrap_or(1);
        let layout = QuantWeightLayout {
            dimension,
            channels,
            per_channel,
            steps: self.steps.get(&w).map(Vec::as_slice),
        };
        let made = weighted(weights, biases, input_scale, &layout)?;
        let (w, bias) = (self.add(made.weights), self.add(made.bias));
        if o.op != TfliteOp::TransposeConv {
            return Ok(vec![Some(now), Some(w), Some(bias)]);
        }
        let shape = self.plain(operand(0).unwrap_or(x))?;
        Ok(vec![Some(shape), Some(w), Some(now), Some(bias)])
    }
}
