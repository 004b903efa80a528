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
mod rows;

use crate::options::Options;
use crate::program::{Schedule, Steps};

/// One fusion rule.
pub struct Rule {
    /// Its name, for `systole show --stage`.
    pub name: &'static str,
    /// What it does, one line.
    pub doc: &'static str,
    /// Applies the rule wherever it matches.
    pub run: fn(&mut Schedule, &Options),
    /// Whether it also runs on the programs from which the gain of blocks of rows is estimated.
    pub in_estimates: bool,
}

const fn rule(name: &'static str, doc: &'static str, run: fn(&mut Schedule, &Options)) -> Rule {
    Rule { name, doc, run, in_estimates: true }
}

/// All rules, in the order they run.
pub const RULES: &[Rule] = &[
    rule(
        "max_pool_argmax",
        "max pooling stores where each maximum was, so that its derivative does not read the operand",
        |s, _| Steps::rewrite(s, pooling::remember_places),
    ),
    rule("sum_pool_gradient", "the derivative of sum and average pooling as one step", |s, _| {
        Steps::rewrite(s, pooling::spread_sums)
    }),
    rule("relu_before_pool", "the maximum of relus, and its derivative", |s, _| {
        Steps::rewrite(s, pooling::relu_before)
    }),
    rule("convolution_into_pool", "a convolution whose result is only pooled", |s, _| {
        Steps::rewrite(s, pooling::convolution_into_pool)
    }),
    rule("relu_after_pool", "relu of a maximum, and its derivative", |s, _| {
        Steps::rewrite(s, pooling::relu_after)
    }),
    // Kernel gradients are small, so an extra addition is cheap, and the next rule matches no accumulation.
    rule(
        "separate_kernel_gradient_sum",
        "running sums of pooled gradients are added to by a step apart",
        |s, _| Steps::rewrite(s, pooling::add_kernel_gradients_apart),
    ),
    rule("pooled_kernel_gradient", "gradients of kernel and bias from that of the pooled result", |s, _| {
        Steps::rewrite(s, pooling::gradient_of_pooled)
    }),
    rule(
        "product_into_kernel_gradient",
        "that pooled gradient, where it is a product of few terms",
        |s, _| Steps::rewrite(s, pooling::product_into_gradient),
    ),
    rule("pool_into_product", "a product with the result of a pooled convolution", |s, _| {
        Steps::rewrite(s, pooling::product_of_pooled)
    }),
    rule(
        "batch_statistics",
        "mean and variance of a convolution's result, gathered where it is computed",
        |s, _| Steps::rewrite(s, batch_statistics::of_convolutions),
    ),
    rule("multi_reduce", "folds of one kind over the same data read it once", |s, _| multi_reduce::join(s)),
    rule("excess_precision", "maps of narrow floats round only what they store", |s, options| {
        if options.excess_precision {
            excess_precision::run(s);
        }
    }),
    rule("rows", "folds along rows and the maps around them, a few rows at a time", |s, _| rows::join(s)),
    rule("product_epilogue", "a matrix product and the map that alone reads it", |s, options| {
        product_epilogue::join(s, options.excess_precision)
    }),
    Rule {
        name: "concat_in_place",
        doc: "maps write concatenated arrays and entries of a loop's arrays where they belong",
        run: concat_in_place::join,
        in_estimates: false,
    },
];
