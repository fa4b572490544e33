"""Everything that can be chosen by name, as strings: nothing is imported until it is used, so listing is cheap.

One row per thing: its name, where it is, one line about it, and where it comes from. `registry.py` finds and imports
what is named here. `KINDS` says what the lists are for.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["CODECS", "DATASETS", "GRAPHS", "KINDS", "METHODS", "MODELS", "PARTITIONS", "Kind", "Row"]


class Row(NamedTuple):
    """One thing that can be chosen by name."""

    name: str
    target: str
    summary: str
    paper: str = ""


class Kind(NamedTuple):
    """One kind of thing, and the section of an experiment that chooses one.

    Attributes:
        name: of the list (`coterie list methods`) and of the entry points (`coterie.methods`).
        section: of the config file.
        default: what is used where an experiment names none.
        functions: a class of this kind has one of these.
        rows: what can be chosen.
        argument: of the function, where a class of another kind has a function of the same name.
        common: where the settings are declared that everything of this kind has.
    """

    name: str
    section: str
    default: str
    functions: tuple[str, ...]
    rows: list[Row]
    argument: str = ""
    common: str = ""


def _rows(package: str, rows: Iterable[tuple[str, ...]]) -> list[Row]:
    return [Row(name, f"{package}.{target}", *about) for name, target, *about in rows]


METHODS = _rows("coterie.methods", [
    ("local", "local:Local", "training alone, with early stopping for each client"),
    ("pooled", "pooled:Pooled", "one model on all data, which needs them in one place"),
    ("guess", "guess:Guess", "no model: the commonest class, or the mean, of each client's own training data"),
    ("fedavg", "fedavg:FedAvg", "one model for all, averaged at a hub", "McMahan et al. 2017"),
    ("fedavg-finetuned", "fedavg_finetuned:FedAvgFinetuned",
     "the shared model, tuned on each client's own data", "Yu et al. 2020"),
    ("fedprox", "fedprox:FedProx", "FedAvg whose clients stay near the hub's model", "Li et al. 2020"),
    ("fedavgm", "fedopt:FedAvgM", "FedAvg with momentum at the hub", "Hsu et al. 2019"),
    ("fedadam", "fedopt:FedAdam", "FedAvg whose hub steps with Adam", "Reddi et al. 2021"),
    ("fedyogi", "fedopt:FedYogi", "FedAvg whose hub steps with Yogi", "Reddi et al. 2021"),
    ("ditto", "ditto:Ditto", "a personal model tied to the shared one", "Li et al. 2021"),
    ("pfedme", "pfedme:PFedMe",
     "personal models near a shared one, by Moreau envelopes", "T Dinh et al. 2020"),
    ("l2gd", "l2gd:L2GD", "personal models that step towards their mean now and then", "Hanzely and Richtarik 2020"),
    ("async-l2gd", "async_l2gd:AsyncL2GD",
     "clients in known clusters, tied to their cluster's mean and to everybody's", "Lyu et al. 2022, Algorithm 1"),
    ("async-al2sgd+", "async_al2sgd_plus:AsyncAL2SGDPlus",
     "async-l2gd with momentum and variance reduction: converges to the minimiser", "Lyu et al. 2022, Algorithm 2"),
    ("local-exact", "exact:LocalExact", "tables: linear or logistic regression of each client alone, exactly"),
    ("pooled-exact", "exact:PooledExact",
     "tables: one linear or logistic regression for all, exactly; no sample travels"),
    ("hierarchical", "exact:Hierarchical",
     "tables: exact regressions of clients in known groups that borrow strength; one round", "Lyu et al. 2022, (5.2)"),
    ("gossip-sgd", "gossip_sgd:GossipSGD",
     "average with the neighbours and step, without a hub (D-PSGD, DSGD)", "Lian et al. 2017"),
    ("sgp", "sgp:SGP",
     "stochastic gradient push: over directed networks whose links come and go, without a hub", "Assran et al. 2019"),
    ("spdb", "spdb:SPDB",
     "personal layers as a lower level; exact consensus on the others, without a hub", "Lu et al. 2022"),
    ("spd", "spd:SPD", "gossip without bias: a primal-dual correction", "Lu et al. 2022"),
    ("d2", "d2:D2", "gossip without bias: the corrected step is mixed", "Tang et al. 2018"),
    ("gnsd", "gnsd:GNSD", "gossip without bias: gradients are tracked", "Lu et al. 2019"),
    ("fedper", "fedper:FedPer", "personal layers on a base that is averaged at a hub", "Arivazhagan et al. 2019"),
    ("fedrep", "fedrep:FedRep",
     "as fedper, but the personal layers are fitted first, then the base", "Collins et al. 2021"),
    ("component", "component:Component",
     "a shared component, and personal ones that similar clients share exactly", "Zhao et al., Algorithm 6"),
    ("network-lasso", "network_lasso:NetworkLasso",
     "personal models tied along a similarity network: similar clients get exactly the same one", "Hallac et al. 2015"),
    ("pdbo-mtl", "pdbo_mtl:PDBOMTL",
     "common base predictors; personal weights by hyper-gradients over directed links", "Terashita and Hara 2023"),
    ("scool-sbm", "scool_sbm:ScoolSBM",
     "learn with whom to cooperate, with a block model over clients as prior", "Li et al. 2024"),
    ("scool-attention", "scool_attention:ScoolAttention",
     "learn with whom to cooperate, with attention between models as prior", "Li et al. 2024"),
    ("scool-mmsbm", "scool_mmsbm:ScoolMMSBM",
     "learn with whom to cooperate; a client may have several roles", "Li et al. 2024, appendix F"),
    ("fomo", "fomo:Fomo",
     "neighbours' models weighted by how much they help on the client's validation samples", "Zhang et al. 2021"),
    ("cga", "cga:CGA", "a step in a direction that increases no neighbour's loss", "Esfandiari et al. 2021"),
    ("dada", "dada:Dada",
     "personal models and a sparse graph of similar clients, in turns (Dada with SGD instead of boosting)",
     "Zantedeschi et al. 2020"),
    ("meta-l2c", "meta_l2c:MetaL2C",
     "mixing weights learned by gradient descent on the client's validation loss (L2C, without the meta network)",
     "Li et al. 2022"),
    ("pfedgraph", "pfedgraph:PFedGraph",
     "weights from the angle between models' displacements and the amount of data", "Ye et al. 2023"),
    ("fedamp", "fedamp:FedAMP",
     "a pull towards the clients whose models are near, by distance", "Huang et al. 2021"),
    ("scaffold", "scaffold:Scaffold",
     "FedAvg whose local steps are corrected for the drift of clients that differ", "Karimireddy et al. 2020"),
    ("feddyn", "feddyn:FedDyn",
     "FedAvg with losses changed so that each client's best model is the best for all", "Acar et al. 2021"),
    ("moon", "moon:Moon", "FedAvg that keeps features near those of the hub's model", "Li et al. 2021"),
    ("per-fedavg", "per_fedavg:PerFedAvg",
     "a shared model from which one step on a client's own data leads far (MAML)", "Fallah et al. 2020"),
    ("apfl", "apfl:APFL",
     "a mixture of an own model and the shared one, in a learned proportion", "Deng et al. 2020"),
    ("fedala", "fedala:FedALA",
     "each round starts from a learned mixture of the own model and the shared one", "Zhang et al. 2023"),
    ("fedbn", "fedbn:FedBN", "FedAvg with personal normalisation layers, for inputs that differ", "Li et al. 2021"),
    ("fedbabu", "fedbabu:FedBABU",
     "a shared body under a fixed head; each client fine-tunes the whole at the end", "Oh et al. 2022"),
    ("lg-fedavg", "lg_fedavg:LGFedAvg",
     "personal lower layers under upper ones that are averaged; few bytes", "Liang et al. 2020"),
    ("fedrod", "fedrod:FedRoD",
     "a shared model for balanced classes and a personal head for the client's own", "Chen and Chao 2022"),
    ("fedproto", "fedproto:FedProto",
     "own models that share only the mean features of each class; fewest bytes", "Tan et al. 2022"),
    ("ifca", "ifca:IFCA",
     "several shared models; each client trains the one that fits it best", "Ghosh et al. 2020"),
    ("fedem", "fedem:FedEM",
     "personal mixtures of several shared models", "Marfoq et al. 2021"),
])  # fmt: skip

DATASETS = _rows("coterie.data", [
    ("digits", "embedded:Digits", "8x8 handwritten digits, embedded: 1,797 images, 10 classes", "scikit-learn"),
    ("digit-scanners", "scanners:DigitScanners",
     "the digits at 24 sites whose scanners turn or invert them: hidden groups, few samples", "scikit-learn"),
    ("hierarchical-linear", "synthetic:HierarchicalLinear",
     "linear or logistic regression: clients in clusters around a common centre", "Lyu et al. 2022, section 6.1"),
    ("planted-groups", "synthetic:PlantedGroups", "Gaussian classes; clients of a group share them"),
    ("chem97", "studies:Chem97", "A-level chemistry: 31,022 pupils, 2,410 schools, 131 districts", "mlmRev"),
    ("math-achieve", "studies:MathAchieve", "mathematics: 7,185 pupils, 160 schools, 2 sectors", "nlme"),
    ("inst-eval", "studies:InstEval", "ratings of lectures: 73,421, of 1,128 lecturers in 14 departments", "lme4"),
    ("donors", "studies:Donors",
     "answers to a letter: 34,045 former donors in 2,976 areas of 5 income bands", "Karlan and List 2007"),
    ("covtype", "covertype:Covtype",
     "forest cover types: 581,012 cells by soil type or wilderness area", "Blackard and Dean 1999"),
    ("a9a", "libsvm:A9a", "census incomes: 48,842 people by occupation or the like", "Platt 1998"),
    ("human-activity", "activity:HumanActivity",
     "12 activities from a phone's accelerometer, 30 people", "Reyes-Ortiz et al. 2016"),
    ("npz", "files:Npz", "arrays from a .npz file"),
    ("table", "tables.source:Table", "a CSV or Parquet table: a file, a pattern or a folder with one file per site"),
    ("csv", "tables.source:Csv", "a CSV table with a column that says whose row it is"),
    ("parquet", "tables.source:Parquet", "a Parquet table with a column that says whose row it is"),
    ("libsvm", "libsvm:Libsvm", "a file in LIBSVM's sparse text format"),
    ("mnist", "public:Mnist", "28x28 handwritten digits, 70,000 images", "LeCun et al. 1998"),
    ("fashion-mnist", "public:FashionMnist", "28x28 pictures of clothes, 70,000 images", "Xiao et al. 2017"),
    ("cifar10", "public:Cifar10", "32x32 colour photographs, 10 classes", "Krizhevsky 2009"),
    ("cifar100", "public:Cifar100", "32x32 colour photographs, 100 classes in 20", "Krizhevsky 2009"),
    ("emnist", "public:Emnist", "28x28 handwritten letters and digits, 814,255 images", "Cohen et al. 2017"),
    ("shakespeare", "public:Shakespeare", "next character in the speeches of each role", "McMahan et al. 2017"),
    ("mapped", "mapped:Mapped", "a folder of .npy files that are mapped, not read: data larger than memory"),
])  # fmt: skip

PARTITIONS = _rows("coterie.data", [
    ("auto", "partition:DataDefault", "natural where the data say whose sample it is, else classes"),
    ("iid", "partition:Iid", "shuffle and deal out equally"),
    ("classes", "partition:Classes", "N classes per client, in shards", "Li et al. 2024, non-IID"),
    ("groups", "partition:Groups", "groups of clients that share their classes", "Li et al. 2024, non-IID SBM"),
    ("dirichlet", "dirichlet:Dirichlet", "label shares drawn from a Dirichlet law", "Terashita and Hara 2023"),
    ("input-clusters", "dirichlet:InputClusters",
     "Dirichlet labels; each cluster normalises its inputs in its own way", "Terashita and Hara 2023"),
    ("pachinko", "dirichlet:Pachinko", "labels drawn through coarse and fine classes", "Reddi et al. 2021"),
    ("dominant", "dirichlet:Dominant", "one label makes up most of a client's data", "Lu et al. 2022"),
    ("quantity", "partition:Quantity", "equal labels, unequal amounts of data"),
    ("natural", "partition:Natural", "the data say whose sample it is"),
])  # fmt: skip

MODELS = _rows("coterie.models", [
    ("linear", "linear:Linear", "one linear layer: logistic or linear regression"),
    ("mlp", "mlp:Mlp", "fully connected layers"),
    ("cnn", "cnn:Cnn", "two convolutions and two linear layers", "McMahan et al. 2017"),
    ("cnn4", "cnn4:Cnn4", "four convolutions with group norm", "Li et al. 2024"),
    ("mobilenet", "mobilenet:MobileNet",
     "MobileNet-v2 with group norm: 17 inverted residual blocks", "Sandler et al. 2018"),
    ("resnet18", "resnet18:ResNet18",
     "ResNet-18 with group norm, or batch norm whose statistics stay with the client", "He et al. 2016"),
    ("lstm", "lstm:Lstm", "two LSTM layers that predict the next character", "McMahan et al. 2017"),
    ("logistic", "logistic:Logistic", "logistic regression; the first class is the reference, with output 0"),
])  # fmt: skip

GRAPHS = _rows("coterie.graphs", [
    ("auto", "topologies:MethodDefault",
     "what suits the method: complete where it learns whom to hear, similarity where it clusters clients along a path, "
     "random-directed where it pushes, else exponential"),
    ("complete", "topologies:Complete", "everyone hears everyone"),
    ("ring", "topologies:Ring", "each client hears the ones beside it"),
    ("group-ring", "topologies:GroupRing", "a ring of overlapping groups", "Li et al. 2024, C.2"),
    ("bipartite", "topologies:Bipartite",
     "two random sides; each client hears 10 of the other side", "Li et al. 2024, C.2"),
    ("erdos-renyi", "topologies:ErdosRenyi", "each pair is joined with a given probability"),
    ("k-regular", "topologies:KRegular", "random; every client has k neighbours"),
    ("torus", "topologies:Torus", "a grid whose borders meet"),
    ("star", "topologies:Star", "everyone hears the first client"),
    ("exponential", "topologies:Exponential", "neighbours at distances 1, 2, 4, 8, ..."),
    ("edges", "topologies:Edges", "any graph of yours, from a file NetworkX reads"),
    ("similarity", "similarity:Similarity",
     "similar clients hear each other: nearest neighbours by data summaries", "Zhao et al., similarity network"),
    ("random-directed", "directed:RandomDirected",
     "every ordered pair has its own probability; links are drawn anew in every step", "Terashita and Hara 2023"),
    ("time-varying", "directed:TimeVarying", "a sequence of directed graphs of yours, from a file"),
])  # fmt: skip

CODECS = _rows("coterie.codecs", [
    ("none", "raw:Raw", "every number as it is"),
    ("float16", "half:Half", "numbers in half precision: half the bytes, three digits"),
    ("qsgd", "qsgd:QSGD",
     "numbers rounded to a few levels, up or down at random, unbiased", "Alistarh et al. 2017"),
    ("top-k", "top_k:TopK",
     "only the largest numbers; what was not sent is added to the next message", "Stich et al. 2018"),
    ("fused", "fused:Fused",
     "gradients evened out to runs of equal numbers, optionally with a codebook", "Zhao et al., section 2"),
])  # fmt: skip

KINDS = {
    kind.name: kind
    for kind in (
        Kind("methods", "method", "fedavg", ("round", "fit"), METHODS),
        Kind("datasets", "data", "digits", ("load",), DATASETS),
        Kind("partitions", "partition", "auto", ("__call__",), PARTITIONS,
             common="coterie.experiment.parts:PartitionSettings"),
        Kind("models", "model", "mlp", ("build",), MODELS, "shape", common="coterie.experiment.parts:ModelSettings"),
        Kind("graphs", "graph", "auto", ("build",), GRAPHS, common="coterie.experiment.parts:GraphSettings"),
        Kind("codecs", "codec", "none", ("reduce",), CODECS),
    )
}  # fmt: skip
