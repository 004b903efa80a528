//! Tests with weight files of PyTorch, transformers, Keras and h5py: imported models compute the same, and exports
//! round-trip. For the origin of the files see `fixtures/weights`.

mod configs;
mod hugging_face;

use std::path::{Path, PathBuf};
use systole_data::Dataset;
use systole_data::format::zip::{StoredZipEntry, ZipArchive, archive};
use systole_ir::{DType, ErrorKind, Literal, TensorType};
use systole_nn::Model;
use systole_nn::applications::by_name;
use systole_nn::layers::*;
use systole_testing::assert_error;
use systole_weights::{WeightFormat, WeightSource, export};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights").join(name)
}

fn open(name: &str) -> WeightSource {
    WeightSource::open(&fixture(name)).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns `x` and `y` of a case.
fn expected(of: &str, case: &str) -> (Literal, Literal) {
    let all = open(&format!("{of}_expected.safetensors"));
    let array = |part: &str| {
        let name = format!("{case}/{part}");
        all.tensors().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1.clone()
    };
    (array("x"), array("y"))
}

/// Returns the type of one sample of `x`.
fn sample(x: &Literal) -> TensorType {
    TensorType::new(x.dtype(), &x.shape().dims()[1..])
}

/// Asserts that the model's outputs differ by at most 1e-5 of the largest value.
#[track_caller]
fn computes(model: &mut Model, x: &Literal, y: &Literal) {
    systole_runtime::register(systole_cpu::provider());
    same(&model.predict_on_batch(x).unwrap(), y);
}

#[track_caller]
fn same(found: &Literal, expected: &Literal) {
    let (found, expected) = (found.to_f32s(), expected.to_f32s());
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1f32, |m, v| m.max(v.abs()));
    let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(most <= 1e-5 * scale, "differs by {most:e} at values up to {scale:e}");
}

/// Returns the model that a file describes, filled and checked.
#[track_caller]
fn told(of: &str, file: &str, case: &str) -> Model {
    let source = open(file);
    let (x, y) = expected(of, case);
    let (layers, _) = source.architecture().unwrap().expect("the file says what it is");
    let mut model = Model::new(layers);
    model.build(&[sample(&x)]).unwrap();
    let report = source.fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.left_over.is_empty());
    computes(&mut model, &x, &y);
    model
}

/// Returns a model of layers, filled in the order of a state_dict.
#[track_caller]
fn by_order(layers: impl IntoIterator<Item = LayerSpec>, file: &str) -> Model {
    let (x, y) = expected("torch", file);
    let mut model = Model::sequential(layers);
    model.build(&[sample(&x)]).unwrap();
    let report = open(file).fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.notes[0].contains("layer order"), "{:?}", report.notes);
    computes(&mut model, &x, &y);
    model
}

/// Exports a model, imports it into a fresh one, and compares all weights.
#[track_caller]
fn survives(model: &Model, format: WeightFormat, name: &str) {
    let bytes = export(model, format, Path::new(name)).unwrap_or_else(|e| panic!("{e}")).bytes;
    let source = WeightSource::from_bytes(name, bytes).unwrap_or_else(|e| panic!("{e}"));
    let mut other = Model::new(model.architecture().clone());
    let inputs = model.architecture().inputs.iter().map(|i| i.ty.clone().unwrap());
    other.build(&inputs.collect::<Vec<_>>()).unwrap();
    source.fill(&mut other, false).unwrap_or_else(|e| panic!("{e}"));
    for (path, _) in model.weights() {
        assert_eq!(other.weight(path).unwrap(), model.weight(path).unwrap(), "{path}");
    }
}

fn mixed() -> Vec<LayerSpec> {
    vec![
        conv2d(3, 3).padding("same"),
        batch_normalization().epsilon(1e-3),
        activation("relu"),
        conv2d(6, 3).padding("same").groups(3),
        max_pooling2d(2),
        flatten(),
        dense(4),
    ]
}

