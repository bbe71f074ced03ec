"""What Ray has no room for, in a sentence."""

from __future__ import annotations

from ftlaunch_ray.placement import RayNode, why_not

BUNDLE = {"CPU": 8.0, "GPU": 8.0}


def test_too_few_nodes_are_named_with_what_they_have() -> None:
    nodes = [RayNode("10.0.0.1", {"CPU": 64.0, "GPU": 8.0, "memory": 1e9}), RayNode("10.0.0.2", {"CPU": 64.0})]
    assert why_not([BUNDLE] * 3, 1, nodes) == (
        "3 nodes (2, and 1 spare) with 8 CPUs and 8 GPUs each are wanted, and the Ray cluster has 1 such"
        " (10.0.0.1: 64 CPUs and 8 GPUs, 10.0.0.2: 64 CPUs and 0 GPUs)"
    )


def test_nodes_that_others_use_are_said_to_be_used() -> None:
    nodes = [RayNode("10.0.0.1", {"CPU": 1.0}), RayNode("10.0.0.2", {"CPU": 1.0})]
    assert why_not([{"CPU": 1.0}], 0, nodes) == (
        "1 node with 1 CPU each is wanted; the Ray cluster has 2 such, but others use them"
    )


def test_of_many_nodes_a_few_are_named() -> None:
    nodes = [RayNode(f"10.0.0.{number}", {"CPU": 1.0}) for number in range(100)]
    told = why_not([BUNDLE] * 2, 0, nodes)
    assert told.endswith("10.0.0.7: 1 CPU and 0 GPUs, ...)")
    assert "the Ray cluster has 0 such" in told
