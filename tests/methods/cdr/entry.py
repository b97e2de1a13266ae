"""What tests must know of CDR."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

MASKED = "cross_entropy, CriticalOnly"

KNOWN = Known(
    entries=(
        Entry("cdr", ("method=cdr", "noise.rho=0.6", *ONE_STAGE), fedavg(terms=MASKED)),
        Entry(
            "cdr_with_batch_norm",
            ("method=cdr", "method.noise_rate=0.7", "method.decay=sign", "partition=fedcorr", *NORMED, *ONE_STAGE),
            fedavg(terms=MASKED),
        ),
        Entry(
            "fedcorr_and_cdr",
            ("method=fedcorr", "method/gradient=cdr", *THREE_STAGES),
            fedcorr(MASKED),
            BORDERS,
        ),
    ),
    golden={"cdr": ("method=cdr", "rounds=6")},
    neutral={"cdr_without_noise": (("method=cdr", "method.noise_rate=0", "rounds=4"), FEDAVG)},
    alive={"cdr": ("method=cdr", "method.noise_rate=0.5", "rounds=2")},
    switches={
        ("method=cdr", "method.noise_rate=0.5", "train.weight_decay=0.01", "rounds=2"): (
            "method.noise_rate=0.6",
            "method.decay=sign",
        )
    },
)
