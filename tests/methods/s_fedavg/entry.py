"""What tests must know of S-FedAvg."""

from tests.entries import CLEAN, FEDAVG, NORMED, Entry, Known, fedavg

RELEVANT_REST = "Mean(uniform), Replace, relevance"
S_FEDAVG = (
    *("method=s_fedavg", "method.temperature=0.001", "eval.benchmark=0.4", "rounds=5", "noise.rho=0.8"),
    *("partition=fedcorr", "partition.num_clients=12", "fraction=0.6"),
)

KNOWN = Known(
    entries=(
        Entry("s_fedavg", ("method=s_fedavg", *CLEAN), fedavg(rest=RELEVANT_REST, sampler="ByRelevance")),
        Entry(
            "s_fedavg_by_orders_with_batch_norm",
            (
                *("method=s_fedavg", "method.temperature=0.01", "method.permutations=2", "fraction=0.9"),
                *("method/aggregator=mean", "method.exchange.relevance.weights=samples", *NORMED, *CLEAN),
            ),
            fedavg(rest="Mean(samples), Replace, relevance", sampler="ByRelevance"),
        ),
        Entry(
            "fedprox_and_relevance",
            (
                *(
                    "method=fedprox",
                    "method.mu=0.1",
                    "method/sampler=s_fedavg_by_relevance",
                    "method/exchange=[s_fedavg_relevance]",
                ),
                *("fraction=0.4", *CLEAN),
            ),
            fedavg(terms="cross_entropy + fedprox", rest="Mean(samples), Replace, relevance", sampler="ByRelevance"),
        ),
    ),
    golden={"s_fedavg": ("method=s_fedavg", "method.temperature=0.05", "eval.benchmark=0.2", "rounds=6")},
    neutral={
        "s_fedavg_of_all": (
            ("method=s_fedavg", "fraction=1.0", "eval.benchmark=0.2", "rounds=4"),
            (*FEDAVG, "method/aggregator=uniform_mean", "fraction=1.0", "eval.benchmark=0.2"),
        )
    },
    alive={"s_fedavg": ("method=s_fedavg", "method/aggregator=mean", "eval.benchmark=0.2", "rounds=4")},
    switches={
        S_FEDAVG: (
            *("method.alpha=0.1", "method.beta=1.0", "method.temperature=0.1", "method.permutations=1"),
            *("method.tolerance=0.3", "method.exchange.relevance.weights=samples", "method/sampler=uniform"),
        )
    },
    needed={"sampler/s_fedavg_by_relevance": ("method/exchange=[fedcorr_lid,s_fedavg_relevance]",)},
)
