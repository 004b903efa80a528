//! Maps weight names of Hugging Face's BERT, RoBERTa, DistilBERT and ELECTRA to Systole's: encoder, pooled output and
//! classifier.

use super::encoder_layers::append_pooling;
use super::family::{ModelFamily, WeightFiles};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::transformer_encoder::{EncoderBlockNames, dense, same, shape_of};
use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::applications::Bert;
use systole_nn::{Activation, Model};

const BLOCK: EncoderBlockNames = EncoderBlockNames {
    attention: "attention.self.",
    parts: [
        ("self_attention/attention_output", "attention.output.dense"),
        ("self_attention_layer_norm", "attention.output.LayerNorm"),
        ("feedforward_intermediate_dense", "intermediate.dense"),
        ("feedforward_output_dense", "output.dense"),
        ("feedforward_layer_norm", "output.LayerNorm"),
    ],
};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "BERT",
    model_types: &["bert", "roberta", "camembert", "xlm-roberta", "distilbert", "electra"],
    about: "texts: classes, features",
    prefix: |files| prefix(files.tensors),
    architecture,
    is_one,
    rules: |model, files, prefix| rules(model, BertNames::of(files.tensors, files.config, prefix)?),
    is_unused: |model, _, name| {
        is_head(name) || (name.contains("pooler.") && model.weight("pooled_dense/kernel").is_err())
    },
};

/// Families with BERT's layers whose positions start after the padding token's.
const ROBERTAS: [&str; 3] = ["roberta", "camembert", "xlm-roberta"];

/// Returns the common name prefix if the tensors are a BERT's or RoBERTa's.
pub(crate) fn prefix(theirs: &[(String, Literal)]) -> Option<&'static str> {
    let has = |name: String| theirs.iter().any(|(n, _)| *n == name);
    ["bert.", "roberta.", "electra.", ""].into_iter().find(|p| {
        let has_table = |name: &str| has(format!("{p}embeddings.{name}.weight"));
        has(format!("{p}encoder.layer.0.attention.self.query.weight"))
            && (has_table("token_type_embeddings") || has_table("word_embeddings"))
    })
}

/// Pretraining heads of the families.
const HEADS: [&str; 7] = [
    "cls.",
    "lm_head.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "discriminator_predictions.",
    "generator_",
];

/// Whether a tensor belongs to a pretraining head, which the models here lack.
fn is_head(name: &str) -> bool {
    HEADS.iter().any(|head| name.starts_with(head))
}

/// How the tensors of a file are named and used.
#[derive(Clone, Copy, Default)]
pub(crate) struct BertNames {
    prefix: &'static str,
    /// Rows of the position table before that of the first token.
    first_position: usize,
    /// Whether the classifier has the dense layer that is a BERT's pooler.
    has_dense_head: bool,
}

impl BertNames {
    /// Names of BERT, for export.
    pub fn of_bert() -> BertNames {
        BertNames { prefix: "bert.", ..BertNames::default() }
    }

    /// Returns the names of a file.
    ///
    /// # Errors
    /// If the file does not tell where positions start.
    pub fn of(
        theirs: &[(String, Literal)],
        config: Option<&Value>,
        prefix: &'static str,
    ) -> Result<BertNames> {
        BertNames::read(theirs, &family(config)?, prefix)
    }

    fn read(
        theirs: &[(String, Literal)],
        config: &FamilyConfig<'_>,
        prefix: &'static str,
    ) -> Result<BertNames> {
        let segments = shape_of::<2>(theirs, &format!("{prefix}embeddings.token_type_embeddings.weight"));
        let is_roberta = match config.text("model_type")? {
            Some(kind) => ROBERTAS.contains(&kind),
            None if prefix.is_empty() && segments.is_some_and(|[n, _]| n == 1) => {
                return Err(config.wrong(
                    "it has one kind of segment, as BERT may and RoBERTa always has, whose positions start at 2: only \
                     config.json tells which it is (model_type)",
                ));
            }
            None => prefix == "roberta.",
        };
        let padding = config.count("pad_token_id")?;
        let first_position = match (is_roberta, padding) {
            (false, _) => 0,
            (true, Some(padding)) => padding + 1,
            (true, None) => {
                if !config.exists() {
                    config.guess("positions that start at 2");
                }
                2
            }
        };
        let has_dense_head = theirs.iter().any(|(n, _)| n == "classifier.dense.weight");
        Ok(BertNames { prefix, first_position, has_dense_head })
    }

