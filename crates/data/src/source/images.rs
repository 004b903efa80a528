//! `ImageFolder`: images in folders, one folder per class.

use super::list_files::path_text;
use crate::format::any_format;
use crate::input_file::{self, DirectoryEntry, InputFile, entries, leads_back};
use crate::pipeline::{Cardinality, DatasetStage, PipelineRun, RandomAccess};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, Literal, Result, err};

/// Directory that archives from macOS contain.
const LEFT_BEHIND: &str = "__MACOSX";

/// Folder with one folder per class, which contain images of any size (also in nested folders).
#[derive(Clone, Debug)]
pub struct ImageFolder {
    /// Class names (folder names), sorted; a label is an index into them.
    pub classes: Vec<String>,
    /// Path and label of each image, sorted by class and path.
    pub pictures: Arc<Vec<(PathBuf, i32)>>,
    /// Files that are not images.
    pub left_out: Vec<PathBuf>,
    /// Folders without images, which are not classes.
    pub empty: Vec<String>,
}

impl ImageFolder {
    /// Scans an image folder with one folder per class. Files are recognized by their first bytes; files other than
    /// images, hidden files and `__MACOSX` are skipped.
    ///
    /// # Errors
    /// If the folder cannot be read, has no subfolders, or no images.
    pub fn open(dir: impl AsRef<Path>) -> Result<ImageFolder> {
        let dir = dir.as_ref();
        let mut found = ImageFolder {
            classes: Vec::new(),
            pictures: Arc::default(),
            left_out: Vec::new(),
            empty: Vec::new(),
        };
        let mut pictures = Vec::new();
        for DirectoryEntry { path, name, is_dir, .. } in
            entries(dir)?.into_iter().filter(|e| e.name != LEFT_BEHIND)
        {
            if is_dir {
                let before = pictures.len();
                let class = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
                collect(&path, &class, found.classes.len() as i32, &mut pictures, &mut found.left_out)?;
                if pictures.len() > before { found.classes.push(name) } else { found.empty.push(name) }
            } else {
                found.left_out.push(path);
            }
        }
        if pictures.is_empty() {
            return Err(err!(Data, "this folder has no class folders with images")
                .at(dir.display().to_string())
                .because(match found.left_out.len() {
                    0 => "its subfolders contain no files".into(),
                    n => format!("none of the {n} files in its subfolders is a supported image"),
                })
                .hint("put the images of each class into a folder with its name"));
        }
        found.pictures = Arc::new(pictures);
        Ok(found)
    }

    /// Collects all images below a folder as one unnamed class.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn flat(dir: impl AsRef<Path>) -> Result<ImageFolder> {
        let dir = dir.as_ref();
        let here = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
        let (mut pictures, mut left_out) = (Vec::new(), Vec::new());
        collect(dir, &here, 0, &mut pictures, &mut left_out)?;
        Ok(ImageFolder {
            classes: vec![String::new()],
            pictures: Arc::new(pictures),
            left_out,
            empty: Vec::new(),
        })
    }

    /// Returns `image: u8[H, W, C], label: i32[]`; images are read and decoded on demand. Sizes and channels vary:
    /// unify them with a map (to_rgb, resize) before batching.
    pub fn dataset(&self) -> Dataset {
        Dataset::new(ImageFolderStage { files: self.pictures.clone(), decoded: true })
    }

    /// Returns the image files undecoded: `image: ui8[n], label: i32[]`.
    pub fn encoded(&self) -> Dataset {
        Dataset::new(ImageFolderStage { files: self.pictures.clone(), decoded: false })
    }

    /// Returns the images with these indices into [`ImageFolder::pictures`].
    pub fn keep(&self, places: &[usize]) -> ImageFolder {
        let kept = places.iter().filter_map(|i| self.pictures.get(*i).cloned()).collect();
        ImageFolder { pictures: Arc::new(kept), ..self.clone() }
    }

    /// Splits the images for training and validation: this fraction of each class (at least one image if it has two) is
    /// for validation. The choice depends only on the seed and the path within the class, so images added later do not
    /// move others.
    pub fn split(&self, validation: f64, seed: u64) -> (ImageFolder, ImageFolder) {
        let with = |pictures| ImageFolder { pictures: Arc::new(pictures), ..self.clone() };
        let (mut train, mut held) = (Vec::new(), Vec::new());
        for class in self.pictures.chunk_by(|a, b| a.1 == b.1) {
            let rank = |(path, _): &&(PathBuf, i32)| {
                mix(hash_name(&path.file_name().unwrap_or_default().to_string_lossy()) ^ mix(seed))
            };
            let mut order: Vec<&(PathBuf, i32)> = class.iter().collect();
            order.sort_by_key(rank);
            let most = class.len() - 1;
            let count = (class.len() as f64 * validation.clamp(0.0, 1.0)).round() as usize;
            let count = if validation > 0.0 { count.max(1).min(most) } else { 0 };
            held.extend(order[..count].iter().map(|p| (*p).clone()));
            train.extend(order[count..].iter().map(|p| (*p).clone()));
        }
        train.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        held.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        (with(train), with(held))
    }
}

