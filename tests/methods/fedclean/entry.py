"""What tests must know of FedClean."""

from tests.entries import NORMED, Entry, Known

LENGTHS = ("method.T1=2", "method.T2=2", "method.T3=2", "noise.rho=0.8", "train.lr=0.2")
QUICK = ("method.epochs_alone=3", "method.confidence=0.15", "method.inferred_share=1", "method.predicted_share=1")
RUN = ("method=fedclean", *QUICK, *LENGTHS)


def stages(rest: str = "Mean(used), Replace") -> dict[str, str]:
    """FedClean's stages."""
    parts = f"2 rounds: Uniform, AcceptedSamples, cross_entropy, {rest}, inferred_labels"
    return {"warmup": f"{parts}, inferred at end", "correct": f"{parts}, predicted at end", "usual": parts}


KNOWN = Known(
    entries=(
        Entry("fedclean", RUN, stages(), (1, 2, 4)),
        Entry(
            "fedclean_by_co_teaching_with_batch_norm_on_unequal_clients",
            (
                *("method=fedclean", "method/exchange=[fedclean_co_teaching]", "method.train_on=accumulated"),
                *("method.exchange.inferred_labels.learner.loss.forget_rate=0.3", *QUICK, *LENGTHS, *NORMED),
                *("partition=fedcorr", "partition.alpha=1.0"),
            ),
            stages(),
            (1, 2, 4),
        ),
    ),
    golden={"fedclean": ("method=fedclean", *QUICK, "method.T1=2", "method.T2=2", "method.T3=2")},
    switches={
        (*RUN, "fraction=1.0"): (
            *("method.epochs_alone=1", "method.lr_alone=0.01", "method.train_on=accumulated", "method.mixup_alpha=0"),
            *("method.inferred_share=0.1", "method.predicted_share=0.1", "method.confidence=0.9", "method.T1=3"),
            *("method/aggregator=mean", "method.exchange.inferred_labels.learner.loss.alpha=0"),
        ),
    },
    needed={
        "batch/fedclean_accepted": ("method/exchange=[fedcorr_lid,fedclean_joint_opt]",),
        "corrector/fedclean": ("method=fedclean",),
        "exchange/fedclean_joint_opt": ("method=fedclean",),
        "exchange/fedclean_co_teaching": ("method=fedclean",),
    },
)
