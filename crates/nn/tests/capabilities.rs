//! Layer capabilities: custom layers get them by the same methods as built-in ones; no code checks class names.

use std::path::{Path, PathBuf};
use systole_ir::DType::{F32, I32};
use systole_ir::{Literal, Result, Tensor, TensorType};
use systole_nn::layers::{LAYER_NAMES, LayerSpec, conv2d, dense, embedding, lstm};
use systole_nn::{
    CAPABILITIES, Cx, IncrementalDecoding, Layer, LayerLowering, MaskPropagation, Model, layer_capabilities,
};

/// `x: T[…] → T[…]`: half of it, described as an operator.
#[derive(Debug)]
struct Half;

impl Layer for Half {
    fn class_name(&self) -> &'static str {
        "Half"
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        &inputs[0] * 0.5
    }

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::Rescaling { scale: 0.5, offset: 0.0 })
    }
}

/// The same with single capabilities, or with none.
#[derive(Debug)]
struct Told {
    masks: bool,
    decodes: bool,
}

impl Layer for Told {
    fn class_name(&self) -> &'static str {
        "Told"
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        &inputs[0] * 0.5
    }

    fn masks(&self) -> Result<MaskPropagation> {
        if self.masks { Ok(MaskPropagation::First) } else { Err(no()) }
    }

    fn decoding(&self) -> Result<IncrementalDecoding> {
        if self.decodes { Ok(IncrementalDecoding::Positionwise) } else { Err(no()) }
    }
}

fn no() -> systole_ir::Error {
    systole_ir::Error::new(systole_ir::ErrorKind::Unsupported, "not this one")
}

/// What a model of masked tokens says, before and after the vector of the padding has changed.
fn with_other_padding(layer: LayerSpec) -> [Vec<f32>; 2] {
    let mut model =
        Model::sequential([embedding(5, 3).mask_zero(true).name("table"), layer, lstm(2), dense(1)]);
    model.build(&[TensorType::new(I32, [4])]).unwrap();
    let x = Literal::from_slice([1, 4], &[3i32, 1, 0, 0]).unwrap();
    let mut say = || model.predict_on_batch(&x).unwrap().to_f32s();
    let before = say();
    let mut table = model.weight("table/embeddings").unwrap().to_f32s();
    table[..3].fill(0.7);
    model.set_weight("table/embeddings", Literal::from_slice([5, 3], &table).unwrap()).unwrap();
    [before, model.predict_on_batch(&x).unwrap().to_f32s()]
}

#[test]
fn masks_go_on_through_layers_that_say_so() {
    for layer in [LayerSpec::custom(Half), LayerSpec::custom(Told { masks: true, decodes: false })] {
        let [before, after] = with_other_padding(layer);
        assert_eq!(before, after);
    }
    let [before, after] = with_other_padding(LayerSpec::custom(Told { masks: false, decodes: true }));
    assert_ne!(before, after);
}

#[test]
fn models_with_layers_of_users_generate_token_by_token() {
    let model = |layer: LayerSpec| {
        let mut model = Model::sequential([
            embedding(6, 4),
            layer,
            lstm(3).return_sequences(true),
            dense(6).activation("softmax"),
        ]);
        model.build(&[TensorType::new(I32, [4])]).unwrap();
        model
    };
    for layer in [LayerSpec::custom(Half), LayerSpec::custom(Told { masks: false, decodes: true })] {
        let mut model = model(layer);
        let tokens = Literal::from_slice([1, 4], &[1i32, 5, 2, 3]).unwrap();
        let all = model.predict_on_batch(&tokens).unwrap().to_f32s();
        let mut decoder = model.decoder().unwrap();
        decoder.feed(&[1, 5]).unwrap();
        let scores = decoder.feed(&[2, 3]).unwrap();
        let sum: f32 = scores.iter().map(|score| score.exp()).sum();
        for (score, expected) in scores.iter().zip(&all[18..]) {
            assert!((score.exp() / sum - expected).abs() < 1e-5, "{scores:?} {all:?}");
        }
    }
    let e = model(LayerSpec::custom(Told { masks: true, decodes: false })).decoder().err().unwrap();
    assert!(e.to_string().contains("told"), "{e}");
}

