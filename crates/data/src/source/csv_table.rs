//! Infers the schema of CSV files in one pass.
//!
//! Detects separator, header, and each column's type, missing values, median, categories and date format. For reading rows in a
//! pipeline, see [`Dataset::csv`].

use super::text_files::{CsvDialect, CsvFormat, TextFile};
use crate::format::csv;
use crate::format::date::{CalendarDate, DateFormat};
use crate::format::text_encoding::TextEncoding;
use crate::{CsvColumn, CsvOptions, Dataset};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use systole_base::{DType, Result};

/// Candidate separators, those less likely within a field first.
const SEPARATORS: [char; 4] = ['\t', ';', ',', '|'];
/// Number of records used to detect the separator.
const LOOKED_AT: usize = 20;
/// Maximum number of bytes used for inference; later rows are read with the same types.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of distinct texts collected per column.
const MOST_TEXTS: usize = 1000;
/// Number of texts shown per column.
const SHOWN: usize = 5;
/// Maximum number of values for a median; evenly sampled if there are more.
const MOST_VALUES: usize = 1 << 20;

/// Type of a CSV column's cells: boolean, integer, number, date or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// No values.
    Empty,
    /// Integers.
    Integer,
    /// Numbers.
    Number,
    /// `true` and `false`.
    Boolean,
    /// Dates, with or without a time of day, in one [`DateFormat`].
    Date,
    /// Any other text.
    Text,
}

impl ColumnKind {
    /// Returns the name of the column's type.
    pub fn name(self) -> &'static str {
        match self {
            ColumnKind::Empty => "empty",
            ColumnKind::Integer => "integers",
            ColumnKind::Number => "numbers",
            ColumnKind::Boolean => "true and false",
            ColumnKind::Date => "dates",
            ColumnKind::Text => "texts",
        }
    }
}

/// Value of a CSV cell and its location: file, line, record.
pub type CellLocation = (String, String);

/// Statistics of a column's dates in one format.
#[derive(Clone, Debug, PartialEq)]
pub struct DateColumn {
    /// Format of all cells.
    pub format: DateFormat,
    /// Earliest date.
    pub earliest: CalendarDate,
    /// Latest date.
    pub latest: CalendarDate,
    /// Median in days since 1970-01-01.
    pub median: f64,
    /// Whether a cell has a time of day.
    pub has_time: bool,
}

/// Column of a CSV table: name, type and missing values.
#[derive(Clone, Debug)]
pub struct TableColumn {
    /// Name in the header, or index from 0 if there is none.
    pub name: String,
    /// Type of the cells.
    pub kind: ColumnKind,
    /// Number of missing values: empty, or `NA`, `null`, `?` etc.
    pub gaps: u64,
    /// Location of the first missing value.
    pub first_gap: Option<String>,
    /// First non-finite number.
    pub not_finite: Option<CellLocation>,
    /// First value that is not a number.
    pub not_a_number: Option<CellLocation>,
    /// Median of the finite numbers.
    pub median: Option<f64>,
    /// Distinct values as texts, each with its first location; `None`: more than a thousand.
    pub texts: Option<BTreeMap<String, String>>,
    /// Dates, for each format that all values match; the first format applies.
    pub dates: Vec<DateColumn>,
    /// First value that does not match a date format, for each other format.
    pub not_a_date: Vec<(DateFormat, CellLocation)>,
    /// Whether it contains the row number, as some programs write.
    pub counts_up: bool,
    /// Whether the header names it.
    pub is_named: bool,
}

impl TableColumn {
    /// Element type for reading: integers without missing values, numbers (missing is NaN), or text.
    pub fn dtype(&self) -> DType {
        match self.kind {
            ColumnKind::Integer if self.gaps == 0 => DType::I64,
            ColumnKind::Integer | ColumnKind::Number | ColumnKind::Empty => DType::F32,
            ColumnKind::Boolean | ColumnKind::Date | ColumnKind::Text => DType::U8,
        }
    }
}

