//! Tables of VHLO ops and types: attributes of each op version, and their form in StableHLO.

use std::collections::HashMap;
use std::sync::LazyLock;

/// StableHLO version that introduced an op, type or attribute.
type SinceVersion = (u16, u16);

/// A version of a VHLO op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpVersion {
    pub(crate) version: u16,
    pub(crate) since: SinceVersion,
    /// First StableHLO version that replaces it.
    pub(crate) until: Option<SinceVersion>,
    attributes: &'static str,
}

impl OpVersion {
    /// Returns the names of its attributes, in the order in which they are written.
    pub(crate) fn attributes(self) -> impl Iterator<Item = &'static str> {
        self.attributes.split_ascii_whitespace().filter_map(move |name| {
            match (name.strip_suffix('+'), name.strip_suffix('-')) {
                (Some(name), _) => (self.version > 1).then_some(name),
                (_, Some(name)) => (self.version == 1).then_some(name),
                _ => Some(name),
            }
        })
    }
}

/// Returns all versions of an op, oldest first; empty for an unknown op.
pub(crate) fn versions(name: &str) -> impl Iterator<Item = OpVersion> {
    VERSIONS.get(name).into_iter().flatten().copied()
}

static VERSIONS: LazyLock<HashMap<&str, Vec<OpVersion>>> = LazyLock::new(|| {
    let first = OpVersion { version: 1, since: (0, 9), until: None, attributes: "" };
    let plain = PLAIN.split_ascii_whitespace().map(|name| (name, vec![first]));
    let row = |row: &'static str| {
        let (head, attributes) = row.split_once(':')?;
        let mut words = head.split_ascii_whitespace();
        let name = words.next()?;
        let since = |word: &str| {
            let (major, minor) = word.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let since: Vec<SinceVersion> = words.filter_map(since).collect();
        let of = |(i, own): (usize, &SinceVersion)| OpVersion {
            version: i as u16 + 1,
            since: *own,
            until: since.get(i + 1).copied(),
            attributes,
        };
        Some((name, since.iter().enumerate().map(of).collect()))
    };
    plain.chain(OPS.split(';').filter_map(row)).collect()
});

/// Ops with a single version and no attributes.
const PLAIN: &str = "\
    abs add after_all and atan2 bitcast_convert case ceil clamp complex convert count_leading_zeros create_token \
    divide dynamic_pad dynamic_reshape dynamic_update_slice floor if imag is_finite maximum minimum multiply negate \
    not optimization_barrier or partition_id popcnt power real real_dynamic_slice remainder replica_id reshape return \
    round_nearest_afz round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign subtract \
    tuple uniform_dequantize uniform_quantize while xor";

