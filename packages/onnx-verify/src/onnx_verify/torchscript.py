"""Finding the wrong operator in the export of a TorchScript graph, by halving the graph.

The exporter of the pieces is found through the entry point group ``onnx_verify.subgraph_exporters``; it is a
function
``export_graph(torch_graph, example_inputs, opset_version) -> onnx.ModelProto`` whose graph inputs are those
of the
torch graph that the model needs, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import onnx

from onnx_verify.comparing.comparison import compare_arrays
from onnx_verify.comparing.verdict import OutputReport
from onnx_verify.errors import MismatchError, OnnxVerifyError, SubgraphExportError
from onnx_verify.inputs.datafiles import write_value
from onnx_verify.inputs.sets import InputSet, as_array, bind_feeds
from onnx_verify.models.model import LoadedModel, load_model
from onnx_verify.running.runtimes import Backend, OnnxBackend, Outputs
from onnx_verify.search.findings import NodeLabel, NodeMismatch
from onnx_verify.torch_graph import Graph, capture, essential_nodes, node_kinds, run_graph, split
from onnx_verify.values.tolerance import Tolerance
from onnx_verify.values.torch_tensors import is_tensor, to_numpy

ENTRY_POINT_GROUP = "onnx_verify.subgraph_exporters"
DEFAULT_OPSET = 18
SubgraphExporter = Callable[[Graph, Sequence[Any], int], onnx.ModelProto]


@dataclass(frozen=True)
class VerificationOptions:
    """How a piece and its export are compared.

    Attributes:
        flatten: whether nested outputs are flattened.
        ignore_none: whether None among torch's outputs is left out.
        check_shape: whether shapes must be equal.
        check_dtype: whether dtypes must be equal.
        backend: what runs the exported pieces.
        rtol: relative tolerance.
        atol: absolute tolerance.
        remained_onnx_input_idx: the positions of the inputs that the exported model has; all by default.
        acceptable_error_percentage: share of the elements, from 0 to 1, that may differ.
    """

    flatten: bool = True
    ignore_none: bool = True
    check_shape: bool = True
    check_dtype: bool = True
    backend: OnnxBackend = OnnxBackend.ONNX_RUNTIME_CPU
    rtol: float = 1e-3
    atol: float = 1e-7
    remained_onnx_input_idx: Sequence[int] | None = None
    acceptable_error_percentage: float | None = None

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance in the form that comparisons take."""
        return Tolerance(self.rtol, self.atol, max_mismatch_ratio=self.acceptable_error_percentage or 0.0)


@dataclass
class GraphVerification:
    """What one export and comparison gave.

    Attributes:
        error: why they disagree, None if they agree.
        model: the exported model.
        torch_outputs: torch's outputs.
        onnx_outputs: the exported model's outputs.
        feeds: the exported model's inputs.
        reports: one per output.
    """

    error: MismatchError | None
    model: onnx.ModelProto
    torch_outputs: list[Any]
    onnx_outputs: Outputs
    feeds: dict[str, Any] = field(default_factory=dict)
    reports: list[OutputReport] = field(default_factory=list)


def find_exporter() -> SubgraphExporter:
    """Return the exporter of sub-graphs that an installed package registers.

    Raises:
        SubgraphExportError: if there is none.
    """
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found: SubgraphExporter = entry.load()
        return found
    raise SubgraphExportError(
        "no installed package exports TorchScript graphs; install one: pip install onnx-ts-legacy"
    )


def verify_aten_graph(
    graph: Graph,
    input_args: Sequence[Any],
    opset_version: int = DEFAULT_OPSET,
    params_dict: Mapping[str, Any] | None = None,
    options: VerificationOptions | None = None,
    exporter: SubgraphExporter | None = None,
) -> GraphVerification:
    """Export a graph, run it both ways and compare.

    Args:
        graph: a flat ``torch._C.Graph`` of ATen operators.
        input_args: a value for each of its inputs, the weights in ``params_dict`` excepted.
        opset_version: the opset that is exported.
        params_dict: weights, for the inputs after ``input_args``, in order.
        options: tolerances and backend.
        exporter: the exporter; the registered one otherwise.

    Raises:
        SubgraphExportError: if the graph cannot be exported, or its export cannot be run.
    """
    settings = options or VerificationOptions()
    inputs = [*input_args, *(params_dict or {}).values()]
    right = run_graph(graph, inputs)
    export = exporter or find_exporter()
    try:
        model = export(graph.copy(), inputs, opset_version)
    except Exception as error:
        raise SubgraphExportError(f"{', '.join(node_kinds(graph))} cannot be exported: {error}") from error
    kept = settings.remained_onnx_input_idx
    given = tuple(inputs) if kept is None else tuple(inputs[i] for i in kept)
    loaded = load_model(model)
    try:
        feeds = _feeds(given, graph, loaded)
        outputs = Backend(settings.backend).load(loaded).run_feeds(feeds)
    except OnnxVerifyError as error:
        raise SubgraphExportError(f"the export of {', '.join(node_kinds(graph))} cannot be run: {error}") from error
    reports = _reports(right, outputs, settings)
    return GraphVerification(_error(right, outputs, reports), model, right, outputs, feeds, reports)


