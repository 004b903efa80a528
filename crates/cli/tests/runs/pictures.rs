//! Tests of training on a user's own images: folders of PNG and JPEG files of any size and color, with some invalid
//! files. Runs the real program on images drawn by the tests.

use crate::program::{Done, Folder};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use systole_data::format::png;
use systole_ir::Literal;

/// JPEG files that TensorFlow and Pillow wrote.
const COLOUR_JPEG: &[u8] = include_bytes!("../../../data/fixtures/gradient.jpg");
const GREY_JPEG: &[u8] = include_bytes!("../../../data/fixtures/grey.jpg");

const CLASSES: [&str; 3] = ["bars", "board", "ramp"];

/// Picture `i` of a class, 20 to 50 pixels high and wide: stripes, a chess board, or brightness that grows downwards.
fn picture(class: &str, i: usize, channels: usize) -> Literal {
    let (h, w) = (20 + i * 7 % 31, 20 + i * 11 % 31);
    let (dark, light) = (10 + i * 13 % 60, 170 + i * 17 % 80);
    let level = |y: usize, x: usize| match class {
        "bars" => [dark, light][x * 6 / w % 2],
        "board" => [dark, light][(x * 4 / w + y * 4 / h) % 2],
        _ => dark + (light - dark) * y / h,
    };
    let pixel = |p: usize| (0..channels).map(move |c| if c == 3 { 255 } else { level(p / w, p % w) as u8 });
    let bytes: Vec<u8> = (0..h * w).flat_map(pixel).collect();
    Literal::from_slice([h, w, channels], &bytes).unwrap()
}

/// `n` pictures for each class, in grey, grey with alpha, colour and colour with alpha.
fn draw(f: &Folder, dir: &str, n: usize) {
    for class in CLASSES {
        for i in 0..n {
            let bytes = png::to_bytes(&picture(class, i, 1 + i % 4)).unwrap();
            f.write(&format!("{dir}/{class}/{i:03}.png"), bytes);
        }
    }
}

/// Layers so small that a run takes no time.
const SMALL: [&str; 5] = [
    "--set=layers.0.filters=4",
    "--set=layers.4.filters=8",
    "--set=layers.8.filters=8",
    "--batch-size=8",
    "--threads=1",
];

fn train(f: &Folder, dir: &str, more: &[&str]) -> Done {
    f.run(&[&["train", dir, "--json"], more, &SMALL[..]].concat())
}

