"""What the package offers, as strings: nothing is imported until it is used, so that listing costs nothing.

One row a thing: its name, where it lives, one line, and where it comes from. Adding a method touches this table,
its own file, and one row of the contract test. `registry.py` finds and imports what is named here.
"""

from typing import NamedTuple

__all__ = ["CODECS", "DATASETS", "GRAPHS", "KINDS", "METHODS", "MODELS", "PARTITIONS", "Row"]


class Row(NamedTuple):
    """One thing that can be chosen by name."""

    name: str
    target: str
    summary: str
    paper: str = ""


METHODS = [
    Row("local", "coterie.methods.local:Local", "training alone, with early stopping for each client"),
    Row("pooled", "coterie.methods.pooled:Pooled", "all data in one place: the ceiling that reality forbids"),
    Row("fedavg", "coterie.methods.fedavg:FedAvg", "one model for all, averaged at a hub", "McMahan et al. 2017"),
    Row(
        "fedavg-finetuned",
        "coterie.methods.fedavg_finetuned:FedAvgFinetuned",
        "the shared model, tuned on each client's own data",
        "Yu et al. 2020",
    ),
    Row(
        "fedprox", "coterie.methods.fedprox:FedProx", "FedAvg whose clients stay near the hub's model", "Li et al. 2020"
    ),
    Row("ditto", "coterie.methods.ditto:Ditto", "a personal model tied to the shared one", "Li et al. 2021"),
    Row(
        "pfedme",
        "coterie.methods.pfedme:PFedMe",
        "personal models near a shared one that knows it: Moreau envelopes",
        "T Dinh et al. 2020",
    ),
    Row(
        "l2gd",
        "coterie.methods.l2gd:L2GD",
        "personal models that step towards their mean now and then",
        "Hanzely and Richtarik 2020",
    ),
    Row(
        "async-l2gd",
        "coterie.methods.async_l2gd:AsyncL2GD",
        "clients in known clusters, tied to their cluster's mean and to everybody's",
        "Lyu et al. 2022, Algorithm 1",
    ),
    Row(
        "async-al2sgd+",
        "coterie.methods.async_al2sgd_plus:AsyncAL2SGDPlus",
        "async-l2gd with momentum and without noise from its coins: reaches the exact minimiser",
        "Lyu et al. 2022, Algorithm 2",
    ),
    Row(
        "local-exact",
        "coterie.methods.exact:LocalExact",
        "tables: linear or logistic regression of each client alone, exactly",
    ),
    Row(
        "pooled-exact",
        "coterie.methods.exact:PooledExact",
        "tables: one linear or logistic regression for all, exactly; no sample travels",
    ),
    Row(
        "hierarchical",
        "coterie.methods.exact:Hierarchical",
        "tables: exact regressions of clients in known groups, which borrow strength; one round",
        "Lyu et al. 2022, (5.2)",
    ),
    Row(
        "gossip-sgd",
        "coterie.methods.gossip_sgd:GossipSGD",
        "average with the neighbours and step, without a hub (D-PSGD, DSGD)",
        "Lian et al. 2017",
    ),
    Row(
        "sgp",
        "coterie.methods.sgp:SGP",
        "stochastic gradient push: over directed networks whose links come and go, without a hub",
        "Assran et al. 2019",
    ),
    Row(
        "spdb",
        "coterie.methods.spdb:SPDB",
        "layers of one's own as a lower level; the others agreed on exactly, without a hub",
        "Lu et al. 2022",
    ),
    Row("spd", "coterie.methods.spd:SPD", "gossip without bias: a primal-dual correction", "Lu et al. 2022"),
    Row("d2", "coterie.methods.d2:D2", "gossip without bias: the corrected step is mixed", "Tang et al. 2018"),
    Row("gnsd", "coterie.methods.gnsd:GNSD", "gossip without bias: gradients are tracked", "Lu et al. 2019"),
    Row(
        "fedper",
        "coterie.methods.fedper:FedPer",
        "layers of one's own on a base that is averaged at a hub",
        "Arivazhagan et al. 2019",
    ),
    Row(
        "fedrep",
        "coterie.methods.fedrep:FedRep",
        "as fedper, but the layers of one's own are fitted first, then the base",
        "Collins et al. 2021",
    ),
    Row(
        "component",
        "coterie.methods.component:Component",
        "a shared component, and personal ones that alike clients share exactly",
        "Zhao et al., Algorithm 6",
    ),
    Row(
        "network-lasso",
        "coterie.methods.network_lasso:NetworkLasso",
        "personal models tied along a similarity network: alike clients get exactly the same one",
        "Hallac et al. 2015",
    ),
    Row(
        "pdbo-mtl",
        "coterie.methods.pdbo_mtl:PDBOMTL",
        "common base predictors, personal weights learned by hyper-gradients over a directed network",
        "Terashita and Hara 2023",
    ),
    Row(
        "scool-sbm",
        "coterie.methods.scool_sbm:ScoolSBM",
        "learn with whom to cooperate, with a block model over clients as prior",
        "Li et al. 2024",
    ),
    Row(
        "scool-attention",
        "coterie.methods.scool_attention:ScoolAttention",
        "learn with whom to cooperate, with attention between models as prior",
        "Li et al. 2024",
    ),
    Row(
        "scool-mmsbm",
        "coterie.methods.scool_mmsbm:ScoolMMSBM",
        "learn with whom to cooperate; a client may play another role towards each of the others",
        "Li et al. 2024, appendix F",
    ),
    Row(
        "fomo",
        "coterie.methods.fomo:Fomo",
        "neighbours' models weighed by how much they help on one's own validation samples",
        "Zhang et al. 2021",
    ),
    Row(
        "cga",
        "coterie.methods.cga:CGA",
        "a step in a direction none of the neighbours' gradients objects to",
        "Esfandiari et al. 2021",
    ),
    Row(
        "dada",
        "coterie.methods.dada:Dada",
        "personal models and a sparse graph of similar clients, learned in turns",
        "Zantedeschi et al. 2020",
    ),
    Row(
        "meta-l2c",
        "coterie.methods.meta_l2c:MetaL2C",
        "mixing weights learned by gradient descent on one's own validation loss",
        "Li et al. 2022",
    ),
    Row(
        "pfedgraph",
        "coterie.methods.pfedgraph:PFedGraph",
        "weights from the angle between models' displacements and the amount of data",
        "Ye et al. 2023",
    ),
]

