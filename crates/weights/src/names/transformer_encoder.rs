//! Blocks of Hugging Face's encoders, BERT and ViT: `Linear` layers of query, key, value and output.

use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use systole_ir::{Error, ErrorKind, Literal};

/// What the parts of a block are called.
pub(crate) struct EncoderBlockNames {
    /// What stands before query, key and value.
    pub attention: &'static str,
    /// Weights of ours outside of the attention, without their last part, and what they are called.
    pub parts: [(&'static str, &'static str); 5],
}

/// `weight ← at(theirs)`, of a Dense layer of ours.
pub(crate) fn dense(path: &str, dims: &[usize], theirs: String) -> WeightRule {
    let turned = [dims[1], dims[0]];
    WeightRule::of(path, dims, WeightPart::new(theirs, &turned, vec![LayoutStep::Transpose(vec![1, 0])]))
}

pub(crate) fn same(path: &str, dims: &[usize], theirs: String) -> WeightRule {
    WeightRule::of(path, dims, WeightPart::new(theirs, dims, Vec::new()))
}

impl EncoderBlockNames {
    /// The rule of a weight of a block: `self_attention/query/kernel`.
    pub(crate) fn rule(&self, path: &str, weight: &str, dims: &[usize], at: &str) -> Option<WeightRule> {
        let (part, kind) = weight.rsplit_once('/')?;
        let head = part.strip_prefix("self_attention/").filter(|name| *name != "attention_output");
        if let Some(name) = head {
            let theirs = format!("{at}{}{name}", self.attention);
            return self.projection(path, kind, dims, &theirs);
        }
        let (_, theirs) = self.parts.iter().find(|(ours, _)| *ours == part)?;
        let theirs = format!("{at}{theirs}");
        Some(match (kind, dims) {
            ("kernel", [heads, width, out]) => {
                let steps = vec![LayoutStep::Transpose(vec![1, 0]), LayoutStep::Reshape(dims.to_vec())];
                let shape = [*out, heads * width];
                WeightRule::of(path, dims, WeightPart::new(format!("{theirs}.weight"), &shape, steps))
            }
            ("kernel", [_, _]) => dense(path, dims, format!("{theirs}.weight")),
            ("gamma", _) => same(path, dims, format!("{theirs}.weight")),
            ("bias" | "beta", _) => same(path, dims, format!("{theirs}.bias")),
            _ => return None,
        })
    }

    /// `[heads · width, in] → [in, heads, width]`.
    fn projection(&self, path: &str, kind: &str, dims: &[usize], theirs: &str) -> Option<WeightRule> {
        let reshaped = LayoutStep::Reshape(dims.to_vec());
        let part = match (kind, dims) {
            ("kernel", [input, heads, width]) => {
                let steps = vec![LayoutStep::Transpose(vec![1, 0]), reshaped];
                WeightPart::new(format!("{theirs}.weight"), &[heads * width, *input], steps)
            }
            ("bias", [heads, width]) => {
                WeightPart::new(format!("{theirs}.bias"), &[heads * width], vec![reshaped])
            }
            _ => return None,
        };
        Some(WeightRule::of(path, dims, part))
    }
}

/// The shape of a tensor that must be there.
pub(crate) fn shape_of<const N: usize>(theirs: &[(String, Literal)], name: &str) -> Option<[usize; N]> {
    let found = theirs.iter().find(|(n, _)| n == name)?;
    found.1.shape().dims().try_into().ok()
}

/// Says why the weights of a family cannot be built here.
pub(crate) fn odd(family: &str, why: &str) -> Error {
    Error::new(ErrorKind::Data, format!("the weights are not those of a {family} that can be built here"))
        .because(why)
        .hint("build the model here (a TOML file with its layers) and give the weights to it with --model")
}