/// Formats `city: texts ("Oslo", "Rome"), 3 missing`.
impl fmt::Display for TableColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind.name())?;
        match (&self.texts, self.median) {
            _ if self.kind == ColumnKind::Date => {
                let range = self.dates.first().map(|d| format!(", {} to {}", d.earliest, d.latest));
                f.write_str(&range.unwrap_or_default())?;
            }
            (_, Some(median)) => write!(f, ", median {median}")?,
            (Some(texts), _) if self.kind == ColumnKind::Text => {
                let shown: Vec<String> = texts.keys().take(SHOWN).map(|t| format!("{t:?}")).collect();
                let more = if texts.len() > SHOWN { ", …" } else { "" };
                write!(f, ", {} different: {}{more}", texts.len(), shown.join(", "))?;
            }
            (None, _) if self.kind == ColumnKind::Text => write!(f, ", more than {MOST_TEXTS} different")?,
            _ => {}
        }
        if self.gaps > 0 {
            write!(f, ", {} missing", self.gaps)?;
        }
        match &self.not_finite {
            Some((value, place)) => write!(f, ", NOT FINITE: {value} ({place})"),
            None => Ok(()),
        }
    }
}

/// Schema of a CSV table.
#[derive(Clone, Debug)]
pub struct CsvTable {
    /// Paths of the files.
    pub files: Vec<PathBuf>,
    /// Columns of the table.
    pub columns: Vec<TableColumn>,
    /// Number of rows read.
    pub rows: u64,
    /// Field separator.
    pub separator: char,
    /// Whether the first record is a header.
    pub has_header: bool,
    /// Encoding of the byte order mark, if it is not UTF-8.
    pub marked: Option<TextEncoding>,
    dialect: CsvDialect,
}

impl CsvTable {
    /// Infers the schema of CSV files with equal columns. Rows that do not match the header are skipped here and are
    /// errors when the rows are read.
    ///
    /// # Errors
    /// If a file cannot be read, or is not text.
    pub fn read(files: &[PathBuf]) -> Result<CsvTable> {
        CsvTable::read_written(files, CsvFormat::default())
    }

    /// [`CsvTable::read`] with format options for what cannot be inferred.
    ///
    /// # Errors
    /// If a file cannot be read, or is not text.
    pub fn read_written(files: &[PathBuf], written: CsvFormat) -> Result<CsvTable> {
        let encoding = written.encoding;
        let Some(first) = files.first() else {
            return Ok(CsvTable {
                files: Vec::new(),
                columns: Vec::new(),
                rows: 0,
                separator: ',',
                has_header: true,
                marked: None,
                dialect: CsvDialect::default(),
            });
        };
        let separator = separator_of(first, encoding);
        let has_header = begins_with_names(first, separator, encoding)?;
        let marked = TextFile::open(first, Some(encoding))?.marked();
        let (mut columns, mut bytes): (Vec<ColumnScan>, u64) = (Vec::new(), 0);
        for path in files {
            let mut file = TextFile::open(path, Some(encoding))?;
            let names = if has_header { file.header(separator)?.unwrap_or_default() } else { Vec::new() };
            let mut places: Vec<usize> = Vec::new();
            while let Some(record) = file.whole_record(separator)? {
                let Ok(fields) = record else { continue };
                if places.is_empty() {
                    let name = |i: usize| names.get(i).cloned().unwrap_or_else(|| i.to_string());
                    places =
                        (0..fields.len()).map(|i| place_of(&mut columns, name(i), path == first)).collect();
                }
                for (field, &at) in fields.iter().zip(&places) {
                    if let Some(column) = columns.get_mut(at) {
                        column.add(field.trim(), &file);
                    }
                }
                file.count();
                if bytes + file.offset() > MOST_BYTES {
                    break;
                }
            }
            if columns.is_empty() {
                columns = names.into_iter().map(ColumnScan::new).collect();
            }
            bytes += file.offset();
        }
        Ok(CsvTable { marked, ..CsvTable::of(files, columns, (separator, has_header), written) })
    }

