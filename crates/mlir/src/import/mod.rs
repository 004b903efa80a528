//! Imports an [`MlirModule`] as a [`ImportedProgram`]: inlines calls and decomposes ops of other dialects to StableHLO.

mod approx_top_k;
mod attribute;
mod batch_norm;
mod bodies;
mod call;
mod check;
mod chlo;
mod complex;
mod complex_number;
mod const_eval;
mod control;
mod demote;
mod devices;
mod dynamic;
pub mod effects;
mod ffi_call;
mod fft;
mod gather_dot;
mod host_call;
mod importer;
mod linalg;
mod power;
mod quantized;
mod stablehlo;
mod table;
mod types;
mod value;

use crate::device_sharding::DeviceSharding;
use crate::interface::{ProgramInterface, ProgramPort, SourceElement};
use crate::syntax::{Attribute, MlirFunction, MlirModule, MlirRegion, MlirType, Operation, SourceSpan, find};
use call::{ArrayCall, ImportRule, OpCall, OpImport, emit};
pub use check::ResultCheck;
use devices::{groups, run_parallel, sharding_import};
use effects::{HostCalls, OrderRole};
pub use ffi_call::{FfiAttribute, FfiCall, UntypedCall};
use importer::{CallFrame, Importer, MAX_CALLS, place};
use std::sync::Arc;
use systole_base::{DType, Literal, Result, ResultExt, TensorType, ensure, err};
use systole_ir::text::StableHloProgram;
use systole_ir::{Graph, GraphBuilder, Tensor, control_builders};
use types::{element, fits, held, is_settled, not_there, unsettled, wrong};
use value::ImportedValue;

/// Maximum number of ops after inlining.
const MOST_OPS: usize = 1 << 22;

/// An imported MLIR module: graph, argument and result types.
#[derive(Clone, Debug)]
pub struct ImportedProgram {
    /// The program; after its own results, its graph returns the arrays that `checks` compare and, if it calls host
    /// functions with side effects, the last order token.
    pub program: StableHloProgram,
    /// Source types of the arguments and results.
    pub interface: ProgramInterface,
    /// The module's assertions about its own results.
    pub checks: Vec<ResultCheck>,
    /// For each result, whether each device holds its own term of a sum; otherwise the result is the same on all
    /// devices.
    pub terms: Vec<bool>,
    /// Whether the order of sums is open, as in ONNX and .tflite: convolutions may use Winograd transforms. StableHLO
    /// programs follow the definition.
    pub sums_in_any_order: bool,
    /// Source positions: the last node of each op and the op's position, in order.
    places: Vec<(u32, SourceSpan)>,
}

impl ImportedProgram {
    /// Wraps a graph that was imported from another format than StableHLO: each argument and result is one array.
    pub fn of_graph(graph: Arc<Graph>) -> ImportedProgram {
        let face = |(first, ty): (usize, &TensorType)| ProgramPort {
            dims: ty.shape.to_vec(),
            element: SourceElement::Plain(ty.dtype),
            first,
        };
        let faces = |types: Vec<TensorType>| types.iter().enumerate().map(face).collect();
        let interface =
            ProgramInterface { arguments: faces(graph.param_types()), results: faces(graph.result_types()) };
        let terms = vec![false; interface.results.len()];
        let program = StableHloProgram { graph, donated: Vec::new(), spread: None };
        ImportedProgram {
            program,
            interface,
            checks: Vec::new(),
            terms,
            sums_in_any_order: true,
            places: Vec::new(),
        }
    }

    /// Returns the source position of the op that a graph node was imported from.
    pub fn place(&self, node: usize) -> Option<SourceSpan> {
        let next = self.places.partition_point(|(last, _)| (*last as usize) < node);
        self.places.get(next).map(|(_, place)| *place)
    }
}

/// Imports the entry function of a module: `main`, or the first function that is not private.
///
/// # Errors
/// `Data` if the module is inconsistent, `Unsupported` for unsupported ops and types; each with its position.
pub fn program(module: &MlirModule) -> Result<ImportedProgram> {
    of_target(module, entry(module)?, ImportTarget::default())
}

