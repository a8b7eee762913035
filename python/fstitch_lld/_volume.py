"""Volumes: bytes on the blocks of a sparse list."""

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._library import call, memory_of, whole, word

if TYPE_CHECKING:
    from ._disk import Disk
    from ._unit import Unit


class Volume:
    """A volume that is open, as everybody sees it. As a context manager it closes itself."""

    def __init__(self, disk: "Disk", name: str) -> None:
        self._handle: Optional[int] = None
        self._disk = disk
        self.name = name
        self._handle = call("lld_volume_open", disk._handle, word(name))

    @property
    def size(self) -> int:
        """Its bytes."""
        return call("lld_volume_size", self._handle)

    def pread(self, size: int, offset: int) -> bytes:
        """So many bytes from one on; fewer at the end."""
        return _pread("lld_volume_pread", (self._handle,), size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes bytes, none of them if not all are in the volume, and returns how many. Each block is written as a whole;
        several are so in a unit."""
        return call("lld_volume_pwrite", self._handle, *memory_of(data), offset)

    def trim(self, offset: int, size: int) -> None:
        """Has bytes read as zeros, and gives the blocks back that they take."""
        call("lld_volume_trim", self._handle, offset, size)

    def flush(self) -> None:
        """Makes everything stable that has been written."""
        call("lld_volume_flush", self._handle)

    def close(self) -> None:
        """Lets go of it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            call("lld_volume_close", handle)

    def __enter__(self) -> "Volume":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            with contextlib.suppress(OSError):
                self.close()


class UnitVolume:
    """A volume as a unit sees it, until that ends."""

    def __init__(self, unit: "Unit", volume: Volume) -> None:
        self._unit = unit
        self._volume = volume

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._volume.size

    def pread(self, size: int, offset: int) -> bytes:
        """As of the volume."""
        return _pread("lld_unit_pread", self._handles(), size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """As of the volume; seen by nobody else before the unit's end."""
        return call("lld_unit_pwrite", *self._handles(), *memory_of(data), offset)

    def trim(self, offset: int, size: int) -> None:
        """As of the volume; seen by nobody else before the unit's end."""
        call("lld_unit_trim", *self._handles(), offset, size)

    def _handles(self) -> Tuple[Optional[int], Optional[int]]:
        return self._unit._handle, self._volume._handle


def _pread(name: str, handles: Any, size: int, offset: int) -> bytes:
    memory = ctypes.create_string_buffer(max(whole(size), 1))
    count = call(name, *handles, memory, size, offset)
    return memory.raw[:count]
