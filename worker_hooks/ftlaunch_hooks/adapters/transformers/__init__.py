"""Keep the trainings of Hugging Face's Trainer safe: `trainer = ft.transformers.wrap(trainer)`, then train() as always.

`wrap` (wrapping.py) replaces `trainer.train()`, which resumes a training, and adds a callback (boundaries.py) that
attaches the Trainer's objects and reports each step to the job. kept_state.py is what is saved of the Trainer itself,
data/ its position in the data, inside.py and loops.py whatever is private in transformers. Everything runs on the main
thread of a rank, except data/worker_draws.py, which runs in the workers of a DataLoader.
"""

from ftlaunch_hooks.adapters.transformers.wrapping import TrainerWrapper, wrap

__all__ = ["TrainerWrapper", "wrap"]
