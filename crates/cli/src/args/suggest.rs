//! Suggests corrections for unknown commands and options: names that other programs use first, then similar spellings.
//!
//! Only names that `--help` lists are suggested.

use crate::render::screen::quoted;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::error::Error as _;
use systole_config::home_of;
use systole_nn::did_you_mean::{similar, synonym};

/// Commands and options with the names that other programs use for them, in addition to the synonyms of keys and
/// layers.
const SYNONYMS: [(&str, &str); 41] = [
    ("launch", "torchrun mpirun mpiexec srun spawn"),
    ("train", "fit learn start"),
    ("lr-find", "lrfinder learningratefinder findlr tune"),
    ("check", "diff compare"),
    ("shrink", "reduce minimize minimise bisect"),
    ("translate", "convert serialize"),
    ("run", "exec execute interpret"),
    ("resume", "continue restart restore"),
    ("evaluate", "eval test validate val score measure"),
    ("predict", "infer inference classify label recognise recognize generate"),
    ("bench", "benchmark perf speed time"),
    ("summary", "info describe model"),
    ("init", "new create config configure template preset presets"),
    ("device", "gpu accelerator backend cuda tpu usecuda"),
    ("devices", "gpu gpus tpu tpus hardware"),
    ("doctor", "diagnose"),
    ("setup", "install plugin download"),
    ("selftest", "verify test"),
    ("plan", "estimate cost price"),
    ("compile", "export aot build"),
    ("show", "print dump graph hlo stablehlo ir"),
    ("knobs", "env environment variables settings"),
    ("data", "dataset datasets dataloader"),
    ("inspect", "info describe show head peek"),
    ("stats", "statistics summary count"),
    ("convert", "export pack shard"),
    ("threads", "workers numworkers jobs cores cpus nproc numthreads"),
    ("devices", "gpus ngpus numgpus numdevices nprocpernode worldsize numprocesses"),
    ("out", "output outputdir outdir savedir logdir save saveto checkpointdir defaultrootdir"),
    ("from", "checkpoint ckpt ckptpath pretrained weights resumefrom initfrom load loadfrom"),
    ("data-dir", "data datapath dataroot datafolder dir"),
    ("targets", "target slice chips device gpu tpu"),
    ("verbose", "debug loglevel"),
    ("quiet", "silent noprogress noprogressbar"),
    ("save-steps", "saveevery savefreq checkpointevery saveinterval"),
    ("memory-limit", "memory maxmemory ram rambudget"),
    ("trace", "timeline profiler"),
    ("top", "topk k"),
    ("limit", "n num max maxsamples first"),
    ("seconds", "time duration"),
    ("set", "override param"),
];

/// Positional arguments, and option names that users try for them.
const WITHOUT_OPTION: [(&str, &str); 6] = [
    ("target", "preset config cfg recipe dataset data folder model file path input arch network net name"),
    ("model", "model modelfile checkpoint ckpt weights path load"),
    ("files", "input inputs image images picture pictures file data path img"),
    ("folder", "out run rundir folder path dir"),
    ("preset", "preset model config name dataset"),
    ("workloads", "workload model name preset config"),
];

