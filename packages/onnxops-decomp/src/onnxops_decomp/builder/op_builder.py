"""The only writer of ONNX nodes: lowerings and adapters speak to it, and what it emits is already tidy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from onnxops_decomp.builder import binding
from onnxops_decomp.builder.folding import fold, is_foldable
from onnxops_decomp.builder.forms import find_adapter, find_forms
from onnxops_decomp.builder.planning import (
    NEGATIVE_AXES_OPSET,
    Dtypes,
    Plan,
    dtypes_of,
    make_plan,
    open_dtype,
    with_positive_axes,
)
from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.builder.scope import Scope, remove_unused
from onnxops_decomp.builder.simplify import simplified
from onnxops_decomp.builder.sizes import SizeOperations
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.spec import inference
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OpSpec, first_opset, op_spec
from onnxops_decomp.spec.traits import Trait, operators_with

__all__ = ["OpBuilder"]

_MERGED_SIZE_LIMIT = 4096
_RANDOM, _SAME_SHAPES = (frozenset(operators_with(trait)) for trait in (Trait.RANDOM, Trait.SAME_SHAPES))


class OpBuilder(SizeOperations):
    """Writes ONNX nodes of one graph at a requested opset.

    ``op.Name(inputs..., attribute=value)`` emits an operator of the default domain in the newest form (the builder's
    ``dialect``) and returns its output; ``op.emit_many("Name", count, ...)`` returns several. Where the requested
    opset is older, the adapters rewrite the call. Inputs may be values, None, Python scalars, lists of them, or
    arrays: constants take the dtype that the operator's type variables ask for.

    Equal nodes and constants are merged, constants folded, and no-ops dropped while emitting, so a call does not
    always add a node.

    Args:
        opset: Requested opset of the default domain, 7 to 28.
        context: State shared by all graphs of the model; a new one if left out.
        scope: The graph that is written.
        dialect: Opset in whose forms calls are written.

    Raises:
        UnsupportedOpsetError: If ``opset`` lies outside 7 to 28.
    """

    # ---- values

    def copy(self, value: ir.Value) -> ir.Value:
        """Return a value of its own that equals ``value``, where one value cannot stand in two places."""
        result = self._node("", "Identity", [value], (), 1, [value.dtype])[0]
        result.shape, result.type = value.shape, value.type
        return result

    def input(self, name: str, dtype: ir.DataType | None, dims: inference.Dims | None) -> ir.Value:
        """Add an input to the graph that is written.

        Args:
            name: Wanted name; a number is appended where it is taken.
            dtype: Element type, or None for a value that is not a tensor (its type is set by the caller).
            dims: Dimensions, or None if the rank is unknown.
        """
        value = ir.Value(
            name=self.context.names.reserve(name),
            type=None if dtype is None else ir.TensorType(dtype),
            shape=None if dims is None else ir.Shape(dims),
        )
        self.scope.inputs.append(value)
        return value

    @contextmanager
    def origin(self, **metadata: str) -> Iterator[None]:
        """Stamp every node emitted inside with ``onnxops.<key> = text``."""
        before = self.context.origin
        self.context.origin = {**before, **{f"onnxops.{key}": text for key, text in metadata.items()}}
        try:
            yield
        finally:
            self.context.origin = before

    def minds_nan(self, value: ir.Value) -> bool:
        """Tell whether what is written has to be right for NaN among the elements of ``value``."""
        return self.context.nan == "exact" and self.dtype(value).is_floating_point()

    def deviates(self, deviation: Deviation) -> bool:
        """Tell whether the runtime that the model is made for differs so from the specification."""
        runtime = self.context.runtime
        return runtime is not None and deviation in runtime.deviations

    def takes_doubles(self, op_type: str) -> bool:
        """Tell whether the runtime that the model is made for takes doubles in an operator that may have them."""
        runtime = self.context.runtime
        if runtime is None or op_type not in runtime.no_doubles:
            return True
        since = runtime.no_doubles[op_type]
        return since is not None and self.opset >= since

    @contextmanager
    def call_of(self, operator: str, results: int | None = None) -> Iterator[None]:
        """Write the call of an ATen operator; one that is about NaN is exact, whatever the model asks for.

        Args:
            operator: Its name.
            results: How many tensors it gives in the captured program, if that is known.
        """
        context = self.context
        before = context.nan, context.results
        context.nan, context.results = "exact" if operator.startswith("aten::nan") else context.nan, results
        try:
            yield
        finally:
            context.nan, context.results = before

    # ---- graphs

    def subgraph(self) -> OpBuilder:
        """Return a builder for a graph nested in this one; it sees the values of this one."""
        return OpBuilder(self.opset, context=self.context, scope=Scope(self.scope), dialect=self.dialect)

    def graph(
        self,
        outputs: Sequence[ir.Value],
        *,
        name: str,
        initializers: Sequence[ir.Value] = (),
        constants: bool = False,
    ) -> ir.Graph:
        """Close the graph: drop what no output needs and return it.

        Args:
            outputs: Results. One that no node of this graph produces, or that repeats, gets an Identity.
            name: Name of the graph.
            initializers: Weights of the model; those that nothing uses are left out.
            constants: Whether the constants of the whole model belong to this graph, as they do to the main one.
        """
        results: list[ir.Value] = []
        own = {output for node in self.scope.nodes for output in node.outputs}
        for value in outputs:
            if value not in own or value in results:
                value = self.copy(value)
            results.append(value)
        used = set(results)
        nodes = list(remove_unused(self.scope.nodes, used))
        for node in nodes:
            self._drop_unused_outputs(node, used)
        weights = [value for value in initializers if value.uses() or value in used]
        if constants:
            weights.extend(value for value in self.context.constants.used())
        return ir.Graph(
            self.scope.inputs,
            results,
            nodes=nodes,
            initializers=weights,
            name=name,
            opset_imports=self.opset_imports,
        )

    def _drop_unused_outputs(self, node: ir.Node, used: set[ir.Value]) -> None:
        """Leave out the optional results at the end of a node that nothing uses: they cost the runtime work."""
        spec = op_spec(node.op_type, self.opset, node.domain)
        count = len(node.outputs)
        while spec and count > max(spec.min_outputs, 1) and spec.formal_output(count - 1).optional:
            if node.outputs[count - 1].uses() or node.outputs[count - 1] in used:
                break
            count -= 1
        if count < len(node.outputs):
            node.resize_outputs(count)

    @property
    def opset_imports(self) -> dict[str, int]:
        """Versions of all domains in use."""
        return {"": self.opset, **self.context.domains}

    # ---- emission

    def emit(self, op_type: str, *inputs: Any, **attributes: Any) -> ir.Value:
        """Emit an operator of the default domain and return its one output; see the class for the rules.

        Raises:
            UnsupportedOpsetError: If the requested opset cannot express the call.
            LoweringError: If the call does not fit the operator's specification.
        """
        spec = self._spec(op_type)
        if spec.min_outputs > 1:
            raise LoweringError(
                f"ONNX {op_type} has {spec.min_outputs} outputs; pass emit_many the number of outputs that you want."
            )
        values = binding.bind_inputs(self, spec, inputs)
        if self.context.runtime is not None:
            self.context.runtime.prepare(self, op_type, values, attributes)
        attrs = binding.bind_attributes(spec, attributes)
        known = self._known_result(op_type, values, attrs)
        if known is not None:
            return known
        return self._adapted(spec, values, attrs, 1)[0]

    def emit_many(self, op_type: str, count: int, /, *inputs: Any, **attributes: Any) -> tuple[ir.Value, ...]:
        """Emit an operator of the default domain and return its first ``count`` outputs.

        Raises:
            UnsupportedOpsetError: If the requested opset cannot express the call.
            LoweringError: If the call does not fit the operator's specification.
        """
        spec = self._spec(op_type)
        values = binding.bind_inputs(self, spec, inputs)
        if self.context.runtime is not None:
            self.context.runtime.prepare(self, op_type, values, attributes)
        return self._adapted(spec, values, binding.bind_attributes(spec, attributes), count)

    def _spec(self, op_type: str) -> OpSpec:
        spec = op_spec(op_type, self.dialect)
        if spec is None:
            raise UnsupportedOpsetError(op_type, self.opset, lowest=first_opset(op_type))
        return spec

    def _adapted(
        self, spec: OpSpec, values: list[ir.Value | None], attributes: dict[str, Any], count: int
    ) -> tuple[ir.Value, ...]:
        """Emit a call in the form that the target or the requested opset has."""
        runtime = self.context.runtime
        if runtime and self.context.target is not None and count == 1 and self.dialect == NEWEST_OPSET:
            written = runtime.own_forms.get(spec.op_type)
            if written is not None and (found := written(self, *values, **attributes)) is not None:
                return (found,)
        dtypes = dtypes_of(values)
        wanted = {"_outputs": count} if count > 1 else {}
        for below, function in find_forms(spec.op_type, self.opset, self.dialect, dtypes, runtime):
            older = {} if below is None else {"older": self.at(below)}
            result = function(self.newest, *values, **older, **attributes, **wanted)
            if result is not None:
                self._refine(spec.op_type, values, attributes, result)
                return (result,) if isinstance(result, ir.Value) else result
        if self.opset < NEGATIVE_AXES_OPSET:
            attributes = with_positive_axes(self.opset, spec.op_type, values, attributes)
        return self._merged(spec.op_type, values, dtypes, attributes, count)

    def emit_custom(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        dtypes: Sequence[ir.DataType | None],
        *,
        version: int = 1,
        shapes: Sequence[inference.Dims | None] = (),
        outputs: Sequence[ir.Value] | None = None,
    ) -> tuple[ir.Value, ...]:
        """Emit a node of another domain, whose result types the caller knows.

        Args:
            domain: Domain of the operator, such as ``com.microsoft``.
            op_type: Its name.
            inputs: Operands; None for an omitted one.
            attributes: Attributes in Python form (ints, floats, strings, tensors, or lists of them).
            dtypes: Element type of each output; None where only the caller's check will tell.
            version: Opset version of the domain.
            shapes: Dimensions of each output where known.
            outputs: Values that become the outputs, where the caller has made them before the node.

        Raises:
            LoweringError: If the model already uses another version of the domain, or the runtime that it is made for
                has no such call.
        """
        runtime = self.context.runtime
        if runtime is not None and (reason := runtime.refusal(domain, op_type, inputs, attributes)):
            raise LoweringError(reason)
        if domain and self.context.domains.setdefault(domain, version) != version:
            used = self.context.domains[domain]
            raise LoweringError(
                f"{domain}::{op_type} asks for version {version} of its domain, but the model already uses version "
                f"{used}."
            )
        attrs = [binding.free_attribute(name, value) for name, value in attributes.items() if value is not None]
        values = binding.without_absent_end(inputs)
        results = self._node(domain, op_type, values, attrs, len(dtypes), list(dtypes), outputs)
        for result, dims in zip(results, shapes, strict=False):
            result.shape = None if dims is None else ir.Shape(dims)
        return results

    def _known_result(self, op_type: str, values: list[ir.Value | None], attributes: dict[str, Any]) -> ir.Value | None:
        if self.dialect != NEWEST_OPSET and find_adapter(op_type, self.dialect, NEWEST_OPSET) is not None:
            # The call stands in an older form, which folding and simplification do not read.
            return None
        array = self.context.constants.array
        # Most calls are made of data first.
        if values and (values[0] is None or array(values[0]) is not None) and is_foldable(op_type):
            arrays = [None if value is None else array(value) for value in values]
            if all(value is None or found is not None for value, found in zip(values, arrays, strict=True)):
                result = fold(op_type, arrays, attributes)
                if result is not None:
                    return self.constant(result)
        return simplified(self, op_type, values, attributes)

    def _merged(
        self, op_type: str, values: list[ir.Value | None], dtypes: Dtypes, attributes: dict[str, Any], count: int
    ) -> tuple[ir.Value, ...]:
        """Emit the node, or return the outputs of an equal one."""
        wide, runtime = self.context.widen_bfloat16, self.context.runtime
        plan = make_plan(op_type, self.dialect, self.opset, dtypes, tuple(attributes), count, wide, runtime)
        if plan.casts:
            return self._widened(plan, values, attributes, count)
        target = plan.target
        key = None
        if op_type not in _RANDOM:
            key = binding.merge_key(target, values, attributes, count)
            found = self.scope.find(key) if key is not None else None
            if found is not None:
                return found
        outputs = plan.outputs
        if None in outputs:
            outputs = tuple(
                open_dtype(target, index, self.opset, dtypes, attributes) if dtype is None else dtype
                for index, dtype in enumerate(outputs)
            )
        kinds = target.attributes
        attrs = [ir.Attr(name, kinds[name], value) for name, value in attributes.items()]
        results = self._node("", op_type, values, attrs, count, outputs)
        self._infer_shapes(op_type, values, attributes, results)
        if key is not None:
            self.scope.remember(key, results)
        return results

    def _widened(
        self, plan: Plan, values: list[ir.Value | None], attributes: dict[str, Any], count: int
    ) -> tuple[ir.Value, ...]:
        """Compute in a dtype that the operator accepts at this opset, and cast back."""
        target, casts, newest = plan.target, plan.casts, self.newest
        wide: list[ir.Value | None] = []
        for index, value in enumerate(values):
            key = target.formal_input(index).type_key
            wide.append(value if value is None or key not in casts else newest.cast(value, casts[key]))
        outputs = self._merged(target.op_type, wide, dtypes_of(wide), attributes, count)
        narrow: list[ir.Value] = []
        for index, output in enumerate(outputs):
            key = target.formal_output(index).type_key
            narrow.append(newest.cast(output, plan.narrow[key]) if key in casts else output)
        return tuple(narrow)

    def _node(
        self,
        domain: str,
        op_type: str,
        values: list[ir.Value | None],
        attributes: Sequence[ir.Attr],
        count: int,
        dtypes: Sequence[ir.DataType | None],
        outputs: Sequence[ir.Value] | None = None,
    ) -> tuple[ir.Value, ...]:
        names = self.context.names
        node = ir.Node(
            domain,
            op_type,
            values,
            attributes,
            num_outputs=count,
            outputs=outputs,
            name=names.new(op_type),
            metadata_props=dict(self.context.origin),
        )
        for output, dtype in zip(node.outputs, dtypes, strict=True):
            output.name = names.new("val")
            if dtype is not None:
                output.type = ir.TensorType(dtype)
        self.scope.nodes.append(node)
        return tuple(node.outputs)

    def _refine(self, op_type: str, values: list[ir.Value | None], attributes: dict[str, Any], result: object) -> None:
        """Note of the one result of a call in the newest dialect what its nodes at the requested opset hide."""
        if not isinstance(result, ir.Value) or (result.shape is not None and result.shape.is_static()):
            return
        rule = inference.shape_rule(op_type) if self.dialect == NEWEST_OPSET else None
        if rule is None:
            return
        dims = rule(values, attributes, self.static)
        if dims is not None:
            self.set_dims(result, dims)

    def _infer_shapes(
        self,
        op_type: str,
        values: list[ir.Value | None],
        attributes: dict[str, Any],
        outputs: tuple[ir.Value, ...],
    ) -> None:
        rule = inference.shape_rule(op_type)
        if rule is not None and (len(outputs) == 1 or op_type not in inference.FIRST_ALONE):
            dims = rule(values, attributes, self.static)
            if dims is not None:
                for output in outputs if op_type in _SAME_SHAPES else outputs[:1]:
                    output.shape = ir.Shape(dims)
                return
        node = outputs[0].producer()
        assert node is not None
        inferred = inference.infer_by_onnx(node, self.opset, self.static)
        for output in outputs:
            proto = inferred.get(output.name or "")
            if proto is None:
                continue
            typed = ir.serde.deserialize_type_proto_for_type(proto)
            output.type = typed or output.type
            output.shape = ir.serde.deserialize_type_proto_for_shape(proto)
