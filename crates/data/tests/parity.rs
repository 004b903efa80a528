//! Parity with TensorFlow: TFRecord files and pipelines of tf.data.
//!
//! Reads files that it wrote, writes byte-identical files, and compares deterministic pipelines with tf.data.
//! `fixtures/data/generate.py` created the files; no TensorFlow is needed here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use systole_base::{DType, Literal, Result};
use systole_data::format::example::{
    FeatureSpecs, SequenceFeatureSpecs, encode, parse_example, parse_sequence_example,
};
use systole_data::format::tfrecord::{TfRecordCompression, TfRecordWriter};
use systole_data::{BucketOptions, Dataset, HostArray, PaddingOptions, Sample, WindowOptions};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/data").join(name)
}

fn value(s: &Sample) -> i64 {
    s.get("value").unwrap().get(0).as_i64()
}

fn ints(n: u64) -> Dataset {
    Dataset::range(n)
}

fn scalar(x: i64) -> Sample {
    Sample::new([("value", HostArray::from(Literal::from_slice([], &[x]).unwrap()))])
}

/// Dataset `i` contains `100 i, 100 i + 1, …`, `lengths[i]` of them.
fn nested(lengths: &'static [u64]) -> impl Fn(Sample) -> Dataset + Clone + Send + Sync + 'static {
    move |s| {
        let i = value(&s);
        Dataset::range(lengths[i as usize]).map(move |s| scalar(100 * i + value(&s)))
    }
}

/// Vectors of length 0, 1, 2, 0, 1, 2 …, filled with the element's index.
fn ragged(n: u64) -> Dataset {
    ints(n).map(|s| {
        let x = vec![value(&s); value(&s) as usize % 3];
        Literal::from_slice([x.len()], &x).map(|x| Sample::new([("value", x)]))
    })
}

fn length(s: &Sample) -> usize {
    s.get("value").map_or(0, |x| x.shape()[0])
}

/// Concatenates all fields to one vector.
fn stacked(s: Sample) -> Result<Sample> {
    let values: Vec<i64> =
        s.fields().map(|(_, x)| x.get().map(|x| x.get(0).as_i64())).collect::<Result<_>>()?;
    Ok(Sample::new([("value", Literal::from_slice([values.len()], &values)?)]))
}

fn choice(which: &[i64]) -> Dataset {
    Dataset::from_tensor_slices([("which", Literal::from_slice([which.len()], which).unwrap())]).unwrap()
}

fn window(size: usize, shift: usize, stride: usize, drop_remainder: bool) -> WindowOptions {
    WindowOptions { size, shift, stride, drop_remainder }
}

/// The pipelines of generate.py, by name.
fn pipelines() -> BTreeMap<&'static str, Dataset> {
    let filter = |d: Dataset, keep: fn(i64) -> bool| d.filter(move |s| keep(value(s)));
    let map = |d: Dataset, f: fn(i64) -> i64| d.map(move |s| scalar(f(value(&s))));
    let renamed = ints(9).skip(3).map(|s| s.rename("value", "b"));
    let rest = || ints(9).skip(5);
    let padding = PaddingOptions::default().shape("value", [Some(4)]).value("value", -1.0);
    BTreeMap::from([
        ("range", ints(7)),
        ("map", map(ints(7), |x| 3 * x + 1)),
        ("filter", filter(ints(12), |x| x % 3 != 1)),
        ("take", ints(9).take(4)),
        ("take-more", ints(3).take(9)),
        ("skip", ints(9).skip(4)),
        ("skip-all", ints(3).skip(5).concatenate(&ints(2))),
        ("repeat", ints(3).repeat_n(3)),
        ("repeat-zero", ints(3).repeat_n(0).concatenate(&ints(1))),
        ("repeat-endless", ints(3).repeat().take(8)),
        ("shard", ints(11).shard(3, 1)),
        ("concatenate", ints(3).concatenate(&ints(5).skip(2))),
        ("enumerate", ints(6).skip(2).enumerate().map(|s| stacked(s.select(&["index", "value"])))),
        ("zip", Dataset::zip([ints(5), renamed]).map(stacked)),
        ("batch", ints(10).batch(4)),
        ("batch-drop", ints(10).batch_drop_remainder(4)),
        ("batch-batch", ints(12).batch(2).batch(3)),
        ("unbatch", ints(10).batch(4).unbatch()),
        ("batch-across-epochs", ints(5).repeat_n(2).batch(3)),
        ("epochs-of-batches", ints(5).batch(3).repeat_n(2)),
        ("padded", ragged(8).padded_batch(3)),
        ("padded-to", ragged(8).padded_batch_with(3, padding, false)),
        ("padded-drop", ragged(8).padded_batch_with(3, PaddingOptions::default(), true)),
        ("window", ints(9).window(3, 2)),
        ("window-stride", ints(12).window_with(window(3, 2, 3, true))),
        ("window-rest", ints(8).window_with(window(3, 3, 1, false))),
        ("flat-map", ints(5).flat_map(nested(&[3, 0, 2, 4, 1]))),
        ("interleave-2-2", ints(5).interleave(nested(&[3, 5, 1, 4, 2]), 2, 2)),
        ("interleave-3-1", ints(6).interleave(nested(&[2, 0, 4, 1, 3, 2]), 3, 1)),
        ("interleave-wide", ints(3).interleave(nested(&[4, 4, 4]), 5, 3)),
        ("interleave-parallel", ints(6).interleave_parallel(nested(&[5, 3, 0, 7, 2, 4]), 4, 2, 2)),
        ("take-while", ints(20).take_while(|s| value(s) * value(s) < 50)),
        ("buckets", ragged(14).bucket_by_sequence_length(length, &[1, 2], &[2, 3, 2])),
        (
            "buckets-pad-to-boundary",
            ragged(14).filter(|s| length(s) > 0).bucket_by_sequence_length_with(
                length,
                &[2, 4],
                &[2, 3, 2],
                BucketOptions { pad_to_bucket_boundary: true, ..BucketOptions::default() },
            ),
        ),
        ("group-by-window", ints(17).group_by_window(|s| value(s) % 3, 4)),
        ("choose", Dataset::choose_from_datasets([ints(4), rest()], &choice(&[0, 1, 1, 0, 1, 0, 0]), false)),
        (
            "choose-until-one-is-empty",
            Dataset::choose_from_datasets([ints(2), rest()], &choice(&[0, 1, 1, 0, 1, 0, 0, 1]), true),
        ),
        ("cache", map(ints(5), |x| x * x).cache().repeat_n(2)),
        ("prefetch", ints(6).map_parallel(|s| s.map("value", |x| x + 1), 2).prefetch(3).batch(4)),
        (
            "many",
            map(filter(ints(40).shard(2, 1), |x| x % 5 != 0), |x| x * 2).batch(4).repeat_n(2).skip(1).take(5),
        ),
    ])
}

