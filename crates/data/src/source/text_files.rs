//! `text_lines` and `csv`: text files by lines, CSV files by records.

use crate::compression::{StreamCompression, decompress};
use crate::format::csv;
use crate::format::text_encoding::{TextEncoding, from_utf16, not_utf8};
use crate::input_file::InputFile;
use crate::pipeline::{self, DatasetStage, IteratorState, PipelineRun, foreign};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use systole_base::{DType, Error, Literal, Result, ResultExt, ensure, err};

/// Maximum length of a line or CSV record; longer ones mean that the file is not text.
const LONGEST: usize = 64 << 20;

/// Column to read from a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvColumn {
    /// Name in the header line, or index from 0 if there is no header.
    pub name: String,
    /// Type of the value; `U8` means text, as `ui8[n]`.
    pub dtype: DType,
    /// Default for an empty field; without it that is an error.
    pub default: Option<String>,
}

/// Options of [`Dataset::csv_with`].
#[derive(Clone, Debug)]
pub struct CsvOptions {
    /// Columns to read, in the order of the sample's fields.
    pub columns: Vec<CsvColumn>,
    /// Field separator.
    pub separator: char,
    /// Whether the first record of each file is a header.
    pub header: bool,
}

impl Dataset {
    /// Creates a dataset of the lines of text files without line ends: `line: ui8[n]`. Gzip is detected.
    pub fn text_lines<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Dataset {
        Dataset::new(TextFileStage { files: paths(files), label: "text_lines", shape: TextRecordKind::Lines })
    }

    /// Creates a dataset of the records of CSV files with a header: one field `T[]` for each listed column.
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
        let column = |(name, dtype): &(&str, DType)| CsvColumn {
            name: name.to_string(),
            dtype: *dtype,
            default: None,
        };
        let columns = columns.iter().map(column).collect();
        Dataset::csv_with(files, CsvOptions { columns, separator: ',', header: true })
    }

    /// [`Dataset::csv`] with all options.
    pub fn csv_with<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>, options: CsvOptions) -> Dataset {
        Dataset::csv_written(files, options, CsvDialect::default())
    }

    /// [`Dataset::csv_with`] with a given dialect.
    pub(super) fn csv_written<P: Into<PathBuf>>(
        files: impl IntoIterator<Item = P>,
        options: CsvOptions,
        dialect: CsvDialect,
    ) -> Dataset {
        Dataset::new(TextFileStage {
            files: paths(files),
            label: "csv",
            shape: TextRecordKind::Csv(Arc::new(options), dialect),
        })
    }
}

/// Format of the cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CsvDialect {
    /// Whether numbers have a decimal comma.
    pub decimal_comma: bool,
    /// Whether `NA` etc. are missing values, and cells are trimmed.
    pub loose: bool,
    /// Encoding of files without a byte order mark.
    pub encoding: Option<TextEncoding>,
}

/// CSV format options, for files whose format cannot be inferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsvFormat {
    /// Text encoding; `None`: UTF-8, or UTF-16 if there is a byte order mark.
    pub encoding: Option<TextEncoding>,
    /// Whether numbers have a decimal comma; `None`: yes if the separator is not a comma and no number has a point.
    pub decimal_comma: Option<bool>,
}

fn paths<P: Into<PathBuf>>(files: impl IntoIterator<Item = P>) -> Arc<Vec<PathBuf>> {
    Arc::new(files.into_iter().map(Into::into).collect())
}

#[derive(Clone)]
pub(super) enum TextRecordKind {
    Lines,
    Csv(Arc<CsvOptions>, CsvDialect),
}

struct TextFileStage {
    files: Arc<Vec<PathBuf>>,
    label: &'static str,
    shape: TextRecordKind,
}

impl DatasetStage for TextFileStage {
    fn label(&self) -> String {
        match self.files.as_slice() {
            [one] => format!("{}({})", self.label, one.display()),
            many => format!("{}({} files)", self.label, many.len()),
        }
    }

    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn pipeline::ElementCursor>> {
        let shape = self.shape.clone();
        Ok(Box::new(TextFileCursor { files: self.files.clone(), shape, at: 0, open: None }))
    }
}

struct TextFileCursor {
    files: Arc<Vec<PathBuf>>,
    shape: TextRecordKind,
    at: usize,
    open: Option<TextFile>,
}

/// Open text file with the position of the next record.
pub(super) struct TextFile {
    name: Arc<str>,
    input: Box<dyn SkipForward>,
    offset: u64,
    record: u64,
    /// Number of lines read.
    lines: u64,
    /// First line of the last record, from 1.
    begins: u64,
    /// Line end byte: classic Mac OS files have only a carriage return.
    end: u8,
    /// Encoding of a record's bytes; UTF-16 is decoded when the file is opened.
    encoding: TextEncoding,
    /// Encoding of the byte order mark.
    marked: Option<TextEncoding>,
    /// Index in a record of each column.
    places: Vec<usize>,
    /// Number of fields of a record; 0: none was read yet.
    width: usize,
}

