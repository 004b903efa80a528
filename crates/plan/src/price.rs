//! Cost of a run: hourly price by chip and region, with the provider's billing granularity.

use crate::table::{ChipTables, Price};

/// Cost of one run: hourly prices, and dollars of the run on demand and at spot prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Bill {
    /// Price that the cost is based on.
    pub price: Price,
    /// Dollars per hour for the whole machine, on demand.
    pub per_hour: f64,
    /// Part of the hourly price for hosts, if they are billed separately.
    pub host_per_hour: f64,
    /// Dollars per hour at spot prices.
    pub spot_per_hour: Option<f64>,
    /// Dollars of the run, on demand.
    pub run: Option<f64>,
    /// Dollars of the run at spot prices.
    pub spot_run: Option<f64>,
    /// Whether the price is older than one year.
    pub old: bool,
}

/// Computes the cost of `chips` chips; `seconds` is the length of the run, if known. Without a region, uses the chip's
/// first region.
pub fn bill(
    tables: &ChipTables,
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
    let pod = tables.tpu(chip).is_some_and(|t| chips > t.host_chips);
    let (on_demand, spot) = match price.pod.filter(|_| pod) {
        Some(pod) => (pod, price.pod_spot),
        None => (price.on_demand, price.spot),
    };
    let per_hour = n * (on_demand + price.host);
    let spot_per_hour = spot.map(|s| n * (s + price.host_spot.unwrap_or(price.host)));
    let hours = seconds.map(|s| (s / price.billed_by_seconds).ceil() * price.billed_by_seconds / 3600.0);
    Some(Bill {
        per_hour,
        host_per_hour: n * price.host,
        spot_per_hour,
        run: hours.map(|h| h * per_hour),
        spot_run: hours.zip(spot_per_hour).map(|(h, p)| h * p),
        old: older_than_a_year(&price.date, today),
        price: price.clone(),
    })
}

/// Returns the regions with a price for a chip.
pub fn regions<'a>(tables: &'a ChipTables, chip: &str) -> Vec<&'a str> {
    tables.prices.iter().filter(|p| p.chip == chip).map(|p| p.region.as_str()).collect()
}

/// Whether `date` is more than one year before `today`, both `YYYY-MM-DD`.
fn older_than_a_year(date: &str, today: &str) -> bool {
    let parts = |d: &str| {
        let (year, rest) = d.split_once('-')?;
        Some((year.parse::<i64>().ok()?, rest.to_string()))
    };
    match (parts(date), parts(today)) {
        (Some((year, rest)), Some(today)) => (year + 1, rest) < today,
        // An invalid date counts as old.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_billed_by_the_second_and_old_prices_are_told() {
        let t = ChipTables::built_in().unwrap();
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

    /// Prices printed in the tutorials: v2-8 in three regions, on demand and preemptible.
    #[test]
    fn prices_of_v2_are_those_that_the_tutorials_print() {
        let t = ChipTables::built_in().unwrap();
        for (region, on_demand, spot) in [
            ("us-central1", 4.5, 1.35),
            ("europe-west4", 4.95, 1.485),
            ("asia-east1", 5.22, 1.566),
            ("asia", 5.22, 1.566),
        ] {
            let b = bill(&t, "v2", 4, Some(region), None, "2026-11-25").unwrap();
            assert!((b.per_hour - on_demand).abs() < 1e-9, "{region}: {}", b.per_hour);
            assert!((b.spot_per_hour.unwrap() - spot).abs() < 1e-9, "{region}: {b:?}");
            assert!(b.old);
        }
        let v3 = bill(&t, "v3", 4, None, None, "2026-11-25").unwrap();
        assert_eq!((v3.per_hour, v3.spot_per_hour), (8.0, Some(2.4)));
    }

    #[test]
    fn pods_and_hosts_have_prices_of_their_own() {
        let t = ChipTables::built_in().unwrap();
        let v2 = bill(&t, "v2", 256, None, None, "2026-11-25").unwrap();
        assert_eq!((v2.per_hour, v2.spot_per_hour), (384.0, Some(115.2)));
        assert_eq!(bill(&t, "v3", 16, Some("europe-west4"), None, "2026-11-25").unwrap().per_hour, 32.0);
        let v100 = bill(&t, "v100", 8, Some("us-central1"), None, "2026-11-25").unwrap();
        assert!(
            (v100.per_hour - 8.0 * (2.48 + 0.38)).abs() < 1e-9 && (v100.host_per_hour - 3.04).abs() < 1e-9
        );
        assert!((v100.spot_per_hour.unwrap() - 8.0 * (0.74 + 0.08)).abs() < 1e-9);
        assert!(t.prices.iter().any(|p| p.host > 0.0) && t.prices.iter().any(|p| p.node_vm.is_some()));
        assert_eq!(regions(&t, "v2"), ["us-central1", "europe-west4", "asia-east1"]);
    }
}
