//! Tests of training from record files: TFRecord files written by `systole data convert`, CSV and NumPy. Runs the real
//! program on generated data.

use crate::program::{Done, Folder};
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
    f.convert("records", "6", &[]);
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
    // The run's folder contains the location.
    assert_eq!(f.run(&["evaluate", model, "--json"]).ok().json()["samples"], 32);

    // Packed files and those of other sizes of a turn hold the same records; the order is another one.
    fs::remove_dir_all(f.path("records")).unwrap();
    f.convert("records", "6", &["--compression=gzip"]);
    let e = f.run(&["evaluate", model, "--data-dir=records", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
    train(&f, "records", "b", &["--epochs=1", "--set=data.records.compression=plain"])
        .fails("data", &["train-00000-of-00006.tfrecord", "data.records.skip=10"]);
}

fn is_backup(entry: &fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|end| end == "safetensors")
}

#[test]
fn a_run_that_is_killed_in_an_epoch_ends_with_the_same_bits() {
    let f = Folder::with_data("records-resume");
    f.convert("records", "6", &[]);
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
    train(&f, "records", "killed", &how).fails("config", &["`killed`", "53", "64"]);
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
        let mut w = tfrecord::TfRecordWriter::create(
            f.path(&format!("pngs/{name}")),
            tfrecord::TfRecordCompression::None,
        )
        .unwrap();
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
        .fails("data", &["part-1.tfrecord, record", "data.records.skip=10"]);
    train(&f, "pngs", "skip", &["--epochs=1", "--set=data.records.skip=1"]).ok();
    train(&f, "pngs", "x", &["--set=data.records.label=kind"])
        .fails("data", &["`kind`", "`image`", "`label`"]);
    train(&f, "pngs", "x", &["--set=data.records.cycle_length=0"])
        .fails("usage", &["data.records.cycle_length=0"]);
    train(&f, "pngs", "x", &["--set=data.records.features=oops"])
        .fails("usage", &["data.records.features=oops"]);
    train(&f, "none.csv", "x", &[]).fails("usage", &["none.csv"]);
    if !cfg!(feature = "parquet") {
        f.write("rows.parquet", b"PAR1 and more");
        train(&f, "rows.parquet", "x", &[]).fails("unsupported", &["rows.parquet", "--features parquet"]);
    }
}

#[test]
fn predictions_for_records_come_from_files_with_or_without_labels() {
    let f = Folder::with_data("records-predict");
    f.write("table.csv", table(300));
    let args =
        ["train", "table.csv", "--out=csv", "--json", "--quiet", "--threads=1", "--learning-rate=0.01"];
    let model = f.run(&args).ok().json()["model_file"].as_str().unwrap().to_string();
    let answers = |files: &[&str], more: &[&str]| -> Vec<serde_json::Value> {
        let done = f.run(&[&["predict", &model, "--json"], files, more].concat()).ok();
        done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let whole = answers(&["table.csv"], &[]);
    assert_eq!((whole.len(), &whole[7]["index"]), (300, &serde_json::json!(7)));
    let truth = |i: usize| if i * 37 % 100 > i * 61 % 100 { "wide" } else { "high" };
    let right = whole.iter().enumerate().filter(|(i, a)| a["class"] == truth(*i)).count();
    assert!(right > 255, "{right} of 300");

    // Other columns, in another order, and no label: the names count.
    let row = |i: usize| format!("{:.2},x,{}\n", (i * 61 % 100) as f64 * 10.0, i * 37 % 100);
    f.write("new.csv", "height,note,width\n".to_string() + &(0..300).map(row).collect::<String>());
    let new = answers(&["new.csv"], &["--limit=40"]);
    assert_eq!(new.len(), 40);
    for (new, old) in new.iter().zip(&whole) {
        let p = |a: &serde_json::Value| a["probability"].as_f64().unwrap();
        assert_eq!(new["class"], old["class"]);
        assert!((p(new) - p(old)).abs() < 1e-5, "{new} {old}");
    }
    f.write("lacking.csv", "width,size\n1,2\n");
    f.run(&["predict", &model, "lacking.csv"])
        .fails("data", &["`height`", "lacking.csv", "`width`", "`size`"]);
    f.write("text.csv", "width,height\n1,tall\n");
    f.run(&["predict", &model, "text.csv"]).fails("data", &["`height`"]);
    f.run(&["predict", &model, "table.csv", "--out=a.txt"]).fails("usage", &["--out", ".csv"]);

    let said = f.run(&["predict", &model, "new.csv", "--out=a.csv"]).ok().out;
    assert!(said.contains("300 predictions are in a.csv"), "{said}");
    let written = fs::read_to_string(f.path("a.csv")).unwrap();
    assert_eq!(written.lines().next(), Some("file,index,class,label,probability"));
    assert!(
        written
            .lines()
            .nth(3)
            .unwrap()
            .starts_with(&format!("new.csv,2,{},", whole[2]["class"].as_str().unwrap()))
    );
    f.run(&["predict", &model, "new.csv", "--out=a.json"]).ok();
    let written: serde_json::Value = serde_json::from_slice(&fs::read(f.path("a.json")).unwrap()).unwrap();
    assert_eq!(written[2]["top"].as_array().unwrap().len(), 2);

    // Pictures in TFRecord files are predicted as the files of pictures are.
    f.convert("records", "2", &[]);
    let o = train(&f, "records", "a", &["--epochs=1"]).ok().json();
    let model = o["model_file"].as_str().unwrap();
    let of_records = f.run(&["predict", model, "records/test-00000-of-00001.tfrecord", "--json"]).ok().out;
    let of_idx =
        f.run(&["predict", model, "data/fashion-mnist/t10k-images-idx3-ubyte.gz", "--json"]).ok().out;
    let top = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["top"].clone()).collect()
    };
    assert_eq!(top(&of_records), top(&of_idx));
    assert_eq!(top(&of_idx).len(), 32);
}

