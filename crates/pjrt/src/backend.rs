//! A plugin's devices as a backend: models train through it as on the CPU.

use crate::client::{Array, Client, Input, Loaded};
use crate::program::program_text;
use std::sync::Arc;
use std::time::Instant;
use systole_ir::{Graph, Literal, Result, ResultExt, TensorType, cost, interp};
use systole_runtime::{Arg, Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, Report};

/// A client's devices. Programs run on the first.
pub struct PjrtBackend {
    name: String,
    client: Client,
}

impl PjrtBackend {
    /// A backend of a client, by the name that users choose it by.
    pub fn new(name: impl Into<String>, client: Client) -> PjrtBackend {
        PjrtBackend { name: name.into(), client }
    }
}

impl Backend for PjrtBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let list = self.client.devices().iter().enumerate();
        list.map(|(i, d)| {
            let memory = d.memory_limit.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
            DeviceInfo { id: DeviceId(i), description: format!("{}{memory}", d.kind) }
        })
        .collect()
    }

    fn wants_loops(&self) -> bool {
        true
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let start = Instant::now();
        graph.verify()?;
        let place = || format!("compiling {} for {}", options.label, self.name);
        let loaded = self.client.compile(&program_text(graph, &options.donated), 0).at(place)?;
        let report = Report {
            compile_ms: start.elapsed().as_secs_f64() * 1e3,
            flops: cost::cost(graph).flops,
            ..Report::default()
        };
        let (params, results) = (graph.param_types(), graph.result_types());
        Ok(Arc::new(Program {
            graph: graph.clone(),
            client: self.client.clone(),
            loaded,
            params,
            results,
            report,
        }))
    }

    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        Ok(Buffer::new(value.ty().clone(), Arc::new(self.client.put(value, device.0)?)))
    }
}

/// A compiled graph.
struct Program {
    graph: Arc<Graph>,
    client: Client,
    loaded: Loaded,
    params: Vec<TensorType>,
    results: Vec<TensorType>,
    report: Report,
}

impl Program {
    /// The array at this client: the argument itself, or a copy of it.
    fn at_device(&self, buffer: &Buffer) -> Result<Option<Array>> {
        match buffer.data::<Array>() {
            Some(array) if array.belongs_to(&self.client) => Ok(None),
            _ => self.client.put(&buffer.to_literal()?, 0).map(Some),
        }
    }
}

impl Executable for Program {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, args: Vec<Arg<'_>>) -> Result<Vec<Buffer>> {
        let types: Vec<&TensorType> = args.iter().map(|a| a.buffer().ty()).collect();
        interp::check_args(&self.graph, &types)?;
        let copies = args.iter().map(|a| self.at_device(a.buffer())).collect::<Result<Vec<_>>>()?;
        let inputs = args.iter().zip(&copies).map(|(arg, copy)| match (copy, arg) {
            // A copy is ours to give away.
            (Some(copy), _) => Input::Donated(copy),
            (None, arg) => {
                let Some(array) = arg.buffer().data::<Array>() else {
                    systole_ir::bug!("an argument without a copy is at the device")
                };
                let ours = matches!(arg, Arg::Donate(buffer) if buffer.is_unique());
                if ours { Input::Donated(array) } else { Input::Kept(array) }
            }
        });
        let results = self.loaded.run(&inputs.collect::<Vec<_>>())?;
        let typed = self.results.iter().zip(results);
        Ok(typed.map(|(ty, array)| Buffer::new(ty.clone(), Arc::new(array))).collect())
    }

    fn report(&self) -> &Report {
        &self.report
    }
}
