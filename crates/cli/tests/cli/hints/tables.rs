//! Hints about tables: columns, labels, cells and files.

use super::reading::words;
use super::{Case, case, row, tried, with_fixtures, with_table};
use crate::program::Folder;
use crate::program::made::{album, npz, picture, plain, table, texts};
use systole_data::Sample;
use systole_data::format::{example, npy, tfrecord};
use systole_ir::Literal;

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-tables");
    let rows = |header: &str, row: fn(usize) -> String| table(header, 60, row);
    f.write("odd.csv", rows("a,b,outcome", plain));
    f.write("headless.csv", table("0.5,1,0", 60, plain));
    f.write("ragged.csv", rows("a,b,label", plain).replacen("\n0.37,", "\n0.37,7,", 1));
    f.write("text.csv", rows("a,b,label", |i| format!("{i},1,{}", ["no", "yes"][i % 2])));
    f.write(
        "gap.csv",
        rows("a,b,label", |i| format!("{i},1,{}", if i == 7 { "" } else { ["0", "1"][i % 2] })),
    );
    f.write("many.csv", table("a,note,label", 250, |i| format!("{i},note {i},{}", i % 2)));
    f.write("number.csv", rows("a,b,label", |i| format!("{i},1,{}.5", i % 50)));
    f.write("spaced.csv", rows("a,b,the outcome", plain));
    f.write("truth.csv", rows("a,b,true", plain));
    f.write("alone.csv", rows("label", |i| format!("{}", i % 2)));
    f.write("names.csv", rows("a,label", |i| format!("{i},name {i}")));
    f.write("set/train.csv", rows("a,b,label", plain));
    f.write("set/sample.csv", rows("a,label", |i| format!("{i},0")));
    f.write("mixed/a.csv", rows("a,b,label", plain));
    f.write("mixed/b.npz", "PK");
    f.write("quote.csv", "a,label\n1,0\n\"2,1\n");
    f.write("nan.csv", rows("a,b,label", |i| if i == 9 { "nan,1,0".into() } else { plain(i) }));
    f.write("latin1.csv", latin1());
    let numbers = |n: usize| {
        let all: Vec<f32> = (0..n).map(|i| (i % 3) as f32).collect();
        npy::to_bytes(&Literal::from_slice([n], &all).unwrap()).unwrap()
    };
    f.write("names.npz", npz(&[("x", texts(&["a"; 40])), ("n", numbers(40)), ("y", numbers(40))]));
    let gap: Vec<&str> = (0..40).map(|i| ["no", "yes", ""][if i == 30 { 2 } else { i % 2 }]).collect();
    f.write("unlabeled.npz", npz(&[("n", numbers(40)), ("k", numbers(40)), ("y", texts(&gap))]));
    f.write("lists.tfrecord", lists());
    f.write("note.csv", rows("a,note,label", |i| format!("{i},note {i},{}", i % 2)));
    for line in
        ["data convert t.csv there/t", "data convert alone.csv only/t", "data convert note.csv noted/t"]
    {
        f.run(&words(line).iter().map(String::as_str).collect::<Vec<_>>()).ok();
    }
    f.write("one.csv", "a,b,label\n1,2,0\n");
    album(&f, "album", 6);
    album(&f, "photos/all", 6);
    let named = |i: usize| format!("{}/{}.png,{}", ["cat", "dog"][i % 2], i / 2, i % 2);
    f.write(
        "missing.csv",
        "image,label\n".to_string() + &(0..13).map(|i| format!("album/{}\n", named(i))).collect::<String>(),
    );
    f.write("apart/absent.csv", table("image,label", 12, named));
    f.write("dark/pics.csv", table("image,label", 12, |i| format!("p{i}.png,{}", i % 2)));
    for i in 0..12 {
        let bytes = picture([20, 180][i % 2], i, None);
        f.write(&format!("dark/p{i}.png"), if i < 3 { b"none".to_vec() } else { bytes });
    }
    f.write("images.csv", table("image,label", 4, |i| format!("late/q{i}.png,{}", i % 2)));
    let cases = vec![
        tried("odd.csv", "").knows("data.records.label", "outcome"),
        tried("odd.csv", "--set data.records.label=outcme").knows("data.records.label", "outcome"),
        tried("headless.csv", ""),
        // Names that the shell or TOML reads as something else: the hint quotes them.
        tried("spaced.csv", ""),
        tried("truth.csv", ""),
        tried("ragged.csv", ""),
        tried("text.csv", "--set compile.loss=mean_squared_error").knows("data.records.label", "b"),
        tried("gap.csv", "").knows("data.records.label", "a"),
        tried("many.csv", "--set 'data.records.inputs=[\"note\"]'").knows("data.records.inputs", "[\"a\"]"),
        tried("number.csv", "--set layers.4.units=3").knows("data.records.label", "b"),
        tried("t.csv", "--set 'data.records.inputs=[\"c\"]'").knows("data.records.inputs", "[\"a\"]"),
        tried("names.csv", "").knows("data.records.label", "a"),
        tried("set", ""),
        tried("mixed", ""),
        tried("latin1.csv", ""),
        case("data stats latin1.csv"),
        case("data convert ragged.csv converted/ragged"),
        tried("quote.csv", "").hand(|f| drop(f.write("quote.csv", table("a,b,label", 60, plain)))),
        tried("nan.csv", "").hand(|f| drop(f.write("nan.csv", table("a,b,label", 60, plain)))),
        row("train table --out=out --epochs=1", "train table --data-dir `t.csv` --out=out --epochs=1"),
        tried("headless.csv", "--set data.records.label=outcome").knows("data.records.label", "2"),
        tried("one.csv", "").mend("one.csv", table("a,b,label", 60, plain)),
        row(
            "train t.csv --out=out --epochs=1 '--set=data.records.train=[\"none*.csv\"]'",
            "train t.csv --out=out --epochs=1",
        ),
        tried("headless.csv", "--set=data.records.label=2 '--set=data.records.inputs=[\"a\"]'")
            .knows("data.records.inputs", "[\"0\"]")
            .knows("data.records.label", "2"),
        tried("unlabeled.npz", "--set=data.records.label=y '--set=data.records.inputs=[\"n\"]'")
            .knows("data.records.label", "k"),
        tried("lists.tfrecord", "'--set=data.records.features=a: f32[], l: f32[?], label: i64[]'")
            .knows("data.records.inputs", "[\"a\"]"),
        row(
            "train names.npz --out=out --epochs=1 --set=data.records.label=y",
            "train names.npz --out=out --epochs=1 --set=data.records.label=y '--set=data.records.inputs=`[\"n\"]`'",
        ),
        row(
            "train missing.csv --out=out --epochs=1 --batch-size=4",
            "train missing.csv --out=out --epochs=1 --batch-size=4 --set data.records.skip=1",
        ),
        tried("apart/absent.csv", "").knows("data.records.pictures", "\"../photos/all\""),
        tried("dark/pics.csv", "--set=layers.0.filters=2"),
        case(&with_fixtures("predict @onnx/vit.onnx images.csv"))
            .hand(|f| (0..4).for_each(|i| drop(f.write(&format!("late/q{i}.png"), picture(20, i, None))))),
        row("data inspect 'none*.csv'", "data inspect `t.csv`"),
        row(
            "train t.csv --out=out --epochs=1 --set layers.4.units=1",
            "train t.csv --out=out --epochs=1 --set layers.4.units=2",
        ),
        tried("number.csv", "--set=fit.class_weight=balanced").knows("data.records.label", "b"),
        tried("there", "'--set=data.records.features=zz: f32[]' --set=data.records.label=zz")
            .typed("data inspect there/t-00000-of-00001.tfrecord")
            .own("there/t-00000-of-00001.tfrecord"),
        tried("only", "").typed("train t.csv --out=out --epochs=1").own("t.csv"),
        tried("noted", "--set=data.records.label=label").knows("data.records.inputs", "[\"a\"]"),
        tried("alone.csv", "").hand(|f| drop(f.write("alone.csv", table("a,b,label", 60, plain)))),
    ];
    (f, cases)
}

/// Records with a list whose length varies.
fn lists() -> Vec<u8> {
    let mut file = Vec::new();
    for i in 0..40 {
        let list = vec![0.5f32; if i == 9 { 3 } else { 2 }];
        let fields = [
            ("a", Literal::from_slice([], &[i as f32])),
            ("l", Literal::from_slice([list.len()], &list)),
            ("label", Literal::from_slice([], &[i % 2])),
        ];
        let record = Sample::new(fields.map(|(name, value)| (name, value.unwrap())));
        tfrecord::frame(&mut file, &example::encode(&record).unwrap()).unwrap();
    }
    file
}

fn latin1() -> Vec<u8> {
    let text = table("a,b,label", 60, |i| format!("{i},{},n~{}", i % 7, i % 2));
    text.bytes().map(|b| if b == b'~' { 0xe9 } else { b }).collect()
}