#[test]
fn values_and_the_next_byte_of_a_text_are_predicted_too() {
    let f = Folder::new("records-values");
    let rows: String = (0..100).map(|i| format!("{},{}\n", i as f64 / 50.0, i as f64 / 25.0)).collect();
    f.write("line.csv", "a,y\n".to_string() + &rows);
    let how = ["--set=compile.loss=mean_squared_error", "--set=compile.metrics=[]", "--set=layers.4.units=1"];
    let common = [
        "--json",
        "--quiet",
        "--threads=1",
        "--epochs=100",
        "--learning-rate=0.01",
        "--set=layers.4.activation=linear",
    ];
    let o = f.run(&[&["train", "line.csv", "--out=line"], &how[..], &common].concat()).ok().json();
    let model = o["model_file"].as_str().unwrap();
    f.write("new.csv", "a\n0.5\n1.5\n");
    f.run(&["predict", model, "new.csv", "--out=values.csv"]).ok();
    let written = fs::read_to_string(f.path("values.csv")).unwrap();
    let values: Vec<f64> =
        written.lines().skip(1).map(|l| l.rsplit(',').next().unwrap().parse().unwrap()).collect();
    assert!(written.starts_with("file,index,value_0\nnew.csv,0,"), "{written}");
    assert!((values[0] - 1.0).abs() < 0.5 && (values[1] - 3.0).abs() < 0.5, "{values:?}");

    // Sequences begin with each letter: five do not divide eight.
    f.write("abc.txt", "abcde".repeat(320));
    let small = ["--set=layers.0.output_dim=32", "--set=layers.1.units=32", "--set=layers.2.units=32"];
    let more = ["--set=data.dir=abc.txt", "--set=data.sequence_length=8", "--epochs=60", "--batch-size=8"];
    let rest = ["--learning-rate=0.01", "--json", "--quiet", "--threads=1", "--out=text"];
    let o = f.run(&[&["train", "lstm"], &small[..], &more, &rest].concat()).ok().json();
    let model = o["model_file"].as_str().unwrap();
    f.write("start.txt", "deabcdeab");
    let answer = f.run(&["predict", model, "start.txt", "--json"]).ok().json();
    assert_eq!((&answer["class"], &answer["label"]), (&serde_json::json!("'c'"), &serde_json::json!(99)));
    f.write("short.txt", "abc");
    f.run(&["predict", model, "short.txt"]).fails("data", &["short.txt", "8", "3"]);
}
