//! Training from files of records, as a user has them: TFRecord files that `systole data convert` wrote, CSV, NumPy.
//! The real program, on data that the tests make.

mod program;

use program::{Done, Folder};
use std::fs;
use std::time::{Duration, Instant};
use systole_data::format::{png, tfrecord};
use systole_data::{HostArray, Sample};
use systole_ir::{DType, Literal};

/// Layers so small that a run takes no time.
const SMALL: [&str; 6] = [
    "--set=layers.0.filters=4",
    "--set=layers.4.filters=8",
    "--set=layers.8.filters=8",
    "--set=fit.batch_size=16",
    "--threads=1",
    "--quiet",
];

/// `records/train-*` in 6 files and `records/test-*`, converted from the data set of the tests.
fn convert(f: &Folder, more: &[&str]) {
    for (part, prefix, shards) in [("train", "records/train", "6"), ("test", "records/test", "1")] {
        let args = [
            "data",
            "convert",
            "fashion-mnist",
            prefix,
            "--data-dir=data",
            "--part",
            part,
            "--shards",
            shards,
        ];
        f.run(&[&args, more].concat()).ok();
    }
}

fn train(f: &Folder, source: &str, out: &str, more: &[&str]) -> Done {
    f.run(&[&["train", source, "--out", out, "--json"], &SMALL[..], more].concat())
}

fn table(rows: usize) -> String {
    let row = |i: usize| {
        let (x, y) = (i * 37 % 100, i * 61 % 100);
        let kind = if x > y { "wide" } else { "high" };
        format!("{x},{:.2},{kind}\n", y as f64 * 10.0)
    };
    "width,height,class\n".to_string() + &(0..rows).map(row).collect::<String>()
}

