//! CIFAR-10: locates its binary files, which `systole_data::format::cifar` reads; falls back to synthetic color glyphs.

use super::glyphs::colour_glyphs;
use crate::idx_datasets::{DataDir, roots};
use crate::{ImageArrays, ImageDataset};
use std::path::{Path, PathBuf};
use systole_base::{Error, Result, err};
use systole_data::format::cifar::{self, CifarVariant};

const FOLDER: &str = "cifar-10-batches-bin";
const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Loads CIFAR-10: 50,000 + 10,000 color images, `u8[32, 32, 3]`, ten classes, from its binary files.
///
/// If no directory is given and none of the default locations has the files, returns synthetic color glyphs of the same
/// shape; the dataset's name and origin say so. Krizhevsky, "Learning multiple layers of features from tiny images",
/// 2009.
///
/// # Errors
/// `Io` if a given directory lacks any of the six files; `Data` if they are damaged.
pub fn cifar10(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    let dir = dir.into();
    let places = roots(&dir);
    let folders = places.iter().flat_map(|root| [root.clone(), root.join(FOLDER), root.join("cifar10")]);
    match folders.into_iter().find(|f| f.join("test_batch.bin").is_file()) {
        Some(folder) => read(&folder),
        None if dir.is_named() => Err(missing(&places)),
        None => {
            let mut drawn = colour_glyphs(0)?;
            drawn.origin += &format!(", because there is no folder {FOLDER}");
            Ok(drawn)
        }
    }
}

fn missing(places: &[PathBuf]) -> Error {
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    err!(Io, "the files of `cifar10` were not found")
        .because(format!("looked for {FOLDER} in {}", places.join(", ")))
        .hint(
            "unpack cifar-10-binary.tar.gz in this folder, or leave the folder out to use synthetic color \
        glyphs",
        )
}

fn read(folder: &Path) -> Result<ImageDataset> {
    let batches: Vec<PathBuf> = (1..=5).map(|i| folder.join(format!("data_batch_{i}.bin"))).collect();
    let train = arrays(&batches)?;
    let test = arrays(&[folder.join("test_batch.bin")])?;
    ImageDataset::new("cifar10", folder.display().to_string(), &CLASSES, train, test)
}

fn arrays(files: &[PathBuf]) -> Result<ImageArrays> {
    let (images, labels) = cifar::read(files, CifarVariant::Ten)?;
    Ok(ImageArrays { images, labels })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANE: usize = 32 * 32;

    #[test]
    fn planes_become_pixels_and_damage_is_told() {
        let folder = std::env::temp_dir().join(format!("systole-cifar-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let record = |label: u8| {
            let planes = [1u8, 2, 3].into_iter().flat_map(|c| std::iter::repeat_n(10 * c, PLANE));
            std::iter::once(label).chain(planes).collect::<Vec<u8>>()
        };
        for i in 1..=5 {
            std::fs::write(folder.join(format!("data_batch_{i}.bin")), record(i)).unwrap();
        }
        std::fs::write(folder.join("test_batch.bin"), [record(7), record(9)].concat()).unwrap();
        let data = cifar10(folder.clone()).unwrap();
        assert_eq!((data.train_len, data.test_len, data.image_shape), (5, 2, [32, 32, 3]));
        assert_eq!(data.train_arrays.labels.to_f64s(), [1., 2., 3., 4., 5.]);
        assert_eq!(data.test_arrays.images.bytes()[..6], [10, 20, 30, 10, 20, 30]);
        std::fs::write(folder.join("data_batch_3.bin"), &record(3)[1..]).unwrap();
        let e = cifar10(folder.clone()).unwrap_err().to_string();
        assert!(e.contains("data_batch_3.bin") && e.contains("3072"), "{e}");
        std::fs::remove_dir_all(&folder).unwrap();
        let e = cifar10(folder).unwrap_err().to_string();
        assert!(e.contains(FOLDER), "{e}");
    }
}
