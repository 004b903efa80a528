//! Reads sharding and donation annotations (GSPMD, Shardy) of imported programs. Results without a sharding get one by
//! propagation.

use crate::attributes::{DimAxes, stated};
use crate::auto_layout;
use crate::call::{CallError, CallResult};
use crate::device::MEMORY_KINDS;
use crate::propagation::{ShardingWalk, inspects, join};
use std::collections::HashMap;
use systole_mlir::device_sharding::DeviceSharding;
use systole_mlir::import::effects::contains;
use systole_mlir::syntax::{
    Attribute, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType, NamedAttributes, OPEN,
    Operation, closed, find,
};

/// Donation of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Donation {
    /// The argument remains the caller's.
    Kept,
    /// Its memory is for this result.
    For(Option<usize>),
    /// Its memory is for any result of its size; without such a result, the argument remains the caller's, as in XLA.
    Any,
}

/// Returns whether each argument is donated; sizes are in bytes on a device.
pub(crate) fn donated(donations: &[Donation], arguments: &[usize], results: &[usize]) -> Vec<bool> {
    let mut free: Vec<Option<usize>> = results.iter().copied().map(Some).collect();
    for donation in donations {
        if let Donation::For(Some(result)) = donation
            && let Some(size) = free.get_mut(*result)
        {
            *size = None;
        }
    }
    let one = |(donation, size): (&Donation, &usize)| match donation {
        Donation::Kept => false,
        Donation::For(_) => true,
        Donation::Any => {
            let found = free.iter_mut().find(|result| **result == Some(*size));
            found.map(Option::take).is_some()
        }
    };
    donations.iter().zip(arguments).map(one).collect()
}

