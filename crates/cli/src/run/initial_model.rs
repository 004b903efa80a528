//! Creates the model that a run starts with: new, resumed, or initialized with the weights of a saved model
//! (fine-tuning, LoRA).

use crate::models::imported;
use crate::models::model_data::{check_samples, check_tokens, with_its_classes};
use crate::render::screen::{Screen, counted};
use std::collections::BTreeSet;
use systole_config::{FineTuneSection, RunConfig, application_of, same_layers, size_conflicts};
use systole_datasets::TrainingData;
use systole_ir::{Error, Result, ResultExt, err};
use systole_nn::callback::Callback;
use systole_nn::schedule::Schedule;
use systole_nn::{Compile, FrozenBatchNorm, Model, TransferredWeights};

/// A model that is ready for training.
pub(crate) struct InitialModel {
    pub(crate) model: Model,
    /// The data with classes numbered as in the model.
    pub(crate) data: TrainingData,
    /// Callback that switches between the fine-tuning phases.
    pub(crate) phases: Option<Box<dyn Callback>>,
}

/// Creates the model to train, new or loaded from `from`, and matches the data to it.
pub(crate) fn prepared(
    earlier: Option<Model>,
    from: Option<&str>,
    config: &RunConfig,
    data: TrainingData,
    screen: &Screen,
) -> Result<InitialModel> {
    let earlier = earlier.map(|earlier| plain(earlier, config)).transpose()?;
    if config.lora.is_some() && from.is_none() && config.fine_tune.as_ref().is_none_or(|s| s.from.is_none()) {
        return Err(err!(Config, "LoRA needs a saved model")
            .because("LoRA trains adapters on the frozen weights of a saved model")
            .hint_command("name the saved model with --from MODEL"));
    }
    let prepared = match (earlier, from, &config.fine_tune) {
        (earlier, from, Some(section)) => {
            let from = from.or(section.from.as_deref()).ok_or_else(nothing_to_fine_tune)?;
            let earlier = earlier.map_or_else(|| imported::load(from), Ok)?;
            check_sizes(&earlier, from, config)?;
            adapted(&earlier, from, section, config, data, screen)?
        }
        (Some(earlier), Some(path), None) => {
            check_sizes(&earlier, path, config)?;
            check_layers(&earlier, path, config)?;
            let others =
                format!("train a new model without --from {path}; add --fine-tune to learn other classes");
            let data = with_its_classes(&earlier, data, path, &others)?;
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

/// Error for fine-tuning without a saved model.
pub(crate) fn nothing_to_fine_tune() -> Error {
    err!(Config, "fine-tuning needs a saved model")
        .hint_command("name the saved model with --from MODEL, or with `from` in [fine_tune]")
}

/// Merges LoRA adapters of a backup into its weights, because resuming adds them again. Also removes int8 training
/// state unless the configuration trains for int8.
fn plain(mut earlier: Model, config: &RunConfig) -> Result<Model> {
    if earlier.has_adapters() {
        earlier.merge_lora()?;
    }
    if config.quantize.is_none() {
        earlier.strip_quantization()?;
    }
    Ok(earlier)
}

/// Adds LoRA adapters if configured; the `new` layers are trained in full.
fn give_adapters(model: &mut Model, config: &RunConfig, new: &[String], screen: &Screen) -> Result<()> {
    let Some(section) = &config.lora else { return Ok(()) };
    let options = section.options(new);
    let (rank, alpha) = (options.rank, options.alpha.unwrap_or(options.rank as f64));
    let whole = match options.train.as_slice() {
        [] => "no other layers train".to_string(),
        names => format!("{} train in full", some(names)),
    };
    let kernels = model.enable_lora(options)?;
    screen.line(format!("LoRA: rank {rank}, alpha {alpha}, on {}; {whole}", some(&kernels)));
    let packed = model.packed_weights();
    if !packed.is_empty() {
        screen.line(format!(
            "Quantized weights in memory, with a scale per channel or block: {}",
            some(&packed)
        ));
    }
    Ok(())
}

/// Returns the layers that train in full next to adapters: those from `head` on, or those with new weights.
fn whole_layers(model: &Model, head: Option<&str>, weights: &TransferredWeights) -> Vec<String> {
    let names = model.architecture().nodes.iter().map(|node| node.name.clone());
    if let Some(head) = head {
        return names.skip_while(|name| name != head).collect();
    }
    let is_new = |name: &String| weights.new.iter().any(|path| path.split('/').next() == Some(name.as_str()));
    names.filter(is_new).collect()
}

/// Builds a new model with the weights of a saved one, and a new head if the classes differ.
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
    // Equal names are equal classes.
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
        "Fine-tuning: {} of only the head, then {} of all layers{}",
        counted(section.freeze_epochs as u64, "epoch"),
        counted(config.fit.epochs as u64, "epoch"),
        batch_norm(section)
    ));
    Ok(InitialModel { model, data, phases: Some(phases) })
}

