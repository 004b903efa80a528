//! WebDataset shards: TAR archives in which the files of a sample are adjacent: `0001.jpg`, `0001.cls`.

use crate::format::tar::{TarEntry, TarReader};
use crate::input_file::InputFile;
use crate::pipeline::{DatasetStage, ElementCursor, IteratorState, PipelineRun, foreign};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use flate2::read::MultiGzDecoder;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::{Error, Literal, Result};

impl Dataset {
    /// Creates a dataset of the samples of WebDataset shards: `key: ui8[n]` (the path up to the first dot of the file
    /// name), and for each file of the sample a byte field, `ui8[n]`, named by the part after that dot (`jpg`, `cls`,
    /// `seg.png`). Gzip is detected. [`crate::decode_image`] decodes such fields.
    pub fn webdataset<P: Into<PathBuf>>(shards: impl IntoIterator<Item = P>) -> Dataset {
        Dataset::new(Shards { files: Arc::new(shards.into_iter().map(Into::into).collect()) })
    }
}

struct Shards {
    files: Arc<Vec<PathBuf>>,
}

impl DatasetStage for Shards {
    fn label(&self) -> String {
        format!("webdataset({} shards)", self.files.len())
    }

    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(WebDatasetCursor { files: self.files.clone(), at: 0, open: None }))
    }
}

struct WebDatasetCursor {
    files: Arc<Vec<PathBuf>>,
    at: usize,
    open: Option<OpenTarShard>,
}

struct OpenTarShard {
    name: Arc<str>,
    reader: TarReader<Box<dyn Read + Send>>,
    /// First file of the next sample, already read.
    waiting: Option<TarEntry>,
    /// Offset of the next sample.
    offset: u64,
    index: u64,
    over: bool,
}

impl OpenTarShard {
    fn open(path: &Path, offset: u64, index: u64) -> Result<OpenTarShard> {
        let wrong = |e| Error::io("cannot open", path, e).hint("check the path of the shard");
        let mut file = InputFile::open(path).map_err(wrong)?;
        let mut start = Vec::new();
        (&mut file).take(2).read_to_end(&mut start).map_err(wrong)?;
        let is_gzip = start == [0x1f, 0x8b];
        file.seek(SeekFrom::Start(if is_gzip { 0 } else { offset })).map_err(wrong)?;
        let mut input: Box<dyn Read + Send> = match is_gzip {
            true => Box::new(MultiGzDecoder::new(BufReader::new(file))),
            false => Box::new(BufReader::with_capacity(1 << 17, file)),
        };
        if is_gzip {
            io::copy(&mut (&mut input).take(offset), &mut io::sink()).map_err(wrong)?;
        }
        let name = path.display().to_string();
        let reader = TarReader::new(&name, input, offset);
        Ok(OpenTarShard { name: name.into(), reader, waiting: None, offset, index, over: false })
    }

