//! Arrays in files as datasets: NumPy's `.npy` and `.npz`, by rows.

use crate::Dataset;
use crate::format::npy;
use std::path::Path;
use systole_base::Result;

impl Dataset {
    /// The rows of an `.npy` file: `value: T[…]` of an array `T[N, …]`.
    ///
    /// # Errors
    /// As [`npy::read`]; when the array has rank 0.
    pub fn from_npy(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        Dataset::from_named_slices(path.display().to_string(), [("value", npy::read(path)?)])
    }

    /// The rows of the arrays of an `.npz` file: a field for each, under its name.
    ///
    /// # Errors
    /// As [`npy::read_npz`]; when the arrays have different numbers of rows.
    pub fn from_npz(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        Dataset::from_named_slices(path.display().to_string(), npy::read_npz(path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::Literal;

    #[test]
    fn rows_of_files() {
        let path = std::env::temp_dir().join(format!("systole-rows-{}.npy", std::process::id()));
        npy::write(&path, &Literal::from_slice([3, 2], &[1i16, 2, 3, 4, 5, 6]).unwrap()).unwrap();
        let d = Dataset::from_npy(&path).unwrap();
        assert_eq!(d.element_spec().unwrap().to_string(), "value: i16[2]");
        assert_eq!(d.iter().last().unwrap().unwrap().get("value").unwrap().to_f64s(), [5.0, 6.0]);
        std::fs::remove_file(&path).unwrap();
        let uneven = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/two.npz");
        assert!(Dataset::from_npz(uneven).unwrap_err().to_string().contains("different numbers"));
    }
}
