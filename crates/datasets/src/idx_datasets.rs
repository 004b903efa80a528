//! MNIST and Fashion-MNIST: locates, downloads and validates their four IDX files.

use super::catalog::{self, CatalogEntry};
use super::data_dir::{DataDir, roots};
use super::download;
use super::{ImageArrays, ImageDataset};
use std::path::{Path, PathBuf};
use systole_base::{DType, Error, ErrorKind, Result, ensure, err, knobs};
use systole_data::format::idx;
use systole_runtime::events;

/// Loads Fashion-MNIST: 60,000 + 10,000 grayscale images of clothes, `u8[28, 28, 1]`, ten classes.
///
/// Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", 2017.
///
/// # Errors
/// `Io` if the files cannot be found or downloaded (lists the searched locations); `Data` if they are damaged or
/// inconsistent.
pub fn fashion_mnist(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    load(&FASHION_MNIST, &dir.into())
}

/// Loads MNIST: 60,000 + 10,000 grayscale images of handwritten digits, `u8[28, 28, 1]`, ten classes.
///
/// # Errors
/// See [`fashion_mnist`].
pub fn mnist(dir: impl Into<DataDir>) -> Result<ImageDataset> {
    load(&MNIST, &dir.into())
}

/// Published dataset in IDX format: its row of the catalog, and the names of its classes.
struct IdxDataset {
    entry: &'static CatalogEntry,
    class_names: [&'static str; 10],
}

/// Names of the four files without their endings, in the order of the catalog's rows.
const STEMS: [&str; 4] = ["train-images", "train-labels", "t10k-images", "t10k-labels"];

const FASHION_MNIST: IdxDataset = IdxDataset {
    entry: &catalog::FASHION_MNIST,
    class_names: [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ],
};

const MNIST: IdxDataset =
    IdxDataset { entry: &catalog::MNIST, class_names: ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] };

fn load(known: &IdxDataset, dir: &DataDir) -> Result<ImageDataset> {
    let files = find(known, dir)?;
    let train = arrays(known, &files[0], &files[1])?;
    let test = arrays(known, &files[2], &files[3])?;
    let sizes = |a: &ImageArrays| a.images.shape().dims()[1..].to_vec();
    if sizes(&train) != sizes(&test) {
        return Err(err!(Data, "training and test images have different sizes")
            .at(format!("{} and {}", files[0].display(), files[2].display()))
            .because(format!("{} and {}", train.images.ty(), test.images.ty()))
            .hint("check that all four files belong to the same dataset"));
    }
    let folder = files[0].parent().unwrap_or(Path::new("")).display().to_string();
    ImageDataset::new(known.entry.name, folder, &known.class_names, train, test)
}

fn arrays(known: &IdxDataset, images: &Path, labels: &Path) -> Result<ImageArrays> {
    let (images_name, labels_name) = (images.display().to_string(), labels.display().to_string());
    let (images, labels) = (idx::read(images)?, idx::read(labels)?);
    idx::check_labels((&images_name, &images), (&labels_name, &labels), known.class_names.len())?;
    let wrong = || {
        Error::new(ErrorKind::Data, format!("the image file of {} has the wrong shape", known.entry.name))
            .at(images_name.clone())
            .because(format!("expected ui8[N, height, width] with N at least 1, found {}", images.ty()))
            .hint("check that images and labels are not swapped")
    };
    let [n, h, w] = *images.shape().dims() else { return Err(wrong()) };
    ensure!(images.dtype() == DType::U8 && n * h * w != 0, wrong());
    Ok(ImageArrays { images: images.reshape([n, h, w, 1])?, labels: labels.convert(DType::I32) })
}

/// Returns the four files from the first location that has them, or downloads them.
fn find(known: &IdxDataset, dir: &DataDir) -> Result<[PathBuf; 4]> {
    let places = roots(dir);
    for root in &places {
        if let Some(files) = look(known, root)? {
            return Ok(files);
        }
    }
    let target = dir.named().map(Path::to_path_buf).or_else(|| dir.cache_folder());
    let (true, Some(target)) = (dir.downloads(), target) else { return Err(missing(known, &places, None)) };
    known.entry.download(&target, dir).map_err(|e| missing(known, &places, Some(e)))?;
    look(known, &target)?.ok_or_else(|| missing(known, &places, None))
}

