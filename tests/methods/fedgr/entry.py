"""What tests must know of FedGR."""

from tests.entries import NORMED, Entry, Known
from tests.methods.fedcorr.entry import FINETUNE, PREPROCESS, THREE_STAGES

LENGTHS = ("method.T_wu=1", "method.T=3")
NOISE = ("noise=symmetric", "noise.eta=0.4")
SURE = "method.confidence=0.15"
"""So low that a hardly trained network gives pseudo-labels."""


def stages(usual: int = 3) -> dict[str, str]:
    """FedGR's stages."""
    rest = "Plain, fedgr, Mean(samples), Replace, label_sieve"
    return {"warmup": f"1 passes: OnePass, {rest}", "usual": f"{usual} rounds: Uniform, {rest}"}


RUN = ("method=fedgr", *LENGTHS, SURE, "fraction=1.0", "train.lr=0.2", *NOISE)
OFF = ("method.lambda_b=0", "method.lambda_r=0", "method.view=plain", "fraction=1.0")

KNOWN = Known(
    entries=(
        Entry("fedgr", ("method=fedgr", *LENGTHS, SURE, *NOISE), stages(), (1, 2, 3)),
        Entry(
            "fedgr_as_released_with_batch_norm_on_unequal_clients",
            (
                *("method=fedgr", *LENGTHS, SURE, "method.teacher=released", "method.posterior=batch"),
                *("method.sticky=true", "partition=fedcorr", "partition.alpha=1.0", *NORMED, *NOISE),
            ),
            stages(),
            (1, 2, 3),
        ),
        Entry(
            "fedcorr_and_fedgr",
            (
                *("method=fedcorr", "method/local=[fedgr]", "method/exchange=[fedcorr_lid,fedgr_label_sieve]"),
                *("method/batch=plain", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, label_sieve,").replace("Mixup", "Plain"),
                "finetune": FINETUNE.replace("Replace,", "Replace, label_sieve,").replace("Mixup", "Plain"),
                "usual": "2 rounds: Uniform, Plain, fedgr, Mean(samples), Replace, label_sieve",
            },
            (16, 18, 19),
        ),
    ),
    golden={"fedgr": ("method=fedgr", "method.T_wu=1", "method.T=4", "method.confidence=0.3")},
    neutral={
        "fedgr_that_never_refines": (
            ("method=fedgr", *OFF, "method.T_wu=4", "method.T=0"),
            ("method=fedavg", "fraction=1.0", "rounds=4"),
        )
    },
    switches={
        RUN: (
            *(
                "method.beta=0.1",
                "method.confidence=0.5",
                "method.lambda_b=0",
                "method.lambda_r=0.5",
                "method.gamma_l=0.5",
            ),
            *("method.gamma_g=0.2", "method.teacher=released", "method.posterior=batch", "method.view=plain"),
            "method.soft_stage=1",
        ),
        (*RUN, "method.T=6", "method.confidence=0.3"): ("method.sticky=true",),
    },
    needed={
        "local/fedgr": ("method/exchange=[fedcorr_lid,fedgr_label_sieve]", "method/batch=plain"),
    },
)
