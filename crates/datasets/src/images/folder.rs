//! Image classification dataset from a folder with one subfolder per class.
//!
//! Like Keras's `image_dataset_from_directory`. Every image is read once before training, so that each epoch has the
//! same images in the same order on every machine. Unreadable images are skipped and reported, up to a quota. If all
//! images fit into a quarter of the free memory they are kept there; otherwise each epoch reads them again.

use super::resizing::{ImageFit, ImageResizing};
use super::splits::parts;
use crate::TrainingData;
use crate::data_dir::DataDir;
use crate::record_files::{is_of_records, unused_records};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType, err};
use systole_data::format::any_format;
use systole_data::input_file::{self, is_dir};
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, HostArray, ImageFolder, Sample, free_memory};

/// Number of images to inspect when choosing an image size.
pub(crate) const LOOKED_AT: usize = 200;
/// Range of automatically chosen side lengths.
pub(crate) const SIDES: std::ops::RangeInclusive<usize> = 16..=64;
/// Maximum number of files listed in messages; the others are counted.
const NAMED: usize = 3;

/// Options for loading an image folder.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// Height, width and channels (1: grayscale, 3: color) of the output images.
    pub picture: [usize; 3],
    /// Fraction of each class that is held out for testing, if the folder has no test split of its own.
    pub validation_split: f64,
    /// Maximum fraction of unreadable images.
    pub unreadable_quota: f64,
    /// Random seed of the train/test split.
    pub seed: u64,
    /// Background for transparent pixels, from 0 (black) to 1 (white).
    pub background: f64,
    /// How images are resized.
    pub resizing: ImageResizing,
}

/// Loads an image folder: `image: u8[H, W, C], label: i32[]`, classes sorted by name.
///
/// `dir` contains one folder per class, or split folders (`train` and `validation`, `val`, `test`, …) that do.
///
/// # Errors
/// `Io` if the folder does not exist; `Data` if it has fewer than two classes with images, or more unreadable images
/// than the quota (names the first of them).
pub fn folder(dir: impl Into<DataDir>, options: &FolderOptions) -> Result<TrainingData> {
    let dir = dir.into();
    let root = dir.named().ok_or_else(not_named)?;
    // Use all images for testing, whatever their classes.
    let is_all = options.validation_split >= 1.0;
    let found = FolderImages::look_at(root, is_all)?;
    let has_test_split = found.test.is_some();
    let (train, test) = match found.test {
        Some(test) => (found.train, test),
        None if is_all => (found.train.keep(&[]), found.train),
        None => found.train.split(options.validation_split, options.seed),
    };
    if test.pictures.is_empty() {
        return Err(err!(Data, "there are no images to test on")
            .at(root.display().to_string())
            .because("each class keeps at least one image for training")
            .hint("add images: at least two for each class, better a hundred"));
    }
    let count = if is_all { 0 } else { train.pictures.len() } + test.pictures.len();
    let bytes = count.saturating_mul(options.picture.iter().product());
    let mut reading = FolderSplitReader {
        options,
        keep: bytes <= free_memory() / 4,
        done: 0,
        count,
        unreadable: Vec::new(),
        transparent: Arc::default(),
        progress: &|done, all| dir.report("reading images", done, all),
    };
    let identity = identity(root, [&train, &test]);
    let (train_set, train_len) =
        if is_all { (Dataset::range(0), 0) } else { reading.part(&train, "train")? };
    let (test_set, test_len) = reading.part(&test, "test")?;
    let unreadable = reading.unreadable_ones(root)?;
    let mut notes: Vec<String> = found.notes.into_iter().chain(unreadable).collect();
    notes.extend(unused_files(root, &train));
    notes.extend(first_of_gifs([&train, &test]));
    notes.extend(empty_classes(&train.empty));
    notes.extend(told_transparent(reading.transparent.load(Relaxed), options.background));
    Ok(TrainingData {
        name: name_of(root),
        origin: root.display().to_string(),
        train: train_set,
        test: test_set,
        train_len,
        test_len,
        has_test_split,
        element: TensorType::new(DType::U8, options.picture),
        class_names: train.classes.clone(),
        fields: Vec::new(),
        columns: Vec::new(),
        elements: "images",
        notes,
        identity: Some(identity),
        streamed: None,
        language: None,
        tokenizer: None,
    })
}

/// Returns notes about record files and other files that are not used.
fn unused_files(root: &Path, train: &ImageFolder) -> impl Iterator<Item = String> {
    // Record files in the folder itself have their own note.
    let is_other = |file: &&PathBuf| file.parent() != Some(root) || !is_of_records(file);
    let other: Vec<PathBuf> = train.left_out.iter().filter(is_other).cloned().collect();
    unused_records(root).into_iter().chain(left_out(root, &other))
}

