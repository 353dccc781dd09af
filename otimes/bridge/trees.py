"""The tree of an attribution, with names: an exact partition that can be split further."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from otimes.algebra import Architecture, PathTerm
from otimes.numeric.nodes import Node
from otimes.numeric.tree import PathTree


@dataclass(frozen=True)
class TreeNode:
    """One path, or all paths with some last components.

    ``key`` is a path expression that matches just these paths: ``.. > 0.7 > 1.4``, or a whole path.
    ``value`` is what they add, in logits, exactly; ``count`` how many they are.
    """

    key: str
    value: float
    count: int
    complete: bool
    tree: AttributionTree = field(repr=False, compare=False)
    node: Node = field(repr=False, compare=False)

    def children(self, top: int | None = None) -> list[TreeNode]:
        """The parts that it splits into, largest first; they add up to it. None for one path."""
        if self.complete:
            return []
        found = self.tree.paths.children(self.node.components)
        return [self.tree.named(node) for node in (found if top is None else found[:top])]

    def remainder(self, top: int) -> float:
        """What the children beyond the first ``top`` add up to."""
        if self.complete:
            return 0.0
        return self.tree.paths.children(self.node.components).remainder(top)


class AttributionTree:
    """All paths of a target (or those that were chosen), as a tree of exact sums.

    The tree of a side of an attention score is the same: of the paths to its queries or keys.

    >>> import otimes as ox
    >>> run = ox.load("attn-only-2l").run("The sea was")
    >>> tree = ox.attribute(run, " the").tree()
    >>> leaves = tree.split(3)
    >>> abs(sum(leaf.value for leaf in leaves) - tree.root.value) < 1e-9
    True
    """

    def __init__(self, architecture: Architecture, paths: PathTree) -> None:
        """Name the nodes of a tree of numbers."""
        self.architecture = architecture
        self.paths = paths

    @property
    def root(self) -> TreeNode:
        """All paths."""
        return self.named(self.paths.root)

    def named(self, node: Node) -> TreeNode:
        """A node of numbers with its path expression."""
        grid = self.architecture.language.grid
        components = tuple(grid.component(block, index) for block, index in node.components)
        if node.complete:
            source = self.architecture.sources[node.source]
            key = PathTerm(self.architecture, source, components).path
        else:
            names = self.architecture.words.names
            key = " > ".join(["..", *(names[component] for component in components)])
        return TreeNode(key, node.value, node.count, node.complete, self, node)

    def split(self, times: int) -> list[TreeNode]:
        """Split the leaf of largest absolute value, so many times.

        Returns:
            All leaves, largest first; they add up to the root.
        """
        leaves, done = [(-abs(self.root.value), 0, self.root)], list[TreeNode]()
        serial = 1
        for _ in range(times):
            while leaves and leaves[0][2].complete:
                done.append(heapq.heappop(leaves)[2])
            if not leaves:
                break
            for child in heapq.heappop(leaves)[2].children():
                heapq.heappush(leaves, (-abs(child.value), serial, child))
                serial += 1
        return sorted([*done, *(leaf for *_, leaf in leaves)], key=lambda leaf: -abs(leaf.value))

    def __iter__(self) -> Iterator[TreeNode]:
        """The children of the root."""
        return iter(self.root.children())
