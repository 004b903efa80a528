//! `from_npy`, `from_npz`: datasets of the rows of NumPy arrays in files.

use crate::Dataset;
use crate::format::npy;
use std::path::Path;
#[cfg(test)]
use systole_base::{DType, Error, ErrorKind, TensorType};
use systole_base::{Literal, Result};

impl Dataset {
    /// Creates a dataset of the rows of an `.npy` file: `value: T[…]` for an array `T[N, …]`.
    ///
    /// # Errors
    /// Like [`npy::read`]; also if the array has rank 0.
    pub fn from_npy(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        Dataset::from_named_slices(path.display().to_string(), [("value", npy::read(path)?)])
    }

    /// Creates a dataset of the rows of the arrays of an `.npz` file, one field per array.
    ///
    /// # Errors
    /// Like [`npy::read_npz`]; also if the arrays have different numbers of rows.
    pub fn from_npz(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        Dataset::from_named_slices(path.display().to_string(), npy::read_npz(path)?)
    }
}

/// Arrays of an `.npz` file that have equal numbers of rows.
pub(crate) struct NumpyRows {
    /// Training elements, and test elements if the file has a test split.
    pub train: Dataset,
    pub test: Option<Dataset>,
    /// Class names, if an array contains them.
    pub classes: Vec<String>,
    /// Notes about skipped arrays.
    pub notes: Vec<String>,
}

/// Names of arrays with class names.
const CLASSES: [&str; 4] = ["class_names", "classes", "label_names", "target_names"];
/// Suffixes and prefixes of array names that mark a split.
const PARTS: [(&str, bool); 5] =
    [("train", false), ("test", true), ("val", true), ("valid", true), ("validation", true)];

/// Reads the rows of an arbitrary `.npz` file: skips arrays with another number of rows, and unreadable ones.
/// `x_train`, `y_train`, `x_test`, `y_test` are Keras's names for two splits.
pub(crate) fn rows_of_npz(path: &Path) -> Result<NumpyRows> {
    let mut rows = NumpyRowAccess::default();
    for (name, array) in npy::read_npz_each(path)? {
        rows.add(name, array)?;
    }
    rows.finish(path)
}

#[derive(Default)]
struct NumpyRowAccess {
    train: Vec<(String, Literal)>,
    test: Vec<(String, Literal)>,
    classes: Vec<String>,
    notes: Vec<String>,
}

