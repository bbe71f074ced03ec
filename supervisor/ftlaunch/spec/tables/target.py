"""What to run."""

from __future__ import annotations

from ftlaunch.common.masking import masked_args, masked_env
from ftlaunch.spec import parsers as p
from ftlaunch.spec.key import Key

TARGET = (
    Key("script", p.text, "the path of a Python script", None,
        "the Python script to run; or else `module` or `program`", "target", option=False),
    Key("module", p.text, "the name of a Python module", None,
        "the module to run as `python -m` would", "target", option=False),
    Key("program", p.text, "the path or name of a program", None,
        "the program to run without Python", "target", option=False),
    Key("args", p.text_list, "a list such as [--lr, 0.1]", None,
        "arguments for it, a list; ARGS on the command line replace the whole list", "target", option=False,
        show=masked_args),
    Key("env", p.text_map, "a mapping such as {NCCL_DEBUG: INFO}", None,
        "environment variables for the ranks, besides those ftlaunch was started with", "target",
        option=False, show=masked_env),
    Key("python", p.text, "the path of a Python interpreter", None,
        "the interpreter of the ranks; null: the one that runs ftlaunch", "target", option=False, env=("PYTHON_EXEC",)),
)  # fmt: skip
