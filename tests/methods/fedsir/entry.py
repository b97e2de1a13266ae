"""What tests must know of FedSIR."""

from tests.entries import NORMED, Entry, Known

SMALL = ("method.fewest=1", "method.fewest_shared=1", "noise.rho=0.8", "train.lr=0.2", "fraction=0.75")
LENGTHS = ("method.T=4", "method.every=2", "method.ramp_end=4", "method.identify_epochs=1")
RUN = ("method=fedsir", *LENGTHS, *SMALL)


def stages(usual: int = 4, batch: str = "Plain", rest: str = "DistanceAware") -> dict[str, str]:
    """FedSIR's stages."""
    return {
        "preprocess": f"1 rounds: Uniform, {batch}, cross_entropy, CleanMean, Replace, subspaces",
        "usual": f"{usual} rounds: Uniform, {batch}, fedsir, {rest}, Replace, subspaces",
    }


KNOWN = Known(
    entries=(
        Entry("fedsir", RUN, stages(), (1, 2, 3)),
        Entry(
            "fedsir_as_released_with_batch_norm_on_unequal_clients",
            (
                *("method=fedsir", "method.inference_augment=true", "method.distance_buffers=true"),
                *("partition=fedcorr", "partition.alpha=1.0", *LENGTHS, *SMALL, *NORMED),
            ),
            stages(),
            (1, 3),
        ),
        Entry(
            "fedsir_and_mixup",
            ("method=fedsir", "method/batch=mixup", "method/aggregator=mean", *LENGTHS, *SMALL),
            stages(batch="Mixup", rest="Mean(samples)"),
            (1, 3),
        ),
    ),
    golden={"fedsir": (*RUN, "method.distillation=0.5")},
    neutral={},
    alive={"fedsir": RUN},
    switches={
        (*RUN, "fraction=1.0"): (
            *("method.every=0", "method.every=3", "method.fewest_shared=50", "method.strength=0.9"),
            *("method.residuals=1", "method.temperature=2", "method.distillation=0.9", "method.ramp_end=8"),
            *("method.fewest=3", "method.identify_epochs=2", "method.identify_lr=0.01"),
            *("method.identify_weight_decay=0.1", "method/aggregator=mean"),
        ),
        (*("method=fedsir", *LENGTHS, *SMALL, "fraction=1.0"), *NORMED): ("method.distance_buffers=true",),
    },
    needed={
        "local/fedsir": ("method/exchange=[fedcorr_lid,fedsir_subspaces]",),
        "aggregator/fedsir_clean_mean": ("method/exchange=[fedcorr_lid,fedsir_subspaces]",),
    },
)