impl NumpyRowAccess {
    fn add(&mut self, name: String, array: Result<npy::NpyArray>) -> Result<()> {
        let x = match array {
            Ok(npy::NpyArray::Numbers(x)) => x,
            Ok(npy::NpyArray::Texts(texts, _)) if CLASSES.contains(&name.as_str()) => {
                self.classes = texts;
                return Ok(());
            }
            Ok(npy::NpyArray::Texts(texts, dims)) if dims.len() == 1 => padded(&texts)?,
            Ok(npy::NpyArray::Texts(..)) => {
                self.notes.push(format!(
                    "the array `{name}` is skipped: it contains strings in several dimensions"
                ));
                return Ok(());
            }
            Err(e) => {
                self.notes.push(format!("the array `{name}` is skipped: {}", e.what()));
                return Ok(());
            }
        };
        let (name, is_test) = part_of(&name);
        let part = if is_test { &mut self.test } else { &mut self.train };
        part.push((name, x));
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Result<NumpyRows> {
        let source = path.display().to_string();
        let whole = |all: Vec<(String, Literal)>, part: &str, notes: &mut Vec<String>| {
            let rows = count(&all);
            let (kept, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(_, x)| x.shape().first().copied() == rows);
            notes.extend(others.iter().map(|(name, x)| {
                let rows = rows.unwrap_or(0);
                format!("the array `{name}`{part} is skipped: it is {}, but others have {rows} rows", x.ty())
            }));
            Dataset::from_named_slices(source.clone(), kept)
        };
        if self.train.is_empty() && !self.test.is_empty() {
            std::mem::swap(&mut self.train, &mut self.test);
        }
        let train = whole(self.train, "", &mut self.notes)?;
        let test = match self.test.is_empty() {
            true => None,
            false => Some(whole(self.test, " for testing", &mut self.notes)?),
        };
        Ok(NumpyRows { train, test, classes: self.classes, notes: self.notes })
    }
}

/// Returns the name without the word for a split, and whether it is the test split.
fn part_of(name: &str) -> (String, bool) {
    for (word, is_test) in PARTS {
        let cut = name.strip_suffix(word).and_then(|n| n.strip_suffix('_'));
        let cut = cut.or_else(|| name.strip_prefix(word).and_then(|n| n.strip_prefix('_')));
        if let Some(rest) = cut.filter(|rest| !rest.is_empty()) {
            return (rest.to_string(), is_test);
        }
    }
    (name.to_string(), false)
}

/// Returns the most frequent number of rows, the largest of ties.
fn count(all: &[(String, Literal)]) -> Option<usize> {
    let rows: Vec<usize> = all.iter().filter_map(|(_, x)| x.shape().first().copied()).collect();
    rows.iter().copied().max_by_key(|n| (rows.iter().filter(|m| *m == n).count(), *n))
}

/// Converts strings to rows of bytes: `ui8[N, longest]`, zero-padded as in NumPy.
fn padded(texts: &[String]) -> Result<Literal> {
    let longest = texts.iter().map(String::len).max().unwrap_or(0).max(1);
    let mut bytes = vec![0; longest * texts.len()];
    for (row, text) in bytes.chunks_exact_mut(longest).zip(texts) {
        row[..text.len()].copy_from_slice(text.as_bytes());
    }
    Literal::from_slice([texts.len(), longest], &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_testing::assert_error;

    #[test]
    fn parts_are_told_by_keras_names() {
        assert_eq!(part_of("x_train"), ("x".into(), false));
        assert_eq!(part_of("y_test"), ("y".into(), true));
        assert_eq!(part_of("val_labels"), ("labels".into(), true));
        assert_eq!(part_of("test"), ("test".into(), false));
        assert_eq!(part_of("latest"), ("latest".into(), false));
    }

    #[test]
    fn arrays_of_other_sizes_are_left_out_and_told() {
        let mut rows = NumpyRowAccess::default();
        let floats =
            |dims: &[usize]| Ok(npy::NpyArray::Numbers(Literal::zeros(TensorType::new(DType::F32, dims))));
        rows.add("x_train".into(), floats(&[5, 2])).unwrap();
        rows.add("mean".into(), floats(&[2])).unwrap();
        rows.add("seed".into(), floats(&[])).unwrap();
        let texts: Vec<String> = ["no", "yes", "no", "no", "yes"].map(String::from).to_vec();
        rows.add("y_train".into(), Ok(npy::NpyArray::Texts(texts, vec![5]))).unwrap();
        rows.add("x_test".into(), floats(&[3, 2])).unwrap();
        rows.add("class_names".into(), Ok(npy::NpyArray::Texts(vec!["a".into()], vec![1]))).unwrap();
        rows.add("object".into(), Err(Error::new(ErrorKind::Data, "arrays of type O"))).unwrap();
        let rows = rows.finish(Path::new("a.npz")).unwrap();
        assert_eq!(rows.train.element_spec().unwrap().to_string(), "x: f32[2], y: ui8[3]");
        assert_eq!(rows.test.unwrap().iter().count(), 3);
        assert_eq!((rows.classes.len(), rows.notes.len()), (1, 3), "{:?}", rows.notes);
    }

    #[test]
    fn rows_of_files() {
        let path = std::env::temp_dir().join(format!("systole-rows-{}.npy", std::process::id()));
        npy::write(&path, &Literal::from_slice([3, 2], &[1i16, 2, 3, 4, 5, 6]).unwrap()).unwrap();
        let d = Dataset::from_npy(&path).unwrap();
        assert_eq!(d.element_spec().unwrap().to_string(), "value: i16[2]");
        assert_eq!(d.iter().last().unwrap().unwrap().get("value").unwrap().to_f64s(), [5.0, 6.0]);
        std::fs::remove_file(&path).unwrap();
        let uneven = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/two.npz");
        assert_error(&Dataset::from_npz(uneven).unwrap_err(), ErrorKind::Data, &["two.npz"]);
    }
}
