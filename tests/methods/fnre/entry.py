"""What tests must know of FNRE."""

from tests.entries import CLEAN, FEDAVG, NORMED, Entry, Known, fedavg

BESIDE = (*FEDAVG, "method/exchange=[fnre]", "eval.benchmark=0.2")
REST = "Mean(samples), Replace, fnre"

KNOWN = Known(
    entries=(
        Entry("fedavg_beside_fnre", ("method=fedavg", "method/exchange=[fnre]", *CLEAN), fedavg(rest=REST)),
        Entry(
            "fedavg_beside_fnre_of_shifted_classes_with_batch_norm",
            (
                *("method=fedavg", "method/exchange=[fnre]", "method.exchange.fnre.prior=shift"),
                *("method.exchange.fnre.wrong=next", "method.exchange.fnre.rounds=[1,2]", "partition=fedcorr"),
                *("partition.alpha=1.0", *NORMED, *CLEAN),
            ),
            fedavg(rest=REST),
        ),
    ),
    golden={"fnre": ("method=fedavg", "method/exchange=[fnre]", "eval.benchmark=0.2", "rounds=4")},
    neutral={"fnre_changes_nothing": (BESIDE, (*FEDAVG, "eval.benchmark=0.2"))},
)
