"""Routes of an inference engine as the tensors with which a trainer replays them.

A layout says where the tokens of each sequence stand in the trainer's batch: Packed or Padded.
per_layer() gives what a rank's routers take, for Megatron-Core's RouterReplay. stacked() gives the
whole batch with its layers in one array, for verl and slime. Both say in a mask which tokens have
the row that the engine recorded. The others get distinct experts or -1, as the caller asks.
"""

from moetap.replay._arrays import Absent, Targets, per_layer, stacked
from moetap.replay._layouts import Packed, Padded
from moetap.replay._megatron import layers_of
from moetap.replay._ranks import Ranks

__all__ = ["Absent", "layers_of", "Packed", "Padded", "per_layer", "Ranks", "stacked", "Targets"]
