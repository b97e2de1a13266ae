"""What tests must know of SELFIE."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, of

NOISE = ("noise=symmetric", "noise.eta=0.4")
SHORT = ("method=selfie", "method.length=2", "method.warmup=1", "method.epsilon=0.1", *NOISE)
RUN = (*SHORT, "fraction=1.0", "rounds=4")

KNOWN = Known(
    entries=(
        Entry("selfie", (*SHORT, *ONE_STAGE), of("selfie")),
        Entry(
            "selfie_as_released_with_batch_norm_on_unequal_clients",
            (
                *(*SHORT, "method.empty=zero", "method.append=before", "partition=fedcorr", "partition.alpha=1.0"),
                *("eval.validation=0.2", *NORMED, *ONE_STAGE),
            ),
            of("selfie"),
        ),
    ),
    golden={"selfie": (*SHORT[:4], "method.noise_rate=0.4", "rounds=6")},
    neutral={
        "selfie_that_never_leaves_its_warm_up": (
            ("method=selfie", "method.warmup=4", *NOISE, "rounds=4"),
            (*FEDAVG, *NOISE),
        ),
        "selfie_without_noise": (
            ("method=selfie", "method.noise_rate=0", "method.length=99", "method.warmup=0", *NOISE, "rounds=4"),
            (*FEDAVG, *NOISE),
        ),
    },
    alive={"selfie": (*RUN, *NOISE)},
    switches={
        RUN: (
            *("method.noise_rate=0.2", "method.length=3", "method.epsilon=0.4", "method.warmup=2"),
            *("method.append=before", "method.empty=zero"),
        )
    },
)