fn recurrent() -> Vec<LayerSpec> {
    vec![embedding(11, 5), lstm(6).return_sequences(true), lstm(6).return_sequences(true), gru(4), dense(3)]
}

fn attention() -> Vec<LayerSpec> {
    vec![
        layer_normalization().epsilon(1e-5),
        transformer_block(16, 2).normalize_first(true).layer_norm_epsilon(1e-5),
        dense(3),
    ]
}

#[test]
fn torchvisions_resnet_is_known_by_its_names() {
    let model = told("torch", "resnet.pt", "resnet.pt");
    survives(&model, WeightFormat::Torch, "again.pt");
    survives(&model, WeightFormat::Safetensors, "again.safetensors");
    survives(&model, WeightFormat::Keras, "again.keras");
    let rows = export(&model, WeightFormat::Torch, Path::new("x.pt")).unwrap().rows;
    let row = rows.iter().find(|r| r.ours == "conv3_block1_0_conv/kernel").unwrap();
    assert_eq!((row.theirs.as_str(), &row.from[..]), ("layer2.0.downsample.0.weight", &[32, 16, 1, 1][..]));
}

#[test]
fn folders_of_hugging_face_are_known_by_their_names() {
    told("torch", "resnet", "resnet");
    let model = told("torch", "gpt2", "gpt2");
    survives(&model, WeightFormat::Safetensors, "again.safetensors");
    survives(&model, WeightFormat::Torch, "again.pt");
    let e = export(&model, WeightFormat::Keras, Path::new("x.keras")).err().unwrap();
    assert_error(&e, ErrorKind::Config, &["PositionEmbedding", "--format"]);
}

/// Returns the model of a directory, filled and checked.
#[track_caller]
fn encoder(folder: &str) -> Model {
    encoder_of("encoders", folder)
}

#[track_caller]
fn encoder_of(expected: &str, folder: &str) -> Model {
    let source = open(folder);
    let all = open(&format!("{expected}_expected.safetensors"));
    let array = |name: &str| {
        let name = format!("{folder}/{name}");
        all.tensors().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1.clone()
    };
    let (layers, _) = source.architecture().unwrap().expect("the file says what it is");
    let inputs: Vec<(String, Literal)> =
        layers.inputs.iter().map(|i| (i.name.clone(), array(&i.name))).collect();
    let mut model = Model::new(layers);
    model.build(&inputs.iter().map(|(_, x)| sample(x)).collect::<Vec<_>>()).unwrap();
    let report = source.fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.left_over.is_empty());
    systole_runtime::register(systole_cpu::provider());
    let data = Dataset::from_tensor_slices(inputs).unwrap().batch(8);
    same(&model.predict(&data).unwrap(), &array("y"));
    model
}

#[test]
fn folders_of_hugging_face_fill_what_their_names_say() {
    for folder in ["bert", "bert_classifier", "vit", "resnet_basic"] {
        let model = encoder(folder);
        survives(&model, WeightFormat::Safetensors, "again.safetensors");
        survives(&model, WeightFormat::Torch, "again.pt");
    }
}

#[test]
fn distilberts_and_electras_are_berts_with_other_names() {
    for folder in ["distilbert", "distilbert_classifier", "electra", "electra_classifier"] {
        let model = encoder_of("flax_encoders", folder);
        let inputs = model.architecture().inputs.len();
        assert_eq!(inputs, if folder.starts_with("distilbert") { 1 } else { 2 }, "{folder}");
    }
    // A projection of narrow embeddings is no part of a BERT here.
    let mut tensors = open("electra").tensors().to_vec();
    tensors.push(("embeddings_project.weight".into(), Literal::from_slice([8, 4], &[0f32; 32]).unwrap()));
    let e = configs::alone(&tensors).architecture().unwrap_err().to_string();
    assert!(e.contains("`embeddings_project`"), "{e}");
}

