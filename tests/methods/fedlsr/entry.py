"""What tests must know of FedLSR."""

from tests.entries import NORMED, ONE_STAGE, Entry, Known, fedavg, of
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

LSR = ("method=fedlsr", "rounds=3", "noise.rho=0.6")

KNOWN = Known(
    entries=(
        Entry("fedlsr", ("method=fedlsr", *ONE_STAGE), of("fedlsr")),
        Entry(
            "fedlsr_as_released_with_batch_norm",
            (
                *("method=fedlsr", "method.variant=official_code", "method.plus=true", "method.view=mirror"),
                *("method/batch=mixup", *NORMED, *ONE_STAGE),
            ),
            fedavg(batch="Mixup", terms="fedlsr"),
        ),
        Entry(
            "fedcorr_and_fedlsr", ("method=fedcorr", "method/local=[fedlsr]", *THREE_STAGES), fedcorr("fedlsr"), BORDERS
        ),
    ),
    golden={"fedlsr": ("method=fedlsr", "method.plus=true", "rounds=6")},
    neutral={
        "fedlsr_plus_without_its_entropy": (
            ("method=fedlsr", "method.plus=true", "method.lambda_e=0", "rounds=4"),
            ("method=fedlsr", "rounds=4"),
        )
    },
    alive={"fedlsr": ("method=fedlsr", "method.gamma=0", "rounds=4")},
    switches={
        LSR: (
            *("method.gamma=0.1", "method.warmup=0", "method.plus=true", "method.variant=official_code"),
            *("method.view=mirror", "method.degrees=10", "method.local.fedlsr.sharpening=1"),
            "method.local.fedlsr.sharpening_js=1",
        )
    },
)
