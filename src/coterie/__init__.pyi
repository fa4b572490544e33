from coterie.comparison.compare import compare as compare
from coterie.comparison.comparison import Comparison as Comparison
from coterie.comparison.sweeps.result import Sweep as Sweep
from coterie.comparison.sweeps.sweep import sweep as sweep
from coterie.data import federation as federation
from coterie.data import load as load
from coterie.data import pool as pool
from coterie.errors import CoterieError as CoterieError
from coterie.experiment.result import Result as Result
from coterie.experiment.run import resume as resume
from coterie.experiment.run import run as run
from coterie.graphs.graph import Graph as Graph
from coterie.pages import report as report
from coterie.serving.exporting import export as export
from coterie.serving.joining import join_trained as join_trained
from coterie.serving.opening import open as open
from coterie.testing.checking import check_method as check_method

from . import methods as methods
from . import models as models

__version__: str