    /// Returns the number of positions that tokens can have, of as many rows in the table.
    fn sequence_length(self, config: &FamilyConfig<'_>, rows: usize) -> Result<usize> {
        let first = self.first_position;
        rows.checked_sub(first)
            .filter(|n| *n > 0)
            .ok_or_else(|| config.wrong(format!("positions start at {first}, but there are {rows}")))
    }

    fn pooler(self) -> String {
        if self.has_dense_head { "classifier.dense".into() } else { format!("{}pooler.dense", self.prefix) }
    }

    fn classifier(self) -> &'static str {
        if self.has_dense_head { "classifier.out_proj" } else { "classifier" }
    }
}

fn family(config: Option<&Value>) -> Result<FamilyConfig<'_>> {
    FamilyConfig::new(FAMILY.name, FAMILY.model_types, config)
}

/// Returns the current name of a tensor; early files used TensorFlow's names for normalizations.
pub(crate) fn today(name: &str) -> String {
    match name.rsplit_once(".LayerNorm.") {
        Some((start, "gamma")) => format!("{start}.LayerNorm.weight"),
        Some((start, "beta")) => format!("{start}.LayerNorm.bias"),
        _ => name.to_string(),
    }
}

/// Dropout rates besides `hidden_dropout_prob`.
const OTHER_RATES: [&str; 2] = ["attention_probs_dropout_prob", "classifier_dropout"];

/// Derives the layers from the tensors, and from config.json for heads and activations.
///
/// # Errors
/// If a table is missing, or config.json has an unsupported setting.
fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let (theirs, config) = (files.tensors, family(files.config)?);
    let names = BertNames::read(theirs, &config, prefix)?;
    let table = |name: &str| {
        let name = format!("{name}.weight");
        shape_of::<2>(theirs, &name).ok_or_else(|| config.wrong(format!("table {name} is missing")))
    };
    let own = |name: &str| table(&format!("{prefix}{name}"));
    let [vocabulary_size, hidden_dim] = own("embeddings.word_embeddings")?;
    let [positions, _] = own("embeddings.position_embeddings")?;
    // DistilBERT has no segments.
    let num_segments = own("embeddings.token_type_embeddings").map_or(0, |[n, _]| n);
    own("embeddings_project").map_or(Ok(()), |_| {
        Err(config.wrong("its embeddings are narrower than its layers (`embeddings_project`): not supported"))
    })?;
    let [intermediate_dim, _] = own("encoder.layer.0.intermediate.dense")?;
    let num_layers =
        (0..1000).take_while(|i| own(&format!("encoder.layer.{i}.intermediate.dense")).is_ok()).count();
    config.same_all(&[
        ("vocab_size", vocabulary_size),
        ("hidden_size", hidden_dim),
        ("max_position_embeddings", positions),
        ("type_vocab_size", num_segments),
        ("intermediate_size", intermediate_dim),
        ("num_hidden_layers", num_layers),
        ("embedding_size", hidden_dim),
    ])?;
    let max_sequence_length = names.sequence_length(&config, positions)?;
    let is_pooled = table(&names.pooler()).is_ok();
    let classes = table(names.classifier()).ok().filter(|_| is_pooled).map_or(0, |[n, _]| n);
    let pooling = files.pooling.filter(|_| classes == 0);
    let is_pooled = is_pooled && pooling.is_none();
    let pooled_activation = pooled_activation(&config, prefix, is_pooled && names.has_dense_head)?;
    let usual_epsilon = if names.first_position > 0 { 1e-5 } else { 1e-12 };
    let bert = Bert {
        vocabulary_size,
        num_layers,
        num_heads: config.heads("num_attention_heads", hidden_dim)?,
        hidden_dim,
        intermediate_dim,
        max_sequence_length,
        num_segments,
        activation: activation(&config)?,
        layer_norm_epsilon: config.number_or("layer_norm_eps", 1e-12, usual_epsilon)?,
        dropout: config.dropout("hidden_dropout_prob", 0.1, &OTHER_RATES)?,
        pooled_activation,
        output: if is_pooled { "pooled" } else { "sequence" }.into(),
        classes,
        classifier_activation: config.head(classes)?,
        mask_zero: files.padding == Some(0),
        padding_token: files.padding.filter(|token| *token > 0),
        ..Bert::default()
    };
    let inputs = vec![TensorType::new(DType::I32, [max_sequence_length]); 1 + usize::from(num_segments > 0)];
    let mut architecture = bert.architecture()?;
    if let Some(pooling) = pooling {
        append_pooling(&mut architecture, pooling);
    }
    Ok(DerivedModel { architecture, inputs, config: config.finish()? })
}

