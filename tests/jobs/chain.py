"""Ranks without torch whose state is a chain of digests: snapshots, checkpoints and resumes are real, and cheap.

chain.py OUT STEPS SECONDS [MOMENT STEP]: so many steps of so many seconds. A rank's new state is a digest of its
number, the step and the states of all ranks, which they send each other at every step. So a state that is torn, or
mixed from two steps, never leads to the final states of an undisturbed run, and these can be computed without a run.

Each rank waits at one moment (`start`, `step`, `snapshot` or `end`) until OUT/go exists, and says so in OUT/at_RANK.
Before all that it waits for OUT/ready, and after step 10 for a checkpoint. The moment `commit` begins in the body of
the step in which OUT/at_commit is seen first, STEP at the latest.
"""

import hashlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import EXIT_SAVED, EXIT_STOPPED, MEMORY_SLOTS, Flag, Phase, Resume, Why
from ftlaunch_hooks.process.bootstrap import own_page

SIZE = 32  # bytes of a state

out, steps, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
moment, moment_step = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else ("never", 0)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
memory, checkpoints = Path(os.environ["FTLAUNCH_MEMORY_DIR"]), Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"])
out.mkdir(parents=True, exist_ok=True)
page = own_page()
chunk = tensor_file.whole_chunk(f"state{rank}", "U8", (SIZE,))
HEADER, (BEGIN,) = tensor_file.build_header([chunk])
EMPTY, _ = tensor_file.build_header([])


def wait_at(name: str, step: int = moment_step) -> None:
    """The moment, where this is it."""
    if (name, step) == (moment, moment_step) and not (out / "go").exists():
        (out / f"at_{rank}").touch()
        while not (out / "go").exists():
            time.sleep(0.02)


# --- the ranks among themselves -------------------------------------------------------------------------------


def receive(peer: socket.socket) -> bytes:
    block = b""
    while len(block) < SIZE:
        more = peer.recv(SIZE - len(block))
        if not more:
            sys.exit("another rank has closed its connection")
        block += more
    return block


def meet() -> list[socket.socket]:
    """Rank 0: the connections of all others, in their order. Another rank: its connection to rank 0."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        while True:
            try:
                to_first = socket.create_connection(place, timeout=1.0)
            except OSError:
                time.sleep(0.02)
                continue
            to_first.settimeout(None)
            to_first.sendall(rank.to_bytes(SIZE, "little"))
            return [to_first]
    found: dict[int, socket.socket] = {}
    with socket.create_server(place) as listener:
        while len(found) < world - 1:
            peer, _ = listener.accept()
            if said := peer.recv(SIZE, socket.MSG_WAITALL):  # not a fork server that only looks (first_rank.py)
                found[int.from_bytes(said, "little")] = peer
    return [found[number] for number in sorted(found)]


def of_all(own: bytes) -> list[bytes]:
    """The states of all ranks, by way of rank 0."""
    if rank:
        peers[0].sendall(own)
        return [receive(peers[0]) for _ in range(world)]
    found = [own, *map(receive, peers)]
    for peer in peers:
        peer.sendall(b"".join(found))
    return found


# --- its state ------------------------------------------------------------------------------------------------


def read_state(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(BEGIN)
        return file.read(SIZE)


def restored(kind: Resume, step: int) -> bytes:
    """The state to begin with; all snapshots of other steps are withdrawn."""
    for slot, held in enumerate(page.slot_steps()):
        if not kind.in_memory or held != step:
            page.set_slot(slot, NONE)
    if kind.in_memory:  # of another node: it has been put into a slot of this one
        return read_state(layout.slot_file(layout.slot_dir(memory, rank, page.slot_steps().index(step)), "model"))
    if kind == Resume.STORAGE:
        found = layout.iteration_dir(checkpoints, step).glob(f"*-model-{rank:07d}-{world:07d}.safetensors")
        return read_state(next(iter(found)))
    assert kind == Resume.FRESH, kind
    return bytes(SIZE)


def free_slots() -> list[tuple[int, int]]:
    """Step and number of each slot that holds neither the newest step nor one for the saver."""
    held = page.slot_steps()[:MEMORY_SLOTS]
    busy = {max(held), page.reading, page.save_step if page.save_step > page.saved else NONE} - {NONE}
    return [(step, slot) for slot, step in enumerate(held) if step not in busy]


def take(step: int, hold: Why | None) -> None:
    """A snapshot in the slot with the oldest step that nobody needs; waits where the saver needs two."""
    while not (free := free_slots()):
        time.sleep(0.001)
    slot = min(free)[1]
    directory = layout.slot_dir(memory, rank, slot)
    directory.mkdir(exist_ok=True)
    page.set_slot(slot, NONE)
    common = f'{{"step": {step}, "consumed_samples": 0, "versions": {{}}, "state": {{}}}}'
    (directory / layout.COMMON).write_text(common)
    layout.slot_file(directory, "opt").write_bytes(EMPTY)
    with layout.slot_file(directory, "model").open("wb", buffering=0) as file:
        file.write(HEADER + state[: SIZE // 2])
        wait_at("snapshot", step)
        file.write(state[SIZE // 2 :])
    page.set_slot(slot, step)
    if hold is not None:
        page.hold_for_saver(step, hold)


def order(step: int) -> Why | None:
    """Whether the snapshot of a step is to be held for the saver, and why."""
    global served  # noqa: PLW0603 - one process is one rank
    if NONE != page.stop_at <= step:
        return Why.STOP
    if step == steps:
        return Why.END
    if NONE != page.persist_at <= step and page.persist_at != served:
        served = page.persist_at
        return Why.INTERVAL
    return None


def on_term(signum: int, frame: object) -> None:
    if page.leave:
        os._exit(EXIT_STOPPED)


signal.signal(signal.SIGTERM, on_term)
while not (out / "ready").exists():
    time.sleep(0.02)
wait_at("start")
peers = meet() if world > 1 else []
served = NONE
while page.resume[0] == Resume.UNDECIDED:
    time.sleep(0.001)
begun_from, at = page.resume
at = max(at, 0)
state = restored(begun_from, at)
page.set_resumed(begun_from, at)
page.beat(at, time.monotonic_ns())
page.raise_flag(Flag.ATTACHED)
page.phase = Phase.TRAIN
states = (out / f"states_{rank}").open("a", buffering=1)
while at < steps:
    while at == 10 and not (layout.list_iterations(checkpoints) or (out / "go").exists()):
        time.sleep(0.02)
    wait_at("step", at)
    if at == moment_step or (out / "at_commit").exists():
        wait_at("commit")
    time.sleep(seconds)
    at += 1
    state = hashlib.sha256(b"%d %d " % (rank, at) + b"".join(of_all(state))).digest()
    states.write(f"{at} {state.hex()}\n")
    why = order(at)
    take(at, why)
    page.end_step(at, int(seconds * 1e9), time.monotonic_ns())
    if page.leave:
        sys.exit(EXIT_STOPPED)
    if why == Why.STOP:
        page.raise_flag(Flag.STOPPED)
        page.phase = Phase.TEARDOWN
        sys.exit(EXIT_SAVED)
page.phase = Phase.TEARDOWN
page.raise_flag(Flag.LOOP_LEFT)
(out / f"final_{rank}").write_text(state.hex())
wait_at("end")
