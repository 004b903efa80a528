//! `parquet`: rows of Parquet files, with column selection (feature `parquet`).
//!
//! A row group is read completely, so memory grows with the files' row groups. Supports columns of numbers, strings,
//! bytes and flat lists of numbers; other columns are an error that names them, and can be deselected.

use crate::input_file;
use crate::pipeline::{Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, foreign};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ensure, err};

impl Dataset {
    /// Creates a dataset of the rows of Parquet files, one field per column: numbers as they are, strings and bytes as
    /// `ui8[n]`, lists of numbers as `T[n]`. `columns` selects columns, in the files' order; empty selects all.
    ///
    /// Compressed pages require Snappy or the codecs that the build supports. Resuming seeks to the row group.
    pub fn parquet<P: Into<PathBuf>>(
        files: impl IntoIterator<Item = P>,
        columns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Dataset {
        let files = Arc::new(files.into_iter().map(Into::into).collect());
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        Dataset::new(ParquetStage { files, columns: Arc::new(columns) })
    }
}

struct ParquetStage {
    files: Arc<Vec<PathBuf>>,
    columns: Arc<Vec<String>>,
}

impl DatasetStage for ParquetStage {
    fn label(&self) -> String {
        match self.files.as_slice() {
            [one] => format!("parquet({})", one.display()),
            many => format!("parquet({} files)", many.len()),
        }
    }

    fn cardinality(&self) -> Cardinality {
        let rows = |path: &PathBuf| Some(open(path).ok()?.metadata().file_metadata().num_rows() as u64);
        self.files.iter().map(rows).sum::<Option<u64>>().map_or(Cardinality::Unknown, Cardinality::Finite)
    }

    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(ParquetCursor {
            files: self.files.clone(),
            columns: self.columns.clone(),
            at: [0; 3],
            before: 0,
            open: None,
            rows: Vec::new(),
        }))
    }
}

fn wrong(path: &Path, what: &str, e: &ParquetError) -> Error {
    Error::new(ErrorKind::Data, what.to_string()).at(path.display().to_string()).because(e.to_string())
}

/// An object of a store is read completely: its index is at its end.
fn open(path: &Path) -> Result<Box<dyn FileReader>> {
    let failed = |e| Error::io("cannot read", path, e);
    let boxed: ParquetResult<Box<dyn FileReader>> = match input_file::is_remote(path) {
        true => {
            let bytes = Bytes::from(input_file::read(path).map_err(failed)?);
            SerializedFileReader::new(bytes).map(|r| Box::new(r) as _)
        }
        false => SerializedFileReader::new(File::open(path).map_err(failed)?).map(|r| Box::new(r) as _),
    };
    boxed.map_err(|e| {
        wrong(path, "invalid Parquet file", &e)
            .hint("check whether the Parquet file is truncated: its index is at its end")
    })
}

struct ParquetCursor {
    files: Arc<Vec<PathBuf>>,
    columns: Arc<Vec<String>>,
    /// Next position: file, row group, row in the group.
    at: [usize; 3],
    /// Number of rows in the file before this row group.
    before: u64,
    open: Option<Box<dyn FileReader>>,
    /// Rows of the group; empty: not read yet.
    rows: Vec<Row>,
}

impl ParquetCursor {
    /// Ensures that the rows of the current group are loaded; false at the end.
    fn ready(&mut self) -> Result<bool> {
        loop {
            let Some(path) = self.files.get(self.at[0]).cloned() else { return Ok(false) };
            if self.open.is_none() {
                self.open = Some(open(&path).inspect_err(|_| self.next_file())?);
            }
            let Some(reader) = &self.open else { return Ok(false) };
            if self.at[1] >= reader.num_row_groups() {
                self.next_file();
                continue;
            }
            if self.rows.is_empty() {
                self.rows = read_group(&**reader, self.at[1], &self.columns, &path)
                    .inspect_err(|_| self.next_group())?;
            }
            if self.at[2] < self.rows.len() {
                return Ok(true);
            }
            self.next_group();
        }
    }

    fn next_group(&mut self) {
        self.before += self.rows.len() as u64;
        self.rows.clear();
        self.at = [self.at[0], self.at[1] + 1, 0];
    }

    fn next_file(&mut self) {
        self.rows.clear();
        self.open = None;
        self.before = 0;
        self.at = [self.at[0] + 1, 0, 0];
    }
}

