//! Finds record files (TFRecord, CSV, NumPy, …) in a directory and splits them into training and test files.

use super::options::RecordOptions;
use crate::data_dir::DataDir;
use crate::record_files::{ENDS, is_of_records, kind_of, name_of};
use std::path::{Path, PathBuf};
use systole_base::{Result, err};
use systole_data::CsvTable;
use systole_data::input_file::{is_dir, is_file};
use systole_data::tools::files_of;

/// Prefixes of the names of test files.
const TEST: [&str; 4] = ["test", "val", "valid", "t10k"];

/// Returns the folder and the options of record files. If `dir` is a file, it is all of the data, and the file patterns
/// of the options do not apply.
pub(super) fn with_folder(dir: &DataDir, options: &RecordOptions) -> (DataDir, RecordOptions) {
    let file = dir.named().filter(|path| !is_dir(path) && is_file(path));
    let Some((folder, name)) = file.and_then(|file| Some((file.parent()?, file.file_name()?))) else {
        return (dir.clone(), options.clone());
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let train = vec![name.to_string_lossy().into_owned()];
    (dir.moved(folder), RecordOptions { train, test: Vec::new(), ..options.clone() })
}

/// Whether a file's name is that of a test file.
pub(crate) fn is_for_testing(file: &Path) -> bool {
    let name = name_of(file);
    TEST.iter().any(|t| name.strip_prefix(t).is_some_and(|r| !r.starts_with(char::is_alphabetic)))
        || name.starts_with("validation")
}

/// Returns the training and test files.
pub(super) fn find(dir: &DataDir, options: &RecordOptions) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let root = dir.named().unwrap_or(Path::new(""));
    let all = |patterns: &[String]| -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for pattern in patterns {
            files.extend(files_of(&root.join(pattern))?);
        }
        Ok(files)
    };
    if !options.train.is_empty() {
        return Ok((all(&options.train)?, all(&options.test)?));
    }
    if dir.named().is_none() {
        return Err(err!(Config, "the paths of the record files are not set").hint_setting(
            "pass the folder of the record files with --data-dir or data.dir, or file patterns with \
            data.records.train",
        ));
    }
    let found: Vec<PathBuf> = files_of(root)?.into_iter().filter(|f| is_of_records(f)).collect();
    let (test, train): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| is_for_testing(f));
    if train.is_empty() {
        let ends: Vec<&str> = ENDS.iter().map(|(end, _)| *end).collect();
        return Err(err!(Io, "{} has no record files to train on", root.display())
            .hint(format!("use files with one of these extensions: {}", ends.join(", "))));
    }
    Ok((train, if options.test.is_empty() { test } else { all(&options.test)? }))
}

/// Returns an error if the files have different formats, or tables different columns: they are not one dataset.
pub(super) fn check_alike(dir: &DataDir, files: &[PathBuf], options: &RecordOptions) -> Result<()> {
    let encoding = options.written()?.encoding;
    let root = dir.named().unwrap_or(Path::new(""));
    let starts = |f: &&PathBuf| name_of(f).starts_with("train");
    let Some(main) = files.iter().find(starts).or(files.first()) else { return Ok(()) };
    let shown = |f: &Path| f.strip_prefix(root).unwrap_or(f).display().to_string();
    let odd = |other: &Path, what: &str, why: String| {
        Err(err!(Data, "{} {what} {}", shown(other), shown(main))
            .at(root.display().to_string())
            .because(why)
            .hint_setting(format!(
                "select the training files: --set 'data.records.train=[\"{}\"]'",
                shown(main)
            )))
    };
    let kind = |f: &Path| kind_of(f).unwrap_or_default();
    if let Some(other) = files.iter().find(|f| kind(f) != kind(main)) {
        return odd(other, "has another format than", format!("{} and {}", kind(other), kind(main)));
    }
    if kind(main) != "CSV" || files.len() == 1 {
        return Ok(());
    }
    let columns = CsvTable::names_of(main, encoding)?;
    for other in files.iter().filter(|f| *f != main) {
        let names = CsvTable::names_of(other, encoding)?;
        if columns.iter().any(|c| !names.contains(c)) || names.len() != columns.len() {
            let why = format!("{} and {}", names.join(", "), columns.join(", "));
            return odd(other, "has other columns than", why);
        }
    }
    Ok(())
}
