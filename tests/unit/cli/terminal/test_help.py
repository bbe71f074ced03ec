"""Every command says how it is typed, in examples that parse; a mistyped word is answered with what may be meant."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import click
import pytest
from tests.support.ctl import ftctl, journal, started

from ftlaunch.cli import options
from ftlaunch.cli.ctl import command
from ftlaunch.cli.terminal.examples import EXAMPLES, FTLAUNCH
from ftlaunch.cli.terminal.help import SECTIONS
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.resolve import resolve


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield f"{path}{name}", found
        if isinstance(found, click.Group):
            yield from commands(found, f"{path}{name} ")


COMMANDS = dict(commands(command))


def examples(path: str) -> list[str]:
    lines = (COMMANDS[path].epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("ftctl ")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    (tmp_path / "train.py").touch()
    journal(tmp_path / "runs" / "gpt", started("gpt"))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_of_ftctl_has_examples_that_parse(path: str, tmp_path: Path) -> None:
    assert examples(path), f"ftctl {path}: add an example to cli/terminal/examples.py, or an epilog"
    for line in examples(path):
        _, *words = shlex.split(line.partition(" > ")[0])
        context = command.make_context("ftctl", words)
        called = []
        while isinstance(context.command, click.Group) and (rest := [*context._protected_args, *context.args]):
            name, found, words = context.command.resolve_command(context, rest)
            assert found is not None
            called.append(name)
            context = found.make_context(name, words, parent=context)
        assert " ".join(map(str, called)) == path
    assert all(line in ftctl(*path.split(), "--help", cwd=tmp_path)[1] for line in examples(path))


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert EXAMPLES.keys() - {""} <= COMMANDS.keys()


def test_ftctl_has_examples_of_its_own_and_cuts_no_summary(tmp_path: Path) -> None:
    said = ftctl("--help", cwd=tmp_path)[1]
    assert all(f"  {line}\n" in said for line in EXAMPLES[""])
    assert not [line for line in said.splitlines()[1:] if line.endswith("...")]


@pytest.mark.parametrize("line", FTLAUNCH)
def test_the_examples_of_ftlaunch_parse_and_resolve(line: str) -> None:
    request = options.read_command_line(shlex.split(line)[1:])
    resolve(request.target, request.args, request.flags, {})
    with pytest.raises(click.exceptions.Exit), redirect_stdout(io.StringIO()) as out:
        options.read_command_line(["--help"])
    assert f"  {line}\n" in out.getvalue()


def test_every_command_is_in_a_section(tmp_path: Path) -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    names = set(command.list_commands(click.Context(command)))
    assert names == set(listed)
    said = ftctl("--help", cwd=tmp_path)[1]
    places = [said.index(f"\n{title}:\n") for title in SECTIONS if set(SECTIONS[title]) & names]
    assert places == sorted(places)
    for name in names:
        assert f"\n  {name} " in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["statsu"], "no such command 'statsu'; did you mean `status`?; see `ftctl --help`"),
        (["train.py"], "no such command 'train.py'; did you mean `ftlaunch train.py`?"),
        (["logs", "--rank", "x"], "invalid value for '--rank': 'x' is not a whole number of 0 or more"),
        (["dashboard", "--port", "70000"], "70000 is not a whole number from 0 to 65535"),
        (["status", "a", "b"], "`b` is more than this command takes"),
        (["zzz"], "no such command 'zzz'; see `ftctl --help`"),
        (["checkpoints", "gpt", "verfy"], "no such command 'verfy'; did you mean `verify`?"),
        (["nodes", "gpt", "forgiv", "n1"], "no such command 'forgiv'; did you mean `forgive`?"),
        (["status", "--jsn"], "no such option --jsn; did you mean `--json`?; see `ftctl status --help`"),
        (["logs", "--rnak", "1"], "no such option --rnak; did you mean `--rank`?"),
        (["completion", "bahs"], "'bahs' is not one of 'bash', 'zsh', 'fish'; did you mean `bash`?"),
        (["kubernetes", "job.yaml", "--kind", "jobst"], "did you mean `jobset`?"),
    ],
)
def test_a_mistyped_word(words: list[str], says: str, tmp_path: Path) -> None:
    code, _, err = ftctl(*words, cwd=tmp_path)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["status"], ["report"], ["logs"], ["stop"]])
def test_a_mistyped_run(words: list[str], tmp_path: Path) -> None:
    code, _, err = ftctl(*words, "gtp", cwd=tmp_path)
    assert code == 2
    assert "no job is called gtp, and there is no events.jsonl in gtp or runs/gtp; did you mean `gpt`?" in err
    assert "`ftctl jobs` lists your jobs" in err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"restart_policy": "on-failur"}, "on-failure, by-cause or never; did you mean `on-failure`?"),
        ({"on_slow": "Restart"}, "warn, restart or off; did you mean `restart`?"),
        ({"hang_timeout": "atuo"}, "did you mean `auto`?"),
        ({"nproc_per_node": "gpus"}, "did you mean `gpu`?"),
        ({"rdzv_backend": "c10"}, "did you mean `c10d`?"),
        ({"hang_timeout": "10x"}, "`--hang-timeout 10x`:"),
        ({"max_restarts": "many"}, "`--max-restarts many`:"),
    ],
)
def test_a_mistyped_value(flags: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        resolve("train.py", [], flags, {})
    assert says in str(refused.value)
    assert ("did you mean" in str(refused.value)) == ("did you mean" in says)


def test_a_place_may_stand_behind_the_command(tmp_path: Path) -> None:
    behind = ftctl("checkpoints", "verify", str(tmp_path / "none"), cwd=tmp_path)
    assert behind == ftctl("checkpoints", str(tmp_path / "none"), "verify", cwd=tmp_path)
    assert "none" in behind[2]
    assert "host3" not in ftctl("nodes", "forgive", "host3", cwd=tmp_path)[2]