    fn of(
        files: &[PathBuf],
        columns: Vec<ColumnScan>,
        (separator, has_header): (char, bool),
        written: CsvFormat,
    ) -> CsvTable {
        // Commas are decimal if the separator is another character and no number has a point.
        let commas = columns.iter().any(|c| c.commas > 0);
        let guessed = separator != ',' && commas && !columns.iter().any(|c| c.has_points);
        let decimal_comma = written.decimal_comma.unwrap_or(guessed);
        let rows = columns.iter().map(|c| c.rows).max().unwrap_or(0);
        CsvTable {
            files: files.to_vec(),
            columns: columns.into_iter().map(|c| c.finish(decimal_comma)).collect(),
            rows,
            separator,
            has_header,
            marked: None,
            dialect: CsvDialect { decimal_comma, loose: true, encoding: written.encoding },
        }
    }

    /// Returns the column names of a CSV file without reading more of it.
    ///
    /// # Errors
    /// If it cannot be read, or is not text.
    pub fn names_of(path: &PathBuf, encoding: Option<TextEncoding>) -> Result<Vec<String>> {
        let separator = separator_of(path, encoding);
        let names = TextFile::open(path, Some(encoding))?.header(separator)?.unwrap_or_default();
        Ok(match begins_with_names(path, separator, encoding)? {
            true => names,
            false => (0..names.len()).map(|i| i.to_string()).collect(),
        })
    }

    /// Returns a note if a column name looks like a value, because the file may have no header.
    pub(crate) fn header_note(&self) -> Option<String> {
        let is_value = |c: &&TableColumn| {
            let begins = |c: char| c.is_ascii_digit() || "+-.".contains(c);
            c.is_named && c.name.starts_with(begins) && c.name.parse::<f64>().is_ok()
        };
        let value = &self.columns.iter().find(is_value).filter(|_| self.has_header)?.name;
        Some(format!("`{value}` is read as a column name; if the first line is a row, add a header line"))
    }

    /// Whether numbers in the table have a decimal comma.
    pub fn has_decimal_comma(&self) -> bool {
        self.dialect.decimal_comma
    }

    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// Returns the rows of the table with all columns in their types, except unnamed ones without values, which some
    /// programs add at the end of lines.
    pub fn dataset(&self) -> Dataset {
        self.dataset_as(|c| (c.is_named || c.kind != ColumnKind::Empty).then(|| c.dtype()))
    }

    /// Returns the rows of the table, each column in the given type; `None` skips the column.
    pub fn dataset_as(&self, dtype: impl Fn(&TableColumn) -> Option<DType>) -> Dataset {
        let column = |c: &TableColumn| {
            let dtype = dtype(c)?;
            let default = match dtype {
                DType::U8 => Some(String::new()),
                d if d.is_float() => Some("nan".into()),
                _ => None,
            };
            Some(CsvColumn { name: c.name.clone(), dtype, default })
        };
        let columns = self.columns.iter().filter_map(column).collect();
        let options = CsvOptions { columns, separator: self.separator, header: self.has_header };
        Dataset::csv_written(self.files.clone(), options, self.dialect)
    }
}

/// Detects the separator: the first records have equally many fields, more than one.
fn separator_of(path: &PathBuf, encoding: Option<TextEncoding>) -> char {
    // Only the file's own extension: a folder may have any name.
    let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().to_lowercase());
    if name.strip_suffix(".gz").unwrap_or(&name).ends_with(".tsv") {
        return '\t';
    }
    let widths = |separator: char| -> Vec<usize> {
        let Ok(mut file) = TextFile::open(path, Some(encoding)) else { return Vec::new() };
        let records = std::iter::from_fn(|| file.fields(separator).ok().flatten());
        records.take(LOOKED_AT).map(|r| r.len()).collect()
    };
    let fits = |separator: &char| {
        let all = widths(*separator);
        all.first().is_some_and(|first| *first > 1 && all.iter().all(|n| n == first))
    };
    let by_first = || SEPARATORS.into_iter().max_by_key(|s| (widths(*s).first().copied(), *s == ','));
    SEPARATORS.into_iter().find(fits).or_else(by_first).unwrap_or(',')
}

/// Whether the first record is a header rather than a row of numbers.
fn begins_with_names(path: &PathBuf, separator: char, encoding: Option<TextEncoding>) -> Result<bool> {
    let Some(fields) = TextFile::open(path, Some(encoding))?.fields(separator)? else { return Ok(true) };
    let is_number = |f: &String| f.trim().parse::<f64>().is_ok() || csv::comma_number(f).is_some();
    let is_value = |f: &String| is_number(f) || csv::is_missing(f);
    Ok(!(fields.iter().any(is_number) && fields.iter().all(is_value)))
}

