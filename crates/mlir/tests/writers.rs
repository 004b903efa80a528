//! Tests with the syntax of other and older writers, modeled after JAX 0.4.30 to 0.12, MLIR's printer and PyTorch/XLA.

use systole_base::Literal;
use systole_ir::{interp, text};
use systole_mlir::read_text;

/// Parses a text.
#[track_caller]
fn read(source: &str) -> text::StableHloProgram {
    read_text(source).unwrap_or_else(|e| panic!("{e}\n{source}"))
}

/// Asserts that two texts give the same graph.
#[track_caller]
fn same(a: &str, b: &str) {
    let (a_graph, b_graph) = (read(a).graph, read(b).graph);
    assert_eq!(a_graph, b_graph, "{a}\n{}\n{}", text::print(&a_graph), text::print(&b_graph));
}

const PLAIN: &str = "func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32> }";

#[test]
fn modules_and_functions_have_names_of_all_kinds() {
    let body = "(%arg0: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
        return %0 : tensor<2xf32> }";
    for module in ["module", "module @jit_f", "module @\"jit f<1>\"", "builtin.module @m", "module @a.b_c$d"]
    {
        for attributes in
            ["", "attributes {mhlo.num_partitions = 1 : i32, jax.uses_shape_polymorphism = false}"]
        {
            same(&format!("{module} {attributes} {{ func.func public @main{body} }}"), PLAIN);
        }
    }
    same(
        "\"builtin.module\"() <{sym_name = \"m\"}> ({
            \"func.func\"() <{function_type = (tensor<2xf32>) -> tensor<2xf32>, sym_name = \"main\", sym_visibility = \"public\"}> ({
            ^bb0(%arg0: tensor<2xf32>):
                %0 = \"stablehlo.add\"(%arg0, %arg0) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
                \"func.return\"(%0) : (tensor<2xf32>) -> ()
            }) {mhlo.frontend = \"x\"} : () -> ()
        }) {mhlo.num_replicas = 1 : i32} : () -> ()",
        PLAIN,
    );
    same(
        "module { func.func public @main(%arg0: tensor<2xf32> {jax.buffer_donor = true}) -> (tensor<2xf32> {jax.result_info = \"result\", mhlo.layout_mode = \"default\"}) attributes {no_inline} {
            %0 = call @\"f<1>\"(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
            return %0 : tensor<2xf32> }
          func.func private @\"f<1>\"(%arg0: tensor<2xf32>) -> (tensor<2xf32> {mhlo.layout_mode = \"default\"}) {
            %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
            func.return %0 : tensor<2xf32> } }",
        PLAIN,
    );
}

