//! Writes `sweep.html`: ranking, curves and parameter plots of a sweep's trials.

use crate::commands::sweep::{SweepState, TrialState};
use crate::render::screen::note;
use std::path::Path;
use systole_config::SweepMethod;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_nn::counted;
use systole_report::{HtmlTile, Page, Plot, PlotSeries, SectionBlock, Tone};

/// Number of colored trials; the others are gray.
const COLOURED: usize = 7;
const GREY: usize = 7;
/// Maximum number of parameters with a chart.
const CHARTS: usize = 8;

/// Writes the page; an error is only reported.
pub(crate) fn write(all: &SweepState<'_>, file: &Path, path: &Path) -> bool {
    let written = write_atomically(&OsFileSystem, path, &[page(all, file).html().as_bytes()]);
    written.inspect_err(|e| note(&format!("cannot write the report: {e}"))).is_ok()
}

fn page(all: &SweepState<'_>, file: &Path) -> Page {
    let title = file.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
    let method = match all.sweep.method {
        SweepMethod::Grid => "grid search",
        SweepMethod::Random => "random search",
        SweepMethod::Halving => "successive halving",
    };
    let n = counted(all.trials.len() as u64, "trial");
    let mut page = Page {
        title: format!("{title}: a sweep"),
        lead: format!(
            "{n}, {method}, ranked by {} ({} is better)",
            all.metric,
            if all.grows { "more" } else { "less" }
        ),
        foot: format!("Systole {}", env!("CARGO_PKG_VERSION")),
        ..Page::default()
    };
    let ranked: Vec<&TrialState> = all.ranked().into_iter().map(|i| &all.trials[i]).collect();
    if let Some((best, (epoch, value))) = ranked.first().and_then(|t| Some((t, all.best(t)?))) {
        let note = format!("{} in epoch {epoch}", best.trial.name);
        page.tiles.push(HtmlTile {
            label: format!("best {}", all.metric),
            value: format!("{value:.4}"),
            note,
        });
        for (key, value) in &best.trial.settings {
            page.tiles.push(HtmlTile {
                label: key.clone(),
                value: value.to_string(),
                note: "of the best trial".into(),
            });
        }
    }
    for tried in ranked.iter().filter(|t| t.failed.is_some()) {
        let why = tried.failed.as_deref().unwrap_or_default();
        page.verdicts.push((Tone::Bad, format!("{} failed: {why}", tried.told())));
    }
    let rows = all.rows();
    page.add("trials", "Trials, best first", vec![SectionBlock::Table { rows, numbers: true }]);
    page.add("curves", "Curves", curves(all, &ranked));
    page.add("parameters", "Effect of each parameter", parameters(all));
    page
}

fn curves(all: &SweepState<'_>, ranked: &[&TrialState]) -> Vec<SectionBlock> {
    let one = |(i, tried): (usize, &&TrialState)| PlotSeries {
        name: tried.trial.name.clone(),
        colour: if i < COLOURED { i } else { GREY },
        is_faint: i >= COLOURED,
        is_dots: false,
        points: tried.curve.iter().map(|(n, v)| (*n as f64, *v)).collect(),
    };
    let series: Vec<PlotSeries> =
        ranked.iter().enumerate().map(one).filter(|s| !s.points.is_empty()).collect();
    if series.is_empty() {
        return Vec::new();
    }
    vec![SectionBlock::Plots(vec![Plot {
        title: all.metric.clone(),
        x: "epoch".into(),
        series,
        is_whole: true,
        may_be_log: all.metric.ends_with("loss"),
        is_log_across: false,
    }])]
}

/// Plots the metric over each numeric parameter.
fn parameters(all: &SweepState<'_>) -> Vec<SectionBlock> {
    let keys = all.trials.first().map_or(0, |t| t.trial.settings.len()).min(CHARTS);
    let plot = |k: usize| {
        let number = |v: &toml::Value| v.as_float().or(v.as_integer().map(|i| i as f64));
        let point = |t: &TrialState| Some((number(&t.trial.settings[k].1)?, all.best(t)?.1));
        let points: Vec<(f64, f64)> = all.trials.iter().filter_map(point).collect();
        let ends = points
            .iter()
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], p| [low.min(p.0), high.max(p.0)]);
        let is_log = ends[0] > 0.0 && ends[1] / ends[0] > 20.0;
        (points.len() > 1 && ends[0] < ends[1]).then(|| Plot {
            title: all.trials[0].trial.settings[k].0.clone(),
            x: all.trials[0].trial.settings[k].0.clone(),
            series: vec![PlotSeries {
                name: all.metric.clone(),
                colour: 0,
                is_faint: false,
                is_dots: true,
                points,
            }],
            is_whole: false,
            may_be_log: all.metric.ends_with("loss"),
            is_log_across: is_log,
        })
    };
    let plots: Vec<Plot> = (0..keys).filter_map(plot).collect();
    if plots.is_empty() { Vec::new() } else { vec![SectionBlock::Plots(plots)] }
}