/// Whether a folder has class folders with images, or split folders with these.
pub(crate) fn has_classes(dir: &Path) -> bool {
    FolderImages::look(dir).is_ok()
}

fn not_named() -> Error {
    err!(Config, "the path of the image folder is not set")
        .hint_setting("pass the folder that contains one folder per class, with --data-dir or data.dir")
}

/// Returns the default image size for a folder: the median of the shorter sides of some images, a multiple of 8 from 16
/// to 64, square; grayscale if all of them are.
///
/// # Errors
/// Like [`folder`], if there are no images.
pub fn picture_size_for(dir: impl AsRef<Path>) -> Result<[usize; 3]> {
    let train = FolderImages::look(dir.as_ref())?.train;
    let step = train.pictures.len().div_ceil(LOOKED_AT);
    let sizes = train.pictures.iter().step_by(step).filter_map(|(path, _)| any_format::size(path).ok());
    Ok(size_for(&sizes.collect::<Vec<_>>()))
}

/// Returns the default image size for images of these sizes: the median of their shorter sides, a multiple of 8 from 16
/// to 64, square; grayscale if all of them are.
pub(crate) fn size_for(sizes: &[[usize; 3]]) -> [usize; 3] {
    let mut sides: Vec<usize> = sizes.iter().map(|[h, w, _]| *h.min(w)).collect();
    sides.sort_unstable();
    let middle = sides.get(sides.len() / 2).copied().unwrap_or(*SIDES.end());
    let side = (middle / 8 * 8).clamp(*SIDES.start(), *SIDES.end());
    let grey = !sizes.is_empty() && sizes.iter().all(|[_, _, c]| *c <= 2);
    [side, side, if grey { 1 } else { 3 }]
}

/// Resizes and converts an image: `x: u8[H', W', 1 to 4] → u8[H, W, C]`, grayscale (C = 1) or color (C = 3).
/// Transparent pixels become black. See [`ImageFit`] for other backgrounds and ways of resizing.
pub fn fit_picture(x: HostArray, size: [usize; 3]) -> HostArray {
    fit_picture_on(x, size, 0.0)
}

pub(crate) fn has_transparent(picture: &Literal) -> bool {
    match picture.shape().last() {
        Some(c @ (2 | 4)) => picture.bytes().iter().skip(c - 1).step_by(*c).any(|alpha| *alpha < 255),
        _ => false,
    }
}

/// Like [`fit_picture`], with a given background.
pub fn fit_picture_on(x: HostArray, size: [usize; 3], ground: f64) -> HostArray {
    ImageFit { size, background: ground, resizing: ImageResizing::default() }.apply(x)
}

/// Images of a folder, and of its test split.
struct FolderImages {
    train: ImageFolder,
    test: Option<ImageFolder>,
    notes: Vec<String>,
}

impl FolderImages {
    fn look(root: &Path) -> Result<FolderImages> {
        FolderImages::look_at(root, false)
    }

    /// Lists the images; `any` accepts a single class.
    fn look_at(root: &Path, any: bool) -> Result<FolderImages> {
        check_place(root)?;
        let open = |dir: &Path| ImageFolder::open(dir).map_err(|e| explain_empty(dir, e));
        let found = match parts(root)? {
            Some(parts) => {
                let (train, test) = (open(&parts.train)?, parts.test.as_deref().map(open).transpose()?);
                FolderImages {
                    test: test.map(|t| same_classes(&train, t)).transpose()?,
                    train,
                    notes: parts.notes,
                }
            }
            None => FolderImages { train: open(root)?, test: None, notes: Vec::new() },
        };
        match found.train.classes.as_slice() {
            [only] if !any => Err(one_class(root, only)),
            _ => Ok(found),
        }
    }
}

/// Relabels the test images with the training labels, matching classes by name.
fn same_classes(train: &ImageFolder, test: ImageFolder) -> Result<ImageFolder> {
    let places: Option<Vec<usize>> =
        test.classes.iter().map(|name| train.classes.iter().position(|c| c == name)).collect();
    let Some(places) = places else {
        return Err(err!(Data, "training and test images have different classes")
            .because(format!("{} and {}", train.classes.join(", "), test.classes.join(", ")))
            .hint("use the same class folders for training and test images, each with at least one image"));
    };
    let named = test.pictures.iter().map(|(path, label)| (path.clone(), places[*label as usize] as i32));
    Ok(ImageFolder { pictures: Arc::new(named.collect()), classes: train.classes.clone(), ..test })
}

