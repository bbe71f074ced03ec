"""What the trainings of a framework are called, where a script gives them no words: see decision 100."""

from __future__ import annotations

from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.process.say import say

_unnamed = 0  # trainings of this process without a word of the script's


def word_of(given: str, how: str, *, speaks: bool) -> str:
    """The word of a training that begins: the one that was given, or its number among those without one.

    how: to give it a word. speaks: whether this rank says it where only the order tells it from the one before.
    """
    global _unnamed  # noqa: PLW0603 - one process is one rank
    if given:
        return given
    _unnamed += 1
    if _unnamed == 1:
        return ""
    if speaks:
        say(
            f"training {_unnamed} of this process has no word of its own: a job that resumes tells it from those before"
            f" by their order; where the script may leave out one that is over, give each a word: {how}"
        )
    return str(_unnamed)


def check_place(job: Job, before: str, now: str, how: str) -> None:
    """Raises AttachError where a training that is over was another one by its place: the script may have left one out.

    For one without a word of the script's. before, now: where it writes to, for a sentence. how: to give it a word.
    """
    if before != now and not job.from_other_job:
        refuse(
            f"cannot resume: the training that is over wrote to {before}, and this one writes to {now}: where the"
            f" script has left one out it is another one. Give each a word ({how}), or the folder that it had, or"
            " start over with --fresh"
        )
