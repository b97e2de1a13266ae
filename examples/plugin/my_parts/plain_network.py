"""A network that knows nothing of federated learning."""

import torch
from torch import nn


class Pooled(nn.Module):
    """Two convolutions with batch norm, the mean and the maximum of each channel, dropout and a linear layer."""

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [B, num_classes] of ``images`` [B, C, H, W]."""
        maps = self.body(images)
        pooled = torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], 1)
        logits: torch.Tensor = self.head(self.dropout(pooled))
        return logits
