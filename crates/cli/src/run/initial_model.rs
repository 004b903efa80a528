//! The model that a run begins with: new, a saved one that goes on, or one with the weights of a saved one.

use crate::models::model_data::{check_samples, check_tokens, with_its_classes};
use crate::render::screen::{Screen, counted};
use std::collections::BTreeSet;
use systole_config::{FineTuneSection, RunConfig};
use systole_datasets::TrainingData;
use systole_ir::{Error, ErrorKind, Result, ResultExt};
use systole_nn::callback::Callback;
use systole_nn::schedule::Schedule;
use systole_nn::{Compile, FrozenBatchNorm, LayerNode, Model, TransferredWeights};

/// A model that is ready to be trained.
pub(crate) struct InitialModel {
    pub(crate) model: Model,
    /// The data as it knows them.
    pub(crate) data: TrainingData,
    /// What changes the phases of fine-tuning.
    pub(crate) phases: Option<Box<dyn Callback>>,
}

/// The model that is trained, new or `from` a file, and the data as it knows them.
pub(crate) fn prepared(
    earlier: Option<Model>,
    from: Option<&str>,
    config: &RunConfig,
    data: TrainingData,
    screen: &Screen,
) -> Result<InitialModel> {
    let earlier = earlier.map(|earlier| plain(earlier, config)).transpose()?;
    if config.lora.is_some() && from.is_none() && config.fine_tune.as_ref().is_none_or(|s| s.from.is_none()) {
        return Err(Error::new(ErrorKind::Config, "there is no model to give adapters to")
            .because("LoRA trains next to the weights of a saved one, which stay")
            .hint("name it: --from MODEL"));
    }
    let prepared = match (earlier, from, &config.fine_tune) {
        (earlier, from, Some(section)) => {
            let from = from.or(section.from.as_deref()).ok_or_else(|| {
                Error::new(ErrorKind::Config, "there is no model to fine-tune")
                    .hint("name a saved one: --from MODEL")
            })?;
            let earlier = earlier.map_or_else(|| Model::load(from), Ok)?;
            adapted(&earlier, from, section, config, data, screen)?
        }
        (Some(earlier), Some(path), None) => {
            check_layers(&earlier, path, config)?;
            let others = "; to learn other classes with its weights add --fine-tune";
            let data = with_its_classes(&earlier, data, path, others)?;
            let mut model = continued(earlier, path, config, &data, screen)?;
            give_adapters(&mut model, config, &[], screen)?;
            InitialModel { model, data, phases: None }
        }
        _ => {
            let model = config.model(&config.sample_of(&data), &data.class_names)?;
            InitialModel { model, data, phases: None }
        }
    };
    check_tokens(&prepared.model, &prepared.data)?;
    Ok(prepared)
}

/// A backup's model with adapters as a plain one: what goes on gives it its adapters again. One that was trained for eight bits is a
/// plain one, too, where it is not from now on.
fn plain(mut earlier: Model, config: &RunConfig) -> Result<Model> {
    if earlier.has_adapters() {
        earlier.merge_lora()?;
    }
    if config.quantize.is_none() {
        earlier.strip_quantization()?;
    }
    Ok(earlier)
}

/// Adapters, where they are asked for; layers that are new train whole.
fn give_adapters(model: &mut Model, config: &RunConfig, new: &[String], screen: &Screen) -> Result<()> {
    let Some(section) = &config.lora else { return Ok(()) };
    let options = section.options(new);
    let (rank, alpha) = (options.rank, options.alpha.unwrap_or(options.rank as f64));
    let whole = match options.train.as_slice() {
        [] => "nothing else trains".to_string(),
        names => format!("{} trains whole", some(names)),
    };
    let kernels = model.enable_lora(options)?;
    screen.line(format!("LoRA: rank {rank}, alpha {alpha}, beside {}; {whole}", some(&kernels)));
    let packed = model.packed_weights();
    if !packed.is_empty() {
        screen.line(format!(
            "Whole numbers in memory, with a scale for each channel or block: {}",
            some(&packed)
        ));
    }
    Ok(())
}

/// Layers that train whole beside adapters: those from the named one on, or those of new weights.
fn whole_layers(model: &Model, head: Option<&str>, weights: &TransferredWeights) -> Vec<String> {
    let names = model.architecture().nodes.iter().map(|node| node.name.clone());
    if let Some(head) = head {
        return names.skip_while(|name| name != head).collect();
    }
    let is_new = |name: &String| weights.new.iter().any(|path| path.split('/').next() == Some(name.as_str()));
    names.filter(is_new).collect()
}

