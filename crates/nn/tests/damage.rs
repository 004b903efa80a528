//! Corrupted checkpoints: flips every bit and truncates at every byte of a 64 KiB file.
//!
//! All damage is detected and located, nothing panics, memory stays bounded.

use std::collections::BTreeMap;
use std::thread::available_parallelism;
use systole_ir::{DType, ErrorKind, Literal, Result, TensorType};
use systole_nn::ModelFile;
use systole_testing::assert_error;

/// A checkpoint with the sections that a training run writes, filled up to 64 KiB.
fn checkpoint() -> ModelFile {
    let array = |n: usize, from: f32| {
        let values: Vec<f32> = (0..n).map(|i| (from + i as f32).sin()).collect();
        Literal::from_slice([n], &values).unwrap()
    };
    let mut tensors = vec![
        ("weights/dense/kernel".to_string(), array(7000, 1.0)),
        ("optimizer/momentum/dense/kernel".to_string(), array(7000, 2.0)),
        ("metrics/loss".to_string(), Literal::scalar(DType::F64, 0.25)),
        ("callbacks/0/best/mask".to_string(), Literal::zeros(TensorType::new(DType::Bool, [77]))),
    ];
    let run = r#"{"place":{"epoch":3,"steps":17,"finished":false,"data":"3:17@17"}}"#;
    let metadata = BTreeMap::from([("run".to_string(), run.to_string())]);
    let file = |tensors: &Vec<_>| ModelFile { tensors: tensors.clone(), metadata: metadata.clone() };
    let left = (64 << 10) - bytes(&file(&tensors)).len();
    let rest = left - left % 8 - 256;
    tensors.push(("weights/dense/bias".into(), Literal::zeros(TensorType::new(DType::U8, [rest]))));
    file(&tensors)
}

fn bytes(file: &ModelFile) -> Vec<u8> {
    file.to_bytes().unwrap()
}

fn read(bytes: &[u8]) -> Result<ModelFile> {
    ModelFile::read(&mut &bytes[..], bytes.len() as u64)
}

/// Calls `f` with 0 … n-1 on all cores.
fn for_all(n: usize, f: impl Fn(usize) + Sync) {
    let threads = available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for k in 0..threads {
            let f = &f;
            scope.spawn(move || (k..n).step_by(threads).for_each(f));
        }
    });
}

/// Returns the peak memory of this process in bytes; 0 if the system does not report it.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()).map_or(0, |k| k << 10)
}

/// Returns the byte ranges of the arrays by name, from the format: little-endian length, JSON, arrays.
fn places(good: &[u8]) -> (usize, Vec<(String, std::ops::Range<usize>)>) {
    let data = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&good[8..data]).unwrap();
    let of = |(name, entry): (&String, &serde_json::Value)| {
        let at = |i: usize| entry["data_offsets"][i].as_u64().map(|n| data + n as usize);
        Some((name.clone(), at(0)?..at(1)?))
    };
    (data, header.as_object().unwrap().iter().filter_map(of).collect())
}

#[test]
fn every_flipped_bit_of_a_checkpoint_is_found_and_located() {
    let file = checkpoint();
    let good = bytes(&file);
    assert!(good.len() > 63 << 10 && good.len() <= 64 << 10 && read(&good).unwrap() == file);
    let (data, places) = places(&good);
    let before = peak_memory();
    for_all(8 * good.len(), |bit| {
        let byte = bit / 8;
        let mut bad = good.clone();
        bad[byte] ^= 1 << (bit % 8);
        let error = read(&bad).expect_err("damage that is not found").to_string();
        match places.iter().find(|(_, place)| place.contains(&byte)) {
            Some((name, place)) => {
                let place = format!("tensor {name}, bytes {}..{}", place.start, place.end);
                assert!(error.contains(&place) && error.contains("CRC32C"), "bit {bit}: {error}");
            }
            // A changed length makes other bytes the header, whose sum then does not fit or which is no header.
            None if byte < 8 => assert!(error.contains("byte"), "bit {bit}: {error}"),
            None => {
                assert!(error.contains(&format!("bytes 8..{data}")) || error.contains("byte 8"), "{error}")
            }
        }
    });
    // Threads report their memory in batches, so that a later reading may be lower.
    let grown = peak_memory().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for files of 64 KiB");
}

#[test]
fn every_cut_of_a_checkpoint_is_found() {
    let good = bytes(&checkpoint());
    for_all(good.len(), |cut| {
        let error = read(&good[..cut]).expect_err("a cut that is not found");
        assert_error(&error, ErrorKind::Data, &[]);
    });
    let longer = [&good[..], &[0]].concat();
    assert_error(&read(&longer).unwrap_err(), ErrorKind::Data, &[&format!("byte {}", good.len())]);
}
