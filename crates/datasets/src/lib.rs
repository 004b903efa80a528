//! Datasets by name: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, IMDB, flowers, text, labeled texts, image folders, record files and synthetic
//! glyphs.
//!
//! File formats are in `systole_data::format`. Per-element transforms are `map` functions; [`preprocessing`] provides
//! Keras's lookup and text layers.

mod catalog;
mod classes;
mod data_dir;
mod download;
mod idx_datasets;
mod images;
pub mod preprocessing;
mod published_files;
mod published_folders;
mod record_files;
mod records;
mod sentences;
mod text;
mod tokenizer;

pub use catalog::{CATALOG, CatalogEntry, fetch};
pub use data_dir::DataDir;
pub use download::{FileDigest, RemoteFile, get, is_trusted, sha256};
pub use idx_datasets::{fashion_mnist, mnist};
pub use images::{
    FolderOptions, ImageFit, ImageResizing, ResizeMethod, cifar10, cifar10_or_glyphs, cifar100,
    colour_glyphs, fit_picture, fit_picture_on, folder, glyphs, picture_size_for,
};
pub use published_files::PublishedFiles;
pub use published_folders::{flowers, imdb};
pub use record_files::is_of_records;
pub use records::{
    ColumnEncoding, RecordCompression, RecordInputs, RecordOptions, RecordShape, holds_records, lists_images,
    picture_size_of_records, record_inputs, records,
};
pub use sentences::{
    SentenceOptions, holds_sentences, is_json_lines, is_plain_text, is_table_of_texts, sentences,
    unlabeled_texts,
};
pub use text::{TEXT_TOKENS, TextOptions, TextTokenizer, TokenKind, drawn_text, text, text_with};
pub use tokenizer::Tokenizer;

use std::sync::Arc;
use systole_base::{DType, Literal, Result, TensorType};
use systole_data::{Dataset, Sample};

/// Image classification dataset with training and test pipelines: `image: u8[H, W, C]` with values 0 to 255, `label:
/// i32[]`.
#[derive(Clone, Debug)]
pub struct ImageDataset {
    /// Name of the dataset, as passed to `systole train`.
    pub name: &'static str,
    /// Origin of the data: a directory, or how it was generated.
    pub origin: String,
    /// Training elements in their original order.
    pub train: Dataset,
    /// Test elements in their original order.
    pub test: Dataset,
    /// Number of training elements.
    pub train_len: usize,
    /// Number of test elements.
    pub test_len: usize,
    /// Height, width, channels.
    pub image_shape: [usize; 3],
    /// Class names by label.
    pub class_names: Vec<String>,
    /// Number of classes; labels are below it.
    pub num_classes: usize,
    /// All training images and labels.
    pub train_arrays: ImageArrays,
    /// All test images and labels.
    pub test_arrays: ImageArrays,
}

/// Images and labels in memory: `images: u8[N, H, W, C]`, `labels: i32[N]`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ImageArrays {
    pub images: Literal,
    pub labels: Literal,
}

impl ImageDataset {
    /// Splits the dataset into training and test pipeline: `let (train, test) =
    /// datasets::fashion_mnist(DataDir::default())?.split();`
    pub fn split(self) -> (Dataset, Dataset) {
        (self.train, self.test)
    }

    fn new(
        name: &'static str,
        origin: String,
        class_names: &[&str],
        train: ImageArrays,
        test: ImageArrays,
    ) -> Result<ImageDataset> {
        let shape = train.images.shape();
        Ok(ImageDataset {
            name,
            origin,
            train_len: shape[0],
            test_len: test.images.shape()[0],
            image_shape: [shape[1], shape[2], shape[3]],
            num_classes: class_names.len(),
            class_names: class_names.iter().map(|s| s.to_string()).collect(),
            train: slices(format!("{name} train"), &train)?,
            test: slices(format!("{name} test"), &test)?,
            train_arrays: train,
            test_arrays: test,
        })
    }
}

