"""Whether BPFS counts honestly: bytes that its gate says it has stored, and those that valgrind has seen.

Each row of [D] Fig 3.8 runs under `valgrind --tool=lackey --trace-mem=yes`, which prints every store of the program; those between
two borders (crates/fstitch-bpfs/examples/count.rs) to the addresses of the volume are added up. They agree with the gate's own count
within 1 %. The volumes are made without valgrind, and opened under it, so numbers may be some bytes below those of docs/bpfs.md.
Prints a table of what valgrind saw, and the largest difference.
"""

import subprocess

import common

COLUMNS = ("SP", "+ SC", "+ T", "+ A and T", "+ other", "+ journal", "+ times in it")
# The largest share by which the two may differ.
SHARE_MAX = 0.01
ROWS_MIN = 31


def differs(gate, traced):
    return abs(gate - traced) > SHARE_MAX * max(gate, traced)


def measure(work, program, column):
    """The rows of a column: name → gate's count, traced bytes, traced bytes with what was stored twice."""
    directory, trace, said = f"{work}/{column}", f"{work}/trace", f"{work}/run"
    common.run("mkdir", directory)
    common.run(program, "prepare", directory, str(column))
    with open(said, "wb") as file:
        words = ["valgrind", "-q", "--tool=lackey", "--trace-mem=yes", f"--log-file={trace}", program, "run", directory, str(column)]
        done = subprocess.run(words, stdout=file, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise common.Failure(f"valgrind ended with {done.returncode}: {done.stderr.decode(errors='replace')[-800:]}")
    rows = [line.split("\t") for line in common.run(program, "sum", said, trace).stdout.splitlines()]
    common.run("rm", "-r", directory, trace)
    return {name: (int(gate), int(traced), int(raw)) for gate, traced, raw, name in rows}


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--columns", default=",".join(map(str, range(len(COLUMNS)))), help="by number, from 0 (default all)")
    options = parser.parse_args()
    common.require(commands=("valgrind", "cargo"))
    columns = [int(column) for column in options.columns.split(",")]
    summary, found = common.Summary("stores that the gate counts, and those that valgrind sees"), {}
    program = common.example("fstitch-bpfs", "count")
    with common.workdir(options, "lackey") as work:
        for column in columns:
            with summary.case(COLUMNS[column]):
                rows = found[column] = measure(work, program, column)
                wrong = [f"{name}: {gate} counted, {traced} seen" for name, (gate, traced, _) in rows.items() if differs(gate, traced)]
                if wrong or len(rows) < ROWS_MIN:
                    raise common.Failure(f"{len(rows)} rows; " + "; ".join(wrong))
                # What agrees with anything would agree with this, too.
                if not all(differs(gate * 1.03, traced) for gate, traced, _ in rows.values()):
                    raise common.Failure("a count that is wrong by 3 % is not seen")
    print("| call | " + " | ".join(COLUMNS[column] for column in found) + " |\n|---|" + "---:|" * len(found))
    for name in next(iter(found.values()), {}):
        print(f"| {name} | " + " | ".join(str(rows[name][1]) for rows in found.values()) + " |")
    pairs = [row for rows in found.values() for row in rows.values()]
    largest = max((abs(gate - traced) / max(gate, 1) for gate, traced, _ in pairs), default=0)
    print(f"{len(pairs)} runs; the largest difference is {100 * largest:.2f} %", flush=True)
    summary.end()


if __name__ == "__main__":
    main()
