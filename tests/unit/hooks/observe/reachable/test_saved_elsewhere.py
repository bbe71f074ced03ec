"""What attached objects hold, and what job.batches() saves of itself."""

from __future__ import annotations

from tests.support.loops import Holder

from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere, name_of_kept


def test_what_batches_saves_has_no_name_that_another_process_knows() -> None:
    """Taken out: its name has an address in it, so that the next life lacked what had been kept under that name."""
    window: list[int] = [1]
    attached, stream = Holder(), Holder(window=window)
    saved = SavedElsewhere({"attached": attached, name_of_kept(stream): stream})
    assert saved(stream)
    assert saved.is_kept_by_loops(stream)
    assert saved.is_kept_by_loops(window)
    assert saved.path_of(stream) is None
    assert not saved.is_kept_by_loops(attached)
    assert saved.path_of(attached) == "attached attached"


def test_what_is_attached_as_well_has_its_name() -> None:
    stream = Holder()
    saved = SavedElsewhere({"stream": stream, name_of_kept(stream): stream})
    assert not saved.is_kept_by_loops(stream)
    assert saved.path_of(stream) == "attached stream"
