//! Fusion rules: replace adjacent steps by one step, so that intermediate arrays are not materialized.
//!
//! They run on the step list, before steps are ordered and buffers are planned. [`RULES`] is the complete list, in
//! order.

mod batch_statistics;
mod concat_in_place;
mod contraction;
mod convolution_epilogue;
mod excess_precision;
mod int8_products;
mod multi_reduce;
mod pooling;
mod product_epilogue;
mod quantized_gemm;
mod row_fusion;
mod top_k;

use crate::options::PipelineOptions;
use crate::program::{ProgramSchedule, StepList};

/// One fusion rule: its name, description and rewrite function.
pub struct FusionRule {
    /// Name for `systole show --stage`.
    pub name: &'static str,
    /// One-line description.
    pub doc: &'static str,
    /// Applies the rule wherever it matches.
    pub(crate) run: RuleFn,
    /// Whether it also runs on the programs from which the gain of row blocks is estimated.
    pub in_estimates: bool,
}

/// Function of a rule, by what it rewrites.
pub(crate) enum RuleFn {
    /// Rewrites the list of steps. Consecutive rules of this kind share one opening of the list, which moves every
    /// step.
    Steps(fn(&mut StepList<'_>)),
    /// Rewrites the whole program.
    Program(fn(&mut ProgramSchedule, &PipelineOptions)),
}

const fn rule(
    name: &'static str,
    doc: &'static str,
    run: fn(&mut ProgramSchedule, &PipelineOptions),
) -> FusionRule {
    FusionRule { name, doc, run: RuleFn::Program(run), in_estimates: true }
}

const fn on_steps(name: &'static str, doc: &'static str, run: fn(&mut StepList<'_>)) -> FusionRule {
    FusionRule { name, doc, run: RuleFn::Steps(run), in_estimates: true }
}

/// All fusion rules, in the order they run.
#[rustfmt::skip]
pub const RULES: &[FusionRule] = &[
    on_steps("max_pool_argmax", "stores the argmax of max pooling, so that its gradient does not read the operand",
        pooling::remember_places),
    on_steps("sum_pool_gradient", "turns the gradient of sum and average pooling into one step",
        pooling::spread_sums),
    on_steps("relu_before_pool", "fuses relu before max pooling, forward and backward", pooling::relu_before),
    on_steps("convolution_into_pool", "fuses a convolution into the max pooling of its result",
        pooling::convolution_into_pool),
    on_steps("relu_after_pool", "fuses relu after max pooling, forward and backward", pooling::relu_after),
    // Kernel gradients are small, so an extra addition is cheap, and the next rule does not match accumulating steps.
    on_steps("separate_kernel_gradient_sum", "splits the accumulation of pooled kernel gradients into a separate addition",
        pooling::add_kernel_gradients_apart),
    on_steps("pooled_kernel_gradient", "computes kernel and bias gradients directly from the pooled gradient",
        pooling::gradient_of_pooled),
    on_steps("product_into_kernel_gradient", "computes the pooled gradient inside the kernel gradient, if it is a GEMM with small K",
        pooling::product_into_gradient),
    on_steps("pool_into_product", "fuses a dense layer with the pooled convolution before it",
        pooling::product_of_pooled),
    on_steps("batch_statistics", "computes batch-normalization statistics inside the convolution",
        batch_statistics::of_convolutions),
    on_steps("packed_products", "fuses dequantization into GEMMs with few rows", quantized_gemm::products),
    on_steps("int8_products", "fuses int8 products with padding and with the map that reads their sums",
        int8_products::with_epilogues),
    on_steps("top_k", "fuses sorts and slices of their first elements", top_k::of_sorts),
    rule("multi_reduce", "merges reductions over the same data into one step", |s, _| multi_reduce::join(s)),
    rule("excess_precision", "keeps bf16 and f16 intermediates in f32; rounds only stored values", |s, options| {
        if options.rounding.excess_precision {
            excess_precision::run(s);
        }
    }),
    rule("contraction", "contracts products and sums to fused multiply-adds", |s, options| {
        if options.rounding.contraction {
            contraction::run(s);
        }
    }),
    rule("rows", "fuses row reductions and the maps around them (softmax, layer normalization)", |s, _| row_fusion::join(s)),
    rule("product_epilogue", "fuses a GEMM with the map that is its only reader", |s, options| {
        product_epilogue::join(s, options.rounding.excess_precision)
    }),
    FusionRule {
        name: "concat_in_place",
        doc: "lets maps write directly into concatenated arrays and stacked loop states",
        run: RuleFn::Program(concat_in_place::join),
        in_estimates: false,
    },
    FusionRule {
        name: "convolution_epilogue",
        doc: "fuses a convolution with the map that is its only reader",
        run: RuleFn::Steps(convolution_epilogue::join),
        in_estimates: false,
    },
];