/// Adds a suggestion to a command-line error.
pub(crate) fn with_suggestion(mut error: Error, mut root: Command, args: &[String]) -> Error {
    let about = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::ValueValidation => return in_words(error, &root),
        ErrorKind::ArgumentConflict => return given_twice(error),
        _ => return error,
    };
    let Some(ContextValue::String(typed)) = error.get(about).cloned() else { return error };
    root.build();
    let mut command = command_of(&root, args, &typed);
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => Some(for_command(&typed, &command)),
        _ => for_value(&typed, &command, args).or_else(|| for_option(&typed, &command, args)),
    };
    // clap suggests by spelling alone, includes hidden commands, and prints its guess in the usage.
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::Suggested] {
        error.remove(kind);
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Converts a usage error: its message, and clap's tip as the hint.
pub(crate) fn usage_error(error: &Error) -> systole_ir::Error {
    let text = error.render().to_string();
    // The message ends at the first empty line; missing arguments are listed below its first line.
    let message: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let message = message.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let e = systole_ir::Error::new(systole_ir::ErrorKind::Config, message);
    let tip = text.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
    e.hint_command(tip.unwrap_or("see the options: add --help"))
}

/// Rewrites an error about a number without Rust terms.
fn in_words(error: Error, root: &Command) -> Error {
    let told = error.source().map(ToString::to_string).unwrap_or_default();
    let shown = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let Some(wanted) = wanted(&told) else { return error };
    let (value, option) = (shown(ContextKind::InvalidValue), shown(ContextKind::InvalidArg));
    let text =
        format!("invalid value '{value}' for '{option}': {wanted}\n\nFor more information, try '--help'.\n");
    Error::raw(ErrorKind::ValueValidation, text).with_cmd(root)
}

/// Returns the allowed values, from clap's message about an invalid number.
fn wanted(told: &str) -> Option<String> {
    if let Some((_, range)) = told.split_once(" is not in ") {
        let (from, to) = range.split_once("..")?;
        let most = to.strip_prefix('=').unwrap_or(to);
        return Some(match most.len() {
            0 | 19.. => format!("expected an integer of at least {from}"),
            _ => format!("expected an integer from {from} to {most}"),
        });
    }
    let of_digits = ["invalid digit found", "number too large", "number too small", "cannot parse integer"];
    of_digits.iter().any(|start| told.starts_with(start)).then(|| "expected an integer, such as 10".into())
}

/// Adds a hint to the error for an option that was given twice.
fn given_twice(mut error: Error) -> Error {
    let twice = match (error.get(ContextKind::InvalidArg), error.get(ContextKind::PriorArg)) {
        (Some(ContextValue::String(option)), Some(ContextValue::String(other))) if option == other => {
            option.split([' ', '=']).next().unwrap_or_default().to_string()
        }
        _ => return error,
    };
    let tip = format!("pass {twice} only once");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Returns the subcommand that rejected `typed`.
fn command_of(root: &Command, args: &[String], typed: &str) -> Command {
    let mut command = root;
    for arg in args.iter().skip(1).take_while(|a| *a != typed) {
        command = command.find_subcommand(arg).unwrap_or(command);
    }
    command.clone()
}

fn for_command(typed: &str, command: &Command) -> String {
    let visible = command.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name);
    let visible: Vec<&str> = visible.collect();
    match meant(typed, &visible) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("available commands: {}", visible.join(", ")),
    }
}

/// Returns a hint for `--option value` if the option's value must follow `=`.
fn for_value(typed: &str, command: &Command, args: &[String]) -> Option<String> {
    let at = args.iter().position(|arg| arg == typed)?;
    let option = args.get(at.checked_sub(1)?)?;
    let known = command
        .get_arguments()
        .find(|a| Some(option.as_str()) == a.get_long().map(|l| format!("--{l}")).as_deref())?;
    known.is_require_equals_set().then(|| format!("write {option}={typed}"))
}

fn for_option(typed: &str, command: &Command, args: &[String]) -> Option<String> {
    let name = typed.strip_prefix("--")?;
    let value = value_of(typed, args);
    if let Some(argument) = command.get_positionals().find(|a| is_without_option(name, a)) {
        let names = argument.get_value_names().into_iter().flatten();
        let names: Vec<&str> = names.map(|name| name.as_str()).collect();
        let shown = value.map_or_else(|| names.join(" "), quoted);
        return Some(format!("pass it without an option: systole {} {shown}", command.get_name()));
    }
    let visible = command.get_arguments().filter(|a| !a.is_hide_set()).filter_map(Arg::get_long);
    let visible: Vec<&str> = visible.collect();
    let other = known_as(name, &visible).or_else(|| synonym(name, &visible));
    let key = home_of(name).filter(|_| visible.contains(&"set")).map(|key| match key.as_str() {
        "optimizer" => "optimizer.type".into(),
        _ => key,
    });
    match (other, key, similar(name, &visible)) {
        (Some(option), ..) | (None, None, Some(option)) => Some(format!("did you mean `--{option}`?")),
        (_, Some(key), _) if key.contains('.') => {
            Some(format!("set any TOML key with: --set {key}={}", value.unwrap_or("VALUE")))
        }
        _ => None,
    }
}

/// Returns the candidate that `typed` means: a synonym, otherwise the most similar spelling.
fn meant<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let found = known_as(typed, candidates).or_else(|| synonym(typed, candidates));
    found.or_else(|| similar(typed, candidates))
}

/// Returns the candidate that other programs call `typed`.
fn known_as<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let mut rows = SYNONYMS.iter().filter(|(_, others)| is_one_of(typed, others));
    rows.find_map(|(name, _)| candidates.iter().copied().find(|c| c == name))
}

