//! End-to-end tests of language models: training on a text file, generation and evaluation, on small texts.

use crate::program::{Done, Folder};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// A model that is made in no time.
const SMALL: [&str; 7] = [
    "--set=model.num_layers=1",
    "--set=model.num_heads=2",
    "--set=model.hidden_dim=16",
    "--set=model.intermediate_dim=16",
    "--set=data.sequence_length=16",
    "--set=fit.steps_per_epoch=6",
    "--epochs=1",
];
const TEXT: &str = "The sea was calm, the sky was blue. L'été fut long — très long. ";

fn train(f: &Folder, file: &str, out: &str, more: &[&str]) -> Done {
    f.run(&[&["train", file, "--out", out, "--json"], &SMALL[..], more].concat())
}

fn text(f: &Folder) {
    f.write("my.txt", TEXT.repeat(40));
}

fn generated(f: &Folder, args: &[&str]) -> Value {
    f.run(&[&["generate"], args, &["--json", "--max-tokens=12"]].concat()).ok().json()
}

#[test]
fn a_text_of_ones_own_is_learnt_and_gone_on_with() {
    let f = Folder::new("text-own");
    text(&f);
    let kinds: [(&str, usize, &[&str]); 3] = [
        ("bytes", 256, &[]),
        ("chars", 27, &["--set=data.tokenizer=chars"]),
        ("bpe", 280, &["--set=data.tokenizer=bpe", "--set=data.vocabulary=280"]),
    ];
    for (name, tokens, sets) in kinds {
        let o = train(&f, "my.txt", name, sets).ok().json();
        assert_eq!(o["config"]["model"]["vocabulary_size"], tokens, "{name}");
        assert_eq!(o["config"]["model"]["max_sequence_length"], 16, "{name}");
        let done = f.run(&["generate", name, "--prompt=The s", "--max-tokens=20", "--seed=5"]).ok();
        assert!(done.out.starts_with("The s") && done.out.ends_with('\n'), "{name}: {}", done.out);
        assert!(done.err.contains("20 tokens in") && done.err.contains("tokens/s"), "{}", done.err);
        // The same for the seed, whatever the number of threads; nothing is drawn at temperature 0.
        let of =
            |more: &[&str]| generated(&f, &[&[name, "--prompt=The sea"], more].concat())["tokens"].clone();
        assert_eq!(of(&["--threads=1", "--seed=3"]), of(&["--threads=2", "--seed=3"]));
        assert_eq!(of(&["--temperature=0", "--seed=1"]), of(&["--temperature=0", "--seed=2"]));
        assert_eq!(of(&["--top-k=1", "--seed=1"]), of(&["--temperature=0"]), "{name}");
        assert_ne!(of(&["--seed=1"]), of(&["--seed=2"]), "{name}");
        let made =
            generated(&f, &[name, "--prompt=The sea", "--top-p=0.9", "--top-k=5", "--temperature=0.7"]);
        assert_eq!(made["tokens"].as_array().unwrap().len(), 12);
        assert!(made["tokens"].as_array().unwrap().iter().all(|t| (t.as_u64().unwrap() as usize) < tokens));
        assert_eq!((&made["prompt"], &made["ended"]), (&"The sea".into(), &false.into()));
        // The whole text in evaluation, and what it says in other words.
        let e = f.run(&["evaluate", name, "my.txt", "--json"]).ok().json();
        let (loss, perplexity) = (e["loss"].as_f64().unwrap(), e["perplexity"].as_f64().unwrap());
        assert!((loss.exp() / perplexity - 1.0).abs() < 1e-9, "{e}");
        let bytes_a_token = loss / std::f64::consts::LN_2 / e["bits_per_byte"].as_f64().unwrap();
        let expected = match name {
            "bytes" => 1.0..1.000001,
            "chars" => TEXT.len() as f64 / TEXT.chars().count() as f64 - 1e-6..1.1,
            _ => 1.5..5.0,
        };
        assert!(expected.contains(&bytes_a_token), "{name}: {bytes_a_token}");
        let shown = f.run(&["evaluate", name, "my.txt"]).ok().out;
        assert!(shown.contains("perplexity") && shown.contains("bits per byte"), "{shown}");
        f.write("begin.txt", TEXT.repeat(4));
        assert!(f.run(&["predict", name, "begin.txt"]).ok().out.starts_with("begin.txt: '"));
    }
}

