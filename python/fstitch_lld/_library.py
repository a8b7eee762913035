"""The library, its calls, and what they answer when they fail."""

import ctypes
import errno
import functools
import os
from typing import Any, Dict, List, Optional, Tuple

_NAME = "libfstitch_lld.so.0"

#: What a call gets: a handle, a number, a whole number of C, the size of memory, memory, a structure, a word, and a
#: place for a number.
_HANDLE, _NUMBER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t
_MEMORY, _STRUCTURE, _WORD = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
_PLACE = ctypes.POINTER(ctypes.c_uint64)

#: Of a disk (lld_…) and of a unit (lld_unit_…), behind the handle.
_OPERATIONS: Dict[str, List[Any]] = {
    "new_list": [_INT, _PLACE],
    "delete_list": [_NUMBER],
    "new_block": [_NUMBER, _PLACE],
    "new_block_after": [_NUMBER, _NUMBER, _PLACE],
    "new_block_at": [_NUMBER, _NUMBER, _PLACE],
    "delete_block": [_NUMBER],
    "read": [_NUMBER, _MEMORY, _SIZE],
    "write": [_NUMBER, _MEMORY, _SIZE],
    "read_at": [_NUMBER, _NUMBER, _MEMORY, _SIZE],
    "write_at": [_NUMBER, _NUMBER, _MEMORY, _SIZE],
    "block_at": [_NUMBER, _NUMBER, _PLACE],
    "delete_range": [_NUMBER, _NUMBER, _NUMBER, _PLACE],
    "next_at": [_NUMBER, _NUMBER, _PLACE, _PLACE],
    "block_after": [_NUMBER, _NUMBER, _PLACE],
    "block_before": [_NUMBER, _NUMBER, _PLACE],
    "list_len": [_NUMBER, _PLACE],
}

_CALLS: Dict[str, Tuple[Any, List[Any]]] = {
    "lld_format": (_INT, [_WORD, _STRUCTURE]),
    "lld_open": (_HANDLE, [_WORD, _STRUCTURE, _STRUCTURE]),
    "lld_close": (_INT, [_HANDLE]),
    "lld_block_size": (_INT, [_HANDLE]),
    "lld_flush": (_INT, [_HANDLE]),
    "lld_checkpoint": (_INT, [_HANDLE]),
    "lld_clean": (_INT, [_HANDLE, _NUMBER]),
    "lld_check": (_INT, [_HANDLE, _INT, _STRUCTURE, _MEMORY, _SIZE]),
    "lld_space": (_INT, [_HANDLE, _STRUCTURE]),
    "lld_info": (_INT, [_HANDLE, _STRUCTURE]),
    "lld_counters": (_INT, [_HANDLE, _STRUCTURE]),
    "lld_next_list": (_INT, [_HANDLE, _NUMBER, _PLACE]),
    "lld_begin": (_HANDLE, [_HANDLE]),
    "lld_end": (_INT, [_HANDLE]),
    "lld_end_durable": (_INT, [_HANDLE]),
    "lld_abort": (_INT, [_HANDLE]),
    "lld_volume_create": (_INT, [_HANDLE, _WORD, _NUMBER]),
    "lld_volume_resize": (_INT, [_HANDLE, _WORD, _NUMBER]),
    "lld_volume_remove": (_INT, [_HANDLE, _WORD]),
    "lld_volume_list": (_INT, [_HANDLE, _STRUCTURE, _SIZE, _PLACE]),
    "lld_volume_open": (_HANDLE, [_HANDLE, _WORD]),
    "lld_volume_close": (_INT, [_HANDLE]),
    "lld_volume_size": (ctypes.c_int64, [_HANDLE]),
    "lld_volume_pread": (ctypes.c_ssize_t, [_HANDLE, _MEMORY, _SIZE, _NUMBER]),
    "lld_volume_pwrite": (ctypes.c_ssize_t, [_HANDLE, _MEMORY, _SIZE, _NUMBER]),
    "lld_volume_trim": (_INT, [_HANDLE, _NUMBER, _NUMBER]),
    "lld_volume_flush": (_INT, [_HANDLE]),
    "lld_unit_pread": (ctypes.c_ssize_t, [_HANDLE, _HANDLE, _MEMORY, _SIZE, _NUMBER]),
    "lld_unit_pwrite": (ctypes.c_ssize_t, [_HANDLE, _HANDLE, _MEMORY, _SIZE, _NUMBER]),
    "lld_unit_trim": (_INT, [_HANDLE, _HANDLE, _NUMBER, _NUMBER]),
    **{"lld_" + name: (_INT, [_HANDLE] + rest) for name, rest in _OPERATIONS.items()},
    **{"lld_unit_" + name: (_INT, [_HANDLE] + rest) for name, rest in _OPERATIONS.items()},
}


class Conflict(OSError):
    """A unit could not end, because others have removed what it builds on: nothing of it has happened."""


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    name = os.environ.get("FSTITCH_LLD_LIBRARY", _NAME)
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        text = f"{name} cannot be loaded, which `make install-lld` of Featherstitch installs: {error}"
        raise ImportError(text) from None
    library.lld_error.restype, library.lld_error.argtypes = ctypes.c_char_p, []
    for call, (answer, arguments) in _CALLS.items():
        function = getattr(library, call)
        function.restype, function.argtypes = answer, arguments
    return library


def whole(number: Any, bits: int = 64) -> Any:
    """A number that C has; without this it would be another one there."""
    if isinstance(number, int) and not 0 <= number < 1 << bits:
        raise OverflowError(f"{number} is no number of {bits} bits without a sign")
    return number


def call(name: str, *arguments: Any) -> int:
    """Makes a call; returns what it answers, and raises what it fails with."""
    for argument in arguments:
        whole(argument)
    answer: Optional[int] = getattr(_library(), name)(*arguments)
    if answer is None or answer < 0:
        number, text = ctypes.get_errno(), _library().lld_error().decode(errors="replace")
        raise (Conflict if number == errno.ECANCELED else OSError)(number, text)
    return answer


def number(name: str, *arguments: Any) -> int:
    """Makes a call whose last argument is a place for a number; returns it."""
    place = ctypes.c_uint64()
    call(name, *arguments, ctypes.byref(place))
    return place.value


def found(name: str, *arguments: Any) -> Optional[int]:
    """The same for a call that may find nothing."""
    place = ctypes.c_uint64()
    return place.value if call(name, *arguments, ctypes.byref(place)) else None


def filled(size: int, name: str, *arguments: Any) -> bytes:
    """What a call puts into memory of this size."""
    memory = ctypes.create_string_buffer(size)
    call(name, *arguments, memory, size)
    return memory.raw


def memory_of(data: Any) -> Tuple[Any, int]:
    """The memory of bytes, or of whatever has a buffer, and its size."""
    if not isinstance(data, bytes):
        data = bytes(memoryview(data))
    return ctypes.c_char_p(data), len(data)


def word(name: str) -> bytes:
    """A name as C has it."""
    data = name.encode()
    if b"\0" in data:
        raise OSError(errno.EINVAL, "a name with a zero byte")
    return data
