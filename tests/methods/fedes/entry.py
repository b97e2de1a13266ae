"""What tests must know of FedES."""

from tests.entries import ASSESSED, FEDAVG, NORMED, Entry, Known

PRETRAINED = ("method.s1=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")


def stages(
    rest: str = "SelectiveDecay, QualityMean(quality), Replace, quality",
    sampler: str = "Uniform",
    terms: str = "cross_entropy",
) -> dict[str, str]:
    """FedES's stages: whatever is chosen acts in the last one only."""
    return {
        "pretrain": "2 rounds: Uniform, Plain, cross_entropy, Mean(samples), Replace, quality",
        "usual": f"3 rounds: {sampler}, Plain, {terms}, {rest}",
    }


ES = ("method=fedes", "method.s1=2", "method.T=2", "noise.rho=0.8", "fraction=1.0", "train.weight_decay=0.001")

KNOWN = Known(
    entries=(
        Entry("fedes", ("method=fedes", *PRETRAINED), stages(), ASSESSED),
        Entry(
            "fedes_released",
            (
                *("method=fedes", "method.quality=confidence", "method.mask=per_step", "method.mask_target=grad"),
                *("method.aggregation=samples", *PRETRAINED),
            ),
            stages("SelectiveDecay, QualityMean(samples), Replace, quality"),
            ASSESSED,
        ),
        Entry(
            "fedes_per_step",
            (
                *("method=fedes", "method.quality=emd", "method.emd=quantiles", "method.mask=per_step"),
                *("method.cop_norm=none", "method.restart=true"),
                *("train.momentum=0.9", "train.weight_decay=0.001", *PRETRAINED),
            ),
            stages(),
            ASSESSED,
        ),
        Entry(
            "fedes_client_selection",
            (
                *("method=fedes", "method/sampler=fedes_of_quality", "method.segd=false", "method.aggregation=samples"),
                *("method.emd=subset", "method.sign_stat=gmm1d", *PRETRAINED),
            ),
            stages("SelectiveDecay, QualityMean(samples), Replace, quality", "OfQuality"),
            ASSESSED,
        ),
        Entry(
            "fedes_of_relevances",
            ("method=fedes", "method.quality=sfedavg_phi", "eval.benchmark=0.2", *PRETRAINED),
            stages(),
            ASSESSED,
        ),
        Entry(
            "fedes_of_drops",
            (
                "method=fedes",
                "method.quality=fair_qhat",
                "method.cop_norm=none",
                "eval.benchmark=0.2",
                *NORMED,
                *PRETRAINED,
            ),
            stages(),
            ASSESSED,
        ),
        Entry("fedes_of_an_oracle", ("method=fedes", "method.quality=oracle", *PRETRAINED), stages(), ASSESSED),
        Entry("fedes_with_batch_norm", ("method=fedes", *NORMED, *PRETRAINED), stages(), ASSESSED),
        Entry(
            "fedprox_and_quality",
            (
                *("method=fedes", "method/local=[cross_entropy,fedprox]", "method.local.fedprox.mu=0.1"),
                *(
                    "method/aggregator=fedes_quality_mean",
                    "method/gradient=fedes_selective_decay",
                    "method/exchange=[fedes_quality]",
                ),
                *PRETRAINED,
            ),
            stages(terms="cross_entropy + fedprox"),
            ASSESSED,
        ),
    ),
    golden={
        "fedes_restart": (
            *("method=fedes", "method.s1=2", "method.T=4", "fraction=1.0"),
            *("method.restart=true", "method.cop_norm=per_step"),
        ),
        "fedes": ("method=fedes", "method.cop_norm=none", "method.s1=2", "method.T=4", "fraction=1.0"),
    },
    neutral={
        "fedes_of_equals": (
            ("method=fedes", "method.rho_floor=1", "method.s1=2", "method.T=2", "fraction=1.0", "train.momentum=0.9"),
            (*FEDAVG, "fraction=1.0", "train.momentum=0.9"),
        ),
        "fedes_of_equals_in_its_released_form": (
            (
                *("method=fedes", "method.rho_floor=1", "method.s1=2", "method.T=2", "fraction=1.0", *NORMED),
                *("method.mask=per_step", "method.mask_target=grad"),
            ),
            (*FEDAVG, "fraction=1.0", *NORMED),
        ),
        "fedes_that_compares_nobody": (("method=fedes", "method.s1=0", "method.T=4"), FEDAVG),
        "fedes_without_its_schemes": (
            (
                "method=fedes",
                "method.segd=false",
                "method.aggregation=samples",
                "method.s1=2",
                "method.T=2",
                "fraction=1.0",
            ),
            (*FEDAVG, "fraction=1.0"),
        ),
    },
    switches={
        ES: (  # the sign moves nothing here: every client moved more than their mean
            *("method.quality=confidence method.confidence=0.3", "method.cop_params=all"),
            *("method.cop_norm=none", "method.rho_floor=0.5", "method.mask=per_step", "method.mask_target=grad"),
            *("method.segd=false", "method.aggregation=samples", "method/sampler=fedes_of_quality"),
        )
    },
    needed={
        "gradient/fedes_selective_decay": ("method/exchange=[fedcorr_lid,fedes_quality]",),
        "aggregator/fedes_quality_mean": ("method/exchange=[fedcorr_lid,fedes_quality]",),
        "sampler/fedes_of_quality": ("method/exchange=[fedcorr_lid,fedes_quality]",),
    },
)
