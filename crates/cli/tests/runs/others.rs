//! Tests of third-party data: tables and image folders with missing values, other separators, unusual names and
//! layouts. Runs the real program on generated data. Unusable data is reported with its location before training
//! starts.

use crate::program::{Done, Folder};
use serde_json::Value;
use std::fs;
use systole_data::format::{npy, png};
use systole_ir::{Literal, Scalar};
use systole_nn::Model;

const FAST: [&str; 5] = ["--epochs=1", "--threads=1", "--json", "--quiet", "--batch-size=16"];

/// Trains for one epoch where `more` names no other number.
fn train(f: &Folder, source: &str, out: &str, more: &[&str]) -> Done {
    let given = |option: &str| more.iter().any(|m| m.split('=').next() == option.split('=').next());
    let fast: Vec<&str> = FAST.into_iter().filter(|option| !given(option)).collect();
    f.run(&[&["train", source, "--out", out], &fast[..], more].concat())
}

/// Two numbers of row `i`, and whether the first is larger.
fn pair(i: usize) -> (f64, f64, usize) {
    let (a, b) = ((i * 37 % 100) as f64 / 100.0, (i * 61 % 97) as f64 / 97.0);
    (a, b, usize::from(a > b))
}

fn table(header: &str, rows: usize, row: impl Fn(usize) -> String) -> String {
    header.to_string() + "\n" + &(0..rows).map(|i| row(i) + "\n").collect::<String>()
}

fn plain(i: usize) -> String {
    let (a, b, label) = pair(i);
    format!("{a},{b:.4},{label}")
}

/// [`plain`] with another text for one cell of one row.
fn spoilt(at: usize, column: usize, cell: &str) -> String {
    table("a,b,label", 200, |i| {
        let row = plain(i);
        let mut cells: Vec<&str> = row.split(',').collect();
        if i == at {
            cells[column] = cell;
        }
        cells.join(",")
    })
}

