"""The frameworks' jobs that stand all faults in every configuration: how each is started, and where its faults are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.adapters.kit import OFFLINE
from tests.support import framework_results, lightning_jobs
from tests.support.framework_results import FINDS_JOBS
from tests.support.harness import JOBS, FtJob
from tests.support.titan_jobs import ENVIRONMENT

CONFIGURATIONS = ("plain", "accumulation", "evaluation", "workers", "precision")
_SOON = ("--backoff-first", "0.05s", "--backoff-max", "0.1s")
_QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Framework:
    """A script of tests/jobs, and its faults."""

    needs: str
    """the module without which its jobs are skipped"""
    script: str
    preload: str
    words: Mapping[str, str]
    """configuration -> what the script is given; words that it joins by + or a space"""
    faults: Callable[[str, int], list[str]]
    """(configuration, ranks) -> its faults, see tests/jobs/faults.py"""
    slow: str
    """the word for steps that take a moment, so that a job can be stopped in between"""
    bare: str = ""
    """the word for a job without the hooks, where the script has one"""
    joint: str = "+"
    left: Callable[[Path], dict[str, object]] = framework_results.left
    """what an undisturbed job and a disturbed one must leave alike"""
    env: Mapping[str, str] = field(default_factory=lambda: _QUIET)

    def start(self, job: FtJob, configuration: str, ranks: int, faults: list[str] | None = None) -> None:
        """Start a job, with its faults where it is to have some."""
        more = [self.bare] if faults is None else [self.slow]
        words = self.joint.join([self.words[configuration], *filter(None, more)])
        args = (str(job.out), *(words.split() if self.joint == " " else [words]))
        env = {**self.env, **FINDS_JOBS, "FAULT": "; ".join(faults or [])}
        limits = ("--hang-timeout", "5s", "--grace", "5s", "--max-restarts", "20")
        options = ("--warm", "--preload", self.preload, *_SOON, *limits)
        job.start(*options, script=JOBS / self.script, args=args, ranks=ranks, env=env)


def _over_epochs(batches: int, ranks: int, saved_at: int, evaluated_at: int, *, saves_first: bool) -> list[str]:
    """The faults of a job of five epochs of so many batches; a stop is a whole epoch away from what comes next."""
    last = ranks - 1
    in_third = [f"saving 0 {saved_at}", f"evaluation {last} {evaluated_at}"]
    return [
        f"step {last} 1",
        "step 0 1",
        f"step {last} 2 orphan",
        "epoch_end 0 0",
        f"step {last} {batches} term",
        f"step {last} *",
        *(in_third if saves_first else reversed(in_third)),
        f"step 0 {3 * batches} stop",
        "step 0 *",
        f"step {last} {5 * batches - 2} freeze",
        f"step 0 {5 * batches - 1}",
    ]


def _lightning(configuration: str, ranks: int) -> list[str]:
    batches = 12 // ranks
    steps = 3 * (-(-batches // 3) if configuration == "accumulation" else batches)
    faults = _over_epochs(batches, ranks, steps, steps, saves_first=False)
    return [one.replace("evaluation", "validation") for one in faults]


def _loops(configuration: str, ranks: int) -> list[str]:
    batches = {1: 11, 2: 6}[ranks]
    return _over_epochs(batches, ranks, {1: 30, 2: 15}[ranks], 2, saves_first=True)


def _transformers(configuration: str, ranks: int) -> list[str]:
    steps = 12 // ranks // (2 if configuration == "accumulation" else 1)
    last = ranks - 1
    evaluated = [f"eval {last} {3 * steps}"] * (configuration in ("evaluation", "precision"))
    return [
        f"kill {last} 1",
        "kill 0 1",
        f"kill {last} 2 orphan",
        f"epoch 0 {steps}",
        f"kill {last} {steps} term",
        f"kill {last} *",
        *evaluated,
        f"save 0 {3 * steps}",
        f"kill 0 {3 * steps} stop",
        "kill 0 *",
        f"kill {last} {5 * steps - 2} freeze",
        f"kill 0 {5 * steps - 1}",
    ]


def _steps(place: str, every: tuple[int, int], configuration: str, ranks: int, first: int, total: int) -> list[str]:
    """Of a job of steps without epochs. every: (of evaluations, of saves) the number of the one in the middle."""
    last = ranks - 1
    evaluated = [f"{place} {last} {every[0]}"] * (configuration in ("evaluation", "precision"))
    save = "save" if place == "validate" else "saving"
    return [
        f"step {last} {first}",
        f"step 0 {first}",
        f"step {last} {first + 1} orphan",
        f"step {last} {first + 3} term",
        f"step {last} *",
        *evaluated,
        f"{save} 0 {every[1]}",
        f"step 0 {every[1] + 1} stop",
        "step 0 *",
        f"step {last} {total - 2} freeze",
        f"step 0 {total - 1}",
    ]


def _deepspeed(configuration: str, ranks: int) -> list[str]:
    return _steps("evaluation", (15, 19), configuration, ranks, 1, 32)


def _titan(configuration: str, ranks: int) -> list[str]:
    return _steps("validate", (12, 16), configuration, ranks, 2, 25)


def _megatron(configuration: str, ranks: int) -> list[str]:
    return _steps("evaluation", (12, 16), configuration, ranks, 1, 24)


def _hugging_face_left(out: Path) -> dict[str, object]:
    """Digests and logs; of the optimizer's steps which were made, as one in which a rank was killed is made twice."""
    found: dict[str, object] = {path.name: path.read_text() for path in out.glob("[fh]i[ns]*_[0-9]")}
    return found | {path.name: sorted(set(path.read_text().split())) for path in out.glob("steps_[0-9]")}


