//! Writes TensorBoard images at the end of a run: the worst misclassified images and a grid of test images.
//!
//! They form a TensorBoard run `pictures` next to those of training and validation.

use crate::render::screen::note;
use crate::run::evaluation::TestPredictions;
use std::path::Path;
use systole_config::RunConfig;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_data::format::tensorboard_events::{self, SummaryValue};
use systole_ir::{Error, Result};
use systole_nn::Model;

/// Subfolder of the event folder.
const FOLDER: &str = "pictures";

/// Writes the images of a run if it logs TensorBoard events in `folder`. An error is only reported.
pub(crate) fn write_of_run(
    answers: &Result<Option<TestPredictions>>,
    model: &Model,
    config: &RunConfig,
    folder: &Path,
) {
    let events = config.event_folder(folder).filter(|_| model.leads());
    let (Ok(Some(answers)), Some(events)) = (answers, events) else { return };
    if let Err(e) = write(answers, &events, model.epochs().saturating_sub(1) as u64) {
        note(&format!("cannot write the images for TensorBoard: {e}"));
    }
}

/// Replaces the images of an earlier run end; writes nothing if there are no images.
fn write(answers: &TestPredictions, events: &Path, epoch: u64) -> Result<()> {
    let mut bytes = Vec::new();
    tensorboard_events::put_header(&mut bytes);
    let before = bytes.len();
    let (mut pngs, mut captions) =
        (Vec::new(), String::from("| | true class | predicted |\n|---|---|---|\n"));
    for mistake in answers.worst() {
        let Some(png) = &mistake.png else { continue };
        pngs.push(png.clone());
        let [is, taken_for] = [&mistake.is, &mistake.taken_for].map(|name| name.replace('|', "\\|"));
        let sure = mistake.probability.map_or(String::new(), |p| format!(", {:.1} %", 100.0 * p));
        captions += &format!("| {} | {is} | {taken_for}{sure} |\n", pngs.len());
    }
    if let Some([width, height]) = pngs.first().and_then(|png| size(png)) {
        tensorboard_events::put_value(
            &mut bytes,
            epoch,
            "misclassified",
            &SummaryValue::Images { width, height, pngs },
        );
        tensorboard_events::put_value(
            &mut bytes,
            epoch,
            "misclassified_classes",
            &SummaryValue::Text(captions),
        );
    }
    if let Some(grid) = answers.grid()? {
        let [width, height] = size(&grid).unwrap_or_default();
        tensorboard_events::put_value(
            &mut bytes,
            epoch,
            "samples",
            &SummaryValue::Images { width, height, pngs: vec![grid] },
        );
    }
    if bytes.len() == before {
        return Ok(());
    }
    let folder = events.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("cannot create the folder", &folder, e))?;
    for file in tensorboard_events::files_of(&folder) {
        std::fs::remove_file(&file).map_err(|e| Error::io("cannot remove", &file, e))?;
    }
    let name = tensorboard_events::next_name(std::slice::from_ref(&folder));
    write_atomically(&OsFileSystem, &folder.join(name), &[&bytes])
}

/// Width and height from a PNG header.
fn size(png: &[u8]) -> Option<[usize; 2]> {
    let number = |at: usize| Some(u32::from_be_bytes(png.get(at..at + 4)?.try_into().ok()?) as usize);
    Some([number(16)?, number(20)?])
}
