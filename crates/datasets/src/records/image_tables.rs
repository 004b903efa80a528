//! Tables with a column of image paths, as for fastai's `from_csv` and Keras's `flow_from_dataframe`.
//!
//! The images are next to the table, in a folder next to it, or in `data.records.pictures`; extensions may be omitted.

use super::options::{LABELS, RecordOptions};
use crate::images::folder::{allow_more, has_transparent};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, Literal, Result, ensure, err};
use systole_data::format::any_format;
use systole_data::input_file::{self, entries, is_file};
use systole_data::{AUTOTUNE, ColumnKind, CsvTable, Dataset, DatasetOptions, Sample};

/// Number of rows to inspect when looking for a column of image paths.
const LOOKED_AT: usize = 20;
/// Extensions that a path may omit.
const ENDS: [&str; 6] = ["", ".jpg", ".png", ".jpeg", ".JPG", ".bmp"];
/// Extensions that mark a cell as an image path even if the file does not exist.
const PICTURES: [&str; 6] = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"];
/// Maximum number of files listed in messages.
const NAMED: usize = 3;

/// Column of image paths.
#[derive(Clone, Debug)]
pub(super) struct ImagePathColumn {
    pub field: String,
    root: PathBuf,
    end: &'static str,
}

/// Result of checking all images of a table.
pub(super) struct ImageTableCheck {
    /// Cells whose images cannot be read.
    pub bad: HashSet<String>,
    pub note: Option<String>,
    /// Number of images with transparent pixels.
    pub transparent: usize,
    /// Fingerprint of the images.
    pub mark: u64,
}

impl ImagePathColumn {
    /// Finds a table's column of image paths; `strict`: the folder set in the options must contain the images.
    ///
    /// # Errors
    /// If a column contains image paths and none of the files exists.
    pub fn find(
        table: &CsvTable,
        options: &RecordOptions,
        dir: Option<&Path>,
        strict: bool,
    ) -> Result<Option<ImagePathColumn>> {
        let Some(first) = table.files.first() else { return Ok(None) };
        let beside = first.parent().unwrap_or(Path::new("")).to_path_buf();
        let told = options.pictures.as_ref().map(|p| dir.unwrap_or(&beside).join(p));
        let mut roots: Vec<PathBuf> = told.iter().cloned().collect();
        if told.is_none() || !strict {
            roots.push(beside.clone());
            let folders = entries(&beside).into_iter().flatten().filter(|e| e.is_dir);
            roots.extend(folders.map(|e| e.path));
        }
        let wanted = |name: &String| options.inputs.is_empty() || options.inputs.contains(name);
        let is_label = |name: &String| match &options.label {
            Some(label) => label == name,
            None => LABELS.iter().any(|l| l.eq_ignore_ascii_case(name)) && options.inputs.is_empty(),
        };
        let columns = table.columns.iter().filter(|c| !is_label(&c.name) && wanted(&c.name));
        for column in columns.filter(|c| matches!(c.kind, ColumnKind::Text | ColumnKind::Integer)) {
            let cells = first_cells(table, &column.name);
            if cells.is_empty() || column.kind == ColumnKind::Integer && !counts_as_name(&cells) {
                continue;
            }
            if let Some((root, end)) = place_of(&cells, &roots) {
                return Ok(Some(ImagePathColumn { field: column.name.clone(), root, end }));
            }
            let named = cells.iter().filter(|c| is_named_as_picture(c)).count();
            if named * 2 > cells.len() && strict {
                return Err(nothing_there(&column.name, &cells[0], table, &roots));
            }
        }
        Ok(None)
    }

    /// Returns the rows of an image table, with the full path of the image instead of its name, and the selected other
    /// columns.
    pub fn rows(&self, table: &CsvTable, label: Option<(&str, DType)>) -> Dataset {
        let this = self.clone();
        let rows = table.dataset_as(|c| match label {
            _ if c.name == self.field => Some(DType::U8),
            Some((label, dtype)) if c.name == label => Some(dtype),
            _ => None,
        });
        rows.map(move |row| {
            let path = this.path(row.text(&this.field)?);
            let bytes = path.to_string_lossy().into_owned().into_bytes();
            let path = Literal::from_slice([bytes.len()], &bytes)?;
            row.with(&this.field, path).check()
        })
    }

    fn path(&self, cell: &str) -> PathBuf {
        path_of(&self.root, cell, self.end)
    }