#[test]
fn channels_are_followed_through_layers_of_users() {
    let mut model = Model::sequential([
        conv2d(3, 3).name("first"),
        LayerSpec::custom(Scaled).name("scaled"),
        conv2d(2, 1).name("last"),
    ]);
    model.build(&[TensorType::new(F32, [5, 5, 2])]).unwrap();
    let mut kernel = model.weight("first/kernel").unwrap().to_f32s();
    kernel.iter_mut().step_by(3).for_each(|w| *w = 0.0);
    model.set_weight("first/kernel", Literal::from_slice([3, 3, 2, 3], &kernel).unwrap()).unwrap();
    let removed = model.remove_channels().unwrap();
    assert_eq!((removed[0].layer.as_str(), removed[0].before, removed[0].after), ("first", 3, 2));
}

/// A layer that is 0 where its input is.
#[derive(Debug)]
struct Scaled;

impl Layer for Scaled {
    fn class_name(&self) -> &'static str {
        "Scaled"
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        &inputs[0] * 0.5
    }

    fn channels(&self) -> Result<systole_nn::ChannelPruning> {
        Ok(systole_nn::ChannelPruning::Passes)
    }
}

#[test]
fn the_matrix_names_every_layer_and_says_why_not() {
    let all = layer_capabilities();
    assert_eq!(all.iter().map(|layer| layer.class).collect::<Vec<_>>(), LAYER_NAMES);
    let has = |class: &str, what: &str| {
        let at = CAPABILITIES.iter().position(|name| *name == what).unwrap();
        all.iter().find(|layer| layer.class == class).unwrap().all[at].clone()
    };
    for (class, what) in [
        ("StochasticDepth", "int8 training"),
        ("StochasticDepth", "operators"),
        ("BatchNormalization", "int8 training"),
        ("LSTM", "decoding"),
        ("LSTM", "masks"),
        ("Conv2D", "channel pruning"),
        ("ReLU", "channel pruning"),
        ("Activation", "channel pruning"),
        ("Embedding", "adapters"),
        ("TransformerBlock", "PyTorch weights"),
    ] {
        assert_eq!(has(class, what), Ok(()), "{class} {what}");
    }
    for (class, what, why) in [
        ("DepthwiseConv2D", "adapters", "not an input-by-output matrix"),
        ("Dropout", "PyTorch weights", "no weights"),
        ("Resizing", "operators", "no operators"),
        ("Conv3D", "operators", "no operators"),
        ("Conv2D", "decoding", "later positions"),
    ] {
        let found = has(class, what).unwrap_err();
        assert!(found.contains(why), "{class} {what}: {found}");
    }
}

/// Code below `dir`, by file.
fn sources(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            // Examples in comments compare results.
            let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            found.push((path.clone(), lines.collect::<Vec<_>>().join(" ")));
        }
    }
}

/// The registry finds layers by their class names, and Keras's files have them; nothing else may depend on what a layer is called.
#[test]
fn no_comparison_of_class_names_decides_behaviour() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for krate in ["nn", "quant", "weights"] {
        sources(&root.join(krate).join("src"), &mut files);
    }
    let registry = ["nn/src/layers/from_config.rs", "nn/src/layers/built_in.rs", "nn/src/optimizer/"];
    let of_keras = ["weights/src/keras/", "weights/src/names/keras.rs"];
    let may = |path: &Path| {
        let path = path.to_string_lossy().replace('\\', "/");
        registry.iter().chain(&of_keras).any(|part| path.contains(part))
    };
    let mut found = Vec::new();
    for (path, code) in files.iter().filter(|(path, _)| !may(path)) {
        let mut forms: Vec<String> = ["class_name() == \"", "class_name() != \""].map(String::from).into();
        forms.extend(["class_name().starts_with(", "class_name().ends_with("].map(String::from));
        for class in LAYER_NAMES {
            let forms_of = [format!("\"{class}\" =>"), format!("\"{class}\" |"), format!("== \"{class}\"")];
            forms.extend(forms_of.into_iter().chain([format!("!= \"{class}\"")]));
        }
        found.extend(forms.iter().filter(|form| code.contains(*form)).map(|f| format!("{path:?}: {f}")));
        let told = code.split(".contains(&").skip(1).filter_map(|rest| rest.split_once("class_name())"));
        let near = told.filter(|(between, _)| !between.contains([' ', ';']));
        found.extend(near.map(|(between, _)| format!("{path:?}: contains(&{between}class_name())")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
