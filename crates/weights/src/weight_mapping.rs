//! Maps weights between external files and models: which array is which weight, and the layout changes (transposes,
//! reshapes, gate order) in both directions.

use std::collections::{BTreeSet, HashMap};
use systole_ir::{Error, ErrorKind, Literal, Result, err};
use systole_nn::Model;

/// A layout change of an array from the external file to the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayoutStep {
    Transpose(Vec<usize>),
    Reshape(Vec<usize>),
    /// Permutes blocks of the first dimension.
    Gates(Vec<usize>),
    /// Selects part of the first dimension: start, count.
    Rows(usize, usize),
    /// Selects part of the last dimension: start, count.
    Columns(usize, usize),
}

/// An external array that provides a weight or part of it.
#[derive(Clone, Debug)]
pub(crate) struct WeightPart {
    pub theirs: String,
    pub shape: Vec<usize>,
    pub steps: Vec<LayoutStep>,
    /// First element of the weight that it provides.
    pub at: usize,
    /// Whether it is added to an earlier part.
    pub adds: bool,
    /// Whether zeros replace it if it is absent.
    pub optional: bool,
}

impl WeightPart {
    pub(crate) fn new(theirs: impl Into<String>, shape: &[usize], steps: Vec<LayoutStep>) -> WeightPart {
        WeightPart {
            theirs: theirs.into(),
            shape: shape.to_vec(),
            steps,
            at: 0,
            adds: false,
            optional: false,
        }
    }

    pub(crate) fn optional(self) -> WeightPart {
        WeightPart { optional: true, ..self }
    }

    /// Returns the external index of each element in the weight's order; `None` if the order is the same.
    fn places(&self) -> Option<Vec<u32>> {
        if self.steps.iter().all(|s| matches!(s, LayoutStep::Reshape(_))) {
            return None;
        }
        let count: usize = self.shape.iter().product();
        let (mut places, mut shape): (Vec<u32>, _) = ((0..count as u32).collect(), self.shape.clone());
        for step in &self.steps {
            (places, shape) = step.applied(&places, &shape);
        }
        Some(places)
    }

    fn told(&self) -> Vec<String> {
        let told = |step: &LayoutStep| match step {
            LayoutStep::Transpose(order) if order.len() == 2 => "transposed".to_string(),
            LayoutStep::Transpose(order) => format!("transposed {order:?}"),
            LayoutStep::Reshape(dims) => format!("reshaped to {dims:?}"),
            LayoutStep::Gates(order) => format!("gates {order:?}"),
            LayoutStep::Rows(from, n) => format!("rows {from}..{}", from + n),
            LayoutStep::Columns(from, n) => format!("columns {from}..{}", from + n),
        };
        self.steps.iter().map(told).collect()
    }
}

impl LayoutStep {
    fn applied(&self, x: &[u32], shape: &[usize]) -> (Vec<u32>, Vec<usize>) {
        let row: usize = shape.iter().skip(1).product();
        match self {
            LayoutStep::Reshape(dims) => (x.to_vec(), dims.clone()),
            LayoutStep::Rows(from, n) => {
                let mut dims = shape.to_vec();
                dims[0] = *n;
                (x[from * row..(from + n) * row].to_vec(), dims)
            }
            LayoutStep::Columns(from, n) => {
                let (mut dims, width) = (shape.to_vec(), shape[shape.len() - 1]);
                dims[shape.len() - 1] = *n;
                (x.chunks(width).flat_map(|r| r[*from..from + n].to_vec()).collect(), dims)
            }
            LayoutStep::Gates(order) => {
                let block = x.len() / order.len();
                let blocks = order.iter().flat_map(|k| x[k * block..(k + 1) * block].to_vec());
                (blocks.collect(), shape.to_vec())
            }
            LayoutStep::Transpose(order) => transposed(x, shape, order),
        }
    }
}

fn transposed(x: &[u32], shape: &[usize], order: &[usize]) -> (Vec<u32>, Vec<usize>) {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|i| strides[i - 1] = strides[i] * shape[i]);
    let dims: Vec<usize> = order.iter().map(|d| shape[*d]).collect();
    let strides: Vec<usize> = order.iter().map(|d| strides[*d]).collect();
    let mut out = Vec::with_capacity(x.len());
    let mut index = vec![0; dims.len()];
    let mut at = 0;
    for _ in 0..x.len() {
        out.push(x[at]);
        for d in (0..dims.len()).rev() {
            (index[d], at) = (index[d] + 1, at + strides[d]);
            if index[d] < dims[d] {
                break;
            }
            at -= strides[d] * dims[d];
            index[d] = 0;
        }
    }
    (out, dims)
}