/// Op, the StableHLO versions that introduced each of its versions, and its attributes in order of name. `+` marks
/// attributes of the second version only, `-` attributes of the first version only.
const OPS: &str = "
    all_gather 0.9 1.5: all_gather_dim channel_id replica_groups use_global_device_ids;
    all_reduce 0.9 1.5: channel_id replica_groups use_global_device_ids;
    all_to_all 0.9 1.5: channel_id concat_dimension replica_groups split_count split_dimension;
    async_done 1.15:;
    async_start 1.15:;
    batch_norm_grad 0.9: epsilon feature_index;
    batch_norm_inference 0.9: epsilon feature_index;
    batch_norm_training 0.9: epsilon feature_index;
    broadcast 0.9: broadcast_sizes;
    broadcast_in_dim 0.9: broadcast_dimensions;
    call 0.9: callee;
    cbrt 0.9 1.10: result_accuracy+;
    cholesky 0.9: lower;
    collective_broadcast 0.16 1.20: channel_id has_dynamic_root+ replica_groups;
    collective_permute 0.9: channel_id source_target_pairs;
    collective_reduce 1.19: channel_id has_dynamic_root replica_groups use_global_device_ids;
    compare 0.9: compare_type comparison_direction;
    composite 0.19 1.14: composite_attributes decomposition name version;
    concatenate 0.9: dimension;
    constant 0.9: value;
    convolution 0.9: batch_group_count feature_group_count input_batch_dimension input_feature_dimension
        input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension
        kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension
        output_spatial_dimensions padding precision_config rhs_dilation window_reversal window_strides;
    cosine 0.9 1.10: result_accuracy+;
    cross-replica-sum 0.9: replica_groups;
    custom_call 0.9 1.18: api_version backend_config call_target_name called_computations has_side_effect
        operand_layouts output_operand_aliases result_layouts result_tilings+;
    dot 0.9: precision_config;
    dot_general 0.9 1.6: accumulation_type+ allow_imprecise_accumulation+ lhs_batching_dimensions
        lhs_component_count+ lhs_contracting_dimensions lhs_precision_type+ num_primitive_operations+
        precision_config rhs_batching_dimensions rhs_component_count+ rhs_contracting_dimensions rhs_precision_type+;
    dynamic_broadcast_in_dim 0.9: broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions;
    dynamic_conv 0.9 0.20: batch_group_count feature_group_count input_batch_dimension input_feature_dimension
        input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension
        kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension
        output_spatial_dimensions padding- precision_config rhs_dilation window_reversal window_strides;
    dynamic_gather 0.9 1.1: collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims
        operand_batching_dims+ start_index_map start_indices_batching_dims+;
    dynamic_iota 0.9: iota_dimension;
    dynamic_slice 0.9: slice_sizes;
    einsum 0.9: einsum_config;
    exponential 0.9 1.9: result_accuracy+;
    exponential_minus_one 0.9 1.10: result_accuracy+;
    fft 0.9: fft_length fft_type;
    func 0.9: arg_attrs function_type res_attrs sym_name sym_visibility;
    gather 0.9 1.1: collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims+
        slice_sizes start_index_map start_indices_batching_dims+;
    get_dimension_size 0.9: dimension;
    get_tuple_element 0.9: index;
    infeed 0.9: infeed_config layout;
    iota 0.9: iota_dimension;
    log 0.9 1.10: result_accuracy+;
    log_plus_one 0.9 1.10: result_accuracy+;
    logistic 0.9 1.10: result_accuracy+;
    map 0.9: dimensions;
    outfeed 0.9: outfeed_config;
    pad 0.9: edge_padding_high edge_padding_low interior_padding;
    recv 0.9 1.12: channel_id channel_type is_host_transfer source_target_pairs+;
    reduce 0.9: dimensions;
    reduce_precision 0.9: exponent_bits mantissa_bits;
    reduce_scatter 0.9: channel_id replica_groups scatter_dimension use_global_device_ids;
    reduce_window 0.9: base_dilations padding window_dilations window_dimensions window_strides;
    reverse 0.9: dimensions;
    rng 0.9: rng_distribution;
    rng_bit_generator 0.9: rng_algorithm;
    rsqrt 0.9 1.10: result_accuracy+;
    scatter 0.9 1.1: index_vector_dim indices_are_sorted input_batching_dims+ inserted_window_dims
        scatter_dims_to_operand_dims scatter_indices_batching_dims+ unique_indices update_window_dims;
    select_and_scatter 0.9: padding window_dimensions window_strides;
    send 0.9 1.12: channel_id channel_type is_host_transfer source_target_pairs+;
    set_dimension_size 0.9: dimension;
    sine 0.9 1.10: result_accuracy+;
    slice 0.9: limit_indices start_indices strides;
    sort 0.9: dimension is_stable;
    sqrt 0.9 1.10: result_accuracy+;
    tan 1.4 1.10: result_accuracy+;
    tanh 0.9 1.10: result_accuracy+;
    torch_index_select 0.9: batch_dims dim;
    transpose 0.9: permutation;
    triangular_solve 0.9: left_side lower transpose_a unit_diagonal;
    unary_einsum 0.9: einsum_config;
";

