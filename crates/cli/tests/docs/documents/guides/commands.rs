//! Generates the tables of the command-line guide: every command and option, from the definitions behind `--help`.

use super::source::Source;
use super::table::{code, table};
use crate::program::exit_code;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

#[test]
fn the_command_line_guide_lists_every_command_and_option() {
    let mut program = systole_cli::command();
    program.build();
    let overview = visible(&program)
        .flat_map(|c| {
            let own = is_one(c).then(|| (c.get_name().to_string(), c));
            own.into_iter().chain(visible(c).map(|s| (format!("{} {}", c.get_name(), s.get_name()), s)))
        })
        .map(|(name, c)| [format!("[`{name}`](#systole-{})", name.replace(' ', "-")), about(c)]);
    let mut each = String::new();
    visible(&program).for_each(|command| describe(command, "systole", &mut each));
    let shared = program.get_arguments().filter(|a| a.is_global_set());
    let parts = [
        ("errors", table(["kind", "exit code", "meaning"], error_kinds())),
        ("commands", table(["command", "what it does"], overview)),
        ("shared", options(shared)),
        ("each", each),
        ("variables", variables()),
    ];
    super::same_parts("command-line", &parts);
}

/// Kinds of errors as `error[KIND]` and `--json` show them: `usage`, and the variants of `ErrorKind`.
fn error_kinds() -> Vec<[String; 3]> {
    let kinds = Source::read("crates/base/src/error.rs").items(&["pub enum ErrorKind"]);
    assert!(kinds.len() > 5, "the variants of ErrorKind were not found");
    let usage = ("usage".into(), "Invalid argument, option or setting on the command line.".into());
    let all = [usage].into_iter().chain(kinds.into_iter().map(|kind| (kind.name.to_lowercase(), kind.doc)));
    all.map(|(kind, doc)| [code(&kind), exit_code(&kind).to_string(), escaped(&doc)]).collect()
}

/// The commands that help shows, without help itself.
fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

/// Whether it does something without another command behind it.
fn is_one(command: &Command) -> bool {
    visible(command).next().is_none() || !command.is_subcommand_required_set()
}

fn about(command: &Command) -> String {
    let about = command.get_about().unwrap_or_else(|| panic!("{} has no description", command.get_name()));
    escaped(&about.to_string())
}

/// A command's section, or those of its commands.
fn describe(command: &Command, above: &str, out: &mut String) {
    let name = format!("{above} {}", command.get_name());
    if is_one(command) {
        describe_alone(command, &name, out);
    }
    visible(command).for_each(|c| describe(c, &name, out));
}

fn describe_alone(command: &Command, name: &str, out: &mut String) {
    write!(out, "### {name}\n\n{}.\n\n", about(command)).expect("text");
    let usage = command.clone().bin_name(name.to_string()).render_usage().to_string();
    write!(out, "```text\n{}\n```\n\n", usage.trim_start_matches("Usage: ")).expect("text");
    let own = || command.get_arguments().filter(|a| !a.is_global_set() && !a.is_hide_set() && !is_help(a));
    if own().next().is_some() {
        writeln!(out, "{}", options(own())).expect("text");
    }
}

fn is_help(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

fn options<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows = args.map(|arg| {
        let help = arg.get_help().unwrap_or_else(|| panic!("{} has no description", arg.get_id()));
        [written(arg), default(arg), format!("{}{}", escaped(&help.to_string()), possible(arg))]
    });
    table(["argument", "default", "meaning"], rows)
}

/// `-n`, `--first N`, `--profile[=HOW]` or `FILES…`.
fn written(arg: &Arg) -> String {
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let names = arg.get_value_names().unwrap_or_default();
    let mut values = names.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(" ");
    let range = arg.get_num_args().unwrap_or_default();
    if range.max_values() > 1 && range.min_values() != range.max_values() && !values.ends_with('…') {
        values.push('…');
    }
    let mut names: Vec<String> = arg.get_short().map(|c| format!("`-{c}`")).into_iter().collect();
    names.extend(arg.get_long().map(|long| match (takes, range.min_values()) {
        (true, 0) => format!("`--{long}[={values}]`"),
        (true, _) => format!("`--{long} {values}`"),
        (false, _) => format!("`--{long}`"),
    }));
    if names.is_empty() { code(&values) } else { names.join(", ") }
}

/// The values that it takes, where those are few.
fn possible(arg: &Arg) -> String {
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let values = arg.get_possible_values();
    let shown = values.iter().filter(|v| takes && !v.is_hide_set()).map(|v| match v.get_help() {
        Some(help) => format!("`{}` ({})", v.get_name(), escaped(&help.to_string())),
        None => code(v.get_name()),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { shown } else { format!(": {shown}") }
}

/// What help says of it, where the description does not.
fn default(arg: &Arg) -> String {
    let values =
        arg.get_default_values().iter().map(|v| code(&v.to_string_lossy())).collect::<Vec<_>>().join(", ");
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    match (values.is_empty() || is_switch, arg.is_required_set()) {
        (false, _) => values,
        (true, true) => "required".into(),
        (true, false) => "–".into(),
    }
}

/// Without what Markdown would take for a link or a mark; `[default: …]` in round brackets.
fn escaped(text: &str) -> String {
    let (before, default) = text.split_once("[default").unwrap_or((text, ""));
    let default = default.replacen(']', ")", 1);
    let default = if default.is_empty() { default } else { format!("(default{default}") };
    let plain = format!("{before}{default}").replace('[', "\\[").replace(']', "\\]");
    plain.replace('*', "\\*").replace('<', "&lt;")
}

fn variables() -> String {
    let rows = systole_ir::knobs::KNOBS.iter().map(|k| {
        let default = if k.default.is_empty() { "–".to_string() } else { code(k.default) };
        [code(k.name), escaped(k.values), default, escaped(k.doc)]
    });
    table(["variable", "values", "default", "meaning"], rows)
}
