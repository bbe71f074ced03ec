"""A trainer in a class under DistributedDataParallel, which looks at a batch before each epoch."""

import torch
import torch.distributed as dist
from kit import note, reach, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ftlaunch_hooks as ft  # ftlaunch


class Trainer:
    """Trains a model on the batches of a loader, and writes a file now and then."""

    def __init__(self, model, batches, optimizer, save_every):
        self.model = DistributedDataParallel(model)
        self.batches = batches
        self.optimizer = optimizer
        self.save_every = save_every
        self.saved = 0
        self.job = ft.attach(model=self.model, optimizer=optimizer)  # ftlaunch

    def run_batch(self, source, target):
        """One step."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(source), target)
        loss.backward()
        self.optimizer.step()
        return loss

    def run_epoch(self, epoch):
        """One pass over the data."""
        size = len(next(iter(self.batches))[0])
        print(f"epoch {epoch}: {len(self.batches)} batches of {size}")
        self.batches.sampler.set_epoch(epoch)
        for number, (source, target) in enumerate(self.job.batches(self.batches)):  # ftlaunch
            loss = self.run_batch(source, target)
            note(epoch, number, loss)
            reach("batch", epoch, number)

    def train(self, epochs):
        """All passes."""
        for epoch in self.job.epochs(epochs):  # ftlaunch
            self.run_epoch(epoch)
            reach("validation", epoch)
            if epoch % self.save_every == 0:
                self.saved += 1
            reach("end", epoch)


def main():
    """Build everything, and train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(64, 20), torch.randint(3, (64,)))
    model = nn.Sequential(nn.Linear(20, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    trainer = Trainer(model, loader, optimizer, save_every=2)
    trainer.train(4)
    report(trainer.model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
