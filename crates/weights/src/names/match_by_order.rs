//! Matches tensors to layers by file order if the names do not identify the layers; checks type and shape of each.

use super::layer::ModelLayers;
use crate::weight_mapping::{OTHER_MODEL, WeightRule, is_weight};
use std::collections::HashSet;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::Model;

/// Hint for a file whose order of tensors is not that of the layers.
pub(crate) const SORTED: &str = "the safetensors library sorts tensors by name: save the state_dict as .pt (torch.save), \
    or give the model's layers the file's names";

/// Whether the tensors are in the order in which the safetensors library writes them: larger element types first, then
/// alphabetical.
pub(crate) fn is_sorted(theirs: &[(String, Literal)]) -> bool {
    let keys = theirs.iter().map(|(name, x)| (std::cmp::Reverse(x.dtype().size()), name));
    theirs.len() > 1 && keys.is_sorted()
}

/// Returns the rules for a model from the order of a state_dict. safetensors files are sorted by name: their modules are
/// taken in the order of the numbers in their names.
///
/// # Errors
/// If a layer has no counterpart, or the next tensor does not match it.
pub(crate) fn rules(model: &Model, theirs: &[(String, Literal)]) -> Result<Vec<WeightRule>> {
    let mut left: Vec<&str> =
        theirs.iter().filter(|(n, v)| is_weight(n, v)).map(|(n, _)| n.as_str()).collect();
    if left.is_sorted() {
        left.sort_by(|a, b| by_numbers(module(a)).cmp(&by_numbers(module(b))));
    }
    let mut all = Vec::new();
    for layer in ModelLayers::of(model).weighted() {
        let template = layer.rules("")?;
        let first = template.first().and_then(|r| r.parts.first()).map_or("", |p| &p.theirs);
        let Some(next) = left.first().copied() else {
            let what = format!("the file has no tensor for layer `{}` ({})", layer.name, layer.class);
            return Err(Error::new(ErrorKind::Data, what)
                .because("all tensors of the file belong to earlier layers")
                .hint_command(OTHER_MODEL));
        };
        let mut of_module = left.iter().copied().filter(|name| module(name) == module(next));
        let (prefix, level) = of_module.find_map(|name| split(name, first)).ok_or_else(|| {
            let what = format!("tensor {next} does not match layer {} ({})", layer.name, layer.class);
            Error::new(ErrorKind::Data, what)
                .because(format!(
                    "tensors are matched in file order (sorted names: by their numbers); the next module has no {first}"
                ))
                .hint(match is_sorted(theirs) {
                    true => SORTED,
                    false => "define the model's layers in the order of the file's modules",
                })
        })?;
        let mut rules = layer.rules(prefix)?;
        // PyTorch stores a stack of recurrent layers as one module: l0, l1, …
        for part in rules.iter_mut().flat_map(|r| &mut r.parts) {
            if let Some(base) = part.theirs.strip_suffix("_l0") {
                part.theirs = format!("{base}_l{level}");
            }
        }
        left.retain(|name| !rules.iter().any(|r| r.parts.iter().any(|p| p.theirs == *name)));
        all.extend(rules);
    }
    Ok(all)
}

/// Name of the module that a tensor belongs to: `layers.0` of `layers.0.weight`.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// Sort key by which `layers.10` comes after `layers.9`.
fn by_numbers(name: &str) -> Vec<(&str, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[start..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| start + n);
        key.push((&rest[..start], rest[start..digits].parse().unwrap_or(u64::MAX)));
        rest = &rest[digits..];
    }
    key.push((rest, 0));
    key
}

/// Splits a name into the prefix before the weight's own name and the level of a recurrent layer.
fn split<'a>(name: &'a str, own: &str) -> Option<(&'a str, &'a str)> {
    if let Some(base) = own.strip_suffix("_l0") {
        let (start, level) = name.rsplit_once("_l")?;
        return level.bytes().all(|b| b.is_ascii_digit()).then_some((start.strip_suffix(base)?, level));
    }
    let prefix = name.strip_suffix(own)?;
    (prefix.is_empty() || prefix.ends_with('.')).then_some((prefix, ""))
}

/// Returns the rules for a model whose layers have the names of the file's modules; `None` if a tensor is missing.
pub(crate) fn by_name(model: &Model, theirs: &[(String, Literal)]) -> Option<Vec<WeightRule>> {
    let rules = by_layer(model).ok()?;
    let names: HashSet<&str> = theirs.iter().map(|(name, _)| name.as_str()).collect();
    let mut parts = rules.iter().flat_map(|rule| &rule.parts);
    let are_there = parts.all(|part| part.optional || names.contains(part.theirs.as_str()));
    (are_there && !rules.is_empty()).then_some(rules)
}

/// Returns rules that name each tensor by its layer for export: `dense.weight`.
pub(crate) fn by_layer(model: &Model) -> Result<Vec<WeightRule>> {
    let layers = ModelLayers::of(model);
    let rules = layers.weighted().into_iter().map(|layer| layer.rules(&format!("{}.", layer.name)));
    Ok(rules.collect::<Result<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, TensorType};
    use systole_nn::layers::dense;

    #[test]
    fn the_order_of_the_safetensors_library_is_by_element_type_and_name() {
        let all = |names: &[(&str, DType)]| -> Vec<(String, Literal)> {
            let one = |(name, dtype): &(&str, DType)| {
                (name.to_string(), Literal::zeros(TensorType::new(*dtype, [2])))
            };
            names.iter().map(one).collect()
        };
        let (counter, bias, weight) =
            (("z.count", DType::I64), ("a.bias", DType::F32), ("a.weight", DType::F32));
        assert!(is_sorted(&all(&[counter, bias, weight])));
        assert!(!is_sorted(&all(&[counter, weight, bias])));
        assert!(!is_sorted(&all(&[bias, weight, counter])));
    }

    #[test]
    fn sorted_names_are_taken_in_the_order_of_their_numbers() {
        let mut model = Model::sequential([dense(3), dense(4), dense(2)]);
        model.build(&[TensorType::new(DType::F32, [5])]).unwrap();
        let sizes = [("10", [2, 4]), ("2", [3, 5]), ("9", [4, 3])];
        let of = |(name, [out, inputs]): (&str, [usize; 2])| {
            let zeros = |dims: &[usize]| Literal::zeros(TensorType::new(DType::F32, dims));
            [(format!("{name}.bias"), zeros(&[out])), (format!("{name}.weight"), zeros(&[out, inputs]))]
        };
        let theirs: Vec<(String, Literal)> = sizes.into_iter().flat_map(of).collect();
        let found = rules(&model, &theirs).unwrap();
        let names: Vec<&str> = found.iter().flat_map(|r| &r.parts).map(|p| p.theirs.as_str()).collect();
        assert_eq!(names, ["2.weight", "2.bias", "9.weight", "9.bias", "10.weight", "10.bias"]);
        assert!(by_name(&model, &theirs).is_none());
        let e = rules(&model, &theirs[..4]).unwrap_err().to_string();
        assert!(e.contains("(Dense)"), "{e}");
    }
}
