//! End-to-end tests of texts with classes: training from scratch, BERT folders, fine-tuning; and of the sizes that imported
//! language models bring along.

use crate::program::{Folder, probabilities};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use systole_data::Sample;
use systole_ir::Literal;
use systole_nn::Model;
use systole_weights::WeightSource;

/// Tokens of the small BERT, by id.
const VOCABULARY: [&str; 13] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "##s", "very", "was", "."];

fn fixture(name: &str) -> String {
    format!("{}/../../fixtures/weights/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn copy(f: &Folder, from: &str, to: &str) {
    for entry in fs::read_dir(fixture(from)).unwrap() {
        let entry = entry.unwrap();
        f.write(&format!("{to}/{}", entry.file_name().to_string_lossy()), fs::read(entry.path()).unwrap());
    }
}

/// A Hugging Face folder of a BERT with random weights, three classes and a vocabulary.
fn bert(f: &Folder) {
    copy(f, "bert_classifier", "bert");
    f.write("bert/vocab.txt", VOCABULARY.join("\n") + "\n");
    let config = fs::read_to_string(f.path("bert/config.json")).unwrap();
    let named = ["cold", "mild", "warm"].iter().enumerate();
    let config = named.fold(config, |text, (i, name)| text.replace(&format!("LABEL_{i}"), name));
    f.write("bert/config.json", config);
}

/// Texts of two classes that a model learns within seconds.
fn review(i: usize) -> (String, &'static str) {
    let (word, class) = if i.is_multiple_of(2) { ("good", "pos") } else { ("bad", "neg") };
    let more = ["a film was", "very film a", "film was very", "a"][i / 2 % 4];
    (format!("{more} {word} {}.", i % 7), class)
}

fn reviews(f: &Folder, n: usize) {
    let (mut csv, mut lines) = ("review,sentiment\n".to_string(), String::new());
    for i in 0..n {
        let (text, class) = review(i);
        f.write(&format!("reviews/{class}/{i}.txt"), &text);
        csv += &format!("\"{text} it was number {i}, I think\",{class}\n");
        lines += &format!("{}\n", json!({"text": text, "label": class}));
    }
    f.write("reviews.csv", csv);
    f.write("reviews.jsonl", lines);
}

/// The probabilities that the layers compute for these tokens alone, without padding.
fn expected(ids: &[i32]) -> Vec<f64> {
    let source = WeightSource::open(Path::new(&fixture("bert_classifier"))).unwrap();
    let (layers, inputs) = source.architecture().unwrap().unwrap();
    let mut model = Model::new(layers);
    model.build(&inputs).unwrap();
    source.fill(&mut model, false).unwrap();
    model.set_sequence_length(ids.len());
    let array = |values: &[i32]| Literal::from_slice([1, values.len()], values).unwrap();
    let batch = Sample::new([("tokens", array(ids)), ("segments", array(&vec![0; ids.len()]))]);
    model.predict_on_sample(&batch).unwrap().to_f32s().into_iter().map(f64::from).collect()
}

#[track_caller]
fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
}

