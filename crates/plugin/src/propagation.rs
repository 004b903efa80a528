//! Propagates shardings through a program in both directions: a subset of Shardy's propagation, sufficient to name the
//! axes of results and of inspected arrays.

use crate::attributes::{DimAxes, dims, numbers, stated};
use std::collections::HashMap;
use systole_mlir::import::effects::INSPECTION;
use systole_mlir::syntax::{
    Attribute, FunctionValue, MlirFunction, MlirModule, MlirRegion, NamedAttributes, OPEN, Operation, closed,
    find,
};

/// Custom calls that return their operand, with a layout or in a memory.
const IDENTITIES: [&str; 2] = ["LayoutConstraint", "annotate_device_placement"];

/// Maximum call depth that is followed.
const MOST_CALLS: usize = 16;

/// Known axes of a function's values in one of its calls.
#[derive(Default)]
struct CallAxes {
    known: HashMap<FunctionValue, DimAxes>,
    /// Calls inside the function, by the address of the operation.
    calls: HashMap<usize, CallAxes>,
}

impl CallAxes {
    /// Axes of a value; open if unknown.
    fn of(&self, f: &MlirFunction, value: FunctionValue) -> DimAxes {
        let open = || vec![vec![OPEN.to_owned()]; dims(f, value).map_or(0, |d| d.len())];
        self.known.get(&value).cloned().unwrap_or_else(open)
    }

    /// Adds axes to those of a value.
    fn add(&mut self, f: &MlirFunction, value: FunctionValue, axes: &DimAxes) {
        if is_split(axes) {
            let mut own = self.of(f, value);
            merge(&mut own, axes);
            self.known.insert(value, own);
        }
    }

    /// Axes of each value.
    fn all(&self, f: &MlirFunction, values: &[FunctionValue]) -> Vec<DimAxes> {
        values.iter().map(|v| self.of(f, *v)).collect()
    }

    fn add_all(&mut self, f: &MlirFunction, values: &[FunctionValue], axes: &[DimAxes]) {
        values.iter().zip(axes).for_each(|(value, axes)| self.add(f, *value, axes));
    }
}

/// Attributes and axes of an inspected array (`None`: each device has its own array).
pub(crate) type Inspection = (String, Option<DimAxes>);

pub(crate) struct ShardingWalk<'m> {
    module: &'m MlirModule,
    depth: usize,
    /// Number of manual computations around the current op.
    manual: usize,
    /// Axes of the arrays of each sharding group, which have equal shardings.
    groups: HashMap<String, DimAxes>,
    inspected: Vec<Inspection>,
}

