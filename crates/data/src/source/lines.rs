//! Text files by lines (`text_lines`), and CSV files by records.

use crate::format::csv;
use crate::input::Input;
use crate::pipeline::{Cardinality, Cursor, IteratorState, Run, Stage, foreign};
use crate::sample::{Origin, Sample};
use crate::{Dataset, HostArray};
use flate2::read::MultiGzDecoder;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ResultExt};

/// A line, or a CSV record, is at most this long: what is longer is no text file.
const LONGEST: usize = 64 << 20;

/// A column of a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name in the header line, or its number from 0 where there is none.
    pub name: String,
    /// Type of the value; `U8` means text, as `ui8[n]`.
    pub dtype: DType,
    /// What an empty field is; without it that is an error.
    pub default: Option<String>,
}

/// How [`Dataset::csv_with`] reads.
#[derive(Clone, Debug)]
pub struct Csv {
    /// The columns that are read, in the order of the fields.
    pub columns: Vec<Column>,
    /// Between fields.
    pub separator: char,
    /// Whether the first record of each file names the columns.
    pub header: bool,
}

impl Dataset {
    /// The lines of text files without their ends: `line: ui8[n]`. Gzip is recognised.
    pub fn text_lines<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Dataset {
        Dataset::new(Lines { files: paths(files), label: "text_lines", shape: Shape::Lines })
    }

    /// The records of CSV files with a header line: a field for each column named, `T[]`.
    ///
    /// ```
    /// use systole_base::DType;
    /// use systole_data::Dataset;
    /// let path = std::env::temp_dir().join("systole-doc.csv");
    /// std::fs::write(&path, "x,name,y\n1.5,\"a, b\",3\n").unwrap();
    /// let d = Dataset::csv([&path], &[("y", DType::I64), ("x", DType::F32)]);
    /// assert_eq!(d.element_spec()?.to_string(), "y: i64[], x: f32[]");
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    pub fn csv<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>, columns: &[(&str, DType)]) -> Dataset {
        let column =
            |(name, dtype): &(&str, DType)| Column { name: name.to_string(), dtype: *dtype, default: None };
        let columns = columns.iter().map(column).collect();
        Dataset::csv_with(files, Csv { columns, separator: ',', header: true })
    }

    /// [`Dataset::csv`] with every option.
    pub fn csv_with<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>, options: Csv) -> Dataset {
        Dataset::new(Lines { files: paths(files), label: "csv", shape: Shape::Csv(Arc::new(options)) })
    }
}

fn paths<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Arc<Vec<PathBuf>> {
    Arc::new(files.into_iter().map(Into::into).collect())
}

#[derive(Clone)]
enum Shape {
    Lines,
    Csv(Arc<Csv>),
}

struct Lines {
    files: Arc<Vec<PathBuf>>,
    label: &'static str,
    shape: Shape,
}

