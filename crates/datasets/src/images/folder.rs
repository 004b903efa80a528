//! A folder of your own pictures: one folder for each class, files of any size, grey or colour, odd ones among them.
//!
//! Every picture is read once before training, so that each epoch has the same pictures in the same places, whatever the
//! machine: those that cannot be read are left out then, by name and up to a quota. Where all fit into a quarter of the
//! free memory they are kept there; otherwise each epoch reads them again.

use super::splits::parts;
use crate::TrainingData;
use crate::idx_datasets::DataDir;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_data::format::any_format;
use systole_data::input_file::{self, is_dir};
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, HostArray, ImageFolder, Sample, free_memory};

/// Pictures that are looked at to choose a size.
pub(crate) const LOOKED_AT: usize = 200;
/// Sides that are chosen without being asked for.
pub(crate) const SIDES: std::ops::RangeInclusive<usize> = 16..=64;
/// Files that are named in messages; the others are counted.
const NAMED: usize = 3;

/// How a folder of pictures becomes a data set.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// Height, width and channels (1: grey, 3: colour) that every picture is brought to.
    pub picture: [usize; 3],
    /// The part of each class that is kept for testing, where the folder has no part of its own for that.
    pub validation_split: f64,
    /// The part of the pictures that may be unreadable.
    pub unreadable_quota: f64,
    /// Which pictures are kept for testing.
    pub seed: u64,
    /// What transparent parts are laid on, from 0 (black) to 1 (white).
    pub background: f64,
}

/// Pictures of your own: `image: u8[H, W, C], label: i32[]`, the classes in the order of their names.
///
/// `dir` holds one folder for each class, or a folder `train` and one of `validation`, `val`, `test`, … that do.
///
/// # Errors
/// `Io` when there is no such folder; `Data` when it has fewer than two classes with pictures, or more unreadable
/// pictures than the quota (names the first of them).
pub fn folder(dir: impl Into<DataDir>, options: &FolderOptions) -> Result<TrainingData> {
    let dir = dir.into();
    let root = dir.named().ok_or_else(not_named)?;
    // All of them are to be tested on, whichever classes there are.
    let is_all = options.validation_split >= 1.0;
    let found = FolderImages::look_at(root, is_all)?;
    let (train, test) = match found.test {
        Some(test) => (found.train, test),
        None if is_all => (found.train.keep(&[]), found.train),
        None => found.train.split(options.validation_split, options.seed),
    };
    if test.pictures.is_empty() {
        return Err(Error::new(ErrorKind::Data, "there are no pictures to test on")
            .at(root.display().to_string())
            .because("each class keeps at least one picture for training")
            .hint("add pictures: two for each class at least, better a hundred"));
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
        progress: &|done, all| dir.report("reading pictures", done, all),
    };
    let identity = identity(root, [&train, &test]);
    let (train_set, train_len) = match is_all {
        true => (Dataset::range(0), 0),
        false => reading.part(&train, "train")?,
    };
    let (test_set, test_len) = reading.part(&test, "test")?;
    let unreadable = reading.unreadable_ones(root)?;
    let mut notes: Vec<String> = found.notes.into_iter().chain(unreadable).collect();
    notes.extend(left_out(root, &train.left_out));
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
        element: TensorType::new(DType::U8, options.picture),
        class_names: train.classes.clone(),
        fields: Vec::new(),
        columns: Vec::new(),
        elements: "pictures",
        notes,
        identity: Some(identity),
        streamed: None,
        language: None,
    })
}

fn not_named() -> Error {
    Error::new(ErrorKind::Config, "no folder of pictures is named")
        .hint("name the folder that holds one folder for each class, with --data-dir or data.dir")
}

/// The size and colour to bring the pictures of a folder to where nobody says: the middle one of the shorter sides of
/// some of them, a multiple of 8 from 16 to 64, square; grey where all of them are grey.
///
/// # Errors
/// As [`folder`], when there are no pictures.
pub fn picture_size_for(dir: impl AsRef<Path>) -> Result<[usize; 3]> {
    let train = FolderImages::look(dir.as_ref())?.train;
    let step = train.pictures.len().div_ceil(LOOKED_AT);
    let sizes = train.pictures.iter().step_by(step).filter_map(|(path, _)| any_format::size(path).ok());
    Ok(size_for(&sizes.collect::<Vec<_>>()))
}

/// The size and colour to bring pictures of these sizes to: the middle one of their shorter sides, a multiple of 8 from 16
/// to 64, square; grey where all of them are grey.
pub(crate) fn size_for(sizes: &[[usize; 3]]) -> [usize; 3] {
    let mut sides: Vec<usize> = sizes.iter().map(|[h, w, _]| *h.min(w)).collect();
    sides.sort_unstable();
    let middle = sides.get(sides.len() / 2).copied().unwrap_or(*SIDES.end());
    let side = (middle / 8 * 8).clamp(*SIDES.start(), *SIDES.end());
    let grey = !sizes.is_empty() && sizes.iter().all(|[_, _, c]| *c <= 2);
    [side, side, if grey { 1 } else { 3 }]
}