/// A weight of the model and the external arrays from which it is assembled.
#[derive(Clone, Debug)]
pub(crate) struct WeightRule {
    pub ours: String,
    pub shape: Vec<usize>,
    pub parts: Vec<WeightPart>,
}

impl WeightRule {
    /// Creates a rule for a single array.
    pub(crate) fn of(ours: &str, shape: &[usize], part: WeightPart) -> WeightRule {
        WeightRule { ours: ours.into(), shape: shape.to_vec(), parts: vec![part] }
    }

    fn row(&self, theirs: &HashMap<&str, &Literal>) -> ImportRow {
        let names: Vec<&str> = self.parts.iter().map(|p| p.theirs.as_str()).collect();
        let mut how = Vec::new();
        let joined = self.parts.len() > 1;
        if joined {
            how.push(if self.parts.iter().any(|p| p.adds) { "summed" } else { "joined" }.to_string());
        }
        if let Some(part) = self.parts.first() {
            how.extend(part.told());
        }
        if self.parts.iter().all(|p| p.optional && !theirs.contains_key(p.theirs.as_str())) {
            how = vec!["missing in the file: zeros".into()];
        }
        ImportRow {
            theirs: names.join(" + "),
            ours: self.ours.clone(),
            from: self.parts.first().map_or_else(Vec::new, |p| p.shape.clone()),
            to: self.shape.clone(),
            how: how.join(", "),
        }
    }
}

/// An exported weight file with its mapping of names.
pub struct ExportedFile {
    /// File contents.
    pub bytes: Vec<u8>,
    /// Weights and their names in the file.
    pub rows: Vec<ImportRow>,
    /// Notes on how names were chosen, and warnings.
    pub notes: Vec<String>,
}

/// Line of the displayed weight mapping: an external array and a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportRow {
    /// External name, or several joined by ` + `.
    pub theirs: String,
    /// Weight path in the model.
    pub ours: String,
    /// Shape in the file.
    pub from: Vec<usize>,
    /// Shape in the model.
    pub to: Vec<usize>,
    /// Layout changes; empty if none.
    pub how: String,
}

/// Result of importing weights: the mapping and unmatched tensors.
#[derive(Clone, Debug, Default)]
pub struct ImportReport {
    /// Imported weights.
    pub rows: Vec<ImportRow>,
    /// Arrays in the file that match no weight.
    pub left_over: Vec<String>,
    /// Notes on how names were matched, and warnings.
    pub notes: Vec<String>,
    /// What the weights cannot show: arguments whose defaults differ between PyTorch and Keras.
    pub warnings: Vec<String>,
}

/// Hint if the layers of the file and the model differ.
pub(crate) const OTHER_MODEL: &str =
    "with --model, use a model that has the file's layers: a preset, a TOML file or a model file";

/// Maximum number of listed problems.
const SHOWN: usize = 6;

fn listed(all: &[String]) -> String {
    let more = all.len().saturating_sub(SHOWN);
    let shown = all[..all.len() - more].join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}

/// Fills a model's weights by rules. `wrong_order` is the hint if shapes differ and the rules depend on an order of tensors
/// that may be wrong.
///
/// # Errors
/// If shapes differ (names both), arrays are missing, or unmatched arrays are left without `partial`.
pub(crate) fn fill(
    model: &mut Model,
    rules: &[WeightRule],
    theirs: &[(String, Literal)],
    partial: bool,
    wrong_order: Option<&str>,
) -> Result<ImportReport> {
    let by_name: HashMap<&str, &Literal> = theirs.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    let mut used = BTreeSet::new();
    for part in rules.iter().flat_map(|rule| &rule.parts) {
        used.insert(part.theirs.as_str());
        match by_name.get(part.theirs.as_str()) {
            Some(value) if value.shape().dims() != part.shape => {
                let is = value.shape().dims();
                wrong.push(format!("{} has shape {is:?}, expected {:?}", part.theirs, part.shape));
            }
            None if !part.optional => missing.push(format!("{} {:?}", part.theirs, part.shape)),
            _ => {}
        }
    }
    let left_over: Vec<String> =
        theirs.iter().map(|(n, _)| n.clone()).filter(|n| !used.contains(n.as_str())).collect();
    check(&wrong, &missing, &left_over, partial, wrong_order)?;
    for rule in rules {
        let value = made(rule, &by_name)?;
        model.set_weight(&rule.ours, value)?;
    }
    let covered: BTreeSet<&str> = rules.iter().map(|r| r.ours.as_str()).collect();
    let ours = model.weights();
    if let Some((path, _)) = ours.iter().find(|(path, _)| !covered.contains(path)) {
        return Err(err!(Data, "cannot find weight {path} in the file").hint_command(OTHER_MODEL));
    }
    let rows = rules.iter().map(|rule| rule.row(&by_name)).collect();
    Ok(ImportReport { rows, left_over, notes: Vec::new(), warnings: Vec::new() })
}

