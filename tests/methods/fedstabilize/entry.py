"""What tests must know of FedStabilize."""

from tests.entries import NORMED, Entry, Known

WIDE = ("model.hidden=[12]",)
LENGTHS = ("method.T1=1", "method.T2=3", "noise.rho=0.8", "train.lr=0.2", "fraction=0.75")
RUN = ("method=fedstabilize", "method.theta=0.3", *WIDE, *LENGTHS)


def stages(batch: str = "PrototypeBatches", terms: str = "cross_entropy + fedstabilize") -> dict[str, str]:
    """FedStabilize's stages, which have the same parts."""
    return {
        name: f"{length} rounds: Uniform, {batch}, {terms}, Mean(used), PrototypeHead, by_prototypes"
        for name, length in (("warmup", 1), ("correct", 1), ("usual", 3))
    }


KNOWN = Known(
    entries=(
        Entry("fedstabilize", RUN, stages(), (1, 2, 3)),
        Entry(
            "fedstabilize_with_batch_norm_on_unequal_clients",
            (
                *("method=fedstabilize", "method.relative=true", "method.use=all", "method.loss=ce_of_softmax"),
                *("method.rotation=released", "partition=fedcorr", "partition.alpha=1.0", *NORMED, *LENGTHS),
                "model.width=12",
            ),
            stages(),
            (1, 2, 3),
        ),
    ),
    golden={"fedstabilize": ("method=fedstabilize", "method.theta=0.4", "method.T1=2", "method.T2=4")},
    neutral={
        "fedstabilize": (
            (
                *("method=fedstabilize", "method.alignment=0", "method.uniformity=0", "method.prediction=head"),
                *("method.T1=4", "method.stages.correct.rounds=0", "method.T2=0", *WIDE),
            ),
            ("method=fedavg", "method/batch=mixup", "rounds=4", *WIDE),
        ),
        "fedstabilize_with_batches_as_they_are": (
            (
                *("method=fedstabilize", "method.alignment=0", "method.uniformity=0", "method.prediction=head"),
                *("method.T1=4", "method.stages.correct.rounds=0", "method.T2=0", "method.mixup_alpha=0", *WIDE),
            ),
            ("method=fedavg", "rounds=4", *WIDE),
        ),
    },
    alive={"fedstabilize": (*RUN, "method.T2=2")},
    switches={
        (*RUN, "method.theta=0.7"): ("method.relative=true",),
        RUN: (
            *("method.theta=0.5", "method.use=all", "method.alignment=0.5"),
            *("method.uniformity=0", "method.rotation=released", "method.mixup_alpha=0", "method.prediction=head"),
            *("method/aggregator=mean", "method/batch=mixup", "method.T1=2"),
        ),
    },
    needed={
        "batch/fedstabilize": ("method=fedstabilize",),
        "exchange/fedstabilize_prototypes": ("method/local=[cross_entropy,fedstabilize]",),
        "server/fedstabilize_prototype_head": ("method/local=[cross_entropy,fedstabilize]",),
    },
)
