"""What all ranks hold is agreed on alike by all of them, whoever comes first; the rest is each rank's own."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_contract.protocol import Flag, own_start_time
from ftlaunch_hooks.tensors.replica_agreement import Group, Held, Replica, ReplicaAgreement

RANKS = 3
PARTS = ("model", "adam", "muon")
Groups = Mapping[Group, Sequence[Sequence[int]]]


def held(*keys: str) -> dict[str, Replica]:
    return {key: Replica(key.split(".")[0], len(key) % RANKS, "F32", (2,)) for key in keys}


MODEL = held("model.a", "model.bb", "model.ccc")


class Ranks:
    """Threads that meet in pages of their own, each as late as it happens to be."""

    def __init__(self, directory: Path, groups: Sequence[Groups | None] = (None,) * RANKS) -> None:
        """groups: of each rank, see ReplicaAgreement."""
        self.count = len(groups)
        make_pages(directory, self.count)
        self.pages: list[list[Page]] = [open_pages(directory, self.count) for _ in groups]
        for rank in range(self.count):
            self.pages[rank][rank].begin(0, os.getpid(), own_start_time())
        self.agreements = [ReplicaAgreement(rank, self.pages[rank], PARTS, one) for rank, one in enumerate(groups)]

    def live(
        self, rounds: Mapping[int, Sequence[Held]], values: Callable[[int, int, str], float] = lambda *_: 1.0
    ) -> list[list[tuple[bool, set[str]]]]:
        """step -> what each rank holds; returns step by step what each rank was told.

        values: (step, rank, key) -> what the tensor is filled with.
        """

        def life(rank: int) -> list[tuple[bool, set[str]]]:
            told = []
            for step, held_by in rounds.items():
                threading.Event().wait(random.random() / 200)
                held_now = dict(held_by[rank])
                tensors = {key: torch.full(one.shape, values(step, rank, key)) for key, one in held_now.items()}
                taken = self.agreements[rank].meet(step, held_now, tensors)
                told.append((taken, set(self.agreements[rank].agreed)))
            return told

        with ThreadPoolExecutor(self.count) as pool:
            lives = list(pool.map(life, range(self.count)))
        return [list(of_step) for of_step in zip(*lives, strict=True)]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def everywhere(*keys: str) -> list[Held]:
    return [MODEL | held(*keys)] * RANKS


def test_what_all_ranks_hold_is_agreed_at_the_boundary_where_it_appears(ranks: Ranks) -> None:
    told = ranks.live({0: everywhere(), 1: everywhere("adam.x"), 5: everywhere("adam.x"), 6: everywhere("adam.y")})
    for of_step, more in zip(told, (set(), {"adam.x"}, {"adam.x"}, {"adam.y"}), strict=True):
        assert of_step == [(True, MODEL.keys() | more)] * RANKS


def test_what_one_rank_holds_alone_is_nobodys_replica_and_the_rest_stays(ranks: Ranks) -> None:
    split = [MODEL | held("adam.x", f"muon.{rank}") for rank in range(RANKS)]
    told = ranks.live({0: everywhere(), 1: split, 2: split, 3: split})
    assert told[1:] == [[(True, {*MODEL, "adam.x"})] * RANKS] * 3


def test_a_tensor_that_one_rank_loses_is_agreed_on_no_more_until_all_hold_it_again(ranks: Ranks) -> None:
    lost = [*everywhere("adam.x", "adam.yy")[1:], MODEL | held("adam.x")]
    everything = everywhere("adam.x", "adam.yy")
    told = ranks.live({0: everything, 1: lost, 2: lost, 3: everything, 4: lost})
    whole, rest = (True, {*MODEL, "adam.x", "adam.yy"}), (True, set(MODEL))
    assert told == [[whole] * RANKS, [rest] * RANKS, [rest] * RANKS, [whole] * RANKS, [rest] * RANKS]


def test_what_ranks_hold_with_other_values_is_each_ranks_own_from_then_on(ranks: Ranks) -> None:
    """Taken out: without the digests of values all of it is agreed, and a snapshot has a part of each rank's."""

    def values(step: int, rank: int, key: str) -> float:
        return float(rank == 2 and step == 1 and key == "adam.x")

    told = ranks.live(dict.fromkeys(range(4), everywhere("adam.x", "adam.yy")), values)
    assert told == [[(True, {*MODEL, "adam.x", "adam.yy"})] * RANKS, *[[(True, set(MODEL))] * RANKS] * 3]
    assert [agreement.pop_differing() for agreement in ranks.agreements] == [["adam"], [], []], "one rank tells of it"
    assert [agreement.pop_differing() for agreement in ranks.agreements] == [[]] * RANKS, "once"


def test_a_rank_that_has_gone_on_to_a_later_round_is_not_waited_for(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, (None,) * 2)
    with ThreadPoolExecutor(2) as pool:
        meetings = [
            pool.submit(agreement.meet, 10 + 2 * rank, MODEL, {key: torch.zeros(2) for key in MODEL})
            for rank, agreement in enumerate(ranks.agreements)
        ]
        assert meetings[0].result(timeout=60.0) is False
        ranks.pages[0][0].beat(10, 0)
        ranks.pages[0][0].raise_flag(Flag.LOOP_LEFT)
        assert meetings[1].result(timeout=60.0) is False


