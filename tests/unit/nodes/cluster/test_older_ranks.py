"""A head that follows another one begins nothing beside ranks that it has not begun, and names nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fakes.cluster import Head
from tests.support.fakes.files import FilesInPlace

from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.policy.restart_policy import Budget, RestartLimits
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

LEASE = 3.0  # seconds
PLAN = Plan("before", 4, 1, Budget(RestartLimits(3, 3)), 2)
HELD = {"lineage": PLAN.lineage, "slots": {}}
RUNNING = {"place": 0, "pids": {"0": 100, "1": 101}, "ended": {}, "resume": [int(Resume.MEMORY), 7]}


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path, plan=PLAN)


def test_a_node_that_has_not_come_may_have_ranks_at_work(head: Head) -> None:
    """Taken out: two standbys come first, and train beside the ranks that the other head has begun."""
    head.agent()
    head.agent()
    head.clock.now += LEASE
    assert not head.cluster.is_settled()
    assert not head.cluster.must_regroup()
    head.clock.now += LEASE / 4
    assert head.cluster.is_settled()


def test_nobody_is_waited_for_where_all_have_come_and_run_nothing(head: Head) -> None:
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    assert head.cluster.is_settled()


def test_ranks_that_are_of_no_use_have_ended_before_others_begin(head: Head) -> None:
    """Taken out: others begin while the agent has these killed."""
    older = head.agent(held=[0, 2], lineage="before:3/2", running=RUNNING)
    assert "kill" in older.names()
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    assert not head.cluster.is_settled()
    older.say("gone", attempt=3, port=1, slots={}, evidence={}, awaits_memory=0)
    assert head.cluster.is_settled()


def test_a_lost_node_that_was_to_end_such_ranks_is_waited_for(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    older = head.agent(held=[0, 2], lineage="before:3/2", running=RUNNING)
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    monkeypatch.setattr("ftlaunch.nodes.cluster.membership.fences.PortProbe.is_dead", lambda self: False)
    older.on_end("closed")
    head.clock.now += LEASE
    assert not head.cluster.is_settled()
    head.clock.now += LEASE / 8
    assert head.cluster.is_settled()


LATER = "before:5/2"


def test_other_ranks_of_an_attempt_that_the_head_before_has_begun_beside_this_one_are_waited_for(head: Head) -> None:
    """Found by a simulated story. Taken out: two nodes work in one place."""
    head.clock.now += 2 * LEASE
    older = head.agent(held=[0, 2], lineage=LATER, running=RUNNING)
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    older.say("gone", attempt=5, port=1, slots={}, evidence={}, awaits_memory=0)
    assert not head.cluster.is_settled()
    head.agent(held=[2, 2], lineage=LATER)
    assert head.cluster.is_settled()


def test_they_are_not_waited_for_longer_than_they_can_be_at_work(head: Head) -> None:
    head.clock.now += 2 * LEASE
    older = head.agent(held=[0, 2], lineage=LATER, running=RUNNING)
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    older.say("gone", attempt=5, port=1, slots={}, evidence={}, awaits_memory=0)
    head.clock.now += LEASE
    assert not head.cluster.is_settled()
    head.clock.now += LEASE / 4
    assert head.cluster.is_settled()


def test_no_two_attempts_have_one_name(head: Head) -> None:
    """Taken out: memory of the other head's attempt 0 counts as that of this one's."""
    for first in (0, 2):
        head.agent(held=[first, 2], **HELD)
    assert head.cluster.is_settled()
    head.attempt(0)
    assert head.begun == [("run", 0)]


def adopting(head: Head, *resumes: list[int]) -> ClusterRanks:
    """The head takes up the ranks of nodes that say where theirs resume."""
    for place, resume in enumerate(resumes):
        running = {"place": place, "pids": {str(2 * place): 1, str(2 * place + 1): 2}, "ended": {}, "resume": resume}
        head.agent(held=[2 * place, 2], **HELD, running=running)
    assert head.cluster.older.find_adoptable() == PLAN.attempt
    told = head.spec, head.pages, head.cluster, head.clock, FilesInPlace()
    group = ClusterRanks(*told, PLAN.attempt, lambda rank: None)
    group.adopt(head.cluster.adopt)
    return group


def test_a_node_that_the_other_head_did_not_tell_any_more_hears_where_its_ranks_resume(head: Head) -> None:
    """Taken out: they wait for an answer that never comes, and the others for them."""
    group = adopting(head, [int(Resume.STORAGE), 49], [int(Resume.UNDECIDED), -1])
    assert len(group.living) == 4
    assert head.agents[1].newest("pages")["values"] == [int(Resume.STORAGE), 49, -1]
    assert not [told for told in head.agents[0].received if told.get("verb") == "decide"]


def test_ranks_that_nobody_was_told_of_where_to_resume_begin_again(head: Head) -> None:
    group = adopting(head, [int(Resume.UNDECIDED), -1], [int(Resume.UNDECIDED), -1])
    assert not group.living
    assert "has not said where its ranks resume" in group.failed(must_read=True)[0].lost


def test_a_stop_that_not_all_nodes_have_heard_of_is_passed_on(head: Head) -> None:
    """Found by a simulated story. Taken out: some ranks stop, and the others wait for them without end."""
    for place, stop_at in ((0, 12), (1, NONE)):
        head.agent(held=[2 * place, 2], **HELD, running={**RUNNING, "place": place, "stop_at": stop_at})
    told = head.spec, head.pages, head.cluster, head.clock, FilesInPlace()
    group = ClusterRanks(*told, PLAN.attempt, lambda rank: None)
    group.adopt(head.cluster.adopt)
    assert head.pages[0].stop_at == 12
    assert head.paused == 1


def test_ranks_that_their_agent_has_killed_are_not_taken_up(head: Head) -> None:
    """Taken out: their ends are told as a kill from outside, and cost a restart."""
    for place in (0, 1):
        running = {**RUNNING, "place": place, "killed": True}
        head.agent(held=[2 * place, 2], **HELD, running=running)
    assert not head.cluster.older.awaited
    assert not head.cluster.is_settled()
    for agent in head.agents:
        agent.say("gone", attempt=PLAN.attempt, port=1, slots={}, evidence={}, awaits_memory=0)
    assert head.cluster.is_settled()


def test_ranks_that_come_after_the_job_has_gone_on_are_not_taken_up(tmp_path: Path) -> None:
    """Taken out: the job waits for ever for the rest of an attempt that nobody takes up any more."""
    head = Head(tmp_path, nodes=3, least=1, plan=PLAN)
    for _ in range(3):
        head.agent()
    head.clock.now += 1.3 * LEASE
    assert head.cluster.must_regroup()
    late = head.agent(held=[0, 2], **HELD, running=RUNNING)
    assert "kill" in late.names()
    assert not head.cluster.older.awaited


def test_a_head_that_nobody_sees_begins_nothing_without_its_nodes(tmp_path: Path) -> None:
    """Taken out: a head that gives way to another one begins an attempt all the same."""
    head = Head(tmp_path)
    head.running()
    head.agents[1].on_end("closed")
    head.agent()
    head.leads = False
    head.clock.now += 2 * LEASE
    for agent in (head.agents[0], head.agents[2]):
        agent.beat()
    assert not head.cluster.is_settled()
    head.leads = True
    assert head.cluster.is_settled()