def _feeds(given: tuple[Any, ...], graph: Graph, model: LoadedModel) -> dict[str, Any]:
    """Assign the inputs by name where the exporter kept the names, by position otherwise."""
    names = [value.debugName() for value in graph.inputs()]
    wanted = {value.name for value in model.inputs}
    if len(names) == len(given) and wanted <= set(names):
        by_name = {name: value for name, value in zip(names, given, strict=True) if name in wanted}
        return bind_feeds(InputSet(feeds=by_name), model.inputs)
    return bind_feeds(InputSet(given), model.inputs)


def _reports(right: Sequence[Any], outputs: Outputs, options: VerificationOptions) -> list[OutputReport]:
    kept = [value for value in right if value is not None or not options.ignore_none]
    return [
        compare_arrays(
            name,
            to_numpy(value) if is_tensor(value) else as_array(value, f"output {name!r}"),
            actual,
            options.tolerance,
            check_dtype=options.check_dtype,
            check_shape=options.check_shape,
        )
        for value, (name, actual) in zip(kept, outputs, strict=False)
    ]


def _error(right: Sequence[Any], outputs: Outputs, reports: Sequence[OutputReport]) -> MismatchError | None:
    lines = [str(report) for report in reports if not report.ok]
    if len(right) != len(outputs):
        lines.append(f"torch gives {len(right)} outputs, the export {len(outputs)}")
    return MismatchError("\n".join(lines)) if lines else None