DATASETS = [
    Row(
        "digits",
        "coterie.data.embedded:Digits",
        "8x8 handwritten digits, embedded: 1,797 images, 10 classes",
        "scikit-learn",
    ),
    Row(
        "hierarchical-linear",
        "coterie.data.synthetic:HierarchicalLinear",
        "linear or logistic regression: clients in clusters around a common centre",
        "Lyu et al. 2022, section 5",
    ),
    Row("planted-groups", "coterie.data.synthetic:PlantedGroups", "Gaussian classes; clients of a group share them"),
    Row(
        "chem97",
        "coterie.data.studies:Chem97",
        "A-level chemistry: 31,022 pupils, 2,410 schools, 131 districts",
        "mlmRev",
    ),
    Row(
        "math-achieve",
        "coterie.data.studies:MathAchieve",
        "mathematics: 7,185 pupils, 160 schools, 2 sectors",
        "nlme",
    ),
    Row(
        "inst-eval",
        "coterie.data.studies:InstEval",
        "ratings of lectures: 73,421, of 1,128 lecturers in 14 departments",
        "lme4",
    ),
    Row(
        "donors",
        "coterie.data.studies:Donors",
        "answers to a letter: 34,045 former donors in 2,976 areas of 5 income bands",
        "Karlan and List 2007",
    ),
    Row(
        "covtype",
        "coterie.data.covertype:Covtype",
        "forest cover types: 581,012 cells by soil type or wilderness area",
        "Blackard and Dean 1999",
    ),
    Row("a9a", "coterie.data.libsvm:A9a", "census incomes: 48,842 people by occupation or the like", "Platt 1998"),
    Row(
        "human-activity",
        "coterie.data.activity:HumanActivity",
        "12 activities from a phone's accelerometer, 30 people",
        "Reyes-Ortiz et al. 2016",
    ),
    Row("npz", "coterie.data.files:Npz", "arrays from a .npz file"),
    Row("csv", "coterie.data.files:Csv", "a CSV table with a column that says whose row it is"),
    Row("parquet", "coterie.data.files:Parquet", "a Parquet table with a column that says whose row it is"),
    Row("libsvm", "coterie.data.libsvm:Libsvm", "a file in LIBSVM's sparse text format"),
    Row("mnist", "coterie.data.public:Mnist", "28x28 handwritten digits, 70,000 images", "LeCun et al. 1998"),
    Row(
        "fashion-mnist",
        "coterie.data.public:FashionMnist",
        "28x28 pictures of clothes, 70,000 images",
        "Xiao et al. 2017",
    ),
    Row("cifar10", "coterie.data.public:Cifar10", "32x32 colour photographs, 10 classes", "Krizhevsky 2009"),
    Row("cifar100", "coterie.data.public:Cifar100", "32x32 colour photographs, 100 classes in 20", "Krizhevsky 2009"),
    Row(
        "emnist",
        "coterie.data.public:Emnist",
        "28x28 handwritten letters and digits, 814,255 images",
        "Cohen et al. 2017",
    ),
    Row(
        "shakespeare",
        "coterie.data.public:Shakespeare",
        "next character in the speeches of each role",
        "McMahan et al. 2017",
    ),
]

