//! Imports an [`OnnxModel`] into an IR graph node by node, after resolving symbolic dimension sizes.

use crate::model::{DimSize, OnnxAttribute, OnnxFunction, OnnxModel, OnnxNode, ValueInfo, broken};
use crate::ops::{NodeCall, RuleOutput, ValueTable, checked, row};
use crate::stages::{StageInputs, StageRunner, constant_elements, last_uses};
use crate::unsupported_operators::UnsupportedOperators;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Literal, Result, ResultExt, TensorType, ensure, err};
use systole_ir::{Graph, GraphBuilder};

/// First and last supported opset.
const OPSETS: (i64, i64) = (7, 28);

/// Values for symbolic and unknown dimension sizes of an ONNX model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DimSizes {
    /// Sizes of symbolic dimensions by name.
    pub named: BTreeMap<String, usize>,
    /// Shapes of the caller's arrays, by input name or as `arg0`, `arr_0`, …; if there is only one array, its name may
    /// be empty.
    pub given: Vec<(String, Vec<usize>)>,
    /// Elements (little-endian) of the caller's arrays, by name as in `given`. Where an operator needs an operand at compile
    /// time, the program is compiled for the values of the small inputs that it depends on. If the operand depends on
    /// larger ones, all of the model is compiled for its inputs, in stages.
    pub values: Vec<(String, Vec<u8>)>,
}

/// Maximum elements of an input for whose value a program is compiled without stages.
const MOST_FIXED_ELEMENTS: usize = 64;

/// Why an import failed.
#[derive(Default)]
struct ImportFailure {
    /// The node with an operand that must be known and depends on an input.
    unknown: Option<usize>,
    /// Whether an operator is not supported.
    is_operator: bool,
}

/// An imported ONNX model: the graph with its inputs and outputs.
#[derive(Clone, Debug)]
pub struct ImportedOnnx {
    /// The graph.
    pub graph: Arc<Graph>,
    /// Resolved sizes of symbolic dimensions by name; 1 unless specified.
    pub settled: Vec<(String, usize)>,
    /// Inputs for whose values the graph is compiled. It reads them only if there are stages.
    pub fixed: Vec<String>,
    /// Number of stages that computed sizes and positions from the inputs; 0 for a program that serves all inputs.
    pub stages: usize,
    /// Types of node outputs, by name.
    pub types: BTreeMap<String, TensorType>,
}

impl OnnxModel {
    /// Imports the ONNX model as a graph. Symbolic dimension sizes are those in `sizes`, or 1.
    ///
    /// # Errors
    /// If an operator is unsupported or a node is inconsistent (names the node), or if a symbolic size has two values.
    pub fn import(&self, sizes: &DimSizes) -> Result<ImportedOnnx> {
        self.check_opset()?;
        let unsupported = UnsupportedOperators::of(self);
        if unsupported.is_certain {
            unsupported.error().map_or(Ok(()), Err)?;
        }
        let mut failure = ImportFailure::default();
        let imported = self.import_for(sizes, &mut failure);
        match unsupported.error() {
            // Operators of a branch that does not run are no error.
            Some(e) if failure.is_operator => Err(e),
            _ => imported,
        }
    }

    /// Imports the model for all inputs, for the values of some, or in stages.
    fn import_for(&self, sizes: &DimSizes, failure: &mut ImportFailure) -> Result<ImportedOnnx> {
        let mut fixed = BTreeSet::new();
        loop {
            let e = match self.import_with(sizes, &fixed, None, failure) {
                Ok(imported) => return Ok(imported),
                Err(e) => e,
            };
            let Some(at) = failure.unknown else { return Err(e) };
            let before = fixed.len();
            fixed.extend(self.small_sources(at, sizes));
            if fixed.len() == before {
                return match self.stages(sizes)? {
                    Some(stages) => self.import_with(sizes, &BTreeSet::new(), Some(stages), failure),
                    None => Err(e),
                };
            }
        }
    }

