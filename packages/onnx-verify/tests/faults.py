"""The faults that the tests plant, each with the node that is to be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from models import clone, set_weight, weight
from onnx import helper, numpy_helper


@dataclass
class Fault:
    """A way to break a model."""

    model: str
    label: str
    plant: Any
    expected: str
    path: tuple[str, ...] = ()

    @property
    def id(self):
        return f"{self.model}-{self.label}"


def all_nodes(graph):
    """The nodes of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)


def find(model, name):
    """The node of that name, in the graph, its bodies or a local function."""
    functions = (node for function in model.functions for node in function.node)
    return next(node for node in (*all_nodes(model.graph), *functions) if node.name == name)


def attribute(name, key, value):
    """Sets an attribute."""

    def plant(model):
        node = find(model, name)
        kept = [a for a in node.attribute if a.name != key]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(key, value)])

    return plant


def rewire(name, *inputs):
    """Gives a node other inputs."""

    def plant(model):
        node = find(model, name)
        assert list(node.input) != list(inputs)
        del node.input[:]
        node.input.extend(inputs)

    return plant


def becomes(name, kind, drop=()):
    """Replaces a node's operator."""

    def plant(model):
        node = find(model, name)
        node.op_type = kind
        kept = [a for a in node.attribute if a.name not in drop]
        del node.attribute[:]
        node.attribute.extend(kept)

    return plant


def bypass(name):
    """Removes a node; what read its output reads its first input."""

    def plant(model):
        node = find(model, name)
        source, gone = node.input[0], node.output[0]
        model.graph.node.remove(node)
        for other in model.graph.node:
            for position, value in enumerate(other.input):
                if value == gone:
                    other.input[position] = source

    return plant


def values(name, change):
    """Changes an initializer."""

    def plant(model):
        old = weight(model, name)
        new = np.asarray(change(old), old.dtype)
        assert new.shape == old.shape
        assert not np.array_equal(new, old)
        set_weight(model, name, new.copy())

    return plant


def own_values(node, position, value):
    """Gives one node an initializer of its own in place of a shared one."""

    def plant(model):
        model.graph.initializer.append(numpy_helper.from_array(value, "planted"))
        find(model, node).input[position] = "planted"

    return plant


def body_output(name, position, value):
    """Makes the body of a loop return another of its values."""

    def plant(model):
        body = find(model, name).attribute[0].g if find(model, name).attribute[0].HasField("g") else None
        body = body or next(a.g for a in find(model, name).attribute if a.HasField("g"))
        body.output[position].name = value

    return plant


def swap_gates(array):
    """Exchanges the second and third gate of a recurrent weight."""
    parts = np.split(array, 4 if array.shape[1] % 16 == 0 else 3, axis=1)
    parts[1], parts[2] = parts[2], parts[1]
    return np.concatenate(parts, axis=1)


def broken(model, fault):
    """A copy of the model with the fault in it."""
    copy = clone(model)
    fault.plant(copy)
    return copy


def _cnn():
    yield "shifted pads", attribute("Conv_c1", "pads", [0, 0, 2, 2]), "Conv_c1"
    yield "kernel transposed", values("w1", lambda w: w.swapaxes(2, 3)), "Conv_c1"
    yield "epsilon", attribute("BatchNormalization_n1", "epsilon", 1e-3), "BatchNormalization_n1"
    yield (
        "mean and bias swapped",
        rewire("BatchNormalization_n1", "c1", "s1", "m1", "b1", "v1"),
        "BatchNormalization_n1",
    )
    yield (
        "scale and variance swapped",
        rewire("BatchNormalization_n1", "c1", "v1", "b1", "m1", "s1"),
        "BatchNormalization_n1",
    )
    yield "normalization dropped", bypass("BatchNormalization_n1"), "LeakyRelu_r1"
    yield "alpha", attribute("LeakyRelu_r1", "alpha", 0.01), "LeakyRelu_r1"
    yield "activation replaced", becomes("LeakyRelu_r1", "Relu", ("alpha",)), "LeakyRelu_r1"
    yield "channels transposed", values("w2", lambda w: w.swapaxes(0, 1)), "Conv_c2"
    yield "group order", values("w2", lambda w: w[::-1]), "Conv_c2"
    yield "skip from itself", rewire("Add_skip", "c2", "c2"), "Add_skip"
    yield "bound", values("hi", lambda v: v * 4), "Clip_k"
    yield "clip dropped", bypass("Clip_k"), "AveragePool_p1"
    yield "padding counted", attribute("AveragePool_p1", "count_include_pad", 1), "AveragePool_p1"
    yield "pool kind", becomes("MaxPool_p2", "AveragePool"), "MaxPool_p2"
    yield "concat order", rewire("Concat_cat", "p2", "p1"), "Concat_cat"
    yield "pooling kind", becomes("GlobalAveragePool_g", "GlobalMaxPool"), "GlobalAveragePool_g"
    yield "cast dropped", bypass("Cast_half"), "Cast_full"
    yield "matrix transposed", values("fc", lambda w: w.T), "Gemm_logits"
    yield "transB", attribute("Gemm_logits", "transB", 0), "Gemm_logits"
    yield "gemm alpha", attribute("Gemm_logits", "alpha", 0.5), "Gemm_logits"
    yield "bias dropped", rewire("Gemm_logits", "full", "fc"), "Gemm_logits"
    yield "log dropped", becomes("LogSoftmax_y", "Softmax"), "LogSoftmax_y"
    yield "softmax axis", attribute("LogSoftmax_y", "axis", 0), "LogSoftmax_y"


