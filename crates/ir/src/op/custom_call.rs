//! custom_call: calls a function of the host program, such as a Python callback; [`register`] makes functions known.
//! The target [`LAPACK`] is a routine of `systole_linalg` (feature `linalg`), [`fft::FFT`] a Fourier transform.
//!
//! Calls with side effects are ordered by an order token, an `i32[]` that is 0 but known only at run time. A program that
//! returns the last token executes all of them once, in order, without rules of their own in passes and backends.

use super::sample::{ArgDomain, WIDE, sample};
use super::*;
use std::sync::{PoisonError, RwLock};
use systole_base::err;

/// A host function: `(backend_config, operands, result types) → results`.
pub type HostFunction = Arc<dyn Fn(&str, &[&Literal], &[TensorType]) -> Result<Vec<Literal>> + Send + Sync>;

/// Registered functions by target.
static FUNCTIONS: RwLock<Vec<(String, HostFunction)>> = RwLock::new(Vec::new());

/// Target whose configuration is a routine of `systole_linalg::call` and its attributes.
pub const LAPACK: &str = "systole_lapack";

/// Returns the routine of another system's custom call: `lapack_dgeqrf_ffi` is `geqrf`.
pub fn lapack_routine(target: &str) -> Option<&'static str> {
    #[cfg(feature = "linalg")]
    return systole_linalg::routine(target);
    #[cfg(not(feature = "linalg"))]
    {
        let _ = target;
        None
    }
}

/// Target that returns its operands; for tests.
const IDENTITY: &str = "systole_identity";

/// Registers the host function of a target, in place of a previous one.
pub fn register(target: &str, function: HostFunction) {
    let mut functions = FUNCTIONS.write().unwrap_or_else(PoisonError::into_inner);
    functions.retain(|(name, _)| name != target);
    functions.push((target.to_owned(), function));
}

/// Whether a host function of this name is registered.
pub fn is_registered(target: &str) -> bool {
    let functions = FUNCTIONS.read().unwrap_or_else(PoisonError::into_inner);
    functions.iter().any(|(name, _)| name == target)
}

fn registered(target: &str) -> Result<HostFunction> {
    if target == IDENTITY {
        return Ok(Arc::new(|_, args, _| Ok(args.iter().map(|&l| l.clone()).collect())));
    }
    if target == fft::FFT {
        return Ok(Arc::new(fft::call));
    }
    #[cfg(feature = "linalg")]
    if target == LAPACK {
        return Ok(Arc::new(systole_linalg::call));
    }
    let functions = FUNCTIONS.read().unwrap_or_else(PoisonError::into_inner);
    let found = functions.iter().find(|(name, _)| name == target);
    found.map(|(_, function)| function.clone()).ok_or_else(|| {
        err!(Unsupported, "cannot call the host function `{target}`")
            .because("no function of that name is registered in this process")
            .hint("run the program in the process that defines the function, such as the Python program that compiled it")
    })
}

impl CustomCall {
    /// Type of the order token.
    pub fn order() -> TensorType {
        TensorType::scalar(DType::I32)
    }

    /// Number of order tokens among the operands, and among the results.
    fn tokens(&self) -> usize {
        usize::from(self.has_side_effect)
    }
}

impl OpRule for CustomCall {
    fn lower(&self) -> LoweringClass {
        // Each element of a Fourier transform is a sum of many.
        if self.target == fft::FFT { LoweringClass::Fold } else { LoweringClass::Exchange }
    }

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let order = CustomCall::order();
        let fits = !self.has_side_effect || args.last().is_some_and(|last| **last == order);
        require!(fits, "-", "the last operand of a call with side effects must be the order token {order}");
        Ok(self.results.iter().cloned().chain(self.has_side_effect.then_some(order)).collect())
    }

    fn result_count(&self, _: usize) -> usize {
        self.results.len() + self.tokens()
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        let own = &args[..args.len() - self.tokens()];
        let mut made = registered(&self.target)?(&self.config, own, &self.results)?;
        let fits = made.iter().map(Literal::ty).eq(&self.results);
        ensure!(
            fits,
            err!(Data, "host function `{}` returned other types than {:?}", self.target, self.results)
        );
        made.extend(self.has_side_effect.then(|| Literal::zeros(CustomCall::order())));
        Ok(made)
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::None { why: "the derivative of a host function is unknown" }; x.len()]
    }

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let flops = match args.first() {
            Some(x) if self.target == fft::FFT => fft::flops(&self.config, x),
            Some(x) if self.target == LAPACK => {
                let rows = x.shape.last().copied().unwrap_or(1) as f64;
                match args.get(1) {
                    Some(b) if self.config.split(' ').any(|word| word == "trsm") => {
                        rows * b.elements() as f64
                    }
                    // Decompositions of matrices take a few times the cube of their size.
                    _ => 4.0 * rows * x.elements() as f64,
                }
            }
            _ => 0.0,
        };
        OpCost { flops, bytes: moved_bytes(args, outs) }
    }

    fn attrs(&self) -> AttrList {
        vec![
            ("call_target_name", Attr::Str(self.target.clone())),
            ("backend_config", Attr::Str(self.config.clone())),
            ("has_side_effect", Attr::Bool(self.has_side_effect)),
        ]
    }
}

