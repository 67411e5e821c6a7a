"""A repeated block is captured once where that cannot change what is exported, and one by one otherwise."""

from __future__ import annotations

from unittest import mock

import pytest
import stacks
import torch
from stacks import Stack

from onnx_fx_export import InvalidArgumentError, export

# An export takes back what a model appends to lists.
CALLS = mock.Mock()


class Block(stacks.Block):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index

    def forward(self, x):
        CALLS("Block")
        return super().forward(x)


@pytest.fixture(autouse=True)
def randomized():
    CALLS.reset_mock()
    torch.manual_seed(3)


def described(program) -> list[tuple]:
    return [(n.op_type, n.metadata_props.get("onnxops.module"), len(n.inputs)) for n in program.model.graph]


def check(model, *args, state="error", **options):
    """Export with blocks captured once, and hold the result against eager PyTorch and the usual capture."""
    usual = export(model, args, state=state, **options)
    CALLS.reset_mock()
    program = export(model, args, state=state, capture_repeated_blocks=True, **options)
    calls = [call.args[0] for call in CALLS.call_args_list]
    assert described(program) == described(usual)
    expected = model(*args)
    torch.testing.assert_close(program(*args), expected)
    return program, calls


def test_equal_blocks_are_captured_once() -> None:
    model = Stack(*map(Block, range(5)))
    program, calls = check(model, torch.randn(2, 3, 4), dynamic_shapes={"x": {0: "batch", 1: "length"}})
    assert len(calls) == 1
    x = torch.randn(5, 1, 4)
    torch.testing.assert_close(program(x), model(x))
    program.verify(x)


def test_functions_of_blocks_captured_once_are_shared() -> None:
    model = Stack(*map(Block, range(4)))
    x = torch.randn(2, 3, 4)
    program = export(model, (x,), capture_repeated_blocks={Block}, export_modules_as_functions={Block})
    assert CALLS.call_count == 1
    assert [node.op_type for node in program.model.graph] == ["Block", "Tanh"] * 4
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_default_captures_every_block() -> None:
    export(Stack(*map(Block, range(3))), (torch.randn(2, 3, 4),))
    assert CALLS.call_count == 3


def test_blocks_of_other_sizes_are_captured_too() -> None:
    class Narrow(Stack):
        def forward(self, x):
            first, second, third, fourth = self.blocks
            return fourth(second(first(x))), third(x[:1])

    _, calls = check(Narrow(*map(Block, range(4))), torch.randn(2, 3, 4))
    # The third shows that it is none of the others where it finds its weights missing, and all begins anew.
    assert len(calls) == 1 + 2


class Scaled(torch.nn.Module):
    def __init__(self, scale: object) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x):
        CALLS(self.scale)
        return self.linear(x) * self.scale


def test_attributes_that_are_read_have_to_be_equal() -> None:
    _, calls = check(Stack(Scaled(2.0), Scaled(3.0), Scaled(2.0), Scaled(2)), torch.randn(2, 4))
    assert calls[-3:] == [2.0, 3.0, 2]


def test_tensors_that_are_no_buffers_have_to_be_the_same() -> None:
    first, second = torch.tensor([1.0, 2, 3, 4]), torch.tensor([4.0, 3, 2, 1])
    _, calls = check(Stack(Scaled(first), Scaled(second), Scaled(first)), torch.randn(2, 4))
    assert len(calls) == 1 + 2


def test_submodules_in_another_mode_are_other_blocks() -> None:
    model = Stack(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)) for _ in range(3))).eval()
    model.blocks[1][1].running_mean.add_(1)
    check(model, torch.randn(3, 4))
    model.blocks[1][1].train()
    check(model, torch.randn(3, 4), state="io")


def test_blocks_that_change_attributes_are_captured_one_by_one() -> None:
    class Counting(Scaled):
        def forward(self, x):
            self.scale = self.scale + 1
            return super().forward(x) + self.scale

    class Twice(Stack):
        def forward(self, x):
            for _ in range(2):
                x = super().forward(x)
            for block in self.blocks:
                block.scale = 1
            return x

    check(Twice(Counting(1), Counting(1)), torch.randn(2, 4))