def _decoder():
    yield "table shifted", values("table", lambda t: np.roll(t, 1, 0)), "Gather_e"
    yield "epsilon up", attribute("LayerNormalization_h", "epsilon", 1e-3), "LayerNormalization_h"
    yield "epsilon down", attribute("LayerNormalization_h", "epsilon", 1e-6), "LayerNormalization_h"
    yield "gamma and beta swapped", rewire("LayerNormalization_h", "e", "beta", "gamma"), "LayerNormalization_h"
    yield "query transposed", values("wq", lambda w: w.T), "MatMul_q0"
    yield "key reads value weight", rewire("MatMul_k0", "h", "wv"), "MatMul_k0"
    yield "output transposed", values("wo", lambda w: w.T), "MatMul_a3"
    yield "head order", own_values("Reshape_v1", 1, np.array([0, -1, 8, 2], np.int64)), "Reshape_v1"
    yield "perm", attribute("Transpose_k2", "perm", [0, 2, 3, 1]), "Transpose_k2"
    yield "cache order", rewire("Concat_present_k", "k2", "past_k"), "Concat_present_k"
    yield "stale value cache", rewire("Concat_present_v", "past_v", "past_v"), "Concat_present_v"
    yield "cache not updated", rewire("Concat_present_k", "past_k"), "Concat_present_k"
    yield "scale", values("scale", lambda s: s * s), "Mul_s1"
    yield "unscaled", bypass("Mul_s1"), "Where_s2"
    yield "length of the batch", attribute("Shape_len", "start", 0), "Shape_len"
    yield "offset swapped", rewire("Sub_offset", "len0", "total0"), "Sub_offset"
    yield "rows from zero", rewire("Range_rows0", "zero", "len0", "one"), "Range_rows0"
    yield "mask off by one", becomes("Greater_future", "GreaterOrEqual"), "Greater_future"
    yield "mask inverted", rewire("Where_s2", "future", "s1", "low"), "Where_s2"
    yield "mask value", values("low", lambda v: v * 0), "Where_s2"
    yield "attention axis", attribute("Softmax_p", "axis", -2), "Softmax_p"
    yield "heads not merged back", attribute("Transpose_a1", "perm", [0, 1, 2, 3]), "Transpose_a1"
    yield "residual of the normalized", rewire("Add_res", "a3", "h"), "Add_res"
    yield "slice starts late", own_values("Slice_gate", 1, np.array([1], np.int64)), "Slice_gate"
    yield "slice shifted", rewire("Slice_value", "u", "axis1", "twelve", "axis2"), "Slice_value"
    yield "weight slice shifted", rewire("Slice_down0", "down", "twelve", "end", "first"), "Slice_down0"
    yield "activation", becomes("Sigmoid_sig", "Tanh"), "Sigmoid_sig"
    yield "gate twice", rewire("Mul_glu", "silu", "gate"), "Mul_glu"
    yield "sum for difference", becomes("Sub_out", "Add"), "Sub_out"
    yield "cast down dropped", bypass("Cast_narrow"), "Div_logits"
    yield "mean axis", rewire("ReduceMean_mean", "wide", "axis1"), "ReduceMean_mean"
    yield "sum for mean", becomes("ReduceMean_mean", "ReduceSum"), "ReduceMean_mean"
    yield "quotient swapped", rewire("Div_logits", "narrow", "out"), "Div_logits"


def _recurrent():
    yield "gates swapped", values("lw", swap_gates), "LSTM_l"
    yield "bias dropped", rewire("LSTM_l", "x", "lw", "lr"), "LSTM_l"
    yield "directions swapped", values("lr", lambda w: w[::-1]), "LSTM_l"
    yield "reset", attribute("GRU_g", "linear_before_reset", 0), "GRU_g"
    yield "gru gates", values("gw", swap_gates), "GRU_g"
    yield "directions interleaved", attribute("Transpose_lt", "perm", [0, 1, 2, 3]), "Transpose_lt"
    yield "backward scan", attribute("Scan_last", "scan_input_directions", [1]), "Scan_last"
    yield "decay in the body", values("decay", lambda v: v / 2), "Mul_decayed", ("Scan_last iteration 1",)
    yield "body reads the old state", rewire("Tanh_seen", "state"), "Tanh_seen", ("Scan_last iteration 0",)
    yield "stale state", body_output("Scan_last", 0, "decayed"), "Scan_last"
    yield "sum axis", rewire("ReduceSum_y", "ys", "zero_axis"), "ReduceSum_y"


