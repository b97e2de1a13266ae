"""LeNet-5 as used in papers on federated learning: with ReLU, max-pooling and no padding."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn

from flnl.core.inputs import Kind
from flnl.core.ranges import Neutral
from flnl.models.layers import Classifier, Shape, check_inputs


@dataclass(frozen=True)
class LeNet5:
    """Two 5x5 convolutions (6 and 16 channels), each with a max-pool, then linear layers of 120 and 84 units.

    LeCun et al. 1998, with colour inputs and the ReLU of FedCorr's architecture study (its Table 10). 62,006 parameters
    on 3x32x32 and 10 classes; the first linear layer follows the size of the inputs.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    batch_norm: Annotated[bool, Neutral(False)]  # after each convolution; in no paper's LeNet-5

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs are smaller than 16x16: nothing would remain after the second pool.
        """
        check_inputs("lenet5", shape, smallest=16)
        channels, height, width = shape
        pixels = (
            ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)
        )  # a convolution removes 4 pixels, a pool halves
        body = nn.Sequential(
            *self._block(channels, 6),
            *self._block(6, 16),
            nn.Flatten(),
            nn.Linear(16 * pixels, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        return Classifier(body, nn.Linear(84, num_classes))

    def _block(self, inputs: int, channels: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(channels)] if self.batch_norm else []
        return [nn.Conv2d(inputs, channels, 5), *norm, nn.ReLU(), nn.MaxPool2d(2)]
