//! A [`Model`] as a graph of the IR: node by node, each by the rule of its operator; sizes that the file leaves open are
//! settled before.

use crate::model::{DimSize, OnnxModel, ValueInfo, broken};
use crate::ops::{NodeCall, RuleOutput, ValueTable, checked, row};
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Result, ResultExt, TensorType};
use systole_ir::{Graph, GraphBuilder};

/// What settles the sizes that a file leaves open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DimSizes {
    /// Sizes by their names in the file.
    pub named: BTreeMap<String, usize>,
    /// Shapes of arrays that are given, by the names of inputs or as `arg0`, `arr_0`, …; the one array of a file may have the
    /// empty name.
    pub given: Vec<(String, Vec<usize>)>,
}

/// A model as a graph.
#[derive(Clone, Debug)]
pub struct ImportedOnnx {
    /// What it computes.
    pub graph: Arc<Graph>,
    /// The sizes that were open, by name, as they are now; 1 where nothing said another.
    pub settled: Vec<(String, usize)>,
    /// Types of what nodes make, by name.
    pub types: BTreeMap<String, TensorType>,
}

impl OnnxModel {
    /// The graph of the model. Sizes that the file leaves open are those of `sizes`, or else 1.
    ///
    /// # Errors
    /// When an operator is not read here, or a node contradicts itself: names the node. When open sizes are given twice.
    pub fn import(&self, sizes: &DimSizes) -> Result<ImportedOnnx> {
        let g = GraphBuilder::new("main");
        let mut settled = ResolvedSizes::of(self, sizes)?;
        let mut values = ValueTable::new(g.clone(), &self.graph.constants);
        for (i, port) in self.graph.given().enumerate() {
            let ty = settled.ty(port, i, self.graph.given().count()).at(|| format!("input {}", port.name))?;
            values.put(&port.name, RuleOutput::Plain(g.parameter(ty, &port.name)))?;
        }
        let mut types = BTreeMap::new();
        for i in 0..self.graph.nodes.len() {
            self.node(i, &mut values, &mut types).at(|| self.graph.place(i))?;
        }
        let outputs =
            self.graph.outputs.iter().map(|p| values.plain(&p.name).at(|| format!("output {}", p.name)));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        if outputs.is_empty() {
            return Err(broken("it has no outputs"));
        }
        let graph = g.finish(&outputs)?;
        Ok(ImportedOnnx { graph, settled: settled.order, types })
    }

    fn node(
        &self,
        i: usize,
        values: &mut ValueTable,
        types: &mut BTreeMap<String, TensorType>,
    ) -> Result<()> {
        let Some(node) = self.graph.nodes.get(i) else { return Ok(()) };
        if self.functions.iter().any(|(name, domain)| *name == node.op && *domain == node.domain) {
            let what = format!("{} is a function of the file itself, which is not read", node.op);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .hint("have its writer put functions in line: onnx.inliner.inline_local_functions"));
        }
        let row = row(&node.op, &node.domain)?;
        let name = if node.name.is_empty() { &node.op } else { &node.name };
        let g = values.g.clone();
        let mut call = NodeCall { node, g: g.clone(), values, opset: self.opset };
        let made = g.scope(name, || (row.import)(&mut call));
        // An op that the graph refused explains what came after it.
        if let Some(e) = g.error() {
            let told = Error::new(ErrorKind::Data, e.what());
            return Err(e.reasons().iter().fold(told, |told, why| told.because(why.clone())));
        }
        let made = made?;
        for (k, name) in node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            let value = match made.get(k) {
                Some(value) => value.clone(),
                None => return Err(broken(format!("it has no result {k} ({name})"))),
            };
            let (RuleOutput::Plain(t) | RuleOutput::Last(t)) = &value;
            checked(t.shape().to_vec())?;
            types.insert(name.clone(), value.ty());
            values.put(name, value)?;
        }
        Ok(())
    }
}

/// Open sizes: told by arrays that are given or by name, else 1.
struct ResolvedSizes<'a> {
    sizes: &'a DimSizes,
    /// By name, with who told it.
    told: BTreeMap<String, (usize, String)>,
    order: Vec<(String, usize)>,
}

impl<'a> ResolvedSizes<'a> {
    fn of(model: &OnnxModel, sizes: &'a DimSizes) -> Result<ResolvedSizes<'a>> {
        let asked = |(name, n): (&String, &usize)| (name.clone(), (*n, "what was asked for".to_string()));
        let told = sizes.named.iter().map(asked).collect();
        let mut settled = ResolvedSizes { sizes, told, order: Vec::new() };
        let ports: Vec<&ValueInfo> = model.graph.given().collect();
        for (i, port) in ports.iter().enumerate() {
            let given = settled.given(port, i, ports.len()).unwrap_or_default();
            for (size, &here) in port.sizes.iter().flatten().zip(given) {
                let DimSize::Named(name) = size else { continue };
                let (n, whose) = settled.told.entry(name.clone()).or_insert((here, port.name.clone()));
                if *n != here {
                    let what = format!("the size {name} is {here} in {}, and {n} by {whose}", port.name);
                    return Err(
                        Error::new(ErrorKind::Data, what).hint("give arrays whose sizes fit together")
                    );
                }
            }
        }
        let names: Vec<&str> =
            ports.iter().flat_map(|p| p.sizes.iter().flatten()).filter_map(DimSize::name).collect();
        match sizes.named.keys().find(|name| !names.contains(&name.as_str())) {
            Some(name) => {
                Err(Error::new(ErrorKind::Config, format!("the model has no size of the name {name}")).hint(
                    match names.is_empty() {
                        true => "all its sizes are numbers".to_string(),
                        false => format!("it has {}", names.join(", ")),
                    },
                ))
            }
            None => Ok(settled),
        }
    }

    /// The shape of the array that is given for an input.
    fn given(&self, port: &ValueInfo, index: usize, inputs: usize) -> Option<&'a [usize]> {
        let called = [port.name.clone(), format!("arg{index}"), format!("arr_{index}")];
        let is_it = |name: &String| called.contains(name) || inputs == 1 && name.is_empty();
        self.sizes.given.iter().find(|(name, _)| is_it(name)).map(|(_, dims)| &dims[..])
    }

    fn ty(&mut self, port: &ValueInfo, index: usize, inputs: usize) -> Result<TensorType> {
        let dtype = port.dtype.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "its element type is not said, or not known here")
        })?;
        let given = self.given(port, index, inputs);
        let Some(sizes) = &port.sizes else {
            let dims = given.ok_or_else(|| {
                Error::new(ErrorKind::Config, "the file does not say how many dimensions it has")
                    .hint("give arrays: --input FILE.npz")
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
