"""Kills disks and daemons under load, on volumes of 2 to 10 disks, and looks at what is left each time.

Every run is made by its number and the seed alone: the disks, the policy, the blocks, what happens and when. A failing run prints the line that
repeats it. One disk is served by `fstitch faults serve` and dies when it is told; what happens beside that is one of
  - degraded: nothing else, the volume is used on without it,
  - kill: the daemon is killed some moments after the disk died, or just before,
  - replace: another disk takes its place in the mount, and the daemon is killed while that is rebuilt,
  - hot: a hot spare is there, takes its place by itself, and the daemon is killed at some moment of that.

While disks die and the policy keeps copies elsewhere, no call of the load may fail. Afterwards
  - every file of which an fsync had returned is there, whole; of a policy that keeps metadata alone twice, a file that is not can be read in no
    part that is wrong, and `fstitch health` names it,
  - the disk is replaced, if it was not, and rebuilt, though the daemon was killed in the middle of it,
  - our checker finds nothing,
  - then each file is there without another disk as well, whichever that is: what was rebuilt is whole.
"""

import hashlib
import json
import os
import random
import subprocess
import threading
import time

import common

EVENTS = ("degraded", "kill", "replace", "hot")
MIRROR = '[all]\nread = [{0}"retry 1", "mirror"]\nwrite = [{0}"mirror other-disk", "remap"]\n'
JOURNAL = '[journal]\nread = ["retry 2", "mirror"]\nwrite = ["mirror other-disk"]\n'
POLICIES = {
    "d-graid": None,
    "mirror": 'description = "All of it twice."\n' + MIRROR.format("") + JOURNAL,
    "verify": 'description = "All of it twice, with sums."\n' + MIRROR.format('"verify", ') + JOURNAL,
    "metadata": 'description = "What leads to files twice."\n' + MIRROR.format("").replace("[all]", "[metadata]") + JOURNAL,
}
# How long a disk of these sizes may take to be rebuilt, on a loaded machine.
REBUILD_SECONDS = 60


class Run:
    """The choices of one run."""

    def __init__(self, seed, number):
        source = random.Random(f"{seed}/{number}")
        self.number = number
        self.event = EVENTS[number % len(EVENTS)]
        self.disks = source.randrange(2, 11)
        self.policy = source.choice(["d-graid", "d-graid", "mirror", "verify", "metadata"])
        # Disks of this size have no room for a journal of large blocks twice, where contents are there once.
        self.block_size = 1024 if self.policy == "metadata" else source.choice([1024, 4096])
        self.mib = source.choice([24, 32])
        self.victim = source.randrange(self.disks)
        self.other = source.choice([disk for disk in range(self.disks) if disk != self.victim])
        self.dies = source.uniform(0.1, 1.0)
        self.killed = source.choice([0.0, 0.0, source.uniform(0.0, 0.8)]) if self.event == "kill" else source.uniform(0.0, 1.2)
        self.before = self.event == "kill" and source.random() < 0.2
        self.rate = source.choice(["1M", "4M", "16M"])
        self.source = source

    def __str__(self):
        return (
            f"run {self.number}: {self.event}, {self.policy} on {self.disks} disks of {self.mib} MiB, {self.block_size}-byte blocks, "
            f"disk {self.victim} dies after {self.dies:.2f} s, then {self.killed:.2f} s"
        )


