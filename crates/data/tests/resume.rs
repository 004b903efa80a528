//! Property test of resuming: random pipelines of all stages, interrupted before each element.
//!
//! Restoring each snapshot yields the identical remainder, for any number of threads and queue depth.

use std::path::PathBuf;
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal, Result};
use systole_data::format::tfrecord::{TfRecordCompression, TfRecordWriter};
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, HostArray, PipelinePosition, Sample};

/// Number of random pipelines.
const PIPELINES: u64 = 60;
/// Maximum number of elements to compare.
const MOST: usize = 36;

fn element(i: i64) -> Sample {
    Sample::new([("x", HostArray::scalar(DType::I64, i as f64))])
}

fn first(s: &Sample) -> Result<i64> {
    s.get("x").map(|x| if x.ty().elements() == 0 { 0 } else { x.get(0).as_i64() })
}

/// Files for the TFRecord sources: 5 records of one byte each.
fn files(dir: &PathBuf) -> Vec<PathBuf> {
    std::fs::create_dir_all(dir).unwrap();
    let paths: Vec<PathBuf> = (0..3).map(|k| dir.join(format!("{k}.tfrecord"))).collect();
    for (k, path) in paths.iter().enumerate() {
        let kind = if k == 1 { TfRecordCompression::Gzip } else { TfRecordCompression::None };
        let mut w = TfRecordWriter::create(path, kind).unwrap();
        (0..5).for_each(|i| w.write(&[(5 * k + i) as u8]).unwrap());
        w.finish().unwrap();
    }
    paths
}

fn source(draws: &mut RandomStream, files: &[PathBuf]) -> Dataset {
    let n = 5 + draws.below(9);
    match draws.below(5) {
        0 => Dataset::range(n).map(|s| s.rename("value", "x")),
        1 => Dataset::from_generator(move || (0..n as i64).map(|i| Ok(element(i)))),
        2 => {
            let x: Vec<i64> = (0..n as i64).collect();
            Dataset::from_tensor_slices([("x", Literal::from_slice([n as usize], &x).unwrap())]).unwrap()
        }
        3 => records(files.to_vec()),
        _ => {
            let files = files.to_vec();
            Dataset::range(3).interleave_parallel(
                move |s| Ok(records([files[s.get("value")?.get(0).as_i64() as usize].clone()])),
                2,
                2,
                2,
            )
        }
    }
}

fn records<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Dataset {
    Dataset::tfrecord(files).map(|s: Sample| Ok(element(s.get("record")?.bytes()[0].into())))
}

/// Adds a random stage; also returns whether the field is still a scalar.
fn stage(d: &Dataset, draws: &mut RandomStream, depth: usize) -> (Dataset, bool) {
    let n = 1 + draws.below(6);
    let k = n as usize;
    let scalar = |d: Dataset| (d, true);
    match draws.below(19) {
        0 => scalar(d.map(|s| s.map("x", |x| x * 3))),
        1 => scalar(d.map_parallel(|s| s.map("x", |x| x + 1), 1 + depth % 3)),
        2 => scalar(d.filter(|s| first(s).is_ok_and(|x| x % 3 != 1))),
        3 => scalar(d.shuffle(k, n)),
        4 => scalar(d.shuffle(100, n)),
        5 => scalar(d.take(4 + n)),
        6 => scalar(d.skip(n / 2)),
        7 => scalar(d.repeat_n(1 + n % 3)),
        8 => scalar(d.shard(2, n % 2)),
        9 => scalar(d.cache()),
        10 => scalar(d.prefetch(k)),
        11 => scalar(d.concatenate(&d.map(|s| s.map("x", |x| x + 100)))),
        12 => scalar(d.flat_map(|s| {
            let x = first(&s)?;
            Ok(Dataset::range(1 + x.unsigned_abs() % 3).map(move |_| element(x)))
        })),
        13 => scalar(d.take_while(|s| first(s).is_ok_and(|x| x < 90))),
        14 => scalar(d.map_random(n, |s, r| {
            let more = r.below(10) as f64;
            Ok(s.map("x", |x| x * 10 + more))
        })),
        15 => scalar(d.map(|s| if first(&s)? % 5 == 4 { Ok(s.without("x").without("x")) } else { Ok(s) })),
        16 => scalar(d.batch(k).unbatch()),
        17 => (d.batch(k), false),
        _ => (d.window(k, 1 + k / 2), false),
    }
}

/// Returns a random pipeline of up to six stages.
fn pipeline(draws: &mut RandomStream, files: &[PathBuf]) -> Dataset {
    let mut d = source(draws, files);
    for depth in 0..1 + draws.below(6) as usize {
        let (next, is_scalar) = stage(&d, draws, depth);
        d = next;
        if !is_scalar {
            d = d.prefetch(depth);
            break;
        }
    }
    d
}

fn shown(iter: impl Iterator<Item = Result<Sample>>, n: usize) -> Vec<String> {
    let show =
        |s: Sample| s.fields().map(|(k, v)| format!("{k}={:?};", v.get().unwrap())).collect::<String>();
    iter.take(n).map(|s| s.map_or_else(|e| e.to_string(), show)).collect()
}

#[test]
fn any_pipeline_resumes_before_each_element_with_other_threads_and_queues() {
    let dir = std::env::temp_dir().join(format!("systole-universal-{}", std::process::id()));
    let files = files(&dir);
    let mut lengths = Vec::new();
    for number in 0..PIPELINES {
        let mut draws = RandomStream::new(11, 0, number);
        let d = pipeline(&mut draws, &files);
        let whole = shown(d.iter(), MOST);
        lengths.push(whole.len());
        // The resumed run has other threads and deeper queues than the interrupted one.
        let wider = DatasetOptions { core_budget: Some(3), ..DatasetOptions::default() };
        let others = [d.debug(), d.with_options(wider)];
        let mut iter = d.iter();
        for taken in 0..=whole.len() {
            let position: PipelinePosition = iter.position().to_string().parse().unwrap();
            for other in &others {
                let rest = shown(other.iter_at(&position), MOST - taken);
                assert_eq!(rest, whole[taken..], "pipeline {number}: {d:?} at {position}");
            }
            iter.next();
        }
        let queued = d.prefetch(AUTOTUNE);
        let mut iter = queued.iter();
        for taken in 0..=whole.len() {
            let position = iter.position();
            if taken % 5 == 0 {
                let rest = shown(queued.iter_at(&position), MOST - taken);
                assert_eq!(rest, whole[taken..], "pipeline {number}: {queued:?} at {position}");
            }
            iter.next();
        }
    }
    let empty = lengths.iter().filter(|&&n| n == 0).count();
    assert!(empty < 6 && lengths.iter().sum::<usize>() > 600, "pipelines that test something: {lengths:?}");
    std::fs::remove_dir_all(dir).unwrap();
}
