//! Tests of the specification's constraints by op and label: each program violates one and is rejected for it. Without
//! constraints of quantized types and of decomposed ops.

use systole_mlir::read_text;

/// What rejects the program.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    /// The constraint label.
    Label,
    /// The stated result type, which differs from the inferred one.
    Result,
    /// The parser: the text is not a valid op.
    Reader,
}

use By::{Label, Reader, Result as Type};

/// Op, label, what rejects it, and the op in generic form with operands `%a`, `%b`, … of its types.
struct Row(&'static str, &'static str, By, &'static str);

const ADD: &str = "({^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32>})";
const NARROW: &str = "({^bb0(%x: tensor<f16>, %y: tensor<f16>): %s = stablehlo.add %x, %y : tensor<f16> stablehlo.return %s : tensor<f16>})";
const LESS: &str = "({^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return %s : tensor<i1>})";

include!("constraints/table.rs");

/// Returns a module with the op.
fn module(op: &str) -> String {
    let op = op.replace("ADD", ADD).replace("NARROW", NARROW).replace("LESS", LESS);
    let inner = |body: &str| body.trim_matches(['(', ')']).to_owned();
    let op = op.replace("SELECT", &inner(LESS)).replace("SCATTER", &inner(ADD));
    let types = op.rsplit_once(": (").and_then(|(_, rest)| rest.split_once(") -> "));
    let (from, to) = types.unwrap_or_else(|| panic!("no types in {op}"));
    let each = from.split(", ").filter(|ty| !ty.is_empty());
    let parameters: Vec<String> =
        each.zip("abcdefg".chars()).map(|(ty, name)| format!("%{name}: {ty}")).collect();
    let (results, first) = match to.strip_prefix('(') {
        Some(all) => (to.to_owned(), all.split(", ").next().unwrap_or("").trim_end_matches(')').to_owned()),
        None => (format!("({to})"), to.to_owned()),
    };
    let count = results.split(", ").count();
    let (name, value) = if count > 1 { (format!("%r:{count}"), "%r#0") } else { ("%r".into(), "%r") };
    format!(
        "func.func @main({}) -> {first} {{ {name} = {op} return {value} : {first} }}",
        parameters.join(", ")
    )
}

#[test]
fn every_label_has_a_program_that_it_refuses() {
    let mut wrong = Vec::new();
    for Row(op, label, by, text) in ROWS {
        let full = module(&format!("\"stablehlo.{op}\"{text}"));
        let said = match read_text(&full) {
            Ok(_) => "it is taken".to_owned(),
            Err(e) => e.to_string(),
        };
        let fits = match by {
            Label => said.contains(&format!("({label})")),
            Type => said.contains("result has type ") || said.contains("results"),
            Reader => !said.contains("it is taken"),
        };
        if !fits {
            wrong.push(format!("{op} {label}: {}", said.replace('\n', " ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
}

/// The programs fail only for their violation: each op is accepted without one.
#[test]
fn each_op_of_the_table_is_taken_where_nothing_is_broken() {
    for (op, text) in SOUND {
        let full = module(&format!("\"stablehlo.{op}\"{text}"));
        read_text(&full).unwrap_or_else(|e| panic!("{op}: {e}\n{full}"));
    }
    for Row(op, ..) in ROWS {
        assert!(SOUND.iter().any(|(sound, _)| sound == op), "{op} has no sound program");
    }
}
