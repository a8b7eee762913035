"""The module as its users have it: test_fstitch_lld.py, with FSTITCH_LLD_LIBRARY and in a directory for disks."""

import errno
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import unittest
import uuid
import warnings

import fstitch_lld
from fstitch_lld import Conflict, Disk, Visibility

BLOCK = 4096
ONE, TWO, ZEROS = b"\1" * BLOCK, b"\2" * BLOCK, bytes(BLOCK)

#: Makes unit after unit until it is killed, and says which ones are durable.
WORKER = """
import fstitch_lld, itertools, sys
with fstitch_lld.Disk.open(sys.argv[1], cache_size=512 << 10) as disk:
    first = int.from_bytes(disk.read_at(2, 0)[:8], "big")
    for n in itertools.count(first + 1):
        with disk.aru(durable=n % 3 == 0) as unit:
            for position in range(40):
                unit.write_at(2, position, n.to_bytes(8, "big") * (disk.block_size // 8))
        if n % 3 == 0:
            print(n, flush=True)
"""


class OfDisk(unittest.TestCase):
    """Tests with a disk of their own."""

    def setUp(self):
        self.path = f"{self.id()}.lld"
        Disk.format(self.path, size=32 << 20)
        self.disk = Disk.open(self.path)
        self.addCleanup(lambda: self.disk.close())

    def reopened(self, **options):
        self.disk.close()
        self.disk = Disk.open(self.path, **options)
        return self.disk

    def fails(self, number, call, *arguments, **options):
        with self.assertRaises(OSError) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.errno, number, caught.exception)
        return caught.exception


class Disks(OfDisk):
    def test_what_is_formatted_is_opened(self):
        name = uuid.uuid4()
        self.fails(errno.EEXIST, Disk.format, self.path, 32 << 20)
        self.disk.close()
        Disk.format(self.path, 16 << 20, block_size=512, segment_size=1 << 16, uuid=name, overwrite=True)
        with Disk.open(self.path) as disk:
            info = disk.info()
            self.assertEqual((info.uuid, info.block_size, info.segment_size), (name.bytes, 512, 1 << 16))
            self.assertEqual((disk.block_size, info.lists, info.open_units), (512, 0, 0))
            self.assertEqual(disk.recovered, (0, 0, False, False, None))
            self.assertEqual(info.compression, 0)

    def test_what_is_cold_is_compressed(self):
        self.disk.close()
        Disk.format(self.path, 8 << 20, segment_size=1 << 16, overwrite=True, compress=True)
        with Disk.open(self.path) as disk:
            self.assertEqual(disk.info().compression, 1)
            some = disk.new_list(sparse=True)
            for position in range(200):
                disk.write_at(some, position, bytes([position]) * 4096)
            for position in range(0, 200, 4):
                disk.write_at(some, position, bytes([position]) * 4096)
            disk.flush()
            disk.clean(8)
            self.assertGreater(disk.counters().packed_bytes, 100 * 3584)
            self.assertEqual(disk.read_at(some, 7), b"\x07" * 4096)

    def test_one_opener_at_a_time(self):
        self.assertIn("in use", str(self.fails(errno.EBUSY, Disk.open, self.path)))
        self.assertIsInstance(self.fails(errno.ENOENT, Disk.open, "none.lld"), FileNotFoundError)
        self.disk.close()
        with Disk.open(self.path, read_only=True) as one, Disk.open(self.path, read_only=True):
            self.fails(errno.EROFS, one.new_list)
        self.fails(errno.EINVAL, self.disk.flush)

    def test_what_it_says_of_itself(self):
        disk = self.disk
        sparse = disk.new_list(sparse=True)
        for position in range(50):
            disk.write_at(sparse, position, ONE)
        disk.flush()
        disk.checkpoint()
        disk.clean(1)
        counters, space, checked = disk.counters(), disk.space(), disk.check()
        self.assertEqual(counters.client_bytes, 50 * BLOCK)
        self.assertGreater(counters.bytes, counters.client_bytes)
        self.assertTrue(50 * BLOCK <= space.used < space.all < 32 << 20)
        self.assertEqual((checked.blocks, checked.findings, checked.texts), (50, 0, []))

    def test_damage_is_listed(self):
        sparse, marks = self.disk.new_list(sparse=True), [os.urandom(BLOCK) for _ in range(700)]
        for position, mark in enumerate(marks):
            self.disk.write_at(sparse, position, mark)
        self.disk.close()
        with open(self.path, "r+b") as file:
            image = file.read()
            for mark in marks:
                file.seek(image.index(mark) + 9)
                file.write(bytes([mark[9] ^ 1]))
        disk = self.reopened()
        checked = disk.check()
        self.assertEqual((checked.findings, checked.corrupt, len(checked.texts)), (700, 700, 700))
        self.assertTrue(all(text.startswith("[contents] ") for text in checked.texts))
        self.assertEqual(disk.check(contents=False).findings, 0)
        self.fails(errno.EUCLEAN, disk.read_at, sparse, 3)

    def test_one_that_is_forgotten_is_closed_and_says_so(self):
        self.disk.close()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            Disk.open(self.path).new_list()
            gc.collect()
        self.assertEqual([warning.category for warning in warned], [ResourceWarning])
        self.assertEqual(self.reopened().recovered.chunks, 0)

    def test_a_child_leaves_it_alone(self):
        unit = self.disk.aru()
        unit.new_list()
        if os.fork() == 0:
            try:
                self.disk.flush()
            except OSError as error:
                os._exit(0 if error.errno == errno.EINVAL else 2)
            os._exit(1)
        self.assertEqual(os.wait()[1], 0)
        unit.end()
        self.assertEqual(list(self.disk.lists()), [1])


