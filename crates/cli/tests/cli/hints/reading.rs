//! Reads the hint of an error as a user does, and changes the command line accordingly.

use super::{Case, case};

/// Tables of the configuration, with which keys begin.
const ROOTS: [&str; 15] = [
    "data",
    "fit",
    "compile",
    "optimizer",
    "strategy",
    "model",
    "layers",
    "sweep",
    "biggan",
    "lora",
    "fine_tune",
    "pruning",
    "quantize",
    "lr_find",
    "callbacks",
];
/// Commands that a hint may name.
const COMMANDS: [&str; 14] = [
    "train", "resume", "init", "evaluate", "predict", "data", "summary", "show", "bench", "run", "export",
    "import", "quantize", "generate",
];

/// A line as a shell splits it; quotes may begin within a word.
pub(super) fn words(line: &str) -> Vec<String> {
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
pub(super) enum Step {
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
pub(super) fn steps(hint: &str, case: &Case) -> Vec<Step> {
    let mut all = Vec::new();
    for clause in clauses(hint) {
        if let Some(meant) = clause.split("did you mean `").nth(1).and_then(|rest| rest.split('`').next()) {
            all.push(Step::Instead(meant.into()));
        } else if let Some(written) = ["write `", "use `"].iter().find_map(|start| clause.strip_prefix(start))
        {
            all.push(Step::Instead(written.split('`').next().unwrap_or(written).into()));
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
    let sections = rest.split([' ', ',', ':']).filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    names.extend(sections.map(|section| section.trim_matches(['[', ']']).to_string()));
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

/// `: systole train --from MODEL`, or a command in backticks.
fn command_in(clause: &str, case: &Case) -> Option<Vec<String>> {
    let quoted = clause.split("`systole ").nth(1).and_then(|rest| rest.split('`').next());
    let behind = clause.split(": ").skip(1).filter_map(|rest| rest.strip_prefix("systole "));
    let mut behind = behind;
    let behind = behind.find(|rest| COMMANDS.iter().any(|c| is_command(rest, c)));
    // The shell's own `export`.
    let behind = behind.filter(|rest| !rest.contains("=$("));
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
pub(super) fn key_in(text: &str, from: usize) -> Option<(usize, usize)> {
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
pub(super) fn followed(step: &Step, args: &[String], error: &str) -> Option<Vec<String>> {
    let mut args = args.to_vec();
    match step {
        Step::Run(command) => return Some(command.clone()),
        Step::Value(value) => {
            let set = args.iter_mut().rev().find(|a| a.starts_with("--set="))?;
            let key = set.rsplit_once('=').map_or("", |(key, _)| key).to_string();
            *set = format!("{key}={value}");
        }
        Step::Without(names) => {
            let is_named = |arg: &String| {
                names.iter().any(|n| {
                    arg.starts_with(n)
                        || ["=", "."].iter().any(|end| arg.starts_with(&format!("--set={n}{end}")))
                })
            };
            args.retain(|arg| !is_named(arg));
        }
        Step::Instead(meant) => {
            let (at, wrong) = culprit(error, &args)?;
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
            for new in more {
                // An option is given once.
                let name = new.split('=').next().unwrap_or_default();
                match args
                    .iter()
                    .position(|a| name != "--set" && (a == name || a.starts_with(&format!("{name}="))))
                {
                    Some(at) if new.contains('=') => {
                        if args[at] == name && args.get(at + 1).is_some_and(|a| !a.starts_with('-')) {
                            args.remove(at + 1);
                        }
                        args[at] = new.clone();
                    }
                    Some(_) => {}
                    None => args.push(new.clone()),
                }
            }
        }
    }
    Some(args)
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
    assert_eq!(at("to go on: systole train --from MODEL"), r#"[Run(["train", "--from", "m"])]"#);
    assert_eq!(at("did you mean `epochs`?"), r#"[Instead("epochs")]"#);
    assert_eq!(at("remove data.vocabulary: a reason"), r#"[Without(["data.vocabulary"])]"#);
    assert_eq!(at("remove --tta"), r#"[Without(["--tta"])]"#);
    assert_eq!(at("choose a batch_size of at least 1"), r#"[Value("1")]"#);
}
