//! Tests that bad input ends in one clear error with the cause, the place and a hint, and leaves no half-written file.
//! Runs the real program on small generated datasets that are then damaged.

use crate::program::{Done, Folder, TINY};
use std::fs;
use systole_data::format::idx;
use systole_ir::Literal;

const SET: &str = "data/fashion-mnist";

/// Trains on a data set that `damage` has spoiled; it must fail with `names` and write nothing.
#[track_caller]
fn spoiled(name: &str, damage: impl Fn(&Folder), names: &[&str]) {
    spoiled_as("data", name, damage, names);
}

#[track_caller]
fn spoiled_as(kind: &str, name: &str, damage: impl Fn(&Folder), names: &[&str]) {
    let f = Folder::with_data(&format!("bad-{name}"));
    damage(&f);
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out=out"];
    args.extend(TINY);
    let done = f.run(&args).fails(kind, names);
    assert!(!done.error().place.is_empty(), "{}", done.err);
    assert!(f.files("out").is_empty(), "{name} left {:?}", f.files("out"));
}

fn change(f: &Folder, file: &str, edit: impl Fn(&mut Vec<u8>)) {
    let path = f.path(SET).join(file);
    let mut bytes = fs::read(&path).unwrap();
    edit(&mut bytes);
    fs::write(path, bytes).unwrap();
}

const IMAGES: &str = "train-images-idx3-ubyte.gz";
const LABELS: &str = "train-labels-idx1-ubyte";

#[test]
fn missing_files() {
    let f = Folder::new("bad-nothing");
    let done = f.run(&["train", "fashion-mnist", "--data-dir", "nowhere", "--out=out"]);
    done.fails("io", &["`fashion-mnist`", "`nowhere`", "--data-dir"]);
    assert!(f.files("out").is_empty());
    let remove = |file: &'static str| move |f: &Folder| fs::remove_file(f.path(SET).join(file)).unwrap();
    spoiled_as("io", "missing", remove(LABELS), &["`fashion-mnist`", "`train-labels`"]);
    spoiled_as(
        "io",
        "missing-test",
        remove("t10k-images-idx3-ubyte.gz"),
        &["`fashion-mnist`", "t10k-images"],
    );
}

#[test]
fn paths_at_which_nothing_is() {
    let f = Folder::new("bad-path");
    fs::create_dir(f.path("photos")).unwrap();
    let parts = ["photos/flower/roses", "`photos/flower`"];
    f.run(&["train", "photos/flower/roses"]).fails("usage", &parts);
    let done = f.run(&["summary", "photos/model.safetensors"]);
    done.fails("io", &["photos/model.safetensors"]);
    // One word may be a preset misspelt.
    f.run(&["train", "fashion-mnsit"]).fails("usage", &["`fashion-mnsit`", "`fashion-mnist`"]);
}

#[test]
fn truncated_files() {
    let cut = |file: &'static str, n: usize| move |f: &Folder| change(f, file, |b| b.truncate(n));
    spoiled("cut-packed", cut(IMAGES, 1000), &["byte 3528", IMAGES]);
    spoiled("cut-plain", cut(LABELS, 40), &[LABELS, "byte 8", "64"]);
    spoiled("cut-header", cut(LABELS, 6), &["byte 6", LABELS]);
    spoiled("empty", cut(LABELS, 0), &[LABELS]);
    let longer = |f: &Folder| change(f, LABELS, |b| b.push(0));
    spoiled("longer", longer, &["byte 72", LABELS]);
}

#[test]
fn flipped_bits() {
    // Gzip's own checksum finds any flipped bit of the images.
    for at in [20, 500, 1500] {
        let flip = move |f: &Folder| change(f, IMAGES, |b| b[at] ^= 0x10);
        spoiled(&format!("flip-{at}"), flip, &[IMAGES]);
    }
    spoiled("flip-magic", |f| change(f, LABELS, |b| b[2] ^= 0x40), &["byte 0", LABELS]);
}

#[test]
fn mislabelled_files() {
    spoiled("label-range", |f| change(f, LABELS, |b| b[8 + 5] = 10), &["10", LABELS, "9"]);
    spoiled("count", |f| change(f, LABELS, |b| b[7] = 63), &[LABELS, "63"]);
    spoiled(
        "labels-as-images",
        |f| {
            fs::copy(f.path(SET).join(LABELS), f.path(SET).join(IMAGES)).unwrap();
        },
        &[IMAGES],
    );
    spoiled(
        "lengths",
        |f| {
            let labels = Literal::from_slice([63], &[1u8; 63]).unwrap();
            idx::write(f.path(SET).join(LABELS), &labels, false).unwrap();
        },
        &["ui8[63]", "ui8[64, 28, 28]"],
    );
    spoiled(
        "sizes",
        |f| {
            let images = Literal::from_slice([32, 20, 20], &vec![9u8; 32 * 400]).unwrap();
            idx::write(f.path(SET).join("t10k-images-idx3-ubyte.gz"), &images, true).unwrap();
        },
        &["t10k-images-idx3-ubyte.gz", "28", "20"],
    );
    spoiled("text", |f| fs::write(f.path(SET).join(IMAGES), "<html>not found</html>").unwrap(), &["byte 0"]);
}

