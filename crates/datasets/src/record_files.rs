//! Recognizes record files (TFRecord, CSV, NumPy, …) by name.

use std::path::{Path, PathBuf};
use systole_data::shell_quoted;
use systole_data::tools::files_of;

/// Extensions of record files and their formats.
pub(crate) const ENDS: [(&str, &str); 10] = [
    (".tfrecord", "TFRecord"),
    (".tfrecords", "TFRecord"),
    (".tfrec", "TFRecord"),
    (".csv", "CSV"),
    (".tsv", "CSV"),
    (".npz", "NumPy"),
    (".npy", "NumPy"),
    (".parquet", "Parquet"),
    (".tar", "WebDataset"),
    (".tgz", "WebDataset"),
];

/// File name in lower case.
pub(crate) fn name_of(file: &Path) -> String {
    file.file_name().map_or(String::new(), |n| n.to_string_lossy().to_lowercase())
}

/// Whether a file's extension is that of a record file (TFRecord, CSV, NumPy …).
pub fn is_of_records(file: impl AsRef<Path>) -> bool {
    kind_of(file.as_ref()).is_some()
}

/// Returns a file's format by its name. TFRecord shards are also named `train.tfrecord-00000-of-00008` and
/// `train-00000-of-00008`.
pub(crate) fn kind_of(file: &Path) -> Option<&'static str> {
    let name = name_of(file);
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    let kind = ENDS.iter().find(|(end, _)| stem.ends_with(end)).map(|(_, kind)| *kind);
    kind.or_else(|| is_shard(stem).then_some("TFRecord"))
}

fn is_shard(name: &str) -> bool {
    let is_number = |n: &str| n.len() >= 5 && n.bytes().all(|b| b.is_ascii_digit());
    let parts = name.rsplit_once("-of-").and_then(|(rest, all)| Some((rest.rsplit_once('-')?.1, all)));
    parts.is_some_and(|(one, all)| is_number(one) && is_number(all))
}

/// Record files directly in a folder.
pub(crate) fn in_folder(dir: &Path) -> Vec<PathBuf> {
    files_of(dir).into_iter().flatten().filter(|file| is_of_records(file)).collect()
}

/// Whether a file is a CSV table, by its name.
pub(crate) fn is_table(file: &Path) -> bool {
    kind_of(file) == Some("CSV")
}

/// Names of files for messages: the first, and how many more.
pub(crate) fn listed(files: &[PathBuf]) -> String {
    let first = files
        .first()
        .map_or(String::new(), |file| file.file_name().unwrap_or_default().to_string_lossy().into_owned());
    match files.len() {
        0 | 1 => first,
        n => format!("{first} and {} more", n - 1),
    }
}

/// Returns a note about record files next to class folders of images, whose images are the data.
pub(crate) fn unused_records(dir: &Path) -> Option<String> {
    let files = in_folder(dir);
    let first = files.first()?;
    let are = if files.len() == 1 { "is" } else { "are" };
    Some(format!(
        "{} {are} not used, because the images in the class folders are the data; to train on the records, name the file: \
         systole train {}",
        listed(&files),
        shell_quoted(first)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        for (name, kind) in [
            ("a.tfrec", Some("TFRecord")),
            ("d.tfrecord-00000-of-00001", Some("TFRecord")),
            ("train-00000-of-00008", Some("TFRecord")),
            ("train-00000-of-00008.gz", Some("TFRecord")),
            ("A.CSV.gz", Some("CSV")),
            ("notes-of-mine", None),
            ("a.txt", None),
        ] {
            assert_eq!(kind_of(Path::new(name)), kind, "{name}");
        }
    }
}
