"""Language models as folders that an engine runs, token for token like the model's own ``generate``.

Needs the extra ``generation``: transformers, ONNX Runtime and, for ``engine="genai"``, onnxruntime-genai. Each of them
is loaded when it is first used.
"""

from onnx_fx_export.generation.folder import GenerationFolder, export_folder
from onnx_fx_export.generation.generator import Generator
from onnx_fx_export.generation.quantization import Quantization

__all__ = ["GenerationFolder", "Generator", "Quantization", "export_folder"]
