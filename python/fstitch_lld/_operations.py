"""Lists and blocks: the same for a disk and for a unit."""

import ctypes
from typing import Any, Iterator, Optional, Tuple

from ._library import call, filled, found, memory_of, number


class Operations:
    """What can be done with lists and blocks. Numbers of lists and blocks begin with 1."""

    #: How the calls begin.
    _prefix = "lld_"
    _handle: Optional[int] = None

    @property
    def block_size(self) -> int:
        """Bytes of a block."""
        raise NotImplementedError

    def _call(self, name: str, *arguments: Any) -> int:
        return call(self._prefix + name, self._handle, *arguments)

    def _number(self, name: str, *arguments: Any) -> int:
        return number(self._prefix + name, self._handle, *arguments)

    def _found(self, name: str, *arguments: Any) -> Optional[int]:
        return found(self._prefix + name, self._handle, *arguments)

    def new_list(self, sparse: bool = False) -> int:
        """Makes a list: ordered, or sparse, whose blocks have positions with gaps between them."""
        return self._number("new_list", int(sparse))

    def delete_list(self, list: int) -> None:
        """Removes a list with its blocks."""
        self._call("delete_list", list)

    def new_block(self, list: int, *, after: Optional[int] = None, position: Optional[int] = None) -> int:
        """Makes a block, which reads as zeros: in front of all others, behind another one, or at a position of a sparse
        list."""
        if after is not None and position is not None:
            raise ValueError("a block goes behind another one or to a position, not both")
        if after is not None:
            return self._number("new_block_after", list, after)
        if position is not None:
            return self._number("new_block_at", list, position)
        return self._number("new_block", list)

    def delete_block(self, block: int) -> None:
        """Removes a block."""
        self._call("delete_block", block)

    def read(self, block: int) -> bytes:
        """The contents of a block."""
        return filled(self.block_size, self._prefix + "read", self._handle, block)

    def write(self, block: int, data: Any) -> None:
        """Writes a block; the data must be of its size."""
        self._call("write", block, *memory_of(data))

    def read_at(self, list: int, position: int) -> bytes:
        """The contents of the block at a position of a sparse list; zeros where there is none."""
        return filled(self.block_size, self._prefix + "read_at", self._handle, list, position)

    def write_at(self, list: int, position: int, data: Any) -> None:
        """Writes the block at a position of a sparse list; makes it where there is none."""
        self._call("write_at", list, position, *memory_of(data))

    def block_at(self, list: int, position: int) -> Optional[int]:
        """The block at a position of a list; those of an ordered one are counted from 0."""
        return self._found("block_at", list, position)

    def delete_range(self, list: int, start: int, stop: int) -> int:
        """Removes the blocks of a sparse list at the positions from start up to stop, which stays. Returns how many there
        were. Outside of a unit not all at once."""
        if stop <= start:
            return 0
        return self._number("delete_range", list, start, stop - 1)

    def next_at(self, list: int, position: int = 0) -> Optional[Tuple[int, int]]:
        """The first position of a sparse list from this one on that has a block, and the block."""
        at, block = ctypes.c_uint64(), ctypes.c_uint64()
        if not self._call("next_at", list, position, ctypes.byref(at), ctypes.byref(block)):
            return None
        return at.value, block.value

    def block_after(self, list: int, block: int) -> Optional[int]:
        """The block behind one in its list."""
        return self._found("block_after", list, block)

    def block_before(self, list: int, block: int) -> Optional[int]:
        """The block in front of one in its list."""
        return self._found("block_before", list, block)

    def list_len(self, list: int) -> int:
        """How many blocks a list has."""
        return self._number("list_len", list)

    def blocks(self, list: int) -> Iterator[int]:
        """The blocks of a list in their order. The list may change meanwhile, but not the block that was given last."""
        block = self.block_at(list, 0)
        if block is None and self.list_len(list) > 0:
            _, block = self.next_at(list) or (0, None)
        while block is not None:
            yield block
            block = self.block_after(list, block)