#[test]
fn a_folder_of_a_bert_classifies_texts() {
    let f = Folder::new("sentences-bert");
    bert(&f);
    let of = |model: &str, text: &str| {
        probabilities(&f.run(&["predict", model, "--text", text, "--json"]).ok().json())
    };
    // "a good films": [CLS] a good film ##s [SEP].
    close(&of("bert", "A good FILMS"), &expected(&[2, 8, 5, 7, 9, 3]));
    close(&of("bert", "Bad."), &expected(&[2, 6, 12, 3]));
    // Longer texts are cut: nine positions.
    close(&of("bert", "a a a a a a a a a a a"), &expected(&[2, 8, 8, 8, 8, 8, 8, 8, 3]));
    let shown = f.run(&["predict", "bert", "--text", "bad"]).ok().out;
    assert!(
        shown.starts_with("bad: ") && ["cold", "mild", "warm"].iter().all(|c| shown.contains(c)),
        "{shown}"
    );
    // Texts of different lengths in one file, each as alone; and from the imported file.
    f.run(&["import", "bert", "--out", "b.safetensors"]).ok();
    f.write("new.csv", "id,text\n1,A good films\n2,Bad.\n");
    let both = f.run(&["predict", "b.safetensors", "new.csv", "--out", "p.json"]).ok();
    assert!(both.out.contains("2 predictions"), "{}", both.out);
    let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(f.path("p.json")).unwrap()).unwrap();
    for (row, ids) in rows.iter().zip([&[2, 8, 5, 7, 9, 3][..], &[2, 6, 12, 3]]) {
        let best = expected(ids).into_iter().fold(0.0, f64::max);
        close(&[row["probability"].as_f64().unwrap()], &[best]);
    }
    f.write("one.txt", "Bad.\n");
    f.write("two.jsonl", "{\"text\": \"Bad.\"}\n");
    for file in ["one.txt", "two.jsonl"] {
        close(
            &probabilities(&f.run(&["predict", "bert", file, "--json"]).ok().json()),
            &expected(&[2, 6, 12, 3]),
        );
    }
    let e = f.run(&["predict", "bert", "--text", "x", "--tta=2"]).fails("usage", &["--tta"]).err;
    assert!(!e.contains("pictures"), "{e}");
    copy(&f, "bert", "plain");
    f.write("plain/vocab.txt", VOCABULARY.join("\n"));
    f.run(&["predict", "plain", "--text", "bad"]).fails("unsupported", &["`plain`", "[8]", "--fine-tune"]);
}

#[test]
fn a_bert_is_fine_tuned_on_texts_of_each_form() {
    let f = Folder::new("sentences-tune");
    bert(&f);
    reviews(&f, 40);
    f.run(&["import", "bert", "--out", "b.safetensors"]).ok();
    f.run(&["train", "reviews.csv", "--from", "b.safetensors"])
        .fails("usage", &["reviews.csv", "--fine-tune"]);
    let more = ["--fine-tune", "--epochs=1", "--threads=1", "--json"];
    for data in ["reviews", "reviews.csv", "reviews.jsonl"] {
        let done =
            f.run(&[&["train", data, "--from", "b.safetensors", "--out", "tuned"], &more[..]].concat()).ok();
        let result = done.json();
        assert_eq!(result["config"]["model"]["classes"], 2, "{data}");
        assert_eq!(result["config"]["model"]["hidden_dim"], 8, "{data}");
        // The texts of the table are longer than the model's nine positions.
        let length = if data == "reviews.csv" { 9 } else { 8 };
        assert_eq!(result["config"]["data"]["sequence_length"], length, "{data}");
        let evaluated = f.run(&["evaluate", "tuned/reviews.safetensors", "--json"]).ok().json();
        assert_eq!(evaluated["loss"], result["val_loss"], "{data}: {result}");
        let shown = f.run(&["predict", "tuned", "--text", "a good film"]).ok().out;
        assert!(shown.contains("pos") && shown.contains("neg"), "{shown}");
        f.run(&["evaluate", "tuned", data]).ok();
        fs::remove_dir_all(f.path("tuned")).unwrap();
    }
    let lora =
        ["train", "reviews.jsonl", "--from", "b.safetensors", "--lora=2", "--epochs=1", "--quiet", "--out=l"];
    f.run(&lora).ok();
    f.run(&[
        "train",
        "reviews.csv",
        "--from",
        "b.safetensors",
        "--fine-tune",
        "--set=model.hidden_dim=16",
        "--out=x",
    ])
    .fails("config", &["model.hidden_dim", "16", "8"]);
}

