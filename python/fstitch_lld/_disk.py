"""Disks."""

import contextlib
import ctypes
import errno
import os
import uuid as uuids
import warnings
import weakref
from typing import Any, Iterator, List, Optional, Union

from ._library import call, found, number, whole, word
from ._operations import Operations
from ._unit import Unit
from ._values import (
    ACCEPT_LOSS,
    COMPRESS,
    OVERWRITE,
    READ_ONLY,
    SEQUENTIAL,
    Checked,
    CheckedC,
    Counters,
    CountersC,
    FormatOptionsC,
    Info,
    InfoC,
    OpenOptionsC,
    Recovered,
    RecoveredC,
    Space,
    SpaceC,
    Visibility,
    VolumeInfo,
    VolumeInfoC,
)
from ._volume import Volume

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Disk(Operations):
    """A logical disk that is open. Each operation outside of a unit happens as a whole by itself. As a context manager
    it closes itself; units that are open then are aborted."""

    def __init__(self, handle: int, recovered: Recovered) -> None:
        self._handle = handle
        self._open: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._block_size = call("lld_block_size", handle)
        #: What opening did after a crash.
        self.recovered = recovered

    @staticmethod
    def format(
        path: Path,
        size: int = 0,
        *,
        block_size: int = 0,
        segment_size: int = 0,
        uuid: Optional[uuids.UUID] = None,
        overwrite: bool = False,
        compress: bool = False,
    ) -> None:
        """Makes an empty disk in a file, which is made with this size, or with overwrite in whatever is there. What is 0
        has defaults that suit the size. With compress what is cold takes less room where it can."""
        options = FormatOptionsC(whole(size), whole(block_size, 32), whole(segment_size, 32))
        options.flags = (OVERWRITE if overwrite else 0) | (COMPRESS if compress else 0)
        if uuid is not None:
            options.uuid[:] = uuid.bytes
        call("lld_format", os.fsencode(path), ctypes.byref(options))

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        read_only: bool = False,
        cache_size: int = 0,
        checkpoint_interval: int = 0,
        visibility: Visibility = Visibility.OWN,
        sequential: bool = False,
        accept_loss: bool = False,
    ) -> "Disk":
        """Opens a disk. What has been made stable is there, whatever has happened since; recovered says what was done
        for it. One program at a time has it open for writing; others are refused with EBUSY."""
        options = OpenOptionsC(whole(cache_size), whole(checkpoint_interval))
        options.visibility = whole(visibility, 32)
        flags = ((READ_ONLY, read_only), (SEQUENTIAL, sequential), (ACCEPT_LOSS, accept_loss))
        options.flags = sum(flag for flag, is_set in flags if is_set)
        done = RecoveredC()
        handle = call("lld_open", os.fsencode(path), ctypes.byref(options), ctypes.byref(done))
        damaged = done.damaged.decode(errors="replace") or None
        return cls(handle, Recovered(done.chunks, done.records, bool(done.unfinished), bool(done.torn), damaged))

    @property
    def block_size(self) -> int:
        return self._block_size

    def aru(self, durable: bool = False) -> Unit:
        """Begins an atomic recovery unit. With durable it is stable when it has ended."""
        unit = Unit(self, durable)
        self._open.add(unit)
        return unit

    def next_list(self, first: int = 0) -> Optional[int]:
        """The first list from a number on."""
        return found("lld_next_list", self._handle, first)

    def lists(self) -> Iterator[int]:
        """The lists by their numbers."""
        list = self.next_list()
        while list is not None:
            yield list
            list = self.next_list(list + 1)

    def create_volume(self, name: str, size: int) -> None:
        """Makes a volume, which takes nothing until it is written. The size is a multiple of a block's."""
        call("lld_volume_create", self._handle, word(name), size)

    def resize_volume(self, name: str, size: int) -> None:
        """Changes its size, also while it is open. What is beyond a smaller one is gone."""
        call("lld_volume_resize", self._handle, word(name), size)

    def remove_volume(self, name: str) -> None:
        """Removes it with all that is in it."""
        call("lld_volume_remove", self._handle, word(name))

    def volumes(self) -> List[VolumeInfo]:
        """The volumes by their names."""
        room = 16
        while True:
            infos = (VolumeInfoC * room)()
            count = number("lld_volume_list", self._handle, infos, room)
            if count <= room:
                return [VolumeInfo(info.name.decode(), info.bytes, info.blocks, info.list) for info in infos[:count]]
            room = count

    def volume(self, name: str) -> Volume:
        """Opens a volume."""
        volume = Volume(self, name)
        self._open.add(volume)
        return volume

    def flush(self) -> None:
        """Makes everything stable that has returned."""
        call("lld_flush", self._handle)

    def checkpoint(self) -> None:
        """The same, and has recovery begin here."""
        call("lld_checkpoint", self._handle)

    def clean(self, segments: int) -> None:
        """Empties so many segments that others find them free."""
        call("lld_clean", self._handle, segments)

    def check(self, contents: bool = True) -> Checked:
        """Checks every map, list and count, and the contents of every block if asked for."""
        checked, room = CheckedC(), 1 << 16
        while True:
            text = ctypes.create_string_buffer(room)
            call("lld_check", self._handle, int(contents), ctypes.byref(checked), text, room)
            if checked.text_size <= room:
                lines = text.value.decode(errors="replace").splitlines()
                return Checked(checked.blocks, checked.findings, checked.corrupt, lines)
            room = checked.text_size

    def space(self) -> Space:
        """How much can be stored."""
        space = SpaceC()
        call("lld_space", self._handle, ctypes.byref(space))
        return Space(*(getattr(space, name) for name in Space._fields))

    def info(self) -> Info:
        """What the disk is."""
        info = InfoC()
        call("lld_info", self._handle, ctypes.byref(info))
        return Info(bytes(info.uuid), *(getattr(info, name) for name in Info._fields[1:]))

    def counters(self) -> Counters:
        """What has been written since the disk was opened."""
        counters = CountersC()
        call("lld_counters", self._handle, ctypes.byref(counters))
        return Counters(*(getattr(counters, name) for name in Counters._fields))

    def close(self) -> None:
        """Makes everything stable, and the next opening short. Units that are open are aborted, and volumes closed."""
        if self._handle is None:
            return
        for what in list(self._open):
            if what._handle is not None:
                what.abort() if isinstance(what, Unit) else what.close()
        try:
            call("lld_close", self._handle)
        except OSError as error:
            if error.errno == errno.EBUSY:
                # Another thread is in the middle of something: the disk is still open.
                raise
            self._handle = None
            raise
        self._handle = None

    def __enter__(self) -> "Disk":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"a logical disk was not closed: {self!r}", ResourceWarning, source=self, stacklevel=2)
            with contextlib.suppress(OSError):
                self.close()
