//! `tfrecord`: records of TFRecord files, as `record: ui8[n]`.
//!
//! Reads sequentially, or with random access through an index, for plain files.

use crate::format::tfrecord::{
    FOOTER, HEADER, OnCorrupt, TfRecordCompression, TfRecordReader, little_endian,
};
use crate::input_file::InputFile;
use crate::mutex::lock;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, foreign,
};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use systole_base::{Error, Literal, Result, ensure, err};

/// Options of [`Dataset::tfrecord_with`].
#[derive(Clone, Debug, Default)]
pub struct TfRecordOptions {
    /// Compression of the files.
    pub compression: TfRecordCompression,
    /// Policy for damaged records.
    pub on_corrupt: OnCorrupt,
    /// Builds an index in one pass (16 bytes per record) and then reads any record directly: shuffling is uniform over
    /// all records without a buffer, and threads read in parallel. Requires plain files and [`OnCorrupt::Fail`].
    pub random_access: bool,
}

impl Dataset {
    /// Creates a dataset of the records of TFRecord files: `record: ui8[n]`. Gzip and zlib are detected.
    pub fn tfrecord<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Dataset {
        Dataset::tfrecord_with(files, TfRecordOptions::default())
    }

    /// [`Dataset::tfrecord`] with all options.
    pub fn tfrecord_with<P: Into<PathBuf>>(
        files: impl IntoIterator<Item = P>,
        options: TfRecordOptions,
    ) -> Dataset {
        let files: Arc<Vec<PathBuf>> = Arc::new(files.into_iter().map(Into::into).collect());
        Dataset::new(TfRecordStage { files, options, index: Mutex::default() })
    }
}

struct TfRecordStage {
    files: Arc<Vec<PathBuf>>,
    options: TfRecordOptions,
    index: Mutex<Option<Arc<RecordIndex>>>,
}

impl TfRecordStage {
    fn index(&self) -> Result<Arc<RecordIndex>> {
        let mut index = lock(&self.index);
        if let Some(index) = &*index {
            return Ok(index.clone());
        }
        let made = Arc::new(RecordIndex::of(&self.files, &self.options)?);
        *index = Some(made.clone());
        Ok(made)
    }
}

impl DatasetStage for TfRecordStage {
    fn label(&self) -> String {
        match self.files.as_slice() {
            [one] => format!("tfrecord({})", one.display()),
            many => format!("tfrecord({} files)", many.len()),
        }
    }

    fn cardinality(&self) -> Cardinality {
        match self.options.random_access.then(|| self.index()) {
            Some(Ok(index)) => Cardinality::Finite(index.records.len() as u64),
            _ => Cardinality::Unknown,
        }
    }

    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        if !self.options.random_access {
            return Ok(None);
        }
        Ok(Some(Box::new(TfRecordAccess { index: self.index()?, open: None, bytes: Vec::new() })))
    }

    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(TfRecordCursor {
            files: self.files.clone(),
            options: self.options.clone(),
            at: 0,
            left_out: 0,
            open: None,
            field: "record".into(),
        }))
    }
}

/// Reads one file after the other.
struct TfRecordCursor {
    files: Arc<Vec<PathBuf>>,
    options: TfRecordOptions,
    /// Index of the file that is open, or to be opened next.
    at: usize,
    /// Number of records skipped in earlier files.
    left_out: u64,
    open: Option<(TfRecordReader, Arc<str>)>,
    field: Arc<str>,
}

impl TfRecordCursor {
    fn open(&mut self) -> Result<bool> {
        if self.open.is_some() {
            return Ok(true);
        }
        let Some(path) = self.files.get(self.at) else { return Ok(false) };
        match TfRecordReader::open(path, self.options.compression, self.options.on_corrupt.clone()) {
            Ok(mut reader) => {
                // The quota applies to the whole source.
                reader.carry(self.left_out);
                self.open = Some((reader, path.display().to_string().into()));
                Ok(true)
            }
            Err(e) => {
                self.at += 1;
                Err(e)
            }
        }
    }

    fn next_file(&mut self) {
        if let Some((reader, _)) = self.open.take() {
            self.left_out = reader.place()[2];
        }
        self.at += 1;
    }
}

