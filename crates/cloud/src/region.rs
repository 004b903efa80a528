//! Regions and zones: where the chips are, as far as is known.

use super::chips::RequestedChips;
use crate::CloudOptions;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::did_you_mean::suggestion;
use systole_plan::{ChipTables, regions};

/// Where a run is: both are empty where nobody asks.
#[derive(Default)]
pub(super) struct CloudRegion {
    pub region: String,
    pub zone: String,
}

impl CloudRegion {
    /// That of `--region` and `--zone`, or the first that has the chips and a price for them.
    ///
    /// # Errors
    /// When the region does not have the chips, as far as is known, or the zone is not in it.
    pub fn of(args: &CloudOptions, chips: &RequestedChips, tables: &ChipTables) -> Result<CloudRegion> {
        let priced = regions(tables, chips.kind());
        match chips {
            RequestedChips::Tpu(slice, cloud) => of_tpu(args, chips, cloud.zones_of(slice.chips), &priced),
            RequestedChips::Gpu { .. } | RequestedChips::Cpu { .. } => of_gpu(args, chips, &priced),
        }
    }
}

/// Clouds with GPUs are many: a region is one that a price is known for.
fn of_gpu(args: &CloudOptions, chips: &RequestedChips, priced: &[&str]) -> Result<CloudRegion> {
    let region = match &args.region {
        Some(region) if !priced.contains(&region.as_str()) => {
            let e =
                Error::new(ErrorKind::Config, format!("no price of {} is known in {region}", chips.kind()));
            let hint = match priced {
                [] => "leave --region out, or add the price with --tables".into(),
                some => format!("{}; or add the price with --tables", suggestion(region, some)),
            };
            return Err(e.at("--region").hint(hint));
        }
        Some(region) => region.clone(),
        None => priced.first().map_or_else(String::new, ToString::to_string),
    };
    Ok(CloudRegion { region, zone: String::new() })
}

fn of_tpu(
    args: &CloudOptions,
    chips: &RequestedChips,
    zones: &[String],
    priced: &[&str],
) -> Result<CloudRegion> {
    if let Some(zone) = &args.zone {
        let region = region_of(zone);
        if region.is_empty() || args.region.as_deref().is_some_and(|asked| asked != region) {
            let what = match &args.region {
                Some(asked) => format!("`{zone}` is no zone of {asked}"),
                None => format!("`{zone}` is no zone"),
            };
            let e = Error::new(ErrorKind::Config, what).at("--zone");
            return Err(e.hint(format!(
                "zones are written as {}; {} is in: {}",
                zones.first().map_or("us-central1-a", String::as_str),
                chips.title(),
                zones.join(", ")
            )));
        }
        return Ok(CloudRegion { region: region.into(), zone: zone.clone() });
    }
    let mut has: Vec<&str> = zones.iter().map(|zone| region_of(zone)).collect();
    has.dedup();
    let region = match args.region.as_deref() {
        Some(asked) if !has.contains(&asked) => {
            let e = Error::new(ErrorKind::Config, format!("{} is not known to be in {asked}", chips.title()));
            let hint = format!(
                "{}; where it is there now, name the zone: --zone {asked}-a",
                suggestion(asked, &has)
            );
            return Err(e.at("--region").hint(hint));
        }
        Some(asked) => asked,
        None => {
            has.iter().find(|region| priced.contains(region)).or(has.first()).copied().unwrap_or_default()
        }
    };
    let zone = zones.iter().find(|zone| region_of(zone) == region).cloned().unwrap_or_default();
    Ok(CloudRegion { region: region.into(), zone })
}

/// `us-west4` of `us-west4-a`; nothing of what is no zone.
fn region_of(zone: &str) -> &str {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    match zone.rsplit_once('-') {
        Some((region, last)) if region.contains('-') && is_word(last) && region.split('-').all(is_word) => {
            region
        }
        _ => "",
    }
}
