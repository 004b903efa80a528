//! Errors in custom layers, losses, metrics, functions or models report the user's file and line, never the library's.

use systole_data::{Dataset, Sample};
use systole_ir::DType::{BF16, F32, I32};
use systole_ir::{Error, ErrorKind, Literal, Tensor, TensorType};
use systole_nn::layers::*;
use systole_nn::loss::{CustomLoss, Loss, mean_squared_error};
use systole_nn::metric::{CustomMetric, Metric};
use systole_nn::{Compile, Cx, Fit, Initializer, Layer, Model, input};
use systole_runtime::{Buffer, Params, backend, jit, value_and_grad};

/// That an error names the line of this file with the given mark.
fn told(mark: &str, e: Error) {
    let source = include_str!("lines.rs");
    let at = source.lines().position(|l| l.ends_with(&format!("// {mark}"))).unwrap() + 1;
    let line = format!("tests/lines.rs:{at}");
    assert!(e.places().iter().any(|p| p.ends_with(&line)), "{mark} is in {line}: {e}");
    assert!(!e.places().iter().any(|p| p.contains("src/")), "{mark}: {e}");
}

fn data() -> Dataset {
    let x = Literal::from_slice([8, 3], &[0.5f32; 24]).unwrap();
    let y = Literal::from_slice([8, 1], &[1f32; 8]).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

/// The error of training a model, which is compiled before that.
fn trained(layers: Vec<LayerSpec>, loss: Loss, metrics: Vec<Metric>) -> Error {
    let mut model = Model::sequential(layers);
    let backend = Some(backend("ref").unwrap());
    model.compile(Compile { loss, metrics, backend, ..Default::default() }).unwrap();
    model.fit(&data().batch(4), Fit { verbose: 0, ..Default::default() }).unwrap_err()
}

#[derive(Debug, Clone, Copy)]
enum Mistake {
    Dtype,
    Shape,
    Dot,
    Weight,
    Composed,
    Own,
    BuiltIn,
}

#[derive(Debug)]
struct Mistaken(Mistake);

impl Layer for Mistaken {
    fn class_name(&self) -> &'static str {
        "Mistaken"
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        match self.0 {
            Mistake::Dtype => x * x.convert(BF16), // dtype
            Mistake::Shape => x.reshape([7, 7]),   // shape
            Mistake::Dot => x.dot(&cx.weight("w", &[5, 2], &Initializer::Ones)), // dot
            Mistake::Weight => {
                cx.weight("w", &[2], &Initializer::Ones);
                cx.weight("w", &[3], &Initializer::Ones) // weight
            }
            Mistake::Composed => x.convert(I32).softmax(), // composed
            Mistake::Own => cx.fail(x, Error::new(ErrorKind::Graph, "not this")), // own
            Mistake::BuiltIn => {
                conv2d(4, 3) // inner
                    .call(cx, inputs)
            }
        }
    }
}

#[test]
fn in_a_layer_of_ones_own() {
    for (mark, mistake) in [
        ("dtype", Mistake::Dtype),
        ("shape", Mistake::Shape),
        ("dot", Mistake::Dot),
        ("weight", Mistake::Weight),
        ("composed", Mistake::Composed),
        ("own", Mistake::Own),
        ("inner", Mistake::BuiltIn),
    ] {
        let e = trained(vec![LayerSpec::custom(Mistaken(mistake))], mean_squared_error(), vec![]);
        assert!(e.to_string().contains("mistaken"), "{e}");
        told(mark, e);
    }
}

#[test]
fn in_a_chain_and_a_graph_of_built_in_layers() {
    let layers = vec![
        dense(4),
        conv2d(8, 3), // conv
    ];
    told("conv", trained(layers, mean_squared_error(), vec![]));
    let none = dense(0); // units
    told("units", Model::sequential([none]).compile(Compile::default()).unwrap_err());
    let (a, b) = (input("a", [4]), input("b", [5]));
    let sum = add().on(&[&a, &b]); // add
    let mut model = Model::functional(&[a, b], &sum).unwrap();
    let types = [TensorType::new(F32, [4]), TensorType::new(F32, [5])];
    told("add", model.build(&types).unwrap_err());
    assert!(model.summary().contains("tests/lines.rs:"), "{}", model.summary());
    let x = input("x", [4]);
    let y = x.apply(max_pooling2d(2)); // pool
    told("pool", Model::functional(&[x], &y).unwrap().build(&types[..1]).unwrap_err());
}

