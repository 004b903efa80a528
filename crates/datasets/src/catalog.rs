//! Catalog of published datasets: downloads them by name, verifies their digests and unpacks them.
//!
//! Sizes and digests are copied from the sources named in each row, none is computed from a download of our own.

use crate::data_dir::DataDir;
use crate::download::{FileDigest, RemoteFile};
use crate::published_files::PublishedFiles;
use FileDigest::{Md5, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use systole_base::{Error, ErrorKind, Result};
use systole_data::format::archive::{ExtractOptions, extract_tar_gz};

/// Maximum ratio of an unpacked archive to its file.
const MOST_UNPACKED: u64 = 16;
/// Folder in which an archive is unpacked before its files are moved to their places.
const UNPACKING: &str = ".unpacking";

/// Published dataset: addresses, digests, license, and how it is stored and trained on.
#[derive(Clone, Copy, Debug)]
pub struct CatalogEntry {
    /// Name of the dataset, also of its folder below the cache.
    pub name: &'static str,
    /// Content in a few words.
    pub description: &'static str,
    /// Files to download.
    pub files: &'static [RemoteFile<'static>],
    /// Base addresses, the official one first; a file's name follows. https uses the system's curl.
    pub sources: &'static [&'static str],
    /// Date of the last download from these addresses by Systole's authors; `None`: not tried.
    pub last_tried: Option<&'static str>,
    /// Source of sizes and digests: repository, file and commit.
    pub digests_from: &'static str,
    /// License as the publisher states it.
    pub license: &'static str,
    /// Arguments of `systole train`; `FOLDER` stands for the dataset's folder.
    pub train: &'static str,
    /// Paths that a complete folder contains.
    pub contents: &'static [&'static str],
    /// How the file is unpacked; `None`: the files are read as published.
    archive: Option<TarGz>,
}

/// Layout of a .tar.gz archive: its top folder, and folders below it that are skipped.
#[derive(Clone, Copy, Debug)]
struct TarGz {
    top: &'static str,
    skip: &'static [&'static str],
}

const IDX_FILES: &[&str] = &[
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];

