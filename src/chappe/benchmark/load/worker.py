"""One process of a load test. ``frame`` tells its orders and answers."""

from __future__ import annotations

from importlib import import_module

from chappe.benchmark.orders import Orders, process


def run(orders: Orders) -> None:
    """Work from the first order to the last: ``begin`` names a function of a module here, such as ``log.store``.

    Only that module is loaded: for most processes that is half of their start.
    """
    options = orders.next("begin")
    del options["order"]
    module, _, function = options.pop("work").partition(".")
    getattr(import_module(f"chappe.benchmark.load.{module}"), function)(orders, options)


if __name__ == "__main__":
    process(run)
