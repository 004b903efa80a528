//! Tests the hints of error messages by following them. For many wrong command lines, files and settings, the tests
//! read the text after `try: ` (settings, keys, options, commands, "did you mean") and apply it. That must succeed
//! or lead to an error not seen on the way. Every hint of the sources that names a command or a setting is reached by
//! a case, or listed in [`LEFT`] with a reason. Every option, key and command named in a message must exist.

mod cloud;
mod commands;
mod configuration;
mod images;
mod imports;
mod launches;
mod left;
mod models;
mod operators;
mod quantization;
mod reading;
mod sections;
mod sweeps;
mod tables;
mod texts;

use crate::program::hint_sites::{self, HintKind};
use crate::program::made::{plain, table};
use crate::program::{Done, Folder, literals};
use reading::{Step, followed, key_in, steps, words};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// What the user does by hand in the folder.
type UserAction = Box<dyn Fn(&Folder)>;

/// A wrong command line, and what its user knows and does.
struct Case {
    args: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
    /// The value that the user gives a key, an option or a placeholder in capitals.
    knows: Vec<(&'static str, &'static str)>,
    /// Command lines that the user types after reading the hint, which must contain their new words.
    typed: Vec<String>,
    /// Words of typed lines that are the user's, not the hint's.
    own: Vec<String>,
    /// Environment variables that the user sets after reading the hint, which must contain their names.
    sets: Vec<(&'static str, &'static str)>,
    /// What the user does where the hint asks for something that no argument does.
    hand: Option<UserAction>,
    /// Whether the hint is about a file, so that its keys and values are not arguments.
    is_about_file: bool,
}

impl Case {
    fn knows(mut self, name: &'static str, value: &'static str) -> Case {
        self.knows.push((name, value));
        self
    }

    fn env(mut self, name: &'static str, value: &'static str) -> Case {
        self.env.push((name, value));
        self
    }

    fn typed(mut self, line: &str) -> Case {
        self.typed.push(line.into());
        self
    }

    fn own(mut self, word: &str) -> Case {
        self.own.push(word.into());
        self
    }

    fn sets(mut self, name: &'static str, value: &'static str) -> Case {
        self.sets.push((name, value));
        self
    }

    fn hand(mut self, hand: impl Fn(&Folder) + 'static) -> Case {
        self.hand = Some(Box::new(hand));
        self
    }

    /// The user writes a file again, which the hint is about.
    fn mend(mut self, file: &'static str, content: impl AsRef<[u8]> + 'static) -> Case {
        self.is_about_file = true;
        self.hand(move |f| drop(f.write(file, &content)))
    }

    fn known(&self, name: &str) -> Option<&'static str> {
        self.knows.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }
}

fn case(line: &str) -> Case {
    Case {
        args: words(line),
        env: Vec::new(),
        knows: Vec::new(),
        typed: Vec::new(),
        own: Vec::new(),
        sets: Vec::new(),
        hand: None,
        is_about_file: false,
    }
}

/// A wrong line and the one after following the hint, in which the words between back-ticks are the user's.
fn row(wrong: &str, right: &str) -> Case {
    let own = right.split('`').skip(1).step_by(2);
    own.fold(case(wrong).typed(&right.replace('`', "")), |case, word| case.own(word))
}