#[test]
fn wrong_knobs() {
    let f = Folder::new("bad-knobs");
    let wrong = |name: &str, value: &str, kind, names: &[&str]| {
        let args = ["train", "glyphs", "--epochs=1", "--out=out"];
        let done = Done::of(f.command(&args).env(name, value).output().unwrap(), &args);
        let done = done.fails(kind, &[&[name], names].concat());
        assert!(!done.error().place.is_empty(), "{}", done.err);
        assert!(f.files("out").is_empty(), "{name}: {:?}", f.files("out"));
    };
    for name in [
        "SYSTOLE_WINOGRAD",
        "SYSTOLE_EXCESS_PRECISION",
        "SYSTOLE_TENSOR_FLOAT_32",
        "SYSTOLE_JIT",
        "SYSTOLE_BLOCKS",
    ] {
        wrong(name, "maybe", "config", &["`maybe`", "on|off"]);
    }
    wrong("SYSTOLE_ISA", "avx3", "config", &["`avx3`", "avx512"]);
    wrong("SYSTOLE_KERNEL", "matmul/magic", "config", &["`matmul/magic`", "rng/philox"]);
    wrong("SYSTOLE_THREADS", "two", "usage", &["`two`", "0..1024"]);
    wrong("SYSTOLE_LOG", "loud", "usage", &["`loud`", "0..4"]);
    wrong("SYSTOLE_GRACE", "long", "usage", &["`long`", "SECONDS"]);
}

#[test]
fn wrong_configurations() {
    let f = Folder::with_data("bad-config");
    let preset = f.run(&["init"]).ok().out;
    let cases: [(&str, &str, &[&str]); 9] = [
        ("epochs = 5", "epoch = 5", &["`epoch`", "`epochs`", "run.toml, line"]),
        ("[fit]", "[fti]", &["`fit`", "run.toml, line"]),
        ("batch_size = 1000", "batch_size = 0", &["batch_size", "run.toml, line"]),
        ("epochs = 5", "epochs = 0", &["`epochs`", "run.toml, line"]),
        ("filters = 64", "filtres = 64", &["`filters`", "run.toml, line"]),
        ("type = \"Conv2D\"", "type = \"Conv2\"", &["`Conv2`", "`Conv2D`"]),
        ("kernel_size = [3, 3]", "kernel_size = [30, 3]", &["conv2d", "30", "28"]),
        ("units = 10", "units = 7", &["7", "10"]),
        ("seed = 0", "seed = zero", &["run.toml, line 8"]),
    ];
    for (from, to, parts) in cases {
        assert!(preset.contains(from), "{from}");
        f.write("run.toml", preset.replacen(from, to, 1));
        let done = f.run(&["train", "run.toml", "--data-dir=data", "--out=out"]);
        done.fails(if to.starts_with("kernel_size") { "graph" } else { "config" }, parts);
        assert!(f.files("out").is_empty(), "{to}");
    }
    f.write("run.toml", preset.split("[compile]").next().unwrap());
    f.run(&["train", "run.toml"]).fails("config", &["`compile`", "run.toml", "systole init"]);
    f.run(&["train", "absent.toml"]).fails("io", &["absent.toml"]);
    f.run(&["train", "fashion-mnist", "--data-dir=data", "--batch-size=0", "--out=out"])
        .fails("usage", &["--batch-size"]);
    f.run(&["train", "fashion-mnist", "--set=fit.batch_size=0", "--out=out"]).fails("usage", &["batch_size"]);
    assert!(f.files("out").is_empty());
}

#[test]
fn a_folder_that_cannot_be_written_is_told_before_training() {
    let f = Folder::with_data("bad-out");
    f.write("file", "");
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out=file/out"];
    args.extend(TINY);
    let done = f.run(&args).fails("io", &["file/out"]);
    assert!(!done.err.contains("Epoch "), "{}", done.err);
}

