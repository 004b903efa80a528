//! Current UTC date and time as text, for logs and for prices that expire.

use crate::format::date::civil_from_days;
use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Seconds since the Unix epoch.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Returns today's date as `YYYY-MM-DD`.
pub fn today() -> String {
    date(seconds())
}

/// Returns the current time as `YYYY-MM-DD HH:MM:SS`.
pub fn now() -> String {
    let all = seconds();
    let of_day = all % DAY;
    format!("{} {:02}:{:02}:{:02}", date(all), of_day / 3600, of_day / 60 % 60, of_day % 60)
}

fn date(seconds: u64) -> String {
    let (year, month, day) = civil_from_days((seconds / DAY) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates_and_today_is_one() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_799, "2000-02-29"),
            (1_795_737_600, "2026-11-27"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        let t = today();
        assert!(t.len() == 10 && t.as_str() > "2026-01-01" && t.as_str() < "2100-01-01", "{t}");
        assert_eq!(now().len(), "2026-11-27 08:15:02".len());
    }
}
