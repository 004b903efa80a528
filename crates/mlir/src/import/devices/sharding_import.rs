//! Imports argument and result shardings: Shardy mesh axes, or GSPMD strings converted to mesh axes. Shardings that
//! axes cannot express are dropped, since a sharding changes no value.

use crate::device_sharding::DeviceSharding;
use crate::import::attribute::device_count;
use crate::interface::{ProgramInterface, ProgramPort};
use crate::syntax::{Attribute, MlirFunction, MlirModule, NamedAttributes, closed, find};
use systole_base::{Result, TensorType};
use systole_ir::{Graph, Mesh, Sharding, Shardings};

/// Attributes and type of each array that holds an argument or a result.
type ArrayAnnotations<'a> = Vec<(&'a NamedAttributes, TensorType)>;

/// Returns the shardings of a module; `None` if the program is for one device or has none.
pub(crate) fn of(
    module: &MlirModule,
    main: &MlirFunction,
    interface: &ProgramInterface,
    graph: &Graph,
) -> Result<Option<Shardings>> {
    let results = main.results.iter().map(|(_, a)| a);
    let params = held(main.parameters.iter(), &interface.arguments, graph.param_types());
    let results = held(results, &interface.results, graph.result_types());
    let Some(mesh) = module.meshes.iter().find(|mesh| !mesh.axes.is_empty()) else {
        return of_texts(module, &params, &results);
    };
    if !mesh.devices.is_empty() {
        // Another order of the devices.
        return Ok(None);
    }
    let mesh = Mesh::new(mesh.axes.iter().map(|(name, size)| (name.as_str(), *size as usize)))?;
    let each = |said: &ArrayAnnotations<'_>| -> Result<Vec<Sharding>> {
        let one = |(attributes, ty): &(&NamedAttributes, TensorType)| match find(attributes, "sdy.sharding") {
            Some(Attribute::Sharding(_, dims)) => Sharding::of_axes(&closed(dims), &mesh, ty),
            _ => Ok(Sharding::replicated(ty.rank())),
        };
        said.iter().map(one).collect()
    };
    let (params, results) = (each(&params)?, each(&results)?);
    Ok(Some(Shardings { mesh, params, results }))
}

fn held<'a>(
    all: impl Iterator<Item = &'a NamedAttributes>,
    faces: &[ProgramPort],
    types: Vec<TensorType>,
) -> ArrayAnnotations<'a> {
    let each = all.zip(faces).flat_map(|(a, f)| std::iter::repeat_n(a, f.element.held().len()));
    each.zip(types).collect()
}

/// Converts GSPMD strings: the axes are the prime factors of the number of devices, in an order that fits all strings.
fn of_texts(
    module: &MlirModule,
    params: &ArrayAnnotations<'_>,
    results: &ArrayAnnotations<'_>,
) -> Result<Option<Shardings>> {
    let devices = device_count(module)?;
    let read = |(attributes, ty): &(&NamedAttributes, TensorType)| match find(attributes, "mhlo.sharding") {
        Some(Attribute::String(text)) if !text.trim().is_empty() => {
            DeviceSharding::of_text(text, ty.rank(), devices)
        }
        _ => Ok(DeviceSharding::replicated(ty.rank(), devices)),
    };
    let all = params.iter().chain(results).map(read).collect::<Result<Vec<DeviceSharding>>>();
    let Some(all) = all.ok().filter(|all| all.iter().any(|t| !t.is_replicated())) else { return Ok(None) };
    let mut sizes = prime_factors(devices);
    for _ in 0..2 {
        let axes: Vec<(String, u64)> =
            sizes.iter().enumerate().map(|(i, size)| (format!("d{i}"), *size as u64)).collect();
        let mesh = Mesh::new(axes.iter().map(|(name, size)| (name.as_str(), *size as usize)))?;
        let one = |(tiles, (_, ty)): (&DeviceSharding, &(&NamedAttributes, TensorType))| {
            Sharding::of_axes(&tiles.axes(&axes)?, &mesh, ty).ok()
        };
        let fitting = all.iter().zip(params.iter().chain(results)).map(one).collect::<Option<Vec<_>>>();
        if let Some(mut params_) = fitting {
            let results = params_.split_off(params.len());
            return Ok(Some(Shardings { mesh, params: params_, results }));
        }
        sizes.reverse();
    }
    Ok(None)
}

/// Returns the prime factors, smallest first.
fn prime_factors(mut n: usize) -> Vec<usize> {
    let (mut all, mut p) = (Vec::new(), 2);
    while n > 1 {
        if n.is_multiple_of(p) {
            all.push(p);
            n /= p;
        } else {
            p += 1;
        }
    }
    all
}