/// Formats an array like the fixture: numbers separated by spaces, in brackets.
fn text(shape: &[usize], values: &[i64]) -> String {
    match shape {
        [] => values[0].to_string(),
        [rows, inner @ ..] => {
            let size = values.len() / rows.max(&1);
            let rows: Vec<String> = (0..*rows).map(|i| text(inner, &values[i * size..][..size])).collect();
            format!("[{}]", rows.join(" "))
        }
    }
}

#[test]
fn pipelines_give_tf_datas_elements() {
    let streams = std::fs::read_to_string(fixture("streams.txt")).unwrap();
    let expected: BTreeMap<&str, &str> = streams.lines().filter_map(|l| l.split_once('\t')).collect();
    let ours = pipelines();
    assert!(expected.len() >= 30 && expected.keys().eq(ours.keys()), "the same pipelines");
    for (name, d) in ours {
        for d in [d.clone(), d.debug(), d.prefetch(2)] {
            let of = |s: Result<Sample>| {
                let s = s.unwrap();
                let x = s.get("value").unwrap();
                let values: Vec<i64> = (0..x.ty().elements()).map(|i| x.get(i).as_i64()).collect();
                text(x.shape().dims(), &values)
            };
            let found: Vec<String> = d.iter().map(of).collect();
            assert_eq!(found.join(";"), expected[name], "{name}: {d:?}");
        }
    }
}