/// A line with `@` for the folder of fixtures.
fn with_fixtures(line: &str) -> String {
    line.replace('@', concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/"))
}

/// `train TARGET` that takes no time, with more arguments.
fn tried(target: &str, more: &str) -> Case {
    case(&format!("train {target} --out=out --epochs=1 --steps-per-epoch=1 --threads=1 --quiet {more}"))
}

/// What went wrong and where, what to try, and the source line of the hint.
struct Failure {
    error: String,
    hint: String,
    source: Option<(String, usize)>,
}

impl Failure {
    fn of(done: &Done) -> Failure {
        // The program can report warnings before the error.
        let text =
            done.err.split("error[").nth(1).and_then(|e| e.split_once("]: ")).map_or("", |(_, text)| text);
        let is_hint = |line: &&str| ["try: ", "tip: "].iter().any(|t| line.trim_start().starts_with(t));
        let hint = text.lines().find(is_hint).map(|l| l.trim_start()[5..].to_string()).unwrap_or_default();
        let place = text.lines().find_map(|line| line.strip_prefix("  source: ")?.rsplit_once(':'));
        let source = place.and_then(|(file, line)| Some((file.to_string(), line.parse().ok()?)));
        let is_why = |l: &&str| ["why: ", "source: "].iter().any(|part| l.trim_start().starts_with(part));
        let what: Vec<&str> = text.lines().take_while(|l| !is_hint(l)).filter(|l| !is_why(l)).collect();
        Failure { error: what.join("\n"), hint, source }
    }
}

fn run(f: &Folder, args: &[String]) -> Done {
    run_with(f, args, &[])
}

fn run_with(f: &Folder, args: &[String], env: &[(&str, &str)]) -> Done {
    let _ = fs::remove_dir_all(f.path("out"));
    f.files("")
        .iter()
        .filter(|name| name.starts_with("x."))
        .for_each(|name| fs::remove_file(f.path(name)).unwrap());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = f.command(&args);
    // Without plugins of this machine.
    command.env("SYSTOLE_LOG", "1").env("SYSTOLE_PYTHON", "no-python").envs(env.iter().copied());
    Done::of(command.output().unwrap(), &args)
}

/// What following hints found.
#[derive(Default)]
struct Outcome {
    /// Hints that lead nowhere.
    lost: Vec<String>,
    /// Source lines of the hints that were followed.
    reached: BTreeSet<(String, usize)>,
}

impl Outcome {
    /// Follows the hint of the case's error, and those of the errors to which it leads.
    fn follow(&mut self, f: &Folder, case: &Case) {
        let done = run_with(f, &case.args, &case.env);
        if done.code == Some(0) {
            return self.lost.push(format!("{}: succeeds", done.what));
        }
        let failure = Failure::of(&done);
        let steps = match case.typed.as_slice() {
            [] if case.is_about_file => Vec::new(),
            [] => steps(&failure.hint, case),
            lines => lines.iter().map(|line| Step::Run(words(line))).collect(),
        };
        if steps.is_empty() && case.hand.is_none() && case.sets.is_empty() {
            return self.lost.push(format!("{}: nothing to follow\n{}", done.what, done.err));
        }
        self.reached.extend(failure.source.clone());
        let unnamed = case.typed.iter().flat_map(|line| unnamed(line, case, &failure.hint));
        let unset = case.sets.iter().map(|(name, _)| name.to_string());
        let unset = unset.filter(|name| !failure.hint.contains(name.as_str()));
        let unnamed: Vec<String> = unnamed.chain(unset).collect();
        if !unnamed.is_empty() {
            self.lost.push(format!("{}: the hint does not contain {unnamed:?}\n{}", done.what, done.err));
        }
        for step in &steps {
            self.take(f, case, step, (&case.args, &failure), &mut vec![failure.error.clone()]);
        }
        if let Some(hand) = &case.hand {
            hand(f);
        }
        if case.hand.is_some() || !case.sets.is_empty() {
            let again = run_with(f, &case.args, &[&case.env[..], &case.sets].concat());
            if again.code != Some(0) && Failure::of(&again).error == failure.error {
                self.lost.push(format!("{}: still the same error\n{}", done.what, again.err));
            }
        }
    }

    /// Takes one step of a hint; follows the first step of the next error's hint, and so on.
    fn take(
        &mut self,
        f: &Folder,
        case: &Case,
        step: &Step,
        (args, failure): (&[String], &Failure),
        seen: &mut Vec<String>,
    ) {
        let Some(args) = followed(step, args, &failure.error) else {
            if seen.len() > 1 || case.hand.is_some() {
                return;
            }
            let what = args.join(" ");
            return self.lost.push(format!("{what}: {step:?} replaces nothing\n{}", failure.error));
        };
        let again = run_with(f, &args, &case.env);
        if again.code == Some(0) {
            return;
        }
        let next = Failure::of(&again);
        if seen.contains(&next.error) {
            self.lost.push(format!(
                "{}: {step:?} leads back to an error\n{}",
                case.args.join(" "),
                again.err
            ));
            return;
        }
        if seen.len() == 1 && again.err.contains("unexpected argument")
            || again.err.contains("unrecognized subcommand")
        {
            self.lost.push(format!("{}: {step:?} is no argument\n{}", case.args.join(" "), again.err));
        }
        seen.push(next.error.clone());
        let further = if seen.len() < 4 { steps(&next.hint, case) } else { Vec::new() };
        if let Some(step) = further.first() {
            self.reached.extend(next.source.clone());
            self.take(f, case, step, (&args, &next), seen);
        }
    }
}

/// The words of a typed line that are neither in the wrong line, nor in the hint, nor the user's.
fn unnamed(line: &str, case: &Case, hint: &str) -> Vec<String> {
    let pieces = |word: &str| -> Vec<String> {
        let setting = word.strip_prefix("--set=").unwrap_or(word);
        let has_key =
            word.starts_with("--") || setting.split('=').next().is_some_and(|key| key.contains('.'));
        setting.splitn(if has_key { 2 } else { 1 }, '=').map(String::from).collect()
    };
    let there: BTreeSet<String> = case.args.iter().flat_map(|word| pieces(word)).collect();
    let typed = words(line);
    let all = typed.iter().flat_map(|word| pieces(word)).filter(|piece| *piece != "--set");
    let is_own = |piece: &String| {
        there.contains(piece)
            || case.own.contains(piece)
            || case.knows.iter().any(|(_, value)| value == piece)
    };
    // A key of the hint may lack its table: `epochs` for fit.epochs.
    let is_named = |piece: &String| {
        hint.contains(piece.as_str()) || piece.rsplit('.').next().is_some_and(|key| hint.contains(key))
    };
    all.filter(|piece| !is_own(piece) && !is_named(piece)).collect()
}

/// Cases that share a folder.
struct Group {
    make: fn() -> (Folder, Vec<Case>),
    outcome: OnceLock<Outcome>,
}

impl Group {
    const fn new(make: fn() -> (Folder, Vec<Case>)) -> Group {
        Group { make, outcome: OnceLock::new() }
    }

    /// Follows the hints of all cases once, whichever test asks first.
    fn outcome(&self) -> &Outcome {
        self.outcome.get_or_init(|| {
            let (f, cases) = (self.make)();
            let mut outcome = Outcome::default();
            cases.iter().for_each(|case| outcome.follow(&f, case));
            outcome
        })
    }

    fn check(&self) {
        let lost = &self.outcome().lost;
        assert!(lost.is_empty(), "{} of the hints:\n{}", lost.len(), lost.join("\n---\n"));
    }
}

/// A folder with a table, `t.csv`, and more rows of it, `u.csv`.
fn with_table(name: &str) -> Folder {
    let f = Folder::new(name);
    f.write("t.csv", table("a,b,label", 60, plain));
    f.write("u.csv", table("a,b,label", 40, plain));
    f
}

/// Declares each group with its test.
macro_rules! groups {
    ($($name:ident $test:ident: $make:path;)+) => {
        $(static $name: Group = Group::new($make);

        #[test]
        fn $test() {
            $name.check();
        })+

        static GROUPS: &[&Group] = &[$(&$name),+];
    };
}

groups! {
    SETTINGS hints_about_settings_lead_somewhere: configuration::settings;
    OPTIONS hints_about_options_lead_somewhere: configuration::options;
    SECTIONS hints_about_sections_lead_somewhere: sections::cases;
    BIGGAN hints_about_biggan_lead_somewhere: sections::biggan;
    TABLES hints_about_tables_lead_somewhere: tables::cases;
    MODELS hints_about_models_and_runs_lead_somewhere: models::cases;
    TEXTS hints_about_texts_and_imported_models_lead_somewhere: texts::cases;
    IMAGES hints_about_images_lead_somewhere: images::cases;
    SWEEPS hints_about_sweeps_lead_somewhere: sweeps::cases;
    IMPORTS hints_about_imports_lead_somewhere: imports::cases;
    OPERATORS hints_about_onnx_and_tflite_files_lead_somewhere: operators::cases;
    QUANTIZATION hints_about_quantization_lead_somewhere: quantization::cases;
    COMMANDS hints_of_commands_lead_somewhere: commands::cases;
    CLOUD hints_of_cloud_lead_somewhere: cloud::cases;
    LAUNCHES hints_of_launch_lead_somewhere: launches::cases;
}

/// Hints that name a command or a setting and that no case reaches yet. May only shrink.
#[test]
fn every_hint_that_names_a_command_or_a_setting_is_followed() {
    let reached: BTreeSet<_> = GROUPS.iter().flat_map(|group| group.outcome().reached.clone()).collect();
    let sites = hint_sites::all();
    let unknown = reached.iter().filter(|(file, line)| {
        hint_sites::in_scope(file) && !sites.iter().any(|s| s.file == *file && s.line == *line)
    });
    let unknown: Vec<_> = unknown.collect();
    assert!(unknown.is_empty(), "the scan of the sources lacks {unknown:?}");
    let open = sites.iter().filter(|s| s.kind != HintKind::Action);
    let open: Vec<_> = open.filter(|s| !reached.contains(&(s.file.clone(), s.line))).collect();
    let is_listed = |site: &hint_sites::HintSite, row: &(&str, &str, &str)| {
        site.file == row.0 && site.text.starts_with(row.1)
    };
    let lacking: Vec<String> = open
        .iter()
        .filter(|site| !left::LEFT.iter().any(|row| is_listed(site, row)))
        .map(|site| format!("{}:{}: {}", site.file, site.line, site.text))
        .collect();
    let stale: Vec<_> =
        left::LEFT.iter().filter(|row| !open.iter().any(|site| is_listed(site, row))).collect();
    assert!(lacking.is_empty(), "{} hints are not followed:\n{}", lacking.len(), lacking.join("\n"));
    assert!(open.len() <= left::MOST, "{} hints are not followed, {} are listed", open.len(), left::MOST);
    assert!(stale.is_empty(), "these are followed, or gone; remove their rows: {stale:#?}");
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