impl Stage for Lines {
    fn label(&self) -> String {
        match self.files.as_slice() {
            [one] => format!("{}({})", self.label, one.display()),
            many => format!("{}({} files)", self.label, many.len()),
        }
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    fn stream(&self, _run: &Run) -> Result<Box<dyn Cursor>> {
        let shape = self.shape.clone();
        Ok(Box::new(Reading { files: self.files.clone(), shape, at: 0, open: None }))
    }
}

struct Reading {
    files: Arc<Vec<PathBuf>>,
    shape: Shape,
    at: usize,
    open: Option<TextFile>,
}

/// An open file: where the next record begins, and which one it is.
struct TextFile {
    name: Arc<str>,
    input: Box<dyn Forward>,
    offset: u64,
    record: u64,
    /// For each column its place in a record.
    places: Vec<usize>,
}

/// Reads, and goes forward.
trait Forward: BufRead + Send {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()>;
}

impl Forward for BufReader<Input> {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()> {
        self.seek(SeekFrom::Current(bytes as i64)).map(drop)
    }
}

impl Forward for BufReader<MultiGzDecoder<Input>> {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()> {
        std::io::copy(&mut self.take(bytes), &mut std::io::sink()).map(drop)
    }
}

impl Reading {
    fn open(&mut self) -> Result<bool> {
        if self.open.is_some() {
            return Ok(true);
        }
        let Some(path) = self.files.get(self.at) else { return Ok(false) };
        let opened = TextFile::open(path).and_then(|mut file| {
            file.find_columns(&self.shape)?;
            Ok(file)
        });
        match opened {
            Ok(file) => self.open = Some(file),
            Err(e) => {
                self.at += 1;
                return Err(e);
            }
        }
        Ok(true)
    }
}

impl Cursor for Reading {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            match self.open() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(Err(e)),
            }
            let file = self.open.as_mut()?;
            match file.next(&self.shape) {
                Ok(None) => {
                    self.open = None;
                    self.at += 1;
                }
                Ok(Some(sample)) => return Some(sample),
                Err(e) => {
                    self.open = None;
                    self.at += 1;
                    return Some(Err(e));
                }
            }
        }
    }

    fn save(&self) -> IteratorState {
        let (offset, record) = self.open.as_ref().map_or((0, 0), |f| (f.offset, f.record));
        IteratorState::at([self.at as u64, offset, record])
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let [at, offset, record] = state.numbers[..] else { return Err(foreign()) };
        self.at = usize::try_from(at).map_err(|_| foreign())?;
        if offset > 0 {
            self.open()?;
            let file = self.open.as_mut().ok_or_else(foreign)?;
            let ahead = offset.checked_sub(file.offset).ok_or_else(foreign)?;
            file.input.forward(ahead).map_err(|e| Error::io("cannot read", &*file.name, e))?;
            (file.offset, file.record) = (offset, record);
        }
        Ok(())
    }
}

impl TextFile {
    fn open(path: &PathBuf) -> Result<TextFile> {
        let wrong = |e| Error::io("cannot open", path, e).hint("check the path of the text file");
        let mut file = Input::open(path).map_err(wrong)?;
        let mut start = [0; 2];
        let n = file.read(&mut start).map_err(wrong)?;
        file.seek(SeekFrom::Start(0)).map_err(wrong)?;
        let input: Box<dyn Forward> = match &start[..n] {
            [0x1f, 0x8b] => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
            _ => Box::new(BufReader::with_capacity(1 << 16, file)),
        };
        Ok(TextFile {
            name: path.display().to_string().into(),
            input,
            offset: 0,
            record: 0,
            places: Vec::new(),
        })
    }

    /// Appends the next line with its end. False: there is none.
    fn line(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let limit = (LONGEST - bytes.len().min(LONGEST)) as u64;
        let n = (&mut *self.input)
            .take(limit)
            .read_until(b'\n', bytes)
            .map_err(|e| Error::io("cannot read", &*self.name, e).at(format!("byte {}", self.offset)))?;
        self.offset += n as u64;
        if n as u64 == limit {
            return Err(Error::new(ErrorKind::Data, "a line without an end").at(self.place()));
        }
        Ok(n > 0)
    }

    fn place(&self) -> String {
        format!("{}, record {}, before byte {}", self.name, self.record, self.offset)
    }

    /// The fields of the next CSV record. `None`: the end.
    fn fields(&mut self, separator: char) -> Result<Option<Vec<String>>> {
        let mut bytes = Vec::new();
        let mut more = self.line(&mut bytes)?;
        if !more {
            return Ok(None);
        }
        loop {
            let text = std::str::from_utf8(&bytes)
                .map_err(|e| Error::new(ErrorKind::Data, "this is no UTF-8 text").because(e.to_string()))
                .at(|| self.place())?;
            match csv::record(text, separator) {
                Some((fields, _)) => return Ok(Some(fields)),
                None if more => more = self.line(&mut bytes)?,
                None => return Err(Error::new(ErrorKind::Data, "a quoted field has no end").at(self.place())),
            }
        }
    }

    fn find_columns(&mut self, shape: &Shape) -> Result<()> {
        let Shape::Csv(csv) = shape else { return Ok(()) };
        let header = if csv.header { self.fields(csv.separator)? } else { None };
        for column in &csv.columns {
            let place = match &header {
                Some(names) => {
                    names.iter().position(|n| n.trim_start_matches('\u{feff}').trim() == column.name)
                }
                None => column.name.parse().ok(),
            };
            let place = place.ok_or_else(|| {
                let there = header.as_ref().map_or("numbers from 0".into(), |h| h.join(", "));
                Error::new(ErrorKind::Data, format!("there is no column {}", column.name))
                    .at(self.name.to_string())
                    .because(format!("the columns are {there}"))
            })?;
            self.places.push(place);
        }
        Ok(())
    }

