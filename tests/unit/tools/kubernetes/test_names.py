"""Names from job ids: always labels of DNS, and different for different long job ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.tools.kubernetes.names import label_of, quantity

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035: what Services are called
JOB_IDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(JOB_IDS, st.integers(1, 1100))
def test_every_name_of_a_pod_is_a_label(job_id: str, pods: int) -> None:
    label = label_of(job_id, pods)
    for name in (label, f"{label}-node-{pods - 1}-0-abcde", f"{label}-node-0-{pods - 1}-abcde"):
        assert LABEL.fullmatch(name), name
        assert len(name) <= 63, name


@pytest.mark.parametrize(
    ("job_id", "label"),
    [("train-gpt", "train-gpt"), ("My_Job.v2", "my-job-v2"), ("7b", "job-7b"), ("_", "job"), ("a..b", "a-b")],
)
def test_a_name_stays_as_near_as_can_be(job_id: str, label: str) -> None:
    assert label_of(job_id, 3) == label


def test_long_job_ids_that_begin_alike_stay_apart() -> None:
    one, other = (label_of("a" * 60 + end, 3) for end in "xy")
    assert one != other


@pytest.mark.parametrize(
    ("size", "written"), [(8 << 30, "8Gi"), (3 << 19, "1536Ki"), (512 << 20, "512Mi"), (1000, "1000")]
)
def test_quantities(size: int, written: str) -> None:
    assert quantity(size) == written