/// Follows links, once: not to directories within the class, nor to parents.
fn collect(
    dir: &Path,
    class: &Path,
    label: i32,
    pictures: &mut Vec<(PathBuf, i32)>,
    left_out: &mut Vec<PathBuf>,
) -> Result<()> {
    for DirectoryEntry { path, is_dir, is_link, .. } in
        entries(dir)?.into_iter().filter(|e| e.name != LEFT_BEHIND)
    {
        if is_dir {
            let is_here = || std::fs::canonicalize(&path).is_ok_and(|to| to.starts_with(class));
            if !is_link || !(is_here() || leads_back(&path)) {
                collect(&path, class, label, pictures, left_out)?;
            }
        } else if begins_as_picture(&path) {
            pictures.push((path, label));
        } else {
            left_out.push(path);
        }
    }
    Ok(())
}

fn begins_as_picture(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = InputFile::open(path).and_then(|f| f.take(16).read_to_end(&mut start));
    read.is_ok() && any_format::is_picture(&start)
}

struct ImageFolderStage {
    files: Arc<Vec<(PathBuf, i32)>>,
    decoded: bool,
}

impl DatasetStage for ImageFolderStage {
    fn label(&self) -> String {
        format!("image_folder({})", self.files.len())
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.files.len() as u64)
    }

    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(Some(Box::new(ImageFolderAccess { files: self.files.clone(), decoded: self.decoded })))
    }
}

struct ImageFolderAccess {
    files: Arc<Vec<(PathBuf, i32)>>,
    decoded: bool,
}

impl RandomAccess for ImageFolderAccess {
    fn len(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let (path, label) = &self.files[index as usize];
        let image = HostArray::from(if self.decoded { any_format::read(path)? } else { whole_file(path)? });
        let label = HostArray::scalar(DType::I32, f64::from(*label));
        let origin = SampleOrigin { source: path_text(path)?.into(), index: 0 };
        Ok(Sample::from_parts(vec![("image".into(), image), ("label".into(), label)], Some(origin)))
    }
}

/// `→ ui8[n]`
fn whole_file(path: &Path) -> Result<Literal> {
    let bytes = input_file::read(path).map_err(|e| Error::io("cannot read", path, e))?;
    Literal::from_slice([bytes.len()], &bytes)
}

