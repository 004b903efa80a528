//! How many elements a second two pipelines give: TFRecords of small pictures, and photos in JPEG files.
//!
//! `cargo run --release -p systole-data --example throughput -- DIR [seconds]`: DIR holds `records/*.tfrecord` (Examples
//! with `image`: 784 bytes, `label`: int64) and `photos/*.jpg`; what is missing is left out. The figures are for this
//! machine; `bench/` compares them with other systems on the same files.

use std::time::Duration;
use systole_base::{DType, Result};
use systole_data::format::example::{Features, parse_example};
use systole_data::picture::Resize;
use systole_data::{AUTOTUNE, Dataset, Options, Sample, tools};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| ".".into());
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options { core_budget: Some(cores), ..Options::default() };
    let pipelines = [("records", records(&dir), 128), ("photos", photos(&dir), 32)];
    for (name, pipeline, batch) in pipelines {
        match pipeline {
            Ok(d) => {
                let d = d.batch(batch).prefetch(AUTOTUNE).with_options(options.clone());
                let report = tools::bench(&d, Duration::from_secs_f64(seconds), false)?;
                let rate = report.elements as f64 * batch as f64 / report.elapsed.as_secs_f64();
                show(&format!("{name}: {rate:.0} elements a second\n{report}"));
            }
            Err(e) => show(&format!("{name} left out: {}", e.what())),
        }
    }
    Ok(())
}

/// 28 × 28 pictures: read 4 files at a time in blocks of 16, parse, to f32, shuffle.
fn records(dir: &str) -> Result<Dataset> {
    let features = Features::new().raw("image", DType::U8, [28, 28, 1]).fixed("label", DType::I64, []);
    let parse = parse_example(features);
    let prepare = move |s: Sample| parse(s).map(|s| s.map("image", |x| x.cast(DType::F32) / 255.0));
    let files = Dataset::list_files(&format!("{dir}/records/*.tfrecord"))?;
    let read = |s: Sample| s.text("path").map(|p| Dataset::tfrecord([p]));
    Ok(files.interleave(read, 4, 16).shuffle(1024, 7).map_parallel(prepare, AUTOTUNE))
}

/// Photos: read, decode, resize to 224 × 224, normalise.
fn photos(dir: &str) -> Result<Dataset> {
    let files = Dataset::list_files(&format!("{dir}/photos/*.jpg"))?;
    let prepare = |s: Sample| -> Result<Sample> {
        let picture = systole_data::format::picture::read(s.text("path")?)?;
        let x = systole_data::HostArray::from(picture).to_rgb().resize_to_f32(224, 224, Resize::Bilinear);
        Ok(Sample::new([("image", x / 127.5 - 1.0)]))
    };
    Ok(files.map_parallel(prepare, AUTOTUNE))
}

#[allow(clippy::print_stdout)]
fn show(text: &str) {
    println!("{text}");
}
