//! Builds an exported ONNX graph from a TFLite graph, in both layouts (channels first or last) and number forms. Each
//! TFLite tensor exists as real values, as integers or both, with channels last (TFLite) or first (ONNX convolutions):
//! in the layout in which it is produced, and transposed on demand.

use crate::model::{OnnxGraph, OnnxNode};
use std::collections::HashSet;
use systole_base::{DType, Literal, Result, TensorType, err};
use systole_tflite::{
    FusedActivation, TfliteModel as Lite, TfliteOperator, TfliteQuantization, TfliteTensor,
};

/// Layout of a tensor's channels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ChannelOrder {
    /// As in the TFLite graph.
    Plain,
    /// `[N, C, H, W]`.
    First,
}

/// `[N, H, W, C] → [N, C, H, W]`.
pub(super) const TO_FIRST: [usize; 4] = [0, 3, 1, 2];
/// `[N, C, H, W] → [N, H, W, C]`.
const TO_PLAIN: [usize; 4] = [0, 2, 3, 1];

/// Names of a tensor's values in both layouts.
#[derive(Clone, Default)]
struct ValueNames {
    plain: Option<String>,
    first: Option<String>,
}

impl ValueNames {
    fn get(&self, order: ChannelOrder) -> Option<String> {
        if order == ChannelOrder::Plain { self.plain.clone() } else { self.first.clone() }
    }

    fn set(&mut self, order: ChannelOrder, name: &str) {
        let slot = if order == ChannelOrder::Plain { &mut self.plain } else { &mut self.first };
        *slot = Some(name.into());
    }
}

pub(crate) struct OnnxBuilder<'a> {
    pub from: &'a Lite,
    pub graph: OnnxGraph,
    /// Whether the batch dimension is symbolic.
    pub open_batch: bool,
    /// Unique name of each tensor.
    pub names: Vec<String>,
    taken: HashSet<String>,
    real: Vec<ValueNames>,
    codes: Vec<ValueNames>,
}

impl<'a> OnnxBuilder<'a> {
    pub fn new(from: &'a Lite, open_batch: bool) -> OnnxBuilder<'a> {
        let n = from.tensors.len();
        let none = || vec![ValueNames::default(); n];
        let mut e = OnnxBuilder {
            from,
            graph: OnnxGraph::default(),
            open_batch,
            names: Vec::new(),
            taken: HashSet::new(),
            real: none(),
            codes: none(),
        };
        // Inputs and outputs keep their names even if other tensors have the same ones.
        let mut names = vec![String::new(); n];
        for i in from.inputs.iter().chain(&from.outputs).copied().chain(0..n) {
            if let (Some(slot), Some(t)) = (names.get_mut(i), from.tensors.get(i))
                && slot.is_empty()
            {
                *slot = e.unique(if t.name.is_empty() { "value" } else { &t.name });
            }
        }
        e.names = names;
        e
    }

    pub fn unique(&mut self, name: &str) -> String {
        let mut found = name.to_string();
        let mut n = 1;
        while !self.taken.insert(found.clone()) {
            found = format!("{name}_{n}");
            n += 1;
        }
        found
    }

    pub fn tensor(&self, t: usize) -> Result<&'a TfliteTensor> {
        self.from.tensor(t)
    }

    /// Ensures that an input of the exported ONNX graph exists as real values or integers.
    pub fn given(&mut self, t: usize) -> Result<()> {
        let name = self.names[t].clone();
        let is_quantized = self.tensor(t)?.is_quantized();
        let places = if is_quantized { &mut self.codes[t] } else { &mut self.real[t] };
        places.set(ChannelOrder::Plain, &name);
        Ok(())
    }

    pub fn constant(&mut self, name: &str, value: Literal) -> String {
        let name = self.unique(name);
        self.graph.constants.insert(name.clone(), value);
        name
    }

    /// Adds a constant list of integers to the exported ONNX graph.
    pub fn list(&mut self, name: &str, values: &[i64]) -> Result<String> {
        Ok(self.constant(name, Literal::from_slice([values.len()], values)?))
    }

