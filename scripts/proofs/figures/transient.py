"""Figures 8 and 9: what a disk that is away for a second does to a database, by policy."""

import collections
import math
import os
import shutil
import time

import common
import plots
from figures import postgres, volumes
from figures.volumes import Contender

CLIENTS = 4
# Flushes are not among what fails: a policy answers for reads and writes, and a flush that has failed is told to whoever asked for it, always.
AWAY = "error read times=all; error write times=all"
WIDTH = 0.1
# Available is who answers nine tenths of what he usually does.
ENOUGH = 0.9
# By hand is what is left of the paper's reboot where the machine itself stays up: kill everything, mount, start the database.
CASES = ("no fault", "retry", "remount", "restart by hand")


class Case:
    """One run: a database on a mount on a disk that can be away."""

    def __init__(self, setting, name):
        self.setting, self.name = setting, name
        self.quick = setting.quick
        self.warm, self.fault_at, self.seconds = (2, 3, 9) if self.quick else (5, 8, 25)
        self.scale, self.cache = (2, "16M") if self.quick else (20, "192M")
        policy = {"remount": "reboot", "restart by hand": "stop"}.get(name, volumes.transient())
        self.contender = Contender(f"figure8 {name}", policy)
        self.options = ["allow_other", f"cache_size={self.cache}"]

    def run(self):
        """Seconds after the begin at which transactions ended, of each client; and what happened."""
        binary, work = self.setting.binary, self.setting.work
        image = volumes.make(binary, work, self.contender, 256 if self.quick else 1536)
        at = f"{work}/at"
        with volumes.mounted(binary, image, at, *self.options) as mount:
            os.chmod(at, 0o755)
            data, sockets = postgres.unpack(postgres.cluster(work, self.scale), at, work)
            mount.umount()
        try:
            with volumes.Faulty(binary, image, f"{work}/faulty") as disk:
                return self.measured(disk, data, sockets)
        finally:
            os.remove(image)

    def measured(self, disk, data, sockets):
        binary, work = self.setting.binary, self.setting.work
        place = f"{work}/clients"
        shutil.rmtree(place, ignore_errors=True)
        mount = common.Mount(binary, disk.image, f"{work}/at", "-o", ",".join(self.options))
        forgetting = postgres.Forgetting(data)
        try:
            with postgres.Server(data, sockets) as server:
                server.start()
                forgetting.start()
                begin = time.time() + self.warm
                clients = [postgres.Client(server, place, number, begin + self.seconds) for number in range(CLIENTS)]
                for client in clients:
                    client.start()
                told = self.fail(begin, disk, mount, server, clients, forgetting)
                for client in clients:
                    client.join()
                forgetting.ended.set()
                forgetting.join()
                told["refused"] = self.after(server)
        except BaseException:
            mount.kill()
            mount.detach()
            raise
        finally:
            forgetting.ended.set()
        if mount.live:
            mount.umount()
        return self.found(begin, clients, told)

    def after(self, server):
        """The database is whole: its sums agree, and a table is read to its end. Whether its next checkpoint was refused: a remount gives up what was
        written and not synced, and tells the next fsync, upon which the server ends and recovers by its log."""
        if self.name == "remount" and server.process.poll() is not None:
            raise common.Failure(f"the server has ended under {self.name}:\n{server.said()}")
        postgres.agrees(server)
        try:
            server.stop()
            return False
        except common.Failure as failure:
            if self.name != "remount" or "could not fsync" not in str(failure):
                raise
        server.start()
        postgres.agrees(server)
        server.stop()
        return True

    def fail(self, begin, disk, mount, server, clients, forgetting):
        """Waits for the moment, takes the disk away for a second, and does what an operator does where the policy stops the volume."""
        time.sleep(max(0, begin + self.fault_at - time.time()))
        told = {"away": time.time() - begin, "struck": 0}
        if self.name == "no fault":
            return told
        disk.plan(AWAY)
        time.sleep(1)
        told["struck"] = sum(disk.struck().values())
        disk.plan("")
        told["back"] = time.time() - begin
        if self.name == "restart by hand":
            forgetting.pause.set()
            server.kill()
            time.sleep(0.1)
            mount.kill()
            mount.detach()
            common.run(self.setting.binary, "mount", "-o", ",".join(self.options), disk.image, mount.directory)
            mount.live = True
            server.start()
            forgetting.pause.clear()
            told["restarted"] = time.time() - begin
        return told

    def found(self, begin, clients, told):
        counts = collections.Counter()
        for client in clients:
            for end in client.ends():
                counts[math.floor((end - begin) / WIDTH)] += 1
        bins = [counts[number] for number in range(round(self.seconds / WIDTH))]
        errors = [error for client in clients for error in client.errors]
        return {
            "name": self.name,
            "width": WIDTH,
            "transactions": bins,
            "errors": len(errors),
            "first error": errors[0][1] if errors else None,
            **{word: number if isinstance(number, bool) else round(number, 3) for word, number in told.items()},
        }


