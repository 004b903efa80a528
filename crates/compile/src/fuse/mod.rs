//! Fusion: rules that replace adjacent steps by one, so that intermediate arrays are not materialised.
//!
//! They run on the step list, before steps are ordered and buffers are planned. [`RULES`] is the complete list, in
//! order.

mod batch_statistics;
mod concat_in_place;
mod excess_precision;
mod multi_reduce;
mod pooling;
mod product_epilogue;
mod quantized_gemm;
mod row_fusion;
mod top_k;

use crate::options::PipelineOptions;
use crate::program::{ProgramSchedule, StepList};

/// One fusion rule.
pub struct FusionRule {
    /// Its name, for `systole show --stage`.
    pub name: &'static str,
    /// What it does, one line.
    pub doc: &'static str,
    /// Applies the rule wherever it matches.
    pub(crate) run: RuleFn,
    /// Whether it also runs on the programs from which the gain of blocks of rows is estimated.
    pub in_estimates: bool,
}

/// What a rule rewrites.
pub(crate) enum RuleFn {
    /// The list of steps. Consecutive rules of this kind share one opening of it, which moves every step.
    Steps(fn(&mut StepList<'_>)),
    /// The whole program.
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

/// All rules, in the order they run.
#[rustfmt::skip]
pub const RULES: &[FusionRule] = &[
    on_steps("max_pool_argmax", "max pooling stores where each maximum was, so that its derivative does not read the operand",
        pooling::remember_places),
    on_steps("sum_pool_gradient", "the derivative of sum and average pooling as one step",
        pooling::spread_sums),
    on_steps("relu_before_pool", "the maximum of relus, and its derivative", pooling::relu_before),
    on_steps("convolution_into_pool", "a convolution whose result is only pooled",
        pooling::convolution_into_pool),
    on_steps("relu_after_pool", "relu of a maximum, and its derivative", pooling::relu_after),
    // Kernel gradients are small, so an extra addition is cheap, and the next rule matches no accumulation.
    on_steps("separate_kernel_gradient_sum", "running sums of pooled gradients are added to by a step apart",
        pooling::add_kernel_gradients_apart),
    on_steps("pooled_kernel_gradient", "gradients of kernel and bias from that of the pooled result",
        pooling::gradient_of_pooled),
    on_steps("product_into_kernel_gradient", "that pooled gradient, where it is a product of few terms",
        pooling::product_into_gradient),
    on_steps("pool_into_product", "a product with the result of a pooled convolution",
        pooling::product_of_pooled),
    on_steps("batch_statistics", "mean and variance of a convolution's result, gathered where it is computed",
        batch_statistics::of_convolutions),
    on_steps("packed_products", "products of few rows by matrices of whole numbers", quantized_gemm::products),
    on_steps("top_k", "sorts of which the first elements of each line are read", top_k::of_sorts),
    rule("multi_reduce", "folds of one kind over the same data read it once", |s, _| multi_reduce::join(s)),
    rule("excess_precision", "maps of narrow floats round only what they store", |s, options| {
        if options.excess_precision {
            excess_precision::run(s);
        }
    }),
    rule("rows", "folds along rows and the maps around them, a few rows at a time", |s, _| row_fusion::join(s)),
    rule("product_epilogue", "a matrix product and the map that alone reads it", |s, options| {
        product_epilogue::join(s, options.excess_precision)
    }),
    FusionRule {
        name: "concat_in_place",
        doc: "maps write concatenated arrays and entries of a loop's arrays where they belong",
        run: RuleFn::Program(concat_in_place::join),
        in_estimates: false,
    },
];