/// Form of a VHLO attribute in StableHLO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VhloAttributeKind {
    /// Unchanged.
    Any,
    /// A tensor written as `array<i64: …>`.
    Ints,
    /// A tensor written as `array<i1: …>`.
    Bools,
    /// An integer of this type.
    Int(&'static str),
    /// A unit attribute, present or absent.
    Unit,
    /// A string written as `@name`.
    Symbol,
    /// Strings written as `@name`s.
    Symbols,
    /// An enum with this attribute code.
    Word(u64),
}

/// Returns the form of an attribute in StableHLO, by its name.
pub(crate) fn kind(name: &str) -> VhloAttributeKind {
    KINDS
        .iter()
        .find(|(_, names)| names.split_ascii_whitespace().any(|n| n == name))
        .map_or(VhloAttributeKind::Any, |(k, _)| *k)
}

const KINDS: &[(VhloAttributeKind, &str)] = &[
    (
        VhloAttributeKind::Ints,
        "fft_length broadcast_sizes slice_sizes dimensions permutation edge_padding_low edge_padding_high interior_padding \
         start_indices limit_indices strides broadcast_dimensions known_expanding_dimensions \
         known_nonexpanding_dimensions window_dimensions window_strides base_dilations window_dilations lhs_dilation \
         rhs_dilation",
    ),
    (VhloAttributeKind::Bools, "window_reversal"),
    (VhloAttributeKind::Int("i32"), "index exponent_bits mantissa_bits version"),
    (VhloAttributeKind::Unit, "use_global_device_ids has_dynamic_root"),
    (VhloAttributeKind::Symbol, "callee decomposition"),
    (VhloAttributeKind::Symbols, "called_computations"),
    (VhloAttributeKind::Word(3), "comparison_direction"),
    (VhloAttributeKind::Word(4), "compare_type"),
    (VhloAttributeKind::Word(5), "api_version"),
    (VhloAttributeKind::Word(7), "fft_type"),
    (VhloAttributeKind::Word(11), "precision_config"),
    (VhloAttributeKind::Word(12), "rng_algorithm"),
    (VhloAttributeKind::Word(13), "rng_distribution"),
    (VhloAttributeKind::Word(16), "transpose_a"),
];

/// Enum attributes: code, kind in StableHLO, values by number.
pub(crate) const WORDS: &[(u64, &str, &str)] = &[
    (3, "comparison_direction", "EQ NE GE GT LE LT"),
    (4, "comparison_type", "NOTYPE FLOAT TOTALORDER SIGNED UNSIGNED"),
    (7, "fft_type", "FFT IFFT RFFT IRFFT"),
    (11, "precision", "DEFAULT HIGH HIGHEST"),
    (12, "rng_algorithm", "DEFAULT THREE_FRY PHILOX"),
    (13, "rng_distribution", "? UNIFORM NORMAL"),
    (16, "transpose", "TRANSPOSE_INVALID NO_TRANSPOSE TRANSPOSE ADJOINT"),
    (19, "result_accuracy_mode", "DEFAULT HIGHEST TOLERANCE"),
];

/// Encoding of a struct field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldEncoding {
    /// Integers; empty if absent.
    Ints,
    /// An integer; 0 if absent.
    Int,
    /// The bits of an f64.
    Float,
    Attribute,
    /// A name, in StableHLO a symbol.
    Symbol,
    /// An optional attribute after an integer that states its presence.
    Tagged,
    /// An optional attribute whose number has a presence bit.
    Flagged,
}

