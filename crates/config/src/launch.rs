//! Launch file of multi-process runs: written by `systole launch config`, read by `systole launch --config`.

use super::key_error::{from_serde, line_at};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use systole_ir::{Error, Result, err};

/// Maximum number of processes, and of devices per process; more is a mistake.
const MOST: u32 = 1024;

/// Where the processes of `systole launch` run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchTarget {
    /// All processes on this machine.
    #[default]
    ThisMachine,
    /// Machines listed in a host file, started over ssh.
    Hosts,
    /// SLURM: this process is one task and starts its own share.
    Slurm,
    /// Kubernetes: this process is in a pod of an indexed job and starts its own share.
    K8s,
    /// TPU slice: this process is on one host and starts its own share.
    Tpu,
}

impl LaunchTarget {
    /// All launch targets.
    pub const ALL: [LaunchTarget; 5] = [
        LaunchTarget::ThisMachine,
        LaunchTarget::Hosts,
        LaunchTarget::Slurm,
        LaunchTarget::K8s,
        LaunchTarget::Tpu,
    ];

    /// Returns the launch target's name in launch files.
    pub fn name(self) -> &'static str {
        match self {
            LaunchTarget::ThisMachine => "this-machine",
            LaunchTarget::Hosts => "hosts",
            LaunchTarget::Slurm => "slurm",
            LaunchTarget::K8s => "k8s",
            LaunchTarget::Tpu => "tpu",
        }
    }
}

/// Keys of a launch file. A missing key has the default of the command-line option with the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchConfig {
    /// Where the processes run.
    #[serde(default)]
    pub place: LaunchTarget,
    /// Number of processes.
    pub nproc: Option<u32>,
    /// Host file with one machine per line.
    pub hosts: Option<PathBuf>,
    /// Devices per process.
    pub devices_per_process: Option<u32>,
    /// Maximum number of restarts of all processes.
    pub max_restarts: Option<u32>,
    /// Minimum number of processes to continue with after losing some.
    pub elastic: Option<u32>,
    /// Path of a PJRT plugin; `None`: Systole's own, which is part of the program.
    pub plugin: Option<PathBuf>,
    /// Path of the Systole program on other machines.
    pub program: Option<PathBuf>,
    /// Port on which process 0 listens.
    pub port: Option<u16>,
    /// Seconds without a heartbeat after which a process counts as lost.
    pub timeout: Option<u32>,
    /// Environment variables to set for processes on other machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Log file that collects the output of all processes.
    pub log: Option<PathBuf>,
}

