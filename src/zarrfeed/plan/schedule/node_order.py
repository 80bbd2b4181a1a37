"""The order and the part of one node, where samples are dealt to nodes and each has an epoch order of its own."""

from __future__ import annotations

from dataclasses import replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.schedule.resources import ResourcePlanner
from zarrfeed.plan.shares.affinity import Dealing, Part, blocks_together, seed_of_node


def order_of_node(whole: Order, planner: ResourcePlanner, node: int, num_nodes: int) -> tuple[Order, Part]:
    """Return the epoch order of a node, and which part of all samples it is of.

    The lanes, mix and strip of its order, which a state holds, are the same on all nodes: they suit the part that needs
    most memory, and are no more than any part allows.

    Raises
    ------
    ConfigError
        If there are fewer samples than nodes, or consumers have runs of whole blocks.
    """
    options = planner.options
    if options.whole_blocks:
        raise ConfigError("runs of whole blocks cannot be dealt to nodes")
    whole.check_dealt()
    dealing = Dealing.of(whole, num_nodes, blocks_together(planner.fields, whole, num_nodes))
    fewest_blocks, shortest = dealing.fewest_blocks, whole.length // num_nodes
    lanes = None if options.lanes is None else min(whole.lanes, shortest)
    mix = None if options.mix is None else min(whole.mix, fewest_blocks)
    hardest = replace(whole, selection=dealing.part(dealing.hardest), lanes=1, mix=mix or 1, strip=1)
    mixed = planner.suited(hardest, lanes, mix)
    order = replace(
        mixed,
        selection=dealing.part(node),
        seed=seed_of_node(whole.seed, node),
        lanes=min(mixed.lanes, shortest),
        mix=min(mixed.mix, fewest_blocks),
        strip=min(mixed.strip, fewest_blocks),
    )
    whole = replace(whole, mix=order.mix)
    return order, Part(node, num_nodes, whole, dealing.longest, dealing.long_nodes, fewest_blocks)