impl ElementCursor for TfRecordCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            match self.open() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(Err(e)),
            }
            let (reader, name) = self.open.as_mut()?;
            match reader.next() {
                Some(Ok(bytes)) => {
                    let data = Literal::from_slice([bytes.len()], bytes);
                    let index = reader.place()[1] - 1;
                    let origin = SampleOrigin { source: name.clone(), index };
                    return Some(data.map(|x| {
                        Sample::from_parts(vec![(self.field.clone(), HostArray::from(x))], Some(origin))
                    }));
                }
                Some(Err(e)) => return Some(Err(e)),
                None => self.next_file(),
            }
        }
    }

    fn save(&self) -> IteratorState {
        match &self.open {
            Some((reader, _)) => {
                let [offset, record, left_out] = reader.place();
                IteratorState::at([self.at as u64, offset, record, left_out])
            }
            None => IteratorState::at([self.at as u64, 0, 0, self.left_out]),
        }
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let [at, offset, record, left_out] = state.numbers[..] else { return Err(foreign()) };
        self.at = usize::try_from(at).map_err(|_| foreign())?;
        ensure!(self.at <= self.files.len(), foreign());
        self.left_out = left_out;
        if self.open()?
            && let Some((reader, _)) = &mut self.open
        {
            reader.seek([offset, record, left_out])?;
        }
        Ok(())
    }
}

/// Index of all records: file, offset of the data, length.
struct RecordIndex {
    files: Arc<Vec<PathBuf>>,
    names: Vec<Arc<str>>,
    /// Index of the first record of each file.
    starts: Vec<u64>,
    records: Vec<(u32, u64)>,
}

impl RecordIndex {
    fn of(files: &Arc<Vec<PathBuf>>, options: &TfRecordOptions) -> Result<RecordIndex> {
        let OnCorrupt::Fail = options.on_corrupt else {
            return Err(err!(Config, "random access cannot be combined with skipping damaged records")
                .because("random access needs fixed record numbers")
                .hint("read the files in order, or rewrite them without the damaged records"));
        };
        let mut index =
            RecordIndex { files: files.clone(), names: Vec::new(), starts: Vec::new(), records: Vec::new() };
        for (i, path) in files.iter().enumerate() {
            let mut reader = TfRecordReader::open(path, options.compression, OnCorrupt::Fail)?;
            if reader.is_packed() {
                return Err(err!(Config, "a compressed file does not support random access")
                    .at(path.display().to_string())
                    .hint("decompress the file, or read it in order"));
            }
            index.starts.push(index.records.len() as u64);
            index.names.push(path.display().to_string().into());
            loop {
                let offset = reader.place()[0];
                match reader.next() {
                    Some(Ok(_)) => index.records.push((i as u32, offset)),
                    Some(Err(e)) => return Err(e),
                    None => break,
                }
            }
        }
        Ok(index)
    }
}

struct TfRecordAccess {
    index: Arc<RecordIndex>,
    open: Option<(u32, InputFile)>,
    bytes: Vec<u8>,
}

impl TfRecordAccess {
    fn read(&mut self, file: u32, offset: u64) -> Result<Literal> {
        let path: &Path = &self.index.files[file as usize];
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            let opened = InputFile::open(path).map_err(|e| Error::io("cannot open", path, e))?;
            self.open = Some((file, opened));
        }
        let Some((_, open)) = &mut self.open else { return Err(foreign()) };
        let wrong = |e| Error::io("cannot read", path, e).hint("do not change the file while it is in use");
        let mut header = [0; HEADER];
        open.seek(SeekFrom::Start(offset)).and_then(|_| open.read_exact(&mut header)).map_err(wrong)?;
        let len = little_endian(&header[..8]);
        self.bytes.clear();
        open.take(len.saturating_add(FOOTER as u64)).read_to_end(&mut self.bytes).map_err(wrong)?;
        let framed = [&header[..], &self.bytes].concat();
        let mut reader =
            TfRecordReader::from_bytes(&self.index.names[file as usize], framed, OnCorrupt::Fail);
        match reader.next() {
            Some(data) => {
                let data = data?;
                Literal::from_slice([data.len()], data)
            }
            None => Err(foreign()),
        }
    }
}

