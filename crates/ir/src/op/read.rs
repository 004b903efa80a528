//! Rebuilds ops from what text says of them: the inverse of each op's `attrs`.

use super::source::Unread;
use super::*;

pub(super) fn bitcast_convert(s: &Source<'_>) -> Unread<Op> {
    Ok(BitcastConvert { to: s.result(0)?.dtype }.into())
}

pub(super) fn broadcast_in_dim(s: &Source<'_>) -> Unread<Op> {
    let shape = s.result(0)?.shape.clone();
    Ok(BroadcastInDim { dims: s.sizes("broadcast_dimensions")?, shape }.into())
}

pub(super) fn case(s: &Source<'_>) -> Unread<Op> {
    Ok(Case { branches: s.regions.clone() }.into())
}

pub(super) fn clamp(_: &Source<'_>) -> Unread<Op> {
    Ok(Clamp.into())
}

pub(super) fn compare(s: &Source<'_>) -> Unread<Op> {
    let word = s.keyword("comparison_direction", "comparison_direction")?;
    let direction = Direction::ALL.iter().find(|d| d.1 == word).map(|d| d.0);
    let direction = direction.ok_or_else(|| format!("there is no relation `{word}`"))?;
    let operand = s.operands.first().ok_or("needs operands")?;
    let natural = CompareType::of(operand.dtype);
    let all = [CompareType::Float, CompareType::TotalOrder, CompareType::Signed, CompareType::Unsigned];
    let compare_type = if s.has("compare_type") {
        let word = s.keyword("compare_type", "comparison_type")?;
        let found = all.into_iter().find(|t| t.name() == word);
        found.ok_or_else(|| format!("there is no comparison `{word}`"))?
    } else {
        natural
    };
    Ok(Compare { direction, compare_type }.into())
}

pub(super) fn concatenate(s: &Source<'_>) -> Unread<Op> {
    Ok(Concatenate { dim: s.size("dimension")? }.into())
}

pub(super) fn constant(s: &Source<'_>) -> Unread<Op> {
    Ok(Constant { value: s.dense("value")? }.into())
}

pub(super) fn convert(s: &Source<'_>) -> Unread<Op> {
    Ok(Convert { to: s.result(0)?.dtype }.into())
}

pub(super) fn convolution(s: &Source<'_>) -> Unread<Op> {
    let dims = s.conv("dimension_numbers")?;
    let n = dims.input_spatial.len();
    let count = |name: &str| if s.has(name) { s.size(name) } else { Ok(1) };
    Ok(Convolution {
        strides: s.sizes_or_ones("window_strides", n)?,
        padding: s.pairs("padding", n)?,
        lhs_dilation: s.sizes_or_ones("lhs_dilation", n)?,
        rhs_dilation: s.sizes_or_ones("rhs_dilation", n)?,
        reversal: s.flags("window_reversal", n)?,
        feature_groups: count("feature_group_count")?,
        batch_groups: count("batch_group_count")?,
        element_type: s.result(0)?.dtype,
        dims,
    }
    .into())
}

pub(super) fn dot_general(s: &Source<'_>) -> Unread<Op> {
    let list = |field: &str| s.field("dot_dimension_numbers", "dot", field);
    Ok(DotGeneral {
        lhs_batch: list("lhs_batching_dimensions")?,
        rhs_batch: list("rhs_batching_dimensions")?,
        lhs_contract: list("lhs_contracting_dimensions")?,
        rhs_contract: list("rhs_contracting_dimensions")?,
        element_type: s.result(0)?.dtype,
    }
    .into())
}

pub(super) fn dynamic_slice(s: &Source<'_>) -> Unread<Op> {
    Ok(DynamicSlice { sizes: s.sizes("slice_sizes")? }.into())
}

pub(super) fn dynamic_update_slice(_: &Source<'_>) -> Unread<Op> {
    Ok(DynamicUpdateSlice.into())
}

pub(super) fn gather(s: &Source<'_>) -> Unread<Op> {
    let list = |field: &str| s.field("dimension_numbers", "gather", field);
    Ok(Gather {
        offset_dims: list("offset_dims")?,
        collapsed_slice_dims: list("collapsed_slice_dims")?,
        operand_batching_dims: list("operand_batching_dims")?,
        start_indices_batching_dims: list("start_indices_batching_dims")?,
        start_index_map: list("start_index_map")?,
        index_vector_dim: s.field_size("dimension_numbers", "gather", "index_vector_dim")?,
        slice_sizes: s.sizes("slice_sizes")?,
        indices_are_sorted: s.flag("indices_are_sorted")?,
    }
    .into())
}

pub(super) fn iota(s: &Source<'_>) -> Unread<Op> {
    Ok(Iota { dim: s.size("iota_dimension")?, ty: s.result(0)?.clone() }.into())
}

pub(super) fn optimization_barrier(s: &Source<'_>) -> Unread<Op> {
    Ok(OptimizationBarrier { stop_gradient: s.flag("systole.stop_gradient")? }.into())
}

