"""The page of opset conversion says what was measured."""

from __future__ import annotations

from tools import opset_table


def test_each_opset_and_direction_has_a_row_and_each_network_its_opsets() -> None:
    counts = {"ours": {"right": 3, "refused": 1}, "theirs": {"right": 2, "wrong": 2}}
    suite = {11: {"down": counts}}
    networks = {"net": {"ours": [9, 11], "theirs": []}}
    assert opset_table.rows_of_suite(suite) == [["down to 11", "3", "1", "0", "2", "0", "2"]]
    assert opset_table.rows_of_networks(networks) == [["net", "9, 11", "none"]]
    made = opset_table.page(suite, networks, every=4)
    assert "one case in 4" in made
    assert "--every 4" in made
