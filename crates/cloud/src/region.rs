//! Selects the cloud region and zone that offer the requested chips.

use super::chips::RequestedChips;
use crate::CloudOptions;
use systole_ir::{Error, ErrorKind, Result, err};
use systole_nn::did_you_mean::suggestion;
use systole_plan::{ChipTables, regions};

/// Region and zone of a run; empty if the platform has none.
#[derive(Default)]
pub(super) struct CloudRegion {
    pub region: String,
    pub zone: String,
}

impl CloudRegion {
    /// Selects the cloud region: `--region` and `--zone`, or the first region with the chips and a known price.
    ///
    /// # Errors
    /// If the region is not known to have the chips, or the zone is not in the region.
    pub fn of(args: &CloudOptions, chips: &RequestedChips, tables: &ChipTables) -> Result<CloudRegion> {
        let priced = regions(tables, chips.kind());
        match chips {
            RequestedChips::Tpu(slice, cloud) => of_tpu(args, chips, cloud.zones_of(slice.chips), &priced),
            RequestedChips::Gpu { .. } | RequestedChips::Cpu { .. } => of_gpu(args, chips, &priced),
        }
    }
}

/// GPUs are offered by many clouds: accepts regions with a known price.
fn of_gpu(args: &CloudOptions, chips: &RequestedChips, priced: &[&str]) -> Result<CloudRegion> {
    let region = match &args.region {
        Some(region) if !priced.contains(&region.as_str()) => {
            let e = err!(Config, "no price for {} is known in {region}", chips.kind());
            let hint = match priced {
                [] => "remove --region, or add the price with --tables".into(),
                some => format!("{}; or add the price with --tables", suggestion(region, some)),
            };
            return Err(e.at("--region").hint_command(hint));
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
                Some(asked) => format!("`{zone}` is not a zone of {asked}"),
                None => format!("`{zone}` is not a zone"),
            };
            let e = Error::new(ErrorKind::Config, what).at("--zone");
            return Err(e.hint_command(format!(
                "write zones as {}; {} is in: {}",
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
            let e = err!(Config, "{} is not known to be in `{asked}`", chips.title());
            let known = suggestion(asked, &has);
            let hint = match region_of(&format!("{asked}-a")) {
                "" => known,
                _ => format!("{known}; if it has become available there, name the zone: --zone {asked}-a"),
            };
            return Err(e.at("--region").hint_command(hint));
        }
        Some(asked) => asked,
        None => {
            has.iter().find(|region| priced.contains(region)).or(has.first()).copied().unwrap_or_default()
        }
    };
    let zone = zones.iter().find(|zone| region_of(zone) == region).cloned().unwrap_or_default();
    Ok(CloudRegion { region: region.into(), zone })
}

/// Returns the region of a zone: `us-west4` of `us-west4-a`; empty for an invalid zone.
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
