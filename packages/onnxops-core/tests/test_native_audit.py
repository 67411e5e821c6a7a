"""Every argument of every typed function, changed alone: what ONNX forbids raises ValueError in eager and fake mode.

The calls are those of core_samples, the changes and what ONNX allows of them stand in core_audit.
"""

import inspect
import re

import core_samples_more  # noqa: F401 - adds its samples
import pytest
import torch
from core_audit import (
    DTYPES,
    FREE,
    IGNORED,
    OUT_OF_RANGE,
    REFUSED,
    as_dtype,
    bound,
    call,
    free,
    public_function,
    public_functions,
    shape_changes,
)
from core_samples import SAMPLES
from core_schemas import newest_schema, types_of_input
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_each = pytest.mark.parametrize("sample", SAMPLES, ids=str)


class _Audited:
    """A sample's call, repeated with one argument changed."""

    def __init__(self, sample):
        self._sample = sample
        self.function = public_function(sample.op_type)
        args, kwargs = sample.make(sample.usual_dtype)
        self.arguments = bound(self.function, args, kwargs)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
        self.fake = {name: self._faked(value) for name, value in self.arguments.items()}

    def _faked(self, value):
        return self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def tensors(self):
        """Every argument that is a tensor, with the changes that the call takes."""
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                yield name, value, free(self._sample, name)

    def eager_error(self, name, value):
        return self._error(self.arguments | {name: value})

    def fake_error(self, name, value):
        with self.mode:
            return self._error(self.fake | {name: self._faked(value)})

    def _error(self, arguments):
        try:
            call(self.function, arguments)
        except ValueError as error:
            return str(error)
        return None


def _complaint(error, names):
    """What is missing in the message of a refused call; None if nothing is."""
    if error is None:
        return "accepted"
    if "expected" not in error or not any(re.search(rf"\b{name}\b", error) for name in names):
        return f"unclear: {error}"
    return None


@_each
def test_rank_and_size_of_every_tensor_are_checked(sample):
    audited = _Audited(sample)
    wrong = []
    for name, value, allowed in audited.tensors():
        for change, tensor in shape_changes(value):
            errors = audited.eager_error(name, tensor), audited.fake_error(name, tensor)
            if change in allowed:
                found = [error for error in errors if error is not None]
            elif f"{change}?" in allowed:
                found = [*filter(None, [_complaint(errors[0], audited.arguments)]), *filter(None, errors[1:])]
            else:
                found = [*filter(None, (_complaint(error, audited.arguments) for error in errors))]
            wrong += [(name, change, complaint) for complaint in found]

    assert wrong == []


@_each
def test_dtype_of_every_tensor_is_checked(sample):
    audited = _Audited(sample)
    wrong = []
    for name, value, allowed in audited.tensors():
        for dtype in DTYPES:
            if dtype == value.dtype:
                continue
            tensor = as_dtype(value, dtype)
            fake = audited.fake_error(name, tensor)
            if str(dtype).removeprefix("torch.") in allowed:
                wrong += [(name, dtype, fake)] if fake else []
                continue
            complaints = (_complaint(error, audited.arguments) for error in (fake, audited.eager_error(name, tensor)))
            wrong += [(name, dtype, complaint) for complaint in complaints if complaint]

    assert wrong == []


@_each
def test_dtypes_beyond_the_onnx_schema_are_declared_extensions(sample):
    schema = newest_schema(sample.op)
    tensors = {
        dtype: [(i, value) for i, value in enumerate(sample.make(dtype)[0]) if isinstance(value, torch.Tensor)]
        for dtype in sample.dtypes
    }
    together = {(schema.inputs[i].name, value.dtype) for found in tensors.values() for i, value in found}
    alone = {
        (name, dtype)
        for name, _ in together
        for dtype in DTYPES
        if str(dtype).removeprefix("torch.") in free(sample, name)
    }

    beyond = {dtype for name, dtype in together | alone if dtype not in types_of_input(schema, name)}
    assert beyond == sample.op.extensions


