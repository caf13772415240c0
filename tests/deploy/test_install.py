"""cmake --install, the CMake package, and the Debian packages."""

import os
import re
import shutil
import stat

import pytest

from conftest import BIN, BUILD, REPOSITORY, Planner, run

PROGRAMS = ("relibra", "relibra-planner", "relibra-agent")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Everything, installed."""
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_programs_run_from_where_they_are_installed(prefix, tmp_path):
    with Planner(tmp_path, program=prefix / "bin/relibra-planner") as planner:
        table = run(prefix / "bin/relibra", "status", "--planner", planner.grpc).stdout
        assert "0 jobs" in table
        assert planner.stop() == 0
    assert "selftest" in run(prefix / "bin/relibra-agent", "--help").stdout
    assert "Usage: " in run(prefix / "bin/relibra-slurm-launch", "--help").stdout


def test_every_flag_of_every_program_stands_in_its_man_page(prefix):
    def flags(program, *words):
        text = run(program, *words, "--help").stdout
        found = set(re.findall(r"--[a-z][a-z0-9-]+", text))
        _, _, below = text.partition("Subcommands:\n")
        for command in re.findall(r"^  ([a-z][a-z0-9-]*)\b", below, re.M):
            found |= flags(program, *words, command)
        return found

    for name in PROGRAMS:
        page = (prefix / f"share/man/man1/{name}.1").read_text().replace("\\-", "-")
        missing = {flag for flag in flags(prefix / "bin" / name) if flag not in page}
        assert not missing, name
        if shutil.which("man"):
            warnings = run("man", "--warnings", "-l", prefix / f"share/man/man1/{name}.1").stderr
            assert not warnings, name


def complete(prefix, line):
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    script = f"""source {prefix}/share/bash-completion/completions/{words[0]}
COMP_WORDS=({" ".join(word or "''" for word in words)}) COMP_CWORD={len(words) - 1}
_relibra; printf '%s\\n' "${{COMPREPLY[@]}}" """
    path = f"{prefix}/bin:{os.environ['PATH']}"
    return run("bash", "-c", script, env={**os.environ, "PATH": path}).stdout.split()


def test_bash_completes_commands_and_flags(prefix):
    assert complete(prefix, "relibra st") == ["status"]
    assert complete(prefix, "relibra trace gen") == ["generate"]
    assert complete(prefix, "relibra plan --max-m") == ["--max-moves"]
    assert complete(prefix, "relibra-planner --tls-c") == ["--tls-cert", "--tls-client-ca"]
    assert complete(prefix, "relibra-agent serve --from") == ["--from-step"]
    assert complete(prefix, "relibra plan --trace ") == []  # a file name, from readline


def test_another_project_finds_and_uses_the_package(prefix, tmp_path):
    run("cmake", "-S", REPOSITORY / "tests/deploy/consumer", "-B", tmp_path, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug")  # fmt: skip
    run("cmake", "--build", tmp_path, timeout=200)
    assert run(tmp_path / "plan_a_batch").stdout == "2 1 update\n"
    code, _, reason = run(tmp_path / "agent_abi").stdout.partition(" ")
    assert int(code) != 0
    assert reason.strip()
    # Nothing points back into the build or source folder.
    for config in (prefix / "lib/cmake/relibra").iterdir():
        assert str(REPOSITORY) not in config.read_text(), config


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The Debian packages, by name."""
    folder = tmp_path_factory.mktemp("packages")
    run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder, timeout=300)
    return {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def files_below(folder):
    return {
        str(path.relative_to(folder)): path.lstat().st_mode
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def test_debian_packages_install_run_and_leave_nothing_behind(packages, tmp_path):
    assert set(packages) == {"relibra-planner", "relibra-agent", "librelibra-dev"}
    root = tmp_path / "root"
    for folder in ("updates", "info"):
        (root / "var/lib/dpkg" / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ("dpkg", f"--root={root}", "--force-depends", "--force-not-root",
            "--force-script-chrootless", f"--log={tmp_path}/log")  # fmt: skip
    run(*dpkg, "-i", *packages.values())
    for name, mode in files_below(root / "usr").items():
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID) or stat.S_ISLNK(mode), name
    with Planner(tmp_path, program=root / "usr/bin/relibra-planner") as planner:
        assert planner.stop() == 0
    assert run(root / "usr/bin/relibra", "--version").stdout.startswith("relibra ")
    assert (root / "usr/lib/systemd/system/relibra-planner.service").exists()
    run(*dpkg, "--purge", *packages)
    assert files_below(root / "usr") == {}


def test_what_the_debian_packages_depend_on_is_in_debian(packages):
    depends = run("dpkg-deb", "-f", packages["relibra-planner"], "Depends").stdout
    assert "libgrpc++" in depends
    assert "libucx" not in depends  # the planner's machine needs no RDMA libraries
    for path in packages.values():
        for need in run("dpkg-deb", "-f", path, "Depends").stdout.split(","):
            name = need.split("(")[0].split("|")[0].strip()
            if name in packages:
                continue
            assert "installed" in run("dpkg-query", "-W", "-f=${Status}", name).stdout, name


def test_programs_of_the_build_have_a_version():
    assert re.fullmatch(r"relibra \d+\.\d+\.\d+\n", run(BIN / "relibra", "--version").stdout)