pub(super) const FASHION_MNIST: CatalogEntry = CatalogEntry {
    name: "fashion-mnist",
    description: "60,000 + 10,000 grayscale images of clothes, 28 × 28, ten classes",
    files: &[
        RemoteFile {
            file: IDX_FILES[0],
            size: Some(26_421_880),
            digests: &[
                Sha256("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                Md5("8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[1],
            size: Some(29_515),
            digests: &[
                Sha256("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                Md5("25c81989df183df01b3e8a0aad5dffbe"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[2],
            size: Some(4_422_102),
            digests: &[
                Sha256("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                Md5("bef4ecab320f06d8554ea6380940ec79"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[3],
            size: Some(5_148),
            digests: &[
                Sha256("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
                Md5("bb300cfdad3c16e7a12a480ee83cd310"),
            ],
        },
    ],
    sources: &[
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ],
    last_tried: None,
    digests_from: "SHA-256: tensorflow/datasets, url_checksums/fashion_mnist.txt at 333639b3; MD5: pytorch/vision, \
                   torchvision/datasets/mnist.py at 01977a18",
    license: "MIT, (c) 2017 Zalando SE",
    train: "fashion-mnist",
    contents: IDX_FILES,
    archive: None,
};

pub(super) const MNIST: CatalogEntry = CatalogEntry {
    name: "mnist",
    description: "60,000 + 10,000 grayscale images of handwritten digits, 28 × 28, ten classes",
    files: &[
        RemoteFile {
            file: IDX_FILES[0],
            size: Some(9_912_422),
            digests: &[
                Sha256("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                Md5("f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[1],
            size: Some(28_881),
            digests: &[
                Sha256("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                Md5("d53e105ee54ea40749a09fcbcd1e9432"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[2],
            size: Some(1_648_877),
            digests: &[
                Sha256("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                Md5("9fb629c4189551a2d022fa330f9573f3"),
            ],
        },
        RemoteFile {
            file: IDX_FILES[3],
            size: Some(4_542),
            digests: &[
                Sha256("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
                Md5("ec29112dd5afa0611ce80d1b7f02629c"),
            ],
        },
    ],
    sources: &[
        "http://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ],
    last_tried: None,
    digests_from: "SHA-256: tensorflow/datasets, url_checksums/mnist.txt at 31f1255e; MD5: pytorch/vision, \
                   torchvision/datasets/mnist.py at 01977a18",
    license: "CC BY-SA 3.0, (c) Yann LeCun and Corinna Cortes (as Keras states it)",
    train: "mnist",
    contents: IDX_FILES,
    archive: None,
};

pub(super) const CIFAR10: CatalogEntry = CatalogEntry {
    name: "cifar10",
    description: "50,000 + 10,000 color images, 32 × 32, ten classes",
    files: &[RemoteFile {
        file: "cifar-10-binary.tar.gz",
        size: Some(170_052_171),
        digests: &[
            Md5("c32a1d4ab5d03f1284b67883e8d87530"),
            Sha256("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        ],
    }],
    sources: &[
        "https://www.cs.toronto.edu/~kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ],
    last_tried: None,
    digests_from: "MD5: the dataset's page, www.cs.toronto.edu/~kriz/cifar.html; SHA-256: tensorflow/datasets, \
                   url_checksums/cifar10.txt at 333639b3",
    license: "none stated; the publisher asks to cite Krizhevsky, \"Learning multiple layers of features from tiny \
              images\", 2009",
    train: "cifar-cnn",
    contents: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
        "test_batch.bin",
    ],
    archive: Some(TarGz { top: "cifar-10-batches-bin", skip: &[] }),
};

pub(super) const CIFAR100: CatalogEntry = CatalogEntry {
    name: "cifar100",
    description: "50,000 + 10,000 color images, 32 × 32, 100 classes",
    files: &[RemoteFile {
        file: "cifar-100-binary.tar.gz",
        size: Some(168_513_733),
        digests: &[
            Md5("03b5dce01913d631647c71ecec9e9cb8"),
            Sha256("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
        ],
    }],
    sources: &["https://www.cs.toronto.edu/~kriz/"],
    last_tried: None,
    digests_from: "MD5: the dataset's page, www.cs.toronto.edu/~kriz/cifar.html; SHA-256: tensorflow/datasets, \
                   url_checksums/cifar100.txt at 333639b3",
    license: CIFAR10.license,
    train: "cifar-cnn --set data.dataset=cifar100 --set layers.22.units=100",
    contents: &["train.bin", "test.bin", "fine_label_names.txt"],
    archive: Some(TarGz { top: "cifar-100-binary", skip: &[] }),
};

pub(super) const IMDB: CatalogEntry = CatalogEntry {
    name: "imdb",
    description: "25,000 + 25,000 movie reviews, positive or negative",
    files: &[RemoteFile {
        file: "aclImdb_v1.tar.gz",
        size: Some(84_125_825),
        digests: &[
            Sha256("c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"),
            Md5("7c2ac02c03563afcf9b574c7e56c153a"),
        ],
    }],
    sources: &[
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        "http://ai.stanford.edu/~amaas/data/sentiment/",
        "https://bj.bcebos.com/dataset/imdb%2F",
    ],
    last_tried: None,
    digests_from: "SHA-256: tensorflow/datasets, url_checksums/imdb_reviews.txt at 333639b3; MD5: pytorch/text, \
                   torchtext/datasets/imdb.py at 003eae6f",
    license: "none stated; the publisher asks to cite Maas et al., \"Learning word vectors for sentiment analysis\", 2011",
    train: "FOLDER",
    contents: &["train/neg", "train/pos", "test/neg", "test/pos"],
    // The 50,000 reviews without a label would be a third class.
    archive: Some(TarGz { top: "aclImdb", skip: &["train/unsup"] }),
};

const TINY_SHAKESPEARE: CatalogEntry = CatalogEntry {
    name: "tiny-shakespeare",
    description: "1,115,394 characters of Shakespeare's plays, for language models",
    files: &[RemoteFile {
        file: "input.txt",
        size: Some(1_115_394),
        digests: &[Sha256("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")],
    }],
    sources: &[
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        "https://github.com/karpathy/char-rnn/raw/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/",
    ],
    last_tried: None,
    digests_from: "SHA-256: tensorflow/datasets, url_checksums/tiny_shakespeare.txt at 333639b3",
    license: "public domain; its repository karpathy/char-rnn is MIT",
    train: "gpt-micro",
    contents: &["input.txt"],
    archive: None,
};

pub(super) const FLOWERS: CatalogEntry = CatalogEntry {
    name: "flowers",
    description: "color photos of flowers in five classes: daisy, dandelion, roses, sunflowers, tulips",
    files: &[RemoteFile {
        file: "flower_photos.tgz",
        size: Some(228_813_984),
        digests: &[Sha256("4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c")],
    }],
    sources: &[
        "https://storage.googleapis.com/download.tensorflow.org/example_images/",
        "http://download.tensorflow.org/example_images/",
    ],
    last_tried: None,
    digests_from: "SHA-256: tensorflow/datasets, url_checksums/tf_flowers.txt at 333639b3",
    license: "CC BY 2.0; the photographers are listed in LICENSE.txt",
    train: "FOLDER",
    contents: &["daisy", "dandelion", "roses", "sunflowers", "tulips"],
    archive: Some(TarGz { top: "flower_photos", skip: &[] }),
};

/// All datasets that `systole data fetch` downloads.
pub const CATALOG: &[CatalogEntry] =
    &[FASHION_MNIST, MNIST, CIFAR10, CIFAR100, IMDB, TINY_SHAKESPEARE, FLOWERS];

/// Returns the folder of the dataset `name`, which is downloaded if neither `SYSTOLE_DATA` nor the cache has it.
///
/// ```no_run
/// use systole_datasets::{DataDir, FolderOptions, ImageResizing, fetch, folder};
///
/// let flowers = fetch("flowers", &DataDir::default())?;
/// let (picture, resizing) = ([64, 64, 3], ImageResizing::default());
/// let options =
///     FolderOptions { picture, validation_split: 0.2, unreadable_quota: 0.0, seed: 0, background: 0.0, resizing };
/// let data = folder(flowers, &options)?;
/// # Ok::<(), systole_base::Error>(())
/// ```
///
/// # Errors
/// `Config` for an unknown name; `Io` if the files cannot be downloaded: what to get, where, and where to put it;
/// `Data` if they are damaged.
pub fn fetch(name: &str, dir: &DataDir) -> Result<PathBuf> {
    let entry = CATALOG.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = CATALOG.iter().map(|entry| entry.name).collect();
        Error::new(ErrorKind::Config, format!("unknown dataset `{name}`"))
            .because(format!("the catalog has {}", names.join(", ")))
            .hint("use one of these names")
    })?;
    entry.fetch(dir)
}

impl CatalogEntry {
    /// Returns the given folder if it is the dataset's own, or else the fetched one.
    pub(super) fn folder_of(&self, dir: &DataDir) -> Result<PathBuf> {
        let is_own = |root: &&Path| self.contents.iter().all(|path| root.join(path).exists());
        match dir.named().filter(is_own) {
            Some(root) => Ok(root.to_path_buf()),
            None => self.fetch(dir),
        }
    }

    /// The dataset's files, with their addresses or the mirror's.
    pub(super) fn published(&self, dir: &DataDir) -> PublishedFiles<'static> {
        PublishedFiles {
            name: self.name.into(),
            folder: self.name.into(),
            files: self.files.to_vec(),
            sources: dir.sources(self.sources),
            fields: Vec::new(),
            contents: self.contents.to_vec(),
        }
    }

    /// Returns the dataset's folder in the first location that has it: `SYSTOLE_DATA`, then the cache.
    pub fn locate(&self, dir: &DataDir) -> Option<PathBuf> {
        self.published(dir).locate(dir)
    }

    /// Returns the dataset's folder below `root` if it is complete.
    pub fn folder_in(&self, root: &Path) -> Option<PathBuf> {
        self.published(&DataDir::default()).folder_in(root)
    }

    /// Whether the dataset is trained on as a folder of the user's own is.
    pub fn is_folder(&self) -> bool {
        self.train == "FOLDER"
    }

    /// Size of all files in bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().filter_map(|file| file.size).sum()
    }

    /// Returns the dataset's folder, after a download to the cache if no location has it.
    ///
    /// # Errors
    /// See [`fetch`].
    pub fn fetch(&self, dir: &DataDir) -> Result<PathBuf> {
        self.published(dir).fetch(dir, |folder| self.unpack(folder, dir))
    }

    /// Returns the dataset's folder below `root`, after a download if it is not complete. Files that the user put there
    /// are verified and used instead of a download.
    ///
    /// # Errors
    /// See [`fetch`].
    pub fn fetch_into(&self, root: &Path, dir: &DataDir) -> Result<PathBuf> {
        self.published(dir).fetch_into(root, dir, |folder| self.unpack(folder, dir))
    }

    /// Downloads the missing files into the dataset's folder below `root`, and unpacks them.
    pub(super) fn download(&self, root: &Path, dir: &DataDir) -> Result<()> {
        self.published(dir).download(root, dir, |folder| self.unpack(folder, dir))
    }

    /// Unpacks the archive in `folder`, if the dataset has one.
    fn unpack(&self, folder: &Path, dir: &DataDir) -> Result<()> {
        self.archive.map_or(Ok(()), |archive| self.unpack_archive(folder, archive, dir))
    }

    /// Unpacks the archive in `folder`, moves its files to their places, and removes it.
    fn unpack_archive(&self, folder: &Path, archive: TarGz, dir: &DataDir) -> Result<()> {
        let unpacking = folder.join(UNPACKING);
        remove_dir(&unpacking)?;
        for file in self.files {
            let (path, size) = (folder.join(file.file), file.size.unwrap_or(0));
            let options = ExtractOptions {
                top: archive.top,
                skip: archive.skip,
                limit: MOST_UNPACKED.saturating_mul(size).max(1 << 20),
            };
            let what = format!("unpacking {}", file.file);
            let unpacked = extract_tar_gz(&path, &unpacking, options, &|done| dir.report(&what, done, size));
            if let Err(e) = unpacked {
                remove_dir(&unpacking)?;
                return Err(e);
            }
            dir.report(&what, size, size);
        }
        for entry in fs::read_dir(&unpacking).map_err(|e| Error::io("cannot read", &unpacking, e))? {
            let from = entry.map_err(|e| Error::io("cannot read", &unpacking, e))?.path();
            let to = folder.join(from.file_name().unwrap_or_default());
            // An interrupted run may have moved a part.
            if to.is_dir() {
                remove_dir(&to)?;
            }
            fs::rename(&from, &to).map_err(|e| Error::io("cannot move a file to", &to, e))?;
        }
        remove_dir(&unpacking)?;
        for file in self.files {
            let path = folder.join(file.file);
            fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
        }
        Ok(())
    }
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("cannot remove", path, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::tests::{Act, Server};
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use sha2::{Digest, Sha256 as Sha256Hasher};
    use std::io::Write;
    use std::time::Duration;
    use systole_testing::assert_error;

    /// Packs files (path, content) as a .tar.gz archive.
    fn tar_gz(files: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = Vec::new();
        for (path, text) in files {
            let mut header = [0; 512];
            header[..path.len()].copy_from_slice(path.as_bytes());
            header[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
            header[156] = b'0';
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            tar.extend(header);
            tar.extend(text.as_bytes());
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
        tar.resize(tar.len() + 1024, 0);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&tar).unwrap();
        gzip.finish().unwrap()
    }

    fn hex<D: Digest>(bytes: &[u8]) -> &'static str {
        let hex: String = D::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        hex.leak()
    }

    /// A dataset whose archive is `content`, on `server`.
    fn entry(content: &[u8], server: &Server) -> CatalogEntry {
        let file = RemoteFile {
            file: "reviews.tar.gz",
            size: Some(content.len() as u64),
            digests: vec![Md5(hex::<md5::Md5>(content)), Sha256(hex::<Sha256Hasher>(content))].leak(),
        };
        CatalogEntry {
            name: "reviews",
            files: vec![file].leak(),
            sources: vec![&*server.base.clone().leak()].leak(),
            archive: Some(TarGz { top: "top", skip: &["train/unsup"] }),
            contents: &["train/neg", "test/neg"],
            ..IMDB
        }
    }

    const FILES: [(&str, &str); 4] = [
        ("top/train/neg/1.txt", "bad"),
        ("top/train/unsup/2.txt", "unknown"),
        ("top/test/neg/3.txt", "bad as well"),
        ("top/README", "about"),
    ];

    fn options(server: &Server) -> DataDir {
        DataDir::at(&server.folder).allow_downloads().timeout(Duration::from_secs(5))
    }

    #[test]
    fn the_table_is_complete() {
        for (i, entry) in CATALOG.iter().enumerate() {
            assert!(CATALOG[..i].iter().all(|other| other.name != entry.name));
            assert!(!entry.sources.is_empty() && !entry.contents.is_empty() && !entry.license.is_empty());
            assert!(entry.sources.iter().all(|base| base.ends_with('/') || base.ends_with("%2F")));
            for file in entry.files {
                assert!(file.digests.iter().any(|d| d.algorithm() == "SHA-256") && file.size > Some(0));
                for digest in file.digests {
                    let digits = if digest.algorithm() == "MD5" { 32 } else { 64 };
                    let is_hex = digest.hex().chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
                    assert!(digest.hex().len() == digits && is_hex, "{}", file.file);
                    assert!(entry.digests_from.contains(digest.algorithm()), "{}", entry.name);
                }
            }
        }
    }

    #[test]
    fn an_archive_is_downloaded_resumed_unpacked_and_found_again() {
        let content = tar_gz(&FILES);
        let server = Server::serving("unpacked", &[Act::Cut(100), Act::Redirect("/b"), Act::Serve], &content);
        let entry = entry(&content, &server);
        let folder = entry.fetch(&options(&server)).unwrap();
        assert_eq!(folder, server.folder.join("reviews"));
        assert_eq!(fs::read_to_string(folder.join("test/neg/3.txt")).unwrap(), "bad as well");
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["README", "test", "train"]);
        assert!(!folder.join("train/unsup").exists());
        assert!(server.requests()[1].contains("bytes=100-"));
        assert_eq!(entry.fetch(&options(&server).offline()).unwrap(), folder);
        assert_eq!(server.requests().len(), 3);
    }

    #[test]
    fn a_lying_server_leaves_nothing_and_the_error_names_the_digests() {
        let content = tar_gz(&FILES);
        let server = Server::serving("lying", &[Act::Lie], &content);
        let entry = entry(&content, &server);
        let e = entry.fetch(&options(&server)).unwrap_err();
        let digest = entry.files[0].digests[0].hex();
        assert_error(&e, ErrorKind::Data, &["`reviews`", "reviews.tar.gz", digest, &server.base]);
        assert!(!server.folder.join("reviews").exists());
    }

    #[test]
    fn an_archive_with_a_path_outside_of_its_folder_is_rejected() {
        let content = tar_gz(&[FILES[0], ("top/../../../escape.txt", "out")]);
        let server = Server::serving("outside", &[Act::Serve], &content);
        let entry = entry(&content, &server);
        let e = entry.fetch(&options(&server)).unwrap_err();
        assert_error(&e, ErrorKind::Data, &["top/../../../escape.txt"]);
        let folder = server.folder.join("reviews");
        assert!(!folder.join("train").exists() && !folder.join(UNPACKING).exists());
        assert!(!server.folder.join("escape.txt").exists() && entry.folder_in(&server.folder).is_none());
    }

    #[test]
    fn without_a_network_the_error_tells_what_to_put_where_and_that_works() {
        let content = tar_gz(&FILES);
        let server = Server::serving("offline", &[], &content);
        let entry = entry(&content, &server);
        let offline = options(&server).offline();
        let folder = server.folder.join("reviews");
        let e = entry.fetch(&offline).unwrap_err();
        let address = format!("{}reviews.tar.gz", server.base);
        let digest = entry.files[0].digests[0].hex();
        assert_error(&e, ErrorKind::Io, &["`reviews`", &address, digest, &folder.display().to_string()]);
        assert!(!folder.exists() && server.requests().is_empty());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("reviews.tar.gz"), b"something else").unwrap();
        assert_error(&entry.fetch(&offline).unwrap_err(), ErrorKind::Data, &[digest]);
        // What an interrupted run left is replaced.
        fs::create_dir_all(folder.join("train/neg")).unwrap();
        fs::create_dir_all(folder.join("test/neg")).unwrap();
        fs::write(folder.join("train/neg/old.txt"), "old").unwrap();
        fs::write(folder.join(crate::download::MARK), "").unwrap();
        fs::write(folder.join("reviews.tar.gz"), &content).unwrap();
        assert_eq!(entry.fetch(&offline).unwrap(), folder);
        assert!(!folder.join("train/neg/old.txt").exists() && folder.join("train/neg/1.txt").is_file());
    }

    #[test]
    fn a_mirror_replaces_the_addresses_and_unknown_names_are_errors() {
        let content = tar_gz(&FILES);
        let server = Server::serving("mirror", &[Act::Status(404), Act::Serve], &content);
        let entry = CatalogEntry { sources: &["http://127.0.0.1:1/none/"], ..entry(&content, &server) };
        let mirror = options(&server).mirror(server.base.trim_end_matches('/'));
        let e = entry.fetch(&mirror).unwrap_err();
        assert_error(&e, ErrorKind::Io, &["404", &format!("{}reviews.tar.gz", server.base)]);
        entry.fetch(&mirror).unwrap();
        let e = fetch("cifar", &DataDir::default().offline()).unwrap_err();
        assert_error(&e, ErrorKind::Config, &["`cifar`", "cifar10"]);
    }
}
