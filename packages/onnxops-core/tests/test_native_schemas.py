"""The torch schema of every native operator, which exported programs and compiled graphs hold by its text."""

from pathlib import Path

from onnxops_core.native import native_ops

SCHEMAS = Path(__file__).with_name("native_schemas.txt")


def test_every_overload_has_the_schema_that_programs_were_saved_with() -> None:
    """A line that differs breaks them: a changed operator of ONNX is a new overload, ``opset<N>``."""
    assert sorted(str(op.overload._schema) for op in native_ops().values()) == SCHEMAS.read_text().splitlines()


def test_parameters_have_one_default_and_one_order_in_the_class_of_the_calls_and_in_the_schema() -> None:
    for op in native_ops().values():
        arguments = op.overload._schema.arguments
        assert tuple(argument.name for argument in arguments) == op.parameters.names
        assert [argument.kwarg_only for argument in arguments].count(False) == op.parameters.inputs
