"""Whole lives of jobs in milliseconds: the real engine with fake ranks and a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import JobState
from ftlaunch_contract.protocol import Resume


def trains_and_ends(world: World, steps: int = 5) -> None:
    """Every attempt trains for so many steps, and ends well."""

    def begin(group: FakeGroup) -> None:
        world.train(group, steps)
        world.clock.at(world.clock() - BEGIN + steps + 1, lambda: world.finish(group))

    world.on_spawn = begin


def test_a_job_that_nothing_happens_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    trains_and_ends(world)
    world.run()
    assert world.supervisor.state is JobState.DONE
    assert [event["code"] for event in world.fields_of("rank_exited")] == [0, 0]
    assert world.fields_of("resumed") == [{"step": 0, "source": None, "steps_lost": None, "seconds": None}]
    assert world.fields_of("incident") == []
    assert "sweep" in world.group.calls, "what ranks have left behind is looked for"


def test_the_first_attempt_waits_for_the_fork_server(tmp_path: Path) -> None:
    world = World(tmp_path)
    trains_and_ends(world)
    world.may_begin = False

    def ready() -> None:
        assert world.groups == []
        world.may_begin = True

    world.clock.at(3.0, ready)
    world.run()
    assert world.group.started >= BEGIN + 3
    assert world.supervisor.state is JobState.DONE


def test_a_crash_is_judged_and_the_job_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="3")
    trains_and_ends(world, 9)
    world.clock.at(4.5, lambda: world.groups[0].exit(1, -11))
    world.run()
    (incident,) = world.fields_of("incident")
    assert (incident["rank"], incident["kind"], incident["step"], incident["verdict"]) == (1, "signal", 4, "restart")
    assert incident["restarts_left"] == 2
    assert "SIGSEGV" in incident["sentence"]
    assert [attempt.attempt for attempt in world.groups] == [0, 1]
    assert "ask to leave" in world.groups[0].calls
    (recovered,) = world.fields_of("recovered")
    assert recovered["step"] == 1
    assert world.supervisor.state is JobState.DONE


def test_of_ranks_that_fail_together_the_first_cause_is_the_culprit(tmp_path: Path) -> None:
    world = World(tmp_path, ranks=3)
    trains_and_ends(world)

    def crash() -> None:
        world.groups[0].exit(0, 1, "RuntimeError: Connection closed by peer [127.0.0.1]:4242")
        world.groups[0].exit(2, 1, "ValueError: bad sample")

    world.clock.at(2.5, crash)
    world.run()
    (incident,) = world.fields_of("incident")
    assert incident["rank"] == 2
    assert "bad sample" in incident["sentence"]


def test_the_budget_ends_the_job_and_the_newest_step_is_saved(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="1")
    world.on_spawn = lambda group: world.train(group, 3)
    for number, second in enumerate((2.5, 30.0)):
        world.clock.at(second, lambda number=number: world.groups[number].exit(0, 17))  # type: ignore[misc]
    world.run()
    assert [incident["verdict"] for incident in world.fields_of("incident")] == ["restart", "give up"]
    assert world.supervisor.state is JobState.FAILED
    assert "1 of 1 restarts are used up" in world.fields_of("incident")[1]["sentence"]


@pytest.mark.parametrize("policy", ["never"])
def test_a_policy_of_never_ends_at_the_first(tmp_path: Path, policy: str) -> None:
    world = World(tmp_path, restart_policy=policy)
    world.on_spawn = lambda group: world.train(group, 3)
    world.clock.at(1.5, lambda: world.groups[0].exit(0, 1))
    world.run()
    assert [incident["verdict"] for incident in world.fields_of("incident")] == ["give up"]
    assert len(world.groups) == 1


def test_a_rank_that_cannot_be_started_is_an_incident_that_costs(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="2")
    world.cannot_start = 1
    world.run()
    incidents = world.fields_of("incident")
    assert [incident["kind"] for incident in incidents] == ["spawn"] * 3
    assert [incident["verdict"] for incident in incidents] == ["restart", "restart", "give up"]
    assert world.supervisor.state is JobState.FAILED
    assert all("kill" not in group.calls for group in world.groups), "those that were started left when asked"


def test_a_rank_that_was_started_again_is_told_of_though_the_next_cannot_be(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="4", restart_scope="rank", backoff_first="2s", backoff_max="2s")

    def both_end() -> None:
        world.groups[0].exit(0)
        world.groups[0].exit(1)

    def held_up() -> None:
        """Both ranks are due in the same look."""
        world.clock.now += 10
        world.cannot_start = 1

    def begin(group: FakeGroup) -> None:
        if group.attempt == 0:
            world.clock.at(1, lambda: group.exit(0))  # the first failure is not waited after
            world.clock.at(2, both_end)
            world.clock.at(3, held_up)

    world.on_spawn = begin
    world.run()
    assert [(event["rank"], event["restarts"]) for event in world.fields_of("rank_restarted")] == [(0, 1), (0, 2)]
    kinds = [(incident["rank"], incident["kind"]) for incident in world.fields_of("incident")]
    assert kinds[:4] == [(0, "exit"), (0, "exit"), (1, "exit"), (1, "spawn")]


def test_failures_without_progress_wait_longer_each_time(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="4", backoff_first="2s", backoff_max="60s")
    world.on_spawn = lambda group: world.clock.at(world.clock() - BEGIN + 1, lambda: group.exit(0, 9))
    world.run()
    assert [incident["delay"] for incident in world.fields_of("incident")][:4] == [0.0, 2.0, 4.0, 8.0]
    waits = [after.started - before.started for before, after in zip(world.groups, world.groups[1:], strict=False)]
    assert waits == pytest.approx([1.0, 3.0, 5.0, 9.0], abs=0.6)


def test_ranks_that_do_not_leave_are_killed_after_the_grace(tmp_path: Path) -> None:
    world = World(tmp_path, grace="20s")

    def begin(group: FakeGroup) -> None:
        group.obeys = group.attempt > 0
        world.train(group, 3)
        if group.attempt > 0:
            world.clock.at(world.clock() - BEGIN + 5, lambda: world.finish(group))

    world.on_spawn = begin
    # a class of failure of which no other rank is provably blocked: nobody has died
    world.clock.at(2.5, lambda: world.groups[0].exit(0, 1))
    world.run()
    calls = [call for call in world.groups[0].calls if call != "sweep"]
    assert calls == ["spawn", "ask to leave", "kill"]
    assert world.groups[1].started == pytest.approx(BEGIN + 2.5 + 20.0, abs=1.0)
    assert [event["ranks"] for event in world.fields_of("ranks_killed")] == [[1]]


def test_a_rank_is_restarted_alone(tmp_path: Path) -> None:
    world = World(tmp_path, restart_scope="rank", max_restarts="2", hang_timeout="off", startup_timeout="off")
    world.clock.at(2.5, lambda: world.groups[0].exit(1, 3))

    def end() -> None:
        for rank in (0, 1):
            world.groups[0].exit(rank, 0)

    world.clock.at(30.0, end)
    world.run()
    assert len(world.groups) == 1
    assert [(event["rank"], event["restarts"]) for event in world.fields_of("rank_restarted")] == [(1, 1)]
    assert "restarting it alone" in world.fields_of("incident")[0]["sentence"]
    assert world.supervisor.state is JobState.DONE


def test_one_that_has_attached_is_not_restarted_alone(tmp_path: Path) -> None:
    world = World(tmp_path, restart_scope="rank")
    trains_and_ends(world)
    world.clock.at(2.5, lambda: world.groups[0].exit(1, 3))
    world.run()
    assert len(world.groups) == 2
    assert world.fields_of("rank_restarted") == []


def test_when_a_rank_begins_to_die_the_others_are_told_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    trains_and_ends(world, 20)

    def dies() -> None:
        world.deaths.ranks = [1]
        world.groups[0].obeys = False
        world.ring(world.deaths.fd)
        assert world.fields_of("rank_dying") == [{"rank": 1, "signal": "SIGKILL"}]
        assert "ask to leave" in world.groups[0].calls
        assert world.fields_of("incident") == [], "the verdict waits for the end itself"

    world.clock.at(2.2, dies)
    world.clock.at(9.5, lambda: world.groups[0].exit(1, -9))
    world.clock.at(9.6, lambda: world.groups[0].exit(0, -15))
    world.run()
    assert world.fields_of("incident")[0]["rank"] == 1
    slow = "rank 1 died 5 s ago, and the kernel has not taken it apart yet: waiting"
    assert [sentence for sentence in world.said() if "taken it apart" in sentence] == [slow], "told once"


def test_what_an_attempt_knows_is_forgotten_with_it(tmp_path: Path) -> None:
    """Nothing is reset by hand: taken out, an Attempt that is used again is found here."""
    world = World(tmp_path, max_restarts="1")
    trains_and_ends(world, 30)
    seen = []

    def crash() -> None:
        first = world.supervisor.attempt
        assert first is not None
        first.stragglers.slow[0] = None  # type: ignore[assignment]
        seen.append(first)
        world.groups[0].exit(0, 1)

    world.clock.at(2.5, crash)
    world.run()
    second = world.supervisor.attempt
    assert second is not None
    assert second is not seen[0]
    assert second.stragglers.slow == {}
    assert second.examination is not seen[0].examination
    assert second.progress is not seen[0].progress


def test_the_ranks_are_told_where_to_resume_before_they_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    trains_and_ends(world)
    train, told = world.on_spawn, []

    def begin(group: FakeGroup) -> None:
        told.append(world.pages[0].resume)
        train(group)

    def crash() -> None:
        for page in world.pages.pages:  # both ranks have a snapshot of step 2 in memory
            page.set_slot(0, 2)
        world.groups[0].exit(0, 1)

    world.on_spawn = begin
    world.clock.at(2.5, crash)
    world.run()
    assert told == [(Resume.FRESH, 0), (Resume.MEMORY, 2)]


def test_what_the_saver_has_committed_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, storage_interval="2")
    trains_and_ends(world, 6)
    for second in (2.1, 4.1, 6.1):
        world.clock.at(second, lambda second=second: hold(world, int(second)))  # type: ignore[misc]
    world.run()
    assert [event["step"] for event in world.fields_of("checkpoint_committed")] == [2, 4, 6]
    assert world.supervisor.saving.committed == 6


def hold(world: World, step: int) -> None:
    """Both ranks hold the snapshot of a step for the saver."""
    for page in world.pages.pages:
        page.set_slot(0, step)
        page.hold_for_saver(step, 0)


def test_a_saver_that_dies_is_replaced_and_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path, storage_interval="2")
    trains_and_ends(world, 8)
    world.clock.at(2.1, lambda: hold(world, 2))
    world.clock.at(2.4, world.savers[0].die)
    world.run()
    (died,) = world.fields_of("saver_died")
    assert died == {"status": -9, "step": 2}
    assert [request["step"] for request in world.savers[1].asked][:1] == [2]
    assert world.fields_of("checkpoint_committed")[0]["step"] == 2


def test_a_job_outlives_a_saver_that_cannot_be_started(tmp_path: Path) -> None:
    world = World(tmp_path, storage_interval="2", grace="5s")
    trains_and_ends(world, 8)
    world.clock.at(2.1, lambda: hold(world, 2))

    def no_saver() -> None:
        world.may_start_saver = False
        world.savers[0].die()

    world.clock.at(2.4, no_saver)
    world.run()
    assert len(world.fields_of("saver_missing")) == 1
    assert world.supervisor.state is JobState.DONE, "the work is done, whatever could not be saved"
    assert "no saver can be started" in world.supervisor.final_save.error
    assert world.clock() < BEGIN + 30
