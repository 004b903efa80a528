//! Reads sharding and donation annotations (GSPMD, Shardy) of imported programs. Results without a sharding get one by
//! a subset of Shardy's propagation, sufficient to name their axes.

use crate::call::{CallError, CallResult};
use crate::device::MEMORY_KINDS;
use std::collections::HashMap;
use systole_mlir::device_sharding::DeviceSharding;
use systole_mlir::import::effects::{INSPECTION, contains};
use systole_mlir::syntax::{
    Attribute, ElementData, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType, NamedAttributes,
    OPEN, Operation, closed,
};

/// Maximum call depth that is followed.
const MOST_CALLS: usize = 16;

/// Mesh axes that split each dimension; empty if unknown.
type DimAxes = Vec<Vec<String>>;

/// Shardings, donations and layouts of a module's entry function.
#[derive(Debug)]
pub(crate) struct ShardingAnnotations {
    /// Sharding of each argument.
    pub(crate) arguments: Vec<DeviceSharding>,
    /// Sharding of each result, stated or propagated.
    pub(crate) results: Vec<DeviceSharding>,
    /// Whether the caller donates each argument.
    pub(crate) donated: Vec<bool>,
    /// Stated layout of each argument and each result; empty if none.
    pub(crate) argument_layouts: Vec<String>,
    pub(crate) result_layouts: Vec<String>,
    /// Index of the memory kind of each argument and each result.
    pub(crate) argument_memories: Vec<usize>,
    pub(crate) result_memories: Vec<usize>,
    /// Attributes of each call that inspects a sharding, with the sharding as GSPMD text.
    pub(crate) inspections: Vec<(String, String)>,
}

fn find<'a>(attributes: &'a NamedAttributes, name: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

/// Returns the index of the entry function.
fn main_of(module: &MlirModule) -> Option<usize> {
    let named = module.functions.iter().position(|f| f.name == "main");
    named.or_else(|| module.functions.iter().position(|f| !f.is_private))
}

/// Number of dimensions of a value's array.
fn rank(ty: Option<&MlirType>) -> usize {
    match ty {
        Some(MlirType::Tensor(t)) => t.dims.len(),
        // A token is an array without elements.
        Some(MlirType::Token) => 1,
        _ => 0,
    }
}

/// Returns the sharding of each result.
fn result_shardings(
    module: &MlirModule,
    main: &MlirFunction,
    devices: usize,
    chooses: &[bool],
) -> CallResult<Vec<DeviceSharding>> {
    let mut results = Vec::new();
    let mut led: Option<Vec<DimAxes>> = None;
    for (i, (ty, attributes)) in main.results.iter().enumerate() {
        let whole = DeviceSharding::replicated(rank(Some(ty)), devices);
        let told = tiles(module, attributes, rank(Some(ty)), devices)?;
        let may = devices > 1 && chooses.get(i).or(chooses.last()).copied().unwrap_or(true);
        let found = match may && is_open(attributes) {
            true => {
                let led = led.get_or_insert_with(|| lead(module, main)).get(i);
                followed(module, attributes, rank(Some(ty)), devices, led).or(told)
            }
            false => told,
        };
        let fits = |t: &DeviceSharding| match ty {
            MlirType::Tensor(ty) => {
                let dims: Vec<usize> = ty.dims.iter().map(|d| d.unwrap_or(1) as usize).collect();
                t.local(&dims).is_ok()
            }
            _ => false,
        };
        results.push(found.filter(fits).unwrap_or(whole));
    }
    Ok(results)
}