fn check(
    wrong: &[String],
    missing: &[String],
    left_over: &[String],
    partial: bool,
    wrong_order: Option<&str>,
) -> Result<()> {
    let error = |what: String| Err(Error::new(ErrorKind::Data, what));
    if !wrong.is_empty() {
        let what = format!("the weights do not match the model: {}", listed(wrong));
        return error(what).map_err(|e: Error| match wrong_order {
            Some(hint) => e.hint(hint),
            None => e.hint_command(OTHER_MODEL),
        });
    }
    if !missing.is_empty() {
        let mut what = format!("the file lacks {}", listed(missing));
        if !left_over.is_empty() {
            what = format!("{what}. It has unmatched arrays: {}", listed(left_over));
        }
        return error(what).map_err(|e: Error| e.hint_command(OTHER_MODEL));
    }
    if !left_over.is_empty() && !partial {
        let what = format!("arrays without a matching weight in the model: {}", listed(left_over));
        return error(what).map_err(|e: Error| {
            e.hint_command("pass --partial to ignore the unmatched tensors, or another --model")
        });
    }
    Ok(())
}

/// Builds a weight from external arrays.
fn made(rule: &WeightRule, theirs: &HashMap<&str, &Literal>) -> Result<Literal> {
    let count: usize = rule.shape.iter().product();
    let mut out = vec![0f32; count];
    for part in &rule.parts {
        let Some(value) = theirs.get(part.theirs.as_str()) else { continue };
        let values = value.to_f32s();
        let places = part.places();
        let n = places.as_ref().map_or(values.len(), Vec::len);
        let target = out.get_mut(part.at..part.at + n).ok_or_else(|| misfit(rule, part))?;
        for (i, to) in target.iter_mut().enumerate() {
            let from = values[places.as_ref().map_or(i, |p| p[i] as usize)];
            *to = if part.adds { *to + from } else { from };
        }
    }
    Literal::from_slice(rule.shape.clone(), &out)
}

fn misfit(rule: &WeightRule, part: &WeightPart) -> Error {
    err!(Data, "{} {:?} cannot be converted to {} {:?}", part.theirs, part.shape, rule.ours, rule.shape)
        .hint_command(OTHER_MODEL)
}

/// Arrays by name, in file order.
pub(crate) type NamedArrays = Vec<(String, Literal)>;

/// Returns external arrays from a model's weights, in rule order, with their layout changes.
pub(crate) fn taken(model: &Model, rules: &[WeightRule]) -> Result<(NamedArrays, Vec<ImportRow>)> {
    let mut order: Vec<String> = Vec::new();
    let mut arrays: HashMap<String, (Vec<usize>, Vec<f32>)> = HashMap::new();
    for rule in rules {
        let value = model.weight(&rule.ours)?.to_f32s();
        for part in &rule.parts {
            let count: usize = part.shape.iter().product();
            let (_, array) = arrays.entry(part.theirs.clone()).or_insert_with(|| {
                order.push(part.theirs.clone());
                (part.shape.clone(), vec![0f32; count])
            });
            if part.adds {
                continue;
            }
            let places = part.places();
            let n = places.as_ref().map_or(count, Vec::len);
            let from = value.get(part.at..part.at + n).ok_or_else(|| misfit(rule, part))?;
            for (i, x) in from.iter().enumerate() {
                array[places.as_ref().map_or(i, |p| p[i] as usize)] = *x;
            }
        }
    }
    let made = order.into_iter().filter_map(|name| {
        let (shape, values) = arrays.remove(&name)?;
        Some(Literal::from_slice(shape, &values).map(|v| (name, v)))
    });
    let made = made.collect::<Result<Vec<_>>>()?;
    let names: HashMap<&str, &Literal> = made.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let rows = rules.iter().map(|rule| rule.row(&names)).collect();
    Ok((made, rows))
}

/// Whether an array can be a weight: numbers, not counters.
pub(crate) fn is_weight(name: &str, value: &Literal) -> bool {
    !name.ends_with("num_batches_tracked") && value.dtype().is_float()
}
