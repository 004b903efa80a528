//! How a run is started on several processes, as data: what `systole launch config` writes and `launch --config` reads.

use super::key_error::{from_serde, line_at};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use systole_ir::{Error, ErrorKind, Result};

/// More processes, and more devices of each, are a mistake.
const MOST: u32 = 1024;

/// Where the processes of a launch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchTarget {
    /// All on this machine.
    #[default]
    ThisMachine,
    /// On the machines of a file, started by ssh.
    Hosts,
    /// This process is a task of SLURM, and starts its own part.
    Slurm,
    /// This process is in a pod of an indexed Kubernetes job, and starts its own part.
    K8s,
    /// This process is on a host of a TPU slice, and starts its own part.
    Tpu,
}

impl LaunchTarget {
    /// Every place.
    pub const ALL: [LaunchTarget; 5] = [
        LaunchTarget::ThisMachine,
        LaunchTarget::Hosts,
        LaunchTarget::Slurm,
        LaunchTarget::K8s,
        LaunchTarget::Tpu,
    ];

    /// Its name in files.
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

/// The keys of a launch file. What is left out is as on the command line without the option of the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchConfig {
    /// Where the processes are.
    #[serde(default)]
    pub place: LaunchTarget,
    /// How many processes.
    pub nproc: Option<u32>,
    /// A file with one machine a line.
    pub hosts: Option<PathBuf>,
    /// Devices of each process.
    pub devices_per_process: Option<u32>,
    /// How often all are started again.
    pub max_restarts: Option<u32>,
    /// The fewest processes that the run may go on with.
    pub elastic: Option<u32>,
    /// Systole's plugin.
    pub plugin: Option<PathBuf>,
    /// Where this program lies on other machines.
    pub program: Option<PathBuf>,
    /// Where process 0 listens.
    pub port: Option<u16>,
    /// Seconds after which a silent process counts as lost.
    pub timeout: Option<u32>,
    /// Variables of the environment that processes on other machines are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Where all lines are written.
    pub log: Option<PathBuf>,
}

impl LaunchConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// Names the key that is wrong, and its line.
    pub fn read(path: &Path) -> Result<LaunchConfig> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::io("cannot read", path, e).hint("`systole launch config` writes such a file")
        })?;
        LaunchConfig::parse(&text, &path.display().to_string())
    }

    /// Reads TOML; `origin` is the file's name in messages.
    ///
    /// ```
    /// use systole::config::{LaunchConfig, LaunchPlace};
    /// let config = LaunchConfig::parse("nproc = 2\nmax_restarts = 3", "launch.toml")?;
    /// assert_eq!((config.place, config.nproc), (LaunchPlace::ThisMachine, Some(2)));
    /// let wrong = LaunchConfig::parse("nprocs = 2", "launch.toml").unwrap_err();
    /// assert!(wrong.to_string().contains("did you mean `nproc`"));
    /// # Ok::<(), systole::ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`LaunchConfig::read`].
    pub fn parse(text: &str, origin: &str) -> Result<LaunchConfig> {
        let help = "`systole launch config` writes a whole file with comments";
        let located = |e: Error, span: Option<std::ops::Range<usize>>| match span {
            Some(span) => e.at(format!("{origin}, line {}", line_at(text, span.start))),
            None => e.at(origin),
        };
        toml::from_str::<toml::Table>(text).map_err(|e| {
            let error = Error::new(ErrorKind::Config, "this is not TOML").because(e.message());
            located(error, e.span()).hint(help)
        })?;
        let config: LaunchConfig =
            toml::from_str(text).map_err(|e| located(from_serde(e.message()), e.span()).hint(help))?;
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
                let e = Error::new(ErrorKind::Config, format!("`{key}` is {n}")).at(key);
                Err(e.hint(format!("write a whole number from 1 to {most}")))
            }
            None => Ok(()),
        }
    }

    /// The file, with comments.
    pub fn to_toml(&self) -> String {
        let rows = self.rows().into_iter().map(|(key, value, example, about)| match value {
            Some(value) => format!("{:<28} # {about}\n", format!("{key} = {value}")),
            None => format!("# {:<26} # {about}\n", format!("{key} = {example}")),
        });
        let rows: String = rows.collect();
        format!(
            "# How a run is started: systole launch --config THIS-FILE -- train …\n\
             # Paths are seen from where that is called. Options of the command line come first.\n\n{rows}"
        )
    }

    /// Each key, its value, one that it could have, and what it is.
    fn rows(&self) -> [(&'static str, Option<String>, &'static str, &'static str); 12] {
        let number = |n: Option<u32>| n.map(|n| n.to_string());
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| quoted(&path.display().to_string()));
        let env = self.env.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        let env = (!env.is_empty()).then(|| format!("[{env}]"));
        let pods = "processes on this machine; pods, where nothing else says how many";
        let elastic = "go on without who is lost, with this many processes at least";
        let restarts = "starts again from the last backup, after deaths";
        let plugin = "Systole's plugin; without: beside the program";
        [
            ("place", Some(quoted(self.place.name())), "", "this-machine, hosts, slurm, k8s or tpu"),
            ("nproc", number(self.nproc), "2", pods),
            ("hosts", path(&self.hosts), "\"hosts.txt\"", "one machine a line: NAME [slots=N]"),
            ("devices_per_process", number(self.devices_per_process), "1", "devices of each process"),
            ("max_restarts", number(self.max_restarts), "3", restarts),
            ("elastic", number(self.elastic), "1", elastic),
            ("plugin", path(&self.plugin), "\"libsystole_plugin.so\"", plugin),
            ("program", path(&self.program), "\"/opt/systole\"", "where the program lies on other machines"),
            (
                "port",
                self.port.map(|n| n.to_string()),
                "8476",
                "where process 0 listens, of several machines",
            ),
            ("timeout", number(self.timeout), "120", "seconds after which a silent process is lost"),
            ("env", env, "[\"NAME\", \"NAME=VALUE\"]", "variables for other machines"),
            ("log", path(&self.log), "\"launch.log\"", "every line of every process"),
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
        // Each example is one that is read.
        let examples: String =
            shown.lines().skip(2).map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
        let all = LaunchConfig::parse(&examples, "x").unwrap();
        assert_eq!((all.nproc, all.port, all.env.len()), (Some(2), Some(8476), 2));

        for (text, parts) in [
            ("nprocs = 2", ["launch.toml, line 1", "did you mean `nproc`"]),
            ("nproc = 2\nplace = \"slrum\"", ["launch.toml, line 2", "did you mean `slurm`"]),
            ("nproc = 0", ["`nproc` is 0", "from 1 to 1024"]),
            ("nproc =", ["this is not TOML", "launch config"]),
        ] {
            let e = LaunchConfig::parse(text, "launch.toml").unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(e.contains(part), "{text}: {e}"));
        }
    }
}
