"""What `ftctl status` is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftlaunch.engine.supervisor import Supervisor


def status(runner: Supervisor) -> dict[str, Any]:
    """The answer to `ftctl status`."""
    now = time.monotonic()
    ranks = []
    for view in runner.gang.views():
        member = runner.gang.members[view.rank]
        page = runner.gang.page(view.rank)
        ranks.append(
            {
                "rank": view.rank,
                "pid": member.process.pid,
                "alive": not view.exited,
                "phase": view.phase,
                "step": view.step,
                "seen": page.seen_steps if page else 0,
                "beat_age": round(now - view.beat, 3) if view.beating else None,
                "step_seconds": round(page.step_seconds, 6) if page else None,
            }
        )
    return {
        "ok": True,
        "job_id": runner.spec.job_id,
        "state": runner.state.value,
        "attempt": runner.attempt,
        "restarts_left": runner.budget.left,
        "max_restarts": runner.budget.limits.restarts,
        "committed": runner.saving.committed,
        "in_memory": runner.pages.newest_common(),
        "run_dir": str(runner.spec.run_dir),
        "checkpoint_dir": str(runner.spec.checkpoint_dir),
        "last_incident": runner.reporter.last_incident,
        "ranks": ranks,
        "slow": [news.sentence for news in runner.slow.slow.values()],
    }
