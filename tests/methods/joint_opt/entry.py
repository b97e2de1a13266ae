"""What tests must know of JointOpt."""

from tests.entries import FEDAVG, HALVES, NORMED, Entry, Known
from tests.methods.fedcorr.entry import FINETUNE, PREPROCESS, THREE_STAGES

RELABELLED = ("method=joint_opt", "method.T_wu=1", "method.T=3", "method.window=3", "method.epochs=2", "noise.rho=0.8")
"""Labels are updated from a client's third epoch on."""


def stages(final: int = 0, batch: str = "Plain", terms: str = "", rest: str = "Mean(samples)") -> dict[str, str]:
    """JointOpt's stages: the chosen terms act in the second one only."""
    return {
        name: f"{length} rounds: Uniform, {batch}, {term}, {rest}, Replace, soft_labels"
        for name, length, term in (
            ("warmup", 1, "cross_entropy"),
            ("usual", 3, f"joint_opt{terms}"),
            ("final", final, "joint_opt"),
        )
    }


JOINT_OPT = ("method.alpha=0", "method.beta=0", "method.update_from=null", *HALVES, "method.epochs=2")
OPT = (
    *("method=joint_opt", "method.T_wu=1", "method.T=3", "method.window=3", "method.epochs=4", "noise.rho=0.8"),
    "train.lr=0.2",
)

KNOWN = Known(
    entries=(
        Entry("joint_opt", RELABELLED, stages(), (1, 2, 3)),
        Entry(
            "joint_opt_with_another_network_on_the_final_labels",
            (*RELABELLED, "method.T_final=2", "method.final_milestones=[1]", "train.keep_momentum=true"),
            stages(2),
            (1, 3, 4, 5),
        ),
        Entry(
            "joint_opt_and_mixup_with_batch_norm",
            (
                *(*RELABELLED, "method/batch=mixup", "method/local=[joint_opt,fedprox]", "method.incomplete=average"),
                *("method.update_from=1", "method/aggregator=uniform_mean", *NORMED),
            ),
            stages(0, "Mixup", " + fedprox", "Mean(uniform)"),
            (1, 2, 3),
        ),
        Entry(
            "joint_opt_on_unequal_clients",
            (*RELABELLED, "method.prior=labels", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
            stages(),
            (1, 2, 3),
        ),
        Entry(
            "fedcorr_and_joint_opt",
            (
                *("method=fedcorr", "method/local=[joint_opt]", "method/exchange=[fedcorr_lid,joint_opt_soft_labels]"),
                *("method.local.joint_opt.window=2", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, soft_labels,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, soft_labels,"),
                "usual": "2 rounds: Uniform, Mixup, joint_opt, Mean(samples), Replace, soft_labels",
            },
            (16, 18, 19),
        ),
    ),
    golden={
        "joint_opt": (
            *("method=joint_opt", "method.T_wu=1", "method.T=4", "method.T_final=2", "method.window=3"),
            *("method.epochs=3", "method.final_milestones=[1]", "method.final_lr=0.1"),
        )
    },
    neutral={
        "joint_opt_that_leaves_labels_as_they_are": (
            (
                *("method=joint_opt", "method.alpha=0", "method.beta=0", "method.update_from=null", *HALVES),
                *("method.epochs=${train.epochs}", "noise.rho=0.6"),
            ),
            (*FEDAVG, "noise.rho=0.6"),
        )
    },
    alive={
        "joint_opt_prior": ("method=joint_opt", *JOINT_OPT, "method.alpha=0.1"),
        "joint_opt_entropy": ("method=joint_opt", *JOINT_OPT, "method.beta=0.1"),
        "joint_opt_epochs": ("method=joint_opt", *JOINT_OPT[:-1], "method.epochs=3"),
    },
    needed={
        "local/joint_opt_final": ("method=joint_opt", "method/local=[joint_opt]"),  # of its last stage alone
    },
    switches={
        OPT: (
            *("method.alpha=0.5", "method.beta=0.2", "method.prior=labels", "method.update_from=1", "method.window=2"),
            *("method.epochs=5", "method.T_final=1", "method.incomplete=average method.window=9"),
        )
    },
)