    /// Returns the next sample; `None` at the end of the shard.
    fn next(&mut self) -> Option<Result<Sample>> {
        let first = match self.waiting.take() {
            Some(entry) => entry,
            None => match self.entry()? {
                Ok(entry) => entry,
                Err(e) => return Some(Err(e)),
            },
        };
        let (key, field) = split(&first.path);
        let (key, mut files) = (key.to_string(), vec![(field.to_string(), first.data)]);
        let mut failed = None;
        while let Some(entry) = self.entry() {
            match entry {
                Ok(entry) if split(&entry.path).0 == key => {
                    files.push((split(&entry.path).1.to_string(), entry.data));
                }
                Ok(entry) => {
                    self.offset = entry.offset;
                    self.waiting = Some(entry);
                    break;
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        let origin = SampleOrigin { source: self.name.clone(), index: self.index };
        self.index += 1;
        Some(match failed {
            Some(e) => Err(e),
            None => sample(&key, files).map(|s| s.with_origin(Some(origin))),
        })
    }

    fn entry(&mut self) -> Option<Result<TarEntry>> {
        if self.over {
            return None;
        }
        let entry = self.reader.next();
        self.over = !matches!(entry, Some(Ok(_)));
        entry
    }
}

/// Splits a path into key and field: `a/0001.seg.png` is field `seg.png` of `a/0001`.
fn split(path: &str) -> (&str, &str) {
    let name = path.rfind('/').map_or(0, |i| i + 1);
    match path[name..].find('.') {
        Some(dot) => (&path[..name + dot], &path[name + dot + 1..]),
        None => (path, ""),
    }
}

fn sample(key: &str, files: Vec<(String, Vec<u8>)>) -> Result<Sample> {
    let array = |bytes: &[u8]| Literal::from_slice([bytes.len()], bytes).map(HostArray::from);
    let mut fields = vec![("key".to_string(), array(key.as_bytes())?)];
    for (name, data) in files {
        fields.push((if name.is_empty() { "data".into() } else { name }, array(&data)?));
    }
    Sample::new(fields).check()
}

impl ElementCursor for WebDatasetCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            if self.open.is_none() {
                match OpenTarShard::open(self.files.get(self.at)?, 0, 0) {
                    Ok(shard) => self.open = Some(shard),
                    Err(e) => {
                        self.at += 1;
                        return Some(Err(e));
                    }
                }
            }
            match self.open.as_mut().and_then(OpenTarShard::next) {
                Some(item) => return Some(item),
                None => {
                    self.open = None;
                    self.at += 1;
                }
            }
        }
    }

    fn save(&self) -> IteratorState {
        match &self.open {
            Some(s) if s.waiting.is_some() || s.index == 0 => {
                IteratorState::at([self.at as u64, s.offset, s.index])
            }
            Some(_) => IteratorState::at([self.at as u64 + 1, 0, 0]),
            None => IteratorState::at([self.at as u64, 0, 0]),
        }
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let [at, offset, index] = state.numbers[..] else { return Err(foreign()) };
        self.at = usize::try_from(at).map_err(|_| foreign())?;
        if offset > 0 {
            let path = self.files.get(self.at).ok_or_else(foreign)?;
            self.open = Some(OpenTarShard::open(path, offset, index)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tar::frame;
    use crate::stage::test::resumes;

    #[test]
    fn files_that_stand_together_are_a_sample() {
        let dir = std::env::temp_dir().join(format!("systole-webdataset-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let shard = |from: usize| {
            let files = (from..from + 3).flat_map(|i| {
                [frame(&format!("x/{i:04}.seg.bin"), &[i as u8; 9]), frame(&format!("x/{i:04}.cls"), b"7")]
            });
            files.collect::<Vec<_>>().concat()
        };
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut gz, &shard(3)).unwrap();
        let shards = [dir.join("0.tar"), dir.join("1.tar.gz")];
        std::fs::write(&shards[0], [shard(0), vec![0; 1024]].concat()).unwrap();
        std::fs::write(&shards[1], gz.finish().unwrap()).unwrap();
        let d = Dataset::webdataset(&shards);
        assert_eq!(d.element_spec().unwrap().to_string(), "key: ui8[6], seg.bin: ui8[9], cls: ui8[1]");
        let keys: Vec<_> = d.iter().map(|s| s.unwrap().text("key").unwrap().to_string()).collect();
        assert_eq!(keys, ["x/0000", "x/0001", "x/0002", "x/0003", "x/0004", "x/0005"]);
        resumes(&d);
        resumes(&d.shuffle(3, 1).batch(2).repeat_n(2));
        let mut bytes = std::fs::read(&shards[0]).unwrap();
        bytes[2049] ^= 1;
        std::fs::write(&shards[0], bytes).unwrap();
        let ok: Vec<bool> = d.iter().map(|s| s.is_ok()).collect();
        assert_eq!(ok, [false, true, true, true], "a damaged shard is left, and the next one read");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