#[test]
fn prompts_of_any_length_are_taken() {
    let f = Folder::new("text-prompts");
    text(&f);
    let done = f.run(&[&["train", "my.txt", "--out=run"], &SMALL[..]].concat()).ok();
    let line = done.out.lines().find(|l| l.contains(" generate ")).expect("what to do next");
    let output = std::process::Command::new("sh").arg("-c").arg(line).current_dir(&f.0).output().unwrap();
    Done::of(output, &[line]).ok();
    let long = TEXT.repeat(3);
    let done = f.run(&["generate", "run", "--prompt", &long, "--max-tokens=40", "--temperature=0"]).ok();
    assert!(done.out.starts_with(&long), "{}", done.out);
    assert_eq!(
        done.err.matches("the context window has 16: only the last tokens").count(),
        1,
        "{}",
        done.err
    );
    // Only the last tokens count: those that the model looks back to.
    let end = &long[long.len() - 16..];
    let of = |prompt: &str| generated(&f, &["run", "--temperature=0", "--prompt", prompt])["tokens"].clone();
    assert_eq!(of(&long), of(end));
    // The shortest: nothing, or standard input.
    assert_eq!(generated(&f, &["run", "--temperature=0"])["prompt"], "\n");
    let args = ["generate", "run", "--prompt=-", "--temperature=0", "--max-tokens=12", "--json"];
    let mut child =
        f.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(end.as_bytes()).unwrap();
    let done = Done::of(child.wait_with_output().unwrap(), &args).ok();
    assert_eq!((&done.json()["tokens"], &done.json()["prompt"]), (&of(end), &end.into()));
    assert!(f.run(&["generate", "run", "--max-tokens=3", "--quiet"]).ok().err.is_empty());
}

#[test]
fn a_tokenizer_stays_with_its_model() {
    let f = Folder::new("text-kept");
    text(&f);
    let bpe = ["--set=data.tokenizer=bpe", "--set=data.vocabulary=270"];
    let o = train(&f, "my.txt", "run", &bpe).ok().json();
    let model = o["model_file"].as_str().unwrap();
    let tokenizer = &systole::nn::Model::load(f.path(model)).unwrap().notes["tokenizer"];
    // Another text, of other frequent pairs: the model goes on with its own tokens.
    f.write("other.txt", "zebra zoo zigzag zz. ".repeat(120));
    let o = train(&f, "other.txt", "more", &["--from", model]).ok().json();
    let more = systole::nn::Model::load(f.path(o["model_file"].as_str().unwrap())).unwrap();
    assert_eq!(more.notes["tokenizer"], *tokenizer);
    // A file of a tokenizer, from which a new model learns the same.
    f.write("kept/tokenizer.json", tokenizer);
    for named in ["kept", "kept/tokenizer.json"] {
        let set = format!("--set=data.tokenizer={named}");
        let again = train(&f, "my.txt", "again", &["--resume=never", &set]).ok().json();
        assert_eq!(
            (&again["config"]["model"]["vocabulary_size"], &again["val_loss"]),
            (&270.into(), &o_loss(&f, &bpe))
        );
    }
    // A folder of Hugging Face brings its own, one of another kind is told and costs no weights.
    let import = |name: &str, tokenizer: &str| {
        let folder = gpt2_folder(&f, name, tokenizer);
        f.run(&["import", &folder, "--out", &format!("{name}.safetensors")]).ok().out
    };
    let told = import("hf", tokenizer);
    assert!(told.contains("Matched with the folder's tokenizer") && told.contains("(270 tokens)"), "{told}");
    let kept = systole::nn::Model::load(f.path("hf.safetensors")).unwrap().notes["tokenizer"].clone();
    assert_eq!(kept, *tokenizer);
    let told = import("odd", r#"{"model": {"type": "WordPiece"}}"#);
    assert!(told.contains("without the folder's tokenizer") && told.contains("WordPiece"), "{told}");
    // Where the text has changed since, its tokens would be others: the run is not gone on with.
    f.write("my.txt", "quite another text, a quiet one. ".repeat(60));
    f.run(&["resume", "run"]).fails("config", &["`run`"]);
}

/// A small GPT-2 as Hugging Face keeps it, with this tokenizer and an embedding of 270 tokens.
fn gpt2_folder(f: &Folder, name: &str, tokenizer: &str) -> String {
    let from = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fixtures/weights/gpt2");
    f.write(&format!("{name}/tokenizer.json"), tokenizer);
    for file in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let mut bytes = std::fs::read(&file).unwrap();
        match file.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => bytes = with_rows(&bytes, 270),
            _ if file.ends_with("config.json") => {
                let text = String::from_utf8(bytes).unwrap();
                bytes = text.replace("\"vocab_size\": 13", "\"vocab_size\": 270").into_bytes();
            }
            _ => {}
        }
        std::fs::write(f.path(name).join(file.file_name().unwrap()), bytes).unwrap();
    }
    name.into()
}

