//! [`Module`] → [`Program`]: calls are unfolded, ops of other dialects are written out in StableHLO's own.

mod attribute;
mod bodies;
mod check;
mod chlo;
mod contract;
mod dynamic;
mod fold;
mod gspmd;
mod parallel;
mod rewrite;
mod types;

use crate::interface::{Element, Face, Interface};
use crate::syntax::{Attribute, Function, Module, Operation, Region, Type, Value};
use crate::text::find;
use attribute::text;
pub use check::Check;
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Result, ResultExt, TensorType};
use systole_ir::op::{Op, Source, entry};
use systole_ir::text::Program;
use systole_ir::{GraphBuilder, Mesh, Sharding, Spread, Tensor, flow};
use types::{fits, is_settled, not_there, tensor_type, unsettled, wrong};

/// Functions that call each other deeper are refused: such programs never end.
const MAX_CALLS: usize = 64;
/// Ops that all calls may unfold to.
const MOST_OPS: usize = 1 << 22;

/// A module as the IR has it.
#[derive(Clone, Debug)]
pub struct Imported {
    /// What it computes; the arrays that `checks` compare are the last results of its graph.
    pub program: Program,
    /// What the module's writer calls its arguments and results.
    pub interface: Interface,
    /// What the module says of its own results.
    pub checks: Vec<Check>,
}

/// The program of a module: `main`, or else the first function that is not private.
///
/// # Errors
/// `Data` where the module contradicts itself; `Unsupported` for what is not there: each with its place.
pub fn program(module: &Module) -> Result<Imported> {
    let main = module.functions.iter().find(|f| f.name == "main");
    let main = main.or_else(|| module.functions.iter().find(|f| !f.is_private)).ok_or_else(|| {
        Error::new(ErrorKind::Data, "the module has no function to run")
            .hint("give it a function `main` that is not private")
    })?;
    of_function(module, main)
}

/// As [`program`], of one function of the module.
///
/// # Errors
/// As [`program`].
pub fn of_function(module: &Module, main: &Function) -> Result<Imported> {
    let g = GraphBuilder::new(&main.name);
    let mut arguments = Vec::new();
    for (value, name) in main.body.arguments.iter().zip(&main.names) {
        let ty = main.values.get(*value).ok_or_else(|| wrong("a parameter without a type"))?;
        if !is_settled(ty) {
            return Err(unsettled(ty).at(format!("argument {name}")));
        }
        arguments.push(Given::Array(g.parameter(tensor_type(ty)?, name)));
    }
    let mut importer = Importer {
        module,
        calls: Vec::new(),
        ops: 0,
        checks: Vec::new(),
        compared: Vec::new(),
        probes: Vec::new(),
    };
    let results = importer.function(main, arguments, &g)?;
    let mut results = results.into_iter().map(Given::array).collect::<Result<Vec<_>>>()?;
    let own = results.len();
    results.append(&mut importer.compared);
    let graph = g.finish(&results)?;
    let spread = spread(module, main, &graph)?;
    let interface = interface(&graph, own);
    let program = Program { donated: donated(main, own), spread, graph };
    Ok(Imported { program, interface, checks: importer.checks })
}

/// The faces of the arguments and of the results that are not only compared.
fn interface(graph: &systole_ir::Graph, own: usize) -> Interface {
    let face = |(first, ty): (usize, TensorType)| Face {
        dims: ty.shape.iter().copied().collect(),
        element: Element::Plain(ty.dtype),
        first,
    };
    Interface {
        arguments: graph.param_types().into_iter().enumerate().map(face).collect(),
        results: graph.result_types().into_iter().take(own).enumerate().map(face).collect(),
    }
}

/// Pairs of parameters and the results that take their memory.
fn donated(main: &Function, results: usize) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (p, attributes) in main.parameters.iter().enumerate() {
        let Some(Attribute::Int(r)) = find(attributes, "tf.aliasing_output") else { continue };
        match usize::try_from(*r) {
            Ok(r) if r < results && pairs.iter().all(|(_, taken)| *taken != r) => pairs.push((p, r)),
            _ => {}
        }
    }
    pairs
}

