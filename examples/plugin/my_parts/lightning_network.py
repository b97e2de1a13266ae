"""A LightningModule with a loss of its own."""

import lightning as L
import torch
import torch.nn.functional as F

from my_parts.plain_network import Pooled


class Bootstrapped(L.LightningModule):
    """Trained by soft bootstrapping (Reed et al., ICLR 2015): the target is in part the network's own prediction."""

    def __init__(self, num_classes: int, in_channels: int, trust: float = 0.95) -> None:
        super().__init__()
        self.network = Pooled(num_classes, in_channels)
        self.trust = trust

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [B, num_classes] of ``images`` [B, C, H, W]."""
        logits: torch.Tensor = self.network(images)
        return logits

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch, a scalar."""
        images, labels = batch
        logits = self(images)
        given = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        target = self.trust * given + (1 - self.trust) * logits.detach().softmax(1)
        return F.cross_entropy(logits, target)