/// Returns the index of a column by name; the first file defines the columns.
fn place_of(columns: &mut Vec<ColumnScan>, name: String, is_first: bool) -> usize {
    match columns.iter().position(|c| c.name == name) {
        Some(at) => at,
        None if is_first => {
            columns.push(ColumnScan::new(name));
            columns.len() - 1
        }
        None => usize::MAX,
    }
}

/// Statistics of a column so far.
struct ColumnScan {
    name: String,
    rows: u64,
    gaps: u64,
    first_gap: Option<String>,
    /// Number of cells that are integers, numbers, numbers with a comma, booleans.
    integers: u64,
    numbers: u64,
    commas: u64,
    booleans: u64,
    has_points: bool,
    not_finite: Option<CellLocation>,
    not_a_number: Option<CellLocation>,
    /// First number with a comma.
    with_comma: Option<CellLocation>,
    values: Vec<f64>,
    /// Every n-th number is kept.
    every: u64,
    texts: Option<BTreeMap<String, String>>,
    dates: [DateScan; DateFormat::ALL.len()],
    counts_up: bool,
    starts_at: i64,
}

/// Dates of a column in one format so far.
#[derive(Default)]
struct DateScan {
    /// First value that is not such a date; later values are not parsed.
    failed: Option<CellLocation>,
    range: Option<(CalendarDate, CalendarDate)>,
    days: Vec<f64>,
    has_time: bool,
}

impl DateScan {
    fn add(&mut self, format: DateFormat, cell: &str, file: &TextFile) {
        if self.failed.is_some() {
            return;
        }
        let Some(date) = format.parse(cell) else {
            self.failed = Some((cell.into(), file.place()));
            return;
        };
        let days = date.fractional_days();
        let (earliest, latest) = self.range.get_or_insert((date, date));
        if days < earliest.fractional_days() {
            *earliest = date;
        }
        if days > latest.fractional_days() {
            *latest = date;
        }
        self.has_time |= date.seconds.is_some();
        if self.days.len() < MOST_VALUES {
            self.days.push(days);
        }
    }

    fn finish(&mut self, format: DateFormat) -> Option<DateColumn> {
        let (earliest, latest) = self.range.filter(|_| self.failed.is_none())?;
        let middle = self.days.len() / 2;
        let median = *self.days.select_nth_unstable_by(middle, f64::total_cmp).1;
        Some(DateColumn { format, earliest, latest, median, has_time: self.has_time })
    }
}

impl ColumnScan {
    fn new(name: String) -> ColumnScan {
        ColumnScan {
            name,
            rows: 0,
            gaps: 0,
            first_gap: None,
            integers: 0,
            numbers: 0,
            commas: 0,
            booleans: 0,
            has_points: false,
            not_finite: None,
            not_a_number: None,
            with_comma: None,
            values: Vec::new(),
            every: 1,
            texts: Some(BTreeMap::new()),
            dates: Default::default(),
            counts_up: true,
            starts_at: 0,
        }
    }

    fn add(&mut self, cell: &str, file: &TextFile) {
        let found = || (cell.to_string(), file.place());
        self.rows += 1;
        if csv::is_missing(cell) {
            self.gaps += 1;
            self.counts_up = false;
            self.first_gap.get_or_insert_with(|| file.place());
            return;
        }
        if let Some(texts) = &mut self.texts
            && !texts.contains_key(cell)
        {
            texts.insert(cell.into(), file.place());
            if texts.len() > MOST_TEXTS {
                self.texts = None;
            }
        }
        for (format, dates) in DateFormat::ALL.into_iter().zip(&mut self.dates) {
            dates.add(format, cell, file);
        }
        let whole = cell.parse::<i64>().ok();
        self.integers += u64::from(whole.is_some());
        if self.rows == 1 {
            self.starts_at = whole.unwrap_or(0);
        }
        self.counts_up &= whole.is_some_and(|n| n.wrapping_sub(self.starts_at) == self.rows as i64 - 1);
        match (cell.parse::<f64>(), csv::comma_number(cell)) {
            (Ok(v), _) => {
                self.numbers += 1;
                self.has_points |= cell.contains('.');
                match v.is_finite() {
                    true => self.keep(v),
                    false => drop(self.not_finite.get_or_insert_with(found)),
                }
            }
            (_, Some(v)) => {
                self.commas += 1;
                self.with_comma.get_or_insert_with(found);
                self.keep(v);
            }
            _ => {
                self.booleans += u64::from(csv::boolean(cell).is_some());
                self.not_a_number.get_or_insert_with(found);
            }
        }
    }