/// Reader that can skip bytes.
trait SkipForward: BufRead + Send {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()>;
}

impl SkipForward for BufReader<InputFile> {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()> {
        self.seek(SeekFrom::Current(bytes as i64)).map(drop)
    }
}

impl SkipForward for Cursor<Vec<u8>> {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()> {
        self.seek(SeekFrom::Current(bytes as i64)).map(drop)
    }
}

impl SkipForward for BufReader<Box<dyn Read + Send>> {
    fn forward(&mut self, bytes: u64) -> std::io::Result<()> {
        std::io::copy(&mut self.take(bytes), &mut std::io::sink()).map(drop)
    }
}

impl TextFileCursor {
    fn open(&mut self) -> Result<bool> {
        if self.open.is_some() {
            return Ok(true);
        }
        let Some(path) = self.files.get(self.at) else { return Ok(false) };
        let table = match &self.shape {
            TextRecordKind::Csv(_, dialect) => Some(dialect.encoding),
            TextRecordKind::Lines => None,
        };
        let opened = TextFile::open(path, table).and_then(|mut file| {
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

impl pipeline::ElementCursor for TextFileCursor {
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
        let (offset, record, lines) = self.open.as_ref().map_or((0, 0, 0), |f| (f.offset, f.record, f.lines));
        IteratorState::at([self.at as u64, offset, record, lines])
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        // Positions of earlier versions do not count lines.
        let [at, offset, record, ref lines @ ..] = state.numbers[..] else { return Err(foreign()) };
        self.at = usize::try_from(at).map_err(|_| foreign())?;
        if offset > 0 {
            self.open()?;
            let file = self.open.as_mut().ok_or_else(foreign)?;
            let ahead = offset.checked_sub(file.offset).ok_or_else(foreign)?;
            file.input.forward(ahead).map_err(|e| Error::io("cannot read", &*file.name, e))?;
            (file.offset, file.record) = (offset, record);
            file.lines = lines.first().copied().unwrap_or(file.lines);
        }
        Ok(())
    }
}

impl TextFile {
    /// Opens a file. A table may have the encoding `table` and classic Mac OS line ends; `None` reads plain lines of
    /// text.
    pub(super) fn open(path: &PathBuf, table: Option<Option<TextEncoding>>) -> Result<TextFile> {
        let wrong = |e| Error::io("cannot open", path, e).hint("check the path of the text file");
        let mut file = InputFile::open(path).map_err(wrong)?;
        let mut start = [0; 2];
        let n = file.read(&mut start).map_err(wrong)?;
        file.seek(SeekFrom::Start(0)).map_err(wrong)?;
        let mut input: Box<dyn SkipForward> = match &start[..n] {
            [0x1f, 0x8b] => {
                Box::new(BufReader::with_capacity(1 << 16, decompress(StreamCompression::Gzip, file)))
            }
            _ => Box::new(BufReader::with_capacity(1 << 16, file)),
        };
        let marked = match table {
            Some(_) => TextEncoding::of_mark(input.fill_buf().map_err(wrong)?),
            None => None,
        };
        let (is_table, encoding) =
            (table.is_some(), marked.or(table.flatten()).unwrap_or(TextEncoding::Utf8));
        if encoding.is_wide() {
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes).map_err(wrong)?;
            let text = from_utf16(&path.display().to_string(), &bytes, encoding)?;
            input = Box::new(Cursor::new(text.into_bytes()));
        }
        let ahead: &[u8] = if is_table { input.fill_buf().map_err(wrong)? } else { &[] };
        let end = if ahead.contains(&b'\r') && !ahead.contains(&b'\n') { b'\r' } else { b'\n' };
        let mark = if ahead.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
        input.consume(mark);
        Ok(TextFile {
            name: path.display().to_string().into(),
            input,
            offset: mark as u64,
            record: 0,
            lines: 0,
            begins: 0,
            end,
            encoding,
            marked,
            places: Vec::new(),
            width: 0,
        })
    }

    /// Appends the next line with its end. Returns false at the end of the file.
    fn line(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let limit = (LONGEST - bytes.len().min(LONGEST)) as u64;
        let n = (&mut *self.input)
            .take(limit)
            .read_until(self.end, bytes)
            .map_err(|e| Error::io("cannot read", &*self.name, e).at(format!("byte {}", self.offset)))?;
        self.offset += n as u64;
        self.lines += u64::from(n > 0);
        if let Some(last) = bytes.last_mut().filter(|b| n > 0 && **b == self.end) {
            *last = b'\n';
        }
        ensure!(n as u64 != limit, err!(Data, "a line of the text file is too long").at(self.place()));
        Ok(n > 0)
    }

    /// Returns the encoding of the byte order mark.
    pub(super) fn marked(&self) -> Option<TextEncoding> {
        self.marked
    }

    /// Returns the offset of the next record.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Advances the record number.
    pub(super) fn count(&mut self) {
        self.record += 1;
    }

    pub(super) fn place(&self) -> String {
        format!("{}, line {}, record {}", self.name, self.begins, self.record)
    }

    /// Returns the fields of the next CSV record, skipping empty lines; `None` at the end.
    pub(super) fn fields(&mut self, separator: char) -> Result<Option<Vec<String>>> {
        let mut bytes = Vec::new();
        let is_blank = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b' ' | b'\r' | b'\n'));
        let mut more = true;
        while more && is_blank(&bytes) {
            bytes.clear();
            self.begins = self.lines + 1;
            more = self.line(&mut bytes)?;
        }
        if is_blank(&bytes) {
            return Ok(None);
        }
        loop {
            let text = self.encoding.text(&bytes).map_err(|e| self.not_utf8(&bytes, e))?;
            match csv::record(&text, separator) {
                Some((fields, _)) => return Ok(Some(fields)),
                None if more => more = self.line(&mut bytes)?,
                None => {
                    return Err(err!(Data, "a quoted CSV field is not closed")
                        .at(self.place())
                        .hint("close the quotation mark, or write \"\" for one within a field"));
                }
            }
        }
    }