    /// The next element, or the error of its content; `Err`: the file cannot be read on.
    fn next(&mut self, shape: &Shape) -> Result<Option<Result<Sample>>> {
        let sample = match shape {
            Shape::Lines => {
                let mut bytes = Vec::new();
                if !self.line(&mut bytes)? {
                    return Ok(None);
                }
                if bytes.last() == Some(&b'\n') {
                    bytes.pop();
                    bytes.pop_if(|b| *b == b'\r');
                }
                text(&bytes).map(|x| vec![("line".into(), x)])
            }
            Shape::Csv(csv) => {
                let Some(fields) = self.fields(csv.separator)? else { return Ok(None) };
                let pairs = csv.columns.iter().zip(&self.places);
                pairs.map(|(c, &at)| value(c, fields.get(at))).collect::<Result<Vec<_>>>().at(|| self.place())
            }
        };
        let origin = Origin { source: self.name.clone(), index: self.record };
        self.record += 1;
        Ok(Some(sample.map(|fields| Sample::from_parts(fields, Some(origin)))))
    }
}

fn text(bytes: &[u8]) -> Result<HostArray> {
    Literal::from_slice([bytes.len()], bytes).map(HostArray::from)
}

fn value(column: &Column, field: Option<&String>) -> Result<(Arc<str>, HostArray)> {
    let given = field.map_or("", |f| f.as_str());
    let given = match &column.default {
        Some(default) if given.is_empty() => default,
        _ => given,
    };
    let scalar = match column.dtype {
        DType::U8 => text(given.as_bytes()),
        dtype if dtype.is_float() => {
            csv::number::<f64>(given, "number").map(|v| HostArray::from(Literal::scalar(dtype, v)))
        }
        dtype => csv::number::<i64>(given, "integer")
            .map(|v| HostArray::from(Literal::from_slice([], &[v])).cast(dtype)),
    };
    Ok((column.name.as_str().into(), scalar.at(|| format!("column {}", column.name))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::resumes;
    use std::io::Write;

    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("systole-lines-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn lines_of_plain_and_gzip_files() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(b"four\nfive").unwrap();
        let files = [file("a", b"one\r\n\nthree\n"), file("b", &gz.finish().unwrap()), file("c", b"")];
        let d = Dataset::text_lines(&files);
        let lines: Vec<_> = d.iter().map(|s| s.unwrap().text("line").unwrap().to_string()).collect();
        assert_eq!(lines, ["one", "", "three", "four", "five"]);
        resumes(&d);
        resumes(&d.shuffle(2, 1).repeat_n(2));
        files.iter().for_each(|f| std::fs::remove_file(f).unwrap());
    }

    #[test]
    fn csv_records_with_types_and_defaults() {
        let a = file("csv", b"\xef\xbb\xbfx,name,y\n1.5,\"a, \"\"b\"\"\nc\",3\n2,d,\n-1e3,,7\n");
        let d = Dataset::csv([&a], &[("y", DType::I32), ("name", DType::U8), ("x", DType::F32)]);
        let items: Vec<_> = d.iter().collect();
        assert_eq!(items[0].as_ref().unwrap().text("name").unwrap(), "a, \"b\"\nc");
        let e = items[1].as_ref().unwrap_err().to_string();
        assert!(e.contains("column y") && e.contains("no integer") && e.contains("record 1"), "{e}");
        assert_eq!(items[2].as_ref().unwrap().get("x").unwrap().to_f64s(), [-1000.0]);
        let column = |name: &str, default: Option<&str>| Column {
            name: name.into(),
            dtype: DType::I64,
            default: default.map(String::from),
        };
        let with = |columns, header| Dataset::csv_with([&a], Csv { columns, separator: ',', header });
        resumes(&with(vec![column("y", Some("-1"))], true));
        assert!(with(vec![column("z", None)], true).iter().next().unwrap().is_err());
        assert_eq!(with(vec![column("2", Some("0"))], false).iter().filter(|s| s.is_ok()).count(), 3);
        std::fs::remove_file(a).unwrap();
    }
}