#[test]
fn converted_records_train_as_the_data_set_that_they_came_from() {
    let f = Folder::with_data("records-round-trip");
    convert(&f, &[]);
    let o = train(&f, "records", "a", &["--epochs=25", "--learning-rate=0.01"]).ok().json();
    assert_eq!(o["config"]["data"]["image_size"], serde_json::json!([28, 28]), "{o}");
    assert_eq!(o["config"]["layers"].as_array().unwrap().last().unwrap()["units"], 10);
    assert!(o["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.8, "{o}");
    assert!(o["most_confused"].is_array());

    let model = o["model_file"].as_str().unwrap();
    let e = f.run(&["evaluate", model, "--data-dir=records", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
    assert_eq!(e["samples"], 32);
    let answer = f.run(&["predict", model, "a/records-example.png", "--json"]).ok().json();
    assert_eq!(answer["top"].as_array().unwrap().len(), 3, "{answer}");
    assert!(
        answer["class"].as_str().unwrap().parse::<u8>().is_err(),
        "named by the file of classes: {answer}"
    );
    f.run(&["evaluate", model]).fails(1, &["no files of records are named", "--data-dir"]);

    // Packed files and those of other sizes of a turn hold the same records; the order is another one.
    fs::remove_dir_all(f.path("records")).unwrap();
    convert(&f, &["--compression=gzip"]);
    let e = f.run(&["evaluate", model, "--data-dir=records", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
    train(&f, "records", "b", &["--epochs=1", "--set=data.records.compression=plain"]).fails(1, &["try: "]);
}

fn is_backup(entry: &fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|end| end == "safetensors")
}

#[test]
fn a_run_that_is_killed_in_an_epoch_ends_with_the_same_bits() {
    let f = Folder::with_data("records-resume");
    convert(&f, &[]);
    // A buffer smaller than the data, and turns that end within files.
    let how = [
        "--epochs=12",
        "--save-steps=1",
        "--set=data.records.cycle_length=3",
        "--set=data.records.block_length=2",
        "--set=data.records.shuffle_buffer=20",
        "--set=data.augment=[\"random_flip\"]",
        "--batch-size=4",
    ];
    train(&f, "records", "whole", &how).ok();
    let args = [&["train", "records", "--out", "killed", "--json"], &SMALL[..], &how].concat();
    // Killed when its first backup stands, then after longer and longer times.
    let saved =
        || fs::read_dir(f.path("killed/backups")).is_ok_and(|mut d| d.any(|e| is_backup(&e.unwrap())));
    let mut kills = 0;
    loop {
        let mut child = f.command(&args).stdout(std::process::Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_millis(200 * kills);
        while child.try_wait().unwrap().is_none() && !(saved() && Instant::now() >= until) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let model = |out: &str| fs::read(f.path(out).join("records.safetensors")).unwrap();
    assert!(kills > 0, "the run was too short to be killed");
    assert!(model("whole") == model("killed"), "other bits after {kills} kills");
    // Files that changed are another run's.
    fs::remove_file(f.path("records/train-00000-of-00006.tfrecord")).unwrap();
    train(&f, "records", "killed", &how).fails(1, &["another configuration", "the data is"]);
}

#[test]
fn tables_train_too_by_classes_and_by_numbers() {
    let f = Folder::new("records-tables");
    f.write("table.csv", table(300));
    let table_args =
        ["train", "table.csv", "--out=csv", "--json", "--quiet", "--threads=1", "--learning-rate=0.01"];
    let o = f.run(&table_args).ok().json();
    assert!(o["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.85, "{o}");
    let e = f.run(&["evaluate", o["model_file"].as_str().unwrap(), "--data-dir=.", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);

    let value = |i: usize| (i * 7919 % 97) as f64 / 97.0;
    let rows: String = (0..200)
        .map(|i| format!("{},{},{}\n", value(i), value(i + 50), 2.0 * value(i) - value(i + 50)))
        .collect();
    f.write("line.csv", "a,b,y\n".to_string() + &rows);
    let numbers = [
        "train",
        "line.csv",
        "--out=line",
        "--json",
        "--quiet",
        "--threads=1",
        "--learning-rate=0.01",
        "--set=compile.loss=mean_squared_error",
        "--set=compile.metrics=[]",
        "--set=layers.4.units=1",
        "--set=layers.4.activation=linear",
    ];
    let o = f.run(&numbers).ok().json();
    assert!(o["val_loss"].as_f64().unwrap() < 0.05, "{o}");
}

#[test]
fn files_of_pictures_in_records_are_decoded_and_what_is_wrong_is_named() {
    let f = Folder::new("records-pictures");
    let record = |i: u8| {
        let shade = if i.is_multiple_of(2) { 220 - i } else { 20 + i };
        let picture =
            Literal::from_slice([9 + i as usize % 3, 8, 1], &vec![shade; 8 * (9 + i as usize % 3)]).unwrap();
        let bytes = png::to_bytes(&picture).unwrap();
        let image = Literal::from_slice([bytes.len()], &bytes).unwrap();
        let label = HostArray::scalar(DType::I64, f64::from(i % 2));
        systole_data::format::example::encode(&Sample::new([
            ("image", HostArray::from(image)),
            ("label", label),
        ]))
        .unwrap()
    };
    let write = |name: &str, from: u8, to: u8| {
        fs::create_dir_all(f.path("pngs")).unwrap();
        let mut w =
            tfrecord::Writer::create(f.path(&format!("pngs/{name}")), tfrecord::Compression::None).unwrap();
        (from..to).for_each(|i| w.write(&record(i)).unwrap());
        w.finish().unwrap();
    };
    write("part-0.tfrecord", 0, 30);
    write("part-1.tfrecord", 30, 60);
    let o = train(&f, "pngs", "out", &["--epochs=8", "--learning-rate=0.01"]).ok().json();
    assert_eq!(o["config"]["data"]["image_size"], serde_json::json!([9, 8]), "{o}");
    assert!(o["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.8, "{o}");

    let path = f.path("pngs/part-1.tfrecord");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    train(&f, "pngs", "bad", &["--epochs=1"])
        .fails(1, &["part-1.tfrecord, record", "checksum", "data.records.skip"]);
    train(&f, "pngs", "skip", &["--epochs=1", "--set=data.records.skip=1"]).ok();
    train(&f, "pngs", "x", &["--set=data.records.label=kind"]).fails(1, &["no field `kind`", "image, label"]);
    train(&f, "pngs", "x", &["--set=data.records.cycle_length=0"])
        .fails(2, &["cycle_length must be at least 1"]);
    train(&f, "pngs", "x", &["--set=data.records.features=oops"]).fails(2, &["data.records.features=oops"]);
    train(&f, "none.csv", "x", &[]).fails(2, &["none.csv"]);
    if !cfg!(feature = "parquet") {
        f.write("rows.parquet", b"PAR1 and more");
        train(&f, "rows.parquet", "x", &[]).fails(1, &["rows.parquet", "--features parquet"]);
    }
}
