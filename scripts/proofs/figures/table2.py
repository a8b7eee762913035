"""Table 2: what policies cost where nothing fails. PostMark, PostgreSQL's pgbench (TPC-B like), and unpacking and building a program."""

import os
import random
import subprocess
import time

import common
from figures import postgres, volumes
from figures.volumes import Contender

WORKLOADS = ("postmark", "tpcb", "build")
TITLES = {"postmark": "PostMark", "tpcb": "TPC-B", "build": "build"}
NAMES = ("propagate", "retry", "reboot", "checksum", "sanity", "parity", "mirror-near", "mirror-far", "remap")
FEW = ("retry", "reboot", "mirror-far")
MIB = 2048
# Idle processors of a virtual machine are halted, and waking one takes as long as a request. Whether they are varies from run to run with `awake=auto`.
OPTIONS = ("allow_other", "awake=on")


def contenders(binary, quick):
    """Who runs; those whose steps mounts do not carry out are left out, and said."""
    found = [Contender("none", None)]
    for name in FEW if quick else NAMES:
        if volumes.follows(binary, name):
            found.append(Contender(name, name))
        else:
            print(f"SKIPPED: {name}: mounts of this program refuse a step of it", flush=True)
    found.append(volumes.defence(binary))
    for disks, copies in ((4, 4),) if quick else ((4, 1), (4, 4), (10, 10)):
        found.append(Contender(f"d-graid, {disks} disks, {copies} of metadata", volumes.dgraid(copies), disks))
    found += [Contender(f"d-graid, {disks} disks, as shipped", "d-graid", disks) for disks in ((4,) if quick else (4, 10))]
    return found


def postmark(_, mount, quick):
    files, transactions = (200, 1000) if quick else (3000, 25_000)
    settings = {"location": mount.directory, "number": files, "transactions": transactions, "subdirectories": 10, "seed": 7, "report": "terse"}
    script = "".join(f"set {name} {value}\n" for name, value in settings.items()) + "run\nquit\n"
    started = time.monotonic()
    done = subprocess.run(["postmark"], input=script, capture_output=True, text=True, check=False)
    if done.returncode or "Error" in done.stdout:
        raise common.Failure(f"postmark: {done.stdout[-2000:]}{done.stderr[-500:]}")
    mount.umount()
    return time.monotonic() - started


def tpcb(setting, mount, quick):
    transactions, clients = 50 if quick else 2000, 4
    data, sockets = postgres.unpack(postgres.cluster(setting.work, 1 if quick else 4), mount.directory, setting.work)
    with postgres.Server(data, sockets) as server:
        server.start()
        command = [postgres.program("pgbench"), "-n", "-c", str(clients), "-j", "2", "-t", str(transactions), "--random-seed=1"]
        started = time.monotonic()
        done = common.run(*command, "-h", sockets, "-U", postgres.USER, "postgres")
        seconds = time.monotonic() - started
        if "processed: " not in done.stdout or f"{clients * transactions}/{clients * transactions}" not in done.stdout:
            raise common.Failure(f"pgbench: {done.stdout}{done.stderr}")
        server.stop()
    mount.umount()
    # What was answered is there after another mount.
    with volumes.mounted(setting.binary, mount.image, mount.directory, "allow_other"):
        with postgres.Server(data, sockets) as server:
            server.start()
            postgres.agrees(server, clients * transactions)
            server.stop()
    return seconds


def build(setting, mount, quick):
    top = f"{mount.directory}/program"
    started = time.monotonic()
    os.makedirs(top)
    common.run("tar", "-C", top, "--strip-components=1", "-xf", setting.source.archive)
    common.run("sh", "-c", setting.source.configure, cwd=top)
    common.run("make", "-j2", *setting.source.targets(quick), cwd=top)
    for name in setting.source.targets(quick):
        if os.path.getsize(f"{top}/{name}") < 1000:
            raise common.Failure(f"{name} was not built")
    mount.umount()
    return time.monotonic() - started


RUNS = {"postmark": postmark, "tpcb": tpcb, "build": build}


def measure(setting, workloads, data):
    """Runs every contender in turn, each round in another order, as often as asked; adds seconds to the samples that are there."""
    samples = data.setdefault("table2", {})
    runners = [one for one in contenders(setting.binary, setting.quick) if not setting.policies or one.name in setting.policies]
    for workload in workloads:
        if workload == "build" and not setting.source:
            print("SKIPPED: build: no sources of a program to be had here", flush=True)
            continue
        # Tables have them in this order.
        found = samples.setdefault(workload, {})
        for contender in runners:
            found.setdefault(contender.name, [])
        for number in range(setting.repetitions):
            # Whoever comes behind ten disks that are removed pays for that: not the same one in each round.
            for contender in random.Random(number).sample(runners, len(runners)):
                seconds = once(setting, workload, contender)
                found[contender.name].append(round(seconds, 3))
                print(f"{workload:9} {contender.name:34} {seconds:8.3f} s", flush=True)
                setting.save(data)


def once(setting, workload, contender):
    """One run on a fresh volume."""
    image = volumes.make(setting.binary, setting.work, contender, 512 if setting.quick else MIB)
    # What runs before it left behind is written before it begins.
    os.sync()
    try:
        with volumes.mounted(setting.binary, image, f"{setting.work}/at", *OPTIONS) as mount:
            os.chmod(mount.directory, 0o755)
            return RUNS[workload](setting, mount, setting.quick)
    finally:
        for disk in image.split(","):
            os.remove(disk)
