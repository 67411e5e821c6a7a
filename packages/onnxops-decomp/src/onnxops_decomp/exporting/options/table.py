"""The options of an export, described once: what each path does with each of them.

A path is how a call reaches an exporter. On each of them an option is honoured, or refused with a text. Both exporters
check their arguments by this table, the documentation prints it, and a test tries every option on every path.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.options import values as kinds
from onnxops_decomp.exporting.options.values import FLAG, Kind, either

__all__ = ["OPTIONS", "ExportPath", "Option", "asked_of_torchscript", "check_options", "number_of", "option_refusal"]


class ExportPath(enum.Enum):
    """How a call reaches an exporter. ``replace_torch_onnx`` adds none: a call inside is one of the first three."""

    FX = "onnx_fx_export.export"
    TORCHSCRIPT = "onnx_fx_export.export with dynamo=False or a scripted model"
    FALLBACK = "onnx_fx_export.export with fallback=True, of a model that only TorchScript takes"
    LEGACY = "onnx_ts_legacy.export"


FX, TORCHSCRIPT, FALLBACK, LEGACY = ExportPath
_BY_TORCHSCRIPT = (TORCHSCRIPT, FALLBACK, LEGACY)


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of an export.

    Attributes:
        kind: What its values are.
        refused: Why it is refused, by path; it is honoured on the others.
        asks: Whether a value asks for something that can be refused. The default never does.
        about: What honouring it means where the paths differ.
    """

    kind: Kind
    refused: Mapping[ExportPath, str] = dataclasses.field(default_factory=dict)
    asks: Callable[[Any], bool] = bool
    about: str = ""


def _by_torchscript(text: str) -> dict[ExportPath, str]:
    return dict.fromkeys(_BY_TORCHSCRIPT, text)


def number_of(member: Any) -> int:
    """Return the number of a member of an enumeration of torch or of an exporter; 0 for None, the default."""
    return int(getattr(member, "value", member) or 0)


_ANY = Kind("anything", lambda value: True)
_NEWEST_BY_TORCHSCRIPT = 26

OPTIONS: Mapping[str, Option] = {
    "model": Option(_ANY, about="Modules and functions everywhere; an ExportedProgram by the FX exporter."),
    "args": Option(_ANY),
    "f": Option(kinds.DESTINATION),
    "kwargs": Option(kinds.VALUES),
    "verbose": Option(FLAG.or_none(), about="The FX exporter prints its stages, the TorchScript exporter the graph."),
    "input_names": Option(kinds.NAMES),
    "output_names": Option(kinds.NAMES),
    "opset_version": Option(
        kinds.OPSET,
        _by_torchscript(f"the TorchScript exporter writes opsets up to {_NEWEST_BY_TORCHSCRIPT}"),
        asks=lambda value: value is not None and value > _NEWEST_BY_TORCHSCRIPT,
        about="By default 20 through onnx_fx_export on every path, and 17 through onnx_ts_legacy.",
    ),
    "dynamic_shapes": Option(
        kinds.SHAPES,
        {LEGACY: 'for "auto" use onnx_fx_export.export, which also comes here with dynamo=False'},
        asks=lambda value: isinstance(value, str),
        about='Dimensions of tensors everywhere; numbers and "auto" through onnx_fx_export.',
    ),
    "dynamic_axes": Option(kinds.AXES, about="Not together with dynamic_shapes."),
    "custom_translation_table": Option(
        kinds.TRANSLATIONS, about="Keys that are functions of numbers, such as operator.mul, belong to fx graphs."
    ),
    "external_data": Option(FLAG.or_none()),
    "export_params": Option(FLAG),
    "keep_initializers_as_inputs": Option(FLAG.or_none()),
    "state": Option(either("error", "io", "ignore")),
    "verify": Option(FLAG),
    "optimize": Option(
        either(True, False, "onnxscript"),
        _by_torchscript("only the FX exporter runs onnxscript's optimizer; pass True or False"),
        asks=lambda value: value == "onnxscript",
        about="True by default through onnx_fx_export, False through onnx_ts_legacy.",
    ),
    "target": Option(either("onnxruntime").or_none()),
    "export_modules_as_functions": Option(kinds.CLASSES),
    "capture_repeated_blocks": Option(
        kinds.CLASSES.or_none(),
        _by_torchscript("TorchScript cannot capture equal blocks once"),
        about="By default those that are proven to compute the same.",
    ),
    "size_checks": Option(FLAG),
    "trial_runs": Option(
        FLAG, about="Only torch.export assumes sizes of 2 or more, so that smaller ones have to be tried."
    ),
    "strategy": Option(
        either(
            *("repeated-blocks", "non-strict", "row-loops", "size-loops", "measured-kernels", "open-sizes"),
            *("both-ways", "known-weights", "transforms", "strict", "size-ways"),
        ).or_none(),
        _by_torchscript("a TorchScript program is traced or scripted, not captured by torch.export"),
        about="By default they are tried in this order, without the last one.",
    ),
    "widen_bfloat16": Option(FLAG),
    "nan": Option(either("exact", "finite"), asks=lambda value: value == "exact"),
    "dynamo": Option(
        FLAG,
        {LEGACY: "onnx_ts_legacy exports through TorchScript; use onnx_fx_export.export for anything else"},
    ),
    "fallback": Option(FLAG, about="Where TorchScript exports anyway, there is nothing to fall back from."),
    "report": Option(FLAG),
    "profile": Option(FLAG),
    "dump_exported_program": Option(FLAG, _by_torchscript("a model that TorchScript captures has no ExportedProgram")),
    "artifacts_dir": Option(kinds.PATH),
    "progress": Option(kinds.CALLABLE),
    "metadata": Option(
        either("full", "source", "none"),
        about="Through TorchScript, fx_node is a call on values of the model, stack_trace the user's innermost line.",
    ),
    "frozen_values": Option(
        either("warn", "error"),
        dict.fromkeys((FX, TORCHSCRIPT, FALLBACK), "it is an argument of onnx_ts_legacy.export only"),
        asks=lambda value: True,
        about="The FX exporter freezes no values, and a fallback always refuses to.",
    ),
    "training": Option(
        kinds.TRAINING,
        about="By default the FX exporter and a fallback keep the model's own mode; TorchScript takes evaluation mode.",
    ),
    "operator_export_type": Option(
        kinds.OPERATORS,
        dict.fromkeys(
            (FX, FALLBACK),
            "it exists in the TorchScript exporter only: pass dynamo=False; operators of your own go into "
            "custom_translation_table",
        ),
        asks=lambda value: number_of(value) != 0,
    ),
    "do_constant_folding": Option(FLAG),
    "custom_opsets": Option(kinds.VERSIONS),
    "autograd_inlining": Option(
        FLAG,
        dict.fromkeys(
            (FX, FALLBACK),
            "it exists in the TorchScript exporter only: pass dynamo=False, or give the Function a symbolic method, "
            "which is honoured",
        ),
        asks=lambda value: not value,
    ),
}
# Which exporter a call goes to; it is known before anything is handed on.
_ROUTES = ("dynamo", "fallback")


