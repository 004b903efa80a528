// The targets for weights of other systems, as targets.rs has the others: whole files, and pickles in an archive that is whole.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use systole_data::format::zip::{StoredZipEntry, archive};
use systole_weights::WeightSource;

/// Folders of Hugging Face among the fixtures, whose weights go with each config.json.
const FOLDERS: [&str; 12] = [
    "gpt2",
    "bert_classifier",
    "vit",
    "hugging_face/roberta_classifier",
    "hugging_face/mpnet",
    "hugging_face/albert",
    "hugging_face/t5",
    "hugging_face/dinov2_classifier",
    "hugging_face/convnext_classifier",
    "hugging_face/swin",
    "hugging_face/whisper",
    "hugging_face/clip",
];

/// A folder of the fixtures, from the fuzzers' crate or from the tests'.
fn folder(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().map(|at| at.join("fixtures/weights").join(name)).find(|at| at.is_dir()).expect("fixtures")
}

thread_local! {
    static SOURCES: RefCell<Vec<WeightSource>> = const { RefCell::new(Vec::new()) };
}

/// The layers of each folder's weights, by this config.json.
pub fn hfconfig(bytes: &[u8]) {
    SOURCES.with_borrow_mut(|sources| {
        if sources.is_empty() {
            sources.extend(FOLDERS.map(|name| WeightSource::open(&folder(name)).expect("a fixture")));
        }
        for source in sources {
            if source.set_config(bytes).is_ok() {
                let _ = source.architecture();
            }
        }
    });
}

pub fn hfconfig_seeds() -> Vec<Vec<u8>> {
    let of = |name| std::fs::read(folder(name).join("config.json")).expect("a fixture");
    let no_heads = br#"{"n_head":0,"num_attention_heads":0}"#.to_vec();
    FOLDERS.into_iter().map(of).chain([no_heads]).collect()
}

pub fn weights(bytes: &[u8]) {
    let Ok(source) = WeightSource::from_bytes("fuzz", bytes.to_vec()) else { return };
    // All arrays together: `Budget` in the crate.
    let held: usize = source.tensors().iter().map(|(_, value)| value.bytes().len()).sum();
    assert!(held <= 8 * bytes.len() + (1 << 20), "{held} bytes of {}", bytes.len());
    let _ = source.architecture();
}

pub fn pickle(bytes: &[u8]) {
    let part = |name: &str, data| StoredZipEntry { name: name.into(), head: Vec::new(), data };
    let elements = [7u8; 256];
    let parts = archive(vec![part("a/data.pkl", bytes), part("a/data/0", &elements)]);
    weights(&parts.concat());
}

/// The layers that a `config.json` of a `.keras` archive describes.
pub fn keras(bytes: &[u8]) {
    let part = |name: &str, data| StoredZipEntry { name: name.into(), head: Vec::new(), data };
    let parts = archive(vec![
        part("config.json", bytes),
        part("model.weights.h5", include_bytes!("../../fixtures/weights/v108.h5")),
    ]);
    if let Ok(source) = WeightSource::from_bytes("fuzz", parts.concat()) {
        let _ = source.architecture();
    }
}

pub fn keras_seeds() -> Vec<Vec<u8>> {
    let layer = |class: &str, arguments: &str| {
        format!(r#"{{"class_name":"{class}","config":{{"name":"a"{arguments}}},"build_config":{{}}}}"#)
    };
    let input = layer("InputLayer", r#","batch_shape":[null,6,4]"#);
    let lstm = layer("LSTM", r#","units":2,"return_sequences":true,"activation":"tanh""#);
    let both = layer("Bidirectional", &format!(r#","layer":{lstm},"merge_mode":"concat""#));
    let each = layer("TimeDistributed", &format!(r#","layer":{}"#, layer("Dense", r#","units":3"#)));
    let cell = layer("RNN", &format!(r#","cell":{}"#, layer("GRUCell", r#","units":2"#)));
    let plain = [
        layer(
            "Conv1D",
            r#","filters":2,"kernel_size":[3],"strides":[2],"padding":"same","dilation_rate":[1]"#,
        ),
        layer("Flatten", ""),
        layer("Dense", r#","units":3,"activation":{"class_name":"function","config":"relu"}"#),
        layer("Foo", ""),
    ];
    let sequential = |layers: &[String]| {
        let layers = layers.join(",");
        format!(r#"{{"class_name":"Sequential","config":{{"name":"m","layers":[{layers}]}}}}"#)
    };
    let call = r#""inbound_nodes":[{"args":[{"class_name":"__keras_tensor__","config":{"keras_history":["x",0,0]}}],"kwargs":{}}]"#;
    let functional = format!(
        r#"{{"class_name":"Functional","config":{{"layers":[
            {{"class_name":"InputLayer","name":"x","config":{{"name":"x","batch_shape":[null,4]}},"inbound_nodes":[]}},
            {{"class_name":"Dense","name":"d","config":{{"name":"d","units":2}},{call}}}],
            "input_layers":[["x",0,0]],"output_layers":[["d",0,0]]}}}}"#
    );
    let first = sequential(&[input.clone(), both, each, cell]);
    let second = sequential(&[vec![input], plain.to_vec()].concat());
    [first, second, functional].map(String::into_bytes).into()
}

pub fn weights_seeds() -> Vec<Vec<u8>> {
    let all: [&[u8]; 4] = [
        include_bytes!("../../fixtures/weights/mixed.pt"),
        include_bytes!("../../fixtures/weights/v108.h5"),
        include_bytes!("../../fixtures/weights/earliest.h5"),
        include_bytes!("../../fixtures/weights/keras_expected.safetensors"),
    ];
    all.map(<[u8]>::to_vec).to_vec()
}

/// `{"w": tensor}` and `{"model": OrderedDict(w=parameter)}`, as PyTorch writes them, by hand.
pub fn pickle_seeds() -> Vec<Vec<u8>> {
    const STORAGE: &[u8] =
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x40tQ";
    let tensor = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
        STORAGE,
        b"K\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtR",
    ]
    .concat();
    let plain = [b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01", &tensor[..], b"q\x02s."].concat();
    let nested = [
        b"\x80\x02}X\x05\x00\x00\x00modelccollections\nOrderedDict\n)R(X\x01\x00\x00\x00w",
        &b"ctorch._utils\n_rebuild_parameter\n("[..],
        &tensor,
        b"\x88ccollections\nOrderedDict\n)RtRus.",
    ]
    .concat();
    vec![plain, nested]
}
