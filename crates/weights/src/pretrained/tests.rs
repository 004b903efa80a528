//! Tests of pretrained models by name: the tables, and weights that lie in the cache.

use super::entry::RECORD;
use super::*;
use crate::{ResizeTarget, WeightSource};
use crate::{WeightFormat, export};
use std::fs;
use std::path::PathBuf;
use systole_datasets::{FileDigest, RemoteFile};
use systole_ir::{DType, ErrorKind, Literal, TensorType};
use systole_nn::Model;
use systole_nn::applications::APPLICATIONS;
use systole_nn::layers::{conv2d, dense, flatten};
use systole_testing::assert_error;

#[test]
fn the_tables_are_complete() {
    let all: Vec<&PretrainedEntry> = pretrained_entries().collect();
    for (i, entry) in all.iter().enumerate() {
        let name = entry.full_name();
        assert!(all[..i].iter().all(|other| other.full_name() != name), "{name}");
        assert!(entry.source.starts_with("https://") && entry.source.ends_with('/'), "{name}");
        assert!(entry.application.is_none_or(|a| APPLICATIONS.contains(&a)), "{name}");
        let is_known = PretrainedName::parse(&name).unwrap();
        assert!(
            matches!(is_known, Some(PretrainedName::Entry(e)) if e.file.file == entry.file.file),
            "{name}"
        );
        for digest in entry.file.digests {
            let digits = match digest {
                FileDigest::Sha256(_) => 64,
                FileDigest::Sha256Prefix(_) => 8,
                FileDigest::Md5(_) => 32,
            };
            let is_hex = digest.hex().chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
            assert!(digest.hex().len() == digits && is_hex, "{name}");
        }
        // Only Keras's MobileNets are published without a digest.
        assert_eq!(entry.file.digests.is_empty(), ["MobileNet", "MobileNetV2"].contains(&entry.name));
    }
}

#[test]
fn names_have_a_publisher_a_model_and_a_revision() {
    let entry = |text: &str| match PretrainedName::parse(text).unwrap() {
        Some(PretrainedName::Entry(entry)) => entry.full_name(),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(entry("keras:resnet50"), "keras:ResNet50");
    assert_eq!(entry("torchvision:resnet50"), "torchvision:resnet50@IMAGENET1K_V2");
    assert_eq!(entry("torchvision:resnet50@IMAGENET1K_V1"), "torchvision:resnet50@IMAGENET1K_V1");
    for other in ["runs/mnist", "gs://bucket/m.safetensors", "c:model", "resnet50"] {
        assert!(PretrainedName::parse(other).unwrap().is_none());
    }
    let e = PretrainedName::parse("keras:RestNet50").unwrap_err();
    assert_error(&e, ErrorKind::Config, &["`keras:RestNet50`", "keras:ResNet50"]);
}

/// A cache with a torchvision ResNet of the fixtures, whose entry states its true digest.
fn resnet(name: &str) -> (PathBuf, DataDir, &'static PretrainedEntry) {
    let cache = std::env::temp_dir().join(format!("systole-pretrained-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&cache);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights/resnet.pt");
    let digest = systole_datasets::sha256(&fixture).unwrap();
    let weights = fs::read(fixture).unwrap();
    let digests: &[FileDigest<'_>] = vec![FileDigest::Sha256Prefix(digest[..8].to_string().leak())].leak();
    let file = RemoteFile { digests, ..torchvision::ENTRIES[0].file };
    let entry = PretrainedEntry { file, ..torchvision::ENTRIES[0] };
    let folder = cache.join("models/torchvision/resnet18-IMAGENET1K_V1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(file.file), weights).unwrap();
    (cache.clone(), DataDir::default().cache(cache).offline(), Box::leak(Box::new(entry)))
}

/// Predicts pixels from 0 to 255 with the weights of a source.
fn predicted(source: &WeightSource, pixels: &Literal) -> Vec<f32> {
    let (layers, _) = source.architecture().unwrap().unwrap();
    let mut model = Model::new(layers);
    model.build(&[TensorType::new(DType::F32, &pixels.shape().dims()[1..])]).unwrap();
    source.fill(&mut model, false).unwrap();
    model.predict_on_batch(pixels).unwrap().to_f32s()
}

#[test]
fn pixels_are_normalized_as_the_publisher_does() {
    let (cache, dir, entry) = resnet("pixels");
    // Without the names of the classes, the error says where to get them.
    assert!(!cache.join("models/torchvision/resnet18-IMAGENET1K_V1").join(RECORD).exists());
    let e = PretrainedName::Entry(entry).fetch(&dir).unwrap_err();
    assert_error(&e, ErrorKind::Io, &["imagenet_class_index.json", "c2c37ea517e94d9795004a39431a14cb"]);
    let folder = cache.join("models/torchvision/resnet18-IMAGENET1K_V1");
    let source = entry.open(&folder, vec!["a".into(), "b".into()]).unwrap();
    assert_eq!(source.class_names(), ["a", "b"]);
    let processor = source.image_processor().unwrap();
    assert_eq!((processor.resize, processor.size()), (Some(ResizeTarget::ShortestEdge(256)), Some([224; 2])));
    let pixels: Vec<f32> = (0..2 * 32 * 32 * 3).map(|i| ((i * 37) % 256) as f32).collect();
    let normalized: Vec<f32> = pixels
        .iter()
        .enumerate()
        .map(|(i, p)| (p / 255.0 - [0.485, 0.456, 0.406][i % 3]) / [0.229, 0.224, 0.225][i % 3])
        .collect();
    let image = |values: &[f32]| Literal::from_slice([2, 32, 32, 3], values).unwrap();
    let y = predicted(&source, &image(&pixels));
    let plain = WeightSource::open(&folder.join(entry.file.file)).unwrap();
    let expected = predicted(&plain, &image(&normalized));
    assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{y:?} {expected:?}");
    fs::remove_dir_all(&cache).unwrap();
}

#[test]
fn a_model_of_blue_green_red_reads_red_green_blue() {
    let model = || {
        let mut model = Model::sequential([conv2d(4, [3, 3]), flatten(), dense(2)]);
        model.build(&[TensorType::new(DType::F32, [6, 6, 3])]).unwrap();
        model
    };
    let mut theirs = model();
    let bytes = export(&theirs, WeightFormat::Keras, "w.weights.h5".as_ref()).unwrap().bytes;
    let mut source = WeightSource::from_bytes("w.weights.h5", bytes).unwrap();
    source.reverse_image_channels().unwrap();
    let mut ours = model();
    source.fill(&mut ours, false).unwrap();
    let rgb: Vec<f32> = (0..108).map(|i| ((i * 37) % 101) as f32 / 101.0).collect();
    let bgr: Vec<f32> = rgb.chunks(3).flat_map(|pixel| pixel.iter().rev()).copied().collect();
    let y = |model: &mut Model, x: &[f32]| {
        model.predict_on_batch(&Literal::from_slice([1, 6, 6, 3], x).unwrap()).unwrap().to_f32s()
    };
    let (found, expected) = (y(&mut ours, &rgb), y(&mut theirs, &bgr));
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    assert!(y(&mut ours, &bgr).iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-3));
}
