"""What users of other exporters suffer from: each complaint, and the tests that hold what is offered against it.

Tests are named ``file::test``; those without a file stand here. Searching for a wrong node and the TorchScript exporter
are other packages.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torchvision_operators import define

from onnx_fx_export import RuntimeSupportError, export

PAINS = {
    "an export takes many times as long as the capture": ["test_a_model_is_captured_once_and_never_decomposed_whole"],
    "equal layers are traced again and again": [
        "test_repeated_blocks::test_equal_blocks_are_captured_once",
        "test_repeated_blocks::test_layers_of_transformers_are_captured_once",
    ],
    "weights are copied, and large models fail": [
        "test_export::test_weights_are_views_of_the_model",
        "test_saving::test_transposed_weights_are_never_copied_whole",
        "test_saving::test_saved_models_equal_the_program",
    ],
    "dynamic_axes are converted wrongly": [
        "test_dynamic_shapes::test_declared_dimensions_keep_their_names",
        "test_dynamic_shapes::test_axes_get_the_names_that_torch_gives_them",
        "test_dynamic_shapes::test_axes_of_outputs_keep_their_own_names",
        "test_boundary::test_dimensions_of_nested_arguments_are_declared_in_many_ways",
    ],
    "dynamic_shapes by input_names are refused": ["test_dynamic_shapes_by_the_names_of_the_inputs"],
    "sizes 0 and 1 become constants, dimensions become static in silence": [
        "test_examples::test_an_example_of_size_0_or_1_is_dynamic",
        "test_examples::test_the_line_that_fixes_a_dimension_is_named",
        "test_dynamic_shapes::test_a_fixed_dimension_fails_with_its_name",
    ],
    "caches and nested inputs are refused": [
        "test_boundary::test_values_go_in_and_come_out_as_in_torch",
        "test_containers::test_decoding_with_a_dynamic_cache",
        "test_examples::test_what_differs_between_examples_is_dynamic",
    ],
    "branches and lengths that data decides fail without advice": [
        "test_branches::test_the_rewrite_is_spelled_out_and_can_be_exported",
        "test_data_dependent_sizes::test_sizes_follow_the_data",
    ],
    "detection models lack operators": ["test_a_detection_head_runs_on_other_boxes"],
    "operators are missing": ["test_operators_that_others_lack", "test_grouped_matrix_products"],
    "wrong values go unnoticed": [
        "test_verification_sizes::test_an_export_that_is_wrong_at_other_sizes_only_is_found",
        "test_errors::test_verification_finds_a_wrong_translation",
        "test_constraints::test_the_untaken_branch_is_refused",
    ],
    "mutated buffers are dropped": [
        "test_mutation::test_mutated_buffers_are_refused_by_default",
        "test_mutation::test_mutated_buffers_become_state",
    ],
    "symbolic methods are ignored": [
        "test_autograd_function::test_symbolic_is_honoured",
        "test_autograd_function::test_a_failing_symbolic_fails_the_export",
    ],
    "another opset than the asked one is delivered": ["test_export::test_the_requested_opset_is_delivered"],
    "version converters fail on functions": [
        "test_functions::test_identical_blocks_are_one_function_with_many_calls",
        "test_functions::test_regions_are_inlined_where_the_opset_has_no_functions",
    ],
    "fake quantization fails": [
        "test_observers::test_a_network_prepared_for_training_and_put_in_evaluation",
        "test_quantized_models::test_static_quantization_per_tensor_and_per_channel",
    ],
    "weights of few bits need private tables": [
        "test_quantized_models::test_weights_of_eight_bit_floats",
        "test_quantized_models::test_weights_of_four_bits_in_bytes",
        "test_weights_of_four_bit_floats",
    ],
    "bfloat16 models fail in a CPU runtime": [
        "test_bfloat16_models_run_on_a_cpu_if_they_are_widened",
        "test_what_the_runtime_has_no_kernel_for_is_named",
    ],
    "attention breaks with each release of transformers": [
        "test_finish::test_heads_are_split_and_repeated_by_attention",
        "test_containers::test_decoding_with_a_dynamic_cache",
        "test_architectures::test_architecture_equals_eager_at_other_sizes",
    ],
    "graphs are larger than those of the old exporter": ["test_layers_have_few_nodes"],
    "modules as functions are inlined": ["test_functions::test_all_modules_as_functions_nest"],
    "complex numbers are refused": [
        "test_complex_models::test_rotary_positions_by_complex_multiplication",
        "test_complex_models::test_a_filter_in_the_frequency_domain",
    ],
    "errors say nothing, files and packages surprise": [
        "test_errors::test_unsupported_operators_are_reported_together",
        "test_a_small_model_is_one_file",
        "test_onnxscript_is_not_needed",
    ],
}


def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("pain", PAINS)
def test_every_pain_has_tests(pain: str) -> None:
    for name in PAINS[pain]:
        file, _, test = name.rpartition("::")
        assert test in names_in(Path(__file__).with_name(f"{file or 'test_pains'}.py"))


def test_a_model_is_captured_once_and_never_decomposed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[object] = []
    capture: Callable = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: (captures.append(a), capture(*a, **k))[1])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the whole graph was decomposed")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", refuse)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    program = export(layer, (torch.randn(2, 3, 8),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert len(captures) == 1
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(program(x), layer(x).detach(), rtol=1e-4, atol=1e-5)


FUNCTIONS = {
    "searchsorted": lambda x: torch.searchsorted(torch.linspace(-2, 2, 7), x.contiguous()),
    "cummax": lambda x: torch.cummax(x, 0).values,
    "median": lambda x: torch.median(x, 1).values,
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1).values,
    "cdist": lambda x: torch.cdist(x, x + 1),
    "inv": lambda x: torch.linalg.inv(x.T @ x + 3 * torch.eye(4)),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "digamma": lambda x: torch.digamma(x.abs() + 1),
    "erfinv": lambda x: torch.erfinv(x.tanh() / 2),
    "histc": lambda x: torch.histc(x, 5, -3, 3),
    "qr": lambda x: torch.linalg.qr(x[:2]).R.abs(),
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False).S,
    "randperm": lambda x: x[torch.randperm(x.shape[0])].sum(0),
    "stable sort": lambda x: torch.sort(x.round(), dim=1, stable=True).indices,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_that_others_lack(name: str) -> None:
    function = FUNCTIONS[name]
    program = export(function, (torch.randn(3, 4),), dynamic_shapes={"x": {0: "rows"}})
    x = torch.randn(6, 4)
    torch.testing.assert_close(program(x), function(x), rtol=1e-3, atol=1e-4)


def test_grouped_matrix_products() -> None:
    def function(x, weight, offsets):
        return torch._grouped_mm(x, weight, offs=offsets)

    def args(*ends: int) -> tuple[torch.Tensor, ...]:
        weight = torch.randn(len(ends), 16, 8).bfloat16()
        return torch.randn(ends[-1], 16).bfloat16(), weight, torch.tensor(ends, dtype=torch.int32)

    program = export(function, args(3, 8), dynamic_shapes=({0: "tokens"}, None, None))
    x, weight, offsets = args(8, 16)
    torch.testing.assert_close(program(x, weight, offsets), function(x, weight, offsets), rtol=2e-2, atol=2e-2)


def test_a_detection_head_runs_on_other_boxes() -> None:
    define()

    class Head(torch.nn.Module):
        def forward(self, features, boxes, scores):
            kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
            rois = torch.cat([torch.zeros(kept.shape[0], 1), boxes[kept]], 1)
            return torch.ops.torchvision.roi_align(features, rois, 0.5, 2, 2, 2, True), kept

    def args(count: int, size: int) -> tuple[torch.Tensor, ...]:
        corners = torch.rand(count, 2) * size
        return (
            torch.randn(1, 3, size, size),
            torch.cat([corners, corners + 2 + torch.rand(count, 2)], 1),
            torch.rand(count),
        )

    head = Head()
    shapes = ({2: "height", 3: "width"}, {0: "boxes"}, {0: "boxes"})
    program = export(head, args(5, 8), dynamic_shapes=shapes)
    for example in (args(9, 12), args(2, 6)):
        for actual, expected in zip(program(*example), head(*example), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_four_bit_floats() -> None:
    class Microscaled(torch.nn.Module):
        """Two values of four bits in a byte, with scales of eight bits, as NVFP4 has them."""

        def __init__(self) -> None:
            super().__init__()
            magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            self.register_buffer("values", torch.cat([magnitudes, -magnitudes]))
            self.register_buffer("packed", torch.randint(0, 256, (6, 16), dtype=torch.uint8))
            self.register_buffer("scales", (torch.rand(6, 2) + 0.5).to(torch.float8_e4m3fn))

        def forward(self, x):
            codes = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1).long()
            blocks = self.values[codes].unflatten(1, (2, 16)) * self.scales.float().unsqueeze(-1)
            return x @ blocks.flatten(1).T

    model = Microscaled()
    program = export(model, (torch.randn(2, 32),), dynamic_shapes=({0: "rows"},), opset_version=20)
    sizes = {tensor.name: len(tensor.raw_data) for tensor in program.model_proto.graph.initializer}
    assert (sizes["packed"], sizes["scales"]) == (96, 12)
    x = torch.randn(5, 32)
    torch.testing.assert_close(program(x), model(x))


def halves() -> torch.nn.Module:
    layers = [torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Conv1d(2, 3, 3)]
    return torch.nn.Sequential(*layers).bfloat16().eval()


@pytest.mark.parametrize("opset", [13, 20, 23])
def test_bfloat16_models_run_on_a_cpu_if_they_are_widened(opset: int) -> None:
    model, x = halves(), torch.randn(5, 2, 4).bfloat16()
    options = {"widen_bfloat16": True, "opset_version": opset, "verify": True}
    program = export(model, (torch.randn(2, 2, 4).bfloat16(),), dynamic_shapes=({0: "rows"},), **options)
    graph = program.model_proto.graph
    assert next(w for w in graph.initializer if w.name == "3.weight").data_type == onnx.TensorProto.BFLOAT16
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.BFLOAT16}
    torch.testing.assert_close(program(x), model(x).detach(), rtol=2e-2, atol=2e-2)


def test_what_the_runtime_has_no_kernel_for_is_named() -> None:
    def function(x):
        return x @ x.T

    x = torch.randn(3, 3).bfloat16()
    program = export(function, (x,))
    with pytest.raises(RuntimeSupportError, match=r"MatMul .*BFLOAT16.*test_pains\.py:\d+.*widen_bfloat16"):
        program(x)


@pytest.mark.parametrize(("name", "most"), [("Bert", 19), ("Llama", 28), ("ViT", 19)])
def test_layers_have_few_nodes(name: str, most: int) -> None:
    transformers = pytest.importorskip("transformers")

    def nodes(layers: int) -> int:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        }
        kind = getattr(transformers, f"{name}Model")
        config = kind.config_class(num_hidden_layers=layers, vocab_size=50, use_cache=False, **sizes)
        example = torch.randn(2, 3, 32, 32) if name == "ViT" else torch.randint(0, 50, (2, 5))
        shapes = ({0: "batch"} if name == "ViT" else {0: "batch", 1: "length"},)
        return len(export(kind(config).eval(), (example,), dynamic_shapes=shapes, opset_version=23).model.graph)

    # Before 1.27, ONNX Runtime loses the digits of large means, which two norms in a layer subtract first.
    centred = 4 * (tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27) and name != "Llama")
    assert nodes(3) - nodes(1) <= 2 * (most + centred)


def test_onnxscript_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    program = export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
    assert program(torch.randn(4, 3)).shape == (4, 2)


def test_dynamic_shapes_by_the_names_of_the_inputs() -> None:
    shapes = {"features": {0: "batch"}}
    program = export(torch.nn.ReLU(), (torch.randn(2, 3),), input_names=["features"], dynamic_shapes=shapes)
    assert str(program.model.graph.inputs[0].shape[0]) == "batch"


def test_a_small_model_is_one_file(tmp_path) -> None:
    export(torch.nn.Linear(64, 64), (torch.randn(2, 64),), tmp_path / "model.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
