"""`notify:` in a spec: what it may say, what is refused, and that no secret comes out again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ftlaunch.common.masking import masked_text, secret_values
from ftlaunch.notify.message import SoFar
from ftlaunch.notify.notification import KIND_OF, payload
from ftlaunch.spec.job_spec import JobSpec, SpecError, resolved
from ftlaunch.spec.notify_targets.apprise import AppriseAddress
from ftlaunch.spec.notify_targets.command import ProgramTarget
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget
from ftlaunch.spec.notify_targets.target import KINDS, Target
from ftlaunch.spec.notify_targets.webhook import Webhook
from ftlaunch.spec.resolve import resolve

BY_DEFAULT = ("incident", "give_up", "done", "hang_suspected")
BY_DEFAULT_OF_APPRISE = ("incident", "recovered", "give_up", "done", "hang_suspected", "differs")
JOB = {"job_id": "j", "run_dir": "/r", "host": "h"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def ask(notify: str) -> JobSpec:
    Path("job.yaml").write_text(f"script: train.py\nnotify: {notify}\n")
    return resolve("job.yaml", [], {}, {})


@pytest.mark.parametrize(
    ("notify", "targets"),
    [
        ("null", ()),
        ("[]", ()),
        ("{command: [./tell, --loud]}", (NotifyTarget(ProgramTarget(argv=("./tell", "--loud"))),)),
        ("{command: 'cat > out'}", (NotifyTarget(ProgramTarget(shell="cat > out")),)),
        ("[{url: 'https://h/x', on: [slow, done]}]", (NotifyTarget(Webhook("https://h/x"), on=("slow", "done")),)),
        (
            "{url: 'http://[::1]:8080', on: 'done, slow'}",
            (NotifyTarget(Webhook("http://[::1]:8080"), on=("done", "slow")),),
        ),
        ("{command: a, timeout: 500ms, retries: 0}", (NotifyTarget(ProgramTarget(shell="a"), timeout=0.5, retries=0),)),
        ("{apprise: 'slack://A/B/C'}", (NotifyTarget(AppriseAddress("slack://A/B/C"), on=BY_DEFAULT_OF_APPRISE),)),
        (
            "{apprise: 'Slack://A', on: [recovered], link: 'https://d/{job_id}'}",
            (NotifyTarget(AppriseAddress("Slack://A"), on=("recovered",), link="https://d/{job_id}"),),
        ),
    ],
)
def test_read(notify: str, targets: tuple[NotifyTarget, ...]) -> None:
    assert ask(notify).notify == targets
    assert NotifyTarget(ProgramTarget(shell="a")).on == BY_DEFAULT


@pytest.mark.parametrize(
    ("notify", "expected"),
    [
        ("x", "`notify` is x; it must be a mapping with `command`, `url` or `apprise`, or a list"),
        ("[x]", "`notify[0]` is x; it must be a mapping"),
        ("{}", "`notify` is a mapping; it must have one of `command`, `url` and `apprise`"),
        ("[{url: 'https://h', command: x}]", "`notify[0]` is a mapping; it must have one of"),
        ("[{url: 'https://h', apprise: 'json://h'}]", "`notify[0]` is a mapping; it must have one of"),
        ("{ulr: 'https://h'}", "`notify.ulr` is set; the keys here are command, url, apprise, link, on,"),
        ("{ulr: 'https://h'}", "timeout, retries; did you mean `url`?"),
        ("{url: 'ftp://h/x'}", "`notify.url` is set; it must be an address that begins with https:// or http://"),
        ("{url: 'https://h:x/'}", "`notify.url` is set"),
        ("{url: 'https:///x'}", "`notify.url` is set"),
        ("{command: []}", "`notify.command` is set; it must be a list of words, run as they are, or one text"),
        ("{command: ''}", "`notify.command` is set"),
        (
            "{command: x, on: [finished]}",
            "`notify.on` is finished; it must be some of incident, recovered, give_up, done",
        ),
        (
            "{command: x, on: [recoverd]}",
            "`notify.on` is recoverd; it must be some of incident, recovered, give_up, done, "
            "stopped, slow, hang_suspected, differs; did you mean `recovered`?",
        ),
        (
            "{apprise: slack}",
            "`notify.apprise` is set; it must be an address of Apprise's form, such as slack://TOKEN_A/",
        ),
        ("{apprise: 'slack://'}", "`notify.apprise` is set"),
        ("{apprise: [slack://a]}", "`notify.apprise` is set"),
        (
            "{url: 'https://h', link: 'h/{job_id}'}",
            "`notify.link` is h/{job_id}; it must be an address that begins with",
        ),
        ("{url: 'https://h', link: 'https://h/{jobid}'}", "with {job_id} or {run_dir} where they belong"),
        ("{command: x, on: []}", "`notify.on` is a list"),
        ("{command: x, timeout: 0}", "`notify.timeout` is 0; it must be a duration such as 10s, 5m at most"),
        ("{command: x, timeout: 6m}", "`notify.timeout` is 6m"),
        ("{command: x, retries: 11}", "`notify.retries` is 11; it must be a whole number from 0 to 10"),
    ],
)
def test_refused(notify: str, expected: str) -> None:
    with pytest.raises(SpecError) as refused:
        ask(notify)
    assert expected in str(refused.value)


def test_a_refused_address_is_not_repeated() -> None:
    with pytest.raises(SpecError) as refused:
        ask("{url: 'htps://me:hunter2@h/T0/sesame'}")
    assert "hunter2" not in str(refused.value)
    assert "sesame" not in str(refused.value)
    with pytest.raises(SpecError) as refused:
        ask("{apprise: 'slack:/hunter2/sesame'}")
    assert "hunter2" not in str(refused.value)


def test_a_dry_run_is_a_spec_again_but_for_secrets() -> None:
    said = resolved(ask("[{command: [tell, --token, hunter2]}, {url: 'https://me:hunter2@h/sesame?key=hunter2'}]"))
    assert "hunter2" not in str(said)
    assert "sesame" not in str(said)
    hidden = resolved(ask("{apprise: 'slack://hunter2/sesame', link: 'https://me:hunter2@d/{job_id}'}"))["notify"]
    assert hidden == [
        {"apprise": "slack://***", "link": "https://me:***@d/{job_id}", "on": list(BY_DEFAULT_OF_APPRISE),
         "timeout": "10s", "retries": 3}
    ]  # fmt: skip
    again = ask(yaml.safe_dump(said["notify"], default_flow_style=True, width=1000)).notify
    assert [getattr(target.whom, "argv", ()) for target in again] == [("tell", "--token", "***"), ()]
    plain = ask("{command: [tell, me], on: [done], timeout: 1s, retries: 1}")
    assert ask(yaml.safe_dump(resolved(plain)["notify"], default_flow_style=True)).notify == plain.notify


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Webhook("https://me:pw@hooks.example:8443/T/B?x=1"), "https://hooks.example:8443/***"),
        (Webhook("http://h"), "http://h"),
        (AppriseAddress("MailTo://me:pw@mail.example"), "mailto://***"),
        (ProgramTarget(argv=("./tell", "--token", "x")), "./tell"),
        (ProgramTarget(shell="curl -d @- https://h/secret"), "curl"),
        (ProgramTarget(shell="TOKEN=x curl h"), "***"),
    ],
)
def test_names_without_secrets(target: Target, name: str) -> None:
    assert target.name == name


def test_every_kind_but_none_other_comes_from_an_event() -> None:
    assert set(KIND_OF.values()) == set(KINDS)


# --- what is sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"event": "job_finished", "restarts": 2}, "j: done; 2 restarts used"),
        ({"event": "job_stopped", "step": 0}, "j: stopped; the same command goes on from step 0"),
        ({"event": "job_stopped", "step": -1}, "j: stopped; nothing was saved"),
        ({"event": "job_failed", "sentence": "no restarts left"}, "j: given up: no restarts left"),
        ({"event": "incident", "sentence": "rank 1 died"}, "j: rank 1 died"),
        ({"event": "recovered", "step": 12, "seconds": 0.7}, "j: back at step 12 after 700 ms"),
        (
            {"event": "hang_suspected", "rank": 3, "age": 45.0, "limit": 90.0},
            "j: rank 3 has made no progress for 45 s; at 90 s it counts as hung",
        ),
    ],
)
def test_the_text_is_a_sentence(line: dict[str, object], text: str) -> None:
    told = payload(JOB, line, (), SoFar())
    assert told["text"] == text
    assert told["notify"] == KIND_OF[str(line["event"])]
    assert {**told, **line} == told


def test_no_secret_is_sent() -> None:
    secrets = secret_values({"HF_TOKEN": "hf_abc123", "LANG": "C"}, ["--api-key", "sk-42", "--lr", "0.1"])
    assert secrets == {"hf_abc123", "sk-42"}
    trace = (
        'client(token="t-9", url="pg://me:p-9@db/x")\nAuthorization: Bearer b-99999\n'
        "refused hf_abc123 in {'password': 'w-9'}\ntool --auth-token a-9 --lr 0.1"
    )
    told = payload(JOB, {"event": "incident", "cause": "with sk-42", "trace": [trace]}, secrets, SoFar())
    for secret in ("hf_abc123", "sk-42", "t-9", "p-9", "b-99999", "w-9", "a-9"):
        assert secret not in str(told), secret
    assert "--lr 0.1" in str(told)


@pytest.mark.parametrize("text", ["KeyError: 'w1'", "rank 1: step=12, lr=0.1", "https://h/x?page=2", "token ring"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked_text(text) == text


def test_a_long_text_keeps_its_end() -> None:
    """Taken out: a search that begins anew at every letter took a minute for a tenth of it."""
    told = payload(JOB, {"event": "incident", "trace": "x" * 1_000_000 + "the end"}, (), SoFar())
    assert told["trace"].endswith("the end")
    assert len(told["trace"]) < 10_000
