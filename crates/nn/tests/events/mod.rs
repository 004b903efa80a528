//! TensorBoard's event files read back: as far as tests of what is written need it.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;
use systole_data::format::tensorboard_events::files_of;
use systole_data::format::tfrecord::{OnCorrupt, TfRecordCompression, TfRecordReader};

/// Tag, step and tensor of an event.
pub type Event = (String, u64, Vec<u8>);

/// A field of a message: its number, and its bytes or its number as bytes.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let n = bytes.iter().position(|b| b & 0x80 == 0).unwrap();
        let value = bytes[..=n].iter().rev().fold(0, |v, b| v << 7 | u64::from(b & 0x7f));
        *bytes = &bytes[n + 1..];
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                found.push((tag >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            kind => panic!("wire type {kind}"),
        };
        let (value, rest) = bytes.split_at(length);
        found.push((tag >> 3, value.to_vec()));
        bytes = rest;
    }
    found
}

pub fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|(n, _)| *n == number).map(|(_, value)| value)
}

/// The events of a run in the order in which TensorBoard reads them: tag, step, tensor. Checksums are those of the records.
pub fn read(folder: &Path) -> Vec<Event> {
    let mut found = Vec::new();
    for file in files_of(folder) {
        let mut reader = TfRecordReader::open(&file, TfRecordCompression::None, OnCorrupt::Fail).unwrap();
        let mut is_first = true;
        while let Some(record) = reader.next() {
            let event = record.unwrap();
            let time = f64::from_le_bytes(field(event, 1).unwrap().try_into().unwrap());
            assert!(time > 1.6e9 && time < 4e9, "{time}");
            let is_header = field(event, 3).is_some_and(|v| v == b"brain.Event:2");
            assert_eq!(is_header, std::mem::take(&mut is_first), "{}", file.display());
            let step = u64::from_le_bytes(field(event, 2).unwrap_or(vec![0; 8]).try_into().unwrap());
            if let Some(graph) = field(event, 4) {
                found.push(("graph".into(), step, graph));
            }
            for (_, value) in fields(&field(event, 5).unwrap_or_default()) {
                let tag = String::from_utf8(field(&value, 1).unwrap()).unwrap();
                found.push((tag, step, field(&value, 8).unwrap()));
            }
        }
    }
    found
}

pub fn steps_of(events: &[Event], tag: &str) -> Vec<u64> {
    events.iter().filter(|e| e.0 == tag).map(|e| e.1).collect()
}

/// Values of a scalar's tag.
pub fn scalars(events: &[Event], tag: &str) -> Vec<f32> {
    let value = |tensor: &[u8]| f32::from_le_bytes(field(tensor, 5).unwrap().try_into().unwrap());
    events.iter().filter(|e| e.0 == tag).map(|e| value(&e.2)).collect()
}

pub fn tags(events: &[Event]) -> Vec<&str> {
    let mut tags: Vec<&str> = events.iter().map(|e| e.0.as_str()).collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}