fn batch_norm(section: &FineTuneSection) -> &'static str {
    match section.frozen_batch_norm {
        FrozenBatchNorm::Train => "",
        FrozenBatchNorm::Inference => "; frozen batch normalization layers use their moving statistics",
    }
}

/// Prints which weights come from the saved model and which are new.
fn announce_weights(weights: &TransferredWeights, path: &str, screen: &Screen) {
    let new = match weights.new.is_empty() {
        true => "no new weights".to_string(),
        false => format!("new: {}", some(&weights.new)),
    };
    screen.line(format!("Weights: {} from {path}; {new}", weights.taken.len()));
    if !weights.left.is_empty() {
        screen.detail(format!("  not used from the saved model: {}", some(&weights.left)));
    }
}

/// Joins names; of many names the first ones and the last.
fn some(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        [first, second, .., last] if names.len() > 8 => {
            format!("{first}, {second}, … {last} ({})", names.len())
        }
        all => all.join(", "),
    }
}

/// Rejects sizes of the configuration that differ from the saved model's; names both.
fn check_sizes(model: &Model, path: &str, config: &RunConfig) -> Result<()> {
    let conflicts = size_conflicts(config, model.architecture());
    if conflicts.is_empty() {
        return Ok(());
    }
    let (keys, why): (Vec<String>, Vec<String>) = conflicts.into_iter().unzip();
    Err(err!(Config, "the sizes of the configuration differ from those of {path}")
        .because(why.join("; "))
        .hint_command(format!("remove {}: the sizes come from the saved model", keys.join(", "))))
}

/// Rejects a configuration whose layers differ from the saved model's.
fn check_layers(model: &Model, path: &str, config: &RunConfig) -> Result<()> {
    if !same_layers(config.layers_only()?.architecture(), model.architecture()) {
        return Err(err!(Config, "the layers of the configuration differ from those of {path}")
        .hint_command(match (model.notes.contains_key("config"), application_of(model.architecture())) {
            (true, _) => format!(
                "remove the preset or TOML file: systole train --from {path}; or add --fine-tune to use the saved model's \
                weights in other layers"
            ),
            // Such a model does not name its data either.
            (false, Some(_)) => "name your data instead of the preset or TOML file; or add --fine-tune to use the \
                saved model's weights in other layers"
                .into(),
            // Only a folder of images is trained with the saved model's layers.
            (false, None) => format!(
                "train its layers on a folder of images: systole train FOLDER --from {path} --fine-tune; or add --fine-tune to \
                use its weights in the layers of the configuration"
            ),
        }));
    }
    Ok(())
}

/// Prepares a saved model for further training by `config`.
fn continued(
    mut model: Model,
    path: &str,
    config: &RunConfig,
    data: &TrainingData,
    screen: &Screen,
) -> Result<Model> {
    if data.language.is_some() && size_conflicts(config, model.architecture()).is_empty() {
        // A text may be cut into shorter sequences than those of the saved model.
        let built = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.elements());
        let length = config.sample_of(data).elements();
        if built.is_some_and(|built| length < built) {
            model.set_sequence_length(length);
        }
    }
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
        had => {
            let why = reset_reason(had, &wanted);
            screen.line(format!("The optimizer state is reset: {why}"));
            model.compile(wanted.clone())?;
        }
    }
    if model.compile_config().is_some_and(|had| had.strategy != wanted.strategy) {
        model.set_strategy(wanted.strategy, wanted.backend)?;
    }
    Ok(model)
}

/// Returns why the optimizer state of `had` is not used under `wanted`.
fn reset_reason(had: Option<&Compile>, wanted: &Compile) -> String {
    let Some(had) = had else { return "the saved model has no loss and no optimizer".into() };
    let (mut optimizer, theirs) = (had.optimizer.clone(), &wanted.optimizer);
    optimizer.learning_rate = theirs.learning_rate.clone();
    optimizer.momentum_schedule = theirs.momentum_schedule.clone();
    optimizer.lr_mult = theirs.lr_mult.clone();
    let of_phases = "the learning rates of the fine-tuning, by layer and epoch, do not continue";
    let differ: Vec<&str> = [
        ("loss", had.loss != wanted.loss),
        ("metrics", had.metrics != wanted.metrics),
        ("precision", had.precision != wanted.precision),
        ("pruning", had.pruning != wanted.pruning),
        ("quantization", had.quantize != wanted.quantize),
        ("optimizer", optimizer != *theirs),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect();
    let is_after_fine_tuning = matches!(had.optimizer.learning_rate, Schedule::OneCycle { .. });
    match differ.as_slice() {
        [] if is_after_fine_tuning && !had.optimizer.lr_mult.is_empty() => of_phases.into(),
        [] => "the learning-rate schedule differs from the saved model's".into(),
        all => format!("the saved model has other settings: {}", all.join(", ")),
    }
}

/// Whether the optimizer state of `had` is valid under `wanted`.
fn same_but_rate(had: &Compile, wanted: &Compile) -> bool {
    let mut optimizer = had.optimizer.clone();
    let rate = &wanted.optimizer.learning_rate;
    // Neither schedule depends on earlier steps.
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
