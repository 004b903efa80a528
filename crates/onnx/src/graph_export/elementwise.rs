//! Element-wise ops in ONNX. Operands with pending repetition are repeated by the operators themselves.

use super::writer::{Exported, ExportedValue, GraphWriter, unsupported};
use crate::model::{OnnxAttribute, OnnxNode};
use systole_base::{DType, Shape, TensorType};
use systole_ir::op::{Binary, Compare, CompareType, Direction, Unary};

/// Dimensions of the result of an element-wise operator.
fn repeated(of: &[&ExportedValue]) -> Shape {
    let rank = of.iter().map(|x| x.dims.len()).max().unwrap_or(0);
    let dim = |i: usize| of.iter().filter(|x| x.dims.len() == rank).map(|x| x.dims[i]).max().unwrap_or(1);
    (0..rank).map(dim).collect()
}

fn done(name: String, of: &[&ExportedValue], ty: TensorType) -> Exported {
    Ok(ExportedValue { name, dims: repeated(of), ty, constant: None })
}

/// Returns the operator of ONNX that computes an op.
fn direct(op: Unary, dtype: DType) -> Option<&'static str> {
    Some(match op {
        Unary::Abs => "Abs",
        Unary::Ceil => "Ceil",
        Unary::Cosine => "Cos",
        Unary::Erf => "Erf",
        Unary::Exponential => "Exp",
        Unary::Floor => "Floor",
        Unary::Log => "Log",
        Unary::Logistic => "Sigmoid",
        Unary::Negate => "Neg",
        Unary::Not if dtype == DType::Bool => "Not",
        Unary::RoundNearestEven => "Round",
        Unary::Sign => "Sign",
        Unary::Sine => "Sin",
        Unary::Sqrt => "Sqrt",
        Unary::Tan => "Tan",
        Unary::Tanh => "Tanh",
        _ => return None,
    })
}

pub(super) fn unary(w: &mut GraphWriter, op: Unary, x: &ExportedValue, ty: TensorType) -> Exported {
    let (dtype, name) = (x.ty.dtype, x.name.as_str());
    if let Some(direct) = direct(op, dtype) {
        let y = w.emit(direct, &[name]);
        return done(y, &[x], ty);
    }
    let y = match op {
        Unary::Cbrt => {
            let (size, sign) = (w.emit("Abs", &[name]), w.emit("Sign", &[name]));
            let third = w.scalar(dtype, 1.0 / 3.0);
            let root = w.emit("Pow", &[&size, &third]);
            w.emit("Mul", &[&root, &sign])
        }
        Unary::Erfc => {
            let (one, erf) = (w.scalar(dtype, 1.0), w.emit("Erf", &[name]));
            w.emit("Sub", &[&one, &erf])
        }
        Unary::ExponentialMinusOne => {
            let (one, exp) = (w.scalar(dtype, 1.0), w.emit("Exp", &[name]));
            w.emit("Sub", &[&exp, &one])
        }
        Unary::IsFinite => {
            // A difference with itself is NaN for infinities and NaN.
            let zero = w.emit("Sub", &[name, name]);
            w.emit("Equal", &[&zero, &zero])
        }
        Unary::LogPlusOne => {
            let one = w.scalar(dtype, 1.0);
            let sum = w.emit("Add", &[name, &one]);
            w.emit("Log", &[&sum])
        }
        Unary::RoundNearestAfz => {
            let (size, sign) = (w.emit("Abs", &[name]), w.emit("Sign", &[name]));
            let half = w.scalar(dtype, 0.5);
            let up = w.emit("Add", &[&size, &half]);
            let down = w.emit("Floor", &[&up]);
            w.emit("Mul", &[&down, &sign])
        }
        Unary::Rsqrt => {
            let root = w.emit("Sqrt", &[name]);
            w.emit("Reciprocal", &[&root])
        }
        _ => return Err(unsupported(format!("cannot export {} of {dtype} to ONNX", op.name()))),
    };
    done(y, &[x], ty)
}

pub(super) fn binary(w: &mut GraphWriter, op: Binary, x: [&ExportedValue; 2], ty: TensorType) -> Exported {
    let is_bool = ty.dtype == DType::Bool;
    let name = match op {
        Binary::Add | Binary::Maximum | Binary::Or if is_bool => "Or",
        Binary::Multiply | Binary::Minimum | Binary::And if is_bool => "And",
        Binary::Xor if is_bool => "Xor",
        Binary::Add => "Add",
        Binary::Divide => "Div",
        Binary::Maximum => "Max",
        Binary::Minimum => "Min",
        Binary::Multiply => "Mul",
        Binary::Power => "Pow",
        Binary::Remainder => "Mod",
        Binary::Subtract => "Sub",
        _ => return Err(unsupported(format!("cannot export {} of {} to ONNX", op.name(), ty.dtype))),
    };
    let node = OnnxNode::new(name, x.map(|x| x.name.as_str()), "");
    let node = if name == "Mod" { node.with("fmod", OnnxAttribute::Int(1)) } else { node };
    let y = w.emit_with(node);
    done(y, &x, ty)
}

pub(super) fn compare(w: &mut GraphWriter, op: &Compare, x: [&ExportedValue; 2], ty: TensorType) -> Exported {
    if op.compare_type == CompareType::TotalOrder {
        return Err(unsupported("ONNX has no comparison by total order".into()));
    }
    let names = match (x[0].ty.dtype, op.direction) {
        // Bool has no order in ONNX.
        (DType::Bool, Direction::Eq | Direction::Ne) => x.map(|x| x.name.clone()),
        (DType::Bool, _) => x.map(|x| w.cast(&x.name, DType::I32)),
        _ => x.map(|x| x.name.clone()),
    };
    let inputs = [names[0].as_str(), names[1].as_str()];
    let y = match op.direction {
        Direction::Eq => w.emit("Equal", &inputs),
        Direction::Ne => {
            let equal = w.emit("Equal", &inputs);
            w.emit("Not", &[&equal])
        }
        Direction::Ge => w.emit("GreaterOrEqual", &inputs),
        Direction::Gt => w.emit("Greater", &inputs),
        Direction::Le => w.emit("LessOrEqual", &inputs),
        Direction::Lt => w.emit("Less", &inputs),
    };
    done(y, &x, ty)
}

pub(super) fn select(w: &mut GraphWriter, x: [&ExportedValue; 3], ty: TensorType) -> Exported {
    // ONNX Runtime has no Where for bool.
    let is_bool = ty.dtype == DType::Bool;
    let branches = [x[1], x[2]].map(|x| if is_bool { w.cast(&x.name, DType::U8) } else { x.name.clone() });
    let y = w.emit("Where", &[&x[0].name, &branches[0], &branches[1]]);
    let y = if is_bool { w.cast(&y, DType::Bool) } else { y };
    done(y, &x, ty)
}

pub(super) fn clamp(w: &mut GraphWriter, [low, x, high]: [&ExportedValue; 3], ty: TensorType) -> Exported {
    let y = w.emit("Max", &[&x.name, &low.name]);
    let y = w.emit("Min", &[&y, &high.name]);
    done(y, &[low, x, high], ty)
}

pub(super) fn convert(w: &mut GraphWriter, x: &ExportedValue, to: DType, ty: TensorType) -> Exported {
    let y = if x.ty.dtype == to { x.name.clone() } else { w.cast(&x.name, to) };
    done(y, &[x], ty)
}
