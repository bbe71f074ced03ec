"""Whatever a person gives for a key of the job spec, it is read or refused with a sentence, never an error of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.spec.errors import Origin, RefusedError
from ftlaunch.spec.key import Key
from ftlaunch.spec.keys import KEYS
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget, targets

plain = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=20)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3))
words = st.sampled_from(
    ["auto", "off", "true", "0", "1", "-1", "10m", "1e9", "1.5", "200MB/s", "~", "~nobody/x", "a,b"]
)
fields = st.sampled_from(["command", "url", "apprise", "link", "on", "timeout", "retries", "shell"])
addresses = st.text(alphabet="htps:/[]@#?.1a%", max_size=20).map(lambda text: f"http://{text}")


@pytest.mark.parametrize("key", [key for key in KEYS if key.name != "fault_rules"], ids=lambda key: key.name)
def test_any_value_of_any_key_is_read_or_refused(key: Key) -> None:
    @given(words | st.text(max_size=30) | values)
    def check(raw: object) -> None:
        try:
            key.read(raw)
        except RefusedError as refused:
            sentence = str(Origin("file", "job.yaml").error(key.name + refused.at, refused.given, str(refused.allowed)))
            assert sentence.startswith("cannot read job.yaml: `")
            assert refused.allowed

    check()


@given(st.dictionaries(fields, words | addresses | values, max_size=4) | values)
def test_any_target_of_notices_is_read_or_refused(raw: object) -> None:
    try:
        found = targets(raw)
    except RefusedError:
        return
    for target in found:
        assert isinstance(target, NotifyTarget)
        assert target.name
