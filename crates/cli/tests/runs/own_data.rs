//! Tests of user data in every supported source: folders, files, records, archives, and tables that name images. The
//! same sample must be identical from each source. Unreadable samples are reported with their location while the others
//! are processed. Texts in other encodings are decoded if they declare the encoding, and reported otherwise.

use crate::program::made::{album, npz, odd_pictures, pair, picture, plain, table, tar, texts};
use crate::program::{Done, Folder};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use systole::config::RunConfig;
use systole::datasets::{ImageFit, RecordInputs, RecordOptions, record_inputs};
use systole_data::format::{any_format, npy, png};
use systole_data::tools::files_of;
use systole_ir::{DType, Literal};
use systole_nn::Model;

const FAST: [&str; 5] = ["--epochs=1", "--threads=1", "--json", "--quiet", "--batch-size=8"];
const SMALL: [&str; 3] = ["--set=layers.0.filters=2", "--set=layers.4.filters=2", "--set=layers.8.filters=2"];

fn train(f: &Folder, source: &str, out: &str, more: &[&str]) -> Done {
    f.run(&[&["train", source, "--out", out], &FAST[..], more].concat())
}

fn model(done: Done) -> String {
    done.ok().json()["model_file"].as_str().unwrap().to_string()
}

/// What `predict` says, a JSON object a line.
fn answers(done: &Done) -> Vec<Value> {
    done.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn probability(answer: &Value) -> f64 {
    let all = answer["top"].as_array().unwrap();
    all.iter().find(|c| c["class"] == "cat").unwrap()["probability"].as_f64().unwrap()
}

/// An album of pictures of all kinds, and the same as records, decoded records, an archive and a table.
fn five_ways(f: &Folder) -> Vec<(&'static str, String)> {
    let (mut archive, mut rows) = (Vec::new(), String::from("file,label\n"));
    for (class, shade) in [("cat", 20), ("dog", 150)] {
        for (name, bytes) in odd_pictures(shade) {
            f.write(&format!("odd/{class}/{name}"), &bytes);
            let (number, end) = name.split_once('.').unwrap();
            archive.push((format!("{class}{number}.{end}"), bytes));
            archive.push((format!("{class}{number}.cls"), class.as_bytes().to_vec()));
            rows += &format!("../odd/{class}/{name},{class}\n");
        }
    }
    f.write("odd.tar", tar(&archive));
    f.write("table/labels.csv", rows);
    f.run(&["data", "convert", "odd", "files/odd"]).ok();
    f.run(&["data", "convert", "odd", "pixels/odd", "--decode"]).ok();
    vec![
        ("folder", "odd".into()),
        ("records", "files/odd-00000-of-00001.tfrecord".into()),
        ("decoded records", "pixels/odd-00000-of-00001.tfrecord".into()),
        ("WebDataset", "odd.tar".into()),
        ("table", "table/labels.csv".into()),
    ]
}

#[test]
fn the_same_picture_is_the_same_by_every_way() {
    let f = Folder::new("own-five");
    let ways = five_ways(&f);
    let ground = "--set=data.background=1";
    let m = model(train(&f, "odd", "out", &[&SMALL[..], &[ground, "--set=fit.epochs=3"]].concat()));
    // Arrays, to the bit.
    let options = RecordOptions::default();
    let arrays = |path: &str| -> Vec<Vec<u8>> {
        let wanted = RecordInputs {
            options: &options,
            fields: &[],
            size: Some([24, 24, 3]),
            background: 1.0,
            resizing: Default::default(),
            resizes: true,
            goes_on: false,
        };
        let files: Vec<PathBuf> = files_of(&f.path(path)).unwrap();
        let all = record_inputs(files, &wanted).unwrap();
        all.iter().map(|s| s.unwrap().get("image").unwrap().bytes().to_vec()).collect()
    };
    let first = arrays(&ways[1].1);
    assert_eq!(first.len(), 14);
    for (way, path) in &ways[2..] {
        assert!(arrays(path) == first, "{way}: other pixels");
    }
    // Predictions and measures.
    let told = |path: &str| f.run(&["predict", &m, path, "--json", "--top=2"]).ok();
    let wanted: Vec<f64> = answers(&told("odd")).iter().map(probability).collect();
    let names: Vec<String> = ["cat", "dog"]
        .iter()
        .flat_map(|c| odd_pictures(9).into_iter().map(move |(n, _)| format!("odd/{c}/{n}")))
        .collect();
    let one_by_one =
        [&["predict", &m, "--json", "--top=2"], &names.iter().map(String::as_str).collect::<Vec<_>>()[..]];
    let one_by_one = answers(&f.run(&one_by_one.concat()).ok());
    let same = |way: &str, found: Vec<f64>| {
        let near = found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(found.len() == 14 && near, "{way}: {found:?} for {wanted:?}");
    };
    same("files", one_by_one.iter().map(probability).collect());
    let evaluated = |path: &str| f.run(&["evaluate", &m, path, "--json"]).ok().json();
    let measured = evaluated("odd");
    assert_eq!(measured["samples"], 14);
    for (way, path) in &ways[1..] {
        same(way, answers(&told(path)).iter().map(probability).collect());
        let here = evaluated(path);
        assert_eq!(here["samples"], 14, "{way}");
        let difference = here["loss"].as_f64().unwrap() - measured["loss"].as_f64().unwrap();
        assert!(difference.abs() < 1e-5, "{way}: {here} for {measured}");
    }
    // And what is chosen by the data.
    for (way, path) in &ways {
        let o = train(&f, path, &format!("out-{way}"), &[&SMALL[..], &[ground]].concat()).ok().json();
        assert_eq!(o["config"]["data"]["color_mode"], "rgb", "{way}: by all pictures, not by the first");
    }
}

#[test]
fn predict_goes_through_folders_and_past_bad_files() {
    let f = Folder::new("own-predict");
    album(&f, "album", 6);
    let m = model(train(&f, "album", "out", &SMALL));
    album(&f, "new/a", 2);
    f.write("new/loose.png", picture(20, 9, None));
    f.write("new/a/notes.txt", "no picture");
    f.write("new/.hidden.png", picture(1, 1, None));
    let done = f.run(&["predict", &m, "new", "--json"]).ok();
    let files: Vec<String> = answers(&done).iter().map(|a| a["image"].as_str().unwrap().into()).collect();
    let wanted =
        ["new/a/cat/0.png", "new/a/cat/1.png", "new/a/dog/0.png", "new/a/dog/1.png", "new/loose.png"];
    assert_eq!(files, wanted);
    assert!(done.err.contains("1 file is not an image and is skipped: new/a/notes.txt"), "{}", done.err);
    // Bad ones are told, the others are answered, and the program's end says so.
    f.write("new/a/cut.png", &picture(20, 1, None)[..60]);
    f.write("new/a/anim.gif", b"GIF89a\x01\0\x01\0\0\0\0;");
    let done = f.run(&["predict", &m, "new", "--out", "answers.csv"]);
    assert_eq!(done.code, Some(1), "{}\n{}", done.out, done.err);
    for part in [
        "no prediction for new/a/cut.png",
        "no prediction for new/a/anim.gif",
        "GIF",
        "2 samples have no prediction",
    ] {
        assert!(done.err.contains(part), "`{part}`: {}", done.err);
    }
    assert_eq!(fs::read_to_string(f.path("answers.csv")).unwrap().lines().count(), 6);
    // Files that are named: all or none, unless asked for.
    let named = ["predict", &m, "new/loose.png", "new/a/cut.png", "nowhere.png"];
    assert_eq!(f.run(&named).fails("data", &["new/a/cut.png"]).out, "");
    let done = f.run(&[&named[..], &["--keep-going", "--json"]].concat());
    assert_eq!((done.code, answers(&done).len()), (Some(1), 3), "{}\n{}", done.out, done.err);
    assert!(answers(&done)[1]["error"].is_string() && done.err.contains("no prediction for nowhere.png"));
    fs::create_dir(f.path("empty")).unwrap();
    f.run(&["predict", &m, "empty"]).fails("data", &["empty"]);
}

#[test]
fn predict_answers_the_good_rows_of_a_table() {
    let f = Folder::new("own-rows");
    let row = |i: usize| format!("{},{},{}", pair(i).0, ["Rome", "Oslo"][i % 2], pair(i).2);
    f.write("t.csv", table("a,city,label", 80, row));
    let m = model(train(&f, "t.csv", "out", &[]));
    f.write("new.csv", "a,city\n0.5,Oslo\nlarge,Oslo\n0.5,Lima\nnan,Rome\n0.5,Rome,7\n0.25,Rome\n");
    f.run(&["predict", &m, "new.csv"]).fails("data", &["new.csv, line 3", "--keep-going"]);
    let done = f.run(&["predict", &m, "new.csv", "--keep-going", "--json"]);
    assert_eq!(done.code, Some(1), "{}", done.err);
    let all = answers(&done);
    let answered: Vec<u64> =
        all.iter().filter(|a| a["error"].is_null()).map(|a| a["index"].as_u64().unwrap()).collect();
    assert_eq!(answered, [0, 5]);
    for part in
        ["\"large\"", "Lima", "not finite: `nan`", "3 fields, expected 2", "4 samples have no prediction"]
    {
        assert!(done.err.contains(part), "`{part}`: {}", done.err);
    }
    // The good rows are read as ever.
    f.write("good.csv", "a,city\n0.5,Oslo\n0.25,Rome\n");
    let good = answers(&f.run(&["predict", &m, "good.csv", "--json"]).ok());
    let kept: Vec<&Value> = all.iter().filter(|a| a["error"].is_null()).map(|a| &a["probability"]).collect();
    assert_eq!(kept, [&good[0]["probability"], &good[1]["probability"]]);
    // A folder of tables.
    f.write("rows/a.csv", "a,city\n0.5,Oslo\n");
    f.write("rows/b.csv", "a,city\n0.5,Oslo\nx,Oslo\n");
    let done = f.run(&["predict", &m, "rows", "--json"]);
    assert_eq!((done.code, answers(&done).len()), (Some(1), 3), "{}", done.err);
}

#[test]
fn evaluate_takes_any_data() {
    let f = Folder::new("own-evaluate");
    f.write("t.csv", table("a,b,label", 100, plain));
    let o = train(&f, "t.csv", "runs/t", &["--set=fit.epochs=3"]).ok().json();
    let m = o["model_file"].as_str().unwrap();
    // A run folder: what was kept for testing. A file: all of it.
    assert_eq!(f.run(&["evaluate", "runs/t", "--json"]).ok().json()["samples"], 20);
    assert_eq!(f.run(&["evaluate", m, "t.csv", "--json"]).ok().json()["samples"], 100);
    f.write("other.csv", table("b,label,a", 30, |i| format!("{:.4},{},{}", pair(i).1, pair(i).2, pair(i).0)));
    let done = f.run(&["evaluate", "runs/t", "other.csv", "--json"]).ok();
    assert_eq!(done.json()["samples"], 30);
    f.write("set/train.csv", table("a,b,label", 100, plain));
    f.write("set/test.csv", table("a,b,label", 10, plain));
    assert_eq!(f.run(&["evaluate", m, "set", "--json"]).ok().json()["samples"], 10, "its part for testing");
    f.write("unlabelled.csv", "a,b\n1,2\n");
    f.run(&["evaluate", m, "unlabelled.csv"]).fails("data", &["data.records.label=b"]);
    f.run(&["evaluate", m, "nowhere.csv"]).fails("usage", &["nowhere.csv"]);
    f.run(&["evaluate", m, m]).fails("usage", &["runs/t/t.safetensors"]);
    // Pictures by the names of their classes, even of one alone.
    album(&f, "album", 6);
    let p = model(train(&f, "album", "runs/album", &SMALL));
    assert_eq!(f.run(&["evaluate", &p, "album", "--json"]).ok().json()["samples"], 12);
    for i in 0..3 {
        f.write(&format!("dogs/dog/{i}.png"), picture(180, i, None));
        f.write(&format!("wolves/wolf/{i}.png"), picture(180, i, None));
    }
    let dogs = f.run(&["evaluate", &p, "dogs", "--json"]).ok().json();
    assert_eq!(dogs["samples"], 3);
    let own = f.run(&["predict", &p, "dogs", "--json"]).ok();
    let right = answers(&own).iter().filter(|a| a["class"] == "dog").count() as f64 / 3.0;
    assert!((dogs["sparse_categorical_accuracy"].as_f64().unwrap() - right).abs() < 1e-6, "{dogs}");
    f.run(&["evaluate", &p, "wolves"]).fails("data", &["`wolf`", "`cat`", "`dog`"]);
}

#[test]
fn tables_that_name_pictures_train() {
    let f = Folder::new("own-table");
    // As fastai and Keras have it.
    let mut rows = String::from("name,label\n");
    for i in 0..24 {
        let (class, shade) = [("dog", 180), ("cat", 20)][i % 2];
        f.write(&format!("pets/images/p{i}.png"), picture(shade, i, None));
        rows += &format!("p{i}.png,{class}\n");
    }
    f.write("pets/labels.csv", &rows);
    let done = train(&f, "pets/labels.csv", "out", &SMALL).ok();
    assert!(done.err.contains("images of 2 classes"), "{}", done.err);
    let m = model(done);
    let all = answers(&f.run(&["predict", &m, "pets/labels.csv", "--json"]).ok());
    assert_eq!(all.len(), 24);
    let single = answers(&f.run(&["predict", &m, "pets/images/p3.png", "--json"]).ok());
    assert_eq!(all[3]["class"], single[0]["class"]);
    assert_eq!(f.run(&["evaluate", &m, "pets/labels.csv", "--json"]).ok().json()["samples"], 24);
    assert_eq!(f.run(&["evaluate", "out", "--json"]).ok().json()["samples"], 5);
    // A folder of its own, named; ends left out; a label of any name.
    f.write("kaggle/breeds.csv", rows.replace("name,label", "id,breed").replace(".png", ""));
    fs::rename(f.path("pets/images"), f.path("photos")).unwrap();
    train(&f, "pets/labels.csv", "x", &SMALL).fails("io", &["`name`", "p0.png", "data.records.pictures"]);
    let folder = "--set=data.records.pictures=../photos";
    train(&f, "kaggle/breeds.csv", "kaggle-out", &[&SMALL[..], &[folder]].concat()).ok();
    // Missing and damaged pictures are named.
    fs::remove_file(f.path("photos/p4.png")).unwrap();
    f.write("photos/p6.png", &picture(20, 6, None)[..60]);
    let some = [&SMALL[..], &[folder]].concat();
    train(&f, "pets/labels.csv", "x", &some)
        .fails("io", &["1", "24", "photos/p4.png", "data.records.skip=1"]);
    let done =
        train(&f, "pets/labels.csv", "some", &[&some[..], &["--set=data.records.skip=1"]].concat()).ok();
    assert!(done.err.contains("2 of 24 images are skipped") && done.err.contains("p6.png"), "{}", done.err);
    let done = f.run(&["predict", &m, "pets/labels.csv", "--keep-going", "--json", folder]);
    assert_eq!((done.code, answers(&done).len()), (Some(1), 24), "{}", done.err);
    assert!(
        done.err.contains("photos/p4.png") && done.err.contains("2 samples have no prediction"),
        "{}",
        done.err
    );
    // Numbers to predict from pictures.
    f.write(
        "ages.csv",
        (0..24).fold("file,age\n".to_string(), |t, i| t + &format!("photos/p{i}.png,{}.5\n", i * 3)),
    );
    f.write("photos/p4.png", picture(20, 4, None));
    f.write("photos/p6.png", picture(20, 6, None));
    let done = train(&f, "ages.csv", "ages", &SMALL).ok();
    assert!(done.err.contains("looks like a number to predict"), "{}", done.err);
    let m = model(done);
    let one = answers(&f.run(&["predict", &m, "photos/p1.png", "--json"]).ok());
    assert_eq!(one[0]["values"].as_array().unwrap().len(), 1);
}

/// A text as Windows writes it.
fn windows(text: &str) -> Vec<u8> {
    text.chars().map(|c| if c == '€' { 0x80 } else { u8::try_from(u32::from(c)).unwrap() }).collect()
}

#[test]
fn tables_of_other_encodings_are_read_when_they_say_so() {
    let f = Folder::new("own-encodings");
    let text = table("prix (€),ville,label", 80, |i| {
        format!("{},{},{}", pair(i).0, ["Orléans", "Nîmes"][i % 2], ["oui", "négatif"][pair(i).2])
    });
    f.write("latin1.csv", windows(&text));
    train(&f, "latin1.csv", "x", &[])
        .fails("data", &["latin1.csv, line 1", "byte 6", "0x80", "data.records.encoding=windows-1252"]);
    let set = "--set=data.records.encoding=windows-1252";
    let m = model(train(&f, "latin1.csv", "out", &[set]));
    let o: Value = f.run(&["predict", &m, "latin1.csv", "--limit=1", "--json"]).ok().json();
    assert!(["oui", "négatif"].contains(&o["class"].as_str().unwrap()), "{o}");
    f.write("utf8.csv", &text);
    let same =
        f.run(&["predict", &m, "utf8.csv", "--limit=1", "--json", "--set=data.records.encoding=utf-8"]);
    assert_eq!(same.ok().json()["probability"], o["probability"]);
    assert_eq!(f.run(&["evaluate", &m, "latin1.csv", "--json"]).ok().json()["samples"], 80);
    train(&f, "latin1.csv", "x", &["--set=data.records.encoding=ebcdic"])
        .fails("usage", &["`ebcdic`", "windows-1252"]);
    let wide: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_be_bytes).collect();
    f.write("wide.csv", &wide);
    let done = train(&f, "wide.csv", "wide", &[]).ok();
    assert!(done.err.contains("is decoded as utf-16be because of its byte order mark"), "{}", done.err);
    f.run(&["predict", &model(done), "wide.csv", "--limit=1"]).ok();
    f.write("bare.csv", &wide[2..]);
    train(&f, "bare.csv", "bare", &["--set=data.records.encoding=utf-16be"]).ok();
    f.run(&["data", "stats", "latin1.csv"]).fails("data", &["data.records.encoding"]);
    assert!(f.run(&["data", "stats", "latin1.csv", set]).ok().out.contains("Orléans"));
    f.run(&["data", "convert", "latin1.csv", "rows/latin1", set]).ok();
    // Decimal commas within quotes, which might as well be thousands.
    let commas = table("a,b,label", 80, |i| {
        format!("\"{}\",\"{:.4}\",{}", pair(i).0, pair(i).1, pair(i).2).replace('.', ",")
    });
    f.write("commas.csv", commas);
    let m = model(train(&f, "commas.csv", "commas", &["--set=data.records.decimal=\",\""]));
    f.write("plain.csv", "a;b\n0,5;0,25\n");
    f.write("point.csv", "a\tb\n0.5\t0.25\n");
    let p = |file: &str, more: &[&str]| {
        f.run(&[&["predict", &m, file, "--json"], more].concat()).ok().json()["probability"].clone()
    };
    assert_eq!(p("plain.csv", &[]), p("point.csv", &["--set=data.records.decimal=."]));
}

