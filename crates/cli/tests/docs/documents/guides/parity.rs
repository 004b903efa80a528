//! Generates the list of comparisons with Keras and PyTorch: for each layer its fixture cases, for each architecture
//! and importer its test.

use super::table::{code, table};
use serde_json::Value;
use std::collections::BTreeMap;
use systole_nn::applications::by_name;

/// Layers with random outputs or with losses: property tests in a file of `crates/nn/tests`.
const PROMISES: [(&str, &str, &str); 19] = [
    ("ModelOutput", "graphs", "graphs_match_keras"),
    ("RandomCrop", "layers", "pictures_are_changed_by_chance"),
    ("RandomFlip", "layers", "pictures_are_changed_by_chance"),
    ("RandomContrast", "layers", "pictures_are_changed_by_chance"),
    ("ResidualGain", "biggan", "networks_equal_those_of_jax"),
    ("TokenStep", "encoder_attention", "the_step_of_a_token_is_selected"),
    ("SelectStep", "encoder_attention", "steps_are_selected_by_their_index"),
    ("SliceSteps", "encoder_attention", "steps_are_selected_by_their_index"),
    ("RelativePositionBias", "encoder_attention", "position_biases_depend_on_the_distance"),
    ("WindowAttention", "encoder_attention", "a_window_over_the_image_is_plain_attention"),
    ("Dropout", "layers", "dropout_keeps_its_share_and_the_mean"),
    ("SpatialDropout1D", "rules", "spatial_dropout_drops_whole_channels"),
    ("SpatialDropout2D", "rules", "spatial_dropout_drops_whole_channels"),
    ("SpatialDropout3D", "rules", "spatial_dropout_drops_whole_channels"),
    ("GaussianNoise", "rules", "noise_has_the_mean_and_variance_that_it_names"),
    ("GaussianDropout", "rules", "noise_has_the_mean_and_variance_that_it_names"),
    ("AlphaDropout", "rules", "noise_has_the_mean_and_variance_that_it_names"),
    ("StochasticDepth", "rules", "whole_samples_are_dropped_where_a_branch_is"),
    ("ActivityRegularization", "rules", "penalties_on_outputs_are_those_of_what_comes_out"),
];

/// Imported and exported weight formats: source, comparison, and tests in `crates/weights/tests`.
const IMPORTERS: [(&str, &str, &[&str]); 12] = [
    (
        "torchvision ResNet, `.pt`",
        "outputs to 1e-5; round trip",
        &["torchvisions_resnet_is_known_by_its_names"],
    ),
    (
        "ResNet and GPT-2, Hugging Face folders",
        "outputs to 1e-5; round trip",
        &["folders_of_hugging_face_are_known_by_their_names"],
    ),
    (
        "BERT and ViT, Hugging Face folders",
        "outputs to 1e-5; round trip; legacy weight names",
        &[
            "folders_of_hugging_face_fill_what_their_names_say",
            "berts_of_the_first_years_are_read_without_their_heads",
        ],
    ),
    (
        "RoBERTa, MPNet, ALBERT, T5, DeiT, DINOv2, ConvNeXt, Swin, Whisper: Hugging Face folders",
        "outputs to 1e-5; round trip",
        &["families_compute_what_transformers_does", "weights_of_every_family_survive_an_export"],
    ),
    (
        "CLIP, Hugging Face folder",
        "features of images and texts to 1e-5",
        &["clip_is_read_as_either_of_its_encoders"],
    ),
    (
        "ResNet-18, Hugging Face folder",
        "outputs to 1e-5, also with Systole's `resnet18`",
        &["folders_of_hugging_face_fill_what_their_names_say", "our_resnet18_takes_transformers_weights"],
    ),
    (
        "custom models, `.pt`, by order",
        "outputs to 1e-5; round trip",
        &["models_of_ones_own_are_filled_by_order"],
    ),
    (
        "1D, 2D and 3D convolutions, GroupNorm, `.pt`",
        "outputs to 1e-5; round trip",
        &["layers_of_every_rank_are_filled_by_order"],
    ),
    (
        "Sequential and Functional, `.keras`, `.h5`",
        "outputs to 1e-5; round trip",
        &["models_of_keras_bring_their_layers"],
    ),
    (
        "ConvNeXt and EfficientNetV2, `.keras`",
        "outputs to 1e-5, also in Systole's applications; round trip",
        &["applications_of_keras_bring_their_layers_and_fill_ours"],
    ),
    ("`.weights.h5`", "outputs to 1e-5, by names and by classes", &["weights_of_keras_alone_need_a_model"]),
    ("HDF5 written by h5py", "values", &["hdf5_is_read_as_h5py_writes_it"]),
];