/// Like [`program`], for the CPU engine, which has kernels for Fourier transforms, and with the result shardings
/// `tiles`: unreduced results of manual computations stay per-device terms of a sum.
///
/// # Errors
/// See [`program`].
pub fn on_devices(module: &MlirModule, tiles: &[DeviceSharding]) -> Result<ImportedProgram> {
    of_target(module, entry(module)?, ImportTarget { has_fft: true, tiles })
}

/// Returns the function to import.
fn entry(module: &MlirModule) -> Result<&MlirFunction> {
    let main = module.functions.iter().find(|f| f.name == "main");
    main.or_else(|| module.functions.iter().find(|f| !f.is_private)).ok_or_else(|| {
        err!(Data, "the module has no function to run").hint("add a function `main` that is not private")
    })
}

/// Like [`program`], for one function of the module.
///
/// # Errors
/// See [`program`].
pub fn of_function(module: &MlirModule, main: &MlirFunction) -> Result<ImportedProgram> {
    of_target(module, main, ImportTarget::default())
}

/// What the importer knows of the backend that will run a program.
#[derive(Clone, Copy, Default)]
struct ImportTarget<'a> {
    /// Whether it has kernels for Fourier transforms.
    has_fft: bool,
    /// Shardings of the results over its devices.
    tiles: &'a [DeviceSharding],
}

fn of_target(module: &MlirModule, main: &MlirFunction, target: ImportTarget<'_>) -> Result<ImportedProgram> {
    let named = |own: &MlirModule| own.functions.iter().find(|f| f.name == main.name).cloned();
    if let Some(own) = quantized::in_storage_types(module)? {
        let main = named(&own).unwrap_or_else(|| main.clone());
        return of_target(&own, &main, target);
    }
    let Some(own) = groups::written(module)? else { return of_numbered(module, main, target) };
    let main = own.functions.iter().find(|f| f.name == main.name).unwrap_or(main);
    of_numbered(&own, main, target)
}

/// Imports a function of a module whose device groups are numbers.
fn of_numbered(
    module: &MlirModule,
    main: &MlirFunction,
    target: ImportTarget<'_>,
) -> Result<ImportedProgram> {
    let g = GraphBuilder::new(&main.name);
    let (arguments, parameters) = arguments_of(main, &g)?;
    let host_calls = HostCalls::of(module);
    let mut importer = Importer {
        module,
        calls: Vec::new(),
        ops: 0,
        checks: Vec::new(),
        compared: Vec::new(),
        regions: 0,
        places: Vec::new(),
        probes: Vec::new(),
        terms: Vec::new(),
        has_fft: target.has_fft,
        host_calls,
        order: host_calls.first_order(&g),
    };
    let results = importer.function(main, arguments, &g)?;
    let own = elements_of(main, &results);
    let parts_of = |given: &ImportedValue| match given {
        ImportedValue::Token => Ok(vec![g.constant(Literal::zeros(token()))]),
        other => other.parts(),
    };
    let mut parts = results.iter().map(parts_of).collect::<Result<Vec<_>>>()?;
    let terms = parts
        .iter_mut()
        .enumerate()
        .map(|(i, parts)| importer.keep_terms(parts, target.tiles.get(i)))
        .collect();
    let mut results: Vec<Tensor> = parts.into_iter().flatten().collect();
    results.append(&mut importer.compared);
    results.extend(importer.order);
    let graph = g.finish(&results)?;
    let interface = ProgramInterface {
        arguments: faces(&parameters, &graph.param_types()),
        results: faces(&own, &graph.result_types()),
    };
    let spread = sharding_import::of(module, main, &interface, &graph)?;
    let program = StableHloProgram { donated: donated(main, &interface), spread, graph };
    let (checks, places) = (importer.checks, importer.places);
    Ok(ImportedProgram { program, interface, checks, terms, sums_in_any_order: false, places })
}