/// Removes and returns the annotations of a program for `devices`. The remaining module describes one device, or all of
/// them together. `chooses`: for each result, whether its sharding may be propagated.
pub(crate) fn take(
    module: &mut MlirModule,
    devices: usize,
    chooses: &[bool],
) -> CallResult<ShardingAnnotations> {
    let missing = || CallError::invalid("the module has no function to run");
    let at = main_of(module).ok_or_else(missing)?;
    let main = module.functions.get(at).ok_or_else(missing)?;
    let mut arguments = Vec::new();
    for (value, attributes) in main.body.arguments.iter().zip(&main.parameters) {
        let told = tiles(module, attributes, rank(main.values.get(*value)), devices)?;
        arguments
            .push(told.unwrap_or_else(|| DeviceSharding::replicated(rank(main.values.get(*value)), devices)));
    }
    let results = result_shardings(module, main, devices, chooses)?;
    let inspections = inspections(module, main, devices);
    let donated = main.parameters.iter().map(gives).collect();
    let layout = |attributes: &NamedAttributes| match find(attributes, "mhlo.layout_mode") {
        Some(Attribute::String(mode)) => mode.clone(),
        _ => String::new(),
    };
    let argument_layouts = main.parameters.iter().map(layout).collect();
    let result_layouts = main.results.iter().map(|(_, attributes)| layout(attributes)).collect();
    let argument_memories = main.parameters.iter().map(memory_kind).collect::<CallResult<_>>()?;
    let result_memories =
        main.results.iter().map(|(_, attributes)| memory_kind(attributes)).collect::<CallResult<_>>()?;
    if let Some(main) = module.functions.get_mut(at) {
        let own = |attributes: &mut NamedAttributes| attributes.retain(|(name, _)| name != "sdy.sharding");
        main.parameters.iter_mut().for_each(own);
        main.results.iter_mut().for_each(|(_, attributes)| own(attributes));
    }
    Ok(ShardingAnnotations {
        arguments,
        results,
        donated,
        argument_layouts,
        result_layouts,
        argument_memories,
        result_memories,
        inspections,
    })
}

/// Whether an op reports a sharding.
fn inspects(op: &Operation) -> bool {
    let target = find(&op.attributes, "call_target_name");
    op.name.ends_with("custom_call") && matches!(target, Some(Attribute::String(name)) if name == INSPECTION)
}

/// Returns the shardings that calls inspect.
fn inspections(module: &MlirModule, main: &MlirFunction, devices: usize) -> Vec<(String, String)> {
    let has_some = |f: &MlirFunction| contains(module, std::slice::from_ref(&f.body), inspects);
    if !module.functions.iter().any(has_some) {
        return Vec::new();
    }
    let mut walk = AnnotationWalk { inspected: Some(Vec::new()), ..AnnotationWalk::new(module) };
    walk.main(main);
    let text = |axes: Option<DimAxes>| match axes {
        None => "{manual}".to_owned(),
        Some(axes) => {
            let found =
                module.meshes.iter().find_map(|(_, m)| DeviceSharding::of_axes(&axes, &[], m, devices).ok());
            found.unwrap_or_else(|| DeviceSharding::replicated(axes.len(), devices)).to_text()
        }
    };
    walk.inspected.into_iter().flatten().map(|(config, axes)| (config, text(axes))).collect()
}

/// Index of the memory kind that an argument or a result states.
fn memory_kind(attributes: &NamedAttributes) -> CallResult<usize> {
    let Some(Attribute::String(stated)) = find(attributes, "mhlo.memory_kind") else { return Ok(0) };
    let found = MEMORY_KINDS.iter().position(|kind| kind == stated);
    found.ok_or_else(|| {
        CallError::invalid(format!("unknown memory kind `{stated}`, expected one of {MEMORY_KINDS:?}"))
    })
}

fn gives(attributes: &NamedAttributes) -> bool {
    find(attributes, "tf.aliasing_output").is_some()
        || matches!(find(attributes, "jax.buffer_donor"), Some(Attribute::Bool(true) | Attribute::Unit))
}

/// Returns the stated sharding of an argument or result.
fn tiles(
    module: &MlirModule,
    attributes: &NamedAttributes,
    rank: usize,
    devices: usize,
) -> CallResult<Option<DeviceSharding>> {
    if let Some((mesh, dims, unreduced)) = find(attributes, "sdy.sharding").and_then(said) {
        return of_axes(module, mesh, &closed(dims), &unreduced, rank, devices).map(Some);
    }
    match find(attributes, "mhlo.sharding") {
        Some(Attribute::String(text)) => Ok(Some(DeviceSharding::of_text(text, rank, devices)?)),
        _ => Ok(None),
    }
}