/// Returns the activation of the dense layer before a classifier, which the families choose.
fn pooled_activation(config: &FamilyConfig<'_>, prefix: &str, has_dense_head: bool) -> Result<Activation> {
    Ok(match (config.text("model_type")?, prefix) {
        _ if !has_dense_head => Activation::Tanh,
        // Without config.json: of BERT's own prefix, only DistilBERT's classifier has a dense layer.
        (Some("distilbert"), _) | (None, "bert.") => Activation::Relu,
        (Some("electra"), _) | (None, "electra.") => Activation::Gelu { approximate: false },
        _ => Activation::Tanh,
    })
}

fn activation(config: &FamilyConfig<'_>) -> Result<Activation> {
    if let Some(kind) = config.text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        return Err(config.wrong(format!("its position_embedding_type is {kind}, expected absolute")));
    }
    for key in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
        config.only(key, false)?;
    }
    config.is("tie_word_embeddings", true)?;
    config.nothing_pruned()?;
    match config.text_or("hidden_act", "gelu")? {
        "gelu" => Ok(Activation::Gelu { approximate: false }),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::Gelu { approximate: true }),
        "relu" => Ok(Activation::Relu),
        other => {
            Err(config.wrong(format!("its hidden_act is {other}; supported are gelu, gelu_new and relu")))
        }
    }
}

/// Whether a model is a BERT.
pub(crate) fn is_one(model: &Model) -> bool {
    let has = |name: &str| model.architecture().nodes.iter().any(|n| n.name == name);
    has("token_embedding") && has("embeddings_layer_norm") && has("transformer_layer_0")
}

/// Returns the rules for all layers of a BERT.
///
/// # Errors
/// If the model has a weight that BERT lacks.
pub(crate) fn rules(model: &Model, names: BertNames) -> Result<Vec<WeightRule>> {
    let rule = |path: &str, dims: &[usize]| {
        rule(path, dims, names).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("weight {path} has no name in Hugging Face's BERT"))
        })
    };
    model.weights().into_iter().map(|(path, value)| rule(path, value.ty().shape.dims())).collect()
}

fn rule(path: &str, dims: &[usize], names: BertNames) -> Option<WeightRule> {
    let prefix = names.prefix;
    let table = |name: &str| Some(same(path, dims, format!("{prefix}embeddings.{name}.weight")));
    match (path, dims) {
        ("token_embedding/embeddings", _) => return table("word_embeddings"),
        ("position_embedding/embeddings", [rows, width]) if names.first_position > 0 => {
            let (first, name) =
                (names.first_position, format!("{prefix}embeddings.position_embeddings.weight"));
            let part = WeightPart::new(name, &[first + rows, *width], vec![LayoutStep::Rows(first, *rows)]);
            return Some(WeightRule::of(path, dims, part));
        }
        ("position_embedding/embeddings", _) => return table("position_embeddings"),
        ("segment_embedding/embeddings", _) => return table("token_type_embeddings"),
        ("embeddings_layer_norm/gamma", _) => return table("LayerNorm"),
        ("embeddings_layer_norm/beta", _) => {
            return Some(same(path, dims, format!("{prefix}embeddings.LayerNorm.bias")));
        }
        ("pooled_dense/kernel", [_, _]) => {
            return Some(dense(path, dims, format!("{}.weight", names.pooler())));
        }
        ("pooled_dense/bias", _) => return Some(same(path, dims, format!("{}.bias", names.pooler()))),
        ("predictions/kernel", [_, _]) => {
            return Some(dense(path, dims, format!("{}.weight", names.classifier())));
        }
        ("predictions/bias", _) => return Some(same(path, dims, format!("{}.bias", names.classifier()))),
        _ => {}
    }
    let (i, weight) = path.strip_prefix("transformer_layer_")?.split_once('/')?;
    BLOCK.rule(path, weight, dims, &format!("{prefix}encoder.layer.{i}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_first_years_are_those_of_today() {
        assert_eq!(today("bert.embeddings.LayerNorm.gamma"), "bert.embeddings.LayerNorm.weight");
        assert_eq!(today("encoder.layer.1.output.LayerNorm.beta"), "encoder.layer.1.output.LayerNorm.bias");
        assert_eq!(today("pooler.dense.weight"), "pooler.dense.weight");
        let rule =
            rule("transformer_layer_3/self_attention/query/bias", &[2, 4], BertNames::of_bert()).unwrap();
        assert_eq!(rule.parts[0].theirs, "bert.encoder.layer.3.attention.self.query.bias");
        assert_eq!(rule.parts[0].steps, [LayoutStep::Reshape(vec![2, 4])]);
    }
}