#[test]
fn texts_of_other_encodings_are_told() {
    let f = Folder::new("own-texts");
    let line = "L'été à Nîmes, naïve et drôle.\n";
    f.write("latin1.txt", windows(&line.repeat(60)));
    let units = [
        "--set=model.num_layers=1",
        "--set=model.hidden_dim=8",
        "--set=model.intermediate_dim=8",
        "--set=data.sequence_length=10",
    ];
    train(&f, "latin1.txt", "x", &units)
        .fails("data", &["latin1.txt, line 1, byte 2", "0xe9", "data.records.encoding"]);
    let set = "--set=data.records.encoding=latin1";
    let o = train(&f, "latin1.txt", "latin1", &[&units[..], &[set]].concat()).ok().json();
    f.write("utf8.txt", line.repeat(60));
    let same = train(&f, "utf8.txt", "utf8", &units).ok().json();
    assert_eq!(o["loss"], same["loss"], "the same text");
    let wide: Vec<u8> =
        format!("\u{feff}{}", line.repeat(60)).encode_utf16().flat_map(u16::to_le_bytes).collect();
    f.write("wide.txt", wide);
    let done = train(&f, "wide.txt", "wide", &units).ok();
    assert!(done.err.contains("is decoded as utf-16 because of its byte order mark"), "{}", done.err);
    assert_eq!(done.json()["loss"], same["loss"]);
    let m = o["model_file"].as_str().unwrap();
    assert_eq!(f.run(&["predict", m, "latin1.txt"]).ok().out.lines().count(), 1);
    assert!(f.run(&["evaluate", m, "utf8.txt", "--json", "--set=data.records.encoding=utf-8"]).ok().json()["samples"].as_u64() > Some(100));
    // A text beside a saved model: the model's own layers.
    f.write("more.txt", "To be or not to be. ".repeat(60));
    let done = train(&f, "more.txt", "more", &["--from", m, "--set=data.records.encoding=utf-8"]).ok();
    assert_eq!(done.json()["config"]["model"], o["config"]["model"]);
}

