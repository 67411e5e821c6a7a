"""From the nodes of a model to a graph of torch.fx."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from onnxops_decomp.importing.binding import Bound, Given, attribute_value, bind
from onnxops_decomp.importing.errors import ModelImportError
from onnxops_decomp.importing.foreign import foreign_spec
from onnxops_decomp.importing.functions import check_size, without_inputs
from onnxops_decomp.importing.module import ImportedModule
from onnxops_decomp.importing.places import free_place
from onnxops_decomp.importing.registry import Implementation, Kind, implementation
from onnxops_decomp.importing.sizes import NUMBER_FUNCTIONS, numbers_rank
from onnxops_decomp.importing.tensors import FileMaps, to_value
from onnxops_decomp.importing.values import carrier, identifier, number, numbers, to_tensor
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN as RUNTIME_DOMAIN
from onnxops_decomp.runtimes.onnxruntime.domain import VERSION
from onnxops_decomp.spec.schemas import OpSpec, op_spec
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["GraphImport", "Root"]

_FOLDED = 1024
"""Constants of more elements are computed when the module runs."""
_NUMBER_TYPES = {torch.int64, torch.int32, torch.bool}
_NODE_KEY = "onnx"
_UNKNOWN = "The importer does not know this operator."


@dataclasses.dataclass
class Known:
    """What stands for a value of the model.

    Attributes:
        dtype: ONNX element type, 0 if it is not known.
        node: Node of the graph, None for a constant that nothing has read as a tensor yet.
        rank: Rank of what the node yields as Python numbers, 0 or 1; None if it yields no such.
        constant: The value itself, where the file fixes it.
        name: Name in the file.
        is_statistic: Whether it is a mean or a variance that BatchNormalization gathered, which no gradient changes.
    """

    dtype: int
    node: fx.Node | None = None
    rank: int | None = None
    constant: Any = None
    name: str = ""
    is_statistic: bool = False

    @property
    def is_numbers(self) -> bool:
        """Whether the node yields Python numbers."""
        return self.rank is not None

    @property
    def rank_of_numbers(self) -> int:
        """Rank of a value that is there as Python numbers."""
        return self.constant.dim() if self.rank is None else self.rank

    @property
    def literal(self) -> Any:
        """A constant as Python numbers, or None if it is not a constant of few numbers."""
        value = self.constant
        if isinstance(value, torch.Tensor) and value.dim() < 2 and value.numel() <= _FOLDED and not value.is_complex():
            return value.tolist()
        return None


class Root:
    """The module that the graphs of a model belong to, and what all of them need."""

    def __init__(self, model: ir.Model, trainable: bool) -> None:
        self.model, self.trainable = model, trainable
        self.module = torch.nn.Module()
        self.files = FileMaps()
        self.depth = 0
        check_size(model)

    def opset(self, domain: str, function: ir.Function | None) -> int:
        """Return the version of a domain that a function or else the model imports.

        ONNX Runtime's optimizers write its operators into models that do not import them, and it takes the version 1.

        Raises:
            ModelImportError: If neither does.
        """
        imports = function.opset_imports if function is not None else self.model.opset_imports
        assumed = VERSION if domain == RUNTIME_DOMAIN else None
        version = imports.get(domain, self.model.opset_imports.get(domain, assumed))
        if version is None:
            raise ModelImportError(f"The model imports no opset of the domain {domain or 'ai.onnx'!r}.")
        return version


class GraphImport:
    """Makes one graph: the model's, or a body of control flow.

    Args:
        root: What all graphs of the model share.
        parent: The graph around a body, whose values the body may read.
        owner: Module that holds the constants and bodies of this graph.
    """

    def __init__(self, root: Root, parent: GraphImport | None, owner: torch.nn.Module) -> None:
        self.root, self.parent, self.owner = root, parent, owner
        self.graph = fx.Graph()
        self.values: dict[ir.Value, Known] = {}
        self.body_inputs: list[int] = []
        self.bodies: dict[ir.Graph, list[int]] = {}
        self.sources: set[ir.Graph] = set()
        self.captured: dict[ir.Value, fx.Node] = {}
        self.function: ir.Function | None = parent.function if parent else None
        self.arguments: dict[str, ir.Attr] = parent.arguments if parent else {}

    # Values

    def find(self, value: ir.Value) -> Known:
        """Return what stands for a value here; one of the graph around becomes an input of this one."""
        known = self.values.get(value)
        if known is not None:
            return known
        if value.is_initializer() and (self.parent is None or value.graph in self.sources):
            return self.initializer(value)
        if self.parent is None:
            raise ModelImportError(f"Nothing produces the value {value.name!r}.")
        outer = self.parent.find(value)
        if outer.constant is not None and (outer.literal is not None or not isinstance(outer.constant, torch.Tensor)):
            known = Known(outer.dtype, constant=outer.constant, name=outer.name)
        else:
            with self.graph.inserting_after(self._last_input()):
                node = self.placeholder(value.name or "captured")
            self.captured[value] = node
            known = Known(outer.dtype, node, outer.rank, name=outer.name)
        self.values[value] = known
        return known

    def initializer(self, value: ir.Value) -> Known:
        """Return what an initializer holds; the module gets it when a node reads it."""
        tensor = value.const_value
        if tensor is None:
            raise ModelImportError(f"The initializer {value.name!r} has no data.")
        constant = to_value(tensor, self.root.files)
        known = Known(int(tensor.dtype), constant=constant, name=value.name or "", is_statistic=_is_statistic(value))
        self.values[value] = known
        return known

    def _last_input(self) -> fx.Node:
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        return inputs[-1] if inputs else self.graph._root

    def tensor(self, known: Known) -> fx.Node:
        """Return the node that yields a value as a tensor."""
        if known.node is not None and not known.is_numbers:
            return known.node
        if known.is_numbers:
            return self.graph.call_function(to_tensor, (known.node, carrier(known.dtype)))
        known.node = self._stored(known)
        return known.node

    def _stored(self, known: Known) -> fx.Node:
        """Enter a constant into the module, under its name in the file, and return the node that reads it."""
        path, holder, last = free_place(self.owner, known.name or "constant")
        value = known.constant
        if not isinstance(value, torch.Tensor):
            setattr(holder, last, value)
        elif _is_trainable(known):
            holder.register_parameter(last, torch.nn.Parameter(value, requires_grad=self.root.trainable))
        else:
            holder.register_buffer(last, value)
        with self.graph.inserting_after(self._last_input()):
            return self.graph.create_node("get_attr", path)

    # Graphs

    def inputs(self, values: Iterable[ir.Value]) -> None:
        """Add a placeholder for each input that is not a weight."""
        for value in values:
            if value.is_initializer():
                continue
            node = self.placeholder(value.name or "input")
            node.meta[_NODE_KEY] = {"name": value.name}
            self.values[value] = Known(_declared(value), node, name=value.name or "")

    def placeholder(self, name: str) -> fx.Node:
        """Return an input, under a name that no other has and that Python takes."""
        node = self.graph.placeholder(identifier(name))
        node.target = node.name
        return node

    def nodes(self, nodes: Iterable[ir.Node]) -> None:
        """Convert nodes in order.

        Raises:
            ModelImportError: If one of them cannot be converted; the message names it.
        """
        for node in nodes:
            try:
                self.node(node)
            except ModelImportError as error:
                raise _located(error, node) from error
            except Exception as error:
                raise _located(ModelImportError(f"{type(error).__name__}: {error}"), node) from error

    def outputs(self, values: Sequence[ir.Value]) -> list[fx.Node]:
        """Return what the graph gives for its outputs."""
        return [self.tensor(self.find(value)) for value in values]

    # Nodes

    def node(self, node: ir.Node) -> None:
        """Add what computes a node."""
        function = self.root.model.functions.get(node.op_identifier())
        if function is not None:
            return self.inlined(function, node)
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = self.root.opset(domain, self.function)
        spec = op_spec(node.op_type, opset, domain) or foreign_spec(domain, node.op_type, opset)
        if spec is None:
            raise ModelImportError(_UNKNOWN if domain else f"Opset {opset} has no such operator.")
        attributes = self.attributes(node)
        if node.op_type == "Constant" and not domain:
            self.values[node.outputs[0]] = _constant(attributes, self.root.files, node.outputs[0].name or "")
            return None
        if node.op_type == "If" and not domain and self.decided(node, attributes):
            return None
        dtypes = self.element_types(spec, node, attributes)
        if self.as_numbers(node, domain, dtypes, attributes):
            return None
        entry = implementation(domain, node.op_type, spec.since_version)
        if entry is None:
            raise ModelImportError(_UNKNOWN)
        self.call(entry, node, bind(entry, spec, node, attributes), dtypes)
        return None

    def attributes(self, node: ir.Node) -> dict[str, Any]:
        """Return the attributes of a node, those that name an attribute of the function filled in."""
        resolved = {}
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                given = self.arguments.get(attribute.ref_attr_name or "")
                if given is None:
                    continue
                attribute = given
            resolved[name] = attribute_value(attribute)
        return resolved

    def decided(self, node: ir.Node, attributes: dict[str, Any]) -> bool:
        """Add the branch of an If whose condition the file fixes; tell whether the node is such an If."""
        (condition,) = node.inputs
        known = self.find(condition) if condition is not None else None
        if known is None or not isinstance(known.constant, torch.Tensor):
            return False
        branch = attributes["then_branch" if bool(known.constant) else "else_branch"]
        self.sources.add(branch)
        self.nodes(branch)
        for output, result in zip(node.outputs, branch.outputs, strict=True):
            self.values[output] = self.find(result)
        return True

    def element_types(self, spec: OpSpec, node: ir.Node, attributes: dict[str, Any]) -> list[int]:
        """Return the ONNX element types of the outputs, 0 where nothing tells."""
        of_variable: dict[str, int] = {}
        for index, value in enumerate(node.inputs):
            if value is not None and spec.inputs:
                of_variable.setdefault(spec.formal_input(index).type_key, self.find(value).dtype)
        result = []
        for index, value in enumerate(node.outputs):
            formal = spec.formal_output(index)
            fixed = next(iter(formal.dtypes)) if len(formal.dtypes) == 1 else None
            shared = not formal.variadic or formal.homogeneous
            dtype = int(fixed) if fixed is not None else of_variable.get(formal.type_key, 0) if shared else 0
            if node.op_type == "CastLike":
                dtype = of_variable.get("T2", 0)
            if node.op_type == "ConstantOfShape":
                dtype = int(attributes["value"].dtype) if "value" in attributes else 1
            for name in ("to", "dtype", "output_dtype"):
                if attributes.get(name):
                    dtype = int(ir.DataType(attributes[name]))
            result.append(dtype or _declared(value))
        return result

    def as_numbers(self, node: ir.Node, domain: str, dtypes: list[int], attributes: dict[str, Any]) -> bool:
        """Add a node as arithmetic of Python numbers, if it is some; tell whether it was."""
        function = None if domain else NUMBER_FUNCTIONS.get(node.op_type)
        present = [value for value in node.inputs if value is not None]
        if function is None or not present or len(node.outputs) != 1:
            return False
        knowns = [self.find(value) for value in present]
        if not any(known.is_numbers for known in knowns) or dtypes[0] not in (1, 6, 7, 9):
            return False
        if not all(known.is_numbers or known.literal is not None for known in knowns):
            return False
        args = tuple(None if value is None else self.numbers(self.find(value)) for value in node.inputs)
        rank = numbers_rank(node.op_type, [known.rank_of_numbers for known in knowns], args, attributes)
        if rank > 1:
            return False
        plain = {name: self.plain(each) for name, each in attributes.items()}
        named = {name: each.item() if isinstance(each, torch.Tensor) else each for name, each in plain.items()}
        made = self.graph.call_function(function, args, named)
        self.enter(node, node.outputs[0], Known(dtypes[0], made, rank=rank))
        return True

    def numbers(self, known: Known) -> Any:
        """Return Python numbers, or the node that yields them."""
        if known.literal is not None:
            return known.literal
        return known.node if known.is_numbers else self.graph.call_function(numbers, (self.tensor(known),))

    def number(self, known: Known) -> Any:
        """Return one Python number, or the node that yields it."""
        if known.literal is not None:
            return number(known.literal)
        return self.graph.call_function(number, (known.node if known.is_numbers else self.tensor(known),))

    def are_numbers(self, known: Known) -> bool:
        """Tell whether a value is there as Python numbers."""
        return known.is_numbers or known.literal is not None

    def call(self, entry: Implementation, node: ir.Node, bound: Bound, dtypes: list[int]) -> None:
        """Add the call of a function, or compute it now if everything in it is constant."""
        extra: dict[str, Any] = {}
        parameters = entry.parameters or {}
        if "num_outputs" in parameters and bound.kwargs.get("num_outputs") in (None, -1, 1):
            extra["num_outputs"] = _count(node)
        if extra.get("num_outputs") == entry.defaults.get("num_outputs"):
            extra.pop("num_outputs", None)
        if "input_types" in parameters:
            extra["input_types"] = [0 if value is None else self.find(value).dtype for value in node.inputs]
        if "quantized_from" in parameters and (source := _quantized_from(node)) is not None:
            extra["quantized_from"] = Given(source, Kind.TENSOR)
        kwargs = bound.kwargs | extra
        if self.folded(entry, node, Bound(bound.args, kwargs), dtypes):
            return
        self.body_inputs = self.types_of_bodies(node)
        args = tuple(self.argument(each) for each in bound.args)
        named = {name: self.argument(each) for name, each in kwargs.items()}
        made = self.graph.call_function(entry.function, args, named)
        for graph in (each for each in (*bound.args, *kwargs.values()) if isinstance(each, ir.Graph)):
            dtypes = self.bodies[graph][1:] if node.op_type == "Loop" else self.bodies[graph]
            if len(dtypes) < len(node.outputs):
                raise ModelImportError(f"It has {len(node.outputs)} outputs, but a body returns {len(dtypes)}.")
        self.results(entry, node, made, dtypes)

    def types_of_bodies(self, node: ir.Node) -> list[int]:
        """Return the ONNX element types that the bodies of a node get as their inputs."""
        given = [0 if value is None else self.find(value).dtype for value in node.inputs]
        return [7, 9, *given[2:]] if node.op_type == "Loop" else given

    def argument(self, given: Any) -> Any:
        """Return an argument of a call as torch.fx takes it."""
        if isinstance(given, Given):
            known = self.find(given.value)
            if given.kind == Kind.NUMBER:
                return self.number(known)
            if given.kind == Kind.NUMBERS:
                literal = known.literal
                return self.numbers(known) if literal is None or isinstance(literal, list) else [literal]
            if given.kind in (Kind.EITHER, Kind.SINGLE) and self.are_numbers(known):
                one_of_list = given.kind == Kind.SINGLE and known.rank_of_numbers
                return self.number(known) if one_of_list else self.numbers(known)
            return self.tensor(known)
        if isinstance(given, ir.TensorProtocol):
            value = to_value(given, self.root.files)
            return self.tensor(Known(int(given.dtype), constant=value))
        if isinstance(given, ir.Graph):
            return self.body(given)
        return given

    def results(self, entry: Implementation, node: ir.Node, made: fx.Node, dtypes: list[int]) -> None:
        """Enter the outputs of a call."""
        if not entry.several:
            self.enter(node, node.outputs[0], Known(dtypes[0], made, rank=entry.rank_of_numbers))
            return
        made.meta[_NODE_KEY] = _origin(node)
        for index, output in enumerate(node.outputs):
            if output.name:
                position = entry.position(index)
                item = self.graph.call_function(operator.getitem, (made, position))
                self.enter(node, output, Known(dtypes[index], item))

    def enter(self, node: ir.Node, output: ir.Value, known: Known) -> None:
        """Note what an output of a node is, and where it comes from."""
        assert known.node is not None
        known.name = output.name or ""
        known.node.meta[_NODE_KEY] = _origin(node) | {"output": output.name}
        if output.name:
            known.node._rename(identifier(output.name))
        self.values[output] = known

    # Constants

    def folded(self, entry: Implementation, node: ir.Node, bound: Bound, dtypes: list[int]) -> bool:
        """Compute a call of small constants; tell whether it was one."""
        given = [each for each in (*bound.args, *bound.kwargs.values()) if isinstance(each, Given)]
        constants = [self.find(each.value).constant for each in given]
        has_body = any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())
        if not constants or has_body or has_trait(node.op_type, Trait.RANDOM):
            return False
        if any(not isinstance(each, torch.Tensor) or each.numel() > _FOLDED for each in constants):
            return False
        if not _stays_small(constants):
            return False
        args = [self.plain(each) for each in bound.args]
        with torch.no_grad():
            made = entry.function(*args, **{name: self.plain(each) for name, each in bound.kwargs.items()})
        for index, output in enumerate(node.outputs):
            value = made[entry.position(index)] if entry.several and output.name else made
            if entry.rank_of_numbers is not None:
                value = to_tensor(value, carrier(dtypes[index]))
            if output.name:
                # An output may be an input, or show its memory, which is a parameter's.
                value = value.clone() if isinstance(value, torch.Tensor) else value
                self.values[output] = Known(dtypes[index], constant=value, name=output.name)
        return True

    def plain(self, given: Any) -> Any:
        """Return an argument of a call whose values are all constant: a number, numbers or a tensor."""
        if isinstance(given, Given):
            known = self.find(given.value)
            if given.kind == Kind.NUMBER:
                return number(known.constant)
            return numbers(known.constant) if given.kind == Kind.NUMBERS else known.constant
        return to_value(given, self.root.files) if isinstance(given, ir.TensorProtocol) else given

    # Functions and bodies

    def inlined(self, function: ir.Function, node: ir.Node) -> None:
        """Add the nodes of a function of the model."""
        if self.root.depth > 64:
            raise ModelImportError("Functions of the model are nested more than 64 deep.")
        knowns = [None if value is None else self.find(value) for value in node.inputs]
        function = without_inputs(function, {place for place, known in enumerate(knowns) if known is not None})
        outer = self.values, self.function, self.arguments
        self.values = dict(self.values) | {
            formal: known for formal, known in zip(function.inputs, knowns, strict=False) if known is not None
        }
        given = {name: self._resolved(attribute) for name, attribute in node.attributes.items()}
        defaults = {name: each for name, each in function.attributes.items() if each.value is not None}
        self.function = function
        self.arguments = defaults | {name: each for name, each in given.items() if each is not None}
        self.root.depth += 1
        try:
            self.nodes(function)
            results = [self.find(value) for value in function.outputs[: len(node.outputs)]]
        finally:
            self.root.depth -= 1
            self.values, self.function, self.arguments = outer
        for output, known in zip(node.outputs, results, strict=False):
            self.values[output] = known

    def _resolved(self, attribute: ir.Attr) -> ir.Attr | None:
        return self.arguments.get(attribute.ref_attr_name or "") if attribute.is_ref() else attribute

    def body(self, graph: ir.Graph) -> Any:
        """Add a body of control flow; return the node of its module and what it reads of the values here."""
        module = torch.nn.Module()
        child = GraphImport(self.root, self, module)
        child.sources.add(graph)
        child.inputs(graph.inputs)
        for value, dtype in zip(graph.inputs, self.body_inputs, strict=False):
            child.values[value].dtype = dtype
        child.nodes(graph)
        child.graph.output(tuple(child.outputs(graph.outputs)))
        path, holder, last = free_place(self.owner, graph.name or "body")
        holder.add_module(last, ImportedModule(module, child.graph))
        read = [self.argument_of(value) for value in child.captured]
        kinds = [(_dtype(child.find(value).dtype or 1), _sizes(value)) for value in graph.outputs]
        self.bodies[graph] = [child.find(value).dtype for value in graph.outputs]
        going = child.find(_renamed(graph.outputs[0])) if graph.outputs else None
        passed = child.values[graph.inputs[1]] if len(graph.inputs) > 1 else None
        steady = going is not None and (going is passed or _is_true(going))
        return self.graph.create_node("get_attr", path), read, kinds, steady

    def argument_of(self, value: ir.Value) -> Any:
        """Return the node of a value: Python numbers as they are, anything else as a tensor."""
        known = self.find(value)
        return known.node if known.is_numbers else self.tensor(known)


def _is_trainable(known: Known) -> bool:
    """Tell whether a constant tensor is a parameter: a weight of the file, neither a number nor gathered statistics."""
    value = known.constant
    of_floats = value.is_floating_point() or value.is_complex()
    return bool(known.name and of_floats and value.dim() and not known.is_statistic)


def _is_statistic(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(
        use.node.op_type == "BatchNormalization" and not use.node.domain and use.idx in (3, 4) for use in uses
    )


def _is_true(known: Known) -> bool:
    return isinstance(known.constant, torch.Tensor) and bool(known.constant.reshape(-1).all())


def _renamed(value: ir.Value) -> ir.Value:
    """Return the value that goes through Identity nodes to another."""
    while (producer := value.producer()) is not None and producer.op_type == "Identity" and not producer.domain:
        if producer.inputs[0] is None:
            break
        value = producer.inputs[0]
    return value


def _dtype(number: int) -> torch.dtype | None:
    return None if number == ir.DataType.STRING else carrier(number)


def _sizes(value: ir.Value) -> list[int] | None:
    return None if value.shape is None else [size if isinstance(size, int) else 0 for size in value.shape]


def _declared(value: ir.Value) -> int:
    return int(value.dtype) if value.dtype is not None else 0


def _count(node: ir.Node) -> int:
    return max((index + 1 for index, output in enumerate(node.outputs) if output.name), default=1)


def _origin(node: ir.Node) -> dict[str, Any]:
    return {"name": node.name, "op_type": node.op_type, "domain": node.domain}


def _quantized_from(node: ir.Node) -> ir.Value | None:
    """Return what was quantized to the first input of a node, or None if that was made otherwise."""
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    if producer is None or producer.op_type != "QuantizeLinear" or producer.domain != node.domain:
        return None
    return producer.inputs[0]


def _stays_small(constants: list[Any]) -> bool:
    """Tell whether no operator makes much of constants, however it reads them: as sizes, repeats, limits."""
    total = 1
    for value in constants:
        if not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool:
            total *= math.prod(max(abs(int(each)), 1) for each in value.reshape(-1)[:64].tolist())
    return total < 2**16


def _constant(attributes: dict[str, Any], files: FileMaps, name: str) -> Known:
    """Return the value of a Constant node."""
    if len(attributes) != 1:
        raise ModelImportError("A Constant has one attribute.")
    ((kind, value),) = attributes.items()
    if kind == "value":
        return Known(int(value.dtype), constant=to_value(value, files), name=name)
    if kind in ("value_string", "value_strings"):
        return Known(int(ir.DataType.STRING), constant=np.array(value, object), name=name)
    dtype = torch.float32 if kind in ("value_float", "value_floats") else torch.int64
    if kind == "sparse_value":
        raise ModelImportError("The importer does not support sparse constants.")
    return Known(1 if dtype == torch.float32 else 7, constant=torch.tensor(value, dtype=dtype), name=name)


def _located(error: ModelImportError, node: ir.Node) -> ModelImportError:
    """Return an error that names the node, unless it names one already."""
    if error.node:
        return error
    name = node.name or next((output.name for output in node.outputs if output.name), "") or ""
    op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return ModelImportError(f"{op_type} node {name!r}: {error}", op_type=op_type, node=name)