def option_refusal(path: ExportPath, given: Mapping[str, Any]) -> str | None:
    """Return why a path cannot take the options of a call, or None if it can.

    Args:
        path: The path.
        given: The options by name, of which values are known to be right.
    """
    for name, value in given.items():
        option = OPTIONS[name]
        if option.refused and path in option.refused and option.asks(value):
            return f"{name}={_shown(value)} is refused: {option.refused[path]}."
    return None


def check_options(
    path: ExportPath, given: Mapping[str, Any], unknown: Mapping[str, Any], error: type[OnnxExporterError]
) -> None:
    """Check the arguments of an export.

    Args:
        path: How the call reached the exporter.
        given: Its options by name.
        unknown: Arguments that no option is called by.
        error: What is raised.

    Raises:
        OnnxExporterError: If one is unknown, has a wrong value, contradicts another one, or is refused on this path.
    """
    for name in unknown:
        close = difflib.get_close_matches(name, OPTIONS, 1)
        raise error(f"export has no argument {name!r}{f'; did you mean {close[0]!r}?' if close else '.'}")
    for name, value in given.items():
        kind = OPTIONS[name].kind
        if not kind.fits(value):
            raise error(f"{name} is {kind.text}, not {_shown(value)}.")
    text = _contradiction(given) or option_refusal(path, given)
    if text is not None:
        raise error(text)


def _contradiction(given: Mapping[str, Any]) -> str | None:
    if given.get("dynamic_shapes") is not None and given.get("dynamic_axes"):
        return "Give dynamic_shapes or dynamic_axes, not both."
    opset, versions = given.get("opset_version"), given.get("custom_opsets") or {}
    for domain in ("", "ai.onnx"):
        if versions.get(domain, opset) != opset:
            return f"custom_opsets gives ONNX's own domain another version than opset_version={opset}."
    return None


def asked_of_torchscript(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the FX exporter hands to the TorchScript exporter: all options but those that choose between them.

    None stands for a default that the exporters do not share, and is left out.
    """
    return {name: value for name, value in given.items() if name not in _ROUTES and value is not None}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