#[test]
fn layers_of_every_rank_are_filled_by_order() {
    let layers = |rank: usize| match rank {
        1 => vec![
            conv1d(4, 3).padding("same"),
            conv1d_transpose(6, 2).strides(2),
            group_normalization().groups(3),
            depthwise_conv1d(3).depth_multiplier(2),
        ],
        2 => vec![
            conv2d(4, 3).padding("same"),
            conv2d_transpose(6, 2).strides(2),
            group_normalization().groups(3),
            depthwise_conv2d(3).depth_multiplier(2),
        ],
        _ => vec![
            conv3d(4, 3).padding("same"),
            conv3d_transpose(6, 2).strides(2),
            group_normalization().groups(3),
        ],
    };
    let all = open("encoders_expected.safetensors");
    for rank in 1..=3 {
        let array = |part: &str| {
            let name = format!("rank{rank}/{part}");
            all.tensors().iter().find(|(n, _)| *n == name).expect("an array").1.clone()
        };
        let mut model = Model::sequential(layers(rank));
        model.build(&[sample(&array("x"))]).unwrap();
        open(&format!("rank{rank}.pt")).fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
        computes(&mut model, &array("x"), &array("y"));
        survives(&model, WeightFormat::Torch, "again.pt");
        survives(&model, WeightFormat::Keras, "again.weights.h5");
    }
}

#[test]
fn our_resnet18_takes_transformers_weights() {
    let theirs = encoder("resnet_basic");
    let small = serde_json::json!({"depths": [1, 2], "width": 4, "classes": 5});
    let mut ours = Model::new(by_name("resnet18", small.as_object().unwrap()).unwrap());
    ours.build(&[theirs.architecture().inputs[0].ty.clone().unwrap()]).unwrap();
    open("resnet_basic").fill(&mut ours, false).unwrap_or_else(|e| panic!("{e}"));
    let all = open("encoders_expected.safetensors");
    let array = |name: &str| all.tensors().iter().find(|(n, _)| n == name).expect("an array").1.clone();
    computes(&mut ours, &array("resnet_basic/image"), &array("resnet_basic/y"));
}

/// Early files name weights gamma and beta, and contain pretraining heads.
#[test]
fn berts_of_the_first_years_are_read_without_their_heads() {
    let model = encoder("bert");
    let exported = export(&model, WeightFormat::Safetensors, Path::new("x.safetensors")).unwrap();
    let mut tensors: Vec<(String, Literal)> = WeightSource::from_bytes("x", exported.bytes)
        .unwrap()
        .tensors()
        .iter()
        .map(|(n, v)| {
            let old = n.replace("LayerNorm.weight", "LayerNorm.gamma");
            (old.replace("LayerNorm.bias", "LayerNorm.beta"), v.clone())
        })
        .collect();
    tensors.push(("cls.predictions.bias".into(), Literal::from_slice([13], &[0f32; 13]).unwrap()));
    let arrays: Vec<(&str, &Literal)> = tensors.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let source = WeightSource::from_bytes("x", written(&arrays)).unwrap();
    let mut other = Model::new(model.architecture().clone());
    let inputs = model.architecture().inputs.iter().map(|i| i.ty.clone().unwrap());
    other.build(&inputs.collect::<Vec<_>>()).unwrap();
    let report = source.fill(&mut other, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.notes.iter().any(|n| n.contains("ignored: cls.predictions.bias")), "{:?}", report.notes);
    let path = "embeddings_layer_norm/gamma";
    assert_eq!(other.weight(path).unwrap(), model.weight(path).unwrap());
}