class Lists(OfDisk):
    def test_blocks_are_in_the_order_of_a_list(self):
        disk, model, seed = self.disk, [], random.Random(7)
        names = disk.new_list()
        for _ in range(300):
            at = seed.randrange(len(model) + 1)
            if at < len(model) and seed.random() < 0.3:
                disk.delete_block(model.pop(at))
            else:
                model.insert(at, disk.new_block(names, after=model[at - 1] if at else None))
        for disk in (lambda: self.disk, self.reopened):
            disk = disk()
            self.assertEqual(list(disk.blocks(names)), model)
            self.assertEqual(disk.list_len(names), len(model))
            self.assertEqual([disk.block_at(names, at) for at in range(len(model) + 1)], model + [None])
            self.assertEqual([disk.block_before(names, block) for block in model], [None] + model[:-1])
            self.assertEqual([disk.block_after(names, block) for block in model], model[1:] + [None])

    def test_sparse_lists(self):
        disk = self.disk
        sparse = disk.new_list(sparse=True)
        block = disk.new_block(sparse, position=2**64 - 1)
        disk.write_at(sparse, 5, bytearray(ONE))
        disk.write_at(sparse, 9, memoryview(TWO))
        self.assertEqual(disk.next_at(sparse)[0], 5)
        self.assertEqual(disk.next_at(sparse, 10), (2**64 - 1, block))
        self.assertEqual([disk.read_at(sparse, at) for at in (5, 6, 9)], [ONE, ZEROS, TWO])
        self.assertEqual(list(disk.blocks(sparse)), [disk.block_at(sparse, at) for at in (5, 9, 2**64 - 1)])
        self.assertEqual(disk.delete_range(sparse, 5, 9), 1)
        self.assertEqual(disk.delete_range(sparse, 9, 9), 0)
        self.assertEqual(disk.delete_range(sparse, 0, 2**64), 2)
        self.assertIsNone(disk.next_at(sparse))
        self.fails(errno.EINVAL, disk.new_block, sparse)
        disk.delete_list(sparse)
        self.assertEqual(list(disk.lists()), [])
        self.fails(errno.ENOENT, disk.list_len, sparse)

    def test_what_is_no_block_is_refused(self):
        names = self.disk.new_list()
        block = self.disk.new_block(names)
        self.fails(errno.EINVAL, self.disk.write, block, b"short")
        self.fails(errno.EINVAL, self.disk.write, block, ONE + b"1")
        self.assertRaises(TypeError, self.disk.write, block, "text")
        self.assertRaises(OverflowError, self.disk.read, -1)
        self.assertRaises(OverflowError, self.disk.read, 2**64 + block)
        self.assertRaises(ValueError, self.disk.new_block, names, after=block, position=1)
        self.assertEqual(self.disk.read(block), ZEROS)


