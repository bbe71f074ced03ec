"""What the supervisor makes of bad losses and of digests."""

from __future__ import annotations

import math

from ftlaunch.health.numerics import Difference, Losses, Replicas, divergence, minority
from ftlaunch_contract.pages.loss_record import Bad, LossFault
from ftlaunch_contract.pages.replica_record import ReplicaDigest, index_of, step_of


def bad(step: int, kind: LossFault = LossFault.NAN, episodes: int = 1, newest: int | None = None) -> Bad:
    return Bad(kind, step, math.nan, 8 * step - 8, 8 * step, math.inf, episodes, step if newest is None else newest)


def losses(nan: str = "warn", spike: str = "off") -> Losses:
    return Losses({LossFault.NAN: nan, LossFault.SPIKE: spike})


def test_the_earliest_is_told_and_what_follows_from_it_is_not() -> None:
    watch = losses()
    (found,) = watch.observe([(0, [bad(13)]), (1, [bad(12)])])
    assert (found.rank, found.step, found.before, found.span) == (1, 12, 12, (88, 96))
    assert found.sentence == "rank 1: the loss of step 12 is nan"
    assert watch.observe([(0, [bad(13)]), (1, [bad(12)]), (2, [bad(14)])]) == []


def test_another_episode_is_news() -> None:
    watch = losses()
    watch.observe([(0, [bad(12)])])
    (found,) = watch.observe([(0, [bad(12, episodes=2, newest=40)])])
    assert found.sentence == "rank 0: the loss of step 40 is no finite number again (2 times so far)"


def test_off_is_off() -> None:
    assert losses(nan="off").observe([(0, [bad(12)])]) == []
    assert [f.kind for f in losses(nan="off", spike="stop").observe([(0, [bad(12), bad(12, LossFault.SPIKE)])])] == [
        "spike"
    ]


def test_samples_that_nobody_counts() -> None:
    (found,) = losses().observe([(0, [bad(12)._replace(begin=-1, end=-1)])])
    assert found.span is None


# --- replicas -------------------------------------------------------------------------------------------------


def told(step: int, index: int, digest: int, table: int = 5) -> dict[int, int]:
    return {ReplicaDigest(step, index, table, digest).key: digest}


def test_a_key_says_what_was_digested() -> None:
    key = ReplicaDigest(2**31 - 1, 4095, 2**32 - 1, 0).key
    assert (step_of(key), index_of(key)) == (2**31 - 1, 4095)
    assert key < 2**63


def test_the_rank_in_the_minority_is_named_once() -> None:
    replicas = Replicas(3, since=2)
    assert replicas.observe((rank, told(5, 1, 77)) for rank in range(3)) == []
    assert replicas.observe([(0, told(9, 1, 77)), (2, told(9, 1, 77))]) == [], "one has not told yet"
    assert replicas.observe([(0, told(9, 1, 77)), (1, told(9, 1, 78)), (2, told(9, 1, 77))]) == [
        Difference(9, 1, (1,), agreed=5)
    ]
    assert replicas.observe([(0, told(13, 1, 70)), (1, told(13, 1, 71)), (2, told(13, 1, 70))]) == []


def test_of_two_none_is_in_the_minority() -> None:
    replicas = Replicas(2, since=2)
    (found,) = replicas.observe([(0, told(4, 0, 1)), (1, told(4, 0, 2))])
    assert found == Difference(4, 0, (), agreed=2)
    sentence = divergence(found, "model.0.weight", "warn", 2).sentence
    assert sentence.startswith("the 2 ranks held different values of model.0.weight after step 4")


def test_what_is_of_another_table_is_not_compared() -> None:
    """A rank whose optimizer holds state for other parameters tells of other parts under the same number."""
    assert Replicas(2, since=0).observe([(0, told(4, 0, 1, table=5)), (1, told(4, 0, 2, table=6))]) == []


def test_minority() -> None:
    assert minority({0: 1, 1: 1, 2: 2, 3: 2}) == ()
    assert minority({0: 1, 1: 1, 2: 2, 3: 3}) == ()
    assert minority({0: 1, 1: 1, 2: 1, 3: 3}) == (3,)


def test_going_back_is_to_before_the_last_agreement_is_over() -> None:
    found = divergence(Difference(9, 1, (1,), agreed=5), "w", "rollback", 3)
    assert (found.before, found.rank) == (6, 1)