/// Content of `example(i)` of generate.py.
fn example(i: i64) -> Sample {
    let tokens: Vec<i64> = (0..i % 4).map(|j| i * j).collect();
    let x = i as f32;
    let image: Vec<u8> = (0..12).map(|j| (i * j) as u8).collect();
    let tiny = 1e-3 * i as f64;
    Sample::new([
        ("box", Literal::from_slice([4], &[x / 8.0, 0.0 - x, 0.5, tiny as f32]).unwrap()),
        ("image", Literal::from_slice([2, 2, 3], &image).unwrap()),
        ("label", Literal::from_slice([], &[i - 5]).unwrap()),
        ("tokens", Literal::from_slice([tokens.len()], &tokens).unwrap()),
    ])
}

fn shown(s: &Sample) -> String {
    s.fields().map(|(name, x)| format!("{name}={:?};", x.get().unwrap())).collect()
}

#[test]
fn examples_of_tensorflow_are_read_in_every_wrapping() {
    let features: FeatureSpecs =
        "box: f32[4], image: ui8[2, 2, 3], label: i64[], tokens: i64[?]".parse().unwrap();
    for name in ["examples.tfrecord", "examples.gzip.tfrecord", "examples.zlib.tfrecord"] {
        let d = Dataset::tfrecord([fixture(name)]).map(parse_example(features.clone()));
        let found: Vec<String> = d.iter().map(|s| shown(&s.unwrap())).collect();
        let expected: Vec<String> = (0..10).map(|i| shown(&example(i))).collect();
        assert_eq!(found, expected, "{name}");
    }
    let steps = SequenceFeatureSpecs {
        context: FeatureSpecs::new().fixed("id", DType::I64, []),
        steps: FeatureSpecs::new().fixed("steps", DType::I64, [2]),
    };
    let d = Dataset::tfrecord([fixture("sequences.tfrecord")]).map(parse_sequence_example(steps));
    for (i, s) in d.iter().enumerate() {
        let steps: Vec<i64> = (0..1 + i as i64 % 3).flat_map(|step| [i as i64, step]).collect();
        let s = s.unwrap();
        assert_eq!(s.get("id").unwrap().get(0).as_i64(), i as i64);
        let expected = Literal::from_slice([steps.len() / 2, 2], &steps).unwrap();
        assert_eq!(s.get("steps").unwrap(), &expected);
    }
}

#[test]
fn what_is_written_is_byte_for_byte_tensorflows_file() {
    let path = std::env::temp_dir().join(format!("systole-parity-{}", std::process::id()));
    let theirs = std::fs::read(fixture("examples.tfrecord")).unwrap();
    for kind in [TfRecordCompression::None, TfRecordCompression::Gzip, TfRecordCompression::Zlib] {
        let mut w = TfRecordWriter::create(&path, kind).unwrap();
        (0..10).for_each(|i| w.write(&encode(&example(i)).unwrap()).unwrap());
        w.finish().unwrap();
        let ours = std::fs::read(&path).unwrap();
        match kind {
            TfRecordCompression::None => assert!(ours == theirs),
            // Compressors differ; the content must not.
            _ => {
                let records = |p: &PathBuf| -> Vec<Vec<u8>> {
                    let all = Dataset::tfrecord([p.clone()]);
                    all.iter().map(|s| s.unwrap().get("record").unwrap().bytes().to_vec()).collect()
                };
                assert!(
                    ours.len() < theirs.len() && records(&path) == records(&fixture("examples.tfrecord"))
                );
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}