/// Reads the selected columns of a row group.
fn read_group(reader: &dyn FileReader, group: usize, columns: &[String], path: &Path) -> Result<Vec<Row>> {
    let schema = reader.metadata().file_metadata().schema();
    let projection = project(schema, columns).map_err(|e| e.at(path.display().to_string()))?;
    let failed = |e: ParquetError| {
        wrong(path, &format!("cannot read row group {group}"), &e)
            .hint(match cfg!(feature = "parquet-zstd") {
                true => "compress the pages with Snappy, gzip or zstd, or not at all; or download the file again",
                false => "compress the pages with Snappy or gzip (zstd needs --features parquet-zstd), or not at all; \
                          or download the file again",
            })
    };
    let rows = reader.get_row_group(group).map_err(failed)?;
    rows.get_row_iter(projection).map_err(failed)?.collect::<Result<Vec<Row>, _>>().map_err(failed)
}

/// Returns the part of a schema with these columns; `None`: all.
fn project(schema: &Type, columns: &[String]) -> Result<Option<Type>> {
    if columns.is_empty() {
        return Ok(None);
    }
    let all = schema.get_fields();
    if let Some(unknown) = columns.iter().find(|c| all.iter().all(|f| f.name() != c.as_str())) {
        let names: Vec<&str> = all.iter().map(|f| f.name()).collect();
        return Err(err!(Data, "unknown column `{unknown}`")
            .because(format!("the columns of the Parquet file are {}", names.join(", "))));
    }
    let wanted = all.iter().filter(|f| columns.iter().any(|c| c == f.name())).cloned().collect();
    let made = Type::group_type_builder(schema.name()).with_fields(wanted).build();
    made.map(Some).map_err(|e| err!(Bug, "cannot select columns of the schema").because(e.to_string()))
}

impl ElementCursor for ParquetCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        match self.ready() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(Err(e)),
        }
        let (path, row) = (self.files.get(self.at[0])?, self.rows.get(self.at[2])?);
        let number = self.before + self.at[2] as u64;
        let origin = SampleOrigin { source: path.display().to_string().into(), index: number };
        let fields = row.get_column_iter().map(|(name, field)| {
            let array =
                array(field).map_err(|e| e.at(format!("{}, row {number}, column {name}", path.display())))?;
            Ok((Arc::<str>::from(name.as_str()), HostArray::from(array)))
        });
        let fields = fields.collect::<Result<Vec<_>>>();
        self.at[2] += 1;
        Some(fields.map(|fields| Sample::from_parts(fields, Some(origin))))
    }

    fn save(&self) -> IteratorState {
        IteratorState::at(self.at.map(|n| n as u64))
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let [file, group, row] = state.numbers[..] else { return Err(foreign()) };
        let at = [file, group, row].map(usize::try_from);
        let [Ok(file), Ok(group), Ok(row)] = at else { return Err(foreign()) };
        ensure!(file <= self.files.len(), foreign());
        self.rows.clear();
        self.open = None;
        self.at = [file, group, row];
        self.before = 0;
        if let Some(path) = self.files.get(file) {
            let reader = open(path)?;
            let groups = reader.metadata().row_groups().iter().take(group);
            self.before = groups.map(|g| g.num_rows() as u64).sum();
            self.open = Some(reader);
        }
        Ok(())
    }
}

/// Converts a cell to an array.
fn array(field: &Field) -> Result<Literal> {
    match field {
        Field::Str(text) => bytes(text.as_bytes()),
        Field::Bytes(data) => bytes(data.data()),
        Field::ListInternal(list) => {
            let items = list.elements().iter().map(number).collect::<Result<Vec<_>>>()?;
            let dtype = items.first().map_or(DType::F32, |(dtype, _)| *dtype);
            let values: Vec<Literal> = items.into_iter().map(|(_, value)| value).collect();
            let all: Vec<u8> = values.iter().flat_map(|v| v.bytes().to_vec()).collect();
            Literal::from_bytes(systole_base::TensorType::new(dtype, [values.len()]), &all)
        }
        single => number(single).map(|(_, value)| value),
    }
}

fn bytes(data: &[u8]) -> Result<Literal> {
    Literal::from_slice([data.len()], data)
}

