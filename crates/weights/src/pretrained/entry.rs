//! Entry of the tables of pretrained models: downloads, verifies and opens its weights.

use crate::folder_settings::{ImageProcessor, ResizeTarget};
use crate::source::WeightSource;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use systole_datasets::{DataDir, FileDigest, PublishedFiles, RemoteFile};
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// Published weights of an image classifier: address, digest, license, and how they are read.
#[derive(Clone, Copy, Debug)]
pub struct PretrainedEntry {
    /// `keras` or `torchvision`.
    pub publisher: &'static str,
    /// The publisher's name of the model: `ResNet50`, `resnet50`.
    pub name: &'static str,
    /// The publisher's name of these weights; the first entry of a name is the default.
    pub revision: &'static str,
    /// Base address; the file's name follows. https uses the system's curl.
    pub source: &'static str,
    /// File with the weights.
    pub file: RemoteFile<'static>,
    /// Date of the last download from this address by Systole's authors; `None`: not tried.
    pub last_tried: Option<&'static str>,
    /// Source of address and digest: package, version and file.
    pub digests_from: &'static str,
    /// License as the publisher states it.
    pub license: &'static str,
    /// Systole's application with the layers; `None`: the names of the tensors tell the layers.
    pub(super) application: Option<&'static str>,
    pub(super) pixels: PixelScaling,
    pub(super) resize: ResizeTarget,
    /// Height and width of the images.
    pub(super) side: usize,
}

/// How pixels from 0 to 255 are prepared for a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PixelScaling {
    /// By layers of the model.
    InModel,
    /// To −1…1: mode `tf` of `keras.applications`.
    Symmetric,
    /// By ImageNet's mean and standard deviation of each channel: mode `torch` of `keras.applications`.
    ImageNet,
    /// Blue, green, red, minus the mean: mode `caffe` of `keras.applications`.
    Caffe,
}

impl PixelScaling {
    /// Returns mean and standard deviation of the channels red, green, blue, if pixels are normalized.
    fn normalization(self) -> Option<[[f64; 3]; 2]> {
        let scaled = |values: [f64; 3]| values.map(|v| v * 255.0);
        match self {
            PixelScaling::InModel => None,
            PixelScaling::Symmetric => Some([[127.5; 3]; 2]),
            PixelScaling::ImageNet => Some([scaled([0.485, 0.456, 0.406]), scaled([0.229, 0.224, 0.225])]),
            PixelScaling::Caffe => Some([[123.68, 116.779, 103.939], [1.0; 3]]),
        }
    }
}

/// Record of verified files, in their folder.
pub(super) const RECORD: &str = "fetched.json";

/// Address and file of ImageNet's class names, as in `keras.applications.imagenet_utils` of Keras 3.15.1.
const CLASSES_AT: &str = "https://storage.googleapis.com/download.tensorflow.org/data/";
const CLASSES: RemoteFile<'static> = RemoteFile {
    file: "imagenet_class_index.json",
    size: None,
    digests: &[FileDigest::Md5("c2c37ea517e94d9795004a39431a14cb")],
};

/// Pretrained model on this machine.
#[derive(Clone, Debug)]
pub struct FetchedModel {
    /// Folder with the files.
    pub folder: PathBuf,
    /// Commit or version of the weights.
    pub revision: String,
    /// License as the publisher states it.
    pub license: String,
    /// Digests that were verified: `SHA-256`; without one, what was recorded instead.
    pub verified: String,
    /// Whether the files were downloaded by this call.
    pub is_new: bool,
    pub(super) entry: Option<&'static PretrainedEntry>,
    /// Class names by index, of entries.
    pub(super) class_names: Vec<String>,
}

impl FetchedModel {
    /// Opens the weights.
    ///
    /// # Errors
    /// See [`WeightSource::open`].
    pub fn open(&self) -> Result<WeightSource> {
        match self.entry {
            None => WeightSource::open(&self.folder),
            Some(entry) => entry.open(&self.folder, self.class_names.clone()),
        }
    }
}

