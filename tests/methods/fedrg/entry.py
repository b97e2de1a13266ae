"""What tests must know of FedRG."""

from tests.entries import ASSESSED, FEDAVG, NORMED, Entry, Known
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

SMALL = ("method.projector=6", "method.projection=5")
LENGTHS = ("method.T_pre=2", "method.T=3", "noise.rho=0.8", "train.lr=0.2")
RUN = ("method=fedrg", *SMALL, *LENGTHS)
OFF = ("method.T_pre=0", "method.T=4", "method.lambda_n=0", "method.lambda_s=1")
AS_FEDAVG = (*OFF, "method.local.fedrg.symmetric.alpha=1", "method.local.fedrg.symmetric.beta=0")


def stages() -> dict[str, str]:
    """FedRG's stages."""
    return {
        "pretrain": "2 rounds: Uniform, Plain, fedrg_contrast, Mean(samples), Replace, shared_layers",
        "usual": "3 rounds: Uniform, Plain, fedrg, Mean(samples), Replace",
    }


KNOWN = Known(
    entries=(
        Entry("fedrg", RUN, stages(), ASSESSED),
        Entry(
            "fedrg_by_densities_with_batch_norm_on_unequal_clients",
            (
                *("method=fedrg", "method.density=true", "method.pull_absent=true", "method.clusters=4"),
                *("partition=fedcorr", "partition.alpha=1.0", *NORMED, *SMALL, *LENGTHS),
            ),
            stages(),
            ASSESSED,
        ),
        Entry(
            "fedcorr_and_fedrg",
            ("method=fedcorr", "method/local=[fedrg]", "method/batch=plain", *THREE_STAGES),
            {name: acting.replace("Mixup", "Plain") for name, acting in fedcorr("fedrg").items()},
            BORDERS,
        ),
    ),
    golden={"fedrg": ("method=fedrg", *SMALL, "method.T_pre=2", "method.T=4", "train.lr=0.1")},
    neutral={"fedrg": (("method=fedrg", *AS_FEDAVG), FEDAVG)},
    alive={"fedrg": ("method=fedrg", *OFF)},
    switches={
        RUN: (
            *("method.lambda_s=1", "method.lambda_n=0.2", "method.clusters=4", "method.momentum=0.5"),
            *("method.density=true", "method.pull_absent=true", "method.matrix_lr=0.2", "method.view=plain"),
            *("method.projector=7", "method.T_pre=1", "method.stages.pretrain.local.fedrg_contrast.temperature=0.5"),
        ),
    },
    needed={
        "local/fedrg": ("method/batch=plain",),
        "local/fedrg_contrast": (
            "method/local=[cross_entropy,fedrg_contrast]",
            "method/exchange=[fedcorr_lid,shared_layers]",
        ),
    },
)
