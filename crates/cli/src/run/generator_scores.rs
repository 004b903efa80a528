//! Fréchet distance (FID) and inception score of a generator, with a Systole classifier as the feature network.

use crate::args::exit_status::{CommandError, CommandResult};
use crate::models::command_target::config_of;
use crate::models::run_directory;
use crate::render::screen::{Screen, counted, note, program};
use crate::run::run_data::RunData;
use serde_json::json;
use std::time::Instant;
use systole_config::RunConfig;
use systole_data::Dataset;
use systole_datasets::TrainingData;
use systole_ir::{DType, Literal, Result, err};
use systole_nn::Model;
use systole_nn::applications::biggan::{
    BigGan, FeatureNetwork, ImageFeatures, frechet_distance, inception_score,
};

/// Default number of images per set.
const PICTURES: usize = 10_000;
/// Number of images passed to the network at once.
const AT_ONCE: usize = 1000;
/// Number of splits that the inception score is averaged over.
const SPLITS: usize = 10;

/// Feature network and number of images.
pub(crate) struct ScoreOptions<'a> {
    pub(crate) features: Option<&'a str>,
    pub(crate) pictures: Option<usize>,
}

/// Scores of one set of images.
struct GeneratorScore {
    fid: f64,
    inception: (f64, f64),
    pictures: u64,
}

/// Scores the generator trained with this configuration, and real test images for comparison.
pub(crate) fn evaluate(
    (file, model): (&str, &mut Model),
    (gan, config, run_data): (&BigGan, &RunConfig, &RunData),
    asked: ScoreOptions<'_>,
    screen: &Screen,
) -> CommandResult {
    let Some(features) = asked.features else { return Err(no_network(file, config)) };
    let pictures = asked.pictures.unwrap_or(PICTURES);
    let mut config = config.clone();
    config.data.train_samples =
        Some(config.data.train_samples.map_or(pictures as u64, |n| n.min(pictures as u64)));
    let data = run_data.load_unmatched(model, &mut config, screen)?;
    let began = Instant::now();
    let path = run_directory::model_file(features)?;
    let (network, mark) = network(&path, &data)?;
    let (of_test, accuracy) = tested(&network, &config.true_pictures(&data, true), pictures)?;
    let (of_training, _) = seen(&network, &config.true_pictures(&data, false), pictures)?;
    let made = made(&network, gan, model, pictures, config.seed)?;
    let (made, test) = (score(&made, &of_training)?, score(&of_test, &of_training)?);
    screen.line(format!(
        "{file}: FID {:.2} with systole's own network, not Inception: {} generated, compared with {} of {}",
        made.fid,
        counted(made.pictures, "image"),
        counted(of_training.statistics.count(), "training image"),
        data.name
    ));
    screen.line(format!(
        "  IS {:.3} ± {:.3} with the same network, at most {}",
        made.inception.0,
        made.inception.1,
        data.class_names.len()
    ));
    screen.line(format!(
        "  real test images ({}): FID {:.2}, IS {:.3} ± {:.3}",
        test.pictures, test.fid, test.inception.0, test.inception.1
    ));
    screen.line(format!(
        "  network: {path}, accuracy {accuracy:.4} on the real test images, fingerprint {mark}; scores of other networks, or of Inception, are not comparable"
    ));
    if screen.json {
        screen.object(&json!({
            "model_file": file,
            "dataset": data.name,
            "network": "systole's own, not Inception",
            "network_file": path,
            "network_mark": mark,
            "network_accuracy": accuracy,
            "fid": made.fid,
            "is": made.inception.0,
            "is_std": made.inception.1,
            "pictures": made.pictures,
            "training_pictures": of_training.statistics.count(),
            "test_fid": test.fid,
            "test_is": test.inception.0,
            "test_pictures": test.pictures,
            "seconds": began.elapsed().as_secs_f64(),
        }));
    }
    Ok(0)
}

/// Error if no feature network is named; the hint trains one.
fn no_network(file: &str, config: &RunConfig) -> CommandError {
    let size =
        config.data.image_size.map_or(String::new(), |[h, w]| format!(" --set data.image_size=[{h},{w}]"));
    let drawn = match config.data.synthetic() {
        "never" => String::new(),
        mode => format!(" --set data.synthetic={mode}"),
    };
    let e = err!(Config, "{file} generates images, and no feature network is named");
    let e = e.because("FID and inception score use the features of a classifier of the same images").hint_command(format!(
        "train a classifier and pass it: {0} train cifar-cnn{size}{drawn} --out runs/features, then {0} evaluate {file} \
        --features runs/features",
        program()
    ));
    CommandError::usage(e.at("--features"))
}

