"""What tests must know of FLR, its cases, FLR+, ELR and FedELR."""

from tests.entries import DROPOUT, FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, FINETUNE, PREPROCESS, THREE_STAGES, fedcorr

FLR_WORDS = ("method=flr", "method.R_w=1", *ONE_STAGE)
"""One round of warm-up; from the third of the five rounds on the server's average has a memory."""
FLR_TERMS = "cross_entropy + flr"
FLR_PLUS = ("method=flr_plus", *THREE_STAGES)
FLR_FOUR = ("method.R_w=1", "rounds=4")
FLR_STAGES = ("method.T1=1", "method.T2=2", "method.T3=2", "method.theta=0.15", "noise.rho=0.8")
FLR_SMALL = ("method=flr", "method.R_w=1", "rounds=4", "noise.rho=0.6")

KNOWN = Known(
    entries=(
        Entry("flr", FLR_WORDS, fedavg(terms=FLR_TERMS)),
        Entry("flr_elr", ("method=flr_elr", *FLR_WORDS[1:]), fedavg(terms=FLR_TERMS)),
        Entry("flr_slr", ("method=flr_slr", *FLR_WORDS[1:]), fedavg(terms=FLR_TERMS)),
        Entry("flr_er", ("method=flr_er", *FLR_WORDS[1:]), fedavg(terms=FLR_TERMS)),
        Entry("elr", ("method=elr", *ONE_STAGE), fedavg(terms="cross_entropy + elr")),
        Entry("fedelr", ("method=fedelr", *ONE_STAGE), fedavg(terms="cross_entropy + elr")),
        Entry(
            "flr_once_a_round",
            (*FLR_WORDS, "method.server_pred=once", "method.warmup=server_reg", "method.R=3"),
            fedavg(terms=FLR_TERMS),
        ),
        Entry(
            "flr_on_half_the_samples",
            (*FLR_WORDS, "method.batch._target_=tests.properties.parts.HalfTheSamples"),
            fedavg(batch="HalfTheSamples", terms=FLR_TERMS),
            testing=True,
        ),
        Entry("flr_with_batch_norm", (*FLR_WORDS, *NORMED), fedavg(terms=FLR_TERMS)),
        Entry("flr_and_mixup", (*FLR_WORDS, "method/batch=mixup"), fedavg(batch="Mixup", terms=FLR_TERMS)),
        Entry(
            "flr_and_fedprox",
            ("method=fedprox", "method.mu=0.1", "method/local=[flr,fedprox]", "method.local.flr.R_w=1", *ONE_STAGE),
            fedavg(terms=f"{FLR_TERMS} + fedprox"),
        ),
        Entry(
            "flr_plus",
            FLR_PLUS,
            {
                "preprocess": PREPROCESS,
                "finetune": FINETUNE.replace("cross_entropy", FLR_TERMS),
                "usual": f"2 rounds: Uniform, Mixup, {FLR_TERMS}, Mean(samples), Replace",
            },
            (8, 17, 19),
        ),
        Entry(
            "fedcorr_and_flr",
            ("method=fedcorr", "method/local=[flr]", *THREE_STAGES),
            fedcorr(terms=FLR_TERMS),
            BORDERS,
        ),
    ),
    golden={
        "flr": ("method=flr", "method.R_w=2", "rounds=6"),
        "elr": ("method=elr", "rounds=6"),
        "fedelr": ("method=fedelr", "rounds=6"),
        "flr_plus": (*("method=flr_plus", "method.T1=2", "method.T2=2", "method.T3=2", "method.theta=0.3"),),
    },
    neutral={
        "flr": (("method=flr", "method.lam=0", "rounds=4"), FEDAVG),
        "flr_vanilla": (("method=flr", "method.R_w=0", "method.pseudo_label=vanilla", "rounds=4"), FEDAVG),
        "flr_that_never_leaves_its_warm_up": (("method=flr", "method.R_w=4", "rounds=4"), FEDAVG),
        "flr_with_batch_norm": (("method=flr", "method.lam=0", "rounds=4", *NORMED), (*FEDAVG, *NORMED)),
        "flr_with_dropout": (("method=flr", "method.lam=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
        "flr_and_mixup": (
            ("method=flr", "method.lam=0", "method/batch=mixup", "rounds=4"),
            ("method=fedavg", "method/batch=mixup", "rounds=4"),
        ),
        "flr_and_fedprox": (
            ("method=fedprox", "method.mu=0.1", "method/local=[flr,fedprox]", "method.local.flr.lam=0", "rounds=4"),
            ("method=fedprox", "method.mu=0.1", "rounds=4"),
        ),
        "flr_plus": (("method=flr_plus", "method.lam=0", *FLR_STAGES), ("method=fedcorr", *FLR_STAGES)),
        "elr": (("method=elr", "method.lam=0", "rounds=4"), FEDAVG),
        "fedelr": (("method=fedelr", "method.lam=0", "rounds=4"), FEDAVG),
        "fedelr_as_elr_with_its_constants": (
            ("method=fedelr", "rounds=4"),
            ("method=elr", "method.lam=2", "method.beta=0.1", "rounds=4"),
        ),
        "elr_as_a_case_of_flr": (
            ("method=elr", "method.lam=4", "method.beta=0.5", "rounds=4"),
            (
                *("method=flr_elr", "method.init=zero", "method.clamp=normalised", "method.R_w=0", "method.lam=4"),
                "rounds=4",
            ),
        ),
        "flr_elr": (("method=flr", "method.special=elr", *FLR_FOUR), ("method=flr_elr", *FLR_FOUR)),
        "flr_local_only": (("method=flr", "method.pseudo_label=local_only", *FLR_FOUR), ("method=flr_elr", *FLR_FOUR)),
        "flr_global_only": (
            ("method=flr", "method.pseudo_label=global_only", *FLR_FOUR),
            ("method=flr_slr", *FLR_FOUR),
        ),
        "flr_elr_by_its_values": (
            ("method=flr", "method.alpha=0", "method.alpha_schedule=constant", *FLR_FOUR),
            ("method=flr_elr", *FLR_FOUR),
        ),
        "flr_er_by_its_values": (
            ("method=flr", "method.alpha=0", "method.gamma=0", *FLR_FOUR),
            ("method=flr_er", *FLR_FOUR),
        ),
    },
    alive={"flr": ("method=flr", *FLR_FOUR), "elr": ("method=elr", "rounds=4")},
    switches={
        FLR_SMALL: (
            "method.lam=1",
            "method.alpha=0.5",
            "method.beta=0.1",
            "method.gamma=0.1",
            "method.R=3",
            "method.R_w=2",
            "method.alpha_schedule=constant",
            "method.warmup=server_reg",
            "method.warmup=scheduled",
            "method.pseudo_label=local_only",
            "method.pseudo_label=global_only",
            "method.special=er",
            "method.server_pred=once",
            "method.init=zero",
            "method.inner_max=0.1",
        ),
        (*FLR_SMALL, "method.inner_max=0.8", "method.clamp=inner"): ("method.clamp=normalised",),
    },
    needed={"stages/fedcorr_flr": ("method/local=[flr]",)},
)
