"""Skips tests of packages that are not installed, without the import of a package."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def require(package: str, *, reason: str) -> None:
    """Skip the calling test, or all tests of the calling module, if a package is not installed.

    pytest.importorskip imports the package, which takes seconds with a training framework, in each of pytest's
    processes and also where all tests of the module are deselected.

    Args:
        package: the name of a package at the top, because a search for a part of a package imports the package.
        reason: what is not installed, and how to install it.
    """
    if find_spec(package) is None:
        pytest.skip(reason, allow_module_level=True)
