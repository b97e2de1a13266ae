"""What tests must know of FedReDA."""

from tests.entries import NORMED, Entry, Known

FEATURES = ("dataset=wine", "~dataset.train_size", "~dataset.test_size", "partition.num_clients=2")
LENGTHS = (
    "method.T_epochs=3",
    "method.T=4",
    "method.plain_rounds=1",
    "train.lr=0.2",
    "noise=symmetric",
    "noise.eta=0.4",
)
RUN = ("method=fedreda", *FEATURES, *LENGTHS, "method.every=1", "method.T=5", "fraction=1.0")


def stages(usual: int = 4) -> dict[str, str]:
    """FedReDA's stages: no pull in the first."""
    rest = "TrustedMean, Replace, leave_one_out"
    return {
        "pretrain": f"1 rounds: Uniform, Plain, fedreda, {rest}",
        "usual": f"{usual} rounds: Uniform, Plain, fedreda + fedprox, {rest}",
    }


KNOWN = Known(
    entries=(
        Entry("fedreda", RUN, stages(5), (1, 2, 3)),
        Entry(
            "fedreda_of_whole_networks_with_batch_norm_on_unequal_clients",
            ("method=fedreda", "partition=fedcorr", "partition.alpha=1.0", *LENGTHS, *NORMED),
            stages(),
            (1, 3),
        ),
    ),
    golden={"fedreda": ("method=fedreda", "method.T_epochs=2", "method.T=4")},
    alive={"fedreda": ("method=fedreda", *LENGTHS)},
    switches={
        RUN: (
            *("method.plain_rounds=6", "method.every=3", "method.mu=1", "method.T_epochs=2"),
            "method/aggregator=mean",
        ),
    },
    needed={
        "local/fedreda": ("method/exchange=[fedcorr_lid,fedreda_leave_one_out]",),
        "aggregator/fedreda_trusted_mean": ("method/exchange=[fedcorr_lid,fedreda_leave_one_out]",),
    },
)
