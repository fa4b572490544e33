from coterie.models.augment import Augment as Augment
from coterie.models.cnn import Cnn as Cnn
from coterie.models.cnn4 import Cnn4 as Cnn4
from coterie.models.convert import replace_convolutions as replace_convolutions
from coterie.models.linear import Linear as Linear
from coterie.models.lstm import Lstm as Lstm
from coterie.models.mlp import Mlp as Mlp
from coterie.models.mobilenet import MobileNet as MobileNet