    /// Returns what stages need, if the caller passes all inputs: they run on the default device.
    fn stages(&self, sizes: &DimSizes) -> Result<Option<StageInputs>> {
        let mut settled = ResolvedSizes::of(self, sizes)?;
        let mut inputs = Vec::new();
        for (i, port) in self.graph.given().enumerate() {
            let ty = settled.ty(port, i, self.graph.given().count())?;
            let Some(bytes) = settled.value(port, i, &ty) else { return Ok(None) };
            inputs.push(Literal::from_bytes(ty, bytes)?);
        }
        Ok(systole_runtime::backend("auto").ok().map(|device| StageInputs { device, inputs }))
    }

    /// Imports the model with the values of the inputs `fixed`.
    fn import_with(
        &self,
        sizes: &DimSizes,
        fixed: &BTreeSet<String>,
        stages: Option<StageInputs>,
        failure: &mut ImportFailure,
    ) -> Result<ImportedOnnx> {
        let g = GraphBuilder::new("main");
        let mut settled = ResolvedSizes::of(self, sizes)?;
        let mut values = ValueTable::new(g.clone(), &self.graph.constants, &self.functions, import_node);
        let mut parameters = Vec::new();
        for (i, port) in self.graph.given().enumerate() {
            let ty = settled.ty(port, i, self.graph.given().count()).at(|| format!("input {}", port.name))?;
            let parameter = g.parameter(ty.clone(), &port.name);
            parameters.push(parameter.clone());
            let value = match settled.value(port, i, &ty).filter(|_| fixed.contains(&port.name)) {
                Some(bytes) => g.constant(Literal::from_bytes(ty, bytes)?),
                None => parameter,
            };
            values.put(&port.name, RuleOutput::Tensor(value))?;
        }
        let mut types = BTreeMap::new();
        let last = if stages.is_some() { last_uses(self) } else { Vec::new() };
        values.stages =
            stages.map(|given| StageRunner::new(given, &parameters, constant_elements(&self.graph)));
        for (i, node) in self.graph.nodes.iter().enumerate() {
            values.needs_a_value = false;
            let made = import_node(node, &mut values, self.opset).at(|| self.graph.place(i));
            failure.unknown = values.needs_a_value.then_some(i);
            failure.is_operator = values.lacks_an_operator;
            types.extend(made?);
            last.get(i).into_iter().flatten().for_each(|name| values.forget(name));
            values.forget_nested();
        }
        let outputs =
            self.graph.outputs.iter().map(|p| values.tensor(&p.name).at(|| format!("output {}", p.name)));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        ensure!(!outputs.is_empty(), broken("the model has no outputs"));
        values.unknown_attributes(self.opset)?;
        let graph = g.finish(&outputs)?;
        let stages = values.stages.as_ref().map_or(0, |stages| stages.count);
        let fixed = match stages {
            0 => fixed.iter().cloned().collect(),
            _ => self.graph.given().map(|port| port.name.clone()).collect(),
        };
        Ok(ImportedOnnx { graph, settled: settled.order, fixed, stages, types })
    }

    /// Returns the inputs that a node's operands depend on and whose values the caller passes.
    fn small_sources(&self, node: usize, sizes: &DimSizes) -> Vec<String> {
        let mut needed: BTreeSet<&str> = BTreeSet::new();
        for (i, n) in self.graph.nodes.iter().enumerate().take(node + 1).rev() {
            if i == node || n.outputs.iter().any(|name| needed.contains(name.as_str())) {
                needed.extend(n.inputs.iter().map(String::as_str));
            }
        }
        let settled = ResolvedSizes { sizes, told: BTreeMap::new(), order: Vec::new() };
        let ports = self.graph.given().enumerate();
        let is_passed = |(i, port): &(usize, &ValueInfo)| {
            let bytes = settled.array(&sizes.values, port, *i);
            let is_small = |bytes: &Vec<u8>| {
                port.dtype.is_some_and(|dtype| bytes.len() <= MOST_FIXED_ELEMENTS * dtype.size())
            };
            needed.contains(port.name.as_str()) && bytes.is_some_and(is_small)
        };
        ports.filter(is_passed).map(|(_, port)| port.name.clone()).collect()
    }

    /// Rejects an opset whose definitions are not those of the operators here.
    fn check_opset(&self) -> Result<()> {
        let known = OPSETS.0..=OPSETS.1;
        if known.contains(&self.opset) {
            return Ok(());
        }
        Err(err!(Unsupported, "unsupported opset {}", self.opset)
            .because(format!("supported opsets: {} to {}", OPSETS.0, OPSETS.1))
            .hint(format!("convert it: onnx.version_converter.convert_version(model, {})", OPSETS.1)))
    }
}