fn is_one_of(typed: &str, others: &str) -> bool {
    let typed = typed.replace(['-', '_'], "").to_lowercase();
    others.split(' ').any(|other| other == typed)
}

/// Whether users try an option of this name for the positional argument.
fn is_without_option(name: &str, argument: &Arg) -> bool {
    WITHOUT_OPTION.iter().any(|(id, others)| argument.get_id().as_str() == *id && is_one_of(name, others))
}

/// Returns the value given to the option.
fn value_of<'a>(option: &str, args: &'a [String]) -> Option<&'a str> {
    let joined = args.iter().find_map(|a| a.strip_prefix(option)?.strip_prefix('='));
    let next = || args.iter().skip_while(|a| *a != option).nth(1);
    joined.or_else(|| next().map(String::as_str)).filter(|v| !v.is_empty() && !v.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::{CommandFactory, Parser};

    /// Returns the error message for these arguments.
    fn told(line: &str) -> String {
        let args: Vec<String> = ["systole"].into_iter().chain(line.split(' ')).map(String::from).collect();
        let error = Cli::try_parse_from(&args).err().expect("the arguments are wrong");
        with_suggestion(error, Cli::command(), &args).to_string()
    }

    #[test]
    fn what_other_programs_say_comes_before_what_looks_alike() {
        let cases = [
            ("fit", "`train`"),
            ("trian", "`train`"),
            ("eval", "`evaluate`"),
            ("test", "`evaluate`"),
            ("benchmark", "`bench`"),
            ("continue", "`resume`"),
            ("data info x.csv", "`inspect`"),
            ("frobnicate", "available commands: train, resume"),
            ("torchrun", "`launch`"),
            ("train small.toml --fast-dev-run 3", "write --fast-dev-run=3"),
            ("compile-her", "`compile`"),
            ("train --preset glyphs", "pass it without an option: systole train glyphs"),
            ("train --config=run.toml", "pass it without an option: systole train run.toml"),
            ("train --epoch 3", "`--epochs`"),
            ("train --lr 0.1", "`--learning-rate`"),
            ("train --bs 8", "`--batch-size`"),
            ("train --amp", "`--precision`"),
            ("train --output runs/a", "`--out`"),
            ("train --ckpt a.safetensors", "`--from`"),
            ("train --gpus 2", "`--devices`"),
            ("train --num-workers 2", "`--threads`"),
            ("train --optimizer lion", "--set optimizer.type=lion"),
            ("train --momentum 0.9", "--set optimizer.momentum=0.9"),
            ("train --loss=mse", "--set compile.loss=mse"),
            ("predict --model m.safetensors", "pass it without an option: systole predict m.safetensors"),
            ("evaluate m.safetensors --data photos", "`--data-dir`"),
        ];
        for (line, part) in cases {
            let text = told(line);
            assert!(text.contains(part), "{line}: {text}");
            assert!(!text.contains("as a value") && !text.contains("in-this-process"), "{line}: {text}");
        }
        assert!(!told("train --preset glyphs").contains("--resume"));
    }

    #[test]
    fn numbers_and_repeated_options_are_told_in_words() {
        for (line, part) in [
            ("train --epochs 0", "expected an integer of at least 1"),
            ("train --batch-size 1e3", "expected an integer, such as 10"),
            ("train --threads=5000", "expected an integer from 0 to 1024"),
            ("train --seed=-1", "expected an integer, such as 10"),
            ("train --epochs 1 --epochs 2", "pass --epochs only once"),
        ] {
            let text = told(line);
            let option = line.split([' ', '=']).nth(1).unwrap();
            assert!(text.contains(part) && text.contains(option), "{line}: {text}");
            assert!(!text.contains("184467") && !text.contains("digit"), "{line}: {text}");
        }
    }

    #[test]
    fn only_what_is_there_is_suggested() {
        let mut root = Cli::command();
        root.build();
        let all: Vec<&Command> =
            root.get_subcommands().flat_map(|c| [c].into_iter().chain(c.get_subcommands())).collect();
        for (name, _) in SYNONYMS {
            let known = all
                .iter()
                .any(|c| c.get_name() == name || c.get_arguments().any(|a| a.get_long() == Some(name)));
            assert!(known, "{name}");
        }
        for (id, _) in WITHOUT_OPTION {
            assert!(all.iter().any(|c| c.get_positionals().any(|a| a.get_id().as_str() == id)), "{id}");
        }
    }
}
