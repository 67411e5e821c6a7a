"""State wherever a model keeps it: both exporters make it explicit, or refuse it by path and line; the model stays."""

from __future__ import annotations

import collections
import copy
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError

EXPORTERS = [onnx_fx_export.export, onnx_ts_legacy.export]
X = torch.linspace(-2, 2, 6).reshape(2, 3)


class Helper:
    k: Any = None


class Kept(nn.Module):
    """Keeps a tensor in some place; the functions given read it there, and write to it."""

    def __init__(self, place: Any, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.place, self.step = place, step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


def rebind(model: Any, x: Tensor) -> Tensor:
    model.place = model.place + x
    return model.place * 2


def in_place(model: Any, x: Tensor) -> Tensor:
    model.place += x
    return model.place * 2


def through_a_view(model: Any, x: Tensor) -> Tensor:
    model.place[0].add_(x[1])
    return model.place * 2


def in_a_dict(model: Any, x: Tensor) -> Tensor:
    model.place["h"] = model.place["h"] + x
    return model.place["h"] * 2


def in_a_list(model: Any, x: Tensor) -> Tensor:
    model.place[0].copy_(model.place[1])
    model.place[1] = x * 1
    return model.place[0] + model.place[1]


def in_a_deque(model: Any, x: Tensor) -> Tensor:
    model.place.append(x * 1)
    return model.place[0] + model.place[1]


def in_a_tuple(model: Any, x: Tensor) -> Tensor:
    model.place = (model.place[1] + x, model.place[0])
    return model.place[0] - model.place[1]


def in_another_list(model: Any, x: Tensor) -> Tensor:
    """Reads one of them, and what it will read in the next call only for that one."""
    model.place = [model.place[1] * 1, model.place[0] + x]
    return model.place[0] * 2


def in_another_dict(model: Any, x: Tensor) -> Tensor:
    """Changes the one that it replaces."""
    read = model.place["h"] * 2
    model.place["c"] = model.place["c"] * 0.5
    model.place = {"h": model.place["c"] + x, "c": model.place["h"]}
    return read


def in_a_list_that_stays(model: Any, x: Tensor) -> Tensor:
    """Changes a list in a dict, and puts it into another dict."""
    read = model.place["l"][0] * 2
    model.place["l"][0] = model.place["l"][0] * 0.5 + x
    model.place = {"l": model.place["l"]}
    return read


def in_another_nested_list(model: Any, x: Tensor) -> Tensor:
    read = model.place["l"][0] * 2
    model.place["l"][1] = model.place["l"][1] * 0.5
    model.place = {"l": [model.place["l"][1] + x, model.place["l"][0]]}
    return read


def in_another_deque(model: Any, x: Tensor) -> Tensor:
    read = model.place[0] * 2
    model.place[1] = model.place[1] * 0.5
    model.place = collections.deque([model.place[1] + x, model.place[0]])
    return read


def in_a_helper(model: Any, x: Tensor) -> Tensor:
    model.place.k = model.place.k + x
    return model.place.k * 2


def helper_in_place(model: Any, x: Tensor) -> Tensor:
    model.place.k[1] += x[0]
    return model.place.k * 2


def zeros() -> Tensor:
    return torch.zeros(2, 3)


def helper() -> Helper:
    made = Helper()
    made.k = zeros()
    return made


TENSORS = {
    "rebound": (zeros, rebind, "place"),
    "in_place": (zeros, in_place, "place"),
    "view": (zeros, through_a_view, "place"),
    "dict": (lambda: {"h": zeros()}, in_a_dict, "place.h"),
    "list": (lambda: [zeros(), zeros()], in_a_list, "place.1"),
    "deque": (lambda: collections.deque([zeros(), zeros()], maxlen=2), in_a_deque, "place.1"),
    "tuple": (lambda: (zeros(), zeros()), in_a_tuple, "place.0"),
    "another dict": (lambda: {"h": zeros(), "c": zeros()}, in_another_dict, "place.h"),
    "a list that stays": (lambda: {"l": [zeros(), zeros()]}, in_a_list_that_stays, "place.l.0"),
    "another nested list": (lambda: {"l": [zeros(), zeros()]}, in_another_nested_list, "place.l.0"),
    "another deque": (lambda: collections.deque([zeros(), zeros()]), in_another_deque, "place.0"),
    "another list": (lambda: [zeros(), zeros()], in_another_list, "place.1"),
    "helper": (helper, in_a_helper, "place.k"),
    "helper_in_place": (helper, helper_in_place, "place.k"),
}


def count(model: Any, x: Tensor) -> Tensor:
    model.place += 1
    return x * model.place


def grow(model: Any, x: Tensor) -> Tensor:
    model.place.append(1)
    return x * len(model.place)


def remember(model: Any, x: Tensor) -> Tensor:
    if model.place is None:
        model.place = x.mean()
    return x - model.place


def enter(model: Any, x: Tensor) -> Tensor:
    before = model.place.get("x", x)
    model.place["x"] = x
    return x + before


OTHERS = {
    "count": (int, count, "place"),
    "grow": (list, grow, "place"),
    "remember": (lambda: None, remember, "place"),
    "enter": (dict, enter, "place"),
}


def fill(model: Any, x: Tensor) -> Tensor:
    if model.place is None:
        model.place = torch.ones(x.shape[0], 1)
    return x * model.place


def log(model: Any, x: Tensor) -> Tensor:
    model.place.append(x)
    return x * 2


def write_first(model: Any, x: Tensor) -> Tensor:
    model.place = x.shape[0]
    return x * model.place


def write_tensor_first(model: Any, x: Tensor) -> Tensor:
    model.place.copy_(x)
    return model.place * 2


HARMLESS = {
    "fill": (lambda: None, fill),
    "log": (list, log),
    "write_first": (int, write_first),
    "write_tensor_first": (zeros, write_tensor_first),
}


def described(value: Any) -> Any:
    """Return what a place holds in a form that can be compared."""
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist()
    if isinstance(value, Helper):
        return described(value.k)
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, list | tuple | collections.deque):
        return [described(item) for item in value]
    return value