/// Imports a node and adds its outputs to the values; returns their types.
fn import_node(node: &OnnxNode, values: &mut ValueTable, opset: i64) -> Result<Vec<(String, TensorType)>> {
    let functions = values.functions;
    if let Some(function) = functions.iter().find(|f| f.name == node.op && f.domain == node.domain) {
        return import_function(function, node, values, opset);
    }
    let row = row(&node.op, &node.domain).and_then(|row| row.defined_in(opset).map(|()| row));
    values.lacks_an_operator |= row.is_err();
    let row = row?;
    let name = if node.name.is_empty() { &node.op } else { &node.name };
    let g = values.g.clone();
    let mut call = NodeCall::new(node, values, opset);
    let made = g.scope(name, || (row.import)(&mut call));
    let unread = call.unread_attribute();
    // An error in a nested graph, or an op that the graph rejected, explains the following errors.
    if let Some(e) = values.nested_error.take() {
        return Err(e);
    }
    if let Some(e) = g.error() {
        let told = Error::new(ErrorKind::Data, e.what());
        return Err(e.reasons().iter().fold(told, |told, why| told.because(why.clone())));
    }
    let made = made?;
    if let Some(name) = unread {
        values.add_unknown_attribute(node, &name);
    }
    put_outputs(node, values, made)
}

/// Adds the outputs of a node to the values; returns their types.
fn put_outputs(
    node: &OnnxNode,
    values: &mut ValueTable,
    made: Vec<RuleOutput>,
) -> Result<Vec<(String, TensorType)>> {
    let mut types = Vec::new();
    for (k, name) in node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
        let value = match made.get(k) {
            Some(value) => value.clone(),
            None => return Err(broken(format!("the node has no output {k} ({name})"))),
        };
        if let Some(ty) = value.ty() {
            checked(ty.shape.to_vec())?;
            types.push((name.clone(), ty));
        }
        values.put(name, value)?;
    }
    Ok(types)
}

/// Imports the nodes of a model-local function in place of a node.
fn import_function(
    function: &OnnxFunction,
    node: &OnnxNode,
    values: &mut ValueTable,
    opset: i64,
) -> Result<Vec<(String, TensorType)>> {
    values.spend_nodes(function.nodes.len())?;
    let opset = if function.opset > 0 { function.opset } else { opset };
    let mut given = Vec::new();
    for (name, outer) in function.inputs.iter().zip(&node.inputs).filter(|(_, outer)| !outer.is_empty()) {
        given.push((name, values.tensor(outer)?));
    }
    let is_omitted =
        |name: &String| function.inputs.contains(name) && given.iter().all(|(own, _)| *own != name);
    let made = values.in_function(|values| {
        for (name, t) in &given {
            values.put(name, RuleOutput::Tensor(t.clone()))?;
        }
        for (i, inner) in function.nodes.iter().enumerate() {
            let mut inner = inner.clone();
            inner.inputs.iter_mut().filter(|n| is_omitted(n)).for_each(String::clear);
            inner.attributes = resolved(&inner, node, function);
            let place = || format!("node {i} of function {}, {}", function.name, inner.op);
            import_node(&inner, values, opset).at(place)?;
        }
        function.outputs.iter().map(|n| Ok(RuleOutput::Tensor(values.tensor(n)?))).collect::<Result<Vec<_>>>()
    })?;
    put_outputs(node, values, made)
}

/// Returns a node's attributes, with those of the function's call in place of references.
fn resolved(inner: &OnnxNode, call: &OnnxNode, function: &OnnxFunction) -> BTreeMap<String, OnnxAttribute> {
    let of = |(name, a): (&String, &OnnxAttribute)| match a {
        OnnxAttribute::Reference(other) => {
            let value = call.attributes.get(other).or_else(|| function.defaults.get(other));
            Some((name.clone(), value?.clone()))
        }
        a => Some((name.clone(), a.clone())),
    };
    inner.attributes.iter().filter_map(of).collect()
}

/// Resolved dimension sizes: from the caller's arrays or by name, otherwise 1.
struct ResolvedSizes<'a> {
    sizes: &'a DimSizes,
    /// Size by name, and where it comes from.
    told: BTreeMap<String, (usize, String)>,
    order: Vec<(String, usize)>,
}