/// A limit on file sizes stands in for a full disk: the write fails half-way in the same manner.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_earlier_file_whole() {
    let f = Folder::with_data("bad-full");
    let model = f.train("out");
    let (before, files) = (fs::read(&model).unwrap(), f.files("out"));
    let program = env!("CARGO_BIN_EXE_systole");
    let line = format!(
        "trap '' XFSZ; ulimit -f 4; exec {program} train fashion-mnist --data-dir=data --out=out --resume=never --seed=9 {}",
        TINY.iter().filter(|a| !a.contains("seed")).copied().collect::<Vec<_>>().join(" ")
    );
    let output = std::process::Command::new("sh").arg("-c").arg(&line).current_dir(&f.0).output().unwrap();
    let done = crate::program::Done::of(output, &[&line]).fails("io", &["fashion-mnist.safetensors"]);
    assert!(!done.out.contains("Test: "), "{}", done.out);
    assert_eq!(fs::read(&model).unwrap(), before);
    assert_eq!(f.files("out"), files, "something was left behind");
    f.run(&["evaluate", "out/fashion-mnist.safetensors", "--data-dir=data"]).ok();
}

#[test]
fn model_files_that_are_cut_or_lie() {
    let f = Folder::with_data("bad-model");
    let good = fs::read(f.train("out")).unwrap();
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let refused = |what: &str, bytes: &[u8]| {
        f.write("bad.safetensors", bytes);
        let done = f.run(&["summary", "bad.safetensors"]);
        assert_eq!(done.code, Some(1), "{what}: {}\n{}", done.out, done.err);
        done.fails("data", &["bad.safetensors"]);
    };
    let cuts =
        [0, 1, 7, 8, 9, 100, header / 2, header + 7, header + 8, header + 9, good.len() / 2, good.len() - 1];
    for cut in cuts {
        refused(&format!("cut at {cut}"), &good[..cut]);
    }
    for at in [0, 3, 7, 9, 40, header / 2, header + 4, header + 8, (header + good.len()) / 2, good.len() - 1]
    {
        let mut bad = good.clone();
        bad[at] ^= 0x04;
        refused(&format!("bit flipped at {at}"), &bad);
    }
    refused("longer", &[&good[..], b"more"].concat());
    refused("text", b"hello");
    for length in [0, u64::MAX, header as u64 + 1, good.len() as u64] {
        let mut bad = good.clone();
        bad[..8].copy_from_slice(&length.to_le_bytes());
        refused(&format!("header length {length}"), &bad);
    }
    let swap = |from: &str, to: &str| {
        let text = String::from_utf8(good[8..8 + header].to_vec()).unwrap();
        assert!(text.contains(from) && from.len() == to.len(), "{text}");
        [&good[..8], text.replacen(from, to, 1).as_bytes(), &good[8 + header..]].concat()
    };
    refused("other type", &swap("\"F32\"", "\"I32\""));
    refused("other layer", &swap("MaxPooling2D", "MaxPooling3D"));
    for command in ["evaluate", "show"] {
        f.run(&[command, "bad.safetensors"]).fails("data", &["bad.safetensors"]);
    }
    f.run(&["predict", "bad.safetensors", "x.png"]).fails("data", &["bad.safetensors"]);
    f.run(&["train", "--from", "bad.safetensors"]).fails("data", &["bad.safetensors"]);
    f.run(&["evaluate", "absent.safetensors"]).fails("io", &["absent.safetensors"]);
    // The run's own folder of data is not replaced by another location.
    fs::remove_dir_all(f.path("data")).unwrap();
    f.run(&["evaluate", "out"]).fails("io", &["`fashion-mnist`", "out"]);
}

#[test]
fn pictures_that_are_none() {
    let f = Folder::with_data("bad-picture");
    f.train("out");
    let png = fs::read(f.path("out/fashion-mnist-example.png")).unwrap();
    f.write("text.png", "not a picture");
    f.write("cut.png", &png[..png.len() / 2]);
    f.write("empty.png", "");
    let labels = format!("{SET}/{LABELS}");
    let cases = [
        ("io", "absent.png", "absent.png"),
        ("data", "text.png", "text.png"),
        ("data", "cut.png", "cut.png"),
        ("data", "empty.png", "empty.png"),
        ("data", labels.as_str(), "ui8[64]"),
    ];
    for (kind, file, name) in cases {
        // A good picture before the bad one gives no half of an answer.
        let args = ["predict", "out/fashion-mnist.safetensors", "out/fashion-mnist-example.png", file];
        let done = f.run(&args).fails(kind, &[name]);
        assert_eq!(done.out, "");
    }
}

