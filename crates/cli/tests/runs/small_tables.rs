//! Tests that tables of few rows train to what they can give, with no setting by the user.

use crate::program::Folder;
use serde_json::Value;
use std::fmt::Write;

/// Pseudo-random numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Nearly normal: the sum of three.
    fn normal(&mut self) -> f64 {
        self.next() + self.next() + self.next()
    }
}

/// 150 rows of three classes that overlap little; the columns differ by a factor of 100,000.
fn classes() -> String {
    let mut noise = Noise(7);
    let mut text = String::from("alcohol,acid,proline,class\n");
    for row in 0..150 {
        let class = row % 3;
        let [a, b, c] = [0, 1, 2].map(|column| f64::from(u8::from(class == column)) * 3.0 + noise.normal());
        writeln!(
            text,
            "{},{},{},{}",
            13.0 + a,
            0.02 + 0.01 * b,
            1000.0 + 300.0 * c,
            ["red", "white", "rose"][class]
        )
        .unwrap();
    }
    text
}

/// 200 rows with a target of mean 150 and standard deviation 70.
fn numbers() -> String {
    let mut noise = Noise(11);
    let mut text = String::from("age,pressure,label\n");
    for _ in 0..200 {
        let (a, b) = (noise.normal(), noise.normal());
        writeln!(
            text,
            "{},{},{}",
            50.0 + 10.0 * a,
            120.0 + b,
            150.0 + 50.0 * a - 45.0 * b + 5.0 * noise.normal()
        )
        .unwrap();
    }
    text
}

fn trained(f: &Folder, table: &str, text: String, more: &[&str]) -> (Value, String) {
    f.write(table, text);
    let done = f.run(&[&["train", table, "--out", "run", "--json", "--threads=2"], more].concat()).ok();
    (done.json(), done.err.clone())
}

