"""What tests must know of FedCorr, and of any parts in its last stage."""

from tests.entries import DROPOUT, FEDAVG, NORMED, Entry, Known

THREE_STAGES = (
    "method.T1=2",
    "method.T2=2",
    "method.T3=2",
    "method.theta=0.15",  # so low that a hardly trained network changes labels in both stages
    "method.pi=1.0",
    "noise.rho=0.8",
    "fraction=0.4",
)
PREPROCESS = (
    "2 passes: OnePass, Mixup, cross_entropy + adaptive_proximal, Mean(samples), Replace, lid, top_losses at pass"
)
FINETUNE = "2 rounds: CleanOnly, Mixup, cross_entropy, Mean(samples), Replace, all_confident at end"


def fedcorr(
    terms: str = "cross_entropy", rest: str = "Mean(samples), Replace", sampler: str = "Uniform"
) -> dict[str, str]:
    """FedCorr's stages: whatever is chosen acts in the last one only."""
    return {"preprocess": PREPROCESS, "finetune": FINETUNE, "usual": f"2 rounds: {sampler}, Mixup, {terms}, {rest}"}


CHAIN = (3, 8, 17)
"""Of 20 rounds: inside a pass, at its end where labels are corrected, inside the second stage."""
BORDERS = (16, 18)
"""Of 20 rounds: at the ends of the first two stages."""
UNTOUCHED = ("method.T1=0", "method.T2=4", "method.T3=0")
NEUTRAL = ("method.beta=0", "method.correction=false", "method.kappa=1", "method.mixup=false", *UNTOUCHED)
LAST_ONLY = ("method.T1=0", "method.T2=0", "method.T3=4", "method.mixup=false")
SMALL = ("method=fedcorr", "method.T1=2", "method.T2=2", "method.T3=1", "method.theta=0.15", "noise.rho=0.6")

