//! `jit`: traces a function over trees of tensors, compiles it once per argument signature, and runs it.

use crate::{
    Backend, Buffer, CompileOptions, Executable, ExecutableArg, TensorTree, TreeStructure, ValueRoles,
    backend, events, scope, trace,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use systole_ir::{Graph, GraphBuilder, Result, Tensor, TensorType, err, grad};

/// A jit-compiled function from `I` to `O`. Create it with [`jit`].
pub struct Jit<I, O, F> {
    f: F,
    label: String,
    backend: Option<Arc<dyn Backend>>,
    flush_denormals: bool,
    winograd: bool,
    excess_precision: bool,
    batch: Vec<usize>,
    whole: Vec<usize>,
    any_batch: bool,
    cache: Mutex<HashMap<JitSignature, Arc<JitEntry>>>,
    marker: std::marker::PhantomData<fn(I) -> O>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct JitSignature {
    structure: TreeStructure,
    types: Vec<TensorType>,
}

struct JitEntry {
    executable: Arc<dyn Executable>,
    results: TreeStructure,
}

/// Turns a function over trees of tensors into one that is compiled and called with buffers, like JAX's `jit`.
///
/// It is traced and compiled once for each structure and type of its arguments. Arguments with no other owner are
/// donated: state passed by value is updated in place.
///
/// ```
/// use systole_runtime::{jit, Buffer};
/// use systole_ir::{DType::F32, Literal, Tensor};
/// let axpy = jit(|(a, x, y): (Tensor, Tensor, Tensor)| a * x + y);
/// let x: Buffer = Literal::from_slice([2], &[1f32, 2.]).unwrap().into();
/// let y = axpy.call((Buffer::scalar(F32, 3.0), x.clone(), x)).unwrap();
/// assert_eq!(y.to_literal().unwrap().to_f32s(), [4.0, 8.0]);
/// ```
pub fn jit<I: TensorTree, O: TensorTree, F: Fn(I) -> O>(f: F) -> Jit<I, O, F> {
    Jit {
        f,
        label: "jit".into(),
        backend: None,
        flush_denormals: false,
        winograd: false,
        excess_precision: false,
        batch: Vec::new(),
        whole: Vec::new(),
        any_batch: false,
        cache: Mutex::default(),
        marker: std::marker::PhantomData,
    }
}

impl<I: TensorTree, O: TensorTree, F: Fn(I) -> O> Jit<I, O, F> {
    /// Sets the backend of the jit-compiled function. Default: the registered backend with the highest rank.
    pub fn on(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Sets the function's name for messages and profiles.
    pub fn named(mut self, label: &str) -> Self {
        self.label = label.into();
        self
    }

    /// Allows denormals to be flushed to zero.
    pub fn flush_denormals(mut self, yes: bool) -> Self {
        self.flush_denormals = yes;
        self
    }

    /// Allows Winograd convolutions; see [`CompileOptions::winograd`].
    pub fn winograd(mut self, yes: bool) -> Self {
        self.winograd = yes;
        self
    }

    /// Allows intermediate bf16 and f16 values to stay in f32; see [`CompileOptions::excess_precision`].
    pub fn excess_precision(mut self, yes: bool) -> Self {
        self.excess_precision = yes;
        self
    }

    /// Marks argument `i` as batched along dimension 0, for distribution strategies that split batches.
    pub fn batch(mut self, i: usize) -> Self {
        self.batch.push(i);
        self
    }

    /// Marks argument `i` as replicated on every device, for distribution strategies that shard state. For values that
    /// the host reads while the program runs.
    pub fn whole(mut self, i: usize) -> Self {
        self.whole.push(i);
        self
    }

    /// Allows batches that do not divide evenly over devices: every device computes the whole batch.
    pub fn any_batch(mut self, yes: bool) -> Self {
        self.any_batch = yes;
        self
    }

    /// Roles of parameters and results. A result replaces the parameter of the same name.
    fn roles(&self, graph: &Graph, results: &TreeStructure) -> ValueRoles {
        let names = &graph.param_names;
        let of = |arguments: &[usize]| {
            let first = |name: &String| name.split('/').next()?.parse::<usize>().ok();
            (0..names.len()).filter(|&i| first(&names[i]).is_some_and(|a| arguments.contains(&a))).collect()
        };
        let place = |name: &String| names.iter().position(|p| p == name && !name.is_empty());
        ValueRoles {
            batch: of(&self.batch),
            whole: of(&self.whole),
            replaces: results.leaf_names().iter().map(place).collect(),
            any_batch: self.any_batch,
        }
    }

    /// Runs the jit-compiled function; compiles it first if the argument types are new.
    pub fn call(&self, args: I::Host) -> Result<O::Host> {
        let mut leaves = Vec::new();
        let structure = I::flatten_host(args, &mut leaves);
        let types = leaves.iter().map(|b| b.ty().clone()).collect();
        let compiled = self.compiled(JitSignature { structure, types })?;
        let args = leaves.into_iter().map(ExecutableArg::Donate).collect();
        let start = trace::begin();
        let results = compiled.executable.run(args)?;
        // For an asynchronous device, this span covers only the host's part.
        let goes_on = start.is_some() && results.first().is_some_and(|r| r.ready_event().is_some());
        let category = if goes_on { "dispatch" } else { "step" };
        trace::span(category, &self.label, start, || "{}".into());
        Ok(O::unflatten_host(&compiled.results, &mut results.into_iter()))
    }

    /// Traces the graph for the types of `args` without compiling it.
    pub fn trace(&self, args: I::Host) -> Result<Arc<Graph>> {
        Ok(self.program(args)?.0)
    }

    /// Traces the graph for the types of `args` without compiling it; returns it with the roles of its parameters and
    /// results.
    pub fn program(&self, args: I::Host) -> Result<(Arc<Graph>, ValueRoles)> {
        let mut leaves = Vec::new();
        let structure = I::flatten_host(args, &mut leaves);
        let types = leaves.iter().map(|b| b.ty().clone()).collect();
        let (graph, results) = self.trace_signature(&JitSignature { structure, types })?;
        let roles = self.roles(&graph, &results);
        Ok((graph, roles))
    }

    /// Number of programs compiled so far for the function, one for each argument signature.
    pub fn compiled_programs(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the compiled program for the types of `args`; compiles it if needed.
    pub fn executable(&self, args: I::Host) -> Result<Arc<dyn Executable>> {
        let mut leaves = Vec::new();
        let structure = I::flatten_host(args, &mut leaves);
        let types = leaves.iter().map(|b| b.ty().clone()).collect();
        Ok(self.compiled(JitSignature { structure, types })?.executable.clone())
    }

    fn trace_signature(&self, signature: &JitSignature) -> Result<(Arc<Graph>, TreeStructure)> {
        let g = GraphBuilder::new("main");
        let names = signature.structure.leaf_names();
        let params: Vec<Tensor> =
            signature.types.iter().zip(&names).map(|(t, n)| g.parameter(t.clone(), n)).collect();
        let params = I::unflatten(&signature.structure, &mut params.into_iter());
        let out = scope::traced(&g, || (self.f)(params));
        let mut results = Vec::new();
        let skeleton = out.flatten(&mut results);
        Ok((g.finish(&results)?, skeleton))
    }

    fn compiled(&self, signature: JitSignature) -> Result<Arc<JitEntry>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hit) = cache.get(&signature) {
            return Ok(hit.clone());
        }
        if let Some(changed) = self.first_change(&signature, cache.keys()) {
            events::emit(1, || format!("recompiling {}: {changed}", self.label));
        }
        let start = trace::begin();
        let (graph, results) = self.trace_signature(&signature)?;
        let backend = match &self.backend {
            Some(b) => b.clone(),
            None => backend("auto")?,
        };
        let options = CompileOptions {
            donated: (0..graph.params.len()).collect(),
            label: self.label.clone(),
            flush_denormals: self.flush_denormals,
            winograd: self.winograd,
            excess_precision: self.excess_precision,
            contraction: false,
            wide_float16: false,
            roles: self.roles(&graph, &results),
        };
        let executable = backend.compile(&graph, &options)?;
        trace::span("compile", &format!("compile {}", self.label), start, || "{}".into());
        events::emit(1, || {
            let r = executable.report();
            format!(
                "compiled {} for {} in {:.1} ms: {} kernel{}, {:.1} MFLOP, arena {:.1} MiB",
                self.label,
                backend.name(),
                r.compile_ms,
                r.kernels,
                if r.kernels == 1 { "" } else { "s" },
                r.flops / 1e6,
                r.arena_bytes as f64 / (1 << 20) as f64
            )
        });
        let compiled = Arc::new(JitEntry { executable, results });
        cache.insert(signature, compiled.clone());
        Ok(compiled)
    }

    /// Describes the first argument whose type differs from an earlier signature with the same structure.
    fn first_change<'a>(
        &self,
        new: &JitSignature,
        known: impl Iterator<Item = &'a JitSignature>,
    ) -> Option<String> {
        let old = known.into_iter().find(|k| k.structure == new.structure)?;
        let names = new.structure.leaf_names();
        let i = (0..new.types.len()).find(|&i| old.types[i] != new.types[i])?;
        Some(format!("argument {} was {}, is now {}", names[i], old.types[i], new.types[i]))
    }
}

/// Returns the value of a scalar function of a tree, and its gradient with the same structure. For use while tracing.
///
/// ```
/// use systole_runtime::{jit, value_and_grad, Buffer};
/// use systole_ir::{DType::F32, Tensor};
/// let f = jit(|(x,): (Tensor,)| value_and_grad(|x: &Tensor| x * x, &x));
/// let (value, slope) = f.call((Buffer::scalar(F32, 3.0),)).unwrap();
/// assert_eq!((value.to_f64().unwrap(), slope.to_f64().unwrap()), (9.0, 6.0));
/// ```
#[track_caller]
pub fn value_and_grad<P: TensorTree>(f: impl FnOnce(&P) -> Tensor, params: &P) -> (Tensor, P) {
    let loss = f(params);
    let mut leaves = Vec::new();
    let skeleton = params.flatten(&mut leaves);
    let refs: Vec<&Tensor> = leaves.iter().collect();
    if let Some(bad) = refs.iter().find(|t| !t.dtype().is_float()) {
        bad.fail(
            err!(Graph, "cannot differentiate with respect to a value of type {}", bad.ty())
                .hint("pass only floating-point values in the parameter tree; keep counters out of it"),
        );
    }
    let grads = grad(&loss, &refs);
    (loss, P::unflatten(&skeleton, &mut grads.into_iter()))
}

impl<I, O, F> std::fmt::Debug for Jit<I, O, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Jit({})", self.label)
    }
}

/// Constructors of zero-filled buffers.
impl Buffer {
    /// Creates an array of zeros, kept on the host until it is used.
    pub fn zeros(ty: TensorType) -> Buffer {
        systole_ir::Literal::zeros(ty).into()
    }
}
