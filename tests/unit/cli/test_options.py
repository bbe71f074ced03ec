"""Every option of torchrun's own parser is ours too: spellings, arity, choices and variables."""

import argparse
import re
from pathlib import Path

import click
import pytest
from torch.distributed.run import get_args_parser

from ftlaunch.cli.options import command, read_command_line
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.keys import OPTIONS
from ftlaunch.spec.resolve import resolve

ENDING = ("help", "print_completion")  # they print something, and nothing is launched
ACTIONS = [action for action in get_args_parser()._actions if action.option_strings and action.dest not in ENDING]
SPELLINGS = [(action, spelling) for action in ACTIONS for spelling in action.option_strings]

# Defaults that differ on purpose, or say the same in other words.
OTHER_DEFAULTS = {
    "max_restarts": "a job is kept alive unless told otherwise",
    "nnodes": "1:1, where Slurm does not say",
    "node_rank": "0, which is the only one of a single node; of several the one that nobody gave is chosen",
    "rdzv_backend": "static, where no endpoint is given; without one of several nodes that is the same",
    "rdzv_endpoint": "none is the empty text",
    "local_ranks_filter": "none is the empty text",
    "master_port": "a fresh one; torch 2.10 says 29500, where 2.13 leaves it open",
}
SAMPLES = {
    "nnodes": "1:1", "nproc_per_node": "2", "max_restarts": "4", "monitor_interval": "0.5",
    "start_method": "fork",
    "redirects": "0:1,1:2", "tee": "3", "local_ranks_filter": "0,1", "node_rank": "0", "master_port": "29400",
    "numa_binding": "node", "rdzv_backend": "c10d", "signals_to_handle": "SIGTERM,SIGUSR1", "shutdown_timeout": "5",
}  # fmt: skip


def takes_a_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def sample(action: argparse.Action) -> list[str]:
    return [SAMPLES.get(action.dest, "text")] if takes_a_value(action) else []


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch(mode=0o755)
    return tmp_path


def test_the_comparison_sees_torchruns_options() -> None:
    assert len(ACTIONS) >= 28
    assert {"-m", "-t", "-r", "--nproc_per_node", "--signals-to-handle"} <= {spelling for _, spelling in SPELLINGS}


@pytest.mark.parametrize(("action", "spelling"), SPELLINGS, ids=[spelling for _, spelling in SPELLINGS])
def test_every_spelling_is_accepted_with_the_same_arity(action: argparse.Action, spelling: str) -> None:
    request = read_command_line([spelling, *sample(action), "train.py", spelling, "--lr"])
    assert request.flags == {action.dest: sample(action)[0] if takes_a_value(action) else "true"}
    assert (request.target, request.args) == ("train.py", (spelling, "--lr"))
    resolve("./train.py", [], request.flags, {"PATH": "/bin"})


@pytest.mark.parametrize("action", [a for a in ACTIONS if takes_a_value(a)], ids=lambda action: action.dest)
def test_values_may_be_joined_by_an_equals_sign(action: argparse.Action) -> None:
    value = sample(action)[0]
    for spelling in action.option_strings:
        joined = f"{spelling}={value}" if spelling.startswith("--") else f"{spelling}{value}"
        assert read_command_line([joined, "train.py"]).flags == {action.dest: value}


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.dest)
def test_variables_are_the_same(action: argparse.Action) -> None:
    # torch marks options that read PET_<NAME> by the class of their action.
    reads = type(action).__name__ in ("env", "check_env")
    assert (f"PET_{action.dest.upper()}" in OPTIONS[action.dest].env) == reads


@pytest.mark.parametrize("action", [a for a in ACTIONS if a.choices], ids=lambda action: action.dest)
def test_choices_are_the_same(action: argparse.Action) -> None:
    for choice in action.choices or ():
        assert resolve("train.py", [], {action.dest: choice}, {})
    with pytest.raises(SpecError, match=re.escape(", ".join(action.choices or ()))):
        resolve("train.py", [], {action.dest: "no such choice"}, {})


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.dest)
def test_defaults_are_the_same_where_the_meaning_is(action: argparse.Action, monkeypatch) -> None:
    key = OPTIONS[action.dest]
    if key.group == "accepted" or action.dest in OTHER_DEFAULTS:
        return
    theirs = action.default
    if key.switch:
        assert key.default_value in (None, False)
        assert theirs is False
    elif action.dest == "rdzv_id":
        assert (key.default, theirs) == (None, "none")
    else:
        assert key.default == (None if theirs is None else str(theirs))


@pytest.mark.parametrize("spelling", ["--print-completion", "--print_completion"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_is_printed_for_the_shells_of_torchrun(spelling: str, shell: str, capsys) -> None:
    with pytest.raises(click.exceptions.Exit) as ended:
        read_command_line([spelling, shell])
    assert ended.value.exit_code == 0
    assert "ftlaunch" in capsys.readouterr().out


def test_completion_for_another_shell_is_refused() -> None:
    with pytest.raises(SpecError, match=r"cannot read the command line: .*'ksh' is not one of .*'tcsh'"):
        read_command_line(["--print-completion", "ksh"])


def test_everything_from_the_script_on_is_the_scripts() -> None:
    for line in (
        ["--nproc-per-node", "2", "train.py", "--nproc-per-node", "7", "-m", "--", "--help"],
        ["-t3", "-r", "0:1", "-m", "pkg.train", "-t", "--unknown", "x"],
        ["--no-python", "--", "prog", "--", "-x"],
    ):
        theirs = get_args_parser().parse_args(line)
        ours = read_command_line(line)
        assert (ours.target, list(ours.args)) == (theirs.training_script, theirs.training_script_args)


def test_our_own_options_have_both_spellings_and_do_not_clash() -> None:
    known = {spelling for _, spelling in SPELLINGS}
    for key in OPTIONS.values():
        if key.group == "ours" and key.name != "max_restarts":
            dashed = f"--{key.name.replace('_', '-')}"
            assert dashed not in known
            value = [] if key.switch else ["x"]
            for spelling in (dashed, f"--{key.name}"):
                assert read_command_line([spelling, *value, "train.py"]).flags == {
                    key.name: "true" if key.switch else "x"
                }
    assert len(command.params) == len(OPTIONS) + 7


CUT = {"--redirect": "redirects", "--nnode": "nnodes", "--max_restart": "max_restarts", "--nproc": "nproc_per_node"}


@pytest.mark.parametrize("short", CUT)
def test_torchruns_options_may_be_cut_short_as_argparse_allows(short: str) -> None:
    """Options of ftlaunch's own may not: a new one would make them mean something else."""
    assert read_command_line([f"{short}=1", "train.py"]).flags == {CUT[short]: "1"}