#[test]
fn locations_are_passed_over_in_all_spellings() {
    let spellings = [
        "loc(unknown)",
        "loc(\"f.py\":1:2)",
        "loc(\"f.py\":1:2 to 3:4)",
        "loc(\"f.py\":1:2 to :4)",
        "loc(\"jit(f)/jit(main)/add\")",
        "loc(\"add\"(\"f.py\":1:2))",
        "loc(\"add\"(#loc1))",
        "loc(callsite(\"g\" at \"f.py\":1:2))",
        "loc(callsite(#loc1 at callsite(\"a\"(#loc1) at unknown)))",
        "loc(fused[\"a\", \"b\":1:2])",
        "loc(fused<\"tag\">[#loc1, unknown])",
        "loc(fused<{x = 1 : i64}>[#loc1])",
        "loc(#loc1)",
    ];
    for spelling in spellings {
        let text = format!(
            "#loc = loc(unknown)
            #loc1 = loc(\"x\"(#loc))
            module @m {{
              func.func public @main(%arg0: tensor<2xf32> {{mhlo.layout_mode = \"default\"}} {spelling}) -> tensor<2xf32> {{
                %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32> {spelling}
                return %0 : tensor<2xf32> {spelling}
              }} {spelling}
            }} {spelling}
            #loc2 = {spelling}"
        );
        same(&text, PLAIN);
    }
    same(
        "module { func.func @main(%arg0: tensor<2xf32> loc(\"x\")) -> tensor<f32> {
            %c = stablehlo.constant dense<0.0> : tensor<f32> loc(#loc)
            %0 = stablehlo.reduce(%arg0 init: %c) across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
             reducer(%arg1: tensor<f32> loc(unknown), %arg2: tensor<f32> loc(#loc)) {
              %1 = stablehlo.add %arg1, %arg2 : tensor<f32> loc(#loc)
              stablehlo.return %1 : tensor<f32> loc(#loc)
            } loc(#loc)
            return %0 : tensor<f32> loc(#loc) } loc(#loc) } loc(#loc)
        #loc = loc(\"x\":1:2)",
        "func.func @main(%arg0: tensor<2xf32>) -> tensor<f32> {
            %c = stablehlo.constant dense<0.0> : tensor<f32>
            %0 = stablehlo.reduce(%arg0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
            return %0 : tensor<f32> }",
    );
}

#[test]
fn the_dialect_mhlo_is_stablehlo_by_its_older_name() {
    same(
        "module { func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x4xf32>) -> tensor<2xf32> {
            %0 = mhlo.constant dense<0.000000e+00> : tensor<f32>
            %1 = \"mhlo.dot_general\"(%arg0, %arg1) {dot_dimension_numbers = #mhlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>, precision_config = [#mhlo<precision DEFAULT>, #mhlo<precision DEFAULT>]} : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
            %2 = mhlo.tanh %1 : tensor<2x4xf32>
            %3 = mhlo.compare GT, %2, %1, FLOAT : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xi1>
            %4 = mhlo.select %3, %1, %2 : tensor<2x4xi1>, tensor<2x4xf32>
            %5 = mhlo.reduce(%4 init: %0) applies mhlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
            %6 = \"mhlo.transpose\"(%4) {permutation = dense<[1, 0]> : tensor<2xi64>} : (tensor<2x4xf32>) -> tensor<4x2xf32>
            return %5 : tensor<2xf32> } }",
        "module { func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x4xf32>) -> tensor<2xf32> {
            %0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %1 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
            %2 = stablehlo.tanh %1 : tensor<2x4xf32>
            %3 = stablehlo.compare GT, %2, %1, FLOAT : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xi1>
            %4 = stablehlo.select %3, %1, %2 : tensor<2x4xi1>, tensor<2x4xf32>
            %5 = stablehlo.reduce(%4 init: %0) applies stablehlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
            %6 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
            return %5 : tensor<2xf32> } }",
    );
    same(
        "func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<1xf32>) {
            %0 = mhlo.erf %x : tensor<2xf32>
            %1 = mhlo.copy %0 : tensor<2xf32>
            %v, %i = mhlo.topk(%1, k=1, largest=true) : tensor<2xf32> -> (tensor<1xf32>, tensor<1xi32>)
            return %1, %v : tensor<2xf32>, tensor<1xf32> }",
        "func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<1xf32>) {
            %0 = chlo.erf %x : tensor<2xf32> -> tensor<2xf32>
            %v, %i = chlo.top_k(%0, k = 1) : tensor<2xf32> -> (tensor<1xf32>, tensor<1xi32>)
            return %0, %v : tensor<2xf32>, tensor<1xf32> }",
    );
}

#[test]
fn lists_of_numbers_are_arrays_or_dense() {
    let op = |dims: &str, sizes: [&str; 3]| {
        let [start, limit, strides] = sizes;
        format!(
            "func.func @main(%arg0: tensor<4xf32>) -> tensor<2x3xf32> {{
                %0 = \"stablehlo.slice\"(%arg0) {{start_indices = {start}, limit_indices = {limit}, strides = {strides}}} : (tensor<4xf32>) -> tensor<3xf32>
                %1 = \"stablehlo.broadcast_in_dim\"(%0) {{broadcast_dimensions = {dims}}} : (tensor<3xf32>) -> tensor<2x3xf32>
                return %1 : tensor<2x3xf32> }}"
        )
    };
    let dense = |n: i64| format!("dense<{n}> : tensor<1xi64>");
    let list = |n: i64| format!("dense<[{n}]> : tensor<1xi64>");
    let array = |n: i64| format!("array<i64: {n}>");
    let plain = |n: i64| format!("[{n}]");
    let of = |f: &dyn Fn(i64) -> String| op(&f(1), [&f(1), &f(4), &f(1)]);
    let first = of(&array);
    same(&of(&dense), &first);
    same(&of(&list), &first);
    same(&of(&plain), &first);
}

