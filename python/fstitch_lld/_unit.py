"""Units."""

import contextlib
import errno
from typing import TYPE_CHECKING, Any, Optional

from ._library import call
from ._operations import Operations
from ._volume import UnitVolume, Volume

if TYPE_CHECKING:
    from ._disk import Disk


class Unit(Operations):
    """An atomic recovery unit: what is done in it is seen by nobody else before its end, and happens as a whole. As a
    context manager it ends when its body does, and is aborted if that raises. One that is forgotten is aborted, too."""

    _prefix = "lld_unit_"

    def __init__(self, disk: "Disk", durable: bool) -> None:
        self._disk = disk
        self._durable = durable
        self._handle = call("lld_begin", disk._handle)

    @property
    def disk(self) -> "Disk":
        """The disk that it is of."""
        return self._disk

    @property
    def block_size(self) -> int:
        return self._disk.block_size

    @property
    def has_ended(self) -> bool:
        """Whether it has ended or was aborted."""
        return self._handle is None

    def volume(self, volume: Volume) -> UnitVolume:
        """The volume as the unit sees it."""
        return UnitVolume(self, volume)

    def end(self, durable: Optional[bool] = None) -> None:
        """Everything happens now, and is stable if asked for. Raises Conflict, and nothing has happened, if others have
        removed what it builds on. The unit has ended, also if this raises."""
        durable = self._durable if durable is None else durable
        call("lld_end_durable" if durable else "lld_end", self._take())

    def abort(self) -> None:
        """Nothing happens."""
        call("lld_abort", self._take())

    def _take(self) -> int:
        handle, self._handle = self._handle, None
        if handle is None:
            raise OSError(errno.EINVAL, "the unit has ended")
        return handle

    def __enter__(self) -> "Unit":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._handle is not None:
            self.end() if kind is None else self.abort()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            with contextlib.suppress(OSError):
                self.abort()
