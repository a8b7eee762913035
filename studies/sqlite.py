"""SQLite: a thousand small transactions, unmodified, under `fstitch order`.

Each transaction inserts one row and counts it in another table, so that a database that has transaction n has all before it,
and one that has a part of one is seen. Asked of every crash state: `pragma integrity_check` is ok and the transactions are
a prefix, the two tables agreeing. Compared: synchronous=FULL (what everybody should use), the same under `fstitch order`,
and synchronous=OFF, which promises nothing; in rollback-journal and WAL mode; on our mounts and on the kernel's ext4. And
without a journal, on a logical disk (docs/lld.md): what a crash leaves there is judged by the tests of that extension.
"""

import os
import sqlite3
import sys

import study

ASK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sqlite", "ask.py")
WRITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sqlite", "writer.py")
JOURNALS = ("delete", "wal")


def writer(volume, journal, synchronous, transactions, wrap=()):
    study.common.run(
        *wrap, sys.executable, WRITER, f"{volume.at}/base.db", journal, synchronous, str(transactions)
    )


def extension(binary):
    """What SQLite loads to keep databases in a logical disk, built beside the program; `None`, said aloud, if it cannot be."""
    found = os.path.join(os.path.dirname(binary), "libfstitch_lld_sqlite.so")
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        print(f"     skipped: no logical disk: the SQLite of {sys.executable} loads no extensions")
    elif not os.path.exists(found):
        print(f"     skipped: no logical disk: {found} is not built")
    else:
        return found
    return None


def without_journal(all_of_it, options):
    loaded = extension(all_of_it.binary)
    if not loaded:
        return
    for synchronous in ("full", "off"):
        def writes(transactions, synchronous=synchronous):
            return lambda disk: study.common.run(
                sys.executable, WRITER, f"file:{disk.at}/base?vfs=lld", "delete", synchronous, str(transactions), loaded
            )

        make = study.logical_disks(all_of_it.binary)
        way = f"no journal: synchronous={synchronous.upper()}"
        each(all_of_it, all_of_it.measure(way, make, writes(0), writes(options.transactions)), options)


def each(all_of_it, row, options):
    """Notes what a transaction costs."""
    count = options.transactions
    said = (
        f"{count / row.seconds:,.0f} transactions a second, {row.blocks * study.BLOCK_SIZE / count:,.0f} bytes and "
        f"{row.flushes / count:.2f} flushes each"
    )
    all_of_it.notes[f"{row.way}, {row.volume}"] = said
    print(f"     {row.way}, {row.volume}: {said}", flush=True)


def prepare(journal):
    """The empty database is made before anything is counted or cut."""
    return lambda volume: writer(volume, journal, "full", 0)


def measure(all_of_it, options):
    for journal in JOURNALS:
        def run(way, make, synchronous, order=False):
            def load(volume):
                writer(volume, journal, synchronous, options.transactions, volume.order() if order else ())

            row = all_of_it.measure(f"{journal}: {way}", make, prepare(journal), load)
            if synchronous == "full" and not order:
                each(all_of_it, row, options)

        for mechanism in study.MECHANISMS:
            make = study.ours(all_of_it.binary, mechanism)
            run("synchronous=FULL", make, "full")
            run("synchronous=FULL, ordered", make, "full", order=True)
            run("synchronous=OFF", make, "off")
        run("synchronous=FULL", study.kernels("ext4"), "full")
        run("synchronous=OFF", study.kernels("ext4"), "off")


def crash(all_of_it, options):
    question = study.quoted(sys.executable, ASK, "base.db")
    for journal in JOURNALS:
        for mechanism in study.MECHANISMS:
            def ordered(volume):
                writer(volume, journal, "full", options.recorded, volume.order())

            def waiting(volume):
                writer(volume, journal, "full", options.recorded)

            all_of_it.crash(f"{journal}: synchronous=FULL, ordered", mechanism, prepare(journal), ordered, question)
            all_of_it.crash(f"{journal}: synchronous=FULL", mechanism, prepare(journal), waiting, question)
        for mechanism in study.MECHANISMS:
            def careless(volume):
                writer(volume, journal, "off", options.recorded)

            # `full` keeps the order of everything, and so even a program that asks for nothing.
            broken = mechanism != "full"
            all_of_it.crash(
                f"{journal}: synchronous=OFF", mechanism, prepare(journal), careless, question, expect_broken=broken
            )


def main():
    parser = study.arguments(__doc__)
    parser.add_argument("--transactions", type=int, default=1000, help="transactions that are timed (default 1000)")
    parser.add_argument("--recorded", type=int, default=1000, help="transactions that are cut (default 1000)")
    parser.add_argument("--timed", action="store_true", help="only what it costs; crash states stay as they are on the page")
    options = study.options_of(parser)
    study.common.require(root=True, fuse=True, loop=True)
    summary = study.common.Summary("SQLite")
    all_of_it = study.Study("sqlite", options)
    with summary.case("what it costs"):
        measure(all_of_it, options)
        without_journal(all_of_it, options)
    if not options.timed:
        with summary.case("what a crash leaves"):
            crash(all_of_it, options)
    all_of_it.save()
    summary.end()


if __name__ == "__main__":
    main()
