"""Builds the package: generates relibra.v1 and takes the fast EPLB library along if it is built.

The library is looked for in RELIBRA_EPLB_LIBRARY, then in ../build/release/lib. Without it the
package is pure Python, and relibra.eplb is slower.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from generate_api import find_protos, generate  # noqa: E402

LIBRARY = "librelibra_eplb.so"


def built_library():
    """Path of the compiled library, or None."""
    named = os.environ.get("RELIBRA_EPLB_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise SystemExit(f"RELIBRA_EPLB_LIBRARY: no such file: {named}")
        return Path(named)
    default = HERE.parent / "build" / "release" / "lib" / LIBRARY
    return default if default.is_file() else None


class BuildPy(build_py):
    """Adds what is generated and what is compiled."""

    def run(self):
        super().run()
        target = Path(self.build_lib)
        generate(target)
        if library := built_library():
            shutil.copy2(library, target / "relibra" / LIBRARY)


class EditableWheel(editable_wheel):
    """An editable install imports from the source tree, so the API is generated there."""

    def run(self):
        generate(HERE)
        super().run()


class Sdist(sdist):
    """Puts the .proto files into the archive, since they stand outside this folder."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copytree(find_protos(), Path(base_dir) / "proto", dirs_exist_ok=True)


class BdistWheel(bdist_wheel):
    """With the library the wheel fits one platform but every Python."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return (
            ("py3", "none", platform)
            if self.distribution.has_ext_modules()
            else (
                python,
                abi,
                platform,
            )
        )


class RelibraDistribution(Distribution):
    """A distribution that is bound to a platform when it carries the library."""

    def has_ext_modules(self):
        return built_library() is not None


setup(
    cmdclass={
        "build_py": BuildPy,
        "editable_wheel": EditableWheel,
        "sdist": Sdist,
        "bdist_wheel": BdistWheel,
    },
    distclass=RelibraDistribution,
)
