"""What calls are told and what they answer; and how C has it (fstitch_lld.h)."""

import ctypes
import enum
from typing import List, NamedTuple, Optional

OVERWRITE, COMPRESS = 1, 2
READ_ONLY, SEQUENTIAL, ACCEPT_LOSS = 1, 2, 4
NAME_SIZE = 208


class Visibility(enum.IntEnum):
    """What is read while units are open."""

    #: A unit sees its own changes, and everybody else what has ended.
    OWN = 0
    #: Everybody sees what has ended, units too.
    COMMITTED = 1
    #: Everybody sees the newest change of all.
    LATEST = 2


class Recovered(NamedTuple):
    """What opening a disk did after a crash."""

    #: Parts of the log that were done again; none of a disk that was closed.
    chunks: int
    #: What they say.
    records: int
    #: A unit had not ended, and nothing of it has happened.
    unfinished: bool
    #: The last write had not ended.
    torn: bool
    #: What was stable and is damaged, so that the state is an older one.
    damaged: Optional[str]


class Info(NamedTuple):
    """What a disk is."""

    uuid: bytes
    block_size: int
    segment_size: int
    segments: int
    free_segments: int
    blocks: int
    lists: int
    #: The number of the newest checkpoint.
    checkpoint: int
    #: How often the disk was opened for writing.
    epoch: int
    #: The number of the newest part of the log.
    chunk: int
    open_units: int
    #: Versions of blocks that open units have written.
    shadows: int
    #: 1: what is cold is compressed.
    compression: int


class Space(NamedTuple):
    """How much a disk can store, in bytes."""

    all: int
    used: int


class Counters(NamedTuple):
    """What has been written since a disk was opened."""

    chunks: int
    bytes: int
    client_bytes: int
    flushes: int
    checkpoints: int
    cleaned: int
    moved_bytes: int
    spilled_bytes: int
    unreadable: int
    #: Units that have ended, not those that were aborted or in conflict.
    units: int
    #: Those of them that were to be stable.
    durable: int
    #: Bytes that blocks take less because they were compressed.
    packed_bytes: int


class Checked(NamedTuple):
    """What a check found."""

    #: Blocks of the disk.
    blocks: int
    #: How much is wrong.
    findings: int
    #: How much of that is damage.
    corrupt: int
    #: The findings in words, the first 10,000 of them.
    texts: List[str]


class VolumeInfo(NamedTuple):
    """A volume of a disk."""

    name: str
    #: Its size.
    bytes: int
    #: Blocks that it takes.
    blocks: int
    #: The list that they are in.
    list: int


class FormatOptionsC(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("block_size", ctypes.c_uint32),
        ("segment_size", ctypes.c_uint32),
        ("uuid", ctypes.c_uint8 * 16),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 7),
    ]


class OpenOptionsC(ctypes.Structure):
    _fields_ = [
        ("cache_size", ctypes.c_uint64),
        ("checkpoint_interval", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("visibility", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 6),
    ]


class RecoveredC(ctypes.Structure):
    _fields_ = [
        ("chunks", ctypes.c_uint64),
        ("records", ctypes.c_uint64),
        ("unfinished", ctypes.c_uint32),
        ("torn", ctypes.c_uint32),
        ("damaged", ctypes.c_char * 512),
    ]


class InfoC(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_uint8 * 16),
        ("block_size", ctypes.c_uint32),
        ("segment_size", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in Info._fields[3:]),
    ]


class SpaceC(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Space._fields]


class CountersC(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Counters._fields]


class CheckedC(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("blocks", "findings", "corrupt", "text_size")]


class VolumeInfoC(ctypes.Structure):
    _fields_ = [
        ("list", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("name", ctypes.c_char * NAME_SIZE),
    ]
