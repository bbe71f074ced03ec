"""Stands in for torch where the fork server is made to fail: torch's import takes longer than the whole job.

The modules of the hooks that the fork server imports beside torch need the real one, and count as imported.
"""

import sys
import types

for _name in ("ftlaunch_hooks.job.attaching", "ftlaunch_hooks.observe.forward_passes"):
    sys.modules[_name] = types.ModuleType(_name)


class default_generator:
    """Nothing here draws."""

    @staticmethod
    def seed() -> None:
        """Draw from another beginning."""


def set_num_threads(count: int) -> None:
    """Nothing here computes."""


def manual_seed(seed: int) -> None:
    """Nothing here draws."""


class cuda:
    """No GPU is there."""

    @staticmethod
    def is_initialized() -> bool:
        return False
