//! Corruption test: a TFRecord file with every bit flipped and truncated at every byte.
//!
//! All damage is found and located, nothing panics, memory stays bounded. The file has 64 KiB and is in memory.

use std::thread::available_parallelism;
use systole_base::rng::RandomStream;
use systole_data::format::tfrecord::{FOOTER, HEADER, OnCorrupt, TfRecordReader, frame, masked_crc};

/// Records of 0 to 2000 random bytes, 64 KiB in total, and the offset of each.
fn file() -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut starts, mut draws) = (Vec::new(), Vec::new(), RandomStream::new(3, 0, 0));
    let frame_bytes = HEADER + FOOTER;
    loop {
        let left = (64 << 10) - bytes.len();
        let mut size = draws.below(2000) as usize;
        if left < size + 3 * frame_bytes {
            size = left - frame_bytes;
        }
        let record: Vec<u8> = (0..size).map(|_| draws.below(256) as u8).collect();
        starts.push(bytes.len());
        frame(&mut bytes, &record).unwrap();
        if bytes.len() == 64 << 10 {
            return (bytes, starts);
        }
    }
}

/// Reads the records up to the first error; returns their number and the error.
fn read<'a>(bytes: &[u8], good: &'a [u8], starts: &'a [usize]) -> (usize, Option<String>) {
    let mut reader = TfRecordReader::from_bytes("damaged", bytes.to_vec(), OnCorrupt::Fail);
    let mut count = 0;
    while let Some(record) = reader.next() {
        match record {
            Ok(record) => {
                let start = starts[count] + HEADER;
                assert!(record == &good[start..start + record.len()], "another record {count}");
                count += 1;
            }
            Err(e) => return (count, Some(e.to_string())),
        }
    }
    (count, None)
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

/// Peak memory of this process in bytes; 0 if the system does not report it.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()).map_or(0, |k| k << 10)
}

/// Returns the checksum stored at `at`, to verify a message.
fn stored(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn every_flipped_bit_of_64_kib_is_found_and_located() {
    let (good, starts) = file();
    assert_eq!(read(&good, &good, &starts), (starts.len(), None));
    let before = peak_memory();
    for_all(8 * good.len(), |bit| {
        let byte = bit / 8;
        let mut bad = good.clone();
        bad[byte] ^= 1 << (bit % 8);
        let record = starts.partition_point(|&s| s <= byte) - 1;
        let (start, end) = (starts[record], starts.get(record + 1).copied().unwrap_or(good.len()));
        let (count, error) = read(&bad, &good, &starts);
        let error = error.unwrap_or_else(|| panic!("bit {bit} is not found"));
        assert_eq!(count, record, "bit {bit}: {error}");
        let place = format!("damaged, record {record}, byte {start}");
        assert!(error.contains(&place), "bit {bit}: {error}");
        let (expected, found) = if byte < start + HEADER {
            (stored(&bad, start + 8), masked_crc(&bad[start..start + 8]))
        } else {
            (stored(&bad, end - FOOTER), masked_crc(&bad[start + HEADER..end - FOOTER]))
        };
        let sums = format!("expected the checksum CRC {expected:#010x}, found {found:#010x}");
        assert!(error.contains(&sums), "bit {bit}: {error}");
    });
    // Threads report their memory in batches, so that a later reading may be lower.
    let grown = peak_memory().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for files of 64 KiB");
}

#[test]
fn every_cut_of_64_kib_is_found_and_located() {
    let (good, starts) = file();
    for_all(good.len(), |cut| {
        let (count, error) = read(&good[..cut], &good, &starts);
        let whole = starts.partition_point(|&s| s <= cut) - 1;
        assert_eq!(count, whole, "cut at {cut}");
        if starts.contains(&cut) {
            assert_eq!(error, None, "a file that ends between records is a file");
        } else {
            let error = error.unwrap_or_else(|| panic!("cut at {cut} is not found"));
            let place = format!("damaged, record {whole}, byte {}", starts[whole]);
            assert!(error.contains(&place), "cut at {cut}: {error}");
        }
    });
}

#[test]
fn after_any_flipped_byte_all_other_records_are_found_again() {
    let (good, starts) = file();
    for_all(good.len(), |byte| {
        let mut bad = good.clone();
        bad[byte] ^= 0x55;
        let mut reader = TfRecordReader::from_bytes("damaged", bad, OnCorrupt::Skip { quota: 1 });
        let damaged = starts.partition_point(|&s| s <= byte) - 1;
        for (i, start) in starts.iter().enumerate().filter(|(i, _)| *i != damaged) {
            let record = reader.next().unwrap_or_else(|| panic!("byte {byte}: no record {i}")).unwrap();
            let data = start + HEADER;
            assert!(record == &good[data..data + record.len()], "byte {byte}: another record {i}");
        }
        assert!(reader.next().is_none());
    });
}