#[test]
fn a_folder_becomes_a_model_that_names_the_classes_of_a_photo() {
    let f = Folder::new("pictures");
    draw(&f, "album", 20);
    f.write("album/bars/photo.jpg", COLOUR_JPEG);
    f.write("album/board/old.JPEG", GREY_JPEG);
    // Odd files: cut, empty, of another format, hidden, in folders within.
    f.write("album/bars/cut.png", &png::to_bytes(&picture("bars", 1, 3)).unwrap()[..60]);
    f.write("album/ramp/empty.jpg", "");
    f.write("album/ramp/film.gif", b"GIF89a\x01\0\x01\0");
    f.write("album/ramp/notes.txt", "ramps");
    f.write("album/ramp/deeper/more.png", png::to_bytes(&picture("ramp", 9, 3)).unwrap());
    f.write("album/.thumbnails/1.png", png::to_bytes(&picture("ramp", 9, 3)).unwrap());
    f.write("album/bars/.hidden.png", "x");

    let done = train(
        &f,
        "album",
        &["--epochs=15", "--learning-rate=0.004", "--set=data.augment=[\"random_brightness\"]"],
    )
    .ok();
    let o = done.json();
    assert!(
        done.err.starts_with("Data: album, as requested; 51 + 12 images of 3 classes from "),
        "{}",
        done.err
    );
    assert!(
        done.err.contains("1 of 64 images cannot be read and are skipped: bars/cut.png ("),
        "{}",
        done.err
    );
    assert!(
        done.err.contains("3 files are in no supported image format and are skipped: 1 GIF, 2 of other"),
        "{}",
        done.err
    );
    assert!(done.err.contains("Most confused: "), "{}", done.err);
    assert!(o["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.7, "{o}");
    assert!(o["most_confused"].is_array() && o["data_wait"].is_number());
    assert_eq!(
        (&o["config"]["data"]["image_size"][0], &o["config"]["data"]["color_mode"]),
        (&24.into(), &"rgb".into())
    );
    assert_eq!(o["config"]["layers"].as_array().unwrap().last().unwrap()["units"], 3);

    let model = o["model_file"].as_str().unwrap();
    assert_eq!(model, "runs/album/album.safetensors");
    let seen = ["album/bars/004.png", "album/board/006.png", "album/ramp/007.png", "album/bars/photo.jpg"];
    let args = [&["predict", model, "--json"], &seen[..]].concat();
    let answers: Vec<Value> =
        f.run(&args).ok().out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let right = answers.iter().zip(CLASSES).filter(|(a, class)| a["class"] == *class).count();
    assert!(right >= 2, "{answers:?}");
    for a in &answers {
        let sum: f64 = a["top"].as_array().unwrap().iter().map(|t| t["probability"].as_f64().unwrap()).sum();
        assert!(CLASSES.contains(&a["class"].as_str().unwrap()) && (sum - 1.0).abs() < 1e-5, "{a}");
    }
    f.run(&["predict", model, "album/ramp/film.gif"]).fails("data", &["film.gif", "JPEG"]);
    f.run(&["predict", model, "album/ramp/empty.jpg"]).fails("data", &["empty.jpg"]);

    let e = f.run(&["evaluate", model, "--data-dir=album", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
    assert_eq!(e["most_confused"], o["most_confused"]);
    // With test-time augmentation, the confusions are those of the averaged predictions.
    let t = f.run(&["evaluate", model, "--data-dir=album", "--tta", "--json"]).ok().json();
    let confused = t["most_confused"].as_array().unwrap();
    let wrong: u64 = confused.iter().map(|pair| pair["times"].as_u64().unwrap()).sum();
    let right = t["sparse_categorical_accuracy"].as_f64().unwrap() * t["samples"].as_f64().unwrap();
    assert!(confused.len() == 5 || wrong + right.round() as u64 == t["samples"].as_u64().unwrap(), "{t}");
    // The run's folder contains the location.
    let e = f.run(&["evaluate", model, "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
}

#[test]
fn grey_pictures_make_a_grey_model_and_own_test_folders_are_used() {
    let f = Folder::new("pictures-parts");
    for class in CLASSES {
        for i in 0..6 {
            let bytes = png::to_bytes(&picture(class, i, 1)).unwrap();
            f.write(&format!("set/{}/{class}/{i}.png", if i < 4 { "train" } else { "val" }), bytes);
        }
    }
    let o = train(&f, "set", &["--epochs=1"]).ok().json();
    assert_eq!((&o["config"]["data"]["color_mode"], &o["steps"]), (&"grayscale".into(), &2.into()));
    let done = f.run(&["evaluate", "runs/set/set.safetensors", "--data-dir=set"]).ok();
    assert!(done.out.contains("on 6 test images"), "{}", done.out);
    // Said otherwise, it is done otherwise.
    let colour = ["--set=data.color_mode=rgb", "--set=data.image_size=[16,24]", "--epochs=1", "--out=colour"];
    let o = train(&f, "set", &colour).ok().json();
    assert_eq!(o["config"]["data"]["image_size"], serde_json::json!([16, 24]));
    let s = f.run(&["summary", "colour/set.safetensors"]).ok().out;
    assert!(s.contains("(None, 16, 24, 4)"), "{s}");
}

#[test]
fn a_killed_run_goes_on_to_the_same_bits_and_a_changed_folder_is_refused() {
    let f = Folder::new("pictures-kill");
    draw(&f, "album", 10);
    let args = |out: &'static str| {
        [&["train", "album", "--epochs=4", "--save-steps=1", "--json", "--out", out], &SMALL[..]].concat()
    };
    f.run(&args("whole")).ok();
    let kill = |out: &'static str, after: usize| {
        let mut child = f.command(&args(out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while f.files(&format!("{out}/backups")).len() < after && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let model = |out: &str| fs::read(f.path(out).join("album.safetensors")).unwrap();
    kill("cut", 3);
    let o = f.run(&["resume", "cut", "--threads=2", "--json"]).ok().json();
    assert!(model("cut") == model("whole"), "{o}");

    kill("changed", 3);
    f.write("album/ramp/new.png", png::to_bytes(&picture("ramp", 5, 3)).unwrap());
    f.run(&["resume", "changed"]).fails("config", &["25", "24", "--resume=force"]);
    fs::remove_file(f.path("album/ramp/new.png")).unwrap();
    f.run(&["resume", "changed"]).ok();
    assert!(model("changed") == model("whole"));
}

#[test]
fn what_is_no_folder_of_classes_is_explained() {
    let f = Folder::new("pictures-bad");
    draw(&f, "album", 2);
    fs::create_dir_all(f.path("nothing")).unwrap();
    f.write("loose/1.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    f.write("phone/cat/1.heic", b"\0\0\0\x18ftypheic\0\0\0\0");
    f.write("phone/dog/1.heic", b"\0\0\0\x18ftypheic\0\0\0\0");
    f.write("one/cat/1.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    f.write("zip/album/cat/1.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    f.write("zip/album/dog/1.png", png::to_bytes(&picture("ramp", 1, 3)).unwrap());
    f.write("archive.zip", b"PK\x03\x04");
    f.write("single/cat/1.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    f.write("single/dog/1.png", png::to_bytes(&picture("ramp", 1, 3)).unwrap());
    f.write("broken/cat/1.png", b"\x89PNG\r\n\x1a\nxxxx");
    f.write("broken/cat/2.png", b"\x89PNG\r\n\x1a\nxxxx");
    f.write("broken/cat/3.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    f.write("broken/dog/1.png", png::to_bytes(&picture("bars", 1, 3)).unwrap());
    let cases: [(&str, &str, &[&str]); 8] = [
        ("nothing", "data", &["nothing"]),
        ("loose", "data", &["1", "loose"]),
        ("phone", "data", &["HEIC", "2"]),
        ("one", "data", &["`cat`"]),
        ("zip", "data", &["`album`", "zip/album"]),
        ("archive.zip", "usage", &["archive.zip"]),
        ("single", "data", &["single"]),
        ("broken", "data", &["2", "4", "cat/1.png", "data.unreadable_quota"]),
    ];
    for (target, kind, names) in cases {
        f.run(&["train", target, "--out=out"]).fails(kind, names);
    }
    f.run(&["train", "nowhere"]).fails("usage", &["`nowhere`"]);
    f.run(&["train", "folder"]).fails("config", &["--data-dir"]);
    let wrong: [(&str, &str); 4] = [
        ("--set=data.augment=[\"random_flop\"]", "`random_flip`"),
        ("--set=data.color_mode=gray", "`grayscale`"),
        ("--set=data.validation_split=1.5", "0.9"),
        ("--set=data.unreadable_quota=-1", "data.unreadable_quota=-1"),
    ];
    for (set, name) in wrong {
        f.run(&["train", "album", set]).fails("usage", &[name]);
    }
    f.run(&["train", "album", "--set=data.color_mode=grayscale", "--set=data.augment=[\"random_hue\"]"])
        .fails("usage", &["random_hue", "data.color_mode"]);
    assert!(f.files("out").is_empty() && f.files("runs").is_empty());
}