type NamedField = (&'static str, FieldEncoding);

/// Struct attributes: code, name in StableHLO, introducing version, fields in order.
pub(crate) const STRUCTURES: &[(u64, &str, SinceVersion, &[NamedField])] = {
    use FieldEncoding::*;
    &[
        (
            10,
            "output_operand_alias",
            (0, 9),
            &[("output_tuple_indices", Ints), ("operand_index", Int), ("operand_tuple_indices", Ints)],
        ),
        (
            20,
            "result_accuracy",
            (1, 9),
            &[("atol", Float), ("rtol", Float), ("ulps", Int), ("mode", Attribute)],
        ),
        (22, "axis_ref", (0, 9), &[("name", Attribute), ("sub_axis_info", Tagged)]),
        (23, "replica_group_mesh_axes", (1, 16), &[("mesh", Symbol), ("axes", Attribute)]),
        (24, "mesh_axis", (0, 9), &[("name", Attribute), ("size", Int)]),
        (25, "mesh", (0, 9), &[("axes", Attribute), ("device_ids", Flagged)]),
    ]
};

/// Default of an attribute that StableHLO omits and VHLO always writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VhloDefault {
    /// `false`, or an absent unit attribute.
    False,
    /// An integer.
    Int(i64),
    /// `[]`
    List,
    /// A tensor without elements.
    Empty,
    /// `""`; `{}` is also accepted when reading.
    Text,
    /// `{}`
    Dictionary,
    /// A tensor with this integer for each window dimension.
    Each(i64),
    /// Two zeros for each window dimension.
    Pairs,
    /// `false` for each window dimension.
    Falses,
    /// Precision `DEFAULT` for both operands.
    Precision,
    /// Accuracy `DEFAULT`.
    Accuracy,
    /// No type.
    None,
}

/// Returns the default of an op's attribute that StableHLO omits.
pub(crate) fn default(op: &str, name: &str) -> Option<VhloDefault> {
    let among = |all: &str, name: &str| all.split_ascii_whitespace().any(|n| n == name);
    let found =
        DEFAULTS.iter().find(|(ops, names, _)| among(names, name) && (ops.is_empty() || among(ops, op)));
    found.map(|(.., default)| *default)
}

/// Ops (empty: all), attributes, default.
const DEFAULTS: &[(&str, &str, VhloDefault)] = &[
    ("cholesky", "lower", VhloDefault::False),
    (
        "",
        "use_global_device_ids has_dynamic_root has_side_effect indices_are_sorted unique_indices is_host_transfer is_stable",
        VhloDefault::False,
    ),
    (
        "all_gather all_reduce reduce_scatter all_to_all collective_permute collective_broadcast collective_reduce",
        "channel_id",
        VhloDefault::Int(0),
    ),
    ("", "version compare_type", VhloDefault::Int(0)),
    ("", "api_version", VhloDefault::Int(1)),
    ("sort", "dimension", VhloDefault::Int(-1)),
    (
        "",
        "called_computations operand_layouts result_layouts output_operand_aliases result_tilings layout arg_attrs res_attrs",
        VhloDefault::List,
    ),
    ("send recv", "source_target_pairs", VhloDefault::Empty),
    ("", "known_expanding_dimensions known_nonexpanding_dimensions", VhloDefault::Empty),
    (
        "",
        "operand_batching_dims start_indices_batching_dims input_batching_dims scatter_indices_batching_dims",
        VhloDefault::Empty,
    ),
    ("", "backend_config infeed_config outfeed_config sym_visibility", VhloDefault::Text),
    ("", "composite_attributes", VhloDefault::Dictionary),
    (
        "convolution dynamic_conv reduce_window select_and_scatter",
        "window_strides lhs_dilation rhs_dilation base_dilations window_dilations",
        VhloDefault::Each(1),
    ),
    ("convolution reduce_window select_and_scatter", "padding", VhloDefault::Pairs),
    ("", "window_reversal", VhloDefault::Falses),
    ("", "precision_config", VhloDefault::Precision),
    ("", "result_accuracy", VhloDefault::Accuracy),
    (
        "",
        "lhs_precision_type rhs_precision_type accumulation_type lhs_component_count rhs_component_count \
         num_primitive_operations allow_imprecise_accumulation",
        VhloDefault::None,
    ),
];

/// VHLO attributes that are fields of one StableHLO struct attribute: its name, its kind and the fields.
pub(crate) struct StructAttribute {
    pub(crate) ops: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    /// Field names in order; the VHLO attributes have the same names.
    pub(crate) fields: &'static str,
}

/// Returns the struct attributes of an op that VHLO stores as separate attributes.
pub(crate) fn gathered(op: &str) -> impl Iterator<Item = &'static StructAttribute> {
    GATHERED.iter().filter(move |g| g.ops.split_ascii_whitespace().any(|n| n == op))
}