/// Training and test data of a run (images, records or text) as pipelines, with metadata.
#[derive(Clone, Debug)]
pub struct TrainingData {
    /// Name of the dataset.
    pub name: String,
    /// Origin of the data: a directory, or how it was generated.
    pub origin: String,
    /// Training elements in their original order: one input, and `label`.
    pub train: Dataset,
    /// Test elements in their original order.
    pub test: Dataset,
    /// Number of training elements.
    pub train_len: usize,
    /// Number of test elements.
    pub test_len: usize,
    /// Whether the test elements come from folders or files of their own, not from a fraction of all elements.
    pub has_test_split: bool,
    /// Type of an element's input, before scaling.
    pub element: TensorType,
    /// Class names by label; empty for tokens.
    pub class_names: Vec<String>,
    /// Record fields that make up the input, in order; empty for other data.
    pub fields: Vec<String>,
    /// Encodings of these fields, for table columns.
    pub columns: Vec<ColumnEncoding>,
    /// Plural noun for the elements: `images`, `records`, `sequences` or `texts`.
    pub elements: &'static str,
    /// Notes for the user that are not errors.
    pub notes: Vec<String>,
    /// Fingerprint of the data, if it may change between runs.
    pub identity: Option<String>,
    /// Streaming access to the training elements, if they are read from files while training; replaces `train`.
    pub streamed: Option<StreamedDataset>,
    /// Tokenizer and statistics of a text for language models.
    pub language: Option<TextTokenizer>,
    /// Tokenizer of labeled texts.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// Training elements that are read from files while training. The shuffle buffer holds raw records, which take less
/// memory than decoded ones.
#[derive(Clone, Debug)]
pub struct StreamedDataset {
    /// Elements file by file, in the same order in each epoch.
    pub in_order: Dataset,
    /// Elements interleaved from several files, in a new order in each epoch.
    pub mixed: Dataset,
    /// Shuffle buffer size in elements.
    pub buffer: usize,
    /// Whether reading all files takes little time.
    pub is_small: bool,
    /// Converts a raw element to a training element.
    pub prepare: PrepareFn,
}

/// Map function that prepares one element for training.
#[derive(Clone)]
pub struct PrepareFn(pub(crate) Arc<dyn Fn(Sample) -> Result<Sample> + Send + Sync>);

impl PrepareFn {
    /// Applies the map function: returns the training element.
    ///
    /// # Errors
    /// If the element cannot be decoded.
    pub fn call(&self, sample: Sample) -> Result<Sample> {
        (self.0)(sample)
    }
}

impl std::fmt::Debug for PrepareFn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prepare")
    }
}

impl TrainingData {
    /// Whether the dataset's elements are images.
    pub fn is_pictures(&self) -> bool {
        self.element.rank() == 3
    }

    /// Whether a test element can be written as a PNG file (an example image for `systole predict`): 8-bit images only.
    pub fn has_example(&self) -> bool {
        self.is_pictures() && self.element.dtype == DType::U8
    }
}

impl From<ImageDataset> for TrainingData {
    fn from(d: ImageDataset) -> TrainingData {
        TrainingData {
            name: d.name.into(),
            origin: d.origin,
            train: d.train,
            test: d.test,
            train_len: d.train_len,
            test_len: d.test_len,
            has_test_split: true,
            element: TensorType::new(DType::U8, d.image_shape),
            class_names: d.class_names,
            fields: Vec::new(),
            columns: Vec::new(),
            elements: "images",
            notes: Vec::new(),
            identity: None,
            streamed: None,
            language: None,
            tokenizer: None,
        }
    }
}

fn slices(source: String, arrays: &ImageArrays) -> Result<Dataset> {
    let fields = [("image", arrays.images.clone()), ("label", arrays.labels.clone())];
    Dataset::from_named_slices(Arc::<str>::from(source), fields)
}

/// Temporary name of an existing field `index` while records are numbered.
const ASIDE: &str = "index of the record";

/// Adds the field `index: i64[]` with each record's index.
pub fn numbered(records: Dataset) -> Dataset {
    let aside = |s: Sample| if s.names().any(|n| n == "index") { s.rename("index", ASIDE) } else { s };
    records.map(aside).enumerate()
}

/// Removes the index that [`numbered`] added.
pub fn unnumbered(sample: Sample) -> Sample {
    let sample = sample.without("index");
    if sample.names().any(|n| n == ASIDE) { sample.rename(ASIDE, "index") } else { sample }
}

// Names of the previous version.
systole_base::renamed! { Arrays => ImageArrays, ColumnCode => ColumnEncoding, Language => TextTokenizer, Packed => RecordCompression, Streamed => StreamedDataset, Tokens => TokenKind }
#[doc(hidden)]
pub use self::PrepareFn as Prepare;
