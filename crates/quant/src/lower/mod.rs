//! Layers as operators on floats, for one sample: `f32[1, …]`. One file for each family; `lower` has their table.

mod activations;
mod convolutions;
mod dense;
mod merges;
mod movements;
mod normalizations;
mod poolings;

use crate::builder::Builder;
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt};
use systole_nn::{LayerNode, Model as Layers, NodeInput};
use systole_tflite::{Model, Tensor};

/// A layer that becomes operators.
pub(crate) struct Call<'a> {
    pub b: &'a mut Builder,
    pub layers: &'a Layers,
    pub node: &'a LayerNode,
    /// Tensors that feed it.
    pub inputs: Vec<usize>,
    /// Shape of its output, the batch of 1 included.
    pub output: Vec<usize>,
}

/// The operators of a built model, on floats: `f32[1, …] → f32[1, …]`. Batch normalisation and activations are folded into
/// what comes before them; what only trains (dropout, noise) is left out.
///
/// # Errors
/// When the model is not built, or a layer has no operators; names the layer.
pub fn lower(layers: &Layers) -> Result<Model> {
    let architecture = layers.architecture();
    if !layers.is_built() {
        return Err(Error::new(ErrorKind::Config, "the model has no shapes yet").hint("build it, or load a trained one"));
    }
    let mut b = Builder::new();
    let mut inputs = Vec::new();
    for spec in &architecture.inputs {
        let ty = spec.ty.as_ref().ok_or_else(|| Error::new(ErrorKind::Config, "an input has no shape"))?;
        let dims: Vec<usize> = std::iter::once(1).chain(ty.shape.iter().copied()).collect();
        let dtype = if ty.dtype.is_float() || ty.dtype == DType::U8 { DType::F32 } else { DType::I32 };
        inputs.push(b.tensor(Tensor::new(&*spec.name, dims, dtype)));
    }
    b.model.inputs = inputs.clone();
    let readers = |source: NodeInput| {
        let of = architecture.nodes.iter().flat_map(|n| &n.inputs).filter(|s| **s == source).count();
        of + usize::from(architecture.output == source)
    };
    let mut made: Vec<usize> = Vec::new();
    for (i, node) in architecture.nodes.iter().enumerate() {
        let of = |s: &NodeInput| match s {
            NodeInput::Input(i) => inputs[*i],
            NodeInput::Layer(i) => made[*i],
        };
        let shape = layers.summary_rows().get(i).map(|r| r.output_shape.dims().to_vec()).unwrap_or_default();
        let output = std::iter::once(1).chain(shape).collect();
        let feeds = node.inputs.iter().map(of).collect();
        let mut call = Call { b: &mut b, layers, node, inputs: feeds, output };
        let y = call.lower().at(|| format!("layer {}", node.name))?;
        // A layer that adds nothing hands on what it reads, which has all of both's readers.
        let is_new = !node.inputs.iter().any(|s| of(s) == y);
        let more = readers(NodeInput::Layer(i));
        b.readers[y] = if is_new { more } else { b.readers[y].max(1) - 1 + more };
        made.push(y);
    }
    let output = match architecture.output {
        NodeInput::Input(i) => inputs[i],
        NodeInput::Layer(i) => made[i],
    };
    b.model.outputs = vec![output];
    b.model.check()?;
    Ok(b.model)
}

impl Call<'_> {
    fn lower(&mut self) -> Result<usize> {
        let class = self.node.layer.class_name();
        match class {
            "Conv2D" => convolutions::conv2d(self),
            "Conv1D" => convolutions::conv1d(self),
            "DepthwiseConv2D" => convolutions::depthwise(self),
            "SeparableConv2D" => convolutions::separable(self),
            "Conv2DTranspose" => convolutions::transposed(self),
            "Dense" => dense::dense(self),
            "MaxPooling2D" | "AveragePooling2D" | "MaxPooling1D" | "AveragePooling1D" => poolings::windows(self),
            "GlobalAveragePooling2D" | "GlobalAveragePooling1D" => poolings::global_average(self),
            "GlobalMaxPooling2D" | "GlobalMaxPooling1D" => poolings::global_max(self),
            "Activation" | "ReLU" | "LeakyReLU" | "ELU" | "Softmax" | "PReLU" => activations::layer(self),
            "BatchNormalization" => normalizations::batch(self),
            "LayerNormalization" => normalizations::layer(self),
            "Rescaling" => normalizations::rescaling(self),
            "Add" | "Subtract" | "Multiply" | "Average" | "Maximum" | "Minimum" => merges::element_wise(self),
            "Concatenate" => merges::concatenate(self),
            "Flatten" | "Reshape" => movements::reshape(self),
            "Permute" => movements::permute(self),
            "ZeroPadding2D" | "ZeroPadding1D" => movements::padding(self),
            "Cropping2D" | "Cropping1D" => movements::cropping(self),
            "UpSampling2D" => movements::upsampling(self),
            "Identity" | "Dropout" | "SpatialDropout1D" | "SpatialDropout2D" | "SpatialDropout3D" | "GaussianNoise"
            | "GaussianDropout" | "AlphaDropout" | "ActivityRegularization" => Ok(self.inputs[0]),
            _ => Err(Error::new(ErrorKind::Unsupported, format!("{class} has no operators of .tflite here"))
                .hint("leave this layer out of what you export, or use `systole export --format keras`")),
        }
    }

    /// Its arguments, as its struct.
    pub fn arguments<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        let config: Value = self.node.layer.layer().config();
        serde_json::from_value(config).map_err(|e| {
            let what = format!("the arguments of {} cannot be read", self.node.layer.class_name());
            Error::new(ErrorKind::Bug, what).because(e.to_string())
        })
    }

    /// The tensor that feeds it.
    pub fn input(&self) -> usize {
        self.inputs[0]
    }

    pub fn dims(&self) -> Vec<usize> {
        self.b.dims(self.inputs[0])
    }

    pub fn name(&self) -> String {
        self.node.name.clone()
    }

    /// One of its weights.
    pub fn weight(&self, name: &str) -> Result<Literal> {
        let value = self.layers.weight(&format!("{}/{name}", self.node.name))?;
        if value.to_f32s().iter().any(|v| !v.is_finite()) {
            return Err(Error::new(ErrorKind::Numeric, format!("its {name} has NaN or infinite values"))
                .hint("load an earlier checkpoint, or train again with a smaller learning rate"));
        }
        Ok(value)
    }

    /// One of its weights where there is one, else zeros.
    pub fn bias(&self, used: bool, channels: usize) -> Result<Vec<f32>> {
        if used { Ok(self.weight("bias")?.to_f32s()) } else { Ok(vec![0.0; channels]) }
    }
}
