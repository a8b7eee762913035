"""BPFS on persistent memory: a machine under qemu is killed at a random moment, over and over, and what had returned is there.

The machine has an NVDIMM, which is a file here that survives its kill, and Debian's kernel. A program of ours
(crates/fstitch-bpfs/examples/dax.rs) makes a volume there, on
  - a file of ext4 mounted with `-o dax`, which is mapped with MAP_SYNC,
  - `/dev/dax0.0`, mapped with MAP_SYNC as well,
  - `/dev/pmem0` itself, of which no mapping is synchronous: it must say so, and promises nothing against a power cut,
and carries out operations, each of which is printed on the serial line when it has returned. After the kill the machine boots again,
ext4 replays its journal, the volume is opened and checked, and must be exactly what the model of a file system has after all
operations that were printed, or after one of the next ones: a line holds back some of what was printed. Then it goes on, and is killed
again. Processors with `clwb`, with `clflushopt` and with neither take turns: qemu ends a program that uses what its processor lacks.

What this cannot see is a line that was not written back: a kill of qemu loses nothing that its processor has stored. That is what the
crash tests are for, which cut after every store and leave words of an epoch out.
"""

import os
import random
import re
import select
import shutil
import subprocess
import time

import common
import guests

MODULES = ("crc32c_generic", "nfit", "nd_pmem", "dax_pmem", "device_dax", "ext4")
PROGRAMS = ("ndctl", "mkfs.ext4", "busybox")
VOLUME = 32 << 20
NVDIMM = 256 << 20
# Seconds until a machine that says nothing is ended.
PATIENCE = 600
# What a processor has, by what qemu calls it, and the instruction that is to be used.
PROCESSORS = {"max": "clwb", "max,-clwb": "clflushopt", "max,-clwb,-clflushopt": "clflush"}
MADE = {"ext4": f"""
ndctl create-namespace -f -e namespace0.0 -m fsdax || echo '> no fsdax'
mkfs.ext4 -q -F -b 4096 /dev/pmem0
mount -t ext4 -o dax=always /dev/pmem0 /at
dd if=/dev/zero of=/at/volume bs=1 count=0 seek={VOLUME} 2>/dev/null
sync
/dax make /at/volume
""", "devdax": """
ndctl create-namespace -f -e namespace0.0 -m devdax || echo '> no devdax'
/dax make /dev/dax0.0
""", "pmem": """
ndctl create-namespace -f -e namespace0.0 -m fsdax || echo '> no fsdax'
/dax make /dev/pmem0
"""}
OPENED = {"ext4": "mount -t ext4 -o dax=always /dev/pmem0 /at", "devdax": "", "pmem": ""}
PATHS = {"ext4": "/at/volume", "devdax": "/dev/dax0.0", "pmem": "/dev/pmem0"}
SAID = {"ext4": "Power", "devdax": "Power", "pmem": "Process"}

FIRST = """#!/busybox sh
export PATH=/
for name in mount insmod sh dd sync cat grep tr sleep ls dmesg tail; do /busybox ln -s busybox /$name; done
mount -t devtmpfs none /dev
exec </dev/console >/dev/console 2>&1
mount -t proc none /proc
mount -t sysfs none /sys
for module in $(cat /modules); do insmod $module || echo "> no $module"; done
echo
echo "> processor $(grep -m1 ^flags /proc/cpuinfo | grep -o -w -e clflush -e clflushopt -e clwb | tr '\\n' ' ')"
"""


def libraries(path):
    """A program and the libraries that it is linked with."""
    said = common.run("ldd", path, ok=(0, 1)).stdout
    return [path, *re.findall(r"(/\S+) \(0x", said)]


