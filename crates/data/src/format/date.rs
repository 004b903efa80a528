//! Parses dates and times in CSV cells: ISO 8601, day or month first, English month names.

use std::fmt;
use std::str::FromStr;

/// Years that a date may have; other numbers are codes, not years.
const YEARS: std::ops::RangeInclusive<i64> = 1000..=2999;
const SECONDS_PER_DAY: f64 = 86_400.0;
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// Order of the parts of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateFormat {
    /// `2024-03-01`, `2024/3/1`, `2024-03`.
    YearFirst,
    /// `3/1/2024`, `03-01-2024`.
    MonthFirst,
    /// `1/3/2024`, `01-03-2024`, `1.3.2024`.
    DayFirst,
    /// `1 March 2024`, `Mar 1, 2024`, `1-Mar-2024`.
    MonthName,
}

impl DateFormat {
    /// All formats. If a column matches several, the first one applies.
    pub const ALL: [DateFormat; 4] =
        [DateFormat::YearFirst, DateFormat::MonthFirst, DateFormat::DayFirst, DateFormat::MonthName];

    /// Returns the name in configurations: `year_first`.
    pub fn name(self) -> &'static str {
        match self {
            DateFormat::YearFirst => "year_first",
            DateFormat::MonthFirst => "month_first",
            DateFormat::DayFirst => "day_first",
            DateFormat::MonthName => "month_name",
        }
    }

    /// Returns the format as users know it: `month/day/year`.
    pub fn pattern(self) -> &'static str {
        match self {
            DateFormat::YearFirst => "year-month-day",
            DateFormat::MonthFirst => "month/day/year",
            DateFormat::DayFirst => "day/month/year",
            DateFormat::MonthName => "month names",
        }
    }

    /// Parses a cell: a date, and a time of day with an optional UTC offset. `None`: it has another format.
    ///
    /// ```
    /// use systole_data::format::date::DateFormat;
    /// let date = DateFormat::YearFirst.parse("2024-03-01T18:00:00Z").unwrap();
    /// assert_eq!((date.days, date.seconds, date.to_string()), (19_783, Some(64_800.0), "2024-03-01 18:00".into()));
    /// assert_eq!(DateFormat::YearFirst.parse("2024-02-30"), None);
    /// ```
    pub fn parse(self, cell: &str) -> Option<CalendarDate> {
        let cell = cell.trim();
        // A colon follows the hour; the date ends before the hour.
        let (date, time) = match cell.find(':') {
            Some(colon) => cell.split_at(cell[..colon].rfind(['T', 't', ' '])?),
            None => (cell, ""),
        };
        let (seconds, offset) = match time.get(1..) {
            Some(time) => time_of_day(time).map(|(seconds, offset)| (Some(seconds), offset))?,
            None => (None, 0.0),
        };
        let (year, month, day) = self.parts(date.trim())?;
        let is_date =
            YEARS.contains(&year) && (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
        is_date.then(|| CalendarDate { days: days_from_civil(year, month, day), seconds, offset })
    }

    /// Returns year, month and day, unchecked.
    fn parts(self, date: &str) -> Option<(i64, i64, i64)> {
        if self == DateFormat::MonthName {
            return with_month_name(date);
        }
        let separator = date.chars().find(|c| !c.is_ascii_digit())?;
        let is_known = match self {
            // Dots separate the parts of European dates.
            DateFormat::MonthFirst => "/-".contains(separator),
            _ => "/-.".contains(separator),
        };
        let parts: Vec<&str> = date.split(separator).collect();
        match (self, parts.as_slice()) {
            _ if !is_known => None,
            (DateFormat::YearFirst, [y, m]) if separator != '.' => Some((year(y)?, two_digits(m)?, 1)),
            (DateFormat::YearFirst, [y, m, d]) => Some((year(y)?, two_digits(m)?, two_digits(d)?)),
            (DateFormat::MonthFirst, [m, d, y]) => Some((year(y)?, two_digits(m)?, two_digits(d)?)),
            (DateFormat::DayFirst, [d, m, y]) => Some((year(y)?, two_digits(m)?, two_digits(d)?)),
            _ => None,
        }
    }
}

