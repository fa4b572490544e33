"""A run that is resumed in a later stage of its method finds a state of the form that it expects."""

import pytest

from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_mmsbm import ScoolMMSBM
from coterie.methods.scool_sbm import ScoolSBM
from coterie.testing.contract import Case, resumes


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ScoolSBM, {}),
        (ScoolAttention, {"serve": "mixture"}),
        pytest.param(ScoolMMSBM, {}, marks=pytest.mark.soak),
        pytest.param(ScoolAttention, {}, marks=pytest.mark.soak),
        pytest.param(ScoolSBM, {"m_step": "first-order"}, marks=pytest.mark.soak),
    ],
)
def test_the_form_of_a_state_in_a_later_stage(method, settings):
    resumes(Case(method, sparsify_after=2, fraction=0.3, **settings))
