"""The systemd units, as they are installed."""

import re
import shutil

import pytest

from conftest import BUILD, DEPLOY, run

UNITS = ("relibra-planner.service", "relibra-agent@.service")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root file system that holds the installed units and programs beside systemd's own units."""
    folder = tmp_path_factory.mktemp("root")
    shutil.copytree("/usr/lib/systemd/system", folder / "usr/lib/systemd/system", symlinks=True)
    run("cmake", "--install", BUILD, "--prefix", folder / "usr")
    return folder


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_to_say_about_the_unit(root, unit):
    name = unit.replace("@.", "@3.")
    verdict = run("systemd-analyze", "verify", "--man=no", f"--root={root}", name, check=False)
    assert [line for line in verdict.stderr.splitlines() if "relibra" in line] == []
    assert verdict.returncode == 0, verdict.stderr


def test_the_drop_in_for_tls_is_as_clean(root):
    drop_ins = root / "etc/systemd/system/relibra-planner.service.d"
    drop_ins.mkdir(parents=True)
    shutil.copy(DEPLOY / "systemd/tls.conf", drop_ins)
    verdict = run("systemd-analyze", "verify", "--man=no", f"--root={root}", UNITS[0])
    assert [line for line in verdict.stderr.splitlines() if "relibra" in line] == []
    known = run(root / "usr/bin/relibra-planner", "--help").stdout
    for flag in re.findall(r"--[a-z-]+", (drop_ins / "tls.conf").read_text()):
        assert flag in known


@pytest.mark.parametrize(("unit", "most_exposed"), [(UNITS[0], 2.0), (UNITS[1], 4.0)])
def test_the_unit_is_hardened(root, unit, most_exposed):
    name = unit.replace("@.", "@3.")
    report = run("systemd-analyze", "security", "--offline=yes", f"--root={root}", name).stdout
    exposure = re.search(r"Overall exposure level for .*: ([0-9.]+)", report)
    assert exposure, report
    assert float(exposure[1]) <= most_exposed, report


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_uses_flags_that_the_program_has(root, unit):
    text = (DEPLOY / "systemd" / unit).read_text()
    start = re.search(r"^ExecStart=(\S+) (.*)$", text, re.M)
    words = start[2].split()
    command = words[:1] if not words[0].startswith("-") else []
    known = run(root / "usr/bin" / start[1], *command, "--help").stdout
    for flag in re.findall(r"--[a-z-]+", start[2]):
        assert flag in known


def test_wrong_flags_are_not_tried_again(root):
    wrong = run(root / "usr/bin/relibra-planner", "--no-such-flag", check=False)
    text = (DEPLOY / "systemd" / UNITS[0]).read_text()
    assert f"RestartPreventExitStatus={wrong.returncode}" in text
