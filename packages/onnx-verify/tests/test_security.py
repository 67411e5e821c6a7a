"""A model file is untrusted: what it may not reach, and what it may not do to the process."""

import os
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import realistic
from hypothesis import given, settings
from hypothesis import strategies as st
from models import build, info, mlp, normal
from onnx import TensorProto, helper

import onnx_verify
from onnx_verify import ModelLoadError, OnnxVerifyError, UnsafeModelError, compare, generate_inputs, load_model
from onnx_verify.models.model import parse_model


def external(location, dims=(4,), code=TensorProto.FLOAT, **entries):
    """A model with one initializer in a file."""
    tensor = TensorProto(name="w", data_type=code, dims=list(dims), data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    model = build([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [4])], [info("y", [4])])
    model.graph.initializer.append(tensor)
    return model


@pytest.fixture
def folder(tmp_path):
    """A folder with a model's data, and a secret outside it."""
    inside = tmp_path / "model"
    inside.mkdir()
    np.arange(4096, dtype=np.float32).tofile(inside / "data.bin")
    np.arange(4096, dtype=np.float32).tofile(tmp_path / "secret.bin")
    (inside / "sub").mkdir()
    np.arange(4, dtype=np.float32).tofile(inside / "sub" / "data.bin")
    return inside


def save(model, folder):
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location, dims", [("data.bin", (4,)), ("./data.bin", (4,)), ("sub/data.bin", (4,)), ("data.bin", (4096,))]
)
def test_data_in_the_folder_is_read(folder, location, dims):
    loaded = load_model(save(external(location, dims), folder))
    np.testing.assert_array_equal(loaded.initializer_values("w"), np.arange(dims[0], dtype=np.float32))


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "..\\secret.bin",
        "/etc/passwd",
        "C:\\secret.bin",
        "\\\\host\\share\\x",
        "",
        "data.bin\x00",
    ],
)
@pytest.mark.parametrize("dims", [(4,), (4096,)])
def test_data_outside_the_folder_is_refused(folder, location, dims):
    with pytest.raises(UnsafeModelError, match="'w'"):
        load_model(save(external(location, dims), folder))


def test_links_are_refused(folder):
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "inner.bin").symlink_to(folder / "data.bin")
    (folder / "linked").symlink_to(folder.parent)
    for location in ("link.bin", "inner.bin", "linked/secret.bin"):
        with pytest.raises(UnsafeModelError, match="link"):
            load_model(save(external(location), folder))


def test_what_is_no_regular_file_is_refused_without_waiting(folder):
    os.mkfifo(folder / "pipe")
    for location in ("pipe", "sub"):
        with pytest.raises(ModelLoadError, match="not a regular file"):
            load_model(save(external(location), folder))


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"offset": 16384}, "which has 16384"),
        ({"offset": -4}, "not a size"),
        ({"offset": "0x10"}, "not a size"),
        ({"offset": "9" * 30}, "not a size"),
        ({"length": 3}, "its entry says 3"),
        ({"length": 2**40}, "its entry says"),
    ],
)
def test_entries_that_make_no_sense_are_refused(folder, entries, message):
    with pytest.raises(ModelLoadError, match=message):
        load_model(save(external("data.bin", **entries), folder))


def test_external_data_of_a_model_in_memory_is_refused():
    with pytest.raises(ModelLoadError, match="has no folder"):
        load_model(external("data.bin"))


def test_an_ir_model_with_data_outside_its_folder_is_refused(folder):
    path = save(external("data.bin"), folder)
    model = ir.load(path)
    assert load_model(model).initializer_values("w")[3] == 3
    value = model.graph.initializers["w"]
    value.const_value = ir.ExternalTensor(
        "../secret.bin", 0, 16, ir.DataType.FLOAT, shape=ir.Shape([4]), name="w", base_dir=str(folder)
    )
    with pytest.raises(UnsafeModelError):
        load_model(model)


def test_external_data_in_a_body_or_a_constant_is_checked_too(folder):
    for location, fails in (("data.bin", False), ("../secret.bin", True)):
        tensor = external(location).graph.initializer[0]
        constant = helper.make_node("Constant", [], ["c"])
        constant.attribute.append(onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor))
        model = build([constant, helper.make_node("Add", ["x", "c"], ["y"])], [info("x", [4])], [info("y", [4])])
        path = save(model, folder)
        if fails:
            with pytest.raises(UnsafeModelError):
                load_model(path)
        else:
            assert compare(lambda x: x + np.arange(4, dtype=np.float32), path, (normal(4),))


def test_a_cycle_is_refused():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Neg", ["a"], ["b"], name="two")]
    with pytest.raises(ModelLoadError, match="cycle"):
        load_model(build(nodes, [info("x", [1])], [info("b", [1])]))


def test_a_value_defined_twice_is_refused():
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["a"])]
    with pytest.raises(ModelLoadError, match="already exists"):
        load_model(build(nodes, [info("x", [1])], [info("a", [1])]))


def test_functions_that_call_themselves_are_refused():
    def function(name, callee):
        return helper.make_function(
            "d", name, ["a"], ["b"], [helper.make_node(callee, ["a"], ["b"], domain="d")], [helper.make_opsetid("d", 1)]
        )

    call = helper.make_node("F", ["x"], ["y"], domain="d")
    model = build([call], [info("x", [1])], [info("y", [1])], functions=[function("F", "G"), function("G", "F")])
    with pytest.raises(ModelLoadError, match="in a cycle"):
        load_model(model)


