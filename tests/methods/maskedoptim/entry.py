"""What tests must know of MaskedOptim."""

from tests.entries import ASSESSED, NORMED, Entry, Known

SPLIT = ("method.s1=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")


def stages(batch: str = "Plain", rest: str = "DrawnBackMedian(uniform), Replace", terms: str = "") -> dict[str, str]:
    """MaskedOptim's stages, which have the same parts."""
    return {
        name: f"{length} rounds: Uniform, {batch}, maskedoptim{terms}, {rest}, class_losses"
        for name, length in (("warmup", 2), ("usual", 3))
    }


OPTIM = (*("method=maskedoptim", "method.s1=2", "method.T=3", "noise.rho=0.6", "fraction=1.0"), *NORMED)
BOTH = "method/exchange=[fedcorr_lid,fednoro_class_losses]"

KNOWN = Known(
    entries=(
        Entry("maskedoptim", ("method=maskedoptim", *SPLIT), stages(), ASSESSED),
        Entry(
            "maskedoptim_with_batch_norm",
            ("method=maskedoptim", "method.label_batch=null", *NORMED, *SPLIT),
            stages(),
            ASSESSED,
        ),
        Entry(
            "maskedoptim_and_mixup",
            ("method=maskedoptim", "method/batch=mixup", "method/aggregator=fednoro_distance_aware", *SPLIT),
            stages("Mixup", "DistanceAware, Replace"),
            ASSESSED,
        ),
        Entry(
            "maskedoptim_and_fedprox_on_unequal_clients",
            (
                *("method=maskedoptim", "method/local=[maskedoptim,fedprox]", *SPLIT),
                *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
            ),
            stages(terms=" + fedprox"),
            ASSESSED,
        ),
    ),
    golden={"maskedoptim": ("method=maskedoptim", "method.s1=2", "method.T=4")},
    alive={"maskedoptim": ("method=maskedoptim", "method.s1=1", "method.T=0")},
    switches={
        OPTIM: (
            *(
                "method.alpha=0.1",
                "method.beta=0.5",
                "method.scale=5",
                "method.label_lr=100",
                "method.label_batch=null",
            ),
            *("method.compatible=0.4", "method.received=0.5", "method.iterations=1"),
            "method/aggregator=fednoro_distance_aware",
        )
    },
    needed={"local/maskedoptim": (BOTH,), "aggregator/maskedoptim": (BOTH,)},
)
