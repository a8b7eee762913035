"""pjdfstest (crates.io): POSIX semantics and errnos, case by case.

Failures that FUSE itself causes are listed in docs/pjdfstest-expected; anything else fails.
"""

import os
import re
import subprocess

import common
import tools

CONFIG = """
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"""


def expected():
    """The cases that may fail, each with its reason behind `#`."""
    with open(os.path.join(common.REPOSITORY, "docs", "pjdfstest-expected"), encoding="utf-8") as file:
        lines = [line.split("#")[0].strip() for line in file]
    return {line for line in lines if line}


def exercise(binary, suite, work, block_size, words, journaled):
    image, directory = f"{work}/p.img", f"{work}/p"
    config = f"{work}/pjdfstest.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG)
    mechanism, also = words
    common.make_volume(binary, mechanism, block_size, image, "256M", journaled)
    os.makedirs(f"{work}/other", exist_ok=True)
    with common.Mount(binary, image, directory, *common.asked(mechanism, "allow_other", also)):
        os.mkdir(f"{directory}/t")
        os.chmod(directory, 0o755)
        os.chmod(work, 0o755)
        done = subprocess.run(
            [suite, "-c", config, "-p", f"{directory}/t"], capture_output=True, text=True, check=False
        )
    output = done.stdout + done.stderr
    results = dict(re.findall(r"^(\S+)\s+.*?\b(ok|FAILED|skipped)\b", output, re.MULTILINE))
    failed = {name for name, result in results.items() if result == "FAILED"}
    counts = {result: list(results.values()).count(result) for result in ("ok", "FAILED", "skipped")}
    print(f"     {counts}", flush=True)
    if counts["ok"] < 100:
        raise common.Failure(f"the suite did not run:\n{output[-3000:]}")
    # Inodes of UFS1 have 32 bits for seconds.
    inherent = {"utimensat::y2038"} if mechanism.startswith("ufs1") else set()
    unexpected = failed - expected() - inherent
    if unexpected:
        details = "\n".join(line for line in output.splitlines() if any(name in line for name in unexpected))
        raise common.Failure(f"{len(unexpected)} unexpected failures:\n{details[:6000]}")
    common.clean(binary, image, mechanism)


def main():
    parser = common.arguments(__doc__)
    common.mechanism(parser)
    common.formats(parser)
    common.more_options(parser)
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    binary, suite = common.program(options), tools.crate("pjdfstest", "0.2")
    summary = common.Summary("pjdfstest")
    for mechanism in common.mechanisms(options):
        for block_size in common.block_sizes(mechanism):
            case = f"{mechanism}, {block_size}-byte blocks"
            with summary.case(case), common.workdir(options, "pjdfstest") as work:
                exercise(binary, suite, work, block_size, (mechanism, options.also), common.journaled_kind(options))
    summary.end()


if __name__ == "__main__":
    main()
