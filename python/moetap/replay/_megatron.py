"""What a model of Megatron-Core says about its routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import moetap


def layers_of(model: Any) -> tuple[int, ...]:
    """The hidden layers, from 0, of a model's routers that replay: Ranks.layers of this rank.

    `model` is a module of Megatron-Core, or the list of a virtual pipeline's. The layers are in the
    order in which RouterReplay.set_replay_data() takes them; none in a stage of dense layers.
    ArgumentError if routers do not replay, or pick where replay is not looked at, if two are of one
    layer, or if RouterReplay knows others, which would get these rows.
    """
    chunks = cast("Sequence[Any]", model) if isinstance(model, list | tuple) else [model]
    routers: list[Any] = [module for chunk in chunks for module in chunk.modules()
                          if getattr(module, "router_replay", None) is not None]
    if not all(chunk.config.moe_enable_routing_replay for chunk in chunks):
        raise moetap.ArgumentError(
            "the model's routers do not replay: set moe_enable_routing_replay in its TransformerConfig")
    if not routers:
        return ()
    layers: list[int] = []
    for router in routers:
        layer: int = router.layer_number - 1
        if router.config.moe_router_fusion or router.routing_type == "sinkhorn":
            raise moetap.ArgumentError(
                f"layer {layer}'s router would not look at what it is to replay: switch moe_router_fusion off, "
                "and take another moe_router_load_balancing_type than sinkhorn")
        if layer in layers:
            raise moetap.ArgumentError(
                f"layer {layer} has two routers, as with multi-token prediction, whose layers are numbered "
                "from 1 again and have no rows: give the decoder alone, and set_target_indices() of each router")
        layers.append(layer)
    replays = [router.router_replay for router in routers]
    known: list[Any] = replays[0].global_router_replay_instances  # of the class
    if len(known) != len(replays) or any(a is not b for a, b in zip(known, replays, strict=True)):
        raise moetap.ArgumentError(
            f"RouterReplay has {len(known)} routers, and they are not this model's {len(replays)}: before the "
            "model is built, call RouterReplay.clear_global_router_replay_instances()")
    return tuple(layers)