def run(program: Any, model: nn.Module) -> list[bool]:
    """Return for two calls in a row whether the program gives what the model does."""
    state, right = dict(program.initial_state), []
    name = next(iter(value.name for value in program.model.graph.outputs))
    for x in (X, X * 0.5 + 1):
        outputs = program.run({"x": x, **state})
        state = {source: outputs[after] for source, after in program.state.items() if source in state}
        right.append(torch.allclose(outputs[name], model(x.clone()), atol=1e-5))
    return right


def line_of(function: Any) -> str:
    return rf"{re.escape(__file__)}:(?:{'|'.join(str(function.__code__.co_firstlineno + i) for i in range(1, 5))})"


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_in_any_place_is_state_or_refused(case: str, export: Any) -> None:
    make, step, path = TENSORS[case]
    model = Kept(make(), step)
    before = described(model.place)

    with pytest.raises(OnnxExporterError, match=rf"{re.escape(path)} \(at {line_of(step)}\)"):
        export(model, (X,))
    program = export(model, (X,), state="io")
    with pytest.warns(UserWarning, match=rf"{re.escape(path)} \(at {line_of(step)}\)"):
        ignoring = export(model, (X,), state="ignore")

    assert described(model.place) == before
    assert path in program.state
    assert not ignoring.state
    assert run(program, Kept(make(), step)) == [True, True]
    assert run(ignoring, Kept(make(), step))[0]


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_tensor_is_refused_where_a_later_call_depends_on_it(case: str, export: Any) -> None:
    make, step, path = OTHERS[case]
    model = Kept(make(), step)
    before = described(model.place)

    for state in ("error", "io"):
        with pytest.raises(OnnxExporterError, match=rf"changes {path}\S* \(at {line_of(step)}\)"):
            export(model, (X,), state=state)
    with pytest.warns(UserWarning, match=rf"changes {path}\S* \(at {line_of(step)}\)"):
        program = export(model, (X,), state="ignore")

    assert described(model.place) == before
    assert run(program, Kept(make(), step))[0]


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("case", HARMLESS)
def test_what_no_later_call_depends_on_is_no_state(case: str, export: Any) -> None:
    make, step = HARMLESS[case]
    model = Kept(make(), step)
    before = described(model.place)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(changes|register_buffer)")
        program = export(model, (X,))

    assert described(model.place) == before
    assert not program.state
    assert run(program, Kept(make(), step)) == [True, True]


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_closures_and_defaults_hold_state(export: Any) -> None:
    def made() -> nn.Module:
        held = zeros()

        class Model(nn.Module):
            def forward(self, x: Tensor, kept: list[Tensor] = [zeros()]) -> Tensor:
                nonlocal held
                held = held + x
                kept[0] = kept[0] - x
                return held * 2 + kept[0]

        return Model()

    program = export(made(), (X,), state="io")

    assert sorted(program.state) == ["held", "kept.0"]
    assert run(program, made()) == [True, True]


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("part", [lambda b: b[0], lambda b: b.view(3, 2), lambda b: b.t(), lambda b: b[:, 1:]])
def test_buffers_that_show_the_same_memory_are_refused(part: Any, export: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", zeros())
            self.register_buffer("v", part(self.a))

        def forward(self, x: Tensor) -> Tensor:
            self.v.add_(1)
            return x + self.a

    with pytest.raises(OnnxExporterError, match=r"v \(at .*shares its memory with a"):
        export(Model(), (X,), state="io")


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_inputs_that_are_written_to_export_with_a_warning(export: Any) -> None:
    def model(x: Tensor) -> Tensor:
        x[0] = 1
        x += 1
        return x * 2

    with pytest.warns(UserWarning, match=rf"input x \(at {line_of(model)}\).*state=\"io\""):
        program = export(model, (X.clone(),))
    assert not program.state
    assert torch.equal(program.run({"x": X})[program.model.graph.outputs[0].name], model(X.clone()))
    with pytest.raises(OnnxExporterError, match="share"):
        export(model, (torch.ones(1, 3).expand(2, 3),))


@pytest.mark.parametrize(
    ("export", "is_scripted"),
    [(onnx_fx_export.export, False), *((onnx_ts_legacy.export, each) for each in (False, True))],
)
def test_what_a_deep_model_changes_is_told_in_a_few_lines(export: Any, is_scripted: bool) -> None:
    layers: Any = nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(12)))
    options = {} if export is onnx_fx_export.export else {"training": torch.onnx.TrainingMode.PRESERVE}
    if is_scripted:
        layers = torch.jit.script(layers)
    with pytest.raises(OnnxExporterError, match=r"0\..* and \d+ others when it runs.*eval\(\)") as refused:
        export(layers, (X,), **options)
    assert len(str(refused.value)) < 1000
    with pytest.warns(UserWarning, match=r"and \d+ others when it runs, but") as warned:
        export(layers, (X,), state="ignore", **options)
    assert len([each for each in warned if "when it runs" in str(each.message)]) == 1


