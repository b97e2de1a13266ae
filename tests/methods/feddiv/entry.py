"""What tests must know of FedDiv."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg

TWO_STAGES = ("method.T_wu=1", "method.T=3", "method.zeta=0.2", "method.at_least=1", "noise.rho=0.8", "fraction=0.4")


def stages(batch: str = "Reselection", rest: str = "noise_filter") -> dict[str, str]:
    """FedDiv's stages: whatever is chosen acts in the last one only."""
    return {
        "warmup": "1 passes: OnePass, Mixup, cross_entropy, Mean(samples), Replace",
        "usual": f"3 rounds: Uniform, {batch}, cross_entropy + prior, Mean(samples), Replace, {rest}",
    }


WARMED = (4, 8, 10)
"""Of 11 rounds: inside the warm-up, at its end, inside the second stage."""
DIV = (
    *("method=feddiv", "method.T_wu=1", "method.T=6", "method.zeta=0.2", "method.at_least=1", "method.eta=1.0"),
    *("noise.rho=0.8", "fraction=0.25", "dataset.train_size=400"),
)

KNOWN = Known(
    entries=(
        Entry("feddiv", ("method=feddiv", "method.eta=1.0", *TWO_STAGES), stages(), WARMED),
        Entry("feddiv_degraded", ("method=feddiv", "method.filter=degraded", *TWO_STAGES), stages(), WARMED),
        Entry("feddiv_local", ("method=feddiv", "method.filter=local", *TWO_STAGES), stages(), WARMED),
        Entry(
            "feddiv_withdrawn",
            (
                *("method=feddiv", "method.filter_init=blobs", "method.var_agg=squared_share", "method.guard=false"),
                *(
                    "method.sort_components=false",
                    "method.loss=ce_of_softmax",
                    "method.pcs=cached",
                    "method.pcs_start=1",
                ),
                *("method.bias_samples=confident", "method.inference_augment=true", "method.relabel_persist=true"),
                *TWO_STAGES,
            ),
            stages(),
            WARMED,
        ),
        Entry("feddiv_with_batch_norm", ("method=feddiv", *NORMED, *TWO_STAGES), stages(), WARMED),
        Entry(
            "feddiv_on_unequal_clients",
            (
                *("method=feddiv", "method.loss=ce", "method.loss_norm=none"),
                *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *TWO_STAGES),
            ),
            stages(),
            WARMED,
        ),
        Entry(
            "fedavg_and_reselection",
            (
                *("method=fedavg", "method/batch=feddiv_reselection", "method/exchange=[feddiv_noise_filter]"),
                *("method/local=[cross_entropy,feddiv_prior]", *ONE_STAGE),
            ),
            fedavg(batch="Reselection", terms="cross_entropy + prior", rest="Mean(samples), Replace, noise_filter"),
        ),
    ),
    golden={"feddiv": ("method=feddiv", "method.loss=ce", "method.T_wu=2", "method.T=4", "method.zeta=0.3")},
    neutral={
        "feddiv_that_doubts_nothing": (
            (
                "method=feddiv",
                "method.threshold=0",
                "method.mixup=false",
                "method.eta=0",
                "method.T_wu=0",
                "method.T=4",
            ),
            FEDAVG,
        ),
        "feddiv_that_takes_nobody_for_noisy": (
            (
                *("method=feddiv", "method.delta=1", "method.strict_delta=true", "method.mixup=false", "method.eta=0"),
                *("method.T_wu=0", "method.T=4", *NORMED),
            ),
            (*FEDAVG, *NORMED),
        ),
    },
    switches={
        DIV: (
            *(
                "method.filter=degraded",
                "method.filter=local",
                "method.filter_init=blobs",
                "method.var_agg=squared_share",
            ),
            *("method.var_agg=moment_matching", "method.loss=ce", "method.loss_norm=none"),
            *("method.threshold=0.9", "method.delta=0.9", "method.zeta=0.6", "method.relabel=false"),
            *("method.relabel_min_delta=0.9", "method.pcs=cached", "method.pcs=off", "method.clean_agrees=true"),
            *("method.pcs=cached method.pcs_start=4", "method.xi=0", "method.m=0.9", "method.at_least=20"),
            *("method.eta=0", "method.mixup=false", "method.warmup_mixup=false", "method.gamma1=0.4"),
            "method.bias_samples=confident",
        )
    },
    needed={"batch/feddiv_reselection": ("method/exchange=[fedcorr_lid,feddiv_noise_filter]",)},
)