impl RandomAccess for TfRecordAccess {
    fn len(&self) -> Option<u64> {
        Some(self.index.records.len() as u64)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let (file, offset) = self.index.records[index as usize];
        let record = self.read(file, offset)?;
        let at = file as usize;
        let origin =
            SampleOrigin { source: self.index.names[at].clone(), index: index - self.index.starts[at] };
        Ok(Sample::from_parts(vec![("record".into(), HostArray::from(record))], Some(origin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tfrecord::TfRecordWriter;
    use crate::stage::test::resumes;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    /// Three files of 7 records, record `i` with the byte `i` ten times; the second gzip.
    fn files(name: &str, gzip: bool) -> (PathBuf, Vec<PathBuf>) {
        let dir = std::env::temp_dir().join(format!("systole-records-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let paths: Vec<PathBuf> = (0..3).map(|i| dir.join(format!("{i}.tfrecord"))).collect();
        for (f, path) in paths.iter().enumerate() {
            let kind = if f == 1 && gzip { TfRecordCompression::Gzip } else { TfRecordCompression::None };
            let mut w = TfRecordWriter::create(path, kind).unwrap();
            (0..7).for_each(|i| w.write(&[7 * f as u8 + i; 10]).unwrap());
            w.finish().unwrap();
        }
        (dir, paths)
    }

    fn firsts(d: &Dataset) -> Vec<u8> {
        d.iter().map(|s| s.unwrap().get("record").unwrap().bytes()[0]).collect()
    }

    #[test]
    fn records_of_all_files_in_order_from_any_place() {
        let (dir, paths) = files("order", true);
        let d = Dataset::tfrecord(&paths);
        assert_eq!(firsts(&d), (0..21).collect::<Vec<u8>>());
        resumes(&d);
        resumes(&d.shuffle(5, 3).repeat_n(2).batch(4));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn random_access_shuffles_everything_without_a_buffer() {
        let (dir, paths) = files("any", false);
        let options = TfRecordOptions { random_access: true, ..TfRecordOptions::default() };
        let d = Dataset::tfrecord_with(&paths, options.clone());
        assert_eq!((firsts(&d), d.cardinality()), ((0..21).collect(), Cardinality::Finite(21)));
        let all = d.shuffle(21, 1);
        assert_eq!(firsts(&all), firsts(&Dataset::tfrecord(&paths).shuffle(21, 1)));
        resumes(&all.repeat());
        let wrong = d.map(|s: Sample| s.map("none", |x| x)).iter().nth(9).unwrap().unwrap_err().to_string();
        assert!(wrong.contains("element 2 of") && wrong.contains("1.tfrecord"), "{wrong}");
        let mut bytes = std::fs::read(&paths[2]).unwrap();
        bytes[12] ^= 1;
        std::fs::write(&paths[2], bytes).unwrap();
        let damaged: Vec<bool> = d.iter().map(|s| s.is_err()).collect();
        assert_eq!(damaged.iter().position(|&e| e), Some(14));
        let skip = TfRecordOptions { on_corrupt: OnCorrupt::Skip { quota: 1 }, ..options };
        assert!(Dataset::tfrecord_with(&paths, skip).iter().next().unwrap().is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_quota_is_for_all_files_together() {
        let (dir, paths) = files("quota", false);
        for path in &paths[..2] {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[26 * 3 + 13] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }
        let with = |quota| {
            let options =
                TfRecordOptions { on_corrupt: OnCorrupt::Skip { quota }, ..TfRecordOptions::default() };
            Dataset::tfrecord_with(&paths, options)
        };
        assert_eq!(firsts(&with(2)).len(), 19);
        resumes(&with(2).batch(2));
        let items: Vec<_> = with(1).iter().collect();
        assert_eq!(items.iter().filter(|i| i.is_err()).count(), 1);
        let e = items.into_iter().find_map(Result::err).unwrap();
        assert_error(&e, ErrorKind::Data, &["1.tfrecord, record 3, byte 78", "1"]);
        let missing = Dataset::tfrecord([dir.join("none"), paths[2].clone()]);
        let items: Vec<_> = missing.iter().collect();
        assert!(items.len() == 8 && items[0].is_err(), "a file that is not there is one error");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