#[test]
fn arrays_with_parts_and_text_labels_go_all_the_way() {
    let f = Folder::new("own-npz");
    let x: Vec<f32> = (0..100).flat_map(|i| [pair(i).0 as f32, pair(i).1 as f32]).collect();
    let y: Vec<&str> = (0..100).map(|i| ["no", "yes"][pair(i).2]).collect();
    let array = |rows: usize, x: &[f32]| npy::to_bytes(&Literal::from_slice([rows, 2], x).unwrap()).unwrap();
    f.write(
        "keras.npz",
        npz(&[
            ("x_train", array(80, &x[..160])),
            ("y_train", texts(&y[..80])),
            ("x_test", array(20, &x[160..])),
            ("y_test", texts(&y[80..])),
        ]),
    );
    let done = train(&f, "keras.npz", "out", &["--set=fit.epochs=2"]).ok();
    assert!(done.err.contains("80 + 20 records of 2 classes"), "{}", done.err);
    let o = done.json();
    let m = o["model_file"].as_str().unwrap();
    let all = answers(&f.run(&["predict", m, "keras.npz", "--json"]).ok());
    assert_eq!(all.len(), 100);
    assert!(["no", "yes"].contains(&all[0]["class"].as_str().unwrap()));
    let e = f.run(&["evaluate", m, "keras.npz", "--json"]).ok().json();
    assert_eq!((&e["samples"], &e["loss"]), (&Value::from(20), &o["val_loss"]));
    // A grey picture is one of arrays too.
    let grey = png::to_bytes(&Literal::from_slice([2, 2, 1], &[0u8, 9, 9, 0]).unwrap()).unwrap();
    f.write("p.png", grey);
    f.run(&["predict", m, "p.png"]).fails("data", &["p.png"]);
}

