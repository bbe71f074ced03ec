"""The settings that say what to run."""

from __future__ import annotations

from ftlaunch.common.masking import masked_args, masked_env
from ftlaunch.spec import parsers as p
from ftlaunch.spec.key import Key

TARGET = (
    Key(
        "script", p.text, allowed="the path of a Python script", default=None,
        help="the Python script to run; or else `module` or `program`",
        group="target", option=False,
    ),
    Key(
        "module", p.text, allowed="the name of a Python module", default=None,
        help="the module to run as `python -m` would",
        group="target", option=False,
    ),
    Key(
        "program", p.text, allowed="the path or name of a program", default=None,
        help="the program to run without Python",
        group="target", option=False,
    ),
    Key(
        "args", p.text_list, allowed="a list such as [--lr, 0.1]", default=None,
        help="arguments for it, a list; ARGS on the command line replace the whole list",
        group="target", option=False, show=masked_args,
    ),
    Key(
        "env", p.text_map, allowed="a mapping such as {NCCL_DEBUG: INFO}", default=None,
        help="environment variables for the ranks, besides those ftlaunch was started with",
        group="target", option=False, show=masked_env,
    ),
    Key(
        "python", p.text, allowed="the path of a Python interpreter", default=None,
        help="the interpreter of the ranks; null: the one that runs ftlaunch",
        group="target", option=False, env=("PYTHON_EXEC",),
    ),
)  # fmt: skip
