"""What tests must know of M-DYR and its forms."""

from tests.entries import FEDAVG, NORMED, Entry, Known

LENGTHS = ("method.T_wu=2", "method.T=3", "method.fewest=10")
STAGES = {
    "warmup": "2 rounds: Uniform, Mixup, cross_entropy, Mean(samples), Replace",
    "usual": "3 rounds: Uniform, Plain, m_dyr, Mean(samples), Replace",
}
RUN = ("method=m_dyr", "method.T_wu=1", "method.T=3", "method.fewest=10", "fraction=1.0", "noise.rho=0.8")
HARD = ("method=m_dyr_soft_to_hard", *RUN[1:], "method.T=4", "method.guided=1", "method.cooling=3")

KNOWN = Known(
    entries=(
        Entry("m_dyr", ("method=m_dyr", *LENGTHS), STAGES),
        Entry(
            "m_dyr_soft_with_batch_norm_on_unequal_clients",
            (
                *("method=m_dyr_soft", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
                *(*NORMED, *LENGTHS),
            ),
            STAGES,
        ),
        Entry(
            "m_dyr_soft_to_hard",
            ("method=m_dyr_soft_to_hard", "method.guided=1", "method.cooling=2", *LENGTHS),
            STAGES,
        ),
    ),
    golden={
        "m_dyr": ("method=m_dyr", "method.fewest=10", "method.T_wu=2", "method.T=4"),
        "m_dyr_soft_to_hard": (
            *("method=m_dyr_soft_to_hard", "method.guided=1", "method.cooling=3", "method.fewest=10"),
            *("method.T_wu=2", "method.T=4"),
        ),
    },
    neutral={
        "m_dyr_that_never_leaves_its_warm_up": (
            ("method=m_dyr", "method.T_wu=4", "method.T=0"),
            (*FEDAVG, "method/batch=mixup", "method.batch.alpha=32"),
        )
    },
    alive={"m_dyr": RUN},
    switches={
        RUN: (
            *("method.form=soft", "method.form=soft_to_hard", "method.alpha=1", "method.regularisation=0"),
            *("method.T_wu=2", "method.fewest=50"),
        ),
        HARD: ("method.guided=2", "method.cooling=1"),
    },
)
