"""What tests must know of FOCUS."""

from tests.entries import CLEAN, NORMED, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, FINETUNE, PREPROCESS, THREE_STAGES

CREDIBLE = "CredibilityMean, Replace, credibility"
NOISY = ("method=focus", "eval.benchmark=0.2", "noise.rho=0.8", "rounds=4")

KNOWN = Known(
    entries=(
        Entry("focus", ("method=focus", *CLEAN), fedavg(rest=CREDIBLE)),
        Entry(
            "focus_with_batch_norm",
            ("method=focus", "method.alpha=3", "partition=fedcorr", *NORMED, *CLEAN),
            fedavg(rest=CREDIBLE),
        ),
        Entry(
            "fedcorr_and_focus",
            (
                *("method=fedcorr", "method/aggregator=focus", "method/exchange=[fedcorr_lid,focus_credibility]"),
                *("eval.benchmark=0.2", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, credibility,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, credibility,"),
                "usual": "2 rounds: Uniform, Mixup, cross_entropy, CredibilityMean, Replace, credibility",
            },
            BORDERS,
        ),
    ),
    golden={"focus": ("method=focus", "eval.benchmark=0.2", "rounds=6")},
    alive={"focus": ("method=focus", "eval.benchmark=0.2", "rounds=4")},
    switches={NOISY: ("method.alpha=5", "method/aggregator=mean")},
    needed={"aggregator/focus": ("method/exchange=[fedcorr_lid,focus_credibility]",)},
)