#[test]
fn a_table_of_150_rows_is_learnt() {
    let f = Folder::new("few-rows");
    let (result, told) = trained(&f, "wine.csv", classes(), &["--set=data.records.label=class"]);
    let accuracy = result["val_sparse_categorical_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.9, "{accuracy}\n{told}");
    assert!(told.contains("300 epochs, because 120 rows"), "{told}");
}

#[test]
fn numbers_of_any_scale_are_learnt() {
    let f = Folder::new("few-numbers");
    let (result, told) = trained(&f, "target.csv", numbers(), &[]);
    let r2 = result["val_r2_score"].as_f64().unwrap();
    assert!(r2 >= 0.95, "{r2}\n{told}");
    assert!(told.contains("the last layer rescales"), "{told}");
}

#[test]
fn any_regression_loss_gets_one_linear_unit_and_fitting_metrics() {
    let f = Folder::new("any-loss");
    let more = ["--set=compile.loss=mean_absolute_error", "--epochs=2"];
    let (result, _) = trained(&f, "target.csv", numbers(), &more);
    let config = &result["config"];
    assert_eq!(
        (&config["fit"]["epochs"], &config["compile"]["loss"]),
        (&2.into(), &"mean_absolute_error".into())
    );
    let layers = config["layers"].as_array().unwrap();
    let [.., dense, rescaling] = &layers[..] else { panic!("{layers:?}") };
    assert_eq!((&dense["units"], dense.get("activation")), (&1.into(), None));
    assert_eq!(rescaling["type"], "Rescaling");
    for metric in ["mean_absolute_error", "root_mean_squared_error", "r2_score"] {
        assert!(result[format!("val_{metric}")].is_f64(), "{metric}: {result}");
    }
}

/// 60 rows of dates from 2024-01-01 in a format; the class is whether the day is on a weekend.
fn weekends(format: impl Fn(i64, i64) -> String) -> String {
    let row = |day: i64| {
        let (month, of_month) = if day < 31 { (1, day + 1) } else { (2, day - 30) };
        let class = if day % 7 >= 5 { "end" } else { "week" };
        format!("{},{},{class}\n", format(month, of_month), day % 5)
    };
    "when,a,label\n".to_string() + &(0..60).map(row).collect::<String>()
}

#[test]
fn dates_become_numbers_and_parts_of_the_calendar() {
    let f = Folder::new("dates");
    let iso = weekends(|month, day| format!("2024-{month:02}-{day:02}"));
    let (result, told) = trained(&f, "t.csv", iso, &[]);
    assert!(
        told.contains("the column `when` contains dates: the inputs are days and years since 2024-01-01"),
        "{told}"
    );
    let column = &result["config"]["data"]["records"]["columns"][0];
    assert_eq!((&column["date"], &column["since"]), (&"year_first".into(), &19_723.into()), "{column}");
    // Five of seven days are of one class; ten of the twelve rows are told right, since the weekday tells.
    assert!(result["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.8, "{result}");

    // The same in predictions, evaluations and exports; the report shows the dates.
    f.write("new.csv", "when,a\n2024-02-03,1\n2024-02-07,1\n");
    let answers = |model: &str| f.run(&["predict", model, "new.csv"]).ok().out;
    let classes = |text: String| -> Vec<String> {
        text.lines().map(|line| line.split(' ').nth(1).unwrap().to_string()).collect()
    };
    assert_eq!(classes(answers("run")), ["end", "week"]);
    f.run(&["export", "run", "--format", "onnx", "--out", "t.onnx"]).ok();
    f.run(&["export", "run", "--format", "tflite", "--float", "--out", "t.tflite"]).ok();
    assert_eq!(classes(answers("t.onnx")), ["end", "week"]);
    assert_eq!(classes(answers("t.tflite")), ["end", "week"]);
    let e = f.run(&["evaluate", "run", "t.csv", "--json"]).ok().json();
    assert_eq!(e["samples"], 60);
    f.write("wrong.csv", "when,a\n2024-02-03,1\n3.2.2024,1\n");
    f.run(&["predict", "run", "wrong.csv"]).fails("data", &["`when`", "3.2.2024", "wrong.csv, line 3"]);
    let kept = f.run(&["predict", "run", "wrong.csv", "--keep-going"]);
    assert!(kept.code == Some(1) && kept.out.lines().count() == 1, "{}{}", kept.out, kept.err);

    // Ambiguous dates are read month first, and it is said; a date beyond the twelfth decides.
    let american = weekends(|month, day| format!("{month}/{}/2024", day.min(12)));
    let (_, told) = trained(&f, "us.csv", american, &["--epochs=1", "--resume=never"]);
    assert!(told.contains("read as month/day/year"), "{told}");
    let european = weekends(|month, day| format!("{day}.{month}.2024 18:30"));
    let (result, told) = trained(&f, "eu.csv", european, &["--epochs=1", "--resume=never"]);
    let column = &result["config"]["data"]["records"]["columns"][0];
    assert_eq!((&column["date"], &column["time"]), (&"day_first".into(), &true.into()), "{column}");
    assert!(told.contains("weekday, hour") && !told.contains("read as"), "{told}");
}

#[test]
fn the_report_names_the_columns_of_a_table() {
    let f = Folder::new("report-columns");
    let row = |i: usize| {
        format!("{},2024-01-{:02},{},{}\n", ["Oslo", "Rome"][i % 2], i % 28 + 1, i % 7, i * 31 % 97)
    };
    let text = "city,when,size,label\n".to_string() + &(0..60).map(row).collect::<String>();
    trained(&f, "t.csv", text, &["--epochs=1", "--set=compile.loss=mse"]);
    let page = std::fs::read_to_string(f.path("run/report.html")).unwrap();
    assert!(page.contains("city Oslo\nwhen 2024-01-"), "the cells of a row, not their encoding");
    assert!(!page.contains("city 1") && page.contains("\nsize "), "each column has its name");
}

#[test]
fn the_label_column_is_an_argument() {
    let f = Folder::new("label");
    let text = classes();
    let (by_flag, _) = trained(&f, "t.csv", text.clone(), &["--label=class", "--epochs=1"]);
    f.write("other.csv", text.replace(",class\n", ",colour\n"));
    let e = f.run(&["evaluate", "run", "other.csv", "--label", "colour", "--json"]).ok().json();
    assert_eq!(e["samples"], 150);
    f.run(&["evaluate", "run", "other.csv"]).fails("data", &["`class`", "`colour`"]);
    let by_key = f
        .run(&["train", "t.csv", "--out=key", "--json", "--set=data.records.label=class", "--epochs=1"])
        .ok();
    assert_eq!(by_flag["val_loss"], by_key.json()["val_loss"]);
    f.run(&["train", "glyphs", "--label=class"]).fails("usage", &["`glyphs`", "--label"]);
    f.write("s.toml", "[sweep]\nbase = \"table\"\n[sweep.parameters]\nseed = [1]");
    let sweep =
        ["sweep", "s.toml", "--data-dir=t.csv", "--label=class", "--set=fit.epochs=1", "--out=s", "--json"];
    assert_eq!(f.run(&sweep).ok().json()["trials"][0]["epochs"], 1);
}

#[test]
fn the_printed_configuration_is_the_one_that_is_trained() {
    let f = Folder::new("print-config");
    let (trained, _) = trained(&f, "t.csv", numbers(), &["--epochs=2"]);
    let printed = f.run(&["train", "t.csv", "--epochs=2", "--print-config"]).ok().out;
    assert!(printed.contains("type = \"Rescaling\"") && printed.contains("mean_squared_error"), "{printed}");
    f.write("printed.toml", printed);
    let again = f.run(&["train", "printed.toml", "--out=again", "--json", "--threads=2"]).ok().json();
    assert_eq!(
        (&again["val_loss"], &again["config"]["fit"]),
        (&trained["val_loss"], &trained["config"]["fit"])
    );
    let short = f.run(&["train", "t.csv", "--print-config"]).ok().out;
    assert!(short.contains("epochs = 300"), "{short}");
    std::fs::remove_file(f.path("t.csv")).unwrap();
    let done = f.run(&["train", "printed.toml", "--print-config"]).ok();
    assert!(done.err.contains("not adapted to the data") && done.out.contains("Rescaling"), "{}", done.err);
}

#[test]
fn predictions_carry_the_words_of_the_label_column() {
    let f = Folder::new("words");
    for (words, more) in [
        (["01", "02"], &[][..]),
        (["0.0", "1.0"], &[]),
        (["FALSE", "True"], &[]),
        (["no, never", "yes"], &[]),
        // One unit for two classes.
        (
            ["cold", "warm"],
            &[
                "--set=compile.loss=binary_crossentropy",
                "--set=compile.metrics=[\"binary_accuracy\"]",
                "--set=layers.4.units=1",
                "--set=layers.4.activation=sigmoid",
            ],
        ),
    ] {
        let row = |i: usize| format!("{},{},\"{}\"\n", i % 2 * 10 + i % 5, i % 3, words[i % 2]);
        let text = "a,b,label\n".to_string() + &(0..60).map(row).collect::<String>();
        trained(&f, "t.csv", text, &[&["--epochs=40", "--resume=never"], more].concat());
        f.write("new.csv", "a,b\n1,1\n12,1\n");
        let text = f.run(&["predict", "run", "new.csv"]).ok().out;
        for (line, word) in text.lines().zip(words) {
            assert!(line.split_once(": ").unwrap().1.starts_with(&format!("{word} ")), "{words:?}: {text}");
        }
        let answers = f.run(&["predict", "run", "new.csv", "--json"]).ok().out;
        for (line, word) in answers.lines().zip(words) {
            let answer: Value = serde_json::from_str(line).unwrap();
            assert!(answer["class"] == word && answer["top"].as_array().unwrap().len() >= 2, "{answer}");
            assert!(answer["probability"].as_f64().unwrap() < 1.0, "{answer}");
        }
        f.run(&["predict", "run", "new.csv", "--out", "answers.csv"]).ok();
        let csv = std::fs::read_to_string(f.path("answers.csv")).unwrap();
        assert!(words.iter().all(|word| csv.contains(word)), "{csv}");
        f.run(&["predict", "run", "new.csv", "--top=2", "--out", "two.csv"]).ok();
        let two = std::fs::read_to_string(f.path("two.csv")).unwrap();
        assert!(
            two.starts_with("file,index,class,label,probability,class_2,label_2,probability_2\n"),
            "{two}"
        );
        for (one, two) in csv.lines().zip(two.lines()) {
            assert!(two.starts_with(&format!("{one},")), "{one} {two}");
        }
        let evaluated = f.run(&["evaluate", "run", "t.csv", "--json"]).ok().json();
        assert_eq!(evaluated["samples"], 60, "{words:?}");
        let accuracy =
            evaluated.as_object().unwrap().iter().find(|(name, _)| name.ends_with("accuracy")).unwrap();
        let wrong: u64 =
            evaluated["most_confused"].as_array().unwrap().iter().map(|m| m["times"].as_u64().unwrap()).sum();
        let right = (accuracy.1.as_f64().unwrap() * 60.0).round() as u64;
        assert_eq!(right + wrong, 60, "{words:?}: {evaluated}");
        assert!(right > 30, "{words:?}: {evaluated}");
        let rows = format!("1,1,\"{}\"\n12,1,{}\n5,2,third\n", words[0], words[1]);
        f.write("more.csv", format!("a,b,label\n{rows}"));
        f.run(&["evaluate", "run", "more.csv"]).fails("data", &["third"]);
    }
}

#[test]
fn schedules_over_the_whole_run_know_the_rows_of_a_table() {
    let f = Folder::new("table-cycle");
    let (by_step, _) = trained(&f, "t.csv", classes(), &["--label=class", "--one-cycle=0.01", "--epochs=3"]);
    assert_eq!(by_step["steps"], 12, "{by_step}");
    // The same as for data that report their length.
    let last = f.run(&["show", "run", "--schedule", "--json"]).ok().json();
    assert_eq!(last["steps"], 12, "{last}");
    for more in [
        &["--set=optimizer.swa={swa_lrs=0.001,swa_epoch_start=0.5}"][..],
        &["--val-check-interval=0.5"],
        &["--limit-train-batches=0.5", "--limit-val-batches=0.5"],
    ] {
        let args = ["--label=class", "--epochs=2", "--resume=never", "--batch-size=8"];
        let (result, _) = trained(&f, "t.csv", classes(), &[&args[..], more].concat());
        assert!(result["val_loss"].is_f64(), "{more:?}: {result}");
    }
}

#[test]
fn a_folder_s_name_does_not_decide_a_table_s_format() {
    let f = Folder::new("folder.tsv-old");
    let (result, _) = trained(&f, "t.csv", classes(), &["--label=class", "--epochs=1"]);
    assert_eq!(result["config"]["layers"].as_array().unwrap().last().unwrap()["units"], 3);
}
