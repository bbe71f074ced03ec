"""A trainer of image models: updates counted over all epochs, accumulation, mixed images, an average of the weights."""

import copy
import math

import numpy as np
import torch
from kit import note, reach, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft  # ftlaunch

EPOCHS, ACCUMULATION = 4, 2


class ModelEma(nn.Module):
    """An average whose decay warms up with the updates."""

    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model, step):
        """Take the weights of a model in."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for average, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            average.copy_(decay * average + (1 - decay) * value)


class Schedule:
    """A learning rate by updates, and by epochs where the metric stands still."""

    def __init__(self, optimizer, updates):
        self.optimizer, self.updates = optimizer, updates
        self.base, self.metric = [group["lr"] for group in optimizer.param_groups], None

    def step_update(self, count):
        """After an update."""
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * 0.5 * (1 + math.cos(math.pi * count / self.updates))

    def step(self, epoch, metric):
        """After an epoch."""
        self.metric = metric

    def state_dict(self):
        """All but the optimizer."""
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        vars(self).update(state)


def mixed(model, images, target):
    """What the model makes of a batch that is mixed with itself, by a share of NumPy's; and what it should make."""
    share = float(np.random.beta(0.8, 0.8))
    target = nn.functional.one_hot(target, 3).float()
    return model(images * share + images.flip(0) * (1 - share)), target * share + target.flip(0) * (1 - share)


def train_one_epoch(epoch, model, loader, optimizer, schedule, ema):
    """One pass over the data."""
    model.train()
    updates_per_epoch = (len(loader) + ACCUMULATION - 1) // ACCUMULATION
    num_updates = epoch * updates_per_epoch
    last = len(loader) - 1
    optimizer.zero_grad()
    for number, (images, target) in enumerate(loader):
        is_update = number == last or (number + 1) % ACCUMULATION == 0
        loss = nn.functional.cross_entropy(*mixed(model, images, target))
        (loss / ACCUMULATION).backward()
        if is_update:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            num_updates += 1
            ema.update(model, step=num_updates)
            schedule.step_update(num_updates)
        note(epoch, number, loss + num_updates)
        reach("batch", epoch, number)


def validate(model, loader):
    """The accuracy."""
    model.eval()
    with torch.inference_mode():
        return sum((model(images).argmax(1) == target).sum().item() for images, target in loader)


def main():
    """Build everything, and train."""
    torch.manual_seed(3)
    np.random.seed(3)
    data = TensorDataset(torch.randn(54, 1, 6, 6), torch.randint(3, (54,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    eval_loader = DataLoader(TensorDataset(torch.randn(20, 1, 6, 6), torch.randint(3, (20,))), batch_size=8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = ModelEma(model)
    schedule = Schedule(optimizer, EPOCHS * math.ceil(len(loader) / ACCUMULATION))
    best_metric = best_epoch = None
    job = ft.attach(model=model, optimizer=optimizer, schedule=schedule, ema=ema)  # ftlaunch
    for epoch in job.epochs(EPOCHS):  # ftlaunch
        train_one_epoch(epoch, model, job.batches(loader), optimizer, schedule, ema)  # ftlaunch
        metric = validate(model, eval_loader)
        reach("validation", epoch)
        metric += validate(ema.module, eval_loader)
        schedule.step(epoch + 1, metric)
        if best_metric is None or metric > best_metric:
            best_metric, best_epoch = metric, epoch
        note(epoch, -1, best_metric + best_epoch)
        reach("end", epoch)
    report(model, optimizer, schedule, ema, best_metric, best_epoch, np.random.random())


if __name__ == "__main__":
    main()