#[test]
fn data_that_does_not_fit_the_model() {
    let f = Folder::with_data("bad-fit");
    f.train("out");
    let model = "out/fashion-mnist.safetensors";
    for stem in ["train", "t10k"] {
        let images = Literal::from_slice([10, 20, 20], &vec![9u8; 4000]).unwrap();
        let labels = Literal::from_slice([10], &[0u8, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        fs::create_dir_all(f.path("small")).unwrap();
        idx::write(f.path(&format!("small/{stem}-images-idx3-ubyte")), &images, false).unwrap();
        idx::write(f.path(&format!("small/{stem}-labels-idx1-ubyte")), &labels, false).unwrap();
    }
    f.run(&["evaluate", model, "--data-dir=small"])
        .fails("data", &["out/fashion-mnist.safetensors", "[28, 28, 1]", "[20, 20, 1]"]);
    f.run(&["train", "--from", model, "--data-dir=small"]).fails("data", &["out/fashion-mnist.safetensors"]);
    f.run(&["evaluate", model, "--dataset=minst"]).fails("usage", &["`mnist`"]);
}

#[test]
fn weights_that_cannot_be_read() {
    let f = Folder::new("bad-weights");
    fs::write(f.path("x.pt"), b"PK\x03\x04 and no more").unwrap();
    f.run(&["import", "x.pt", "--out=y.safetensors"]).fails("data", &["x.pt"]);
    fs::write(f.path("x.h5"), b"hello").unwrap();
    f.run(&["import", "x.h5", "--out=y.safetensors"]).fails("data", &[".pt", ".h5", "6c"]);
    f.run(&["import", "none.pt", "--out=y.safetensors"]).fails("io", &["none.pt"]);
    let whole = format!("{}/fixtures/weights/whole_module.pt", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let parts = ["`torch.nn.modules.linear.Linear`", "state_dict"];
    f.run(&["import", &whole, "--out=y.safetensors"]).fails("data", &parts);
    f.run(&["export", "none", "--format=torch", "--out=x.onnx"]).fails("usage", &["x.onnx", ".pt"]);
    f.run(&["export", "none", "--out=x.txt"]).fails("usage", &["x.txt", ".keras", ".pt", ".onnx"]);
    f.run(&["import", &whole, "--out=y.pt"]).fails("usage", &["y.pt", ".safetensors"]);
    assert!(!f.path("y.safetensors").exists());
}

/// Options of BigGAN, and keys of other trainings that it has no use for.
#[test]
fn what_a_gan_cannot_be_trained_with() {
    let f = Folder::new("bad-gan");
    let refused = |kind: &str, more: &[&str], names: &[&str]| {
        f.run(&[&["train", "biggan", "--out=out"], more].concat()).fails(kind, names);
    };
    let train = |more: &[&str], names: &[&str]| refused("usage", more, names);
    // What does not go with a key of the preset is told at that key.
    let beside = |more: &[&str], names: &[&str]| refused("config", more, names);
    train(&["--set=biggan.G_chanels=3"], &["`G_chanels`"]);
    train(&["--set=biggan.batch_size=3"], &["fit.batch_size"]);
    train(&["--set=biggan.cross_replica=true"], &["`cross_replica`"]);
    train(&["--set=biggan.resolution=48"], &["48", "256"]);
    beside(&["--set=biggan.resolution=64"], &["data.image_size=[64,64]"]);
    beside(&["--set=biggan.num_D_accumulations=3"], &["biggan.num_D_accumulations"]);
    train(&["--learning-rate=0.1"], &["`learning_rate`", "G_lr", "D_lr"]);
    train(&["--set=optimizer.type=sgd"], &["optimizer.type=sgd"]);
    train(&["--set=compile.loss=mse"], &["compile.loss"]);
    train(&["--set=compile.metrics=[\"accuracy\"]"], &["compile.metrics"]);
    train(&["--precision=mixed_float16"], &["mixed_bfloat16"]);
    train(&["--set=data.scale=1"], &["1/255"]);
    train(&["--set=data.dataset=glyphs"], &["`glyphs`"]);
    train(&["--augment=mixup"], &["--augment mixup"]);
    beside(&["--set=model.application=resnet50"], &["[biggan]"]);
    assert!(f.files("out").is_empty());
}

#[test]
fn limited_address_space_is_an_error_and_no_abort() {
    let f = Folder::new("bad-ulimit");
    let line = r#"ulimit -v "$1"; exec "$0" train mlp --json --epochs=1 --steps-per-epoch=2 --out="o$1""#;
    let mut refused = 0;
    for kib in [75_000, 95_000, 115_000, 135_000, 155_000, 250_000] {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line, env!("CARGO_BIN_EXE_systole"), &kib.to_string()]).current_dir(f.path("."));
        let done = Done::of(command.output().unwrap(), &["train", "under ulimit -v", &kib.to_string()]);
        let all = format!("{}: {:?}\n{}\n{}", done.what, done.code, done.out, done.err);
        match done.code {
            Some(0) => {}
            // 127: the loader finds no room for the C library.
            Some(127) if done.err.contains("error while loading shared libraries") => {}
            Some(1) => {
                assert_eq!(done.json()["exit_code"], 1, "{all}");
                assert!(done.err.contains("error[") && !done.err.contains("error[bug]"), "{all}");
                refused += 1;
            }
            _ => panic!("{all}"),
        }
    }
    assert!(refused > 0, "no limit was low enough");
}
