//! CIFAR-10 and CIFAR-100: locates or downloads their binary files, which `systole_data::format::cifar` reads.
//!
//! Synthetic color glyphs replace CIFAR-10 only for [`cifar10_or_glyphs`].

use super::glyphs::colour_glyphs;
use crate::catalog;
use crate::data_dir::{DataDir, roots};
use crate::download;
use crate::{ImageArrays, ImageDataset};
use std::path::{Path, PathBuf};
use systole_base::{Error, ErrorKind, Result};
use systole_data::format::cifar::{self, CifarVariant};

const FOLDER: &str = "cifar-10-batches-bin";
const FOLDER_OF_100: &str = "cifar-100-binary";
const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Loads CIFAR-10: 50,000 + 10,000 color images, `u8[32, 32, 3]`, ten classes, from its binary files.
///
/// If no directory is given, the files are searched in the default locations and otherwise downloaded. Krizhevsky,
/// "Learning multiple layers of features from tiny images", 2009.
///
/// # Errors
/// `Io` if the files are not found and cannot be downloaded; `Data` if they are damaged.
pub fn cifar10(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    let dir = dir.into();
    let places = roots(&dir);
    let folder = match find(&places, [FOLDER, "cifar10"], "test_batch.bin") {
        Some(folder) => folder,
        None if dir.is_named() && !dir.downloads() => {
            return Err(missing("cifar10", FOLDER, &places).hint_command(
                "download it: `systole data fetch cifar10`; then leave the folder out, or name the one that is printed",
            ));
        }
        None => catalog::CIFAR10.fetch(&dir)?,
    };
    let batches: Vec<PathBuf> = (1..=5).map(|i| folder.join(format!("data_batch_{i}.bin"))).collect();
    let test = [folder.join("test_batch.bin")];
    load("cifar10", &folder, &CLASSES, CifarVariant::Ten, (&batches, &test))
}

/// Like [`cifar10`], with synthetic color glyphs of the same shape if the files are neither found nor downloaded; the
/// dataset's name and origin say so.
///
/// # Errors
/// `Io` if a given directory lacks any of the six files, or they are being downloaded; `Data` if they are damaged.
pub fn cifar10_or_glyphs(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    let dir = dir.into();
    let (is_named, downloaded) = (dir.is_named(), cifar10(dir));
    match downloaded {
        // Synthetic images must not replace files that are damaged, or about to arrive.
        Err(e) if !is_named && e.kind() == ErrorKind::Io && !is_running(&e) => {
            let mut drawn = colour_glyphs(0)?;
            drawn.origin +=
                &format!(", because there is no folder {FOLDER}; `systole data fetch cifar10` downloads it");
            Ok(drawn)
        }
        found => found,
    }
}

/// Loads CIFAR-100: 50,000 + 10,000 color images, `u8[32, 32, 3]`, 100 classes (the fine ones), from its binary files.
///
/// If no directory is given, the files are searched in the default locations and otherwise downloaded.
///
/// # Errors
/// `Io` if the files are not found and cannot be downloaded; `Data` if they are damaged.
pub fn cifar100(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    let dir = dir.into();
    let places = roots(&dir);
    let folder = match find(&places, [FOLDER_OF_100, "cifar100"], "test.bin") {
        Some(folder) => folder,
        None if dir.is_named() && !dir.downloads() => {
            return Err(missing("cifar100", FOLDER_OF_100, &places)
                .hint_command(
                "download it: `systole data fetch cifar100`; then leave the folder out, or name the one that is printed",
            ));
        }
        None => catalog::CIFAR100.fetch(&dir)?,
    };
    let names = folder.join("fine_label_names.txt");
    let text = std::fs::read_to_string(&names).map_err(|e| Error::io("cannot read", &names, e))?;
    let classes: Vec<&str> = text.split_whitespace().collect();
    if classes.len() != 100 {
        return Err(Error::new(ErrorKind::Data, "invalid file of class names")
            .at(names.display().to_string())
            .because(format!("expected 100 names, got {}", classes.len()))
            .hint("extract the binary version again (cifar-100-binary.tar.gz)"));
    }
    let files = ([folder.join("train.bin")], [folder.join("test.bin")]);
    load("cifar100", &folder, &classes, CifarVariant::Hundred, (&files.0, &files.1))
}