/// Returns a note about GIF files, which may contain several images.
fn first_of_gifs(parts: [&ImageFolder; 2]) -> Option<String> {
    let is_gif =
        |(path, _): &&(PathBuf, i32)| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gif"));
    match parts.iter().flat_map(|f| f.pictures.iter()).filter(is_gif).count() {
        0 => None,
        1 => Some("1 file is a GIF: its first frame is used".into()),
        n => Some(format!("{n} files are GIFs: the first frame of each is used")),
    }
}

/// Returns a note about class folders without images.
fn empty_classes(names: &[String]) -> Option<String> {
    match names {
        [] => None,
        [one] => Some(format!("the folder {one} has no images: it is not used as a class")),
        many => Some(format!("the folders {} have no images: they are not used as classes", many.join(", "))),
    }
}

fn check_place(root: &Path) -> Result<()> {
    let what = match std::fs::metadata(root) {
        _ if is_dir(root) => return Ok(()),
        Ok(_) => "is a file, not a folder",
        Err(_) => "does not exist",
    };
    Err(err!(Io, "`{}` {what}", root.display())
        .hint_command("pass the folder that contains one folder of images per class; unpack archives first"))
}

/// Explains why a folder contains no class folders with images.
fn explain_empty(root: &Path, error: Error) -> Error {
    let Ok(entries) = std::fs::read_dir(root) else { return error };
    let entries: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    let loose = entries.iter().filter(|p| p.is_file() && any_format::size(p).is_ok()).count();
    let place = root.display();
    if entries.is_empty() {
        return err!(Data, "`{place}` is empty")
            .hint("add a folder for each class, named like the class, with its images");
    }
    if loose > 0 {
        return err!(Data, "`{place}` has {loose} images, but no class folders")
            .because("the class of an image is the name of its folder")
            .hint("create a folder for each class and move the images there");
    }
    let formats = other_formats(&files_below(root, 3));
    match formats.is_empty() {
        true => error,
        false => err!(Data, "`{place}` has no images of a supported format")
            .because(format!("the files in the folder are {}", counted(&formats)))
            .hint("convert the images to JPEG or PNG"),
    }
}

/// Returns the hint for more unreadable images than the quota allows.
pub(crate) fn allow_more(unreadable: u64, all: u64) -> String {
    let quota = unreadable.saturating_mul(100).div_ceil(all.max(1)) as f64 / 100.0;
    let mend = "repair or remove the unreadable images";
    match unreadable < all {
        true => format!("{mend}, or allow more: --set data.unreadable_quota={quota}"),
        false => mend.into(),
    }
}

fn one_class(root: &Path, only: &str) -> Error {
    let inside = root.join(only);
    let deeper = ImageFolder::open(&inside).is_ok_and(|f| f.classes.len() > 1);
    let e = err!(Data, "`{}` has only one class: `{only}`", root.display())
        .because("a classifier needs at least two classes");
    match deeper {
        true => {
            e.hint_command(format!("the class folders seem to be one level deeper: use {}", inside.display()))
        }
        false => e.hint("add a folder with images of another class"),
    }
}

/// Reads the images of the splits in order.
struct FolderSplitReader<'a> {
    options: &'a FolderOptions,
    /// Whether to keep the pixels in memory.
    keep: bool,
    done: usize,
    count: usize,
    unreadable: Vec<Error>,
    /// Number of images with transparent pixels.
    transparent: Arc<AtomicUsize>,
    progress: &'a dyn Fn(u64, u64),
}

