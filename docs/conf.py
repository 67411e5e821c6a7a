"""How the documentation is built: `nox -s docs`."""

from importlib import metadata
from typing import Any

project = "onnxops"
author = "The onnxops developers"
copyright = author
release = metadata.version("onnx-fx-export")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "onnxops"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def skip_foreign(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out what a package passes on from another one: it is described where it belongs."""
    page = app.env.current_document.docname.rpartition("/")[2].replace("-", "_")
    home = getattr(obj, "__module__", None)
    return True if isinstance(home, str) and home.partition(".")[0] != page else None


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", skip_foreign)
