//! Converts replica groups given as mesh axes to lists of device numbers.

use crate::device_sharding::DeviceSharding;
use crate::import::types::wrong;
use crate::syntax::{
    Attribute, DenseElements, ElementData, MlirModule, MlirRegion, MlirType, NamedAttributes,
    RankedTensorType, find,
};
use systole_base::Result;

/// Attributes that may contain groups.
const NAME: &str = "replica_groups";
/// Maximum depth of nested regions.
const MOST_DEPTH: usize = 64;
/// Meshes with more devices are rejected.
const MOST_DEVICES: u64 = 1 << 10;

/// Returns the module with numbers in place of axes; `None` if it has no such groups.
///
/// # Errors
/// `Data` if a mesh or an axis does not exist.
pub(crate) fn written(module: &MlirModule) -> Result<Option<MlirModule>> {
    if !module.functions.iter().any(|f| has_axes(&f.body, 0)) {
        return Ok(None);
    }
    let mut own = module.clone();
    for f in &mut own.functions {
        write(&mut f.body, module, 0)?;
    }
    Ok(Some(own))
}

/// Returns the mesh and its axes if groups are given as axes.
fn axes(attributes: &NamedAttributes) -> Option<(&Attribute, &[Attribute])> {
    let Some(Attribute::Struct(kind, fields)) = find(attributes, NAME) else { return None };
    match find(fields, "axes") {
        Some(Attribute::List(axes)) if kind == "replica_group_mesh_axes" => {
            Some((find(fields, "mesh")?, axes))
        }
        _ => None,
    }
}

fn has_axes(region: &MlirRegion, depth: usize) -> bool {
    let within = |op: &crate::syntax::Operation| {
        axes(&op.attributes).is_some()
            || op.regions.iter().any(|r| depth < MOST_DEPTH && has_axes(r, depth + 1))
    };
    region.operations.iter().any(within)
}

fn write(region: &mut MlirRegion, module: &MlirModule, depth: usize) -> Result<()> {
    for op in &mut region.operations {
        if let Some((mesh, names)) = axes(&op.attributes) {
            let groups = numbers(mesh, names, module)?;
            for (_, value) in op.attributes.iter_mut().filter(|(name, _)| name == NAME) {
                *value = groups.clone();
            }
        }
        if depth < MOST_DEPTH {
            op.regions.iter_mut().try_for_each(|r| write(r, module, depth + 1))?;
        }
    }
    Ok(())
}

/// Returns the name of an axis: `"x"`, or `"x":(1)2` for a sub-axis.
fn name_of(axis: &Attribute) -> Result<String> {
    let Attribute::Struct(_, fields) = axis else {
        return Err(wrong("an axis of a device group has no name"));
    };
    match (find(fields, "name"), find(fields, "sub_axis_info")) {
        (Some(Attribute::String(name)), None) => Ok(name.clone()),
        (Some(Attribute::String(name)), Some(Attribute::Other(_, part))) => Ok(format!("{name}:{part}")),
        _ => Err(wrong("an axis of a device group has no name")),
    }
}

/// Groups devices that differ only along the axes.
fn numbers(mesh: &Attribute, names: &[Attribute], module: &MlirModule) -> Result<Attribute> {
    let mesh = match mesh {
        Attribute::Symbol(mesh) | Attribute::String(mesh) => module.mesh(mesh),
        _ => None,
    };
    let mesh = mesh.ok_or_else(|| wrong("a device group names an unknown mesh"))?;
    let count = mesh.axes.iter().try_fold(1u64, |n, (_, size)| n.checked_mul(*size));
    let count = count.filter(|n| (1..=MOST_DEVICES).contains(n));
    let count = count.ok_or_else(|| wrong(format!("a mesh has more than {MOST_DEVICES} devices")))?;
    let names = names.iter().map(name_of).collect::<Result<Vec<_>>>()?;
    let groups = DeviceSharding::on_mesh(&[], &names, mesh, count as usize)?.sums();
    let dims = vec![groups.len(), groups.first().map_or(0, Vec::len)];
    let words = groups.iter().flatten().map(usize::to_string).collect();
    let ty = RankedTensorType {
        dims: dims.iter().map(|d| Some(*d as u64)).collect(),
        element: "i64".into(),
        encoding: None,
    };
    Ok(Attribute::Dense(DenseElements { ty: MlirType::Tensor(ty), elements: ElementData::List(dims, words) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns groups given as axes, as bytecode has them.
    fn by_axes(names: &[&str]) -> Attribute {
        let axis = |name: &&str| {
            let fields = match name.split_once(':') {
                None => vec![("name".into(), Attribute::String((*name).into()))],
                Some((name, part)) => vec![
                    ("name".into(), Attribute::String(name.into())),
                    ("sub_axis_info".into(), Attribute::Other("sub_axis".into(), part.into())),
                ],
            };
            Attribute::Struct("axis_ref".into(), fields)
        };
        let axes = Attribute::List(names.iter().map(axis).collect());
        let mesh = Attribute::Symbol("mesh".into());
        Attribute::Struct(
            "replica_group_mesh_axes".into(),
            vec![("mesh".into(), mesh), ("axes".into(), axes)],
        )
    }

    fn groups(names: &[&str]) -> Result<Option<String>> {
        let text = "sdy.mesh @mesh = <[\"x\"=2, \"y\"=4]>
            func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
              %0 = \"stablehlo.all_gather\"(%a) {all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}
                : (tensor<4xf32>) -> tensor<4xf32>
              return %0 : tensor<4xf32>
            }";
        let mut module = crate::text::parse(text)?;
        assert!(written(&module)?.is_none());
        let attributes = &mut module.functions[0].body.operations[0].attributes;
        attributes.iter_mut().filter(|(n, _)| n == NAME).for_each(|(_, value)| *value = by_axes(names));
        let own = written(&module)?;
        let told = own.map(|m| match find(&m.functions[0].body.operations[0].attributes, NAME) {
            Some(Attribute::Dense(DenseElements { elements: ElementData::List(_, words), .. })) => {
                words.join(" ")
            }
            other => format!("{other:?}"),
        });
        Ok(told)
    }

    #[test]
    fn axes_of_a_mesh_become_groups_of_devices() -> Result<()> {
        assert_eq!(groups(&["x"])?.as_deref(), Some("0 4 1 5 2 6 3 7"));
        assert_eq!(groups(&["y"])?.as_deref(), Some("0 1 2 3 4 5 6 7"));
        assert_eq!(groups(&["y", "x"])?.as_deref(), Some("0 4 1 5 2 6 3 7"));
        assert_eq!(groups(&["y:(1)2"])?.as_deref(), Some("0 2 1 3 4 6 5 7"));
        assert!(groups(&["z"]).is_err());
        Ok(())
    }
}