#[test]
fn meshes_and_shardings_of_shardy_are_read() {
    let program = read(
        "module @jit_f attributes {mhlo.num_partitions = 8 : i32} {
            sdy.mesh @empty = <[]>
            sdy.mesh @mesh = <[\"x\"=2, \"y\"=4]>
            func.func public @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}, {\"y\", ?}]>}, %arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\", \"y\"}], replicated={}>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}p0, {?}]>}) {
                %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {\"y\"}]> : tensor<8x4xf32>
                return %0 : tensor<8x4xf32> } }",
    );
    let spread = program.spread.expect("a mesh");
    assert_eq!(spread.mesh.devices(), 8);
    let axes = |i: usize, d: usize| spread.params[i].axes(d).to_vec();
    assert_eq!((axes(0, 0), axes(0, 1), axes(1, 0)), (vec![0], vec![1], vec![0, 1]));
    assert_eq!(spread.results[0].axes(0), [0]);
}

#[test]
fn shardings_of_gspmd_become_axes_of_a_mesh() {
    let of = |a: &str, b: &str, c: &str| {
        read(&format!(
            "module attributes {{mhlo.num_partitions = 8 : i32}} {{
                func.func @main(%a: tensor<8x8xf32> {{mhlo.sharding = \"{a}\"}}, %b: tensor<8x8xf32> {{mhlo.sharding = \"{b}\"}}) -> (tensor<8x8xf32> {{mhlo.sharding = \"{c}\"}}) {{
                    %0 = stablehlo.add %a, %b : tensor<8x8xf32>
                    %1 = stablehlo.custom_call @Sharding(%0) {{backend_config = \"\", mhlo.sharding = \"{a}\"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
                    return %1 : tensor<8x8xf32> }} }}"
        ))
        .spread
    };
    let parts = |s: &systole_ir::Sharding, m: &systole_ir::Mesh| s.parts(m).to_vec();
    let spread = of("{devices=[2,4]<=[8]}", "{devices=[4,2]<=[2,4]T(1,0)}", "{replicated}").expect("a mesh");
    let (a, b, c) = (&spread.params[0], &spread.params[1], &spread.results[0]);
    assert_eq!(spread.mesh.devices(), 8);
    assert_eq!(parts(a, &spread.mesh), [2, 4]);
    assert_eq!(parts(b, &spread.mesh), [4, 2]);
    assert_eq!(parts(c, &spread.mesh), [1, 1]);
    // Dimension 1 of the second has the sharding of dimension 0 of the first.
    assert_eq!(a.axes(0), b.axes(1));
    let spread = of(
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
        "{devices=[1,8]0,1,2,3,4,5,6,7}",
        "{maximal device=0}",
    );
    let spread = spread.expect("a mesh");
    assert_eq!(parts(&spread.params[0], &spread.mesh), [2, 1]);
    assert_eq!(parts(&spread.params[1], &spread.mesh), [1, 8]);
    // Nothing is sharded, or not by axes: no shardings.
    assert!(of("{replicated}", "", "{replicated}").is_none());
    assert!(of("{devices=[4,1]0,1,3,2}", "{replicated}", "{replicated}").is_none());
    assert!(of("{devices=[2,2", "{bogus}", "").is_none());
}

#[test]
fn numbers_are_written_in_every_way() {
    let program = read(
        "func.func @main() -> (tensor<4xf32>, tensor<2xf16>, tensor<3xi8>, tensor<2xi1>, tensor<0x2xi32>, tensor<2xf64>) {
            %0 = stablehlo.constant dense<[1.0, 0x7F800000, -0.000000e+00, 1.5E2]> : tensor<4xf32>
            %1 = stablehlo.constant dense<\"0x003C0040\"> : tensor<2xf16>
            %2 = stablehlo.constant dense<[-128, 127, 0x10]> : tensor<3xi8>
            %3 = stablehlo.constant dense<[true, false]> : tensor<2xi1>
            %4 = stablehlo.constant dense<> : tensor<0x2xi32>
            %5 = \"stablehlo.constant\"() <{value = dense<2.5> : tensor<2xf64>}> : () -> tensor<2xf64>
            return %0, %1, %2, %3, %4, %5 : tensor<4xf32>, tensor<2xf16>, tensor<3xi8>, tensor<2xi1>, tensor<0x2xi32>, tensor<2xf64> }",
    );
    let out: Vec<Vec<f64>> = interp::run(&program.graph, &[]).unwrap().iter().map(Literal::to_f64s).collect();
    assert_eq!(out[0], [1.0, f64::INFINITY, 0.0, 150.0]);
    assert_eq!((&out[1][..], &out[2][..]), (&[1.0, 2.0][..], &[-128.0, 127.0, 16.0][..]));
    assert_eq!((out[3].len(), out[4].len(), &out[5][..]), (2, 0, &[2.5, 2.5][..]));
}
