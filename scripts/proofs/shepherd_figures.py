"""Figure 10 of [C], computed: what parity costs in room, and how likely data is lost all the same, by the blocks of a group. Nothing is measured.
With --plots the plot is written into this directory."""

import math
import os

import common
import plots

BLOCK, DISK = 4096, 100 * 10**9
# Of the disks that have latent errors at all, errors for each block and year, as the paper has them from its source.
FAILURES = 2.54e-8
# Blocks of data for one of parity; the shepherd takes 2 to 64.
WIDTHS = (2, 4, 8, 10, 16, 32, 64, 255, 1024, 1 << 14, 1 << 18, DISK // BLOCK)
# What the map of owners has of each block of parity, in both halves.
OWNER_BYTES = 2 * 8


def loss(width):
    """The chance that in a year two blocks or more of one group are lost, on such a disk. Of (1 - f)^n nothing is left in floating point, so by logarithms."""
    blocks = width + 1
    # Two or more of so few expected: the first terms that count, as all of it cannot be told from 1.
    expected = blocks * FAILURES
    none_or_one = blocks * math.log1p(-FAILURES) + math.log1p(blocks * FAILURES / (1 - FAILURES))
    two = -math.expm1(none_or_one) if expected > 1e-3 else blocks * (blocks - 1) / 2 * FAILURES**2
    return -math.expm1(DISK / BLOCK / blocks * math.log1p(-two))


def room(width):
    """The part of the disk that parity and what the maps say of it take."""
    own = BLOCK + OWNER_BYTES
    return 100 * own / (own + width * BLOCK)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--plots", help="write the plot into this directory")
    options = parser.parse_args()
    spaces = [(width, room(width)) for width in WIDTHS]
    losses = [(width, 100 * loss(width)) for width in WIDTHS]
    for (width, percent), (_, lost) in zip(spaces, losses):
        print(f"{width:>9} blocks: {percent:8.4f} % of the disk, {lost:.2e} % lose data in a year")
    # One part in a hundred thousand is what the paper calls small.
    if not (loss(8) < 1e-5 < loss(DISK // BLOCK) and loss(8) < loss(10) < loss(64)):
        raise common.Failure("the chance of losing data does not grow with the group")
    if options.plots:
        os.makedirs(options.plots, exist_ok=True)
        plots.write(
            f"{options.plots}/parity-room.svg",
            lambda top: plots.lines("Room that parity takes", "blocks of a group", "% of the disk", [("room", spaces)], top=top, log=(True, False)),
            lambda top: plots.lines("Disks of 100 GB with latent errors that lose data in a year", "blocks of a group", "%", [("loss", losses)], top=top, log=(True, True)),
        )


if __name__ == "__main__":
    main()