/// A picture as a model takes it: `x: u8[H', W', 1 to 4] → u8[H, W, C]`, resized, in grey (C = 1) or colour (C = 3).
/// Transparent parts become black: see [`HostArray::on_ground`] for another ground.
pub fn fit_picture(x: HostArray, [height, width, channels]: [usize; 3]) -> HostArray {
    let coloured = if channels == 1 { x.rgb_to_grayscale() } else { x.to_rgb() };
    coloured.resize(height, width)
}

pub(crate) fn has_transparent(picture: &Literal) -> bool {
    match picture.shape().last() {
        Some(c @ (2 | 4)) => picture.bytes().iter().skip(c - 1).step_by(*c).any(|alpha| *alpha < 255),
        _ => false,
    }
}

/// [`fit_picture`] on a ground that is not black.
pub fn fit_picture_on(x: HostArray, size: [usize; 3], ground: f64) -> HostArray {
    fit_picture(if ground > 0.0 { x.on_ground(ground) } else { x }, size)
}

/// The pictures of a folder, and those of its own test part.
struct FolderImages {
    train: ImageFolder,
    test: Option<ImageFolder>,
    notes: Vec<String>,
}

impl FolderImages {
    fn look(root: &Path) -> Result<FolderImages> {
        FolderImages::look_at(root, false)
    }

    /// `any`: one class is enough.
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

/// The test pictures with the labels that their classes have in training: by name, not by place.
fn same_classes(train: &ImageFolder, test: ImageFolder) -> Result<ImageFolder> {
    let places: Option<Vec<usize>> =
        test.classes.iter().map(|name| train.classes.iter().position(|c| c == name)).collect();
    let Some(places) = places else {
        return Err(Error::new(ErrorKind::Data, "training and test pictures are of different classes")
            .because(format!("{} and {}", train.classes.join(", "), test.classes.join(", ")))
            .hint("give both folders the same folders of classes, with pictures in each"));
    };
    let named = test.pictures.iter().map(|(path, label)| (path.clone(), places[*label as usize] as i32));
    Ok(ImageFolder { pictures: Arc::new(named.collect()), classes: train.classes.clone(), ..test })
}

/// What is to be said of files that may hold several pictures.
fn first_of_gifs(parts: [&ImageFolder; 2]) -> Option<String> {
    let is_gif =
        |(path, _): &&(PathBuf, i32)| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gif"));
    match parts.iter().flat_map(|f| f.pictures.iter()).filter(is_gif).count() {
        0 => None,
        1 => Some("1 file is a GIF: its first picture is taken".into()),
        n => Some(format!("{n} files are GIF: the first picture of each is taken")),
    }
}

/// What is to be said of folders of classes without pictures.
fn empty_classes(names: &[String]) -> Option<String> {
    match names {
        [] => None,
        [one] => Some(format!("the folder {one} has no pictures: it is no class")),
        many => Some(format!("the folders {} have no pictures: they are no classes", many.join(", "))),
    }
}

fn check_place(root: &Path) -> Result<()> {
    let what = match std::fs::metadata(root) {
        _ if is_dir(root) => return Ok(()),
        Ok(_) => "is a file, not a folder",
        Err(_) => "is not there",
    };
    Err(Error::new(ErrorKind::Io, format!("{} {what}", root.display()))
        .hint("name the folder that holds one folder of pictures for each class; unpack archives first"))
}

/// What is wrong with a folder in which no pictures of classes were found.
fn explain_empty(root: &Path, error: Error) -> Error {
    let Ok(entries) = std::fs::read_dir(root) else { return error };
    let entries: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    let loose = entries.iter().filter(|p| p.is_file() && any_format::size(p).is_ok()).count();
    let place = root.display();
    if entries.is_empty() {
        return Error::new(ErrorKind::Data, format!("{place} is empty"))
            .hint("put a folder for each class into it, named like the class, with its pictures");
    }
    if loose > 0 {
        return Error::new(
            ErrorKind::Data,
            format!("{place} has {loose} pictures, but none of them in a class"),
        )
        .because("the name of the folder that a picture lies in is its class")
        .hint("make a folder for each class and put the pictures there");
    }
    let formats = other_formats(&files_below(root, 3));
    match formats.is_empty() {
        true => error,
        false => Error::new(ErrorKind::Data, format!("{place} has no JPEG or PNG pictures"))
            .because(format!("its files are {}", counted(&formats)))
            .hint("convert them to JPEG or PNG"),
    }
}

fn one_class(root: &Path, only: &str) -> Error {
    let inside = root.join(only);
    let deeper = ImageFolder::open(&inside).is_ok_and(|f| f.classes.len() > 1);
    let e = Error::new(ErrorKind::Data, format!("{} has one class only: {only}", root.display()))
        .because("a classifier learns to tell at least two apart");
    match deeper {
        true => e.hint(format!("the classes seem to lie one folder deeper: name {}", inside.display())),
        false => e.hint("add a folder with pictures of another class"),
    }
}

/// Reads parts of the pictures, in order.
struct FolderSplitReader<'a> {
    options: &'a FolderOptions,
    /// Whether the pixels are kept in memory.
    keep: bool,
    done: usize,
    count: usize,
    unreadable: Vec<Error>,
    /// Pictures that can be seen through somewhere.
    transparent: Arc<AtomicUsize>,
    progress: &'a dyn Fn(u64, u64),
}

