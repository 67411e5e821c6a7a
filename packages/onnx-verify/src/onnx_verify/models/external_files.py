"""Which files a model may refer to.

A model file is untrusted: the external data that it names must lie in the model's own folder, must be a
regular
file that is reached without any link, and must hold the bytes that the tensor claims.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx_verify.errors import ModelLoadError, UnsafeModelError


def resolve_external(base: Path, location: str, tensor: str) -> Path:
    """Return the path of an external data file, after checking that a model may use it.

    Args:
        base: the folder of the model file.
        location: what the tensor gives as its ``location``, relative to that folder.
        tensor: the tensor's name, for messages.

    Raises:
        UnsafeModelError: if the location is absolute, climbs out of the folder or passes a link.
        ModelLoadError: if the file does not exist or is not a regular file.
    """
    where = f"tensor {tensor!r} has its data in {location!r}"
    if not location or "\x00" in location:
        raise UnsafeModelError(f"{where}, which is not a file name")
    windows = PureWindowsPath(location)
    if PurePosixPath(location).is_absolute() or windows.is_absolute() or windows.drive:
        raise UnsafeModelError(f"{where}, an absolute path; external data must lie in the model's folder")
    parts = PurePosixPath(location.replace("\\", "/")).parts
    if ".." in parts:
        raise UnsafeModelError(f"{where}, outside the model's folder")
    path = base
    for part in parts:
        path = path / part
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{where}, but {path} cannot be read: {error}") from error
        if stat.S_ISLNK(mode):
            raise UnsafeModelError(f"{where}, behind the link {path}; put the data itself beside the model")
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ModelLoadError(f"{where}, but {path} is not a regular file")
    return path


def parse_offset(text: str, key: str, tensor: str) -> int:
    """Read the decimal ``offset`` or ``length`` of an external tensor.

    Raises:
        ModelLoadError: if it is not a number that a file could have.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelLoadError(f"tensor {tensor!r} has the external data {key} {text[:40]!r}, which is not a size")
    return int(text)