def archive(path, kernel_modules, program, script):
    """The first file system of the machine: our program, Debian's, modules, and what is done first."""
    files = guests.module_files(kernel_modules, MODULES)
    entries = {name: None for name in ("dev", "proc", "sys", "at", "etc", "run")}
    entries |= {f"m{no}.ko": guests.read(file) for no, file in enumerate(files)}
    entries["modules"] = "".join(f"/m{no}.ko\n" for no in range(len(files))).encode()
    entries["etc/mke2fs.conf"] = guests.read("/etc/mke2fs.conf")
    for name in (program, *map(shutil.which, PROGRAMS)):
        top, *others = libraries(name)
        entries["dax" if name == program else os.path.basename(top)] = guests.read(os.path.realpath(top))
        for library in others:
            at = ""
            for part in os.path.dirname(library).strip("/").split("/"):
                at = f"{at}/{part}".strip("/")
                entries.setdefault(at, None)
            entries[library.strip("/")] = guests.read(os.path.realpath(library))
    entries["init"] = (FIRST + script).encode()
    guests.archive(path, entries)


class Machine:
    """A machine that runs until it is killed."""

    def __init__(self, work, kernel, processor):
        memory = f"memory-backend-file,id=nv,share=on,mem-path={work}/nvdimm,size={NVDIMM}"
        words = [
            "qemu-system-x86_64", "-accel", "tcg", "-machine", "pc,nvdimm=on", "-m", "768M,slots=2,maxmem=2G", "-cpu", processor,
            "-object", memory, "-device", "nvdimm,id=nvdimm,memdev=nv", "-nographic", "-no-reboot", "-nic", "none", "-kernel",
            kernel, "-initrd", f"{work}/initramfs", "-append", "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check rdinit=/init",
        ]
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.said = b""

    def lines(self):
        """What was said in whole lines, without what the BIOS has left on the line."""
        text = self.said.decode("utf-8", "replace").rpartition("\n")[0]
        return [line.rstrip("\r") for line in text.split("\n") if line.startswith("> ")]

    def until(self, pattern):
        """Waits for a line. Returns it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = [line for line in self.lines() if re.match(pattern, line)]
            if found:
                return found[0]
            if not self.hear(1.0):
                break
        ended = self.process.poll()
        how = "and says no more" if ended is None else f"and has ended with {ended}"
        raise common.Failure(f"no `{pattern}`, {how}:\n{self.said.decode('utf-8', 'replace')[-1500:]}")

    def hear(self, seconds):
        """Takes what is said within so many seconds; false when nothing more will be."""
        if select.select([self.process.stdout], [], [], seconds)[0]:
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            self.said += more
            return bool(more)
        return True

    def kill(self):
        """The power is cut. What was on the line is heard."""
        self.process.kill()
        self.process.wait()
        while self.hear(0.0) and select.select([self.process.stdout], [], [], 0.0)[0]:
            pass
        self.process.stdout.close()


def printed(lines):
    """How many operations were printed as done."""
    return max((int(line.split()[2]) for line in lines if re.fullmatch(r"> done \d+", line)), default=0)


def started(work, kernel, processor):
    """A machine whose first program runs, and what its processor has. On a busy host a kernel may find that its clocks lie, and end."""
    for attempt in range(3):
        machine = Machine(work, kernel, processor)
        try:
            return machine, machine.until("> processor").split()[2:]
        except common.Failure as failure:
            machine.kill()
            if attempt == 2:
                raise
            print(f"     another start: {str(failure).splitlines()[0]}", flush=True)
    raise AssertionError("the last attempt returns or raises")


def boot(work, kernel, modules, program, processor, script):
    archive(f"{work}/initramfs", modules, program, script)
    machine, flags = started(work, kernel, processor)
    instruction = PROCESSORS[processor]
    all_of_them = list(PROCESSORS.values())
    if instruction not in flags or any(name in flags for name in all_of_them[: all_of_them.index(instruction)]):
        machine.kill()
        raise common.Failure(f"a processor for {instruction} has {flags}")
    return machine


def exercise(options, work, kernel, modules, program, kind, processor, source):
    """Makes a volume, and cuts the power again and again. Returns how many operations there were."""
    with open(f"{work}/nvdimm", "wb") as file:
        file.truncate(NVDIMM)
    # Who has not mounted ext4 anew sees only what its journal holds.
    machine = boot(work, kernel, modules, program, processor, MADE[kind] + "sync\necho '> ready'\nsleep 1000\n")
    try:
        medium = machine.until("> medium")
        machine.until("> made")
        machine.until("> ready")
    finally:
        machine.kill()
    if not medium.endswith(f" {SAID[kind]}"):
        raise common.Failure(f"the volume is to be durable as {SAID[kind]}, and says: {medium}")
    if SAID[kind] != "Power":
        return 0
    done = 0
    for _ in range(options.kills):
        script = f"{OPENED[kind]}\n/dax work {PATHS[kind]} {done}\necho '> ended'\nsleep 1000\n"
        machine = boot(work, kernel, modules, program, processor, script)
        try:
            said = machine.until("> (found|LOST|ended)")
            if not said.startswith("> found"):
                raise common.Failure(f"{done} operations were printed: {machine.said.decode('utf-8', 'replace')[-1500:]}")
            machine.until(rf"> done {int(said.split()[2]) + 1}")
            end = time.monotonic() + source.uniform(0.2, options.seconds)
            while time.monotonic() < end and machine.hear(0.05):
                pass
        finally:
            machine.kill()
        if "> ended" in machine.lines():
            raise common.Failure(f"the program ended:\n{machine.said.decode('utf-8', 'replace')[-1500:]}")
        before, done = done, printed(machine.lines())
        print(f"     {said[2:]} of {before} printed; killed after {done}", flush=True)
    machine = boot(work, kernel, modules, program, processor, f"{OPENED[kind]}\n/dax work {PATHS[kind]} {done}\nsleep 1000\n")
    try:
        machine.until("> (found|LOST)")
    finally:
        machine.kill()
    if any(line.startswith("> LOST") for line in machine.lines()):
        raise common.Failure(f"{done} operations were printed: they are not there")
    return done


def sees_what_is_lost(work, kernel, modules, program):
    """A volume that is older than what was printed is seen as such."""
    with open(f"{work}/nvdimm", "wb") as file:
        file.truncate(NVDIMM)
    script = MADE["devdax"] + "/dax work /dev/dax0.0 300\necho '> ended'\nsleep 1000\n"
    machine = boot(work, kernel, modules, program, "max", script)
    try:
        said = machine.until("> (found|LOST)")
    finally:
        machine.kill()
    if not said.startswith("> LOST"):
        raise common.Failure(f"an empty volume passed for one with 300 operations: {said}")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--kills", type=int, default=5, help="kills of each case (default 5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="latest moment of a kill behind the first operation (default 4)")
    parser.add_argument("--seed", default=None, help="repeats the moments of an earlier invocation")
    guests.kernel_options(parser)
    options = parser.parse_args()
    guests.check_options(parser, options)
    common.require(commands=("qemu-system-x86_64", "ldd", "cargo", *PROGRAMS))
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    summary, total = common.Summary(f"BPFS on persistent memory (seed {seed})"), 0
    with common.workdir(options, "dax") as work:
        program = common.example("fstitch-bpfs", "dax")
        kernel, modules = guests.debian_kernel(options, work)
        with summary.case("a volume that is older than what was printed is seen"):
            sees_what_is_lost(work, kernel, modules, program)
        cases = [(kind, "max") for kind in ("pmem",)] + [(kind, cpu) for cpu in PROCESSORS for kind in ("ext4", "devdax")]
        for kind, processor in cases:
            with summary.case(f"{PATHS[kind]}, {PROCESSORS[processor]}"):
                total += exercise(options, work, kernel, modules, program, kind, processor, random.Random(f"{seed}/{kind}/{processor}"))
    print(f"{total} operations were printed as done, all are there", flush=True)
    summary.end()


if __name__ == "__main__":
    main()
