//! Groups the commands in `systole --help` by purpose; `systole -h` describes the first group and names the others.

use clap::Command;

/// Help of the program itself, with the list of commands in place of `{before-help}`.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}\u{1b}[1m\u{1b}[4mOptions:\u{1b}[0m\n{options}{after-help}";

/// Commands below a heading: the names of the variants of the command table.
pub(crate) type CommandGroups = &'static [(&'static str, &'static [&'static str])];

/// Returns `command` with its subcommands listed by group in `-h` and `--help`.
pub(crate) fn grouped(command: Command, groups: CommandGroups) -> Command {
    let (mut short, mut long) = (String::new(), String::new());
    for (n, (heading, variants)) in groups.iter().enumerate() {
        let visible: Vec<&Command> = variants
            .iter()
            .filter_map(|variant| command.find_subcommand(kebab_case(variant)).filter(|c| !c.is_hide_set()))
            .collect();
        let described = section(heading, &visible);
        long += &described;
        if n == 0 {
            short += &described;
        } else {
            let names: Vec<&str> = visible.iter().map(|c| c.get_name()).collect();
            short += &format!("{}\n  {}\n\n", styled(heading), names.join(", "));
        }
    }
    short += "`systole --help` describes every command, `systole COMMAND --help` its options.";
    command.help_template(TEMPLATE).before_help(short).before_long_help(long)
}

/// A heading, and one line for each command.
fn section(heading: &str, commands: &[&Command]) -> String {
    let line = |c: &&Command| {
        let about = c.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:<12} {about}\n", c.get_name())
    };
    format!("{}\n{}\n", styled(heading), commands.iter().map(line).collect::<String>())
}

/// A heading in clap's style: bold and underlined; clap removes the codes where there is no terminal.
fn styled(heading: &str) -> String {
    format!("\u{1b}[1m\u{1b}[4m{heading}:\u{1b}[0m")
}

/// `LrFind` → `lr-find`, as clap names the command of a variant.
fn kebab_case(variant: &str) -> String {
    let dashed = |(n, c): (usize, char)| {
        let dash = (n > 0 && c.is_ascii_uppercase()).then_some('-');
        dash.into_iter().chain([c.to_ascii_lowercase()])
    };
    variant.chars().enumerate().flat_map(dashed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_is_described_and_the_others_are_named() {
        let command = Command::new("x").subcommands([
            Command::new("lr-find").about("Find a rate"),
            Command::new("env").about("Print facts"),
        ]);
        let mut command = grouped(command, &[("Train", &["LrFind", "Absent"]), ("Report", &["Env"])]);
        let short = command.render_help().to_string();
        assert!(short.contains("Train:\n  lr-find      Find a rate\n\nReport:\n  env\n"), "{short}");
        let long = command.render_long_help().to_string();
        assert!(long.contains("Report:\n  env          Print facts\n"), "{long}");
    }
}