#[derive(Debug)]
struct Flat;

impl CustomLoss for Flat {
    fn name(&self) -> &str {
        "flat"
    }
    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        y_true + y_pred.reshape([3]) // loss
    }
}

#[test]
fn in_a_loss() {
    let of = |loss: Loss| trained(vec![dense(1)], loss, vec![]);
    told("loss", of(Flat.into()));
    told("closure", of(Loss::custom("c", |t, p| t.dot(p)))); // closure
    told("bool", of(Loss::custom("b", |t, p| t.less(p)))); // bool
    let e = of(Loss::custom("s", |t, p| (t - p).sum(&[0]))); // sum
    assert!(e.to_string().contains("loss s returned f32[1]"), "{e}");
    told("sum", e);
    let no = || Error::new(ErrorKind::Graph, "no");
    told("fail", of(Loss::custom("f", move |t, _| t.fail(no())))); // fail
}

#[derive(Debug)]
struct Growing(bool);

impl CustomMetric for Growing {
    fn name(&self) -> &str {
        "growing"
    }
    fn update(&self, state: &Params, y_true: &Tensor, _: &Tensor, _: Option<&Tensor>) -> Params {
        if self.0 {
            return state.map(|_, old| old + y_true.sum_all()); // metric
        }
        state.map(|_, old| old.convert(F32))
    }
}

#[test]
fn in_a_metric() {
    let of = |metric: Metric| trained(vec![dense(1)], mean_squared_error(), vec![metric]);
    told("metric", of(Growing(true).into()));
    let metric = Metric::from(Growing(false)); // state
    let e = of(metric);
    assert!(["`total`", "f64[]", "f32[]"].iter().all(|name| e.to_string().contains(name)), "{e}");
    told("state", e);
    told("mean", of(Metric::custom("m", |t, p| t.concat_wrong(p)))); // mean
}

/// A helper of the user's: the line is that of the helper's own op.
trait Helper {
    fn concat_wrong(&self, other: &Tensor) -> Tensor;
}

impl Helper for Tensor {
    #[track_caller]
    fn concat_wrong(&self, other: &Tensor) -> Tensor {
        Tensor::concatenate(&[self, &other.convert(I32)], 0)
    }
}

#[test]
fn in_a_function_that_is_compiled() {
    let error = |f: fn(Tensor) -> Tensor, x: TensorType| {
        jit(f).on(backend("ref").unwrap()).call(Buffer::zeros(x)).unwrap_err()
    };
    let square = || TensorType::new(F32, [2, 3]);
    told("jit", error(|x| x.dot(&x), square())); // jit
    told("grad", error(|x| value_and_grad(|x: &Tensor| x.exp(), &x).1, square())); // grad
    let ints = TensorType::scalar(I32);
    told("ints", error(|x| value_and_grad(|x: &Tensor| x.convert(F32), &x).1, ints)); // ints
}

#[test]
fn in_a_map_over_data() {
    let first = |d: Dataset| d.iter().next().unwrap().unwrap_err();
    let copied = |s: Sample| s.get("y").cloned().map(|y| s.clone().with("z", y)); // get
    told("reshape", first(data().map(|s: Sample| s.map("x", |x| x.reshape([9]))))); // reshape
    told("field", first(data().map(|s: Sample| s.map("y", |x| x)))); // field
    told("cast", first(data().map(|s: Sample| s.map("x", |x| x.cast(I32) / 2.0)))); // cast
    told("get", first(data().map(copied)));
    told("pooled", first(data().map_parallel(|s: Sample| s.map("x", |x| x.rot90(1)), 2))); // pooled
}
