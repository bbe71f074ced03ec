"""From flags, job spec, environment and defaults to one JobSpec."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from ftlaunch.spec.job_spec import JobSpec, SpecError, resolved
from ftlaunch.spec.keys import KEYS, YAML_KEYS, default
from ftlaunch.spec.resolve import resolve
from ftlaunch.spec.yaml_file import read_spec_file
from ftlaunch_contract import protocol

CONFIGS = Path(__file__).parents[3] / "configs"
_NO_JOBS = ("default.yaml", "fault_rules.yaml")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def ask(flags=None, environ=None, *, target="train.py", args=(), spec: str | None = None) -> JobSpec:
    """The spec that these inputs resolve to; `spec` is the text of a job.yaml."""
    if spec is not None:
        target = "job.yaml"
        Path(target).write_text(spec)
    return resolve(target, args, flags or {}, environ or {})


# --- the one table ------------------------------------------------------------------------------------------


def test_default_yaml_holds_every_key_with_the_default_of_the_code() -> None:
    content = yaml.load((CONFIGS / "default.yaml").read_text(), yaml.BaseLoader)
    assert {name: None if raw == "null" else raw for name, raw in content.items()} == {
        name: key.default for name, key in YAML_KEYS.items()
    }


def test_every_key_of_default_yaml_has_a_comment() -> None:
    lines = (CONFIGS / "default.yaml").read_text().splitlines()
    keys = [line for line in lines if line and not line.startswith("#")]
    assert len(keys) == len(YAML_KEYS)
    assert [line for line in keys if "  # " not in line] == []


def test_default_yaml_with_a_script_changes_nothing() -> None:
    text = (CONFIGS / "default.yaml").read_text()
    assert ask(spec=text.replace("script: null", "script: train.py")) == ask()


def test_every_default_is_one_that_its_key_allows() -> None:
    refused = {}
    for key in KEYS:
        if key.default is not None:
            try:
                key.read(key.default)
            except SpecError as error:
                refused[key.name] = str(error)
    assert refused == {}


def test_the_hooks_alone_have_the_same_defaults() -> None:
    assert default("keep") == protocol.DEFAULT_KEEP
    assert default("grace") == protocol.DEFAULT_GRACE_SECONDS
    assert str(default("memory_interval")) == protocol.DEFAULT_MEMORY_INTERVAL
    assert f"{default('storage_interval')[1]:.0f}s" == protocol.DEFAULT_STORAGE_INTERVAL


@pytest.mark.parametrize("name", [path.name for path in CONFIGS.glob("*.yaml") if path.name not in _NO_JOBS])
def test_the_example_specs_resolve(name: str, place: Path) -> None:
    content = read_spec_file(str(CONFIGS / name), {})
    if "script" in content:
        script = place / content["script"]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch()
    spec = ask({}, {"CUDA_VISIBLE_DEVICES": "0,1"}, target=str(CONFIGS / name))
    assert spec.launch.target.endswith(content.get("script") or content.get("module"))


# --- layers -------------------------------------------------------------------------------------------------


def test_flags_win_over_the_spec_over_the_environment_over_defaults() -> None:
    spec, environ = "script: train.py\nmax_restarts: 5\n", {"PET_MAX_RESTARTS": "7"}
    assert ask().restarts.max_restarts == 3
    assert ask({}, environ).restarts.max_restarts == 7
    assert ask({}, environ, spec=spec).restarts.max_restarts == 5
    assert ask({"max_restarts": "0"}, environ, spec=spec).restarts.max_restarts == 0


def test_null_is_not_given_where_null_is_the_default(place: Path) -> None:
    assert ask({}, {"PET_MASTER_PORT": "4242"}, spec="script: train.py\nmaster_port: null\n").launch.master_port == 4242


def test_arguments_on_the_command_line_replace_those_of_the_spec() -> None:
    spec = "script: train.py\nargs: [--lr, 1e-4, 010, yes, 12:30]\n"
    assert ask(spec=spec).launch.args == ("--lr", "1e-4", "010", "yes", "12:30")
    assert ask(spec=spec, args=["--steps", "3"]).launch.args == ("--steps", "3")


def test_words_of_a_spec_stay_as_they_were_written() -> None:
    spec = ask(spec="script: train.py\nstorage_interval: off\nnnodes: 1:1\nenv: {A: no, B: 1.10, C: 0x1f, D: ''}\n")
    assert spec.saving.storage_interval.steps is None
    assert spec.saving.storage_interval.seconds is None
    assert spec.launch.env == {"A": "no", "B": "1.10", "C": "0x1f", "D": ""}


def test_anchors_and_merges_work() -> None:
    assert ask(spec="script: train.py\nenv: &e {A: x}\n").launch.env == {"A": "x"}
    assert ask(spec="script: &s train.py\njob_id: *s\n").job_id == "train.py"


# --- what is made of it -------------------------------------------------------------------------------------


def test_a_job_id_is_stable_and_depends_on_the_command() -> None:
    assert ask().job_id == ask().job_id == protocol.default_job_id(str(Path.cwd()), "script", "train.py", [], {})
    assert ask().job_id != ask(args=["--lr", "1"]).job_id
    assert ask({"job_id": "mine"}).run_dir == Path.cwd() / "runs/mine"


def test_folders_are_absolute_and_hang_together(place: Path) -> None:
    spec = ask({"run_dir": "out", "job_id": "j"})
    assert (spec.run_dir, spec.checkpoint_dir, spec.log_dir) == (
        place / "out", place / "out/checkpoints", place / "out/logs",
    )  # fmt: skip
    assert ask({"checkpoint_dir": "ck"}).checkpoint_dir == place / "ck"
    assert ask({"log_dir": "/var/tmp/l", "job_id": "j"}).log_dir == Path("/var/tmp/l/j")
    assert ask({"run_dir": "~/x"}).run_dir == Path.home() / "x"


@pytest.mark.parametrize(
    ("flags", "kind"),
    [({}, "script"), ({"module": "true"}, "module"), ({"no_python": "true"}, "program"),
     ({"run_path": "true", "no_python": "true"}, "script")],
)  # fmt: skip
def test_switches_say_what_the_target_is(flags, kind, place: Path) -> None:
    (place / "train.py").chmod(0o755)
    target = "./train.py" if kind == "program" else "train.py"
    assert ask(flags, target=target).launch.kind == kind
    assert ask({}, {f"PET_{name.upper()}": "1" for name in flags}, target=target).launch.kind == kind


def test_a_spec_may_name_a_module_or_a_program() -> None:
    spec = ask(spec="module: pkg.train\nargs: [a]\n")
    assert (spec.launch.kind, spec.launch.target, spec.launch.args) == ("module", "pkg.train", ("a",))
    assert ask({}, {"PATH": "/bin:/usr/bin"}, spec="program: sh\n").launch.kind == "program"


def test_a_yaml_target_of_a_module_is_no_spec() -> None:
    assert ask({"module": "true"}, target="job.yaml").launch.target == "job.yaml"


def test_number_of_ranks() -> None:
    assert ask().launch.nproc == 1
    assert ask({"nproc_per_node": "4"}).launch.nproc == 4
    assert ask({"nproc_per_node": "gpu"}, {"CUDA_VISIBLE_DEVICES": "0,1,2"}).launch.nproc == 3
    assert ask({"nproc_per_node": "auto"}, {"CUDA_VISIBLE_DEVICES": "0,1"}).launch.nproc == 2
    cpus = ask({"nproc_per_node": "cpu"}, {"CUDA_VISIBLE_DEVICES": "0"}).launch.nproc
    assert ask({"nproc_per_node": "auto"}, {"CUDA_VISIBLE_DEVICES": ""}).launch.nproc == cpus
    spec = "script: train.py\nnproc_per_node: gpu\nenv: {CUDA_VISIBLE_DEVICES: '0,1'}\n"
    assert ask({}, {"CUDA_VISIBLE_DEVICES": "0"}, spec=spec).launch.nproc == 2


def test_the_storage_interval_is_steps_or_seconds() -> None:
    steps, seconds = ask({"storage_interval": "50"}), ask({"storage_interval": "50s"})
    assert steps.saving.storage_interval == (50, None)
    assert seconds.saving.storage_interval == (None, 50.0)
    assert ask().saving.storage_interval == (None, 600.0)


def test_grace_has_torchruns_name_too_and_the_own_name_wins() -> None:
    assert ask({"shutdown_timeout": "7"}).grace == 7.0
    assert ask({"shutdown_timeout": "7", "grace": "9s"}).grace == 9.0
    assert ask({}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "4"}).grace == 4.0
    assert ask({"shutdown_timeout": "7"}, spec="script: train.py\ngrace: 5s\n").grace == 7.0


@pytest.mark.parametrize(
    ("flags", "followed"),
    [
        ({}, None), ({"tee": "0"}, None), ({"tee": "3"}, {0, 1, 2}), ({"tee": "0:3,2:1"}, {0, 2}),
        ({"redirects": "3"}, set()),
        ({"redirects": "1:3"}, {0, 2}), ({"redirects": "3", "tee": "1:3"}, {1}),
        ({"local_ranks_filter": "0,9"}, {0}),
        ({"tee": "3", "local_ranks_filter": "1,2"}, {1, 2}),
    ],
)  # fmt: skip
def test_ranks_followed_on_the_terminal(flags, followed) -> None:
    assert ask({"nproc_per_node": "3", **flags}).launch.tee_ranks == followed


def test_omp_threads_follow_torchruns_rule() -> None:
    assert ask().launch.omp_threads is None
    assert ask({"nproc_per_node": "2"}).launch.omp_threads == 1
    assert ask({"nproc_per_node": "2"}, {"OMP_NUM_THREADS": "8"}).launch.omp_threads is None
    assert ask({"omp_threads": "6"}, {"OMP_NUM_THREADS": "8"}).launch.omp_threads == 6


def test_the_rest_of_torchruns_meaning() -> None:
    spec = ask({"rdzv_id": "r1", "master_port": "4242", "signals_to_handle": "SIGUSR1"}, {"PYTHON_EXEC": "/bin/py"})
    assert (spec.launch.run_id, spec.launch.master_port, spec.launch.stop_signals, spec.launch.python) == (
        "r1",
        4242,
        ("SIGUSR1",),
        "/bin/py",
    )
    alone = ask({"rdzv_id": "r1", "master_port": "4242", "standalone": "true", "job_id": "j"})
    assert (alone.launch.run_id, alone.launch.master_port) == ("j", None)


def test_a_short_longest_wait_shortens_the_first_one_unless_that_was_asked_for() -> None:
    assert ask({"backoff_max": "100ms"}).restarts.backoff_first == 0.1
    with pytest.raises(SpecError, match="more than `backoff_max`"):
        ask({"backoff_max": "100ms", "backoff_first": "2s"})


# --- printed and read back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"nproc_per_node": "3", "tee": "1:3", "storage_interval": "7", "hang_timeout": "off",
         "grace": "1500ms",
         "log_dir": "logs", "master_port": "4242", "fresh": "true", "virtual_local_rank": "true",
         "rdzv_id": "r"},
        {"nproc_per_node": "2", "redirects": "3", "storage_interval": "off", "keep": "1",
         "startup_timeout": "1h30m"},
    ],
)  # fmt: skip
def test_a_printed_spec_reads_back_as_the_same_job(flags) -> None:
    spec = ask(flags, args=["--lr", "010", "off", "é", ""])
    printed = yaml.safe_dump(resolved(spec))
    assert ask(spec=printed) == spec
    assert set(resolved(spec)) <= set(YAML_KEYS)


def test_a_printed_spec_holds_no_secret() -> None:
    spec = ask(spec="script: train.py\nargs: [--token, s3cr3t]\nenv: {API_KEY: s3cr3t}\n")
    assert "s3cr3t" not in yaml.safe_dump(resolved(spec))
    assert spec.launch.env["API_KEY"] == "s3cr3t"


def test_a_job_spec_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ask().saving.keep = 3  # type: ignore[misc]


def test_a_checkpoint_to_begin_with_is_a_path_or_a_step(place: Path) -> None:
    assert ask().saving.load_checkpoint is None
    assert ask().saving.resume_training
    job = ask({"load_checkpoint": "120", "checkpoint_dir": "ck"})
    assert job.saving.load_checkpoint == place / "ck" / "iteration_0000120"
    assert ask({"load_checkpoint": "./120"}).saving.load_checkpoint == place / "120"
    job = ask(spec="script: train.py\nload_checkpoint: base/iteration_0000007\nresume_training: false\n")
    assert (job.saving.load_checkpoint, job.saving.resume_training) == (place / "base/iteration_0000007", False)
    assert ask(spec=yaml.safe_dump(resolved(job))) == job


def test_several_nodes_share_what_mindspore_transformers_users_have_named(place: Path) -> None:
    shared = {"SHARED_PATHS": "/data01,/data01/more"}
    nodes = {"nnodes": "2", "rdzv_endpoint": "127.0.0.1:29400"}
    job = ask(nodes, environ=shared)
    assert job.run_dir == Path("/data01/runs") / job.job_id
    assert job.checkpoint_dir == job.run_dir / "checkpoints"
    assert ask(environ=shared).run_dir.parent == place / "runs", "one node shares nothing"
    assert ask({**nodes, "run_dir": "mine"}, environ=shared).checkpoint_dir == place / "mine" / "checkpoints"
    elsewhere = ask({**nodes, "checkpoint_dir": "/data02"}, environ=shared)
    assert (elsewhere.run_dir.parent, elsewhere.checkpoint_dir) == (place / "runs", Path("/data02"))


def test_rules_and_budgets_of_a_spec_read_back_as_they_are() -> None:
    text = (
        "script: train.py\nmax_restarts: 5\nrestart_policy: by-cause\nrestart_window: 24h\nrefill_after: 1000\n"
        "max_same_error: off\nmax_without_progress: 4\nfault_rules:\n"
        "  - {exit: 17, log: 'link [0-9]+ down', class: network, action: wait, meaning: 'a switch: restarted'}\n"
        "  - {exception: ValueError, before_first_step: true, class: data, action: give-up}\n"
    )
    job = ask(spec=text)
    assert (job.restarts.max_hang_restarts, job.restarts.restart_window, job.restarts.max_same_error) == (
        None,
        86400.0,
        0,
    )
    assert [rule.kind for rule in job.restarts.fault_rules] == ["network", "data"]
    assert ask(spec=yaml.safe_dump(resolved(job))) == job
    assert ask({"max_hang_restarts": "0"}, spec=text).restarts.max_hang_restarts == 0
    assert ask().restarts.fault_rules == ()


def test_what_was_given_holds_where_a_script_asks_and_a_default_in_a_file_does_not_count() -> None:
    assert ask().saving.given == {}
    flags = {"keep": "5", "storage_interval": "10m"}
    assert ask(flags).saving.given == {"storage_interval": "10m", "keep": "5"}
    spec = "script: train.py\nkeep: 5\nmemory_interval: 10\nstorage_interval: 10m\n"
    assert ask(spec=spec).saving.given == {"memory_interval": "10"}