@dataclass
class GraphInfo:
    """A piece of a TorchScript graph and what was found about its export.

    Attributes:
        graph: the piece.
        input_args: a value for each of its inputs.
        params_dict: weights, for the inputs after ``input_args``.
        opset_version: the opset that is exported.
        exporter: the exporter; the registered one if None.
        id: ``""`` for the whole, then ``"0"`` for its upper and ``"1"`` for its lower half, and so on.
        mismatch_error: why torch and the export disagree; None if they agree or nothing is known yet.
        export_error: why the piece could not be exported, which leaves it unchecked.
        pt_outs: torch's outputs.
        upper_graph_info: the upper half, once it was looked at.
        lower_graph_info: the lower half.
    """

    graph: Graph
    input_args: Sequence[Any]
    params_dict: Mapping[str, Any] = field(default_factory=dict)
    opset_version: int = DEFAULT_OPSET
    exporter: SubgraphExporter | None = None
    id: str = ""
    mismatch_error: MismatchError | None = None
    export_error: SubgraphExportError | None = None
    pt_outs: list[Any] | None = None
    upper_graph_info: GraphInfo | None = None
    lower_graph_info: GraphInfo | None = None
    verification: GraphVerification | None = field(default=None, repr=False)

    def clear(self) -> None:
        """Forget what was found."""
        self.mismatch_error = self.export_error = self.pt_outs = self.verification = None
        self.upper_graph_info = self.lower_graph_info = None

    def essential_node_count(self) -> int:
        """Return the number of nodes that compute something."""
        return len(essential_nodes(self.graph))

    def essential_node_kinds(self) -> set[str]:
        """Return the kinds of the nodes that compute something."""
        return set(node_kinds(self.graph))

    def has_mismatch(self) -> bool:
        """Tell whether torch and the export of this piece disagree."""
        return self.mismatch_error is not None

    def find_mismatch(self, options: VerificationOptions | None = None) -> None:
        """Check the piece and, while it disagrees, its halves.

        Raises:
            SubgraphExportError: if the whole graph cannot be exported; a piece that cannot is left unchecked.
        """
        self.clear()
        try:
            self.verification = verify_aten_graph(
                self.graph, self.input_args, self.opset_version, self.params_dict, options, self.exporter
            )
        except SubgraphExportError as error:
            if not self.id:
                raise
            self.export_error = error
            self.pt_outs = run_graph(self.graph, self._inputs())
            return
        self.mismatch_error, self.pt_outs = self.verification.error, self.verification.torch_outputs
        count = self.essential_node_count()
        if self.has_mismatch() and count > 1:
            self._find_in_halves(count, options)

    def _inputs(self) -> list[Any]:
        return [*self.input_args, *self.params_dict.values()]

    def _find_in_halves(self, count: int, options: VerificationOptions | None) -> None:
        """Cut in the middle, or as near to it as a cut is possible."""
        for pivot in sorted(range(1, count), key=lambda position: abs(position - count // 2)):
            parts = split(self.graph, self._inputs(), pivot)
            if parts is not None:
                break
        else:
            return
        upper, lower = parts
        inputs = self._inputs()
        above = GraphInfo(
            upper.graph, [inputs[i] for i in upper.given if isinstance(i, int)], {}, self.opset_version, self.exporter
        )
        above.id = self.id + "0"
        above.find_mismatch(options)
        crossing = dict(zip(upper.names, run_graph(upper.graph, above.input_args), strict=True))
        below = GraphInfo(
            lower.graph,
            [inputs[i] if isinstance(i, int) else crossing[i] for i in lower.given],
            {},
            self.opset_version,
            self.exporter,
        )
        below.id = self.id + "1"
        below.find_mismatch(options)
        self.upper_graph_info, self.lower_graph_info = above, below

    def find_partition(self, id: str) -> GraphInfo | None:
        """Return the piece of an id, None if there is none."""
        if id == self.id:
            return self
        for half in (self.upper_graph_info, self.lower_graph_info):
            if half is not None and id.startswith(half.id):
                return half.find_partition(id)
        return None

    def all_mismatch_leaf_graph_info(self) -> list[GraphInfo]:
        """Return the smallest pieces that disagree."""
        if not self.has_mismatch():
            return []
        halves = [half for half in (self.upper_graph_info, self.lower_graph_info) if half is not None]
        leaves = [leaf for half in halves for leaf in half.all_mismatch_leaf_graph_info()]
        return leaves or [self]

    def pretty_print_tree(self) -> None:
        """Print the pieces as a tree, each with its state and number of nodes."""
        print("\n".join(self._tree("")))

    def _tree(self, indent: str) -> list[str]:
        state = "MISMATCH" if self.has_mismatch() else "unchecked" if self.export_error else "ok"
        kinds = node_kinds(self.graph)
        shown = ", ".join(kinds[:4]) + (", ..." if len(kinds) > 4 else "")
        lines = [f"{indent}{state} id {self.id or 'root'}: {len(kinds)} nodes ({shown})"]
        for half in (self.upper_graph_info, self.lower_graph_info):
            if half is not None:
                lines += half._tree(indent + "  ")
        return lines

    def pretty_print_mismatch(self, graph: bool = False) -> None:
        """Print what disagrees in this piece, and the graph if asked for."""
        print(f"id {self.id or 'root'}: {', '.join(node_kinds(self.graph))}")
        print(self.mismatch_error or self.export_error or "torch and the export agree")
        if graph:
            print(self.graph)

    def export_repro(self, repro_dir: str | Path | None = None, name: str | None = None) -> str:
        """Write the piece as an ONNX test case that also runs on its own.

        Args:
            repro_dir: where the folder is made; the current folder otherwise.
            name: the folder is called ``test_<name>``, after the id otherwise.

        Returns:
            The folder, with model, inputs, both outputs, ``test_data_set_0`` (torch's outputs) and
            ``repro.py``.

        Raises:
            OnnxVerifyError: if the piece was not checked yet, or could not be exported.
        """
        found = self.verification
        if found is None:
            raise OnnxVerifyError("there is no export of this piece; call find_mismatch first")
        folder = Path(repro_dir or Path.cwd()) / f"test_{name or 'mismatch_' + (self.id or 'root')}"
        names = [name for name, _ in found.onnx_outputs]
        reference = {
            name: to_numpy(value) if is_tensor(value) else as_array(value, name)
            for name, value in zip(names, found.torch_outputs, strict=False)
        }
        kinds = node_kinds(self.graph)
        mismatch = NodeMismatch(
            nodes=[NodeLabel("", kind, "", ()) for kind in kinds],
            reports=found.reports,
            sample="inputs",
            piece=load_model(found.model),
            feeds=found.feeds,
            reference=reference,
            candidate=dict(found.onnx_outputs),
        )
        mismatch.export_repro(folder)
        data = folder / "test_data_set_0"
        data.mkdir(exist_ok=True)
        for index, value in enumerate(found.feeds.values()):
            write_value(data / f"input_{index}.pb", value)
        for index, value in enumerate(reference.values()):
            write_value(data / f"output_{index}.pb", value)
        return str(folder)


def find_mismatch(
    model: Any,
    input_args: tuple[Any, ...],
    opset_version: int = DEFAULT_OPSET,
    input_kwargs: Mapping[str, Any] | None = None,
    options: VerificationOptions | None = None,
    exporter: SubgraphExporter | None = None,
) -> GraphInfo:
    """Find the operators whose export disagrees with torch.

    Args:
        model: a module, which is traced, or a ScriptModule, whose graph is taken.
        input_args: positional inputs.
        opset_version: the opset that is exported.
        input_kwargs: inputs by name, for a module that is traced.
        options: tolerances and backend.
        exporter: the exporter of pieces; the registered one otherwise.

    Returns:
        The tree of pieces, checked; its leaves are in :meth:`GraphInfo.all_mismatch_leaf_graph_info`.

    Raises:
        InputError: if no graph can be made of the model.
        SubgraphExportError: if the whole graph cannot be exported or run.
    """
    graph, inputs = capture(model, tuple(input_args), dict(input_kwargs or {}))
    info = GraphInfo(graph, inputs, {}, opset_version, exporter)
    info.find_mismatch(options)
    return info
