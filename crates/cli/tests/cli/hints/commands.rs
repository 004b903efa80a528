//! Hints of the commands about programs, benchmarks, plans, data files and documents.

use super::{Case, case, row, with_table};
use crate::program::Folder;

/// Arguments, and those after following the hint.
const ROWS: &[(&str, &str)] = &[
    // Devices.
    ("devices --device cup", "devices --device cpu"),
    (
        "train mlp --plugin-option a=1 --print-config",
        "train mlp --plugin-option a=1 --print-config --device `pjrt`",
    ),
    // Benchmarks and comparisons.
    (
        "bench gemm mlp --trace x.json",
        "bench gemm-512 --trace x.json --precision float32 `--seconds` `0.001`",
    ),
    ("bench gem", "bench gemm `--help`"),
    (
        "bench gemm-512 --batch-size 4 --precision float32",
        "bench `mlp` --batch-size 4 --precision float32 `--seconds` `0.001`",
    ),
    ("bench mlp --precision f3", "bench mlp --precision float32 `--seconds` `0.001`"),
    ("bench table", "data bench `t.csv` `--seconds` `0.01`"),
    ("check add.mlir --devices cpu", "check add.mlir --devices cpu,ref"),
    ("chips v5", "chips v5e"),
    ("chips nosuch", "chips v5e"),
    ("selftest --device=cpu --ops=scater", "selftest --device=cpu --ops=scatter `--steps` `1`"),
    ("compare runs/t --metric acuracy", "compare runs/t --metric sparse_categorical_accuracy"),
    ("compare imported.safetensors", "compare `runs/t`"),
    // Compilation for other machines.
    ("compile mlp --target h100 --num-slices 2", "compile mlp --target 8*h100"),
    ("compile add.mlir --target v5e-1 --batch-size 3", "compile add.mlir --target v5e-1"),
    ("compile add.mlir --target v5e-4 --mesh data=4", "compile add.mlir --target v5e-4 --partitions `4`"),
    ("compile mlp --target v5e-4 --partitions 4", "compile mlp --target v5e-4 --strategy `data_parallel`"),
    ("compile mlp --target v5e-4 --batch-size 3", "compile mlp --target v5e-4 --batch-size 4"),
    ("compile mlp --target v5e-4 --mesh data=8", "compile mlp --target v5e-4 --mesh `data=4`"),
    ("compile runs/t --target v5e-1 --precision mixed_bfloat16", "compile runs/t --target v5e-1"),
    ("compile runs/t --target v5e-1 --set seed=1", "compile `mlp` --target v5e-1 --set seed=1"),
    // Plans.
    ("plan add.mlir --targets v5e-4 --batch-size 8", "plan add.mlir --targets v5e-4 --steps `8`"),
    ("plan mlp --targets v1", "quantize `runs/t` --per tensor --out `x.tflite` `--samples` `8`"),
    (
        "plan mlp --targets edgetpu",
        "export `runs/t` --format tflite --int8 --target edgetpu --out `x.tflite`",
    ),
    ("plan mpl --targets v5e-4", "plan mlp --targets v5e-4"),
    ("plan imported.safetensors --targets v5e-4", "plan `mlp` --targets v5e-4"),
    ("plan model.gguf --targets v5e-4", "plan `mlp` --targets v5e-4"),
    ("plan --matmul 3x4 --targets v5e-4", "plan --matmul 4096x4096x4096 --targets v5e-4"),
    ("plan --matmul 3x4x5 --dtype f9 --targets v5e-4", "plan --matmul 3x4x5 --dtype bf16 --targets v5e-4"),
    // Programs.
    ("run add.mlir --dim batch=3 --random 1", "run add.mlir --random 1"),
    ("run runs --random 1", "run `add.mlir` --random 1"),
    ("run tests.mlir --output y.npz", "run tests.mlir --output y.npz --function `one`"),
    ("show add.mlir --batch-size 3", "show add.mlir"),
    ("show add.mlir --stage grad", "show add.mlir --stage traced"),
    ("show runs", "show `runs/t`"),
    ("show imported.safetensors --schedule", "show imported.safetensors --schedule --steps `3`"),
    ("show add.mlir --schedule", "show add.mlir"),
    ("show add.mlir --schedule --steps 3", "show `mlp` --schedule --steps 3"),
    ("translate add.mlir x.txt", "translate add.mlir `x`.mlirbc"),
    ("translate add.mlir - --target 1.0.0", "translate add.mlir `x`.mlirbc --target 1.0.0"),
    ("translate add.mlir x.mlirbc --target new", "translate add.mlir x.mlirbc --target 1.0.0"),
    // Data files.
    ("data convert t.csv there/t", "data convert t.csv there/t --force"),
    ("data bench t.csv --freeze x.toml", "data bench `mlp` --freeze x.toml `--seconds` `0.01`"),
    ("data bench mlp --shuffle 3", "init `mlp`"),
    // Documents and files.
    ("show mlp --schedule --steps 3 --out ..", "show mlp --schedule --steps 3 --out `s.svg`"),
    (
        "train mlp --out=out --epochs=1 --batch-size=8 --set=layers=[{type=\"Dense\",units=10}]",
        "train mlp --out=out --epochs=1 --batch-size=8 --set=layers=`[{type=\"Flatten\"},{type=\"Dense\",units=10}]` `--steps-per-epoch`=`1`",
    ),
    ("man --out file/below", "man --out `man`"),
    ("layers Dens", "layers Dense"),
    ("layers Dnse", "layers Dense"),
    ("env --trace file/x.json", "env --trace `x.json`"),
    ("lr-find t.csv --out x.png --num-it 20", "lr-find t.csv --out `x`.svg --num-it 20"),
    ("lr-find t.csv --num-it 1", "lr-find t.csv --num-it 20"),
    (
        "lr-find t.csv --num-it 20 --suggest slide --apply --epochs 1 --out out",
        "lr-find t.csv --num-it 200 --suggest slide --apply --epochs 1 --out out",
    ),
    ("tpu1 tpu1/mlp0 --check", "tpu1 `int8.tflite` --check"),
    ("tpu1 --animate x.svg --trace x.json", "tpu1 tpu1/mlp0 --trace x.json"),
    ("tpu1 --animate x.gif", "tpu1 --animate `x`.svg"),
    ("tpu1 tpu1/mlp0 --trace file/x.json", "tpu1 tpu1/mlp0 --trace `x.json`"),
    ("train t.csv --synthetic --out=out --epochs=1", "train t.csv --out=out --epochs=1"),
    // Pretrained models by name.
    (
        "import hf:a/b/c --offline --out x.safetensors",
        "import hf:openai-community/gpt2 --offline --out x.safetensors",
    ),
    (
        "import keras:ResNet5 --offline --out x.safetensors",
        "import keras:ResNet50 --offline --out x.safetensors",
    ),
    (
        "import torchvision:resnet50@IMAGENET1K_V3 --offline --out x.safetensors",
        "import torchvision:resnet50@IMAGENET1K_V1 --offline --out x.safetensors",
    ),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-commands");
    f.write("file", "");
    let add = |name: &str| {
        format!(
            "  func.func public @{name}(%arg0: tensor<2xf32>) -> tensor<2xf32> {{\n    %0 = \"stablehlo.add\"(%arg0, %arg0) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n  }}\n"
        )
    };
    f.write("add.mlir", format!("module {{\n{}}}\n", add("main")));
    let test = |name: &str| {
        format!(
            "func.func @{name}() {{\n  %x = stablehlo.constant dense<1.0> : tensor<f32>\n  check.expect_eq_const %x, dense<1.0> : tensor<f32>\n  func.return\n}}\n"
        )
    };
    f.write("tests.mlir", test("one") + &test("two"));
    f.write("model.gguf", b"GGUF\x03\0\0\0");
    for line in [
        "train t.csv --out=runs/t --epochs=1 --threads=1 --quiet",
        "data convert t.csv there/t",
        "quantize runs/t --per tensor --out int8.tflite",
        concat!(
            "import ",
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/weights/gpt2 --out imported.safetensors"
        ),
    ] {
        f.run(&line.split(' ').collect::<Vec<_>>()).ok();
    }
    let mut cases: Vec<Case> = ROWS.iter().map(|(wrong, right)| row(wrong, right)).collect();
    cases.extend([
        case("setup tpu").sets("SYSTOLE_CACHE", "cache"),
        case("setup tpu").env("SYSTOLE_CACHE", "cache").sets("SYSTOLE_PYTHON", "false"),
        case("setup tpu").env("SYSTOLE_CACHE", "").env("HOME", "").sets("SYSTOLE_CACHE", "cache"),
        case("data fetch flower"),
        case("data fetch mnist --mirror ftp://a"),
        case("data fetch mnist --offline")
            .env("SYSTOLE_CACHE", "")
            .env("HOME", "")
            .env("XDG_CACHE_HOME", "")
            .sets("SYSTOLE_CACHE", "cache"),
        case("train cifar-cnn --data-dir there --out=out --epochs=1"),
        case("train cifar-cnn --data-dir there --out=out --epochs=1 --set data.dataset=cifar100"),
        case("setup xla-cpu --version 0.0.1").env("SYSTOLE_CACHE", "cache").typed("setup xla-cpu"),
        case("train mnist --out=out --epochs=1 --steps-per-epoch=1 --batch-size=8")
            .typed("train glyphs --out=out --epochs=1 --steps-per-epoch=1 --batch-size=8")
            .own("--steps-per-epoch")
            .own("1"),
    ]);
    (f, cases)
}