    fn not_utf8(&self, bytes: &[u8], e: std::str::Utf8Error) -> Error {
        let first = self.offset - bytes.len() as u64;
        not_utf8(bytes, e.valid_up_to()).at(format!(
            "{}, byte {}",
            self.place(),
            first + e.valid_up_to() as u64
        ))
    }

    /// Returns the next record with as many fields as the header has.
    pub(super) fn whole_record(&mut self, separator: char) -> Result<Option<Result<Vec<String>>>> {
        let Some(mut fields) = self.fields(separator)? else { return Ok(None) };
        if self.width == 0 {
            self.width = fields.len();
        }
        // Some programs end each line with a separator.
        while fields.len() > self.width && fields.last().is_some_and(|f| f.trim().is_empty()) {
            fields.pop();
        }
        if fields.len() == self.width {
            return Ok(Some(Ok(fields)));
        }
        let (has, width) = (fields.len(), self.width);
        Ok(Some(Err(err!(Data, "a row has {has} fields, expected {width}")
            .at(self.place())
            .because("the row's values cannot be assigned to columns")
            .hint_setting("quote fields that contain separators (\"a, b\"); data.records.skip=10 skips up to ten such rows"))))
    }

    /// Returns the column names, if the first record is a header.
    pub(super) fn header(&mut self, separator: char) -> Result<Option<Vec<String>>> {
        let header = self.fields(separator)?;
        self.width = header.as_ref().map_or(0, Vec::len);
        Ok(header.map(|h| csv::names(&h)))
    }

    fn find_columns(&mut self, shape: &TextRecordKind) -> Result<()> {
        let TextRecordKind::Csv(csv, _) = shape else { return Ok(()) };
        let header = if csv.header { self.header(csv.separator)? } else { None };
        for column in &csv.columns {
            let place = match &header {
                Some(names) => names.iter().position(|n| *n == column.name),
                None => column.name.parse().ok(),
            };
            let place = place.ok_or_else(|| {
                let there = header.as_ref().map_or("numbered from 0".into(), |h| h.join(", "));
                err!(Data, "unknown column `{}`", column.name)
                    .at(self.name.to_string())
                    .because(format!("the columns of the file are {there}"))
            })?;
            self.places.push(place);
        }
        Ok(())
    }

