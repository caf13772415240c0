#!/usr/bin/env python3
"""Usage: help_to_man.py PROGRAM VERSION PAGE: writes a man page from a program's --help.

Every subcommand's --help becomes a section of its own.
"""

import re
import subprocess
import sys
from pathlib import Path


def help_of(program: str, *words: str) -> list[str]:
    """What `program words… --help` prints, as lines."""
    asked = subprocess.run(
        [Path(program).name, *words, "--help"],
        executable=program,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return asked.stdout.rstrip().splitlines()


def subcommands(lines: list[str]) -> list[str]:
    """The names under "Subcommands:"."""
    if "Subcommands:" not in lines:
        return []
    below = lines[lines.index("Subcommands:") + 1 :]
    return [m[1] for line in below if (m := re.match(r"  ([a-z][a-z0-9-]*)\b", line))]


def literal(lines: list[str]) -> list[str]:
    """Lines that nroff prints as they are."""
    escaped = (line.replace("\\", "\\e").replace("-", "\\-") for line in lines)
    return [
        ".nf",
        *("\\&" + line if line[:1] in (".", "'") else line for line in escaped),
        ".fi",
    ]


def sections(program: str, words: tuple[str, ...], name: str) -> list[str]:
    """The sections of the subcommands below `words`, in the order of --help."""
    page = []
    for command in subcommands(help_of(program, *words)):
        path = (*words, command)
        page += [
            f".SH {' '.join((name, *path)).upper()}",
            *literal(help_of(program, *path)),
        ]
        page += sections(program, path, name)
    return page


def main() -> None:
    """Writes the page."""
    program, version, page = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    name = Path(program).name
    top = help_of(program)
    about = top[0].split(". ")[0].removeprefix("ReLibra: ").rstrip(".")
    lines = [
        f'.TH {name.upper()} 1 "" "relibra {version}" "ReLibra"',
        ".SH NAME",
        f"{name} \\- {about}",
        ".SH DESCRIPTION",
        *literal(top),
        *sections(program, (), name),
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