KNOWN = Known(
    entries=(
        Entry("fedcorr", ("method=fedcorr", *THREE_STAGES), fedcorr(), CHAIN),
        Entry("fedcorr_released", ("method=fedcorr_released", *THREE_STAGES), fedcorr(), BORDERS),
        Entry("fedcorr_groups", ("method=fedcorr", "method.gamma1=0.3", *THREE_STAGES), fedcorr(), (2, 4, 9)),
        Entry(
            "fedcorr_parallel",
            ("method=fedcorr", "method.stage1=parallel_average", *THREE_STAGES),
            fedcorr(),
            (1, 2, 4),
        ),
        Entry(
            "fedcorr_and_fedprox",
            ("method=fedcorr", "method/local=[cross_entropy,fedprox]", *THREE_STAGES),
            fedcorr(terms="cross_entropy + fedprox"),
            BORDERS,
        ),
        Entry(
            "fedcorr_and_uniform_mean",
            ("method=fedcorr", "method/aggregator=uniform_mean", *THREE_STAGES),
            fedcorr(rest="Mean(uniform), Replace"),
            BORDERS,
        ),
        Entry(
            "fedcorr_and_median",
            ("method=fedcorr", "method/aggregator=median", *THREE_STAGES),
            fedcorr(rest="Median(uniform), Replace"),
            BORDERS,
        ),
        Entry(
            "fedcorr_and_power_of_choice",
            (
                "method=fedcorr",
                "method/sampler=power_of_choice",
                "method.sampler.d=5",
                "method/aggregator=uniform_mean",
                *THREE_STAGES,
            ),
            fedcorr(sampler="PowerOfChoice", rest="Mean(uniform), Replace"),
            BORDERS,
        ),
        Entry(
            "fedcorr_and_much_else",
            (
                "method=fedcorr",
                "method/local=[generalized_cross_entropy,entropy_minimization,fedprox,feddyn]",
                "method.local.entropy_minimization.start=0",
                "method.local.entropy_minimization.weight=0.4",
                "method/sampler=power_of_choice",
                "method.sampler.d=5",
                "method/aggregator=median",
                "method/server=feddyn",
                *THREE_STAGES,
            ),
            fedcorr(
                sampler="PowerOfChoice",
                terms="generalized_cross_entropy + entropy_minimization + fedprox + feddyn",
                rest="Median(uniform), FedDyn",
            ),
            (16, 18, 19),
        ),
        Entry("fedcorr_with_batch_norm", ("method=fedcorr", *NORMED, *THREE_STAGES), fedcorr(), CHAIN),
        Entry("fedcorr_with_dropout", ("method=fedcorr", "model.dropout=0.3", *THREE_STAGES), fedcorr(), BORDERS),
        Entry(
            "fedcorr_on_unequal_clients",
            ("method=fedcorr", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *THREE_STAGES),
            fedcorr(),
            BORDERS,
        ),
        Entry(
            "fedcorr_and_parts_with_memory",
            (
                "method=fedcorr",
                "method.server._target_=tests.properties.parts.Momentum",
                "+method.server.beta=0.5",
                "+method.local.pull={_target_:tests.properties.parts.Pull,strength:0.1}",
                "method.gradient={_target_:tests.properties.parts.Scaled,by:0.5}",
                *THREE_STAGES,
            ),
            fedcorr(terms="cross_entropy + pull, Scaled", rest="Mean(samples), Momentum"),
            CHAIN,
            testing=True,
        ),
        Entry(
            "fedcorr_and_a_long_step",
            ("method=fedcorr", "method/server=scaled", "method.server.rate=1.2", *NORMED, *THREE_STAGES),
            fedcorr(rest="Mean(samples), Scaled"),
            BORDERS,
        ),
    ),
    golden={
        "fedcorr": ("method=fedcorr", "method.T1=2", "method.T2=2", "method.T3=2", "method.theta=0.3"),
        "fedcorr_released": (
            "method=fedcorr_released",
            "method.T1=2",
            "method.T2=2",
            "method.T3=2",
            "method.theta=0.3",
        ),
    },
    neutral={
        "fedcorr": (("method=fedcorr", *NEUTRAL), FEDAVG),
        "fedcorr_with_batch_norm": (("method=fedcorr", *NEUTRAL, *NORMED), (*FEDAVG, *NORMED)),
        "fedcorr_with_dropout": (("method=fedcorr", *NEUTRAL, *DROPOUT), (*FEDAVG, *DROPOUT)),
        "fedcorr_alpha": (("method=fedcorr", *NEUTRAL[:-4], "method.mixup_alpha=0", *UNTOUCHED), FEDAVG),
        "fedcorr_last_stage": (("method=fedcorr", *LAST_ONLY), FEDAVG),
        "fedcorr_of_two_stages": (
            ("method=fedcorr", *NEUTRAL[:-3], "method.T1=0", "method.T2=1", "method.T3=3"),
            FEDAVG,
        ),
        "fedcorr_and_fedprox": (
            ("method=fedcorr", "method/local=[cross_entropy,fedprox]", "method.local.fedprox.mu=0.1", *LAST_ONLY),
            ("method=fedprox", "method.mu=0.1", "rounds=4"),
        ),
        "fedcorr_with_mixup": (
            ("method=fedcorr", "method.T1=0", "method.T2=0", "method.T3=4"),
            ("method=fedavg", "method/batch=mixup", "rounds=4"),
        ),
    },
    alive={
        "fedcorr_mixup": ("method=fedcorr", *NEUTRAL[:-4], *UNTOUCHED),
        "fedcorr_first_stage": ("method=fedcorr", *NEUTRAL[:-3], "method.T1=1", "method.T2=4", "method.T3=0"),
    },
    switches={
        SMALL: (
            "method.beta=0",
            "method.correction=false",
            "method.mixup=false",
            "method.mixup_stages=[1]",
            "method.kappa=1",
            "method.gamma1=0.5",
            "method.stage1=parallel_average",
            "method.prox=norm",
            "method.rank_loss=global",
            "method.loss=ce_of_softmax",
            "method.pi=0.2",
            "method.theta=0.4",
            "method.k_lid=3",
        ),
        (*SMALL, "method.kappa=0.6", "method.relabel_set=paper"): ("method.relabel_set=lid_noisy",),
    },
    needed={"local/fedcorr_proximal": ("method.stages.usual.silent=[]",)},
)
