"""The figures of [C], measured with this program: table 2 (what policies cost), figures 8 and 9 (a disk that is away for a second), 10 (computed) and 11
(parity), 12 (mirrors), 13 (levels of defence), 14 (D-GRAID). What was measured is in OUT/figures.json, the plots beside it.

Several runs may make one set of figures: --only says what is measured, --append adds samples of table 2 to those that are there, and --only draw
measures nothing. With --page table 2 goes into docs/shepherd-results.md. What a machine lacks is said and left out.
"""

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys

import common
from figures import graid, levels, mirrors, parity, postgres, sources, table2, transient

FIGURES = ("postmark", "tpcb", "build", "8", "10", "11", "12", "13", "14a", "14b", "draw")
MARKS = ("<!-- table 2: begin -->", "<!-- table 2: end -->")
PACKAGES = (("postmark", "postmark"), ("pgbench", "postgresql"), ("debugfs", "e2fsprogs"), ("make", "make"), ("gcc", "gcc"), ("bzip2", "bzip2"))
# The rows that the paper has, as it has them.
PAPER = {
    "propagate": (1.00, 1.05, 1.01),
    "retry": (1.00, 1.05, 1.01),
    "reboot": (1.00, 1.05, 1.01),
    "parity": (1.14, 1.27, 1.02),
    "mirror-near": (1.59, 1.41, 1.04),
    "mirror-far": (1.65, 1.87, 1.06),
    "sanity": (1.01, 1.05, 1.01),
    "defence-in-depth": (1.10, 1.28, 1.01),
    "defence-in-depth without full-check": (1.10, 1.28, 1.01),
}


class Setting:
    """What a measurement needs to know."""

    def __init__(self, options, work):
        self.binary, self.work, self.quick = common.program(options), work, options.quick
        self.repetitions = 1 if options.quick else options.repetitions
        self.policies = options.policies.split(",") if options.policies else None
        self.file, self.source = f"{options.out}/figures.json", None

    def save(self, data):
        """Writes what there is: a run that is stopped loses nothing of it."""
        with open(f"{self.file}.new", "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        os.replace(f"{self.file}.new", self.file)


def machine(commit):
    """What the numbers are of."""
    here = ["git", "-C", common.REPOSITORY, "rev-parse", "--short=12", "HEAD"]
    commit = commit or subprocess.run(here, capture_output=True, text=True, check=False).stdout.strip()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(file.readline().split()[1]) >> 20
    server = postgres.program("postgres")
    version = common.run(server, "--version").stdout.strip() if server else "no PostgreSQL"
    return {"commit": commit, "processors": f"{os.cpu_count()} x {model}", "memory": f"{memory} GiB", "kernel": platform.release(), "database": version}


def install():
    """Installs what is missing on Debian as root, or says it."""
    missing = [package for command, package in PACKAGES if not shutil.which(command) and not postgres.program(command)]
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(missing)}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        for words in (["apt-get", "update", "-qq"], command):
            subprocess.run(words, env=environment, capture_output=True, check=False)
    missing = [package for command, package in PACKAGES if not shutil.which(command) and not postgres.program(command)]
    if missing:
        print(f"missing: {' '.join(missing)} (as root: apt-get install {' '.join(missing)}); what needs them is left out", flush=True)


def workloads(setting, options, chosen, data):
    """The part of table 2 that was asked for and can be had."""
    found = [name for name in table2.WORKLOADS if name in chosen]
    if "postmark" in found and not shutil.which("postmark"):
        print("SKIPPED: PostMark: the program is not here", flush=True)
        found.remove("postmark")
    if "tpcb" in found and not database():
        found.remove("tpcb")
    if "build" in found:
        setting.source = sources.prepare(setting, options.source)
    if not options.append:
        for name in found:
            data.get("table2", {}).pop(name, None)
    table2.measure(setting, found, data)


def database():
    """Whether there is a server, and a user for it."""
    if not postgres.program("postgres") or not postgres.program("pgbench"):
        print("SKIPPED: PostgreSQL is not here", flush=True)
        return False
    return True


