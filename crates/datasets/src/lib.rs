//! Data sets by name: Fashion-MNIST and MNIST from disk, cache or their public locations, CIFAR-10 and text from disk,
//! a folder of your own pictures, your own files of records, and glyphs, which is drawn on the spot and needs no file.
//!
//! Not a place for formats (those are `systole_data::format`). What becomes of elements is a `map`; [`preprocessing`] has some for words.

mod classes;
mod download;
mod idx_datasets;
mod images;
pub mod preprocessing;
mod records;
mod text;
mod tokenizer;

pub use idx_datasets::{DataDir, fashion_mnist, mnist};
pub use images::{
    FolderOptions, cifar10, colour_glyphs, fit_picture, fit_picture_on, folder, glyphs, picture_size_for,
};
pub use records::{
    ColumnEncoding, RecordCompression, RecordInputs, RecordOptions, RecordShape, holds_records,
    is_of_records, picture_size_of_records, record_inputs, records,
};
pub use text::{TEXT_TOKENS, TextOptions, TextTokenizer, TokenKind, text, text_with};
pub use tokenizer::Tokenizer;

use std::sync::Arc;
use systole_base::{DType, Literal, Result, TensorType};
use systole_data::{Dataset, Sample};

/// A data set of pictures: `image: u8[H, W, C]` with values 0 to 255, `label: i32[]`.
#[derive(Clone, Debug)]
pub struct ImageDataset {
    /// Its name, as given to `systole train`.
    pub name: &'static str,
    /// Where it came from: a folder, or how it was made.
    pub origin: String,
    /// Training elements, in their original order.
    pub train: Dataset,
    /// Test elements, in their original order.
    pub test: Dataset,
    /// Number of training elements.
    pub train_len: usize,
    /// Number of test elements.
    pub test_len: usize,
    /// Height, width, channels.
    pub image_shape: [usize; 3],
    /// What the labels stand for.
    pub class_names: Vec<String>,
    /// Labels are below this.
    pub num_classes: usize,
    /// The training arrays whole.
    pub train_arrays: ImageArrays,
    /// The test arrays whole.
    pub test_arrays: ImageArrays,
}

/// `images: u8[N, H, W, C]`, `labels: i32[N]`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ImageArrays {
    pub images: Literal,
    pub labels: Literal,
}

impl ImageDataset {
    /// The two pipelines: `let (train, test) = datasets::fashion_mnist(DataDir::default())?.split();`
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

/// What a training run learns from: pictures or text, as its pipelines take it.
#[derive(Clone, Debug)]
pub struct TrainingData {
    /// The data set's name.
    pub name: String,
    /// Where it came from: a folder, or how it was made.
    pub origin: String,
    /// Training elements, in their original order: one input, and `label`.
    pub train: Dataset,
    /// Test elements, in their original order.
    pub test: Dataset,
    /// Number of training elements.
    pub train_len: usize,
    /// Number of test elements.
    pub test_len: usize,
    /// What an element's input is, before scaling.
    pub element: TensorType,
    /// What the labels stand for; empty for tokens.
    pub class_names: Vec<String>,
    /// The fields of records that an input is made of, in their order; empty where there are none.
    pub fields: Vec<String>,
    /// How these become numbers, where they are columns of tables.
    pub columns: Vec<ColumnEncoding>,
    /// What an element is called: `pictures` or `sequences`.
    pub elements: &'static str,
    /// What the user should know about the data though it is no error.
    pub notes: Vec<String>,
    /// What tells these data from others of the same name, where they may change between runs.
    pub identity: Option<String>,
    /// How training elements come about where they are read from files while training: in place of `train`.
    pub streamed: Option<StreamedDataset>,
    /// Of text: how it became tokens.
    pub language: Option<TextTokenizer>,
}

/// Elements that are read from files while training. A shuffle holds them as they are in the files, which takes less
/// memory than what is made of them.
#[derive(Clone, Debug)]
pub struct StreamedDataset {
    /// File by file, in the same order in each epoch.
    pub in_order: Dataset,
    /// Several files at a time, their order new in each epoch.
    pub mixed: Dataset,
    /// Elements that a shuffle draws from.
    pub buffer: usize,
    /// Whether going through all files takes little time.
    pub is_small: bool,
    /// What makes a training element of one of them.
    pub prepare: PrepareFn,
}

/// A function of one element.
#[derive(Clone)]
pub struct PrepareFn(pub(crate) Arc<dyn Fn(Sample) -> Result<Sample> + Send + Sync>);

impl PrepareFn {
    /// The training element.
    ///
    /// # Errors
    /// When it cannot be decoded.
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
    /// Whether an element is a picture.
    pub fn is_pictures(&self) -> bool {
        self.element.rank() == 3
    }

    /// Whether a test element can be written as a picture.
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
            element: TensorType::new(DType::U8, d.image_shape),
            class_names: d.class_names,
            fields: Vec::new(),
            columns: Vec::new(),
            elements: "pictures",
            notes: Vec::new(),
            identity: None,
            streamed: None,
            language: None,
        }
    }
}

fn slices(source: String, arrays: &ImageArrays) -> Result<Dataset> {
    let fields = [("image", arrays.images.clone()), ("label", arrays.labels.clone())];
    Dataset::from_named_slices(Arc::<str>::from(source), fields)
}

/// Where a field `index` waits while records are numbered.
const ASIDE: &str = "index of the record";

/// Records with their number in the field `index: i64[]`.
pub fn numbered(records: Dataset) -> Dataset {
    let aside = |s: Sample| if s.names().any(|n| n == "index") { s.rename("index", ASIDE) } else { s };
    records.map(aside).enumerate()
}

/// The record without the number that [`numbered`] gave it.
pub fn unnumbered(sample: Sample) -> Sample {
    let sample = sample.without("index");
    if sample.names().any(|n| n == ASIDE) { sample.rename(ASIDE, "index") } else { sample }
}
