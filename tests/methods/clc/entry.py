"""What tests must know of CLC."""

from tests.entries import FEDAVG, NORMED, Entry, Known

LENGTHS = ("method.T_wu=1", "method.T_ho=2", "method.T=2")
SPLIT = ("method.margin=0.01", "noise.rho=0.8", "train.lr=0.2", *LENGTHS)


def stages(batch: str = "Plain", last: str = "Plain", correct: str = ", consensus at end") -> dict[str, str]:
    """CLC's stages."""
    rest = "Mean(used), Replace"
    return {
        "warmup": f"1 rounds: Uniform, Plain, cross_entropy, {rest}",
        "correct": f"2 rounds: Uniform, {batch}, cross_entropy, {rest}, consensus{correct}",
        "usual": f"2 rounds: Uniform, {last}, cross_entropy, {rest}",
    }


KNOWN = Known(
    entries=(
        Entry("clc", ("method=clc", *SPLIT), stages("HoldOut"), (1, 2, 3)),
        Entry(
            "clc_with_batch_norm_on_unequal_clients",
            (
                *("method=clc", "method.decimals=3", "partition=fedcorr", "partition.alpha=1.0", *NORMED, *SPLIT),
                "method/aggregator=used_samples_mean",
            ),
            stages("HoldOut"),
            (1, 2, 3),
        ),
    ),
    golden={"clc": ("method=clc", "method.margin=0.05", "method.T_wu=2", "method.T_ho=3", "method.T=3")},
    neutral={
        "clc_that_holds_nothing_out": (
            ("method=clc", "method.margin=1", "method.T_wu=1", "method.T_ho=3", "method.T=0"),
            FEDAVG,
        ),
        "clc_that_never_leaves_its_warm_up": (
            ("method=clc", "method.T_wu=4", "method.T_ho=0", "method.T=0"),
            FEDAVG,
        ),
    },
    alive={"clc": ("method=clc", "method.T_wu=1", "method.T_ho=3", "method.T=0", "train.lr=0.2")},
    switches={
        ("method=clc", *SPLIT): (
            *("method.margin=0.3", "method.decimals=1", "method/aggregator=mean", "method.T_wu=2"),
            "method/batch=plain",
        )
    },
    needed={
        "batch/clc_hold_out": ("method/exchange=[fedcorr_lid,clc_consensus]",),
        "corrector/clc": ("method=clc",),
    },
)
