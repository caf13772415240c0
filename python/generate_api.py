"""Generates relibra.v1, the API's messages, from the .proto files.

Usage: python generate_api.py [DIRECTORY]

Writes DIRECTORY/relibra/v1 (default: beside this file, for work in the source tree). Needs
grpcio-tools. Files that are newer than the .proto files are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def find_protos() -> Path:
    """The folder that holds relibra/v1/*.proto: the repository's, or a source archive's copy."""
    for folder in (HERE.parent / "proto", HERE / "proto"):
        if (folder / "relibra" / "v1" / "planner.proto").is_file():
            return folder
    raise SystemExit(f"generate_api: no relibra/v1/planner.proto in {HERE.parent / 'proto'}")


def generate(directory: Path) -> None:
    """Writes the modules and their type stubs into directory/relibra/v1."""
    folder = find_protos()
    protos = sorted((folder / "relibra" / "v1").glob("*.proto"))
    package = directory / "relibra" / "v1"
    marker = package / "__init__.py"
    newest = max(proto.stat().st_mtime for proto in [*protos, Path(__file__)])
    if marker.is_file() and marker.stat().st_mtime > newest:
        return
    from grpc_tools import protoc  # type: ignore[import-untyped]  # only where code is generated

    package.mkdir(parents=True, exist_ok=True)
    arguments = ["protoc", f"--proto_path={folder}", f"--python_out={directory}"]
    arguments.append(f"--pyi_out={directory}")
    arguments += [str(proto.relative_to(folder)) for proto in protos]
    if protoc.main(arguments) != 0:
        raise SystemExit(f"generate_api: protoc failed on {folder}")
    marker.write_text('"""The planner\'s API, generated from proto/relibra/v1."""\n')


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