impl<'a> ResolvedSizes<'a> {
    fn of(model: &OnnxModel, sizes: &'a DimSizes) -> Result<ResolvedSizes<'a>> {
        let asked = |(name, n): (&String, &usize)| (name.clone(), (*n, "the requested sizes".to_string()));
        let told = sizes.named.iter().map(asked).collect();
        let mut settled = ResolvedSizes { sizes, told, order: Vec::new() };
        let ports: Vec<&ValueInfo> = model.graph.given().collect();
        for (i, port) in ports.iter().enumerate() {
            let given = settled.given(port, i, ports.len()).unwrap_or_default();
            for (size, &here) in port.sizes.iter().flatten().zip(given) {
                let DimSize::Named(name) = size else { continue };
                let (n, whose) = settled.told.entry(name.clone()).or_insert((here, port.name.clone()));
                if *n != here {
                    return Err(err!(
                        Data,
                        "dimension `{name}` is {here} in `{}`, but {n} in `{whose}`",
                        port.name
                    )
                    .hint("pass arrays with consistent sizes"));
                }
            }
        }
        let names: Vec<&str> =
            ports.iter().flat_map(|p| p.sizes.iter().flatten()).filter_map(DimSize::name).collect();
        match sizes.named.keys().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(err!(Config, "the model has no dimension named `{name}`").hint_command(
                match names.is_empty() {
                    true => format!("remove the size of `{name}`: all dimensions of the model are fixed"),
                    false => format!("use one of: `{}`", names.join("`, `")),
                },
            )),
            None => Ok(settled),
        }
    }

    /// Returns what is passed for an input by its name or number.
    fn array<T>(&self, all: &'a [(String, T)], port: &ValueInfo, index: usize) -> Option<&'a T> {
        let called = [port.name.clone(), format!("arg{index}"), format!("arr_{index}")];
        all.iter().find(|(name, _)| called.contains(name)).map(|(_, array)| array)
    }

    /// Returns the shape of the array passed for an input.
    fn given(&self, port: &ValueInfo, index: usize, inputs: usize) -> Option<&'a [usize]> {
        let unnamed = || self.sizes.given.iter().find(|(name, _)| inputs == 1 && name.is_empty());
        let dims = self.array(&self.sizes.given, port, index);
        dims.or_else(|| unnamed().map(|(_, dims)| dims)).map(|dims| &dims[..])
    }