impl FromStr for DateFormat {
    type Err = ();

    fn from_str(name: &str) -> Result<DateFormat, ()> {
        DateFormat::ALL.into_iter().find(|format| format.name() == name).ok_or(())
    }
}

/// A date of the Gregorian calendar, with or without a time of day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalendarDate {
    /// Days since 1970-01-01, local time.
    pub days: i64,
    /// Seconds since midnight, local time; `None`: the cell has no time.
    pub seconds: Option<f64>,
    /// Offset of the local time from UTC in seconds.
    pub offset: f64,
}

impl CalendarDate {
    /// Converts days since 1970-01-01; a fraction is a time of day if `has_time`.
    pub fn from_days(days: f64, has_time: bool) -> CalendarDate {
        let whole = days.floor();
        let seconds = ((days - whole) * SECONDS_PER_DAY).round();
        CalendarDate { days: whole as i64, seconds: has_time.then_some(seconds), offset: 0.0 }
    }

    /// Days since 1970-01-01 00:00 UTC, with the time of day as fraction.
    pub fn fractional_days(&self) -> f64 {
        self.days as f64 + (self.seconds.unwrap_or(0.0) - self.offset) / SECONDS_PER_DAY
    }

    /// Year, month from 1, day of the month from 1.
    pub fn civil(&self) -> (i64, i64, i64) {
        civil_from_days(self.days)
    }

    /// Day of the week: 0 is Monday, 6 is Sunday.
    pub fn weekday(&self) -> i64 {
        // 1970-01-01 was a Thursday.
        (self.days + 3).rem_euclid(7)
    }

    /// Hour of the day with minutes and seconds as fraction, 0 to 24.
    pub fn hour(&self) -> f64 {
        self.seconds.unwrap_or(0.0) / 3600.0
    }
}

/// Formats `2024-03-01`, or `2024-03-01 18:00` with a time.
impl fmt::Display for CalendarDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        write!(f, "{year:04}-{month:02}-{day:02}")?;
        let Some(seconds) = self.seconds.map(|s| s as i64) else { return Ok(()) };
        write!(f, " {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
    }
}

