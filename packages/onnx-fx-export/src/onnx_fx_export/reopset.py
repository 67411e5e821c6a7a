"""ONNX models at another opset, compared with the original before they are written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError, VerificationError
from onnxops_decomp import convert_opset
from onnxops_decomp.exporting import NEWEST_OPSET, OLDEST_OPSET, Saving, save_model

if TYPE_CHECKING:
    from onnx_verify import InputSet, LoadedModel, Runtime, Verdict

__all__ = ["Reopset", "reopset"]

_ENGINES = ("ort", "reference")


@dataclasses.dataclass(frozen=True)
class Reopset:
    """A model at another opset.

    Attributes:
        model: The model.
        opset: Opset of the model.
        engine: What ran both, ``"ort"`` or ``"reference"``; empty if they were not compared.
        compared: Names of the sets of inputs on which both agree.
        max_abs: Largest absolute difference of an output.
        for_onnxruntime: Whether nodes are written otherwise because ONNX Runtime has no kernel for them.
    """

    model: ir.Model
    opset: int
    engine: str = ""
    compared: tuple[str, ...] = ()
    max_abs: float = 0.0
    for_onnxruntime: bool = False

    def save(self, destination: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
        """Write the model; its weights go to a file of their own above 1 GiB, or as ``external_data`` says.

        Raises:
            SaveError: If the file cannot be written.
        """
        save_model(self.model, destination, Saving(external_data=external_data))


def reopset(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    destination: str | os.PathLike[str] | None = None,
    *,
    opset_version: int,
    verify: bool = True,
    inputs: Any = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    external_data: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reopset:
    """Write an ONNX model at another opset, older or newer, after both have given the same.

    Inputs, outputs, weights and nodes keep their names, inputs and outputs their dtypes and dimensions, and the model
    its metadata. Both are run in ONNX Runtime, or in ONNX's reference evaluator where that does not run the original.
    If ONNX Runtime runs the original and lacks a kernel for a node of the result, the node is written otherwise.

    Args:
        model: A model of opset 7 or newer, or the path of one.
        destination: File to write; none if left out.
        opset_version: The wanted opset, 7 to 28.
        verify: Whether both are compared; that needs onnx-verify.
        inputs: What to compare on, in any form that :func:`onnx_verify.input_sets` reads; random inputs at two sizes of
            the dynamic dimensions by default.
        sizes: Sizes of dynamic dimensions by name, for random inputs.
        external_data: Whether weights go to a file of their own; None for those above 1 GiB.
        progress: Called with the name of each stage as it begins.

    Raises:
        InvalidArgumentError: If the opset is none.
        ModelImportError: If the model cannot be read.
        UnsupportedOpsetError: If the wanted opset cannot express a node, which the message names.
        VerificationError: If the results differ, or nothing runs the original.
        SaveError: If the file cannot be written.
    """
    if type(opset_version) is not int or not OLDEST_OPSET <= opset_version <= NEWEST_OPSET:
        raise InvalidArgumentError(
            f"opset_version must be a whole number from {OLDEST_OPSET} to {NEWEST_OPSET}, not {opset_version!r}."
        )
    tell = progress or (lambda stage: None)
    tell("convert")
    converted = _converted(model, opset_version)
    if verify:
        tell("verify")
        converted = _Comparison(model, inputs, sizes).proved(converted)
    if destination is not None:
        tell("write")
        converted.save(destination, external_data=external_data)
    return converted


def _converted(model: Any, opset: int, for_onnxruntime: bool = False) -> Reopset:
    return Reopset(convert_opset(model, opset, for_onnxruntime=for_onnxruntime), opset, for_onnxruntime=for_onnxruntime)


class _Comparison:
    """Compares models with an original.

    Args:
        original: The original.
        inputs: What to compare on, or None for random inputs.
        sizes: Sizes of dynamic dimensions for random inputs.

    Raises:
        OnnxExporterError: If onnx-verify is not installed.
        VerificationError: If the original cannot be loaded.
    """

    def __init__(self, original: Any, inputs: Any, sizes: Mapping[str, Sequence[int]] | None) -> None:
        try:
            import onnx_verify
        except ImportError as error:
            raise OnnxExporterError("Verifying needs onnx-verify: pip install onnx-fx-export[verify].") from error
        self.original, self.inputs, self.sizes = original, inputs, sizes
        try:
            self.loaded: LoadedModel = onnx_verify.load_model(_plain(original))
        except onnx_verify.OnnxVerifyError as error:
            raise VerificationError(f"The original cannot be loaded: {error}") from error

    def proved(self, converted: Reopset) -> Reopset:
        """Return a model that agrees with the original: this one, or one that ONNX Runtime has kernels for.

        Raises:
            VerificationError: If there is none.
        """
        import onnx_verify

        engine, sets = self.engine()
        try:
            verdict = onnx_verify.compare(self.loaded, converted.model, sets, backend=engine, check_names=True)
        except onnx_verify.OnnxVerifyError as error:
            if engine != "ort" or converted.for_onnxruntime:
                raise VerificationError(
                    f"The model of opset {converted.opset} does not run where the original does, and is not written: "
                    f"{error}"
                ) from error
            return self.proved(_converted(self.original, converted.opset, for_onnxruntime=True))
        if not verdict:
            raise VerificationError(
                f"The model of opset {converted.opset} does not give what the original gives, and is not written.\n"
                f"{verdict}"
            )
        return dataclasses.replace(
            converted, engine=engine, compared=tuple(each.label for each in sets), max_abs=_worst(verdict)
        )

    def engine(self) -> tuple[str, list[InputSet]]:
        """Return the first engine that runs the original, and the inputs on which it does.

        Raises:
            VerificationError: If none does.
        """
        import onnx_verify

        reasons: list[str] = []
        for engine in _ENGINES:
            try:
                runtime = onnx_verify.Backend.parse(engine).load(self.loaded)
            except onnx_verify.OnnxVerifyError as error:
                reasons.append(str(error))
                continue
            sets = self.sets(runtime)
            try:
                for each in sets:
                    runtime.run(each)
            except onnx_verify.OnnxVerifyError as error:
                reasons.append(str(error))
                continue
            return engine, sets
        raise VerificationError(
            "No engine can run the original, so the result cannot be compared with it; give inputs that it takes, "
            f"or skip the comparison with verify=False. {reasons[0] if reasons else ''}"
        )

    def sets(self, runtime: Runtime) -> list[InputSet]:
        """Return inputs that the original may take: those given, or random ones at two sizes that a runtime runs."""
        import onnx_verify

        def runs(inputs: InputSet) -> bool:
            try:
                runtime.run(inputs)
            except onnx_verify.ModelRunError:
                return False
            return True

        try:
            if self.inputs is not None:
                return onnx_verify.input_sets(self.inputs)
            spec = onnx_verify.RandomInputs(edge_cases=False)
            if self.sizes:
                return onnx_verify.generate_inputs(self.loaded, dataclasses.replace(spec, sizes=self.sizes))
            return onnx_verify.fitting_inputs(self.loaded, runs, spec)[:2]
        except onnx_verify.InputError as error:
            raise VerificationError(f"The original cannot be run on generated inputs: {error}") from error


def _plain(model: Any) -> Any:
    return Path(model) if isinstance(model, str | os.PathLike) else model


def _worst(verdict: Verdict) -> float:
    errors = [output.metrics.max_abs for case in verdict.cases for output in case.outputs if output.metrics is not None]
    return max(errors, default=0.0)
