"""What tests must know of ARFL."""

from tests.entries import NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

REWEIGHTED = "ResidualReweighting, Replace"
ARFL = ("method=arfl", "rounds=2", "noise.rho=0.6", "partition=fedcorr", *NORMED)

KNOWN = Known(
    entries=(
        Entry("arfl", ("method=arfl", *ONE_STAGE), fedavg(rest=REWEIGHTED)),
        Entry(
            "arfl_as_released_with_batch_norm",
            (
                *("method=arfl", "method.aggregator.distance_buffers=true", "method.delta=0.5", "partition=fedcorr"),
                *(*NORMED, *ONE_STAGE),
            ),
            fedavg(rest=REWEIGHTED),
        ),
        Entry(
            "fedcorr_and_arfl",
            ("method=fedcorr", "method/aggregator=arfl_residual_reweighting", *THREE_STAGES),
            fedcorr(rest=REWEIGHTED),
            BORDERS,
        ),
    ),
    golden={"arfl": ("method=arfl", "fraction=1.0", "rounds=6")},
    alive={"arfl": ("method=arfl", "rounds=4")},
    switches={
        ARFL: (
            "method.lam=1.0",
            "method.delta=0.7",
            "method.aggregator.distance_buffers=true",
            "method/aggregator=mean",
        )
    },
)