def test_results_keep_what_a_buffer_held_before_it_is_bound_anew() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", zeros())

        def forward(self, x: Tensor) -> Tensor:
            before = self.b
            self.b = self.b + x
            return before

    program = onnx_fx_export.export(Model(), (X,), state="io")

    assert run(program, Model()) == [True, True]


class Filled(nn.Module):
    """Keeps what the first call computes, of the input or of constants, as rotary embeddings do."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.step, self.kept = nn.Linear(3, 3), step, None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.step(x)
        return self.linear(x) * self.kept


@pytest.mark.parametrize("step,is_state", [(lambda x: torch.arange(3.0).cos(), False), (lambda x: x * 2, True)])
def test_what_is_filled_once_is_told_from_state_in_models_without_data(step: Any, is_state: bool) -> None:
    with onnx_fx_export.enable_fake_mode():
        model = Filled(step)

    if is_state:
        with pytest.raises(OnnxExporterError, match="changes kept"):
            onnx_fx_export.export(model, (X,))
    else:
        assert not onnx_fx_export.export(model, (X,)).state
    assert model.linear.weight.is_meta
    assert model.kept is None


class ScalesItsWeight(nn.Module):
    """Writes to a parameter past autograd, after it was read."""

    def __init__(self, reach: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.reach = nn.Parameter(torch.ones(3)), reach

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        self.reach(self.weight).mul_(2)
        return y


@pytest.mark.parametrize("export", EXPORTERS)
@pytest.mark.parametrize(
    "reach", [lambda w: w.data, lambda w: w.detach(), lambda w: w.detach().view(-1)[1:]], ids=["data", "detach", "part"]
)
def test_a_parameter_that_is_written_past_autograd_is_state(export, reach) -> None:
    model = ScalesItsWeight(reach)
    with pytest.raises(OnnxExporterError, match=r"weight \(at .*test_state_anywhere\.py:\d+\)"):
        export(model, (X,))

    program = export(model, (X,), state="io")

    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    weight, expected = torch.ones(3), copy.deepcopy(model)
    for _ in range(3):
        feeds = {"x": X.numpy(), "weight": weight.numpy()}
        y, weight = (torch.from_numpy(one) for one in session.run(None, feeds))
        torch.testing.assert_close(y, expected(X).detach())
    assert torch.equal(model.weight.detach(), torch.ones(3))


class AssignsData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        self.kept.data = self.kept + 1
        return x * self.kept


@pytest.mark.parametrize("export", EXPORTERS)
@pytest.mark.parametrize("state", ["error", "io", "ignore"])
def test_assigned_data_is_refused_and_leaves_the_tensor(export, state) -> None:
    model = AssignsData()

    with pytest.raises(OnnxExporterError, match=r"test_state_anywhere\.py:\d+") as refused:
        export(model, (X,), state=state)

    assert "copy_" in str(refused.value)

    assert torch.equal(model.kept, torch.ones(3))
    torch.testing.assert_close(model(X), X * 2)


class ImportsItself(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import module_with_state  # type: ignore[import-not-found]

        module_with_state.last = module_with_state.last + x
        return module_with_state.last * 1


class ImportsFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from module_with_state import scaled_by_calls

        return scaled_by_calls(x)


MODULE_WITH_STATE = """
import torch
last = torch.zeros(2, 3)
calls = 0
def scaled_by_calls(x):
    global calls
    calls += 1
    return x * calls
