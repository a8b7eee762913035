"""These changes before those, without waiting for the disk.

    import patchgroup

    volume = patchgroup.Volume("spool")
    written, renamed = volume.group(), volume.group()
    with written.engaged():
        write("spool/new")
    renamed.depend_on(written)
    with renamed.engaged():
        os.rename("spool/new", "spool/current")

After a crash, no change of a group is there while a change of a group that it depends on is missing. Where there are no
patchgroups, Volume raises patchgroup.Unsupported; Volume(path, or_fsync=True) keeps the order by waiting instead.
The numbers come from docs/spec/patchgroup-ioctl.md of Featherstitch.
"""

import contextlib
import errno
import fcntl
import os
import struct

from ._fsync import Fsync, works

__all__ = ["Group", "Unsupported", "Volume"]

_VERSION = 0xC010F500
_CREATE = 0xC008F501
_DEPEND = 0x4008F502
_ENGAGE = 0x4008F503
_DISENGAGE = 0x4008F504
_SYNC = 0x4008F505
_CLOSE = 0x4008F506
_ENGAGE_FD = 0x4008F507
_DISENGAGE_FD = 0x4008F508
_ORDER_BEGIN = 0x4008F510
_ORDER_END = 0x0000F511

_ABSENT = (errno.ENOTTY, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Unsupported(OSError):
    """There are no patchgroups: another file system, or a volume that keeps no order."""


class Volume:
    """The volume that a path is on. It stays busy for umount until it is closed."""

    def __init__(self, path, or_fsync=False):
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._calls = _calls(self._fd, path, or_fsync)
        except BaseException:
            os.close(self._fd)
            raise

    def group(self):
        """A new group."""
        return Group(self, self._calls.create(self._fd))

    @contextlib.contextmanager
    def ordered(self, durable_every=None):
        """Has fsync of this process, and of those that it starts, order and not wait. With durable_every, in seconds,
        what they change is made stable that often. Without patchgroups fsync goes on waiting."""
        self._calls.order_begin(self._fd, 0 if durable_every is None else max(1, round(durable_every * 1000)))
        try:
            yield self
        finally:
            self._calls.order_end(self._fd)

    def close(self):
        """Lets go of the volume. Its groups must not be used any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _same(self, fd):
        """Numbers mean other groups elsewhere."""
        if os.fstat(fd).st_dev != os.fstat(self._fd).st_dev:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


class Group:
    """Changes that are made while it is engaged. As a context manager it closes itself; order stays."""

    def __init__(self, volume, number):
        self._volume = volume
        self.number = number

    def depend_on(self, *befores):
        """All changes of this group come after those of these, which change nothing any more from now on. Raises EINVAL
        once this group was engaged or depended on, EBUSY while anybody has one of the others engaged."""
        for before in befores:
            if before._volume is not self._volume:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            self._call(_DEPEND, self.number, before.number)

    @contextlib.contextmanager
    def engaged(self, file=None):
        """In its body, this process's changes belong to the group: all of them, or those of one file (an object with
        fileno, or a descriptor; of a directory, the names in it)."""
        if file is None:
            fd, (begin, end) = self._volume._fd, (_ENGAGE, _DISENGAGE)
        else:
            fd, (begin, end) = _descriptor(file), (_ENGAGE_FD, _DISENGAGE_FD)
            self._volume._same(fd)
        self._volume._calls.call(fd, begin, self.number, 0)
        try:
            yield self
        finally:
            self._volume._calls.call(fd, end, self.number, 0)

    def sync(self):
        """Waits until the group's changes are on the medium, with all that they come after."""
        self._call(_SYNC, self.number)

    def close(self):
        """Gives the number back. Order that was asked for stays."""
        number, self.number = self.number, 0
        if number:
            self._call(_CLOSE, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _call(self, request, first, second=0):
        self._volume._calls.call(self._volume._fd, request, first, second)


class _Kernel:
    """The ioctls on the mount."""

    def create(self, fd):
        return _pair(fcntl.ioctl(fd, _CREATE, bytes(8)))[1]

    def call(self, fd, request, first, second):
        fcntl.ioctl(fd, request, struct.pack("=II", first, second))

    def order_begin(self, fd, durable_every_ms):
        self.call(fd, _ORDER_BEGIN, 0, durable_every_ms)

    def order_end(self, fd):
        fcntl.ioctl(fd, _ORDER_END)


def _pair(answer):
    return struct.unpack("=II", answer)


def _descriptor(file):
    return file if isinstance(file, int) else file.fileno()


def _calls(fd, path, or_fsync):
    """Whoever keeps the order on this volume."""
    try:
        version, features, _, _ = struct.unpack("=IIII", fcntl.ioctl(fd, _VERSION, bytes(16)))
        reason = None if version == 1 and features else errno.EOPNOTSUPP
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        reason = errno.ENOTTY if error.errno == errno.EINVAL else error.errno
    if reason is None:
        return _Kernel()
    if or_fsync and works(fd):
        steps = {
            _DEPEND: Fsync.depend,
            _ENGAGE: Fsync.engage,
            _DISENGAGE: Fsync.disengage,
            _ENGAGE_FD: Fsync.engage_file,
            _DISENGAGE_FD: Fsync.disengage_file,
            _SYNC: Fsync.sync,
            _CLOSE: Fsync.close,
        }
        return Fsync(fd, steps)
    raise Unsupported(reason, "no patchgroups here", os.fspath(path) if not isinstance(path, int) else None)