    /// Reads every image of an image table once. Missing images are an error that names them, unless that many rows may
    /// be skipped; unreadable images are skipped and reported, up to a quota.
    pub fn check(
        &self,
        rows: &Dataset,
        options: &RecordOptions,
        quota: f64,
        progress: &dyn Fn(u64, u64),
    ) -> Result<ImageTableCheck> {
        let field = self.field.clone();
        let look = move |row: Sample| -> Result<Sample> {
            let path = row.text(&field)?.to_string();
            let is_transparent = has_transparent(&any_format::read(&path)?);
            let size = input_file::size(&path).unwrap_or(0);
            Ok(row.with("index", Literal::from_slice([2], &[size as i64, i64::from(is_transparent)])?))
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = DatasetOptions { core_budget: Some(cores), ..DatasetOptions::default() };
        let paths: Vec<String> =
            rows.iter().filter_map(|row| Some(row.ok()?.text(&self.field).ok()?.to_string())).collect();
        let whole = rows.ignore_errors(u64::MAX).map_parallel(look, AUTOTUNE).with_options(all);
        let (mut missing, mut unreadable, mut mark) = (Vec::new(), Vec::new(), 0);
        let (mut bad, mut transparent) = (HashSet::new(), 0);
        for (i, (row, path)) in whole.iter().zip(&paths).enumerate() {
            match row {
                Ok(row) => {
                    let index = row.get("index")?;
                    let size = index.get(0).as_i64() as u64;
                    transparent += index.get(1).as_i64() as usize;
                    mark = mix(mark ^ hash_name(path) ^ mix(size));
                }
                Err(e) => {
                    bad.insert(path.clone());
                    match is_file(path) {
                        true => unreadable.push(format!("{path} ({})", e.what())),
                        false => missing.push(path.clone()),
                    }
                }
            }
            progress(i as u64 + 1, paths.len() as u64);
        }
        ensure!(missing.len() as u64 <= options.skip, self.missing(&missing, paths.len()));
        if unreadable.len() as f64 > quota * paths.len() as f64 {
            return Err(err!(Data, "{} of {} images cannot be read", unreadable.len(), paths.len())
                .at(self.root.display().to_string())
                .because(named(&unreadable))
                .hint_setting(allow_more(unreadable.len() as u64, paths.len() as u64)));
        }
        let all: Vec<String> = missing.iter().map(|p| format!("{p} (not found)")).chain(unreadable).collect();
        let note = (!all.is_empty())
            .then(|| format!("{} of {} images are skipped: {}", all.len(), paths.len(), named(&all)));
        Ok(ImageTableCheck { bad, note, transparent, mark })
    }

    fn missing(&self, missing: &[String], count: usize) -> Error {
        let are = if missing.len() == 1 { "image does" } else { "images do" };
        err!(Io, "{} of {count} {are} not exist", missing.len())
            .at(format!("the column `{}`", self.field))
            .because(named(missing))
            .hint_setting(format!(
                "add them, or name their folder: data.records.pictures; or skip such rows: \
                 data.records.skip={}",
                missing.len()
            ))
    }

    /// Returns the rows of an image table without unreadable images.
    pub fn without(&self, rows: Dataset, bad: HashSet<String>) -> Dataset {
        if bad.is_empty() {
            return rows;
        }
        let (field, bad) = (self.field.clone(), Arc::new(bad));
        rows.filter(move |row: &Sample| !row.text(&field).is_ok_and(|path| bad.contains(path)))
    }
}

/// Returns the label column of a table of images without a usual label name: its only other column.
pub(super) fn only_other(table: &CsvTable, field: &str) -> Option<String> {
    let is_one =
        |c: &&systole_data::TableColumn| c.name != field && c.kind != ColumnKind::Empty && !c.counts_up;
    let mut others = table.columns.iter().filter(is_one);
    let only = others.next()?;
    others.next().is_none().then(|| only.name.clone())
}

fn named(all: &[String]) -> String {
    let more = if all.len() > NAMED { format!(", and {} more", all.len() - NAMED) } else { String::new() };
    all[..all.len().min(NAMED)].join(", ") + &more
}

fn first_cells(table: &CsvTable, column: &str) -> Vec<String> {
    let cells = table.dataset_as(|c| (c.name == column).then_some(DType::U8));
    let text = |row: Result<Sample>| Some(row.ok()?.text(column).ok()?.trim().to_string());
    cells.debug().iter().take(LOOKED_AT).filter_map(text).filter(|cell| !cell.is_empty()).collect()
}

/// Numbers that name images differ from row to row.
fn counts_as_name(cells: &[String]) -> bool {
    cells.iter().collect::<BTreeSet<_>>().len() == cells.len()
}

fn path_of(root: &Path, cell: &str, end: &str) -> PathBuf {
    let name = if cell.contains('\\') { cell.replace('\\', "/") } else { cell.to_string() };
    root.join(name.trim().to_string() + end)
}

/// Returns the directory where at least half of the files exist, and the extension that their names omit.
fn place_of(cells: &[String], roots: &[PathBuf]) -> Option<(PathBuf, &'static str)> {
    for root in roots {
        for end in ENDS {
            let there = cells.iter().filter(|c| is_file(path_of(root, c, end))).count();
            if there > 0 && there * 2 >= cells.len() {
                return Some((root.clone(), end));
            }
        }
    }
    None
}

fn is_named_as_picture(cell: &str) -> bool {
    let lower = cell.to_lowercase();
    PICTURES.iter().any(|end| lower.ends_with(end))
}

fn nothing_there(column: &str, cell: &str, table: &CsvTable, roots: &[PathBuf]) -> Error {
    let looked: Vec<String> = roots.iter().take(NAMED).map(|r| r.display().to_string()).collect();
    err!(Io, "images listed in the column `{column}` do not exist: {cell}")
        .at(table.files.first().map_or(String::new(), |f| f.display().to_string()))
        .because(format!("looked in {}", looked.join(", ")))
        .hint_setting("name the folder of the images, relative to the table: data.records.pictures; or use other columns \
        as inputs: data.records.inputs")
}
