"""What tests must know of FedNoRo."""

from tests.entries import ASSESSED, NORMED, Entry, Known

SPLIT = ("method.s1=2", "method.T=3", "method.ramp_end=4", "noise.rho=0.8", "fraction=0.75")


def stages(batch: str = "Plain", rest: str = "DistanceAware, Replace", terms: str = "") -> dict[str, str]:
    """FedNoRo's stages, which have the same parts."""
    return {
        name: f"{length} rounds: Uniform, {batch}, fednoro{terms}, {rest}, class_losses"
        for name, length in (("warmup", 2), ("usual", 3))
    }


NORO = (*("method=fednoro", "method.s1=2", "method.T=2", "method.ramp_end=3", "noise.rho=0.6", "fraction=1.0"), *NORMED)

KNOWN = Known(
    entries=(
        Entry("fednoro", ("method=fednoro", *SPLIT), stages(), ASSESSED),
        Entry(
            "fednoro_with_batch_norm",
            (
                *("method=fednoro", "method/aggregator=fednoro_distance_aware", "method.distance_buffers=true"),
                *("method.inference_augment=true", *NORMED, *SPLIT),
            ),
            stages(),
            ASSESSED,
        ),
        Entry(
            "fednoro_and_mixup",
            ("method=fednoro", "method/batch=mixup", "method/aggregator=mean", *SPLIT),
            stages("Mixup", "Mean(samples), Replace"),
            ASSESSED,
        ),
        Entry(
            "fednoro_and_fedprox_on_unequal_clients",
            (
                *("method=fednoro", "method/local=[fednoro,fedprox]", "method.distance=flat_l2", *SPLIT),
                *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
            ),
            stages(terms=" + fedprox"),
            ASSESSED,
        ),
    ),
    golden={"fednoro": ("method=fednoro", "method.s1=2", "method.T=4", "method.ramp_end=4")},
    alive={"fednoro": ("method=fednoro", "method.s1=1", "method.T=0")},
    switches={
        NORO: (
            *("method.temperature=2", "method.distillation=0.2", "method.ramp_end=8", "method.distance=flat_l2"),
            *("method.distance_buffers=true", "method/aggregator=mean"),
        )
    },
    needed={
        "local/fednoro": ("method/exchange=[fedcorr_lid,fednoro_class_losses]",),
        "aggregator/fednoro_distance_aware": ("method/exchange=[fedcorr_lid,fednoro_class_losses]",),
    },
)