/// Returns a safetensors file of f32 arrays.
fn written(arrays: &[(&str, &Literal)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, value) in arrays {
        let from = data.len();
        data.extend_from_slice(value.bytes());
        let entry = serde_json::json!({"dtype": "F32", "shape": value.shape().dims(), "data_offsets": [from, data.len()]});
        header.insert((*name).into(), entry);
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

#[test]
fn models_of_ones_own_are_filled_by_order() {
    // f16, strides, wrapper prefixes, next to an optimizer's state.
    let model = by_order(mixed(), "mixed.pt");
    survives(&model, WeightFormat::Torch, "again.pt");
    survives(&model, WeightFormat::Keras, "again.weights.h5");
    let model = by_order(recurrent(), "recurrent.pt");
    survives(&model, WeightFormat::Keras, "again.keras");
    survives(&by_order(attention(), "attention.pt"), WeightFormat::Safetensors, "again.safetensors");
}

#[test]
fn models_of_keras_bring_their_layers() {
    let model = told("keras", "cnn.keras", "cnn");
    survives(&model, WeightFormat::Keras, "again.weights.h5");
    survives(&model, WeightFormat::Torch, "again.pt");
    told("keras", "cnn.h5", "cnn");
    let model = told("keras", "branches.keras", "branches");
    survives(&model, WeightFormat::Keras, "again.keras");
}

#[test]
fn wrapped_nested_and_masked_layers_of_keras_are_read() {
    for case in ["recurrent_layers", "token_layers", "nested_layers", "state_layers"] {
        told("keras_layers", &format!("{case}.keras"), case);
    }
    let source = open("nested_layers.keras");
    let (layers, _) = source.architecture().unwrap().unwrap();
    assert_eq!(layers.more_outputs.len(), 1);
}

/// Operations are layers with the same results; legacy files do not name their modules.
#[test]
fn operations_of_keras_that_are_no_layers_are_read() {
    for file in ["operations.keras", "operations.h5"] {
        told("keras_operations", file, "operations");
    }
}

/// Chains within Keras's ConvNeXt become layers of the model, and its tensor sums become layers.
#[test]
fn applications_of_keras_bring_their_layers_and_fill_ours() {
    let cases = [
        (
            "convnext",
            "convnexttiny",
            serde_json::json!({"depths": [1, 1, 1, 1], "projection_dims": [2, 3, 4, 5], "classes": 5}),
        ),
        (
            "efficientnetv2",
            "efficientnetv2b0",
            serde_json::json!({"width_coefficient": 0.1, "depth_coefficient": 0.2, "depth_divisor": 2, "min_depth": 2, "classes": 5}),
        ),
    ];
    for (case, application, arguments) in cases {
        let model = told("keras_applications", &format!("{case}.keras"), case);
        survives(&model, WeightFormat::Keras, "again.keras");
        let (x, y) = expected("keras_applications", case);
        let mut ours = Model::new(by_name(application, arguments.as_object().unwrap()).unwrap());
        ours.build(&[sample(&x)]).unwrap();
        open(&format!("{case}.keras")).fill(&mut ours, false).unwrap_or_else(|e| panic!("{e}"));
        computes(&mut ours, &x, &y);
        survives(&ours, WeightFormat::Keras, "again.weights.h5");
        survives(&ours, WeightFormat::Torch, "again.pt");
    }
}

#[test]
fn weights_of_keras_alone_need_a_model() {
    let zip = std::fs::read(fixture("cnn.keras")).unwrap();
    let weights = ZipArchive::open(&zip).unwrap().read("model.weights.h5", 1 << 20).unwrap().unwrap();
    let source = WeightSource::from_bytes("cnn.weights.h5", weights).unwrap();
    assert!(source.architecture().unwrap().is_none());
    let (x, y) = expected("keras", "cnn");
    // From another session, with other names.
    let layers = told("keras", "cnn.keras", "cnn").architecture().clone();
    let mut renamed = layers.clone();
    renamed.nodes.iter_mut().for_each(|n| n.name = format!("{}_7", n.name));
    for layers in [layers, renamed] {
        let mut model = Model::new(layers);
        model.build(&[sample(&x)]).unwrap();
        source.fill(&mut model, false).unwrap();
        computes(&mut model, &x, &y);
    }
}

#[test]
fn hdf5_is_read_as_h5py_writes_it() {
    let values = expected_values();
    for file in ["earliest.h5", "v108.h5"] {
        let source = open(file);
        assert_eq!(source.tensors().len(), 4, "{file}");
        for (name, value) in source.tensors() {
            assert_eq!(value.convert(DType::F32), values, "{file}: {name}");
        }
    }
}

fn expected_values() -> Literal {
    let all = open("keras_expected.safetensors");
    all.tensors().iter().find(|(n, _)| n == "hdf5/values").unwrap().1.clone()
}

#[test]
fn what_does_not_fit_is_named_with_both_shapes() {
    let fill = |layers: Vec<LayerSpec>, file: &str, shape: &[usize]| {
        let mut model = Model::sequential(layers);
        model.build(&[TensorType::new(DType::F32, shape)]).unwrap();
        open(file).fill(&mut model, false).unwrap_err().to_string()
    };
    let mut narrow = mixed();
    narrow[0] = conv2d(6, 3).padding("same");
    let e = fill(narrow, "mixed.pt", &[6, 6, 2]);
    assert!(e.contains("0.weight") && e.contains("[3, 2, 3, 3]") && e.contains("[6, 2, 3, 3]"), "{e}");
    let e = fill(mixed()[..6].to_vec(), "mixed.pt", &[6, 6, 2]);
    assert!(e.contains("6.weight") && e.contains("6.bias") && e.contains("--partial"), "{e}");
    let mut more = mixed();
    more.push(dense(2));
    let e = fill(more, "mixed.pt", &[6, 6, 2]);
    assert!(e.contains("dense_1"), "{e}");
}

#[test]
fn nothing_but_tensors_is_made_of_a_pickle() {
    let e = WeightSource::open(&fixture("whole_module.pt")).err().unwrap().to_string();
    assert!(e.contains("`torch.nn.modules.linear.Linear`") && e.contains("state_dict"), "{e}");
}

#[test]
fn layers_that_are_not_there_are_named() {
    let zip = std::fs::read(fixture("cnn.keras")).unwrap();
    // Of the same length, so that only the checksum is wrong; it is checked first.
    let at = zip.windows(7).position(|w| w == b"Flatten").unwrap();
    let mut other = zip.clone();
    other[at..at + 7].copy_from_slice(b"Flattem");
    let e = WeightSource::from_bytes("x.keras", other).err().unwrap().to_string();
    assert!(e.contains("checksum"), "{e}");
}

#[test]
fn damaged_files_are_errors_and_never_a_panic() {
    for file in [
        "mixed.pt",
        "recurrent.pt",
        "cnn.keras",
        "cnn.h5",
        "branches.keras",
        "earliest.h5",
        "v108.h5",
        "keras_expected.safetensors",
    ] {
        let whole = std::fs::read(fixture(file)).unwrap();
        // A truncated archive is searched for its directory each time: fewer cuts for long ones.
        let step = if whole.len() > 20_000 { 13 * 16 } else { 13 };
        for cut in (0..whole.len()).step_by(step) {
            assert!(WeightSource::from_bytes(file, whole[..cut].to_vec()).is_err(), "{file} cut at {cut}");
        }
        // Replaced bytes: damage under a checksum is detected; elsewhere anything but a panic is right.
        for at in (0..whole.len()).step_by(197) {
            for byte in [0, 0xff, whole[at] ^ 1] {
                let mut bad = whole.clone();
                bad[at] = byte;
                if let Ok(source) = WeightSource::from_bytes(file, bad) {
                    let total: usize = source.tensors().iter().map(|(_, v)| v.bytes().len()).sum();
                    assert!(total <= whole.len() * 8 + (1 << 20));
                    let _ = source.architecture();
                }
            }
        }
    }
}

#[test]
fn layers_are_shared_where_keras_shares_them() {
    let source = open("branches.keras");
    let (layers, _) = source.architecture().unwrap().unwrap();
    assert_eq!(layers.nodes.iter().filter(|n| n.name == "shared").count(), 2);
}

/// Files of before PyTorch 1.6: pickles and storages one after another (`fixtures/weights/legacy_torch.py`).
#[test]
fn legacy_files_of_pytorch_are_read_as_the_later_ones() {
    let source = open("legacy.pth");
    let found: Vec<(&str, Vec<usize>, Vec<f32>)> =
        source.tensors().iter().map(|(n, v)| (n.as_str(), v.shape().to_vec(), v.to_f32s())).collect();
    let expected: [(&str, &[usize], &[f32]); 5] = [
        ("fc1.weight", &[3, 2], &[-1.0, -0.875, -0.75, -0.625, -0.5, -0.375]),
        ("fc1.bias", &[3], &[0.5, -1.5, 2.5]),
        ("fc2.weight", &[2, 3], &[-1.0, -0.75, -0.5, -0.875, -0.625, -0.375]),
        ("fc2.bias", &[2], &[10.0, 20.0]),
        ("steps", &[], &[7.0]),
    ];
    assert_eq!(found, expected.map(|(n, shape, v)| (n, shape.to_vec(), v.to_vec())));
    let mut model = Model::sequential([dense(3), dense(2)]);
    model.build(&[TensorType::new(DType::F32, [2])]).unwrap();
    assert_eq!(source.fill(&mut model, false).unwrap().rows.len(), 4);
    assert_eq!(model.weight("dense_1/bias").unwrap().to_f32s(), [10.0, 20.0]);
}

#[test]
fn damage_of_legacy_files_is_an_error_and_never_a_panic() {
    let bytes = std::fs::read(fixture("legacy.pth")).unwrap();
    let told = |bytes: &[u8]| {
        WeightSource::from_bytes("x.pth", bytes.to_vec()).map(|_| ()).map_err(|e| e.to_string())
    };
    for n in 0..bytes.len() {
        assert!(told(&bytes[..n]).is_err(), "{n} bytes");
        for with in [0, 1, 0x7f, 0xff] {
            let mut bad = bytes.clone();
            bad[n] = with;
            let _ = told(&bad);
        }
    }
    let changed = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|w| w == from).expect("the bytes");
        [&bytes[..at], to, &bytes[at + from.len()..]].concat()
    };
    let e = told(&changed(b"ctorch._utils\n_rebuild_tensor_v2", b"cposix\nsystem")).unwrap_err();
    assert!(e.contains("`posix.system`"), "{e}");
    // A storage that is larger than the file, and one whose length differs from the pickle's.
    let long = 5u64.to_le_bytes();
    let e = told(&changed(
        &[&long[..], &0.5f32.to_le_bytes()].concat(),
        &[&6u64.to_le_bytes()[..], &0.5f32.to_le_bytes()].concat(),
    ));
    assert!(e.unwrap_err().contains("6 elements"));
    let order = [&b"little_endian"[..], b"q\x02\x88"].concat();
    let e = told(&changed(&order, &[&b"little_endian"[..], b"q\x02\x89"].concat())).unwrap_err();
    assert!(e.contains("big-endian"), "{e}");
}