/// A new model with the weights of a saved one, and a new head where that tells other classes apart.
fn adapted(
    earlier: &Model,
    path: &str,
    section: &FineTuneSection,
    config: &RunConfig,
    data: TrainingData,
    screen: &Screen,
) -> Result<InitialModel> {
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<String>>();
    let knows = set(&earlier.class_names) == set(&data.class_names);
    // The same name is the same class.
    let data =
        if knows && !data.class_names.is_empty() { data.with_classes(&earlier.class_names)? } else { data };
    let mut model = config.model(&config.sample_of(&data), &data.class_names)?;
    let head = section.freeze_until.as_deref();
    let weights = model.take_weights(earlier, head, !knows).at(|| path.to_string())?;
    announce_weights(&weights, path, screen);
    let whole = whole_layers(&model, head, &weights);
    give_adapters(&mut model, config, &whole, screen)?;
    if config.lora.is_some() && !section.unfreeze {
        return Ok(InitialModel { model, data, phases: None });
    }
    if !section.unfreeze {
        let frozen = model.freeze_until(head, section.frozen_batch_norm)?;
        screen.line(format!("Frozen: {}{}", some(&frozen), batch_norm(section)));
        return Ok(InitialModel { model, data, phases: None });
    }
    let phases = model.begin_fine_tuning(section.phases(config.fit.epochs), 0)?;
    screen.line(format!(
        "Fine-tuning: {} of the head alone, then {} of all layers{}",
        counted(section.freeze_epochs as u64, "epoch"),
        counted(config.fit.epochs as u64, "epoch"),
        batch_norm(section)
    ));
    Ok(InitialModel { model, data, phases: Some(phases) })
}

fn batch_norm(section: &FineTuneSection) -> &'static str {
    match section.frozen_batch_norm {
        FrozenBatchNorm::Train => "",
        FrozenBatchNorm::Inference => "; frozen batch normalisations use their moving statistics",
    }
}

/// Says which weights are the saved model's, and which are new.
fn announce_weights(weights: &TransferredWeights, path: &str, screen: &Screen) {
    let new = match weights.new.is_empty() {
        true => "none is new".to_string(),
        false => format!("new: {}", some(&weights.new)),
    };
    screen.line(format!("Weights: {} from {path}; {new}", weights.taken.len()));
    if !weights.left.is_empty() {
        screen.detail(format!("  not taken: {}", some(&weights.left)));
    }
}

/// Names, of many the first and the last ones.
fn some(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        [first, second, .., last] if names.len() > 8 => {
            format!("{first}, {second}, … {last} ({})", names.len())
        }
        all => all.join(", "),
    }
}

/// Refuses a configuration of other layers than the saved model's.
fn check_layers(model: &Model, path: &str, config: &RunConfig) -> Result<()> {
    let layers = |m: &Model| {
        // Some of them may be frozen.
        let free = |p: &LayerNode| {
            (p.name.clone(), p.layer.clone().trainable(true).without_quantization().to_json())
        };
        m.architecture().nodes.iter().map(free).collect::<Vec<_>>()
    };
    if layers(&config.layers_only()?) != layers(model) {
        return Err(Error::new(
            ErrorKind::Config,
            format!("the layers of the configuration are not those of {path}"),
        )
        .hint(format!(
            "leave the preset or TOML file out: train --from {path}; to learn something else with its weights add --fine-tune"
        )));
    }
    Ok(())
}

/// A saved model, ready to be trained further by `config`.
fn continued(
    mut model: Model,
    path: &str,
    config: &RunConfig,
    data: &TrainingData,
    screen: &Screen,
) -> Result<Model> {
    check_samples(&model, config, data, path)?;
    if model.class_names.is_empty() {
        model.class_names = data.class_names.clone();
    }
    let output = model.output_type().map(|t| t.shape.to_vec()).unwrap_or_default();
    let wanted = config.compile_config(&output)?;
    match model.compile_config() {
        Some(had) if same_but_rate(had, &wanted) => {
            let rate = &wanted.optimizer.learning_rate;
            if had.optimizer.learning_rate != *rate {
                model.set_learning_rate(rate.clone());
            }
        }
        _ => {
            screen.line("The optimizer starts afresh: loss, metrics, precision or optimizer are not those of the saved model");
            model.compile(wanted.clone())?;
        }
    }
    if model.compile_config().is_some_and(|had| had.strategy != wanted.strategy) {
        model.set_strategy(wanted.strategy, wanted.backend)?;
    }
    Ok(model)
}

/// Whether optimizer state of `had` can go on under `wanted`.
fn same_but_rate(had: &Compile, wanted: &Compile) -> bool {
    let mut optimizer = had.optimizer.clone();
    let rate = &wanted.optimizer.learning_rate;
    // Neither depends on the steps before.
    if matches!(rate, Schedule::Constant(_)) || rate.is_of_the_run() {
        optimizer.learning_rate = wanted.optimizer.learning_rate.clone();
    }
    optimizer == wanted.optimizer
        && had.loss == wanted.loss
        && had.metrics == wanted.metrics
        && had.precision == wanted.precision
        && had.pruning == wanted.pruning
        && had.quantize == wanted.quantize
}
