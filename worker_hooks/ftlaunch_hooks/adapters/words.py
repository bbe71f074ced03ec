"""Name the trainings of a framework to which the script gives no words of their own (decision 100)."""

from __future__ import annotations

from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.process.say import say

_unnamed = 0  # number of trainings of this process that the script has not named


def word_of(given: str, how: str, *, speaks: bool) -> str:
    """Return the word that names a training that begins.

    Args:
        given: the script's word for the training; empty without one.
        how: the call by which a script gives a word, for the sentence.
        speaks: whether this rank tells the user that only the order distinguishes the training from earlier ones.

    Returns:
        The script's word; without one an empty text for the first training, and "2", "3" ... for later ones.
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
    """Raise AttachError if a training without a word was over, and wrote to another place than the present training.

    The script may have left out a training, so that the order no longer tells which is which.

    Args:
        job: the job, which has restored the training.
        before: the place to which the restored training wrote.
        now: the place to which the present training writes.
        how: the call by which a script gives a word, for the sentence.
    """
    if before != now and not job.from_other_job:
        refuse(
            f"cannot resume: the training that is over wrote to {before}, and this one writes to {now}: where the"
            f" script has left one out it is another one. Give each a word ({how}), or the folder that it had, or"
            " start over with --fresh"
        )
