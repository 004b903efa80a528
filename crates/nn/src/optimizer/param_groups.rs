//! Parameter groups by layer name patterns: a parameter's optimizer and its learning-rate multiplier.

use super::optimizer_config::Optimizer;
use super::scheduled_values::StepValues;
use crate::name_pattern::fits;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result, Tensor, err};
use systole_runtime::{Buffer, Params};

/// Learning rate of a parameter group: as given, and after the rule's own factors.
pub(super) struct GroupRate {
    pub(super) given: Tensor,
    pub(super) ruled: Tensor,
}

/// Group of parameters with the same optimizer and rate multiplier: the patterns of `optimizer_map` and `lr_mult` that
/// they match.
pub(super) type GroupPatterns = (Option<String>, Option<String>);

/// Whether `pattern` matches `path` (`encoder/layer_0/kernel`): the path itself or the name of an enclosing layer,
/// either with `*` as a wildcard. Keras's `encoder/.*` is read as `encoder/*`.
fn matches(pattern: &str, path: &str) -> bool {
    let pattern = pattern.replace(".*", "*");
    let ends = path.match_indices('/').map(|(i, _)| i).chain([path.len()]);
    ends.into_iter().any(|end| fits(&pattern, &path[..end]))
}

/// Returns the table entries that match a parameter. An entry with the exact path takes precedence over patterns.
fn found<'a, T>(table: &'a BTreeMap<String, T>, path: &str) -> Vec<(&'a String, &'a T)> {
    if let Some(exact) = table.get_key_value(path) {
        return vec![exact];
    }
    table.iter().filter(|(pattern, _)| matches(pattern, path)).collect()
}

impl Optimizer {
    /// Reads `optimizer_map` from a configuration: patterns, each with a name or a table of `type` and arguments.
    pub(super) fn map_from_config(value: &Value) -> Result<BTreeMap<String, Optimizer>> {
        let Value::Object(table) = value else {
            return Err(err!(Config, "invalid value for optimizer_map: {value}").hint(
                "write a table of layers and optimizers: { \"embedding*\" = { type = \"adagrad\" } }",
            ));
        };
        table.iter().map(|(pattern, own)| Ok((pattern.clone(), from_config(own)?))).collect()
    }

    /// Returns the optimizer that updates a parameter.
    pub(super) fn of_param(&self, param: &str) -> &Optimizer {
        found(&self.optimizer_map, param).first().map_or(self, |(_, own)| own)
    }

    pub(super) fn group_of(&self, param: &str) -> GroupPatterns {
        let optimizer = found(&self.optimizer_map, param).first().map(|(pattern, _)| pattern.to_string());
        (optimizer, found(&self.lr_mult, param).first().map(|(pattern, _)| pattern.to_string()))
    }

    /// Returns the parameters that the optimizer under `pattern` of the map updates; `None`: those that match no entry.
    pub(super) fn own_params(&self, tree: &Params, pattern: Option<&String>) -> Params {
        if self.optimizer_map.is_empty() {
            return tree.clone();
        }
        let is_own = |name: &str| self.group_of(name).0.as_ref() == pattern;
        tree.iter().filter(|(name, _)| is_own(name)).map(|(n, t)| (n.to_string(), t.clone())).collect()
    }

    /// Returns the rate of each parameter group; `updates: i64[]` is the number of earlier updates.
    pub(super) fn rates(
        &self,
        values: &StepValues,
        updates: &Tensor,
        params: &Params,
    ) -> BTreeMap<GroupPatterns, GroupRate> {
        let mut rates = BTreeMap::new();
        for group in params.names().map(|name| self.group_of(name)) {
            if rates.contains_key(&group) {
                continue;
            }
            let place = group.0.as_ref().and_then(|own| self.optimizer_map.keys().position(|k| k == own));
            let base = place.and_then(|i| values.mapped.get(i)).unwrap_or(&values.rate);
            let own = group.0.as_ref().and_then(|own| self.optimizer_map.get(own)).unwrap_or(self);
            let part = group.1.as_ref().and_then(|pattern| self.lr_mult.get(pattern));
            let given = part.map_or_else(|| base.clone(), |part| base * *part);
            let ruled = own.kind.rule().rate(&given, updates, values.momentum.as_ref());
            rates.insert(group, GroupRate { given, ruled });
        }
        rates
    }

