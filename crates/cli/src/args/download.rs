//! Options of commands that download published files: `--offline`, `--mirror`, `--timeout`.

use crate::args::exit_status::{CommandError, CommandResult};
use clap::Args;
use std::time::Duration;
use systole_datasets::DataDir;
use systole_ir::{ensure, err};

#[derive(Args)]
pub(crate) struct DownloadArgs {
    /// Use only files that are already here
    ///
    /// If files are missing, the error lists their addresses and where to put them.
    #[arg(long)]
    pub(crate) offline: bool,
    /// Download from ADDRESS/FILE instead of the published addresses
    ///
    /// Sizes and digests are verified as usual. For hf:OWNER/NAME, ADDRESS replaces https://huggingface.co.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) mirror: Option<String>,
    /// Wait at most S seconds for a server's answer
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
}

impl DownloadArgs {
    /// Applies the options.
    pub(crate) fn apply(&self, dir: DataDir) -> DataDir {
        let dir = dir.timeout(Duration::from_secs(self.timeout));
        let dir = if self.offline { dir.offline() } else { dir };
        match &self.mirror {
            Some(address) => dir.mirror(address),
            None => dir,
        }
    }

    /// Rejects a mirror that is not an address.
    pub(crate) fn check(&self) -> CommandResult<()> {
        let is_address = |text: &str| text.starts_with("http://") || text.starts_with("https://");
        let wrong = self.mirror.as_deref().filter(|text| !is_address(text));
        let text = wrong.unwrap_or_default();
        ensure!(
            wrong.is_none(),
            CommandError::usage(
                err!(Config, "`{text}` is not an http or https address")
                    .at("--mirror")
                    .hint_command("write `http://HOST/FOLDER`")
            )
        );
        Ok(())
    }
}
