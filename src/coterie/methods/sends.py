"""What a method's messages are, and what is known to leak from them: the words of `coterie disclose`.

A method declares one `Sending` for each verb it sends with, and for the answers to its questions:

    sends: ClassVar[Sends] = {"mix": MODEL, "ask": MODEL, "answer": LOSS}

Shapes, receivers and bytes are not declared: they are found by tracing a round (`sites/tracing.py`), and a test
compares both with what is really sent. Leaks are those that the literature knows, without a claim that there are no
others.
"""

import dataclasses
from collections.abc import Mapping

__all__ = [
    "CHANGE", "CURVATURE", "FROM_GRADIENTS", "FROM_MODELS", "FROM_NUMBERS", "GRADIENT", "LOSS", "MODEL",
    "MODEL_AND_COUNT", "SAMPLES", "Sending", "Sends",
]  # fmt: skip

FROM_MODELS = (
    "Parameters that were trained on a site's rows can reveal whether a known record was among them (membership "
    "inference), what is typical of a class (model inversion) and, after few steps on few rows, the rows themselves "
    "(gradient inversion)."
)
FROM_GRADIENTS = (
    "A gradient of few rows can be turned back into these rows, or nearly so (gradient inversion); one of many rows "
    "reveals at least whether a known record was among them (membership inference)."
)
FROM_NUMBERS = (
    "Single numbers about a site's rows. Over many rounds they say how well given models fit these rows, from which "
    "properties of the rows (such as shares of classes) can be guessed."
)


@dataclasses.dataclass(frozen=True)
class Sending:
    """What a message is, and what is known to leak from it."""

    what: str
    leaks: str


Sends = Mapping[str, Sending]

MODEL = Sending("the shared part of its model", FROM_MODELS)
MODEL_AND_COUNT = Sending("the shared part of its model, and how many training rows it has", FROM_MODELS)
CHANGE = Sending("the change of its model by local training", f"{FROM_MODELS} {FROM_GRADIENTS}")
GRADIENT = Sending("gradients of its loss at the model that it was asked about", FROM_GRADIENTS)
LOSS = Sending("the loss of the model that it was asked about, on a few of its rows", FROM_NUMBERS)
CURVATURE = Sending("how curved its loss is (the largest and the smallest), and numbers that follow", FROM_NUMBERS)
SAMPLES = Sending("its training and validation rows", "Everything: the rows themselves.")
