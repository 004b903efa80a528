//! CIFAR-10 and CIFAR-100 binary files.
//!
//! A record is one label (CIFAR-10) or two (CIFAR-100) and the red, green and blue planes of a 32 × 32 image.
//!
//! Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

use crate::Dataset;
use std::path::{Path, PathBuf};
use systole_base::{Error, Literal, Result, err};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// CIFAR file format: CIFAR-10 or CIFAR-100.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CifarVariant {
    /// CIFAR-10: ten classes.
    Ten,
    /// CIFAR-100: 100 fine classes (the labels) in twenty coarse ones.
    Hundred,
}

/// Reads CIFAR batch files: `→ ui8[N, 32, 32, 3], i32[N]`.
///
/// # Errors
/// `Io` if a file cannot be read; `Data` if its size is not a multiple of the record size, or a label is out of range.
pub fn read<P: AsRef<Path>>(
    files: impl IntoIterator<Item = P>,
    set: CifarVariant,
) -> Result<(Literal, Literal)> {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for path in files {
        let path = path.as_ref();
        let bytes = crate::input_file::read(path).map_err(|e| Error::io("cannot read", path, e))?;
        append(&path.display().to_string(), &bytes, set, &mut images, &mut labels)?;
    }
    let count = labels.len();
    Ok((Literal::from_slice([count, SIDE, SIDE, 3], &images)?, Literal::from_slice([count], &labels)?))
}

fn append(
    name: &str,
    bytes: &[u8],
    set: CifarVariant,
    images: &mut Vec<u8>,
    labels: &mut Vec<i32>,
) -> Result<()> {
    let (before, classes) = if set == CifarVariant::Ten { (1, 10) } else { (2, 100) };
    let record = before + 3 * PLANE;
    let damaged = |place: usize, why: String| {
        err!(Data, "invalid CIFAR batch file")
            .at(format!("{name}, byte {place}"))
            .because(why)
            .hint("extract the binary version again (cifar-10-binary.tar.gz, not the python one)")
    };
    if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
        return Err(damaged(
            0,
            format!("{} bytes are not a multiple of the record size {record}", bytes.len()),
        ));
    }
    for (i, record) in bytes.chunks_exact(record).enumerate() {
        let label = record[before - 1];
        if label >= classes {
            return Err(damaged(
                i * record.len() + before - 1,
                format!("label {label} is out of range for {classes} classes"),
            ));
        }
        labels.push(i32::from(label));
        let pixels = &record[before..];
        images.extend((0..PLANE).flat_map(|i| [pixels[i], pixels[PLANE + i], pixels[2 * PLANE + i]]));
    }
    Ok(())
}

impl Dataset {
    /// Creates a dataset of the records of CIFAR batch files: `image: ui8[32, 32, 3], label: i32[]`.
    ///
    /// # Errors
    /// See [`read`].
    pub fn cifar(files: impl IntoIterator<Item = PathBuf>, set: CifarVariant) -> Result<Dataset> {
        let (images, labels) = read(files, set)?;
        Dataset::from_named_slices("cifar", [("image", images), ("label", labels)])
    }
}

// Names of the previous version.
systole_base::renamed! { Cifar => CifarVariant }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_become_pixels_and_damage_is_told() {
        let path = std::env::temp_dir().join(format!("systole-cifar-bin-{}", std::process::id()));
        let record = |labels: &[u8]| {
            let planes = [1u8, 2, 3].into_iter().flat_map(|c| std::iter::repeat_n(10 * c, PLANE));
            labels.iter().copied().chain(planes).collect::<Vec<u8>>()
        };
        std::fs::write(&path, [record(&[7]), record(&[9])].concat()).unwrap();
        let d = Dataset::cifar([path.clone()], CifarVariant::Ten).unwrap();
        let last = d.iter().last().unwrap().unwrap();
        assert_eq!(
            (last.get("label").unwrap().to_f64s(), &last.get("image").unwrap().bytes()[..4]),
            (vec![9.0], &[10, 20, 30, 10][..])
        );
        assert!(read([&path], CifarVariant::Hundred).is_err());
        std::fs::write(&path, record(&[3, 42])).unwrap();
        assert_eq!(read([&path], CifarVariant::Hundred).unwrap().1.to_f64s(), [42.0]);
        std::fs::write(&path, [record(&[1]), record(&[10])].concat()).unwrap();
        let e = read([&path], CifarVariant::Ten).unwrap_err().to_string();
        assert!(e.contains("byte 3073") && e.contains("label 10"), "{e}");
        std::fs::remove_file(path).unwrap();
    }
}