/// Loads a feature network trained on the classes of this data, with its fingerprint.
fn network(path: &str, data: &TrainingData) -> Result<(FeatureNetwork, String)> {
    let model = Model::load(path)?;
    if model.class_names != data.class_names {
        return Err(err!(Config, "{path} was not trained on the classes of {}", data.name)
            .because(format!("the classes of the feature network are {}", model.class_names.join(", ")))
            .hint_command("train a classifier on the same data and pass it with --features"));
    }
    let stored = config_of(&model, path)?.map(|config| config.data.scale);
    if stored.is_none() {
        note(&format!("{path} has no configuration: it gets pixels from 0 to 255"));
    }
    let scale = stored.unwrap_or(1.0);
    let mark = model.digest_of_weights();
    Ok((FeatureNetwork::new(model, scale)?, mark))
}

/// Computes features of the first `most` images of a dataset; returns their labels too.
fn seen(network: &FeatureNetwork, data: &Dataset, most: usize) -> Result<(ImageFeatures, Vec<usize>)> {
    let (mut seen, mut labels) = (None, Vec::new());
    for batch in data.take(most as u64).batch(AT_ONCE).iter() {
        let batch = batch?;
        network.look(&bytes(batch.get("image")?.clone())?, &mut seen)?;
        labels.extend(batch.get("label")?.to_f64s().into_iter().map(|label| label as usize));
    }
    let seen = seen.ok_or_else(|| err!(Data, "there are no real images to compare with"))?;
    Ok((seen, labels))
}

/// Computes features of real test images, and the network's accuracy on them.
fn tested(network: &FeatureNetwork, data: &Dataset, most: usize) -> Result<(ImageFeatures, f64)> {
    let (seen, labels) = seen(network, data, most)?;
    let accuracy = checked_accuracy(&seen, &labels)?;
    Ok((seen, accuracy))
}

/// Returns the network's accuracy on real images.
///
/// # Errors
/// If it is not above that of always answering the most frequent class, by two standard deviations.
fn checked_accuracy(of: &ImageFeatures, labels: &[usize]) -> Result<f64> {
    let likeliest = |row: &[f32]| (1..row.len()).fold(0, |best, k| if row[k] > row[best] { k } else { best });
    let answers = of.probabilities.chunks_exact(of.classes.max(1)).map(likeliest);
    let right = answers.zip(labels).filter(|(answer, label)| answer == *label).count();
    let n = labels.len().max(1) as f64;
    let most = (0..of.classes).map(|class| labels.iter().filter(|label| **label == class).count()).max();
    let (accuracy, chance) = (right as f64 / n, most.unwrap_or(0) as f64 / n);
    if accuracy > chance + 2.0 * (chance * (1.0 - chance) / n).sqrt() {
        return Ok(accuracy);
    }
    Err(err!(Config, "the feature network is not trained: its accuracy on {} is {accuracy:.3}, that of guessing {chance:.3}",
        counted(labels.len() as u64, "real test image"))
        .at("--features")
        .because("FID and inception score measure nothing with the features of such a network")
        .hint_command("train it for more epochs, or pass another with --features"))
}

/// `T[…] → u8[…]`: pixels from 0 to 255.
fn bytes(x: Literal) -> Result<Literal> {
    if x.dtype() == DType::U8 {
        return Ok(x);
    }
    let all: Vec<u8> = x.to_f32s().into_iter().map(|v| v.round() as u8).collect();
    Literal::from_slice(x.shape().to_vec(), &all)
}

/// Computes features of `most` generated images, evenly distributed over the classes.
fn made(
    network: &FeatureNetwork,
    gan: &BigGan,
    model: &mut Model,
    most: usize,
    seed: u64,
) -> Result<ImageFeatures> {
    let mut seen = None;
    for (part, start) in (0..most).step_by(AT_ONCE).enumerate() {
        let n = AT_ONCE.min(most - start);
        let classes: Vec<i32> = (start..start + n).map(|i| (i % gan.n_classes) as i32).collect();
        let pictures = gan.pictures(model, &classes, seed.wrapping_add(1 + part as u64))?;
        network.look(&pictures, &mut seen)?;
    }
    seen.ok_or_else(|| err!(Data, "the generator returned no images"))
}

fn score(of: &ImageFeatures, reference: &ImageFeatures) -> Result<GeneratorScore> {
    let splits = SPLITS.min(of.statistics.count() as usize);
    Ok(GeneratorScore {
        fid: frechet_distance(&of.statistics, &reference.statistics)?,
        inception: inception_score(&of.probabilities, of.classes, splits)?,
        pictures: of.statistics.count(),
    })
}
