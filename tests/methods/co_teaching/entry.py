"""What tests must know of Co-teaching and Co-teaching+."""

from tests.entries import NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

TAUGHT = ("method.num_gradual=2", "noise=symmetric", "noise.eta=0.4", *ONE_STAGE)
TEACHING_REST = "Mean(samples), Replace, small_loss"
TEACHING = (
    *("method=co_teaching_plus", "method.disagree_from=2", "method.num_gradual=3", "method.forget_rate=0.4"),
    *("rounds=4", "noise=symmetric", "noise.eta=0.4"),
)

KNOWN = Known(
    entries=(
        Entry("co_teaching", ("method=co_teaching", *TAUGHT), fedavg(terms="co_teaching", rest=TEACHING_REST)),
        Entry(
            "co_teaching_as_released",
            (
                "method=co_teaching",
                "method.schedule=released",
                "method.exponent=2.0",
                "method.forget_rate=0.3",
                *ONE_STAGE,
            ),
            fedavg(terms="co_teaching", rest=TEACHING_REST),
        ),
        Entry(
            "co_teaching_plus",
            ("method=co_teaching_plus", "method.disagree_from=2", *TAUGHT),
            fedavg(terms="co_teaching", rest=TEACHING_REST),
        ),
        Entry(
            "co_teaching_plus_with_batch_norm",
            ("method=co_teaching_plus", "method.disagree_from=1", "method/batch=mixup", *NORMED, *TAUGHT),
            fedavg(batch="Mixup", terms="co_teaching", rest=TEACHING_REST),
        ),
        Entry(
            "co_teaching_on_unequal_clients",
            ("method=co_teaching", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *TAUGHT),
            fedavg(terms="co_teaching", rest=TEACHING_REST),
        ),
        Entry(
            "co_teaching_by_true_rates",
            ("method=co_teaching", "method/exchange=[co_teaching_small_loss,true_noise_rates]", *TAUGHT),
            fedavg(terms="co_teaching", rest=f"{TEACHING_REST}, true_noise_rates"),
        ),
        Entry(
            "fedcorr_and_co_teaching",
            ("method=fedcorr", "method.networks=2", "method/local=[co_teaching]", *THREE_STAGES),
            fedcorr(terms="co_teaching"),
            BORDERS,
        ),
    ),
    golden={
        "co_teaching": ("method=co_teaching", "method.num_gradual=3", "rounds=6"),
        "co_teaching_plus": ("method=co_teaching_plus", "method.num_gradual=3", "method.disagree_from=2", "rounds=6"),
    },
    switches={
        TEACHING: (
            *("method.forget_rate=0.1", "method.num_gradual=1", "method.exponent=2.0", "method.schedule=released"),
            *("method.disagree_from=1", "method.disagree_from=null"),
        )
    },
    needed={
        "local/co_teaching": ("method.networks=2",),
        "exchange/co_teaching_small_loss": ("method.networks=2", "method/local=[co_teaching]"),
    },
)
