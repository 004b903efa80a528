//! What a run costs: dollars an hour by chip and region, billed as the provider does.

use crate::table::{Price, Tables};

/// The bill of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Bill {
    /// The price it is from.
    pub price: Price,
    /// Dollars an hour of the whole machine on demand.
    pub per_hour: f64,
    /// Dollars an hour at spot prices.
    pub spot_per_hour: Option<f64>,
    /// Dollars of the run on demand.
    pub run: Option<f64>,
    /// Dollars of the run at spot prices.
    pub spot_run: Option<f64>,
    /// Whether the price is older than a year.
    pub old: bool,
}

/// The bill for `chips` of a kind; `seconds` of the run where it is known. Without a region the chip's first one.
pub fn bill(
    tables: &Tables,
    chip: &str,
    chips: usize,
    region: Option<&str>,
    seconds: Option<f64>,
    today: &str,
) -> Option<Bill> {
    let mut of_chip = tables.prices.iter().filter(|p| p.chip == chip);
    let price = match region {
        Some(r) => of_chip.find(|p| p.region == r || p.region.starts_with(&format!("{r}-"))),
        None => of_chip.next(),
    }?;
    let n = chips as f64;
    let per_hour = n * (price.on_demand + price.host);
    let spot_per_hour = price.spot.map(|s| n * (s + price.host));
    let hours = seconds.map(|s| (s / price.billed_by_seconds).ceil() * price.billed_by_seconds / 3600.0);
    Some(Bill {
        per_hour,
        spot_per_hour,
        run: hours.map(|h| h * per_hour),
        spot_run: hours.zip(spot_per_hour).map(|(h, p)| h * p),
        old: older_than_a_year(&price.date, today),
        price: price.clone(),
    })
}

/// Whether `date` is more than a year before `today`, both `YYYY-MM-DD`.
fn older_than_a_year(date: &str, today: &str) -> bool {
    let shifted = |d: &str| {
        let (year, rest) = d.split_once('-')?;
        Some((year.parse::<i64>().ok()? + 1, rest.to_string()))
    };
    let whole = |d: &str| {
        let (year, rest) = d.split_once('-')?;
        Some((year.parse::<i64>().ok()?, rest.to_string()))
    };
    match (shifted(date), whole(today)) {
        (Some(a), Some(b)) => a < b,
        // A date that does not read vouches for nothing.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_billed_by_the_second_and_old_prices_are_told() {
        let t = Tables::built_in().unwrap();
        let b = bill(&t, "v5e", 4, None, Some(180.4), "2026-11-22").unwrap();
        assert!((b.per_hour - 4.8).abs() < 1e-9 && !b.old);
        assert!((b.run.unwrap() - 4.8 * 181.0 / 3600.0).abs() < 1e-9);
        assert!(b.spot_run.unwrap() < 0.3 * b.run.unwrap());
        let minute = bill(&t, "h100", 1, None, Some(61.0), "2026-11-22").unwrap();
        assert!((minute.run.unwrap() - 4.29 * 120.0 / 3600.0).abs() < 1e-9);
        assert!(bill(&t, "v2", 4, None, None, "2026-11-22").unwrap().old);
        assert!(bill(&t, "v5e", 4, None, None, "2027-11-23").unwrap().old);
        assert!(bill(&t, "v5e", 1, Some("mars"), None, "2026-11-22").is_none());
        assert!(bill(&t, "tpu7x", 1, None, None, "2026-11-22").is_none());
        assert_eq!(
            bill(&t, "v6e", 1, Some("europe"), None, "2026-11-22").unwrap().price.region,
            "europe-west4"
        );
    }
}