/// Shardings, donations and layouts of a module's entry function.
#[derive(Debug)]
pub(crate) struct ShardingAnnotations {
    /// Sharding of each argument.
    pub(crate) arguments: Vec<DeviceSharding>,
    /// Sharding of each result, stated or propagated.
    pub(crate) results: Vec<DeviceSharding>,
    /// Whether and how the caller donates each argument.
    pub(crate) donations: Vec<Donation>,
    /// Stated layout of each argument; stated or chosen layout of each result; empty if none.
    pub(crate) argument_layouts: Vec<String>,
    pub(crate) result_layouts: Vec<String>,
    /// Index of the memory kind of each argument and each result.
    pub(crate) argument_memories: Vec<usize>,
    pub(crate) result_memories: Vec<usize>,
    /// Whether each result is a token.
    pub(crate) tokens: Vec<bool>,
    /// Attributes of each call that inspects a sharding, with the sharding as GSPMD text.
    pub(crate) inspections: Vec<(String, String)>,
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
    let mut propagated: Option<Vec<DimAxes>> = None;
    for (i, (ty, attributes)) in main.results.iter().enumerate() {
        let whole = DeviceSharding::replicated(rank(Some(ty)), devices);
        let told = tiles(module, attributes, rank(Some(ty)), devices)?;
        let may = devices > 1 && chooses.get(i).or(chooses.last()).copied().unwrap_or(true);
        let found = match may && is_open(attributes) {
            true => {
                let propagated =
                    propagated.get_or_insert_with(|| ShardingWalk::new(module).main(main).0).get(i);
                followed(module, attributes, rank(Some(ty)), devices, propagated).or(told)
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
    let donations = main.parameters.iter().map(donation).collect();
    let layout = |attributes: &NamedAttributes| match find(attributes, "mhlo.layout_mode") {
        Some(Attribute::String(mode)) => mode.clone(),
        _ => String::new(),
    };
    let argument_layouts: Vec<String> = main.parameters.iter().map(layout).collect();
    let result_layout = |(k, (_, attributes)): (usize, &(MlirType, NamedAttributes))| match layout(attributes)
    {
        mode if mode == "auto" => auto_layout::chosen(module, main, k, &argument_layouts),
        mode => mode,
    };
    let result_layouts = main.results.iter().enumerate().map(result_layout).collect();
    let argument_memories = main.parameters.iter().map(memory_kind).collect::<CallResult<_>>()?;
    let result_memories =
        main.results.iter().map(|(_, attributes)| memory_kind(attributes)).collect::<CallResult<_>>()?;
    let tokens = main.results.iter().map(|(ty, _)| *ty == MlirType::Token).collect();
    if let Some(main) = module.functions.get_mut(at) {
        let own = |attributes: &mut NamedAttributes| attributes.retain(|(name, _)| name != "sdy.sharding");
        main.parameters.iter_mut().for_each(own);
        main.results.iter_mut().for_each(|(_, attributes)| own(attributes));
    }
    Ok(ShardingAnnotations {
        arguments,
        results,
        donations,
        argument_layouts,
        result_layouts,
        argument_memories,
        result_memories,
        tokens,
        inspections,
    })
}

/// Removes constraints, groups and attributes of Shardy, which change no value; meshes remain if manual computations
/// do. Returns whether there were any.
pub(crate) fn remove(module: &mut MlirModule) -> CallResult<bool> {
    let is_shardys =
        |op: &Operation| op.name.starts_with("sdy.") || find(&op.attributes, "sdy.sharding").is_some();
    let has_some = |f: &MlirFunction| contains(module, std::slice::from_ref(&f.body), is_shardys);
    if !module.functions.iter().any(has_some) {
        return Ok(false);
    }
    take(module, 1, &[])?;
    for f in &mut module.functions {
        let all = f.parameters.iter_mut().chain(f.results.iter_mut().map(|(_, attributes)| attributes));
        all.for_each(|attributes| attributes.retain(|(name, _)| name != "sdy.sharding"));
        remove_from(&mut f.body, &mut HashMap::new());
    }
    let is_manual = |op: &Operation| op.name.starts_with("sdy.");
    let has_manual = |f: &MlirFunction| contains(module, std::slice::from_ref(&f.body), is_manual);
    if !module.functions.iter().any(has_manual) {
        module.meshes.clear();
    }
    Ok(true)
}

/// `same` has the operand of each removed constraint by its result.
fn remove_from(region: &mut MlirRegion, same: &mut HashMap<FunctionValue, FunctionValue>) {
    region.operations.retain_mut(|op| {
        op.operands.iter_mut().for_each(|v| *v = same.get(v).copied().unwrap_or(*v));
        op.attributes.retain(|(name, _)| name != "sdy.sharding");
        op.regions.iter_mut().for_each(|region| remove_from(region, same));
        match (op.name.as_str(), &op.operands[..], &op.results[..]) {
            ("sdy.sharding_group", ..) => false,
            ("sdy.sharding_constraint" | "sdy.reshard", [operand], [result]) => {
                same.insert(*result, *operand);
                false
            }
            _ => true,
        }
    });
}

/// Returns the shardings that calls inspect.
fn inspections(module: &MlirModule, main: &MlirFunction, devices: usize) -> Vec<(String, String)> {
    let has_some = |f: &MlirFunction| contains(module, std::slice::from_ref(&f.body), inspects);
    if !module.functions.iter().any(has_some) {
        return Vec::new();
    }
    let (_, inspected) = ShardingWalk::new(module).main(main);
    let text = |axes: Option<DimAxes>| match axes {
        None => "{manual}".to_owned(),
        Some(axes) => {
            let found =
                module.meshes.iter().find_map(|m| DeviceSharding::on_mesh(&axes, &[], m, devices).ok());
            found.unwrap_or_else(|| DeviceSharding::replicated(axes.len(), devices)).to_text()
        }
    };
    inspected.into_iter().map(|(config, axes)| (config, text(axes))).collect()
}

/// Index of the memory kind that an argument or a result states.
fn memory_kind(attributes: &NamedAttributes) -> CallResult<usize> {
    let Some(Attribute::String(stated)) = find(attributes, "mhlo.memory_kind") else { return Ok(0) };
    let found = MEMORY_KINDS.iter().position(|kind| kind == stated);
    found.ok_or_else(|| {
        CallError::invalid(format!("unknown memory kind `{stated}`, expected one of {MEMORY_KINDS:?}"))
    })
}

fn donation(attributes: &NamedAttributes) -> Donation {
    let alias = find(attributes, "tf.aliasing_output");
    let is_donor =
        matches!(find(attributes, "jax.buffer_donor"), Some(Attribute::Bool(true) | Attribute::Unit));
    match (alias, is_donor) {
        (Some(Attribute::Int(result)), _) => Donation::For(usize::try_from(*result).ok()),
        (Some(_), _) => Donation::For(None),
        (None, true) => Donation::Any,
        (None, false) => Donation::Kept,
    }
}

/// Returns the stated sharding of an argument or result.
fn tiles(
    module: &MlirModule,
    attributes: &NamedAttributes,
    rank: usize,
    devices: usize,
) -> CallResult<Option<DeviceSharding>> {
    if let Some((mesh, dims, unreduced)) = find(attributes, "sdy.sharding").and_then(stated) {
        return of_axes(module, mesh, &closed(dims), &unreduced, rank, devices).map(Some);
    }
    match find(attributes, "mhlo.sharding") {
        Some(Attribute::String(text)) => Ok(Some(DeviceSharding::of_text(text, rank, devices)?)),
        _ => Ok(None),
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
    let none = dims.iter().all(Vec::is_empty) && unreduced.is_empty();
    let whole = devices == 1 || dims.len() != rank || none;
    match module.mesh(mesh) {
        Some(mesh) if !whole && !mesh.axes.is_empty() => {
            Ok(DeviceSharding::on_mesh(dims, unreduced, mesh, devices)?)
        }
        _ => Ok(DeviceSharding::replicated(rank, devices)),
    }
}

/// Returns the stated axes; open dimensions take those of `own`.
fn constrained(dims: &DimAxes, own: Option<&DimAxes>) -> DimAxes {
    let mut axes = dims.clone();
    for d in 0..dims.len() {
        join(&mut axes, d, own.and_then(|own| own.get(d)));
    }
    closed(&axes)
}

/// Returns a result's sharding from stated and propagated axes; `None` if there are none.
fn followed(
    module: &MlirModule,
    attributes: &NamedAttributes,
    rank: usize,
    devices: usize,
    propagated: Option<&DimAxes>,
) -> Option<DeviceSharding> {
    let open = vec![vec![OPEN.to_owned()]; rank];
    let (axes, unreduced) = match find(attributes, "sdy.sharding").and_then(stated) {
        Some((_, dims, unreduced)) => (constrained(dims, propagated), unreduced),
        None => (constrained(&open, propagated), Vec::new()),
    };
    if axes.iter().all(Vec::is_empty) && unreduced.is_empty() {
        return None;
    }
    // Axes with equal names are equal in all meshes of a module.
    module.meshes.iter().find_map(|mesh| DeviceSharding::on_mesh(&axes, &unreduced, mesh, devices).ok())
}

/// Whether a result has an open dimension, whose sharding may be propagated.
fn is_open(attributes: &NamedAttributes) -> bool {
    match find(attributes, "sdy.sharding").and_then(stated) {
        Some((_, dims, _)) => dims.iter().flatten().any(|axis| axis == OPEN),
        None => find(attributes, "mhlo.sharding").is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Donation::*, donated};

    #[test]
    fn an_argument_is_donated_to_one_result_of_its_size() {
        assert_eq!(donated(&[Any, Kept, Any, Any], &[8, 8, 8, 4], &[8, 8, 16]), [true, false, true, false]);
        assert_eq!(donated(&[For(Some(1)), Any, Any], &[8, 8, 8], &[8, 8]), [true, true, false]);
        assert_eq!(donated(&[For(None), For(Some(9))], &[8, 8], &[]), [true, true]);
    }
}