    /// Adds an f32 scalar constant to the exported ONNX graph.
    pub fn number(&mut self, name: &str, value: f32) -> Result<String> {
        Ok(self.constant(name, Literal::from_slice([], &[value])?))
    }

    pub fn push(&mut self, mut node: OnnxNode) {
        node.name = node.outputs.first().cloned().unwrap_or_default();
        self.graph.nodes.push(node);
    }

    /// Adds a node with a new output name to the exported ONNX graph, and returns the name.
    pub fn made<'n>(&mut self, name: &str, op: &str, inputs: impl IntoIterator<Item = &'n str>) -> String {
        let output = self.unique(name);
        self.push(OnnxNode::new(op, inputs, output.clone()));
        output
    }

    /// Whether a tensor of the exported graph exists only with channels first.
    pub fn is_first(&self, t: usize) -> bool {
        let (real, codes) = (&self.real[t], &self.codes[t]);
        real.plain.is_none() && codes.plain.is_none() && (real.first.is_some() || codes.first.is_some())
    }

    /// Returns the layout (channels first or last) for the operands of an element-wise operator.
    pub fn order_of(&self, operands: &[usize], output: usize) -> Result<ChannelOrder> {
        let mut first = false;
        for &t in operands.iter().chain([&output]) {
            let tensor = self.tensor(t)?;
            if tensor.data.is_none() && tensor.dims().len() != 4 {
                return Ok(ChannelOrder::Plain);
            }
            first |= self.is_first(t);
        }
        Ok(if first { ChannelOrder::First } else { ChannelOrder::Plain })
    }

    /// Returns the real values of an operator's first operand, in the layout for element-wise operators.
    pub fn single(&mut self, o: &TfliteOperator, y: usize) -> Result<(String, ChannelOrder)> {
        let x = operand_of(o, 0)?;
        let order = self.order_of(&[x], y)?;
        Ok((self.real(x, order)?, order))
    }

    /// Returns the ONNX name of a tensor's real values.
    pub fn real(&mut self, t: usize, order: ChannelOrder) -> Result<String> {
        let tensor = self.tensor(t)?;
        let order =
            if tensor.dims().len() < 4 && tensor.data.is_none() { ChannelOrder::Plain } else { order };
        if let Some(name) = self.real[t].get(order) {
            return Ok(name);
        }
        let own = self.names[t].clone();
        let name = match (&tensor.data, tensor.is_quantized()) {
            (Some(data), false) => {
                let data = constant_in(data, order)?;
                if order == ChannelOrder::Plain {
                    self.constant_as(&own, data)
                } else {
                    self.constant(&own, data)
                }
            }
            (_, true) => {
                let codes = self.codes(t, order)?;
                let dimension = tensor.quantization.as_ref().map_or(0, |q| q.dimension);
                // Constants of lower rank get leading ones.
                let axis = match order {
                    ChannelOrder::First => {
                        place_in(dimension + 4usize.saturating_sub(tensor.dims().len()), order)
                    }
                    ChannelOrder::Plain => dimension,
                };
                let output = self.unique(&format!("{own}/real"));
                self.dequantize(t, &codes, axis, output.clone())?;
                output
            }
            (None, false) => self.turned(&self.real[t].clone(), &own, order, t)?,
        };
        self.real[t].set(order, &name);
        Ok(name)
    }

    /// Returns the ONNX name of a tensor's quantized integers.
    pub fn codes(&mut self, t: usize, order: ChannelOrder) -> Result<String> {
        if let Some(name) = self.codes[t].get(order) {
            return Ok(name);
        }
        let own = self.names[t].clone();
        let name = match &self.tensor(t)?.data {
            Some(data) => self.constant(&own, constant_in(data, order)?),
            None => self.turned(&self.codes[t].clone(), &own, order, t)?,
        };
        self.codes[t].set(order, &name);
        Ok(name)
    }

    fn constant_as(&mut self, name: &str, value: Literal) -> String {
        self.graph.constants.insert(name.into(), value);
        name.into()
    }

    /// Returns a value transposed to another layout.
    fn turned(&mut self, places: &ValueNames, own: &str, order: ChannelOrder, t: usize) -> Result<String> {
        let (from, permutation, name) = match order {
            ChannelOrder::First => (&places.plain, TO_FIRST, self.unique(&format!("{own}/nchw"))),
            ChannelOrder::Plain => (&places.first, TO_PLAIN, own.to_string()),
        };
        let from = from.clone().ok_or_else(|| err!(Bug, "no operator computes tensor {}", self.names[t]))?;
        let permutation = permutation.map(|d| d as i64);
        self.push(OnnxNode::new("Transpose", [from], name.clone()).ints("perm", permutation));
        Ok(name)
    }

    /// Returns the name of an operator's result before it is rounded to integers, if it is.
    fn output(&mut self, t: usize, order: ChannelOrder) -> Result<String> {
        let own = self.names[t].clone();
        Ok(match (self.tensor(t)?.is_quantized(), order) {
            (true, _) => self.unique(&format!("{own}/result")),
            (false, ChannelOrder::Plain) => own,
            (false, ChannelOrder::First) => self.unique(&format!("{own}/nchw")),
        })
    }

    /// Finishes an exported operator: adds the last node, then the fused activation.
    pub fn finish(
        &mut self,
        t: usize,
        order: ChannelOrder,
        activation: FusedActivation,
        node: impl FnOnce(String) -> OnnxNode,
    ) -> Result<()> {
        let result = self.output(t, order)?;
        let own = self.names[t].clone();
        match activation {
            FusedActivation::None => self.push(node(result.clone())),
            FusedActivation::Relu => {
                let before = self.unique(&format!("{own}/sum"));
                self.push(node(before.clone()));
                self.push(OnnxNode::new("Relu", [before], result.clone()));
            }
            FusedActivation::Relu6 | FusedActivation::ReluN1To1 => {
                let (low, high) = if activation == FusedActivation::Relu6 { (0.0, 6.0) } else { (-1.0, 1.0) };
                let before = self.unique(&format!("{own}/sum"));
                self.push(node(before.clone()));
                let bounds =
                    [self.number(&format!("{own}/min"), low)?, self.number(&format!("{own}/max"), high)?];
                let [low, high] = bounds;
                self.push(OnnxNode::new("Clip", [before, low, high], result.clone()));
            }
        }
        self.store(t, order, &result)
    }

    /// Stores real values as a tensor's values; quantizes them if the tensor is int8.
    pub fn store(&mut self, t: usize, order: ChannelOrder, result: &str) -> Result<()> {
        let tensor = self.tensor(t)?;
        if !tensor.is_quantized() {
            self.real[t].set(order, result);
            return Ok(());
        }
        let own = self.names[t].clone();
        let (scale, zero) = self.scheme(t)?;
        let name = if order == ChannelOrder::Plain { own } else { self.unique(&format!("{own}/nchw")) };
        self.push(OnnxNode::new("QuantizeLinear", [result.to_string(), scale, zero], name.clone()));
        self.codes[t].set(order, &name);
        Ok(())
    }

    /// Adds a tensor's scale and zero point as constants.
    fn scheme(&mut self, t: usize) -> Result<(String, String)> {
        let tensor = self.tensor(t)?;
        let none = TfliteQuantization::default();
        let q = tensor.quantization.as_ref().unwrap_or(&none);
        let own = self.names[t].clone();
        let dims = if q.scale.len() == 1 { vec![] } else { vec![q.scale.len()] };
        let zeros = Literal::from_slice(&dims[..], &q.zero_point)?.convert(tensor.ty.dtype);
        let scale = self.constant(&format!("{own}/scale"), Literal::from_slice(&dims[..], &q.scale)?);
        Ok((scale, self.constant(&format!("{own}/zero_point"), zeros)))
    }

    /// Adds a DequantizeLinear node with per-axis scales along `axis`.
    pub fn dequantize(&mut self, t: usize, codes: &str, axis: usize, output: String) -> Result<()> {
        let is_wide = self.tensor(t)?.ty.dtype == DType::I32;
        let several = self.tensor(t)?.quantization.as_ref().is_some_and(|q| q.scale.len() > 1);
        let (scale, zero) = self.scheme(t)?;
        let mut inputs = vec![codes.to_string(), scale];
        // int32 values have no zero point.
        if is_wide {
            self.graph.constants.remove(&zero);
        } else {
            inputs.push(zero);
        }
        let mut node = OnnxNode::new("DequantizeLinear", inputs, output);
        if several {
            node = node.with("axis", crate::model::OnnxAttribute::Int(axis as i64));
        }
        self.push(node);
        Ok(())
    }

    /// Adds a weight constant with permuted dimensions to the exported ONNX graph.
    pub fn weights(&mut self, t: usize, permutation: &[usize]) -> Result<String> {
        let tensor = self.tensor(t)?;
        let data = tensor
            .data
            .as_ref()
            .ok_or_else(|| err!(Unsupported, "weights {} are not constant", tensor.name))?;
        let own = self.names[t].clone();
        let name = self.constant(&own, permuted(data, permutation)?);
        if !tensor.is_quantized() {
            return Ok(name);
        }
        let dimension = tensor.quantization.as_ref().map_or(0, |q| q.dimension);
        let axis = permutation.iter().position(|d| *d == dimension);
        let axis = axis.ok_or_else(|| err!(Data, "{} has no dimension {dimension}", tensor.name))?;
        let output = self.unique(&format!("{own}/real"));
        self.dequantize(t, &name, axis, output.clone())?;
        Ok(output)
    }

    /// Returns a TFLite operator's constant integer operand.
    pub fn integers(&self, o: &TfliteOperator, operand: usize) -> Result<Vec<i64>> {
        let t = operand_of(o, operand)?;
        let tensor = self.tensor(t)?;
        let data = tensor.data.as_ref().filter(|d| d.dtype().is_int());
        let data =
            data.ok_or_else(|| err!(Unsupported, "{} requires constant operand {}", o.op, tensor.name))?;
        Ok((0..data.ty().elements()).map(|i| data.get(i).as_i64()).collect())
    }
}

