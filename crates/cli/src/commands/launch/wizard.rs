//! `systole launch config`: a terminal wizard that writes a launch file.

use super::args::{ConfigArgs, check};
use crate::args::exit_status::{CommandError, CommandResult, check_out};
use crate::render::screen::{Screen, program, quoted};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use systole_config::{LaunchConfig, LaunchTarget};
use systole_data::RunSecret;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Result, err};
use systole_launch::check_hosts;
use systole_nn::did_you_mean::suggestion;

/// Default number of restarts.
const RESTARTS: u32 = 3;

pub(super) fn configure(args: &ConfigArgs, screen: &Screen) -> CommandResult {
    check_out(&args.out, args.force)?;
    let mut config = args.how.over(LaunchConfig::default());
    if stdin().is_terminal() && stderr().is_terminal() {
        Wizard { answers: stdin().lock(), questions: stderr() }
            .ask(&mut config, args.how.place().is_some())?;
    }
    check(&config).map_err(CommandError::usage)?;
    if config.place == LaunchTarget::Hosts && config.hosts.as_ref().is_some_and(|path| path.is_file()) {
        check_hosts(&config).map_err(CommandError::usage)?;
    }
    write_atomically(&OsFileSystem, &args.out, &[config.to_toml().as_bytes()])?;
    if screen.json {
        screen.object(&json!({"file": args.out, "launch": config}));
    }
    let (program, file) = (program(), quoted(&args.out));
    let by = match config.place {
        LaunchTarget::Slurm => format!("{}\n  srun ", RunSecret::command()),
        _ => String::new(),
    };
    screen.line(format!(
        "{file} configures the launch. Next:\n  {by}{program} launch --config {file} -- train …"
    ));
    Ok(0)
}

/// Terminal wizard: prints questions and reads answers.
struct Wizard<R, W> {
    answers: R,
    questions: W,
}

impl<R: BufRead, W: Write> Wizard<R, W> {
    /// Asks the questions that no option answers.
    fn ask(&mut self, config: &mut LaunchConfig, has_place: bool) -> Result<()> {
        if !has_place {
            let names = LaunchTarget::ALL.map(LaunchTarget::name);
            let question = format!("Where do the processes run ({})?", names.join(", "));
            config.place = self.until(&question, LaunchTarget::default().name(), |answer| {
                let known = LaunchTarget::ALL.into_iter().find(|place| place.name() == answer);
                known.ok_or_else(|| suggestion(answer, &names))
            })?;
        }
        match config.place {
            LaunchTarget::Hosts if config.hosts.is_none() => {
                let question = "Which file lists the machines, one per line (NAME, or NAME slots=N)?";
                config.hosts = Some(self.until(question, "hosts.txt", |answer| Ok(answer.into()))?);
            }
            LaunchTarget::ThisMachine | LaunchTarget::K8s if config.nproc.is_none() => {
                config.nproc = Some(self.number("How many processes?", 2, 1)?);
            }
            LaunchTarget::Slurm | LaunchTarget::Tpu => {
                self.say("The cluster sets the number of processes.\n")?
            }
            _ => {}
        }
        if config.devices_per_process.is_none() {
            config.devices_per_process =
                Some(self.number("How many devices does each process have?", 1, 1)?);
        }
        if config.max_restarts.is_none() {
            let question = "How many restarts from the last backup, after a process is killed?";
            config.max_restarts = Some(self.number(question, RESTARTS, 0)?);
        }
        if config.plugin.is_none() {
            let question = "Path of a PJRT plugin (empty: Systole's, in this program)?";
            let answer: String = self.until(question, "", |answer| Ok(answer.into()))?;
            config.plugin = Some(answer).filter(|answer| !answer.is_empty()).map(Into::into);
        }
        Ok(())
    }

    fn number(&mut self, question: &str, usual: u32, least: u32) -> Result<u32> {
        self.until(question, &usual.to_string(), |answer| {
            let number = answer.parse().ok().filter(|n| *n >= least);
            number.ok_or_else(|| format!("expected an integer of at least {least}"))
        })
    }

    /// Repeats the question until the answer is valid; an empty answer selects the default.
    fn until<T>(
        &mut self,
        question: &str,
        usual: &str,
        read: impl Fn(&str) -> std::result::Result<T, String>,
    ) -> Result<T> {
        loop {
            let shown = if usual.is_empty() { String::new() } else { format!(" [{usual}]") };
            self.say(&format!("{question}{shown} "))?;
            let mut line = String::new();
            let n = self.answers.read_line(&mut line);
            let n =
                n.map_err(|e| err!(Io, "cannot read an answer from the terminal").because(e.to_string()))?;
            if n == 0 {
                let e = err!(Interrupted, "standard input ended before all questions were answered");
                return Err(e.hint_command(
                    "no file was written; answer with options instead: launch config --nproc 2",
                ));
            }
            let answer = line.trim();
            match read(if answer.is_empty() { usual } else { answer }) {
                Ok(value) => return Ok(value),
                Err(why) => self.say(&format!("  {why}\n"))?,
            }
        }
    }

    fn say(&mut self, text: &str) -> Result<()> {
        let told = write!(self.questions, "{text}").and_then(|()| self.questions.flush());
        told.map_err(|e| err!(Io, "cannot print a question to the terminal").because(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    fn asked(answers: &str, mut config: LaunchConfig, has_place: bool) -> (Result<LaunchConfig>, String) {
        let mut asker = Wizard { answers: answers.as_bytes(), questions: Vec::new() };
        let done = asker.ask(&mut config, has_place).map(|()| config);
        (done, String::from_utf8(asker.questions).unwrap())
    }

    #[test]
    fn questions_take_answers_and_usual_values() {
        let (config, questions) = asked("\n\n\n\n\n", LaunchConfig::default(), false);
        let usual = LaunchConfig {
            nproc: Some(2),
            devices_per_process: Some(1),
            max_restarts: Some(RESTARTS),
            ..LaunchConfig::default()
        };
        assert_eq!(config.unwrap(), usual);
        assert_eq!(questions.matches('?').count(), 5, "{questions}");

        let (config, questions) =
            asked("hsots\nhosts\nmine\n4\nten\n10\np.so\n", LaunchConfig::default(), false);
        let config = config.unwrap();
        assert_eq!((config.place, config.hosts), (LaunchTarget::Hosts, Some("mine".into())));
        assert_eq!((config.devices_per_process, config.max_restarts), (Some(4), Some(10)));
        assert_eq!((config.nproc, config.plugin), (None, Some("p.so".into())));
        assert!(questions.contains("`hosts`") && questions.contains("at least 0"), "{questions}");
    }

    #[test]
    fn what_options_say_is_not_asked() {
        let given =
            LaunchConfig { place: LaunchTarget::Slurm, max_restarts: Some(0), ..LaunchConfig::default() };
        let (config, questions) = asked("2\n\n", given, true);
        assert_eq!(config.unwrap().devices_per_process, Some(2));
        assert_eq!(questions.matches('?').count(), 2, "{questions}");
        let (config, _) = asked("this-machine\n", LaunchConfig::default(), false);
        assert_eq!(config.unwrap_err().kind(), ErrorKind::Interrupted);
    }
}