/// Returns mesh, axes, and unreduced axes of a sharding.
fn said(sharding: &Attribute) -> Option<(&str, &DimAxes, Vec<String>)> {
    match sharding {
        Attribute::Sharding(mesh, dims) => Some((mesh, dims, Vec::new())),
        Attribute::Struct(_, fields) => {
            let Some(Attribute::Sharding(mesh, dims)) = find(fields, "sharding") else { return None };
            let Some(Attribute::List(axes)) = find(fields, "axes") else { return None };
            let name = |a: &Attribute| match a {
                Attribute::String(name) => Some(name.clone()),
                _ => None,
            };
            Some((mesh, dims, axes.iter().filter_map(name).collect()))
        }
        _ => None,
    }
}

fn of_axes(
    module: &MlirModule,
    mesh: &str,
    dims: &[Vec<String>],
    unreduced: &[String],
    rank: usize,
    devices: usize,
) -> CallResult<DeviceSharding> {
    let axes = module.meshes.iter().find(|(name, _)| name == mesh).map(|(_, axes)| axes.as_slice());
    let none = dims.iter().all(Vec::is_empty) && unreduced.is_empty();
    let whole = devices == 1 || dims.len() != rank || none;
    match axes {
        Some(axes) if !whole && !axes.is_empty() => {
            Ok(DeviceSharding::of_axes(dims, unreduced, axes, devices)?)
        }
        _ => Ok(DeviceSharding::replicated(rank, devices)),
    }
}

/// Propagates shardings to the results.
fn lead(module: &MlirModule, main: &MlirFunction) -> Vec<DimAxes> {
    AnnotationWalk::new(module).main(main)
}

/// Returns the stated axes; open dimensions take those of `own`.
fn constrained(dims: &DimAxes, own: Option<&DimAxes>) -> DimAxes {
    let mut axes = closed(dims);
    for (d, said) in dims.iter().enumerate() {
        if said.iter().any(|axis| axis == OPEN) {
            join(&mut axes, d, own.and_then(|own| own.get(d)));
        }
    }
    axes
}

/// Returns a result's sharding from stated and propagated axes; `None` if there are none.
fn followed(
    module: &MlirModule,
    attributes: &NamedAttributes,
    rank: usize,
    devices: usize,
    led: Option<&DimAxes>,
) -> Option<DeviceSharding> {
    let open = vec![vec![OPEN.to_owned()]; rank];
    let (axes, unreduced) = match find(attributes, "sdy.sharding").and_then(said) {
        Some((_, dims, unreduced)) => (constrained(dims, led), unreduced),
        None => (constrained(&open, led), Vec::new()),
    };
    if axes.iter().all(Vec::is_empty) && unreduced.is_empty() {
        return None;
    }
    // Axes with equal names are equal in all meshes of a module.
    module.meshes.iter().find_map(|(_, mesh)| DeviceSharding::of_axes(&axes, &unreduced, mesh, devices).ok())
}

/// Whether a result has an open dimension, whose sharding may be propagated.
fn is_open(attributes: &NamedAttributes) -> bool {
    match find(attributes, "sdy.sharding").and_then(said) {
        Some((_, dims, _)) => dims.iter().flatten().any(|axis| axis == OPEN),
        None => find(attributes, "mhlo.sharding").is_none(),
    }
}

struct AnnotationWalk<'m> {
    module: &'m MlirModule,
    depth: usize,
    /// Number of manual computations around the current op.
    manual: usize,
    /// Axes of the arrays of each sharding group, which have equal shardings.
    groups: HashMap<String, DimAxes>,
    /// Attributes and axes of inspected arrays (`None`: each device has its own array), if they are collected.
    inspected: Option<Vec<(String, Option<DimAxes>)>>,
}

