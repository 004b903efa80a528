//! Reference backend (`ref`), which runs graphs in the interpreter, and the `null` backend, which returns zeros without
//! computing, to time everything except kernels.

use crate::{
    Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ExecutableArg, ExecutableReport,
};
use std::sync::Arc;
use std::time::Instant;
use systole_ir::{Graph, Literal, Result, TensorType, cost, interp};

/// Backend `ref`: runs graphs in the reference interpreter; slow, exact, portable.
pub struct ReferenceBackend;

/// Backend `null`: computes nothing; every result is zeros.
pub struct NullBackend;

struct InterpretedExecutable {
    graph: Arc<Graph>,
    params: Vec<TensorType>,
    report: ExecutableReport,
    zeros: bool,
}

fn prepare(graph: &Arc<Graph>, zeros: bool) -> Result<Arc<dyn Executable>> {
    let start = Instant::now();
    graph.verify()?;
    let report = ExecutableReport {
        compile_ms: start.elapsed().as_secs_f64() * 1e3,
        kernels: graph.nodes.len(),
        flops: cost::cost(graph).flops,
        ..ExecutableReport::default()
    };
    Ok(Arc::new(InterpretedExecutable { graph: graph.clone(), params: graph.param_types(), report, zeros }))
}

impl Executable for InterpretedExecutable {
    fn param_types(&self) -> &[TensorType] {
        &self.params
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        if self.zeros {
            let types: Vec<&TensorType> = args.iter().map(|a| a.buffer().ty()).collect();
            interp::check_args(&self.graph, &types)?;
            return Ok(self.graph.result_types().into_iter().map(|t| Literal::zeros(t).into()).collect());
        }
        let values: Vec<Literal> = args.iter().map(|a| a.buffer().to_literal()).collect::<Result<_>>()?;
        let refs: Vec<&Literal> = values.iter().collect();
        Ok(interp::run(&self.graph, &refs)?.into_iter().map(Buffer::from).collect())
    }

    fn report(&self) -> &ExecutableReport {
        &self.report
    }
}

fn one_device(description: &str) -> Vec<DeviceInfo> {
    vec![DeviceInfo { id: DeviceId(0), description: description.into() }]
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &str {
        "ref"
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        one_device("reference interpreter")
    }
    fn shares_cores(&self) -> bool {
        true
    }
    fn compile(&self, graph: &Arc<Graph>, _: &CompileOptions) -> Result<Arc<dyn Executable>> {
        prepare(graph, false)
    }
    fn put(&self, value: &Literal, _: DeviceId) -> Result<Buffer> {
        Ok(value.clone().into())
    }
}

impl Backend for NullBackend {
    fn name(&self) -> &str {
        "null"
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        one_device("computes nothing, returns zeros")
    }
    fn shares_cores(&self) -> bool {
        true
    }
    fn compile(&self, graph: &Arc<Graph>, _: &CompileOptions) -> Result<Arc<dyn Executable>> {
        prepare(graph, true)
    }
    fn put(&self, value: &Literal, _: DeviceId) -> Result<Buffer> {
        Ok(value.clone().into())
    }
}