/// Each number that can be set, with values that make no sense.
#[test]
fn numbers_without_a_meaning_are_refused_before_the_data_are_read() {
    let f = Folder::new("own-numbers");
    f.write("t.csv", table("a,b,label", 60, plain));
    let integers = [
        "fit.epochs",
        "fit.batch_size",
        "fit.steps_per_epoch",
        "fit.validation_freq",
        "data.train_samples",
        "data.test_samples",
        "data.sequence_length",
        "data.records.cycle_length",
        "data.records.block_length",
        "data.records.shuffle_buffer",
        "strategy.devices",
        "layers.2.units",
        "optimizer.gradient_accumulation_steps",
    ];
    let fractions = [
        "data.scale",
        "data.validation_split",
        "data.unreadable_quota",
        "data.background",
        "optimizer.learning_rate",
        "optimizer.weight_decay",
        "optimizer.clipnorm",
        "optimizer.clipvalue",
        "optimizer.global_clipnorm",
        "optimizer.beta_1",
        "optimizer.beta_2",
        "optimizer.epsilon",
    ];
    let mut taken = Vec::new();
    let mut refused = |key: &str, value: &str| {
        let set = format!("--set={key}={value}");
        let done = train(&f, "t.csv", "out", &["--print-config", &set]);
        let is_told =
            done.code == Some(2) && done.err.contains("error[usage]: ") && done.err.contains(&set[6..]);
        if !is_told || done.err.contains("panicked") {
            taken.push(format!("{set}: {:?} {}", done.code, done.err));
        }
    };
    for key in integers {
        ["0", "-1", "1.5", "nan", "99999999999999999999"].iter().for_each(|v| refused(key, v));
    }
    for key in fractions {
        ["-1", "nan", "inf"].iter().for_each(|v| refused(key, v));
    }
    assert!(taken.is_empty(), "{}", taken.join("\n"));
    // What is far too much for any machine is told, not tried.
    let huge = [
        "fit.batch_size=1000000000000",
        "layers.2.units=1000000000000",
        "data.records.shuffle_buffer=1000000000000",
        "data.records.cycle_length=1000000000000",
        "data.records.block_length=1000000000000",
        "fit.steps_per_epoch=1",
    ];
    for set in huge {
        let set = format!("--set={set}");
        let done = train(&f, "t.csv", "out", &["--resume=never", "--memory-limit=2GiB", &set]);
        assert!(
            matches!(done.code, Some(0..=2)) && !done.err.contains("panicked"),
            "{set}: {:?} {}",
            done.code,
            done.err
        );
    }
}