/// Returns a map function that decodes an encoded image in a byte field, `ui8[n]`.
pub fn decode_image(field: &'static str) -> impl Fn(Sample) -> Sample + Send + Sync + 'static {
    move |s| s.map(field, |x| x.then(|x| any_format::from_bytes("the image", x.bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::png;
    use crate::stage::test::resumes;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-images-{name}-{}", std::process::id()));
        for (class, n) in [("cat", 7), ("dog", 4), ("empty", 0)] {
            std::fs::create_dir_all(dir.join(class).join("more")).unwrap();
            for i in 0..n {
                let picture = Literal::from_slice([2 + i, 3, 1], &vec![i as u8; 3 * (2 + i)]).unwrap();
                let place = if i == 3 { "more/3.png".to_string() } else { format!("{i}.png") };
                png::write(dir.join(class).join(place), &picture).unwrap();
            }
        }
        std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gradient.jpg"), dir.join("dog/9.JPEG"))
            .unwrap();
        std::fs::write(dir.join("dog/notes.txt"), "no picture").unwrap();
        std::fs::write(dir.join("readme"), "").unwrap();
        for litter in ["__MACOSX", ".thumbnails"] {
            std::fs::create_dir_all(dir.join(litter)).unwrap();
            std::fs::copy(dir.join("cat/0.png"), dir.join(litter).join("0.png")).unwrap();
        }
        dir
    }

    #[test]
    fn classes_are_folders_and_other_files_are_left_out() {
        let dir = folder("classes");
        let f = ImageFolder::open(&dir).unwrap();
        assert_eq!(f.classes, ["cat", "dog"]);
        assert_eq!((f.pictures.len(), f.left_out.len()), (12, 2));
        let second = f.keep(&[1]).encoded().iter().next().unwrap().unwrap();
        assert_eq!(second.get("image").unwrap().bytes(), std::fs::read(dir.join("cat/1.png")).unwrap());
        let d = f.dataset();
        let labels: Vec<_> = d.iter().map(|s| s.unwrap().get("label").unwrap().get(0).as_i64()).collect();
        assert_eq!(labels, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        let equal = d.map_parallel(|s: Sample| s.map("image", |x| x.to_rgb().resize(4, 4)), 2).shuffle(12, 1);
        assert_eq!(
            equal.batch(5).element_spec().unwrap().to_string(),
            "image: ui8[5, 4, 4, 3], label: i32[5]"
        );
        resumes(&equal.batch(5).prefetch(2));
        std::fs::write(dir.join("cat/0.png"), &std::fs::read(dir.join("cat/1.png")).unwrap()[..30]).unwrap();
        let e = d.iter().next().unwrap().unwrap_err().to_string();
        assert!(e.contains("cat/0.png"), "{e}");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(ImageFolder::open(&dir).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn linked_folders_are_read_once() {
        let dir = folder("links");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(dir.join(to), dir.join(at)).unwrap();
        std::fs::create_dir_all(dir.join(".store/night")).unwrap();
        std::fs::copy(dir.join("cat/0.png"), dir.join(".store/night/0.png")).unwrap();
        link(".store/night", "cat/night");
        link("cat/more", "cat/again");
        link(".", "cat/root");
        link("cat", "cat/more/back");
        link("cat/0.png", "cat/alias.png");
        let f = ImageFolder::open(&dir).unwrap();
        let cats = f.pictures.iter().filter(|p| p.1 == 0).count();
        assert_eq!((f.classes.len(), cats), (2, 7 + 1 + 1), "{:?}", f.pictures);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn splits_are_by_class_and_stable() {
        let dir = folder("split");
        let f = ImageFolder::open(&dir).unwrap();
        let (train, held) = f.split(0.25, 3);
        let count = |f: &ImageFolder, label| f.pictures.iter().filter(|p| p.1 == label).count();
        assert_eq!([count(&train, 0), count(&held, 0), count(&train, 1), count(&held, 1)], [5, 2, 4, 1]);
        assert!(held.pictures.iter().all(|p| !train.pictures.contains(p)));
        assert_eq!(f.split(0.25, 3).1.pictures, held.pictures);
        assert_eq!(f.split(0.0, 3).1.pictures.len(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn pictures_within_records_are_decoded() {
        let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/grey.jpg")).unwrap();
        let d = Dataset::from_generator(move || {
            let record =
                |bytes: &[u8]| Literal::from_slice([bytes.len()], bytes).map(|x| Sample::new([("image", x)]));
            [record(&bytes), record(b"no")].into_iter()
        });
        let items: Vec<_> = d.map(decode_image("image")).iter().collect();
        assert_eq!(items[0].as_ref().unwrap().get("image").unwrap().ty().to_string(), "ui8[7, 9, 1]");
        assert!(items[1].is_err());
    }
}
