"""Hosts on the command line and in files, and what follows from them for the nodes of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.cli.options import read_command_line
from ftlaunch.spec.errors import RefusedError, SpecError
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsing.hosts import Host, host_file, host_list, ssh_command
from ftlaunch.spec.resolve import resolve


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("worker-1 slots=4", Host("worker-1", 4)),
        ("worker-1\tslots = 4   # the first", Host("worker-1", 4)),
        ("node1:8", Host("node1", 8)),
        ("  node1  ", Host("node1")),
        ("ada@10.0.0.7", Host("ada@10.0.0.7")),
    ],
)
def test_a_line_of_a_hostfile(line: str, host: Host) -> None:
    assert host_file(f"# hosts\n\n{line}\n") == (host,)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a slots=0", "the ranks of a host are a whole number, 1 or more"),
        ("a slots=many", "the ranks of a host are a whole number, 1 or more"),
        ("a max_slots=4", "a line is `HOST`, `HOST:RANKS` or `HOST slots=RANKS`"),
        ("a:4 slots=4", "a line is `HOST`"),
        ("-oProxyCommand=x", "a host is NAME or USER@NAME"),
        ("a;b", "a host is NAME or USER@NAME"),
        ("a slots=2\nb\na slots=2", "a is named 2 times, and a host has one agent"),
        ("# nothing\n", "it names no host"),
    ],
)
def test_a_hostfile_that_cannot_be_read_says_why(content: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        host_file(content)


def test_hosts_on_the_command_line() -> None:
    assert host_list("a, ada@b,c:8") == (Host("a"), Host("ada@b"), Host("c", 8))
    assert Host("ada@b").address == "b"
    for wrong in ("", "a,,b", "a b", "a:", "a:b:c", "a,a"):
        with pytest.raises(RefusedError):
            host_list(wrong)


def test_the_program_that_reaches_hosts_has_options() -> None:
    assert ssh_command("ssh -p 2222 -o 'User ada'") == ("ssh", "-p", "2222", "-o", "User ada")
    for wrong in ("'", "  "):
        with pytest.raises(RefusedError):
            ssh_command(wrong)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def asked(*options: str, environ: dict[str, str] | None = None) -> JobSpec:
    request = read_command_line([*options, "train.py"])
    return resolve(request.target, request.args, request.flags, environ or {})


@pytest.mark.usefixtures("place")
def test_hosts_say_how_many_nodes_there_are_and_where_they_meet() -> None:
    spec = asked("--hosts", "ada@a:4,b:4,c:4")
    assert (spec.nodes.least, spec.nodes.most, spec.nodes.address, spec.nodes.port) == (3, 3, "a", 29400)
    assert spec.launch.nproc == 4
    assert spec.nodes.ssh == ("ssh",)


@pytest.mark.usefixtures("place")
def test_what_was_asked_for_wins_over_the_hosts() -> None:
    options = "--nnodes", "1:2", "--rdzv-endpoint", "b:1234", "--nproc-per-node", "2"
    spec = asked("--hosts", "a:4,b:8,c", *options)
    assert (spec.nodes.least, spec.nodes.most, spec.nodes.address, spec.nodes.port) == (1, 2, "b", 1234)
    assert spec.launch.nproc == 2
    assert [host.slots for host in spec.nodes.hosts] == [None] * 3


@pytest.mark.usefixtures("place")
def test_gpus_of_the_machine_that_starts_the_hosts_are_not_needed() -> None:
    assert asked("--hosts", "a,b", "--nproc-per-node", "gpu", environ={"CUDA_VISIBLE_DEVICES": ""}).nodes.hosts


def test_a_hostfile_is_read(place: Path) -> None:
    (place / "hosts").write_text("a slots=2\nb slots=2\n")
    spec = asked("--hostfile", "hosts")
    assert (spec.nodes.most, spec.launch.nproc) == (2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "a:2,b:4"], "a has 2, b 4; make them alike, or give `--nproc-per-node`"),
        (["--hosts", "a:2,b"], "a has 2, b no number"),
        (["--hosts", "a,b", "--nnodes", "3"], "`--hosts` names fewer hosts, 2; name more, or ask for fewer nodes"),
        (["--hosts", "a,b", "--node-rank", "0"], "`--hosts` gives each host a place of its own; leave it out"),
        (["--hosts", "a,b", "--hostfile", "hosts"], "`--hosts` names hosts, too; give one of them"),
        (["--hostfile", "nowhere"], "cannot read nowhere: no such file or directory"),
        (["--hostfile", "bad"], "cannot read bad: a line says 'a b c'; a line is `HOST`"),
    ],
)
def test_hosts_that_cannot_be_are_refused_in_a_sentence(place: Path, options: list[str], words: str) -> None:
    (place / "bad").write_text("a b c\n")
    with pytest.raises(SpecError) as refused:
        asked(*options)
    assert words.replace("'", "") in str(refused.value).replace("'", "")


def test_the_agents_command_line_is_the_commands_own() -> None:
    words = ["-t", "3", "--hosts", "a,b", "--no-warm", "--standalone", "--check", "-m", "train", "--hosts", "x"]
    request = read_command_line(words)
    again = read_command_line(request.words(without=("hosts",)))
    assert again.flags == {name: value for name, value in request.flags.items() if name != "hosts"}
    assert (again.target, again.args, again.check) == ("train", ("--hosts", "x"), True)