/// How arguments and results lie on several devices, where the module has a mesh.
fn spread(module: &Module, main: &Function, graph: &systole_ir::Graph) -> Result<Option<Spread>> {
    let Some((_, axes)) = module.meshes.iter().find(|(_, axes)| !axes.is_empty()) else {
        let said = |(a, ty)| match find(a, "mhlo.sharding") {
            Some(Attribute::String(text)) => (Some(text.as_str()), ty),
            _ => (None, ty),
        };
        let params: Vec<gspmd::Said> = main.parameters.iter().zip(graph.param_types()).map(said).collect();
        let results = main.results.iter().map(|(_, a)| a).zip(graph.result_types());
        return gspmd::spread(&params, &results.map(said).collect::<Vec<_>>());
    };
    let mesh = Mesh::new(axes.iter().map(|(name, size)| (name.as_str(), *size as usize)))?;
    let one = |attributes: Option<&Attribute>, ty: &TensorType| -> Result<Sharding> {
        match attributes {
            Some(Attribute::Sharding(_, dims)) => Sharding::of_axes(dims, &mesh, ty),
            _ => Ok(Sharding::replicated(ty.rank())),
        }
    };
    let params = main.parameters.iter().zip(graph.param_types());
    let params = params.map(|(a, ty)| one(find(a, "sdy.sharding"), &ty)).collect::<Result<_>>()?;
    let results = main.results.iter().zip(graph.result_types());
    let results = results.map(|((_, a), ty)| one(find(a, "sdy.sharding"), &ty)).collect::<Result<_>>()?;
    Ok(Some(Spread { mesh, params, results }))
}

/// What a value of a module is here.
#[derive(Clone)]
enum Given {
    Array(Tensor),
    Tuple(Vec<Given>),
    Token,
}

impl Given {
    fn array(self) -> Result<Tensor> {
        match self {
            Given::Array(t) => Ok(t),
            Given::Tuple(_) => Err(not_there("a tuple stands where an array is needed")),
            Given::Token => Err(not_there("a token stands where an array is needed")),
        }
    }
}

/// The values of one call of a function.
struct Frame<'m> {
    function: &'m Function,
    values: Vec<Option<Given>>,
}

impl Frame<'_> {
    fn get(&self, value: Value) -> Result<Given> {
        let found = self.values.get(value).cloned().flatten();
        found.ok_or_else(|| wrong("a value is used before it is there"))
    }

    fn set(&mut self, value: Value, given: Given) {
        if let Some(slot) = self.values.get_mut(value) {
            *slot = Some(given);
        }
    }

    fn ty(&self, value: Value) -> Result<&Type> {
        self.function.values.get(value).ok_or_else(|| wrong("a value without a type"))
    }
}

struct Importer<'m> {
    module: &'m Module,
    /// The functions that are being unfolded.
    calls: Vec<&'m str>,
    ops: usize,
    /// What the module says of its own results, and the arrays that it says it of.
    checks: Vec<Check>,
    compared: Vec<Tensor>,
    /// What `interpreter.probe` was given, by name, in order.
    probes: Vec<(String, Vec<Given>)>,
}

impl<'m> Importer<'m> {
    fn function(&mut self, f: &'m Function, arguments: Vec<Given>, g: &GraphBuilder) -> Result<Vec<Given>> {
        if self.calls.contains(&f.name.as_str()) || self.calls.len() == MAX_CALLS {
            return Err(not_there(format!("@{} calls itself", f.name)));
        }
        if arguments.len() != f.body.arguments.len() {
            return Err(wrong(format!("@{} takes {} arguments", f.name, f.body.arguments.len())));
        }
        self.calls.push(&f.name);
        let mut frame = Frame { function: f, values: vec![None; f.values.len()] };
        for (value, given) in f.body.arguments.iter().zip(arguments) {
            frame.set(*value, given);
        }
        let results = self.body(&f.body, &mut frame, g);
        self.calls.pop();
        results
    }

    /// The ops of a region whose arguments are known; what its terminator returns.
    fn body(&mut self, region: &'m Region, frame: &mut Frame<'m>, g: &GraphBuilder) -> Result<Vec<Given>> {
        for op in &region.operations {
            self.ops += 1;
            if self.ops > MOST_OPS {
                return Err(not_there(format!("calls unfold to over {MOST_OPS} ops")));
            }
            let operands = op.operands.iter().map(|v| frame.get(*v)).collect::<Result<Vec<_>>>();
            let operands = operands.at(|| place(op))?;
            if matches!(op.name.as_str(), "stablehlo.return" | "func.return" | "mhlo.return" | "sdy.return") {
                return Ok(operands);
            }
            let results = self.operation(op, operands, frame, g).at(|| place(op))?;
            if results.len() != op.results.len() {
                return Err(wrong(format!("it has {} results", results.len())).at(place(op)));
            }
            for (value, given) in op.results.iter().zip(results) {
                if let Given::Array(t) = &given {
                    let said = frame.ty(*value)?;
                    tensor_type(said).at(|| place(op))?;
                    if !fits(said, t.ty()) && g.error().is_none() {
                        return Err(wrong(format!("the result is {}, not {said}", t.ty())).at(place(op)));
                    }
                }
                frame.set(*value, given);
            }
        }
        Err(wrong("a region without a terminator"))
    }