"""


@pytest.mark.parametrize("export", EXPORTERS)
@pytest.mark.parametrize(("model", "name"), [(ImportsItself(), "last"), (ImportsFunction(), "calls")])
def test_state_of_a_module_that_forward_imports_is_refused(
    export: Any, model: nn.Module, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_state.py").write_text(MODULE_WITH_STATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_with_state", raising=False)
    before = model(X)

    with pytest.raises(OnnxExporterError, match=rf"{name} \(at .*:\d+\)"):
        export(model, (X,))

    torch.testing.assert_close(model(X), 2 * before)
    del sys.modules["module_with_state"]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + self.seen.sum()


def a_list(model: Any, x: Tensor) -> Tensor:
    model.place[0].add_(x)
    return model.place[0] * 2


@pytest.mark.parametrize("export", EXPORTERS)
@pytest.mark.parametrize(
    "make",
    [
        Counts,
        lambda: torch.jit.script(Counts()),
        lambda: Kept(torch.zeros(2, 3), in_place),
        lambda: Kept([torch.zeros(2, 3)], a_list),
    ],
    ids=["buffer", "script", "attribute", "list"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_program_without_state_stays_as_it_is_when_the_model_runs_on(export: Any, make: Callable[[], Any]) -> None:
    model, first = make(), make()(X)
    program = export(model, (X,), state="ignore")

    model(X)

    results = program(X)
    torch.testing.assert_close(results[0] if isinstance(results, list) else results, first)