/// The metadata of a fixture.
fn metadata(fixture: &str, key: &str) -> Vec<Value> {
    let path = format!("{}/fixtures/keras/{fixture}.safetensors", crate::documents::ROOT);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let text = header["__metadata__"][key].as_str().unwrap_or_else(|| panic!("{path}: no {key}"));
    serde_json::from_str(text).expect("JSON")
}

/// Whole networks compared with Keras: the layer classes of each.
fn networks() -> Vec<Vec<String>> {
    let small: Value =
        serde_json::from_str(&crate::documents::read("fixtures/keras/applications.json")).expect("JSON");
    let small = small["cases"].as_array().expect("cases").iter().filter(|c| c["full"] == false).cloned();
    let of_application = |name: &Value, arguments: &Value| -> Vec<String> {
        let arguments = arguments.as_object().expect("a table");
        let made = by_name(name.as_str().expect("a name"), arguments).expect("an application");
        made.nodes.iter().map(|node| node.layer.class_name().to_string()).collect()
    };
    let small = small.map(|case| of_application(&case["name"], &case["arguments"]));
    let trained =
        metadata("networks", "networks").into_iter().map(|network| match network["layers"].as_array() {
            Some(layers) => layers.iter().filter_map(|l| l["class"].as_str().map(str::to_string)).collect(),
            None => of_application(&network["application"], &network["arguments"]),
        });
    small.chain(trained).collect()
}

/// Describes for each layer how it is compared.
///
/// # Panics
/// If a layer is not compared with anything.
pub fn of_layers(classes: &[&str]) -> BTreeMap<String, String> {
    let cases = [metadata("layers", "cases"), metadata("sequences", "cases")].concat();
    let networks = networks();
    let of_class = |class: &&str| {
        let own = cases.iter().filter(|case| case["class"] == **class).count();
        let within = networks.iter().filter(|layers| layers.iter().any(|l| l == class)).count();
        let promise = PROMISES.iter().find(|(of, ..)| of == class);
        let counted =
            |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}{}", if n > 1 { "s" } else { "" }));
        let promised = promise.map(|(_, file, test)| named(&format!("crates/nn/tests/{file}.rs"), test));
        let told: Vec<String> =
            [counted(own, "case"), counted(within, "network"), promised].into_iter().flatten().collect();
        assert!(own > 0 || promise.is_some() || within > 0, "{class} is compared with nothing");
        (class.to_string(), told.join(", "))
    };
    classes.iter().map(of_class).collect()
}

/// Formats the name of a test after checking that it exists.
fn named(file: &str, test: &str) -> String {
    assert!(crate::documents::read(file).contains(&format!("fn {test}()")), "{file} has no test {test}");
    code(test)
}

/// File of an importer's test.
fn importer_file(test: &str) -> &'static str {
    let own = "crates/weights/tests/files.rs";
    match crate::documents::read(own).contains(&format!("fn {test}()")) {
        true => own,
        false => "crates/weights/tests/hugging_face/mod.rs",
    }
}

pub fn importers() -> String {
    let rows = IMPORTERS.iter().map(|(of, compared, tests)| {
        let tests: Vec<String> = tests.iter().map(|test| named(importer_file(test), test)).collect();
        [of.to_string(), compared.to_string(), tests.join(", ")]
    });
    table(["weights", "compared with the original program", "tests"], rows)
}