def test_blocks_with_hooks_are_captured_one_by_one() -> None:
    model = Stack(*(torch.nn.Linear(4, 4) for _ in range(3)))
    for factor, block in enumerate(model.blocks, start=2):
        block.register_forward_hook(lambda module, args, result, factor=factor: result * factor)
    check(model, torch.randn(2, 4))


def test_a_forward_of_the_instance_is_called() -> None:
    model = Stack(*(torch.nn.Linear(4, 4) for _ in range(3)))
    model.blocks[1].forward = lambda x: x * 7
    check(model, torch.randn(2, 4))
    assert "forward" not in vars(model.blocks[0])


class Collecting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, collected):
        y = self.linear(x)
        collected.append(y.sum())
        return y


def test_arguments_that_are_changed_keep_blocks_apart() -> None:
    class Model(Stack):
        def forward(self, x):
            collected: list[torch.Tensor] = []
            for block in self.blocks:
                x = block(x, collected)
            return x, sum(collected)

    check(Model(Collecting(), Collecting(), Collecting()), torch.randn(2, 4))


def test_tensors_that_leave_a_block_on_another_way_keep_blocks_apart() -> None:
    collected: list[torch.Tensor] = []

    class Leaking(Scaled):
        def forward(self, x):
            collected.append(x.sum())
            return super().forward(x)

    class Model(Stack):
        def forward(self, x):
            collected.clear()
            return super().forward(x) + sum(collected)

    with pytest.warns(UserWarning, match="captured one by one"):
        check(Model(Leaking(1), Leaking(1), Leaking(1)), torch.randn(2, 4))


def test_blocks_write_to_their_own_state() -> None:
    class Remembering(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return x * self.seen * self.weight

    model = Stack(Remembering(), Remembering(), Remembering())
    program = export(model, (torch.ones(2, 4),), state="io", capture_repeated_blocks=True)
    feeds = {"x": torch.randn(2, 4), **{name: torch.randn(4) for name in program.initial_state}}
    for name in program.initial_state:
        model.get_buffer(name).copy_(feeds[name])
    outputs = program.run(feeds)
    torch.testing.assert_close(outputs["output"], model(feeds["x"]))
    for name, following in program.state.items():
        torch.testing.assert_close(outputs[following], model.get_buffer(name))


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, y, *, bias=None):
        return {"sum": self.linear(x) - 2 * y, "same": y}, (x if bias is None else x + bias, 3)


def test_results_keep_their_structure() -> None:
    class Model(Stack):
        def forward(self, x):
            y = x * 2
            for block, bias in zip(self.blocks, (None, None, x, x), strict=True):
                named, (x, three) = block(x, y, bias=bias)
                x, y = torch.tanh(x + named["sum"] * three), named["same"] + 1
            return x, y

    check(Model(Pair(), Pair(), Pair(), Pair()), torch.randn(2, 4))


def test_a_tensor_passed_twice_is_not_taken_for_two() -> None:
    class Model(Stack):
        def forward(self, x):
            first, second, third = self.blocks
            a = first(x, x)[0]["sum"]
            return second(a, x)[0]["sum"], third(a, a)[0]["sum"]

    model = Model(Pair(), Pair(), Pair())
    with pytest.warns(UserWarning, match="captured one by one"):
        check(model, torch.randn(2, 4))


def test_shared_weights_and_modules() -> None:
    first, second, third, fourth = (Block(i) for i in range(4))
    second.up = first.up
    fourth.down.weight = third.down.weight
    check(Stack(first, second, third, fourth, first), torch.randn(2, 3, 4))


def test_constants_conditions_and_plain_numbers_in_blocks() -> None:
    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, length: int):
            x = x + torch.tensor([1.0, 2, 3, 4]) * length
            return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))

    class Model(Stack):
        def forward(self, x):
            for block in self.blocks:
                x = block(x, x.shape[0])
            return x

    model = Model(Chosen(), Chosen(), Chosen())
    program, _ = check(model, torch.ones(2, 4), dynamic_shapes={"x": {0: "n"}})
    for x in (torch.ones(5, 4), -9 * torch.ones(3, 4)):
        torch.testing.assert_close(program(x), model(x))