def test_another_owner_dtype_or_shape_is_another_tensor(ranks: Ranks) -> None:
    one = MODEL["model.a"]
    for step, other in enumerate((one._replace(owner=2), one._replace(dtype="BF16"), one._replace(shape=(3,))), 1):
        told = ranks.live({step: [MODEL, MODEL, MODEL | {"model.a": other}]})
        assert told == [[(True, set())] * RANKS]


@pytest.mark.parametrize("seed", range(20))
def test_in_any_history_a_step_that_all_ranks_take_has_each_tensor_from_a_rank_that_holds_it(
    seed: int, ranks: Ranks
) -> None:
    chance = random.Random(seed)
    keys = [f"{part}.{'x' * size}" for part in PARTS for size in range(4)]
    now = [held(*keys)] * RANKS
    rounds: dict[int, Sequence[Held]] = {}
    for step in range(0, 60, 3):
        if chance.random() < 0.3:
            now = [held(*chance.sample(keys, 6))] * RANKS
        elif chance.random() < 0.5:
            now = [held(*chance.sample(keys, 11)) if chance.random() < 0.3 else before for before in now]
        rounds[step] = now
    taken = 0
    for (step, held_by), told in zip(rounds.items(), ranks.live(rounds), strict=True):
        if not all(whole for whole, _ in told):
            continue
        taken += 1
        assert len({frozenset(agreed) for _, agreed in told}) == 1, f"step {step}"
        for key in told[0][1]:
            assert all(key in of_rank for of_rank in held_by), f"step {step}"
    assert taken > len(rounds) // 2


def test_a_rank_that_is_told_to_leave_waits_for_nobody_and_takes_nothing(ranks: Ranks) -> None:
    ranks.pages[0][0].leave = True
    assert not ranks.agreements[0].meet(0, MODEL, {key: torch.zeros(2) for key in MODEL})


# --- groups of ranks -------------------------------------------------------------------------------------------

DENSE, EXPERTS = (0, 1, 2, 3), [(0, 2), (1, 3)]


def of_group(group: tuple[int, ...], *keys: str) -> dict[str, Replica]:
    said = ",".join(map(str, group))
    return {f"{key}@{said}": Replica(key.split(".")[0], 0, "F32", (2,), group) for key in keys}


def with_experts(directory: Path) -> Ranks:
    """Four ranks that hold some parameters alike, and two pairs of them each others."""
    own = [EXPERTS[rank % 2] for rank in range(4)]
    return Ranks(directory, [{DENSE: [DENSE], experts: [experts]} for experts in own])


def test_a_group_agrees_on_what_its_ranks_hold_whatever_others_hold(tmp_path: Path) -> None:
    """Taken out: where all ranks are to say the same, groups with tensors of their own never agree."""
    dense = of_group(DENSE, "model.a", "adam.a")
    holds: list[Held] = [dense | of_group(EXPERTS[rank % 2], "model.e", "adam.e") for rank in range(4)]
    for of_step in with_experts(tmp_path).live({0: holds, 4: holds}):
        assert of_step == [(True, set(one)) for one in holds]


def test_a_rank_that_lacks_a_tensor_of_its_group_concerns_this_group_alone(tmp_path: Path) -> None:
    dense = of_group(DENSE, "model.a")
    holds: list[Held] = [dense | of_group(EXPERTS[rank % 2], "model.e") for rank in range(4)]
    lacking = [*holds[:3], dense]
    ranks = with_experts(tmp_path)
    first, second = ranks.live({0: lacking, 1: lacking})
    assert first == second
    assert [told for _, told in first] == [set(holds[0]), set(dense), set(holds[2]), set(dense)]


def test_ranks_that_name_different_groups_agree_on_nothing(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, [{(0, 1): [(0, 1)]}, {(0, 1, 2): [(0, 1, 2)]}, {(0, 1, 2): [(0, 1, 2)]}])
    holds = [of_group((0, 1), "model.a"), *[of_group((0, 1, 2), "model.a")] * 2]
    for of_step in ranks.live({0: holds, 1: holds}):
        assert [told for _, told in of_step][:2] == [set(), set()]
        assert of_step[2] == (True, set())


# --- shards that several ranks hold ----------------------------------------------------------------------------

SHARDS = ((0, 2), (1, 3))


def with_shards(directory: Path) -> Ranks:
    """Four ranks, of which two hold a whole together, and the other two the same one."""
    return Ranks(directory, [{SHARDS: SHARDS}] * 4)


def shards(*keys: str) -> list[Held]:
    """What each rank holds: another shard than its neighbour's."""
    return [
        {key: Replica(key.split(".")[0], rank % 2, "F32", (2 + rank % 2,), SHARDS) for key in keys} for rank in range(4)
    ]


def test_ranks_with_other_shards_agree_where_the_holders_of_each_hold_the_same(tmp_path: Path) -> None:
    """Taken out: where all of a mesh are to say the same, they never agree."""
    holds = shards("model.w", "adam.w")
    for of_step in with_shards(tmp_path).live({0: holds, 1: holds}, lambda step, rank, key: rank % 2 + step):
        assert of_step == [(True, {"model.w", "adam.w"})] * 4


def test_all_shards_are_apart_where_one_of_them_is(tmp_path: Path) -> None:
    ranks = with_shards(tmp_path)
    holds = shards("model.w", "adam.w")
    told = ranks.live({0: holds, 1: holds}, lambda step, rank, key: float(key == "adam.w" and rank == 3))
    assert told == [[(True, {"model.w"})] * 4] * 2
    assert [agreement.pop_differing() for agreement in ranks.agreements] == [["adam"], [], [], []]