/// HDF5 file of version 0 with four datasets, and the address of its root header.
fn earliest() -> (Vec<u8>, usize) {
    let bytes = std::fs::read(fixture("earliest.h5")).unwrap();
    assert_eq!(bytes[8], 0);
    let root = u64::from_le_bytes(bytes[64..72].try_into().unwrap()) as usize;
    (bytes, root)
}

#[test]
fn superblocks_of_version_1_have_four_more_bytes() {
    let (bytes, _) = earliest();
    let mut other = bytes.clone();
    other[8] = 1;
    // The last bytes of the root entry are scratch space.
    other[28..96].copy_from_slice(&bytes[24..92]);
    let other = WeightSource::from_bytes("x.h5", other).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(other.tensors(), open("earliest.h5").tensors());
}

#[test]
fn soft_links_of_hdf5_are_skipped() {
    let (bytes, _) = earliest();
    let all = WeightSource::from_bytes("x.h5", bytes.clone()).unwrap();
    // The tables of the root and of the group with the datasets.
    let tables = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"SNOD"));
    let table = tables.max_by_key(|&at| bytes[at + 6]).unwrap();
    let entries = usize::from(bytes[table + 6]);
    assert!(entries > 1);
    for entry in 0..entries {
        let mut linked = bytes.clone();
        linked[table + 8 + 40 * entry + 16] = 2;
        let linked = WeightSource::from_bytes("x.h5", linked).unwrap_or_else(|e| panic!("{e}"));
        let (kept, all) = (linked.tensors(), all.tensors());
        assert!(kept.len() < all.len() && kept.iter().all(|tensor| all.contains(tensor)), "entry {entry}");
    }
}