impl StructuralOp for CustomCall {
    /// Other systems' targets are not host functions: their importer decomposes some of them.
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let target = s.text("call_target_name")?;
        if !target.starts_with("systole_") {
            return Err(format!("`{target}` is not a function of Systole's host programs"));
        }
        let has_side_effect = s.flag("has_side_effect")?;
        let mut results = s.results.clone();
        if has_side_effect && results.pop() != Some(CustomCall::order()) {
            return Err("the last result of a call with side effects must be the order token".into());
        }
        Ok(CustomCall { target, config: s.text("backend_config")?, has_side_effect, results })
    }

    fn samples() -> Vec<OpSample> {
        let case = |(dtype, has_side_effect): (DType, bool)| {
            let results = vec![TensorType::new(dtype, [3]), TensorType::new(dtype, [0, 2])];
            let params: Vec<_> = results.iter().map(|ty| (ty.clone(), WIDE)).collect();
            let config = "a \"b\"".to_owned();
            let call = CustomCall { target: IDENTITY.into(), config, has_side_effect, results };
            let label = if has_side_effect { "effect" } else { "pure" };
            sample(format!("{label}_{dtype}"), &params, 0, false, |x| {
                let g = x[0].builder();
                let order = has_side_effect.then(|| g.scalar(DType::I32, 0.0));
                g.emit(call.clone(), &x.iter().chain(&order).collect::<Vec<_>>())
            })
        };
        let identities = DType::ALL.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]);
        identities.map(case).chain(lapack_samples()).chain(fft::samples()).collect()
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        match fft::FftCall::parse(&self.config) {
            Ok(fft) if self.target == fft::FFT => fft.factors(at),
            _ => Vec::new(),
        }
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        let own = |ty: &TensorType| TensorType::new(ty.dtype, &shard_of(&ty.shape, d, parts)[..]);
        Some(CustomCall { results: self.results.iter().map(own).collect(), ..self.clone() }.into())
    }
}

/// Permutations of a batch of LU decompositions: exact with any vector kernels.
fn lapack_samples() -> Vec<OpSample> {
    if !cfg!(feature = "linalg") {
        return Vec::new();
    }
    let ty = TensorType::new(DType::I32, [5, 3]);
    let (config, results) = ("permutation".to_owned(), vec![ty.clone()]);
    let call = CustomCall { target: LAPACK.into(), config, has_side_effect: false, results };
    let pivots = ArgDomain::Uniform(0.0, 2.0);
    vec![sample("lapack_batch".into(), &[(ty, pivots)], 0, false, move |x| {
        x[0].builder().emit(call.clone(), &[&x[0]])
    })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, interp};

    fn call(target: &str, results: Vec<TensorType>) -> Result<Vec<Literal>> {
        let g = GraphBuilder::new("main");
        let order = g.scalar(DType::I32, 0.0);
        let call = CustomCall { target: target.into(), config: "c".into(), has_side_effect: true, results };
        let results = g.emit(call, &[&order]);
        interp::run(&*g.finish(&results)?, &[])
    }

    #[test]
    fn a_registered_function_receives_its_configuration_and_is_replaced() {
        let ty = TensorType::scalar(DType::F64);
        for value in [1.0, 2.0] {
            let function = move |config: &str, args: &[&Literal], outs: &[TensorType]| {
                assert_eq!((config, args.len(), outs.len()), ("c", 0, 1));
                Ok(vec![Literal::scalar(DType::F64, value)])
            };
            register("systole_test_value", Arc::new(function));
            let out = call("systole_test_value", vec![ty.clone()]).unwrap();
            assert_eq!((out[0].to_f64s(), out[1].to_f64s()), (vec![value], vec![0.0]));
        }
        let e = call("systole_test_value", vec![TensorType::scalar(DType::F32)]).unwrap_err();
        assert!(e.to_string().contains("systole_test_value"), "{e}");
    }

    #[test]
    fn linear_algebra_costs_the_cube_of_the_size_or_a_square_for_each_right_side() {
        let matrix = |rows, columns| TensorType::new(DType::F32, [rows, columns]);
        let flops = |config: &str, args: &[&TensorType]| {
            let call = CustomCall {
                target: LAPACK.into(),
                config: config.into(),
                has_side_effect: false,
                results: vec![matrix(100, 10)],
            };
            call.cost(args, &call.results.iter().cloned().collect()).flops
        };
        assert_eq!(flops("potrf uplo=76", &[&matrix(100, 100)]), 4e6);
        assert_eq!(flops("complex trsm side=76", &[&matrix(100, 100), &matrix(100, 10)]), 1e5);
    }

    #[test]
    fn an_unknown_function_is_an_error_that_names_it() {
        let e = call("systole_test_missing", Vec::new()).unwrap_err();
        assert!(e.to_string().contains("systole_test_missing"), "{e}");
    }
}