    fn operation(
        &mut self,
        op: &'m Operation,
        operands: Vec<Given>,
        frame: &mut Frame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<Given>> {
        match op.name.as_str() {
            "func.call" => self.call(find(&op.attributes, "callee"), operands, g),
            "stablehlo.composite" => self.call(find(&op.attributes, "decomposition"), operands, g),
            "stablehlo.tuple" => Ok(vec![Given::Tuple(operands)]),
            "stablehlo.get_tuple_element" => {
                let index = match find(&op.attributes, "index") {
                    Some(Attribute::Int(i)) => usize::try_from(*i).ok(),
                    _ => None,
                };
                match operands.into_iter().next() {
                    Some(Given::Tuple(items)) => {
                        let item = index.and_then(|i| items.get(i).cloned());
                        Ok(vec![item.ok_or_else(|| wrong("the tuple has no such element"))?])
                    }
                    _ => Err(wrong("the operand is no tuple")),
                }
            }
            "stablehlo.create_token" | "stablehlo.after_all" => Ok(vec![Given::Token]),
            "interpreter.print" => Ok(Vec::new()),
            "interpreter.probe" => {
                self.probes.extend(text(op, "probe_id").map(|id| (id.to_owned(), operands.clone())));
                Ok(operands)
            }
            "check.expect_serialized_eq" => self.expect_serialized(op, operands),
            name if rewrite::refused(name).is_some() => Err(rewrite::refusal(name)),
            "interpreter.run_parallel" => self.run_parallel(op, operands, g),
            "sdy.sharding_constraint" | "mhlo.copy" => Ok(operands),
            _ => {
                let arrays = operands.into_iter().map(Given::array).collect::<Result<Vec<_>>>()?;
                let results = self.arrays(op, arrays, frame, g)?;
                Ok(results.into_iter().map(Given::Array).collect())
            }
        }
    }

    /// `check.expect_serialized_eq %0, probe_id = "name", iter = 1`: the array is the one that the probe was given.
    fn expect_serialized(&mut self, op: &Operation, operands: Vec<Given>) -> Result<Vec<Given>> {
        let name = text(op, "probe_id").unwrap_or_default();
        let turn = attribute::size(op, "iter").unwrap_or(0);
        let probed = self.probes.iter().filter(|(id, _)| id == name).nth(turn);
        let probed = probed.map(|(_, given)| given.clone()).ok_or_else(|| {
            not_there(format!("there is no value {turn} of the probe `{name}`"))
                .because("a probe in a loop has a value for each turn only while the program runs")
        })?;
        for given in operands.into_iter().chain(probed) {
            self.compared.push(given.array()?);
        }
        self.checks.push(Check::equal());
        Ok(Vec::new())
    }

    fn call(
        &mut self,
        callee: Option<&Attribute>,
        operands: Vec<Given>,
        g: &GraphBuilder,
    ) -> Result<Vec<Given>> {
        let Some(Attribute::Symbol(name)) = callee else {
            return Err(wrong("it does not say what it calls"));
        };
        let called = self.module.functions.iter().find(|f| f.name == *name);
        let called = called.ok_or_else(|| wrong(format!("there is no function @{name}")))?;
        self.function(called, operands, g).at(|| format!("@{name}"))
    }

    /// An op of arrays.
    fn arrays(
        &mut self,
        op: &'m Operation,
        operands: Vec<Tensor>,
        frame: &mut Frame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        if let Some(check) = Check::of(op)? {
            self.compared.extend(operands);
            self.checks.push(check);
            return Ok(Vec::new());
        }
        let types = op.results.iter().map(|v| frame.ty(*v)).map(|ty| tensor_type(ty?));
        let results = types.collect::<Result<Vec<_>>>()?;
        op.results.iter().try_for_each(|v| dynamic::check_result(op, frame.ty(*v)?))?;
        if let Some(written) = chlo::write(op, &operands)? {
            return Ok(written);
        }
        if let Some(written) = dynamic::write(op, &operands)? {
            return Ok(written);
        }
        if let (Some(gather), [x]) = (parallel::as_gather(op), operands.as_slice()) {
            let wide: Vec<usize> = std::iter::once(1).chain(x.shape().iter().copied()).collect();
            let wide = x.reshape(&wide[..]);
            let all = self.emit(&gather, vec![wide.clone()], results, (Vec::new(), Vec::new()), g)?;
            let first = all.first().map(|t| t.slice_dim(0, 0, 1).reshape(x.shape().clone()));
            return Ok(first.into_iter().collect());
        }
        if let Some((op, operands, results)) = dynamic::settle(op, &operands, &results)? {
            return self.emit(&op, operands, results, (Vec::new(), Vec::new()), g);
        }
        if let Some(written) = rewrite::write(op, &operands, &results, g)? {
            return Ok(written);
        }
        let mut regions = Vec::new();
        for region in &op.regions {
            regions.push(self.region(region, &operands, frame, g)?);
        }
        let (captured, regions) = flow::finish(&regions)?;
        self.with_bodies(op, operands, results, (captured, regions), g)
    }

    /// An op whose bodies are there.
    fn with_bodies(
        &self,
        op: &Operation,
        operands: Vec<Tensor>,
        results: Vec<TensorType>,
        (captured, regions): (Vec<Tensor>, Vec<Arc<systole_ir::Graph>>),
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        match (op.name.as_str(), operands.as_slice(), regions.as_slice()) {
            ("stablehlo.if", [pred], [on_true, on_false]) => {
                if on_true.result_types() != on_false.result_types() {
                    return Err(wrong("(C2) the branches have other results"));
                }
                // Branch 0 is for false, as false converts to 0.
                let case = systole_ir::op::Case { branches: vec![on_false.clone(), on_true.clone()] };
                let index = pred.convert(systole_base::DType::I32);
                return Ok(g.emit(case, &captured.iter().chain([&index]).collect::<Vec<_>>()));
            }
            ("stablehlo.map", [x, ..], [body]) => {
                bodies::check_map(op, body, &operands, captured.len())?;
                let args: Vec<Tensor> = captured.iter().chain(&operands).cloned().collect();
                return bodies::on_arrays(g, body, &args, x.shape());
            }
            ("chlo.scan", all, [body]) if captured.is_empty() => {
                return chlo::scan::write(op, all, &results, body);
            }
            ("stablehlo.while" | "stablehlo.case", ..) => {}
            _ if !captured.is_empty() => {
                let lifted = bodies::lift(&captured, &regions, bodies::kind_of(&op.name))?;
                let operands = bodies::with_further(&op.name, operands, &lifted.further);
                let all = self.emit(op, operands, results, (Vec::new(), lifted.bodies), g)?;
                return Ok(all.into_iter().take(op.results.len()).collect());
            }
            _ => {}
        }
        if operands.len() > 1 && parallel::is_each_alone(&op.name) {
            let one = |(x, ty)| self.emit(op, vec![x], vec![ty], (Vec::new(), regions.clone()), g);
            let all = operands.into_iter().zip(results).map(one).collect::<Result<Vec<_>>>()?;
            return Ok(all.concat());
        }
        self.emit(op, operands, results, (captured, regions), g)
    }

    /// A region in a builder of its own.
    fn region(
        &mut self,
        region: &'m Region,
        operands: &[Tensor],
        frame: &mut Frame<'m>,
        g: &GraphBuilder,
    ) -> Result<(GraphBuilder, Vec<Tensor>)> {
        let inner = g.child("body");
        for (i, value) in region.arguments.iter().enumerate() {
            // Sizes that the type of a loop's state leaves open are those of its start.
            let said = frame.ty(*value)?;
            let ty = match operands.get(i) {
                Some(t) if !is_settled(said) && fits(said, t.ty()) => t.ty().clone(),
                _ if !is_settled(said) => return Err(unsettled(said)),
                _ => tensor_type(said)?,
            };
            frame.set(*value, Given::Array(inner.parameter(ty, "arg")));
        }
        let results = self.body(region, frame, &inner)?;
        Ok((inner, results.into_iter().map(Given::array).collect::<Result<_>>()?))
    }

    /// The IR's own op of the same name.
    fn emit(
        &self,
        op: &Operation,
        operands: Vec<Tensor>,
        results: Vec<TensorType>,
        (captured, regions): (Vec<Tensor>, Vec<Arc<systole_ir::Graph>>),
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
        let known = entry(name).ok_or_else(|| not_there(format!("{} is not supported", op.name)))?;
        let attrs = attribute::all(op, self.module)?;
        let inputs: Vec<&Tensor> = captured.iter().chain(&operands).collect();
        let types: Vec<&TensorType> = inputs.iter().map(|t| t.ty()).collect();
        let source = Source {
            attrs: &attrs,
            regions,
            captures: captured.len(),
            operands: types.iter().map(|&t| t.clone()).collect(),
            results,
        };
        let read: Op = (known.parse)(&source).map_err(wrong)?;
        if read.rule().regions().len() != source.regions.len() {
            return Err(wrong(format!("it has no {} regions", source.regions.len())));
        }
        if read.rule().captures() != captured.len() {
            return Err(not_there("its regions use values from outside of it"));
        }
        read.rule().infer(&types).map_err(|c| wrong(format!("({}) {}", c.label, c.message)))?;
        Ok(g.emit(read, &inputs))
    }
}

/// Where an op stands.
fn place(op: &Operation) -> String {
    format!("{}, {}", op.place, op.name)
}