class Units(OfDisk):
    def test_all_or_nothing(self):
        names = self.disk.new_list()
        with self.disk.aru() as unit:
            first = unit.new_block(names)
            unit.write(first, ONE)
            self.assertEqual((unit.read(first), self.disk.list_len(names)), (ONE, 0))
        self.assertTrue(unit.has_ended)
        with self.assertRaisesRegex(KeyError, "mine"):
            with self.disk.aru() as unit:
                unit.write(first, TWO)
                unit.new_block(names, after=first)
                raise KeyError("mine")
        self.assertEqual((self.disk.read(first), self.disk.list_len(names)), (ONE, 1))
        self.fails(errno.EINVAL, unit.read, first)
        self.fails(errno.EINVAL, unit.end)
        with self.disk.aru() as unit:
            unit.write(first, TWO)
            unit.abort()
        self.assertEqual(self.reopened().read(first), ONE)

    def test_a_conflict_names_what_is_gone(self):
        names = self.disk.new_list()
        block = self.disk.new_block(names)
        with self.assertRaisesRegex(Conflict, f"block {block} is gone") as caught:
            with self.disk.aru(durable=True) as unit:
                unit.write(block, ONE)
                self.disk.delete_block(block)
        self.assertEqual(caught.exception.errno, errno.ECANCELED)

    def test_what_readers_see(self):
        for visibility, outside, inside in (
            (Visibility.OWN, ONE, TWO),
            (Visibility.COMMITTED, ONE, ONE),
            (Visibility.LATEST, TWO, TWO),
        ):
            disk = self.reopened(visibility=visibility)
            sparse = disk.new_list(sparse=True)
            disk.write_at(sparse, 0, ONE)
            unit = disk.aru()
            unit.write_at(sparse, 0, TWO)
            self.assertEqual((disk.read_at(sparse, 0), unit.read_at(sparse, 0)), (outside, inside), visibility)
            unit.end()
            self.assertEqual(disk.read_at(sparse, 0), TWO)

    def test_one_after_the_other(self):
        disk, ended = self.reopened(sequential=True), []
        unit = disk.aru()
        self.fails(errno.EDEADLK, disk.aru)

        def other():
            with disk.aru():
                ended.append("other")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.1)
        ended.append("first")
        unit.end()
        thread.join()
        self.assertEqual(ended, ["first", "other"])

    def test_those_that_are_forgotten_or_open_at_the_end_are_aborted(self):
        self.disk.create_volume("v", BLOCK)
        self.disk.aru().new_list()
        self.assertEqual(self.disk.info().open_units, 0)
        unit, volume = self.disk.aru(), self.disk.volume("v")
        unit.new_list()
        disk = self.reopened()
        self.assertTrue(unit.has_ended)
        self.fails(errno.EINVAL, volume.flush)
        self.assertEqual(len(list(disk.lists())), 2)

    def test_a_kill_leaves_whole_units(self):
        self.disk.create_volume("x", BLOCK)
        self.assertEqual(self.disk.new_list(sparse=True), 3)
        self.disk.delete_list(2)
        self.disk.close()
        worker = WORKER.replace("(2, ", "(3, ")
        for lines in (1, 4, 9):
            command = [sys.executable, "-c", worker, self.path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                said = [int(child.stdout.readline()) for _ in range(lines)]
                child.send_signal(signal.SIGKILL)
                said += map(int, child.stdout.read().split())
            self.assertEqual(child.returncode, -signal.SIGKILL)
            with Disk.open(self.path) as disk:
                there = {disk.read_at(3, position) for position in range(40)}
                self.assertEqual(len(there), 1)
                last = there.pop()
                self.assertEqual(last, last[:8] * (BLOCK // 8))
                self.assertGreaterEqual(int.from_bytes(last[:8], "big"), said[-1])
                self.assertEqual(disk.check().texts, [])


class OfVolumes(OfDisk):
    def test_they_are_made_resized_and_removed(self):
        disk = self.disk
        self.assertEqual(disk.volumes(), [])
        self.fails(errno.ENOENT, disk.volume, "v00")
        for number in range(20):
            disk.create_volume(f"v{number:02}", (number + 1) * BLOCK)
        self.fails(errno.EEXIST, disk.create_volume, "v00", BLOCK)
        self.fails(errno.EINVAL, disk.create_volume, "a/b", BLOCK)
        self.fails(errno.EINVAL, disk.create_volume, "a\0b", BLOCK)
        disk.create_volume("ä", BLOCK)
        disk.remove_volume("v07")
        disk.resize_volume("v01", 1 << 30)
        volumes = self.reopened().volumes()
        names = [f"v{number:02}" for number in range(20) if number != 7] + ["ä"]
        self.assertEqual([volume.name for volume in volumes], names)
        self.assertEqual([volume.bytes for volume in volumes[:3]], [BLOCK, 1 << 30, 3 * BLOCK])
        with self.disk.volume("v02") as volume:
            self.fails(errno.EBUSY, self.disk.remove_volume, "v02")
            self.assertEqual(volume.size, 3 * BLOCK)
            self.disk.resize_volume("v02", BLOCK)
            self.assertEqual(volume.size, BLOCK)
        self.disk.remove_volume("v02")

    def test_bytes_against_an_array(self):
        seed, size = random.Random(11), 10 * BLOCK
        self.disk.create_volume("v", size)
        model, volume = bytearray(size), self.disk.volume("v")
        for step in range(400):
            offset = seed.choice((seed.randrange(size), seed.randrange(10) * BLOCK))
            length = min(seed.choice((1, 100, BLOCK, 3 * BLOCK + 7, 2 * BLOCK)), size - offset)
            what = seed.randrange(4)
            if what == 0:
                volume.trim(offset, length)
                model[offset : offset + length] = bytes(length)
            elif what == 1:
                self.assertEqual(volume.pread(length, offset), model[offset : offset + length], step)
            else:
                data = seed.randbytes(length)
                with self.disk.aru() as unit:
                    where = unit.volume(volume) if what == 3 else volume
                    self.assertEqual(where.pwrite(data, offset), length)
                    self.assertEqual(where.pread(length, offset), data)
                model[offset : offset + length] = data
        self.assertEqual(self.reopened().volume("v").pread(2 * size, 0), model)

    def test_a_unit_has_its_own_bytes(self):
        self.disk.create_volume("v", 4 * BLOCK)
        with self.disk.volume("v") as volume:
            volume.pwrite(b"before", 10)
            with self.assertRaises(ZeroDivisionError), self.disk.aru() as unit:
                inside = unit.volume(volume)
                inside.pwrite(b"inside", 10)
                inside.trim(12, 2)
                self.assertEqual((inside.pread(6, 10), volume.pread(6, 10)), (b"in\0\0de", b"before"))
                1 / 0
            self.assertEqual(volume.pread(6, 10), b"before")
            self.fails(errno.EINVAL, inside.pread, 6, 10)
            self.fails(errno.EINVAL, volume.pwrite, b"12", 4 * BLOCK - 1)
            self.assertRaises(OverflowError, volume.pread, 1, -1)
            self.assertEqual((volume.pread(9, 4 * BLOCK), volume.pread(9, 4 * BLOCK - 2)), (b"", b"\0\0"))
            volume.flush()
        self.fails(errno.EINVAL, volume.pread, 1, 0)


class Module(unittest.TestCase):
    def test_a_library_that_is_not_there_is_named(self):
        environment = {**os.environ, "FSTITCH_LLD_LIBRARY": "/nowhere/lib.so"}
        script = "import fstitch_lld; fstitch_lld.Disk.format('x')"
        ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("ImportError: /nowhere/lib.so cannot be loaded", ran.stderr)

    def test_the_calls_are_those_of_the_header(self):
        with open(os.path.join(os.path.dirname(__file__), "../../fstitch_lld.h")) as header:
            calls = set(re.findall(r"\b(lld_\w+)\(", header.read()))
        self.assertEqual({"lld_error", *fstitch_lld._library._CALLS}, calls)

    def test_everything_public_says_what_it_is_for(self):
        for name in fstitch_lld.__all__:
            of = getattr(fstitch_lld, name)
            self.assertTrue(of.__doc__, name)
            for member, value in vars(of).items():
                if member.startswith("_") or hasattr(of, "_fields") or not callable(getattr(of, member)):
                    continue
                self.assertTrue(value.__doc__, f"{name}.{member}")
                self.assertIn("return", getattr(value, "__func__", value).__annotations__, f"{name}.{member}")


if __name__ == "__main__":
    unittest.main()