pub(super) fn pad(s: &Source<'_>) -> Unread<Op> {
    Ok(Pad {
        low: s.ints("edge_padding_low")?,
        high: s.ints("edge_padding_high")?,
        interior: s.sizes("interior_padding")?.to_vec(),
    }
    .into())
}

pub(super) fn reduce(s: &Source<'_>) -> Unread<Op> {
    Ok(Reduce { dims: s.sizes("dimensions")?, body: s.region(0)? }.into())
}

pub(super) fn reduce_precision(s: &Source<'_>) -> Unread<Op> {
    let bits = |name: &str| Ok::<u32, String>(s.size(name)?.min(64) as u32);
    Ok(ReducePrecision { exponent_bits: bits("exponent_bits")?, mantissa_bits: bits("mantissa_bits")? }
        .into())
}

pub(super) fn reduce_window(s: &Source<'_>) -> Unread<Op> {
    let dimensions = s.sizes("window_dimensions")?;
    let n = dimensions.len();
    let window = Window {
        strides: s.sizes_or_ones("window_strides", n)?,
        base_dilations: s.sizes_or_ones("base_dilations", n)?,
        window_dilations: s.sizes_or_ones("window_dilations", n)?,
        padding: s.pairs("padding", n)?,
        dimensions,
    };
    Ok(ReduceWindow { window, body: s.region(0)? }.into())
}

pub(super) fn reshape(s: &Source<'_>) -> Unread<Op> {
    Ok(Reshape { shape: s.result(0)?.shape.clone() }.into())
}

pub(super) fn reverse(s: &Source<'_>) -> Unread<Op> {
    Ok(Reverse { dims: s.sizes("dimensions")? }.into())
}

pub(super) fn rng_bit_generator(s: &Source<'_>) -> Unread<Op> {
    let algorithm = match s.keyword("rng_algorithm", "rng_algorithm")? {
        "PHILOX" | "DEFAULT" => RngAlgorithm::Philox,
        "THREE_FRY" => RngAlgorithm::ThreeFry,
        other => return Err(format!("there is no generator `{other}`")),
    };
    Ok(RngBitGenerator { algorithm, ty: s.result(1)?.clone() }.into())
}

pub(super) fn scatter(s: &Source<'_>) -> Unread<Op> {
    const NAME: &str = "scatter_dimension_numbers";
    let list = |field: &str| s.field(NAME, "scatter", field);
    Ok(Scatter {
        update_window_dims: list("update_window_dims")?,
        inserted_window_dims: list("inserted_window_dims")?,
        input_batching_dims: list("input_batching_dims")?,
        scatter_indices_batching_dims: list("scatter_indices_batching_dims")?,
        scatter_dims_to_operand_dims: list("scatter_dims_to_operand_dims")?,
        index_vector_dim: s.field_size(NAME, "scatter", "index_vector_dim")?,
        indices_are_sorted: s.flag("indices_are_sorted")?,
        unique_indices: s.flag("unique_indices")?,
        body: s.region(0)?,
    }
    .into())
}

pub(super) fn select(_: &Source<'_>) -> Unread<Op> {
    Ok(Select.into())
}

pub(super) fn select_and_scatter(s: &Source<'_>) -> Unread<Op> {
    let n = s.operands.first().map_or(0, |x| x.rank());
    Ok(SelectAndScatter {
        dimensions: s.sizes_or_ones("window_dimensions", n)?,
        strides: s.sizes_or_ones("window_strides", n)?,
        padding: s.pairs("padding", n)?,
        select: s.region(0)?,
        scatter: s.region(1)?,
    }
    .into())
}

pub(super) fn slice(s: &Source<'_>) -> Unread<Op> {
    Ok(Slice {
        start: s.sizes("start_indices")?,
        limit: s.sizes("limit_indices")?,
        strides: s.sizes("strides")?,
    }
    .into())
}

pub(super) fn sort(s: &Source<'_>) -> Unread<Op> {
    let dim = if s.has("dimension") { s.size("dimension")? } else { s.result(0)?.rank().saturating_sub(1) };
    Ok(Sort { dim, stable: s.flag("is_stable")?, comparator: s.region(0)? }.into())
}

pub(super) fn transpose(s: &Source<'_>) -> Unread<Op> {
    Ok(Transpose { permutation: s.sizes("permutation")? }.into())
}

pub(super) fn while_(s: &Source<'_>) -> Unread<Op> {
    let has = |name: &'static str| s.has(name).then_some(name);
    Ok(While {
        captures: s.captures,
        cond: s.region(0)?,
        body: s.region(1)?,
        trip_count: has("systole.trip_count").map(|n| s.size(n)).transpose()?,
        keeps: s.flag("systole.keeps")?,
        recorded: has("systole.recorded").map(|n| s.sizes(n)).transpose()?,
    }
    .into())
}
