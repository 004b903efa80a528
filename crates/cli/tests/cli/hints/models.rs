//! Hints about model files and run folders.

use super::reading::words;
use super::{Case, case, row, run, with_table};
use crate::program::Folder;
use crate::program::made::{plain, table};
use std::fs;
use systole::prelude::*;

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-models");
    let more = "--epochs=1 --threads=1 --quiet";
    run(&f, &words(&format!("train t.csv --out=runs/a {more}"))).ok();
    f.write("new.csv", "a,b\n0.5,0.25\n0.5,0.25,1\n");
    f.write("nothing/x.txt", "");
    f.write("other.csv", "c,d\n1,2\n");
    fs::create_dir_all(f.path("two")).unwrap();
    for name in ["one", "two"] {
        fs::copy(f.path("runs/a/t.safetensors"), f.path(&format!("two/{name}.safetensors"))).unwrap();
    }
    f.write("c.csv", table("a,b,label", 60, plain));
    run(&f, &words("train c.csv --out=runs/c --epochs=1 --threads=1 --quiet")).ok();
    f.write("c.csv", table("a,b,label", 70, plain));
    f.write("a.txt", "a bad cab. ".repeat(200));
    f.write("b.txt", "he had a big bag. ".repeat(200));
    for run_of in ["restored", "replaced"] {
        f.write(&format!("{run_of}.txt"), "a bad cab. ".repeat(200));
        run(&f, &words(&format!("train {run_of}.txt --out=runs/{run_of} {more} --steps-per-epoch=1"))).ok();
        f.write(&format!("{run_of}.txt"), "he had a big bag. ".repeat(200));
    }
    two_unnamed_classes().save(f.path("unnamed.safetensors")).unwrap();
    f.write("kept.toml", "");
    f.write("t.toml", f.run(&["init", "table"]).ok().out);
    f.write("spoiled/run.json", "{");
    f.write("file", "");
    f.write("nothing2/x.bin", "");
    f.write("nosuch.bin", "\u{1}\u{2}");
    f.write("new2.csv", "a,b\n0.5,0.25\n");
    let again = |more: &str| case(&format!("train t.csv --out=runs/a --epochs=1 --threads=1 {more}"));
    let cases = vec![
        row(
            "train t.csv --out=out --epochs=1 --set=lora.rank=1",
            "train t.csv --out=out --epochs=1 --set=lora.rank=1 --from `runs/a/t.safetensors`",
        ),
        row("train nosuch.bin", "train --from `runs/a/t.safetensors` `--out`=`out`"),
        row(
            "train c.csv --out=runs/c --epochs=1 --threads=1",
            "train c.csv --out=runs/c --epochs=1 --threads=1 --resume=never",
        ),
        row(
            "train mlp --label x --epochs=1 --steps-per-epoch=1",
            "train `t.csv` --label `b` --epochs=1 --steps-per-epoch=1 `--out`=`out`",
        ),
        row("evaluate t.toml", "train t.toml"),
        row(
            "train restored.txt --out=runs/restored --epochs=1 --steps-per-epoch=1 --threads=1",
            "train restored.txt --out=runs/restored --epochs=1 --steps-per-epoch=1 --threads=1 --resume=force",
        ),
        row("evaluate runs/replaced", "evaluate runs/replaced --data-dir `a.txt`"),
        row(
            "evaluate unnamed.safetensors --dataset glyphs",
            "train `glyphs` `--out`=`out` `--epochs`=`1` `--steps-per-epoch`=`1`",
        ),
        case("evaluate spoiled").typed("evaluate runs/a").own("runs/a"),
        row(
            "train t.csv --out=spoiled --epochs=1 --threads=1",
            "train t.csv --out=spoiled --epochs=1 --threads=1 --resume=never",
        ),
        row("train t.csv --out=file/below", "train t.csv --out=`elsewhere2`"),
        row(
            "train t.csv --lora=1 --epochs=1",
            "train t.csv --lora=1 --epochs=1 --from `runs/a/t.safetensors`",
        ),
        row(
            "train t.csv --fine-tune --epochs=1",
            "train t.csv --fine-tune --epochs=1 --from `runs/a/t.safetensors`",
        ),
        row(
            "train t.csv --fine-tune --epochs=1 --from runs/a/t.safetensors --set=optimizer.learning_rate=0.01",
            "train t.csv --fine-tune --epochs=1 --from runs/a/t.safetensors --learning-rate 0.002",
        ),
        row("train t.csv --class-weights 0=1,x", "train t.csv --class-weights `0=2,1=1`"),
        row("evaluate runs/a --data-dir new.csv", "evaluate runs/a"),
        row("predict runs/a nothing2", "predict runs/a `new2.csv`"),
        row("predict runs/a --text bad", "predict runs/a `new2.csv`"),
        row("evaluate runs/a nosuch.bin", "evaluate runs/a `u.csv`"),
        case("train runs/a"),
        case("train runs/a/t.safetensors"),
        again("--seed=5").knows("--out", "elsewhere"),
        case("train mlp --from runs/a/t.safetensors"),
        case("evaluate nothing").hand(|f| {
            fs::remove_dir_all(f.path("nothing")).unwrap();
            fs::create_dir_all(f.path("nothing")).unwrap();
            fs::copy(f.path("runs/a/t.safetensors"), f.path("nothing/t.safetensors")).unwrap();
        }),
        case("resume nosuch").hand(|f| fs::rename(f.path("runs/a"), f.path("nosuch")).unwrap()),
        case("predict two new.csv"),
        case("predict two/one.safetensors new.csv"),
        case("predict two/one.safetensors new.csv --invert"),
        case("predict two/one.safetensors new.csv --scale 1/255"),
        case("predict two/one.safetensors other.csv").hand(|f| drop(f.write("other.csv", "a,b\n1,2\n"))),
        case("predict --model two/one.safetensors u.csv"),
        case("init table --out kept.toml").knows("--out", "fresh.toml"),
    ];
    (f, cases)
}

/// A classifier of images, from a program that did not name its two classes.
fn two_unnamed_classes() -> Model {
    let mut model = Sequential::new([flatten(), dense(2).activation("softmax")]);
    model.compile(Compile { loss: sparse_categorical_crossentropy(), ..default() }).unwrap();
    model.build(&[TensorType::new(DType::F32, [28, 28, 1])]).unwrap();
    model
}