class Load(threading.Thread):
    """Writes, replaces and removes files, and notes what an fsync has promised."""

    def __init__(self, top, source, may_fail):
        super().__init__(daemon=True)
        self.top, self.source, self.may_fail = top, source, may_fail
        # name -> contents' hash; names that are being changed
        self.promised, self.doubtful = {}, set()
        self.stopped, self.error = False, None

    def run(self):
        try:
            for number in range(10**6):
                if self.stopped:
                    return
                self.step(number)
        except OSError as error:
            self.error = error

    def step(self, number):
        name = f"d{self.source.randrange(6)}/f{self.source.randrange(40)}"
        path = os.path.join(self.top, name)
        self.doubtful.add(name)
        if name in self.promised and self.source.random() < 0.2:
            self.promised.pop(name)
            os.unlink(path)
            return
        self.promised.pop(name, None)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        size = self.source.choice([10, 3000, 20_000, 150_000])
        contents = self.source.randbytes(size)
        with open(path, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        self.sync(os.path.dirname(path))
        self.sync(self.top)
        self.promised[name] = hashlib.sha256(contents).hexdigest()
        self.doubtful.discard(name)

    @staticmethod
    def sync(directory):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Place:
    """The disks of a run, of which one dies when it is told."""

    def __init__(self, binary, work, run):
        self.binary, self.work, self.run = binary, work, run
        self.disks = [f"{work}/disk{number}" for number in range(run.disks)]
        policy = run.policy
        if POLICIES[policy]:
            policy = f"{work}/{policy}.toml"
            with open(policy, "w", encoding="utf-8") as file:
                file.write(POLICIES[run.policy])
        size = f"{run.mib}M"
        common.run(
            binary, "mkfs", "ext3", "-q", "-b", str(run.block_size), "--policy", policy, ",".join(self.disks), size
        )
        self.faulty = f"{work}/faulty"
        os.makedirs(self.faulty)
        common.run(binary, "faults", "serve", self.disks[run.victim], "", self.faulty)
        self.disks[run.victim] = f"{self.faulty}/image"

    def image(self):
        return ",".join(self.disks)

    def die(self):
        with open(f"{self.faulty}/plan", "w", encoding="utf-8") as file:
            file.write("dead\n")

    def replaced(self, new):
        self.disks[self.run.victim] = new

    def end(self):
        subprocess.run(["umount", "-l", self.faulty], capture_output=True, check=False)

    def states(self, what):
        found = json.loads(common.run(self.binary, "disk", "list", "--json", what).stdout)
        return [disk["state"] for disk in found["disks"]]

    def wait_until_whole(self, what):
        deadline = time.monotonic() + REBUILD_SECONDS
        while set(self.states(what)) - {"whole"}:
            if time.monotonic() > deadline:
                raise common.Failure(f"not rebuilt after {REBUILD_SECONDS} s: {self.states(what)}")
            time.sleep(0.1)


def crash(place, mount, load):
    """A disk dies, and what else the run says."""
    run = place.run
    time.sleep(run.dies)
    if run.event == "hot":
        common.run(place.binary, "disk", "add", mount.directory, f"{place.work}/new")
    if run.before:
        finish(mount, load, True)
    place.die()
    if run.event == "replace":
        wait_until_out(place, mount, load)
        common.run(place.binary, "disk", "replace", mount.directory, str(run.victim), f"{place.work}/new")
    if run.before:
        return
    time.sleep(run.killed)
    finish(mount, load, run.event != "degraded")


def wait_until_out(place, mount, load):
    """The load soon asks the dead disk for something."""
    deadline = time.monotonic() + 20
    while place.states(mount.directory)[place.run.victim] != "out":
        if load.error or time.monotonic() > deadline:
            raise common.Failure(f"the dead disk is not out: {place.states(mount.directory)}, {load.error}")
        time.sleep(0.05)


def finish(mount, load, killed):
    """Ends the load, which no dead disk has disturbed, and the mount."""
    error = load.error
    if killed:
        mount.kill()
    load.stopped = True
    load.join(60)
    if load.is_alive():
        raise common.Failure("the load hangs")
    if not killed:
        error = load.error
        # Of what has no copy an unmount may say that it was lost.
        common.run(mount.binary, "umount", mount.directory, ok=(0, 1) if load.may_fail else (0,))
        mount.live = False
    else:
        mount.detach()
    if error and not load.may_fail:
        raise common.Failure(f"a call failed though the policy keeps a copy: {error}")


def look(place, directory, load, protected):
    """Compares what was promised; returns the names of what cannot be read."""
    lost = []
    for name, expected in sorted(load.promised.items()):
        try:
            with open(os.path.join(directory, name), "rb") as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            if protected or error.errno == 2:
                raise common.Failure(f"{name} was promised, and now: {error}") from error
            lost.append(name)
            continue
        if found != expected:
            raise common.Failure(f"{name} is not what was promised")
    return lost


def names_of_the_lost(place, what):
    """The paths that health names as damaged."""
    done = common.run(place.binary, "health", "--json", what, ok=(0, 1))
    damaged = json.loads(done.stdout).get("damaged")
    if damaged is None:
        raise common.Failure("health names nobody")
    owners = damaged["owners"]
    return {path.strip("/") for owner in owners for path in owner["paths"]}


def judge(place, load):
    """What is left, then the replaced disk, then without another one."""
    run, directory = place.run, f"{place.work}/m"
    protected = run.policy != "metadata"
    new = f"{place.work}/new"
    options = ("-o", f"rebuild_rate={'64M' if run.event == 'degraded' else run.rate}")
    if os.path.exists(new) and run.event == "hot":
        # Whether it has taken the place already the labels say: both are named.
        listed = ",".join([*place.disks, new])
    else:
        if os.path.exists(new):
            place.replaced(new)
        listed = place.image()
    with common.Mount(place.binary, listed, directory, *options) as mount:
        lost = look(place, directory, load, protected)
        if lost:
            unnamed = set(lost) - names_of_the_lost(place, directory)
            if unnamed:
                raise common.Failure(f"lost and not named: {sorted(unnamed)[:5]}")
        if not os.path.exists(new):
            probe_dead(place, mount)
            common.run(place.binary, "disk", "replace", directory, str(run.victim), new)
        place.wait_until_whole(directory)
        place.replaced(new)
        if look(place, directory, load, protected) != lost:
            raise common.Failure("other files are lost after rebuilding than before")
    check(place, place.image(), lost)
    if protected:
        without = list(place.disks)
        without[run.other] = "missing"
        with common.Mount(place.binary, ",".join(without), directory, "-o", "ro"):
            look(place, directory, load, True)
        check(place, ",".join(without), [])
    return len(load.promised), len(lost)


def probe_dead(place, mount):
    """A disk that nobody has asked since it died is asked now."""
    deadline = time.monotonic() + 20
    while place.states(mount.directory)[place.run.victim] != "out":
        with open(f"{mount.directory}/probe", "ab") as file:
            file.write(bytes(200_000))
            os.fsync(file.fileno())
        if time.monotonic() > deadline:
            raise common.Failure("the dead disk is not out")


def check(place, image, lost):
    """Our checker finds nothing; where files are lost their metadata are whole all the same."""
    report = common.fsck(place.binary, image, "-n")
    # Where something is lost the volume stays marked as not unmounted cleanly; nothing else is wrong.
    damage = [found["text"] for found in report["findings"] if not (lost and found["class"] == "allowed")]
    if damage:
        raise common.Failure(f"our fsck finds {len(damage)} things with {len(lost)} files lost: " + "; ".join(damage[:5]))


def one(binary, options, run):
    """One run, from the disks to the verdict."""
    with common.workdir(options, "pull") as work:
        place = Place(binary, work, run)
        try:
            mount = common.Mount(binary, place.image(), f"{work}/m", "-o", f"rebuild_rate={run.rate}")
            load = Load(mount.directory, run.source, run.policy == "metadata")
            load.start()
            try:
                crash(place, mount, load)
            finally:
                load.stopped = True
                if mount.live:
                    mount.kill()
                    mount.detach()
                load.join(60)
            promised, lost = judge(place, load)
        finally:
            place.end()
    print(f"  {promised} promised files, {lost} lost, all of those named", flush=True)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=1, help="what makes every choice, with the run's number")
    options = parser.parse_args()
    common.require(root=True, fuse=True)
    binary = common.program(options)
    summary = common.Summary("pull")
    for number in range(options.first, options.first + options.runs):
        run = Run(options.seed, number)
        failed = summary.failed
        with summary.case(str(run)):
            one(binary, options, run)
        if summary.failed > failed:
            print(f"replay: scripts/pull.sh --seed {options.seed} --first {number} --runs 1", flush=True)
    summary.end()


if __name__ == "__main__":
    main()
