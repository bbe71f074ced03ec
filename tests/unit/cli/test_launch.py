"""The command `ftlaunch`: what it prints, what it returns, and that it makes nothing when it refuses."""

import os
import sys
import types
from pathlib import Path

import pytest
import yaml

from ftlaunch import __version__
from ftlaunch.cli.launch import run_command, start_job


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "bad.yaml").write_text("script: train.py\nhang_timout: 3s\n")
    (tmp_path / "good.yaml").write_text("script: train.py\nargs: [--lr, 1]\nkeep: 7\n")
    return tmp_path


def ftlaunch(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = run_command(argv, os.environ, start_job)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Stands where the runner does, and starts nothing."""
    module = types.ModuleType("ftlaunch.engine.main")
    module.specs = []
    module.run = lambda spec, begun: module.specs.append(spec) or 75
    monkeypatch.setitem(sys.modules, "ftlaunch.engine.main", module)
    return module


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "cannot start: no script, module, program or job.yaml is given; see `ftlaunch --help`"),
        (["--keep", "3"], "cannot start: no script"),
        (["--hang-timout", "3s", "train.py"],
         "cannot use `--hang-timout`: there is no such option; did you mean `--hang-timeout`?"),
        (["--nproc-node", "2", "train.py"],
         "cannot use `--nproc-node`: there is no such option; did you mean `--nproc-per-node`?"),
        (["--rdzv", "2", "train.py"], "cannot use `--rdzv`: there is no such option"),
        (["--hang", "2", "train.py"], "cannot use `--hang`: there is no such option"),
        (["--dryrun", "train.py"], "did you mean `--dry-run`?"),
        (["-x", "train.py"], "cannot use `-x`: there is no such option; see `ftlaunch --help`"),
        (["--zzzzzz", "train.py"], "cannot use `--zzzzzz`: there is no such option; see"),
        (["--keep"], "cannot use `--keep`: it needs a value"),
        (["--fresh=1", "train.py"], "cannot use `--fresh`: it takes no value"),
        (["--grace", "3x", "train.py"], "cannot use `--grace 3x`: it must be a duration"),
        (["--nnodes", "1:2", "--rdzv-endpoint", "localhost", "--rdzv-conf", "last_call_timeout=-1", "train.py"],
         "cannot use `--rdzv-conf last_call_timeout=-1`: `last_call_timeout` must be a whole number of seconds"),
        (["--node-rank=1", "train.py"],
         "cannot use `--node-rank 1`: it must be below the number of nodes, which is 1"),
        (["--preload", "a-b", "train.py"],
         "cannot use `--preload a-b`: it must be auto, or names of modules with commas"),
        (["--restart-policy", "maybe", "train.py"], "it must be on-failure, by-cause or never"),
        (["--fault-rules", "x", "train.py"], "cannot use `--fault-rules`: there is no such option"),
        (["bad.yaml"], "cannot read bad.yaml: `hang_timout` is not a key; did you mean `hang_timeout`?"),
        (["--dry-run", "bad.yaml"], "cannot read bad.yaml: `hang_timout` is not a key"),
        (["no.yaml"], "cannot read no.yaml: no such file or directory"),
        (["no.py"], "cannot run no.py: no such file or directory"),
        (["--run-dir", "train.py/x", "train.py"], "train.py is not a directory"),
        (["--job-id", "../up", "train.py"], "cannot use `--job-id ../up`: it must be 1 to 64 letters"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence_and_nothing_is_made(argv, expected, capsys, place: Path) -> None:
    before = sorted(place.rglob("*"))
    code, out, err = ftlaunch(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith("ftlaunch: cannot ")
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(place.rglob("*")) == before


def test_dry_run_prints_the_resolved_spec_and_makes_nothing(capsys, place: Path) -> None:
    before = sorted(place.rglob("*"))
    code, out, err = ftlaunch(
        capsys, "--nproc_per_node=2", "--dry-run", "--hang-timeout", "off", "train.py", "--api-key", "x1"
    )
    printed = yaml.safe_load(out)
    assert (code, err) == (0, "")
    assert (printed["nproc_per_node"], printed["hang_timeout"], printed["args"]) == (
        2,
        "off",
        ["--api-key", "***"],
    )
    assert printed["run_dir"].startswith(f"{place}/runs/train-")
    assert sorted(place.rglob("*")) == before


def test_what_dry_run_prints_is_a_spec_of_the_same_job(capsys, place: Path) -> None:
    _, printed, _ = ftlaunch(capsys, "--dry-run", "--keep", "9", "good.yaml")
    (place / "again.yaml").write_text(printed)
    assert ftlaunch(capsys, "--dry-run", "again.yaml") == (0, printed, "")


def test_dry_run_shows_where_several_nodes_meet_and_no_token(capsys, monkeypatch, runner) -> None:
    monkeypatch.setenv("FTLAUNCH_TOKEN", "5ecret-of-the-job")
    flags = ["--nnodes", "2:4", "--node-rank", "1", "--rdzv-endpoint", "h", "--node-wait", "90s"]
    code, out, err = ftlaunch(capsys, "--dry-run", *flags, "train.py")
    printed = yaml.safe_load(out)
    names = ("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "node_timeout", "node_wait")
    assert [str(printed[name]) for name in names] == ["2:4", "1", "c10d", "h:29400", "2s", "1m30s"]
    assert (code, err, "5ecret" in out) == (0, "", False)
    assert runner.specs == []


def test_dry_run_after_the_script_is_the_scripts(capsys, runner) -> None:
    assert ftlaunch(capsys, "train.py", "--dry-run")[0] == 75
    assert runner.specs[0].launch.args == ("--dry-run",)


def test_the_resolved_job_goes_to_the_runner_whose_code_is_ours(capsys, runner) -> None:
    assert ftlaunch(capsys, "--max-restarts", "1", "good.yaml", "--lr", "2") == (75, "", "")
    (spec,) = runner.specs
    assert (spec.launch.target, spec.launch.args, spec.restarts.max_restarts, spec.saving.keep) == (
        "train.py",
        ("--lr", "2"),
        1,
        7,
    )


def test_switches_can_be_taken_back(capsys, runner, place: Path) -> None:
    (place / "fresh.yaml").write_text("script: train.py\nfresh: true\n")
    for flag, expected in (("--no-fresh", False), ("--fresh", True), ("--no-warm", True)):
        ftlaunch(capsys, flag, "fresh.yaml")
        assert runner.specs[-1].saving.fresh is expected


def test_variables_are_read(capsys, runner, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "pkg").mkdir()
    (place / "pkg/train.py").touch()
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("PET_MODULE", "1")
    ftlaunch(capsys, "pkg.train")
    assert (runner.specs[0].launch.nproc, runner.specs[0].launch.kind) == (3, "module")


def test_an_option_without_the_effect_it_has_in_torchrun_is_told(capsys, runner) -> None:
    code, _, err = ftlaunch(capsys, "--logs-specs", "mine", "--rdzv-backend", "c10d", "train.py")
    assert (code, err) == (75, "ftlaunch: `--logs-specs` has no effect: ranks log to <run-dir>/logs\n")


def test_a_bug_of_ours_is_70_with_the_traceback(capsys, runner, place: Path) -> None:
    runner.run = lambda spec, begun: 1 / 0
    code, _, err = ftlaunch(capsys, "--run-dir", "out", "train.py")
    assert code == 70
    assert err.startswith("ftlaunch: a bug of ftlaunch's own: ZeroDivisionError: division by zero;")
    assert "Traceback" in err
    (place / "out").mkdir()
    code, _, err = ftlaunch(capsys, "--run-dir", "out", "train.py")
    assert (code, err.count("\n")) == (70, 1)
    assert "Traceback" in (place / "out/bug.txt").read_text()


def test_ctrl_c_is_no_traceback(capsys, runner) -> None:
    def interrupted(spec: object, begun: object) -> int:
        raise KeyboardInterrupt

    runner.run = interrupted
    assert ftlaunch(capsys, "train.py") == (143, "", "ftlaunch: stopped by Ctrl-C\n")


def test_help_lists_every_option_and_exit_code(capsys) -> None:
    code, out, _ = ftlaunch(capsys, "--help")
    assert code == 0
    for word in (
        "--hang-timeout VALUE",
        "--warm / --no-warm",
        "-t, --tee VALUE",
        "--dry-run",
        "--version",
        "75 stopped",
    ):
        assert word in out
    assert "None" not in out
    assert ftlaunch(capsys, "-h")[1] == out


def test_version(capsys) -> None:
    assert ftlaunch(capsys, "--version") == (0, f"ftlaunch {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian.py"], "cannot run trian.py: no such file or directory; did you mean `train.py`?"),
        (["jobs"], "cannot run jobs: there is no such script; did you mean `ftctl jobs`?"),
        (["no/train.py"], "cannot run no/train.py: no such file or directory; there is no folder no"),
        (["-m", "no.such.mod"], "cannot run module no.such.mod: there is no module no in "),
        (["-m", "pkg.no"], "cannot run module pkg.no: there is no module pkg.no in "),
        (["-m", "json.nothing"], "there is no module json.nothing in "),
    ],
)
def test_what_is_not_there_is_refused_before_the_start(
    words: list[str], says: str, capsys, runner, place: Path
) -> None:
    """A module that is not there used up all restarts."""
    (place / "pkg").mkdir()
    (place / "pkg/__init__.py").write_text("raise SystemExit('it was run')")
    code, out, err = ftlaunch(capsys, *words)
    assert (code, out, runner.specs) == (2, "", [])
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("module", ["pkg", "pkg.there", "changing.anything", "space.there", "os.path", "click.testing"])
def test_a_module_that_may_be_found_is_not_refused(module: str, capsys, runner, place: Path) -> None:
    for folder, text in (("pkg", ""), ("changing", "__path__ = ['/elsewhere']"), ("space", None)):
        (place / folder).mkdir()
        (place / folder / "there.py").touch()
        if text is not None:
            (place / folder / "__init__.py").write_text(text)
    assert ftlaunch(capsys, "-m", module)[0] == 75