    /// Returns the next element, or the error of its content; `Err`: the file cannot be read further.
    fn next(&mut self, shape: &TextRecordKind) -> Result<Option<Result<Sample>>> {
        let sample = match shape {
            TextRecordKind::Lines => {
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
            &TextRecordKind::Csv(ref csv, dialect) => {
                let Some(fields) = self.whole_record(csv.separator)? else { return Ok(None) };
                let pairs = csv.columns.iter().zip(&self.places);
                fields.and_then(|fields| {
                    let values = pairs.map(|(c, &at)| value(c, fields.get(at), dialect));
                    values.collect::<Result<Vec<_>>>().at(|| self.place())
                })
            }
        };
        let origin = SampleOrigin { source: self.name.clone(), index: self.record };
        self.record += 1;
        Ok(Some(sample.map(|fields| Sample::from_parts(fields, Some(origin)))))
    }
}

fn text(bytes: &[u8]) -> Result<HostArray> {
    Literal::from_slice([bytes.len()], bytes).map(HostArray::from)
}

fn value(column: &CsvColumn, field: Option<&String>, dialect: CsvDialect) -> Result<(Arc<str>, HostArray)> {
    let given = field.map_or("", |f| f.as_str());
    let given = if dialect.loose { given.trim() } else { given };
    let is_gap = given.is_empty() || (dialect.loose && csv::is_missing(given));
    let given = match &column.default {
        Some(default) if is_gap => default,
        _ => given,
    };
    let scalar = match column.dtype {
        DType::U8 => text(given.as_bytes()),
        dtype if dtype.is_float() && dialect.decimal_comma => {
            csv::number::<f64>(&given.replace(',', "."), "a number")
                .map(|v| HostArray::from(Literal::scalar(dtype, v)))
        }
        dtype if dtype.is_float() => {
            csv::number::<f64>(given, "a number").map(|v| HostArray::from(Literal::scalar(dtype, v)))
        }
        dtype => csv::number::<i64>(given, "an integer")
            .map(|v| HostArray::from(Literal::from_slice([], &[v])).cast(dtype)),
    };
    Ok((column.name.as_str().into(), scalar.at(|| format!("column {}", column.name))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::resumes;
    use std::io::Write;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

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
    fn tables_of_other_programs_are_read() {
        let rows = |name: &str, bytes: &[u8]| {
            let path = file(name, bytes);
            let d = Dataset::csv([&path], &[("b", DType::F32), ("name", DType::U8)]);
            resumes(&d);
            let row = |s: Result<Sample>| {
                s.map(|s| format!("{} {}", s.get("b").unwrap().get(0).as_f64(), s.text("name").unwrap()))
                    .unwrap_or_else(|e| e.to_string())
            };
            let all: Vec<String> = d.iter().map(row).collect();
            std::fs::remove_file(path).unwrap();
            all
        };
        let plain = "\u{feff}\"name\",b\nx,1\ny,2\n";
        assert_eq!(rows("bom", plain.as_bytes()), ["1 x", "2 y"]);
        assert_eq!(rows("mac", b"name,b\rx,1\ry,2"), ["1 x", "2 y"]);
        let wide = |to: fn(u16) -> [u8; 2]| plain.encode_utf16().flat_map(to).collect::<Vec<u8>>();
        assert_eq!(rows("utf16le", &wide(u16::to_le_bytes)), ["1 x", "2 y"]);
        assert_eq!(rows("utf16be", &wide(u16::to_be_bytes)), ["1 x", "2 y"]);
        assert!(rows("utf16cut", &wide(u16::to_le_bytes)[..9])[0].contains("UTF-16"));
        assert_eq!(rows("blank", b"\n  \nname,b\n\nx,1\r\n\r\ny,2\n\n\n"), ["1 x", "2 y"]);
        assert_eq!(rows("trailing", b"name,b\nx,1,\ny,2,,\n"), ["1 x", "2 y"]);
        let all = rows("ragged", b"name,b\n\"x\nx\",1\ny\nz,3,4\nw,5\n");
        assert!(all[1].contains("1 fields, expected 2") && all[1].contains("line 4"), "{all:?}");
        assert!(all[2].contains("line 5") && all[3] == "5 w", "{all:?}");
        let all = rows("latin1", b"name,b\nn\xe9gatif,1\n");
        assert!(all[0].contains("line 2") && all[0].contains("iconv") && all[0].contains("0xe9"), "{all:?}");
    }

    #[test]
    fn csv_records_with_types_and_defaults() {
        let a = file("csv", b"\xef\xbb\xbfx,name,y\n1.5,\"a, \"\"b\"\"\nc\",3\n2,d,\n-1e3,,7\n");
        let d = Dataset::csv([&a], &[("y", DType::I32), ("name", DType::U8), ("x", DType::F32)]);
        let items: Vec<_> = d.iter().collect();
        assert_eq!(items[0].as_ref().unwrap().text("name").unwrap(), "a, \"b\"\nc");
        assert_error(items[1].as_ref().unwrap_err(), ErrorKind::Data, &["column y", "record 1"]);
        assert_eq!(items[2].as_ref().unwrap().get("x").unwrap().to_f64s(), [-1000.0]);
        let column = |name: &str, default: Option<&str>| CsvColumn {
            name: name.into(),
            dtype: DType::I64,
            default: default.map(String::from),
        };
        let with = |columns, header| Dataset::csv_with([&a], CsvOptions { columns, separator: ',', header });
        resumes(&with(vec![column("y", Some("-1"))], true));
        assert!(with(vec![column("z", None)], true).iter().next().unwrap().is_err());
        assert_eq!(with(vec![column("2", Some("0"))], false).iter().filter(|s| s.is_ok()).count(), 3);
        std::fs::remove_file(a).unwrap();
    }
}