PARTITIONS = [
    Row("iid", "coterie.data.partition:Iid", "shuffle and deal out equally"),
    Row("classes", "coterie.data.partition:Classes", "N classes per client, in shards", "Li et al. 2024, non-IID"),
    Row(
        "groups",
        "coterie.data.partition:Groups",
        "groups of clients that share their classes",
        "Li et al. 2024, non-IID SBM",
    ),
    Row(
        "dirichlet",
        "coterie.data.dirichlet:Dirichlet",
        "label shares drawn from a Dirichlet law",
        "Terashita and Hara 2023",
    ),
    Row(
        "input-clusters",
        "coterie.data.dirichlet:InputClusters",
        "Dirichlet labels; each cluster normalises its inputs in its own way",
        "Terashita and Hara 2023",
    ),
    Row(
        "pachinko",
        "coterie.data.dirichlet:Pachinko",
        "labels drawn through coarse and fine classes",
        "Reddi et al. 2021",
    ),
    Row("dominant", "coterie.data.dirichlet:Dominant", "one label makes up most of a client's data", "Lu et al. 2022"),
    Row("quantity", "coterie.data.partition:Quantity", "equal labels, unequal amounts of data"),
    Row("natural", "coterie.data.partition:Natural", "the data say whose sample it is"),
]

MODELS = [
    Row("linear", "coterie.models.linear:Linear", "one linear layer: logistic or linear regression"),
    Row("mlp", "coterie.models.mlp:Mlp", "fully connected layers"),
    Row("cnn", "coterie.models.cnn:Cnn", "two convolutions and two linear layers", "McMahan et al. 2017"),
    Row("cnn4", "coterie.models.cnn4:Cnn4", "four convolutions with group norm", "Li et al. 2024"),
    Row(
        "mobilenet",
        "coterie.models.mobilenet:MobileNet",
        "MobileNet-v2 with group norm: 17 inverted residual blocks",
        "Sandler et al. 2018",
    ),
    Row("lstm", "coterie.models.lstm:Lstm", "two LSTM layers that predict the next character", "McMahan et al. 2017"),
]

GRAPHS = [
    Row(
        "auto",
        "coterie.graphs.topologies:MethodDefault",
        "what suits the method: complete where it learns whom to hear, random-directed where it pushes, "
        "else exponential",
    ),
    Row("complete", "coterie.graphs.topologies:Complete", "everyone hears everyone"),
    Row("ring", "coterie.graphs.topologies:Ring", "each client hears the ones beside it"),
    Row("group-ring", "coterie.graphs.topologies:GroupRing", "a ring of overlapping groups", "Li et al. 2024, C.2"),
    Row(
        "bipartite",
        "coterie.graphs.topologies:Bipartite",
        "generalised bipartite: every client of one side hears the other",
        "Li et al. 2024, C.2",
    ),
    Row("erdos-renyi", "coterie.graphs.topologies:ErdosRenyi", "each pair is joined with a given probability"),
    Row("k-regular", "coterie.graphs.topologies:KRegular", "random; every client has k neighbours"),
    Row("torus", "coterie.graphs.topologies:Torus", "a grid whose borders meet"),
    Row("star", "coterie.graphs.topologies:Star", "everyone hears the first client"),
    Row("exponential", "coterie.graphs.topologies:Exponential", "neighbours at distances 1, 2, 4, 8, ..."),
    Row("edges", "coterie.graphs.topologies:Edges", "any graph of yours, from a file NetworkX reads"),
    Row(
        "similarity",
        "coterie.graphs.similarity:Similarity",
        "alike clients hear each other: nearest neighbours of small summaries of their data",
        "Zhao et al., similarity network",
    ),
    Row(
        "random-directed",
        "coterie.graphs.directed:RandomDirected",
        "every ordered pair has its own probability; links are drawn anew in every step",
        "Terashita and Hara 2023",
    ),
    Row("time-varying", "coterie.graphs.directed:TimeVarying", "a sequence of directed graphs of yours, from a file"),
]

CODECS = [
    Row("none", "coterie.codecs.raw:Raw", "every number as it is"),
    Row("float16", "coterie.codecs.half:Half", "numbers in half precision: half the bytes, three digits"),
    Row(
        "qsgd",
        "coterie.codecs.qsgd:QSGD",
        "numbers rounded to a few levels, up or down by chance, right on average",
        "Alistarh et al. 2017",
    ),
    Row(
        "top-k",
        "coterie.codecs.top_k:TopK",
        "only the largest numbers; what was not sent is added to the next message",
        "Stich et al. 2018",
    ),
    Row(
        "fused",
        "coterie.codecs.fused:Fused",
        "gradients evened out to runs of equal numbers, optionally with a codebook",
        "Zhao et al., section 2",
    ),
]

KINDS = {
    "methods": METHODS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "graphs": GRAPHS,
    "codecs": CODECS,
}