/// Appends the parameters of `main` and returns them with the element types that they have in the source.
fn arguments_of(main: &MlirFunction, g: &GraphBuilder) -> Result<(Vec<ImportedValue>, Vec<SourceElement>)> {
    let (mut arguments, mut parameters) = (Vec::new(), Vec::new());
    for (i, (value, name)) in main.body.arguments.iter().zip(&main.names).enumerate() {
        let ty = main.values.get(*value).ok_or_else(|| wrong("a parameter has no type"))?;
        if *ty == MlirType::Token {
            g.parameter(token(), name);
            arguments.push(ImportedValue::Token);
            parameters.push(SourceElement::Plain(DType::Bool));
            continue;
        }
        ensure!(is_settled(ty), unsettled(ty).at(format!("argument {i} of @{}", main.name)));
        let types = held(ty).at(|| format!("parameter `{name}` of @{}", main.name))?;
        let mut parts = types.iter().map(|ty| g.parameter(ty.clone(), name));
        arguments.extend(ImportedValue::of_parts(&mut parts, types.len()));
        parameters.push(element(ty)?);
    }
    Ok((arguments, parameters))
}

/// Type of a token argument, as in JAX: an array without elements.
fn token() -> TensorType {
    TensorType::new(DType::Bool, [0])
}

/// Returns the element types of the results: as the function states, otherwise those of the arrays.
fn elements_of(main: &MlirFunction, results: &[ImportedValue]) -> Vec<SourceElement> {
    let of = |(i, given): (usize, &ImportedValue)| match given {
        ImportedValue::Complex(re, _) => SourceElement::Complex(re.dtype()),
        ImportedValue::Array(t) => {
            let said = main.results.get(i).and_then(|(ty, _)| element(ty).ok());
            said.filter(|e| e.held() == [t.dtype()]).unwrap_or(SourceElement::Plain(t.dtype()))
        }
        _ => SourceElement::Plain(DType::Bool),
    };
    results.iter().enumerate().map(of).collect()
}

/// Returns the interface of arguments or results, without arrays that are only compared.
fn faces(elements: &[SourceElement], types: &[TensorType]) -> Vec<ProgramPort> {
    let mut first = 0;
    let mut all = Vec::new();
    for &element in elements {
        let Some(ty) = types.get(first) else { break };
        all.push(ProgramPort { dims: ty.shape.iter().copied().collect(), element, first });
        first += element.held().len();
    }
    all
}

/// Returns pairs of donated parameters and the results that reuse their memory, for each part.
fn donated(main: &MlirFunction, interface: &ProgramInterface) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (p, attributes) in main.parameters.iter().enumerate() {
        let Some(Attribute::Int(r)) = find(attributes, "tf.aliasing_output") else { continue };
        let faces = interface.arguments.get(p).zip(usize::try_from(*r).ok());
        let Some((from, to)) = faces.and_then(|(from, r)| Some((from, interface.results.get(r)?))) else {
            continue;
        };
        let free = pairs.iter().all(|(_, taken)| *taken != to.first);
        if free && from.element.held().len() == to.element.held().len() {
            pairs.extend((0..from.element.held().len()).map(|i| (from.first + i, to.first + i)));
        }
    }
    pairs
}

impl<'m> Importer<'m> {
    /// Records the source position of the nodes up to this value, unless a call has already recorded them.
    fn note(&mut self, t: &Tensor, op: &Operation) {
        let node = t.id().node;
        if self.regions == 0 && self.places.last().is_none_or(|(last, _)| *last < node) {
            self.places.push((node, op.place));
        }
    }

    fn function(
        &mut self,
        f: &'m MlirFunction,
        arguments: Vec<ImportedValue>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        if self.calls.contains(&f.name.as_str()) || self.calls.len() == MAX_CALLS {
            return Err(not_there(format!("@{} is recursive", f.name)));
        }
        if arguments.len() != f.body.arguments.len() {
            return Err(wrong(format!("@{} takes {} arguments", f.name, f.body.arguments.len())));
        }
        self.calls.push(&f.name);
        let mut frame = CallFrame { function: f, values: vec![None; f.values.len()] };
        for (value, given) in f.body.arguments.iter().zip(arguments) {
            frame.set(*value, given);
        }
        let results = self.body(&f.body, &mut frame, g);
        self.calls.pop();
        results
    }

