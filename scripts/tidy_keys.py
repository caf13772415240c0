"""Prints "KEY UNIT" for every C++ source of a build: what clang-tidy's verdict hangs on.

Usage: scripts/tidy_keys.py BUILD_DIR COMMANDS_OUT UNIT...

A key is a hash of the unit's compile command, of .clang-tidy, of clang-tidy's version and of every
file that the compiler read for the unit, generated and system headers included, as Ninja recorded
them; so the build must be up to date. COMMANDS_OUT gets compile_commands.json with one command a
source, as clang-tidy would look at a source once for each of its commands. Units that a
full build does not compile (no CUDA here) are left out and named on standard error.
"""

import functools
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys


@functools.cache
def digest(path: str) -> bytes:
    """The hash of one file; of nothing for a file that is gone."""
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
    except FileNotFoundError:
        return b""


def compiled_files(build: str) -> dict[str, set[str]]:
    """What each object was compiled from: {object: absolute paths}."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True
    ).stdout
    files: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in listing.splitlines():
        if line.startswith("    "):
            current.add(os.path.normpath(os.path.join(build, line.strip())))
        elif ": #deps" in line:
            current = files.setdefault(line.split(": #deps")[0], set())
    return files


def main() -> None:
    """Reads the build's records, prints the keys and writes the commands."""
    build, out, units = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    read = compiled_files(build)
    settings = hashlib.sha256(
        subprocess.run(["clang-tidy-14", "--version"], check=True, capture_output=True).stdout
    )
    for path in subprocess.check_output(["git", "ls-files", "*.clang-tidy"], text=True).split():
        settings.update(path.encode() + digest(os.path.abspath(path)))
    commands: dict[str, dict[str, str]] = {}
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        commands.setdefault(os.path.abspath(entry["file"]), entry)
    out.write_text(json.dumps(list(commands.values()), indent=1))
    for unit in units:
        entry = commands.get(os.path.abspath(unit), {"command": ""})
        words = shlex.split(entry["command"])
        files = read.get(words[words.index("-o") + 1]) if words else None
        if files is None:
            print(f"lint: {unit} is not compiled here, clang-tidy passes it by", file=sys.stderr)
            continue
        key = settings.copy()
        key.update(entry["command"].encode())
        for path in sorted(files):
            key.update(path.encode() + digest(path))
        print(key.hexdigest()[:32], unit)


if __name__ == "__main__":
    main()