def usual(case):
    """What it does before the fault, in transactions of one bin."""
    bins = case["transactions"][: int(case["away"] / case["width"])]
    return sum(bins) / len(bins)


def unavailable(case):
    """Seconds from the fault on until the first second whose throughput is what is enough of the usual."""
    if case["name"] == "no fault":
        return 0.0
    enough, per = ENOUGH * usual(case), round(1 / case["width"])
    first = int(case["away"] / case["width"])
    bins = case["transactions"]
    for at in range(first + per, len(bins) - per + 1):
        # The second that begins here, and not only a moment of it.
        if sum(bins[at : at + per]) / per >= enough:
            return (at - first) * case["width"]
    return (len(bins) - first) * case["width"]


def measure(setting, data):
    found = {case["name"]: case for case in data.get("figure8", [])}
    for name in CASES:
        if setting.policies and name not in setting.policies:
            continue
        if name == "remount" and not volumes.follows(setting.binary, "reboot"):
            print("SKIPPED: figure 8, remount: mounts of this program refuse the step `remount`", flush=True)
            continue
        case = Case(setting, name).run()
        found[name] = case
        tell(case)
        data["figure8"] = [found[one] for one in CASES if one in found]
        setting.save(data)


def tell(case):
    print(
        f"figure 8  {case['name']:16} usually {usual(case) / case['width']:8.0f} a second; {case['struck']} requests failed, "
        f"{case['errors']} errors of clients, unavailable {unavailable(case):.1f} s"
        + (f"; first: {case['first error']}" if case["errors"] else "")
        + ("; an fsync told the server what it had lost" if case["refused"] else ""),
        flush=True,
    )


def draw(data, out):
    cases = data.get("figure8")
    if not cases:
        return
    made = []
    for case in cases:
        points = [(number * case["width"], count / case["width"]) for number, count in enumerate(case["transactions"])]
        shades = [(case["away"], case["back"])] if "back" in case else []
        said = f"{case['name']}: unavailable {unavailable(case):.1f} s" if shades else case["name"]
        made.append(
            lambda top, points=points, shades=shades, said=said: plots.lines(
                said, "seconds", "SELECTs a second", [("", points)], height=200, top=top, shades=shades
            )
        )
    plots.write(f"{out}/transient-throughput.svg", *made, height=200)
    years = [10 ** (number / 8) for number in range(0, 49)]
    series = []
    for case in cases:
        down = unavailable(case)
        if down:
            series.append((case["name"], [(hours, -math.log10(min(1, down / 3600 / hours))) for hours in years if down / 3600 < hours]))
    if series:
        plots.write(
            f"{out}/transient-availability.svg",
            lambda top: plots.lines(
                "Availability where the disk is away for a second", "hours between faults", "nines", series, top=top, log=(True, False)
            ),
        )
