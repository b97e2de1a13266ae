"""What tests must know of FedExP."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

FAR = "Extrapolated(samples), LastTwo"

KNOWN = Known(
    entries=(
        Entry("fedexp", ("method=fedexp", *ONE_STAGE), fedavg(rest=FAR)),
        Entry(
            "fedexp_as_in_the_paper_with_batch_norm",
            (
                *("method=fedexp", "method.aggregator.weights=uniform", "method.aggregator.epsilon_by=client"),
                *("method.server.evaluate=last", *NORMED, *ONE_STAGE),
            ),
            fedavg(rest=FAR.replace("samples", "uniform")),
        ),
        Entry(
            "fedcorr_and_fedexp",
            ("method=fedcorr", "method/aggregator=fedexp", "method/server=fedexp", *THREE_STAGES),
            fedcorr(rest=FAR),
            BORDERS,
        ),
    ),
    golden={"fedexp": ("method=fedexp", "rounds=6")},
    neutral={
        "fedexp_that_never_goes_further": (
            ("method=fedexp", "method.epsilon=1e9", "method.server.evaluate=last", "rounds=4"),
            FEDAVG,
        )
    },
    alive={"fedexp": ("method=fedexp", "method.epsilon=0", "partition=fedcorr", "rounds=4")},
    switches={
        ("method=fedexp", "method.epsilon=0", "partition=fedcorr", "rounds=4"): (
            "method.aggregator.weights=uniform",
            "method.epsilon=0.1",
        ),
        ("method=fedexp", "method.epsilon=0.001", "partition=fedcorr", "rounds=4"): (
            "method.aggregator.epsilon_by=client",
        ),
    },
)