    pub(super) fn check_groups(&self) -> Result<()> {
        let at = |e: Error, pattern: &str| e.at(format!("optimizer_map.\"{pattern}\""));
        for (pattern, part) in &self.lr_mult {
            if !(*part >= 0.0 && part.is_finite()) {
                return Err(err!(Config, "lr_mult of `{pattern}` is {part}")
                    .hint("set lr_mult to a factor of the learning rate, such as 0.1"));
            }
        }
        for (pattern, own) in &self.optimizer_map {
            own.check().map_err(|e| at(e, pattern))?;
            let common = own.gradient_accumulation_steps.is_some()
                || own.use_ema
                || own.swa.is_some()
                || own.lookahead_steps.is_some()
                || own.momentum_schedule.is_some()
                || !own.lr_mult.is_empty()
                || !own.optimizer_map.is_empty();
            if common {
                let what = "an optimizer in optimizer_map has settings that apply to all parameters";
                return Err(at(Error::new(ErrorKind::Config, what), pattern).hint(
                    "set gradient_accumulation_steps, use_ema, swa, lookahead_steps, momentum_schedule and \
                    lr_mult on the outer optimizer",
                ));
            }
            if self.momentum_schedule.is_some() && !own.kind.rule().takes_momentum() {
                let what = format!("momentum_schedule is set, but {} has no momentum", own.name());
                return Err(at(Error::new(ErrorKind::Config, what), pattern)
                    .hint("remove momentum_schedule, or use an optimizer with momentum"));
            }
        }
        Ok(())
    }

    /// Returns an error if a pattern matches no parameter, or two entries match the same one.
    pub(super) fn check_params(&self, params: &Params<Buffer>) -> Result<()> {
        check_table("optimizer_map", &self.optimizer_map, params)?;
        check_table("lr_mult", &self.lr_mult, params)
    }
}

fn check_table<T>(name: &str, table: &BTreeMap<String, T>, params: &Params<Buffer>) -> Result<()> {
    for param in params.names() {
        if let [(one, _), (two, _), ..] = found(table, param).as_slice() {
            return Err(err!(Config, "{name} has two entries for {param}: `{one}` and `{two}`")
                .hint("make one of the patterns narrower"));
        }
    }
    let nobodys = |pattern: &&String| !params.names().any(|p| p == *pattern || matches(pattern, p));
    let Some(pattern) = table.keys().find(nobodys) else { return Ok(()) };
    let all: Vec<&str> = params.names().collect();
    Err(err!(Config, "pattern `{pattern}` of {name} matches no trainable weight")
        .at(format!("optimizer.{name}"))
        .hint(format!("give layer names or paths, with * as a wildcard; available: {}", all.join(", "))))
}

/// Reads one optimizer of a configuration: its name, or a table.
fn from_config(value: &Value) -> Result<Optimizer> {
    let (name, rest) = match value {
        Value::String(name) => (name.as_str(), Map::new()),
        Value::Object(table) => {
            (table.get("type").and_then(Value::as_str).unwrap_or_default(), table.clone())
        }
        _ => ("", Map::new()),
    };
    let mut optimizer: Optimizer = name.parse()?;
    for (key, value) in rest.iter().filter(|(key, _)| *key != "type") {
        optimizer = optimizer.with(key, value)?;
    }
    Ok(optimizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_paths_and_layers() {
        for (pattern, path, is) in [
            ("dense/kernel", "dense/kernel", true),
            ("dense", "dense/kernel", true),
            ("dense", "dense_1/kernel", false),
            ("dense*", "dense_1/kernel", true),
            ("encoder/.*", "encoder/layer_0/kernel", true),
            ("encoder/.*", "encoder_2/kernel", false),
            ("*/bias", "block/dense/bias", true),
            ("*/bias", "block/dense/kernel", false),
            ("*", "a", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, path), is, "{pattern} {path}");
        }
    }
}
