"""Everything that cannot be is refused in one sentence, before anything is made."""

from pathlib import Path

import pytest

from ftlaunch.spec.job_spec import SpecError
from ftlaunch.spec.resolve import resolve


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def refusal(flags=None, environ=None, *, target="train.py", spec: str | bytes | None = None) -> str:
    """The one sentence with which these inputs are refused; checks that nothing was made."""
    if spec is not None:
        target = "job.yaml"
        Path(target).write_bytes(spec if isinstance(spec, bytes) else spec.encode())
    before = sorted(Path().rglob("*"))
    with pytest.raises(SpecError) as error:
        resolve(target, [], flags or {}, environ or {})
    assert sorted(Path().rglob("*")) == before
    sentence = str(error.value)
    assert sentence.startswith("cannot ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hang_timout: 3s", "`hang_timout` is not a key; did you mean `hang_timeout`?"),
        ("hang-timeout: 3s", "`hang-timeout` is not a key; did you mean `hang_timeout`?"),
        ("3: 4", "`3` is not a key; the keys are script, module, program"),
        ("? [a, b]\n: 4", "line 2: found unhashable key"),
        ("hang_timeout: 3x", "`hang_timeout` is 3x; it must be `auto`, `off` or a duration"),
        ("grace: -1s", "`grace` is -1s; it must be a duration"),
        ("startup_timeout: 0", "`startup_timeout` is 0; it must be"),
        ("max_restarts: -1", "`max_restarts` is -1; it must be a whole number, 0 or more"),
        ("max_restarts: many", "`max_restarts` is many; it must be a whole number"),
        ("max_restarts: {a: 1}", "`max_restarts` is a mapping; it must be a whole number"),
        ("keep:", "`keep` is empty; it must be a whole number"),
        ("keep: 0", "`keep` is 0; it must be a whole number, 1 or more"),
        ("fresh: maybe", "`fresh` is maybe; it must be true or false"),
        ("args: --lr 0.1", "`args` is --lr 0.1; it must be a list such as"),
        ("args: [a, [b]]", "`args[1]` is a list; it must be one word or text"),
        ("args: [a, null]", "`args[1]` is empty; it must be one word or text"),
        ("env: {A: [1]}", "`env.A` is a list; it must be text"),
        ("env: {A: }", '`env.A` is empty; it must be text; "" stands for an empty one'),
        ("env: {WORLD_SIZE: 2}", "`env.WORLD_SIZE` is set; ftlaunch itself tells that to the ranks"),
        ("job_id: a/b", "`job_id` is a/b; it must be 1 to 64 letters"),
        ("nnodes: 2", "`nnodes` is 2; where do the nodes meet? give `--rdzv-endpoint HOST:PORT`"),
        ("nnodes: 4:1", "`nnodes` is 4:1; MIN must not be above MAX in MIN:MAX"),
        ("restart_policy: sometimes", "`restart_policy` is sometimes; it must be on-failure, by-cause or never"),
        ("max_hang_restarts: off", "`max_hang_restarts` is off; it must be a whole number, 0 or more"),
        ("restart_window: 0", "`restart_window` is 0; it must be off or a duration above zero"),
        ("refill_after: 0", "`refill_after` is 0; it must be off or a whole number of steps, 1 or more"),
        ("max_same_error: 0", "`max_same_error` is 0; it must be off or a whole number, 1 or more"),
        ("max_without_progress: -1", "`max_without_progress` is -1; it must be off or a whole number, 1 or more"),
        ("fault_rules: x", "`fault_rules` is x; it must be a list of mappings such as {log: 'link down'"),
        ("fault_rules: [x]", "`fault_rules[0]` is x; it must be a mapping such as"),
        (
            "fault_rules:\n  - {log: a, class: b, action: wait}\n  - {log: a, class: b, action: stop}",
            "`fault_rules[1].action` is stop; it must be restart, wait or give-up",
        ),
        (
            "fault_rules: [{exit: 1000, class: b, action: wait}]",
            "`fault_rules[0].exit` is 1000; it must be an exit code from 1 to 255, or any",
        ),
        (
            "fault_rules: [{log: '(a', class: b, action: wait}]",
            "`fault_rules[0].log` is (a; it is no regular expression",
        ),
        ("warm: hot", "`warm` is hot; it must be auto, true or false"),
        ("preload: [os, 'a b']", "`preload` is a list; it must be auto, or names of modules with commas"),
        ("backoff_first: 2m", "`backoff_first` is 2m; it is more than `backoff_max`, which is 60s"),
        ("module: x", "it names `script` and `module`; only one of them can be run"),
        ("keep: 1\nkeep: 2", "`keep` stands twice, on lines 2 and 3"),
        ("env: {A: 1, A: 2}", "`A` stands twice, on line 2"),
        ("keep: !!python/object/apply:os.getcwd []", "line 2 has a `!` tag"),
        ("keep: !mine 3", "line 2 has a `!` tag"),
        ("keep: !!int 3x", "line 2 has a `!` tag"),
        ("keep: !!timestamp 3", "line 2 has a `!` tag"),
        ("keep: [", "it is not YAML at line 3, column 1"),
        ("keep: *nothing", "it is not YAML at line 2, column 7: found undefined alias"),
        ("--- 2", "it is not YAML at line 2"),
        ("args: " + "[" * 3000, "it is not YAML"),
        ("args: &a [*a]", "`args[0]` is a list"),
        ('role: "a\\0b"', "`role` is 'a\\x00b'; it must be a name"),
    ],
)
def test_a_bad_spec(spec: str, expected: str) -> None:
    sentence = refusal(spec=f"script: train.py\n{spec}\n")
    assert sentence.startswith("cannot read job.yaml: ")
    assert expected in sentence


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("- script: train.py\n", "it is a list, not a mapping"),
        ("train.py\n", "it is plain text, not a mapping"),
        ("keep: 3\n", "it names no `script`, `module` or `program`"),
        (b"script: \xff\xfe\n", "it is not UTF-8 text"),
        (b"script: a\x07b\n", "it is not YAML: character 10 is not printable"),
    ],
)
def test_what_is_no_spec_at_all(spec: str | bytes, expected: str) -> None:
    assert refusal(spec=spec).startswith(f"cannot read job.yaml: {expected}")