/// Whether a download failed because another process is downloading the same files.
fn is_running(e: &Error) -> bool {
    e.reasons().iter().any(|why| why == download::LOCKED)
}

/// Returns the first folder that has the file `probe`: a location or one of its subfolders `names`. A folder whose
/// download was interrupted is skipped.
fn find(places: &[PathBuf], names: [&str; 2], probe: &str) -> Option<PathBuf> {
    let [published, short] = names;
    let mut folders = places.iter().flat_map(|root| [root.clone(), root.join(published), root.join(short)]);
    folders.find(|f| f.join(probe).is_file() && !f.join(download::MARK).exists())
}

fn missing(name: &str, folder: &str, places: &[PathBuf]) -> Error {
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Error::new(ErrorKind::Io, format!("the files of `{name}` were not found"))
        .because(format!("looked for {folder} in {}", places.join(", ")))
}

fn load(
    name: &'static str,
    folder: &Path,
    classes: &[&str],
    variant: CifarVariant,
    (train, test): (&[PathBuf], &[PathBuf]),
) -> Result<ImageDataset> {
    let arrays = |files: &[PathBuf]| -> Result<ImageArrays> {
        let (images, labels) = cifar::read(files, variant)?;
        Ok(ImageArrays { images, labels })
    };
    ImageDataset::new(name, folder.display().to_string(), classes, arrays(train)?, arrays(test)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_testing::assert_error;

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

    #[test]
    fn fine_labels_and_their_names_are_read_for_cifar100() {
        let folder = std::env::temp_dir().join(format!("systole-cifar-100-{}", std::process::id()));
        let set = folder.join(FOLDER_OF_100);
        std::fs::create_dir_all(&set).unwrap();
        let record = |fine: u8| [vec![3, fine], vec![7; 3 * PLANE]].concat();
        std::fs::write(set.join("train.bin"), [record(99), record(0)].concat()).unwrap();
        std::fs::write(set.join("test.bin"), record(42)).unwrap();
        let names: Vec<String> = (0..100).map(|i| format!("class{i}\n")).collect();
        std::fs::write(set.join("fine_label_names.txt"), names.concat()).unwrap();
        let data = cifar100(folder.clone()).unwrap();
        assert_eq!((data.train_len, data.test_len, data.num_classes), (2, 1, 100));
        assert_eq!(data.train_arrays.labels.to_f64s(), [99., 0.]);
        assert_eq!(data.class_names[42], "class42");
        std::fs::write(set.join("fine_label_names.txt"), names[1..].concat()).unwrap();
        assert_error(&cifar100(folder.clone()).unwrap_err(), ErrorKind::Data, &["fine_label_names.txt"]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_error(&cifar100(folder).unwrap_err(), ErrorKind::Io, &["`cifar100`", FOLDER_OF_100]);
    }

    #[test]
    fn glyphs_replace_cifar10_only_if_it_cannot_be_had() {
        let cache = std::env::temp_dir().join(format!("systole-cifar-none-{}", std::process::id()));
        let dir = DataDir::default().cache(&cache).offline();
        if catalog::CIFAR10.locate(&dir).is_none() {
            assert_error(&cifar10(dir.clone()).unwrap_err(), ErrorKind::Io, &["cifar-10-binary.tar.gz"]);
            let data = cifar10_or_glyphs(dir.clone()).unwrap();
            assert_ne!(data.name, "cifar10");
            assert!(data.origin.contains("data fetch cifar10"), "{}", data.origin);
        }
        let running = DataDir::default().cache(&cache).mirror("http://127.0.0.1:1/none");
        let lock = std::fs::create_dir_all(cache.join("cifar10"))
            .and_then(|()| std::fs::File::create(cache.join("cifar10").join(download::MARK)))
            .unwrap();
        lock.lock().unwrap();
        if catalog::CIFAR10.locate(&running).is_none() {
            assert_error(&cifar10_or_glyphs(running.clone()).unwrap_err(), ErrorKind::Io, &["`cifar10`"]);
            drop(lock);
            assert_ne!(cifar10_or_glyphs(running).unwrap().name, "cifar10");
        }
        if catalog::CIFAR100.locate(&dir).is_none() {
            assert_error(&cifar100(dir).unwrap_err(), ErrorKind::Io, &["cifar-100-binary.tar.gz"]);
        }
        std::fs::remove_dir_all(&cache).unwrap();
    }
}
