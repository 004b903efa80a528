//! Tests NumPy arrays as samples, their shapes, and pixels that are scaled twice.

use crate::program::made::npz;
use crate::program::{Done, Folder, TINY};
use serde_json::Value;
use systole_data::format::npy;
use systole_ir::Literal;

fn answers(done: &Done) -> Vec<Value> {
    let all =
        done.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["probability"].clone());
    all.collect()
}

/// Trains on 28 × 28 gray images with pixels from 0 to 1.
fn trained(f: &Folder, dir: &str, more: &[&str]) {
    let args =
        ["train", "fashion-mnist", "--data-dir=data", "--set=data.scale=1/255", "--out", dir, "--no-report"];
    f.run(&[&args[..], &TINY, more].concat()).ok();
}

fn pixels(count: usize) -> Vec<u8> {
    (0..count * 784).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn write_u8(f: &Folder, name: &str, dims: &[usize]) {
    let count = dims.iter().product::<usize>().div_ceil(784);
    let x = &pixels(count)[..dims.iter().product()];
    npy::write(f.path(name), &Literal::from_slice(dims.to_vec(), x).unwrap()).unwrap();
}

#[test]
fn an_array_of_the_input_shape_is_one_sample_and_a_batch_has_one_dimension_more() {
    let f = Folder::with_data("arrays");
    trained(&f, "m", &[]);
    f.run(&["export", "m", "--out=m.tflite"]).ok();
    f.run(&["export", "m", "--out=m.onnx"]).ok();
    write_u8(&f, "batch.npy", &[1, 28, 28, 1]);
    write_u8(&f, "one.npy", &[28, 28, 1]);
    write_u8(&f, "gray.npy", &[28, 28]);
    let floats: Vec<f32> = pixels(1).iter().map(|v| f32::from(*v)).collect();
    let x = Literal::from_slice([28, 28, 1], &floats).unwrap();
    npy::write(f.path("floats.npy"), &x).unwrap();
    f.write("one.npz", npz(&[("x", npy::to_bytes(&x).unwrap())]));
    write_u8(&f, "several.npy", &[3, 28, 28]);
    for model in ["m", "m.tflite", "m.onnx"] {
        let predict = |file: &str| answers(&f.run(&["predict", model, file, "--json"]).ok());
        let expected = predict("batch.npy");
        assert_eq!(expected.len(), 1);
        for file in ["one.npy", "gray.npy", "floats.npy", "one.npz"] {
            assert_eq!(predict(file), expected, "{model} {file}");
        }
        let several = predict("several.npy");
        assert!(several.len() == 3 && several[0] == expected[0], "{several:?}");
        for dims in [&[28, 28, 3][..], &[1, 1, 28, 28], &[784], &[2, 784], &[14, 14, 1], &[1, 1, 28, 28, 1]] {
            write_u8(&f, "other.npy", dims);
            let shown = format!("{dims:?}");
            f.run(&["predict", model, "other.npy"])
                .fails("data", &["other.npy", "[N, 28, 28, 1]", "[28, 28, 1]", &shown]);
        }
    }
    let inverted: Vec<u8> = pixels(1).iter().map(|v| 255 - v).collect();
    npy::write(f.path("inverted.npy"), &Literal::from_slice([28, 28], &inverted).unwrap()).unwrap();
    let again = answers(&f.run(&["predict", "m", "inverted.npy", "--invert", "--json"]).ok());
    assert_eq!(again, answers(&f.run(&["predict", "m", "gray.npy", "--json"]).ok()));
    f.run(&["predict", "m", "floats.npy", "--invert"]).fails("data", &["floats.npy", "--invert"]);
    f.write("empty.png", "");
    let empty = f.run(&["predict", "m", "empty.png"]);
    assert!(empty.err.contains("image") && !empty.err.contains("IDX"), "{}", empty.err);
    empty.fails("data", &["empty.png"]);
}

/// A table model: `[2]` is one record, `[N, 2]` are several.
#[test]
fn an_array_for_a_model_of_records_is_one_record_or_several() {
    let f = Folder::new("arrays-records");
    let x: Vec<f32> = (0..160).map(|i| (i * 37 % 100) as f32 / 100.0).collect();
    let y: Vec<i32> = (0..80).map(|i| i32::from(x[2 * i] > x[2 * i + 1])).collect();
    let bytes = |x: &Literal| npy::to_bytes(x).unwrap();
    let (x_all, y_all) = (Literal::from_slice([80, 2], &x).unwrap(), Literal::from_slice([80], &y).unwrap());
    f.write("own.npz", npz(&[("x", bytes(&x_all)), ("y", bytes(&y_all))]));
    f.run(&["train", "own.npz", "--out=m", "--epochs=1", "--no-report"]).ok();
    let write = |name: &str, dims: &[usize]| {
        let x = &x[..dims.iter().product()];
        npy::write(f.path(name), &Literal::from_slice(dims.to_vec(), x).unwrap()).unwrap();
    };
    write("one.npy", &[2]);
    write("batch.npy", &[1, 2]);
    write("several.npy", &[3, 2]);
    let predict = |file: &str| answers(&f.run(&["predict", "m", file, "--json"]).ok());
    assert_eq!(predict("one.npy"), predict("batch.npy"));
    assert_eq!(predict("several.npy").len(), 3);
    npy::write(f.path("bytes.npy"), &Literal::from_slice([2], &[1u8, 0]).unwrap()).unwrap();
    assert_eq!(predict("bytes.npy").len(), 1);
    write("wrong.npy", &[4, 3]);
    f.run(&["predict", "m", "wrong.npy"]).fails("data", &["wrong.npy", "[N, 2]", "[2]", "[4, 3]"]);
}

#[test]
fn scaled_pixels_that_are_scaled_again_are_told() {
    let f = Folder::with_data("arrays-scale");
    trained(&f, "m", &[]);
    let unit: Vec<f32> = pixels(1).iter().map(|v| f32::from(*v) / 255.0).collect();
    npy::write(f.path("unit.npy"), &Literal::from_slice([28, 28], &unit).unwrap()).unwrap();
    write_u8(&f, "bytes.npy", &[28, 28]);
    let tells = |args: &[&str]| {
        let done = f.run(args).ok();
        done.err.lines().any(|line| line.contains("1/255") && line.contains("--scale 1"))
    };
    assert!(tells(&["predict", "m", "unit.npy"]));
    assert!(!tells(&["predict", "m", "unit.npy", "--scale", "1"]));
    assert!(!tells(&["predict", "m", "bytes.npy"]));
    let labels = npy::to_bytes(&Literal::from_slice([20], &[3i32; 20]).unwrap()).unwrap();
    let images: Vec<f32> = (0..20).flat_map(|_| unit.clone()).collect();
    let images = npy::to_bytes(&Literal::from_slice([20, 28, 28], &images).unwrap()).unwrap();
    f.write("own.npz", npz(&[("image", images), ("label", labels)]));
    let train = ["train", "own.npz", "--out=own", "--epochs=1", "--no-report", "--set=data.scale=1/255"];
    let done = f.run(&train).ok();
    assert!(done.err.contains("1/255") && done.err.contains("data.scale=1"), "{}", done.err);
}

/// A model whose first layer scales pixels, in a run and as an imported file, whose scale the file does not state.
#[test]
fn a_scale_before_a_layer_that_rescales_is_told() {
    let f = Folder::with_data("arrays-rescaling");
    let text = "[data]\ndataset = \"fashion-mnist\"\ndir = \"data\"\nscale = 1\n\
        [[layers]]\ntype = \"Rescaling\"\nscale = 0.00392156862745098\n[[layers]]\ntype = \"Flatten\"\n\
        [[layers]]\ntype = \"Dense\"\nunits = 10\nactivation = \"softmax\"\n\
        [optimizer]\ntype = \"adam\"\nlearning_rate = 0.001\n\
        [compile]\nloss = \"sparse_categorical_crossentropy\"\nmetrics = [\"accuracy\"]\n\
        [fit]\nepochs = 1\nbatch_size = 16\n";
    f.write("own.toml", text);
    let tells = |done: &Done, option: &str| {
        let named = |line: &&str| line.matches("1/255").count() == 2 && line.contains(option);
        done.err.lines().filter(named).count() == 1
    };
    let train = |out: &str, more: &[&str]| {
        f.run(&[&["train", "own.toml", "--out", out, "--no-report"][..], &TINY[1..], more].concat()).ok()
    };
    assert!(!tells(&train("m", &[]), "data.scale"));
    assert!(tells(&train("twice", &["--set=data.scale=1/255"]), "data.scale=1"));
    let evaluate = |model: &str, more: &[&str]| {
        f.run(&[&["evaluate", model, "--dataset=fashion-mnist", "--data-dir=data"][..], more].concat()).ok()
    };
    assert!(!tells(&evaluate("m", &[]), "--scale"));
    assert!(tells(&evaluate("m", &["--scale=1/255"]), "--scale 1"));
    write_u8(&f, "x.npy", &[28, 28]);
    assert!(tells(&f.run(&["predict", "m", "x.npy", "--scale=1/255"]).ok(), "--scale 1"));
    f.run(&["export", "m", "--out=m.keras"]).ok();
    let imported = f.run(&["import", "m.keras", "--out=i.safetensors"]).ok();
    assert!(imported.out.contains("1/255") && imported.out.contains("--scale 1"), "{}", imported.out);
    let unstated = evaluate("i.safetensors", &[]);
    assert!(unstated.err.contains("data.scale"), "{}", unstated.err);
    let stated = evaluate("i.safetensors", &["--scale=1"]);
    assert!(!stated.err.contains("data.scale"), "{}", stated.err);
    assert!(tells(&evaluate("i.safetensors", &["--scale=1/255"]), "--scale 1"));
    let config = f.run(&["train", "own.toml", "--set=data.scale=1/255", "--print-config"]).ok().out;
    assert!(config.contains("\nscale = \"1/255\"\n") && config.contains("\nscale = 0.0039"), "{config}");
}

#[test]
fn logits_for_a_loss_of_probabilities_are_told() {
    let f = Folder::with_data("arrays-logits");
    let tells = |activation: &str, loss: &str| {
        let args = ["train", "fashion-mnist", "--data-dir=data", "--out=m", "--no-report", "--resume=never"];
        let dense = format!("--set=layers.5.activation={activation}");
        let loss = format!("--set=compile.loss={loss}");
        let done = f.run(&[&args[..], &TINY, &[&dense, &loss]].concat()).ok();
        done.err.lines().any(|line| line.contains("from_logits") && line.contains("`"))
    };
    let of =
        |from_logits: bool| format!("{{type=\"sparse_categorical_crossentropy\",from_logits={from_logits}}}");
    assert!(tells("linear", &of(false)));
    assert!(!tells("softmax", &of(false)));
    assert!(!tells("linear", &of(true)));
    assert!(tells("softmax", &of(true)));
}
