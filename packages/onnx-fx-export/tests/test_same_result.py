"""The same model gives the same file: twice in one process, and in others with other hashes of strings."""

import hashlib
import json
import os
import subprocess
import sys
import warnings

import torch

import onnx_fx_export as fx

OPTIONS = {"state": "io", "export_modules_as_functions": True}
PATHS = {
    "fx": {"dynamic_shapes": {"x": {0: "n", 1: "t"}, "more": {"b": {0: "n"}, "a": None}}, "opset_version": 18},
    "torchscript": {"dynamo": False, "dynamic_axes": {"x": [0, 1]}, "opset_version": 17},
}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))

    def forward(self, x):
        return x + torch.special.erfcx(self.layers(x))


class Model(torch.nn.Module):
    """A shared weight, state, nested modules, names from dicts, a decomposition, and a constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in "ab")
        self.head = torch.nn.Linear(4, 4)
        self.head.weight = self.blocks[0].layers[0].weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, more):
        self.count += 1
        for block in self.blocks:
            x = block(x)
        y = x + more["a"] * self.count
        return {"scores": self.head(y), "sizes": torch.tensor([1.0, 2.0]), "mean": y.std(-1), "more": more["b"] + 1}


def exported() -> dict[str, str]:
    """Return the hash of the file of a new model, for each path."""
    hashes = {}
    for path, options in PATHS.items():
        more = {"b": torch.ones(2), "a": torch.ones(4)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = fx.export(Model().eval(), (torch.ones(2, 3, 4),), kwargs={"more": more}, **OPTIONS, **options)
        hashes[path] = hashlib.sha256(program.model_proto.SerializeToString()).hexdigest()
    return hashes


def test_the_same_model_gives_the_same_file_in_every_process():
    processes = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    (first, again), (other, _) = [json.loads(process.communicate()[0]) for process in processes]

    assert again == first
    assert other == first


if __name__ == "__main__":
    print(json.dumps([exported(), exported()]))
