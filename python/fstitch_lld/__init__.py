"""Logical disks: blocks and lists instead of sectors, and any changes as a whole.

    import fstitch_lld

    fstitch_lld.Disk.format("disk.lld", size=64 << 20)
    with fstitch_lld.Disk.open("disk.lld") as disk:
        names = disk.new_list()
        with disk.aru(durable=True) as unit:
            first = unit.new_block(names)
            second = unit.new_block(names, after=first)
            unit.write(first, b"1" * disk.block_size)
            unit.write(second, b"2" * disk.block_size)

After a crash at any moment both blocks are there, or neither is. What fails raises OSError with its errno and a text.
The module loads libfstitch_lld.so.0 of Featherstitch (make install-lld), or the library that the environment names in
FSTITCH_LLD_LIBRARY. User's page: docs/lld.md.
"""

from ._disk import Disk
from ._library import Conflict
from ._operations import Operations
from ._unit import Unit
from ._values import Checked, Counters, Info, Recovered, Space, Visibility, VolumeInfo
from ._volume import UnitVolume, Volume

__all__ = [
    "Checked",
    "Conflict",
    "Counters",
    "Disk",
    "Info",
    "Operations",
    "Recovered",
    "Space",
    "Unit",
    "UnitVolume",
    "Visibility",
    "Volume",
    "VolumeInfo",
]
