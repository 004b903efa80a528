//! Persistent sample cache ([`SampleStore`]): one file of numbered samples, written incrementally and resumed after a crash.
//!
//! The file is a TFRecord file. Its first record identifies the pipeline; each further record is a numbered sample; the
//! last one contains the count. A file without the last record is unfinished: its complete records are used, a
//! truncated end is removed, and the rest is appended. Only numbers and offsets are in memory.

use crate::HostArray;
use crate::file_system::{FileSystem, OsFileSystem, again, write_all};
use crate::format::protobuf_wire::{ProtoFieldValue, ProtoFields, put_bytes, put_varint};
use crate::format::tfrecord::{OnCorrupt, TfRecordCompression, TfRecordReader, frame};
use crate::mutex::lock;
use crate::sample::Sample;
use std::collections::HashMap;
use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use systole_base::{DType, Error, Literal, Result, TensorType, ensure, err};

pub(crate) struct SampleStore<F: FileSystem = OsFileSystem> {
    files: F,
    path: PathBuf,
    /// Expected pipeline description in the first record.
    made_by: String,
    state: Mutex<Option<StoreState<F::File>>>,
}

struct StoreState<File> {
    /// File for writing; `None`: another process writes it, it is complete, or writing failed.
    file: Option<File>,
    reader: TfRecordReader,
    /// Position in the file by sample number.
    places: HashMap<u64, [u64; 3]>,
    end: u64,
    whole: Option<u64>,
}

impl SampleStore {
    pub fn new(path: PathBuf, made_by: String) -> SampleStore {
        SampleStore::on(OsFileSystem, path, made_by)
    }
}

impl<F: FileSystem> SampleStore<F> {
    pub fn on(files: F, path: PathBuf, made_by: String) -> SampleStore<F> {
        SampleStore { files, path, made_by, state: Mutex::default() }
    }

    /// Returns sample `number` of the cache file, if it is stored.
    pub fn get(&self, number: u64) -> Result<Option<Sample>> {
        self.with(|state, path| {
            let Some(place) = state.places.get(&number) else { return Ok(None) };
            state.reader.seek(*place)?;
            let record = state.reader.next().ok_or_else(|| torn(path))??;
            decode(record).map(|(_, sample)| Some(sample))
        })
    }

    /// Returns the number of cached samples, once all are stored.
    pub fn whole(&self) -> Result<Option<u64>> {
        self.with(|state, _| Ok(state.whole))
    }

    /// Adds a sample to the cache file, unless it is stored already, the file is complete, or another process writes
    /// it. After an error nothing more is written in this run: stored samples stay valid, and the next run appends the
    /// rest.
    pub fn put(&self, number: u64, sample: &Sample) -> Result<()> {
        self.with(|state, path| {
            if state.file.is_none() || state.places.contains_key(&number) {
                return Ok(());
            }
            let at = state.end;
            state.append(&self.files, &encode(number, sample)?, path)?;
            state.places.insert(number, [at, 0, 0]);
            Ok(())
        })
    }