def test_a_tag_runs_nothing(place: Path) -> None:
    refusal(spec="script: !!python/object/apply:pathlib.Path.touch [made]\n")
    assert not (place / "made").exists()


def test_a_spec_that_cannot_be_opened(place: Path) -> None:
    assert refusal(target="no.yaml") == "cannot read no.yaml: no such file or directory"
    (place / "dir.yaml").mkdir()
    assert refusal(target="dir.yaml") == "cannot read dir.yaml: is a directory"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"grace": "3x"}, "cannot use `--grace 3x`: it must be a duration such as 30s or 2m; 0 is allowed"),
        ({"max_restarts": "-1"}, "cannot use `--max-restarts -1`: it must be a whole number, 0 or more"),
        ({"nnodes": "0"}, "cannot use `--nnodes 0`: it must be a number of nodes, 1 or more, or MIN:MAX"),
        ({"start_method": "thread"},
         "cannot use `--start-method thread`: it must be spawn, fork, forkserver"),
        ({"tee": "9"}, "cannot use `--tee 9`: it must be 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"),
        ({"no_python": "true", "module": "true"}, "cannot use `--no-python`: it excludes `--module`"),
        ({"run_dir": ""}, "cannot use `--run-dir ''`: it must be a path"),
        ({"run_dir": "~nobody-here/x"}, "there is no such home directory"),
        ({"nproc_per_node": "xpu"},
         "cannot use `--nproc-per-node xpu`: it must be auto, cpu, gpu or a whole number"),
    ],
)  # fmt: skip
def test_a_bad_flag(flags, expected: str) -> None:
    assert expected in refusal(flags)


def test_gpu_without_a_gpu() -> None:
    sentence = refusal({"nproc_per_node": "gpu"}, {"CUDA_VISIBLE_DEVICES": ""})
    assert sentence == "cannot use `--nproc-per-node gpu`: there is no GPU to be seen; use `cpu`, `auto` or a number"


def test_a_bad_variable() -> None:
    assert refusal({}, {"PET_MAX_RESTARTS": "x"}).startswith("cannot use PET_MAX_RESTARTS=x: it must be")
    assert refusal({}, {"PET_NNODES": "2"}).startswith("cannot use PET_NNODES=2: where do the nodes meet?")
    assert refusal({}, {"PET_STANDALONE": ""}).startswith("cannot use PET_STANDALONE='': it must be true or false")


@pytest.mark.parametrize(
    ("flags", "target", "expected"),
    [
        ({}, "no.py", "cannot run no.py: no such file or directory"),
        ({}, "x" * 300, "file name too long"),
        ({}, "a\nb.py", "cannot run 'a\\nb.py': no such file or directory"),
        ({}, "folder", "cannot run folder: it is a directory without a __main__.py"),
        ({"no_python": "true"}, "./train.py", "it is not executable; try `chmod +x ./train.py`"),
        ({"no_python": "true"}, "no-such-program", "cannot run no-such-program: no such program on the PATH"),
        ({"no_python": "true"}, "./folder", "cannot run ./folder: it is a directory"),
        ({"no_python": "true"}, "./no", "cannot run ./no: no such file or directory"),
    ],
)
def test_a_target_that_cannot_be_run(flags, target: str, expected: str, place: Path) -> None:
    (place / "folder").mkdir()
    assert expected in refusal(flags, {"PATH": "/bin"}, target=target)


@pytest.mark.parametrize("name", ["run_dir", "checkpoint_dir", "log_dir"])
def test_a_folder_that_cannot_be_made(name: str, place: Path) -> None:
    (place / "dangling").symlink_to("nowhere")
    assert "train.py is not a directory" in refusal({name: "train.py/deep/er"})
    assert "train.py is not a directory" in refusal({name: "train.py", "job_id": "j"})
    assert "dangling is not a directory" in refusal({name: "dangling/x"})
    assert "longer than 255 bytes" in refusal({name: "y" * 256})


def test_a_current_directory_that_is_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    with pytest.raises(SpecError, match="cannot tell the current directory: no such file"):
        resolve(str(place / "train.py"), [], {}, {})