/// Returns a number with its type.
fn number(field: &Field) -> Result<(DType, Literal)> {
    let int =
        |dtype, value: i64| Ok((dtype, Literal::from_slice([] as [usize; 0], &[value])?.convert(dtype)));
    match field {
        Field::Bool(b) => int(DType::Bool, i64::from(*b)),
        Field::Byte(n) => int(DType::I8, i64::from(*n)),
        Field::Short(n) => int(DType::I16, i64::from(*n)),
        Field::Int(n) => int(DType::I32, i64::from(*n)),
        Field::Long(n) => int(DType::I64, *n),
        Field::UByte(n) => int(DType::U8, i64::from(*n)),
        Field::UShort(n) => int(DType::U16, i64::from(*n)),
        Field::UInt(n) => int(DType::U32, i64::from(*n)),
        Field::ULong(n) => Ok((DType::U64, Literal::from_slice([] as [usize; 0], &[*n])?)),
        Field::Float16(x) => Ok((DType::F16, Literal::scalar(DType::F16, x.to_f64()))),
        Field::Float(x) => Ok((DType::F32, Literal::from_slice([] as [usize; 0], &[*x])?)),
        Field::Double(x) => Ok((DType::F64, Literal::from_slice([] as [usize; 0], &[*x])?)),
        Field::Null => Err(err!(Data, "the cell has no value")
            .hint("fill missing values when writing the file, or deselect the column")),
        other => {
            Err(err!(Unsupported, "expected a number, string, bytes or a list of numbers, got {other:?}")
                .hint("deselect the column: list the columns to read"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::resumes;
    use parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int64Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use systole_testing::assert_error;

    /// Rows `from..to`, three in a row group: `id`, `x = id / 2`, `name = "n<id>"`.
    fn write(path: &Path, from: i64, to: i64) {
        let text = "message rows { REQUIRED INT64 id; REQUIRED FLOAT x; REQUIRED BYTE_ARRAY name (UTF8); }";
        let schema = Arc::new(parse_message_type(text).unwrap());
        let mut w = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
        let ids: Vec<i64> = (from..to).collect();
        for part in ids.chunks(3) {
            let mut group = w.next_row_group().unwrap();
            let mut c = group.next_column().unwrap().unwrap();
            c.typed::<Int64Type>().write_batch(part, None, None).unwrap();
            c.close().unwrap();
            let mut c = group.next_column().unwrap().unwrap();
            let xs: Vec<f32> = part.iter().map(|i| *i as f32 / 2.0).collect();
            c.typed::<FloatType>().write_batch(&xs, None, None).unwrap();
            c.close().unwrap();
            let mut c = group.next_column().unwrap().unwrap();
            let names: Vec<ByteArray> = part.iter().map(|i| format!("n{i}").as_str().into()).collect();
            c.typed::<ByteArrayType>().write_batch(&names, None, None).unwrap();
            c.close().unwrap();
            group.close().unwrap();
        }
        w.close().unwrap();
    }

    #[test]
    fn rows_and_columns_come_from_any_place_and_damage_is_named() {
        let dir = std::env::temp_dir().join(format!("systole-parquet-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let files = [dir.join("a.parquet"), dir.join("b.parquet")];
        write(&files[0], 0, 10);
        write(&files[1], 10, 14);
        let none: [&str; 0] = [];
        let all = Dataset::parquet(&files, none);
        assert_eq!(all.cardinality(), Cardinality::Finite(14));
        assert_eq!(all.element_spec().unwrap().to_string(), "id: i64[], x: f32[], name: ui8[2]");
        let rows: Vec<Sample> = all.iter().map(Result::unwrap).collect();
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(row.get("id").unwrap().get(0).as_i64(), i as i64);
            assert_eq!(row.get("x").unwrap().to_f32s(), [i as f32 / 2.0]);
            assert_eq!(row.text("name").unwrap(), format!("n{i}"));
        }
        assert_eq!(rows.len(), 14);
        resumes(&all);
        let some = Dataset::parquet(&files, ["x", "id"]);
        assert_eq!(some.element_spec().unwrap().to_string(), "id: i64[], x: f32[]");
        resumes(&some.shuffle(5, 1).batch(3));
        let e = Dataset::parquet(&files, ["y"]).iter().next().unwrap().unwrap_err().to_string();
        assert!(e.contains("`y`") && e.contains("id, x, name") && e.contains("a.parquet"), "{e}");

        let bytes = std::fs::read(&files[0]).unwrap();
        std::fs::write(&files[0], &bytes[..bytes.len() / 2]).unwrap();
        let items: Vec<Result<Sample>> = all.iter().collect();
        let e = items[0].as_ref().unwrap_err().to_string();
        assert!(e.contains("a.parquet") && e.contains("invalid Parquet file"), "{e}");
        assert_eq!(items.len(), 5, "the other file is read");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Directory of files written by pyarrow; `None`: pyarrow is not installed.
    #[allow(clippy::print_stdout)]
    fn by_pyarrow(test: &str) -> Option<PathBuf> {
        let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
            println!("SKIPPED {test}: SYSTOLE_PYTHON names no Python with pyarrow");
            return None;
        };
        let dir = std::env::temp_dir().join(format!("systole-pyarrow-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parquet/write.py");
        let done = std::process::Command::new(python).arg(script).arg(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        if said.contains("No module named 'pyarrow'") {
            println!("SKIPPED {test}: this Python has no pyarrow");
            return None;
        }
        assert!(done.status.success(), "{said}");
        Some(dir)
    }

    #[test]
    fn what_pyarrow_writes_is_read() {
        let Some(dir) = by_pyarrow("what_pyarrow_writes_is_read") else { return };
        let none: [&str; 0] = [];
        let open = |name: &str| Dataset::parquet([dir.join(name)], none);
        let zstd = cfg!(feature = "parquet-zstd").then_some("zstd.parquet");
        let names = ["none.parquet", "snappy.parquet", "plain.parquet", "v2.parquet", "gzip.parquet"];
        for name in names.into_iter().chain(zstd) {
            let rows: Vec<Sample> = open(name).iter().map(Result::unwrap).collect();
            assert_eq!(rows.len(), 10, "{name}");
            for (i, row) in rows.iter().enumerate() {
                let is = |field: &str, dtype: DType, value: f64| {
                    let x = row.get(field).unwrap();
                    assert_eq!((x.dtype(), x.to_f64s()), (dtype, vec![value]), "{name}, row {i}, {field}");
                };
                let n = i as f64;
                for (field, dtype) in
                    [("i8", DType::I8), ("i16", DType::I16), ("i32", DType::I32), ("i64", DType::I64)]
                {
                    is(field, dtype, n - 3.0);
                }
                for (field, dtype) in
                    [("u8", DType::U8), ("u16", DType::U16), ("u32", DType::U32), ("u64", DType::U64)]
                {
                    is(field, dtype, n * 25.0);
                }
                is("f32", DType::F32, n / 4.0);
                is("f64", DType::F64, n / 3.0);
                is("flag", DType::Bool, f64::from(u8::from(i % 3 == 0)));
                assert_eq!(row.text("text").unwrap(), format!("zeile {i}, ä"));
                assert_eq!(row.text("kind").unwrap(), ["a", "bb"][i % 2]);
                assert_eq!(row.get("bytes").unwrap().bytes(), [i as u8, 0, 255]);
                let list: Vec<f64> = (0..i).map(|k| k as f64).collect();
                assert_eq!(row.get("list").unwrap().to_f64s(), list);
            }
        }
        resumes(&open("snappy.parquet"));

        // A missing value is an error in its position, with row and column; the rows around it are read.
        let rows: Vec<Result<Sample>> = open("gaps.parquet").iter().collect();
        assert_eq!(rows.iter().position(Result::is_err), Some(5));
        assert_eq!((rows.len(), rows.iter().filter(|r| r.is_err()).count()), (10, 1));
        assert_error(rows[5].as_ref().unwrap_err(), ErrorKind::Data, &["gaps.parquet, row 5, column x"]);
        assert_eq!(
            Dataset::parquet([dir.join("gaps.parquet")], ["id"]).iter().filter(Result::is_ok).count(),
            10
        );

        // Unsupported compression: reported for each row group, with the name of the codec.
        if cfg!(feature = "parquet-zstd") {
            std::fs::remove_dir_all(&dir).unwrap();
            return;
        }
        let rows: Vec<Result<Sample>> = open("zstd.parquet").iter().collect();
        let e = rows[0].as_ref().unwrap_err().to_string();
        assert!(rows.len() == 3 && e.contains("group 0"), "{e}");
        assert!(e.to_lowercase().contains("zstd") && e.contains("try: "), "{e}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
