"""Images with an average of the weights, a warm-up before the schedule, and a logger that hands the batches on."""

import random
import time
from collections import defaultdict, deque

import torch
from kit import note, reach, report
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, default_collate

import ftlaunch_hooks as ft  # ftlaunch

EPOCHS, EMA_STEPS, WARMUP = 4, 2, 1


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    """Of the weights and buffers of a model."""

    def __init__(self, model, decay):
        def average(old, new, count):
            return decay * old + (1 - decay) * new

        super().__init__(model, avg_fn=average, use_buffers=True)


class MetricLogger:
    """Meters over a window, by name; hands on what it logs."""

    def __init__(self):
        self.meters = defaultdict(lambda: deque(maxlen=5))

    def update(self, **values):
        """Take values in."""
        for name, value in values.items():
            self.meters[name].append(value)

    def log_every(self, batches, every, header):
        """All of `batches`, with a line now and then."""
        began = time.time()
        for number, one in enumerate(batches):
            yield one
            if number % every == 0:
                means = {name: sum(values) / len(values) for name, values in self.meters.items()}
                print(f"{header} [{number}/{len(batches)}] {means} {time.time() - began:.1f} s")


def mix(batch):
    """Each image is mixed with the one before, by a share that is drawn."""
    images, targets = default_collate(batch)
    targets = nn.functional.one_hot(targets, 3).float()
    if torch.rand(1).item() < 0.7:
        share = float(torch._sample_dirichlet(torch.tensor([0.2, 0.2]))[0])
        images = images.roll(1, 0).mul(1 - share).add(images.mul(share))
        targets = targets.roll(1, 0).mul(1 - share).add(targets.mul(share))
    return images, targets


def train_one_epoch(model, optimizer, loader, epoch, ema):
    """One pass over the data."""
    model.train()
    logger = MetricLogger()
    for i, (image, target) in enumerate(logger.log_every(loader, 2, f"epoch {epoch}")):
        loss = nn.functional.cross_entropy(model(image), target, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if i % EMA_STEPS == 0:
            ema.update_parameters(model)
            if epoch < WARMUP:
                ema.n_averaged.fill_(0)
        logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
        note(epoch, i, loss)
        reach("batch", epoch, i)


def evaluate(model, loader):
    """The accuracy."""
    model.eval()
    right = 0
    with torch.inference_mode():
        for image, target in MetricLogger().log_every(loader, 2, "test"):
            right += (model(image).argmax(1) == target).sum().item()
    return right / len(loader.dataset)


def main():
    """Build everything, and train."""
    torch.manual_seed(2)
    random.seed(2)
    data = TensorDataset(torch.randn(44, 1, 6, 6), torch.randint(3, (44,)))
    test_data = TensorDataset(torch.randn(20, 1, 6, 6), torch.randint(3, (20,)))
    loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data), collate_fn=mix)
    test_loader = DataLoader(test_data, batch_size=8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedules = [LinearLR(optimizer, 0.1, total_iters=WARMUP), CosineAnnealingLR(optimizer, EPOCHS - WARMUP)]
    scheduler = SequentialLR(optimizer, schedules, milestones=[WARMUP])
    ema = ExponentialMovingAverage(model, decay=0.9)
    job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema)  # ftlaunch
    for epoch in job.epochs(EPOCHS):  # ftlaunch
        train_one_epoch(model, optimizer, job.batches(loader), epoch, ema)  # ftlaunch
        scheduler.step()
        found = evaluate(model, test_loader)
        reach("validation", epoch)
        note(epoch, -1, found + evaluate(ema, test_loader))
        reach("end", epoch)
    report(model, optimizer, scheduler, ema)


if __name__ == "__main__":
    main()
