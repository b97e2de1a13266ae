"""Random crops of training images, which are resized to a larger side before."""

import logging

from flnl.core.errors import UserError

log = logging.getLogger(__name__)

SMALL = 0.5
"""A crop whose side is a smaller share of the image's shows less than a quarter of it."""


def check(image_size: int, crop_from: int) -> None:
    """Check that crops of ``image_size`` pixels a side fit in images of ``crop_from``; warn if they show little of one.

    Raises:
        UserError: if they do not fit.
    """
    if crop_from < image_size:
        raise UserError(
            f"dataset.crop_from={crop_from} is smaller than dataset.image_size={image_size}, the crop that is taken "
            "from it"
        )
    if image_size < SMALL * crop_from:
        log.warning(
            "dataset.image_size=%d, dataset.crop_from=%d: a random crop shows %.2g %% of a training image; for about "
            "three quarters set dataset.crop_from=%d",
            *(image_size, crop_from, 100 * (image_size / crop_from) ** 2, round(image_size * 256 / 224)),
        )