/// Returns a required operand.
pub(super) fn operand_of(o: &TfliteOperator, i: usize) -> Result<usize> {
    let found = o.inputs.get(i).copied().flatten();
    found.ok_or_else(|| err!(Data, "the operator {} lacks operand {i}", o.op))
}

/// Permutes a constant to a layout; one of lower rank gets leading ones.
fn constant_in(data: &Literal, order: ChannelOrder) -> Result<Literal> {
    if order == ChannelOrder::Plain || data.shape().rank() == 0 {
        return Ok(data.clone());
    }
    let dims = data.shape().dims();
    let wide: Vec<usize> =
        std::iter::repeat_n(1, 4usize.saturating_sub(dims.len())).chain(dims.iter().copied()).collect();
    permuted(&data.reshape(wide)?, &TO_FIRST)
}

/// Permutes the dimensions of a constant.
pub(super) fn permuted(data: &Literal, permutation: &[usize]) -> Result<Literal> {
    let shape = data.shape();
    if permutation.len() != shape.rank() {
        return Err(err!(Unsupported, "unsupported element type {} of weights", data.ty()));
    }
    let dims: Vec<usize> = permutation.iter().map(|&d| shape[d]).collect();
    let strides = shape.strides();
    let steps: Vec<usize> = permutation.iter().map(|&d| strides[d]).collect();
    let size = data.dtype().size();
    let ty = TensorType::new(data.dtype(), &dims[..]);
    let mut bytes = Vec::with_capacity(ty.bytes());
    for index in ty.shape.indices() {
        let at: usize = index.iter().zip(&steps).map(|(i, s)| i * s).sum();
        bytes.extend_from_slice(&data.bytes()[at * size..(at + 1) * size]);
    }
    Literal::from_bytes(ty, &bytes)
}

/// Returns the position of a dimension in a layout.
pub(super) fn place_in(dim: usize, order: ChannelOrder) -> usize {
    match (order, dim) {
        (ChannelOrder::Plain, d) | (ChannelOrder::First, d @ 0) => d,
        (ChannelOrder::First, 3) => 1,
        (ChannelOrder::First, d) => d + 1,
    }
}