    /// Imports the ops of a region with known arguments; returns the operands of its terminator.
    fn body(
        &mut self,
        region: &'m MlirRegion,
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        for op in &region.operations {
            self.ops += 1;
            if self.ops > MOST_OPS {
                return Err(not_there(format!("the program has more than {MOST_OPS} ops after inlining")));
            }
            let operands = op.operands.iter().map(|v| frame.get(*v)).collect::<Result<Vec<_>>>();
            let operands = operands.at(|| place(op))?;
            if matches!(op.name.as_str(), "stablehlo.return" | "func.return" | "mhlo.return" | "sdy.return") {
                return Ok(operands);
            }
            let results = self.operation(op, operands, frame, g).at(|| place(op))?;
            if results.len() != op.results.len() {
                return Err(wrong(format!("the op has {} results", results.len())).at(place(op)));
            }
            let keeps = table::row(op).keeps_elements;
            for (value, given) in op.results.iter().zip(results) {
                let given = demote::fitted(keeps, given, frame.ty(*value)?);
                let parts = given.parts().unwrap_or_default();
                parts.iter().for_each(|t| self.note(t, op));
                if let (ImportedValue::Array(t) | ImportedValue::Complex(t, _), said) =
                    (&given, frame.ty(*value)?)
                {
                    held(said).at(|| place(op))?;
                    if !fits(said, &parts) && g.error().is_none() {
                        return Err(
                            wrong(format!("result has type {}, but {said} is stated", t.ty())).at(place(op))
                        );
                    }
                }
                frame.set(*value, given);
            }
        }
        Err(wrong("a region has no terminator"))
    }

    fn operation(
        &mut self,
        op: &'m Operation,
        operands: Vec<ImportedValue>,
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let row = table::row(op);
        match row.import {
            ImportRule::Importer(f) => f(self, op, operands, frame, g),
            ImportRule::Refused(why) => Err(not_there(format!("unsupported op {}", op.name)).because(why)),
            _ => self.values(row, op, operands, frame, g),
        }
    }

    /// Imports an op on values that one or two arrays hold.
    fn values(
        &mut self,
        row: &'static OpImport,
        op: &'m Operation,
        operands: Vec<ImportedValue>,
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let function = frame.function;
        let results =
            op.results.iter().map(|v| function.values.get(*v).ok_or_else(|| wrong("a value has no type")));
        let results = results.collect::<Result<Vec<&MlirType>>>()?;
        let call = OpCall { row, module: self.module, op, operands: &operands, results: &results, g };
        if let ImportRule::Values(f) = row.import {
            return f(&call);
        }
        if let Some(written) = complex::write(&call, table::complex(op))? {
            return Ok(written);
        }
        let from = op.operands.iter().map(|v| frame.ty(*v)).collect::<Result<Vec<_>>>()?;
        if let Some(written) = demote::write(op, &operands, &from, &results)? {
            return Ok(vec![written]);
        }
        let parts = operands.iter().map(ImportedValue::parts).collect::<Result<Vec<_>>>()?;
        let counts = results.iter().map(|ty| held(ty).map_or(1, |parts| parts.len()));
        let counts: Vec<usize> = counts.collect();
        let mut arrays = self.arrays(row, op, parts.into_iter().flatten().collect(), frame, g)?.into_iter();
        let given = |count: &usize| ImportedValue::of_parts(&mut arrays, *count);
        Ok(counts.iter().map_while(given).collect())
    }

    /// Imports an op on arrays.
    fn arrays(
        &mut self,
        row: &OpImport,
        op: &'m Operation,
        mut operands: Vec<Tensor>,
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        let types = op.results.iter().map(|v| held(frame.ty(*v)?)).collect::<Result<Vec<_>>>()?;
        let mut results: Vec<TensorType> = types.into_iter().flatten().collect();
        for value in op.results.iter().filter(|_| row.is_shaped) {
            let ty = frame.ty(*value)?;
            ensure!(is_settled(ty), not_there(format!("{ty}: sizes known only at run time")));
        }
        let arrays = ArrayCall { module: self.module, op, operands: &operands, results: &results, g };
        match row.import {
            ImportRule::Arrays(f) => {
                if let Some(made) = f(&arrays)? {
                    return Ok(made);
                }
            }
            ImportRule::Elements(f) => return Ok(vec![f.apply(&op.name, &operands)?]),
            _ => {}
        }
        let roles = self.order_roles(op);
        let before = self.order.clone();
        let mut regions = Vec::new();
        for (k, region) in op.regions.iter().enumerate() {
            let role = roles[k.min(1)];
            regions.push(self.region((&op.name, role), region, &operands, frame, g)?);
            self.order.clone_from(&before);
        }
        let (captured, regions) = control_builders::finish(&regions)?;
        if let ImportRule::Bodies(f) = row.import
            && let Some(made) = f(&arrays, &captured, &regions)?
        {
            return Ok(self.ordered(roles, made));
        }
        self.thread_order(roles, &mut operands, &mut results, g);
        let made = self.with_bodies(op, operands, results, (captured, regions), g)?;
        Ok(self.ordered(roles, made))
    }