#[test]
fn an_album_with_a_table_beside_it_is_still_an_album() {
    let f = Folder::new("own-album-table");
    album(&f, "album", 8);
    let rows = |i: usize| format!("c{},{},{}", i % 2, 100 + i, i % 2);
    f.write("album/metadata.csv", table("camera,iso,label", 40, rows));
    let done = train(&f, "album", "out", &SMALL).ok();
    let told = "metadata.csv is not used, because the images in the class folders are the data";
    assert!(done.err.contains(told) && done.err.contains("systole train "), "{}", done.err);
    assert!(!done.err.contains("image format"), "the table has its own note: {}", done.err);
    let m = model(done);
    assert_eq!(f.run(&["evaluate", &m, "album", "--json"]).ok().json()["samples"], 16);
    let predicted = f.run(&["predict", &m, "album", "--json"]).ok();
    assert!(answers(&predicted).len() == 16 && predicted.err.contains("metadata.csv"), "{}", predicted.err);
    // Both can be chosen.
    let done = train(&f, "album/metadata.csv", "table", &[]).ok();
    assert_eq!(done.json()["config"]["data"]["dataset"], "records", "{}", done.err);
    let by_label = train(&f, "album", "label", &["--label=iso", "--set=compile.loss=mse"]).ok().json();
    assert_eq!(by_label["config"]["data"]["dataset"], "records");

    // A table that lists the images is the data, and it is said.
    let listed = table("file,label", 16, |i| format!("{}/{}.png,{}", ["cat", "dog"][i % 2], i / 2, i % 3));
    f.write("album/metadata.csv", listed);
    let done = train(&f, "album", "listed", &SMALL).ok();
    assert!(done.err.contains("metadata.csv is the data, rather than the class folders"), "{}", done.err);
    assert_eq!(done.json()["config"]["data"]["dataset"], "records");
    let folders =
        f.run(&[&["train", "folder", "--data-dir=album", "--out=f"], &FAST[..], &SMALL].concat()).ok();
    assert_eq!(folders.json()["config"]["data"]["dataset"], "folder");
}

