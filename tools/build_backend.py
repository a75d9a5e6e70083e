"""Build backend: that of setuptools, after a check that it sees the torch to build against.

posenc fits one minor version of torch, so it must be built against the torch that it will be used with. The isolated
environment in which pip builds by default hides that one; bringing another would give a library that fails later.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

_SETUPTOOLS = (77,)


def _check_environment():
    if find_spec("torch") is None:
        sys.exit(
            "posenc is built against the torch that you use, and this build sees none: "
            "install torch first, then run `pip install --no-build-isolation .` (the isolated build hides torch)."
        )
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        found = "none"
    if not found.split(".")[0].isdigit() or (int(found.split(".")[0]),) < _SETUPTOOLS:
        sys.exit(
            f"posenc needs setuptools {_SETUPTOOLS[0]} or newer to build and found {found}: "
            f"run `pip install 'setuptools>={_SETUPTOOLS[0]}'`, then `pip install --no-build-isolation .`."
        )


def _setuptools():
    from setuptools import build_meta

    return build_meta


def get_requires_for_build_wheel(config_settings=None):
    _check_environment()
    return _setuptools().get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings=None):
    _check_environment()
    return _setuptools().get_requires_for_build_editable(config_settings)


def get_requires_for_build_sdist(config_settings=None):
    return [f"setuptools>={_SETUPTOOLS[0]}"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    _check_environment()
    return _setuptools().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    _check_environment()
    return _setuptools().prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _check_environment()
    return _setuptools().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _check_environment()
    return _setuptools().build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    return _setuptools().build_sdist(sdist_directory, config_settings)