def test_a_tensor_that_claims_more_than_it_holds_is_refused():
    model = mlp()
    model.graph.initializer[0].dims[:] = [2**40, 2**20]
    with pytest.raises(ModelLoadError, match="needs"):
        load_model(model)
    typed = mlp()
    tensor = typed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0, 2.0])
    tensor.dims[:] = [2**40]
    with pytest.raises(ModelLoadError):
        compare(typed, typed, (normal(1, 8),))


def test_an_input_too_large_to_generate_is_refused():
    model = build([helper.make_node("Neg", ["x"], ["y"])], [info("x", [2**20, 2**20])], [info("y", None)])
    with pytest.raises(onnx_verify.InputError, match="too large"):
        generate_inputs(model)


def test_an_operator_that_asks_for_absurd_memory_fails_and_takes_none(tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from models import build, info
from onnx import TensorProto, helper
import onnx_verify
onnx_verify.set_memory_limit(256 << 20)
nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0)]
fed = build(nodes, [info("s", [1], TensorProto.INT64)], [info("y", [])])
fixed = build([*nodes, helper.make_node("Add", ["y", "x"], ["z"])], [info("x", [])], [info("z", [])],
              {"s": np.array([2**29])})
runs = [(fed, (np.array([2**29]),)), (fed, (np.array([2**50]),)), (fixed, (np.float32(1),))]
for model, inputs in runs:
    try:
        onnx_verify.compare(model, model, inputs)
    except onnx_verify.ModelRunError:
        print("refused")
fed_large = (np.array([2**25]),)
held = int(open("/proc/self/statm").read().split()[1]) >> 8
onnx_verify.compare(fed, fed, fed_large)
assert (int(open("/proc/self/statm").read().split()[1]) >> 8) - held < 32, "a run's memory was not given back"
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak < 600 << 10)
assert onnx_verify.compare(fed, fed, (np.array([2**20]),))
"""
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["refused"] * 3 + ["True"]


def test_a_memory_limit_that_comes_too_late_or_allows_nothing_is_refused():
    compare(mlp(), mlp(), (normal(1, 8),))
    with pytest.raises(onnx_verify.InputError, match="before the first model"):
        onnx_verify.set_memory_limit(1 << 30)
    with pytest.raises(onnx_verify.InputError, match="allows nothing"):
        onnx_verify.set_memory_limit(0)


def endless():
    """A loop that never ends."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_out"]), helper.make_node("Add", ["acc", "acc"], ["acc_out"])],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("acc", [1])],
        [info("go_out", [], TensorProto.BOOL), info("acc_out", [1])],
    )
    node = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    return build([node], [info("x", [1])], [info("y", [1])], {"yes": np.asarray(True)})


def test_a_model_that_never_ends_is_stopped():
    backend = onnx_verify.Backend(timeout=1)
    with pytest.raises(onnx_verify.ModelRunError, match="within 1 seconds"):
        compare(lambda x: x, endless(), (normal(1),), backend=backend)
    assert compare(mlp(), mlp(), (normal(1, 8),), backend=backend)


SAMPLES = [
    getattr(realistic, name)().SerializeToString()
    for name in ("cnn", "decoder", "recurrent", "quantized", "control_flow")
]


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_a_model_cut_off_anywhere_is_an_error_or_another_whole_model(data):
    for stop in range(0, len(data), 23):
        _load(data[:stop])


def _load(data):
    """Loads what may be anything; only this package's own errors may come out."""
    try:
        loaded = load_model(parse_model(data, "fuzzed"))
        generate_inputs(loaded)
    except OnnxVerifyError:
        return None
    return loaded


@given(st.binary(max_size=300))
def test_bytes_are_a_model_or_an_error(data):
    _load(data)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_mutated_model_is_a_model_or_an_error(data, changes):
    mutated = bytearray(data)
    for place, value in changes:
        mutated[int(place * (len(data) - 1))] = value
    _load(bytes(mutated))


def test_an_element_type_that_is_not_known_is_an_error():
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))
    model.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(OnnxVerifyError, match="'x' has the element type 99"):
        generate_inputs(load_model(model))


FUZZ = """
import random, resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import realistic
import onnx_verify
from onnx_verify.models.model import parse_model
onnx_verify.set_memory_limit(1 << 30)
seed, count = int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
samples = [getattr(realistic, name)().SerializeToString() for name in sys.argv[4:]]
backend = onnx_verify.Backend(timeout=5)
ran = 0
for number in range(count):
    data = realistic.mutated(rng, samples)
    print(number, flush=True)
    try:
        model = onnx_verify.load_model(parse_model(data, "fuzzed"))
        onnx_verify.check_model(model, backend=backend)
        onnx_verify.compare(model, model, onnx_verify.RandomInputs(edge_cases=False), backend=backend)
        ran += 1
    except onnx_verify.OnnxVerifyError:
        pass
print("done", ran)
"""


@pytest.mark.parametrize(
    "seed, count", [(0, 60), *(pytest.param(seed, 500, marks=pytest.mark.wide) for seed in range(1, 5))]
)
def test_mutated_models_neither_crash_nor_hang_the_whole_tool(seed, count):
    names = ["cnn", "decoder", "recurrent", "quantized", "control_flow"]
    command = [sys.executable, "-c", FUZZ, os.path.dirname(__file__), str(seed), str(count), *names]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert run.returncode == 0, (run.stdout.splitlines()[-1:], run.stderr[-2000:])
    assert run.stdout.splitlines()[-1].startswith("done")
    assert int(run.stdout.split()[-1]) > 0