    /// Imports an op whose bodies have been imported.
    fn with_bodies(
        &self,
        op: &Operation,
        operands: Vec<Tensor>,
        results: Vec<TensorType>,
        (captured, regions): (Vec<Tensor>, Vec<Arc<systole_ir::Graph>>),
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        if !captured.is_empty() && !matches!(op.name.as_str(), "stablehlo.while" | "stablehlo.case") {
            let lifted = bodies::lift(&captured, &regions, bodies::kind_of(&op.name))?;
            let operands = bodies::with_further(&op.name, operands, &lifted.further);
            // A complex result is two arrays.
            let own = results.len();
            let all = emit(self.module, op, operands, results, (Vec::new(), lifted.bodies), g)?;
            return Ok(all.into_iter().take(own).collect());
        }
        if operands.len() > 1 && run_parallel::is_each_alone(&op.name) {
            let one = |(x, ty)| emit(self.module, op, vec![x], vec![ty], (Vec::new(), regions.clone()), g);
            let all = operands.into_iter().zip(results).map(one).collect::<Result<Vec<_>>>()?;
            return Ok(all.concat());
        }
        emit(self.module, op, operands, results, (captured, regions), g)
    }

    /// Imports a region of an op with this name, with its own builder.
    fn region(
        &mut self,
        (name, role): (&str, OrderRole),
        region: &'m MlirRegion,
        operands: &[Tensor],
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<(GraphBuilder, Vec<Tensor>)> {
        let inner = g.child("body");
        let types = argument_types(region, operands, frame)?;
        let counts: Vec<usize> = types.iter().map(Vec::len).collect();
        let mut parts: Vec<Vec<Tensor>> = vec![Vec::new(); types.len()];
        for (argument, part) in complex::parameters(name, &counts) {
            if let Some(ty) = types.get(argument).and_then(|parts| parts.get(part)) {
                parts[argument].push(inner.parameter(ty.clone(), "arg"));
            }
        }
        for ((value, parts), count) in region.arguments.iter().zip(parts).zip(counts) {
            if let Some(given) = ImportedValue::of_parts(&mut parts.into_iter(), count) {
                frame.set(*value, given);
            }
        }
        self.enter(role, &inner);
        let results = self.body(region, frame, &inner)?;
        let results = results.iter().map(ImportedValue::parts).collect::<Result<Vec<_>>>()?;
        let mut results = results.into_iter().flatten().collect();
        self.leave(role, &mut results, &inner);
        Ok((inner, results))
    }
}

/// Returns the types of the arrays that hold each argument of a region. Unknown sizes in the type of a loop's state are
/// those of its initial value in `operands`.
fn argument_types(
    region: &MlirRegion,
    operands: &[Tensor],
    frame: &CallFrame<'_>,
) -> Result<Vec<Vec<TensorType>>> {
    let (mut types, mut at) = (Vec::new(), 0);
    for value in &region.arguments {
        let said = frame.ty(*value)?;
        let mut parts = held(said)?;
        let given = operands.get(at..at + parts.len());
        at += parts.len();
        if !is_settled(said) {
            let given = given.filter(|given| fits(said, given)).ok_or_else(|| unsettled(said))?;
            parts = given.iter().map(|t| t.ty().clone()).collect();
        }
        types.push(parts);
    }
    Ok(types)
}