#[test]
fn a_message_that_exceeds_its_header_is_an_error() {
    let (bytes, root) = earliest();
    let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let mut at = root + 16;
    let end = at + word(root + 8);
    while at + 8 + word(at + 2) < end {
        at += 8 + word(at + 2);
    }
    assert_eq!(at + 8 + word(at + 2), end);
    for more in [8, 16] {
        let mut longer = bytes.clone();
        longer[at + 2..at + 4].copy_from_slice(&((word(at + 2) + more) as u16).to_le_bytes());
        let e = WeightSource::from_bytes("x.h5", longer).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    }
}

/// PyTorch archive with this pickle and one storage of a float.
fn torch_file(pickle: &[u8]) -> Vec<u8> {
    let file = |name: &str, head: &[u8]| StoredZipEntry { name: name.into(), head: head.into(), data: &[] };
    archive(vec![file("x/data.pkl", pickle), file("x/data/0", &2.5f32.to_le_bytes())]).concat()
}

/// Pickle of a tensor of one element with this many dimensions.
fn tensor_of(rank: usize) -> Vec<u8> {
    let sizes = [&b"("[..], &b"K\x01".repeat(rank), b"t"].concat();
    let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ";
    let hooks = b"ccollections\nOrderedDict\n)R";
    [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], storage, b"K\0", &sizes, &sizes, b"\x89", hooks, b"tR"]
        .concat()
}