impl LaunchConfig {
    /// Reads a launch file.
    ///
    /// # Errors
    /// Names the invalid key and its line.
    pub fn read(path: &Path) -> Result<LaunchConfig> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::io("cannot read", path, e).hint_command("run `systole launch config` to write such a file")
        })?;
        LaunchConfig::parse(&text, &path.display().to_string())
    }

    /// Parses TOML; `origin` is the file name in messages.
    ///
    /// ```
    /// use systole::config::{LaunchConfig, LaunchTarget};
    /// let config = LaunchConfig::parse("nproc = 2\nmax_restarts = 3", "launch.toml")?;
    /// assert_eq!((config.place, config.nproc), (LaunchTarget::ThisMachine, Some(2)));
    /// let wrong = LaunchConfig::parse("nprocs = 2", "launch.toml").unwrap_err();
    /// assert!(wrong.to_string().contains("did you mean `nproc`"));
    /// # Ok::<(), systole::ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`LaunchConfig::read`].
    pub fn parse(text: &str, origin: &str) -> Result<LaunchConfig> {
        let help = "run `systole launch config` for a complete, commented file";
        let located = |e: Error, span: Option<std::ops::Range<usize>>| match span {
            Some(span) => e.at(format!("{origin}, line {}", line_at(text, span.start))),
            None => e.at(origin),
        };
        toml::from_str::<toml::Table>(text).map_err(|e| {
            let error = err!(Config, "invalid TOML").because(e.message());
            located(error, e.span()).hint_setting(help)
        })?;
        let config: LaunchConfig = toml::from_str(text)
            .map_err(|e| located(from_serde(e.message()), e.span()).hint_setting(help))?;
        config.check().map_err(|e| e.at(origin))?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let numbers = [
            ("nproc", self.nproc),
            ("devices_per_process", self.devices_per_process),
            ("elastic", self.elastic),
            ("timeout", self.timeout),
        ];
        let wrong = numbers.into_iter().find_map(|(key, value)| {
            let most = if key == "timeout" { u32::MAX } else { MOST };
            value.filter(|n| !(1..=most).contains(n)).map(|n| (key, n, most))
        });
        match wrong {
            Some((key, n, most)) => {
                let e = err!(Config, "`{key}` is {n}").at(key);
                Err(e.hint_setting(format!("choose an integer from 1 to {most}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the launch file's text, with comments.
    pub fn to_toml(&self) -> String {
        let rows = self.rows().into_iter().map(|(key, value, example, about)| match value {
            Some(value) => format!("{:<28} # {about}\n", format!("{key} = {value}")),
            None => format!("# {:<26} # {about}\n", format!("{key} = {example}")),
        });
        let rows: String = rows.collect();
        format!(
            "# Launch settings: systole launch --config THIS-FILE -- train …\n\
             # Paths are relative to the current directory of that command. Command-line options take precedence.\n\n{rows}"
        )
    }

    /// Returns each key with its value, an example value and a description.
    fn rows(&self) -> [(&'static str, Option<String>, &'static str, &'static str); 12] {
        let number = |n: Option<u32>| n.map(|n| n.to_string());
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| quoted(&path.display().to_string()));
        let env = self.env.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        let env = (!env.is_empty()).then(|| format!("[{env}]"));
        let pods = "number of processes (pods) if the scheduler does not set it";
        let elastic = "continue after losing processes while at least this many remain";
        let restarts = "maximum number of restarts from the last backup";
        let plugin = "path of a PJRT plugin; default: Systole's, in the program";
        [
            ("place", Some(quoted(self.place.name())), "", "this-machine, hosts, slurm, k8s or tpu"),
            ("nproc", number(self.nproc), "2", pods),
            ("hosts", path(&self.hosts), "\"hosts.txt\"", "host file, one machine per line: NAME [slots=N]"),
            ("devices_per_process", number(self.devices_per_process), "1", "devices per process"),
            ("max_restarts", number(self.max_restarts), "3", restarts),
            ("elastic", number(self.elastic), "1", elastic),
            ("plugin", path(&self.plugin), "\"libsystole_plugin.so\"", plugin),
            ("program", path(&self.program), "\"/opt/systole\"", "path of the program on other machines"),
            (
                "port",
                self.port.map(|n| n.to_string()),
                "8476",
                "port on which process 0 listens (several machines)",
            ),
            ("timeout", number(self.timeout), "120", "seconds after which a silent process counts as lost"),
            ("env", env, "[\"NAME\", \"NAME=VALUE\"]", "environment variables for other machines"),
            ("log", path(&self.log), "\"launch.log\"", "log file for the output of all processes"),
        ]
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_mistakes_are_told() {
        let config = LaunchConfig {
            place: LaunchTarget::Hosts,
            hosts: Some("my hosts.txt".into()),
            max_restarts: Some(3),
            env: vec!["A=\"1\"".into(), "B".into()],
            ..LaunchConfig::default()
        };
        assert_eq!(LaunchConfig::parse(&config.to_toml(), "x").unwrap(), config, "{}", config.to_toml());
        let fresh = LaunchConfig::default();
        let shown = fresh.to_toml();
        assert_eq!(LaunchConfig::parse(&shown, "x").unwrap(), fresh);
        // Each example must parse.
        let examples: String =
            shown.lines().skip(2).map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
        let all = LaunchConfig::parse(&examples, "x").unwrap();
        assert_eq!((all.nproc, all.port, all.env.len()), (Some(2), Some(8476), 2));

        for (text, parts) in [
            ("nprocs = 2", ["launch.toml, line 1", "`nproc`"]),
            ("nproc = 2\nplace = \"slrum\"", ["launch.toml, line 2", "`slurm`"]),
            ("nproc = 0", ["`nproc` is 0", "from 1 to 1024"]),
            ("nproc =", ["invalid TOML", "launch config"]),
        ] {
            let e = LaunchConfig::parse(text, "launch.toml").unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(e.contains(part), "{text}: {e}"));
        }
    }
}