def _quantized():
    yield "zero point", own_values("QuantizeLinear_xq", 2, np.asarray(4, np.uint8)), "QuantizeLinear_xq"
    yield "scale", own_values("DequantizeLinear_xd", 1, np.asarray(0.06, np.float32)), "DequantizeLinear_xd"
    yield "channel scales reversed", values("ws", lambda w: w[::-1]), "DequantizeLinear_wd"
    yield "weights off by one", values("wq", lambda w: w + 1), "DequantizeLinear_wd"
    yield "output zero point", own_values("DequantizeLinear_y", 2, np.asarray(127, np.uint8)), "DequantizeLinear_y"


def _integer():
    yield "zero point dropped", rewire("MatMulInteger_sum0", "xq", "w0", "xz"), "MatMulInteger_sum0"
    yield "weight zero point", values("z0", lambda z: z + 1), "MatMulInteger_sum0"
    yield "weights off by one", values("w1", lambda w: w + 1), "MatMulInteger_sum1"
    yield "scale of the other layer", rewire("Mul_step1", "rs", "s0"), "Mul_step1"
    yield "weight scale dropped", rewire("Mul_logits", "wide1", "rs"), "Mul_logits"
    yield "activation dropped", rewire("DynamicQuantizeLinear_rq", "h"), "DynamicQuantizeLinear_rq"
    yield "output zero point", own_values("QuantizeLinear_yq", 2, np.asarray(119, np.uint8)), "QuantizeLinear_yq"


def _half():
    yield "epsilon", attribute("LayerNormalization_h", "epsilon", 1e-1), "LayerNormalization_h"
    yield "query and key swapped", rewire("MatMul_q", "h", "wk"), "MatMul_q"
    yield "value transposed", values("wv", lambda w: w.T), "MatMul_v"
    yield "one weight", values("wo", lambda w: w + 0.2 * np.eye(8, k=3)), "MatMul_o"
    yield "scale", values("root", lambda r: r * 1.05), "Mul_scaled"
    yield "softmax axis", attribute("Softmax_p", "axis", 1), "Softmax_p"
    yield "residual from the values", rewire("Add_res", "o", "h"), "Add_res"
    yield "gate on the residual", becomes("Sigmoid_open", "Tanh"), "Sigmoid_open"
    yield "cast dropped", bypass("Cast_narrow"), "Sub_y"
    yield "mean over the wrong axis", own_values("ReduceMean_mean", 1, np.array([1], np.int64)), "ReduceMean_mean"


def _functions():
    yield "activation in the inner function", becomes("Sigmoid_s", "Tanh"), "Sigmoid_s"
    yield "product in the inner function", becomes("Mul_g", "Add"), "Mul_g"
    yield "residual in the outer function", rewire("Add_c", "silu", "m"), "Add_c"
    yield "call of the wrong weight", rewire("Layer_y", "turned", "w0"), "MatMul_m"
    yield "between the calls", becomes("Neg_turned", "Abs"), "Neg_turned"


def _control_flow():
    loop = "Loop_final iteration "
    then, other = "If_stepped then_branch", "If_stepped else_branch"
    yield "factor in the branch", values("two", lambda v: v + 1), "Mul_t", (loop + "1", then)
    yield "branch swapped", rewire("Sub_o", "x", "acc"), "Sub_o", (loop + "0", other)
    yield "modulus", values("two_i", lambda v: v + 1), "Mod_odd", (loop + "2",)
    yield "activation in the body", becomes("Tanh_acc_out", "Sigmoid"), "Tanh_acc_out", (loop + "0",)
    yield "scan output", becomes("Exp_scan", "Sin"), "Exp_scan", (loop + "0",)
    yield "stale carried value", body_output("Loop_final", 1, "acc"), "Loop_final"
    yield "one iteration less", values("count", lambda v: v - 1), "Loop_final"


def small_faults():
    """All faults in the small models."""
    kinds = {
        "cnn": _cnn, "decoder": _decoder, "recurrent": _recurrent, "quantized": _quantized, "integer": _integer,
        "half": _half, "functions": _functions, "control_flow": _control_flow,
    }  # fmt: skip
    return [Fault(model, *fault) for model, faults in kinds.items() for fault in faults()]