#[test]
fn a_file_may_be_the_data_directory() {
    let f = Folder::new("own-file-dir");
    f.write("t.csv", table("a,b,label", 40, plain));
    let o = train(&f, "t.csv", "out", &[]).ok().json();
    let e = f.run(&["evaluate", "out", "--data-dir=t.csv", "--json"]).ok().json();
    assert_eq!((&e["samples"], &e["loss"]), (&8.into(), &o["val_loss"]), "the same split");
    // A file of another name, a model outside its folder, training that continues, and a preset.
    f.write("moved/u.csv", table("a,b,label", 40, plain));
    fs::rename(f.path("out/t.safetensors"), f.path("alone.safetensors")).unwrap();
    assert_eq!(
        f.run(&["evaluate", "alone.safetensors", "--data-dir=moved/u.csv", "--json"]).ok().json()["samples"],
        8
    );
    let more = ["train", "--from=alone.safetensors", "--data-dir=moved/u.csv", "--out=more"];
    let o = f.run(&[&more[..], &FAST].concat()).ok().json();
    assert_eq!(f.run(&["evaluate", "more", "--json"]).ok().json()["samples"], 8, "{o}");
    f.run(&[&["train", "table", "--data-dir=t.csv", "--out=preset"], &FAST[..]].concat()).ok();
}

