//! End-to-end tests of `systole data fetch` against a server on this machine; nothing outside is contacted.

use crate::program::{Done, Folder};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use systole_data::format::png;
use systole_ir::Literal;

/// Serves `content` to every request, and closes the first connection after `cut` bytes. Returns the address.
fn server(content: Vec<u8>, cut: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/mirror", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap() > 0 {}
            let range = |l: &str| l.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok();
            let start: usize = request.lines().find_map(range).unwrap_or(0);
            let total = content.len();
            let (status, left) = (if start > 0 { "206 Partial Content" } else { "200 OK" }, total - start);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Range: bytes {start}-{}/{total}\r\nContent-Length: {left}\r\n\r\n",
                total - 1
            );
            let end = if i == 0 { (start + cut).min(total) } else { total };
            // The client may have disconnected.
            let _ = stream.write_all(&[head.as_bytes(), &content[start..end]].concat());
        }
    });
    address
}

/// Runs a command with the cache in the folder.
fn run(f: &Folder, args: &[&str]) -> Done {
    let output = f.command(args).env("SYSTOLE_CACHE", f.path("cache")).output().unwrap();
    Done::of(output, args)
}

/// Runs the command that `data fetch --json` names, with further arguments.
fn follow(f: &Folder, fetched: &serde_json::Value, more: &[&str]) -> Done {
    let command = fetched["datasets"][0]["command"].as_str().unwrap();
    let (_, args) = command.split_once(" train ").unwrap();
    let args: Vec<&str> = ["train"].into_iter().chain(args.split(' ')).chain(more.iter().copied()).collect();
    run(f, &args)
}

#[test]
fn the_list_shows_what_is_here_and_unknown_names_are_corrected() {
    let f = Folder::new("fetch-list");
    f.write("cache/tiny-shakespeare/input.txt", "To be");
    let text = run(&f, &["data", "fetch"]).ok().out;
    let line = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("tiny-shakespeare").contains("cache/tiny-shakespeare"), "{text}");
    assert!(line("cifar10").contains("170.1 MB") && line("cifar10").contains("not here"), "{text}");
    let o = run(&f, &["data", "fetch", "--list", "--json"]).ok().json();
    let names: Vec<&str> =
        o["datasets"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["fashion-mnist", "mnist", "cifar10", "cifar100", "imdb", "tiny-shakespeare", "flowers"]
    );
    assert!(o["datasets"][2]["folder"].is_null() && o["datasets"][5]["folder"].is_string(), "{o}");
    let done = run(&f, &["data", "fetch", "mnist", "cifar-10x"]).fails("usage", &["`cifar-10x`"]);
    assert!(done.err.contains("did you mean `cifar10`"), "{}", done.err);
    assert!(!f.path("cache/mnist").exists());
    run(&f, &["data", "fetch", "mnist", "--mirror", "/tmp"]).fails("usage", &["`/tmp`", "--mirror"]);
}

#[test]
fn without_a_network_the_error_names_file_address_digest_and_folder() {
    let f = Folder::new("fetch-offline");
    let folder = f.path("cache/cifar10").display().to_string();
    let names = [
        "`cifar10`",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        &folder,
    ];
    run(&f, &["data", "fetch", "cifar10", "--offline"]).fails("io", &names);
    assert!(!Path::new(&folder).exists());
    // A file that the user put there is verified.
    f.write("cache/cifar10/cifar-10-binary.tar.gz", "not the archive");
    run(&f, &["data", "fetch", "cifar10", "--offline"]).fails("data", &names);
    // Nobody listens at this address.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}/m", nobody.local_addr().unwrap());
    drop(nobody);
    let args = ["data", "fetch", "flowers", "--out", "data", "--mirror", &mirror];
    run(&f, &args).fails("io", &["`flowers`", &format!("{mirror}/flower_photos.tgz"), "data/flowers"]);
}

