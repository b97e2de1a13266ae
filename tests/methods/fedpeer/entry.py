"""What tests must know of FedPeer."""

from tests.entries import DROPOUT, FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import FINETUNE, PREPROCESS, THREE_STAGES

PEER_REST = "Mean(samples), Scaled, label_sharing"
OPENSET = ("partition=openset", "noise=symmetric", "noise.eta=0.3", *ONE_STAGE)
PEER_SMALL = ("method=fedpeer", "rounds=3", "partition=openset", "noise=symmetric")

KNOWN = Known(
    entries=(
        Entry("fedpeer", ("method=fedpeer", *OPENSET), fedavg(terms="fedpeer", rest=PEER_REST)),
        Entry(
            "fedpeer_cores", ("method=fedpeer", "method.peer=cores", *OPENSET), fedavg(terms="fedpeer", rest=PEER_REST)
        ),
        Entry(
            "fedpeer_by_itself",
            ("method=fedpeer", "method.peer_dist=local", "method.ramp=true", "method.ramp_start=1", *OPENSET),
            fedavg(terms="fedpeer", rest=PEER_REST),
        ),
        Entry(
            "fedpeer_and_mixup",
            ("method=fedpeer", "method/batch=mixup", "method.floor_terms=both", *NORMED, *ONE_STAGE),
            fedavg(batch="Mixup", terms="fedpeer", rest=PEER_REST),
        ),
        Entry(
            "fedpeer_in_half_steps",
            ("method=fedpeer", "method.alpha_g=0.5", *OPENSET),
            fedavg(terms="fedpeer", rest=PEER_REST),
        ),
        Entry(
            "fedcorr_and_fedpeer",
            (
                "method=fedcorr",
                "method/local=[fedpeer]",
                "method/exchange=[fedcorr_lid,fedpeer_label_sharing]",
                *THREE_STAGES,
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, label_sharing,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, label_sharing,"),
                "usual": "2 rounds: Uniform, Mixup, fedpeer, Mean(samples), Replace, label_sharing",
            },
            (16, 18, 19),
        ),
    ),
    golden={
        "fedpeer": ("method=fedpeer", "rounds=6"),
        "fedpeer_cores": ("method=fedpeer", "method.peer=cores", "rounds=6"),
        "fedpeer_half_steps": ("method=fedpeer", "method.alpha_g=0.5", "rounds=6"),
    },
    neutral={
        "fedpeer": (("method=fedpeer", "method.beta=0", "rounds=4"), FEDAVG),
        "fedpeer_with_dropout": (("method=fedpeer", "method.beta=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
        "fedpeer_and_mixup": (
            ("method=fedpeer", "method.beta=0", "method.peer=cores", "method/batch=mixup", "rounds=4"),
            ("method=fedavg", "method/batch=mixup", "rounds=4"),
        ),
        "fedpeer_before_its_ramp": (("method=fedpeer", "method.ramp=true", "method.ramp_start=4", "rounds=4"), FEDAVG),
        "fedpeer_without_privacy": (
            ("method=fedpeer", "method.epsilon=100.0", "rounds=4"),
            ("method=fedpeer", "method.peer_dist=global_true", "rounds=4"),
        ),
    },
    alive={"fedpeer": ("method=fedpeer", "rounds=4")},
    switches={
        PEER_SMALL: (
            "method.epsilon=1.0",
            "method.peer_dist=global_true",
            "method.peer_dist=local",
            "method.peer_dist=uniform",
            "method.peer=cores",
            "method.beta=0.5",
            "method.ramp=true",
            "method.prob_floor=0.1",
            "method.floor_terms=both",
        )
    },
    needed={"local/fedpeer": ("method/exchange=[fedcorr_lid,fedpeer_label_sharing]",)},
)
