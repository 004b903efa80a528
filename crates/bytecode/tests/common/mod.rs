//! Helpers of the artifact tests.

#![allow(dead_code, reason = "each test takes what it needs")]

use systole_mlir::syntax::{MlirModule, MlirRegion, SourceSpan};

/// Returns a module without source positions and argument names.
pub fn bare(mut module: MlirModule) -> MlirModule {
    fn ops(region: &mut MlirRegion) {
        for op in &mut region.operations {
            op.place = SourceSpan::default();
            op.regions.iter_mut().for_each(ops);
        }
    }
    for f in &mut module.functions {
        ops(&mut f.body);
        f.names.clear();
    }
    module
}

/// A program with regions, a call, a mesh, arrays of several types and attributes of most kinds.
pub const PROGRAM: &str = r#"
module @m attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  sdy.mesh @turned = <["x"=2], device_ids=[1, 0]>
  func.func public @main(%arg0: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32} loc("weights"), %arg1: tensor<2xi32>) -> (tensor<4x3xf32> {jax.result_info = "r"}) {
    %c = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %h = stablehlo.constant dense<[1.5, -2.0, 0x7C00]> : tensor<3xf16>
    %z = stablehlo.constant dense<(1.0, -2.0)> : tensor<2xcomplex<f32>>
    %n = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.exponential %arg0 : tensor<4x3xf32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [1], precision = [HIGHEST, DEFAULT] : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %2, %0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %4 = sdy.sharding_constraint %3 <@mesh, [{"x"}, {}]> : tensor<4x3xf32>
    sdy.sharding_group %4 group_id=7 : tensor<4x3xf32>
    %5:2 = stablehlo.while(%i = %n, %x = %4) : tensor<i32>, tensor<4x3xf32>
    cond {
      %b = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %b : tensor<i1>
    } do {
      %y = func.call @twice(%x) : (tensor<4x3xf32>) -> tensor<4x3xf32>
      stablehlo.return %i, %y : tensor<i32>, tensor<4x3xf32>
    }
    %6 = "stablehlo.gather"(%5#1, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<4x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
    %7 = stablehlo.custom_call @target(%6) {api_version = 4 : i32, mhlo.backend_config = {a = 3 : i32, b = [1, 2], c = "x", d = 7 : ui8}} : (tensor<2x3xf32>) -> tensor<4x3xf32>
    return %7 : tensor<4x3xf32>
  }
  func.func private @twice(%arg0: tensor<4x3xf32>) -> tensor<4x3xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }
}
"#;
