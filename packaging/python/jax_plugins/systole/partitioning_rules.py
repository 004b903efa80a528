"""`jax.experimental.custom_partitioning`: runs the function itself on the global arrays, as JAX does on one device.

XLA calls the function's partitioning rule when it compiles for several devices. Here the rule is called too, with the shardings of
operands and results, so that its errors are found; its program for one device is traced, but does not run.
"""

from . import callbacks, sharding_inspection


def register(platform, library):
    """Lowers `custom_partitioning` for `platform`."""
    try:
        from jax._src import core, custom_partitioning
        from jax._src.interpreters import mlir

        primitive = custom_partitioning.custom_partitioning_p
    except (ImportError, AttributeError):
        return

    def lower(ctx, *values, call, **params):
        results = mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(ctx, *values)
        mesh = _mesh(ctx) if sharding_inspection.is_supported() and params.get("decode_shardings") else None
        factors = _factors(params.get("sharding_rule"), call) if mesh is not None else None
        if factors is not None:
            check = _RuleCheck(mesh, factors, call, params)
            for index, value in enumerate(_flat([*values, *results])):
                inspection = sharding_inspection.Inspection(mesh, None, check.collector(index))
                sharding_inspection.emit(ctx, value, callbacks.add(ctx, inspection, library))
        return results

    mlir.register_lowering(primitive, lower, platform=platform)


def _flat(values):
    """MLIR values; a rule may return lists of them."""
    return [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]


def _mesh(ctx):
    """The mesh of a program on the global arrays of several devices."""
    from jax._src import debugging, sharding_impls

    context = ctx.module_context.axis_context
    if not isinstance(context, sharding_impls.ShardingContext) or context.num_devices == 1:
        return None
    mesh = sharding_inspection.devices_of(ctx, debugging)[0]
    return None if mesh.empty else mesh


def _factors(rule, call):
    """Names of the dimensions of operands and results, which are split alike where they are equal; `None` if the rule splits
    dimensions into factors, or is computed by a function."""
    mappings = [getattr(rule, name, None) for name in ("operand_mappings", "result_mappings")]
    if None in mappings:
        return None
    found = []
    for mapping, aval in zip([*mappings[0], *mappings[1]], [*call.in_avals, *call.out_avals]):
        if mapping and isinstance(mapping[0], str) and mapping[0].startswith("…"):
            batching = [f"{mapping[0]}.{i}" for i in range(aval.ndim - len(mapping) + 1)]
            mapping = [*batching, *mapping[1:]]
        if len(mapping) != aval.ndim or not all(isinstance(factor, str) for factor in mapping):
            return None
        found.append(list(mapping))
    return found if len(found) == len(call.in_avals) + len(call.out_avals) else None


class _RuleCheck:
    """Collects the shardings of operands and results, and then calls the partitioning rule."""

    def __init__(self, mesh, factors, call, params):
        self.mesh, self.factors, self.call, self.params = mesh, factors, call, params
        self.specs = {}

    def collector(self, index):
        def collect(sharding):
            self.specs[index] = tuple(sharding.spec)
            if len(self.specs) == len(self.factors):
                specs, self.specs = self.specs, {}
                self.check(specs)

        return collect

    def attempts(self, specs):
        """Shardings with which the rule may be called: those of the operands, with which the results are split alike; the same for
        all arrays, if operands differ; and replicated ones. XLA may propagate to more arrays than the plugin does."""
        from jax.sharding import NamedSharding, PartitionSpec

        count = len(self.call.in_avals)
        whole = set(getattr(self.params["sharding_rule"], "need_replication_factors", ()))
        axes, used = {}, set()
        for index, names in enumerate(self.factors):
            for name, split in zip(names, specs[index]):
                split = () if split is None else split if isinstance(split, tuple) else (split,)
                if split and name not in axes and name not in whole and not used & set(split):
                    axes[name] = split
                    used |= set(split)
        alike = [tuple(axes.get(name) for name in names) for names in self.factors]
        given = [specs[i] + (None,) * (aval.ndim - len(specs[i])) for i, aval in enumerate(self.call.in_avals)]
        replicated = [(None,) * len(names) for names in self.factors]
        for attempt in (given + alike[count:], alike, replicated):
            yield [NamedSharding(self.mesh, PartitionSpec(*spec)) for spec in attempt]

    def check(self, specs):
        """Raises the first error if all attempts fail."""
        failures = []
        for shardings in self.attempts(specs):
            try:
                return self.call_rule(shardings)
            except Exception as e:
                failures.append(e)
        raise failures[0]

    def call_rule(self, shardings):
        import jax

        params, avals = self.params, [*self.call.in_avals, *self.call.out_avals]
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(avals, shardings)]
        count = len(self.call.in_avals)
        in_tree, out_tree = params["in_tree"], params["out_tree"]
        mesh, function, results, operands = params["partition"](
            *params["static_args"], self.mesh, in_tree.unflatten(structs[:count]), out_tree.unflatten(structs[count:])
        )
        shards = [_shard(sharding, aval) for sharding, aval in zip(in_tree.flatten_up_to(operands), avals)]
        expected = [_shard(sharding, aval) for sharding, aval in zip(out_tree.flatten_up_to(results), avals[count:])]
        found = jax.make_jaxpr(function, axis_env=list(mesh.shape.items()))(*in_tree.unflatten(shards)).out_avals
        if [(a.shape, a.dtype) for a in found] != [(a.shape, a.dtype) for a in expected]:
            # JAX's text.
            raise ValueError(f"Mismatch in result shapes. {found!r} vs {expected!r}")


def _shard(sharding, aval):
    """Type of a device's shard; dimensions that are no multiples are padded, as in XLA."""
    import jax

    split = sharding._to_xla_hlo_sharding(aval.ndim)
    counts = [1] * aval.ndim if split.is_replicated() else split.tile_assignment_dimensions()
    return jax.ShapeDtypeStruct([-(-n // k) for n, k in zip(aval.shape, counts)], aval.dtype)
