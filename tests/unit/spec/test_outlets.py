"""`metrics:` and `traces:` of a job spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.keys import YAML_KEYS
from ftlaunch.spec.parsing.outlets import MetricsSpec, TracesSpec


def test_what_is_asked_is_what_is_shown() -> None:
    key = YAML_KEYS["metrics"]
    for raw in ({"port": "1"}, {"port": "0", "bind": "::1", "ranks": "true", "linger": "2m"}, {"textfile": "/var/x"}):
        asked, shown = key.read(raw), key.show(key.read(raw))
        assert isinstance(shown, dict)
        assert key.read({name: str(value).lower() for name, value in shown.items()}) == asked  # as YAML is read
    assert key.read({"port": "9464"}) == MetricsSpec(9464)
    assert key.read({"textfile": "x"}).in_folder("/home/me").textfile == Path("/home/me/x")
    assert key.show(None) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (9464, "it must be a mapping with `port`, `textfile` or both"),
        ({}, "it must have `port` or `textfile`, or both"),
        ({"port": "70000"}, "it must be a port, 0 to 65535; 0 takes any free one"),
        ({"prot": "1"}, "the keys here are port, bind, textfile, ranks, linger; did you mean `port`?"),
        ({"port": "1", "bind": "localhost"}, "it must be an address of this machine such as 127.0.0.1"),
        ({"port": "1", "ranks": "some"}, "it must be true or false"),
        ({"port": "1", "linger": "-1s"}, "it must be a duration such as 90s, or 0"),
        ({"textfile": ""}, "it must be a directory"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(raw: object, said: str) -> None:
    with pytest.raises(RefusedError) as refused:
        YAML_KEYS["metrics"].read(raw)
    assert refused.value.allowed.startswith(said)


def test_traces_go_to_an_address_or_where_the_variables_say() -> None:
    key = YAML_KEYS["traces"]
    assert key.read({}) == TracesSpec("")
    asked = key.read({"endpoint": "https://me:secret@collector:4318/"})
    assert asked == TracesSpec("https://me:secret@collector:4318")
    assert key.show(asked) == {"endpoint": "https://collector:4318"}
    assert key.show(TracesSpec("")) == {}


@pytest.mark.parametrize("raw", ["http://x", {"endpoint": "collector:4318"}, {"endpoint": "http://x?key=s3cret"}])
def test_an_endpoint_that_is_none_is_refused_and_not_repeated(raw: object) -> None:
    with pytest.raises(RefusedError) as refused:
        YAML_KEYS["traces"].read(raw)
    assert "s3cret" not in str(refused.value.given)