/// Returns the files in `root` or its subdirectory with the dataset's name; an error if only some of them exist.
fn look(known: &IdxDataset, root: &Path) -> Result<Option<[PathBuf; 4]>> {
    for folder in [root.to_path_buf(), root.join(known.entry.name)] {
        let found = STEMS.map(|stem| variants(stem).map(|f| folder.join(f)).find(|p| p.is_file()));
        let here = found.iter().flatten().count();
        if let [Some(a), Some(b), Some(c), Some(d)] = found {
            return Ok(Some([a, b, c, d]));
        }
        // An interrupted download leaves some files in the cache; ignore those.
        if here > 0 && !folder.join(download::MARK).exists() {
            let lacking: Vec<String> = STEMS
                .iter()
                .zip(&found)
                .filter(|(_, f)| f.is_none())
                .map(|(s, _)| format!("`{s}`"))
                .collect();
            return Err(Error::new(ErrorKind::Io, format!("`{}` is incomplete", known.entry.name))
                .at(folder.display().to_string())
                .because(format!("found {here} of the dataset's 4 files, missing {}", lacking.join(", ")))
                .hint("add the missing files, for example train-images-idx3-ubyte.gz, compressed or not"));
        }
    }
    Ok(None)
}

fn variants(stem: &str) -> impl Iterator<Item = String> {
    let rank = if stem.ends_with("images") { 3 } else { 1 };
    [format!("{stem}-idx{rank}-ubyte"), format!("{stem}.idx{rank}-ubyte")]
        .into_iter()
        .flat_map(|name| [format!("{name}.gz"), name])
}

fn missing(known: &IdxDataset, places: &[PathBuf], download: Option<Error>) -> Error {
    let e = Error::new(ErrorKind::Io, format!("the files of `{}` were not found", known.entry.name));
    let told: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    let e = if places.is_empty() { e } else { e.because(format!("looked in {}", told.join(", "))) };
    let gone = places.iter().find(|p| !p.exists()).filter(|_| places.len() == 1 && download.is_none());
    let e = match gone {
        Some(folder) => e.because(format!("the folder `{}` does not exist", folder.display())),
        None => e,
    };
    let give = format!(
        "pass the folder with {} and its three companions (--data-dir, data.dir or the variable {}); or use glyphs, which \
         needs no files",
        known.entry.files[0].file,
        knobs::DATA.name
    );
    match download {
        Some(refused) => {
            // Log the result of each address: it can be a whole page if the network is down.
            events::emit(1, || {
                format!("downloading {}: {}", known.entry.name, refused.to_string().replace("\n  ", "; "))
            });
            let first = match refused.what().starts_with(download::REFUSED) {
                true => {
                    format!(
                        "check the network, or see the addresses: `systole data fetch {}`",
                        known.entry.name
                    )
                }
                false => {
                    format!("choose a writable folder for downloads ({})", knobs::CACHE.name)
                }
            };
            e.because(in_short(&refused)).hint_command(format!("{first}; or {give}"))
        }
        None => e.hint_command(give),
    }
}