    /// Stores a number, or every n-th one.
    fn keep(&mut self, value: f64) {
        if self.rows.is_multiple_of(self.every) {
            self.values.push(value);
        }
        if self.values.len() > MOST_VALUES {
            let mut place = 0;
            self.values.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.every *= 2;
        }
    }

    fn finish(mut self, decimal_comma: bool) -> TableColumn {
        let filled = self.rows - self.gaps;
        if !decimal_comma && self.commas > 0 {
            self.not_a_number = self.not_a_number.or(self.with_comma);
        }
        let scans = DateFormat::ALL.into_iter().zip(&mut self.dates);
        let dates: Vec<DateColumn> = scans.filter_map(|(format, dates)| dates.finish(format)).collect();
        let scans = DateFormat::ALL.into_iter().zip(&mut self.dates);
        let not_a_date = scans.filter_map(|(format, dates)| Some((format, dates.failed.take()?))).collect();
        let kind = match filled {
            0 => ColumnKind::Empty,
            n if n == self.integers => ColumnKind::Integer,
            _ if self.not_a_number.is_none() => ColumnKind::Number,
            n if n == self.booleans => ColumnKind::Boolean,
            _ if !dates.is_empty() => ColumnKind::Date,
            _ => ColumnKind::Text,
        };
        let is_number = matches!(kind, ColumnKind::Integer | ColumnKind::Number);
        let middle = self.values.len() / 2;
        let median = match self.values.is_empty() || !is_number {
            true => None,
            false => Some(*self.values.select_nth_unstable_by(middle, f64::total_cmp).1),
        };
        TableColumn {
            is_named: self.name.parse::<usize>().is_err(),
            name: self.name,
            kind,
            gaps: self.gaps,
            first_gap: self.first_gap,
            not_finite: self.not_finite.filter(|_| is_number),
            not_a_number: self.not_a_number,
            median,
            texts: self.texts,
            dates,
            not_a_date,
            counts_up: self.counts_up && self.rows > 1 && (0..=1).contains(&self.starts_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, text: &str) -> (CsvTable, Vec<String>) {
        let path = std::env::temp_dir().join(format!("systole-table-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let table = CsvTable::read(std::slice::from_ref(&path)).unwrap();
        let row = |s: Result<crate::Sample>| s.map_or_else(|e| e.to_string(), |s| crate::tools::summary(&s));
        let rows = table.dataset().iter().map(row).collect();
        std::fs::remove_file(path).unwrap();
        (table, rows)
    }

    fn kinds(table: &CsvTable) -> Vec<(&str, ColumnKind)> {
        table.columns.iter().map(|c| (c.name.as_str(), c.kind)).collect()
    }

    #[test]
    fn columns_are_what_all_their_cells_are() {
        use ColumnKind::*;
        let early: String = (0..1500).map(|i| format!("{i},\"x, \n y\",1\n")).collect();
        let (t, rows) = table("late", &format!("a,note,label\n{early}0.5,z,0\n"));
        assert_eq!(kinds(&t), [("a", Number), ("note", Text), ("label", Integer)]);
        assert_eq!((rows.len(), t.rows), (1501, 1501));
        assert!(rows[1500].starts_with("a: f32[] = 0.5") || rows[1500].contains("0.5"), "{}", rows[1500]);

        let (t, rows) =
            table("gaps", "x,ok,city,none\n1,True,Rome,\nNA,false,Oslo,\n4,true,,\n2,FALSE,Rome,\n");
        assert_eq!(kinds(&t), [("x", Integer), ("ok", Boolean), ("city", Text), ("none", Empty)]);
        let x = t.column("x").unwrap();
        assert_eq!((x.gaps, x.median, x.dtype()), (1, Some(2.0), DType::F32));
        assert!(x.first_gap.as_ref().unwrap().contains("line 3"), "{x:?}");
        assert_eq!(t.column("city").unwrap().texts.as_ref().unwrap().len(), 2);
        assert!(rows[1].to_lowercase().contains("nan"), "{}", rows[1]);
    }

    #[test]
    fn other_ways_of_writing_are_told() {
        use ColumnKind::*;
        let (t, rows) = table("semicolon", "a;b;label\n0,5;-0,25;0\n1;2,5;1\n");
        assert_eq!((t.separator, kinds(&t)), (';', vec![("a", Number), ("b", Number), ("label", Integer)]));
        assert!(rows[0].contains("0.5") && rows[0].contains("-0.25"), "{rows:?}");
        let (t, _) = table("both", "a;b\n0,5;1.5\n1;2,5\n");
        assert_eq!(kinds(&t), [("a", Text), ("b", Text)], "a comma beside a point is no number");
        let (t, rows) = table("headless", "0.5,1,0\n0.25,2,1\n");
        assert_eq!((t.has_header, kinds(&t)), (false, vec![("0", Number), ("1", Integer), ("2", Integer)]));
        assert_eq!(rows.len(), 2);
        let (t, rows) = table("trailing", "a,b,label,\n1,2,0,\n3,4,1,\n");
        assert_eq!((t.columns.len(), t.columns[3].is_named), (4, false));
        assert!(!rows[0].contains("3:") && rows.len() == 2, "{rows:?}");
        let (t, rows) = table("twice", "a,a,label\n1,2,0\n3,4,1\n");
        assert_eq!(kinds(&t), [("a", Integer), ("a_1", Integer), ("label", Integer)]);
        assert!(rows[1].contains('3') && rows[1].contains('4'), "{rows:?}");
        let (t, _) = table("index", ",a,label\n0,5,0\n1,5,1\n2,7,0\n");
        assert!(t.columns[0].counts_up && !t.columns[1].counts_up);
    }

    #[test]
    fn dates_have_one_format_for_all_their_cells() {
        use ColumnKind::*;
        let (t, _) = table(
            "dates",
            "iso,us,eu,mixed\n2024-01-31,1/2/2024,1/2/2024,2024-01-31\n,3/4/2024,13/4/2024,x\n",
        );
        assert_eq!(kinds(&t), [("iso", Date), ("us", Date), ("eu", Date), ("mixed", Text)]);
        let formats = |name: &str| t.column(name).unwrap().dates.iter().map(|d| d.format).collect::<Vec<_>>();
        assert_eq!(formats("iso"), [DateFormat::YearFirst]);
        assert_eq!(formats("us"), [DateFormat::MonthFirst, DateFormat::DayFirst], "both are possible");
        assert_eq!(formats("eu"), [DateFormat::DayFirst]);
        let wrong = &t.column("eu").unwrap().not_a_date;
        let (_, (cell, place)) = wrong.iter().find(|(f, _)| *f == DateFormat::MonthFirst).unwrap();
        assert!(cell == "13/4/2024" && place.contains("line 3"), "{place}");
        assert_eq!(t.column("us").unwrap().to_string(), "us: dates, 2024-01-02 to 2024-03-04");
    }

    #[test]
    fn a_folder_s_name_does_not_decide_the_separator() {
        let folder = std::env::temp_dir().join(format!("systole.tsv-old-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("backup.tsv.csv");
        std::fs::write(&path, "a,b\n1,2\n").unwrap();
        assert_eq!(CsvTable::read(std::slice::from_ref(&path)).unwrap().separator, ',');
        let path = folder.join("a.TSV");
        std::fs::write(&path, "a\n1,2\n").unwrap();
        assert_eq!(CsvTable::read(std::slice::from_ref(&path)).unwrap().separator, '\t');
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_not_finite_is_found() {
        let (t, _) = table("nan", "a,b\n1,2\nnan,3\n-inf,4\n");
        let a = t.column("a").unwrap();
        assert_eq!((a.kind, a.gaps), (ColumnKind::Number, 0));
        let (value, place) = a.not_finite.clone().unwrap();
        assert!(value == "nan" && place.contains("line 3"), "{place}");
    }
}
