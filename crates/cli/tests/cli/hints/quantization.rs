//! Hints about `quantize` and its options.

use super::{Case, row, with_table};
use crate::program::Folder;

/// Arguments, and those after following the hint.
const ROWS: &[(&str, &str)] = &[
    (
        "quantize runs/t --weights int4 --out x.tflite",
        "quantize runs/t --weights int4 --activations none --out `x.safetensors`",
    ),
    ("quantize runs/t --out x.bin", "quantize runs/t --out `x`.tflite"),
    (
        "quantize runs/t --activations none --out x.tflite",
        "quantize runs/t --activations none --out `x`.safetensors",
    ),
    (
        "quantize runs/t --activations none --samples 8 --out x.safetensors",
        "quantize runs/t --activations none --out x.safetensors",
    ),
    ("quantize runs/t --target edgetpu --out x.onnx", "quantize runs/t --target edgetpu --out `x`.tflite"),
    ("quantize runs/t --out there.tflite", "quantize runs/t --out there.tflite --force"),
    ("quantize runs/t --skip dens --out x.tflite", "quantize runs/t --skip dense --out x.tflite"),
    ("quantize runs/q --per tensor --out x.tflite", "quantize runs/q --out x.tflite"),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-quantize");
    f.write("there.tflite", "");
    for line in [
        "train t.csv --out=runs/t --epochs=1 --threads=1 --quiet",
        "train t.csv --out=runs/q --epochs=1 --threads=1 --quiet --set=layers=[{type=\"Dense\",units=8,activation=\"relu\"},{type=\"Dense\",units=2}] --set quantize.per_channel=true",
    ] {
        f.run(&line.split(' ').collect::<Vec<_>>()).ok();
    }
    (f, ROWS.iter().map(|(wrong, right)| row(wrong, right)).collect())
}
