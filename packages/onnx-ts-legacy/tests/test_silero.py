"""A real scripted model with attribute state: voice activity detection, chunk by chunk."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest
import torch
from ts_models import silero_path, speech

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError, StateError

CHUNKS = 50

pytestmark = pytest.mark.skipif(
    silero_path() is None, reason="the package silero-vad is not installed (pip install --no-deps silero-vad)"
)


def load() -> torch.jit.ScriptModule:
    return torch.jit.load(silero_path()).eval()


@pytest.mark.parametrize(
    "opset", [pytest.param(n, marks=[] if n in (9, 17) else [pytest.mark.wide]) for n in range(9, 27)]
)
@pytest.mark.parametrize(("rate", "samples"), [(16000, 512), (8000, 256)])
def test_the_state_carries_speech_probabilities_over_many_chunks(rate: int, samples: int, opset: int) -> None:
    program = onnx_ts_legacy.export(load(), (torch.zeros(1, samples), rate), opset_version=opset, state="io")
    onnx.checker.check_model(program.model_proto, full_check=True)
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    eager, state = load(), {name: value.numpy() for name, value in program.initial_state.items()}
    probabilities = []

    for chunk in speech(CHUNKS * samples, rate).split(samples):
        outputs = dict(zip(program.output_names, session.run(None, {"x": chunk[None].numpy(), **state}), strict=True))
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
        expected = eager(chunk[None], rate).detach()
        torch.testing.assert_close(torch.from_numpy(outputs["output"]), expected, rtol=1e-4, atol=1e-5)
        probabilities.append(float(expected))

    assert max(probabilities) - min(probabilities) > 0.1
    assert sorted(state) == ["_context", "_last_batch_size", "_last_sr", "_state"]
    torch.testing.assert_close(torch.from_numpy(state["_state"]), eager._state.detach(), rtol=1e-4, atol=1e-4)


def test_a_dynamic_batch_resets_the_state_when_it_changes() -> None:
    program = onnx_ts_legacy.export(load(), (torch.zeros(1, 512), 16000), dynamic_axes={"x": {0: "batch"}}, state="io")
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    eager, state = load(), {name: value.numpy() for name, value in program.initial_state.items()}
    signal = speech(12 * 512, 16000)

    for batch in (1, 1, 3, 3, 2):
        chunk = signal[: batch * 512].reshape(batch, 512)
        outputs = dict(zip(program.output_names, session.run(None, {"x": chunk.numpy(), **state}), strict=True))
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
        torch.testing.assert_close(
            torch.from_numpy(outputs["output"]), eager(chunk, 16000).detach(), rtol=1e-4, atol=1e-5
        )


def test_without_state_the_export_is_refused_and_names_the_attributes() -> None:
    with pytest.raises(StateError, match=r"_context.*state='io'"):
        onnx_ts_legacy.export(load(), (torch.zeros(1, 512), 16000))


@pytest.mark.parametrize("opset", [7, 8])
def test_it_needs_opset_9(opset: int) -> None:
    with pytest.raises(OnnxExporterError, match="lowest opset that works is 9"):
        onnx_ts_legacy.export(load(), (torch.zeros(1, 512), 16000), opset_version=opset, state="io")
