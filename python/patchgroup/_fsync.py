"""Order by waiting, for file systems without patchgroups and programs that ask for it.

Everything on the file system is made stable when a group comes to be depended on: by the table of states
(docs/design/patchgroups.md) it changes nothing any more, and what depends on it has changed nothing yet.
"""

import ctypes
import errno
import os
import threading

_LIBC = ctypes.CDLL(None, use_errno=True)

_NEW, _OPEN, _SEALED = range(3)

# The type of file systems in user space. To most of them syncfs does not get through: it would order nothing.
_FUSE = 0x65735546


def works(fd):
    """Whether everything on the file system can be made stable."""
    # More than any struct statfs has; the type is its first member, a long.
    answer = (ctypes.c_long * 64)()
    if _LIBC.fstatfs(fd, answer) != 0:
        _fail(ctypes.get_errno())
    return answer[0] != _FUSE


def _make_stable(fd):
    if _LIBC.syncfs(fd) != 0:
        _fail(ctypes.get_errno())


def _fail(number):
    raise OSError(number, os.strerror(number))


class _Group:
    def __init__(self):
        self.state = _NEW
        self.scopes = set()
        self.volatile = False


class Fsync:
    """The groups of this process on one file system."""

    def __init__(self, fd, steps):
        self._place = fd
        self._steps = steps
        self._groups = {}
        self._lock = threading.Lock()

    def create(self, _fd):
        with self._lock:
            number = next(n for n in range(1, len(self._groups) + 2) if n not in self._groups)
            self._groups[number] = _Group()
            return number

    def call(self, fd, request, first, second):
        with self._lock:
            self._steps[request](self, fd, first, second)

    def order_begin(self, _fd, _durable_every_ms):
        """The program's own fsync orders already, and waits."""

    def order_end(self, _fd):
        """As above."""

    def depend(self, _fd, after, before):
        group = self._get(before)
        if self._get(after).state != _NEW or after == before:
            _fail(errno.EINVAL)
        if group.scopes:
            _fail(errno.EBUSY)
        if group.volatile:
            _make_stable(self._place)
        group.state, group.volatile = _SEALED, False

    def engage(self, _fd, number, _flags):
        self._engage(number, None)

    def disengage(self, _fd, number, _flags):
        self._disengage(number, None)

    def engage_file(self, fd, number, _flags):
        self._engage(number, fd)

    def disengage_file(self, fd, number, _flags):
        self._disengage(number, fd)

    def sync(self, _fd, number, _flags):
        group = self._get(number)
        if group.volatile:
            _make_stable(self._place)
            group.volatile = bool(group.scopes)

    def close(self, _fd, number, _flags):
        self._get(number)
        del self._groups[number]

    def _get(self, number):
        return self._groups.get(number) or _fail(errno.EBADF)

    def _engage(self, number, scope):
        group = self._get(number)
        if group.state == _SEALED:
            _fail(errno.EINVAL)
        if scope in group.scopes:
            _fail(errno.EBUSY)
        group.scopes.add(scope)
        group.state, group.volatile = _OPEN, True

    def _disengage(self, number, scope):
        group = self._get(number)
        if scope not in group.scopes:
            _fail(errno.EINVAL)
        group.scopes.remove(scope)
