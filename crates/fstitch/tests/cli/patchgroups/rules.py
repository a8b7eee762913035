"""The rules of groups, by the module, in the current directory: rules.py fallback|mounted."""

import errno
import os
import sys

import patchgroup


def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, (error, number)
    else:
        raise AssertionError(f"{call} was not refused")


def enter(group, file=None):
    with group.engaged(file):
        pass


fallback = sys.argv[1] == "fallback"
if fallback:
    try:
        patchgroup.Volume(".")
    except patchgroup.Unsupported as error:
        assert error.filename == ".", error
    else:
        raise AssertionError("this file system has patchgroups")

with patchgroup.Volume(".", or_fsync=fallback) as volume:
    first, second, third = (volume.group() for _ in range(3))
    with first.engaged():
        refused(errno.EBUSY, enter, first)
        refused(errno.EBUSY, second.depend_on, first)
        refused(errno.EINVAL, first.depend_on, third)
        open("a", "w").close()
    second.depend_on(first, third)
    refused(errno.EINVAL, enter, first)
    refused(errno.EINVAL, second.depend_on, second)
    with open("b", "w") as file:
        with second.engaged(file), volume.group().engaged():
            file.write("b")
            file.flush()
    second.sync()
    with open("/proc/self/stat") as other:
        refused(errno.EXDEV, enter, second, other)
    number = first.number
    first.close()
    again = volume.group()
    assert again.number == number, (again.number, number)
    # A child has a copy: what it closes stays with its parent.
    child = os.fork()
    if child == 0:
        again.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    enter(again)
    if not fallback:
        with volume.ordered(durable_every=5):
            with open("c", "w") as file:
                os.fsync(file.fileno())
