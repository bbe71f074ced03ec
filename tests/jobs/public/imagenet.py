"""Images that are made up: functions for a pass and for a validation, meters, a schedule, the best accuracy."""

import random
import time

import torch
from kit import note, reach, report
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft  # ftlaunch

EPOCHS = 4
best_accuracy = 0.0


class MadeUp(Dataset):
    """Images of noise, which may be flipped."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(1, 6, 6, generator=generator)
        return image.flip(2) if random.random() < 0.5 else image, index % 3


class Meter:
    """The average of what it was given."""

    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, times=1):
        """Take a value in."""
        self.sum += value * times
        self.count += times

    @property
    def average(self):
        """Of all values so far."""
        return self.sum / max(self.count, 1)


def train(loader, model, optimizer, epoch):
    """One pass over the data."""
    losses, took = Meter(), Meter()
    model.train()
    end = time.time()
    for number, (images, target) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), target)
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.update(time.time() - end)
        end = time.time()
        if number % 2 == 0:
            print(f"epoch {epoch} [{number}/{len(loader)}] loss {losses.average:.4f}, {took.average:.3f} s a batch")
        note(epoch, number, loss)
        reach("batch", epoch, number)


def validate(loader, model, epoch):
    """The accuracy."""
    right = Meter()
    model.eval()
    with torch.no_grad():
        for number, (images, target) in enumerate(loader):
            right.update((model(images).argmax(1) == target).float().mean().item(), len(images))
            if number == 1:
                reach("validation", epoch)
    return right.average


def main():
    """Build everything, and train."""
    global best_accuracy  # noqa: PLW0603 - as the script has it
    torch.manual_seed(1)
    random.seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    train_loader = DataLoader(MadeUp(44), batch_size=8, shuffle=True)
    validation_loader = DataLoader(MadeUp(20), batch_size=8)
    job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)  # ftlaunch
    for epoch in job.epochs(EPOCHS):  # ftlaunch
        train(job.batches(train_loader), model, optimizer, epoch)  # ftlaunch
        accuracy = validate(validation_loader, model, epoch)
        scheduler.step()
        best_accuracy = max(accuracy, best_accuracy)
        note(epoch, -1, best_accuracy)
        reach("end", epoch)
    report(model, optimizer, scheduler, best_accuracy, random.random())


if __name__ == "__main__":
    main()
