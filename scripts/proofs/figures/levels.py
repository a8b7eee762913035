"""Figure 13: what several levels of defence do, one after the other, when a single inode is read that is damaged more and more."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import common
import plots
from figures import volumes

BLOCK = 1024
I_DTIME = 20
# What is damaged: how many of the two copies, and how.
CASES = (
    ("no fault", 0, None),
    ("one copy damaged", 1, "all"),
    ("dtime of both copies set", 2, "dtime"),
    ("both copies damaged", 2, "all"),
)
STORY = re.compile(r"(?:read|write) of [a-z -]+ block \d+: (.*)")


def tree(work):
    """What the volume holds."""
    top = f"{work}/tree"
    if not os.path.isdir(top):
        os.makedirs(top)
        # As many as fill blocks of inodes of their own.
        for number in range(40):
            with open(f"{top}/file{number}", "w", encoding="ascii") as file:
                file.write(f"{number}\n")
    return top


def damage(image, copies, how):
    """Damages so many of the copies of the inode's block."""
    said = common.run("debugfs", "-R", "imap /file30", image).stdout
    block = int(re.search(r"block (\d+)", said)[1])
    offset = int(re.search(r"offset (0x[0-9a-f]+)", said)[1], 16)
    with open(image, "r+b") as file:
        data = file.read()
        home = data[block * BLOCK : (block + 1) * BLOCK]
        places = [at for at in range(0, len(data), BLOCK) if data[at : at + BLOCK] == home]
        if len(places) != 2:
            raise common.Failure(f"an inode's block is there {len(places)} times, not twice")
        for place in places[:copies]:
            file.seek(place + offset + I_DTIME if how == "dtime" else place)
            file.write(b"\1\0\0\0" if how == "dtime" else b"\xa5" * BLOCK)


def one(setting, contender, case):
    """Mounts in the foreground, reads the inode, and notes how long that took and what was said."""
    name, copies, how = case
    binary, at, log = setting.binary, f"{setting.work}/at", f"{setting.work}/log"
    image = volumes.make(binary, setting.work, contender, 32, BLOCK, tree(setting.work))
    damage(image, copies, how)
    os.makedirs(at, exist_ok=True)
    with open(log, "wb") as to:
        daemon = subprocess.Popen([binary, "mount", "-f", image, at], stdout=to, stderr=to, env={**os.environ, "NO_COLOR": "1"})
    try:
        wait(daemon, at)
        started = time.monotonic()
        answer = "answered"
        try:
            os.stat(f"{at}/file30")
        except OSError as error:
            answer = error.strerror
        took = time.monotonic() - started
        subprocess.run([binary, "umount", "-q", at], check=False, capture_output=True)
        daemon.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        if os.path.ismount(at):
            subprocess.run(["umount", "-l", at], check=False)
        os.remove(image)
    with open(log, encoding="utf-8", errors="replace") as file:
        stories = [found[1].strip() for line in file if (found := STORY.search(re.sub(r"\x1b\[[0-9;]*m", "", line)))]
    return {"name": name, "ms": round(1000 * took, 3), "answer": answer, "steps": stories[0].split("; ") if stories else []}


def wait(daemon, at):
    """Waits until the mount is there."""
    deadline = time.monotonic() + 20
    while not os.path.ismount(at):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise common.Failure("a mount in the foreground does not come")
        time.sleep(0.01)


def measure(setting, data):
    contender = volumes.defence(setting.binary)
    shutil.rmtree(f"{setting.work}/tree", ignore_errors=True)
    rounds = []
    for _ in range(1 if setting.quick else 5):
        rounds.append([one(setting, contender, case) for case in CASES])
    cases = []
    for number in range(len(CASES)):
        runs = sorted((some[number] for some in rounds), key=lambda run: run["ms"])
        cases.append(runs[len(runs) // 2])
        case = cases[-1]
        said = "; ".join(case["steps"]) or "home and sum agree"
        print(f"figure 13 {case['name']:26} {case['ms']:9.3f} ms, {case['answer']}: {said}", flush=True)
    if [case["answer"] for case in cases[:2]] != ["answered"] * 2 or "copy" not in " ".join(cases[1]["steps"]):
        raise common.Failure("an inode of which one copy is whole was not read from that")
    data["figure13"] = {"policy": contender.name, "cases": cases}
    setting.save(data)


def draw(data, out):
    found = data.get("figure13")
    if found:
        rows = [(f"{case['name']} ({case['answer']})", case["ms"], case["steps"] or ["home and sum agree"]) for case in found["cases"]]
        title = f"Reading one inode, {found['policy']}"
        height = 60 + 66 * len(rows)
        plots.write(f"{out}/levels.svg", lambda top: plots.actions(title, "ms until the answer", rows, top=top), height=height)
