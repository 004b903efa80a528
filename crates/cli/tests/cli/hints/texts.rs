//! Hints about texts, tokenizers and imported language models.

use super::reading::words;
use super::{Case, case, row, run, tried};
use crate::program::Folder;
use crate::program::made::table;
use std::fs;
use std::path::Path;

/// Copies a Hugging Face folder from the fixtures.
pub(super) fn folder(f: &Folder, from: &str, to: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights").join(from);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        f.write(&format!("{to}/{}", entry.file_name().to_string_lossy()), fs::read(entry.path()).unwrap());
    }
}

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = Folder::new("hints-texts");
    folder(&f, "gpt2", "gpt");
    folder(&f, "bert_classifier", "bert");
    folder(&f, "bert", "encoder");
    let chars = r#"{"model": {"type": "Chars", "vocab": "abcdefghij .\n"}}"#;
    f.write("gpt/tokenizer.json", chars);
    f.write("chars.json", chars);
    let tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a ##s very was .".replace(' ', "\n");
    f.write("bert/vocab.txt", &tokens);
    f.write("encoder/vocab.txt", &tokens);
    f.write("my.txt", "a bad cab. he had a big bag.\n".repeat(30));
    f.write(
        "texts.csv",
        table("text,label", 30, |i| format!("a {} film it was,{}", ["good", "bad"][i % 2], i % 2)),
    );
    f.write(
        "named.csv",
        table("text,a kind", 30, |i| format!("a {} film it was,{}", ["good", "bad"][i % 2], i % 2)),
    );
    folder(&f, "hugging_face/mpnet_classifier", "mp");
    f.write("mp/vocab.txt", &tokens);
    f.write("p.png", "an image by its name");
    f.write("broken.json", "{");
    f.write("bytes.json", [0xff, 0xfe]);
    f.write("unigram.json", r#"{"model": {"type": "Unigram", "vocab": []}}"#);
    f.write("lines.txt", "a\na\n");
    f.write("many.csv", table("text,kind,label", 60, |i| format!("a good film it was,{},name {i}", i % 2)));
    f.write(
        "unlabeled.csv",
        table("text,kind,label", 60, |i| {
            format!("a good film it was,{},{}", i % 2, if i == 7 { "" } else { "x" })
        }),
    );
    f.write("long.txt", "a bad cab. he had a big bag.\n".repeat(90));
    f.write("latin.txt", b"caf\xe9 ".repeat(90));
    f.write("twice.txt", "a\na\n");
    f.write("short.txt", "a bad cab. ".repeat(8));
    f.write("latin.jsonl", b"{\"text\": \"caf\xe9\", \"label\": \"a\"}\n");
    // Texts truncated within a character.
    f.write("cut.txt", [&b"a bad cab. ".repeat(200)[..], b"\xc3"].concat());
    let rows =
        b"{\"text\": \"a good film\", \"label\": \"a\"}\n{\"text\": \"a bad film\", \"label\": \"b\"}\n";
    f.write("cut.jsonl", [&rows.repeat(9)[..], b"\xc3"].concat());
    f.write("only_labels.jsonl", b"{\"label\": \"a good film\"}\n");
    f.write("loose/a.txt", "a bad cab. ".repeat(50));
    for (folder, file) in [("gpt", "g.safetensors"), ("bert", "b.safetensors"), ("encoder", "e.safetensors")]
    {
        run(&f, &words(&format!("import {folder} --out {file}"))).ok();
    }
    for line in ["train long.txt --out=runs/l", "train sentences --data-dir=texts.csv --out=runs/s"] {
        run(&f, &words(&format!("{line} --epochs=1 --steps-per-epoch=1 --threads=1 --quiet"))).ok();
    }
    fs::remove_file(f.path("gpt/tokenizer.json")).unwrap();
    run(&f, &words("import gpt --out bare.safetensors")).ok();
    f.write("short2.txt", "a");
    let sentences = |data: &str, more: &str| tried("sentences", &format!("--data-dir={data} {more}"));
    let from = |model: &str, more: &str| tried("my.txt", &format!("--from {model} {more}"));
    let cases = vec![
        from("g.safetensors", "--set=model.hidden_dim=64"),
        from("g.safetensors", "--set=data.sequence_length=64"),
        from("g.safetensors", "--set=data.tokenizer=bytes"),
        from("bare.safetensors", "").knows("data.tokenizer", "chars.json"),
        case("train --from g.safetensors --out=out").knows("DATA", "my.txt"),
        tried("texts.csv", "--from b.safetensors"),
        case("predict encoder --text bad").knows("DATA", "texts.csv").knows("MODEL", "encoder"),
        case("predict e.safetensors --text bad").knows("DATA", "texts.csv").knows("MODEL", "e.safetensors"),
        case("predict bert --text bad --tta=2"),
        tried("loose", ""),
        tried("texts.csv", "--set=data.records.label=labl").knows("data.records.label", "label"),
        tried("texts.csv", "--set=data.tokenizer=word --set=data.dataset=sentences"),
        tried("texts.csv", "--set=data.vocabulary=3"),
        tried("sentences", "")
            .typed("train sentences --out=out --epochs=1 --data-dir texts.csv")
            .own("texts.csv"),
        tried("my.txt", "--set=data.tokenizer=nosuch"),
        tried("my.txt", "--set=data.tokenizer=no/such.json"),
        tried("my.txt", "--set=data.vocabulary=400"),
        tried("my.txt", "--set=data.tokenizer=bpe --set=data.vocabulary=9"),
        tried("my.txt", "--set=data.tokenizer=broken.json").knows("data.tokenizer", "chars.json"),
        tried("my.txt", "--set=data.tokenizer=unigram.json"),
        tried("my.txt", "--set=data.tokenizer=bytes.json").knows("data.tokenizer", "chars.json"),
        tried("texts.csv", "--set=data.tokenizer=bert/vocab.txt --set=data.vocabulary=300"),
        tried("texts.csv", "--set=data.records.inputs=[\"txt\"]").knows("data.records.inputs", "[\"text\"]"),
        tried("texts.csv", "--set=data.tokenizer=nosuch"),
        row(
            "train lstm --data-dir long.txt --out=out --steps-per-epoch=1 --epochs=1 --batch-size=2 --set data.sequence_length=8 --set layers.2.return_sequences=false",
            "train lstm --data-dir long.txt --out=out --steps-per-epoch=1 --epochs=1 --batch-size=2 --set data.sequence_length=8 --set layers.2.return_sequences=`true`",
        ),
        sentences("many.csv", "").knows("data.records.label", "kind"),
        sentences("unlabeled.csv", "").knows("data.records.label", "kind"),
        sentences("latin.jsonl", ""),
        sentences("texts.csv", "--set=data.vocabulary=3"),
        sentences("texts.csv", "--set=data.tokenizer=bert/vocab.txt --set=data.vocabulary=300"),
        sentences("texts.csv", "--set=data.tokenizer=chars.json").knows("data.tokenizer", "bert/vocab.txt"),
        sentences("texts.csv", "--set=data.tokenizer=twice.txt").knows("data.tokenizer", "bert/vocab.txt"),
        tried("texts.csv", "--from g.safetensors")
            .typed("train my.txt --from g.safetensors --out=out --epochs=1 --steps-per-epoch=1")
            .own("my.txt"),
        row("predict g.safetensors my.txt --embed", "predict `encoder` my.txt --embed"),
        row(
            "predict encoder --text bad --candidate good --candidate p.png",
            "predict encoder --text bad --candidate good --candidate `film`",
        ),
        row(
            "train texts.csv --from mp --fine-tune --out=out --epochs=1 --steps-per-epoch=1",
            "train texts.csv --from `bert` --fine-tune --out=out --epochs=1 --steps-per-epoch=1",
        ),
        row("predict g.safetensors short2.txt", "generate g.safetensors `--prompt` `bad`"),
        row("predict g.safetensors latin.txt", "predict g.safetensors `my.txt`"),
        row("predict bare.safetensors my.txt", "import `bert` --out `x.safetensors`"),
        case("train gpt-micro --print-config --set=model.application=none")
            .typed("train gpt-micro --print-config --set=model.application=gpt2")
            .own("gpt2"),
        tried("many.csv", "").knows("data.records.label", "kind"),
        tried("unlabeled.csv", "").knows("data.records.label", "kind"),
        tried("short.txt", "").knows("data.sequence_length", "4"),
        tried("latin.jsonl", ""),
        tried("cut.txt", ""),
        sentences("cut.jsonl", ""),
        row("predict runs/l cut.txt", "predict runs/l cut.txt --set data.records.encoding=latin1"),
        row(
            "predict runs/s only_labels.jsonl",
            "predict runs/s only_labels.jsonl `--set` '--set=data.records.inputs=`[\"label\"]`'",
        ),
        row("predict b.safetensors --text bad --set data.scale=1", "predict b.safetensors --text bad"),
        tried("gpt-micro", "--data-dir nowhere")
            .typed("train gpt-micro --data-dir my.txt --out=out --epochs=1 --steps-per-epoch=1")
            .own("my.txt"),
        row("generate g.safetensors --prompt Ж", "generate g.safetensors --prompt `a`"),
    ];
    (f, cases)
}