def _kind(sample, name):
    """The torch schema's type of an argument, and whether it may be None."""
    versions = [s.op for s in SAMPLES if s.op_type == sample.op_type]
    types = [str(a.type) for op in versions for a in op.overload._schema.arguments if a.name == name]
    return types[0].removeprefix("Optional[").rstrip("]"), types[0].startswith("Optional[")


_STRANGERS = {
    "Tensor": ([1.0], 1.0, "x"),
    "int": ("x", [], 1.5, True, torch.ones(2)),
    "float": ("x", [], True, torch.ones(2)),
    "bool": ("x", [], 2, -1, 0.5, torch.ones(2)),
    "str": (1, [], torch.ones(2)),
    "List[int": ("x", 1, [1.5], torch.ones(2)),
}
# Functions, which only an eager call can take.
_CALLABLES = {"score_mod", "prob_mod"}


@_each
def test_values_of_another_kind_are_refused(sample):
    audited = _Audited(sample)
    wrong = []
    for name in audited.arguments:
        if name in _CALLABLES:
            continue
        kind, optional = _kind(sample, name)
        for value in _STRANGERS[kind] + (() if optional else (None,)):
            complaints = _complaint(audited.eager_error(name, value), [name]), None
            if not isinstance(value, torch.Tensor):
                complaints = complaints[0], _complaint(audited.fake_error(name, value), [name])
            wrong += [(name, value, complaint) for complaint in complaints if complaint]

    assert wrong == []


@_each
def test_a_tensor_on_another_device_is_refused(sample):
    audited = _Audited(sample)
    tensors = [(name, value) for name, value, _ in audited.tensors()]
    wrong = []
    for name, value in tensors[1:]:
        complaint = _complaint(audited.eager_error(name, value.to("meta")), [name])
        wrong += [(name, complaint)] if complaint else []

    assert wrong == []


@_each
def test_a_tensor_that_is_not_dense_is_refused(sample):
    audited = _Audited(sample)
    wrong = []
    for name, value, _ in audited.tensors():
        if value.dtype in (torch.float32, torch.int64):
            call(audited.function, audited.arguments)  # what has passed is remembered, yet not for other layouts
            complaint = _complaint(audited.eager_error(name, value.to_sparse()), [name])
            wrong += [(name, complaint)] if complaint else []

    assert wrong == []


@_each
def test_attributes_out_of_range_are_refused(sample):
    audited = _Audited(sample)
    wrong = []
    for name, values in OUT_OF_RANGE.get(audited.function.__name__, {}).items():
        for value in () if (str(sample), name) in IGNORED else values:
            for error in (audited.eager_error(name, value), audited.fake_error(name, value)):
                complaint = _complaint(error, audited.arguments)
                wrong += [(name, value, complaint)] if complaint else []

    assert wrong == []


def test_every_sample_is_audited():
    assert set(FREE) == set(map(str, SAMPLES))


def test_every_tensor_of_every_function_is_given_in_some_sample():
    given = {}
    for sample in SAMPLES:
        arguments = bound(public_function(sample.op_type), *sample.make(sample.usual_dtype))
        names = {name for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        given.setdefault(sample.op_type, set()).update(names)
    expected = {}
    for sample in SAMPLES:
        tensors = {a.name for a in sample.op.overload._schema.arguments if "Tensor" in str(a.type)}
        expected.setdefault(sample.op_type, set()).update(tensors - REFUSED.get(sample.op_type, set()))

    assert given == expected


def test_every_attribute_that_has_a_range_is_audited():
    attributes = {}
    for sample in SAMPLES:
        function = public_function(sample.op_type)
        for name in inspect.signature(function).parameters:
            if name not in _CALLABLES and _kind(sample, name)[0] not in ("Tensor", "bool"):
                attributes.setdefault(function.__name__, set()).add(name)

    assert attributes == {name: set(row) for name, row in OUT_OF_RANGE.items()}


def test_every_typed_function_has_a_sample():
    assert set(public_functions()) == {public_function(sample.op_type).__name__ for sample in SAMPLES}