def seen_by_torch_export(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each run of torch.export adds the number of parameters that it sees."""
    seen: list[int] = []
    capture = torch.export.export

    def counted(model, *args, **kwargs):
        seen.append(len(list(model.parameters())))
        return capture(model, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    return seen


def test_torch_export_sees_the_parameters_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_by_torch_export(monkeypatch)
    model = Stack(*map(Block, range(4)))
    usual = export(model, (torch.randn(2, 3, 4),)).exported_program
    once = export(model, (torch.randn(2, 3, 4),), capture_repeated_blocks=True).exported_program
    assert seen == [24, 6]
    for mine, theirs in zip(once.graph_signature.input_specs, usual.graph_signature.input_specs, strict=True):
        assert mine == theirs
    assert [(name, id(weight)) for name, weight in once.state_dict.items()] == [
        (name, id(weight)) for name, weight in usual.state_dict.items()
    ]
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(once.module()(x), model(x))


class ReadElsewhere(Stack):
    """Reads weights of its blocks beside them."""

    def __init__(self, read) -> None:
        super().__init__(*map(Block, range(3)))
        self.read = read

    def forward(self, x):
        return super().forward(x) + self.read(self)


def default(model):
    try:
        return model.blocks[2].norm.weight.sum()
    except Exception:
        return 100.0


READS = {
    "attribute": lambda model: model.blocks[1].up.weight.sum(),
    "default": default,
    "getattr": lambda model: getattr(model.blocks[1].norm, "weight", torch.ones(4)).sum(),
    "total": lambda model: sum(p.sum() for p in model.parameters()),
    "count": lambda model: len(list(model.parameters())),
    "state": lambda model: model.state_dict()["blocks.2.norm.bias"].sum(),
    "dictionary": lambda model: model.blocks[2].norm._parameters.get("weight", torch.zeros(4)).sum(),
    "call": lambda model: torch.relu(model.blocks[2].up(torch.ones(4))).sum(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_weights_of_repeated_blocks_can_be_read_elsewhere(read) -> None:
    model = ReadElsewhere(read)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    check(model, torch.randn(2, 3, 4))


def test_weights_of_repeated_blocks_can_be_held_elsewhere() -> None:
    model = ReadElsewhere(lambda model: held[0].sum() + held[1].sum())
    held = [model.blocks[1].up.weight, model.blocks[2].up.weight.detach()]
    check(model, torch.randn(2, 3, 4))


def test_sizes_that_data_decides_keep_blocks_apart() -> None:
    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(1))

        def forward(self, x):
            return x + x[x > 0].sum() * self.weight

    with pytest.warns(UserWarning, match="captured one by one"):
        check(Stack(Kept(), Kept()), torch.randn(5))


def test_models_are_left_as_they_were() -> None:
    model = Stack(*map(Block, range(3)))
    before = [(type(module), sorted(vars(module))) for module in model.modules()]
    export(model, (torch.randn(2, 3, 4),), capture_repeated_blocks=True)
    assert [(type(module), sorted(vars(module))) for module in model.modules()] == before


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "ViTModel"])
def test_layers_of_transformers_are_captured_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    config = kind.config_class(num_hidden_layers=4, vocab_size=50, use_cache=False, **sizes)
    model = kind(config).eval()
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    counted, forward = type(layers[0]), type(layers[0]).forward
    # A mock keeps its count out of what a model can reach as its own.
    captured = mock.Mock()

    def counting(self, *args, **kwargs):
        # Code that asks about sizes is also run outside of the capture, at size 1.
        if torch.compiler.is_exporting():
            captured()
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(counted, "forward", counting)
    example = torch.randn(2, 3, 32, 32) if name == "ViTModel" else torch.randint(0, 50, (2, 5))
    dims = ({0: "batch"} if name == "ViTModel" else {0: "batch", 1: "length"},)
    with torch.no_grad():
        program = export(model, (example,), dynamic_shapes=dims, capture_repeated_blocks=True)
        assert captured.call_count == 1
        larger = torch.cat([example, example[:1]])
        torch.testing.assert_close(program(larger)[0], model(larger)[0], rtol=1e-4, atol=1e-5)


def test_a_captured_program_has_no_blocks_to_capture() -> None:
    captured = torch.export.export(Stack(Block()), (torch.randn(2, 3, 4),))
    with pytest.raises(InvalidArgumentError, match="capture_repeated_blocks"):
        export(captured, capture_repeated_blocks=True)