#[test]
fn texts_are_learnt_from_scratch() {
    let f = Folder::new("sentences-scratch");
    reviews(&f, 80);
    for data in ["reviews", "reviews.csv", "reviews.jsonl"] {
        let out = format!("out-{data}");
        let done = f.run(&["train", data, "--out", &out, "--threads=1", "--json", "--no-report"]).ok();
        let result = done.json();
        let accuracy = result["val_sparse_categorical_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.9, "{data}: {accuracy}");
        for word in ["image", "picture"] {
            assert!(!done.err.contains(word) && !done.out.contains(word), "{data}: {}", done.err);
        }
        let shown = f.run(&["predict", &out, "--text", "it was very good"]).ok().out;
        assert!(shown.contains(": pos"), "{shown}");
        f.run(&["resume", &out]).ok();
        f.run(&["evaluate", &out]).ok();
    }
    // One more epoch, from the model.
    f.run(&["train", "--from", "out-reviews", "--epochs=1", "--out=more", "--quiet"]).ok();
    f.run(&["train", "reviews.jsonl", "--from", "out-reviews", "--epochs=1", "--out=other", "--quiet"]).ok();
}

#[test]
fn errors_about_texts_speak_of_texts() {
    let f = Folder::new("sentences-errors");
    f.write("loose/a.txt", "some words");
    f.write("loose/b.txt", "other words");
    f.write("one/pos/a.txt", "some words");
    f.write("short.md", "a");
    f.write("labels.jsonl", "{\"text\": \"a b\", \"kind\": 1}\n{\"text\": \"c d\"}\n");
    let cases = [
        (["train", "loose"], &["2", "loose/a.txt"][..]),
        (["train", "one"], &["`pos`"]),
        (["train", "short.md"], &["short.md"]),
        (["train", "labels.jsonl"], &["line 2"]),
    ];
    for (args, names) in cases {
        let done = f.run(&args).fails("data", names);
        for word in ["image", "picture", "record files"] {
            assert!(!done.err.contains(word), "{args:?}: {}", done.err);
        }
    }
}

/// A Hugging Face folder of a GPT-2 with random weights and a tokenizer of thirteen characters.
fn gpt2(f: &Folder) {
    copy(f, "gpt2", "gpt");
    f.write("gpt/tokenizer.json", json!({"model": {"type": "Chars", "vocab": "abcdefghij .\n"}}).to_string());
    f.write("my.txt", "a bad cab. he had a big bag. i hide a jade cage.\n".repeat(30));
}

#[test]
fn an_imported_language_model_brings_its_sizes() {
    let f = Folder::new("sentences-gpt2");
    gpt2(&f);
    f.run(&["import", "gpt", "--out", "g.safetensors"]).ok();
    let train = |more: &[&str]| {
        let _ = fs::remove_dir_all(f.path("x"));
        let base =
            ["train", "--from", "g.safetensors", "--epochs=1", "--steps-per-epoch=3", "--out=x", "--json"];
        f.run(&[&base[..], more].concat())
    };
    for more in [&["my.txt"][..], &["--data-dir=my.txt"], &["my.txt", "--fine-tune"], &["my.txt", "--lora=2"]]
    {
        let result = train(more).ok().json();
        let (model, data) = (&result["config"]["model"], &result["config"]["data"]);
        assert_eq!((&model["hidden_dim"], &model["vocabulary_size"]), (&json!(8), &json!(13)), "{more:?}");
        assert_eq!(
            (&model["max_sequence_length"], &data["sequence_length"]),
            (&json!(9), &json!(9)),
            "{more:?}"
        );
        f.run(&["generate", "x", "--prompt=a b", "--max-tokens=3"]).ok();
        f.run(&["evaluate", "x"]).ok();
    }
    // The user's own sizes: a shorter sequence works, others are named with those of the file.
    let short = train(&["my.txt", "--set=data.sequence_length=5"]).ok().json();
    assert_eq!(short["config"]["data"]["sequence_length"], 5);
    train(&["my.txt", "--set=model.hidden_dim=64"])
        .fails("config", &["model.hidden_dim", "64", "8", "g.safetensors"]);
    train(&["my.txt", "--set=data.sequence_length=10"]).fails("config", &["data.sequence_length", "10", "9"]);
    train(&["my.txt", "--set=data.tokenizer=bytes"])
        .fails("usage", &["data.tokenizer", "g.safetensors", "13"]);
    f.write("t.csv", "a,b,label\n1,2,0\n2,1,1\n");
    train(&["t.csv"]).fails("usage", &["t.csv", ".txt"]);
    let evaluated = f.run(&["evaluate", "g.safetensors", "my.txt", "--json"]).ok().json();
    assert!(evaluated["perplexity"].as_f64().unwrap() > 1.0);
    fs::remove_file(f.path("gpt/tokenizer.json")).unwrap();
    f.run(&["import", "gpt", "--out", "g.safetensors", "--force"]).ok();
    train(&["my.txt"]).fails("usage", &["data.tokenizer"]);
}
