"""Durations, parsers, masking and device counts: what goes in, what comes out, what is refused."""

from pathlib import Path

import pytest

from ftlaunch.common.durations import format_duration, parse_duration
from ftlaunch.common.masking import is_secret, masked_args, masked_env
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError, did_you_mean, shown
from ftlaunch.system.resources import count_cpus, count_gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1800), ("1h", 3600), ("1h30m", 5400), ("1h 30m", 5400), ("500ms", 0.5),
        ("2d", 172800),
        ("0.5", 0.5), ("30", 30), ("1.5h", 5400), ("1m500ms", 60.5), ("0s", 0), (" 10s ", 10),
        ("1d1h1m1s1ms", 90061.001),
    ],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "3x",
        "-5s",
        "s",
        "1m1h",
        "1h1h",
        "1 0s",
        "1e3",
        "inf",
        "nan",
        "4000d",
        "१s",
        "1_000",
        "90S",
        "m5",
        ".",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0, 0.001, 0.5, 0.25, 1, 1.5, 59.999, 60, 90, 3600, 5400, 86400, 90061, 1234.5678])
def test_a_formatted_duration_reads_back_as_the_same_seconds(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_formatted_durations_are_short() -> None:
    assert [format_duration(s) for s in (0, 0.5, 30, 600, 5400)] == ["0s", "500ms", "30s", "10m", "1h30m"]


@pytest.mark.parametrize(
    ("parse", "raw", "value"),
    [
        (p.whole(0), "0", 0), (p.whole(0), "010", 10), (p.switch, "Yes", True), (p.switch, "off", False),
        (p.limit, "off", None), (p.limit, "auto", "auto"), (p.limit, "2m", 120.0), (p.steps, "off", 0),
        (p.steps_or_seconds, "100", (100, None)), (p.steps_or_seconds, "100s", (None, 100.0)),
        (p.steps_or_seconds, "off", (None, None)), (p.workers, "gpu", "gpu"), (p.workers, "4", 4),
        (p.node_range, "1", (1, 1)), (p.node_range, "1:4", (1, 4)), (p.port, "0", None),
        (p.port, "29500", 29500),
        (p.ranks, "0,2", frozenset({0, 2})), (p.streams, "3", 3), (p.streams, "0:3,1:0", {0: 3, 1: 0}),
        (p.signals, "SIGTERM, SIGUSR1", ("SIGTERM", "SIGUSR1")), (p.number, "0.1", 0.1),
        (p.job_id, "a-b_c.1", "a-b_c.1"),
    ],
)  # fmt: skip
def test_parsers_read(parse, raw, value) -> None:
    assert parse(raw) == value


@pytest.mark.parametrize(
    ("parse", "raw"),
    [
        (p.whole(0), "-1"), (p.whole(0), "1.0"), (p.whole(0), "9" * 5000), (p.whole(0), None),
        (p.whole(0), ["1"]),
        (p.switch, "maybe"), (p.switch, ""), (p.limit, "0"), (p.limit, "never"), (p.limit, {"s": "3"}),
        (p.steps_or_seconds, "0"), (p.steps_or_seconds, "-1"), (p.steps_or_seconds, "0s"), (p.workers, "0"),
        (p.workers, "xpu"), (p.node_range, "2:1"), (p.node_range, "0"), (p.node_range, "1:"),
        (p.node_range, "1:2:3"),
        (p.port, "65536"), (p.ranks, "0,,1"), (p.ranks, "-1"), (p.streams, "4"), (p.streams, "0:9"),
        (p.streams, "a:1"),
        (p.signals, "SIGKILL"), (p.signals, "TERM"), (p.signals, ""), (p.job_id, "../x"), (p.job_id, "."),
        (p.job_id, "x" * 65), (p.job_id, "a b"), (p.path, "x" * 256), (p.path, ""), (p.path, "a\0b"),
        (p.text, "\ud800"), (p.text_list, ["\0"]), (p.text_map, {"A": "\ud800"}),
        (p.text_list, "--lr 1"), (p.text_list, [["x"]]), (p.text_list, [None]), (p.text_map, ["A=1"]),
        (p.text_map, {"A": None}), (p.text_map, {"A-B": "1"}), (p.text_map, {"RANK": "1"}),
        (p.text_map, {"FTLAUNCH_RUN_DIR": "/x"}), (p.duration(), "0s"), (p.duration(zero=True), "-1s"),
    ],
)  # fmt: skip
def test_parsers_refuse(parse, raw) -> None:
    with pytest.raises(RefusedError):
        parse(raw)


def test_a_refused_variable_name_does_not_repeat_its_value() -> None:
    with pytest.raises(RefusedError) as refused:
        p.text_map({"API-KEY": "hunter2"})
    assert "hunter2" not in f"{refused.value.given}{refused.value.allowed}"


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "WANDB_API_KEY",
        "--hf-token",
        "AWS_ACCESS_KEY_ID",
        "dbPassword",
        "APIKEY",
        "MY_SECRETS",
        "--auth",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "--tokenizer", "--keyword", "NCCL_DEBUG", "--author", "--lr"]
)
def test_other_names_are_not_secrets(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_masked_wherever_they_stand() -> None:
    args = [
        "--api-key=s1",
        "--api-key",
        "s2",
        "--lr",
        "0.1",
        "model.token=s3",
        "--use-token",
        "--db=pg://me:s4@host/x",
    ]
    masked = masked_args(args)
    assert masked == ["--api-key=***", "--api-key", "***", "--lr", "0.1", "model.token=***", "--use-token",
                      "--db=pg://me:***@host/x"]  # fmt: skip
    assert masked_env({"HF_TOKEN": "s", "A": "1", "EMPTY_KEY": ""}) == {
        "HF_TOKEN": "***",
        "A": "1",
        "EMPTY_KEY": "",
    }


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1,3", 3), ("0,-1,1", 1), ("GPU-5ebe, MIG-77", 2), ("NoDevFiles", 0)],
)
def test_visible_devices_are_counted_as_cuda_does(visible: str, count: int) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == count


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    assert count_gpus({}, tmp_path) == 0
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    (gpus / "0000:01:00.0").mkdir(parents=True)
    assert count_gpus({}, tmp_path) == 1
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    assert count_gpus({}, tmp_path) == 2
    assert count_cpus() >= 1


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("hang_timout", "hang_timeout"),
        ("hang-timeout", "hang_timeout"),
        ("nproc", "nproc_per_node"),
        ("zzz", None),
    ],
)
def test_the_nearest_known_word_is_offered(word: str, meant: str | None) -> None:
    hint = did_you_mean(word, ["hang_timeout", "nproc_per_node", "grace"])
    assert hint == (f"; did you mean `{meant}`?" if meant else "")


def test_what_is_shown_is_short_and_on_one_line() -> None:
    assert "\n" not in shown("a\nb")
    assert len(shown("x" * 1000)) == 60
    assert [shown(None), shown([1]), shown({}), shown("")] == ["empty", "a list", "a mapping", "''"]