_EVALUATES = 'eval_strategy="epoch"'
_TRAINER = 'plain rows=24 num_train_epochs=5 max_steps=-1 save_strategy="epoch" save_total_limit=2 '

FRAMEWORKS = {
    "Transformers": Framework(
        needs="transformers",
        script="hf.py",
        preload="transformers.trainer,accelerate,torch._dynamo",
        words={
            "plain": _TRAINER,
            "accumulation": f"{_TRAINER} gradient_accumulation_steps=2",
            "evaluation": f"{_TRAINER} {_EVALUATES} load_best_model_at_end=true",
            "workers": f"{_TRAINER} dataloader_num_workers=1",
            "precision": f"{_TRAINER} {_EVALUATES} bf16=true",
        },
        faults=_transformers,
        slow="nap=0.15",
        bare="plain=1",
        joint=" ",
        left=_hugging_face_left,
        env={**OFFLINE, **ENVIRONMENT},
    ),
    "Lightning": Framework(
        needs="lightning.pytorch",
        script="pl.py",
        preload="lightning.pytorch",
        words={
            "plain": "longer+noise",
            "accumulation": "longer+noise+accumulate",
            "evaluation": "longer+noise+metric",
            "workers": "longer+noise+workers",
            "precision": "longer+noise+bf16",
        },
        faults=_lightning,
        slow="slow",
        left=lightning_jobs.left,
    ),
    "Fabric": Framework(
        needs="lightning.fabric",
        script="fabric_loop.py",
        preload="lightning.fabric,torch._dynamo",
        words={
            "plain": "longer+saves+noise",
            "accumulation": "longer+saves+noise+accumulate",
            "evaluation": "longer+saves+noise+weighted",
            "workers": "longer+saves+noise+workers",
            "precision": "longer+saves+noise+bf16",
        },
        faults=_loops,
        slow="slow",
        left=lightning_jobs.left,
    ),
    "Accelerate": Framework(
        needs="accelerate",
        script="accelerated.py",
        preload="accelerate,torch._dynamo",
        words={
            "plain": "longer+saves+noise",
            "accumulation": "longer+saves+noise+accumulate",
            "evaluation": "longer+saves",
            "workers": "longer+saves+noise+workers",
            "precision": "longer+saves+noise+bf16",
        },
        faults=_loops,
        slow="slow",
    ),
    "DeepSpeed": Framework(
        needs="deepspeed",
        script="deepspeed_zero.py",
        preload="deepspeed",
        words={
            "plain": "zero1+longer+saves",
            "accumulation": "zero2+longer+saves+accumulate",
            "evaluation": "zero3+longer+saves+evaluate",
            "workers": "zero2+longer+saves+workers",
            "precision": "zero2+longer+saves+bf16+evaluate",
        },
        faults=_deepspeed,
        slow="slow",
    ),
    "torchtitan": Framework(
        needs="torchtitan.components.checkpointer",
        script="titan.py",
        preload="titan_on_cpu",
        words={
            "plain": "fsdp+longer+own",
            "accumulation": "fsdp+longer+own+accumulate",
            "evaluation": "fsdp+longer+own+validate",
            "workers": "fsdp+longer+own+workers",
            "precision": "fsdp+longer+own+bf16+validate",
        },
        faults=_titan,
        slow="slow",
        bare="plain",
        env=ENVIRONMENT,
    ),
    "Megatron": Framework(
        needs="megatron.core",
        script="megatron_gpt.py",
        preload="torch._dynamo",
        words={
            "plain": "longer+saves+distributed",
            "accumulation": "longer+saves+distributed+accumulate",
            "evaluation": "longer+saves+late+evaluate",
            "workers": "longer+saves+workers",
            "precision": "longer+saves+late+evaluate+bf16+distributed",
        },
        faults=_megatron,
        slow="slow",
        bare="plain",
    ),
}
