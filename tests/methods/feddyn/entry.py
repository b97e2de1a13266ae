"""What tests must know of FedDyn."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import LAST_ONLY, THREE_STAGES, fedcorr

FADING = ("train.lr_decay=0.9", "method.server.evaluate=server")

KNOWN = Known(
    entries=(
        Entry(
            "feddyn",
            ("method=feddyn", "method.feddyn_alpha=0.1", *ONE_STAGE),
            fedavg(terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
        ),
        Entry(
            "feddyn_with_batch_norm",
            (
                "method=feddyn",
                "method.local.feddyn.mean_samples=21.25",
                "method/batch=mixup",
                *NORMED,
                *ONE_STAGE,
                *FADING,
            ),
            fedavg(batch="Mixup", terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
        ),
        Entry(
            "fedcorr_and_feddyn",
            (
                "method=fedcorr",
                "method/local=[cross_entropy,feddyn]",
                "method/aggregator=uniform_mean",
                "method/server=feddyn",
                *THREE_STAGES,
            ),
            fedcorr(terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
            (16, 18, 19),
        ),
    ),
    golden={
        "feddyn": ("method=feddyn", "rounds=6"),
        "feddyn_server": ("method=feddyn", "method.server.evaluate=server", "train.lr_decay=0.9", "rounds=6"),
    },
    neutral={
        "feddyn": (
            ("method=feddyn", "method.feddyn_alpha=0", "method/server=replace", "rounds=4"),
            (*FEDAVG, "method/aggregator=uniform_mean"),
        ),
        "feddyn_with_batch_norm": (
            ("method=feddyn", "method.feddyn_alpha=0", "method/server=replace", "rounds=4", *NORMED),
            (*FEDAVG, "method/aggregator=uniform_mean", *NORMED),
        ),
        "fedcorr_and_feddyn": (
            ("method=fedcorr", "method/local=[cross_entropy,feddyn]", "method/server=feddyn", *LAST_ONLY),
            ("method=feddyn", "method/aggregator=mean", "rounds=4"),
        ),
    },
    alive={
        "feddyn_alpha": ("method=feddyn", "method.feddyn_alpha=0.01", "method/server=replace", "rounds=2"),
        "feddyn_server": ("method=feddyn", "method.feddyn_alpha=0", "rounds=2"),
    },
    needed={"server/feddyn": ("method/local=[cross_entropy,feddyn]",)},
)
