"""Builds the wheel of both modules with nothing but Python (PEP 517, PEP 427)."""

import base64
import hashlib
import pathlib
import zipfile

_NAME, _VERSION = "featherstitch", "0.1.0"
_MODULES = ("fstitch_lld", "patchgroup")
_INFO = f"{_NAME}-{_VERSION}.dist-info"
_METADATA = f"""\
Metadata-Version: 2.1
Name: {_NAME}
Version: {_VERSION}
Summary: Featherstitch for programs: order without waiting (patchgroup) and logical disks (fstitch_lld)
License: MIT OR Apache-2.0
Requires-Python: >=3.9
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: featherstitch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Called by pip, in the directory of this file."""
    modules = (path for module in _MODULES for path in pathlib.Path(module).iterdir())
    sources = sorted(path for path in modules if path.suffix == ".py" or path.name == "py.typed")
    files = {path.as_posix(): path.read_bytes() for path in sources}
    files[f"{_INFO}/METADATA"] = _METADATA.encode()
    files[f"{_INFO}/WHEEL"] = _WHEEL.encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    name = f"{_NAME}-{_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