#[test]
fn a_discarded_run_leaves_no_doubt_which_model_is_meant() {
    let f = Folder::new("own-discarded");
    f.write("a.csv", table("a,b,label", 40, plain));
    f.write("b.csv", table("a,b,label", 44, plain));
    train(&f, "a.csv", "out", &[]).ok();
    train(&f, "b.csv", "out", &[]).fails("config", &["`out`", "--resume=never"]);
    train(&f, "b.csv", "out", &["--resume=never"]).ok();
    let e = f.run(&["evaluate", "out", "--json"]).ok().json();
    assert_eq!(e["model_file"], "out/b.best.safetensors", "{e}");
}

/// Images of two classes that are wider than high, with details that each way of resizing changes.
fn wide_images(f: &Folder) {
    for (class, shade) in [("day", 150usize), ("night", 10)] {
        for i in 0..6usize {
            let pixel = |x: usize, y: usize| (shade + x * x % 90 + y * 5 % 70 + i * 3).min(255) as u8;
            let pixels: Vec<u8> =
                (0..24).flat_map(|y| (0..40).flat_map(move |x| [pixel(x, y), pixel(y, x), 9])).collect();
            let image = Literal::from_slice([24, 40, 3], &pixels).unwrap();
            f.write(&format!("album/{class}/{i}.png"), png::to_bytes(&image).unwrap());
        }
    }
}

