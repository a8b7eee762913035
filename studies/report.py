"""Puts the tables of the last run of the case studies into docs/studies.md, between the marks that name them."""

import json
import os
import platform
import re
import subprocess

import study

PAGE = os.path.join(study.common.REPOSITORY, "docs", "studies.md")
STUDIES = ["gzip", "versions", "imap", "sqlite", "dpkg"]
COST = ["way", "volume", "until it returned", "until all was stable", "write requests", "blocks of 4 KiB", "flushes"]
CRASH = ["way", "volume", "crash states", "different trees asked about", "broken"]


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * 2}{'--:|' * (len(head) - 2)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def of_study(name, where, before):
    """The tables of a study; `where` says on what it was made if that is not said of the whole page. Crash states that were not made
    stay as they were `before`."""
    with open(f"{study.RESULTS}/{name}.json", encoding="utf-8") as file:
        results = json.load(file)
    parts = [f"Of a run of its own: {where}\n"] if where else []
    if results["rows"]:
        runs = max(row["runs"] for row in results["rows"])
        parts.append("One run of each way.\n" if runs == 1 else f"Medians of {runs} runs, ± half of the range.\n")
        parts.append(table(COST, [study.Row(**row).cells() for row in results["rows"]]) + "\n")
    if results["judged"]:
        parts.append(table(CRASH, [study.Judged(**judged).cells() for judged in results["judged"]]) + "\n")
    elif kept := re.search(rf"(?:^Crash states .*\n\n)?^\| {re.escape(' | '.join(CRASH))} \|\n(?:\|.*\n)*", before, re.M):
        said = "" if kept[0].startswith("Crash") else "Crash states are of the run that the head of this page names.\n\n"
        parts.append(said + kept[0])
    parts += [f"- {key}: {value}" for key, value in results["notes"].items()]
    return "\n".join(parts)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    commit = subprocess.run(
        ["git", "-C", study.common.REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{os.cpu_count()} cores ({model.group(1).strip() if model else platform.machine()}), Linux {platform.release()}, "
        f"commit {commit or 'unknown'}"
    )


def main():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    names = sorted(name.removesuffix(".json") for name in os.listdir(study.RESULTS))
    # What is said of the machine at the head of the page is true of all studies, or is not changed.
    where = None if names == sorted(STUDIES) else f"{machine()}."
    for name in names:
        mark = re.compile(rf"(<!-- {re.escape(name)} -->\n)(.*?)(<!-- end -->)", re.S)
        if not mark.search(page):
            raise SystemExit(f"{PAGE} has no place for the study {name}")
        page = mark.sub(lambda found, name=name: f"{found[1]}{of_study(name, where, found[2]).rstrip()}\n{found[3]}", page)
    if not where:
        mark = re.compile(r"(<!-- machine -->\n).*?(<!-- end -->)", re.S)
        page = mark.sub(lambda found: f"{found[1]}{machine()}; one command: `make studies`.\n{found[2]}", page)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)
    print(f"{PAGE} has the numbers of this run")


if __name__ == "__main__":
    main()
