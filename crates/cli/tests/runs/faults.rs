//! Fault tests of running trainings: a run folder that is or becomes unwritable, data that disappears or shrinks, and
//! data that does not fit into memory. The faults also affect root.

use crate::program::{Done, Folder};
use std::fs;
use std::process::Child;
use std::time::Duration;

/// So many epochs that there is time for something to happen.
const LONG: &str = "--epochs=60";

fn args<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let common = [
        "train",
        "recs",
        "--out",
        out,
        "--threads=1",
        "--save-steps=1",
        "--batch-size=8",
        "--set=layers.0.filters=4",
        "--set=layers.4.filters=4",
        "--set=layers.8.filters=4",
    ];
    [&common, more].concat()
}

/// Starts a run and waits until it has written a backup.
fn started(f: &Folder, out: &str, more: &[&str]) -> Child {
    let mut command = f.command(&args(out, more));
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while !f.files(&format!("{out}/backups")).iter().any(|n| n.ends_with(".safetensors")) {
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

fn ended(child: Child) -> Done {
    Done::of(child.wait_with_output().unwrap(), &[])
}

fn model(f: &Folder, out: &str) -> Vec<u8> {
    fs::read(f.path(out).join("recs.safetensors")).unwrap()
}

#[test]
fn a_folder_that_cannot_be_written_is_told_before_any_training() {
    let f = Folder::with_data("faults-out");
    f.convert("recs", "4", &[]);
    f.write("file", "no folder");
    f.run(&args("file/run", &[])).fails("io", &["file/run", "--out"]);
    f.run(&args("file", &[])).fails("io", &["--out"]);
    // A file system that takes no files, from anybody.
    if cfg!(target_os = "linux") {
        f.run(&args("/proc/systole-run", &[])).fails("io", &["/proc/systole-run", "--out"]);
    }
}

#[test]
fn a_run_whose_backups_cannot_be_written_any_more_is_trained_to_its_end() {
    let f = Folder::with_data("faults-backups");
    f.convert("recs", "4", &[]);
    let child = started(&f, "out", &[LONG]);
    // A file in the folder's place: what a disk that became read-only is to the next backup.
    fs::rename(f.path("out/backups"), f.path("taken")).unwrap();
    f.write("out/backups", "no folder");
    let done = ended(child).ok();
    let told = done.out + &done.err;
    assert!(told.contains("the run is not backed up: cannot save") && told.contains("try: "), "{told}");
    f.run(&args("whole", &[LONG])).ok();
    assert!(model(&f, "out") == model(&f, "whole"), "training was changed");
    // What was saved before is whole.
    fs::remove_dir_all(f.path("out")).unwrap();
    fs::create_dir(f.path("out")).unwrap();
    fs::rename(f.path("taken"), f.path("out/backups")).unwrap();
    f.run(&args("out", &[LONG])).ok();
    assert!(model(&f, "out") == model(&f, "whole"), "the backups were not whole");
}

#[test]
fn a_test_picture_that_cannot_be_written_costs_no_model() {
    let f = Folder::with_data("faults-picture");
    f.convert("recs", "4", &[]);
    fs::create_dir_all(f.path("out/recs-example.png")).unwrap();
    let done = f.run(&args("out", &["--epochs=2"])).ok();
    assert!(
        done.err.matches("cannot write the example test image: ").count() == 1
            && done.err.contains("recs-example.png"),
        "{}",
        done.err
    );
    assert!(done.out.contains("Test: ") && !done.out.contains("recs-example.png"), "{}", done.out);
    f.run(&args("whole", &["--epochs=2"])).ok();
    assert!(model(&f, "out") == model(&f, "whole"), "training was changed");
}

#[test]
fn data_that_vanish_or_shrink_end_the_run_with_their_name_and_cost_no_backup() {
    let f = Folder::with_data("faults-data");
    f.convert("recs", "4", &[]);
    f.run(&args("whole", &[LONG])).ok();
    let victim = f.path("recs/train-00002-of-00004.tfrecord");
    let bytes = fs::read(&victim).unwrap();
    for (out, kind, name) in [("vanished", "io", "batch 0"), ("shrunk", "data", "13792")] {
        let child = started(&f, out, &[LONG]);
        match out {
            "vanished" => fs::remove_file(&victim).unwrap(),
            // Cut between two records: what is left is a whole file.
            _ => fs::write(&victim, &bytes[..bytes.len() / 2]).unwrap(),
        }
        ended(child).fails(kind, &["train-00002-of-00004.tfrecord", name]);
        assert!(f.files(&format!("{out}/backups")).iter().any(|n| n.ends_with(".safetensors")), "{out}");
        // Without the file the run cannot go on; with it, it ends as if nothing had been.
        f.run(&args(out, &[LONG])).fails("config", &[&format!("`{out}`")]);
        fs::write(&victim, &bytes).unwrap();
        f.run(&args(out, &[LONG])).ok();
        assert!(model(&f, out) == model(&f, "whole"), "{out}: other bits");
    }
}

#[test]
fn elements_too_large_for_memory_are_refused_by_name() {
    let f = Folder::new("faults-memory");
    // A picture of 60,000 by 60,000 pixels in a file of a few bytes, as its first block says.
    let block = |kind: &[u8], data: &[u8]| -> Vec<u8> {
        let body = [kind, data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &body, &png_crc(&body).to_be_bytes()].concat()
    };
    let size = 60_000u32.to_be_bytes();
    let head = [&size[..], &size, &[8, 6, 0, 0, 0]].concat();
    let bomb = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        block(b"IHDR", &head),
        block(b"IDAT", &[0x78, 0x9c]),
        block(b"IEND", &[]),
    ]
    .concat();
    for class in ["a", "b"] {
        for i in 0..6u8 {
            let shade = if class == "a" { 20 + i } else { 200 + i };
            let x = systole_ir::Literal::from_slice([8, 8, 1], &[shade; 64]).unwrap();
            f.write(&format!("album/{class}/{i}.png"), systole_data::format::png::to_bytes(&x).unwrap());
        }
    }
    f.write("album/a/bomb.png", &bomb);
    let small = [
        "--epochs=1",
        "--set=layers.0.filters=2",
        "--set=layers.4.filters=2",
        "--set=layers.8.filters=2",
        "--threads=1",
    ];
    let done = f.run(&[&["train", "album", "--out=album-run", "--json"], &small[..]].concat()).ok();
    assert!(
        done.err.contains("1 of 13 images cannot be read") && done.err.contains("bomb.png"),
        "{}",
        done.err
    );
    assert!(done.err.contains("bytes of pixels"), "{}", done.err);
    assert!(done.json()["peak_rss_mib"].as_f64().unwrap() < 1000.0, "{}", done.out);

    // A model larger than the memory that it may have is refused before it runs.
    f.run(
        &[&["train", "glyphs", "--out=large", "--memory-limit=20MiB", "--batch-size=20000"], &small[..1]]
            .concat(),
    )
    .fails("unsupported", &["20 MiB"]);
}

/// CRC-32 as PNG has it, bit by bit.
fn png_crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, step)
}