#[test]
fn tensors_of_pytorch_have_up_to_16_dimensions_and_a_name() {
    let named = |rank| torch_file(&[&b"\x80\x02}X\x01\0\0\0w"[..], &tensor_of(rank), b"s."].concat());
    for rank in [0, 1, 16] {
        let source = WeightSource::from_bytes("x.pt", named(rank)).unwrap_or_else(|e| panic!("{rank}: {e}"));
        let expected = Literal::from_slice(&vec![1; rank][..], &[2.5f32]).unwrap();
        assert_eq!(source.tensors(), [("w".to_string(), expected)]);
    }
    assert_eq!(WeightSource::from_bytes("x.pt", named(17)).err().unwrap().kind(), ErrorKind::Data);
    let bare = torch_file(&[&b"\x80\x02"[..], &tensor_of(1), b"."].concat());
    assert_eq!(WeightSource::from_bytes("x.pt", bare).err().unwrap().kind(), ErrorKind::Data);
}

#[test]
fn exported_models_of_keras_have_batches_of_any_size() {
    let model = told("keras", "branches.keras", "branches");
    let bytes = export(&model, WeightFormat::Keras, Path::new("x.keras")).unwrap().bytes;
    let text = ZipArchive::open(&bytes).unwrap().read("config.json", 1 << 20).unwrap().unwrap();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let inputs = &model.architecture().inputs;
    assert!(!inputs.is_empty());
    for (k, input) in inputs.iter().enumerate() {
        let mut expected = vec![serde_json::Value::Null];
        expected.extend(input.ty.as_ref().unwrap().shape.dims().iter().map(|&n| n.into()));
        let layer = &config["config"]["layers"][k];
        assert_eq!(layer["class_name"], "InputLayer");
        assert_eq!(layer["config"]["batch_shape"], serde_json::Value::from(expected));
    }
}
