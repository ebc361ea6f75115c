"""Names of hosts as panes show them."""

from __future__ import annotations

from collections.abc import Sequence


def short_names(names: Sequence[str]) -> list[str]:
    """The names without the domain that all of them share: `gpu00`, `gpu01`; as they are where they share none."""
    parts = [name.partition(".") for name in names]
    domain = parts[0][2] if parts else ""
    same = {tail for _, _, tail in parts} == {domain} and len({head for head, _, _ in parts}) == len(parts)
    address = domain.rpartition(".")[2].isdigit()
    return [head for head, _, _ in parts] if same and domain and not address and len(parts) > 1 else list(names)
