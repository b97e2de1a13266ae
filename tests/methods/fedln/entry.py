"""What tests must know of FedLN's NA-FedAvg and NNC."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg

LENGTHS = ("method.T_wu=1", "method.T=3", "noise.rho=0.8", "train.lr=0.2")
JUDGED = "NoiseAwareMean, Replace, energies"
STAGES = {
    name: f"{length} rounds: Uniform, Plain, cross_entropy, {JUDGED}"
    for name, length in (("warmup", 1), ("correct", 1), ("usual", 3))
}
NNC = ("method=fedln_nnc", "method.neighbours=5")
NEIGHBOURS = fedavg(batch="NeighboursLabels", rest="Mean(samples), Replace, nearest_labels")

KNOWN = Known(
    entries=(
        Entry("fedln", ("method=fedln", *LENGTHS), STAGES, (1, 2, 4)),
        Entry(
            "fedln_from_the_next_round_with_batch_norm",
            (
                *("method=fedln", "method.apply=next", "method.percentile=40", *NORMED, *LENGTHS),
                *("partition=fedcorr", "partition.alpha=1.0"),
            ),
            STAGES,
            (1, 2, 4),
        ),
        Entry("fedln_nnc", (*NNC, "noise.rho=0.8", *ONE_STAGE), NEIGHBOURS),
        Entry(
            "fedln_nnc_on_unequal_clients_with_batch_norm",
            ("method=fedln_nnc", "partition=fedcorr", "partition.alpha=1.0", *NORMED, *ONE_STAGE),
            NEIGHBOURS,
        ),
    ),
    golden={
        "fedln": ("method=fedln", "method.T_wu=3", "method.T=4", "method.percentile=40"),
        "fedln_nnc": (*NNC, "rounds=6"),
    },
    neutral={
        "fedln_without_noisy_clients": (
            ("method=fedln", "method.T_wu=3", "method.T=0", "method.keep=1", "method.effect=max", "fraction=1.0"),
            (*FEDAVG, "fraction=1.0"),
        ),
        "fedln_nnc": (("method=fedln_nnc", "method.threshold=1.1", "rounds=4"), FEDAVG),
    },
    alive={
        "fedln": ("method=fedln", "method.T_wu=1", "method.T=2", "fraction=1.0", "train.lr=0.2"),
        "fedln_nnc": (*NNC, "rounds=4"),
    },
    switches={
        ("method=fedln", "fraction=0.75", *LENGTHS): (
            *("method.percentile=20", "method.threshold=0.9", "method.keep=0.5", "method.effect=max"),
            *("method.apply=next", "method.suspects=below", "method.T_wu=2", "method/aggregator=mean"),
        ),
        (*NNC, "noise.rho=0.8", "rounds=3"): ("method.neighbours=3", "method.threshold=0.9", "method/batch=plain"),
    },
    needed={
        "batch/fedln_nearest_labels": ("method/exchange=[fedcorr_lid,fedln_nearest_labels]",),
        "aggregator/fedln_noise_aware_mean": ("method/exchange=[fedcorr_lid,fedln_energies]",),
    },
)