impl PretrainedEntry {
    /// Returns the name by which it is fetched: `keras:ResNet50`, `torchvision:resnet50@IMAGENET1K_V2`.
    pub fn full_name(&self) -> String {
        match self.publisher {
            "keras" => format!("keras:{}", self.name),
            publisher => format!("{publisher}:{}@{}", self.name, self.revision),
        }
    }

    fn published(&self, dir: &DataDir) -> PublishedFiles<'static> {
        PublishedFiles {
            name: self.full_name(),
            folder: format!("models/{}/{}-{}", self.publisher, self.name, self.revision),
            files: vec![self.file],
            sources: dir.sources(&[self.source]),
            fields: Vec::new(),
            contents: vec![self.file.file, RECORD],
        }
    }

    /// Returns the digests that are verified; without one, what is recorded instead.
    fn verified(&self, path: &Path) -> Result<String> {
        Ok(match self.file.digests {
            [] => format!(
                "not verified, because the publisher states no digest; SHA-256 {}",
                systole_datasets::sha256(path)?
            ),
            digests => digests.iter().map(|d| d.algorithm()).collect::<Vec<_>>().join(", "),
        })
    }

    pub(super) fn fetch(&'static self, dir: &DataDir) -> Result<FetchedModel> {
        let classes = PublishedFiles {
            name: "names of ImageNet's classes".into(),
            folder: "models/imagenet".into(),
            files: vec![CLASSES],
            sources: dir.sources(&[CLASSES_AT]),
            fields: Vec::new(),
            contents: vec![CLASSES.file],
        };
        let files = self.published(dir);
        let is_new = files.locate(dir).is_none();
        let folder = files.fetch(dir, |folder| {
            let verified = self.verified(&folder.join(self.file.file))?;
            let record = json!({"name": self.full_name(), "verified": verified, "license": self.license});
            let path = folder.join(RECORD);
            fs::write(&path, format!("{record:#}\n")).map_err(|e| Error::io("cannot write", &path, e))
        })?;
        let class_names = class_names(&classes.fetch(dir, |_| Ok(()))?.join(CLASSES.file))?;
        let record = crate::huggingface::json(&folder.join(RECORD))?;
        let verified = record["verified"].as_str().unwrap_or("unknown").to_string();
        let (revision, license) = (self.revision.into(), self.license.into());
        Ok(FetchedModel { folder, revision, license, verified, is_new, entry: Some(self), class_names })
    }

    /// Opens the weights of a folder.
    pub(super) fn open(&self, folder: &Path, class_names: Vec<String>) -> Result<WeightSource> {
        let mut source = WeightSource::open(&folder.join(self.file.file))?;
        let crop = match self.resize {
            ResizeTarget::Exact(_) => None,
            ResizeTarget::ShortestEdge(_) => Some([self.side; 2]),
        };
        let [mean, deviation] = self.pixels.normalization().unwrap_or([[0.0; 3], [1.0; 3]]);
        let processor = ImageProcessor {
            mean: mean.to_vec(),
            deviation: deviation.to_vec(),
            resize: Some(self.resize),
            method: "bilinear",
            crop,
        };
        source.set_pretrained(self.application, processor, class_names)?;
        if self.pixels == PixelScaling::Caffe {
            source.reverse_image_channels().at(|| self.full_name())?;
        }
        Ok(source)
    }
}

/// Reads `{"0": ["n01440764", "tench"], …}`.
fn class_names(path: &Path) -> Result<Vec<String>> {
    let index = crate::huggingface::json(path)?;
    let name = |i: usize| {
        let name = index.get(i.to_string())?.get(1).and_then(Value::as_str)?;
        Some(name.replace('_', " "))
    };
    let count = index.as_object().map_or(0, |index| index.len());
    (0..count).map(name).collect::<Option<Vec<String>>>().ok_or_else(|| {
        Error::new(ErrorKind::Data, "the index of classes has an unexpected form")
            .at(path.display().to_string())
            .hint("remove the file and repeat the command")
    })
}
