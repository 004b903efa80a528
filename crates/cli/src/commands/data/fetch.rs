//! `systole data fetch`: downloads published datasets by name, or lists them with license and folder.

use crate::args::download::DownloadArgs;
use crate::args::exit_status::{CommandError, CommandResult};
use crate::render::screen::{Screen, program, quoted, table};
use crate::run::training::with_progress;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use systole_datasets::{CATALOG, CatalogEntry, DataDir};
use systole_ir::{Error, ErrorKind};
use systole_nn::did_you_mean::suggestion;

#[derive(Args)]
pub(super) struct FetchArgs {
    /// Datasets to download, such as cifar10 or flowers [default: list all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// List the datasets with size, license and folder
    #[arg(long, conflicts_with = "names")]
    list: bool,
    /// Download to DIR/NAME [default: the cache folder that `systole env` prints]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    download: DownloadArgs,
}

impl FetchArgs {
    /// Whether the command only prints.
    pub(super) fn only_prints(&self) -> bool {
        self.names.is_empty()
    }

    fn options(&self, screen: &Screen) -> DataDir {
        let dir = match &self.out {
            Some(out) => DataDir::at(out).allow_downloads(),
            None => DataDir::default(),
        };
        self.download.apply(with_progress(dir, screen))
    }
}

pub(super) fn fetch(args: &FetchArgs, screen: &Screen) -> CommandResult {
    if args.names.is_empty() {
        return list(args, screen);
    }
    args.download.check()?;
    // A misspelled name is an error before the first download.
    let entries = args.names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    let mut fetched = Vec::new();
    for entry in entries {
        let options = args.options(screen);
        let was_here = entry.locate(&options).is_some();
        if !was_here && !args.download.offline {
            screen.detail(format!("{}: downloading {}", entry.name, size_text(entry.size())));
        }
        let folder = entry.fetch(&options)?;
        let command = next_command(entry, &folder, args.out.is_some());
        let mut algorithms: Vec<&str> =
            entry.files.iter().flat_map(|file| file.digests).map(|digest| digest.algorithm()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let how = match was_here {
            true => "already here, not verified again".into(),
            false => format!("verified ({})", algorithms.join(", ")),
        };
        screen.line(format!("{}: {how}: {}", entry.name, folder.display()));
        screen.detail(format!("  License: {}", entry.license));
        screen.detail(format!("  {command}"));
        fetched.push(as_json(entry, Some(&folder), Some(&command)));
    }
    if screen.json {
        screen.object(&json!({ "datasets": fetched }));
    }
    Ok(0)
}

fn find(name: &str) -> Result<&'static CatalogEntry, CommandError> {
    CATALOG.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = CATALOG.iter().map(|entry| entry.name).collect();
        let e = Error::new(ErrorKind::Config, format!("unknown dataset `{name}`"));
        CommandError::usage(e.hint_command(suggestion(name, &names)))
    })
}

fn list(args: &FetchArgs, screen: &Screen) -> CommandResult {
    let options = args.options(screen);
    let located = CATALOG.iter().map(|entry| (entry, entry.locate(&options)));
    let located: Vec<(&CatalogEntry, Option<PathBuf>)> = located.collect();
    let row = |(entry, folder): &(&CatalogEntry, Option<PathBuf>)| {
        let place = folder.as_ref().map_or("not here".into(), |folder| folder.display().to_string());
        vec![entry.name.into(), size_text(entry.size()), entry.description.into(), place]
    };
    let header = ["name", "download", "content", "folder"].map(String::from).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(located.iter().map(row)).collect();
    screen.line(table(&rows));
    let untried: Vec<&str> =
        CATALOG.iter().filter(|entry| entry.last_tried.is_none()).map(|entry| entry.name).collect();
    if !untried.is_empty() {
        screen.detail(format!("Addresses not yet tried by Systole's authors: {}", untried.join(", ")));
    }
    if screen.json {
        let rows = located.iter().map(|(entry, folder)| as_json(entry, folder.as_deref(), None));
        screen.object(&json!({ "datasets": rows.collect::<Vec<_>>() }));
    }
    Ok(0)
}

/// Returns the command that trains on the dataset.
fn next_command(entry: &CatalogEntry, folder: &Path, is_elsewhere: bool) -> String {
    let folder = quoted(folder);
    let args = match entry.train.contains("FOLDER") {
        true => entry.train.replace("FOLDER", &folder),
        false if is_elsewhere => format!("{} --data-dir {folder}", entry.train),
        false => entry.train.into(),
    };
    format!("{} train {args}", program())
}

fn size_text(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn as_json(entry: &CatalogEntry, folder: Option<&Path>, command: Option<&str>) -> Value {
    let files = entry.files.iter().map(|file| {
        let digests = file.digests.iter().map(|d| json!({ "algorithm": d.algorithm(), "hex": d.hex() }));
        let addresses = entry.sources.iter().map(|base| format!("{base}{}", file.file));
        json!({
            "file": file.file, "bytes": file.size, "digests": digests.collect::<Value>(),
            "addresses": addresses.collect::<Vec<_>>(),
        })
    });
    json!({
        "name": entry.name, "description": entry.description, "license": entry.license,
        "folder": folder.map(|folder| folder.display().to_string()), "command": command,
        "files": files.collect::<Value>(), "digests_from": entry.digests_from, "last_tried": entry.last_tried,
    })
}