impl FolderSplitReader<'_> {
    /// The readable pictures of a part, and how many there are.
    fn part(&mut self, part: &ImageFolder, name: &str) -> Result<(Dataset, usize)> {
        let (size, ground) = (self.options.picture, self.options.background);
        let transparent = self.transparent.clone();
        let fit = move |s: Sample| {
            if s.get("image").is_ok_and(has_transparent) {
                transparent.fetch_add(1, Relaxed);
            }
            s.map("image", move |x| fit_picture_on(x, size, ground))
        };
        let pictures = |folder: &ImageFolder| folder.dataset().map_parallel(fit.clone(), AUTOTUNE);
        // Nothing is trained yet: every core may read.
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
            return Err(Error::new(ErrorKind::Data, "a class has no picture that can be read")
                .at(part.classes[k as usize].clone())
                .because(self.unreadable.first().map_or(String::new(), |e| e.what().to_string()))
                .hint("replace its pictures, or take its folder away"));
        }
        if !self.keep {
            return Ok((pictures(&part.keep(&places)), count));
        }
        let images = Literal::from_slice([count, size[0], size[1], size[2]], &bytes)?;
        let fields = [("image", images), ("label", Literal::from_slice([count], &labels)?)];
        Ok((Dataset::from_named_slices(format!("{name} pictures"), fields)?, count))
    }

    /// What is to be said of unreadable pictures.
    ///
    /// # Errors
    /// When there are more than the quota allows.
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
        let what = format!("{n} of {} pictures cannot be read", self.count);
        if n as f64 > self.options.unreadable_quota * self.count as f64 {
            return Err(Error::new(ErrorKind::Data, what)
                .at(root.display().to_string())
                .because(named.join("; "))
                .hint("mend or remove them, or allow more: --set data.unreadable_quota=0.5"));
        }
        Ok(Some(format!("{what} and are left out: {}", named.join("; "))))
    }
}

/// What is to be said of so many pictures that can be seen through.
pub(crate) fn told_transparent(n: usize, ground: f64) -> Option<String> {
    let shown = match ground {
        0.0 => "black (data.background=1 makes it white)".to_string(),
        1.0 => "white (data.background=0 makes it black)".to_string(),
        grey => format!("a grey of {grey} (data.background)"),
    };
    match n {
        0 => None,
        1 => Some(format!("1 picture has transparent parts, which are laid on {shown}")),
        n => Some(format!("{n} pictures have transparent parts, which are laid on {shown}")),
    }
}

/// What is to be said of files that are no pictures.
fn left_out(root: &Path, files: &[PathBuf]) -> Option<String> {
    let first = files.first()?;
    let mut kinds = other_formats(files);
    let known: usize = kinds.values().sum();
    if known < files.len() && known > 0 {
        kinds.insert("of other kinds".into(), files.len() - known);
    }
    let (which, are) = match (files, known) {
        ([_], 0) => (below(root, first), "is"),
        ([_], _) => (counted(&kinds), "is"),
        (_, 0) => (format!("{} and {} more", below(root, first), files.len() - 1), "are"),
        _ => (counted(&kinds), "are"),
    };
    let some = if files.len() == 1 { "1 file".into() } else { format!("{} files", files.len()) };
    Some(format!("{some} {are} no JPEG or PNG and {are} left out: {which}"))
}

/// How many files are of which picture format that is not read.
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

/// The files of a folder and of those in it, so many folders deep.
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

/// The folder's own name.
fn name_of(root: &Path) -> String {
    let whole = root.canonicalize();
    let name = whole.as_deref().unwrap_or(root).file_name().map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "pictures".into())
}

/// Names, sizes and classes of the pictures in a line: a run that goes on must find the same.
fn identity(root: &Path, parts: [&ImageFolder; 2]) -> String {
    let mut mark = 0;
    for (path, label) in parts.iter().flat_map(|f| f.pictures.iter()) {
        let size = input_file::size(path).unwrap_or(0);
        mark = mix(mark ^ hash_name(&below(root, path)) ^ mix(size ^ (*label as u64) << 48));
    }
    let [train, test] = parts.map(|f| f.pictures.len());
    format!("{train} + {test} pictures of {} classes, mark {mark:016x}", parts[0].classes.len())
}
