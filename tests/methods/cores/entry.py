"""What tests must know of CORES2."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, of
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

SIEVED = ("method=cores", "method.sieve_from=1", "method.local.cores.ramp_start=0", "noise.rho=0.8", "rounds=4")

KNOWN = Known(
    entries=(
        Entry("cores", ("method=cores", "method.sieve_from=2", *ONE_STAGE), of("cores")),
        Entry(
            "cores_of_all_labels_with_batch_norm",
            (
                *("method=cores", "method.local.cores.prior=uniform", "method.local.cores.rescaled=false"),
                *("method.beta=0.5", "partition=fedcorr", *NORMED, *ONE_STAGE),
            ),
            of("cores"),
        ),
        Entry(
            "fedcorr_and_cores",
            ("method=fedcorr", "method/local=[cores]", *THREE_STAGES),
            fedcorr("cores"),
            BORDERS,
        ),
    ),
    golden={"cores": ("method=cores", "method.local.cores.ramp_start=1", "method.sieve_from=2", "rounds=6")},
    neutral={"cores": (("method=cores", "method.beta=0", "method.sieve_from=9", "rounds=4"), FEDAVG)},
    alive={"cores": SIEVED},
    switches={
        SIEVED: (
            "method.sieve_from=2",
            "method.beta=1",
            "method.local.cores.prior=uniform",
            "method.local.cores.rescaled=false",
            "method.local.cores.ramp_start=1",
            "method.local.cores.ramp_length=3",
        )
    },
)