    /// Records that the cache has `count` samples, and syncs the file if all of them are stored.
    pub fn finish(&self, count: u64) -> Result<()> {
        self.with(|state, path| {
            let has_all = |places: &HashMap<u64, _>| {
                places.len() as u64 >= count && (0..count).all(|n| places.contains_key(&n))
            };
            if state.file.is_none() || !has_all(&state.places) {
                return Ok(());
            }
            let mut record = Vec::new();
            put_varint(&mut record, 3 << 3);
            put_varint(&mut record, count);
            state.append(&self.files, &record, path)?;
            if let Some(mut file) = state.file.take() {
                again(|| self.files.sync(&mut file)).map_err(|e| Error::io("cannot write", path, e))?;
            }
            state.whole = Some(count);
            Ok(())
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut StoreState<F::File>, &Path) -> Result<T>) -> Result<T> {
        let mut state = lock(&self.state);
        if state.is_none() {
            *state = Some(self.open()?);
        }
        match &mut *state {
            Some(state) => f(state, &self.path),
            None => Err(torn(&self.path)),
        }
    }

    fn open(&self) -> Result<StoreState<F::File>> {
        let path = &self.path;
        let wrong = |e| Error::io("cannot open the cache file", path, e);
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(wrong)?;
        }
        let file = again(|| self.files.open(path)).map_err(wrong)?;
        let is_ours = match self.files.lock(&file) {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(e)) => return Err(wrong(e)),
        };
        let mut reader = TfRecordReader::open(path, TfRecordCompression::None, OnCorrupt::Fail)?;
        let mut state = StoreState { file: Some(file), places: HashMap::new(), end: 0, whole: None, reader };
        let mut is_first = true;
        while let Some(record) = state.reader.next() {
            let Ok(record) = record else { break };
            ensure!(!is_first || record == self.made_by.as_bytes(), self.foreign());
            if !is_first {
                match header(record)? {
                    (Some(number), _) => drop(state.places.insert(number, [state.end, 0, 0])),
                    (None, count) => state.whole = count,
                }
            }
            is_first = false;
            state.end = state.reader.place()[0];
        }
        if state.whole.is_some() || !is_ours {
            state.file = None;
        } else if let Some(file) = &mut state.file {
            again(|| self.files.truncate(file, state.end)).map_err(wrong)?;
            if is_first {
                state.append(&self.files, self.made_by.as_bytes(), path)?;
            }
        }
        reader = TfRecordReader::open_growing(path)?;
        state.reader = reader;
        Ok(state)
    }

    fn foreign(&self) -> Error {
        err!(Data, "the cache file belongs to another pipeline")
            .at(self.path.display().to_string())
            .because(format!("the current pipeline is {}", self.made_by))
            .hint("delete the cache file, or use another path")
    }
}

impl<File> StoreState<File> {
    fn append<F: FileSystem<File = File>>(&mut self, files: &F, record: &[u8], path: &Path) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut framed = Vec::with_capacity(record.len() + 16);
        let written = frame(&mut framed, record).and_then(|()| write_all(files, file, &framed));
        if let Err(e) = written {
            // A full disk must not leave a partial record; if truncation fails too, the next run detects it by its
            // checksum.
            let _ = again(|| files.truncate(file, self.end));
            self.file = None;
            return Err(Error::io("cannot write", path, e).hint("free disk space, or use another path"));
        }
        self.end += framed.len() as u64;
        Ok(())
    }
}

fn torn(path: &Path) -> Error {
    err!(Data, "the cache file changed while it was in use")
        .at(path.display().to_string())
        .hint("delete the cache file and run again")
}

/// Serializes number (field 1), and for each array (field 2) its name, element type, sizes and bytes.
fn encode(number: u64, sample: &Sample) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    put_varint(&mut out, 1 << 3);
    put_varint(&mut out, number);
    for (name, array) in sample.fields() {
        let x = array.get()?;
        let mut field = Vec::with_capacity(x.bytes().len() + name.len() + 32);
        put_bytes(&mut field, 1, name.as_bytes());
        put_bytes(&mut field, 2, x.dtype().name().as_bytes());
        let mut sizes = Vec::new();
        x.shape().iter().for_each(|&d| put_varint(&mut sizes, d as u64));
        put_bytes(&mut field, 3, &sizes);
        put_bytes(&mut field, 4, x.bytes());
        put_bytes(&mut out, 2, &field);
    }
    Ok(out)
}

/// Returns a sample's number, or the count in the last record.
fn header(record: &[u8]) -> Result<(Option<u64>, Option<u64>)> {
    match ProtoFields::of(record).next().transpose()? {
        Some((1, ProtoFieldValue::Varint(number))) => Ok((Some(number), None)),
        Some((3, ProtoFieldValue::Varint(count))) => Ok((None, Some(count))),
        _ => Err(err!(Data, "a record of the cache file has an unknown format")),
    }
}

fn decode(record: &[u8]) -> Result<(u64, Sample)> {
    let (mut number, mut fields) = (0, Vec::new());
    for part in ProtoFields::of(record) {
        match part? {
            (1, ProtoFieldValue::Varint(n)) => number = n,
            (2, ProtoFieldValue::Bytes(field)) => fields.push(decode_field(field)?),
            _ => {}
        }
    }
    Ok((number, Sample::from_parts(fields, None)))
}