/// Summarizes a failed download in one line, by its first address.
fn in_short(refused: &Error) -> String {
    let Some((url, why)) = refused.reasons().first().and_then(|r| r.split_once(": ")) else {
        let parts = std::iter::once(refused.what()).chain(refused.reasons().iter().map(String::as_str));
        return parts.collect::<Vec<_>>().join(": ");
    };
    let host = url.split('/').nth(2).unwrap_or(url);
    let why = why.split("; ").next().unwrap_or(why);
    let more = match refused.reasons().len() {
        1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    format!("{}: {host}: {why}{more}", refused.what())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_base::Literal;
    use systole_testing::assert_error;

    struct Temp(PathBuf);
    impl Temp {
        fn new(name: &str) -> Temp {
            let dir = std::env::temp_dir().join(format!("systole-files-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Temp(dir)
        }
    }
    impl Drop for Temp {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn write_set(folder: &Path, names: [&str; 4], gzip: bool) {
        std::fs::create_dir_all(folder).unwrap();
        let images = |n: usize| Literal::from_slice([n, 2, 3], &vec![7u8; n * 6]).unwrap();
        let labels = |n: usize| Literal::from_slice([n], &(0..n as u8).collect::<Vec<_>>()).unwrap();
        for (name, x) in names.iter().zip([images(5), labels(5), images(3), labels(3)]) {
            idx::write(folder.join(name), &x, gzip).unwrap();
        }
    }

    const DASHES: [&str; 4] = [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ];
    const DOTS: [&str; 4] = [
        "train-images.idx3-ubyte",
        "train-labels.idx1-ubyte",
        "t10k-images.idx3-ubyte",
        "t10k-labels.idx1-ubyte",
    ];

    #[test]
    fn finds_a_folder_or_its_parent_packed_or_not() {
        let temp = Temp::new("find");
        write_set(&temp.0.join("mnist"), DASHES, true);
        write_set(&temp.0.join("plain"), DOTS, false);
        for dir in [temp.0.clone(), temp.0.join("mnist"), temp.0.join("plain")] {
            let d = mnist(dir).unwrap();
            assert_eq!((d.train_len, d.test_len, d.image_shape, d.num_classes), (5, 3, [2, 3, 1], 10));
            assert_eq!(d.train.element_spec().unwrap().to_string(), "image: ui8[2, 3, 1], label: i32[]");
        }
        let e = fashion_mnist(temp.0.clone()).unwrap_err().to_string();
        assert!(
            e.contains(&temp.0.display().to_string()) && e.contains("--data-dir") && e.contains("glyphs"),
            "{e}"
        );
    }

    #[test]
    fn incomplete_and_interchanged_sets_are_named() {
        let temp = Temp::new("incomplete");
        write_set(&temp.0, DASHES, true);
        std::fs::remove_file(temp.0.join(DASHES[3])).unwrap();
        assert_error(&mnist(temp.0.clone()).unwrap_err(), ErrorKind::Io, &["`t10k-labels`"]);
        std::fs::copy(temp.0.join(DASHES[1]), temp.0.join(DASHES[3])).unwrap();
        let e = mnist(temp.0.clone()).unwrap_err();
        assert_error(&e, ErrorKind::Data, &[DASHES[2], DASHES[3], "ui8[3, 2, 3]"]);
        std::fs::copy(temp.0.join(DASHES[0]), temp.0.join(DASHES[1])).unwrap();
        assert_error(&mnist(temp.0.clone()).unwrap_err(), ErrorKind::Data, &[DASHES[0], DASHES[1]]);
    }

    #[test]
    fn a_download_without_network_is_told_in_a_line() {
        let refused = Error::new(ErrorKind::Io, format!("{} train-images.gz", download::REFUSED))
            .because("http://a.example/x/train-images.gz: cannot connect: failed to lookup address; why: no answer; try: x")
            .because("https://b.example/train-images.gz: curl failed: curl: (6) Could not resolve host: b.example");
        let e = missing(&MNIST, &[PathBuf::from("/a"), PathBuf::from("/b")], Some(refused));
        assert_eq!(
            e.reasons(),
            [
                "looked in /a, /b",
                "cannot download train-images.gz: a.example: cannot connect: failed to lookup address, and 1 more"
            ]
        );
        let of_network = e.hint_text().map(String::from);
        let full = Error::new(ErrorKind::Io, "cannot create /c").because("the disk is full");
        let e = missing(&MNIST, &[PathBuf::from("/a")], Some(full.clone()));
        assert_error(&e, ErrorKind::Io, &["SYSTOLE_CACHE"]);
        assert!(e.reasons().iter().any(|why| why.contains(&full.reasons()[0])), "{e}");
        assert_ne!(e.hint_text(), of_network.as_deref());
    }

    #[test]
    #[allow(clippy::print_stderr)]
    fn the_real_sets_load_when_they_are_here() {
        let root = knobs::DATA.get();
        for (name, load) in [("fashion-mnist", fashion_mnist as fn(String) -> _), ("mnist", mnist)] {
            if root.is_empty() || !Path::new(&root).join(name).is_dir() {
                eprintln!("SKIPPED the_real_sets_load_when_they_are_here: SYSTOLE_DATA has no folder {name}");
                continue;
            }
            let d: ImageDataset = load(root.clone()).unwrap();
            assert_eq!((d.train_len, d.test_len, d.image_shape), (60_000, 10_000, [28, 28, 1]));
            let mean =
                d.train_arrays.images.bytes().iter().map(|&b| b as f64).sum::<f64>() / 47_040_000.0 / 255.0;
            let expected = if name == "mnist" { 0.13066 } else { 0.28604 };
            assert!((mean - expected).abs() < 5e-6, "{name}: {mean}");
            let first = d.train_arrays.labels.to_f64s()[..3].to_vec();
            assert_eq!(first, if name == "mnist" { [5., 0., 4.] } else { [9., 0., 0.] });
        }
    }
}
