//! Tests the hints of error messages by following them. For many wrong command lines, files and settings, the test
//! reads the text after `try: ` (settings, keys, options, commands, "did you mean") and applies it. That must succeed
//! or lead to a different error. Every option, key and command named in a message of the source must exist.

use crate::program::made::{album, picture, plain, table};
use crate::program::{Done, Folder};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Tables of the configuration, with which keys begin.
const ROOTS: [&str; 7] = ["data", "fit", "compile", "optimizer", "strategy", "model", "layers"];
/// Commands that a hint may name.
const COMMANDS: [&str; 9] =
    ["train", "resume", "init", "evaluate", "predict", "data", "summary", "show", "bench"];

/// A wrong command line, and what its user knows.
struct Case {
    args: Vec<String>,
    /// What the user puts for a key, an option or a word in capitals.
    knows: Vec<(&'static str, &'static str)>,
    /// What the user does where the hint asks for something that no argument does.
    hand: Option<fn(&Folder)>,
}

impl Case {
    fn knows(mut self, name: &'static str, value: &'static str) -> Case {
        self.knows.push((name, value));
        self
    }

    fn hand(mut self, hand: fn(&Folder)) -> Case {
        self.hand = Some(hand);
        self
    }

    fn known(&self, name: &str) -> Option<&'static str> {
        self.knows.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }
}

fn case(line: &str) -> Case {
    Case { args: words(line), knows: Vec::new(), hand: None }
}

/// `train TABLE` that takes no time, with more arguments.
fn tried(target: &str, more: &str) -> Case {
    case(&format!("train {target} --out=out --epochs=1 --steps-per-epoch=1 --threads=1 --quiet {more}"))
}

/// A line as a shell splits it; quotes may begin within a word.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'') => quote = Some(c),
            (None, ' ') => {
                if !word.is_empty() {
                    all.push(std::mem::take(&mut word));
                }
            }
            (_, c) => word.push(c),
        }
    }
    if !word.is_empty() {
        all.push(word);
    }
    all
}

/// What a hint asks for.
#[derive(Debug, PartialEq)]
enum Step {
    /// Arguments more.
    Add(Vec<String>),
    /// This in the place of what was wrong.
    Instead(String),
    /// Another value of the last setting.
    Value(String),
    /// Without these keys and options.
    Without(Vec<String>),
    /// Another command.
    Run(Vec<String>),
}

/// The alternatives of a hint: between semicolons, and where "or" begins another.
fn clauses(hint: &str) -> Vec<&str> {
    hint.split("; ").flat_map(|c| c.split(", or ")).flat_map(|c| c.split(" or set ")).collect()
}

/// The steps of each alternative.
fn steps(hint: &str, case: &Case) -> Vec<Step> {
    let mut all = Vec::new();
    for clause in clauses(hint) {
        if let Some(meant) = clause.split("did you mean `").nth(1).and_then(|rest| rest.split('`').next()) {
            all.push(Step::Instead(meant.into()));
        } else if let Some(named) = clause.strip_prefix("name one of these models: ") {
            all.extend(named.split(", ").map(|n| Step::Instead(n.into())));
        } else if let Some(known) = listed(clause) {
            all.push(Step::Instead(known.split(", ").next().unwrap_or(known).into()));
        } else if let Some(known) = clause.split("an index from ").nth(1) {
            all.push(Step::Instead(known.split(' ').next().unwrap_or(known).into()));
        } else if let Some(command) = command_in(clause, case) {
            all.push(Step::Run(command));
        } else if let Some(names) = removed(clause) {
            all.push(Step::Without(names));
        } else if let Some(number) = number_in(clause) {
            all.push(Step::Value(number));
        } else {
            let added = [settings(clause, case), options(clause, case)].concat();
            all.extend((!added.is_empty()).then_some(Step::Add(added)));
        }
    }
    all
}

