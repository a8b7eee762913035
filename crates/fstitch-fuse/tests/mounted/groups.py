# The calls of docs/spec/patchgroup-ioctl.md, for scripts that tests run. The first argument is the mount.
import ctypes, errno, fcntl, os, random, signal, struct, sys, threading, time

ROOT = sys.argv[1]
HERE = os.open(ROOT, os.O_RDONLY)


def call(number, *words, on=None):
    data = bytearray(struct.pack("%dI" % len(words), *words))
    fcntl.ioctl(HERE if on is None else on, number, data)
    return struct.unpack("%dI" % len(words), data)


def fails(expected, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except OSError as error:
        assert error.errno == expected, (error, errno.errorcode[expected])
        return
    raise AssertionError("succeeded")


def version():
    return call(0xC010F500, 0, 0, 0, 0)


def create():
    return call(0xC008F501, 0, 0)[1]


def depend(after, before):
    call(0x4008F502, after, before)


def engage(group):
    call(0x4008F503, group, 0)


def disengage(group):
    call(0x4008F504, group, 0)


def sync(group):
    call(0x4008F505, group, 0)


def close(group):
    call(0x4008F506, group, 0)


def engage_fd(group, fd):
    call(0x4008F507, group, 0, on=fd)


def disengage_fd(group, fd):
    call(0x4008F508, group, 0, on=fd)


def order_begin(durable_every_ms=0):
    call(0x4008F510, 0, durable_every_ms)


def order_end():
    fcntl.ioctl(HERE, 0xF511)


def order_users():
    words = call(0xC100F512, *([0] * 64))
    return list(words[4 : 4 + 2 * words[2] : 2])


def touch(name):
    os.close(os.open(os.path.join(ROOT, name), os.O_CREAT | os.O_WRONLY, 0o644))


def child(function):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid


def join(pid):
    assert os.waitpid(pid, 0)[1] == 0