impl<'m> AnnotationWalk<'m> {
    fn new(module: &'m MlirModule) -> AnnotationWalk<'m> {
        AnnotationWalk { module, depth: 0, manual: 0, groups: HashMap::new(), inspected: None }
    }

    /// Propagates the axes of the arguments of the entry function.
    fn main(&mut self, main: &MlirFunction) -> Vec<DimAxes> {
        let given = main.parameters.iter().map(|attributes| {
            let told = find(attributes, "sdy.sharding").and_then(said);
            told.map(|(_, dims, _)| closed(dims)).unwrap_or_default()
        });
        self.function(main, given.collect())
    }

    /// Gives an array of a sharding group the axes of the group, or the group those of the array.
    fn join_group(&mut self, op: &Operation, known: &mut HashMap<FunctionValue, DimAxes>) {
        let Some(array) = op.operands.first().filter(|_| op.name == "sdy.sharding_group") else { return };
        let group = match find(&op.attributes, "group_id") {
            Some(Attribute::Int(id)) => id.to_string(),
            Some(Attribute::Other(_, digits)) => digits.clone(),
            _ => return,
        };
        match known.get(array).filter(|axes| axes.iter().any(|a| !a.is_empty())) {
            Some(axes) => _ = self.groups.entry(group).or_insert_with(|| axes.clone()),
            None => known.extend(self.groups.get(&group).map(|axes| (*array, axes.clone()))),
        }
    }

    /// Collects an inspected array, and those in the regions of loops and branches.
    fn inspect(&mut self, f: &MlirFunction, op: &Operation, known: &HashMap<FunctionValue, DimAxes>) {
        let Some(inspected) = &mut self.inspected else { return };
        if inspects(op) {
            let config = match find(&op.attributes, "backend_config") {
                Some(Attribute::String(config)) => config.clone(),
                _ => String::new(),
            };
            let axes = op.operands.first().and_then(|v| known.get(v)).cloned().unwrap_or_default();
            inspected.push((config, (self.manual == 0).then_some(axes)));
        }
        for region in op.regions.iter().filter(|_| op.name != "sdy.manual_computation") {
            let mut inner = known.clone();
            for (argument, operand) in region.arguments.iter().zip(&op.operands) {
                inner.extend(known.get(operand).map(|axes| (*argument, axes.clone())));
            }
            self.body(f, region, &mut inner);
        }
    }

    /// Propagates axes through a function.
    fn function(&mut self, f: &MlirFunction, given: Vec<DimAxes>) -> Vec<DimAxes> {
        let mut known: HashMap<FunctionValue, DimAxes> =
            f.body.arguments.iter().copied().zip(given).collect();
        self.body(f, &f.body, &mut known)
    }

    fn body(
        &mut self,
        f: &MlirFunction,
        region: &MlirRegion,
        known: &mut HashMap<FunctionValue, DimAxes>,
    ) -> Vec<DimAxes> {
        let Some((last, ops)) = region.operations.split_last() else { return Vec::new() };
        for op in ops {
            self.inspect(f, op, known);
            self.join_group(op, known);
            let results = self.operation(f, op, known);
            for (value, axes) in op.results.iter().zip(results) {
                if axes.iter().any(|a| !a.is_empty()) {
                    known.insert(*value, axes);
                }
            }
        }
        last.operands.iter().map(|v| known.get(v).cloned().unwrap_or_default()).collect()
    }

    /// Returns the axes of a manual computation's results: stated ones, and propagated ones through its body for other
    /// axes.
    fn manual(
        &mut self,
        f: &MlirFunction,
        op: &Operation,
        known: &HashMap<FunctionValue, DimAxes>,
    ) -> Vec<DimAxes> {
        let mut results = shardings(&op.attributes, "out_shardings");
        let Some(body) = op.regions.first() else { return results };
        let own = match find(&op.attributes, "manual_axes") {
            Some(Attribute::List(axes)) => axes.as_slice(),
            _ => &[],
        };
        let is_own = |axis: &String| own.iter().any(|a| matches!(a, Attribute::String(own) if own == axis));
        let mut inner = known.clone();
        for (argument, operand) in body.arguments.iter().zip(&op.operands) {
            let mut axes = known.get(operand).cloned().unwrap_or_default();
            axes.iter_mut().for_each(|axes| axes.retain(|axis| !is_own(axis)));
            inner.insert(*argument, axes);
        }
        self.manual += 1;
        let led = self.body(f, body, &mut inner);
        self.manual -= 1;
        for (axes, led) in results.iter_mut().zip(led) {
            for (to, found) in led.iter().enumerate() {
                join(axes, to, Some(found));
            }
        }
        results
    }

    fn operation(
        &mut self,
        f: &MlirFunction,
        op: &Operation,
        known: &HashMap<FunctionValue, DimAxes>,
    ) -> Vec<DimAxes> {
        let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
        match name {
            "sdy.sharding_constraint" | "sdy.reshard" => {
                match find(&op.attributes, "sharding").and_then(said) {
                    Some((_, dims, _)) => {
                        vec![constrained(dims, op.operands.first().and_then(|v| known.get(v)))]
                    }
                    None => Vec::new(),
                }
            }
            "sdy.manual_computation" => self.manual(f, op, known),
            "func.call" => {
                let Some(Attribute::Symbol(callee)) = find(&op.attributes, "callee") else {
                    return Vec::new();
                };
                let Some(called) = self.module.functions.iter().find(|f| f.name == *callee) else {
                    return Vec::new();
                };
                if self.depth == MOST_CALLS {
                    return Vec::new();
                }
                self.depth += 1;
                let given = op.operands.iter().map(|v| known.get(v).cloned().unwrap_or_default()).collect();
                let results = self.function(called, given);
                self.depth -= 1;
                results
            }
            "while" => op.operands.iter().map(|v| known.get(v).cloned().unwrap_or_default()).collect(),
            _ => {
                let results = op.results.iter().filter_map(|r| dims(f, *r)).map(|out| {
                    let mut axes: DimAxes = vec![Vec::new(); out.len()];
                    for (k, operand) in op.operands.iter().enumerate() {
                        let (Some(own), Some(from)) = (known.get(operand), dims(f, *operand)) else {
                            continue;
                        };
                        for (d, to) in along(name, op, k, &from, &out, f) {
                            join(&mut axes, to, own.get(d));
                        }
                    }
                    axes
                });
                results.collect()
            }
        }
    }
}

/// Adds axes to a dimension without axes, unless they split another dimension.
fn join(axes: &mut DimAxes, to: usize, own: Option<&Vec<String>>) {
    let Some(own) = own.filter(|own| !own.is_empty()) else { return };
    let taken = axes.iter().flatten().any(|a| own.contains(a));
    if let Some(place) = axes.get_mut(to).filter(|place| place.is_empty() && !taken) {
        place.clone_from(own);
    }
}

fn dims(f: &MlirFunction, value: FunctionValue) -> Option<Vec<u64>> {
    match f.values.get(value)? {
        MlirType::Tensor(t) => t.dims.iter().copied().collect(),
        _ => None,
    }
}

/// Returns the shardings attribute of `sdy.manual_computation`.
fn shardings(attributes: &NamedAttributes, name: &str) -> Vec<DimAxes> {
    let one = |item: &Attribute| said(item).map(|(_, dims, _)| closed(dims)).unwrap_or_default();
    match find(attributes, name) {
        Some(Attribute::List(items)) => items.iter().map(one).collect(),
        _ => Vec::new(),
    }
}

fn numbers(attributes: &NamedAttributes, name: &str) -> Vec<usize> {
    let int = |item: &Attribute| match item {
        Attribute::Int(i) => usize::try_from(*i).ok(),
        _ => None,
    };
    match find(attributes, name) {
        Some(Attribute::Array(_, items) | Attribute::List(items)) => items.iter().filter_map(int).collect(),
        Some(Attribute::Dense(dense)) => match &dense.elements {
            ElementData::List(_, words) | ElementData::Splat(words) => {
                words.iter().filter_map(|w| w.parse().ok()).collect()
            }
            _ => Vec::new(),
        },
        Some(one) => int(one).into_iter().collect(),
        None => Vec::new(),
    }
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
