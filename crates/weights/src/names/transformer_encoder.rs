//! Pairs weights of Hugging Face's encoder blocks (BERT, ViT) with Systole's: `Linear` layers for query, key, value and
//! output.

use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use systole_ir::{Error, ErrorKind, Literal};

/// External names of an encoder block's parts.
pub(crate) struct EncoderBlockNames {
    /// Prefix of query, key and value.
    pub attention: &'static str,
    /// Weights outside attention, without their last component, and their external names.
    pub parts: [(&'static str, &'static str); 5],
}

/// Returns the rule of a Dense layer's weight.
pub(crate) fn dense(path: &str, dims: &[usize], theirs: String) -> WeightRule {
    let turned = [dims[1], dims[0]];
    WeightRule::of(path, dims, WeightPart::new(theirs, &turned, vec![LayoutStep::Transpose(vec![1, 0])]))
}

pub(crate) fn same(path: &str, dims: &[usize], theirs: String) -> WeightRule {
    WeightRule::of(path, dims, WeightPart::new(theirs, dims, Vec::new()))
}

impl EncoderBlockNames {
    /// Returns the rule of a block's weight: `self_attention/query/kernel`.
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

    /// Maps a projection: `[heads · width, in] → [in, heads, width]`.
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

/// Returns the shape of a required tensor.
pub(crate) fn shape_of<const N: usize>(theirs: &[(String, Literal)], name: &str) -> Option<[usize; N]> {
    let found = theirs.iter().find(|(n, _)| n == name)?;
    found.1.shape().dims().try_into().ok()
}

/// Returns an error about weights of a family that cannot be built.
pub(crate) fn odd(family: &str, why: &str) -> Error {
    Error::new(ErrorKind::Data, format!("cannot build a {family} from these weights"))
        .because(why)
        .hint_command("define the model in a TOML file and pass it with --model")
}
