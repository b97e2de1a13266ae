"""What tests must know of FedELC."""

from tests.entries import ASSESSED, NORMED, Entry, Known

SPLIT = ("method.s1=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")


def stages(batch: str = "Plain", rest: str = "DistanceAware, Replace", terms: str = "") -> dict[str, str]:
    """FedELC's stages, which have the same parts."""
    return {
        name: f"{length} rounds: Uniform, {batch}, fedelc{terms}, {rest}, class_losses"
        for name, length in (("warmup", 2), ("usual", 3))
    }


ELC = (*("method=fedelc", "method.s1=2", "method.T=3", "noise.rho=0.6", "fraction=1.0"), *NORMED)

KNOWN = Known(
    entries=(
        Entry("fedelc", ("method=fedelc", *SPLIT), stages(), ASSESSED),
        Entry(
            "fedelc_with_batch_norm",
            ("method=fedelc", "method.label_batch=null", "method.distance_buffers=true", *NORMED, *SPLIT),
            stages(),
            ASSESSED,
        ),
        Entry(
            "fedelc_and_mixup",
            ("method=fedelc", "method/batch=mixup", "method/aggregator=mean", *SPLIT),
            stages("Mixup", "Mean(samples), Replace"),
            ASSESSED,
        ),
        Entry(
            "fedelc_and_fedprox_on_unequal_clients",
            (
                *("method=fedelc", "method/local=[fedelc,fedprox]", *SPLIT),
                *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
            ),
            stages(terms=" + fedprox"),
            ASSESSED,
        ),
    ),
    golden={"fedelc": ("method=fedelc", "method.s1=2", "method.T=4")},
    alive={"fedelc": ELC},
    switches={
        ELC: (
            *(
                "method.alpha=0.1",
                "method.beta=0.5",
                "method.scale=5",
                "method.label_lr=100",
                "method.label_batch=null",
            ),
            *(
                "method.local.fedelc.compatible=0.5",
                "method/aggregator=mean",
                "method.distance=flat_l2",
                "method.distance_buffers=true",
            ),
        )
    },
    needed={"local/fedelc": ("method/exchange=[fedcorr_lid,fednoro_class_losses]",)},
)