fn columns(o: &Value) -> Vec<String> {
    let all = o["config"]["data"]["records"]["columns"].as_array().unwrap().iter();
    all.map(|c| c["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn values_that_are_not_finite_are_told_with_their_place() {
    let f = Folder::new("others-finite");
    for value in ["nan", "inf", "-Infinity", "1e999"] {
        f.write("t.csv", spoilt(50, 0, value));
        train(&f, "t.csv", "x", &[]).fails("data", &["t.csv, line 52", "`a`", value]);
    }
    f.write("t.csv", spoilt(50, 1, ""));
    let model = train(&f, "t.csv", "out", &[]).ok().json()["model_file"].as_str().unwrap().to_string();
    f.write("new.csv", "a,b\n1,2\n3,nan\n");
    f.run(&["predict", &model, "new.csv"]).fails("data", &["new.csv, line 3", "`b`"]);
    f.write("new.csv", "a,b\n1,2\n3,NA\n");
    assert_eq!(f.run(&["predict", &model, "new.csv"]).ok().out.lines().count(), 2);
    // A weight that is not finite gives no answer, rather than `NaN %`.
    let mut bad = Model::load(f.path(&model)).unwrap();
    let (path, weight) = bad.weights().last().map(|(path, w)| (path.to_string(), w.ty().clone())).unwrap();
    bad.set_weight(&path, Literal::splat(weight, Scalar::Float(f64::NAN))).unwrap();
    bad.save(f.path("bad.safetensors")).unwrap();
    let done = f.run(&["predict", "bad.safetensors", "new.csv"]);
    let told =
        ["no prediction for new.csv[1]", "the model's output is not finite", "2 samples have no prediction"];
    assert!(done.code == Some(1) && done.out.is_empty(), "{}", done.err);
    told.iter().for_each(|part| assert!(done.err.contains(part), "{}", done.err));
    let mut x: Vec<f32> = (0..200).flat_map(|i| [pair(i).0 as f32, pair(i).1 as f32]).collect();
    let y: Vec<i64> = (0..200).map(|i| pair(i).2 as i64).collect();
    x[101] = f32::NAN;
    f.write("t.npz", npz(&[("x", array([200, 2], &x)), ("y", array([200], &y))]));
    train(&f, "t.npz", "x", &[]).fails("data", &["t.npz, record", "column 1", "`x`"]);
}

#[test]
fn labels_say_what_they_are() {
    let f = Folder::new("others-labels");
    f.write("case.csv", table("a,b,Label", 200, plain));
    train(&f, "case.csv", "case", &[]).ok();
    f.write("odd.csv", table("a,b,outcome", 200, plain));
    train(&f, "odd.csv", "odd", &[]).fails("data", &["`a`", "`b`", "`outcome`", "data.records.label"]);
    // The hint is followed.
    let set = ["--set=data.records.label=outcome", "--set=data.records.inputs=[\"a\"]"];
    assert_eq!(columns(&train(&f, "odd.csv", "odd", &set).ok().json()), ["a"]);
    f.write("gap.csv", spoilt(50, 2, ""));
    train(&f, "gap.csv", "x", &[]).fails("data", &["gap.csv, line 52", "`label`"]);
    f.write("space.csv", table("a,b,label", 200, |i| format!("{}{}", plain(i), [" ", ""][i % 2])));
    assert!(train(&f, "space.csv", "space", &[]).ok().err.contains(" of 2 classes "));
    f.write("float.csv", table("a,b,label", 200, |i| plain(i) + ".0"));
    assert!(train(&f, "float.csv", "float", &[]).ok().err.contains(" of 2 classes "));
    f.write("ids.csv", table("a,b,label", 200, |i| format!("{},{},{}", i % 7, i % 9, 1000 + i % 3 * 50_000)));
    assert!(train(&f, "ids.csv", "ids", &[]).ok().err.contains(" of 3 classes "));
    // Prices are numbers to predict, not 375,000 classes.
    f.write("price.csv", table("a,b,target", 200, |i| format!("{},{},{}", i % 7, i % 9, i * 1873 % 375_001)));
    let done = train(&f, "price.csv", "price", &[]).ok();
    assert!(done.err.contains("`target` looks like a number to predict"), "{}", done.err);
    let o = done.json();
    assert_eq!(o["config"]["compile"]["loss"], "mean_squared_error");
    let model = o["model_file"].as_str().unwrap();
    let answer = f.run(&["predict", model, "price.csv", "--limit=1", "--json"]).ok().json();
    assert_eq!(answer["values"].as_array().unwrap().len(), 1, "{answer}");
}

#[test]
fn gaps_texts_and_truth_values_are_learnt_from_and_kept_in_the_model() {
    let f = Folder::new("others-kinds");
    let row = |i: usize| {
        let (a, _, label) = pair(i);
        let (city, flag) = (["Rome", "Oslo", ""][(i + label) % 3], ["True", "false"][i % 2]);
        let a = if i % 10 == 3 { ["", "NA"][i / 10 % 2].to_string() } else { a.to_string() };
        format!("{a},{city},{flag},note {i},{label}")
    };
    f.write("data/t.csv", table("a,city,flag,remark,label", 300, row));
    let done = train(&f, "data/t.csv", "out", &["--epochs=3"]).ok();
    assert!(done.err.contains("`remark` is skipped: it has 300 different texts"), "{}", done.err);
    let o = done.json();
    assert_eq!(columns(&o), ["a", "city", "flag"]);
    let codes = &o["config"]["data"]["records"]["columns"];
    assert_eq!(codes[1]["categories"], serde_json::json!(["", "Oslo", "Rome"]));
    let model = o["model_file"].as_str().unwrap();
    let answer = |text: &str| {
        f.write("new.csv", text);
        f.run(&["predict", model, "new.csv", "--json"]).ok().json()["probability"].as_f64().unwrap()
    };
    // The same row: columns in another order, other columns beside them, the median written out.
    let median = codes[0]["median"].as_f64().unwrap();
    let first = answer("a,city,flag\n,Oslo,true\n");
    assert_eq!(first, answer(&format!("flag,x,city,a\nTRUE,?,Oslo,{median}\n")));
    f.write("new.csv", "a,city,flag\n0.5,Oslo,true\n0.5,Lima,true\n");
    f.run(&["predict", model, "new.csv"]).fails("data", &["new.csv, line 3", "\"Lima\"", "`city`"]);
    f.write("new.csv", "a,city,flag\nlarge,Oslo,true\n");
    f.run(&["predict", model, "new.csv"]).fails("data", &["new.csv, line 2", "`a`"]);
    // Fewer categories in what is evaluated: each keeps its place.
    let e = f.run(&["evaluate", model, "--data-dir=data", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
}

#[test]
fn tables_are_read_as_other_programs_write_them() {
    let f = Folder::new("others-written");
    let text = table("a,b,label", 200, plain);
    let comma = |i: usize| plain(i).replace(',', ";").replace('.', ",");
    let wide: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let files: [(&str, Vec<u8>); 9] = [
        ("blank_end.csv", format!("{text}\n\n").into()),
        ("blank_mid.csv", text.replacen("\n", "\n\n", 3).into()),
        ("mac.csv", text.replace('\n', "\r").into()),
        ("utf16.csv", wide),
        ("semicolon.csv", table("a;b;label", 200, comma).into()),
        ("tabs.csv", text.replace(',', "\t").into()),
        ("trailing.csv", text.replace('\n', ",\n").into()),
        ("quoted.csv", text.replace("a,b", "a,\"b\n(cm)\"").into()),
        ("index.csv", table(",a,b,label", 200, |i| format!("{i},{}", plain(i))).into()),
    ];
    for (name, bytes) in files {
        f.write(name, bytes);
        let o = train(&f, name, name.trim_end_matches(".csv"), &[]).ok().json();
        let named = columns(&o);
        assert!(named.len() == 2 && named[0] == "a" && named[1].starts_with('b'), "{name}: {named:?}");
    }
    f.write("twice.csv", text.replace("a,b", "a,a"));
    assert_eq!(columns(&train(&f, "twice.csv", "twice", &[]).ok().json()), ["a", "a_1"]);
    f.write(
        "late.csv",
        table("a,b,label", 1200, |i| if i > 1100 { plain(i) } else { format!("{i},1,{}", i % 2) }),
    );
    train(&f, "late.csv", "late", &[]).ok();
    f.write("headless.csv", (0..200).map(|i| plain(i) + "\n").collect::<String>());
    train(&f, "headless.csv", "x", &[]).fails("data", &["`0`", "`1`", "`2`", "data.records.label"]);
    let done = train(&f, "headless.csv", "headless", &["--set=data.records.label=2"]).ok();
    assert!(done.err.contains("160 + 40 records"), "{}", done.err);
    f.write("ragged.csv", text.replacen("\n0.37,", "\n0.37,7,", 1));
    train(&f, "ragged.csv", "x", &[]).fails("data", &["ragged.csv, line 3", "4", "3"]);
    train(&f, "ragged.csv", "skip", &["--set=data.records.skip=1"]).ok();
    let accents = table("a,b,label", 200, |i| format!("{i},1,n~gatif"));
    let accents: Vec<u8> = accents.bytes().map(|b| if b == b'~' { 0xe9 } else { b }).collect();
    f.write("latin1.csv", accents);
    train(&f, "latin1.csv", "x", &[]).fails("data", &["latin1.csv, line 2", "UTF-8", "0xe9"]);
}

#[test]
fn files_are_found_by_their_names_and_odd_ones_are_named() {
    let f = Folder::with_data("others-names");
    let text = table("a,b,label", 200, plain);
    f.write("data[1].csv", &text);
    let o = train(&f, "data[1].csv", "brackets", &[]).ok().json();
    f.run(&["predict", o["model_file"].as_str().unwrap(), "data[1].csv", "--limit=1"]).ok();
    // What a competition gives.
    f.write("set/train.csv", &text);
    f.write("set/test.csv", table("a,b", 50, |i| plain(i).rsplit_once(',').unwrap().0.into()));
    let done = train(&f, "set", "set-out", &[]).ok();
    assert!(done.err.contains("test.csv is skipped: it has no `label`"), "{}", done.err);
    f.write("set/sample_submission.csv", table("id,label", 50, |i| format!("{i},0")));
    train(&f, "set", "x", &[])
        .fails("data", &["sample_submission.csv", "train.csv", "data.records.train=[\"train.csv\"]"]);
    train(&f, "set", "set-again", &["--set=data.records.train=[\"train.csv\"]"]).ok();
    f.write("mixed/a.csv", &text);
    f.write("mixed/b.npz", "PK");
    train(&f, "mixed", "x", &[]).fails("data", &["b.npz", "a.csv", "data.records.train=[\"a.csv\"]"]);
    // Shards under other names.
    f.convert("records", "1", &[]);
    fs::create_dir_all(f.path("shards")).unwrap();
    fs::copy(f.path("records/train.features"), f.path("shards/d.features")).unwrap();
    for name in ["d.tfrec", "d.tfrecord-00000-of-00001", "d-00000-of-00001"] {
        let path = format!("shards/{name}");
        fs::copy(f.path("records/train-00000-of-00001.tfrecord"), f.path(&path)).unwrap();
        let small = ["--set=layers.0.filters=2", "--set=layers.4.filters=2", "--set=layers.8.filters=2"];
        train(&f, &path, name, &small).ok();
    }
}

#[test]
fn the_part_that_is_asked_for_is_kept_for_testing() {
    let f = Folder::new("others-split");
    f.write("t.csv", table("a,b,label", 1000, plain));
    for (split, said) in
        [("0.3", "700 + 300"), ("0.4", "600 + 400"), ("0.75", "250 + 750"), ("0.2", "800 + 200")]
    {
        let set = format!("--set=data.validation_split={split}");
        let done = train(&f, "t.csv", split, &[&set]).ok();
        assert!(done.err.contains(&format!("{said} records")), "{split}: {}", done.err);
    }
    // Sorted by class: a few are some of both.
    f.write("sorted.csv", table("a,b,label", 1000, |i| format!("{},{},{}", i % 7, i % 9, i / 500)));
    let few = ["--set=data.train_samples=32", "--set=data.test_samples=16"];
    let o = train(&f, "sorted.csv", "few", &few).ok().json();
    assert_ne!(o["val_sparse_categorical_accuracy"], 1.0, "{o}");
}

#[test]
fn arrays_that_nobody_needs_stop_nothing() {
    let f = Folder::new("others-npz");
    let x: Vec<f32> = (0..200).flat_map(|i| [pair(i).0 as f32, pair(i).1 as f32]).collect();
    let y: Vec<i64> = (0..200).map(|i| pair(i).2 as i64).collect();
    let (xs, ys) = (array([200, 2], &x), array([200], &y));
    let mean = array([2], &[0f32, 1.0]);
    f.write(
        "extra.npz",
        npz(&[("x", xs.clone()), ("y", ys.clone()), ("mean", mean), ("names", texts(3, "no"))]),
    );
    let done = train(&f, "extra.npz", "extra", &[]).ok();
    assert!(done.err.contains("the array `mean` is skipped"), "{}", done.err);
    f.write("names.npz", npz(&[("x", xs.clone()), ("y", ys), ("class_names", texts(2, "yes"))]));
    train(&f, "names.npz", "names", &[]).ok();
    let (a, b) = (array([160, 2], &x[..320]), array([40, 2], &x[320..]));
    let (ya, yb) = (array([160], &y[..160]), array([40], &y[160..]));
    f.write("keras.npz", npz(&[("x_train", a), ("y_train", ya), ("x_test", b), ("y_test", yb)]));
    let done = train(&f, "keras.npz", "keras", &[]).ok();
    assert!(done.err.contains("160 + 40 records of 2 classes"), "{}", done.err);
    let hot: Vec<i64> = y.iter().flat_map(|k| [1 - k, *k]).collect();
    f.write("hot.npz", npz(&[("x", xs.clone()), ("y", array([200, 2], &hot))]));
    assert!(train(&f, "hot.npz", "hot", &[]).ok().err.contains("of 2 classes"));
    let truth: Vec<bool> = y.iter().map(|k| *k == 1).collect();
    let truth = npy::to_bytes(&Literal::from_bools([200], &truth).unwrap()).unwrap();
    f.write("bool.npz", npz(&[("x", xs), ("y", truth)]));
    assert!(train(&f, "bool.npz", "bool", &[]).ok().err.contains("of 2 classes"));
}

#[test]
fn shards_of_web_dataset_and_texts_train_too() {
    let f = Folder::new("others-shards");
    let files: Vec<(String, Vec<u8>)> = (0..40)
        .flat_map(|i| {
            let (class, shade) = [("cat", 20), ("dog", 180)][i % 2];
            [(format!("{i:04}.png"), picture(shade, i, None)), (format!("{i:04}.cls"), class.into())]
        })
        .collect();
    f.write("shard.tar", tar(&files));
    let small = ["--set=layers.0.filters=2", "--set=layers.4.filters=2", "--set=layers.8.filters=2"];
    let done = train(&f, "shard.tar", "shard", &small).ok();
    assert!(done.err.contains("32 + 8 images of 2 classes"), "{}", done.err);
    let model = done.json()["model_file"].as_str().unwrap().to_string();
    assert_eq!(f.run(&["predict", &model, "shard.tar", "--limit=3"]).ok().out.lines().count(), 3);
    f.write("my.txt", "to be or not to be, ".repeat(60));
    let small = ["--set=model.num_layers=1", "--set=model.hidden_dim=8", "--set=data.sequence_length=10"];
    let o = train(&f, "my.txt", "text", &small).ok().json();
    assert!(o["model_file"].as_str().unwrap().starts_with("text/"), "{o}");
}

/// Files one after the other, as `tar` writes them.
fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in files {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        let size = format!("{:011o}", data.len());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(size.as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend(header);
        out.extend(data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn picture(shade: u8, i: usize, alpha: Option<u8>) -> Vec<u8> {
    let c = if alpha.is_some() { 4 } else { 3 };
    let pixel = |p: usize| {
        let v = shade.wrapping_add((p * 7 + i * 3) as u8 % 40);
        [v, v / 2, 255 - v, alpha.unwrap_or(0)].into_iter().take(c)
    };
    png::to_bytes(
        &Literal::from_slice([18, 18, c], &(0..18 * 18).flat_map(pixel).collect::<Vec<u8>>()).unwrap(),
    )
    .unwrap()
}

#[test]
fn parts_links_and_transparent_pictures_of_an_album_are_told() {
    let f = Folder::new("others-album");
    for (part, n) in [("Training", 6), ("Testing", 3)] {
        for (class, shade) in [("cat", 20), ("dog", 180)] {
            for i in 0..n {
                f.write(&format!("album/{part}/{class}/{i}.png"), picture(shade, i, (i == 0).then_some(9)));
            }
        }
    }
    fs::create_dir_all(f.path("album/Training/owl")).unwrap();
    f.write("album/more/1.png", picture(1, 1, None));
    f.write("elsewhere/7.png", picture(20, 7, None));
    #[cfg(unix)]
    std::os::unix::fs::symlink(f.path("elsewhere"), f.path("album/Training/cat/linked")).unwrap();
    let small = ["--set=layers.0.filters=2", "--set=layers.4.filters=2", "--set=layers.8.filters=2"];
    let done = train(&f, "album", "out", &small).ok();
    for part in [
        "13 + 6 images of 2 classes",
        "more is skipped: Training and Testing",
        "the folder owl has no images",
        "4 images have transparent pixels, which are blended with black",
    ] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
    let white = [&small[..], &["--set=data.background=1"]].concat();
    assert!(train(&f, "album", "white", &white).ok().err.contains("blended with white"));
    train(&f, "album", "x", &["--set=data.background=2"]).fails("usage", &["data.background", "2"]);
}

fn array<T: systole_ir::Element>(shape: impl Into<systole_ir::Shape>, values: &[T]) -> Vec<u8> {
    npy::to_bytes(&Literal::from_slice(shape, values).unwrap()).unwrap()
}

/// An array of `n` equal texts, as NumPy's type `<U3`.
fn texts(n: usize, text: &str) -> Vec<u8> {
    let mut header = format!("{{'descr': '<U3', 'fortran_order': False, 'shape': ({n},), }}");
    header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
    header.push('\n');
    let one = (0..3).flat_map(|k| (text.as_bytes().get(k).copied().unwrap_or(0) as u32).to_le_bytes());
    let data: Vec<u8> = (0..n).flat_map(|_| one.clone()).collect();
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A ZIP archive of stored entries.
fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let crc = |data: &[u8]| {
        !data.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
        })
    };
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in arrays {
        let name = format!("{name}.npy");
        let sizes = [crc(data), data.len() as u32, data.len() as u32].map(u32::to_le_bytes).concat();
        let common =
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sizes, &(name.len() as u16).to_le_bytes(), &[0, 0]]
                .concat();
        let offset = (out.len() as u32).to_le_bytes();
        directory.extend([&b"PK\x01\x02\x14\0"[..], &common, &[0; 10], &offset, name.as_bytes()].concat());
        out.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), data].concat());
    }
    let (count, size, at) = (arrays.len() as u16, directory.len() as u32, out.len() as u32);
    let counts = [[0, 0], [0, 0], count.to_le_bytes(), count.to_le_bytes()].concat();
    out.extend(directory);
    out.extend([&b"PK\x05\x06"[..], &counts, &size.to_le_bytes(), &at.to_le_bytes(), &[0, 0]].concat());
    out
}

#[test]
fn numbers_with_signs_and_tables_without_rows_say_what_to_do() {
    let f = Folder::new("others-signs");
    f.write("price.csv", table("a,b,price", 200, |i| format!("{},{},${}.25", i % 7, i % 9, i)));
    let label = ["--set=data.records.label=price"];
    train(&f, "price.csv", "x", &label).fails("data", &["200", "`$0.25`", "`price`"]);
    f.write("share.csv", table("a,label", 200, |i| format!("{i}%,{}", i % 2)));
    train(&f, "share.csv", "x", &[]).fails("data", &["`a`", "`0%`"]);
    f.write("head.csv", "a,label\n");
    train(&f, "head.csv", "x", &[]).fails("data", &["head.csv"]);
    f.write("one.csv", "a,label\n1,0\n");
    train(&f, "one.csv", "x", &[]).fails("data", &["one.csv", "data.validation_split"]);
    f.write(
        "wide.csv",
        table("a,b,label", 50, |i| format!("{}{}", plain(i), if i == 7 { ",9" } else { "" })),
    );
    let wide = train(&f, "wide.csv", "x", &[]).fails("data", &["4", "3", "data.records.skip=10"]);
    assert_eq!(wide.err.matches("data.records.skip").count(), 1, "{}", wide.err);
}
