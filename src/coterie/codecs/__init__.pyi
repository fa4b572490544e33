from coterie.codecs.base import Codec as Codec
from coterie.codecs.fused import Fused as Fused
from coterie.codecs.half import Half as Half
from coterie.codecs.qsgd import QSGD as QSGD
from coterie.codecs.raw import Raw as Raw
from coterie.codecs.top_k import TopK as TopK
