"""The house rules that no ready-made tool checks; `python -m tools.house` prints what breaks them."""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools import rooms
from tools.commands import run
from tools.duplicates import repeated
from tools.syntax import nodes

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 40
# The internals that go away with TorchScript. The import bans of ruff cannot see attribute chains or prefixes.
FORBIDDEN = re.compile(r"\b_jit_pass_onnx\w*|\btorch\.onnx\._internal\b|\bonnx_ir\._\w+|\bonnxscript\._\w+")

# The modules in which private names of torch may stand, each with a test that notices when torch changes one.
TORCH_PRIVATE = re.compile(r"/(_?torch_private|_torch_export_flag|torch_graph)\.py$")
# What torch documents, or asks others to use, in spite of the underscore; the tests of onnxops-core notice a change.
USED_EVERYWHERE = re.compile(r"torch\.(_check|_ops|_ops\.OpOverload(Packet)?|utils\._pytree(\.\w+)?|ops\..*)")

# What other distributions import of a package, in their tests and tools too.
FACES = {
    "onnxops_core": ("onnxops_core", "onnxops_core.native", "onnxops_core.exporting"),
    "onnxops_decomp": ("onnxops_decomp", "onnxops_decomp.exporting"),
    "onnx_fx_export": ("onnx_fx_export", "onnx_fx_export.generation", "onnx_fx_export.transformers"),
    "onnx_ts_legacy": ("onnx_ts_legacy", "onnx_ts_legacy.symbolic_helper"),
    "onnx_verify": ("onnx_verify",),
}


def file_faults(name: str, text: str) -> Iterator[str]:
    """Return what is wrong with one Python file, as `path:line: fault`."""
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{name}:{len(lines)}: the file is longer than {MAX_FILE_LINES} lines; split it by topic"
    yield from function_faults(name, text)


def function_faults(name: str, text: str) -> Iterator[str]:
    for node in nodes(text):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_kernel(node):
            continue
        length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1 - docstring_lines(node)
        length -= sum(inner.body[0].lineno - inner.lineno for inner in node.body if isinstance(inner, ast.FunctionDef))
        if length > MAX_FUNCTION_LINES:
            yield f"{name}:{node.lineno}: the body of {node.name} has {length} lines, over {MAX_FUNCTION_LINES}"


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is the program of one GPU block, which is as long as what it keeps in registers."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node, clean=False) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


def forbidden_names(name: str, text: str) -> Iterator[str]:
    """Report uses, in code, of private parts of other projects that this one must not rest on."""
    for node in nodes(text):
        if isinstance(node, ast.Attribute | ast.ImportFrom | ast.Import):
            found = FORBIDDEN.search(ast.unparse(node).replace("from ", "").replace("import ", ""))
            if found:
                yield f"{name}:{node.lineno}: {found.group()} is private to another project"


def private_torch_names(text: str) -> Iterator[tuple[int, str]]:
    """Return the names of torch with an underscore in front that a file uses: line and dotted name."""
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            if re.fullmatch(r"torch(\.\w+)*\.(_(?!_)\w+)(\.\w+)*", name):
                yield node.lineno, name


def torch_faults(name: str, text: str) -> Iterator[str]:
    """Private names of torch outside of the modules that are there for them, and changes of torch itself."""
    if not TORCH_PRIVATE.search(name):
        for line, used in private_torch_names(text):
            if not USED_EVERYWHERE.fullmatch(used):
                yield f"{name}:{line}: {used} is private to torch; it belongs into the package's torch_private module"
    for node in nodes(text):
        if isinstance(node, ast.Assign | ast.Delete):
            changed = [ast.unparse(target) for target in node.targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            changed = [ast.unparse(node.args[0]) + "."]
        else:
            continue
        if any(target.startswith("torch.") for target in changed):
            yield f"{name}:{node.lineno}: torch is changed here; use onnxops_core.exporting.replaced"


def error_text_faults(name: str, text: str) -> Iterator[str]:
    """Report decisions by the English text of an error, outside of the modules that speak to torch."""
    if TORCH_PRIVATE.search(name):
        return
    for handler in (node for node in nodes(text) if isinstance(node, ast.ExceptHandler) and node.name):
        told = f"str({handler.name})"
        for node in ast.walk(handler):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                read = ast.unparse(node.comparators[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                read = " ".join(map(ast.unparse, node.args))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = ast.unparse(node.func) if node.func.attr in ("startswith", "endswith") else ""
            else:
                continue
            if told in read or f"{handler.name}.args" in read:
                yield f"{name}:{node.lineno}: an error's text decides; use its type or its fields, or check first"


def face_faults(name: str, text: str) -> Iterator[str]:
    """Report uses of a package's inside by a file of another distribution, its tests and tools included.

    Those are imports, and names in quotes, by which tests replace what is inside.
    """
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):
            module, _, last = str(node.value).rpartition(".")
            modules = [module if module in FACES.get(module.partition(".")[0], ()) else f"{module}.{last}"]
        else:
            continue
        for module in modules:
            package = module.partition(".")[0]
            own = f"packages/{package.replace('_', '-')}/"
            if package in FACES and module not in FACES[package] and not name.startswith(own):
                yield f"{name}:{node.lineno}: {module} is inside {package}; use {' or '.join(FACES[package])}"


def python_files(root: Path) -> list[str]:
    """Return the hand-written Python files under version control, new ones included."""
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"], cwd=root)
    return [name for name in listed.splitlines() if (root / name).exists()]


def faults(texts: Mapping[str, str]) -> list[str]:
    """Every breach of the rules in the files of a repository, given by name."""
    found = [*repeated(texts), *rooms.faults(texts)]
    for name, text in texts.items():
        found += file_faults(name, text)
        found += face_faults(name, text)
        if "/src/" in name:
            found += forbidden_names(name, text)
            found += torch_faults(name, text)
            found += error_text_faults(name, text)
    return sorted(set(found))


def main(root: Path) -> int:
    gc.disable()  # Syntax trees are many objects and no circles: looking for circles takes as long as the parsing.
    texts = {name: (root / name).read_text(encoding="utf-8") for name in python_files(root)}
    found = faults(texts)
    print(rooms.plan(texts))
    print("\n".join(found) or "house rules kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
