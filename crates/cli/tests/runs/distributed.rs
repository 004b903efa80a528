//! Tests of `systole train --strategy`: training on eight logical devices matches training on one.

use crate::program::{Done, Folder, TINY};

fn train(f: &Folder, more: &[&str]) -> Done {
    f.run(&[&["train", "fashion-mnist", "--data-dir=data"], &TINY[..], more].concat())
}

#[test]
fn eight_logical_devices_give_the_run_of_one() {
    let f = Folder::with_data("distributed");
    let loss = |o: &Done| o.json()["loss"].as_f64().unwrap();
    let one = loss(&train(&f, &["--out=one", "--json"]).ok());
    for strategy in ["data_parallel", "fully_sharded"] {
        let (flag, out) = (format!("--strategy={strategy}"), format!("--out={strategy}"));
        let many = loss(&train(&f, &[&flag, "--devices=8", &out, "--json"]).ok());
        assert!((one - many).abs() <= 1e-5 * one, "{strategy}: {one} {many}");
    }
    // A saved model goes on with other devices; so does the folder's own configuration.
    let from = ["train", "--from=data_parallel/fashion-mnist.safetensors", "--data-dir=data", "--out=more"];
    let more = ["--set=strategy.type=fully_sharded", "--set=strategy.devices=4", "--epochs=1"];
    let o = f.run(&[&from[..], &more].concat()).ok();
    assert!((o.out + &o.err).contains("fully_sharded over data=4; 4 devices, each like logical device 0"));
}

#[test]
fn what_does_not_fit_is_said() {
    let f = Folder::with_data("distributed-wrong");
    train(&f, &["--strategy=sideways"]).fails("usage", &["sideways", "data_parallel"]);
    train(&f, &["--mesh=data"]).fails("usage", &["--mesh data", "data=4"]);
    train(&f, &["--devices=3"]).fails("config", &["16", "3", "15", "18"]);
}

/// What docs/guide/distributed.md shows runs as it is printed.
#[test]
fn the_commands_of_the_page_run() {
    let f = Folder::new("distributed-page");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/distributed.md"))
            .unwrap();
    // `launch` needs the plugin beside the program: tests/runs/hosts.rs.
    let (launched, commands): (Vec<&str>, Vec<&str>) =
        page.lines().filter(|l| l.starts_with("systole ")).partition(|l| l.starts_with("systole launch "));
    assert_eq!((commands.len(), launched.len()), (1, 4));
    for command in launched {
        if let Err(e) = systole_cli::command().try_get_matches_from(command.split_whitespace()) {
            panic!("{command}: {e}");
        }
    }
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        f.run(&words).ok();
    }
}