fn decode_field(field: &[u8]) -> Result<(std::sync::Arc<str>, HostArray)> {
    let (mut name, mut dtype, mut sizes, mut bytes) = (None, None, Vec::new(), &[][..]);
    for part in ProtoFields::of(field) {
        let text = |b| std::str::from_utf8(b).ok();
        match part? {
            (1, ProtoFieldValue::Bytes(b)) => name = text(b),
            (2, ProtoFieldValue::Bytes(b)) => dtype = text(b).and_then(DType::parse),
            (3, ProtoFieldValue::Bytes(b)) => {
                let mut list = ProtoFields::of(b);
                while let Some(d) = list.packed()? {
                    sizes.push(usize::try_from(d).unwrap_or(usize::MAX));
                }
            }
            (4, ProtoFieldValue::Bytes(b)) => bytes = b,
            _ => {}
        }
    }
    let lacks = |what| err!(Data, "an array in the cache file has no {what}");
    let (name, dtype) = (name.ok_or_else(|| lacks("name"))?, dtype.ok_or_else(|| lacks("element type"))?);
    Ok((name.into(), Literal::from_bytes(TensorType::new(dtype, sizes), bytes)?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::{FaultInjectingFileSystem, InjectedFault};
    use std::io;

    fn sample(i: u64) -> Sample {
        Sample::new([("x", HostArray::scalar(DType::I64, i as f64))])
    }

    /// Writes three samples like a run that continues without a cache if it cannot be written.
    fn fill<F: FileSystem>(store: &SampleStore<F>) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = (0..3).map(|i| store.put(i, &sample(i))).collect();
        results.push(store.finish(3));
        results
    }

    #[test]
    fn whichever_call_fails_what_is_kept_is_right_and_the_next_run_adds_the_rest() {
        let path = std::env::temp_dir().join(format!("systole-store-{}", std::process::id()));
        fn on<'a>(
            files: &'a FaultInjectingFileSystem,
            path: &Path,
        ) -> SampleStore<&'a FaultInjectingFileSystem> {
            SampleStore::on(files, path.into(), "test".into())
        }
        let healthy = FaultInjectingFileSystem::never();
        assert!(fill(&on(&healthy, &path)).iter().all(Result::is_ok));
        let calls = healthy.calls();
        assert!(calls.len() >= 8 && calls.ends_with(&["write", "sync"]), "{calls:?}");
        let full = InjectedFault::Error(io::ErrorKind::StorageFull);
        for fault in [full, InjectedFault::Io, InjectedFault::Interrupted, InjectedFault::Short] {
            for (n, forever) in (0..calls.len()).flat_map(|n| [(n, false), (n, true)]) {
                let endless = fault == InjectedFault::Interrupted && forever;
                if endless {
                    continue;
                }
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, b"").unwrap();
                let faulty = if forever {
                    FaultInjectingFileSystem::from(n, fault)
                } else {
                    FaultInjectingFileSystem::at(n, fault)
                };
                let damaged = on(&faulty, &path);
                let failed = fill(&damaged).iter().any(Result::is_err);
                assert_eq!(failed, fault == full || fault == InjectedFault::Io, "{fault:?} in call {n}");
                for i in 0..3 {
                    if let Ok(Some(kept)) = damaged.get(i) {
                        assert_eq!(kept.get("x").unwrap().get(0).as_i64(), i as i64);
                    }
                }
                drop(damaged);
                let healed = SampleStore::new(path.clone(), "test".into());
                assert!(fill(&healed).iter().all(Result::is_ok), "{fault:?} in call {n}");
                drop(healed);
                let whole = SampleStore::new(path.clone(), "test".into());
                assert_eq!(whole.whole().unwrap(), Some(3), "{fault:?} in call {n}");
                for i in 0..3 {
                    let kept = whole.get(i).unwrap().unwrap();
                    assert_eq!(kept.get("x").unwrap().get(0).as_i64(), i as i64, "{fault:?} in call {n}");
                }
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