    /// Returns the elements passed for an input of this type.
    fn value(&self, port: &ValueInfo, index: usize, ty: &TensorType) -> Option<&'a [u8]> {
        let bytes = self.array(&self.sizes.values, port, index);
        bytes.map(|bytes| &bytes[..]).filter(|bytes| bytes.len() == ty.bytes())
    }

    fn ty(&mut self, port: &ValueInfo, index: usize, inputs: usize) -> Result<TensorType> {
        let dtype = port
            .dtype
            .ok_or_else(|| err!(Unsupported, "the model input's element type is missing or unsupported"))?;
        let given = self.given(port, index, inputs);
        let Some(sizes) = &port.sizes else {
            let dims = given.ok_or_else(|| {
                err!(Config, "the file does not state the number of dimensions of the input")
                    .hint_command("pass input arrays: --input FILE.npz")
            })?;
            return Ok(TensorType::new(dtype, checked(dims.to_vec())?));
        };
        let given = given.filter(|dims| dims.len() == sizes.len());
        let mut dims = Vec::new();
        for (d, size) in sizes.iter().enumerate() {
            let here = given.and_then(|dims| dims.get(d)).copied();
            dims.push(match size {
                DimSize::Known(n) => *n,
                DimSize::Named(name) => {
                    let n = self.told.get(name).map_or(1, |(n, _)| *n);
                    self.settle(name.clone(), n)
                }
                DimSize::Open => self.settle(format!("dimension {d} of {}", port.name), here.unwrap_or(1)),
            });
        }
        Ok(TensorType::new(dtype, checked(dims)?))
    }

    fn settle(&mut self, name: String, n: usize) -> usize {
        if !self.order.iter().any(|(known, _)| *known == name) {
            self.order.push((name, n));
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::DType;

    /// f(x, y?) = LeakyRelu(x; alpha = slope), and g calls itself.
    fn model() -> OnnxModel {
        let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
        let port = |name: &str| ValueInfo { name: name.into(), ..ValueInfo::default() };
        m.graph.inputs = vec![ValueInfo { dtype: Some(systole_base::DType::F32), ..port("x") }];
        m.graph.outputs = vec![port("y")];
        m.graph.constants.insert("a".into(), Literal::from_slice([], &[9f32]).unwrap());
        let mine = |op: &str| OnnxNode { domain: "mine".into(), ..OnnxNode::new(op, ["x"], "y") };
        m.graph.nodes = vec![mine("f")];
        let leaky = OnnxNode::new("LeakyRelu", ["p"], "a");
        let leaky = leaky.with("alpha", OnnxAttribute::Reference("slope".into()));
        let function = |name: &str, nodes| OnnxFunction {
            name: name.into(),
            domain: "mine".into(),
            inputs: vec!["p".into(), "q".into()],
            outputs: vec!["y".into()],
            nodes,
            ..OnnxFunction::default()
        };
        // `a` is also a constant of the model, and `q` is omitted.
        let clip = OnnxNode::new("Clip", ["a", "", "q"], "y");
        let mut again = mine("g");
        again.inputs = vec!["p".into()];
        m.functions = vec![function("f", vec![leaky, clip]), function("g", vec![again])];
        m.functions[0].defaults.insert("slope".into(), OnnxAttribute::Float(0.5));
        m
    }

    #[test]
    fn functions_are_inlined_with_their_attributes() {
        let x = Literal::from_slice([2], &[-4f32, 4.0]).unwrap();
        let sizes = DimSizes { given: vec![("x".into(), vec![2])], ..DimSizes::default() };
        let run = |m: &OnnxModel| {
            systole_ir::interp::run(&m.import(&sizes).unwrap().graph, &[&x]).unwrap()[0].to_f32s()
        };
        let mut m = model();
        assert_eq!(run(&m), [-2.0, 4.0]);
        m.graph.nodes[0].attributes.insert("slope".into(), OnnxAttribute::Float(0.25));
        assert_eq!(run(&m), [-1.0, 4.0]);
        m.graph.nodes[0].op = "g".into();
        let e = m.import(&sizes).unwrap_err();
        systole_testing::assert_error(&e, ErrorKind::Data, &["64"]);
    }

    #[test]
    fn operands_that_shapes_depend_on_take_the_values_that_are_passed() {
        let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
        let port =
            |name: &str, dtype| ValueInfo { name: name.into(), dtype: Some(dtype), sizes: Some(Vec::new()) };
        let node = |op: &str, inputs: &[&str], output: &str| OnnxNode {
            op: op.into(),
            inputs: inputs.iter().map(|name| name.to_string()).collect(),
            outputs: vec![output.into()],
            ..OnnxNode::default()
        };
        // The end of the range is computed; what is added to its elements may differ from call to call.
        m.graph.inputs = ["start", "half", "step", "more"].map(|name| port(name, DType::F32)).to_vec();
        m.graph.nodes = vec![
            node("Add", &["half", "half"], "end"),
            node("Range", &["start", "end", "step"], "range"),
            node("Add", &["range", "more"], "y"),
        ];
        m.graph.outputs = vec![port("y", DType::F32)];
        let refused = m.import(&DimSizes::default()).unwrap_err().to_string();
        assert!(refused.contains("operand 0 `start`"), "{refused}");
        let value = |name: &str, x: f32| (name.to_string(), x.to_le_bytes().to_vec());
        let values = vec![value("start", 1.0), value("half", 2.0), value("step", 1.0), value("more", 5.0)];
        let made = m.import(&DimSizes { values, ..DimSizes::default() }).unwrap();
        assert_eq!(made.fixed, ["half", "start", "step"]);
        let x = |x: f32| Literal::from_slice([], &[x]).unwrap();
        let inputs = [x(1.0), x(2.0), x(1.0), x(10.0)];
        let out = systole_ir::interp::run(&made.graph, &inputs.each_ref()).unwrap();
        assert_eq!(out[0].to_f32s(), [11.0, 12.0, 13.0]);
    }
}
