"""What tests must know of FedRN."""

from tests.entries import ASSESSED, FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg

CHOOSING = ("method.T_wu=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")
NEAR = "Mean(samples), Replace, reliable_neighbours"
FEDRN = {
    "warmup": f"2 rounds: Uniform, Plain, cross_entropy, {NEAR}",
    "usual": f"3 rounds: Uniform, ReliableSamples, cross_entropy, {NEAR}",
}
RN = ("method=fedrn", "method.T_wu=2", "method.T=2", "noise.rho=0.8", "fraction=1.0", "train.lr=0.2")

KNOWN = Known(
    entries=(
        Entry("fedrn", ("method=fedrn", *CHOOSING), FEDRN, ASSESSED),
        Entry(
            "fedrn_with_batch_norm_on_unequal_clients",
            (
                *("method=fedrn", "method/batch=fedrn_reliable_samples", "method.neighbours=3", "method.alpha=0"),
                *(*NORMED, *CHOOSING),
                *("partition=fedcorr", "partition.alpha=1.0", "train.lr_decay=0.9"),
            ),
            FEDRN,
            ASSESSED,
        ),
        Entry(
            "fedavg_beside_reliable_neighbours",  # in stacks: clients choose samples, but train on all
            (
                *("method=fedavg", "method/exchange=[fedrn_reliable_neighbours]", *ONE_STAGE),
                "method.exchange.reliable_neighbours.stage=1",
            ),
            fedavg(rest=NEAR),
        ),
    ),
    golden={"fedrn": ("method=fedrn", "method.T_wu=3", "method.T=5")},
    neutral={"fedrn_that_never_leaves_its_warm_up": (("method=fedrn", "method.T_wu=4", "method.T=0"), FEDAVG)},
    alive={"fedrn": ("method=fedrn", "method.T_wu=1", "method.T=3")},
    switches={
        RN: (
            *("method.neighbours=0", "method.neighbours=1", "method.alpha=0", "method.alpha=1", "method.threshold=0.8"),
            *("method.head_lr=0.01", "method.head_epochs=3", "method/batch=plain"),
            *(f"method.exchange.reliable_neighbours.{value}" for value in ("tolerance=1.0", "min_variance=0.1")),
            "method.exchange.reliable_neighbours.head.momentum=0.9",
        )
    },
    needed={"batch/fedrn_reliable_samples": ("method/exchange=[fedcorr_lid,fedrn_reliable_neighbours]",)},
)