#[test]
#[allow(clippy::print_stdout)]
fn a_cut_download_is_resumed_verified_and_trained_on() {
    let data = std::env::var("SYSTOLE_DATA").unwrap_or_default();
    let Ok(text) = fs::read(Path::new(&data).join("tiny-shakespeare/input.txt")) else {
        println!(
            "SKIPPED a_cut_download_is_resumed_verified_and_trained_on: no tiny-shakespeare in SYSTOLE_DATA"
        );
        return;
    };
    let f = Folder::new("fetch-text");
    let lie = server(vec![b'x'; text.len()], usize::MAX / 2);
    let args = ["data", "fetch", "tiny-shakespeare", "--out", "data", "--json", "--mirror"];
    let e = run(&f, &[&args[..], &[&lie]].concat()).fails("data", &["input.txt", "SHA-256"]);
    assert!(e.err.contains(&lie) && !f.path("data/tiny-shakespeare").exists(), "{}", e.err);
    let good = server(text.clone(), 300_000);
    let o = run(&f, &[&args[..], &[&good]].concat()).ok().json();
    assert_eq!(fs::read(f.path("data/tiny-shakespeare/input.txt")).unwrap(), text);
    assert_eq!(o["datasets"][0]["folder"], "data/tiny-shakespeare");
    let tiny =
        ["--epochs=1", "--steps-per-epoch=1", "--batch-size=2", "--set=data.test_samples=2", "--out=run"];
    let done = follow(&f, &o, &tiny).ok();
    assert!(done.out.contains("Data: tiny-shakespeare"), "{}", done.out);
}

#[test]
fn fetched_datasets_are_found_and_the_printed_commands_train() {
    let f = Folder::new("fetch-found");
    let record = |labels: &[u8], i: usize| {
        let pixels = (0..3072).map(move |p| (p * 7 + i * 31) as u8);
        labels.iter().copied().chain(pixels).collect::<Vec<u8>>()
    };
    let ten = || (0..10).flat_map(|i| record(&[i as u8], i)).collect::<Vec<u8>>();
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    {
        f.write(&format!("cache/cifar10/{name}.bin"), ten());
    }
    let hundred = || (0..10).flat_map(|i| record(&[1, 90 + i as u8], i)).collect::<Vec<u8>>();
    f.write("cache/cifar100/train.bin", hundred());
    f.write("cache/cifar100/test.bin", hundred());
    let names: Vec<String> = (0..100).map(|i| format!("kind{i}\n")).collect();
    f.write("cache/cifar100/fine_label_names.txt", names.concat());
    for (part, n) in [("train", 8), ("test", 2)] {
        for i in 0..n {
            f.write(&format!("cache/imdb/{part}/pos/{i}_9.txt"), format!("a good film, number {i}"));
            f.write(&format!("cache/imdb/{part}/neg/{i}_1.txt"), format!("a bad film, number {i}"));
        }
    }
    f.write("cache/imdb/README", "about");
    f.write("cache/imdb/imdb.vocab", "good\nbad\n");
    f.write("cache/imdb/train/labeledBow.feat", "9 0:1\n");
    for (k, class) in ["daisy", "dandelion", "roses", "sunflowers", "tulips"].iter().enumerate() {
        for i in 0..4u8 {
            let picture = Literal::from_slice([6, 6, 1], &[40 * k as u8 + i; 36]).unwrap();
            f.write(&format!("cache/flowers/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
    f.write("cache/flowers/LICENSE.txt", "CC BY");
    for (name, said) in [
        ("cifar10", "Data: cifar10"),
        ("cifar100", "Data: cifar100"),
        ("imdb", "of 2 classes"),
        ("flowers", "of 5 classes"),
    ] {
        let o = run(&f, &["data", "fetch", name, "--offline", "--json"]).ok().json();
        let folder = f.path(&format!("cache/{name}")).display().to_string();
        assert_eq!(o["datasets"][0]["folder"], folder.as_str(), "{o}");
        let out = format!("--out=runs/{name}");
        let done = follow(&f, &o, &["--epochs=1", "--steps-per-epoch=1", "--batch-size=4", &out]).ok();
        assert!(done.out.contains(said), "{}", done.out);
    }
    // Their names are data of commands and of configurations.
    let tiny = ["--epochs=1", "--steps-per-epoch=1", "--batch-size=4"];
    for (i, (args, said)) in [
        (&["imdb"][..], "of 2 classes"),
        (&["flowers"], "of 5 classes"),
        (&["sentences", "--set=data.dataset=imdb"], "of 2 classes"),
        (&["folder", "--set=data.dataset=flowers"], "of 5 classes"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("--out=runs/by-name{i}");
        let done = run(&f, &[&["train"], args, &tiny[..], &[&out]].concat()).ok();
        assert!(done.out.contains(said), "{}", done.out);
        run(&f, &["evaluate", &format!("runs/by-name{i}"), "--set=data.test_samples=4"]).ok();
    }
    let o = run(&f, &["evaluate", "runs/by-name0", "imdb", "--json"]).ok().json();
    assert_eq!(o["dataset"], "imdb", "{o}");
    // An interrupted download is not read.
    f.write("cache/cifar10/.downloading", "");
    run(&f, &["data", "fetch", "cifar10", "--offline"]).fails("io", &["`cifar10`"]);
}