/// The keys and options in "remove data.vocabulary" and "remove --tta".
fn removed(clause: &str) -> Option<Vec<String>> {
    let rest = clause.strip_prefix("remove ")?;
    let (mut names, mut at) = (Vec::new(), 0);
    while let Some((start, end)) = key_in(rest, at) {
        names.push(rest[start..end].to_string());
        at = end;
    }
    let options = rest.split([' ', ',', ':']).filter(|word| word.len() > 2 && word.starts_with("--"));
    names.extend(options.filter(|word| *word != "--set").map(String::from));
    (!names.is_empty()).then_some(names)
}

/// The first number in "choose a number from 0 to 1" and "write a number, such as 0.001".
fn number_in(clause: &str) -> Option<String> {
    let starts = ["choose a", "choose an", "choose a number", "write a number", "try learning rate"];
    let is_asked = starts.iter().any(|start| clause.starts_with(start)) && key_in(clause, 0).is_none();
    let words = clause.split([' ', ',', ';', ':', '"']).map(|w| w.trim_end_matches('.'));
    words.filter(|_| is_asked).find(|w| w.parse::<f64>().is_ok()).map(String::from)
}

/// The list in "use one of: relu, gelu" or "use one of these sizes: small, large".
fn listed(clause: &str) -> Option<&str> {
    let (_, rest) = clause.split_once("one of")?;
    let (which, list) = rest.split_once(": ")?;
    (which.is_empty() || which.starts_with(" these ")).then_some(list)
}

/// `: train --from MODEL`, or a command in backticks.
fn command_in(clause: &str, case: &Case) -> Option<Vec<String>> {
    let quoted = clause.split("`systole ").nth(1).and_then(|rest| rest.split('`').next());
    let behind = clause.split(": ").skip(1).find(|rest| COMMANDS.iter().any(|c| is_command(rest, c)));
    let line = quoted.or(behind)?;
    let all = words(line).into_iter().map(|word| {
        let placeholder = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
        if placeholder { case.known(&word).map_or(word.clone(), String::from) } else { word }
    });
    let all: Vec<String> = all.collect();
    // `systole train` alone names the command, not what is to be tried.
    (all.len() > 1 || all[0] == "init").then_some(all)
}

fn is_command(text: &str, command: &str) -> bool {
    text.strip_prefix(command).is_some_and(|rest| rest.starts_with(' '))
}

/// Keys with their values: `data.scale=1/255`, `data.validation_split to 0.2`, or what the user knows for the key.
fn settings(clause: &str, case: &Case) -> Vec<String> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some((start, end)) = key_in(clause, at) {
        let (key, rest) = (&clause[start..end], &clause[end..]);
        at = end;
        let written = rest.strip_prefix('=').or(rest.strip_prefix(" = ")).map(value).or_else(|| {
            let word = rest.strip_prefix(" to ")?.split([' ', ',', ';']).next()?;
            Some(word.trim_end_matches('.').to_string())
        });
        let known = case.known(key).map(String::from);
        all.extend(known.or(written).map(|value| format!("--set={key}={value}")));
    }
    all
}

