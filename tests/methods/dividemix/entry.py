"""What tests must know of DivideMix."""

from tests.entries import ASSESSED, NORMED, Entry, Known

DIVIDED = (
    "method=dividemix",
    "method/batch=dividemix_co_divide",
    "method/local=[dividemix_mixmatch]",
    "method.T_wu=2",
    "method.T=3",
    "noise.rho=0.8",
)


def stages(rest: str = "Mean(samples)") -> dict[str, str]:
    return {
        "warmup": f"2 rounds: Uniform, Plain, warm_up, {rest}, Replace",
        "usual": f"3 rounds: Uniform, CoDivide, mixmatch, {rest}, Replace, division",
    }


DIVIDE = ("method=dividemix", "method.T_wu=2", "method.T=2", "noise.rho=0.8", "train.lr=0.2")

KNOWN = Known(
    entries=(
        Entry("dividemix", DIVIDED, stages(), ASSESSED),
        Entry(
            "dividemix_with_batch_norm_on_unequal_clients",
            (
                *(*DIVIDED, "method.refit=epoch", "method.history=2", "method.penalty=true", "method.prior=labels"),
                *("method.clock=rounds", "method.epochs=3", "train.keep_momentum=true", *NORMED),
                *("partition=fedcorr", "partition.alpha=1.0", "method/aggregator=uniform_mean"),
            ),
            stages("Mean(uniform)"),
            ASSESSED,
        ),
    ),
    golden={"dividemix": ("method=dividemix", "method.T_wu=2", "method.T=4")},
    alive={"dividemix": ("method=dividemix", "method.T_wu=1", "method.T=3")},
    switches={
        DIVIDE: (
            *(
                "method.lambda_u=1",
                "method.refit=epoch",
                "method.threshold=0.9",
                "method.history=5",
                "method.penalty=true",
            ),
            *(
                "method.alpha=0.5",
                "method.temperature=1",
                "method.ramp=1",
                "method.clock=rounds",
                "method.prior=labels",
            ),
            *("method.epochs=3", "method.local.mixmatch.lambda_r=0"),
            *(
                f"method.exchange.division.fitting.{value}"
                for value in ("tolerance=1.0", "min_variance=0.1", "iterations=1")
            ),
        )
    },
    needed={
        "local/dividemix_warm_up": ("method.networks=2",),
        "local/dividemix_mixmatch": ("method.networks=2",),
        "exchange/dividemix_division": ("method.networks=2",),
        "batch/dividemix_co_divide": ("method.networks=2", "method/exchange=[fedcorr_lid,dividemix_division]"),
    },
)