/// The same file, with rows of zeros appended to the token embedding.
fn with_rows(file: &[u8], rows: usize) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let all: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, t)| {
            let (mut shape, mut data) = (t.shape().to_vec(), t.data().to_vec());
            if name.ends_with("wte.weight") {
                data.resize(data.len() / shape[0] * rows, 0);
                shape[0] = rows;
            }
            (name.to_string(), t.dtype(), shape, data)
        })
        .collect();
    let views = all.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn o_loss(f: &Folder, bpe: &[&str]) -> Value {
    train(f, "my.txt", "same", bpe).ok().json()["val_loss"].clone()
}

#[test]
fn what_cannot_be_generated_is_told() {
    let f = Folder::with_data("text-bad");
    text(&f);
    train(&f, "my.txt", "run", &["--set=data.tokenizer=chars"]).ok();
    let refused = |args: &[&str], kind: &str, names: &[&str]| {
        f.run(&[&["generate", "run", "--max-tokens=2"], args].concat()).fails(kind, names);
    };
    refused(&["--prompt=Zebra"], "data", &["`Z`", "--prompt"]);
    refused(&["--temperature=-1"], "usage", &["`temperature`", "-1"]);
    refused(&["--top-k=0"], "usage", &["top_k"]);
    refused(&["--top-p=1.5"], "usage", &["top_p", "1.5"]);
    f.run(&["generate", "run", "--max-tokens=0"]).fails("usage", &["--max-tokens"]);
    refused(&["--tokenizer=nowhere.json"], "io", &["nowhere.json"]);
    f.write("bad.json", "{\"model\": {\"type\": \"WordLevel\"}}");
    refused(&["--tokenizer=bad.json"], "unsupported", &["`WordLevel`", "bad.json"]);
    f.train("pictures");
    f.run(&["generate", "pictures/fashion-mnist.safetensors"])
        .fails("unsupported", &["pictures/fashion-mnist.safetensors"]);
    train(&f, "my.txt", "no", &["--set=data.tokenizer=word"]).fails("usage", &["`word`"]);
    train(&f, "my.txt", "no", &["--set=data.vocabulary=300"]).fails("usage", &["data.vocabulary"]);
    assert!(!f.path("no").exists());
}

/// What docs/guide/text.md shows runs as it is printed, with a smaller model.
#[test]
fn the_commands_of_the_page_run() {
    let f = Folder::new("text-page");
    f.write("my.txt", TEXT.repeat(60));
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/text.md")).unwrap();
    let block = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let mut ran = 0;
    for line in block.lines() {
        let command = line.split(" #").next().unwrap().trim();
        let mut words: Vec<&str> = command.split_whitespace().map(|w| w.trim_matches('\'')).collect();
        assert_eq!(words.remove(0), "systole", "{line}");
        if words[0] == "train" {
            words.extend(SMALL.iter().filter(|set| !set.contains("epochs=")));
        }
        f.run(&words).ok();
        ran += 1;
    }
    assert!(ran >= 7, "the page shows only {ran} commands");
}

#[test]
fn a_small_text_trains_for_enough_steps() {
    let f = Folder::new("text-small");
    let words = ["sea", "sky", "king", "moon", "road", "letter", "winter", "crown", "horse", "silver"];
    let mut draws = 7u64;
    let mut word = || {
        draws = draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        words[(draws >> 33) as usize % words.len()]
    };
    let text: String = (0..900).map(|_| format!("The {} finds the {}. ", word(), word())).collect();
    f.write("my.txt", &text);
    let small = ["--set=model.num_layers=1", "--set=model.hidden_dim=32", "--set=model.intermediate_dim=64"];
    let train = |more: &[&str]| {
        let base = ["train", "my.txt", "--out=x", "--json", "--no-report", "--resume=never"];
        f.run(&[&base[..], &small[..], more].concat()).ok().json()
    };
    let result = train(&[]);
    assert_eq!(result["config"]["fit"]["epochs"], 40);
    // Half of the letters follow from the others; the preset's five epochs leave the loss above 2.
    let loss = result["val_loss"].as_f64().unwrap();
    assert!(loss < 1.5, "{loss}");
    assert_eq!(train(&["--epochs=1"])["config"]["fit"]["epochs"], 1);
}