def rows(data):
    """Table 2: each contender's ratio to no policy, round by round, the middle one and the ends."""
    found, names = data.get("table2", {}), []
    for workload in table2.WORKLOADS:
        names += [name for name in found.get(workload, {}) if name not in names]
    for name in names:
        cells = []
        for workload in table2.WORKLOADS:
            mine, none = (found.get(workload, {}).get(one, []) for one in (name, "none"))
            ratios = [one / other for one, other in zip(mine, none)]
            cells.append((ratios, statistics.median(mine)) if ratios else None)
        yield name, cells


def table(data):
    """The table as text for a page."""
    head = "| policy | " + " | ".join(f"{table2.TITLES[name]}, s | to none" for name in table2.WORKLOADS) + " | [C] |\n"
    lines = [head, "|---|" + "---|" * (2 * len(table2.WORKLOADS) + 1) + "\n"]
    for name, cells in rows(data):
        shown = []
        for cell in cells:
            if not cell:
                shown += ["-", "-"]
                continue
            ratios, seconds = cell
            middle = statistics.median(ratios)
            ends = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 and name != "none" else ""
            shown += [f"{seconds:.2f}", f"{middle:.2f}{ends}"]
        paper = " / ".join(f"{number:.2f}" for number in PAPER[name]) if name in PAPER else ""
        lines.append(f"| {f'`{name}`' if name in table2.NAMES else name} | " + " | ".join(shown) + f" | {paper} |\n")
    return "".join(lines)


def draw(data, options):
    for module in (transient, parity, mirrors, levels, graid):
        module.draw(data, options.out)
    if not data.get("table2"):
        return
    text = table(data)
    print(text, flush=True)
    if options.page:
        with open(options.page, encoding="utf-8") as file:
            page = file.read()
        before, _, rest = page.partition(MARKS[0])
        _, mark, after = rest.partition(MARKS[1])
        if not mark:
            raise common.Failure(f"{options.page} has no place for the table: {MARKS[0]}")
        with open(options.page, "w", encoding="utf-8") as file:
            file.write(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}")


def earlier(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small form of everything, within a minute or two; says nothing of speed")
    parser.add_argument("--out", default="shepherd-figures", metavar="DIR", help="where data and plots go (default %(default)s)")
    parser.add_argument("--only", default=",".join(FIGURES), metavar="FIGURES", help=f"some of {', '.join(FIGURES)}")
    parser.add_argument("--policies", help="only these, by the names that table 2 or figure 8 shows them with")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds of table 2 (default %(default)s)")
    parser.add_argument("--append", action="store_true", help="add samples of table 2 to earlier ones")
    parser.add_argument("--source", help="an archive of dropbear's sources, instead of Debian's")
    parser.add_argument("--commit", help="the commit that the program is of, if it is not this checkout's")
    parser.add_argument("--page", help="write table 2 into this page, between its marks")
    options = parser.parse_args()
    # Whoever ends this gets its mounts unmounted as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = options.only.split(",")
    for name in chosen:
        if name not in FIGURES:
            parser.error(f"there is no figure {name}: choose of {', '.join(FIGURES)}")
    os.makedirs(options.out, exist_ok=True)
    data = earlier(f"{options.out}/figures.json")
    if set(chosen) - {"draw", "10"}:
        common.require(root=True, fuse=True)
        install()
        data["machine"] = machine(options.commit)
    summary = common.Summary("the shepherd's figures")
    with common.workdir(options, "figures") as work:
        # The database's user passes through it to the mount.
        os.chmod(work, 0o711)
        measure(Setting(options, work), options, chosen, data, summary)
    with summary.case("plots"):
        draw(data, options)
    summary.end()


def measure(setting, options, chosen, data, summary):
    """Everything that was chosen; what fails is told at the end, and the rest is measured all the same."""
    if set(chosen) & set(table2.WORKLOADS):
        with summary.case("table 2"):
            workloads(setting, options, chosen, data)
    steps = (
        ("8", lambda: database() and transient.measure(setting, data)),
        ("10", lambda: parity.compute(data)),
        ("11", lambda: parity.measure(setting, data)),
        ("12", lambda: mirrors.measure(setting, data)),
        ("13", lambda: levels.measure(setting, data)),
        ("14a", lambda: graid.availability(setting, data)),
        ("14b", lambda: graid.speed(setting, data)),
    )
    for name, step in steps:
        if name in chosen:
            with summary.case(f"figure {name}"):
                step()
                setting.save(data)


if __name__ == "__main__":
    main()
