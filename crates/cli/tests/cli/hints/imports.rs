//! Hints about imported and exported model files.

use super::texts::folder;
use super::{Case, row, with_fixtures, with_table};
use crate::program::Folder;
use crate::program::made::{npz, picture, table};
use safetensors::SafeTensors;
use std::fs;
use systole_data::format::zip::{self, StoredZipEntry, ZipArchive};
use systole_ir::Literal;

/// Arguments, and those after following the hint; `@` is the folder of fixtures.
const ROWS: &[(&str, &str)] = &[
    (
        "import odd.safetensors --out x.safetensors",
        "import odd.safetensors --out x.safetensors --model `runs/t/t.safetensors`",
    ),
    (
        "import odd.safetensors --out x.safetensors --model mlp",
        "import odd.safetensors --out x.safetensors --model `runs/t/t.safetensors`",
    ),
    (
        "import more.safetensors --out x.safetensors --model runs/t/t.safetensors",
        "import more.safetensors --out x.safetensors --model runs/t/t.safetensors --partial",
    ),
    (
        "import few.safetensors --out x.safetensors --model runs/t/t.safetensors",
        "import `odd.safetensors` --out x.safetensors --model runs/t/t.safetensors",
    ),
    (
        "import @weights/rank1.pt --out x.safetensors --model runs/t/t.safetensors",
        "import `odd.safetensors` --out x.safetensors --model runs/t/t.safetensors",
    ),
    (
        "export bare.safetensors --format keras --out x.keras",
        "export bare.safetensors --format torch --out `x.pt`",
    ),
    ("import @weights/gpt2 --encoder texts --out x.safetensors", "import @weights/gpt2 --out x.safetensors"),
    ("import llm --out x.safetensors", "import `@weights/gpt2` --out x.safetensors"),
    ("predict small.tflite new.csv --embed", "predict `runs/t` new.csv --embed"),
    ("import empty --out x.safetensors", "import `@weights/gpt2` --out x.safetensors"),
    ("import hello.h5 --out x.safetensors", "import `@weights/rank1.pt` --out x.safetensors"),
    ("import model.gguf --out x.safetensors", "import `@weights/rank1.pt` --out x.safetensors"),
    ("import @onnx/mlp.onnx --out x.safetensors", "run `@onnx/mlp.onnx` `--random` `1`"),
    (
        "import @weights/resnet.pt --model mlp --out x.safetensors",
        "import @weights/resnet.pt --out x.safetensors",
    ),
    ("import @weights/cnn.h5 --model mlp --out x.safetensors", "import @weights/cnn.h5 --out x.safetensors"),
    ("import there.pt --out runs/t/t.safetensors", "import there.pt --out runs/t/t.safetensors --force"),
    ("export runs/t --format keras --out x.pt", "export runs/t --format keras --out `x`.keras"),
    (
        "export runs/t --format torch --out x.pt --int8",
        "export runs/t --format tflite --out `x.tflite` --int8",
    ),
    (
        "export runs/t --format onnx --out x.onnx --dynamic",
        "export runs/t --format onnx --out x.onnx --int8 `--samples` `8`",
    ),
    (
        "export runs/t --format tflite --out x.tflite --samples 8",
        "export runs/t --format tflite --out x.tflite --samples 8 --int8",
    ),
    ("export runs/t --format torch --out there.pt", "export runs/t --format torch --out there.pt --force"),
    (
        "import less.safetensors --out x.safetensors",
        "import `rt.safetensors` --out x.safetensors `--model` `r.safetensors`",
    ),
    (
        "import less.safetensors --out x.safetensors --model r.safetensors",
        "import `rt.safetensors` --out x.safetensors --model r.safetensors",
    ),
    (
        "import first.safetensors --out x.safetensors --model runs/t/t.safetensors",
        "import `odd.safetensors` --out x.safetensors --model runs/t/t.safetensors",
    ),
    // The model of these files would be a long TOML file: a file and its model stand for it.
    (
        "import bert --out x.safetensors",
        "import `odd.safetensors` --out x.safetensors --model `runs/t/t.safetensors`",
    ),
    (
        "import weird.keras --out x.safetensors",
        "import `odd.safetensors` --out x.safetensors --model `runs/t/t.safetensors`",
    ),
    (
        "import shape.keras --out x.safetensors",
        "import `odd.safetensors` --out x.safetensors --model `runs/t/t.safetensors`",
    ),
    ("export runs/g --format keras --out x.keras", "export runs/g --format keras --out `x`.weights.h5"),
    ("evaluate runs/t --data-dir cls.csv", "train cls.csv `--out`=`out` `--epochs`=`1`"),
    ("evaluate runs/t --data-dir number.csv", "evaluate runs/t --data-dir `t.csv`"),
    ("evaluate @onnx/cnn.onnx --dataset glyphs", "evaluate @onnx/cnn.onnx --dataset `mnist`"),
    ("predict @onnx/attention.onnx t.csv", "run @onnx/attention.onnx `--random` `1`"),
    ("predict @onnx/beside.onnx t.csv", "data inspect t.csv"),
    ("run small.tflite --function a --random 1", "run small.tflite --random 1"),
    ("evaluate reg.tflite --data-dir number.csv", "predict reg.tflite `n.csv`"),
    ("evaluate small.tflite", "evaluate small.tflite --data-dir `t.csv`"),
    ("evaluate runs/t --data-dir many.csv", "evaluate runs/t"),
    ("evaluate small.tflite --data-dir number.csv", "evaluate small.tflite --data-dir `t.csv`"),
    ("evaluate bare.safetensors", "evaluate bare.safetensors --dataset `mnist`"),
    ("predict runs/t none.csv", "predict runs/t `new.csv`"),
    (
        "quantize runs/t --data-dir zeros.csv --out x.tflite",
        "quantize runs/t --data-dir `t.csv` --out x.tflite",
    ),
    ("export runs/p --format torch --out x.pt", "export runs/p --format keras --out `x.keras`"),
    ("export runs/t --out x.pb", "export runs/t --out `x`.keras"),
    ("predict dino x.png", "predict dino x.png --embed"),
    ("evaluate one.safetensors many.csv", "evaluate one.safetensors `t.csv`"),
    ("run small.tflite", "run small.tflite --random `1`"),
    ("run small.tflite --input wrong.npz", "summary small.tflite"),
    ("run mlp.onnx --dim bach=3 --random 1", "run mlp.onnx --random 1"),
    ("predict two.onnx t.csv", "`run` two.onnx `--random` `1`"),
    ("evaluate small.tflite --tta=2", "evaluate small.tflite `--data-dir` `t.csv`"),
    ("evaluate runs/t --features runs/t", "evaluate runs/t"),
    ("evaluate runs/t --tta=2", "evaluate runs/t"),
    ("generate bare.safetensors --prompt a", "generate bare.safetensors --prompt a --tokenizer `chars.json`"),
    ("predict runs/t t.csv --out x.txt", "predict runs/t new.csv --out `x`.csv"),
    (
        "train --from m.safetensors --out=out --epochs=1",
        "train `t.csv` --from m.safetensors --fine-tune --out=out --epochs=1",
    ),
    (
        "train t.csv --from w.safetensors --out=out --epochs=1",
        "train t.csv --from w.safetensors --fine-tune --out=out --epochs=1",
    ),
    (
        "import m.keras --out x.safetensors --model runs/bare",
        "import m.keras --out x.safetensors --model `runs/t`",
    ),
    (
        "import m.keras --out x.safetensors --model runs/wide",
        "import m.keras --out x.safetensors --model `runs/t`",
    ),
    (
        "import odd.safetensors --out x.safetensors --model runs/wide",
        "import odd.safetensors --out x.safetensors --model `runs/t`",
    ),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-imports");
    f.write("new.csv", "a,b\n0.5,0.25\n");
    f.write("empty/x.txt", "");
    f.write("number.csv", table("a,b,label", 60, |i| format!("{i},1,{}.5", i % 50)));
    f.write("n.csv", "a,b\n1,1\n");
    f.write("many.csv", table("a,b,label", 60, |i| format!("{i},1,{}", i % 5)));
    f.write("none.csv", "a,b\n");
    f.write("zeros.csv", table("a,b,label", 60, |i| format!("0,0,{}", i % 2)));
    f.write("hello.h5", "hello");
    f.write("model.gguf", b"GGUF\x03\0\0\0");
    f.write("there.pt", "");
    f.write("llm/config.json", r#"{"model_type": "llama"}"#);
    f.write("x.png", picture(20, 1, None));
    let array = systole_data::format::npy::to_bytes(&Literal::from_slice([2], &[1i32, 2]).unwrap()).unwrap();
    f.write("wrong.npz", npz(&[("arg0", array)]));
    f.write("chars.json", r#"{"model": {"type": "Chars", "vocab": "abcdefghij .\n"}}"#);
    for (from, to) in
        [("onnx/mlp.onnx", "mlp.onnx"), ("onnx/bag.onnx", "two.onnx"), ("weights/rank1.pt", "rank1.pt")]
    {
        fs::copy(with_fixtures(&format!("@{from}")), f.path(to)).unwrap();
    }
    for line in [
        "train t.csv --out=runs/t --epochs=1 --threads=1 --quiet",
        "export runs/t --format tflite --out small.tflite",
        "import @weights/gpt2 --out bare.safetensors",
        "export runs/t --format safetensors --out odd.safetensors",
        "export runs/t --format keras --out m.keras",
        "import m.keras --out m.safetensors",
        "train t.csv --out=runs/bare --epochs=1 --threads=1 --quiet --set layers.2.use_bias=false",
        "train t.csv --out=runs/wide --epochs=1 --threads=1 --quiet --set layers.2.units=32",
        "export runs/wide --format keras --out w.keras",
        "import w.keras --out w.safetensors",
        "train t.csv --out=runs/one --epochs=1 --threads=1 --quiet --set=layers=[{type=\"Dense\",units=1,activation=\"sigmoid\"}] --set=compile.loss=binary_crossentropy --set=compile.metrics=[\"binary_accuracy\"]",
        "export runs/one --format keras --out one.keras",
        "import one.keras --out one.safetensors",
        "import @weights/resnet.pt --out r.safetensors",
        "export r.safetensors --format safetensors --out rt.safetensors",
        "train t.csv --out=runs/g --epochs=1 --threads=1 --quiet --set=layers=[{type=\"Dense\",units=2,activation={elu={alpha=0.5}}}]",
        "train number.csv --out=runs/n --epochs=1 --threads=1 --quiet --set=data.records.label=label",
        "export runs/n --format tflite --out reg.tflite",
        "train t.csv --out=runs/p --epochs=1 --threads=1 --quiet --set=layers=[{type=\"Dense\",units=2},{type=\"EinsumDense\",equation=\"ab,bc->ac\",output_shape=[2]},{type=\"Dense\",units=2}]",
    ] {
        f.run(&with_fixtures(line).split(' ').collect::<Vec<_>>()).ok();
    }
    let read = |name: &str| fs::read(f.path(name)).unwrap();
    let odd = read("odd.safetensors");
    f.write("more.safetensors", with_extra(&odd));
    f.write("few.safetensors", without(&odd, |name| name.ends_with(".weight")));
    f.write("first.safetensors", without(&odd, |name| name.starts_with("dense")));
    f.write("less.safetensors", without(&read("rt.safetensors"), |name| name == "fc.weight"));
    folder(&f, "hugging_face_predict/dinov2", "dino");
    folder(&f, "bert_classifier", "bert");
    f.write(
        "bert/model.safetensors",
        without(&read("bert/model.safetensors"), |name| name.contains("word_embeddings")),
    );
    f.write("weird.keras", keras("DepthwiseConv2D", "WeirdConvolution"));
    f.write("shape.keras", keras("batch_shape", "batch_shapf"));
    f.write("cls.csv", table("a,b,label", 60, |i| format!("{i},1,{}", ["x", "y"][i % 2])));
    (f, ROWS.iter().map(|(wrong, right)| row(&with_fixtures(wrong), &with_fixtures(right))).collect())
}

/// A file of weights with one array more.
fn with_extra(file: &[u8]) -> Vec<u8> {
    let arrays = SafeTensors::deserialize(file).unwrap();
    let mut all: Vec<_> = arrays.iter().collect();
    let extra = all[0].1.clone();
    all.push(("extra.weight", extra));
    safetensors::serialize(all, None).unwrap()
}

/// A file of weights without some arrays.
fn without(file: &[u8], is_left_out: impl Fn(&str) -> bool) -> Vec<u8> {
    let arrays = SafeTensors::deserialize(file).unwrap();
    safetensors::serialize(arrays.iter().filter(|(name, _)| !is_left_out(name)), None).unwrap()
}

/// A Keras file of the fixtures with another word in its configuration.
fn keras(from: &str, to: &str) -> Vec<u8> {
    let file = fs::read(with_fixtures("@weights/cnn.keras")).unwrap();
    let archive = ZipArchive::open(&file).unwrap();
    let entries = archive.names().map(|name| {
        let mut bytes = archive.read(name, 1 << 24).unwrap().unwrap();
        if name == "config.json" {
            bytes = String::from_utf8(bytes).unwrap().replace(from, to).into_bytes();
        }
        StoredZipEntry { name: name.into(), head: bytes, data: &[] }
    });
    zip::archive(entries.collect()).concat()
}