impl<'m> ShardingWalk<'m> {
    pub(crate) fn new(module: &'m MlirModule) -> ShardingWalk<'m> {
        ShardingWalk { module, depth: 0, manual: 0, groups: HashMap::new(), inspected: Vec::new() }
    }

    /// Returns the axes of the entry function's results, and the inspected arrays.
    pub(crate) fn main(mut self, main: &MlirFunction) -> (Vec<DimAxes>, Vec<Inspection>) {
        let mut axes = CallAxes::default();
        let told = |attributes| find(attributes, "sdy.sharding").and_then(stated).map(|(_, dims, _)| dims);
        for (value, attributes) in main.body.arguments.iter().zip(&main.parameters) {
            axes.known.extend(told(attributes).map(|dims| (*value, dims.clone())));
        }
        let results: Vec<DimAxes> = main
            .results
            .iter()
            .map(|(_, attributes)| told(attributes).cloned().unwrap_or_default())
            .collect();
        self.forward(main, &main.body, &mut axes);
        self.backward(main, &main.body, &mut axes, &results);
        self.inspected.clear();
        let propagated = self.forward(main, &main.body, &mut axes);
        (propagated.iter().map(|axes| closed(axes)).collect(), self.inspected)
    }

    /// Gives an array of a sharding group the axes of the group, and the group those of the array.
    fn join_group(&mut self, f: &MlirFunction, op: &Operation, axes: &mut CallAxes) {
        let Some(array) = op.operands.first() else { return };
        let group = match find(&op.attributes, "group_id") {
            Some(Attribute::Int(id)) => id.to_string(),
            Some(Attribute::Other(_, digits)) => digits.clone(),
            _ => return,
        };
        let mut own = axes.of(f, *array);
        let count = |axes: &DimAxes| closed(axes).iter().flatten().count();
        match self.groups.get(&group) {
            // The array that is split further decides.
            Some(group) if count(group) > count(&own) => own.clone_from(group),
            _ => _ = self.groups.insert(group, own.clone()),
        }
        if is_split(&own) {
            axes.known.insert(*array, own);
        }
    }

    /// Collects an inspected array.
    fn inspect(&mut self, f: &MlirFunction, op: &Operation, axes: &CallAxes) {
        if inspects(op) {
            let config = match find(&op.attributes, "backend_config") {
                Some(Attribute::String(config)) => config.clone(),
                _ => String::new(),
            };
            let own = op.operands.first().map(|v| closed(&axes.of(f, *v))).unwrap_or_default();
            self.inspected.push((config, (self.manual == 0).then_some(own)));
        }
    }

    /// Propagates from operands to results; returns the axes of the region's results.
    fn forward(&mut self, f: &MlirFunction, region: &MlirRegion, axes: &mut CallAxes) -> Vec<DimAxes> {
        let Some((last, ops)) = region.operations.split_last() else { return Vec::new() };
        for op in ops {
            self.inspect(f, op, axes);
            let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
            match name {
                "sdy.sharding_group" => self.join_group(f, op, axes),
                "sdy.sharding_constraint" | "sdy.reshard" => constrain(f, op, axes),
                "sdy.manual_computation" => self.manual(f, op, axes),
                "func.call" => self.call(f, op, axes, None),
                "while" => self.loop_forward(f, op, axes),
                "case" | "if" => {
                    for region in &op.regions {
                        let propagated = self.forward(f, region, axes);
                        axes.add_all(f, &op.results, &propagated);
                    }
                }
                _ => along_op(f, op, |from, to, pairs| add_along(f, axes, from, to, pairs)),
            }
        }
        axes.all(f, &last.operands)
    }

    /// Propagates from results, whose axes are `wanted`, to operands.
    fn backward(&mut self, f: &MlirFunction, region: &MlirRegion, axes: &mut CallAxes, wanted: &[DimAxes]) {
        let Some((last, ops)) = region.operations.split_last() else { return };
        axes.add_all(f, &last.operands, wanted);
        for op in ops.iter().rev() {
            let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
            let propagated = axes.all(f, &op.results);
            match name {
                "sdy.sharding_group" => self.join_group(f, op, axes),
                "sdy.sharding_constraint" | "sdy.reshard" => axes.add_all(f, &op.operands, &propagated),
                "sdy.manual_computation" => {
                    axes.add_all(f, &op.operands, &shardings(&op.attributes, "in_shardings"));
                }
                "func.call" => self.call(f, op, axes, Some(&propagated)),
                "while" => {
                    if let Some(body) = op.regions.get(1) {
                        self.backward(f, body, axes, &propagated);
                        let given = axes.all(f, &body.arguments);
                        axes.add_all(f, &op.operands, &given);
                    }
                }
                "case" | "if" => op.regions.iter().for_each(|r| self.backward(f, r, axes, &propagated)),
                _ => along_op(f, op, |from, to, pairs| {
                    let back: Vec<_> = pairs.iter().map(|(d, to)| (*to, *d)).collect();
                    add_along(f, axes, to, from, &back);
                }),
            }
        }
    }

    /// Operands, results, and arguments and results of the body have equal axes.
    fn loop_forward(&mut self, f: &MlirFunction, op: &Operation, axes: &mut CallAxes) {
        let mut carried = axes.all(f, &op.operands);
        for (own, result) in carried.iter_mut().zip(&op.results) {
            merge(own, &axes.of(f, *result));
        }
        for region in &op.regions {
            axes.add_all(f, &region.arguments, &carried);
            let propagated = self.forward(f, region, axes);
            if region.arguments.len() == propagated.len() {
                axes.add_all(f, &op.results, &axes.all(f, &region.arguments));
                axes.add_all(f, &op.results, &propagated);
            }
        }
    }

    /// Propagates through a manual computation: its results have stated axes, and propagated ones along other axes.
    fn manual(&mut self, f: &MlirFunction, op: &Operation, axes: &mut CallAxes) {
        for (value, out) in op.results.iter().zip(shardings(&op.attributes, "out_shardings")) {
            axes.known.entry(*value).or_insert(out);
        }
        let Some(body) = op.regions.first() else { return };
        let own = match find(&op.attributes, "manual_axes") {
            Some(Attribute::List(axes)) => axes.as_slice(),
            _ => &[],
        };
        let is_own = |axis: &String| own.iter().any(|a| matches!(a, Attribute::String(own) if own == axis));
        for (argument, operand) in body.arguments.iter().zip(&op.operands) {
            let mut given = axes.of(f, *operand);
            given.iter_mut().for_each(|axes| axes.retain(|axis| !is_own(axis)));
            axes.add(f, *argument, &given);
        }
        self.manual += 1;
        let propagated = self.forward(f, body, axes);
        self.manual -= 1;
        axes.add_all(f, &op.results, &propagated);
    }

    /// Propagates through a called function, backward if `wanted` has the axes of the results.
    fn call(&mut self, f: &MlirFunction, op: &Operation, axes: &mut CallAxes, wanted: Option<&[DimAxes]>) {
        let Some(Attribute::Symbol(callee)) = find(&op.attributes, "callee") else { return };
        let Some(called) = self.module.functions.iter().find(|f| f.name == *callee) else { return };
        if self.depth == MOST_CALLS {
            return;
        }
        self.depth += 1;
        let key = std::ptr::from_ref(op).addr();
        let mut inner = axes.calls.remove(&key).unwrap_or_default();
        match wanted {
            None => {
                inner.add_all(called, &called.body.arguments, &axes.all(f, &op.operands));
                let propagated = self.forward(called, &called.body, &mut inner);
                axes.add_all(f, &op.results, &propagated);
            }
            Some(wanted) => {
                self.backward(called, &called.body, &mut inner, wanted);
                axes.add_all(f, &op.operands, &inner.all(called, &called.body.arguments));
            }
        }
        axes.calls.insert(key, inner);
        self.depth -= 1;
    }
}

/// Whether an op reports a sharding.
pub(crate) fn inspects(op: &Operation) -> bool {
    let target = find(&op.attributes, "call_target_name");
    op.name.ends_with("custom_call") && matches!(target, Some(Attribute::String(name)) if name == INSPECTION)
}

/// Gives the result of a constraint the stated axes; open dimensions take those of the operand.
fn constrain(f: &MlirFunction, op: &Operation, axes: &mut CallAxes) {
    let Some((_, dims, _)) = find(&op.attributes, "sharding").and_then(stated) else { return };
    let (Some(operand), Some(result)) = (op.operands.first(), op.results.first()) else { return };
    axes.known.entry(*result).or_insert_with(|| dims.clone());
    axes.add(f, *result, &axes.of(f, *operand));
}

/// Calls `each` for every operand and result with corresponding dimensions.
fn along_op(
    f: &MlirFunction,
    op: &Operation,
    mut each: impl FnMut(FunctionValue, FunctionValue, &[(usize, usize)]),
) {
    let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
    for (r, result) in op.results.iter().enumerate() {
        let Some(out) = dims(f, *result) else { continue };
        for (k, operand) in op.operands.iter().enumerate() {
            let Some(from) = dims(f, *operand) else { continue };
            if name != "optimization_barrier" || r == k {
                each(*operand, *result, &along(name, op, k, &from, &out, f));
            }
        }
    }
}

/// Adds the axes of a value to those of another with corresponding dimensions.
fn add_along(
    f: &MlirFunction,
    axes: &mut CallAxes,
    from: FunctionValue,
    to: FunctionValue,
    pairs: &[(usize, usize)],
) {
    let Some(own) = axes.known.get(&from).filter(|own| is_split(own)) else { return };
    let mut new = axes.of(f, to);
    for (d, to) in pairs {
        join(&mut new, *to, own.get(*d));
    }
    if is_split(&new) {
        axes.known.insert(to, new);
    }
}

/// Whether any dimension is split.
fn is_split(axes: &DimAxes) -> bool {
    axes.iter().flatten().any(|axis| axis != OPEN)
}

/// Adds axes to the open dimensions without axes.
fn merge(axes: &mut DimAxes, own: &DimAxes) {
    for (to, found) in own.iter().enumerate() {
        join(axes, to, Some(found));
    }
}

/// Adds axes to an open dimension without axes, unless they split another dimension.
pub(crate) fn join(axes: &mut DimAxes, to: usize, own: Option<&Vec<String>>) {
    let is_axis = |axis: &&String| *axis != OPEN;
    let Some(own) = own.filter(|own| own.iter().any(|a| a != OPEN)) else { return };
    let taken = axes.iter().flatten().filter(is_axis).any(|a| own.contains(a));
    if let Some(place) = axes.get_mut(to).filter(|place| matches!(&place[..], [one] if one == OPEN) && !taken)
    {
        *place = own.iter().filter(is_axis).cloned().chain([OPEN.to_owned()]).collect();
    }
}

/// Returns the shardings attribute of `sdy.manual_computation`.
fn shardings(attributes: &NamedAttributes, name: &str) -> Vec<DimAxes> {
    let one = |item: &Attribute| stated(item).map(|(_, dims, _)| dims.clone()).unwrap_or_default();
    match find(attributes, name) {
        Some(Attribute::List(items)) => items.iter().map(one).collect(),
        _ => Vec::new(),
    }
}

/// Whether a custom call returns its operand.
fn is_identity(op: &Operation) -> bool {
    let target = find(&op.attributes, "call_target_name");
    matches!(target, Some(Attribute::String(name)) if IDENTITIES.contains(&name.as_str()))
}

/// Returns pairs of corresponding dimensions of operand `k` and the result.
fn along(
    name: &str,
    op: &Operation,
    k: usize,
    from: &[u64],
    out: &[u64],
    f: &MlirFunction,
) -> Vec<(usize, usize)> {
    let same = || (0..from.len().min(out.len())).filter(|&d| from[d] == out[d]).map(|d| (d, d)).collect();
    match name {
        "transpose" => {
            numbers(&op.attributes, "permutation").into_iter().enumerate().map(|(to, d)| (d, to)).collect()
        }
        "broadcast_in_dim" => {
            let to = numbers(&op.attributes, "broadcast_dimensions").into_iter().enumerate();
            to.filter(|&(d, to)| from.get(d) == out.get(to)).collect()
        }
        "reshape" => {
            let before = |dims: &[u64], d: usize| dims.iter().take(d).product::<u64>();
            let pairs = (0..from.len()).flat_map(|d| (0..out.len()).map(move |to| (d, to)));
            pairs.filter(|&(d, to)| from[d] == out[to] && before(from, d) == before(out, to)).collect()
        }
        "reduce" if k < op.operands.len() / 2 => {
            let gone = numbers(&op.attributes, "dimensions");
            (0..from.len()).filter(|d| !gone.contains(d)).enumerate().map(|(to, d)| (d, to)).collect()
        }
        "dot_general" => product(op, k, from.len(), f),
        "concatenate" | "pad" | "slice" | "dynamic_slice" | "dynamic_update_slice" | "reduce_window"
            if from.len() == out.len() =>
        {
            same()
        }
        "gather" => gathered(op, k, from, out, f),
        "custom_call" if is_identity(op) => same(),
        // The updates do not change the operand's sharding.
        "scatter" if k < op.results.len() => same(),
        "convolution" | "scatter" | "iota" | "custom_call" | "rng_bit_generator" | "reduce" => Vec::new(),
        _ if from == out => same(),
        _ => Vec::new(),
    }
}

/// Returns the correspondence for gather: full slice dimensions of the operand, and index dimensions.
fn gathered(op: &Operation, k: usize, from: &[u64], out: &[u64], f: &MlirFunction) -> Vec<(usize, usize)> {
    let Some(Attribute::Struct(_, fields)) = find(&op.attributes, "dimension_numbers") else {
        return Vec::new();
    };
    let offsets = numbers(fields, "offset_dims");
    let others = (0..out.len()).filter(|d| !offsets.contains(d));
    let vector = numbers(fields, "index_vector_dim").first().copied().unwrap_or(0);
    match k {
        0 => {
            let mut gone = numbers(fields, "collapsed_slice_dims");
            gone.extend(numbers(fields, "operand_batching_dims"));
            let kept = (0..from.len()).filter(|d| !gone.contains(d));
            let whole = |(d, to): &(usize, usize)| from.get(*d) == out.get(*to);
            kept.zip(offsets.iter().copied()).filter(whole).collect()
        }
        _ => {
            let rank = op.operands.get(1).and_then(|v| dims(f, *v)).map_or(0, |d| d.len());
            (0..rank).filter(|d| *d != vector).zip(others).collect()
        }
    }
}

/// Returns the correspondence for dot_general: batch dimensions, then rows, then columns.
fn product(op: &Operation, k: usize, rank: usize, f: &MlirFunction) -> Vec<(usize, usize)> {
    let Some(Attribute::Struct(_, fields)) = find(&op.attributes, "dot_dimension_numbers") else {
        return Vec::new();
    };
    let side = if k == 0 { "lhs" } else { "rhs" };
    let batch = numbers(fields, &format!("{side}_batching_dimensions"));
    let summed = numbers(fields, &format!("{side}_contracting_dimensions"));
    let rows = match k {
        0 => 0,
        _ => {
            let lhs = op.operands.first().and_then(|v| dims(f, *v)).map_or(0, |d| d.len());
            lhs.saturating_sub(batch.len() + summed.len())
        }
    };
    let own = (0..rank).filter(|d| !batch.contains(d) && !summed.contains(d)).enumerate();
    let own = own.map(|(i, d)| (d, batch.len() + rows + i)).collect::<Vec<_>>();
    batch.iter().enumerate().map(|(i, d)| (*d, i)).chain(own).collect()
}