impl FolderSplitReader<'_> {
    /// Reads one split: the readable images and their number.
    fn part(&mut self, part: &ImageFolder, name: &str) -> Result<(Dataset, usize)> {
        let size = self.options.picture;
        let image = ImageFit { size, background: self.options.background, resizing: self.options.resizing };
        let transparent = self.transparent.clone();
        let fit = move |s: Sample| {
            if s.get("image").is_ok_and(has_transparent) {
                transparent.fetch_add(1, Relaxed);
            }
            s.map("image", move |x| image.apply(x))
        };
        let pictures = |folder: &ImageFolder| folder.dataset().map_parallel(fit.clone(), AUTOTUNE);
        // Training has not started: use every core.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = DatasetOptions { core_budget: Some(cores), ..DatasetOptions::default() };
        let (mut places, mut labels, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (i, item) in pictures(part).with_options(all).iter().enumerate() {
            match item {
                Ok(sample) => {
                    places.push(i);
                    labels.push(part.pictures[i].1);
                    if self.keep {
                        bytes.extend_from_slice(sample.get("image")?.bytes());
                    }
                }
                Err(e) => self.unreadable.push(e),
            }
            self.done += 1;
            (self.progress)(self.done as u64, self.count as u64);
        }
        let count = places.len();
        if let Some(k) = (0..part.classes.len() as i32).find(|k| name == "train" && !labels.contains(k)) {
            return Err(err!(Data, "a class has no readable image")
                .at(part.classes[k as usize].clone())
                .because(self.unreadable.first().map_or(String::new(), |e| e.what().to_string()))
                .hint("replace the unreadable images of the class, or remove its folder"));
        }
        if !self.keep {
            return Ok((pictures(&part.keep(&places)), count));
        }
        let images = Literal::from_slice([count, size[0], size[1], size[2]], &bytes)?;
        let fields = [("image", images), ("label", Literal::from_slice([count], &labels)?)];
        Ok((Dataset::from_named_slices(format!("{name} pictures"), fields)?, count))
    }

    /// Returns a note about unreadable images.
    ///
    /// # Errors
    /// If there are more than the quota allows.
    fn unreadable_ones(&self, root: &Path) -> Result<Option<String>> {
        let n = self.unreadable.len();
        if n == 0 {
            return Ok(None);
        }
        let name = |e: &Error| {
            let place = e.places().first().map_or("a file", String::as_str);
            let why = e.to_string();
            let why =
                why.lines().find_map(|l| l.trim().strip_prefix("why: ")).unwrap_or(e.what()).to_string();
            format!("{} ({why})", below(root, Path::new(place)))
        };
        let mut named: Vec<String> = self.unreadable.iter().take(NAMED).map(name).collect();
        if n > NAMED {
            named.push(format!("{} more", n - NAMED));
        }
        let what = format!("{n} of {} images cannot be read", self.count);
        if n as f64 > self.options.unreadable_quota * self.count as f64 {
            return Err(Error::new(ErrorKind::Data, what)
                .at(root.display().to_string())
                .because(named.join("; "))
                .hint_setting(allow_more(n as u64, self.count as u64)));
        }
        Ok(Some(format!("{what} and are skipped: {}", named.join("; "))))
    }
}

/// Returns a note about `n` images with transparent pixels.
pub(crate) fn told_transparent(n: usize, ground: f64) -> Option<String> {
    let shown = match ground {
        0.0 => "black (data.background=1 makes it white)".to_string(),
        1.0 => "white (data.background=0 makes it black)".to_string(),
        grey => format!("gray level {grey} (data.background)"),
    };
    match n {
        0 => None,
        1 => Some(format!("1 image has transparent pixels, which are blended with {shown}")),
        n => Some(format!("{n} images have transparent pixels, which are blended with {shown}")),
    }
}

/// Returns a note about files that are not images.
fn left_out(root: &Path, files: &[PathBuf]) -> Option<String> {
    let first = files.first()?;
    let mut kinds = other_formats(files);
    let known: usize = kinds.values().sum();
    if known < files.len() && known > 0 {
        kinds.insert("of other formats".into(), files.len() - known);
    }
    let (which, are) = match (files, known) {
        ([_], 0) => (below(root, first), "is"),
        ([_], _) => (counted(&kinds), "is"),
        (_, 0) => (format!("{} and {} more", below(root, first), files.len() - 1), "are"),
        _ => (counted(&kinds), "are"),
    };
    let some = if files.len() == 1 { "1 file".into() } else { format!("{} files", files.len()) };
    Some(format!("{some} {are} in no supported image format and {are} skipped: {which}"))
}

/// Counts the files of unsupported image formats.
fn other_formats(files: &[PathBuf]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for path in files {
        let mut start = Vec::new();
        let read = File::open(path).and_then(|f| f.take(16).read_to_end(&mut start));
        if let (Ok(_), Some(format)) = (read, any_format::other_format(&start)) {
            *kinds.entry(format.to_string()).or_insert(0) += 1;
        }
    }
    kinds
}

fn counted(kinds: &BTreeMap<String, usize>) -> String {
    kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ")
}

/// Lists the files of a folder and its subfolders, up to a depth.
fn files_below(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path()));
    let below = |path: PathBuf| match path.is_dir() && depth > 0 {
        true => files_below(&path, depth - 1),
        false => vec![path],
    };
    entries.flat_map(below).filter(|p| p.is_file()).collect()
}

fn below(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Returns the folder's name.
fn name_of(root: &Path) -> String {
    let whole = root.canonicalize();
    let name = whole.as_deref().unwrap_or(root).file_name().map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "pictures".into())
}

/// Fingerprint of names, sizes and classes of the images: a resumed run must find the same.
fn identity(root: &Path, parts: [&ImageFolder; 2]) -> String {
    let mut mark = 0;
    for (path, label) in parts.iter().flat_map(|f| f.pictures.iter()) {
        let size = input_file::size(path).unwrap_or(0);
        mark = mix(mark ^ hash_name(&below(root, path)) ^ mix(size ^ (*label as u64) << 48));
    }
    let [train, test] = parts.map(|f| f.pictures.len());
    format!("{train} + {test} pictures of {} classes, mark {mark:016x}", parts[0].classes.len())
}