/// Where the next key of the configuration stands.
fn key_in(text: &str, from: usize) -> Option<(usize, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let starts = text[from..].char_indices().map(|(i, _)| from + i);
    starts.filter(|i| !text[..*i].ends_with(is_part)).find_map(|start| {
        let rest = &text[start..];
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let key = rest[..length].trim_end_matches('.');
        let (root, name) = key.split_once('.')?;
        (ROOTS.contains(&root) && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
            .then_some((start, start + key.len()))
            .filter(|(_, end)| !text[*end..].starts_with('('))
    })
}

/// A value up to the next blank or comma that is in no brackets and no quotes.
fn value(text: &str) -> String {
    let (mut depth, mut quoted) = (0, false);
    let end = text.char_indices().find(|(_, c)| {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        depth == 0 && !quoted && matches!(c, ' ' | ',' | ';' | ')' | '\'')
    });
    text[..end.map_or(text.len(), |(i, _)| i)].to_string()
}

/// Options with their values; a word in capitals is what the user knows.
fn options(clause: &str, case: &Case) -> Vec<String> {
    let all: Vec<&str> = clause.split([' ', ',', '`', '(', ')']).filter(|w| !w.is_empty()).collect();
    let mut found = Vec::new();
    for (i, word) in all.iter().enumerate() {
        let Some(name) = word.strip_prefix("--").filter(|n| !n.is_empty()) else { continue };
        let name = name.trim_end_matches(['.', ':', '?']);
        if name == "set" {
            continue;
        }
        let next = all.get(i + 1).copied().unwrap_or_default();
        let is_placeholder =
            next.len() > 1 && next.chars().all(|c| c.is_ascii_uppercase()) || next == "N" || next == "S";
        match (name.contains('='), case.known(&format!("--{name}"))) {
            (true, _) => found.push(format!("--{name}")),
            (_, Some(value)) => found.push(format!("--{name}={value}")),
            (_, None) if is_placeholder => {}
            (_, None) => found.push(format!("--{name}")),
        }
    }
    found
}

/// What was wrong, as the error names it: what stands in backticks first, or the argument of the place.
fn culprit(error: &str, args: &[String]) -> Option<(usize, String)> {
    let first = error.lines().next().unwrap_or_default();
    let named = first.split('`').skip(1).step_by(2).chain(first.split('\'').skip(1).step_by(2));
    for name in named.chain(first.split(' ')) {
        let name = name.trim_matches([':', ',']);
        if name.len() > 1 || name.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() {
            let at = args.iter().rposition(|a| a.contains(name));
            if let Some(at) = at.filter(|at| *at > 0 || first.contains("unrecognized")) {
                return Some((at, name.into()));
            }
        }
    }
    None
}

/// The argument list that follows a step.
fn followed(step: &Step, case: &Case, error: &str) -> Vec<String> {
    let mut args = case.args.clone();
    match step {
        Step::Run(command) => return command.clone(),
        Step::Value(value) => {
            let set = args.iter_mut().rev().find(|a| a.starts_with("--set=")).expect("a setting");
            let key = set.rsplit_once('=').map_or("", |(key, _)| key).to_string();
            *set = format!("{key}={value}");
        }
        Step::Without(names) => {
            let is_named = |arg: &String| {
                names.iter().any(|n| arg.starts_with(n) || arg.starts_with(&format!("--set={n}=")))
            };
            args.retain(|arg| !is_named(arg));
        }
        Step::Instead(meant) => {
            let (at, wrong) = culprit(error, &args).unwrap_or_else(|| panic!("what is wrong?\n{error}"));
            // A key of another table: the whole path of it.
            args[at] = match (args[at].split_once("--set="), meant.contains('.')) {
                (Some((_, set)), true) => {
                    let value = set.split_once('=').map_or("", |(_, v)| v);
                    format!("--set={meant}={value}")
                }
                _ if wrong.starts_with("--") => args[at].replacen(&wrong, meant, 1),
                _ => args[at].replacen(&wrong, meant.trim_start_matches("--"), 1),
            };
        }
        Step::Add(more) => {
            let is_unknown = ["unknown key", "unexpected argument", "expected KEY=VALUE"];
            if is_unknown.iter().any(|text| error.contains(text))
                && let Some((at, _)) = culprit(error, &args)
            {
                // With its value, or the option that it is the value of.
                let is_alone = args[at].contains('=') || args.get(at + 1).is_none_or(|a| a.starts_with('-'));
                args.remove(at);
                match args.get(at - 1).is_some_and(|a| a == "--set") {
                    true => drop(args.remove(at - 1)),
                    false if !is_alone => drop(args.remove(at)),
                    false => {}
                }
            }
            args.extend(more.iter().cloned());
        }
    }
    args
}

/// What went wrong and where, and what to try.
fn error_of(done: &Done) -> (String, String) {
    // Some samples were told of, the others answered.
    let text = done.err.split_once("error[").and_then(|(_, rest)| rest.split_once("]: "));
    let Some((_, text)) = text else { return (String::new(), String::new()) };
    let is_hint = |line: &&str| ["try: ", "tip: "].iter().any(|t| line.trim_start().starts_with(t));
    let hint = text.lines().find(is_hint).map(|l| l.trim_start()[5..].to_string()).unwrap_or_default();
    let what: Vec<&str> =
        text.lines().take_while(|l| !is_hint(l)).filter(|l| !l.trim_start().starts_with("why: ")).collect();
    (what.join("\n"), hint)
}

fn run(f: &Folder, args: &[String]) -> Done {
    let _ = fs::remove_dir_all(f.path("out"));
    f.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Follows each step of the error's hint.
fn follow(f: &Folder, case: &Case, lost: &mut Vec<String>) {
    let done = run(f, &case.args);
    if done.code == Some(0) {
        return lost.push(format!("{}: succeeds", done.what));
    }
    let (error, hint) = error_of(&done);
    let steps = steps(&hint, case);
    if steps.is_empty() && case.hand.is_none() {
        lost.push(format!("{}: nothing to follow\n{}", done.what, done.err));
    }
    for step in &steps {
        let args = followed(step, case, &error);
        let again = run(f, &args);
        if again.code != Some(0) && error_of(&again).0 == error {
            lost.push(format!("{}: {step:?} leads to the same error\n{}", done.what, again.err));
        }
        if again.err.contains("unexpected argument") || again.err.contains("unrecognized subcommand") {
            lost.push(format!("{}: {step:?} is no argument\n{}", done.what, again.err));
        }
    }
    if let Some(hand) = case.hand {
        hand(f);
        let again = run(f, &case.args);
        if again.code != Some(0) && error_of(&again).0 == error {
            lost.push(format!("{}: still the same error\n{}", done.what, again.err));
        }
    }
}

fn follow_all(f: &Folder, cases: impl IntoIterator<Item = Case>) {
    let mut lost = Vec::new();
    cases.into_iter().for_each(|case| follow(f, &case, &mut lost));
    assert!(lost.is_empty(), "{}", lost.join("\n---\n"));
}

#[test]
fn hints_are_read_as_users_read_them() {
    let at = |hint: &str| {
        let case = case("train t").knows("data.records.label", "y").knows("--out", "x").knows("MODEL", "m");
        format!("{:?}", steps(hint, &case))
    };
    assert_eq!(at("name the field: data.records.label"), r#"[Add(["--set=data.records.label=y"])]"#);
    assert_eq!(at("a, or set data.scale to 0.2"), r#"[Add(["--set=data.scale=0.2"])]"#);
    assert_eq!(
        at("set compile.loss=mse, compile.metrics=[], and so on; data.records.inputs = [\"a\", \"b\"]"),
        r#"[Add(["--set=compile.loss=mse", "--set=compile.metrics=[]"]), Add(["--set=data.records.inputs=[\"a\", \"b\"]"])]"#
    );
    assert_eq!(
        at("`systole resume runs/a` goes on; --resume=never; --out names another"),
        r#"[Run(["resume", "runs/a"]), Add(["--resume=never"]), Add(["--out=x"])]"#
    );
    assert_eq!(at("to go on: train --from MODEL"), r#"[Run(["train", "--from", "m"])]"#);
    assert_eq!(at("did you mean `epochs`?"), r#"[Instead("epochs")]"#);
    assert_eq!(at("remove data.vocabulary: a reason"), r#"[Without(["data.vocabulary"])]"#);
    assert_eq!(at("remove --tta"), r#"[Without(["--tta"])]"#);
    assert_eq!(at("choose a batch_size of at least 1"), r#"[Value("1")]"#);
}

/// A table, as `t.csv`.
fn with_table(name: &str) -> Folder {
    let f = Folder::new(name);
    f.write("t.csv", table("a,b,label", 60, plain));
    f.write("u.csv", table("a,b,label", 40, plain));
    f
}

#[test]
fn hints_about_settings_lead_somewhere() {
    let f = with_table("hints-settings");
    let set = |setting: &str| tried("t.csv", &format!("'--set={setting}'"));
    let cases = [
        "fit.epoch=1",
        "fit.lr=0.1",
        "lr=0.1",
        "optimizer.type=lino",
        "compile.loss=mean_sqared_error",
        "compile.metrics=[\"acuracy\"]",
        "compile.precision=mixed_bf16",
        "strategy.type=data_paralel",
        "layers.0.type=Dens",
        "layers.2.unit=3",
        "layers.9.units=1",
        "fit.monitor=acuracy",
        "warmup_steps=3",
        "optimizer.learning_rate={ type = \"CosinDecay\" }",
        "data.dataset=record",
        "data.color_mode=grey",
        "fit.monitor=val_acc",
        "fit.monitor=val_los",
        "fit.epochs=0",
        "fit.batch_size=0",
        "data.background=2",
        "data.validation_split=5",
        "data.unreadable_quota=-1",
        "data.train_samples=0",
        "data.tta=0",
        "data.vocabulary=300",
        "data.records.compression=gz",
        "data.records.cycle_length=0",
        "optimizer.learning_rate=-1",
        "optimizer.learning_rate=nan",
        "optimizer.beta_1=-0.5",
        "callbacks=[{ type = \"EarlyStoping\" }]",
        "strategy.devices=0",
    ];
    follow_all(&f, cases.map(set));
    follow_all(
        &f,
        [
            set("device=cpu").knows("--device", "cpu"),
            set("threads=2").knows("--threads", "1"),
            set("output_dir=x").knows("--out", "other"),
            set("save_every=3").knows("--save-steps", "2").knows("--save-seconds", "1"),
            set("verbose=1"),
            set("data.validation_split=0").knows("data.records.test", "[\"u.csv\"]"),
            tried("t.csv", "--set epochs"),
            tried("t.csv", "--lr 0.1"),
            tried("t.csv", "--epoch 1"),
            tried("t.csv", "--optimizer sgd"),
            case("fit t.csv"),
            case("train t.cvs"),
            case("init my.toml").knows("PRESET", "table"),
            case("train --preset glyps"),
        ],
    );
    // What no argument does.
    let done = run(&f, &set("data.scale=255").args).fails("usage", &["1/255"]);
    assert!(error_of(&done).1.contains("1/255"), "{}", done.err);
}

#[test]
fn hints_about_tables_lead_somewhere() {
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
    follow_all(
        &f,
        [
            tried("odd.csv", "").knows("data.records.label", "outcome"),
            tried("odd.csv", "--set data.records.label=outcme").knows("data.records.label", "outcome"),
            tried("headless.csv", ""),
            // Names that the shell or TOML reads as something else: the hint quotes them.
            tried("spaced.csv", ""),
            tried("truth.csv", ""),
            tried("ragged.csv", ""),
            tried("text.csv", "--set compile.loss=mean_squared_error").knows("data.records.label", "b"),
            tried("gap.csv", "").knows("data.records.label", "a"),
            tried("many.csv", "--set 'data.records.inputs=[\"note\"]'")
                .knows("data.records.inputs", "[\"a\"]"),
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
            tried("alone.csv", "").hand(|f| drop(f.write("alone.csv", table("a,b,label", 60, plain)))),
        ],
    );
}

fn latin1() -> Vec<u8> {
    let text = table("a,b,label", 60, |i| format!("{i},{},n~{}", i % 7, i % 2));
    text.bytes().map(|b| if b == b'~' { 0xe9 } else { b }).collect()
}

#[test]
fn hints_about_models_and_runs_lead_somewhere() {
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
    f.write("kept.toml", "");
    let again = |more: &str| case(&format!("train t.csv --out=runs/a --epochs=1 --threads=1 {more}"));
    follow_all(
        &f,
        [
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
            case("predict two/one.safetensors other.csv").hand(|f| drop(f.write("other.csv", "a,b\n1,2\n"))),
            case("predict --model two/one.safetensors u.csv"),
            case("init table --out kept.toml").knows("--out", "fresh.toml"),
        ],
    );
}

/// Copies a Hugging Face folder from the fixtures.
fn folder(f: &Folder, from: &str, to: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights").join(from);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        f.write(&format!("{to}/{}", entry.file_name().to_string_lossy()), fs::read(entry.path()).unwrap());
    }
}

#[test]
fn hints_about_texts_and_imported_models_lead_somewhere() {
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
    f.write("loose/a.txt", "a bad cab. ".repeat(50));
    for (folder, file) in [("gpt", "g.safetensors"), ("bert", "b.safetensors"), ("encoder", "e.safetensors")]
    {
        run(&f, &words(&format!("import {folder} --out {file}"))).ok();
    }
    fs::remove_file(f.path("gpt/tokenizer.json")).unwrap();
    run(&f, &words("import gpt --out bare.safetensors")).ok();
    let from = |model: &str, more: &str| tried("my.txt", &format!("--from {model} {more}"));
    follow_all(
        &f,
        [
            from("g.safetensors", "--set=model.hidden_dim=64"),
            from("g.safetensors", "--set=data.sequence_length=64"),
            from("g.safetensors", "--set=data.tokenizer=bytes"),
            from("bare.safetensors", "").knows("data.tokenizer", "chars.json"),
            case("train --from g.safetensors --out=out").knows("DATA", "my.txt"),
            tried("texts.csv", "--from b.safetensors"),
            case("predict encoder --text bad").knows("DATA", "texts.csv").knows("MODEL", "encoder"),
            case("predict e.safetensors --text bad")
                .knows("DATA", "texts.csv")
                .knows("MODEL", "e.safetensors"),
            case("predict bert --text bad --tta=2"),
            tried("loose", ""),
            tried("texts.csv", "--set=data.records.label=labl").knows("data.records.label", "label"),
            tried("texts.csv", "--set=data.tokenizer=word --set=data.dataset=sentences"),
            tried("texts.csv", "--set=data.vocabulary=3"),
        ],
    );
}

#[test]
fn hints_about_albums_lead_somewhere() {
    let f = Folder::new("hints-albums");
    album(&f, "album", 6);
    let small = "--set=layers.0.filters=2 --set=layers.4.filters=2 --set=layers.8.filters=2";
    f.write("deeper/pets/cat/1.png", picture(20, 1, None));
    f.write("deeper/pets/dog/1.png", picture(90, 2, None));
    f.write("deeper/pets/dog/2.png", picture(90, 3, None));
    f.write("deeper/pets/cat/2.png", picture(20, 4, None));
    album(&f, "cut", 5);
    for i in 0..3 {
        f.write(&format!("cut/cat/{i}.png"), &picture(20, i, None)[..40]);
    }
    album(&f, "loose", 0);
    f.write("loose/1.png", picture(20, 1, None));
    let case = |target: &str| tried(target, small);
    follow_all(
        &f,
        [
            case("cut"),
            case("loose").hand(|f| album(f, "loose", 4)),
            tried("album", &format!("{small} --set=data.augment=[\"random_flp\"]")),
            tried("deeper", small).hand(|f| {
                fs::rename(f.path("deeper/pets/cat"), f.path("deeper/cat")).unwrap();
            }),
        ],
    );
}

/// Hints that ask for something outside of the program, which no test can follow: how each begins.
const OUTSIDE: [&str; 14] = [
    "download the JSON file again",
    "repair or remove the unreadable images",
    "replace the unreadable images of the class",
    "enter the label, remove the row",
    "create a folder for each class and move the images there",
    "add a folder with images of another class",
    "add texts of another class",
    "convert the images to JPEG or PNG",
    "check that the file was written completely",
    "write one object per line",
    "save it as UTF-8",
    "restore the file and start the same command again",
    "correct the cell, or train again with such rows",
    "remove the signs so that the labels become numbers",
];

#[test]
fn hints_outside_of_the_program_are_those_of_the_sources() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = Vec::new();
    for dir in [
        "crates/data/src",
        "crates/datasets/src",
        "crates/config/src",
        "crates/weights/src",
        "crates/cli/src",
    ] {
        sources(&root.join(dir), &mut files);
    }
    let all: Vec<String> = files.iter().flat_map(|(_, text)| literals(text)).collect();
    let gone: Vec<_> = OUTSIDE.iter().filter(|hint| !all.iter().any(|l| l.starts_with(**hint))).collect();
    assert!(gone.is_empty(), "no source has these hints any more: {gone:?}");
}

/// The text literals of a source file.
fn literals(text: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(['"', '\'', '/']) {
        let (mark, after) = (&rest[start..=start], &rest[start + 1..]);
        match mark {
            "/" if after.starts_with('/') => rest = after.split_once('\n').map_or("", |(_, r)| r),
            // A character, or a lifetime.
            "'" if after.starts_with(['"', '\\']) => rest = after.get(3..).unwrap_or_default(),
            "\"" => {
                let mut escaped = false;
                let end = after.char_indices().find(|(_, c)| {
                    let ends = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                });
                let Some((end, _)) = end else { break };
                all.push(after[..end].replace("\\\"", "\""));
                rest = &after[end + 1..];
            }
            _ => rest = after,
        }
    }
    all
}

/// Source files below a folder, without what tests say.
fn sources(dir: &Path, all: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, all),
            false if path.extension().is_some_and(|e| e == "rs") => {
                let text = fs::read_to_string(&path).unwrap();
                let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                all.push((path.display().to_string(), own.to_string()));
            }
            false => {}
        }
    }
}

/// All options of all commands, as their help lists them.
fn known_options(f: &Folder) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = BTreeSet::new();
    let help = |args: &[&str]| f.run(&[args, &["--help"]].concat()).ok().out;
    // Commands are listed with two spaces in front, below a heading.
    let subcommands = |text: &str| -> Vec<String> {
        let listed = text.split("Options:\n").next().unwrap_or_default();
        let lines =
            listed.lines().filter(|l| l.starts_with("  ") && !l.starts_with("   ") && !l.contains('<'));
        let names = lines.filter_map(|l| l.split_whitespace().next());
        names.filter(|n| *n != "help" && n.starts_with(char::is_lowercase)).map(String::from).collect()
    };
    let mut read = |text: &str| {
        let long = text.split([' ', '\n', ',', '[']).filter(|w| w.starts_with("--"));
        all.extend(long.map(|w| w.split('=').next().unwrap_or(w).trim_end_matches(['.', '>']).to_string()));
    };
    let root = help(&[]);
    for command in subcommands(&root) {
        let text = help(&[&command]);
        read(&text);
        subcommands(&text).iter().for_each(|sub| read(&help(&[&command, sub])));
    }
    all
}

#[test]
fn what_messages_name_exists() {
    let f = with_table("hints-names");
    let options = known_options(&f);
    // Of other programs that messages name, and parts of the program's own children.
    let others = [
        "--features",
        "--release",
        "--profile",
        "--here",
        "--no-deps",
        "--quiet",
        "--dest",
        "--only-binary",
        "--working-dir",
        "--retry",
        "--cacert",
        "--version",
        "--logdir",
    ];
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = Vec::new();
    for dir in ["src", "crates/data/src", "crates/datasets/src", "crates/devices/src", "crates/nn/src"] {
        sources(&root.join(dir), &mut files);
    }
    let (mut lost, mut keys) = (Vec::new(), BTreeSet::new());
    for (path, text) in &files {
        for literal in literals(text).iter().filter(|l| l.contains(' ') && !l.contains("var(--")) {
            for word in
                literal.split([' ', '\n', '`', ',', ';', '(', ')', '=']).filter(|w| w.starts_with("--"))
            {
                let name = word.trim_end_matches(['.', ':', '?', '…', '\\', 'n']);
                let full = word.trim_end_matches(['.', ':', '?', '…', '\\']);
                let is_there = |n: &str| options.contains(n) || others.contains(&n);
                if name.len() > 3
                    && !is_there(name)
                    && !is_there(full)
                    && !name.contains('{')
                    && !name.starts_with("--disable")
                {
                    lost.push(format!("{path}: {word}"));
                }
            }
            let mut at = 0;
            while let Some((start, end)) = key_in(literal, at) {
                at = end;
                keys.insert((literal[start..end].to_string(), path.clone()));
            }
        }
    }
    assert!(lost.is_empty(), "no command has these options:\n{}", lost.join("\n"));
    for (key, path) in &keys {
        // The text `?` fits no key: the key itself must not be what is refused.
        let of_sgd = "--set=optimizer.type=sgd";
        let done = run(&f, &words(&format!("train t.csv --print-config {of_sgd} --set={key}=?")));
        for part in ["unknown key", "has no argument"] {
            assert!(!done.err.contains(part), "{path} names `{key}`:\n{}", done.err);
        }
    }
    assert!(keys.len() > 20, "{keys:?}");
}