#[test]
fn images_are_resized_equally_everywhere() {
    let f = Folder::new("resize");
    wide_images(&f);
    let small = ["--set=layers.0.filters=2", "--set=layers.4.filters=2", "--set=layers.8.filters=2"];
    let mut losses = Vec::new();
    for (name, resize) in [
        ("plain", "none"),
        ("cropped", "{ method = \"bicubic\", antialias = true, crop_to_aspect_ratio = true }"),
        ("padded", "{ method = \"area\", pad_to_aspect_ratio = true }"),
    ] {
        let set = format!("--set=data.resize={resize}");
        let base = ["train", "album", "--out", name, "--epochs=1", "--threads=1", "--json", &set];
        let result = f.run(&[&base[..], &small[..]].concat()).ok().json();
        let evaluated = f.run(&["evaluate", name, "--json"]).ok().json();
        assert_eq!(evaluated["loss"], result["val_loss"], "{name}");
        losses.push(result["val_loss"].as_f64().unwrap());
        // The library's own conversion, by the stored setting.
        let file = format!("{name}/album.safetensors");
        let mut model = Model::load(f.path(&file)).unwrap();
        let config = RunConfig::parse(&model.notes["config"], "the model").unwrap();
        let fit = ImageFit { size: [24, 24, 3], background: 0.0, resizing: config.data.resizing() };
        let pixels = any_format::read(f.path("album/day/1.png")).unwrap();
        let x = (fit.apply(pixels.into()).cast(DType::F32) / 255.0).expand_dims(0).into_literal().unwrap();
        let expected = model.predict_on_batch(&x).unwrap().to_f32s()[0];
        let of = |model: &str| {
            let answer = f.run(&["predict", model, "album/day/1.png", "--json"]).ok().json();
            let top = answer["top"].as_array().unwrap().iter().find(|t| t["class"] == "day").unwrap().clone();
            top["probability"].as_f64().unwrap()
        };
        assert!((of(&file) - f64::from(expected)).abs() < 1e-6, "{name}");
        f.run(&["export", name, "--format=onnx", "--out", &format!("{name}.onnx")]).ok();
        assert!((of(&format!("{name}.onnx")) - f64::from(expected)).abs() < 1e-4, "{name}");
        let onnx =
            String::from_utf8_lossy(&std::fs::read(f.path(&format!("{name}.onnx"))).unwrap()).into_owned();
        assert!(onnx.contains("systole.preprocessing"), "{name}");
        f.run(&["export", name, "--format=torch", "--out", &format!("{name}.pt")]).ok();
        let beside = std::fs::read_to_string(f.path(&format!("{name}.preprocessing.json"))).unwrap();
        let beside: serde_json::Value = serde_json::from_str(&beside).unwrap();
        let method = resize.split('"').nth(1).unwrap_or("fit");
        assert_eq!(beside["resize"]["method"], method, "{beside}");
        assert_eq!((&beside["height"], &beside["width"]), (&24.into(), &24.into()));
    }
    assert!(losses[0] != losses[1] && losses[1] != losses[2], "{losses:?}");
    let toml = f.run(&["train", "album", "--print-config", "--set=data.resize=nearest"]).ok().out;
    f.write("run.toml", toml);
    let traced = f.run(&["data", "trace", "run.toml"]).ok().out;
    assert!(traced.contains("resized to 24 × 24: nearest; stretched"), "{traced}");
    f.run(&["train", "album", "--set=data.resize=lanczos"]).fails("usage", &["data.resize=lanczos"]);
    let both = "--set=data.resize={ crop_to_aspect_ratio = true, pad_to_aspect_ratio = true }";
    f.run(&["train", "album", both]).fails("usage", &["crop_to_aspect_ratio", "pad_to_aspect_ratio"]);
}
