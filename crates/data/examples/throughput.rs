//! Throughput benchmark of two pipelines: TFRecords of small images, and photos in JPEG files.
//!
//! `cargo run --release -p systole-data --example throughput -- WORKLOAD DIR [seconds] [threads] [ahead]`: `records`
//! reads `DIR/records/*.tfrecord` (Examples with `image`: 784 bytes, `label`: int64), `photos` reads
//! `DIR/photos/*.jpg`. Prints one line of JSON; `explain` as a last argument adds the tuning decisions.
//! `bench/data/compare` runs it next to tf.data.

use std::time::Instant;
use systole_base::{DType, Error, ErrorKind, Result};
use systole_data::format::example::{FeatureSpecs, parse_example};
use systole_data::image_ops::Resize;
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, Sample};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map(String::as_str);
    let (Some(workload), Some(dir)) = (arg(0), arg(1)) else {
        return Err(Error::new(ErrorKind::Config, "name a workload (records, photos) and a folder"));
    };
    let seconds: f64 = arg(2).and_then(|s| s.parse().ok()).unwrap_or(5.0);
    let threads = arg(3).and_then(|s| s.parse().ok()).unwrap_or(AUTOTUNE);
    let ahead = arg(4).and_then(|s| s.parse().ok()).unwrap_or(if threads == AUTOTUNE { AUTOTUNE } else { 4 });
    let (pipeline, batch) = match workload {
        "photos" => (photos(dir, threads)?, 32),
        _ => (records(dir, threads)?, 128),
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = DatasetOptions { core_budget: Some(cores), ..DatasetOptions::default() };
    let d = pipeline.batch(batch).prefetch(ahead).repeat();
    let mut iter = d.with_options(options).iter();
    for item in iter.by_ref().take(20) {
        item?;
    }
    let (start, cpu, mut n) = (Instant::now(), used("stat"), 0);
    while start.elapsed().as_secs_f64() < seconds {
        for item in iter.by_ref().take(8) {
            item?;
            n += batch;
        }
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), used("stat") - cpu);
    show(&format!(
        "{{\"workload\": \"{workload}\", \"per_second\": {:.0}, \"per_cpu_second\": {:.0}, \"peak_mib\": {:.0}}}",
        n as f64 / elapsed,
        n as f64 / cpu,
        used("status")
    ));
    if args.last().is_some_and(|a| a == "explain") {
        show(&iter.explain());
    }
    Ok(())
}

/// CPU seconds (`stat`) or peak memory in MiB (`status`) of this process; 0 if Linux does not report it.
fn used(file: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    if file == "status" {
        let peak = text
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        return peak.map_or(0.0, |k: f64| k / 1024.0);
    }
    // User and system time, in hundredths of a second, are 12 and 13 fields after the name.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// 28 × 28 images: read 4 files at a time in blocks of 16, parse, convert to f32, shuffle.
fn records(dir: &str, threads: usize) -> Result<Dataset> {
    let features = FeatureSpecs::new().raw("image", DType::U8, [28, 28, 1]).fixed("label", DType::I64, []);
    let parse = parse_example(features);
    let prepare = move |s: Sample| parse(s).map(|s| s.map("image", |x| x.cast(DType::F32) / 255.0));
    let files = Dataset::list_files(&format!("{dir}/records/*.tfrecord"))?;
    let read = |s: Sample| s.text("path").map(|p| Dataset::tfrecord([p]));
    Ok(files.interleave(read, 4, 16).shuffle(1024, 7).map_parallel(prepare, threads))
}

/// Photos: read, decode, resize to 224 × 224, normalize.
fn photos(dir: &str, threads: usize) -> Result<Dataset> {
    let files = Dataset::list_files(&format!("{dir}/photos/*.jpg"))?;
    let prepare = |s: Sample| -> Result<Sample> {
        let picture = systole_data::format::any_format::read(s.text("path")?)?;
        let x = systole_data::HostArray::from(picture).to_rgb().resize_to_f32(224, 224, Resize::Bilinear);
        Ok(Sample::new([("image", x / 127.5 - 1.0)]))
    };
    Ok(files.map_parallel(prepare, threads))
}

#[allow(clippy::print_stdout)]
fn show(text: &str) {
    println!("{text}");
}