/// Converts a civil date to days since 1970-01-01 (Hinnant's algorithm).
pub fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Converts days since 1970-01-01 to year, month and day (Hinnant's algorithm).
pub fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_in(year: i64, month: i64) -> i64 {
    let (next_year, next) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days_from_civil(next_year, next, 1) - days_from_civil(year, month, 1)
}

fn digits(text: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let is_number = lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

fn year(text: &str) -> Option<i64> {
    digits(text, 4..=4)
}

fn two_digits(text: &str) -> Option<i64> {
    digits(text, 1..=2)
}

fn with_month_name(date: &str) -> Option<(i64, i64, i64)> {
    let words: Vec<&str> = date.split([' ', ',', '-', '.', '/']).filter(|word| !word.is_empty()).collect();
    let month = |word: &str| {
        let word = word.to_lowercase();
        let is_it = |name: &&str| word.len() >= 3 && name.starts_with(&word);
        MONTHS.iter().position(is_it).map(|at| at as i64 + 1)
    };
    let [a, b, y] = words.as_slice() else { return None };
    let (m, d) = if a.starts_with(|c: char| c.is_ascii_digit()) { (b, a) } else { (a, b) };
    Some((year(y)?, month(m)?, two_digits(d)?))
}

/// Parses `18:30`, `18:30:15.5`, `6:30 PM`, each with `Z` or `+02:00`: seconds since midnight and the UTC offset.
fn time_of_day(text: &str) -> Option<(f64, f64)> {
    let text = text.trim().to_uppercase();
    let (clock, offset) = match text.trim_end_matches("UTC").trim_end_matches('Z').trim_end() {
        plain if plain.len() < text.len() => (plain.to_string(), 0.0),
        _ => match text.rfind(['+', '-']) {
            Some(sign) => (text[..sign].trim_end().to_string(), utc_offset(&text[sign..])?),
            None => (text, 0.0),
        },
    };
    let half = [("AM", 0.0), ("PM", 12.0)].into_iter().find(|(end, _)| clock.ends_with(end));
    let clock = half.map_or(clock.as_str(), |(end, _)| clock.trim_end_matches(end).trim_end());
    let parts: Vec<&str> = clock.split(':').collect();
    let (hour, minute, second) = match parts.as_slice() {
        [h, m] => (two_digits(h)?, digits(m, 2..=2)?, 0.0),
        [h, m, s] => (two_digits(h)?, digits(m, 2..=2)?, seconds_of(s)?),
        _ => return None,
    };
    let hour = match half {
        Some((_, shift)) if (1..=12).contains(&hour) => (hour % 12) as f64 + shift,
        None if hour <= 23 => hour as f64,
        _ => return None,
    };
    (minute <= 59).then_some((hour * 3600.0 + minute as f64 * 60.0 + second, offset))
}

fn seconds_of(text: &str) -> Option<f64> {
    let whole = text.split('.').next()?;
    let seconds: f64 = digits(whole, 2..=2).and_then(|_| text.parse().ok())?;
    // A leap second.
    (seconds < 61.0).then_some(seconds)
}

/// Parses `+02:00`, `-0530` and `+02` to seconds.
fn utc_offset(text: &str) -> Option<f64> {
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let plain = text.get(1..)?.replace(':', "");
    let (hours, minutes) = match plain.len() {
        2 => (digits(&plain, 2..=2)?, 0),
        4 => (digits(&plain[..2], 2..=2)?, digits(&plain[2..], 2..=2)?),
        _ => return None,
    };
    (hours <= 14 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(cell: &str) -> Vec<DateFormat> {
        DateFormat::ALL.into_iter().filter(|format| format.parse(cell).is_some()).collect()
    }

    #[test]
    fn each_way_of_writing_a_date_is_known() {
        use DateFormat::*;
        for (cell, known) in [
            ("2024-03-01", vec![YearFirst]),
            ("2024/3/1", vec![YearFirst]),
            ("2024-03", vec![YearFirst]),
            ("3/1/2024", vec![MonthFirst, DayFirst]),
            ("13/1/2024", vec![DayFirst]),
            ("1/13/2024", vec![MonthFirst]),
            ("01.03.2024", vec![DayFirst]),
            ("1 March 2024", vec![MonthName]),
            ("Mar 1, 2024 6:30 pm", vec![MonthName]),
            ("1-Mar-2024", vec![MonthName]),
        ] {
            assert_eq!(formats(cell), known, "{cell}");
        }
        let other = [
            "",
            "20240301",
            "1.5",
            "12:30",
            "2024",
            "2024-13-01",
            "2023-02-29",
            "31/31/2024",
            "1-2-3",
            "a-b-c",
        ];
        let other =
            other.into_iter().chain(["192.168.1.1", "Ma 1, 2024", "2024-03-01 25:00", "2024-03-01x", "é:1"]);
        for cell in other {
            assert_eq!(formats(cell), [], "{cell}");
        }
    }

    #[test]
    fn days_parts_and_times_are_those_of_the_calendar() {
        let date = |cell: &str| DateFormat::YearFirst.parse(cell).unwrap();
        assert_eq!(
            (date("1970-01-01").days, date("2000-02-29").days, date("1969-12-31").days),
            (0, 11_016, -1)
        );
        // 2024-02-29 was a Thursday.
        assert_eq!((date("2024-02-29").civil(), date("2024-02-29").weekday()), ((2024, 2, 29), 3));
        for days in (-200_000..200_000).step_by(97) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
        let noon = date("2024-03-01T12:30:00+02:00");
        assert_eq!((noon.hour(), noon.fractional_days()), (12.5, 19_783.0 + 10.5 / 24.0));
        assert_eq!(date("2024-03-01 12:00 am").hour(), 0.0);
        assert_eq!(date("2024-03-01 12:00 PM").hour(), 12.0);
        assert_eq!(CalendarDate::from_days(19_783.75, true).to_string(), "2024-03-01 18:00");
        assert_eq!(DateFormat::from_str("day_first"), Ok(DateFormat::DayFirst));
    }
}