const GATHERED: &[StructAttribute] = &[
    StructAttribute {
        ops: "dot_general",
        name: "dot_dimension_numbers",
        kind: "dot",
        fields: "lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions rhs_contracting_dimensions",
    },
    StructAttribute {
        ops: "dot_general",
        name: "algorithm",
        kind: "dot_algorithm",
        fields: "lhs_precision_type rhs_precision_type accumulation_type lhs_component_count rhs_component_count \
                 num_primitive_operations allow_imprecise_accumulation",
    },
    StructAttribute {
        ops: "gather dynamic_gather",
        name: "dimension_numbers",
        kind: "gather",
        fields: "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims start_index_map \
                 index_vector_dim",
    },
    StructAttribute {
        ops: "scatter",
        name: "scatter_dimension_numbers",
        kind: "scatter",
        fields: "update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims \
                 scatter_dims_to_operand_dims index_vector_dim",
    },
];

/// Layouts of a convolution: for each of the three, its two non-spatial dimensions with their letters, and its spatial
/// dimensions.
pub(crate) const LAYOUTS: [[(&str, &str); 3]; 3] = [
    [("b", "input_batch_dimension"), ("f", "input_feature_dimension"), ("", "input_spatial_dimensions")],
    [
        ("i", "kernel_input_feature_dimension"),
        ("o", "kernel_output_feature_dimension"),
        ("", "kernel_spatial_dimensions"),
    ],
    [("b", "output_batch_dimension"), ("f", "output_feature_dimension"), ("", "output_spatial_dimensions")],
];

/// Types without parameters: code, name, bits, introducing version.
pub(crate) const TYPES: &[(u64, &str, u32, SinceVersion)] = &[
    (0, "i1", 1, (0, 9)),
    (2, "bf16", 16, (0, 9)),
    (3, "f16", 16, (0, 9)),
    (4, "f32", 32, (0, 9)),
    (5, "f64", 64, (0, 9)),
    (6, "f8E4M3FN", 8, (0, 9)),
    (7, "f8E5M2", 8, (0, 9)),
    (9, "index", 64, (0, 9)),
    (10, "i4", 4, (0, 9)),
    (11, "i8", 8, (0, 9)),
    (12, "i16", 16, (0, 9)),
    (13, "i32", 32, (0, 9)),
    (14, "i64", 64, (0, 9)),
    (15, "ui4", 4, (0, 9)),
    (16, "ui8", 8, (0, 9)),
    (17, "ui16", 16, (0, 9)),
    (18, "ui32", 32, (0, 9)),
    (19, "ui64", 64, (0, 9)),
    (26, "!shape.witness", 0, (0, 9)),
    (27, "f8E4M3FNUZ", 8, (0, 10)),
    (28, "f8E5M2FNUZ", 8, (0, 10)),
    (29, "f8E4M3B11FNUZ", 8, (0, 11)),
    (31, "i2", 2, (1, 2)),
    (32, "ui2", 2, (1, 2)),
    (33, "none", 0, (1, 6)),
    (34, "tf32", 19, (1, 6)),
    (35, "f8E4M3", 8, (1, 7)),
    (36, "f8E3M4", 8, (1, 7)),
    (37, "f4E2M1FN", 4, (1, 8)),
    (38, "f6E2M3FN", 6, (1, 8)),
    (39, "f6E3M2FN", 6, (1, 8)),
    (40, "f8E8M0FNU", 8, (1, 8)),
];

/// Ops of other dialects: their attributes in the order in which they are written; `?` marks optional ones.
pub(crate) const OTHERS: &[(&str, &str)] = &[
    ("builtin.module", "?sym_name ?sym_visibility"),
    ("sdy.mesh", "mesh sym_name"),
    ("sdy.sharding_constraint", "sharding"),
    ("sdy.sharding_group", "group_id"),
    ("sdy.reshard", "sharding"),
    ("sdy.manual_computation", "in_shardings manual_axes out_shardings"),
    ("sdy.return", ""),
];
